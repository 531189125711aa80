//! `verdict` and `advice`: how well a program uses its caches, changes to make, and their gain.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Estimate, place::Place};

/// How well the program uses its caches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Verdict {
    /// The grade.
    pub grade: Grade,
    /// Misses per 1,000 touches of lines, by cache: `L1`,
    /// `L2`, `LLC`, as far as the machine has them.
    pub per_mille: BTreeMap<String, Estimate>,
    /// The interval reaches beyond the grade, but at least four fifths of the draws lie in it and none in the
    /// opposite grade.
    pub probably: bool,
    /// The verdict in words.
    pub sentence: String,
    /// Share of the CPU time that waits for data beyond the first-level cache. At the interval's ends, the
    /// time outside of loops with a known speed waits never and always. Absent if such loops have less than
    /// half of the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_share: Option<Estimate>,
}

/// A grade of data locality.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Hardly any access leaves the near caches.
    Good,
    /// Between good and poor.
    Fair,
    /// Many accesses go to memory.
    Poor,
    /// The intervals do not tell.
    #[default]
    Unsure,
}

/// A change to make.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Advice {
    /// Reasons for the advice, one sentence each.
    pub evidence: Vec<String>,
    /// Field of the object; absent without a field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Gain by the change.
    pub gain: Gain,
    /// Obstacles to the change and checks to make first, one sentence each.
    pub in_the_way: Vec<String>,
    /// `interchange`, `tile`, `fuse`, `split`, `soa`, `reorder`, `pad`, `sharing`, `prefetch`, `batch`,
    /// `huge_pages`, `shrink`, `keep_buffer`, `accumulators`, `vectorise`, `branch` or `parallelise`.
    pub kind: String,
    /// Samples in the loop.
    pub n: u64,
    /// Name of the data object; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The second of two places, for instance of loops to fuse; absent if the advice has one place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<Place>,
    /// The advice as an imperative sentence.
    pub title: String,
    /// Place of the change: the loop, in the user's own code if the call path has some.
    #[serde(rename = "where")]
    pub place: Place,
}

/// Gain by a change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Gain {
    /// Share of all line loads at each cache that the change saves; without caches that hardly any line
    /// misses, and absent if no cache is concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<BTreeMap<String, Estimate>>,
    /// Time of the whole program now, divided by its time after the change.
    pub speedup: Estimate,
}
