//! The process in which windows are executed, and the tracer's side of it.
//!
//! Target code runs natively in a window, from a list of harmless instructions. Should that list
//! have a hole, the hole leads into a process that owns nothing: another user, no capabilities, a
//! handful of system calls, and of each target a descriptor of its memory opened for reading
//! (`confine`). It is started anew from the tracer's own program file rather than forked: a fork
//! would hold a copy of the tracer's memory and its mappings of the kernel's rings, and could not
//! be made again once there are threads. So `main` calls [`become_helper_if_asked`] first.
//!
//! Question and answer pass through shared memory with a futex each way (`shared`, where the rule
//! for reading is). Both sides sleep on the same processor, so a turn is two switches of task and
//! no interrupt of an idle processor, a tenth of the time here; a thread with a real-time priority
//! must be pinned for that, or the kernel moves it when it is woken.
//!
//! Nothing that the window process does can hold the tracer longer than [`Limits::time_ns`] and
//! [`Settings::margin`]; its death is noticed at once (`death`). An answer that comes later is
//! thrown away; where there is none for [`Settings::patience`], or a number that cannot be, the
//! process is killed. [`Helper::revive`] starts another, outside stops.
//!
//! Limits: the thread that calls [`Helper::start`] or [`Helper::revive`] must live as long as
//! windows are wanted (`PR_SET_PDEATHSIG` is about threads). A process of the same user as a tracer
//! without root can kill it.

mod clock_pages;
mod confine;
mod death;
mod layout;
mod life;
mod ranges;
mod remote;
mod serve;
mod shared;
mod sys;
#[cfg(test)]
mod tests;
mod window;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use locality_stream::{BlockRecord, Code, InstructionRecord};

pub use layout::Room;
pub use ranges::{Clock, TextRange, What, ranges};
pub use remote::ProcessMemory;
pub use serve::become_helper_if_asked;
pub use window::{Kept, Window};

use crate::state::ThreadState;
use crate::window::{End, Limits};

use layout::{Answer, Ask, MOST_EXTENDED, Request, flat};
use life::{Pin, Process};

pub use confine::{Rules, allow_only, is};

/// Makes this process one that owns nothing, as the window process is: another user, no capabilities, no
/// new ones, no descriptors above `last`, no files and processes. It ends with `parent`. For other helpers
/// that read what strangers send; their system calls they restrict by themselves.
///
/// # Errors
/// A sentence that says what could not be given up; the process must end then.
pub fn give_up_rights(parent: u32, last: std::os::fd::RawFd) -> Result<(), String> {
    /// They have no real-time priority.
    const NO_REAL_TIME_US: u64 = 10_000;
    let given_up = confine::close_above(last)
        .and_then(|()| confine::drop_rights(parent))
        .and_then(|()| confine::set_limits(NO_REAL_TIME_US));
    given_up.map_err(|confine::Refused(what, error)| format!("cannot {what}: {error}"))
}

/// How a helper is started and how long it is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The program that becomes the window process; it calls [`become_helper_if_asked`] first.
    pub program: PathBuf,
    /// Real-time priority, if permitted. Lower than the calling thread's, so that the tracer can
    /// always kill a runaway window process.
    pub real_time: Option<i32>,
    /// No window is longer, whatever its limits say.
    pub longest: Duration,
    /// How much longer than a window's limit the caller waits for the answer.
    pub margin: Duration,
    /// Further time for a busy process before it is killed.
    pub patience: Duration,
    /// The longest windows and all code.
    pub room: Room,
    /// Instructions of an ordinary window, for which memory is made ready at the start.
    pub usual: u32,
    /// Keep it on the processor of the calling thread.
    pub follow: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            program: "/proc/self/exe".into(),
            real_time: None,
            longest: Duration::from_millis(30),
            margin: Duration::from_micros(500),
            patience: Duration::from_millis(50),
            room: Room::for_windows_of(1 << 20),
            usual: 20_000,
            follow: true,
        }
    }
}

