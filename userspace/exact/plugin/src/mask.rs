//! The program's blocked signals, followed from its system calls, for the programs that it
//! executes.
//!
//! QEMU keeps the program's mask to itself: the thread blocks other signals for the kernel. A new
//! program would start with those.
//!
//! Limits: what a handler of a signal blocks by itself and has not unblocked counts on after its return.

use std::{cell::Cell, ffi::c_int, sync::atomic::AtomicU64, sync::atomic::Ordering::Relaxed};

use crate::{guest, process::Process};

/// Bytes of the kernel's signal sets.
const SET_BYTES: usize = 8;

/// The mask of the thread that started a thread last.
static OF_STARTER: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The mask of this thread of the program, once known.
    static MASK: Cell<Option<u64>> = const { Cell::new(None) };
    /// The mask after the running system call.
    static ASKED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The program begins: QEMU gives it the mask that QEMU was given.
pub fn begin() {
    MASK.set(Some(set_own(None)));
}

fn of_program() -> u64 {
    MASK.get().unwrap_or_else(|| OF_STARTER.load(Relaxed))
}

/// Before a system call.
pub fn before(process: &Process, number: i64, [how, set]: [u64; 2]) {
    match number {
        libc::SYS_clone | libc::SYS_clone3 => OF_STARTER.store(of_program(), Relaxed),
        libc::SYS_rt_sigprocmask if set != 0 => {
            let mut bytes = [0; SET_BYTES];
            if guest::read(process, set, &mut bytes) == SET_BYTES {
                ASKED.set(changed(of_program(), how as c_int, u64::from_le_bytes(bytes)));
            }
        }
        _ => {}
    }
}

/// After a system call.
pub fn after(number: i64, result: i64) {
    if number == libc::SYS_rt_sigprocmask
        && let Some(asked) = ASKED.take()
        && result == 0
    {
        MASK.set(Some(asked));
    }
}

/// The mask after a call of `sigprocmask(2)`; `None` for an unknown way.
fn changed(mask: u64, how: c_int, set: u64) -> Option<u64> {
    match how {
        libc::SIG_BLOCK => Some(mask | set),
        libc::SIG_UNBLOCK => Some(mask & !set),
        libc::SIG_SETMASK => Some(set),
        _ => None,
    }
}

/// Gives this thread the program's mask for `execve`; returns the argument of [`put_back`] for a
/// failure.
pub fn hand_over() -> u64 {
    set_own(Some(of_program()))
}

/// Undoes [`hand_over`].
pub fn put_back(before: u64) {
    set_own(Some(before));
}

fn set_own(mask: Option<u64>) -> u64 {
    let mut before = 0u64;
    let new = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the sets are live and have the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, &raw mut before, SET_BYTES) };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_change_as_by_the_kernel() {
        assert_eq!(changed(0b0110, libc::SIG_BLOCK, 0b0011), Some(0b0111));
        assert_eq!(changed(0b0110, libc::SIG_UNBLOCK, 0b0011), Some(0b0100));
        assert_eq!(changed(0b0110, libc::SIG_SETMASK, 0b0011), Some(0b0011));
        assert_eq!(changed(0b0110, 77, 0b0011), None);
    }

    #[test]
    fn only_calls_that_succeed_change_the_mask() {
        std::thread::spawn(|| {
            begin();
            let own = of_program();
            ASKED.set(Some(own | 1 << 9));
            after(libc::SYS_rt_sigprocmask, -22);
            assert_eq!(of_program(), own);
            ASKED.set(Some(own | 1 << 9));
            after(libc::SYS_rt_sigprocmask, 0);
            assert_eq!(of_program(), own | 1 << 9);
            let before = hand_over();
            assert_eq!((before, set_own(None)), (own, own | 1 << 9));
            put_back(before);
            assert_eq!(set_own(None), own);
        })
        .join()
        .unwrap();
    }
}
