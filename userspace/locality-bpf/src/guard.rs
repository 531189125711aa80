//! The watchdog: a process of its own that ends the tracer when the tracer hangs while it holds a thread.
//!
//! A stopped tracee waits for its tracer for ever; when the tracer dies the kernel lets it go. So the capture thread
//! gives a sign of life into shared memory, and when that is old *and* a traced thread stands still, the watchdog kills
//! the tracer. What was collected is on disk. The watchdog shares no lock, file or terminal with the tracer.

use std::{
    io,
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use crate::kernel::{proc, sys};

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(15);

/// The same old sign of life at so many looks in a row, all of which find a thread held, is a hang. Looks are counted, not
/// time, because a machine that was suspended as a whole (a virtual machine that migrates) is no hang.
const HUNG_LOOKS: u32 = 3;

/// The same while the thread that gives the signs, or one that it waits for, could run: a host that has promised more processors than it
/// has leaves one of ours without for that long.
const STARVED_LOOKS: u32 = 20;

/// A younger sign of life is not worth a look at the traced threads: the capture loop sleeps nearly as long.
const OLD_NS: u64 = 60_000_000;

/// The watchdog's own sign of life may be this old before the tracer stops stopping.
const WATCHDOG_LOST_NS: u64 = 500_000_000;

/// Processes that the watchdog looks at; with more it looks at every process.
const TABLE: usize = 256;

#[derive(Debug)]
#[repr(C)]
struct Shared {
    tracer_beat_ns: AtomicU64,
    watchdog_beat_ns: AtomicU64,
    watchdog: AtomicU32,
    /// The tracer's thread that gives its signs of life, and those for which that one may wait while it holds a thread.
    beating: AtomicU32,
    awaited: [AtomicU32; 2],
    overflow: AtomicBool,
    targets: [AtomicU32; TABLE],
}

/// The shared page, seen from either side.
#[derive(Debug)]
pub struct Heartbeat(NonNull<Shared>);

// SAFETY: the page holds atomics only and is mapped for the life of the process.
unsafe impl Send for Heartbeat {}
// SAFETY: as above.
unsafe impl Sync for Heartbeat {}

impl Heartbeat {
    fn new() -> io::Result<Self> {
        sys::shared_memory(size_of::<Shared>()).map(|page| Self(page.cast()))
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping lives as long as the process and holds atomics only.
        unsafe { self.0.as_ref() }
    }

    /// The calling thread will give the signs of life.
    pub fn beats_here(&self) {
        self.shared().beating.store(sys::this_thread(), Ordering::Relaxed);
    }

    /// Threads of the tracer for which the one that gives the signs may wait (0: none).
    pub fn waits_for(&self, threads: [u32; 2]) {
        for (awaited, thread) in self.shared().awaited.iter().zip(threads) {
            awaited.store(thread, Ordering::Relaxed);
        }
    }

    /// Whether the thread that gives the signs, or one that it waits for, has a processor or waits for one.
    fn could_beat(&self) -> bool {
        let shared = self.shared();
        let mut threads = std::iter::once(&shared.beating).chain(&shared.awaited);
        threads.any(|thread| {
            let thread = thread.load(Ordering::Relaxed);
            thread != 0 && proc::status(thread).is_ok_and(|status| status.state == 'R')
        })
    }

    /// The tracer is alive at `now_ns`.
    pub fn beat(&self, now_ns: u64) {
        self.shared().tracer_beat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Whether the watchdog gave a sign of life lately.
    pub fn watchdog_is_alive(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.shared().watchdog_beat_ns.load(Ordering::Relaxed)) < WATCHDOG_LOST_NS
    }

    /// Whether this process is the watchdog.
    pub fn is_watchdog(&self, pid: u32) -> bool {
        self.shared().watchdog.load(Ordering::Relaxed) == pid
    }

    /// Puts a process under the watchdog's eye.
    pub fn watch_over(&self, pid: u32) {
        let shared = self.shared();
        if shared.targets.iter().any(|slot| slot.load(Ordering::Relaxed) == pid) {
            return;
        }
        match shared.targets.iter().find(|slot| slot.load(Ordering::Relaxed) == 0) {
            Some(free) => free.store(pid, Ordering::Relaxed),
            None => shared.overflow.store(true, Ordering::Relaxed),
        }
    }

    /// Takes a process off again.
    pub fn forget(&self, pid: u32) {
        for slot in self.shared().targets.iter().filter(|slot| slot.load(Ordering::Relaxed) == pid) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    fn watched(&self) -> Vec<u32> {
        if self.shared().overflow.load(Ordering::Relaxed) {
            let entries = std::fs::read_dir("/proc").into_iter().flatten();
            return entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        }
        self.shared()
            .targets
            .iter()
            .map(|slot| slot.load(Ordering::Relaxed))
            .filter(|pid| *pid != 0)
            .collect()
    }
}

/// Looks in a row that found the same old sign of life and a thread held: all, and those at which no thread of the tracer could have run.
#[derive(Debug, Default)]
struct Silence {
    looks: u32,
    idle_looks: u32,
}

impl Silence {
    /// Takes a look. Whether the tracer is to be ended.
    fn is_hang(&mut self, holds: bool, could_beat: impl FnOnce() -> bool) -> bool {
        self.looks = if holds { self.looks + 1 } else { 0 };
        self.idle_looks = if holds && !could_beat() { self.idle_looks + 1 } else { 0 };
        self.idle_looks >= HUNG_LOOKS || self.looks >= STARVED_LOOKS
    }
}

/// Starts the watchdog. Must be called while the process has one thread.
pub fn start() -> io::Result<Heartbeat> {
    let heartbeat = Heartbeat::new()?;
    let now = sys::monotonic_ns();
    heartbeat.beat(now);
    heartbeat.shared().watchdog_beat_ns.store(now, Ordering::Relaxed);
    let tracer = std::process::id();
    // SAFETY: one thread, so the child may go on as a copy of this process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => watch(&heartbeat, tracer),
        pid => {
            heartbeat.shared().watchdog.store(pid as u32, Ordering::Relaxed);
            Ok(heartbeat)
        }
    }
}

/// The watchdog's life.
fn watch(heartbeat: &Heartbeat, tracer: u32) -> ! {
    // SAFETY: system calls with plain arguments; the name is a C string. A session of its own keeps the terminal's
    // signals away, and it ends with its parent. What fails here only makes the guard a little weaker.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"locality-guard".as_ptr());
    }
    // Above whatever else may keep the tracer from running. Ordinary priority is good enough when that is refused.
    let _ = sys::make_urgent(0, sys::MOST_URGENT);
    let (mut last_beat, mut silence) = (0, Silence::default());
    loop {
        let now = sys::monotonic_ns();
        heartbeat.shared().watchdog_beat_ns.store(now, Ordering::Relaxed);
        // SAFETY: a system call without arguments.
        if unsafe { libc::getppid() } as u32 != tracer {
            std::process::exit(0);
        }
        let beat = heartbeat.shared().tracer_beat_ns.load(Ordering::Relaxed);
        let is_silent = beat == last_beat && now.saturating_sub(beat) > OLD_NS;
        let holds = is_silent && heartbeat.watched().into_iter().any(|pid| holds_a_thread(tracer, pid));
        last_beat = beat;
        if silence.is_hang(holds, || heartbeat.could_beat()) {
            end_tracer(tracer, now.saturating_sub(beat));
        }
        std::thread::sleep(LOOK);
    }
}

