//! `groups`: kinds of processes, by container, unit and program.

use serde::{Deserialize, Serialize};

use super::{Estimate, number::Number, reuse::Point};

/// Groups of processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Groups {
    /// Groups with samples left out of `rows`.
    pub left_out: u64,
    /// Groups by CPU time, most first, 64 at most.
    pub rows: Vec<Group>,
}

/// A group: processes with equal container, pod, unit,
/// program file and name, whatever their numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Group {
    /// Path of the cgroup, as seen from the tracer's cgroup namespace; empty if unknown.
    pub cgroup: String,
    /// Name of the first thread of the processes.
    pub comm: String,
    /// Id of the container; `null` outside of containers.
    pub container: Option<String>,
    /// How the group's CPU time was seen.
    pub coverage: Coverage,
    /// Share of the sampled CPU time in user mode; `n` counts the group's samples.
    pub cpu_share: Estimate,
    /// Miss ratios at this machine's caches, as for a process with caches of
    /// its own; `null` for fewer than 30 samples with a window, for unknown
    /// stack distances, and for groups after the 16 with the most CPU time.
    pub miss_ratios: Option<Vec<Point>>,
    /// The whole key in a few words.
    pub name: String,
    /// Id of the Kubernetes pod; `null` outside of pods.
    pub pod: Option<String>,
    /// Processes that were sampled.
    pub processes: u64,
    /// Program file as seen by the processes; empty if unknown.
    pub program: String,
    /// Runtime of the container; empty if unknown.
    pub runtime: String,
    /// Service or scope of systemd; `null` outside of both.
    pub unit: Option<String>,
    /// Samples with a shadow window.
    pub windows: u64,
}

/// Shares of a group's CPU time by how accesses were found; the sum is 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Coverage {
    /// No access was found.
    pub none: Number,
    /// Without a window, an access was found from registers.
    pub registers: Number,
    /// A shadow window was executed.
    pub windows: Number,
}
