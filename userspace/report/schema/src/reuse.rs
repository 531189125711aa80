//! `reuse`: distances between use and reuse, and miss ratios, by size of granule.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::number::{Interval, Number};

/// Reuse by bytes of a granule.
pub type ByGranule = BTreeMap<String, Reuse>;

/// Reuse at a size of granule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Reuse {
    /// Miss ratios at this machine's caches; absent without stack distances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_caches: Option<Vec<Point>>,
    /// Exact: distances by type and width of data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_data_type: Option<BTreeMap<String, TypeReuse>>,
    /// Exact: first touches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold: Option<u64>,
    /// Share of first touches, or of touches never followed by another; absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_fraction: Option<Number>,
    /// Live, or of sampled lines: interval of `cold_fraction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_fraction_ci95: Option<Interval>,
    /// Live: `time` by an estimator without assumptions about contexts. Of the whole run only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_check: Option<CrossCheck>,
    /// Exact, with `--fine`: fine bins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fine: Option<Fine>,
    /// Bytes of distinct granules touched; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub footprint_bytes: Option<Number>,
    /// Live, or of sampled lines: interval of `footprint_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub footprint_bytes_ci95: Option<Interval>,
    /// Miss ratios of a fully associative LRU cache by
    /// size, ascending; absent without stack distances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_ratio_curve: Option<Vec<Point>>,
    /// Exact, with `--optimal`: misses under optimal replacement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimal_replacement: Option<Optimal>,
    /// Exact: the run in phases; empty of more than 16 threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<Phase>>,
    /// Exact, with `--sample-lines`: what the estimates rest on. Then fractions, ratios and the footprint
    /// are estimates with `ci95` and `n` as in a live report, stack distances are scaled, `touches` is
    /// counted, and `by_data_type` and `phases` are absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled_lines: Option<SampledLines>,
    /// Exact, with `--sets`: misses of set-associative caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_associative: Option<SetAssociative>,
    /// Stack distances in `granules`; absent if no rate of accesses is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Histogram>,
    /// Time distances, in `accesses`, or in `cpu_ns` if no rate of accesses is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Histogram>,
    /// Touches of granules; absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touches: Option<Number>,
}

/// The sampled lines of an exact run with `--sample-lines`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SampledLines {
    /// Lines sampled, each counted once for each thread that touched it.
    pub lines: u64,
    /// Number of lines of which one is sampled.
    pub one_in: u32,
    /// Touches of sampled lines.
    pub touches: u64,
    /// Touches expected of that many lines: `touches` of the run divided by `one_in`. A large difference
    /// shows few hot lines; ratios divide by all touches, so these lines do not change the ratios.
    pub touches_expected: u64,
}

/// Distances in bins of log2 from 0. Fractions are of reuses and sum to 1. Of sampled lines, the first bin of
/// stack distances ends at `one_in`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Histogram {
    /// Bins, ascending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bins: Option<Vec<Bin>>,
    /// Live: the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<Distance>,
    /// Reuses seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Live: 90 % of the reuses come sooner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<Distance>,
    /// Without windows: upper end of the first bin in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolution: Option<u64>,
    /// `accesses`, `cpu_ns` or `granules`.
    pub unit: String,
}

/// A bin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Bin {
    /// Live, or of sampled lines: interval of `fraction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Exact: reuses in the bin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Share of all reuses.
    pub fraction: Number,
    /// The first distance above the bin.
    pub high: Number,
    /// The first distance in the bin.
    pub low: Number,
    /// Live, or of sampled lines: reuses seen in the bin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
}

/// A distance, in a live report with interval and n, in an exact one with the bounds of the bin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Distance {
    /// Live, or of sampled lines: interval of `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Exact: the first distance above the bin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u64>,
    /// Exact: the first distance in the bin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<u64>,
    /// Live, or of sampled lines: reuses seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// `accesses`, `cpu_ns` or `granules`.
    pub unit: String,
    /// The distance. Of an exact report, reuses are taken as evenly spread within the bin.
    pub value: Number,
}

/// A cache size and the miss ratio.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Point {
    /// Size of the cache in bytes.
    pub bytes: Number,
    /// Live, or of sampled lines: interval of `ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Live: the interval that the scatter of bootstrap draws shows, for comparisons of traces. `ci95`
    /// also has the draws' bias and the error of the conversion of distances, and a least width: Wilson's
    /// interval for the number of samples. Where fewer than five uses missed, both have the least width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95_sampling: Option<Interval>,
    /// The level of this machine with this size; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// Exact: misses; absent of sampled lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Of sampled lines: misses seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Misses for each touch of a granule.
    pub ratio: Number,
}

/// Time distances by another estimator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CrossCheck {
    /// The estimator: Horvitz–Thompson, or the default one if the report uses Horvitz–Thompson.
    pub estimator: String,
    /// The bin with the largest difference of fractions.
    pub largest_difference: LargestDifference,
    /// S of the two histograms over the report's bins.
    pub s: Number,
}

/// The largest difference of two estimators.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LargestDifference {
    /// The cross-check's fraction less the reported one.
    pub difference: Number,
    /// The first distance above the bin.
    pub high: u64,
    /// The first distance in the bin.
    pub low: u64,
    /// Whether the cross-check's fraction lies outside of the reported interval.
    pub outside_ci95: bool,
}

/// Reuse of data of one type. Distances count accesses to data of all types.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TypeReuse {
    /// First touches.
    pub cold: u64,
    /// Stack distances.
    pub stack: Histogram,
    /// Time distances.
    pub time: Histogram,
    /// Touches.
    pub touches: u64,
}

/// A phase of a thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Phase {
    /// Accesses in the phase.
    pub accesses: u64,
    /// First touches.
    pub cold: u64,
    /// With `--fine`: fine bins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fine: Option<Fine>,
    /// Accesses of the thread before the phase.
    pub first_access: u64,
    /// Stack distances.
    pub stack: Histogram,
    /// The thread.
    pub thread: u64,
    /// Time distances.
    pub time: Histogram,
    /// Touches of granules.
    pub touches: u64,
}

/// Distances in 32 bins for each power of two, one for each distance below 64.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Fine {
    /// Stack distances.
    pub stack: FineHistogram,
    /// Time distances.
    pub time: FineHistogram,
}

/// Bins, without empty ones, as a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FineHistogram {
    /// Names of the columns: `low`, `high`, `count`, and for time distances `mean`.
    pub columns: Vec<String>,
    /// A row for each bin.
    pub rows: Vec<Vec<Number>>,
    /// `accesses` or `granules`.
    pub unit: String,
}

/// Misses of caches with equal number of sets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SetAssociative {
    /// By number of ways.
    pub miss_ratios: Vec<SetPoint>,
    /// Sets.
    pub sets: u64,
    /// Touches of granules.
    pub touches: u64,
}

/// Misses of a set-associative cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SetPoint {
    /// Size of the cache in bytes.
    pub bytes: u64,
    /// Misses.
    pub misses: u64,
    /// Misses for each touch of a granule.
    pub ratio: Number,
    /// Ways.
    pub ways: u64,
}

/// Misses under optimal replacement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Optimal {
    /// By size of cache.
    pub miss_ratio_curve: Vec<Point>,
    /// Touches of granules.
    pub touches: u64,
    /// Touches not counted, because they found no room to be remembered.
    pub touches_not_kept: u64,
}
