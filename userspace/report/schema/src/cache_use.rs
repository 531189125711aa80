//! `cache_use`: lines of cache by the code that loads them, and their bytes used.
//!
//! Numbers are estimates in a live report and counts in an exact one. The interval of an estimate
//! is in a field beside it: `ci95` for `share`, a name that ends in `_ci95` for other fields.

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
    /// Exact: units of `access_cost` for a whole access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_unit: Option<u64>,
    /// Whether own costs, and costs below outermost functions,
    /// sum to the whole; live also costs of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balanced: Option<bool>,
    /// Functions below which lines are loaded.
    pub by_function: Vec<FunctionLoss>,
    /// Lines of code that load lines of cache.
    pub by_loading_line: Vec<LoadingLine>,
    /// Data objects whose lines are loaded; `null` if objects were not searched.
    pub by_object: Option<Vec<ObjectLoss>>,
    /// Exact: `callgrind` if its counting was asked for, else `null`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub compatible: Option<Option<String>>,
    /// Exact, as stored by `-o`: costs of every line
    /// and call, for `report FILE --format callgrind`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    /// Exact: sums by event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<BTreeMap<String, u64>>,
    /// Exact: the instruction cache, with its lines in the rows of `L1`; `null` if not simulated.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub instruction_cache: Option<Option<CacheShape>>,
    /// Live: first touches without a possible weight, in a damaged file.
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
    /// Exact: functions with costs charged to the callers (`--skip-function`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_functions: Option<Vec<String>>,
    /// Exact: hierarchies of caches side by side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<u64>,
    /// Exact: sizes of the back-dating trees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<Tree>,
    /// Losses not included in a known root: live below call paths that are cut.
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
    /// Live: sum of the reciprocals of the access counts of the lines loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<Number>,
    /// Live: interval of `access_cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_ci95: Option<Interval>,
    /// Capacity.
    pub bytes: u64,
    /// Bytes of the lines loaded.
    pub bytes_loaded: Number,
    /// `L1`, `L2` or `LL`: the last of several levels, which text, `--metric` and `diff` call `LLC`.
    pub level: String,
    /// Bytes of a line.
    pub line: Number,
    /// Lines loaded, on a miss or by a prefetcher.
    pub lines_loaded: Number,
    /// Live: interval of `lines_loaded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_loaded_ci95: Option<Interval>,
    /// `spatial_loss_bytes` of `bytes_loaded`.
    pub lost_share: Number,
    /// Live: interval of `lost_share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_share_ci95: Option<Interval>,
    /// Bytes loaded but not used before the eviction of the line.
    pub spatial_loss_bytes: Number,
    /// Live: interval of `spatial_loss_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spatial_loss_bytes_ci95: Option<Interval>,
    /// Exact: associativity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ways: Option<u64>,
}

/// A line of code that loads lines of cache. In an exact report, loads and mere stores
/// of a line are two rows, and the dynamic linker is one row, `[dynamic linker]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoadingLine {
    /// `load` or `store`; `null` of the dynamic linker.
    pub access: Option<String>,
    /// Live: sum of the reciprocals of the access counts of the lines loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<Number>,
    /// Live: interval of `access_cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_ci95: Option<Interval>,
    /// Accesses to a line from load to eviction, harmonic mean: `lines_loaded` ÷ `access_cost`.
    pub access_count: Option<Number>,
    /// Live: interval of `access_count`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_count_ci95: Option<Interval>,
    /// The heaviest call path to the line of code, without the line, innermost first.
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
    /// Live: why outer callers are missing; absent for a whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Source file; `null` if unknown.
    pub file: Option<String>,
    /// The function; `null` if unknown.
    pub function: Option<String>,
    /// The level.
    pub level: String,
    /// Line in the file; `null` if unknown.
    pub line: Option<u32>,
    /// Lines of cache loaded.
    pub lines_loaded: Number,
    /// Live: interval of `lines_loaded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_loaded_ci95: Option<Interval>,
    /// File of the code; `null` without a file.
    pub module: Option<String>,
    /// Live: first touches seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Live: the object with most of the bytes lost at the line of code; `null` if unknown.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub object: Option<Option<String>>,
    /// Live: the objects in the loaded lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<Vec<LoadedObject>>,
    /// Share of the level's bytes lost.
    pub share: Number,
    /// Bytes not used before the eviction of the line.
    pub spatial_loss_bytes: Number,
    /// Live: interval of `spatial_loss_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spatial_loss_bytes_ci95: Option<Interval>,
    /// Share of the lines loaded into the level.
    pub traffic_share: Number,
    /// Live: interval of `traffic_share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_share_ci95: Option<Interval>,
    /// Bytes used of a line, on average.
    pub used_bytes_per_line: Option<Number>,
    /// Live: interval of `used_bytes_per_line`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes_per_line_ci95: Option<Interval>,
}

