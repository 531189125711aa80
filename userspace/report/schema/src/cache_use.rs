//! `cache_use`: lines of cache by the code that loads them, and what of them is used.
//!
//! Numbers are estimates in a live report and counts in an exact one. An estimate has its interval
//! beside it: that of `share` in `ci95`, any other in a field that ends in `_ci95`.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    costs::Costs,
    number::{Interval, Number, nullable},
    place::Caller,
};

/// Cache use: tables have the smallest level first, and within a level the most bytes lost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CacheUse {
    /// Exact: what `access_cost` counts a whole access as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_unit: Option<u64>,
    /// Whether own costs, and those below outermost functions, sum to the whole; live also those of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balanced: Option<bool>,
    /// Functions below which lines are loaded.
    pub by_function: Vec<FunctionLoss>,
    /// Lines of code that load lines of cache.
    pub by_loading_line: Vec<LoadingLine>,
    /// Data objects whose lines are loaded; `null` where nobody looked for objects.
    pub by_object: Option<Vec<ObjectLoss>>,
    /// Exact: the tool whose counting was asked for, `callgrind`; else `null`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub compatible: Option<Option<String>>,
    /// Exact, in what `-o` stores: costs of every line and call, for `report FILE --format callgrind`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    /// Exact: sums by event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<BTreeMap<String, u64>>,
    /// Exact: the cache of instructions, whose lines are in the rows of `L1`; `null` where none was
    /// simulated.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub instruction_cache: Option<Option<CacheShape>>,
    /// Live: first touches that a damaged file gives no possible weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
    /// Levels, the smallest first.
    pub levels: Vec<LevelUse>,
    /// Live: first touches seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Exact: how lines are loaded ahead: `none`, `next-line` or `stride`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<String>,
    /// Rows beyond 100 of each table and level.
    pub rows_left_out: u64,
    /// Exact: functions whose costs went to their callers (`--skip-function`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_functions: Option<Vec<String>>,
    /// Exact: hierarchies of caches side by side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<u64>,
    /// Exact: sizes of the back-dating trees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<Tree>,
    /// What no known root includes: live below call paths that are cut.
    pub unknown_caller: UnknownCaller,
}

/// Size and shape of a cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CacheShape {
    /// Capacity.
    pub bytes: u64,
    /// Bytes of a line.
    pub line: u64,
    /// Associativity.
    pub ways: u64,
}

/// A level.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LevelUse {
    /// Live: the sum, over the lines loaded, of the reciprocals of the accesses to each while it was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_ci95: Option<Interval>,
    /// Capacity.
    pub bytes: u64,
    /// Bytes of the lines loaded.
    pub bytes_loaded: Number,
    /// Its name: `L1`, `L2`, `LL`.
    pub level: String,
    /// Bytes of a line.
    pub line: Number,
    /// Lines loaded, on a miss or by a prefetcher.
    pub lines_loaded: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_loaded_ci95: Option<Interval>,
    /// `spatial_loss_bytes` of `bytes_loaded`.
    pub lost_share: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_share_ci95: Option<Interval>,
    /// Bytes loaded that were not used until their line was evicted.
    pub spatial_loss_bytes: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spatial_loss_bytes_ci95: Option<Interval>,
    /// Exact: associativity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ways: Option<u64>,
}

/// A line of code that loads lines of cache. Of an exact run, what it loads and what it only stores are two
/// rows, and the dynamic linker is one row, `[dynamic linker]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoadingLine {
    /// `load` or `store`; `null` of the dynamic linker.
    pub access: Option<String>,
    /// Live: the sum, over the lines loaded, of the reciprocals of the accesses to each while it was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_ci95: Option<Interval>,
    /// Accesses to a line while it was there, their harmonic mean: `lines_loaded` ÷ `access_cost`.
    pub access_count: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_count_ci95: Option<Interval>,
    /// The heaviest call path to it, without the line itself, innermost first.
    pub callers: Vec<Arc<Caller>>,
    /// Live: interval of `share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Live: the heaviest call paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contexts: Option<Vec<LoadingContext>>,
    /// Live: call paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contexts_total: Option<u64>,
    /// Live: why outer callers are missing; absent where the path is whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Source file; `null` where it is not known.
    pub file: Option<String>,
    /// The function; `null` where it is not known.
    pub function: Option<String>,
    /// The level.
    pub level: String,
    /// Line in the file; `null` where it is not known.
    pub line: Option<u32>,
    /// Lines of cache loaded.
    pub lines_loaded: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_loaded_ci95: Option<Interval>,
    /// File that the code comes from; `null` where there is none.
    pub module: Option<String>,
    /// Live: first touches seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Live: the object most of whose bytes are lost there; `null` where none is known.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub object: Option<Option<String>>,
    /// Live: the objects whose lines it loads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<Vec<LoadedObject>>,
    /// Share of the level's bytes lost.
    pub share: Number,
    /// Bytes that were not used until their line was evicted.
    pub spatial_loss_bytes: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spatial_loss_bytes_ci95: Option<Interval>,
    /// Share of the lines loaded into the level.
    pub traffic_share: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_share_ci95: Option<Interval>,
    /// Bytes used of a line, on average.
    pub used_bytes_per_line: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes_per_line_ci95: Option<Interval>,
}

