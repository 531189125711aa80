//! `objects` and `objects_summary`: data objects of a live trace.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    number::{Interval, Number},
    place::{Frame, Place},
};

/// Numbers by cache level: `L1`, `L2`, …; the last level has `LLC` as a second name.
pub type ByLevel<T> = BTreeMap<String, T>;

/// A data object; all blocks of an allocating call path are one object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Object {
    /// Share of all accesses.
    pub access_share: Number,
    /// Interval of `access_share`.
    pub access_share_ci95: Interval,
    /// Accesses in the trace, an estimate; absent if no rate of accesses is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Number>,
    /// Size of the variable, or of the largest block; `null` if unknown.
    pub bytes: Option<u64>,
    /// Share of CPU time.
    pub cpu_share: Number,
    /// Interval of `cpu_share`.
    pub cpu_share_ci95: Interval,
    /// Place of the declaration; `null` if unknown.
    pub declared: Option<Declared>,
    /// Parts of the object, the most accessed first; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<Field>>,
    /// The function of a variable on the stack; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Number of the object, also in `objects_summary.conflicts`. Several objects can have one name; `id`
    /// distinguishes them, in one report.
    pub id: Option<u32>,
    /// Whether the object was concluded from a pointer or a size class.
    pub inferred: bool,
    /// `static`, `stack`, `heap`, `mapped`, `file` or `unknown`.
    pub kind: String,
    /// Layout of the object's structures in lines of cache; absent if no structure is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<Vec<Layout>>,
    /// By line of code, the most misses first.
    pub lines: Vec<ObjectLine>,
    /// Share of loads in the object's accesses.
    pub loads: Number,
    /// Predicted misses for each touch of the object's lines, by level: `L1`, `L2`, …; the last level also
    /// as `LLC`.
    pub miss_ratio: ByLevel<Number>,
    /// Share of all predicted misses, by level: `L1`, `L2`, …; the last level also as `LLC`. Shares of a
    /// level with hardly any misses mean nothing: look at `objects_summary.levels[].miss_ratio` first.
    pub miss_share: ByLevel<Number>,
    /// Intervals of `miss_share`.
    pub miss_share_ci95: ByLevel<Interval>,
    /// File mapped, or file that defines the object; `null` without a file.
    pub module: Option<String>,
    /// Uses seen.
    pub n: u64,
    /// Name of the object; for a heap object, the name in most of the object's accesses.
    pub name: String,
    /// Whether name and type are concluded, even with a recorded allocation.
    pub name_inferred: bool,
    /// Call path of the allocation; absent if not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<Site>,
    /// Share of stores in the object's accesses.
    pub stores: Number,
    /// `true` of a thread-local variable; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_local: Option<bool>,
    /// Type; `null` if unknown.
    #[serde(rename = "type")]
    pub type_name: Option<String>,
    /// Why parts of the description are missing; absent if complete.
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
    /// Line in the file; `null` if unknown.
    pub line: Option<u32>,
}

/// A call path of allocations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Site {
    /// Why the outermost frames are missing; absent for a whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Frames, innermost first; in `locality-report/1` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Vec<Arc<Frame>>>,
    /// The line of source; `null` if the path is unknown.
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
    /// Interval of `access_share`.
    pub access_share_ci95: Interval,
    /// Share of CPU time.
    pub cpu_share: Number,
    /// Interval of `cpu_share`.
    pub cpu_share_ci95: Interval,
    /// Source file; `null` if unknown.
    pub file: Option<String>,
    /// The function; `null` if unknown.
    pub function: Option<String>,
    /// The most frequent kind of access: `load`, `store`, `read-write` or `unknown`.
    pub kind: String,
    /// Line in the file; `null` if unknown.
    pub line: Option<u32>,
    /// Share of all predicted misses, by level: `L1`, `L2`, …; the last level also as `LLC`.
    pub miss_share: ByLevel<Number>,
    /// Intervals of `miss_share`.
    pub miss_share_ci95: ByLevel<Interval>,
    /// Uses seen.
    pub n: u64,
    /// Library function, called at the line, that made
    /// the access; absent if the line made the access.
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
    /// Interval of `access_share`.
    pub access_share_ci95: Interval,
    /// Size.
    pub bytes: u64,
    /// Whether the part is among the hot parts, which together take most of the accesses.
    pub hot: bool,
    /// Share of predicted misses, by level: `L1`, `L2`, …; the last level also as `LLC`.
    pub miss_share: ByLevel<Number>,
    /// Uses seen.
    pub n: u64,
    /// Bytes from the start of the object.
    pub offset: u64,
    /// Name of the part: `.x`, `[].next`.
    pub path: String,
    /// Type; `null` if unknown.
    #[serde(rename = "type")]
    pub type_name: Option<String>,
}

