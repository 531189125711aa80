//! `reuse`: distances between use and reuse, and miss ratios, by size of granule.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::number::{Interval, Number};

/// Reuse by bytes of a granule.
pub type ByGranule = BTreeMap<String, Reuse>;

/// Reuse at one size of granule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Reuse {
    /// Miss ratios at this machine's caches; absent where there are no stack distances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_caches: Option<Vec<Point>>,
    /// Exact: the same by type and width of data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_data_type: Option<BTreeMap<String, TypeReuse>>,
    /// Exact: first touches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold: Option<u64>,
    /// Share of touches that are first touches, or never followed by another; absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_fraction: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_fraction_ci95: Option<Interval>,
    /// Live: what an estimator that assumes nothing about contexts makes of `time`. Of the whole run only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_check: Option<CrossCheck>,
    /// Exact, with `--fine`: fine bins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fine: Option<Fine>,
    /// Bytes of distinct granules touched; absent where they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub footprint_bytes: Option<Number>,
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub footprint_bytes_ci95: Option<Interval>,
    /// Miss ratios of a fully associative LRU cache by size, ascending; absent where there are no stack
    /// distances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_ratio_curve: Option<Vec<Point>>,
    /// Exact, with `--optimal`: misses under optimal replacement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimal_replacement: Option<Optimal>,
    /// Exact: the run in phases; empty of more than 16 threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<Phase>>,
    /// Exact, with `--sets`: misses of set-associative caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_associative: Option<SetAssociative>,
    /// Stack distances in `granules`; absent where no rate of accesses is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Histogram>,
    /// Time distances, in `accesses`, or in `cpu_ns` where no rate of accesses is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Histogram>,
    /// Touches of granules; absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touches: Option<Number>,
}

/// Distances in bins of log2 from 0. Fractions are of reuses and sum to 1.
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
    /// Without windows: the first bin has all times below this one, in nanoseconds.
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
    /// Live: interval of `fraction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Exact: reuses in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Share of all reuses.
    pub fraction: Number,
    /// The first distance above it.
    pub high: Number,
    /// The first distance in it.
    pub low: Number,
    /// Live: reuses seen in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
}

/// A distance. Of a live report with interval and n, of an exact one with the bounds of its bin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Distance {
    /// Live: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Exact: the first distance above the bin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u64>,
    /// Exact: the first distance in the bin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<u64>,
    /// Live: reuses seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// `accesses`, `cpu_ns` or `granules`.
    pub unit: String,
    /// The distance. Of an exact report, reuses are taken as evenly spread within the bin.
    pub value: Number,
}

/// A size of cache and its miss ratio.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Point {
    /// Size of the cache in bytes.
    pub bytes: Number,
    /// Live: interval of `ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Live: the interval from sampling alone, without the error of the conversion of distances, which two
    /// traces of one program have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95_sampling: Option<Interval>,
    /// The level of this machine that has this size; absent where none has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// Exact: misses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Misses for each touch of a granule.
    pub ratio: Number,
}

/// What another estimator makes of the time distances.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CrossCheck {
    /// The estimator: Horvitz–Thompson, or the default one where that is the report's.
    pub estimator: String,
    /// The bin whose fractions differ most.
    pub largest_difference: LargestDifference,
    /// S of the two histograms over these bins.
    pub s: Number,
}

/// Where two estimators differ most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LargestDifference {
    /// The other fraction less the reported one.
    pub difference: Number,
    /// The first distance above the bin.
    pub high: u64,
    /// The first distance in the bin.
    pub low: u64,
    /// Whether the other fraction lies outside of the reported interval.
    pub outside_ci95: bool,
}

/// Reuse of data of one type. Distances are those among all accesses.
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
    /// Accesses in it.
    pub accesses: u64,
    /// First touches.
    pub cold: u64,
    /// With `--fine`: fine bins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fine: Option<Fine>,
    /// Accesses of the thread before it.
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

/// Bins that are not empty, as a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FineHistogram {
    /// What the columns are: `low`, `high`, `count`, and of time distances `mean`.
    pub columns: Vec<String>,
    /// A row for each bin.
    pub rows: Vec<Vec<Number>>,
    /// `accesses` or `granules`.
    pub unit: String,
}

/// Misses of caches of some number of sets.
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
    /// Touches that found no room to be remembered, and are not counted.
    pub touches_not_kept: u64,
}
