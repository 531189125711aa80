//! On which processor the capture thread waits, and how a stopped thread gets it back.
//!
//! A stopping thread leaves its processor idle, with its data in the caches. The capture thread
//! serves the stop on this processor. Waking an idle processor takes some 100 µs in a virtual
//! machine, and milliseconds on a host with too few real processors (docs/journal/2026-11.md). So
//! the capture thread sleeps on the processor of the samples, once a few in a row came from one
//! processor.
//!
//! The stopped thread continues on the same processor. The scheduler moves a woken thread from a
//! busy processor to an idle one, but treats a processor with idle-priority work alone as idle
//! (<https://github.com/torvalds/linux/blob/v6.12/kernel/sched/fair.c>, `select_idle_sibling`). For
//! the resume the capture thread takes idle priority and sleeps at once. The *booster*, a thread
//! with no other work, gives the capture thread its own processor and its priority back. A failure
//! costs the stopped thread time, at most the booster's wake-up; the traced program is not changed.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use locality_kernel::sys;

/// Samples in a row from one processor, where several threads are traced.
const IN_A_ROW: u32 = 3;

/// For so long the booster waits awake for the capture thread's change of priority.
const PATIENCE: Duration = Duration::from_millis(1);

/// Longest sleep of the capture thread; each turn of its loop is a sign of life.
const TURN: Duration = Duration::from_millis(20);

/// The same on the processor of the traced thread, whose time the wake-up takes.
const TURN_BESIDE: Duration = Duration::from_millis(40);

/// A processor from which no sample came for so long is not waited on.
const NEWEST: Duration = Duration::from_secs(1);

/// Where the capture thread waits; by default wherever the scheduler has it.
#[derive(Debug, Default)]
pub struct Place {
    /// Absent on a machine with one processor, or without real-time priority.
    choice: Option<Choice>,
    /// The thread has its real-time priority.
    is_urgent: bool,
    newest: Option<Newest>,
    is: Waits,
    /// When the booster was last notified.
    told: Option<Instant>,
}

#[derive(Debug)]
struct Choice {
    /// Processors that the thread may use.
    allowed: sys::Processors,
    booster: PriorityBooster,
}

/// Where the newest sample came from, and how many in a row.
#[derive(Debug, Clone, Copy)]
struct Newest {
    cpu: u32,
    times: u32,
    at: Instant,
}

/// Where the capture thread wakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Waits {
    #[default]
    Anywhere,
    Beside(u32),
    /// Where the booster was.
    Lifted,
}

impl Place {
    /// State of the calling thread, which has its real-time priority.
    pub fn of_this_thread() -> Self {
        let choice = sys::Processors::of_this_thread().and_then(|allowed| match allowed.count() {
            0 | 1 => Err(io::ErrorKind::Unsupported.into()),
            _ => Ok(Choice { allowed: allowed.clone(), booster: PriorityBooster::start(allowed)? }),
        });
        let choice = choice.inspect_err(|error| tracing::debug!("waits anywhere: {error}")).ok();
        Self { choice, is_urgent: true, ..Self::default() }
    }

    /// Before the thread sleeps: chooses the processor of the expected next stop. Returns the
    /// longest sleep.
    pub fn settle(&mut self) -> Duration {
        let Some(choice) = self.choice.as_ref().filter(|choice| choice.booster.is_there()) else {
            return TURN;
        };
        let is_expected = |newest: &Newest| {
            newest.times >= IN_A_ROW && newest.at.elapsed() < NEWEST && choice.allowed.contains(newest.cpu)
        };
        let wanted =
            self.newest.filter(is_expected).map_or(Waits::Anywhere, |newest| Waits::Beside(newest.cpu));
        let is_due = || self.told.is_none_or(|told| told.elapsed() > NEWEST);
        // A window that pinned the thread in between restores its former place.
        if wanted != self.is || (wanted == Waits::Anywhere && is_due()) {
            choice.booster.settle(&choice.allowed, wanted);
            self.is = wanted;
            self.told = Some(Instant::now());
        }
        if matches!(self.is, Waits::Beside(_)) { TURN_BESIDE } else { TURN }
    }

    /// Whether the thread has no real-time priority.
    pub fn is_ordinary(&self) -> bool {
        !self.is_urgent
    }