/// Layout of a structure in lines of cache, and the effect of another order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Layout {
    /// Size of the structure.
    pub bytes: u64,
    /// Members hardly accessed.
    pub cold: Vec<Member>,
    /// Members with most of the accesses.
    pub hot: Vec<Member>,
    /// Bytes of hot members.
    pub hot_bytes: u64,
    /// Bytes from the start of the first hot member to the end of the last.
    pub hot_span_bytes: u64,
    /// Members and holes by offset.
    pub members: Vec<Piece>,
    /// Bytes of holes.
    pub padding_bytes: u64,
    /// Effect of putting hot members side by side.
    pub reorder: Change,
    /// Effect of moving cold members elsewhere.
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
    /// Name of the member.
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
    /// The line of cache, from 0, of a structure that starts at a line.
    pub line: u64,
    /// Bytes from the start of the structure.
    pub offset: u64,
    /// Name of the member; absent for a hole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Type, `null` if unknown; absent for a hole.
    #[serde(
        rename = "type",
        deserialize_with = "super::number::nullable",
        skip_serializing_if = "Option::is_none"
    )]
    pub type_name: Option<Option<String>>,
}

/// Effect of a change of layout: each number before and after.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Change {
    /// Size of the structure in bytes.
    pub bytes: [u64; 2],
    /// Lines of cache loaded for each structure in a visit of all in order.
    pub lines_per_sweep: [Number; 2],
    /// Lines of cache loaded for each visit of a single structure.
    pub lines_per_visit: [Number; 2],
}

/// Data objects as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ObjectsSummary {
    /// Objects that displace objects, heaviest first: misses of an
    /// object shared out by the objects fetched between use and reuse.
    pub conflicts: Vec<Conflict>,
    /// Allocations; absent if not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<Heap>,
    /// Levels with predicted misses, smallest first.
    pub levels: Vec<ObjectLevel>,
    /// Uses seen.
    pub n: u64,
    /// The level of the misses by which objects are ranked: the last level with at least one miss in 1,000
    /// touches of lines, and with the misses of three uses or more; `null` without such a level: objects are
    /// then ranked by accesses.
    pub ranked_by: Option<String>,
    /// Share of accesses without an object.
    pub unknown_share: Number,
    /// Interval of `unknown_share`.
    pub unknown_share_ci95: Interval,
}

/// An object that displaces another from a cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Conflict {
    /// Name of the displacing object.
    pub displaced_by: Option<String>,
    /// Number of the displacing object.
    pub displaced_by_id: u32,
    /// The level.
    pub level: Option<String>,
    /// Uses seen.
    pub n: u64,
    /// Name of the displaced object.
    pub object: Option<String>,
    /// Number of the displaced object.
    pub object_id: u32,
    /// Share of all predicted misses.
    pub share: Number,
}

/// A level with predicted misses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ObjectLevel {
    /// Size of the cache.
    pub bytes: u64,
    /// Predicted misses for each touch of a line.
    pub miss_ratio: Number,
    /// Names: `L1`; for the last level also `LLC`.
    pub names: Vec<String>,
}

/// Recorded allocations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Heap {
    /// Allocations made in the trace, as far as counted.
    pub allocations_made: u64,
    /// Allocations recorded.
    pub allocations_seen: u64,
    /// Allocations counted as one site, because their call paths found no room.
    pub folded: u64,
    /// The least size followed at first; absent if unrecorded allocations were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_bytes: Option<u64>,
    /// The least size at the end, which rises to keep the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_bytes_at_end: Option<u64>,
    /// Allocations not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_recorded: Option<NotRecorded>,
    /// `allocations_seen` of `allocations_made`.
    pub share_seen: Number,
    /// By call path.
    pub sites: Vec<HeapSite>,
}

/// Allocations not recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NotRecorded {
    /// Records of allocations, of their ends and of call paths, lost for lack of room.
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
    /// Bytes allocated.
    pub bytes: u64,
    /// Why the outermost frames are missing; absent for a whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Frames, innermost first; in `locality-report/1` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Vec<Arc<Frame>>>,
    /// The line of source; `null` if the path is unknown.
    pub place: Option<Place>,
    /// Number of the call path among the report's `stacks`; absent in `locality-report/1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}
