//! Natural loops of the machine code as windows show them.
//!
//! One [`SeenLoop`] a loop and window; what all windows say of a loop is for analyses to put
//! together. Not here: how loops are found (`locality-loops`).

use super::{AccessKind, SampleId, StackId};

/// What the instructions of a loop need at least by the timing model, in cycles of all of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopNeeds {
    /// With all lines in the first-level cache and all branches foreseen.
    pub cycles: f64,
    /// Of dependences alone: units, and instructions in a cycle, as many as one likes.
    pub chain_cycles: f64,
    /// Of the busiest unit alone.
    pub unit_cycles: f64,
    /// That unit: `width`, `loads`, `stores`, `int_units`, `fp_units` or `divider`.
    pub unit: String,
    /// Branches that the predictor did not foresee.
    pub mispredicted: u64,
    /// Lines that they touch as the first in the window.
    pub new_lines: u64,
    /// With all these lines in memory.
    pub distant_cycles: f64,
}

/// A loop as one window shows it, without the loops inside it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenLoop {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Address of the first instruction of the header.
    pub header: u64,
    /// Lowest and highest address of an instruction of the loop in its own function.
    pub span: (u64, u64),
    /// Header of the loop around it, which may be in a calling function.
    pub around: Option<u64>,
    /// Calling context of the header.
    pub stack: StackId,
    /// Calling context of the jump back to the header.
    pub latch: StackId,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses made.
    pub accesses: u64,
    /// Times that the header was reached.
    pub iterations: u64,
    /// Runs that the window shows from entry to exit, and the median of their iterations.
    pub runs: u64,
    /// … the median of their iterations, 0 without runs.
    pub trips: u64,
    /// Cycles of all these instructions with all lines in the first-level cache; 0 where not known.
    pub core_cycles: f64,
    /// What limits them then (`fp_add_chain`, …), where that is known.
    pub bound_by: Option<String>,
    /// Cycles without that limit; 0 where not known.
    pub unbound_cycles: f64,
    /// What they need at least; `None` where that was not asked of this window.
    pub needs: Option<LoopNeeds>,
    /// Whether the window starts in this loop, so that the sample's CPU time is the loop's.
    pub is_first: bool,
    /// Access instructions, those with the most lines first.
    pub by_access: Vec<LoopAccess>,
}

/// What one window shows of an access instruction of a loop.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopAccess {
    /// Address of the instruction.
    pub ip: u64,
    /// Calling context.
    pub stack: StackId,
    /// Load or store.
    pub kind: AccessKind,
    /// Bytes of an access.
    pub bytes: u32,
    /// Executions.
    pub executions: u64,
    /// Lines of 64 bytes that the instruction touched first in the window.
    pub lines: u64,
    /// Pages of 4 KiB that the instruction touched first in the window.
    pub pages: u64,
    /// Sets of a cache with 64 and of one with 1,024 sets that these lines fall on.
    pub sets: [u64; 2],
    /// The most frequent step from one execution to the next in one run of the loop, in bytes.
    pub stride: Option<i64>,
    /// How often that step occurs.
    pub stride_count: u64,
    /// Steps seen.
    pub steps: u64,
    /// The most frequent step from the first execution of one run to that of the next, in bytes.
    pub outer_stride: Option<i64>,
    /// What the address is made of.
    pub dependence: Dependence,
    /// First address in the window.
    pub address: u64,
    /// Least and greatest value; only of integers, and only where values may be recorded.
    pub values: Option<(i64, i64)>,
}

/// What an address is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dependence {
    /// Of nothing that the loop loads.
    #[default]
    None,
    /// Of a value that another load of the loop brought.
    Indexed,
    /// Of a value that the same instruction loaded before.
    Chased,
}
