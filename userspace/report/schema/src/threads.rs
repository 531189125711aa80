//! `threads`: a summary in a live report, a list in an exact one.

use serde::{Deserialize, Serialize};

use super::reuse::ByGranule;

/// Threads of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Threads {
    /// Live.
    Summary(ThreadSummary),
    /// Exact: each thread.
    List(Vec<ThreadCounts>),
}

/// Threads of a live trace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadSummary {
    /// Threads that ended during the trace.
    pub ended: u64,
    /// Threads measured without stops.
    pub not_held: u64,
    /// Processes.
    pub processes: u64,
    /// Reuse by thread: the eight with the most samples. Absent without windows; empty of one thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Vec<ThreadReuse>>,
    /// Threads with samples left out of `reuse`; absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse_left_out: Option<u64>,
    /// Threads seen.
    pub seen: u64,
}

/// Reuse of one thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadReuse {
    /// Name of the thread.
    pub name: String,
    /// Process of the thread.
    pub pid: u32,
    /// As the report's `reuse`.
    pub reuse: ByGranule,
    /// Number of the thread.
    pub tid: u32,
}

/// Counts of a thread of an exact run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadCounts {
    /// Accesses.
    pub accesses: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Process of the thread.
    pub pid: u32,
    /// Number of the thread.
    pub tid: u32,
}

/// What a thread handed over to another thread of the process through memory. A byte counts once a
/// reader, until written again or until another thread reads from the same word of 8 bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Sharing {
    /// Bytes.
    pub bytes: u64,
    /// Id of the writing thread.
    pub from: u64,
    /// The process.
    pub pid: u32,
    /// Id of the reading thread.
    pub to: u64,
    /// Reads with such bytes.
    pub values: u64,
}
