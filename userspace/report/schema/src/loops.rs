//! `loops` and `kernel_time`: loops of the machine code
//! with their accesses and waits, and time in the kernel.

use serde::{Deserialize, Serialize};

use super::{Estimate, number::Number, place::Place};

/// A natural loop, without inner loops. Cycles are per iteration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Loop {
    /// Accesses of the loop, the most lines first.
    pub accesses: Vec<LoopAccess>,
    /// Limit of the loop: `integer_chain`, `fp_add_chain`, `fp_multiply_chain`,
    /// `divide_chain`, `load_chain`, `pointer_chase`, `store_forwarding`,
    /// `mispredictions`, `l1_misses`, `deeper_misses`, `page_faults`, `width`, `loads`,
    /// `stores`, `int_units`, `fp_units`, `divider` or `window`; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_by: Option<String>,
    /// The longest chain of dependences; absent if no window was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<Chain>,
    /// Cycles with all lines in the first-level cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_cycles: Option<Estimate>,
    /// Cycles as measured, at least `cycles_at_least`; absent if no rate is known, with fewer than five
    /// samples, and if all of the interval lies below `cycles_at_least`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles: Option<Estimate>,
    /// Cycles with all branches foreseen too: no order or place of data makes an
    /// iteration shorter. By the timing model; absent if no window was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles_at_least: Option<Estimate>,
    /// Instructions of an iteration.
    pub instructions: Number,
    /// Iterations per second of CPU time of the targets; absent if no rate is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<Estimate>,
    /// Share of the loop's samples with the thread in the kernel; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_share: Option<Estimate>,
    /// Lines of 64 bytes that an iteration touches first in a window.
    pub lines_per_iteration: Number,
    /// Branches of an iteration that the timing model's predictor does not foresee.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mispredicted: Option<Estimate>,
    /// Lines under way at once while at least one is, if all
    /// new lines came from memory; absent with few new lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp: Option<Estimate>,
    /// Windows that show the loop.
    pub n: u64,
    /// First line of the loop, as far as the debug information shows.
    pub place: Place,
    /// Share of the targets' CPU time.
    pub share: Estimate,
    /// The busiest unit; absent if no window was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    /// Iterations of the loop from entry to exit.
    pub trips: Trips,
}

/// Dependences that an iteration has to wait for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Chain {
    /// Cycles of an iteration by dependences and the reorder window alone, with any number of units.
    pub cycles: Estimate,
    /// Instructions of the chain, most cycles first, 8 at most; empty if no chain goes through most
    /// iterations.
    pub path: Vec<ChainStep>,
}

/// An instruction of a chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ChainStep {
    /// `integer`, `fp_add`, `fp_multiply`, `divide`, `load`, `store_forwarding` or `other`.
    pub class: String,
    /// Cycles of an iteration.
    pub cycles: Estimate,
    /// Its line, or its address without a line.
    pub place: Place,
    /// Share of the chain's cycles.
    pub share: Number,
}

/// The unit of the processor that an iteration keeps busy longest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Throughput {
    /// Cycles of an iteration that the unit is busy.
    pub cycles: Estimate,
    /// `width`, `loads`, `stores`, `int_units`, `fp_units` or `divider`.
    pub unit: String,
}

/// Iterations of a loop from entry to exit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Trips {
    /// Most iterations shown by a window, if there is no median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// Median of the runs that windows show whole, and of longer runs known from their end and the step;
    /// absent without either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<u64>,
    /// Runs in the median.
    pub n: u64,
}

/// An access instruction of a loop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoopAccess {
    /// Bytes of an access.
    pub bytes: u64,
    /// Whether the address comes from a value loaded before by the same instruction.
    pub chased: bool,
    /// Field of the object; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Whether the address comes from a value loaded by another instruction of the loop.
    pub indexed: bool,
    /// Bytes from one execution to the next; absent if no step makes up half of the steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inner_stride: Option<i64>,
    /// `load` or `store`.
    pub kind: String,
    /// Line of source; `null` if unknown.
    pub line: Option<u32>,
    /// Lines of 64 bytes touched for the first time in a window, by execution.
    pub lines_per_access: Number,
    /// Name of the data object; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Bytes between the first executions of successive
    /// runs of the loop; absent if not shown by windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_stride: Option<i64>,
    /// Share of the steps equal to the inner stride.
    pub stride_share: Number,
}

/// Time of the traced threads in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KernelTime {
    /// Entries of the program into the kernel, the most time
    /// first; empty if no sample in the kernel was recorded.
    pub entries: Vec<KernelEntry>,
    /// Page faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<PageFaults>,
    /// Share of the targets' CPU time.
    pub share: Estimate,
}

/// A function from which the program enters the kernel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KernelEntry {
    /// Name of the system call; `page fault` for page faults and interrupts.
    pub call: String,
    /// The function, innermost in the user's own code, with the line of most samples.
    pub place: Place,
    /// Share of the targets' CPU time.
    pub share: Estimate,
}

/// Page faults without input or output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PageFaults {
    /// How many, in the whole trace.
    pub count: u64,
    /// Share of the targets' CPU time: number of page faults times the
    /// cost of one on this machine, not more than the time in the kernel.
    pub share: Estimate,
}
