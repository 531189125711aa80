//! Input of a [`crate::Resolver`] about a sample beside its address.
//!
//! Traits, to let tests and profiles stand in for a live process; [`ProcessMemory`] is the live
//! one.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use locality_symbols::StackFrame;

/// A block that an allocator handed out and has not got back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapBlock {
    /// Its address.
    pub start: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Names the allocating context; blocks with the same site are one object.
    pub site: u64,
    /// A mapping by the program's `mmap`: perhaps many objects, so a pointer into the mapping does
    /// not name it.
    pub mapped: bool,
    /// Time of the allocation, monotonic clock, to separate
    /// the block from a successor at the address.
    pub since_ns: u64,
}

/// Recorded allocations of the process at the moment of the sample.
pub trait HeapBlocks {
    /// The live block that contains the address.
    fn block(&self, address: u64) -> Option<HeapBlock>;

    /// Whether the block stood at `moment` and stands still, as far as known without a wait.
    fn stood_at(&self, block: &HeapBlock, moment: Instant) -> bool;

    /// Whether the block surely lives now, hence readings of memory since
    /// the block's start concern no successor. May wait for the answer.
    fn stands(&self, block: &HeapBlock) -> bool;
}

/// Reads the process's memory, perhaps newer than the sample, so resulting names are inferred.
pub trait Memory {
    /// Fills `into` from `address`. False if a byte cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// An aligned or unaligned 8-byte word.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}

/// The memory of a live process through `/proc/PID/mem`, read-only. Asks for the right to ptrace
/// the process. May wait for the process's page faults: not for threads that must not.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens the memory of the program that runs now (an exec makes every read fail).
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.read_exact_at(into, address).is_ok()
    }
}

/// Place and thread of an access. Everything but the address may be missing, and stays unknown.
#[derive(Clone, Copy, Default)]
pub struct Place<'a> {
    /// The accessing instruction; 0 when it is not known.
    pub ip: u64,
    /// The call stack, innermost first, from [`locality_symbols::Unwinder::unwind_frames`].
    pub frames: &'a [StackFrame],
    /// The call stack with its registers at the stop, from which the access was reached; empty if
    /// equal to `frames`.
    pub stop: &'a [StackFrame],
    /// Bounds of the thread's stack, if known by other means than the mapping named `[stack]`.
    pub stack: Option<(u64, u64)>,
    /// Bounds of stacks of the process's threads, as far as they are known.
    pub stacks: &'a [(u64, u64)],
    /// The thread's fs base (its thread pointer).
    pub fs_base: Option<u64>,
    /// Recorded allocations.
    pub heap: Option<&'a dyn HeapBlocks>,
    /// The process's memory.
    pub memory: Option<&'a dyn Memory>,
}

impl Place<'_> {
    /// The call stack whose registers are known.
    pub(crate) fn with_registers(&self) -> &[StackFrame] {
        if self.stop.is_empty() { self.frames } else { self.stop }
    }

    /// True when the stack's bounds contain the address.
    pub(crate) fn on_stack(&self, address: u64) -> bool {
        self.stack.is_some_and(|(start, end)| Range { start, end }.contains(&address))
    }

    /// True for a known thread's stack.
    pub(crate) fn on_any_stack(&self, address: u64) -> bool {
        self.on_stack(address)
            || self.stacks.iter().any(|&(start, end)| Range { start, end }.contains(&address))
    }
}

impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("ip", &self.ip)
            .field("frames", &self.frames)
            .field("stop", &self.stop.len())
            .field("stack", &self.stack)
            .field("stacks", &self.stacks)
            .field("fs_base", &self.fs_base)
            .field("heap", &self.heap.is_some())
            .field("memory", &self.memory.is_some())
            .finish()
    }
}
