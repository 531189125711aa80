//! `run`: command, machine, duration, and method of measurement.

use serde::{Deserialize, Serialize};

use super::number::Number;

/// The run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Run {
    /// The launched command line, or the command line of the first process.
    pub command: String,
    /// Seconds of CPU time of the targets; in an exact run including the emulation.
    pub cpu_s: Number,
    /// Exact: `--data-type`, the types of data counted; empty for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_types: Option<Vec<String>>,
    /// Live: calibrated cost of a trap in nanoseconds. Without windows, shorter times
    /// are one bin; with windows, times below six trap costs are known as intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance_resolution_ns: Option<u64>,
    /// Live: median distance of measured trap costs from the
    /// calibrated one, in nanoseconds. Absent with too few readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance_scatter_ns: Option<u64>,
    /// Why the run or its trace ended, in words.
    pub ended_by: String,
    /// Live: how weights were found. Absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimator: Option<String>,
    /// Live: patterns of `--exclude`, with the processes left out; absent without patterns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<Vec<Excluded>>,
    /// Exact: exit status of the command, as in a shell:
    /// 128 and the signal if a signal ended the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i64>,
    /// Exact: `--function`, the functions with counted accesses; empty for all.
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
    /// Process ids: the processes traced at the start, or the command's.
    pub pids: Vec<u32>,
    /// Live: the policy of watchpoints, as on the command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Exact: every program that ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub programs: Option<Vec<Program>>,
    /// Exact, with `--sample-lines`: the number of cache lines of which one is sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_lines: Option<u32>,
    /// Live: samples taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Sources of addresses, rates and times.
    pub sources: Sources,
    /// Start, in UTC: `2023-11-14T22:13:20Z`.
    pub started: String,
    /// Exact: the start in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_ns: Option<u64>,
    /// Live: `true` if touches by the kernel were not counted (`--user-only`); absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_only: Option<bool>,
    /// Seconds from start to end.
    pub wall_s: Number,
    /// Live: watchpoints armed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watches: Option<u64>,
}

/// A pattern of `--exclude`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Excluded {
    /// The pattern: `comm:nginx*`.
    pub pattern: String,
    /// Processes that match, and no earlier pattern.
    pub processes: u64,
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
    /// File of the program.
    pub file: String,
    /// Process id.
    pub pid: u32,
}

/// Sources of numbers, in words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Sources {
    /// Addresses of accesses.
    pub address: String,
    /// The event that starts samples; `accesses` in an exact run.
    pub clock: String,
    /// Recorder or probes put into the traced programs to follow allocations; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<String>,
    /// Accesses per nanosecond; absent if no rate is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
}
