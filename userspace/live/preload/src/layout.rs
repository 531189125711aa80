//! Memory shared by recorder and tracer: one sparse file of
//! [`Shared`], mapped by the tracer and by each recorded process.
//!
//! The recorder writes, the tracer reads and never trusts: every number is
//! checked before use. All times are readings of the time stamp counter.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Begins the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"locheap1");
/// Greatest number of waiting records; a power of two.
pub const EVENTS: usize = 1 << 15;
/// Greatest number of waiting stacks; a power of two.
pub const STACKS: usize = 64;
/// Bytes of a stack.
pub const STACK_BYTES: usize = 16 << 10;
/// Greatest number of known names of sites; a power of two.
pub const SITES: usize = 1 << 15;
/// Places examined for a site's name.
pub const SITE_PROBES: usize = 8;
/// Counters of small allocations, enough for few threads to share a counter; a power of two.
pub const STRIPES: usize = 256;
/// Greatest number of recorded processes in a trace.
pub const PROCESSES: usize = 4096;
/// Least size while recording is off.
pub const OFF: u64 = i64::MAX as u64;

/// What every call looks at.
#[repr(C, align(64))]
pub struct Front {
    /// Smaller allocations are only counted.
    pub min_bytes: AtomicU64,
    /// Blocks with a smaller chunk are not reported at their end.
    pub free_min: AtomicU64,
    /// Explicit padding.
    pub reserved: [u64; 6],
    /// Allocations of less, counted without a lock: of two threads
    /// that share a stripe, one may overwrite the count of the second.
    pub small: [Stripe; STRIPES],
}

/// A counter in a separate cache line.
#[repr(C, align(64))]
pub struct Stripe(pub AtomicU64);

/// Ends of a ring: places ever taken, and ever given back.
#[repr(C, align(64))]
pub struct Ends {
    /// By the recorder.
    pub head: AtomicU64,
    /// Explicit padding: another cache line.
    pub reserved: [u64; 7],
    /// By the tracer.
    pub tail: AtomicU64,
    /// Records without room.
    pub lost: AtomicU64,
}

/// A process, or a copy of one made by fork.
#[repr(C, align(64))]
pub struct Process {
    /// A value of [`state`]; written last.
    pub state: AtomicU32,
    /// Process id; 0 in a copy, because a copy makes no system call.
    pub pid: AtomicU32,
    /// Number of the copied process; the own number for an original.
    pub parent: AtomicU32,
    /// Explicit padding.
    pub reserved: u32,
    /// Address of the process's number, on a page wiped by a fork.
    pub token_at: AtomicU64,
    /// When it was met.
    pub since: AtomicU64,
    /// Text: reason for not recording ([`state::FOREIGN`]).
    pub why: [AtomicU64; 4],
}

/// Values of [`Process::state`].
pub mod state {
    /// No process yet.
    pub const FREE: u32 = 0;
    /// The process is recorded.
    pub const RECORDED: u32 = 1;
    /// The process has a separate allocator, named in [`super::Process::why`].
    pub const FOREIGN: u32 = 2;
    /// The process is no longer recorded, after giving up reading the time.
    pub const CLOSED: u32 = 3;
}

/// A block began or ended.
#[repr(C, align(64))]
pub struct Event {
    /// The place in the ring plus one, written last.
    pub sequence: AtomicU64,
    /// Time of the function's return, for an end time of the call.
    pub at: AtomicU64,
    /// First byte.
    pub address: AtomicU64,
    /// Requested size; for `munmap` the removed size.
    pub bytes: AtomicU64,
    /// The former block, now freed, or 0.
    pub old: AtomicU64,
    /// Name of the site, for an end 0.
    pub site: AtomicU64,
    /// When the function was called.
    pub called: AtomicU64,
    /// [`kind`].
    pub kind: AtomicU64,
}

/// Packs the kind of event, the function (`locality_common::heap`), and the process.
pub const fn kind(event: u8, function: u8, process: u32) -> u64 {
    event as u64 | (function as u64) << 8 | (process as u64) << 32
}

/// Takes [`kind`] apart again.
pub const fn of_kind(kind: u64) -> (u8, u8, u32) {
    (kind as u8, (kind >> 8) as u8, (kind >> 32) as u32)
}

/// Registers in a [`Stack`]: rbx, r12, r13, r14, r15, rbp, rsp at the function's entry, and the
/// address of the function called.
pub const REGISTERS: usize = 8;

/// A site not met before.
#[repr(C, align(64))]
pub struct Stack {
    /// As in [`Event`].
    pub sequence: AtomicU64,
    /// When it was met.
    pub at: AtomicU64,
    /// Name of the site.
    pub site: AtomicU64,
    /// First requested size.
    pub bytes: AtomicU64,
    /// [`kind`].
    pub kind: AtomicU64,
    /// Bytes copied to [`Stack::words`].
    pub copied: AtomicU64,
    /// See [`REGISTERS`].
    pub registers: [AtomicU64; REGISTERS],
    /// The stack from the entry's stack pointer upwards.
    pub words: [AtomicU64; STACK_BYTES / 8],
}

/// The whole shared memory.
#[repr(C, align(4096))]
pub struct Shared {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Processes ever met; processes beyond [`PROCESSES`] are not recorded.
    pub processes_met: AtomicU64,
    /// Allocations followed.
    pub followed: AtomicU64,
    /// Followed allocations that failed.
    pub failed: AtomicU64,
    /// Stacks copied.
    pub copied: AtomicU64,
    /// What every call looks at.
    pub front: Front,
    /// Ends of `events`.
    pub event_ends: Ends,
    /// Ends of `stacks`.
    pub stack_ends: Ends,
    /// By number.
    pub processes: [Process; PROCESSES],
    /// Names of sites with copied stacks; 0 is free.
    pub sites: [AtomicU64; SITES],
    /// Ring of events.
    pub events: [Event; EVENTS],
    /// Ring of stacks.
    pub stacks: [Stack; STACKS],
}

/// Name of the environment variable by which a process finds the shared memory.
pub const VARIABLE: &str = "LOCALITY_HEAP=";
/// A second variable, so both can be removed without moving the data after the environment.
pub const FILLER: &str = "LOCALITY_HEAP_END=";

const _: () = {
    assert!(size_of::<Event>() == 64);
    assert!(size_of::<Process>() == 64);
    assert!(size_of::<Stripe>() == 64);
    assert!(EVENTS.is_power_of_two() && STACKS.is_power_of_two() && SITES.is_power_of_two());
    assert!(size_of::<Shared>() < 5 << 20);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_apart_as_they_were_put_together() {
        assert_eq!(of_kind(kind(3, 9, 4095)), (3, 9, 4095));
        assert_eq!(of_kind(kind(255, 255, u32::MAX)), (255, 255, u32::MAX));
    }
}
