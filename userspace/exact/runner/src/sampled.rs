//! The report of a run with `--sample-lines`: estimates of the whole run with intervals and n, in the
//! fields of a live report. The method is `locality_reuse::SampleEstimates`.
//!
//! Not here: reuse by type of data and phases, whose counts do not stand apart by groups of lines.

use locality_model::CacheLevel;
use locality_report::schema::{
    Estimate as Estimated,
    number::{Interval, Number},
    pairs::PairContext,
    reuse::{Bin, Distance, Histogram, Point, Reuse, SampledLines},
};
use locality_reuse::{
    Estimate, GrainSummary, LOG2_BINS, SampleEstimates, Share, beyond, distances, lines_of, log2_bounds,
    scaled,
};

use super::{
    image::Sampled,
    report::FIXED_SIZES,
    total::{Counts, Grain},
};

/// Half the 95 % interval of a share of one half, times the root of the number of observations.
const HALF_OF_MEDIAN: f64 = 0.98;

/// Reuse of lines; `None` if no line was sampled.
pub fn reuse(grain: &Grain, sampled: &Sampled, caches: &[CacheLevel]) -> Option<Reuse> {
    let sum = grain.sum.as_ref()?;
    let estimates = SampleEstimates::new(sum, sampled.one_in, sampled.touches)?;
    let (cold, touches) = (estimates.cold(), sampled.touches as f64);
    let cold_fraction = cold.part_of(touches);
    let bytes = |lines: f64| -> Number { (lines * sum.bytes as f64).round().into() };
    let at = |cache: &CacheLevel| {
        Some(Point { level: Some(cache.level), ..point(&estimates, sum.bytes, cache.bytes)? })
    };
    Some(Reuse {
        at_caches: Some(caches.iter().filter_map(at).collect()),
        cold_fraction: Some(cold_fraction.value.into()),
        cold_fraction_ci95: Some(interval(cold_fraction)),
        footprint_bytes: Some(bytes(cold.value)),
        footprint_bytes_ci95: Some([bytes(cold.low), bytes(cold.high)]),
        miss_ratio_curve: Some(curve(&estimates, sum)),
        sampled_lines: Some(SampledLines {
            lines: sum.cold,
            one_in: sampled.one_in,
            touches: sum.touches,
            touches_expected: sampled.touches / u64::from(sampled.one_in),
        }),
        stack: Some(histogram("granules", &estimates.stack(), sum)),
        time: Some(histogram("accesses", &estimates.time(), sum)),
        touches: Some(sampled.touches.into()),
        ..Reuse::default()
    })
}

fn interval(estimate: Estimate) -> Interval {
    [estimate.low.into(), estimate.high.into()]
}

fn histogram(unit: &str, shares: &[Share], sum: &GrainSummary) -> Histogram {
    let bin = |share: &Share| Bin {
        ci95: Some(interval(share.share)),
        fraction: share.share.value.into(),
        high: share.high.into(),
        low: share.low.into(),
        n: Some(share.share.n),
        ..Bin::default()
    };
    Histogram {
        bins: Some(shares.iter().map(bin).collect()),
        n: Some(sum.reuses()),
        unit: unit.to_owned(),
        ..Histogram::default()
    }
}

fn point(estimates: &SampleEstimates<'_>, granule: u64, bytes: u64) -> Option<Point> {
    let misses = estimates.misses(bytes / granule)?;
    let ratio = misses.part_of(estimates.touches() as f64);
    Some(Point {
        bytes: bytes.into(),
        ci95: Some(interval(ratio)),
        n: Some(ratio.n),
        ratio: ratio.value.into(),
        ..Point::default()
    })
}

/// At every power of two that the sample resolves, to the first size with only first touches among the
/// misses seen, and the fixed sizes.
fn curve(estimates: &SampleEstimates<'_>, sum: &GrainSummary) -> Vec<Point> {
    let mut sizes: Vec<u64> = (0..40).map(|bit| sum.bytes << bit).collect();
    let only_first = |bytes: &u64| estimates.misses(bytes / sum.bytes).is_some_and(|all| all.n == sum.cold);
    let enough = sizes.iter().position(only_first);
    sizes.truncate(enough.map_or(sizes.len(), |at| at + 1));
    sizes.extend(FIXED_SIZES);
    sizes.sort_unstable();
    sizes.dedup();
    sizes.iter().filter_map(|bytes| point(estimates, sum.bytes, *bytes)).collect()
}

/// From counts of pairs to the whole run's.
pub struct Scale<'a> {
    /// Counts at the pairs' granularity.
    pub sum: &'a GrainSummary,
    one_in: u32,
    /// Reuses of the whole run.
    reuses: f64,
}