/// A call path to a line of code, with the numbers of the row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoadingContext {
    /// Sum of the reciprocals of the access counts of the lines loaded.
    pub access_cost: Number,
    /// Interval of `access_cost`.
    pub access_cost_ci95: Interval,
    /// Accesses to a line from load to eviction, harmonic mean.
    pub access_count: Number,
    /// Interval of `access_count`.
    pub access_count_ci95: Interval,
    /// The call path, without the line of code, innermost first.
    pub callers: Vec<Arc<Caller>>,
    /// Interval of `share`.
    pub ci95: Interval,
    /// Why outer callers are missing; absent for a whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Lines of cache loaded.
    pub lines_loaded: Number,
    /// Interval of `lines_loaded`.
    pub lines_loaded_ci95: Interval,
    /// First touches seen.
    pub n: u64,
    /// Share of the level's bytes lost.
    pub share: Number,
    /// Bytes not used before the eviction of the line.
    pub spatial_loss_bytes: Number,
    /// Interval of `spatial_loss_bytes`.
    pub spatial_loss_bytes_ci95: Interval,
    /// Share of the lines loaded into the level.
    pub traffic_share: Number,
    /// Interval of `traffic_share`.
    pub traffic_share_ci95: Interval,
    /// Bytes used of a line, on average.
    pub used_bytes_per_line: Number,
    /// Interval of `used_bytes_per_line`.
    pub used_bytes_per_line_ci95: Interval,
}

/// An object whose lines a line of code loads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoadedObject {
    /// Part of the object; `null` if unknown.
    pub field: Option<String>,
    /// Name of the object.
    pub name: Option<String>,
    /// Share of the bytes lost by the line of code.
    pub share: Number,
}

/// A function. `inclusive` is the loss below the
/// function, `self` the loss by the function's own lines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FunctionLoss {
    /// Live: as in `by_loading_line`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<Both<Number>>,
    /// Live: intervals of `access_cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_ci95: Option<Both<Interval>>,
    /// Live: interval of `share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Source file; `null` if unknown.
    pub file: Option<String>,
    /// The function. `[unknown caller]` has the loss below
    /// cut call paths, missing in functions further out.
    pub function: Option<String>,
    /// Bytes lost below the function.
    pub inclusive: Number,
    /// Live: interval of `inclusive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inclusive_ci95: Option<Interval>,
    /// The level.
    pub level: String,
    /// `null`.
    pub line: Option<u32>,
    /// Lines of cache loaded.
    pub lines_loaded: Both<Number>,
    /// Live: intervals of `lines_loaded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_loaded_ci95: Option<Both<Interval>>,
    /// File of the code; `null` without a file.
    pub module: Option<String>,
    /// Live: first touches seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Bytes lost by the function's own lines.
    #[serde(rename = "self")]
    pub own: Number,
    /// Live: interval of `self`.
    #[serde(rename = "self_ci95", skip_serializing_if = "Option::is_none")]
    pub own_ci95: Option<Interval>,
    /// `inclusive` of the level's bytes lost.
    pub share: Number,
    /// `inclusive` of the level's bytes loaded.
    pub traffic_share: Number,
    /// Live: interval of `traffic_share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_share_ci95: Option<Interval>,
}

/// A number below a function, and by the function's own lines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Both<T> {
    /// Below the function.
    pub inclusive: T,
    /// By the function's own lines.
    #[serde(rename = "self")]
    pub own: T,
}

/// A data object; `[unknown]` has the loss without a known object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ObjectLoss {
    /// Live: as in `by_loading_line`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost: Option<Number>,
    /// Live: interval of `access_cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_cost_ci95: Option<Interval>,
    /// As in `by_loading_line`.
    pub access_count: Option<Number>,
    /// Live: interval of `access_count`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_count_ci95: Option<Interval>,
    /// Exact: size; `null` if unknown.
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
    /// Live: interval of `lines_loaded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_loaded_ci95: Option<Interval>,
    /// Exact: for memory without a file, mappings of this
    /// size made or inherited from a parent; else `null`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub mappings: Option<Option<u64>>,
    /// Exact: the file of a variable; else `null`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub module: Option<Option<String>>,
    /// Live: first touches seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Name of the object.
    pub name: String,
    /// Share of the level's bytes lost.
    pub share: Number,
    /// Bytes not used before the eviction of the line.
    pub spatial_loss_bytes: Number,
    /// Live: interval of `spatial_loss_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spatial_loss_bytes_ci95: Option<Interval>,
    /// Share of the lines loaded into the level.
    pub traffic_share: Number,
    /// Live: interval of `traffic_share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_share_ci95: Option<Interval>,
    /// Bytes used of a line, on average.
    pub used_bytes_per_line: Option<Number>,
    /// Live: interval of `used_bytes_per_line`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes_per_line_ci95: Option<Interval>,
}

/// Sizes of the trees that remember the loading code of each line.
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

/// Losses not included in a known root, by level.
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
    /// Live: intervals of `spatial_loss_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spatial_loss_bytes_ci95: Option<BTreeMap<String, Interval>>,
}
