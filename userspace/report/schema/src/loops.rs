//! `loops` and `kernel_time`: loops of the machine code with what they access and what they wait for, and the
//! time that passes in the kernel.

use serde::{Deserialize, Serialize};

use super::{Estimate, number::Number, place::Place};

/// A natural loop, without the loops inside it. Cycles are those of one iteration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Loop {
    /// Accesses of the loop, those with the most lines first.
    pub accesses: Vec<LoopAccess>,
    /// What limits the loop: `integer_chain`, `fp_add_chain`, `fp_multiply_chain`, `divide_chain`,
    /// `load_chain`, `pointer_chase`, `store_forwarding`, `mispredictions`, `l1_misses`,
    /// `deeper_misses`, `page_faults`, `width`, `loads`, `stores`, `int_units`, `fp_units`,
    /// `divider` or `window`; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_by: Option<String>,
    /// The longest chain of dependences; absent where no window was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<Chain>,
    /// Cycles if all lines were in the first-level cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_cycles: Option<Estimate>,
    /// Cycles as measured; absent where no rate is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles: Option<Estimate>,
    /// Cycles if all branches were foreseen too: no order or place of data makes an iteration shorter. By the
    /// timing model; absent where no window was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles_at_least: Option<Estimate>,
    /// Instructions of an iteration.
    pub instructions: Number,
    /// Iterations a second of CPU time of the targets; absent where no rate is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<Estimate>,
    /// Share of its samples that met the thread in the kernel; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_share: Option<Estimate>,
    /// Lines of 64 bytes that an iteration touches for the first time in a window.
    pub lines_per_iteration: Number,
    /// Branches of an iteration that the timing model's predictor does not foresee.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mispredicted: Option<Estimate>,
    /// Lines under way at a time while any is, if all new lines came from memory; absent with few new lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp: Option<Estimate>,
    /// Windows that show the loop.
    pub n: u64,
    /// The loop: its first line as far as the debug information tells it.
    pub place: Place,
    /// Share of the targets' CPU time.
    pub share: Estimate,
    /// The busiest unit; absent where no window was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    /// How often the loop iterates each time that it is entered.
    pub trips: Trips,
}

/// Dependences that an iteration has to wait for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Chain {
    /// Cycles of an iteration by dependences and the reorder window alone, with any number of units.
    pub cycles: Estimate,
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
    /// No window shows a whole run of the loop, and this many iterations are the most that one shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// Median of the runs that windows show whole; absent where none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<u64>,
    /// Runs that windows show whole.
    pub n: u64,
}

/// An access instruction of a loop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoopAccess {
    /// Bytes of an access.
    pub bytes: u64,
    /// Whether the address comes from a value that the same instruction loaded before.
    pub chased: bool,
    /// Field of the object; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Whether the address comes from a value that another load of the loop brought.
    pub indexed: bool,
    /// Bytes from one execution to the next; absent where no step makes up half of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inner_stride: Option<i64>,
    /// `load` or `store`.
    pub kind: String,
    /// Line of source; `null` where it is not known.
    pub line: Option<u32>,
    /// Lines of 64 bytes touched for the first time in a window, by execution.
    pub lines_per_access: Number,
    /// Name of the data object; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Bytes from the first execution of one run of the loop to that of the next; absent where windows do not
    /// tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_stride: Option<i64>,
    /// Share of the steps that are the inner stride.
    pub stride_share: Number,
}

/// Time of the traced threads in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KernelTime {
    /// Where the program enters the kernel, those with the most time first; empty where no sample
    /// in the kernel was recorded.
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
    /// Share of the targets' CPU time that they took: their number times what one costs on this machine, not
    /// more than the time in the kernel.
    pub share: Estimate,
}
