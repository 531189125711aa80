//! Threads take turns, for runs with one global order (`order=one`).
//!
//! Whoever holds the turn fills its buffer, has it analysed, and passes the turn on; so the one
//! analysis sees the events of all threads in an order in which the program really ran. A thread
//! that blocks in a system call gives the turn back first. QEMU itself sometimes stops all vCPUs
//! (to flush translated code), while one holds the turn and others wait for it: whoever has waited
//! [`PATIENCE`] goes on without it, and is counted.

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
    /// Thread that holds the turn; 0 for none.
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

/// In a forked child, without the other threads.
pub fn reset() {
    // The lock may be locked by a thread that the child does not have; then the order stays unguarded.
    if let Ok(mut queue) = QUEUE.try_lock() {
        *queue = Queue { next: 0, serving: 0, holder: 0 };
    }
}
