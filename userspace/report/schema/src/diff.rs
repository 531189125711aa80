//! `locality-diff/1`: output of `locality-bpf diff BASE NEW --format json`.

use serde::{Deserialize, Serialize};

use super::{Interval, Number, place::Place};

/// The schema.
pub const SCHEMA: &str = "locality-diff/1";

/// Changes between two sides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Diff {
    /// The base side.
    pub base: Side,
    /// Conditions of `--fail-on`.
    pub conditions: Vec<Condition>,
    /// Differences of machine, options and programs that a reader must know.
    pub environment: Vec<Environment>,
    /// Whether a regression is found: a condition of `--fail-on` that is
    /// met; without conditions, misses or wasted bytes of the whole run at
    /// a cache of the machine that regressed. The exit status is 3 then.
    pub failed: bool,
    /// Whether neither a regression nor its absence is certain, of conditions or else of misses at a cache of
    /// the machine; the exit status is 4 then with `--strict`.
    pub inconclusive: bool,
    /// A change of fewer percent of the base is no change to speak of (`--margin`).
    pub margin_percent: Number,
    /// The new side.
    pub new: Side,
    /// Sentences that a reader must know.
    pub notices: Vec<String>,
    /// Parts in the base only, heaviest first.
    pub only_in_base: Vec<Lone>,
    /// Parts in the new side only, heaviest first.
    pub only_in_new: Vec<Lone>,
    /// Rows of the whole run, then of parts, the largest change first.
    pub rows: Vec<Row>,
    /// `locality-diff/1`.
    pub schema: String,
    /// The outcome in a sentence.
    pub verdict: String,
}

/// The base or the new side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Side {
    /// Command that ran.
    pub command: String,
    /// Profiles or reports of the side.
    pub files: Vec<String>,
    /// Samples in all; `null` for exact runs.
    pub samples: Option<u64>,
    /// Seconds traced in all.
    pub wall_s: Number,
}

/// A quantity on both sides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Row {
    /// Value of the base.
    pub base: Number,
    /// Interval of `base`.
    pub base_ci95: Interval,
    /// New less base.
    pub difference: Change,
    /// Value of the new side.
    pub new: Number,
    /// Interval of `new`.
    pub new_ci95: Interval,
    /// Probability of an equal or larger difference without a change.
    pub p_value: Number,
    /// The part of the run in the row; absent for the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// `misses:LEVEL` and `misses:SIZE` per 1,000 line touches, `memory` and `wasted:LEVEL` in bytes per
    /// access, `footprint` in bytes, `reuses` (of a pair) per 1,000 reuses.
    pub quantity: String,
    /// Size of a change that these profiles would show; absent for parts, and if
    /// nothing is known of chance (an interval of width 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
    /// Unit of the numbers.
    pub unit: String,
    /// Verdict on the change.
    pub verdict: Verdict,
}

/// A difference with its interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "DiffChange"))]
#[serde(default)]
pub struct Change {
    /// Interval of `value`.
    pub ci95: Interval,
    /// The best guess.
    pub value: Number,
}

/// How large a change is seen in four of five cases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Seen {
    /// The least change seen with these profiles.
    pub least: Number,
    /// Seconds of a trace on each side to see a change
    /// as large as the margin; `null` if the base is 0.
    pub seconds_for_margin: Option<Number>,
}

/// Verdict on a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "DiffVerdict"))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Certainly less, by more than the margin.
    Improved,
    /// Certainly more, and not certainly within the margin.
    Regressed,
    /// Certainly within the margin.
    Unchanged,
    /// None of the three is certain.
    #[default]
    Inconclusive,
}

/// A part of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "DiffPart"))]
#[serde(default)]
pub struct Part {
    /// `object`, `function`, `line` or `pair`.
    pub kind: String,
    /// For people.
    pub name: String,
    /// Place in the new side's source: for a pair the place of the reuse; absent for objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// A part found on one side only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Lone {
    /// The part.
    pub part: Part,
    /// The heaviest quantity of the part.
    pub quantity: String,
    /// Value of the quantity.
    pub value: Number,
}

/// A condition of `--fail-on`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Condition {
    /// The condition as typed.
    pub condition: String,
    /// Whether the bound that is nearer to no change exceeds the threshold.
    pub failed: bool,
    /// Whether only the bound further from no change exceeds the threshold.
    pub inconclusive: bool,
    /// The threshold in the unit of the quantity: for
    /// the difference, or if absolute, for the new side.
    pub threshold: Number,
}

/// A difference of circumstances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Environment {
    /// On the base side.
    pub base: String,
    /// On the new side.
    pub new: String,
    /// The property that differs.
    pub what: String,
}