/// Why there is no window process, or why it does not take a target.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call of ours failed.
    #[error("cannot {0} for the window process: {1}")]
    System(&'static str, #[source] io::Error),
    /// Confinement failed, or the process died during its start.
    #[error("the window process {0}")]
    Ended(String),
    /// It did not answer in time.
    #[error("the window process did not answer in time")]
    Late,
    /// There is none at the moment.
    #[error("there is no window process at the moment")]
    None,
    /// The memory of a target cannot be read.
    #[error("cannot read the memory of process {0}: {1}")]
    Memory(u32, #[source] io::Error),
}

/// Data about a target, stored for the next window process.
#[derive(Debug)]
struct Known {
    pid: u32,
    memory: File,
    ranges: Vec<TextRange>,
}

/// The window process, seen from the tracer.
#[derive(Debug)]
pub struct Helper {
    settings: Settings,
    process: Option<Process>,
    known: HashMap<u64, Known>,
    instructions: Vec<InstructionRecord>,
    blocks: Vec<BlockRecord>,
    /// Code tables of the window process at its last answer: epoch, instructions, blocks.
    code_now: (u64, usize, usize),
    generation: u32,
    cpu_ns: u64,
    deaths: u64,
    last_words: String,
    /// Deaths without a window between them, and when the next process may be started.
    in_a_row: u32,
    not_before_ns: u64,
}

/// The pause before a new process after a death doubles from this up to 2⁷ times it.
const PAUSE_NS: u64 = 100_000_000;

/// How long a start may take.
const START: Duration = Duration::from_secs(5);

impl Helper {
    /// Starts a window process and waits until it is confined and ready, some milliseconds.
    pub fn start(settings: Settings) -> Result<Helper, Error> {
        let mut helper = Helper::without_process(settings);
        let mut process = Process::start(&helper.settings)?;
        let end = sys::now_ns() + START.as_nanos() as u64;
        while !process.is_ready(sys::now_ns() + 20_000_000) {
            let ended = process.has_ended();
            if ended || sys::now_ns() > end {
                let (_, words) = process.bury();
                return Err(if ended { Error::Ended(words) } else { Error::Late });
            }
        }
        helper.process = Some(process);
        Ok(helper)
    }

    fn without_process(settings: Settings) -> Helper {
        Helper {
            settings,
            process: None,
            known: HashMap::new(),
            instructions: Vec::new(),
            blocks: Vec::new(),
            code_now: (0, 0, 0),
            generation: 0,
            cpu_ns: 0,
            deaths: 0,
            last_words: String::new(),
            in_a_row: 0,
            not_before_ns: 0,
        }
    }

    /// Takes a process whose threads will be stopped, under a key of the caller's. Opens its memory
    /// for reading. After it executed another program its windows say [`Window::gone`]: take it
    /// anew, under the same key if need be.
    pub fn add_process(&mut self, key: u64, pid: u32, maps: &[TextRange]) -> Result<(), Error> {
        let memory = File::open(format!("/proc/{pid}/mem")).map_err(|e| Error::Memory(pid, e))?;
        let ranges = ranges::in_namespace(maps, clock_pages::is_same_time(pid));
        self.known.insert(key, Known { pid, memory, ranges });
        if self.process.as_ref().is_none_or(|process| !process.is_up()) {
            // Handed over when a process exists again.
            return Ok(());
        }
        let handed = self.hand_over(key);
        if matches!(handed, Err(Error::System(..))) {
            self.known.remove(&key);
        }
        handed
    }

    /// The process' ranges are these now.
    pub fn update_maps(&mut self, key: u64, maps: &[TextRange]) -> Result<(), Error> {
        let Some(known) = self.known.get_mut(&key) else { return Ok(()) };
        let ranges = ranges::in_namespace(maps, clock_pages::is_same_time(known.pid));
        let forget = ranges::text_lost(&known.ranges, &ranges);
        let packed = ranges::packed(&ranges);
        known.ranges = ranges;
        if self.process.as_ref().is_none_or(|process| !process.is_up()) {
            return Ok(());
        }
        self.command(key, Ask::Ranges, &packed, forget)
    }

    /// The process has ended, or is no longer traced.
    pub fn remove_process(&mut self, key: u64) {
        if self.known.remove(&key).is_some() {
            // After a failure the process has been killed, and its memory is gone.
            let _ = self.command(key, Ask::Drop, &[], true);
        }
    }

    fn hand_over(&mut self, key: u64) -> Result<(), Error> {
        let (Some(known), Some(process)) = (self.known.get(&key), self.process.as_ref()) else {
            return Err(Error::None);
        };
        let packed = ranges::packed(&known.ranges);
        if let Err(error) = process.send(key, &known.memory) {
            self.kill("could not be sent a descriptor");
            return Err(Error::System("send a descriptor", error));
        }
        self.command(key, Ask::Take, &packed, true)
    }

    fn hand_over_all(&mut self) -> Result<bool, Error> {
        let keys: Vec<u64> = self.known.keys().copied().collect();
        // Each is tried, whatever became of another.
        let handed: Vec<_> = keys.into_iter().map(|key| self.hand_over(key)).collect();
        handed.into_iter().collect::<Result<(), Error>>().map(|()| true)
    }

    /// A question that is not a window.
    fn command(&mut self, key: u64, ask: Ask, ranges: &[[u64; 2]], forget: bool) -> Result<(), Error> {
        let process = self.process.as_mut().ok_or(Error::None)?;
        let request = Request {
            key,
            ask: ask as u32,
            ranges: ranges.len() as u32,
            forget: forget.into(),
            ..Request::default()
        };
        let deadline = sys::now_ns() + self.settings.patience.as_nanos() as u64;
        process.wait_until_idle(deadline);
        process.store_ranges(ranges);
        let Some(answer) = process.ask(&request, &[], deadline) else {
            // The process may remember data that must be forgotten.
            self.kill("did not answer");
            return Err(Error::Late);
        };
        match answer.error {
            0 => Ok(()),
            number => Err(Error::System("take a target", io::Error::from_raw_os_error(number as i32))),
        }
    }

    /// Executes a window of a stopped thread; waits at most for the limit of time and the margin.
    ///
    /// Without a window process, or when it does not answer, the window is empty and ends with
    /// [`End::Helper`].
    pub fn run(&mut self, key: u64, state: &ThreadState, limits: &Limits) -> Window<'_> {
        let (answer, end) = self.ask_for_window(key, state, limits);
        if end != End::Helper {
            self.in_a_row = 0;
        }
        Window::new(answer, end, self)
    }

    fn ask_for_window(&mut self, key: u64, state: &ThreadState, limits: &Limits) -> (Answer, End) {
        let unknown = (Answer { gone: 1, ..Answer::default() }, End::UnreadableCode);
        let silence = (Answer::default(), End::Helper);
        if !self.known.contains_key(&key) {
            return unknown;
        }
        let Some(process) = self.process.as_mut().filter(|process| process.is_up()) else {
            return silence;
        };
        let Some(extended) = state.extended.get(..state.extended.len().min(MOST_EXTENDED)) else {
            return silence;
        };
        let time_ns = limits.time_ns.min(self.settings.longest.as_nanos() as u64);
        let request = Request {
            key,
            instructions: limits.instructions,
            pages: limits.pages,
            time_ns,
            registers: flat(&state.registers),
            ask: Ask::Run as u32,
            extended: extended.len() as u32,
            ..Request::default()
        };
        let deadline = sys::now_ns() + time_ns + self.settings.margin.as_nanos() as u64;
        let pin = self.settings.follow.then(|| Pin::beside(process));
        let answer = process.ask(&request, extended, deadline);
        drop(pin);
        match answer {
            None => silence,
            Some(answer) if answer.error == libc::ESRCH as u32 => unknown,
            Some(answer) => match self.check(&answer) {
                Some(end) => {
                    if answer.epoch != self.code_now.0 {
                        self.begin_generation();
                    }
                    self.code_now = (answer.epoch, answer.instructions as usize, answer.blocks as usize);
                    (answer, end)
                }
                None => {
                    self.kill("answered with numbers that cannot be");
                    silence
                }
            },
        }
    }

    /// How the window ended, where every number is possible.
    fn check(&self, answer: &Answer) -> Option<End> {
        let (room, counts) = (&self.settings.room, &answer.counts);
        let fits = counts.events <= room.events
            && counts.accesses <= u64::from(room.values)
            && counts.accesses <= u64::from(counts.events)
            && counts.blocks <= room.registers
            && counts.blocks <= counts.events
            && answer.instructions <= room.instructions
            && answer.blocks <= room.blocks
            && answer.extended as usize <= MOST_EXTENDED
            && answer.error == 0;
        End::from_number(counts.end).filter(|end| fits && *end != End::Helper)
    }

    fn kill(&mut self, why: &str) {
        let Some(process) = self.process.take() else { return };
        let (cpu_ns, words) = process.bury();
        self.cpu_ns += cpu_ns;
        self.deaths += 1;
        self.last_words = if words.is_empty() { why.to_owned() } else { format!("{why}; {words}") };
        self.not_before_ns = sys::now_ns() + (PAUSE_NS << self.in_a_row.min(7));
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.code_now = (0, 0, 0);
        self.begin_generation();
    }

    fn begin_generation(&mut self) {
        self.instructions.clear();
        self.blocks.clear();
        self.generation += 1;
    }

    /// Looks after the window process; to be called outside stops, as often as is convenient. Kills
    /// one that has not answered for too long, starts another after a death (which takes a moment,
    /// so it is ready at a later call), and hands it all targets. Whether it is ready.
    pub fn revive(&mut self) -> Result<bool, Error> {
        if let Some(process) = &mut self.process {
            let was_up = process.is_up();
            let most = if was_up { self.settings.patience } else { START };
            if process.has_ended() {
                self.kill("has ended");
            } else if process.is_ready(0) && process.is_idle() {
                return if was_up { Ok(true) } else { self.hand_over_all() };
            } else if process.busy_ns() < most.as_nanos() as u64 {
                return Ok(false);
            } else {
                self.kill("did not answer");
            }
        }
        if sys::now_ns() < self.not_before_ns {
            return Ok(false);
        }
        match Process::start(&self.settings) {
            Ok(process) => self.process = Some(process),
            Err(error) => {
                self.not_before_ns = sys::now_ns() + (PAUSE_NS << self.in_a_row.min(7));
                self.in_a_row = self.in_a_row.saturating_add(1);
                return Err(error);
            }
        }
        Ok(false)
    }

    /// Process id, 0 while there is none. Its end may be reported to whoever waits for any child.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// CPU time of all window processes so far: part of the tracer's costs.
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns + self.process.as_ref().map_or(0, Process::cpu_ns)
    }

    /// Window processes that died or were killed.
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    /// Why the last one died.
    pub fn last_words(&self) -> &str {
        &self.last_words
    }

    /// Rises when the code tables start again from empty: with another window process, or when they
    /// were full. Indices of code are good within one generation, and [`Helper::code`] is of the
    /// current one.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// All code met by windows so far: a private, updated copy.
    pub fn code(&mut self) -> Code<'_> {
        if let Some(process) = &self.process {
            let (_, instructions, blocks) = self.code_now;
            process.copy_code(instructions, blocks, &mut self.instructions, &mut self.blocks);
        }
        Code { instructions: &self.instructions, blocks: &self.blocks }
    }

    /// The time of a turn without a window: the least that a window costs. For `calibrate` and the benchmark.
    pub fn round_trip(&mut self) -> Result<Duration, Error> {
        let begin = sys::now_ns();
        let process = self.process.as_mut().filter(|process| process.is_up()).ok_or(Error::None)?;
        let pin = self.settings.follow.then(|| Pin::beside(process));
        let request = Request { ask: Ask::Nothing as u32, ..Request::default() };
        let answer = process.ask(&request, &[], begin + self.settings.patience.as_nanos() as u64);
        drop(pin);
        answer.map(|_| Duration::from_nanos(sys::now_ns() - begin)).ok_or(Error::Late)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill("is no longer needed");
    }
}
