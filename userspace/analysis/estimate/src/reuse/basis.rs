//! Number of samples in support of an estimate at a distance, and the least width of the interval.

use crate::censored_uses::Subject;
use crate::interval_estimate::{effective_size, wilson};

use super::Z;

/// Standard deviation of a miss ratio from the conversion alone:
/// `recipe floor/8` (every reuse seen) has a mean error of .002 at 8 and
/// .004 at 64 bytes over 16 kernels, .012 and .008 at the second-worst.
const CONVERSION: f64 = 0.004;
/// Standard deviation of the share of a bin of stack distances, as far as a share is a
/// difference of two miss ratios; many reuses may lie at the bin's edges. With `OF_BINS`
/// intervals contain the truth in .93 of the bins of 19 kernels and in .97 of the bins
/// of 15 programs, in .88 and .90 with a miss ratio's (docs/journal/2026-11.md).
const OF_BINS: f64 = 0.012;

/// Samples, as basis of an estimate.
#[derive(Debug, Default)]
pub(super) struct Basis {
    /// Samples with uses in a window.
    windows: f64,
    /// Share of the uses' weight left open by windows; 1 without windows.
    open: f64,
    /// Median distance observed, of uses without a reuse in windows.
    reach: u64,
    /// Watches: the sample that each rests on, ascending, observed distance (infinite, if reused), and
    /// weight.
    watches: Vec<(u32, f64, f64)>,
}

impl Basis {
    pub fn of(subjects: &[Subject]) -> Self {
        let shown = || subjects.iter().filter(|subject| subject.shown.at > 0);
        let mut samples: Vec<u32> = shown().map(|subject| subject.sample).collect();
        samples.dedup();
        let mut reach: Vec<u64> = shown().filter(|s| !s.shown.reused).map(|s| s.shown.at).collect();
        reach.sort_unstable();
        let weigh = |only: fn(&Subject) -> bool| {
            subjects.iter().filter(|subject| only(subject)).map(|subject| subject.weight).sum::<f64>()
        };
        let watch = |subject: &Subject| {
            let followed = subject.followed.filter(|_| !subject.shown.reused)?;
            let known = if followed.exit.reused { f64::INFINITY } else { followed.exit.at as f64 };
            Some((subject.rests_on, known, subject.weight / followed.p_choice))
        };
        let mut watches: Vec<(u32, f64, f64)> = subjects.iter().filter_map(watch).collect();
        watches.sort_by_key(|(sample, ..)| *sample);
        Self {
            windows: samples.len() as f64,
            open: weigh(|subject| !subject.shown.reused) / weigh(|_| true).max(f64::MIN_POSITIVE),
            reach: reach.get(reach.len() / 2).copied().unwrap_or(0),
            watches,
        }
    }

    /// Whether windows show reuses at a distance, exactly.
    pub fn is_shown(&self, distance: f64) -> bool {
        distance <= self.reach as f64
    }

    /// Kish's number of watches that were not withdrawn before a distance; watches that rest on one
    /// sample are one.
    fn watched(&self, distance: f64) -> f64 {
        let weight = |together: &[(u32, f64, f64)]| {
            let known = together.iter().filter(|(_, known, _)| *known >= distance);
            known.map(|(.., weight)| weight).sum()
        };
        effective_size(self.watches.chunk_by(|(a, ..), (b, ..)| a == b).map(weight))
    }

    /// Wilson's interval for a share at a distance and beyond: of the samples within the
    /// reach of windows, otherwise of the watches, for the part left open by windows.
    pub fn interval(&self, share: f64, distance: f64) -> (f64, f64) {
        let share = share.clamp(0.0, 1.0);
        let all = wilson(share, self.windows.max(self.watched(0.0)));
        if distance <= self.reach as f64 || self.open <= 0.0 {
            return all;
        }
        let (low, high) = wilson((share / self.open).min(1.0), self.watched(distance));
        ((self.open * low).min(all.0), (self.open * high).min(1.0).max(all.1))
    }

    /// Deviations in a 95 % interval: Student's quantile at the number of
    /// samples less one (Abramowitz & Stegun 26.7.5, to second order).
    pub fn deviations(&self, distance: f64) -> f64 {
        let far = distance > self.reach as f64;
        let samples = if far { self.watched(distance) } else { self.windows.max(self.watched(0.0)) };
        let free = (samples - 1.0).max(2.0);
        let z2 = Z * Z;
        Z * (1.0 + (z2 + 1.0) / (4.0 * free) + (5.0 * z2 * z2 + 16.0 * z2 + 3.0) / (96.0 * free * free))
    }
}

/// A miss ratio's deviation, with the conversion's own.
pub(super) fn with_conversion(deviation: f64) -> f64 {
    deviation.hypot(CONVERSION)
}

/// Deviation of the share of a bin of stack distances, which is a difference of two miss ratios.
pub(super) fn between_conversions(deviation: f64) -> f64 {
    deviation.hypot(OF_BINS * std::f64::consts::SQRT_2)
}
