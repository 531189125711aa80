//! Control flow in windows, and values compared by the tests of loops.
//!
//! Not here: the code around the transfers (`locality-execution`).

use super::{ModuleId, SampleId};

/// Control flow of a window, as far as not evident from the code alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowFlow {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Address of the first instruction.
    pub first: u64,
    /// Files of the addresses, each with the offset of process addresses from file addresses.
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
    /// Target of the transfer.
    pub to: u64,
    /// How often.
    pub count: u64,
}

/// The integers compared by the test of a loop when the window first reached the test.
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
