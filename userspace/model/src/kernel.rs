//! Time in the kernel: the program's place at clock samples in the kernel.

use super::{StackId, ThreadId};

/// The clock met a thread of the targets in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelSample {
    /// Nanoseconds since the start of the trace.
    pub time_ns: u64,
    /// The thread.
    pub thread: ThreadId,
    /// Call stack of the program; the innermost frame is the instruction that entered the kernel.
    pub stack: StackId,
    /// Name of the system call, or the number without a
    /// known name; `None` for a page fault or an interrupt.
    pub call: Option<String>,
}
