//! On which processor the capture thread waits, and how a stopped thread gets it back.
//!
//! A thread that stops leaves its processor idle, so the capture thread serves it there, with the thread's data in the caches: to wake
//! an idle processor takes some 100 µs in a virtual machine, and milliseconds where the host has more of them than it can run
//! (docs/accuracy.md). So it waits, asleep, on the processor of the samples, once a few in a row came from one.
//!
//! The stopped thread goes on there too. A woken thread that finds its processor busy is put on an idle one, but a processor
//! that runs nothing except idle-priority work passes for idle
//! (<https://github.com/torvalds/linux/blob/v6.12/kernel/sched/fair.c>, `select_idle_sibling`). So the capture thread takes that priority
//! for the resume, is preempted at once, and the *lifter*, a thread that does nothing else, gives it its own processor and its
//! priority back. What is wrong in any of that costs time only: nothing of the traced program is changed.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::kernel::sys;

/// Samples in a row that must come from one processor, where several threads are traced.
const IN_A_ROW: u32 = 3;

/// For so long the lifter waits awake for the capture thread's change of priority.
const PATIENCE: Duration = Duration::from_millis(1);

/// Longest sleep of the capture thread; each turn of its loop is a sign of life.
const TURN: Duration = Duration::from_millis(20);

/// The same where it wakes on the processor of the traced thread, whose time that is.
const TURN_BESIDE: Duration = Duration::from_millis(50);

/// Where the capture thread waits; by default wherever the scheduler has it.
#[derive(Debug, Default)]
pub struct Place {
    /// Absent where it has one processor, or no real-time priority.
    choice: Option<Choice>,
    /// Processor of the newest sample, and how many in a row came from there.
    newest: (u32, u32),
    is: Waits,
}

#[derive(Debug)]
struct Choice {
    /// Where it may run.
    allowed: sys::Processors,
    lifter: Lifter,
}

/// Where the capture thread wakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Waits {
    #[default]
    Anywhere,
    Beside(u32),
    /// Where the lifter was.
    Lifted,
}

impl Place {
    /// Of the calling thread, which has its real-time priority.
    pub fn of_this_thread() -> Self {
        let choice = sys::Processors::of_this_thread().and_then(|allowed| match allowed.count() {
            0 | 1 => Err(io::ErrorKind::Unsupported.into()),
            _ => Ok(Choice { allowed, lifter: Lifter::start()? }),
        });
        let choice = choice.inspect_err(|error| tracing::debug!("waits anywhere: {error}")).ok();
        Self { choice, ..Self::default() }
    }

    /// Before the thread sleeps: has it wake where the next stop is expected. Returns how long it may sleep.
    pub fn settle(&mut self) -> Duration {
        let Some(choice) = &self.choice else { return TURN };
        if choice.lifter.is_awaited() {
            return TURN;
        }
        let (cpu, times) = self.newest;
        let wanted = if times >= IN_A_ROW { Waits::Beside(cpu) } else { Waits::Anywhere };
        if wanted != self.is {
            let done = match wanted {
                Waits::Beside(cpu) => choice.lifter.settle(&choice.allowed, cpu),
                _ => choice.allowed.assign(0),
            };
            match done {
                Ok(()) => self.is = wanted,
                // Somebody changed meanwhile which processors we may use.
                Err(error) => {
                    tracing::debug!("stays where it is: {error}");
                    self.newest = (cpu, 0);
                }
            }
        }
        if matches!(self.is, Waits::Beside(_)) { TURN_BESIDE } else { TURN }
    }

    /// Lets a stopped thread that was sampled on processor `cpu` go on, by `resume`; there, if we run there too. `is_alone`: no
    /// other thread is traced.
    pub fn hand_back(&mut self, cpu: u32, is_alone: bool, resume: impl FnOnce()) {
        self.newest = match self.newest {
            _ if is_alone => (cpu, IN_A_ROW),
            (newest, times) if newest == cpu => (cpu, times.saturating_add(1)),
            _ => (cpu, 1),
        };
        if let Some(choice) = &self.choice
            && self.is == Waits::Beside(cpu)
            && sys::this_processor() == cpu
        {
            self.is = Waits::Lifted;
            choice.lifter.step_down(&choice.allowed);
        }
        resume();
    }
}

/// A thread that puts the capture thread where it cannot go by itself.
#[derive(Debug)]
struct Lifter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    capture: u32,
    lifter: AtomicU32,
    calls: sys::Waker,
    /// What to do: one of the constants below, or [`SETTLE`] and a processor.
    order: AtomicU32,
    /// The capture thread has stepped down and is not lifted yet.
    is_awaited: AtomicBool,
    /// It has lowered its priority.
    is_down: AtomicBool,
}

