//! Reports the window process' death to the tracer through the shared
//! memory, by the kernel, at once and without a system call of the tracer's:
//! a stopped thread must not wait for an answer from a dead process.
//!
//! The means is the list of robust futexes (`Documentation/locking/robust-futexes.rst` of the
//! kernel): at every kind of thread's end, the kernel goes through a list in the thread's memory.
//! The kernel marks each listed word that contains the thread's id with `FUTEX_OWNER_DIED`, and
//! wakes a sleeper on the word if `FUTEX_WAITERS` is set. Our list has two words, in order: first
//! the word that always contains the id and shows the tracer an earlier death; then the word on
//! which the tracer waits, containing the id while a question is open. The tracer opens the
//! question before reading the first word, and therefore cannot miss a death between both steps.

use std::io;
use std::sync::atomic::AtomicU32;

/// One element. Elements are as far apart in memory as the
/// words, since the kernel adds a fixed offset to each.
#[derive(Debug)]
#[repr(C, align(64))]
struct Node {
    next: *const libc::c_void,
}

/// `struct robust_list_head`.
#[derive(Debug)]
#[repr(C)]
struct Head {
    list: *const Node,
    futex_offset: libc::c_long,
    pending: *const Node,
}

#[derive(Debug)]
#[repr(C)]
struct List {
    nodes: [Node; 2],
    head: Head,
}

/// Has the kernel mark two words, the second first, when the calling
/// thread ends. The words lie 64 bytes apart, in memory that stays.
pub(super) fn tell(waited_for: &'static AtomicU32, always: &'static AtomicU32) -> io::Result<()> {
    let (first, second) = (waited_for.as_ptr() as usize, always.as_ptr() as usize);
    if first + size_of::<Node>() != second {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let node = || Node { next: std::ptr::null() };
    let head = Head { list: std::ptr::null(), futex_offset: 0, pending: std::ptr::null() };
    let list = Box::leak(Box::new(List { nodes: [node(), node()], head }));
    let [one, two] = &mut list.nodes;
    list.head.futex_offset = (first as libc::c_long).wrapping_sub(std::ptr::from_ref(one) as libc::c_long);
    list.head.list = two;
    two.next = std::ptr::from_ref(one).cast();
    one.next = (&raw const list.head).cast();
    // SAFETY: the list is leaked and circular, and the words are mapped, as the caller says.
    let result = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const list.head, size_of::<Head>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Content of a word for a mark at the end of thread `tid`, while a waiter sleeps on the word.
pub(super) fn open(tid: u32) -> u32 {
    tid & libc::FUTEX_TID_MASK | libc::FUTEX_WAITERS
}

/// Whether `value` has the kernel's mark.
pub(super) fn is_marked(value: u32) -> bool {
    value & libc::FUTEX_OWNER_DIED != 0
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};

    use super::super::sys;
    use super::*;

    #[repr(C, align(64))]
    struct Line(AtomicU32);

    #[test]
    fn a_threads_end_marks_both_words_and_wakes() {
        for busy in [true, false] {
            let lines: &'static [Line; 2] =
                Box::leak(Box::new([Line(AtomicU32::new(0)), Line(AtomicU32::new(0))]));
            let words = [&lines[0].0, &lines[1].0];
            let (told, listen) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                tell(words[0], words[1]).unwrap();
                // SAFETY: a system call without arguments.
                let tid = unsafe { libc::gettid() } as u32;
                words[1].store(tid, SeqCst);
                told.send(tid).unwrap();
                let _ = ended.recv();
            });
            let tid = listen.recv().unwrap();
            let value = if busy { open(tid) } else { 77 };
            words[0].store(value, SeqCst);
            assert!(!is_marked(value) && !is_marked(words[1].load(SeqCst)));
            drop(end);
            if busy {
                let far = sys::now_ns() + 20_000_000_000;
                while words[0].load(Relaxed) == value {
                    assert!(sys::now_ns() < far);
                    sys::futex_wait(words[0], value, Some(far));
                }
                assert!(is_marked(words[0].load(SeqCst)));
            }
            thread.join().unwrap();
            // Joined before the kernel goes through the list, or after.
            let far = sys::now_ns() + 20_000_000_000;
            while !is_marked(words[1].load(SeqCst)) {
                assert!(sys::now_ns() < far);
                std::thread::yield_now();
            }
            assert!(busy || words[0].load(SeqCst) == 77);
        }
    }

    #[test]
    fn words_elsewhere_are_refused() {
        let lines: &'static [Line; 2] =
            Box::leak(Box::new([Line(AtomicU32::new(0)), Line(AtomicU32::new(0))]));
        assert!(tell(&lines[1].0, &lines[0].0).is_err());
    }
}
