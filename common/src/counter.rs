//! Counters of the eBPF programs: one per-CPU array, indexed by these constants.
//!
//! [`SEEN`] = the sum of everything else that [`FATE`] lists: the kernel half of the ledger.

/// Runs of the measuring programs (sample, touch, meter, lifecycle).
pub const SEEN: u32 = 0;
/// Written to the ring.
pub const SUBMITTED: u32 = 1;
/// Ring full: the record is lost.
pub const LOST_RING_FULL: u32 = 2;
/// Scratch buffer missing (cannot happen; counted so that it is never silent).
pub const LOST_SCRATCH: u32 = 3;
/// Not a target's thread.
pub const FILTERED_OTHER: u32 = 4;
/// A target's thread, but in kernel mode.
pub const FILTERED_KERNEL: u32 = 5;
/// A touch of a watch that user space has withdrawn already.
pub const FILTERED_STALE_WATCH: u32 = 6;
/// A touch by another thread before the sampled thread reached its use.
pub const FILTERED_EARLY_TOUCH: u32 = 7;
/// A touch after the reuse (another thread's event that was still armed).
pub const FILTERED_LATE_TOUCH: u32 = 8;
/// A thread or process event of somebody else.
pub const FILTERED_LIFECYCLE: u32 = 9;
/// Stops asked for: `bpf_send_signal_thread` succeeded. Not part of [`FATE`].
pub const STOP_SIGNALS: u32 = 10;
/// A forked process did not fit into the target map. Not part of [`FATE`].
pub const TARGETS_FULL: u32 = 11;
/// A reading of a meter that user space has withdrawn already.
pub const FILTERED_STALE_METER: u32 = 12;
/// Number of counters.
pub const COUNT: u32 = 13;

/// What can become of an event that was seen: exactly one of these per event.
pub const FATE: [(u32, &str); 10] = [
    (SUBMITTED, "submitted"),
    (LOST_RING_FULL, "ring full"),
    (LOST_SCRATCH, "no scratch buffer"),
    (FILTERED_OTHER, "not a target"),
    (FILTERED_KERNEL, "in kernel mode"),
    (FILTERED_STALE_WATCH, "watch withdrawn meanwhile"),
    (FILTERED_EARLY_TOUCH, "touched before the use"),
    (FILTERED_LATE_TOUCH, "touched after the reuse"),
    (FILTERED_LIFECYCLE, "thread of another process"),
    (FILTERED_STALE_METER, "meter withdrawn meanwhile"),
];
