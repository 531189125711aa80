//! Shadow windows at stops: asks the window process, and draws uses in the answer.
//!
//! Not here: executing instructions (`locality_shadow`), which use gets a watchpoint (the arbiter).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use locality_common::record::METER_WORDS;
use locality_shadow::{
    End, Limits, ThreadState,
    helper::{Error, Helper, Kept, Settings, Window, ranges},
};

use locality_heap::Probed;

use locality_kernel::sys;

use super::{
    code_tables::SharedCode,
    events::{WindowLog, WindowTaken},
    line_fills::SplitStores,
    ptrace_stops::USER_CODE_64,
    trap_cost,
    window_sampling::{Candidate, Choice, Found, View, first_access},
};

/// Uses drawn in a window: many, because a stop is dear and a use in it cheap. With eight, most
/// windows of python had none that stays open and can be watched. From [`ENOUGH`] windows on fewer
/// and fewer, because windows tell more than uses of one, and a report's time grows with the uses.
const USES: (usize, usize) = (64, 8);

/// Windows of a trace with the most uses.
const ENOUGH: u64 = 400;

/// Uses to be drawn in the next window.
fn uses(windows: u64) -> usize {
    let (most, least) = USES;
    (most as u64 * ENOUGH / windows.max(ENOUGH)).max(least as u64) as usize
}

/// Limits of windows, in instructions and pages, each with the share of windows at least as long,
/// in hundredths. A page costs about as much as sixty instructions, so random accesses would make a
/// short window expensive. The long ones fit half of the default `--max-stop`.
const LENGTHS: [(u64, u64, u8); 2] = [(25_000, 300, 20), (3_000, 60, 100)];

/// A word that is touched more often before its use is not watched: each touch is a trap.
const EARLIER_MAX: u32 = 16;

/// A process' mappings are read again after so long if a window met code outside of those known.
const MAPS_AGE_NS: u64 = 1_000_000_000;

/// Results of a system call that the kernel will start again (`ERESTARTSYS`, `ERESTARTNOINTR`,
/// `ERESTARTNOHAND`, `ERESTART_RESTARTBLOCK` in the kernel's include/linux/errno.h).
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];

/// The memory words that meters shall read: the number of the list, and the list, by process. The
/// assembler learns them.
pub type Wanted = Arc<Mutex<HashMap<u32, (u32, [u64; METER_WORDS])>>>;

/// A window just taken. Its content lies with the helper until the next window.
#[derive(Debug)]
pub struct Taken<'a> {
    window: Result<Window<'a>, End>,
    /// The uses drawn in it.
    choice: Choice,
    /// The use to be watched.
    pub candidate: Option<Candidate>,
}

impl Taken<'_> {
    /// Whether the window has an access.
    pub fn has_accesses(&self) -> bool {
        self.window.as_ref().is_ok_and(|window| window.counts.accesses > 0)
    }

    /// Words by which a trap's cost may be measured.
    pub(super) fn trap_cost_words(&self) -> Option<[u64; 3]> {
        trap_cost::words(self.window.as_ref().ok()?.events())
    }

    /// Everything else about the window, after the resume; `wanted` is the list that the thread's
    /// meter reads, if any.
    pub fn finish(self, wanted: Option<u32>, code: &SharedCode) -> WindowTaken {
        let mut kept = Kept::default();
        let (end, gone, found, first, is_known) = match self.window {
            Ok(mut window) => {
                window.copy(&mut kept);
                let (end, gone) = (window.end, window.gone);
                let tables = window.code();
                let view = View { events: &kept.events, values: &kept.values, code: tables };
                // The lock's owner may be without a processor: learning nothing from this window is
                // better than waiting.
                let followed = code.try_lock().map(|mut code| code.follow(kept.generation, &tables));
                (end, gone, self.choice.finish(&view), first_access(&view), followed.is_ok())
            }
            Err(why) => (why, false, Found::default(), None, true),
        };
        let Kept { counts, events, values, registers, generation } = kept;
        let split_stores = SplitStores::of(&events);
        let log = match wanted {
            Some(_) if is_known => WindowLog { events, values, registers, generation },
            _ => WindowLog::default(),
        };
        WindowTaken { counts, end, gone, found, first, split_stores, log, wanted: wanted.unwrap_or(0) }
    }
}

/// The window process and what is known of the targets.
#[derive(Debug)]
pub struct Windows {
    helper: Helper,
    /// [`ThreadState::extended_bytes`].
    pub(super) extended_bytes: usize,
    random: fastrand::Rng,
    /// Windows taken so far.
    taken: u64,
    /// When the mappings of a process were read; absent for one that is not known to the helper.
    known: HashMap<u32, u64>,
    /// Whether there may be no window process at the moment.
    is_down: bool,
    /// Where allocation probes have replaced bytes of the text.
    probed: Option<Arc<Probed>>,
}

impl Windows {
    /// Starts the window process. The calling thread must outlive it.
    pub fn start() -> Result<Self, Error> {
        // Below the capture thread's priority, to be killable in every state.
        let settings = Settings { real_time: Some(sys::CAPTURE_PRIORITY - 1), ..Settings::default() };
        Ok(Self {
            helper: Helper::start(settings)?,
            extended_bytes: ThreadState::extended_bytes(),
            random: fastrand::Rng::new(),
            taken: 0,
            known: HashMap::new(),
            is_down: false,
            probed: None,
        })
    }

