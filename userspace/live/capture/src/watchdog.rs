//! The watchdog: a separate process that ends a hanging tracer with a stopped thread.
//!
//! A stopped tracee waits for its tracer for ever; when the tracer dies the kernel lets it go. So
//! the capture thread gives a sign of life into shared memory, and when that is old *and* a traced
//! thread stands still, the watchdog kills the tracer. What was collected is on disk. The watchdog
//! shares no lock, file or terminal with the tracer.
//!
//! The watchdog is this program, started anew, so a successor can start at any moment. `watch` is
//! its life. `cgroup_placement` has the cgroups that the watchdog leaves, to escape a freeze or a
//! throttle of the tracer's cgroup.
//!
//! Limits: who stops the watchdog and the tracer at the same moment stops a seized thread until then.

mod cgroup_placement;
mod watch;

use std::{
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Command, Stdio},
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use locality_kernel::{proc, sys};

pub use cgroup_placement::Standing;

/// The argument that turns this program into the watchdog.
const ARGUMENT: &str = "--locality-guard";

/// The watchdog's own sign of life may be this old before the tracer stops stopping.
const WATCHDOG_LOST_NS: u64 = 500_000_000;

/// How long the start of the watchdog may take, its move to another cgroup included.
const START: Duration = Duration::from_secs(10);

/// Processes that the watchdog looks at; with more it looks at every process.
const TABLE: usize = 256;

#[derive(Debug)]
#[repr(C)]
struct Shared {
    tracer: AtomicU32,
    watchdog: AtomicU32,
    tracer_beat_ns: AtomicU64,
    watchdog_beat_ns: AtomicU64,
    /// CPU time of all watchdogs until now.
    watchdog_cpu_ns: AtomicU64,
    /// [`Standing`] as a number; 0 until it is known.
    standing: AtomicU64,
    /// The tracer's thread that gives the signs of life, and the threads for which it may wait
    /// while a tracee is stopped.
    beating: AtomicU32,
    awaited: [AtomicU32; 2],
    overflow: AtomicBool,
    targets: [AtomicU32; TABLE],
}

/// The shared page, seen from either side.
#[derive(Debug)]
pub struct Heartbeat {
    page: NonNull<Shared>,
    /// Its memory, for the next watchdog.
    memory: OwnedFd,
}

// SAFETY: the page holds atomics only and is mapped for the life of the process.
unsafe impl Send for Heartbeat {}
// SAFETY: as above.
unsafe impl Sync for Heartbeat {}

impl Drop for Heartbeat {
    /// Reaps the watchdog after the last release of a target. A process 1 that reaps no children, as in many
    /// containers, would have a zombie for each trace.
    fn drop(&mut self) {
        self.kill_watchdog();
    }
}

