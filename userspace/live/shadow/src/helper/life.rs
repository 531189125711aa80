//! One window process, from the tracer's side: start, question and answer, end. Not here: the
//! content of questions.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use locality_stream::{BlockRecord, Event, InstructionRecord};

use super::layout::{Answer, Ask, Layout, Request, plain};
use super::serve::{ARGUMENT, Start};
use super::shared::Shared;
use super::sys::{self, Life};
use super::{Error, Settings, death};
use crate::window::Counts;

/// A window process from start to end.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    pidfd: OwnedFd,
    socket: OwnedFd,
    shared: Shared,
    usual: usize,
    /// Number of the last question.
    number: u32,
    /// Time of an unanswered question.
    since_ns: Option<u64>,
    /// The first answer has come: the process is confined.
    is_up: bool,
    /// The processor of the process.
    cpu: usize,
    /// CPU time at the last reading.
    cpu_ns: std::cell::Cell<u64>,
}

impl Process {
    /// Starts a process.
    pub(super) fn start(settings: &Settings) -> Result<Process, Error> {
        let failed = |what| move |error: io::Error| Error::System(what, error);
        let bytes = Layout::new(&settings.room).bytes;
        let memory = sys::sealed_memory(bytes).map_err(failed("make memory"))?;
        let shared = Shared::map(memory.as_fd(), &settings.room).map_err(failed("map memory"))?;
        let (socket, theirs) = sys::socket_pair().map_err(failed("make a socket"))?;
        let start = Start {
            room: settings.room,
            tracer: std::process::id(),
            real_time: settings.real_time.and_then(|priority| u32::try_from(priority).ok()).unwrap_or(0),
            real_time_us: (settings.longest + settings.margin + Duration::from_millis(10)).as_micros() as u32,
            usual: settings.usual,
        };
        sys::send(socket.as_fd(), &start.message(), None).map_err(failed("send settings"))?;
        // Not through `PATH`, not with our environment; the child gets
        // the socket and the shared memory as descriptors 0 and 1.
        let child = Command::new(&settings.program)
            .arg0("locality-window")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(memory))
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed("start a program"))?;
        let pidfd = sys::pidfd(child.id()).map_err(failed("open a process"))?;
        Ok(Process::new(child.id(), pidfd, socket, shared, settings.usual))
    }

    /// Takes a started process, and asks the first question.
    pub(super) fn new(pid: u32, pidfd: OwnedFd, socket: OwnedFd, shared: Shared, usual: u32) -> Process {
        let mut process = Process {
            pid,
            pidfd,
            socket,
            shared,
            usual: usual as usize,
            number: 0,
            since_ns: None,
            is_up: false,
            cpu: usize::MAX,
            cpu_ns: 0.into(),
        };
        // Waits in the shared memory until confined.
        process.put(&Request { ask: Ask::Nothing as u32, ..Request::default() }, &[]);
        process
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the first question is answered: the process is confined and ready.
    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Waits for the first answer until `deadline_ns`.
    pub(super) fn is_ready(&mut self, deadline_ns: u64) -> bool {
        if !self.is_up && self.shared.wait_for(self.number, deadline_ns) {
            self.is_up = true;
            self.since_ns = None;
            self.shared.make_ready(self.usual, false);
        }
        self.is_up
    }

    /// Whether the process has answered every question.
    pub(super) fn is_idle(&mut self) -> bool {
        if self.since_ns.is_some() && self.shared.answered().load(Ordering::Acquire) == self.number {
            self.since_ns = None;
        }
        self.since_ns.is_none()
    }

    /// Waits until the process is idle, at most until `deadline_ns`.
    pub(super) fn wait_until_idle(&mut self, deadline_ns: u64) {
        if self.since_ns.is_some() && self.shared.wait_for(self.number, deadline_ns) {
            self.since_ns = None;
        }
    }

    /// How long the question has been waiting for an answer.
    pub(super) fn busy_ns(&self) -> u64 {
        self.since_ns.map_or(0, |since| sys::now_ns().saturating_sub(since))
    }

    fn put(&mut self, request: &Request, extended: &[u8]) {
        let layout = self.shared.layout;
        self.shared.store_bytes(&layout.request_extended, extended);
        self.shared.store(&layout.request, 0, &[*request]);
        // A number has neither of the two bits of an open question.
        self.number = self.number.wrapping_add(1) & libc::FUTEX_TID_MASK;
        self.since_ns = Some(sys::now_ns());
        self.shared.answered().store(death::open(self.pid), Ordering::SeqCst);
        self.shared.asked().store(self.number, Ordering::Release);
        sys::futex_wake(self.shared.asked());
    }

    /// Asks a question; the answer, if received until
    /// `deadline_ns`. `None` while an older question is in work.
    pub(super) fn ask(&mut self, request: &Request, extended: &[u8], deadline_ns: u64) -> Option<Answer> {
        if !self.is_idle() {
            return None;
        }
        self.put(request, extended);
        if !self.shared.wait_for(self.number, deadline_ns) {
            return None;
        }
        self.since_ns = None;
        self.shared.load(&self.shared.layout.answer, 0)
    }

    /// Sends a target's memory; the question to take it follows.
    pub(super) fn send(&self, key: u64, memory: &File) -> io::Result<()> {
        sys::send(self.socket.as_fd(), &key.to_le_bytes(), Some(memory.as_fd()))
    }

    pub(super) fn store_ranges(&self, ranges: &[[u64; 2]]) {
        self.shared.store(&self.shared.layout.ranges, 0, ranges);
    }

    pub(super) fn event(&self, index: usize) -> Option<Event> {
        self.shared.load(&self.shared.layout.events, index)
    }

    /// The first events.
    pub(super) fn events(&self, count: usize) -> impl Iterator<Item = Event> + '_ {
        self.shared.first(&self.shared.layout.events, count)
    }

    pub(super) fn value(&self, index: usize) -> Option<u64> {
        self.shared.load(&self.shared.layout.values, index)
    }

    pub(super) fn registers(&self, index: usize) -> Option<[u64; 16]> {
        self.shared.load(&self.shared.layout.registers, index)
    }

    pub(super) fn copy_extended(&self, bytes: usize, into: &mut Vec<u8>) {
        self.shared.load_bytes(&self.shared.layout.answer_extended, bytes, into);
    }

    pub(super) fn copy_window(
        &self,
        counts: &Counts,
        events: &mut Vec<Event>,
        values: &mut Vec<u64>,
        registers: &mut Vec<[u64; 16]>,
    ) {
        let layout = &self.shared.layout;
        self.shared.copy(&layout.events, 0, counts.events as usize, events);
        self.shared.copy(&layout.values, 0, counts.accesses as usize, values);
        self.shared.copy(&layout.registers, 0, counts.blocks as usize, registers);
    }

    /// Appends the part of the tables not copied yet.
    pub(super) fn copy_code(
        &self,
        instructions: usize,
        blocks: usize,
        into_instructions: &mut Vec<InstructionRecord>,
        into_blocks: &mut Vec<BlockRecord>,
    ) {
        let layout = &self.shared.layout;
        self.shared.copy(&layout.instructions, into_instructions.len(), instructions, into_instructions);
        self.shared.copy(&layout.blocks, into_blocks.len(), blocks, into_blocks);
    }

    /// Whether the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        sys::life(self.pidfd.as_fd()) != Life::Alive
    }

    /// CPU time so far. A reaped process's id may belong to another process, so the state is
    /// checked first.
    pub(super) fn cpu_ns(&self) -> u64 {
        if sys::life(self.pidfd.as_fd()) != Life::Gone
            && let Ok(cpu_ns) = sys::cpu_ns(self.pid)
        {
            self.cpu_ns.set(cpu_ns);
        }
        self.cpu_ns.get()
    }

    /// Ends the process. Returns the CPU time and the last message.
    pub(super) fn bury(self) -> (u64, String) {
        sys::kill(self.pidfd.as_fd());
        // Waits for the killed process; if the end takes
        // longer, the kernel's entry stays until we end.
        sys::readable(self.pidfd.as_fd(), Duration::from_millis(10));
        let cpu_ns = self.cpu_ns();
        let status = sys::reap(self.pidfd.as_fd());
        let mut said = [0; 512];
        let said = match sys::receive(self.socket.as_fd(), &mut said, false) {
            Ok((length, _)) => plain(said.get(..length).unwrap_or_default()),
            Err(_) => String::new(),
        };
        let parts = [said, self.shared.note(), status];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        (cpu_ns, parts.join("; "))
    }
}

/// During the pin's lifetime, the calling thread and the window process share a processor.
#[derive(Debug)]
pub(super) struct Pin {
    before: Option<libc::cpu_set_t>,
}

impl Pin {
    /// Puts the process on the calling thread's processor, and pins a calling thread of real-time
    /// priority: the scheduler would otherwise move the thread to an idle processor at a wake-up
    /// (https://github.com/torvalds/linux/blob/v6.12/kernel/sched/rt.c, select_task_rq_rt).
    pub(super) fn beside(process: &mut Process) -> Pin {
        let (cpu, is_real_time) = sys::placement();
        let Some(here) = sys::only(cpu) else { return Pin { before: None } };
        // The number may be another process' once somebody has reaped ours.
        if process.cpu != cpu && !process.has_ended() && sys::set_affinity(process.pid, &here).is_ok() {
            process.cpu = cpu;
        }
        let before = if is_real_time && process.cpu == cpu { sys::affinity(0).ok() } else { None };
        // The affinity may be set already.
        let before = before.filter(|before| !sys::are_equal(before, &here));
        if before.is_some() && sys::set_affinity(0, &here).is_err() {
            return Pin { before: None };
        }
        Pin { before }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sys::set_affinity(0, before);
        }
    }
}
