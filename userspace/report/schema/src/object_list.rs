//! `locality-objects/1`: what `locality-bpf objects FILE --format json` prints.

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
    /// What attribution without addresses makes of the same samples; absent without `--against`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    /// As in the report.
    pub objects: Vec<Object>,
    /// As in the report.
    pub objects_summary: ObjectsSummary,
    /// With `--top`: rows of each table that it left out; absent where none was.
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
    /// Kendall's τ-b over all rows; `null` where it is not defined.
    pub kendall_tau_b: Option<Number>,
    /// The same over the first ten of the direct ranking.
    pub kendall_tau_b_top: Option<Number>,
    /// `line` or `instruction`.
    pub level: String,
    /// Whether loops were compensated for.
    pub loop_compensation: bool,
    /// `approximate`.
    pub method: String,
    /// The level by whose misses objects are ranked; `null` where they are ranked by accesses.
    pub ranked_by: Option<String>,
    /// Variables in both rankings.
    pub rows: Vec<Ranked>,
    /// Call paths with a weight.
    pub samples: Number,
    /// A skid by which samples were displaced first.
    pub simulated_skid: Option<Skid>,
    /// The skid that was compensated for.
    pub skid: Option<Skid>,
    /// Variables among the first of both rankings.
    pub top_overlap: u64,
    /// The most that these can be.
    pub top_possible: u64,
    /// Shares of what was not attributed, by reason.
    pub unattributed: BTreeMap<String, Number>,
    /// Files that are not the traced ones, or cannot be read.
    pub unread: Vec<Unread>,
    /// Variables as the approximate side has them; shares are of all samples.
    pub variables: Vec<Variable>,
}

/// Normal distribution of distances from the instruction that waits to the one that is sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Skid {
    /// Instructions.
    pub mean: Number,
    /// Its variance.
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
    /// Its name.
    pub name: String,
}

/// Rank and share; `rank` is `null` where a ranking lacks the variable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Rank {
    /// From 1.
    pub rank: Option<u64>,
    /// Share of misses or accesses.
    pub share: Number,
}

/// The same of the approximate side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RankedApproximate {
    /// What this side calls the object, where that is another name; else `null`.
    pub names: Option<BTreeSet<String>>,
    /// From 1.
    pub rank: Option<u64>,
    /// Share of misses or accesses.
    pub share: Number,
}

/// A file that was not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Unread {
    /// Its path.
    pub file: String,
    /// The reason.
    pub why: String,
}

/// A variable as the approximate side has it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Variable {
    /// Other names of it.
    pub aliases: Vec<String>,
    /// Where it is declared; `null` where that is not known.
    pub declared: Option<SourceLine>,
    /// Its function; `null` of a global variable.
    pub function: Option<String>,
    /// What kind of variable.
    pub kind: String,
    /// The call that returned it; `null` where there is none.
    pub made_by: Option<MadeBy>,
    /// Its name.
    pub name: String,
    /// Lines that read it.
    pub read_at: Vec<ReadAt>,
    /// Share of all samples.
    pub share: Number,
    /// Its type; `null` where it is not known.
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
    /// Line in it.
    pub line: u64,
}

/// A line that reads a variable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ReadAt {
    /// Source file.
    pub file: String,
    /// Line in it.
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
