//! `groups`: kinds of processes, by where they run and what they run.

use serde::{Deserialize, Serialize};

use super::{Estimate, number::Number, reuse::Point};

/// Groups of processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Groups {
    /// Groups with samples that `rows` leaves out.
    pub left_out: u64,
    /// Groups by CPU time, most first, 64 at most.
    pub rows: Vec<Group>,
}

/// A group: processes of the same container, pod, unit, program file and name, whatever their numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Group {
    /// Path of the cgroup, as seen from the tracer's cgroup namespace; empty where it is not known.
    pub cgroup: String,
    /// Name of the first thread of its processes.
    pub comm: String,
    /// Id of the container; `null` outside of containers.
    pub container: Option<String>,
    /// How its CPU time was seen.
    pub coverage: Coverage,
    /// Share of the sampled CPU time, which is that in user mode; `n` counts its samples.
    pub cpu_share: Estimate,
    /// Miss ratios at this machine's caches, as each process would have with caches of its own; `null` of
    /// fewer than 30 samples with a window, where no stack distances are known, and of all but the 16 such
    /// groups with the most CPU time.
    pub miss_ratios: Option<Vec<Point>>,
    /// All of the key in a few words.
    pub name: String,
    /// Id of the Kubernetes pod; `null` outside of pods.
    pub pod: Option<String>,
    /// Processes that were sampled.
    pub processes: u64,
    /// Program file as its processes see it; empty where it is not known.
    pub program: String,
    /// Runtime of the container; empty where it is not known.
    pub runtime: String,
    /// Service or scope of systemd; `null` outside of them.
    pub unit: Option<String>,
    /// Samples with a shadow window.
    pub windows: u64,
}

/// Shares of a group's CPU time by how it was seen; they sum to 1.
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