fn end_tracer(tracer: u32, silent_ns: u64) -> ! {
    // SAFETY: system calls with plain arguments; the parent is alive, so its id is not recycled. Its death must not end us
    // before we have said why.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, 0);
        libc::kill(tracer as i32, libc::SIGKILL);
    }
    // A killed thread must run once more to let go of what it holds, however busy the machine is.
    for tid in proc::threads(tracer).unwrap_or_default() {
        let _ = sys::make_urgent(tid, sys::MOST_URGENT);
    }
    eprintln!(
        "locality-bpf: the tracer stood still for {} ms while it held a thread of the traced program, so it was ended and \
         the program runs on; the profile holds what was collected until then",
        silent_ns / 1_000_000
    );
    std::process::exit(1);
}

/// Whether a thread of `pid` stands in a ptrace stop of a thread of `tracer`.
fn holds_a_thread(tracer: u32, pid: u32) -> bool {
    proc::threads(pid).unwrap_or_default().into_iter().any(|tid| {
        proc::status(tid).is_ok_and(|status| {
            status.state == 't' && proc::status(status.tracer).is_ok_and(|holder| holder.tgid == tracer)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks, at each of which a thread is held or not and ours could run or not, until the tracer is ended.
    fn looks_until_the_end(look: impl Fn(u32) -> (bool, bool)) -> Option<u32> {
        let mut silence = Silence::default();
        (1..=100).find(|n| {
            let (holds, could_beat) = look(*n);
            silence.is_hang(holds, || could_beat)
        })
    }

    #[test]
    fn who_waits_for_a_processor_is_given_longer() {
        assert_eq!(looks_until_the_end(|_| (true, false)), Some(HUNG_LOOKS));
        assert_eq!(looks_until_the_end(|_| (true, true)), Some(STARVED_LOOKS));
        // Now and then it could run.
        assert_eq!(looks_until_the_end(|n| (true, n % HUNG_LOOKS == 0)), Some(STARVED_LOOKS));
        // Nobody stands still for long.
        assert_eq!(looks_until_the_end(|n| (n % HUNG_LOOKS != 0, false)), None);
    }

    #[test]
    fn a_thread_that_is_waited_for_could_run() {
        let heartbeat = Heartbeat::new().unwrap();
        assert!(!heartbeat.could_beat());
        // This thread runs while it asks.
        heartbeat.waits_for([0, sys::this_thread()]);
        assert!(heartbeat.could_beat());
        heartbeat.waits_for([0, 0]);
        assert!(!heartbeat.could_beat());
        heartbeat.beats_here();
        assert!(heartbeat.could_beat());
    }
}
