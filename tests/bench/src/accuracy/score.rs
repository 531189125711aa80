//! How near a trace came to the truth, as named figures; and medians and worst cases over a group
//! of programs.

use std::collections::BTreeMap;

use locality_compare::curve;
use locality_mrc::distances::Distances;

use super::{
    found::{Found, Histogram, Misses},
    truth::Grain,
};

/// Figures by name.
pub type Figures = BTreeMap<String, f64>;

/// Cache sizes at which miss ratios are compared on each machine.
pub const SIZES: [(&str, u64); 3] = [("32K", 32 << 10), ("1M", 1 << 20), ("32M", 32 << 20)];
/// Share of all reuses from which a bin missing in a report counts as missed by its intervals.
const NOTABLE: f64 = 0.001;

/// All figures of one granularity, each name ending in the granule: `time.s.8`.
pub fn figures(found: &Found, truth: &Grain, granule: u64, caches: &[(u64, u64)]) -> Figures {
    let mut figures = Figures::new();
    let mut put = |name: String, value: f64| {
        figures.insert(format!("{name}.{granule}"), value);
    };
    for (name, found, truth) in [("time", &found.time, &truth.time), ("stack", &found.stack, &truth.stack)] {
        let Some(found) = found else { continue };
        if let Some(alike) = locality_compare::of(&found.distances, truth) {
            put(format!("{name}.s"), alike.s);
            put(format!("{name}.s_hat"), alike.s_hat);
            put(format!("{name}.s_log2"), alike.s_log2);
            put(format!("{name}.dropped"), alike.dropped_edges as f64);
            if let Some(long) = alike.s_long {
                put(format!("{name}.s_long"), long);
            }
        }
        if let Some((inside, of)) = bins_covered(found, truth) {
            put(format!("{name}.inside"), inside);
            put(format!("{name}.bands"), of);
        }
    }
    if let Some(found) = &found.misses {
        if let Some(difference) = curve::difference(&found.curve, &truth.curve, granule) {
            put("miss.mean".to_owned(), difference.mean);
            put("miss.worst".to_owned(), difference.worst.0);
        }
        let levels = caches.iter().map(|(level, bytes)| (format!("L{level}"), *bytes));
        for (name, bytes) in levels.chain(SIZES.map(|(name, bytes)| (name.to_owned(), bytes))) {
            let error = found.curve.at(bytes as f64) - truth.curve.at(bytes as f64);
            put(format!("miss.{name}"), error.abs());
        }
        if let Some((inside, of)) = points_covered(found, truth) {
            put("miss.inside".to_owned(), inside);
            put("miss.bands".to_owned(), of);
        }
    }
    figures
}

/// Number of bins with the exact fraction inside the interval, and of compared
/// bins. Bins empty on both sides are left out. `None` without intervals.
fn bins_covered(found: &Histogram, truth: &Distances) -> Option<(f64, f64)> {
    let reuses = truth.reuses();
    if found.bands.is_empty() || reuses <= 0.0 {
        return None;
    }
    let share = |low: u64, high: u64| (truth.at_least(low as f64) - truth.at_least(high as f64)) / reuses;
    let (mut inside, mut of) = (0.0, 0.0);
    for (low, high, fraction, band) in &found.bands {
        let exact = share(*low, *high);
        if exact > 0.0 || *fraction > 0.0 {
            of += 1.0;
            inside += f64::from(within(exact, *band));
        }
    }
    let end = found.bands.iter().map(|band| band.1).max().unwrap_or(0);
    let beyond = truth.bars().iter().filter(|bar| bar.low >= end && bar.weight / reuses >= NOTABLE);
    Some((inside, of + beyond.count() as f64))
}

/// The same for the points of a miss-ratio curve.
fn points_covered(found: &Misses, truth: &Grain) -> Option<(f64, f64)> {
    let inside = found.bands.iter().filter(|(bytes, band)| within(truth.curve.at(*bytes), *band));
    (!found.bands.is_empty()).then(|| (inside.count() as f64, found.bands.len() as f64))
}

/// Rounding in the report's decimals is no miss.
pub fn within(value: f64, band: (f64, f64)) -> bool {
    (band.0 - 1e-9..=band.1 + 1e-9).contains(&value)
}

/// Which values are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Large ones.
    High,
    /// Small ones.
    Low,
}

