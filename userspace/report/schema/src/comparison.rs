//! `locality-compare/1`: output of `locality-bpf compare A B --format json`.

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
    /// Granularities in only one of the reports.
    pub unmatched_granularity: Vec<u64>,
}

/// Two reports at equal granularity.
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

/// A part of the comparison, or the reason for its absence.
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

/// Similarity of two histograms: 1 for equal ones, 0 for no common part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Similarity {
    /// Edges of log2 bins dropped because a bar of either histogram crosses the edge.
    pub dropped_edges: u64,
    /// S, RDX eq. 1.
    pub s: Number,
    /// Ŝ, RDX eq. 2: mild to reuses one bin off.
    pub s_hat: Number,
    /// S over log2 bins from 0.
    pub s_log2: Number,
    /// S over distances of 4 K and more; `null` if both histograms lack distances in the range.
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
    /// The largest difference of the curves.
    pub worst: Worst,
}

/// The largest difference of two curves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Worst {
    /// Size of the cache.
    pub bytes: u64,
    /// The difference of the miss ratios at `bytes`.
    pub error: Number,
}