/// A call path to a line of code, with the numbers of its row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoadingContext {
    /// The sum, over the lines loaded, of the reciprocals of the accesses to each while it was there.
    pub access_cost: Number,
    /// Its interval.
    pub access_cost_ci95: Interval,
    /// Accesses to a line while it was there, their harmonic mean.
    pub access_count: Number,
    /// Its interval.
    pub access_count_ci95: Interval,
    /// The call path, without the line itself, innermost first.
    pub callers: Vec<Arc<Caller>>,
    /// Interval of `share`.
    pub ci95: Interval,
    /// Why outer callers are missing; absent where the path is whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Lines of cache loaded.
    pub lines_loaded: Number,
    /// Its interval.
    pub lines_loaded_ci95: Interval,
    /// First touches seen.
    pub n: u64,
    /// Share of the level's bytes lost.
    pub share: Number,
    /// Bytes that were not used until their line was evicted.
    pub spatial_loss_bytes: Number,
    /// Its interval.
    pub spatial_loss_bytes_ci95: Interval,
    /// Share of the lines loaded into the level.
    pub traffic_share: Number,
    /// Its interval.
    pub traffic_share_ci95: Interval,
    /// Bytes used of a line, on average.
    pub used_bytes_per_line: Number,
    /// Its interval.
    pub used_bytes_per_line_ci95: Interval,
}

/// An object whose lines a line of code loads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoadedObject {
    /// Its part; `null` where none is known.
    pub field: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Share of the bytes that the line of code loses.
    pub share: Number,
}

/// A function. `inclusive` is what is lost below it, `self` by its own lines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FunctionLoss {
    /// Live: as in `by_loading_line`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<Both<Number>>,
    /// Live: its intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_ci95: Option<Both<Interval>>,
    /// Live: interval of `share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Source file; `null` where it is not known.
    pub file: Option<String>,
    /// The function. `[unknown caller]` has what is lost below call paths that are cut, which functions
    /// further out lack.
    pub function: Option<String>,
    /// Bytes lost below it.
    pub inclusive: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inclusive_ci95: Option<Interval>,
    /// The level.
    pub level: String,
    /// `null`.
    pub line: Option<u32>,
    /// Lines of cache loaded.
    pub lines_loaded: Both<Number>,
    /// Live: its intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_loaded_ci95: Option<Both<Interval>>,
    /// File that the code comes from; `null` where there is none.
    pub module: Option<String>,
    /// Live: first touches seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Bytes lost by its own lines.
    #[serde(rename = "self")]
    pub own: Number,
    /// Live: its interval.
    #[serde(rename = "self_ci95", skip_serializing_if = "Option::is_none")]
    pub own_ci95: Option<Interval>,
    /// `inclusive` of the level's bytes lost.
    pub share: Number,
    /// `inclusive` of the level's bytes loaded.
    pub traffic_share: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_share_ci95: Option<Interval>,
}

/// A number below a function, and by its own lines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Both<T> {
    /// Below it.
    pub inclusive: T,
    /// By its own lines.
    #[serde(rename = "self")]
    pub own: T,
}

/// A data object; `[unknown]` has what none is known of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ObjectLoss {
    /// Live: as in `by_loading_line`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_ci95: Option<Interval>,
    /// As in `by_loading_line`.
    pub access_count: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_count_ci95: Option<Interval>,
    /// Exact: size; `null` where it is not known.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Option<u64>>,
    /// Live: interval of `share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// As in `objects`.
    pub kind: String,
    /// The level.
    pub level: String,
    /// Lines of cache loaded.
    pub lines_loaded: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_loaded_ci95: Option<Interval>,
    /// Exact: of memory without a file, how often one of this size was mapped or inherited from a parent;
    /// `null` of others.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub mappings: Option<Option<u64>>,
    /// Exact: the file of a variable; `null` of others.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub module: Option<Option<String>>,
    /// Live: first touches seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Its name.
    pub name: String,
    /// Share of the level's bytes lost.
    pub share: Number,
    /// Bytes that were not used until their line was evicted.
    pub spatial_loss_bytes: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spatial_loss_bytes_ci95: Option<Interval>,
    /// Share of the lines loaded into the level.
    pub traffic_share: Number,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_share_ci95: Option<Interval>,
    /// Bytes used of a line, on average.
    pub used_bytes_per_line: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes_per_line_ci95: Option<Interval>,
}

/// Sizes of the trees that remember who loaded which line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Tree {
    /// Calls charged to their caller, because the stack was too deep or the memory used up.
    pub calls_folded: u64,
    /// Nodes made.
    pub nodes_made: u64,
    /// Nodes on average.
    pub nodes_mean: Number,
    /// Nodes at most.
    pub nodes_most: u64,
    /// Times that a tree was pruned.
    pub prunings: u64,
}

/// What no known root includes, by level.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct UnknownCaller {
    /// Exact: access costs, in `access_cost_unit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<BTreeMap<String, u64>>,
    /// Exact: all events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<BTreeMap<String, u64>>,
    /// Bytes lost.
    pub spatial_loss_bytes: BTreeMap<String, Number>,
    /// Live: their intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spatial_loss_bytes_ci95: Option<BTreeMap<String, Interval>>,
}
