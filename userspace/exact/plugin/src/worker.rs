//! Analyses beside the program: each of the program's threads has a worker thread
//! for the filled buffers, hence recording and counting overlap on free processors.
//!
//! Buffers are handed over in order, one at a time, and the engine belongs to whoever has a buffer
//! to work off: to the worker as long as buffers are filled, otherwise to the program's thread. The
//! locks are taken once in a buffer. Signals are blocked in workers: signals are the program's.
//!
//! Not here: runs in one global order, and processes restricted to one
//! processor, which count while recording. Limits: a program's death by a
//! signal interrupts the worker: the accesses of one batch are counted in part.

use std::{
    ffi::c_uint,
    mem::MaybeUninit,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed, Ordering::Release},
    },
    thread,
};

use crate::{
    analyses,
    process::{self, Process},
    region::{BUFFER_EVENTS, BUFFERS, LANES, ThreadRecord},
    settings::Mode,
};

/// The worker of each lane's thread.
static WORKERS: [AtomicPtr<Worker>; LANES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; LANES];
/// Set after a worker could not be created: no further attempt is made.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// Bytes of a worker's stack.
const STACK: usize = 1 << 20;
/// Filled buffers to wake a sleeping worker.
const WAKE_AT: u64 = 2;

/// A worker in the view of the worker's thread and of the program's.
pub struct Worker {
    queue: Mutex<Queue>,
    /// Wakes the worker after a buffer is filled.
    work: Condvar,
    /// Wakes the program's thread after a buffer is free.
    room: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Buffers filled since the ring was empty.
    filled: u64,
    /// Buffers worked off since then.
    done: u64,
    /// The worker sleeps.
    idle: bool,
    /// The program's thread sleeps until at most the given number of buffers wait.
    wanted: Option<u64>,
    /// The program's thread has ended.
    ended: bool,
}

impl Worker {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a filled buffer over, and waits until a further buffer has room.
    pub fn hand_over(&self) {
        let mut queue = self.lock();
        queue.filled += 1;
        if queue.idle && queue.filled - queue.done >= WAKE_AT {
            self.work.notify_one();
        }
        // The next buffer to fill counts too. Without a free
        // buffer, the wait is for half of the buffers, not for one.
        if queue.filled - queue.done >= BUFFERS as u64 {
            drop(self.wait(queue, BUFFERS as u64 / 2));
        }
    }

    /// Waits until the buffers are processed: the engine is the caller's then.
    pub fn finish(&self) {
        self.work.notify_one();
        let mut queue = self.wait(self.lock(), 0);
        (queue.filled, queue.done) = (0, 0);
    }

    fn wait<'a>(&self, mut queue: MutexGuard<'a, Queue>, most: u64) -> MutexGuard<'a, Queue> {
        queue.wanted = Some(most);
        while queue.filled - queue.done > most {
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.wanted = None;
        queue
    }

    fn run(&self, process: &'static Process, vcpu: c_uint, record: &ThreadRecord) {
        let mut queue = self.lock();
        loop {
            if queue.filled == queue.done {
                if queue.ended {
                    return;
                }
                queue.idle = true;
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle = false;
                continue;
            }
            let buffer = process.region().buffer(vcpu as usize, queue.done);
            drop(queue);
            // SAFETY: the buffer is filled, and the program's
            // thread does not write before the release.
            let events = unsafe { std::slice::from_raw_parts(buffer.as_ptr(), BUFFER_EVENTS) };
            if !process.has_stopped() {
                if let Err(why) = analyses::observe(process, vcpu, record, events) {
                    process::stop(why);
                }
                record.events.fetch_add(BUFFER_EVENTS as u64, Relaxed);
            }
            queue = self.lock();
            queue.done += 1;
            if queue.wanted.is_some_and(|most| queue.filled - queue.done <= most) {
                self.room.notify_one();
            }
        }
    }
}

/// The worker of a lane's thread, created at first use;
/// `None` if the thread is to count without a worker.
pub fn of(process: &'static Process, vcpu: c_uint, record: &'static ThreadRecord) -> Option<&'static Worker> {
    let slot = WORKERS.get(vcpu as usize)?;
    let known = slot.load(Relaxed);
    let found = if known.is_null() { begin(process, vcpu, record)? } else { known };
    // SAFETY: valid until `end`, called by the lane's own thread.
    unsafe { found.as_ref() }
}

/// As [`of`], for an existing worker.
pub fn known(vcpu: c_uint) -> Option<&'static Worker> {
    // SAFETY: as in `of`.
    unsafe { WORKERS.get(vcpu as usize)?.load(Relaxed).as_ref() }
}

#[cold]
fn begin(process: &'static Process, vcpu: c_uint, record: &'static ThreadRecord) -> Option<*mut Worker> {
    let alone = process.settings().one_order || process.settings().mode != Mode::Full;
    if alone || REFUSED.load(Relaxed) {
        return None;
    }
    let worker = Arc::new(Worker { queue: Mutex::default(), work: Condvar::new(), room: Condvar::new() });
    let begun = thread::available_parallelism().is_ok_and(|processors| processors.get() > 1)
        && without_signals(|| {
            let worker = Arc::clone(&worker);
            let run = move || worker.run(process, vcpu, record);
            thread::Builder::new().stack_size(STACK).spawn(run).is_ok()
        });
    if !begun {
        REFUSED.store(true, Relaxed);
        return None;
    }
    let kept = Arc::into_raw(worker).cast_mut();
    WORKERS.get(vcpu as usize)?.store(kept, Release);
    Some(kept)
}

/// Calls `f` with every signal blocked, which new threads inherit.
fn without_signals(f: impl FnOnce() -> bool) -> bool {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are written before the first read, by the calls with the sets' addresses.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        if libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) != 0 {
            return false;
        }
        let done = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        done
    }
}

/// The lane's thread has ended, and the buffers are processed.
pub fn end(vcpu: c_uint) {
    let Some(slot) = WORKERS.get(vcpu as usize) else { return };
    let kept = slot.swap(std::ptr::null_mut(), Relaxed);
    if !kept.is_null() {
        // SAFETY: made by `Arc::into_raw` in `begin`; used only by the lane's thread.
        let worker = unsafe { Arc::from_raw(kept) };
        worker.lock().ended = true;
        worker.work.notify_one();
    }
}

/// In a forked child, without workers.
pub fn reset() {
    for slot in &WORKERS {
        if !slot.load(Relaxed).is_null() {
            slot.store(std::ptr::null_mut(), Relaxed);
        }
    }
}
