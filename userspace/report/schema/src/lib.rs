//! The report for programs as typed values, live and exact: `locality-report/2`, and `/1` of earlier
//! versions.
//!
//! Text, JSON, comparisons and exact runs build and read these values.
//! Fields are added, never changed in meaning. Three rules hold:
//!
//! - An unknown value is absent or `null`, never made up. An `Option` is `null` if
//!   the field always stands in the report, and is left out if `skip_serializing_if`
//!   says so. Two `Option`s: absent in some reports, `null` in others.
//! - Fields stand in the alphabetical order of their keys, the order in print.
//! - A field missing in a report reads as its default: reports of earlier versions lack fields.
//!
//! Pure. Not here: how values are found (`locality_report::json`; of exact runs the package `runner`).

pub mod advice;
pub mod cache_use;
pub mod comparison;
pub mod costs;
pub mod diff;
pub mod executions;
pub mod groups;
pub mod hot;
pub mod ledger;
pub mod loops;
pub mod mix;
pub mod number;
pub mod object_list;
pub mod objects;
pub mod overhead;
pub mod pairs;
pub mod parallelism;
pub mod place;
mod read;
pub mod reuse;
pub mod run;
pub mod self_parallelism;
pub mod tables;
pub mod tasks;
pub mod threads;
pub mod windows;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

pub use number::{Interval, Number};
pub use read::{Unreadable, read};

use number::nullable;

/// The schema of a report: call paths are tables.
pub const SCHEMA: &str = "locality-report/2";
/// The schema of earlier versions and of reports in memory: call paths with frames beside each.
pub const SCHEMA_1: &str = "locality-report/1";

/// A report. An estimate is an object `{value, ci95, n}`, or a number with an interval
/// beside it: the interval covers 95 %, `n` counts observations. Uses of one sample,
/// up to 64 and much alike, count each in `n`, and intervals take them together.
///
/// A launched command keeps stdout, so the report goes to stderr. `--report FILE` writes the report
/// to a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Report {
    /// Live: changes to make, by predicted time saved,
    /// five at most. Absent in profiles without loops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Vec<advice::Advice>>,
    /// Live: why there is no advice, in a sentence; absent with advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice_none: Option<String>,
    /// Branches by mispredictions, most first, else by executions. Exact: with `--parallelism`, of
    /// `parallelism`. Live: of the loops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branches: Option<Vec<parallelism::Branch>>,
    /// Code that loads lines of cache and uses little of them. Live: absent if
    /// no rate of accesses is known. Exact: absent if no caches were simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_use: Option<cache_use::CacheUse>,
    /// Exact: accesses counted in part, or lost; 0 is exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted_in_part: Option<u64>,
    /// Why there is no reuse to report, in words; absent with reuse. The exit status
    /// is then 1, except for a launched command, whose own status is passed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<String>,
    /// Exact, as stored by `-o`: executions of each instruction
    /// of files. Absent with `--function`, `--inclusive` and `--data-type`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executions: Option<Vec<executions::FileExecutions>>,
    /// Frames of call paths, each once; absent in `locality-report/1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Vec<Arc<place::Frame>>>,
    /// Exact, with several `--inclusive`: parallelism of each function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub functions: Option<Vec<parallelism::Parallelism>>,
    /// Live: kinds of processes: CPU time, misses, and
    /// coverage by samples. Absent if unknown to the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<groups::Groups>,
    /// Live: sampled accesses by place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot: Option<hot::Hot>,
    /// Live: time in the kernel; absent if unknown to the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_time: Option<loops::KernelTime>,
    /// Live: events seen, filtered, lost and refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger: Option<ledger::Ledger>,
    /// Live: loops, heaviest first. Absent in profiles without loops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loops: Option<Vec<loops::Loop>>,
    /// Exact: instructions and accesses executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<mix::Mix>,
    /// Live: uses with a watch that ended without a reuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_reused: Option<hot::NotReused>,
    /// Sentences that a reader must know, most important first.
    pub notices: Vec<String>,
    /// Live: data objects, heaviest first: by misses at `objects_summary.ranked_by`,
    /// else by accesses. Absent if objects were not searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<Vec<objects::Object>>,
    /// Live: data objects as a whole; absent if objects were not searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects_summary: Option<objects::ObjectsSummary>,
    /// Exact: buffers not in the promised order; 0 is exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order_buffers: Option<u64>,
    /// Live: cost of the measurement to the targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<overhead::Overhead>,
    /// Use and reuse by source place, heaviest first.
    pub pairs: Vec<pairs::Pair>,
    /// Exact: bytes of a granule in `pairs`: 64, else the largest. `null` without pairs.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub pairs_granularity: Option<Option<u64>>,
    /// Exact: pairs and reuses left out of `pairs`; `null` without pairs.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub pairs_not_named: Option<Option<pairs::NotNamed>>,
    /// Exact, with `--parallelism`: of the run, or of the function named by a single `--inclusive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<parallelism::Parallelism>,
    /// Whether the run was cut short, or the profile is incomplete; `report` then exits 1. Rows left out by
    /// a limit of rows are in `rows_left_out` and do not count here.
    pub partial: bool,
    /// Distances and miss ratios by bytes of a granule: `8` and `64` of a
    /// live report, the granules asked for (six at most) in an exact one.
    pub reuse: reuse::ByGranule,
    /// Rows left out of each table (`pairs`, `hot.by_line`, …), beyond 100 or beyond
    /// `--top`. In tables by cache level, the limit holds for each level; in an
    /// exact report's `pairs`, half of the limit is by reuses and half by misses.
    /// Without `--top`, pairs that are `far` belong to a live report's rows beyond the 100.
    /// `/1` has all rows unless `--top` is given. Absent if no row was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_left_out: Option<BTreeMap<String, u64>>,
    /// Command, machine and duration.
    pub run: run::Run,
    /// `locality-report/2`. `--format json1` prints `locality-report/1`, with
    /// `frames` beside each call path in place of `stack`. `exact -o` stores `/1`.
    pub schema: String,
    /// Call paths, each once: indices into `frames`,
    /// innermost first. Absent in `locality-report/1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<Vec<Vec<u32>>>,
    /// Exact, with `--self-parallelism`: how many iterations of loops, and children of calls, could run
    /// at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_parallelism: Option<self_parallelism::SelfParallelism>,
    /// Exact, with `--one-order`: bytes written by one thread and read by
    /// another, most first; pairs of threads without such bytes are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Vec<threads::Sharing>>,
    /// Exact, with `--tasks`: parallelism of blocks, functions or loops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<tasks::Tasks>,
    /// Threads: a summary in a live report, a list in an exact one.
    pub threads: Option<threads::Threads>,
    /// Version of the locality-bpf that wrote the report.
    pub tool_version: String,
    /// Live: how well the program uses its caches; absent if no miss ratio is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<advice::Verdict>,
    /// Live: shadow windows; absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<windows::Windows>,
    /// Exact: accesses without their calling context; 0 is exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_context: Option<u64>,
}

/// An estimate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Estimate {
    /// Interval of `value`.
    pub ci95: Interval,
    /// Number of observations.
    pub n: u64,
    /// The best guess.
    pub value: Number,
}

#[cfg(test)]
mod tests;