impl<'a> Scale<'a> {
    /// Of all lines, or of sampled ones.
    pub fn of(sum: &'a GrainSummary, sampled: Option<&Sampled>) -> Self {
        let estimates =
            sampled.and_then(|sampled| SampleEstimates::new(sum, sampled.one_in, sampled.touches));
        let reuses = estimates.map_or(sum.reuses() as f64, |estimates| estimates.reuses());
        Self { sum, one_in: sampled.map_or(1, |sampled| sampled.one_in), reuses }
    }

    /// The stack distance among the lines seen from which on a reuse misses a cache.
    pub fn seen(&self, bytes: u64) -> u64 {
        (bytes / self.sum.bytes / u64::from(self.one_in)).max(1)
    }

    /// Puts estimates in place of the counts of sampled lines.
    pub fn estimate(&self, counts: &Counts, row: &mut PairContext) {
        if self.one_in == 1 {
            return;
        }
        let groups = counts.by_group(0);
        let weight = scaled(&groups, self.one_in).part_of(self.reuses);
        row.weight = weight.value.into();
        row.weight_ci95 = Some(interval(weight));
        let misses = FIXED_SIZES.iter().filter_map(|bytes| {
            let found = beyond(bytes / self.sum.bytes, self.one_in, |bin| counts.by_group(bin))?;
            let rounded = |value: f64| -> Number { value.round().into() };
            let estimated = Estimated {
                ci95: [rounded(found.low), rounded(found.high)],
                n: found.n,
                value: rounded(found.value),
            };
            Some((bytes.to_string(), estimated))
        });
        row.misses_estimated = Some(misses.collect());
        let lines = lines_of(&groups);
        row.time_median = median(&counts.time, lines, "accesses", |low, high| (low as f64, high as f64));
        row.stack_median =
            Some(median(&counts.stack, lines, "granules", |low, high| distances(low, high, self.one_in)));
        if let Some(Some(stack)) = &mut row.stack_median {
            let k = u64::from(self.one_in);
            stack.low = stack.low.map(|low| low * k);
            stack.high = stack.high.map(|high| high * k);
            stack.value = (stack.value.real().unwrap_or(0.0) * k as f64).into();
        }
    }
}

/// The median with an interval: the bins of the quantiles between which the median of as many
/// observations as there are `lines` lies (Woodruff, JASA 47, 1952), and `wider` by the distances' error.
fn median(
    bins: &[u64; LOG2_BINS],
    lines: f64,
    unit: &str,
    wider: impl Fn(u64, u64) -> (f64, f64),
) -> Option<Distance> {
    let n: u64 = bins.iter().sum();
    let half = HALF_OF_MEDIAN / lines.max(1.0).sqrt();
    let bin_at = |part: f64| {
        let mut below = 0;
        bins.iter().position(|count| {
            below += count;
            below > 0 && below as f64 >= part * n as f64
        })
    };
    let (first, last) = (bin_at((0.5 - half).max(0.0))?, bin_at((0.5 + half).min(1.0))?);
    let (low, high) = (log2_bounds(first).0, log2_bounds(last).1);
    let (low, high) = (wider(low, high).0, wider(low, high).1);
    let middle = super::report::median(bins, unit)?;
    Some(Distance { ci95: Some([low.round().into(), high.round().into()]), n: Some(n), ..middle })
}

#[cfg(test)]
mod tests {
    use super::*;
    use locality_reuse::Cell;

    fn cell(group: u8, stack_bin: u8, count: u64) -> Cell {
        Cell { use_site: 1, reuse_site: 2, group, time_bin: 9, stack_bin, count }
    }

    #[test]
    fn counts_stand_apart_by_group() {
        let mut counts = Counts::default();
        for (group, bin, count) in [(0, 3, 5), (0, 7, 2), (4, 7, 10), (4, 2, 1), (15, 1, 3)] {
            counts.add(&cell(group, bin, count));
        }
        let mut twice = counts.clone();
        twice.merge(&counts);
        let found = |counts: &Counts, bin| {
            let groups = counts.by_group(bin);
            (groups[0], groups[4], groups[15], groups.iter().sum::<u64>())
        };
        assert_eq!(found(&counts, 0), (7, 11, 3, 21));
        assert_eq!(found(&counts, 3), (7, 10, 0, 17));
        assert_eq!(found(&twice, 4), (4, 20, 0, 24));
    }

    #[test]
    fn a_median_of_few_lines_is_uncertain() {
        let mut bins = [0; LOG2_BINS];
        (bins[3], bins[6], bins[9]) = (300, 400, 300);
        let same = |low: u64, high: u64| (low as f64, high as f64);
        let of = |lines| {
            let found = median(&bins, lines, "accesses", same).unwrap();
            let [low, high] = found.ci95.unwrap();
            (low.real().unwrap(), high.real().unwrap(), found.n, found.low)
        };
        assert_eq!(of(1000.0), (32.0, 64.0, Some(1000), Some(32)));
        assert_eq!(of(16.0), (4.0, 512.0, Some(1000), Some(32)));
        assert_eq!(median(&[0; LOG2_BINS], 1.0, "accesses", same), None);
    }
}
