//! Control flow and parallelism in windows, and values compared by the tests of loops.
//!
//! Not here: the code around the transfers (`locality-execution`).

use std::collections::BTreeMap;

use super::{ModuleId, SampleId};

/// Instructions of a window by class, and cycles of the window by dependences alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowExecution {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses that read.
    pub loads: u64,
    /// Accesses that write.
    pub stores: u64,
    /// Instructions by class (`locality_stream::Class::name`, `_` in place of spaces).
    pub classes: BTreeMap<String, u64>,
    /// Parallelism, a span for each machine.
    pub spans: Vec<ExecutionSpan>,
}

/// A machine's part of a window, from where its instructions in flight are filled to the last instruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecutionSpan {
    /// Instructions in flight at most.
    pub in_flight: u32,
    /// Instructions of the span.
    pub instructions: u64,
    /// Cycles of the span, with all branches foreseen.
    pub cycles: u64,
}

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
