//! `parallelism`, `functions` and `branches`: how many instructions of a run could have been executed at
//! once, by their dependences. A trace has `parallelism` of its windows, as an estimate for the run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Estimate, Interval, number::Number, place::Place};

/// Parallelism of instructions: instructions divided by cycles, if each instruction starts
/// when its operands are ready. Instructions and cycles of several threads are summed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Parallelism {
    /// Calls of the function named by `--inclusive`, without calls
    /// from within the function; absent if the whole run counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// The function named by `--inclusive`, with its callees; absent if the whole run counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Dependences not followed: `stack`, `induction`, `copies`, `reductions`, and lines of `--ignore-lines`.
    pub ignored: Vec<String>,
    /// Instructions executed; in a trace those of windows.
    pub instructions: u64,
    /// `unit`: each instruction takes a cycle; `machine`: latencies of a server processor.
    pub latency: String,
    /// The predictor of branches: `perfect`, `gshare:16`, `tage`, `static`, `none`; of several the first.
    pub predictor: String,
    /// Cycles counted as one without a window; 1 is exact.
    pub resolution: u64,
    /// Threads, the most instructions first.
    pub threads: Vec<ThreadParallelism>,
    /// Lines aside: `machine` if `ignored` is empty, `values` if it is `stack`, `induction` and
    /// `copies`, else `custom`.
    pub view: String,
    /// By window and predictor.
    pub windows: Vec<Window>,
}

/// Results of a window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Window {
    /// Cycles by the number of instructions started; empty in a trace.
    pub by_parallelism: Vec<ParallelismBin>,
    /// In a trace, 95 % interval of `ilp`, from sampling alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Cycles from the first start to the last result; in a trace, the sum over windows.
    pub cycles: u64,
    /// Instructions for each cycle; in a trace, an estimate for the run, in which windows of fast code weigh
    /// more.
    pub ilp: Number,
    /// Mispredicted branches.
    pub mispredicted: u64,
    /// In a trace, windows counted: those with five times the instructions in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Parallelism over the run, of the thread with the most instructions: in equal numbers of
    /// instructions with a window, in equal numbers of cycles without.
    pub over_time: Vec<Stretch>,
    /// The predictor of branches.
    pub predictor: String,
    /// In a trace, the parallelism of single windows: quantiles .05, .5 and .95 of the instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<[Number; 3]>,
    /// Instructions in flight at most; `inf`: no limit.
    pub window: WindowSize,
}

/// Size of a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum WindowSize {
    /// Instructions.
    Instructions(u64),
    /// `inf`.
    Unlimited(String),
}

impl Default for WindowSize {
    fn default() -> Self {
        Self::Unlimited("inf".to_owned())
    }
}

/// Cycles with about as many instructions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ParallelismBin {
    /// Instructions by class; in runs without a window and longer than
    /// 2^18 cycles, by the mean parallelism of neighbouring cycles.
    pub by_class: BTreeMap<String, u64>,
    /// Cycles.
    pub cycles: u64,
    /// The first parallelism above the bin.
    pub high: u64,
    /// Instructions started in the bin's cycles.
    pub instructions: u64,
    /// The lowest parallelism of the bin.
    pub low: u64,
}

/// A part of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Stretch {
    /// Start: with a window the number of the instruction, without a window the cycle.
    pub from: u64,
    /// Instructions for each cycle.
    pub ilp: Number,
}

/// Parallelism of a thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadParallelism {
    /// Instructions for each cycle, in the order of `windows`.
    pub ilp: Vec<Number>,
    /// Instructions executed.
    pub instructions: u64,
    /// Process of the thread.
    pub pid: u32,
    /// Number of the thread.
    pub tid: u32,
}

/// A branch instruction, or all branches of a line. Live: a conditional branch, or an indirect jump or call,
/// of a loop in the loop's own function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Branch {
    /// Bits of information in an outcome if only the share of taken
    /// branches is known: 1 for half of them taken, 0 for all or none.
    pub entropy: Number,
    /// Live: 95 % interval of `entropy`, over windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entropy_ci95: Option<Interval>,
    /// Executions; live: in windows.
    pub executed: u64,
    /// Live: executions in the second halves of windows, in which predictions count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged: Option<u64>,
    /// Executions mispredicted by the first predictor other than `perfect`; live: of
    /// `judged`, by the timing model's predictor.
    pub mispredicted: u64,
    /// Live: upper bound of the share mispredicted of the executions. A processor's predictor sees all of the
    /// program, the model's only windows, which count by the time that they stand for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mispredicted_at_most: Option<Estimate>,
    /// Place of the branch.
    pub place: Place,
    /// Executions not followed by the next instruction; live: in windows.
    pub taken: u64,
    /// Live: share taken of the executions, windows count likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_share: Option<Estimate>,
}
