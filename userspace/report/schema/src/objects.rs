//! `objects` and `objects_summary`: data objects of a live trace.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    number::{Interval, Number},
    place::{Frame, Place},
};

/// Numbers by cache level: `L1`, `L2`, …; the last level has `LLC` as a second name.
pub type ByLevel<T> = BTreeMap<String, T>;

/// A data object; all blocks of one allocating call path are one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Object {
    /// Share of all accesses.
    pub access_share: Number,
    /// Its interval.
    pub access_share_ci95: Interval,
    /// Accesses in the trace, an estimate; absent where no rate of accesses is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Number>,
    /// Size of the variable, or of the largest block; `null` where it is not known.
    pub bytes: Option<u64>,
    /// Share of CPU time.
    pub cpu_share: Number,
    /// Its interval.
    pub cpu_share_ci95: Interval,
    /// Where it is declared; `null` where that is not known.
    pub declared: Option<Declared>,
    /// Its parts, the most accessed first; absent where none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<Field>>,
    /// The function of a variable on the stack; absent of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The number by which `objects_summary.conflicts` names it.
    pub id: Option<u32>,
    /// Whether the object was concluded from a pointer or a size class.
    pub inferred: bool,
    /// `static`, `stack`, `heap`, `mapped`, `file` or `unknown`.
    pub kind: String,
    /// How its structures lie in lines of cache; absent where no structure is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<Vec<Layout>>,
    /// By line of code, the most misses first.
    pub lines: Vec<ObjectLine>,
    /// Share of its accesses that load.
    pub loads: Number,
    /// Predicted misses for each touch of its lines, by level.
    pub miss_ratio: ByLevel<Number>,
    /// Share of all predicted misses, by level.
    pub miss_share: ByLevel<Number>,
    /// Its intervals.
    pub miss_share_ci95: ByLevel<Interval>,
    /// File that it is mapped from or defined in; `null` where there is none.
    pub module: Option<String>,
    /// Uses seen.
    pub n: u64,
    /// Its name; of a heap object that of most of its accesses.
    pub name: String,
    /// Whether name and type are concluded, also where the allocation was recorded.
    pub name_inferred: bool,
    /// Call path of its allocation; absent where that was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<Site>,
    /// Share of its accesses that store.
    pub stores: Number,
    /// `true` of a thread-local variable; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_local: Option<bool>,
    /// Its type; `null` where it is not known.
    #[serde(rename = "type")]
    pub type_name: Option<String>,
    /// Why something is missing; absent where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// A declaration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Declared {
    /// Source file.
    pub file: String,
    /// Line in it; `null` where it is not known.
    pub line: Option<u32>,
}

/// A call path of allocations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Site {
    /// Why the outermost frames are missing; absent where the path is whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Frames, innermost first; in `locality-report/1` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Vec<Arc<Frame>>>,
    /// The line of source; `null` where the path is not known.
    pub place: Option<Place>,
    /// Number of the call path among the report's `stacks`; absent in `locality-report/1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}

/// Accesses to an object by a line of code. Shares are of the whole trace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ObjectLine {
    /// Share of all accesses.
    pub access_share: Number,
    /// Its interval.
    pub access_share_ci95: Interval,
    /// Share of CPU time.
    pub cpu_share: Number,
    /// Its interval.
    pub cpu_share_ci95: Interval,
    /// Source file; `null` where it is not known.
    pub file: Option<String>,
    /// The function; `null` where it is not known.
    pub function: Option<String>,
    /// What most of its accesses do: `load`, `store`, `read-write` or `unknown`.
    pub kind: String,
    /// Line in the file; `null` where it is not known.
    pub line: Option<u32>,
    /// Share of all predicted misses, by level.
    pub miss_share: ByLevel<Number>,
    /// Its intervals.
    pub miss_share_ci95: ByLevel<Interval>,
    /// Uses seen.
    pub n: u64,
    /// The library function called there that made the access; absent where the line made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// A part of an object. Shares are of the object's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Field {
    /// Share of accesses.
    pub access_share: Number,
    /// Its interval.
    pub access_share_ci95: Interval,
    /// Size.
    pub bytes: u64,
    /// Whether it is among the parts that together take most of the accesses.
    pub hot: bool,
    /// Share of predicted misses, by level.
    pub miss_share: ByLevel<Number>,
    /// Uses seen.
    pub n: u64,
    /// Bytes from the start of the object.
    pub offset: u64,
    /// Its name: `.x`, `[].next`.
    pub path: String,
    /// Its type; `null` where it is not known.
    #[serde(rename = "type")]
    pub type_name: Option<String>,
}

