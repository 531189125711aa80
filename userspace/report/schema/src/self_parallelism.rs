//! `self_parallelism`: whether iterations of a loop, or the parts of a call, could run at once.

use serde::{Deserialize, Serialize};

use super::{number::Number, place::Place};

/// Self-parallelism of calls and loops, after Kremlin (PLDI 2011). Sums over threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SelfParallelism {
    /// Dependences not followed: `stack`, `induction`, `copies`, `reductions`, and lines of `--ignore-lines`.
    pub ignored: Vec<String>,
    /// `unit` or `machine`, as in `parallelism`.
    pub latency: String,
    /// Processors of `speed_up`: `--processors`, or those of this machine.
    pub processors: u32,
    /// Functions and loops, highest `speed_up` first, 200 at most.
    pub regions: Vec<Region>,
    /// Number of functions and loops.
    pub regions_total: u64,
    /// The view, as in `parallelism`.
    pub view: String,
    /// Instructions executed.
    pub work: u64,
}

/// A function or a loop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Region {
    /// Measured calls, or runs of the loop from entry to exit.
    pub instances: u64,
    /// Iterations of the measured runs; absent for a function. The first iteration of a loop's first run
    /// is missing, unless a jump leads to the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
    /// `function` or `loop`.
    pub kind: String,
    /// Cycles of the children one after the other: of a loop the spans of iterations; of a call the spans
    /// of its calls and loops, and the cycles of its own instructions. Summed over instances.
    pub parts: u64,
    /// Place of the first instruction: of the function, or of the loop's header.
    pub place: Place,
    /// `parts` divided by `span`: children that could run at once, on average; absent without a measured
    /// instance. A chain of iterations has 1, n independent iterations have n.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_parallelism: Option<Number>,
    /// Share of the instructions.
    pub share: Number,
    /// Cycles of the longest chains of dependences, summed over instances.
    pub span: u64,
    /// The run's time divided by the time if only this region used `processors`, at most:
    /// 1 ÷ (1 − f + f ÷ min(SP, P)) with f = `share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_up: Option<Number>,
    /// The same with any number of processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_up_unlimited: Option<Number>,
    /// Instances nested too deeply, without a span; their work counts.
    pub unmeasured: u64,
    /// Instructions with those of callees and inner loops; recursive instances count once.
    pub work: u64,
}
