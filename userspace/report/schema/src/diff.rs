//! `locality-diff/1`: what `locality-bpf diff BASE NEW --format json` prints.

use serde::{Deserialize, Serialize};

use super::{Interval, Number, place::Place};

/// The schema.
pub const SCHEMA: &str = "locality-diff/1";

/// What changed between two sides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Diff {
    /// The base side.
    pub base: Side,
    /// What was asked for by `--fail-on`.
    pub conditions: Vec<Condition>,
    /// Differences of machine, options and programs that a reader must know.
    pub environment: Vec<Environment>,
    /// Whether there is a regression: a condition of `--fail-on` that is met; without conditions, misses or
    /// wasted bytes of the whole run at a cache of the machine that regressed. The exit status is 3 then.
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
    /// Parts that only the base has, heaviest first.
    pub only_in_base: Vec<Lone>,
    /// Parts that only the new side has, heaviest first.
    pub only_in_new: Vec<Lone>,
    /// Rows of the whole run, then of its parts, by what changed most.
    pub rows: Vec<Row>,
    /// `locality-diff/1`.
    pub schema: String,
    /// The outcome in a sentence.
    pub verdict: String,
}

/// One side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Side {
    /// What ran.
    pub command: String,
    /// Its profiles or reports.
    pub files: Vec<String>,
    /// Samples in all; `null` of exact runs.
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
    /// Its interval.
    pub base_ci95: Interval,
    /// New less base.
    pub difference: Change,
    /// Value of the new side.
    pub new: Number,
    /// Its interval.
    pub new_ci95: Interval,
    /// Chance of such a difference where nothing changed.
    pub p_value: Number,
    /// The part of the run that the row is about; absent of the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// `misses:LEVEL` and `misses:SIZE` per 1,000 accesses, `memory` and `wasted:LEVEL` in bytes per access,
    /// `footprint` in bytes, `reuses` (of a pair) per 1,000 reuses.
    pub quantity: String,
    /// How large a change these profiles would show; absent where nothing is known of chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
    /// What the numbers are counted in.
    pub unit: String,
    /// What is said of the change.
    pub verdict: Verdict,
}

/// A difference with its interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "DiffChange"))]
#[serde(default)]
pub struct Change {
    /// Its interval.
    pub ci95: Interval,
    /// The best guess.
    pub value: Number,
}

/// How large a change is seen in four of five cases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Seen {
    /// The least change that these profiles would show.
    pub least: Number,
    /// Seconds of a trace on each side after which a change as large as the margin would be seen;
    /// `null` where the base is 0.
    pub seconds_for_margin: Option<Number>,
}

/// What is said of a change.
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
    /// None of these is certain.
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
    /// The place in the source of the new side: of a pair that of the reuse; absent of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// A part that one side has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Lone {
    /// The part.
    pub part: Part,
    /// The quantity of which it has most.
    pub quantity: String,
    /// Its value.
    pub value: Number,
}

/// A condition of `--fail-on`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Condition {
    /// As it was typed.
    pub condition: String,
    /// Whether the bound that is nearer to no change exceeds the threshold.
    pub failed: bool,
    /// Whether only the other bound exceeds the threshold.
    pub inconclusive: bool,
    /// The threshold in the unit of the quantity: of the difference, or of the new side where it is absolute.
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
    /// What differs.
    pub what: String,
}
