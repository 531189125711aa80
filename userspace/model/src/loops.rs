//! Natural loops of the machine code, as shown by windows.
//!
//! One [`SeenLoop`] for each loop and window; analyses combine the
//! windows of a loop. Not here: how loops are found (`locality-loops`).

use super::{AccessKind, SampleId, StackId};

/// Lower bound of a loop's time by the timing model, in cycles of all instructions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopNeeds {
    /// Cycles with all lines in the first-level cache and all branches foreseen.
    pub cycles: f64,
    /// Cycles by dependences alone: with unlimited units and instructions per cycle.
    pub chain_cycles: f64,
    /// Of the busiest unit alone.
    pub unit_cycles: f64,
    /// The busiest unit: `width`, `loads`, `stores`, `int_units`, `fp_units` or `divider`.
    pub unit: String,
    /// Branches mispredicted by the model.
    pub mispredicted: u64,
    /// Lines touched first in the window by the loop.
    pub new_lines: u64,
    /// Cycles with all new lines in memory.
    pub distant_cycles: f64,
}

/// A loop as shown by a single window, without inner loops.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenLoop {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Address of the first instruction of the header.
    pub header: u64,
    /// Lowest and highest address of an instruction of the loop in the loop's own function.
    pub span: (u64, u64),
    /// Header of the enclosing loop, possibly in a calling function.
    pub around: Option<u64>,
    /// Calling context of the header.
    pub stack: StackId,
    /// Calling context of the jump back to the header.
    pub latch: StackId,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses made.
    pub accesses: u64,
    /// Executions of the header.
    pub iterations: u64,
    /// Runs shown from entry to exit by the window.
    pub runs: u64,
    /// Median iterations of the runs, 0 without runs.
    pub trips: u64,
    /// Cycles of all instructions with all lines in the first-level cache; 0 if unknown.
    pub core_cycles: f64,
    /// The limit of `core_cycles` (`fp_add_chain`, …), if known.
    pub bound_by: Option<String>,
    /// Cycles without the limit `bound_by`; 0 if unknown.
    pub unbound_cycles: f64,
    /// Lower bound of the cycles; `None` if not asked of the window.
    pub needs: Option<LoopNeeds>,
    /// Instructions of the longest chain of dependences, most cycles first; empty if not asked of the window,
    /// and without a chain through most iterations.
    pub chain: Vec<ChainStep>,
    /// Branches of the loop in its own function, the most executed first.
    pub branches: Vec<LoopBranch>,
    /// Whether the window starts in the loop, so the sample's CPU time is the loop's.
    pub is_first: bool,
    /// Access instructions, the most lines first.
    pub by_access: Vec<LoopAccess>,
}

/// An instruction of a loop's chain of dependences, as shown by a single window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChainStep {
    /// Address of the instruction.
    pub ip: u64,
    /// Calling context.
    pub stack: StackId,
    /// What the instruction takes its time for: `integer`, `fp_add`, `fp_multiply`, `divide`, `load`,
    /// `store_forwarding` or `other`.
    pub class: String,
    /// Cycles of all its executions on the chain.
    pub cycles: f64,
}

/// A conditional branch, or an indirect jump or call, of a loop, as shown by a single window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoopBranch {
    /// Address of the instruction.
    pub ip: u64,
    /// Calling context.
    pub stack: StackId,
    /// Executions.
    pub executed: u64,
    /// Executions not followed by the next instruction.
    pub taken: u64,
    /// Executions in the second half of the window, in which the model's predictor has met the branch's
    /// recent past.
    pub judged: u64,
    /// Of `judged`, executions mispredicted by the model.
    pub mispredicted: u64,
}

/// An access instruction of a loop, as shown by a single window.
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
    /// Lines of 64 bytes touched first in the window by the instruction.
    pub lines: u64,
    /// Pages of 4 KiB touched first in the window by the instruction.
    pub pages: u64,
    /// Sets hit by `lines`, in a cache with 64 sets and in a cache with 1,024 sets.
    pub sets: [u64; 2],
    /// The most frequent step from one execution to the next in a run of the loop, in bytes.
    pub stride: Option<i64>,
    /// Occurrences of the step `stride`.
    pub stride_count: u64,
    /// Steps seen.
    pub steps: u64,
    /// The most frequent step between the first executions of successive runs, in bytes.
    pub outer_stride: Option<i64>,
    /// Source of the address.
    pub dependence: Dependence,
    /// First address in the window.
    pub address: u64,
    /// Least and greatest value; only of integers, and only if values may be recorded.
    pub values: Option<(i64, i64)>,
}

/// Source of an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dependence {
    /// No value loaded by the loop.
    #[default]
    None,
    /// A value loaded by another instruction of the loop.
    Indexed,
    /// A value loaded before by the same instruction.
    Chased,
}
