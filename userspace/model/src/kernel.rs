//! Time in the kernel: where the program was when the clock met it there.

use super::{StackId, ThreadId};

/// The clock met a thread of the targets in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelSample {
    /// Nanoseconds since the start of the trace.
    pub time_ns: u64,
    /// The thread.
    pub thread: ThreadId,
    /// Call stack of the program, its innermost frame the instruction that entered the kernel.
    pub stack: StackId,
    /// Name of the system call, or its number where it has no name here; `None` for a page fault or an
    /// interrupt.
    pub call: Option<String>,
}