/// Median, second-worst and worst of the values; equal for a single one. `None` of none.
pub fn summary(values: &[f64], better: Better) -> Option<[f64; 3]> {
    let mut worst_first: Vec<f64> = values.to_vec();
    worst_first.sort_by(f64::total_cmp);
    if better == Better::Low {
        worst_first.reverse();
    }
    let worst = *worst_first.first()?;
    Some([median(values)?, worst_first.get(1).copied().unwrap_or(worst), worst])
}

/// Median, the mean of the two in the middle for an even number. `None` of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some((sorted.get(middle - 1)? + upper) / 2.0) }
}

#[cfg(test)]
mod tests {
    use locality_compare::curve::Curve;
    use locality_mrc::distances::Bar;

    use super::*;

    fn distances(bars: &[(u64, u64, f64)], cold: f64) -> Distances {
        Distances::new(bars.iter().map(|&(low, high, weight)| Bar { low, high, weight }).collect(), cold)
            .unwrap()
    }

    fn truth() -> Grain {
        Grain {
            time: distances(&[(1, 2, 60.0), (4096, 8192, 30.0), (8192, 16384, 10.0)], 25.0),
            stack: distances(&[(0, 1, 50.0), (64, 128, 50.0)], 0.0),
            curve: Curve::new(vec![(8.0, 0.8), (1024.0, 0.2), (65536.0, 0.0)]).unwrap(),
            granules: 100.0,
            touches_per_access: 1.0,
        }
    }

    fn histogram(bins: &[(u64, u64, f64, (f64, f64))]) -> Histogram {
        let bars: Vec<_> = bins.iter().map(|bin| (bin.0, bin.1, bin.2)).collect();
        Histogram { distances: distances(&bars, 0.0), bands: bins.to_vec() }
    }

    #[test]
    fn the_middle_and_the_worst() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(summary(&[0.9, 0.5, 0.7, 0.8], Better::High), Some([0.75, 0.7, 0.5]));
        assert_eq!(summary(&[0.01, 0.05, 0.02], Better::Low), Some([0.02, 0.02, 0.05]));
        assert_eq!(summary(&[0.3], Better::Low), Some([0.3, 0.3, 0.3]));
        assert_eq!(summary(&[], Better::High), None);
    }

    #[test]
    fn an_interval_covers_the_share_of_reuses_without_first_touches() {
        // Exact shares .6, 0, .3, .1: the last lies outside, the bin that is empty on both sides
        // does not count.
        let found = histogram(&[
            (0, 2, 0.5, (0.4, 0.6)),
            (2, 4096, 0.0, (0.0, 0.01)),
            (4096, 8192, 0.5, (0.3, 0.7)),
            (8192, 16384, 0.0, (0.0, 0.05)),
        ]);
        assert_eq!(bins_covered(&found, &truth().time), Some((2.0, 3.0)));
        // A report that ends before the truth does has missed what lies beyond.
        let short = histogram(&[(0, 2, 1.0, (0.5, 1.0))]);
        assert_eq!(bins_covered(&short, &truth().time), Some((1.0, 3.0)));
        assert_eq!(bins_covered(&Histogram { bands: Vec::new(), ..short }, &truth().time), None);
    }

    #[test]
    fn figures_are_the_distance_from_the_truth() {
        let curve = Curve::new(vec![(8.0, 0.7), (1024.0, 0.3), (65536.0, 0.0)]).unwrap();
        let found = Found {
            time: Some(histogram(&[(0, 2, 0.4, (0.3, 0.5)), (4096, 8192, 0.6, (0.2, 0.7))])),
            stack: None,
            misses: Some(Misses { curve, bands: vec![(8.0, (0.6, 0.75)), (1024.0, (0.2, 0.4))] }),
        };
        let figures = figures(&found, &truth(), 8, &[(1, 1024)]);
        let near = |name: &str, value: f64| {
            assert!((figures[name] - value).abs() < 1e-9, "{name}: {}", figures[name])
        };
        // RDX's bins: .4 against .6 below 4 K, .6 against .3, 0 against .1: half of .2 + .3 + .1 off.
        near("time.s.8", 0.7);
        // From 4 K up: 1 and 0 against .75 and .25.
        near("time.s_long.8", 0.75);
        near("miss.L1.8", 0.1);
        near("miss.inside.8", 1.0);
        near("miss.bands.8", 2.0);
        near("time.inside.8", 1.0);
        near("time.bands.8", 3.0);
        assert!(!figures.contains_key("stack.s.8"));
    }
}
