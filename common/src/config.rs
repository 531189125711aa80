//! Settings that user space writes into the eBPF object before it is loaded.

/// Which threads are targets; the value of the `MODE` global.
pub mod mode {
    /// Processes in the `TARGETS` map, with their forks.
    pub const PROCESSES: u32 = 0;
    /// Threads in the cgroups of the `CGROUPS` map, or below them.
    pub const CGROUPS: u32 = 1;
    /// Every thread in the tracer's pid namespace except the tracer's.
    pub const ALL: u32 = 2;
}

/// Why a process is spared; the values of the `SPARED` map.
pub mod spared {
    /// A process of ours, as are the children.
    pub const OWN: u32 = 1;
    /// Another process, without the children.
    pub const ALONE: u32 = 2;
}

/// Byte offsets of the kernel fields that the programs read, from the running kernel's BTF.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelOffsets {
    /// `task_struct.pid` (the thread id).
    pub task_pid: u32,
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.start_boottime`.
    pub task_start_boottime: u32,
    /// `task_struct.nvcsw`
    pub task_voluntary_switches: u32,
    /// `task_struct.nivcsw`
    pub task_involuntary_switches: u32,
    /// `task_struct.ptrace`.
    pub task_ptrace: u32,
    /// `task_struct.sighand`.
    pub task_sighand: u32,
    /// `task_struct.signal`.
    pub task_signal: u32,
    /// `task_struct.blocked`.
    pub task_blocked: u32,
    /// `task_struct.pending.signal`.
    pub task_pending: u32,
    /// `task_struct.se.sum_exec_runtime`.
    pub task_cpu_ns: u32,
    /// `signal_struct.shared_pending.signal`.
    pub signal_shared_pending: u32,
    /// `signal_struct.sum_sched_runtime`: the CPU time of the process' ended threads.
    pub signal_cpu_ns: u32,
    /// `sighand_struct.action`.
    pub sighand_action: u32,
    /// Size of `k_sigaction`; the first field is the handler.
    pub k_sigaction_bytes: u32,
    /// `task_struct.thread_pid`: the `struct pid` of the thread.
    pub task_thread_pid: u32,
    /// `signal_struct.pids`: pointers to `struct pid` by `enum pid_type`.
    pub signal_pids: u32,
    /// `pid.level`: depth of the pid namespace, 0 for the initial namespace.
    pub pid_level: u32,
    /// `pid.numbers`: one `struct upid` for each level.
    pub pid_numbers: u32,
    /// Size of `upid`.
    pub upid_bytes: u32,
    /// `upid.nr`.
    pub upid_nr: u32,
    /// `upid.ns`.
    pub upid_ns: u32,
    /// `pid_namespace.ns.inum`.
    pub pid_namespace_inum: u32,
}

/// Most cgroups that a trace can name.
pub const CGROUPS_MAX: u32 = 16;

/// One traced cgroup.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupTarget {
    /// Inode number of the cgroup's directory.
    pub id: u64,
    /// Depth below the root of the hierarchy (the root is 0).
    pub level: u32,
    /// 1 for an entry in use.
    pub used: u32,
}

/// A heartbeat older than this stops the stops: the freezer may hang.
pub const HEARTBEAT_MAX_AGE_NS: u64 = 100_000_000;

const _: () = {
    assert!(size_of::<KernelOffsets>() == 92);
    assert!(size_of::<CgroupTarget>() == 16);
};

#[cfg(feature = "user")]
mod pod {
    // SAFETY: integers only, no implicit padding (size asserted above).
    unsafe impl aya::Pod for super::KernelOffsets {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::CgroupTarget {}
}
