//! Histogram of time distances: what share of all reuses comes back within 1, 2, 4, 8 … nanoseconds
//! of CPU time.
//!
//! Bins are log2 from 0, `[0,1) [1,2) [2,4) …` (RDX §V.A starts at 4 K instead, which
//! hides the short distances). Distances below the resolution of the measurement cannot be
//! distinguished, so those bins are merged into the first. Weights are Horvitz–Thompson (module
//! `estimate`, with its sources of error); cold misses have no distance and are not in it.

use locality_estimate::interval_estimate::{Counted, Estimate, quantile, share_of, shares};

use crate::analysis_trait::{Analysis, in_order};
use crate::observation::Reuse;

/// Distribution of time distances.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// Adjacent bins from 0 to the longest distance, empty ones included. Fractions sum to 1.
    pub bins: Vec<Bin>,
    /// Distances below this are in the first bin.
    pub resolution_ns: u64,
    /// Median over all reuses.
    pub median_ns: Estimate,
    /// 90 % of all reuses come sooner.
    pub p90_ns: Estimate,
    /// Share of all reuses at [`FAR_NS`] or more.
    pub far: Estimate,
    /// Reuses.
    pub n: u64,
}

/// From here on a reuse is called far. At the few gigabytes per second that one core moves, 100 µs
/// are room for several hundred KiB of other data: more than a first-level cache holds, often more
/// than a second-level one.
pub const FAR_NS: u64 = 100_000;

/// Reuses with low ≤ distance < high.
#[derive(Debug, Clone, PartialEq)]
pub struct Bin {
    /// Lowest distance.
    pub low_ns: u64,
    /// First distance beyond the bin; the last bin ends at `u64::MAX`.
    pub high_ns: u64,
    /// Share of all reuses.
    pub fraction: Estimate,
}

/// The analysis in progress.
#[derive(Debug, Clone)]
pub struct TimeDistances {
    resolution_ns: u64,
    reuses: Vec<Reuse>,
}

impl TimeDistances {
    /// Starts with nothing; distances below `resolution_ns` are merged.
    pub fn new(resolution_ns: u64) -> Self {
        Self { resolution_ns, reuses: Vec::new() }
    }
}

impl Analysis for TimeDistances {
    type Observation = Reuse;
    type Finding = Histogram;

    fn observe(&mut self, reuse: Reuse) {
        self.reuses.push(reuse);
    }

    fn merge(&mut self, other: Self) {
        self.reuses.extend(other.reuses);
    }

    fn finish(self) -> Histogram {
        let reuses = in_order(self.reuses);
        let first = bin_index(self.resolution_ns.saturating_sub(1));
        let bin = |reuse: &Reuse| bin_index(reuse.distance_ns).saturating_sub(first) as usize;
        let members: Vec<(usize, Counted)> =
            reuses.iter().map(|reuse| (bin(reuse), reuse.counted())).collect();
        let count = members.iter().map(|member| member.0 + 1).max().unwrap_or(0);
        let bins = (first..).zip(shares(&members, count)).map(|(index, fraction)| Bin {
            low_ns: if index == first { 0 } else { lower_edge(index) },
            high_ns: if index >= 64 { u64::MAX } else { lower_edge(index + 1) },
            fraction,
        });
        let distances: Vec<(f64, Counted)> =
            reuses.iter().map(|reuse| (reuse.distance_ns as f64, reuse.counted())).collect();
        Histogram {
            bins: bins.collect(),
            resolution_ns: self.resolution_ns,
            median_ns: quantile(&distances, 0.5),
            p90_ns: quantile(&distances, 0.9),
            far: share_of(reuses.iter().map(|reuse| (reuse.distance_ns >= FAR_NS, reuse.counted()))),
            n: reuses.len() as u64,
        }
    }
}

/// 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, …
fn bin_index(distance_ns: u64) -> u32 {
    u64::BITS - distance_ns.leading_zeros()
}

/// Smallest distance in a bin.
fn lower_edge(index: u32) -> u64 {
    if index == 0 { 0 } else { 1 << (index - 1) }
}

#[cfg(test)]
mod tests;
