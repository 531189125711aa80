//! `pairs`: use and reuse by source place.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    Estimate,
    number::{Interval, Number, nullable},
    place::{Frame, Path},
    reuse::Distance,
};

/// A pair of places. If at least two data objects have a tenth of the weight
/// each between two places, each such object has a pair, and the rest has one pair.
/// Live pairs, their distances and weights are of words of 8 bytes. Weights of
/// printed pairs sum to less than 1 if `rows_left_out` counts pairs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Pair {
    /// The innermost common call of both paths; `null` without a common call.
    pub common_ancestor: Option<Arc<Frame>>,
    /// The heaviest pairs of call paths.
    pub contexts: Vec<PairContext>,
    /// Pairs of call paths.
    pub contexts_total: u64,
    /// Live: share of reuses by another thread than the use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_thread_share: Option<Estimate>,
    /// Live: whether far reuses are at least a tenth of the pair's reuses, or a hundredth of all reuses. A
    /// far reuse comes after at least 100 µs of CPU time, or as many accesses as the run makes in 100 µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far: Option<bool>,
    /// Live: median time distance of the far reuses alone; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_median: Option<Distance>,
    /// Live: share of all reuses that are far reuses of this pair, by which far pairs are ranked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_weight: Option<Number>,
    /// Live: interval of `far_weight`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_weight_ci95: Option<Interval>,
    /// Live: share of reuses by the kernel on the program's behalf.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_share: Option<Estimate>,
    /// Exact: reuses that miss a fully associative cache, by cache size in bytes; of sampled lines, those
    /// among the reuses seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<BTreeMap<String, u64>>,
    /// Of sampled lines: `misses` of the whole run; without sizes that the sample does not resolve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses_estimated: Option<BTreeMap<String, Estimate>>,
    /// Reuses seen.
    pub n: u64,
    /// Live: whether nine of ten reuses come before the data can leave the caches, in a pair that is not far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near: Option<bool>,
    /// Live: the data object with at least half of the weight; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<PairObject>,
    /// Call path of the reuse, of the heaviest pair of call paths.
    pub reuse: Path,
    /// Live: the mean stack distance of `time_median`, absent without windows. Exact: the median.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub stack_median: Option<Option<Distance>>,
    /// Median time distance.
    pub time_median: Option<Distance>,
    /// Live: 90 % of the reuses come sooner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_p90: Option<Distance>,
    /// Call path of the use, of the heaviest pair of call paths.
    #[serde(rename = "use")]
    pub used: Path,
    /// Share of all reuses.
    pub weight: Number,
    /// Live, or of sampled lines: interval of `weight`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_ci95: Option<Interval>,
}

/// A pair of call paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PairContext {
    /// Exact: reuses that miss a fully associative cache, by cache size in bytes; of sampled lines, those
    /// among the reuses seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<BTreeMap<String, u64>>,
    /// Of sampled lines: `misses` of the whole run; without sizes that the sample does not resolve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses_estimated: Option<BTreeMap<String, Estimate>>,
    /// Reuses seen.
    pub n: u64,
    /// Call path of the reuse.
    pub reuse: Path,
    /// Exact: median stack distance.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub stack_median: Option<Option<Distance>>,
    /// Median time distance.
    pub time_median: Option<Distance>,
    /// Call path of the use.
    #[serde(rename = "use")]
    pub used: Path,
    /// Share of all reuses.
    pub weight: Number,
    /// Live, or of sampled lines: interval of `weight`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_ci95: Option<Interval>,
}

/// A data object of a pair.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PairObject {
    /// `static`, `stack`, `heap`, `mapped` or `file`.
    pub kind: String,
    /// Name of the data object.
    pub name: String,
    /// Share of the pair's weight.
    pub share: Number,
}

/// Pairs left out of an exact report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NotNamed {
    /// Pairs of instructions in contexts.
    pub pairs: u64,
    /// Reuses of the pairs left out.
    pub reuses: u64,
}