/// How a structure lies in lines of cache, and what another order would change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Layout {
    /// Size of the structure.
    pub bytes: u64,
    /// Members that are hardly accessed.
    pub cold: Vec<Member>,
    /// Members that take most of the accesses.
    pub hot: Vec<Member>,
    /// Bytes of these.
    pub hot_bytes: u64,
    /// Bytes from the start of the first of these to the end of the last.
    pub hot_span_bytes: u64,
    /// Members and holes by offset.
    pub members: Vec<Piece>,
    /// Bytes of holes.
    pub padding_bytes: u64,
    /// What putting hot members side by side would change.
    pub reorder: Change,
    /// What moving cold members elsewhere would change.
    pub split: Change,
    /// Name of the structure.
    #[serde(rename = "type")]
    pub type_name: String,
}

/// A member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Member {
    /// Size.
    pub bytes: u64,
    /// Bytes from the start of the structure.
    pub offset: u64,
    /// Its name.
    pub path: String,
}

/// A member or a hole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Piece {
    /// Share of the accesses to the structure; absent of a hole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_share: Option<Number>,
    /// Size.
    pub bytes: u64,
    /// `true` of a hole; absent of a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hole: Option<bool>,
    /// The line of cache, from 0, of a structure that starts one.
    pub line: u64,
    /// Bytes from the start of the structure.
    pub offset: u64,
    /// Its name; absent of a hole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its type, `null` where it is not known; absent of a hole.
    #[serde(
        rename = "type",
        deserialize_with = "super::number::nullable",
        skip_serializing_if = "Option::is_none"
    )]
    pub type_name: Option<Option<String>>,
}

/// What a change of layout does: each before and after.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Change {
    /// Size of the structure in bytes.
    pub bytes: [u64; 2],
    /// Lines of cache loaded for each structure, where all are visited in order.
    pub lines_per_sweep: [Number; 2],
    /// Lines of cache loaded for each visit of a single structure.
    pub lines_per_visit: [Number; 2],
}

/// Data objects as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ObjectsSummary {
    /// Which object displaces which, heaviest first: misses of an object shared out by what was fetched
    /// between use and reuse.
    pub conflicts: Vec<Conflict>,
    /// Allocations; absent where they were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<Heap>,
    /// Levels for which misses are predicted, smallest first.
    pub levels: Vec<ObjectLevel>,
    /// Uses seen.
    pub n: u64,
    /// The level by whose misses objects are ranked; `null` where they are ranked by accesses.
    pub ranked_by: Option<String>,
    /// Share of accesses without an object.
    pub unknown_share: Number,
    /// Its interval.
    pub unknown_share_ci95: Interval,
}

/// An object that displaces another from a cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Conflict {
    /// Name of the object that displaces.
    pub displaced_by: Option<String>,
    /// Its number.
    pub displaced_by_id: u32,
    /// The level.
    pub level: Option<String>,
    /// Uses seen.
    pub n: u64,
    /// Name of the object that is displaced.
    pub object: Option<String>,
    /// Its number.
    pub object_id: u32,
    /// Share of all predicted misses.
    pub share: Number,
}

/// A level for which misses are predicted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ObjectLevel {
    /// Size of the cache.
    pub bytes: u64,
    /// Predicted misses for each touch of a line.
    pub miss_ratio: Number,
    /// Its names: `L1`; of the last level also `LLC`.
    pub names: Vec<String>,
}

/// Recorded allocations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Heap {
    /// Allocations made in the trace, as far as they were counted.
    pub allocations_made: u64,
    /// Allocations recorded.
    pub allocations_seen: u64,
    /// Allocations whose call path found no room, so that they are one site.
    pub folded: u64,
    /// The least size followed at first; absent where allocations that were not recorded were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_bytes: Option<u64>,
    /// The least size at the end: it rises to keep the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_bytes_at_end: Option<u64>,
    /// Allocations that were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_recorded: Option<NotRecorded>,
    /// `allocations_seen` of `allocations_made`.
    pub share_seen: Number,
    /// By call path.
    pub sites: Vec<HeapSite>,
}

/// Allocations that were not recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NotRecorded {
    /// Records of allocations, of their ends and of call paths that found no room.
    pub lost: u64,
    /// Allocations below the least size.
    pub smaller: u64,
    /// Allocations made while probes were away to keep the budget, an estimate.
    pub unwatched: u64,
}

/// Allocations of one call path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HeapSite {
    /// Allocations recorded.
    pub allocations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why the outermost frames are missing; absent where the path is whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Frames, innermost first; in `locality-report/1` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Vec<Arc<Frame>>>,
    /// The line of source; `null` where the path is not known.
    pub place: Option<Place>,
    /// Number of the call path among the report's `stacks`; absent in `locality-report/1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}
