//! `parallelism`, `functions` and `branches`: how many instructions of an exact run could have been
//! executed at once, by their dependences.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{number::Number, place::Place};

/// Parallelism of instructions: instructions divided by cycles, where each starts when what it reads is
/// there. Of several threads instructions and cycles are summed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Parallelism {
    /// Calls of the function that `--inclusive` names, those from within it left out; absent where the
    /// whole run counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// The function that `--inclusive` names, with what it calls; absent where the whole run counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Dependences that are not followed: `stack`, `induction`, `copies`.
    pub ignored: Vec<String>,
    /// Instructions executed.
    pub instructions: u64,
    /// `unit`: each instruction takes a cycle; `machine`: latencies of a server processor.
    pub latency: String,
    /// The predictor of branches: `perfect`, `gshare:16`, `tage`, `static`, `none`; of several the first.
    pub predictor: String,
    /// Cycles that are told as one where there is no window; 1 is exact.
    pub resolution: u64,
    /// Each thread, those with the most instructions first.
    pub threads: Vec<ThreadParallelism>,
    /// `machine` where nothing is ignored, `values` where all three are, else `custom`.
    pub view: String,
    /// By window and predictor.
    pub windows: Vec<Window>,
}

/// Results of a window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Window {
    /// Cycles by the number of instructions that start in them.
    pub by_parallelism: Vec<ParallelismBin>,
    /// Cycles from the first start to the last result.
    pub cycles: u64,
    /// Instructions for each cycle.
    pub ilp: Number,
    /// Branches that were not foreseen.
    pub mispredicted: u64,
    /// Parallelism over the run, of the thread with the most instructions: in equal numbers of
    /// instructions with a window, in equal numbers of cycles without.
    pub over_time: Vec<Stretch>,
    /// The predictor of branches.
    pub predictor: String,
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
    /// Instructions by class; in runs without a window that exceed 2^18 cycles, by the mean parallelism of
    /// neighbouring cycles.
    pub by_class: BTreeMap<String, u64>,
    /// Cycles.
    pub cycles: u64,
    /// The first parallelism above the bin.
    pub high: u64,
    /// Instructions that start in these cycles.
    pub instructions: u64,
    /// The lowest parallelism of the bin.
    pub low: u64,
}

/// A part of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Stretch {
    /// Where it begins: with a window the number of the instruction, without one the cycle.
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
    /// Its process.
    pub pid: u32,
    /// Its number.
    pub tid: u32,
}

/// A branch instruction, or those of a line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Branch {
    /// Bits that an outcome tells if only their share is known: 1 where half of them are taken, 0 where
    /// all or none are.
    pub entropy: Number,
    /// Executions.
    pub executed: u64,
    /// Those that the first predictor which is not `perfect` did not foresee.
    pub mispredicted: u64,
    /// Where it is.
    pub place: Place,
    /// Those that went elsewhere than to the next instruction.
    pub taken: u64,
}