    /// The booster's thread id, 0 without a booster.
    pub fn booster(&self) -> u32 {
        self.choice.as_ref().map_or(0, |choice| choice.booster.thread())
    }

    /// Resumes a stopped thread that was sampled on processor `cpu` by `resume`; there, if this
    /// thread runs there too and `may_wait`: no other stop is waiting. `is_alone`: no other thread
    /// is traced.
    pub fn hand_back(
        &mut self,
        cpu: u32,
        is_alone: bool,
        may_wait: impl FnOnce() -> bool,
        resume: impl FnOnce(),
    ) {
        let times = match self.newest {
            _ if is_alone => IN_A_ROW,
            Some(newest) if newest.cpu == cpu => newest.times.saturating_add(1),
            _ => 1,
        };
        self.newest = Some(Newest { cpu, times, at: Instant::now() });
        let choice = self.choice.as_ref().filter(|choice| choice.booster.is_there());
        let (true, Some(choice)) = (self.is == Waits::Beside(cpu), choice) else { return resume() };
        if sys::this_processor() != cpu {
            // Another program had set the capture thread's processors at the same time.
            self.is = Waits::Lifted;
            resume();
        } else if may_wait() {
            self.is = Waits::Lifted;
            choice.booster.step_down(&choice.allowed);
            resume();
            choice.booster.wait();
        } else {
            resume();
        }
    }
}

/// A thread that moves the capture thread to processors which the capture thread cannot choose
/// alone.
#[derive(Debug)]
struct PriorityBooster(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    capture: (u32, thread::Thread),
    /// Where the capture thread may run.
    allowed: sys::Processors,
    /// The booster's own thread id, once the booster has its rights.
    booster: AtomicU32,
    calls: sys::Waker,
    /// What to do, the newest: one of the constants below, or [`SETTLE`] and a processor.
    order: AtomicU32,
    /// The capture thread has stepped down and is not lifted yet.
    is_awaited: AtomicBool,
    /// It could not.
    has_stayed: AtomicBool,
}

const NOTHING: u32 = 0;
const BOOST: u32 = 1;
const END: u32 = 2;
const ANYWHERE: u32 = 3;
const SETTLE: u32 = 1 << 31;

