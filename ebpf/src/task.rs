//! Reads fields of kernel structures at offsets that user space took from the running kernel's BTF.
//! The only file that does. Offsets of 0 (no BTF) read as 0 and make every question answer "no".

use aya_ebpf::helpers::{generated::bpf_get_current_task, generated::bpf_probe_read_kernel};
use locality_common::rules;

use crate::maps::offset;

/// `PIDTYPE_TGID` in include/linux/pid_types.h.
const PIDTYPE_TGID: u64 = 1;
/// `MAX_PID_NS_LEVEL` in include/linux/pid_namespace.h.
const PID_NAMESPACES_MAX: u32 = 32;

/// A `struct task_struct *`.
#[derive(Clone, Copy)]
pub struct Task(u64);

#[inline(always)]
fn read<T: Copy + Default>(address: u64) -> T {
    let mut value = T::default();
    // SAFETY: the destination is a local of the right size; the helper checks the source and zeroes
    // it on a fault.
    unsafe { bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, address as *const _) };
    value
}

impl Task {
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: a helper call without arguments.
        Self(unsafe { bpf_get_current_task() })
    }

    #[inline(always)]
    pub fn from_pointer(pointer: u64) -> Self {
        Self(pointer)
    }

    /// Process and thread id in the initial pid namespace.
    #[inline(always)]
    pub fn first_ids(self) -> (u32, u32) {
        (read(self.0 + u64::from(offset!(task_tgid))), read(self.0 + u64::from(offset!(task_pid))))
    }

    /// Process and thread id in the pid namespace with inode number `namespace`,
    /// not the initial namespace; zeroes for a thread without ids in the namespace.
    ///
    /// A `struct pid` has one number for each namespace from the initial to the innermost.
    /// All threads of a process are in one pid namespace: the levels of both are equal.
    #[inline(always)]
    pub fn ids_in(self, namespace: u32) -> (u32, u32) {
        let pid: u64 = read(self.0 + u64::from(offset!(task_thread_pid)));
        let signal: u64 = read(self.0 + u64::from(offset!(task_signal)));
        if offset!(task_thread_pid) == 0 || offset!(upid_bytes) == 0 || pid == 0 || signal == 0 {
            return (0, 0);
        }
        let leader: u64 = read(signal + u64::from(offset!(signal_pids)) + 8 * PIDTYPE_TGID);
        let deepest: u32 = read(pid + u64::from(offset!(pid_level)));
        for level in 1..=PID_NAMESPACES_MAX {
            if level > deepest {
                break;
            }
            let number = u64::from(offset!(pid_numbers)) + u64::from(level) * u64::from(offset!(upid_bytes));
            let found: u64 = read(pid + number + u64::from(offset!(upid_ns)));
            let inode: u32 = read(found + u64::from(offset!(pid_namespace_inum)));
            if inode == namespace {
                let at = number + u64::from(offset!(upid_nr));
                return (read(leader + at), read(pid + at));
            }
        }
        (0, 0)
    }

    #[inline(always)]
    pub fn start_boottime_ns(self) -> u64 {
        read(self.0 + u64::from(offset!(task_start_boottime)))
    }

    /// How often the thread has left a CPU.
    #[inline(always)]
    pub fn switches(self) -> u64 {
        let voluntary: u64 = read(self.0 + u64::from(offset!(task_voluntary_switches)));
        let involuntary: u64 = read(self.0 + u64::from(offset!(task_involuntary_switches)));
        voluntary.wrapping_add(involuntary)
    }

    /// CPU time in ns, up to the last scheduler tick, and
    /// of the process's threads that ended earlier.
    #[inline(always)]
    pub fn cpu_ns(self) -> u64 {
        let signal: u64 = read(self.0 + u64::from(offset!(task_signal)));
        if offset!(task_cpu_ns) == 0 || offset!(signal_cpu_ns) == 0 || signal == 0 {
            return 0;
        }
        let own: u64 = read(self.0 + u64::from(offset!(task_cpu_ns)));
        let ended: u64 = read(signal + u64::from(offset!(signal_cpu_ns)));
        own.wrapping_add(ended)
    }

    /// Whether it has a tracer: a debugger, or us.
    #[inline(always)]
    pub fn has_tracer(self) -> bool {
        let flags: u32 = read(self.0 + u64::from(offset!(task_ptrace)));
        offset!(task_ptrace) != 0 && flags != 0
    }

    /// A signal that the thread would not notice: not caught, not blocked, none pending. 0 when
    /// there is none.
    #[inline(always)]
    pub fn free_signal(self) -> u32 {
        let handlers: u64 = read(self.0 + u64::from(offset!(task_sighand)));
        let signal: u64 = read(self.0 + u64::from(offset!(task_signal)));
        if offset!(task_sighand) == 0 || handlers == 0 || signal == 0 {
            return 0;
        }
        let blocked: u64 = read(self.0 + u64::from(offset!(task_blocked)));
        let own: u64 = read(self.0 + u64::from(offset!(task_pending)));
        let shared: u64 = read(signal + u64::from(offset!(signal_shared_pending)));
        for candidate in rules::STOP_SIGNALS {
            let action = u64::from(offset!(sighand_action))
                + u64::from(candidate - 1) * u64::from(offset!(k_sigaction_bytes));
            let handler: u64 = read(handlers + action);
            if rules::signal_is_free(candidate, handler, blocked, own | shared) {
                return candidate;
            }
        }
        0
    }
}