    /// The window process, 0 while there is none.
    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }

    /// From now on windows execute the file's bytes at probed addresses.
    pub fn subscribe(&mut self, probed: Arc<Probed>) {
        self.probed = Some(probed);
    }

    /// Tells the window process what is probed, if that has changed. Not in a stop.
    pub fn receive(&mut self, now_ns: u64) {
        let Some(probed) = self.probed.clone() else { return };
        let Some(version) = probed.news() else { return };
        let pids: Vec<u32> = self.known.keys().copied().collect();
        for pid in pids {
            self.know(pid, now_ns);
        }
        probed.heard(version);
    }

    /// CPU time that the window process used.
    pub fn cpu_ns(&self) -> u64 {
        self.helper.cpu_ns()
    }

    /// Makes a process known, if it is not.
    pub fn meet(&mut self, pid: u32, now_ns: u64) {
        if !self.known.contains_key(&pid) {
            self.know(pid, now_ns);
        }
    }

    /// Makes a process known, or its mappings anew. Not in a stop: reading the mappings of a large
    /// process takes long.
    pub fn know(&mut self, pid: u32, now_ns: u64) {
        let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps")) else { return };
        let mut known_ranges = ranges(&String::from_utf8_lossy(&maps));
        if let Some(probed) = &self.probed {
            probed.add_to(&mut known_ranges);
        }
        let told = match self.known.contains_key(&pid) {
            true => self.helper.update_maps(pid.into(), &known_ranges),
            false => self.helper.add_process(pid.into(), pid, &known_ranges),
        };
        match told {
            Ok(()) => drop(self.known.insert(pid, now_ns)),
            Err(error) => tracing::debug!("no windows in process {pid}: {error}"),
        }
    }

    /// The process ended or runs another program.
    pub fn forget(&mut self, pid: u32) {
        if self.known.remove(&pid).is_some() {
            self.helper.remove_process(pid.into());
        }
    }

    /// Executes the next instructions of a stopped thread. `None` where its process is not known.
    pub fn take(
        &mut self,
        pid: u32,
        state: &ThreadState,
        regs: &libc::user_regs_struct,
        time_ns: u64,
    ) -> Option<Taken<'_>> {
        if !self.known.contains_key(&pid) {
            return None;
        }
        if let Some(why) = why_none(regs) {
            let choice = Choice::draw(std::iter::empty(), 0, 0, &mut self.random);
            return Some(Taken { window: Err(why), choice, candidate: None });
        }
        let die = self.random.u8(..100);
        let (instructions, pages, _) =
            LENGTHS.into_iter().find(|(.., below)| die < *below).unwrap_or_default();
        let limits = Limits { instructions, pages, time_ns };
        let window = self.helper.run(pid.into(), state, &limits);
        let accesses = window.counts.accesses as usize;
        self.taken += 1;
        let choice = Choice::draw(window.events(), accesses, uses(self.taken), &mut self.random);
        let candidate = choice.first_open(|| window.events(), &mut self.random);
        let candidate = candidate.filter(|open| open.earlier <= EARLIER_MAX);
        Some(Taken { window: Ok(window), choice, candidate })
    }

    /// Maintenance after a window, outside of stops.
    pub fn observe(&mut self, pid: u32, window: &WindowTaken, now_ns: u64) {
        self.is_down |= window.end == End::Helper;
        if window.gone {
            // The process ends, or becomes another program, and will be met anew.
            self.forget(pid);
            return;
        }
        let age_ns = self.known.get(&pid).map_or(0, |read_ns| now_ns.saturating_sub(*read_ns));
        if window.end == End::UnreadableCode && age_ns > MAPS_AGE_NS {
            self.know(pid, now_ns);
        }
    }

    /// Brings a window process that is gone back, step by step; to be called now and then, outside stops.
    pub fn revive(&mut self) {
        if !self.is_down {
            return;
        }
        match self.helper.revive() {
            Ok(ready) => self.is_down = !ready,
            Err(error) => tracing::debug!("the window process does not start again: {error}"),
        }
    }
}

/// Why no instruction of a stopped thread can be executed ahead.
fn why_none(regs: &libc::user_regs_struct) -> Option<End> {
    if regs.cs != USER_CODE_64 {
        return Some(End::NotLongMode);
    }
    let in_system_call = (regs.orig_rax as i64) >= 0;
    let restarts = RESTARTS.contains(&(regs.rax as i64));
    (in_system_call && restarts).then_some(End::Restart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_traces_draw_fewer_uses_a_window() {
        let all = |windows: u64| (0..windows).map(uses).sum::<usize>();
        assert_eq!((uses(0), uses(ENOUGH), uses(2 * ENOUGH), uses(1 << 40)), (64, 64, 32, 8));
        assert!(all(ENOUGH) == 25_600 && all(10_000) < 150_000, "{}", all(10_000));
    }
}
