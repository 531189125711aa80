//! Has the kernel tell the tracer of the window process' death through the shared memory, at once
//! and without a system call of the tracer's, so that a stopped thread does not wait for an answer
//! that will not come.
//!
//! The means is the list of robust futexes (`Documentation/locking/robust-futexes.rst` of the
//! kernel): at a thread's end, however it comes, the kernel goes through a list in its memory and
//! marks each word on it that holds the thread's id with `FUTEX_OWNER_DIED`, and wakes who sleeps
//! on it if it has `FUTEX_WAITERS`. There are two words on ours, in this order: one that holds the
//! id always, by which the tracer sees an earlier death; and the one on which it waits, which holds
//! the id while a question is open. The tracer opens the question first and looks at the other word
//! then, so it cannot miss a death between the two.

use std::io;
use std::sync::atomic::AtomicU32;

/// One element; as far from the next in memory as the words are, since the kernel adds the same
/// offset to each.
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

/// Marks these two words, the second first, when the calling thread ends. They lie 64 bytes apart,
/// in memory that stays.
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
    // SAFETY: the list is leaked, ends where it begins, and its words are mapped, as the caller says.
    let result = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const list.head, size_of::<Head>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Content of a word marked at the end of the thread with this id, while a waiter sleeps on it.
pub(super) fn open(tid: u32) -> u32 {
    tid & libc::FUTEX_TID_MASK | libc::FUTEX_WAITERS
}

/// Whether the kernel has marked a word of this value.
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
