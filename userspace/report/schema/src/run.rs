//! `run`: what ran, on what, for how long, and how it was measured.

use serde::{Deserialize, Serialize};

use super::number::Number;

/// The run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Run {
    /// The command line that was launched, or that of the first process.
    pub command: String,
    /// Seconds of CPU time that the targets used; of an exact run the emulation is included.
    pub cpu_s: Number,
    /// Exact: `--data-type`, the types of data that are counted; empty for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_types: Option<Vec<String>>,
    /// Live: calibrated cost of a trap in nanoseconds. Without windows shorter times are one bin; with
    /// windows times below six of it are known as intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance_resolution_ns: Option<u64>,
    /// Live: how far readings of a trap's cost lay from the calibrated one, their median in nanoseconds.
    /// Absent with too few readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance_scatter_ns: Option<u64>,
    /// Why the run or its trace ended, in words.
    pub ended_by: String,
    /// Live: how weights were found. Absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimator: Option<String>,
    /// Exact: the command's exit status, as a shell shows it: 128 and the signal where one ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i64>,
    /// Exact: `--function`, the functions whose accesses are counted; empty for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub functions: Option<Vec<String>>,
    /// The machine.
    pub host: Host,
    /// Exact: `data accesses`, or `instruction fetches` with `--instructions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<String>,
    /// How the accesses were seen.
    pub mode: Mode,
    /// Exact: `each thread's own`, or `one for the whole process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Process ids: the traced ones at the start, or the command's.
    pub pids: Vec<u32>,
    /// Live: the policy of watchpoints, as on the command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Exact: every program that ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub programs: Option<Vec<Program>>,
    /// Live: samples taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Where addresses, rates and times come from.
    pub sources: Sources,
    /// Start, in UTC: `2023-11-14T22:13:20Z`.
    pub started: String,
    /// Exact: the start in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_ns: Option<u64>,
    /// Live: `true` where touches by the kernel were not counted (`--user-only`); absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_only: Option<bool>,
    /// Seconds from start to end.
    pub wall_s: Number,
    /// Live: watchpoints armed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watches: Option<u64>,
}

/// How accesses were seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Sampled on a running process.
    #[default]
    Live,
    /// Every access of a whole run.
    Exact,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Host {
    /// Data and unified caches, the smallest level first.
    pub caches: Vec<HostCache>,
    /// Model of the processor.
    pub cpu: String,
    /// Processors online.
    pub cpus: u32,
    /// Release of the kernel.
    pub kernel: String,
}

/// A cache of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostCache {
    /// Capacity in bytes.
    pub bytes: u64,
    /// 1, 2, 3.
    pub level: u8,
    /// Bytes of a line.
    pub line: u32,
    /// Associativity.
    pub ways: u32,
}

/// A program of an exact run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Program {
    /// Its file.
    pub file: String,
    /// Its process.
    pub pid: u32,
}

/// Where numbers come from, in words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Sources {
    /// Addresses of accesses.
    pub address: String,
    /// What starts samples; `accesses` in an exact run.
    pub clock: String,
    /// What was put into the traced programs to follow allocations; absent where nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<String>,
    /// Accesses per nanosecond; absent where no rate is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
}
