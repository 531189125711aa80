//! Intervals of what first touches come to, from bootstrap draws.

use crate::estimate::{Estimate, wilson};

use super::fates::LINE;
use super::study::{Cost, Sums};

/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_964;
/// What sets, levels that filter each other's accesses, and one fill time for a stretch are worth: a share s is wrong by this times √(s(1 − s)), as
/// a standard deviation. Against exact runs of 25 programs, 795 samples each in the median, the largest error of a share was .05 in the median, of shares
/// about .3 (`cargo xtask bench accuracy --seconds 65`, 2026-11-22).
const MODEL: f64 = 0.1;

/// Intervals from draws.
pub(super) struct Spread<'a> {
    pub draws: &'a [Sums],
    pub seen: &'a Sums,
    /// Independent first touches that would vary as much.
    pub effective: f64,
}

impl Spread<'_> {
    /// Half of the interval: the root mean square distance of the draws, so that their bias counts too.
    fn half(&self, value: f64, of: impl Fn(&Sums) -> f64) -> f64 {
        let drawn = self.draws.iter().map(of).filter(|drawn| drawn.is_finite());
        let (n, sum) = drawn.fold((0.0, 0.0), |(n, sum), drawn| (n + 1.0, sum + (drawn - value).powi(2)));
        if n > 0.0 { Z * f64::sqrt(sum / n) } else { 0.0 }
    }

    /// Lines loaded.
    pub fn lines(&self, n: u64, of: impl Fn(&Sums) -> Cost) -> Estimate {
        let value = of(self.seen).lines;
        let half = self.half(value, |sums| of(sums).lines);
        Estimate { value, low: (value - half).max(0.0), high: value + half, n }
    }

    /// Bytes lost.
    pub fn lost(&self, n: u64, of: impl Fn(&Sums) -> Cost) -> Estimate {
        let Cost { lost: value, unsure, .. } = of(self.seen);
        let half = self.half(value, |sums| of(sums).lost);
        Estimate { value, low: (value - unsure - half).max(0.0), high: value + unsure + half, n }
    }

    /// The share of a sum in all bytes lost, with the model's own error, and Wilson's interval at least: draws do not show what
    /// few samples have missed.
    pub fn share(&self, n: u64, of: impl Fn(&Sums) -> Cost) -> Estimate {
        let share = |sums: &Sums| of(sums).lost / sums.whole.lost.max(f64::MIN_POSITIVE);
        let value = share(self.seen).clamp(0.0, 1.0);
        let half = self.half(value, share).hypot(Z * MODEL * f64::sqrt(value * (1.0 - value)));
        let (low, high) = wilson(value, self.effective);
        let (Cost { lost, unsure, .. }, whole) = (of(self.seen), self.seen.whole);
        // What is not sure may be as wrong for this row as it is right for the others.
        let with = |lost: f64, others: f64| if lost + others > 0.0 { lost / (lost + others) } else { value };
        let rest = whole.lost - lost;
        let (least, most) = (with(lost - unsure, rest), with(lost + unsure, rest));
        Estimate {
            value,
            low: (value - half).min(low).min(least).max(0.0),
            high: (value + half).max(high).max(most).min(1.0),
            n,
        }
    }

    /// Bytes used of a line; one more first touch, of which nothing or all is used, would be within the interval.
    pub fn used(&self, n: u64, of: impl Fn(&Sums) -> Cost) -> Estimate {
        let used = |cost: Cost| LINE - cost.lost / cost.lines;
        let seen = of(self.seen);
        let value = used(seen);
        let half = self.half(value, |sums| used(of(sums)));
        let with = |other: f64| (value * n as f64 + other) / (n as f64 + 1.0);
        let unsure = seen.unsure / seen.lines;
        Estimate {
            value,
            low: (value - unsure - half).min(with(0.0)).max(0.0),
            high: (value + unsure + half).max(with(LINE)).min(LINE),
            n,
        }
    }
}

/// Kish's effective number of what is lost.
pub(super) fn effective(costs: &[Cost]) -> f64 {
    let (sum, squares) =
        costs.iter().fold((0.0, 0.0), |(sum, squares), cost| (sum + cost.lost, squares + cost.lost.powi(2)));
    if squares > 0.0 { sum * sum / squares } else { 0.0 }
}