impl PriorityBooster {
    fn start(allowed: sys::Processors) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            capture: (sys::this_thread(), thread::current()),
            allowed,
            booster: AtomicU32::new(0),
            calls: sys::Waker::blocking()?,
            order: AtomicU32::new(NOTHING),
            is_awaited: AtomicBool::new(false),
            has_stayed: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("lifter".into()).spawn(move || of_thread.serve())?;
        Ok(Self(shared))
    }

    /// The booster's thread id, 0 without a booster.
    fn thread(&self) -> u32 {
        self.0.booster.load(Ordering::Acquire)
    }

    fn is_there(&self) -> bool {
        self.thread() != 0
    }

    fn order(&self, order: u32) {
        self.0.order.store(order, Ordering::Release);
        self.0.calls.wake();
    }

    /// Makes the calling thread wake there after its sleep, without running there now: the traced
    /// thread does. The booster stays away.
    fn settle(&self, allowed: &sys::Processors, wanted: Waits) {
        let Waits::Beside(cpu) = wanted else { return self.order(ANYWHERE) };
        if let Err(error) = allowed.without(cpu).assign(self.thread()) {
            tracing::debug!("the lifter stays: {error}");
        }
        self.order(SETTLE | cpu);
    }

    /// Gives the calling thread the lowest priority until the booster raises it. The scheduler may
    /// move this thread, and need not move the traced one.
    fn step_down(&self, allowed: &sys::Processors) {
        self.0.is_awaited.store(true, Ordering::Release);
        self.order(BOOST);
        if let Err(error) = allowed.assign(0).and_then(|()| sys::make_thread_idle()) {
            tracing::debug!("priority kept: {error}");
            self.0.has_stayed.store(true, Ordering::Release);
        }
    }

    /// Sleeps until then.
    fn wait(&self) {
        while self.0.is_awaited.load(Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Drop for PriorityBooster {
    fn drop(&mut self) {
        self.order(END);
    }
}

impl Shared {
    fn serve(&self) {
        // A right to lower a priority is not always a right to raise it again.
        match sys::make_thread_idle().and_then(|()| sys::make_thread_urgent()) {
            Ok(()) => self.booster.store(sys::this_thread(), Ordering::Release),
            Err(error) => return tracing::debug!("no lifter: {error}"),
        }
        loop {
            self.calls.clear();
            let there = match self.order.swap(NOTHING, Ordering::AcqRel) {
                NOTHING => continue,
                END => return,
                BOOST => {
                    self.boost();
                    continue;
                }
                ANYWHERE => Ok(self.allowed.clone()),
                settle => sys::Processors::only(settle & !SETTLE),
            };
            let settled = there.and_then(|there| there.assign(self.capture.0));
            tracing::trace!(?settled, "settled");
        }
    }

    fn boost(&self) {
        let called = Instant::now();
        // The kernel knows the change, even if the thread was preempted at this moment.
        while !sys::is_idle(self.capture.0) && !self.has_stayed.swap(false, Ordering::AcqRel) {
            match called.elapsed() < PATIENCE {
                true => std::hint::spin_loop(),
                false => thread::sleep(PATIENCE),
            }
        }
        let here = sys::Processors::only(sys::this_processor());
        let moved = here.and_then(|here| here.assign(self.capture.0));
        let lifted = sys::make_urgent(self.capture.0, sys::capture_priority());
        if lifted.is_err() {
            // The right is gone: from now on an ordinary thread without a change of priority.
            let _ = sys::make_ordinary(self.capture.0);
            self.booster.store(0, Ordering::Release);
        }
        self.is_awaited.store(false, Ordering::Release);
        self.capture.1.unpark();
        tracing::trace!(?moved, ?lifted, "lifted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_urgent() -> bool {
        // SAFETY: a system call with plain arguments.
        let policy = unsafe { libc::sched_getscheduler(0) };
        policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO
    }

    fn until(mut done: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        while !done() {
            if began.elapsed() > Duration::from_secs(10) {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Whoever hands a thread its processor back has its priority again soon, elsewhere, and wakes
    /// beside it again.
    #[test]
    fn who_stepped_down_is_lifted() {
        let served = thread::spawn(|| {
            if sys::make_thread_urgent().is_err() {
                return;
            }
            let mut place = Place::of_this_thread();
            if sys::Processors::of_this_thread().unwrap().count() < 2 {
                assert!(place.choice.is_none());
                return;
            }
            let choice = place.choice.as_ref().unwrap();
            let (allowed, shared) = (choice.allowed.clone(), Arc::clone(&choice.booster.0));
            let cpu = sys::this_processor();
            assert!(until(|| shared.booster.load(Ordering::Acquire) != 0));
            assert_eq!(place.settle(), TURN);
            place.hand_back(cpu, true, || true, || {});
            assert_eq!((place.is, place.settle()), (Waits::Anywhere, TURN_BESIDE));
            assert!(until(
                || sys::this_processor() == cpu && sys::Processors::of_this_thread().unwrap().count() == 1
            ));
            let mut policy = None;
            place.hand_back(
                cpu,
                true,
                || true,
                || policy = Some((is_urgent(), shared.is_awaited.load(Ordering::Acquire))),
            );
            // Unless it was lifted before it came so far.
            assert!(matches!(policy, Some((false, _) | (_, false))), "{policy:?}");
            assert!(
                is_urgent() && sys::this_processor() != cpu && !shared.is_awaited.load(Ordering::Acquire)
            );
            assert_eq!(place.is, Waits::Lifted);
            // Where others wait, it stays as it is.
            place.settle();
            assert!(until(|| sys::this_processor() == cpu));
            place.hand_back(cpu, false, || false, || policy = Some((is_urgent(), false)));
            assert_eq!((policy, place.is), (Some((true, false)), Waits::Beside(cpu)));
            // One sample from elsewhere is no reason to wait there.
            place.hand_back(cpu + 1, false, || true, || {});
            assert_eq!((place.settle(), place.is), (TURN, Waits::Anywhere));
            assert!(until(|| sys::Processors::of_this_thread().unwrap().count() == allowed.count()));
        });
        served.join().unwrap();
    }
}
