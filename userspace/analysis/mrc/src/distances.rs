//! A histogram of distances, exact or estimated, of
//! arbitrary bins: input and output of conversions.
//!
//! Serves time distances (1-based, in accesses) and stack distances (0-based, in
//! granules) alike. An exact count is a bar one distance wide; an estimate has wider
//! bars and fractional weights. Within a bar reuses are taken as spread evenly; bins
//! of known mean are better taken at the mean: a loop's reuses have one distance.

use std::fmt;

/// Reuses with low ≤ distance < high.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// First distance.
    pub low: u64,
    /// First distance beyond the bar.
    pub high: u64,
    /// Reuses in the bar: a count or a sum of weights.
    pub weight: f64,
}

/// Bars in ascending order, without overlap, and the touches without a distance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distances {
    bars: Vec<Bar>,
    cold: f64,
}

/// Why bars are not a histogram.
#[derive(Debug, Clone, PartialEq)]
pub enum Malformed {
    /// A bin ends at or before the start.
    Empty(Bar),
    /// A bin starts before the end of the bin below.
    Overlap(Bar, Bar),
    /// A weight is negative, infinite or not a number.
    Weight(f64),
    /// A mean lies outside the bin.
    Mean(Bar, f64),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(bar) => write!(f, "the bin from {} to {} is empty", bar.low, bar.high),
            Self::Overlap(a, b) => {
                write!(f, "the bins from {} to {} and from {} to {} overlap", a.low, a.high, b.low, b.high)
            }
            Self::Mean(bar, mean) => {
                write!(f, "{mean} is no mean of distances from {} to {}", bar.low, bar.high - 1)
            }
            Self::Weight(weight) => write!(f, "{weight} is no number of reuses"),
        }
    }
}

impl std::error::Error for Malformed {}

impl Distances {
    /// Bars in arbitrary order; equal bars are summed;
    /// `cold` is the number of touches without a distance.
    ///
    /// # Errors
    /// Bars that overlap or are empty, weights that are negative or not finite.
    pub fn new(mut bars: Vec<Bar>, cold: f64) -> Result<Self, Malformed> {
        let impossible = |weight: &f64| !weight.is_finite() || *weight < 0.0;
        if let Some(weight) = bars.iter().map(|bar| bar.weight).chain([cold]).find(impossible) {
            return Err(Malformed::Weight(weight));
        }
        bars.sort_unstable_by_key(|bar| (bar.low, bar.high));
        let mut merged: Vec<Bar> = Vec::with_capacity(bars.len());
        for bar in bars {
            if bar.high <= bar.low {
                return Err(Malformed::Empty(bar));
            }
            match merged.last_mut() {
                Some(last) if (last.low, last.high) == (bar.low, bar.high) => last.weight += bar.weight,
                Some(last) if last.high > bar.low => return Err(Malformed::Overlap(*last, bar)),
                _ => merged.push(bar),
            }
        }
        merged.retain(|bar| bar.weight > 0.0);
        Ok(Self { bars: merged, cold })
    }

    /// Exact counts as (distance, count) in arbitrary order.
    ///
    /// # Errors
    /// A count that is negative or not finite; `u64::MAX`, outside every bin.
    pub fn exact(counts: impl IntoIterator<Item = (u64, f64)>, cold: f64) -> Result<Self, Malformed> {
        let bar = |(low, weight): (u64, f64)| Bar { low, high: low.saturating_add(1), weight };
        Self::new(counts.into_iter().map(bar).collect(), cold)
    }

    /// Bins with a known mean distance: the reuses of a bin are put on the two whole
    /// distances around the mean. Exact for bins with one distance, or two neighbouring ones.
    ///
    /// # Errors
    /// As [`Distances::new`]; or a mean outside the bin.
    pub fn with_means(bins: impl IntoIterator<Item = (Bar, f64)>, cold: f64) -> Result<Self, Malformed> {
        let mut bars = Vec::new();
        for (bin, mean) in bins {
            let last = bin.high.saturating_sub(1);
            if bin.high <= bin.low {
                return Err(Malformed::Empty(bin));
            }
            // Means are quotients of whole numbers: rounding may carry a mean past the end.
            let slack = bin.high as f64 * 1e-9;
            if !(bin.low as f64 - slack..=last as f64 + slack).contains(&mean) {
                return Err(Malformed::Mean(bin, mean));
            }
            let mean = mean.clamp(bin.low as f64, last as f64);
            let below = (mean.floor() as u64).clamp(bin.low, last);
            let share = if below < last { mean - below as f64 } else { 0.0 };
            bars.push(Bar { low: below, high: below.saturating_add(1), weight: bin.weight * (1.0 - share) });
            if share > 0.0 {
                bars.push(Bar { low: below + 1, high: below + 2, weight: bin.weight * share });
            }
        }
        Self::new(bars, cold)
    }

