//! The watchdog's life: looks whether the tracer hangs while it holds a thread, and ends it then. A look
//! is due when the last sign of life grows old, and every 15 ms from then on.

use std::{io::Write as _, sync::atomic::Ordering, time::Duration};

use super::{Heartbeat, cgroup_placement};
use locality_kernel::{proc, sys};

/// How often the watchdog looks at an old sign of life.
const LOOK: Duration = Duration::from_millis(15);

/// The same old sign of life at so many looks in a row, all of which find a stopped thread, is a hang.
/// Looks are counted, not time, because a machine that was suspended as a whole (a virtual machine
/// that migrates) is no hang.
const HUNG_LOOKS: u32 = 3;

/// The same while the signing thread, or a thread that it waits for, could run: an overcommitted
/// host leaves a thread without a processor for this long.
const STARVED_LOOKS: u32 = 20;

/// A younger sign of life is no reason to look at the traced threads: the capture loop sleeps nearly as long.
const OLD_NS: u64 = 60_000_000;

/// Looks in a row with the same old sign of life and a stopped thread: all of them, and those with
/// no runnable thread of the tracer.
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

/// The life of the watchdog.
pub(super) fn watch(heartbeat: &Heartbeat) -> ! {
    let shared = heartbeat.shared();
    let tracer = shared.tracer.load(Ordering::Relaxed);
    let is_alone = || {
        // SAFETY: a system call without arguments.
        tracer == 0 || unsafe { libc::getppid() } as u32 != tracer
    };
    settle();
    if is_alone() {
        std::process::exit(0);
    }
    shared.watchdog_beat_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
    let (standing, roots) = cgroup_placement::leave();
    // Some cgroups of version 1 have no real-time priority to give.
    let _ = sys::make_urgent(0, sys::MOST_URGENT);
    shared.standing.store(standing.number(), Ordering::Release);
    let used_before_ns = shared.watchdog_cpu_ns.load(Ordering::Relaxed);
    let (mut last_beat, mut silence) = (0, Silence::default());
    loop {
        let now = sys::monotonic_ns();
        shared.watchdog_beat_ns.store(now, Ordering::Relaxed);
        shared.watchdog_cpu_ns.store(used_before_ns + sys::own_cpu_ns(), Ordering::Relaxed);
        if is_alone() {
            std::process::exit(0);
        }
        let beat = shared.tracer_beat_ns.load(Ordering::Relaxed);
        let is_silent = beat == last_beat && now.saturating_sub(beat) > OLD_NS;
        let holds = is_silent && heartbeat.watched().into_iter().any(|pid| holds_a_thread(tracer, pid));
        last_beat = beat;
        if silence.is_hang(holds, || heartbeat.could_beat()) {
            end_tracer(tracer, &roots, now.saturating_sub(beat));
        }
        std::thread::sleep(until_next_look(beat, now));
    }
}

/// Until a sign of life is old, nothing can be found.
fn until_next_look(beat_ns: u64, now_ns: u64) -> Duration {
    let age_ns = now_ns.saturating_sub(beat_ns);
    LOOK.max(Duration::from_nanos((OLD_NS + 1).saturating_sub(age_ns)))
}

/// Puts the process above whatever else may keep the tracer from running. What fails here makes the
/// guard a little weaker.
fn settle() {
    // SAFETY: system calls with plain arguments; the name is a C string. A session of its own keeps
    // the terminal's signals away, and it ends with its parent.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"locality-guard".as_ptr());
        // Touched pages stay in memory when memory is short.
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT);
        // Whoever started the tracer may ignore or block signals; the end of the terminal is none
        // of its business.
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP, libc::SIGPIPE]
        {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    // The last victim when memory is short, as the tracer may be the first one.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // The tracer may have been bound to a processor that somebody else keeps.
    let _ = sys::Processors::all().assign(0);
    let _ = sys::make_urgent(0, sys::MOST_URGENT);
}

fn end_tracer(tracer: u32, roots: &cgroup_placement::Roots, silent_ns: u64) -> ! {
    // SAFETY: system calls with plain arguments; the parent is alive, so its id is not recycled.
    // Its death must not end us before we have said why.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, 0);
        libc::kill(tracer as i32, libc::SIGKILL);
    }
    // A frozen process, or a process with a used-up CPU quota, dies only outside of its cgroup.
    roots.take_in(tracer);
    // A killed thread must run once more to let go of what it holds, however busy the machine is.
    for tid in proc::threads(tracer).unwrap_or_default() {
        let _ = sys::make_urgent(tid, sys::MOST_URGENT);
    }
    say(&format!(
        "locality-bpf: the tracer stood still for {} ms while it held a thread of the traced program, so it was ended and \
         the program runs on; the profile holds what was collected until then\n",
        silent_ns / 1_000_000
    ));
    std::process::exit(1);
}

/// Writes to stderr, unless the reader does not read for a second.
fn say(sentence: &str) {
    let mut stderr = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the descriptor's record is live, and its count is 1.
    if unsafe { libc::poll(&raw mut stderr, 1, 1000) } == 1 {
        // A failing write means a closed pipe: the user does not read.
        let _ = std::io::stderr().write_all(sentence.as_bytes());
    }
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
    fn looks_are_frequent_only_at_old_signs_of_life() {
        assert_eq!(until_next_look(1_000, 1_000), Duration::from_nanos(OLD_NS + 1));
        assert_eq!(until_next_look(0, 40_000_000), Duration::from_nanos(OLD_NS + 1 - 40_000_000));
        assert_eq!(until_next_look(0, OLD_NS), LOOK);
        assert_eq!(until_next_look(0, 10 * OLD_NS), LOOK);
        // Another processor's clock may be a little ahead.
        assert_eq!(until_next_look(1_001, 1_000), Duration::from_nanos(OLD_NS + 1));
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
}
