//! The signals that the program ignores, followed from its system calls, for the programs that it
//! executes.
//!
//! QEMU has a handler of its own for each signal that ends a program, also for one that the program
//! was started to ignore. The kernel resets handlers at an execution, and ignored signals alone
//! stay ignored.
//!
//! Limits: real-time signals, whose numbers QEMU changes; programs that run without QEMU; a call of
//! `sigaction(2)` that fails counts too.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// Signals of the kernel's first kind, 1 to 31: bit n is signal n + 1.
static IGNORED: AtomicU32 = AtomicU32::new(0);
const LAST: u64 = 31;

/// The program begins: before QEMU has installed handlers, the thread's process has the program's.
pub fn begin() {
    let ignored = (1..=LAST)
        .filter(|&signal| action(signal, None).is_some_and(|old| old.sa_sigaction == libc::SIG_IGN));
    IGNORED.store(ignored.fold(0, |set, signal| set | bit(signal)), Relaxed);
}

/// The program asks for another handler of a signal.
pub fn changed(signal: u64, handler: u64) {
    if !(1..=LAST).contains(&signal) {
        return;
    }
    if handler == libc::SIG_IGN as u64 {
        IGNORED.fetch_or(bit(signal), Relaxed);
    } else {
        IGNORED.fetch_and(!bit(signal), Relaxed);
    }
}

/// Lets the process itself ignore the program's ignored signals, for `execve`; returns the argument of
/// [`put_back`] for a failure.
pub fn hand_over() -> Vec<(u64, libc::sigaction)> {
    let ignored = IGNORED.load(Relaxed);
    // SAFETY: all bytes 0 are a valid value: no flags, an empty mask.
    let mut ignore: libc::sigaction = unsafe { std::mem::zeroed() };
    ignore.sa_sigaction = libc::SIG_IGN;
    (1..=LAST)
        .filter(|&signal| ignored & bit(signal) != 0)
        .filter_map(|signal| Some((signal, action(signal, Some(&ignore))?)))
        .collect()
}

/// Undoes [`hand_over`].
pub fn put_back(before: &[(u64, libc::sigaction)]) {
    for (signal, old) in before {
        action(*signal, Some(old));
    }
}

const fn bit(signal: u64) -> u32 {
    1 << (signal - 1)
}

/// `sigaction(2)`: the action before; `None` for a signal that has none to change.
fn action(signal: u64, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: all bytes 0 are a valid value, and the call fills it in.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both actions are live.
    let done = unsafe { libc::sigaction(signal as c_int, new, &raw mut old) };
    (done == 0).then_some(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: c_int) {}

    #[test]
    fn an_ignored_signal_with_a_handler_of_ours_is_ignored_for_an_execution() {
        let signal = libc::SIGURG as u64;
        let now = || action(signal, None).unwrap().sa_sigaction;
        // SAFETY: SIGURG has no use in the tests; the handler does nothing.
        unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
        begin();
        let handler = nothing as *const () as usize;
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGURG, handler) };
        let before = hand_over();
        assert_eq!(now(), libc::SIG_IGN);
        put_back(&before);
        assert_eq!(now(), handler);
        changed(signal, handler as u64);
        assert!(hand_over().iter().all(|(other, _)| *other != signal));
        assert_eq!(now(), handler);
        changed(signal, libc::SIG_IGN as u64);
        assert!(hand_over().iter().any(|(other, _)| *other == signal));
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGURG, libc::SIG_DFL) };
    }
}
