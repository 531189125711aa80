//! `overhead`: cost of the measurement to the targets.

use serde::{Deserialize, Serialize};

use super::number::Number;

/// Cost of a live trace. Percentages are of the targets' CPU time and stopped time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Overhead {
    /// The budget (`--overhead`), in percent.
    pub budget_percent: Number,
    /// The cost by cause.
    pub by_cause: Causes,
    /// The longest stop of a thread, in nanoseconds.
    pub longest_stop_ns: u64,
    /// The limit of a stop (`--max-stop`), in nanoseconds.
    pub max_stop_ns: u64,
    /// The cost of all causes but `controller`, in percent.
    pub measured_percent: Number,
    /// Stops of threads.
    pub stops: u64,
}

/// Cost by cause, in percent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Causes {
    /// BPF programs in the targets' threads.
    pub bpf: Number,
    /// CPU time of locality-bpf; not part of `measured_percent`.
    pub controller: Number,
    /// Probes of allocation functions; absent if allocations are not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<Number>,
    /// Stopped time of threads.
    pub stop: Number,
    /// Time lost while words were watched, on machines that are slower then: by string instructions,
    /// stores across cache lines, and switches between threads. Absent if nothing was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strings: Option<Number>,
    /// Traps of watchpoints.
    pub trap: Number,
}
