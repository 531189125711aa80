//! `locality-objects/1`: output of `locality-bpf objects FILE --format json`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    number::Number,
    objects::{Object, ObjectsSummary},
    run::Run,
};

/// Data objects of a profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ObjectList {
    /// Attribution of the same samples without addresses; absent without `--against`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    /// As in the report.
    pub objects: Vec<Object>,
    /// As in the report.
    pub objects_summary: ObjectsSummary,
    /// With `--top`: rows left out of each table; absent if no row was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_left_out: Option<BTreeMap<String, u64>>,
    /// As in the report.
    pub run: Run,
    /// `locality-objects/1`.
    pub schema: String,
}

/// Two rankings of the same samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Against {
    /// Lines of code left out.
    pub ignored_lines: Vec<String>,
    /// Kendall's τ-b over all rows; `null` if undefined.
    pub kendall_tau_b: Option<Number>,
    /// Kendall's τ-b over the first ten of the direct ranking.
    pub kendall_tau_b_top: Option<Number>,
    /// `line` or `instruction`.
    pub level: String,
    /// Whether loops were compensated for.
    pub loop_compensation: bool,
    /// `approximate`.
    pub method: String,
    /// The level of the misses by which objects are ranked; `null` if ranked by accesses.
    pub ranked_by: Option<String>,
    /// Variables in both rankings.
    pub rows: Vec<Ranked>,
    /// Call paths with a weight.
    pub samples: Number,
    /// Simulated skid: displacement of the samples before attribution.
    pub simulated_skid: Option<Skid>,
    /// Skid compensated for.
    pub skid: Option<Skid>,
    /// Variables among the first of both rankings.
    pub top_overlap: u64,
    /// The greatest possible `top_overlap`.
    pub top_possible: u64,
    /// Shares of unattributed samples, by reason.
    pub unattributed: BTreeMap<String, Number>,
    /// Files that differ from the traced ones, or are unreadable.
    pub unread: Vec<Unread>,
    /// Variables of the approximate side; shares are of all samples.
    pub variables: Vec<Variable>,
}

/// Normal distribution of distances from the waiting instruction to the sampled one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Skid {
    /// Instructions.
    pub mean: Number,
    /// Variance of the distance.
    pub variance: Number,
}

/// A variable in both rankings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Ranked {
    /// By the approximate method.
    pub approximate: RankedApproximate,
    /// By addresses.
    pub direct: Rank,
    /// Name of the variable.
    pub name: String,
}

/// Rank and share; `rank` is `null` if a ranking lacks the variable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Rank {
    /// From 1.
    pub rank: Option<u64>,
    /// Share of misses or accesses.
    pub share: Number,
}

/// Rank and share on the approximate side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RankedApproximate {
    /// Names of the object on this side, if different; else `null`.
    pub names: Option<BTreeSet<String>>,
    /// From 1.
    pub rank: Option<u64>,
    /// Share of misses or accesses.
    pub share: Number,
}

/// A file not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Unread {
    /// Path of the file.
    pub file: String,
    /// The reason.
    pub why: String,
}

/// A variable of the approximate side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Variable {
    /// Other names of the variable.
    pub aliases: Vec<String>,
    /// Place of the declaration; `null` if unknown.
    pub declared: Option<SourceLine>,
    /// Function of the variable; `null` for a global variable.
    pub function: Option<String>,
    /// Kind of variable.
    pub kind: String,
    /// The call that returned the variable's value; `null` without a call.
    pub made_by: Option<MadeBy>,
    /// Name of the variable.
    pub name: String,
    /// Lines that read the variable.
    pub read_at: Vec<ReadAt>,
    /// Share of all samples.
    pub share: Number,
    /// Type; `null` if unknown.
    #[serde(rename = "type")]
    pub type_name: Option<String>,
}

/// A line of source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SourceLine {
    /// Source file.
    pub file: String,
    /// Line in the file.
    pub line: u64,
}

/// A line that reads a variable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ReadAt {
    /// Source file.
    pub file: String,
    /// Line in the file.
    pub line: u64,
    /// Share of all samples.
    pub share: Number,
}

/// A call that returned a variable's value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MadeBy {
    /// The call.
    pub call: String,
    /// The calling function.
    pub function: String,
}
