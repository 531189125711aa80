//! Threads take turns, for runs with one global order (`order=one`).
//!
//! The thread with the turn fills a buffer, has the buffer analysed, and passes the
//! turn on: the single analysis sees the threads' events in an order of the real run. A
//! thread gives the turn back before blocking in a system call. QEMU sometimes stops
//! every vCPU (to flush translated code), while one thread has the turn and the rest
//! wait: after waiting [`PATIENCE`], a thread goes on without the turn, and is counted.

use std::{
    sync::{Condvar, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::process;

/// The longest wait for the turn.
const PATIENCE: Duration = Duration::from_millis(50);

struct Queue {
    /// Tickets given out.
    next: u64,
    /// The ticket on turn.
    serving: u64,
    /// Thread with the turn; 0 without.
    holder: i32,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { next: 0, serving: 0, holder: 0 });
static CHANGED: Condvar = Condvar::new();

fn asked_for() -> bool {
    process::current().is_some_and(|process| process.settings().one_order)
}

fn me() -> i32 {
    // SAFETY: the call has no arguments.
    unsafe { libc::gettid() }
}

/// Waits for the turn.
pub fn take() {
    if !asked_for() {
        return;
    }
    let me = me();
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    if queue.holder == me {
        return;
    }
    let ticket = queue.next;
    queue.next += 1;
    let until = Instant::now() + PATIENCE;
    while queue.holder != 0 || queue.serving < ticket {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            if let Some(process) = process::current() {
                process.region().header().out_of_turn.fetch_add(1, Relaxed);
            }
            break;
        }
        queue = CHANGED.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    queue.serving = queue.serving.max(ticket + 1);
    queue.holder = me;
    CHANGED.notify_all();
}

/// Gives the turn back.
pub fn give_back() {
    if !asked_for() {
        return;
    }
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    if queue.holder == me() {
        queue.holder = 0;
        CHANGED.notify_all();
    }
}

/// Lets waiting threads go first.
pub fn pass_on() {
    if asked_for() {
        give_back();
        take();
    }
}

/// In a forked child, with a single thread.
pub fn reset() {
    // The lock may be locked by a thread missing in the child; then the order stays unguarded.
    if let Ok(mut queue) = QUEUE.try_lock() {
        *queue = Queue { next: 0, serving: 0, holder: 0 };
    }
}