const NOTHING: u32 = 0;
const LIFT: u32 = 1;
const END: u32 = 2;
const SETTLE: u32 = 1 << 31;

impl Lifter {
    fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            capture: sys::this_thread(),
            lifter: AtomicU32::new(0),
            calls: sys::Waker::blocking()?,
            order: AtomicU32::new(NOTHING),
            is_awaited: AtomicBool::new(false),
            is_down: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("lifter".into()).spawn(move || of_thread.serve())?;
        Ok(Self(shared))
    }

    fn order(&self, order: u32) {
        self.0.order.store(order, Ordering::Release);
        self.0.calls.wake();
    }

    fn is_awaited(&self) -> bool {
        self.0.is_awaited.load(Ordering::Acquire)
    }

    /// Has the calling thread wake on `cpu` when it sleeps, without running there now: the traced thread does.
    fn settle(&self, allowed: &sys::Processors, cpu: u32) -> io::Result<()> {
        let lifter = self.0.lifter.load(Ordering::Acquire);
        if lifter == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        allowed.without(cpu).assign(lifter)?;
        self.order(SETTLE | cpu);
        Ok(())
    }

    /// Has the calling thread give way to everything until the lifter has run. The scheduler may move it, so that it need not
    /// move the traced thread.
    fn step_down(&self, allowed: &sys::Processors) {
        self.0.is_awaited.store(true, Ordering::Release);
        self.order(LIFT);
        if let Err(error) = allowed.assign(0).and_then(|()| sys::make_thread_idle()) {
            tracing::debug!("priority kept: {error}");
        }
        self.0.is_down.store(true, Ordering::Release);
    }
}

impl Drop for Lifter {
    fn drop(&mut self) {
        self.order(END);
    }
}

impl Shared {
    fn serve(&self) {
        match sys::make_thread_urgent() {
            Ok(()) => self.lifter.store(sys::this_thread(), Ordering::Release),
            Err(error) => return tracing::debug!("no lifter: {error}"),
        }
        loop {
            self.calls.clear();
            match self.order.swap(NOTHING, Ordering::AcqRel) {
                NOTHING => {}
                LIFT => self.lift(),
                END => return,
                settle => {
                    let there = sys::Processors::only(settle & !SETTLE);
                    let settled = there.and_then(|there| there.assign(self.capture));
                    tracing::trace!(?settled, "settled");
                }
            }
        }
    }

    fn lift(&self) {
        let called = Instant::now();
        while !self.is_down.swap(false, Ordering::AcqRel) {
            match called.elapsed() < PATIENCE {
                true => std::hint::spin_loop(),
                false => thread::sleep(PATIENCE),
            }
        }
        let here = sys::Processors::only(sys::this_processor());
        let moved = here.and_then(|here| here.assign(self.capture));
        let lifted = sys::make_urgent(self.capture, sys::CAPTURE_PRIORITY);
        self.is_awaited.store(false, Ordering::Release);
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

    /// Whoever hands a thread its processor back has its priority again soon, elsewhere, and wakes beside it again.
    #[test]
    fn who_stepped_down_is_lifted() {
        let served = thread::spawn(|| {
            if sys::make_thread_urgent().is_err() {
                return;
            }
            let mut place = Place::of_this_thread();
            let Some(choice) = &place.choice else { return };
            let (allowed, shared) = (choice.allowed.clone(), Arc::clone(&choice.lifter.0));
            let cpu = sys::this_processor();
            assert!(until(|| shared.lifter.load(Ordering::Acquire) != 0));
            assert_eq!(place.settle(), TURN);
            place.hand_back(cpu, true, || {});
            assert_eq!((place.is, place.settle()), (Waits::Anywhere, TURN_BESIDE));
            assert!(until(
                || sys::this_processor() == cpu && sys::Processors::of_this_thread().unwrap().count() == 1
            ));
            let mut was_urgent = true;
            place.hand_back(cpu, true, || was_urgent = is_urgent());
            assert!(!was_urgent || !shared.is_awaited.load(Ordering::Acquire));
            assert!(until(|| !shared.is_awaited.load(Ordering::Acquire)));
            assert!(is_urgent() && sys::this_processor() != cpu);
            // A thread elsewhere, among others, is no reason to wait there yet.
            place.hand_back(cpu, false, || {});
            place.newest = (cpu + 1, 1);
            assert_eq!((place.settle(), place.is), (TURN, Waits::Anywhere));
            assert_eq!(sys::Processors::of_this_thread().unwrap().count(), allowed.count());
        });
        served.join().unwrap();
    }
}
