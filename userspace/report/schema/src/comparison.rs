//! `locality-compare/1`: what `locality-bpf compare A B --format json` prints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::number::Number;

/// How alike two reports are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Comparison {
    /// The first file.
    pub a: String,
    /// The second file.
    pub b: String,
    /// By bytes of a granule.
    pub granularity: BTreeMap<String, GranuleComparison>,
    /// `locality-compare/1`.
    pub schema: String,
    /// Granularities that only one of the reports has.
    pub unmatched_granularity: Vec<u64>,
}

/// Two reports at one granularity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GranuleComparison {
    /// Miss ratios.
    pub miss_ratio: Part<MissRatios>,
    /// Stack distances.
    pub stack: Part<Similarity>,
    /// Time distances.
    pub time: Part<Similarity>,
}

/// A part of the comparison, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Part<T> {
    /// Compared.
    Compared(T),
    /// Not comparable.
    NotCompared {
        /// The reason.
        not_compared: String,
    },
}

/// How alike two histograms are: 1 is equal, 0 has nothing in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Similarity {
    /// Edges of log2 bins that a bar of either histogram crosses, so that they are dropped.
    pub dropped_edges: u64,
    /// S, RDX eq. 1.
    pub s: Number,
    /// Ŝ, RDX eq. 2: mild to reuses one bin off.
    pub s_hat: Number,
    /// S over log2 bins from 0.
    pub s_log2: Number,
    /// S over distances of 4 K and more; `null` where neither has any.
    pub s_long: Option<Number>,
    /// `accesses`, `cpu_ns` or `granules`.
    pub unit: String,
}

/// How far two curves of miss ratios lie apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MissRatios {
    /// Mean of the differences over cache sizes of 1, 2, 4 … granules.
    pub mean_absolute_error: Number,
    /// Sizes compared.
    pub sizes: u64,
    /// Where they lie furthest apart.
    pub worst: Worst,
}

/// The largest difference of two curves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Worst {
    /// Size of the cache.
    pub bytes: u64,
    /// The difference of the miss ratios there.
    pub error: Number,
}
