//! Counters of the eBPF programs: one per-CPU array, indexed by these constants.
//!
//! [`SEEN`] = the sum of the counters in [`FATE`]: the kernel half of the ledger.

/// Runs of the measuring programs (sample, touch, meter, lifecycle).
pub const SEEN: u32 = 0;
/// Written to the ring.
pub const SUBMITTED: u32 = 1;
/// Ring full: the record is lost.
pub const LOST_RING_FULL: u32 = 2;
/// Scratch buffer missing (cannot happen; counted to be visible).
pub const LOST_SCRATCH: u32 = 3;
/// Not a target's thread.
pub const FILTERED_OTHER: u32 = 4;
/// A target's thread in kernel mode, soon after the last
/// recorded kernel sample, or sampled by hardware.
pub const FILTERED_KERNEL: u32 = 5;
/// A touch of a watch already withdrawn by user space.
pub const FILTERED_STALE_WATCH: u32 = 6;
/// A touch by another thread before the sampled thread reached its use.
pub const FILTERED_EARLY_TOUCH: u32 = 7;
/// A touch after the reuse (another thread's event that was still armed).
pub const FILTERED_LATE_TOUCH: u32 = 8;
/// A thread or process event outside the targets.
pub const FILTERED_LIFECYCLE: u32 = 9;
/// Stops asked for: `bpf_send_signal_thread` succeeded. Not part of [`FATE`].
pub const STOP_SIGNALS: u32 = 10;
/// A forked process did not fit into the target map. Not part of [`FATE`].
pub const TARGETS_FULL: u32 = 11;
/// A reading of a meter already withdrawn by user space.
pub const FILTERED_STALE_METER: u32 = 12;
/// Runs of the allocation probe at a function's entry, the kernel emulating the probed instruction.
/// Counts of the allocation probes are not part of [`FATE`]: the probes have a separate ring.
pub const HEAP_CALLS: u32 = 13;
/// [`HEAP_CALLS`], but with the kernel stepping over the probed instruction.
pub const HEAP_STEPPED_CALLS: u32 = 14;
/// Calls that ask for less than the least size.
pub const HEAP_SMALL: u32 = 15;
/// Calls of one allocation function by another, and calls
/// of `mmap` without memory for the program: files, stacks.
pub const HEAP_NESTED: u32 = 16;
/// Frees of unknown blocks, and of null.
pub const HEAP_FREE_UNKNOWN: u32 = 17;
/// Calls followed to the return.
pub const HEAP_FOLLOWED: u32 = 18;
/// Calls not followed because of a full map.
pub const HEAP_UNFOLLOWED: u32 = 19;
/// Returns without a block.
pub const HEAP_FAILED: u32 = 20;
/// Recorded allocations and frees.
pub const HEAP_RECORDED: u32 = 21;
/// Records refused by a full ring.
pub const HEAP_LOST: u32 = 22;
/// Recorded stacks of new sites.
pub const HEAP_SITES: u32 = 23;
/// Records refused by a full ring.
pub const HEAP_SITES_LOST: u32 = 24;
/// Live blocks whose free will not be seen: more blocks than the map holds.
pub const HEAP_LIVE_FULL: u32 = 25;
/// A hardware sample of an instruction without an access,
/// or of an instruction lost by the processor.
pub const FILTERED_NO_ADDRESS: u32 = 26;
/// Ticks of the clock in a target with watched words. Not part of [`FATE`], as the counters below.
pub const ARMED_TICKS: u32 = 27;
/// Ticks in a repeated string instruction, of the program or of the kernel.
pub const ARMED_STRING_TICKS: u32 = 28;
/// Samples of a target's thread in the kernel, recorded or not.
pub const KERNEL_TICKS: u32 = 29;
/// Number of counters.
pub const COUNT: u32 = 30;

/// Fates of a seen event: exactly one of these per event.
pub const FATE: [(u32, &str); 11] = [
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
    (FILTERED_NO_ADDRESS, "hardware sample without an access"),
];
