//! Where control went in windows, and what the tests of loops compared there.
//!
//! Not here: what the code around the transfers is (`locality-execution`).

use super::{ModuleId, SampleId};

/// Control flow of a window, as far as the code alone does not tell it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowFlow {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Address of the first instruction.
    pub first: u64,
    /// Files that the addresses lie in, each with what addresses of the process have more than those of the
    /// file.
    pub modules: Vec<(ModuleId, u64)>,
    /// Transfers by conditional branches, indirect jumps and calls, and returns, ascending.
    pub edges: Vec<FlowEdge>,
    /// Transfers that found no room.
    pub left_out: u64,
}

/// A transfer of control.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowEdge {
    /// Address of the branch, jump, call or return.
    pub from: u64,
    /// Where control went.
    pub to: u64,
    /// How often.
    pub count: u64,
}

/// The integers that the test of a loop compared when the window first came there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoopReading {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Address of the comparison.
    pub ip: u64,
    /// First operand, or the result of an instruction that computes.
    pub left: i64,
    /// Second operand; 0 of an instruction that computes.
    pub right: i64,
}