impl Heartbeat {
    fn new() -> io::Result<Self> {
        // SAFETY: the name is a C string; a new descriptor is ours.
        let memory = unsafe {
            match libc::memfd_create(c"locality-guard".as_ptr(), libc::MFD_CLOEXEC) {
                ..0 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        // SAFETY: a system call with plain arguments.
        if unsafe { libc::ftruncate(memory.as_raw_fd(), size_of::<Shared>() as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(memory)
    }

    fn map(memory: OwnedFd) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, placed by the kernel, of a file that both sides keep at its size.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                protection,
                libc::MAP_SHARED,
                memory.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { page, memory })
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping lives as long as the process and holds atomics only, of which all
        // zeroes are a value.
        unsafe { self.page.as_ref() }
    }

    /// Starts a watchdog, and kills its predecessor.
    pub fn start_watchdog(&self) -> io::Result<()> {
        self.kill_watchdog();
        let shared = self.shared();
        shared.standing.store(0, Ordering::Relaxed);
        shared.tracer.store(std::process::id(), Ordering::Relaxed);
        let now = sys::monotonic_ns();
        self.beat(now);
        shared.watchdog_beat_ns.store(now, Ordering::Relaxed);
        // Not through `PATH`, not with our environment.
        let watchdog = Command::new("/proc/self/exe")
            .arg0("locality-guard")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(self.memory.try_clone()?))
            .stdout(Stdio::null())
            // Its messages are for the user, but a test's own program expects no watchdog.
            .stderr(Stdio::inherit())
            .spawn()?;
        shared.watchdog.store(watchdog.id(), Ordering::Relaxed);
        Ok(())
    }

    fn kill_watchdog(&self) {
        let watchdog = self.shared().watchdog.swap(0, Ordering::Relaxed);
        if watchdog == 0 {
            return;
        }
        // SAFETY: system calls with plain arguments. The number is that of a child until it is
        // reaped. If the child was reaped elsewhere, no child has the number, the first call fails
        // and nobody is killed.
        unsafe {
            if libc::waitpid(watchdog as i32, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) == 0 {
                libc::kill(watchdog as i32, libc::SIGKILL);
                libc::waitpid(watchdog as i32, std::ptr::null_mut(), libc::__WALL);
            }
        }
    }

    /// Waits until the watchdog is ready; returns its placement, or the error.
    pub fn standing(&self) -> io::Result<Standing> {
        let end = Instant::now() + START;
        loop {
            if let Some(standing) = Standing::from_number(self.shared().standing.load(Ordering::Acquire)) {
                return Ok(standing);
            }
            // Its end is reported to a wait for all children; until then it is a zombie.
            let ended = proc::status(self.watchdog()).is_ok_and(|status| status.state == 'Z');
            if ended {
                return Err(io::Error::other("the watchdog process ended at once"));
            }
            if Instant::now() > end {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the watchdog process did not start in time",
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// CPU time of the watchdog, which belongs to the tool in every cgroup.
    pub fn watchdog_cpu_ns(&self) -> u64 {
        self.shared().watchdog_cpu_ns.load(Ordering::Relaxed)
    }

    /// The calling thread will give the signs of life.
    pub fn beats_here(&self) {
        self.shared().beating.store(sys::this_thread(), Ordering::Relaxed);
    }

    /// Threads of the tracer for which the signing thread may wait (0: none).
    pub fn waits_for(&self, threads: [u32; 2]) {
        for (awaited, thread) in self.shared().awaited.iter().zip(threads) {
            awaited.store(thread, Ordering::Relaxed);
        }
    }

    /// Whether the signing thread, or a thread that it waits for, is running or runnable.
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

    /// The watchdog process, 0 without one.
    pub fn watchdog(&self) -> u32 {
        self.shared().watchdog.load(Ordering::Relaxed)
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
            return proc::all();
        }
        self.shared()
            .targets
            .iter()
            .map(|slot| slot.load(Ordering::Relaxed))
            .filter(|pid| *pid != 0)
            .collect()
    }
}

/// Starts the watchdog; [`Heartbeat::standing`] waits until it watches. The calling thread must outlive it.
pub fn start() -> io::Result<Heartbeat> {
    let heartbeat = Heartbeat::new()?;
    heartbeat.start_watchdog()?;
    Ok(heartbeat)
}

/// Starts a watchdog, asks for its placement and ends it. The calling process must not wait for
/// children meanwhile.
pub fn try_out() -> io::Result<Standing> {
    let heartbeat = start()?;
    let standing = heartbeat.standing();
    heartbeat.kill_watchdog();
    standing
}

/// To be called first in `main`: a program started as the watchdog becomes the watchdog and does
/// not return.
pub fn become_guard_if_asked() {
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|argument| argument == ARGUMENT) && arguments.next().is_none() {
        // SAFETY: the tracer put its shared memory there; otherwise the mapping or the first check
        // fails.
        let memory = unsafe { OwnedFd::from_raw_fd(0) };
        match Heartbeat::map(memory) {
            Ok(heartbeat) => watch::watch(&heartbeat),
            Err(_) => std::process::exit(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn more_processes_than_the_table_has_room_for_are_all_processes() {
        let heartbeat = Heartbeat::new().unwrap();
        heartbeat.watch_over(7);
        heartbeat.watch_over(7);
        assert_eq!(heartbeat.watched(), [7]);
        heartbeat.forget(7);
        assert!(heartbeat.watched().is_empty());
        (1..=TABLE as u32 + 1).for_each(|pid| heartbeat.watch_over(pid));
        assert!(heartbeat.watched().contains(&std::process::id()));
    }
}
