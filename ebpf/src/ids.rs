//! Process and thread ids as counted by user space: in user space's pid namespace.
//!
//! All ids in map keys and records come from this module. An id is 0 for a thread without
//! a number in the namespace; the thread is never a target, and no map has a key of 0.

use aya_ebpf::helpers::generated::bpf_get_current_pid_tgid;

use crate::{maps, task::Task};

/// A thread.
#[derive(Clone, Copy)]
pub struct Ids {
    /// Its process (thread group).
    pub tgid: u32,
    /// The thread.
    pub tid: u32,
}

/// Ids of the current thread.
#[inline(always)]
pub fn current() -> Ids {
    if maps::namespace() != 0 {
        return of(Task::current());
    }
    // SAFETY: a helper call without arguments.
    let both = unsafe { bpf_get_current_pid_tgid() };
    Ids { tgid: (both >> 32) as u32, tid: both as u32 }
}

/// Ids of any thread.
#[inline(always)]
pub fn of(task: Task) -> Ids {
    let (tgid, tid) = match maps::namespace() {
        0 => task.first_ids(),
        namespace => task.ids_in(namespace),
    };
    Ids { tgid, tid }
}