    /// The union of histograms; overlapping bars are cut at each other's ends.
    pub fn union(parts: &[&Self]) -> Self {
        let ends = parts.iter().flat_map(|part| &part.bars).flat_map(|bar| [bar.low, bar.high]);
        let mut edges: Vec<u64> = ends.collect();
        edges.sort_unstable();
        edges.dedup();
        let mut weights = vec![0.0; edges.len()];
        for bar in parts.iter().flat_map(|part| &part.bars) {
            let first = edges.partition_point(|edge| *edge < bar.low);
            let density = bar.weight / (bar.high - bar.low) as f64;
            for (weight, pair) in weights.iter_mut().zip(edges.windows(2)).skip(first) {
                match pair {
                    [low, high] if *high <= bar.high => *weight += density * (high - low) as f64,
                    _ => break,
                }
            }
        }
        let bar = |(pair, weight): (&[u64], &f64)| match pair {
            [low, high] if *weight > 0.0 => Some(Bar { low: *low, high: *high, weight: *weight }),
            _ => None,
        };
        let bars = edges.windows(2).zip(&weights).filter_map(bar).collect();
        Self { bars, cold: parts.iter().map(|part| part.cold).sum() }
    }

    /// Bars that are known to be ascending and sound.
    pub(super) fn of_sorted(bars: Vec<Bar>, cold: f64) -> Self {
        Self { bars, cold }
    }

    /// Bars with weight, ascending.
    pub fn bars(&self) -> &[Bar] {
        &self.bars
    }

    /// Touches without a distance.
    pub fn cold(&self) -> f64 {
        self.cold
    }

    /// Touches with a distance.
    pub fn reuses(&self) -> f64 {
        self.bars.iter().map(|bar| bar.weight).sum()
    }

    /// All touches.
    pub fn touches(&self) -> f64 {
        self.reuses() + self.cold
    }

    /// Sum of the distances, with a bar's middle for each reuse in the bar.
    pub fn total(&self) -> f64 {
        let middle = |bar: &Bar| (bar.low as f64 + bar.high as f64 - 1.0) / 2.0;
        self.bars.iter().map(|bar| bar.weight * middle(bar)).sum()
    }

    /// Reuses at `distance` or more.
    pub fn at_least(&self, distance: f64) -> f64 {
        let share = |bar: &Bar| {
            let (low, high) = (bar.low as f64, bar.high as f64);
            bar.weight * ((high - distance) / (high - low)).clamp(0.0, 1.0)
        };
        let first = self.bars.partition_point(|bar| bar.high as f64 <= distance);
        self.bars.get(first..).unwrap_or_default().iter().map(share).sum()
    }

    /// Miss ratio of a fully associative LRU cache of `granules`, for stack
    /// distances: the share of touches at `granules` or more, or cold
    /// (Mattson et al. 1970, IBM Systems Journal 9(2)). NaN without touches.
    pub fn miss_ratio(&self, granules: f64) -> f64 {
        (self.at_least(granules) + self.cold) / self.touches()
    }

    /// Miss ratios at 1, 2, 4 … granules up to the first cache that only misses cold, as (granules, ratio).
    pub fn miss_ratio_curve(&self) -> Vec<(u64, f64)> {
        let end = self.bars.last().map_or(1, |bar| bar.high.min(1 << 62));
        let sizes = (0..63).map(|bit| 1_u64 << bit).take_while(|size| *size < end.saturating_mul(2));
        sizes.map(|size| (size, self.miss_ratio(size as f64))).collect()
    }
}
