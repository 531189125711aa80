//! Intervals of sums over first touches, from bootstrap draws.

use locality_estimate::interval_estimate::{Estimate, effective_size, wilson};

use super::line_lifetimes::LINE;
use super::study::{Cost, Sums};
use super::{Costs, Loaded};

/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_964;
/// The model's own error beyond draws with varied fill times (`fills`): a share s is wrong by
/// `MODEL` times √(s(1 − s)), as a standard deviation, in the first level; and in larger
/// levels, not filled by windows. Against exact runs (`cargo xtask bench accuracy`;
/// docs/journal/2026-11-cache-use.md) intervals contained the truth in 81 of 90 cases of the
/// first level and 61 of 64 of the second; with .1 and .15 in 81 and 59. Four earlier sets of
/// traces, with a single fill time in draws, had with .1 for both 274 of 315 and 161 of 205.
const MODEL: [f64; 2] = [0.15, 0.2];
/// Of shares nearer to 0 or 1 the model knows no more.
const NEAREST: f64 = 0.02;

/// Intervals from draws.
pub(super) struct Spread<'a> {
    draws: &'a [Sums],
    seen: &'a Sums,
    lost: Part,
    lines: Part,
    /// The model's own error.
    model: f64,
}

/// Basis of a share.
#[derive(Clone, Copy)]
struct Part {
    of: fn(&Cost) -> f64,
    /// Undecided amount.
    unsure: fn(&Cost) -> f64,
    /// Independent samples with equal variance.
    effective: f64,
}

impl<'a> Spread<'a> {
    /// Of the first level or a larger level. `by_sample`: sums
    /// over the first touches of each sample, which are alike.
    pub fn new(is_first: bool, draws: &'a [Sums], seen: &'a Sums, by_sample: Vec<Cost>) -> Self {
        let part = |of: fn(&Cost) -> f64, unsure: fn(&Cost) -> f64| {
            let effective = effective_size(by_sample.iter().map(of));
            Part { of, unsure, effective }
        };
        Self {
            draws,
            seen,
            lost: part(|cost| cost.lost, |cost| cost.unsure),
            lines: part(|cost| cost.lines, |_| 0.0),
            model: MODEL[usize::from(!is_first)],
        }
    }

    /// Estimates for a sum.
    pub fn loaded(&self, of: &dyn Fn(&Sums) -> Cost) -> Loaded {
        Loaded {
            costs: self.costs(of),
            traffic: self.share(of, self.lines),
            share: self.share_of_loss(of),
            used: self.used(of),
            accesses: self.accesses(of),
        }
    }

    /// Cost of a sum.
    pub fn costs(&self, of: &dyn Fn(&Sums) -> Cost) -> Costs {
        Costs {
            lines: self.amount(of, |cost| cost.lines),
            lost: self.lost(of),
            access_cost: self.amount(of, |cost| cost.reciprocal),
        }
    }

    /// Share in the bytes lost.
    pub fn share_of_loss(&self, of: &dyn Fn(&Sums) -> Cost) -> Estimate {
        self.share(of, self.lost)
    }

    /// Half of the interval: the root mean square distance of the draws, to include bias.
    fn half(&self, value: f64, of: impl Fn(&Sums) -> f64) -> f64 {
        let drawn = self.draws.iter().map(of).filter(|drawn| drawn.is_finite());
        let (n, sum) = drawn.fold((0.0, 0.0), |(n, sum), drawn| (n + 1.0, sum + (drawn - value).powi(2)));
        if n > 0.0 { Z * f64::sqrt(sum / n) } else { 0.0 }
    }

    /// Lines loaded, or the reciprocals of access counts.
    fn amount(&self, of: &dyn Fn(&Sums) -> Cost, what: fn(&Cost) -> f64) -> Estimate {
        let seen = of(self.seen);
        let value = what(&seen);
        let half = self.half(value, |sums| what(&of(sums)));
        Estimate { value, low: (value - half).max(0.0), high: value + half, n: seen.n }
    }

    /// Bytes lost.
    pub fn lost(&self, of: &dyn Fn(&Sums) -> Cost) -> Estimate {
        let Cost { lost: value, unsure, n, .. } = of(self.seen);
        let half = self.half(value, |sums| of(sums).lost);
        Estimate { value, low: (value - unsure - half).max(0.0), high: value + unsure + half, n }
    }

    /// The share of a sum in the whole, with the model's own error, and
    /// Wilson's interval at least: draws do not show misses of too few samples.
    fn share(&self, of: &dyn Fn(&Sums) -> Cost, part: Part) -> Estimate {
        let share = |sums: &Sums| (part.of)(&of(sums)) / (part.of)(&sums.whole).max(f64::MIN_POSITIVE);
        let value = share(self.seen).clamp(0.0, 1.0);
        let doubtful = value.clamp(NEAREST, 1.0 - NEAREST);
        let half = self.half(value, share).hypot(Z * self.model * f64::sqrt(doubtful * (1.0 - doubtful)));
        let (low, high) = wilson(value, part.effective);
        let seen = of(self.seen);
        let (own, unsure, whole) = ((part.of)(&seen), (part.unsure)(&seen), (part.of)(&self.seen.whole));
        // Uncertain parts may be wrong for the row and right for the rest.
        let with = |own: f64, others: f64| if own + others > 0.0 { own / (own + others) } else { value };
        let rest = whole - own;
        let (least, most) = (with(own - unsure, rest), with(own + unsure, rest));
        Estimate {
            value,
            low: (value - half).min(low).min(least).max(0.0),
            high: (value + half).max(high).max(most).min(1.0),
            n: seen.n,
        }
    }

    /// Share of a sum's loss in the bytes loaded.
    pub fn of_traffic(&self, of: &dyn Fn(&Sums) -> Cost) -> Estimate {
        let share = |lost: f64, lines: f64| if lines > 0.0 { lost / (lines * LINE) } else { 0.0 };
        let seen = of(self.seen);
        let value = share(seen.lost, self.seen.whole.lines);
        let half = self.half(value, |sums| share(of(sums).lost, sums.whole.lines));
        let half = half + share(seen.unsure, self.seen.whole.lines);
        Estimate { value, low: (value - half).max(0.0), high: (value + half).min(1.0), n: seen.n }
    }

    /// Bytes used of a line; a further sample, with no byte
    /// or every byte used, would be within the interval.
    fn used(&self, of: &dyn Fn(&Sums) -> Cost) -> Estimate {
        let used = |cost: Cost| LINE - cost.lost / cost.lines;
        let seen = of(self.seen);
        let value = used(seen);
        let half = self.half(value, |sums| used(of(sums)));
        let with = |other: f64| one_more(value, other, seen.samples);
        let unsure = seen.unsure / seen.lines;
        Estimate {
            value,
            low: (value - unsure - half).min(with(0.0)).max(0.0),
            high: (value + unsure + half).max(with(LINE)).min(LINE),
            n: seen.n,
        }
    }

    /// Accesses to a line, harmonic mean, on a scale of logarithms; a further
    /// sample's, accessed once or without end, would be within the interval.
    fn accesses(&self, of: &dyn Fn(&Sums) -> Cost) -> Estimate {
        let mean = |cost: Cost| cost.lines / cost.reciprocal;
        let seen = of(self.seen);
        let value = mean(seen);
        let half = self.half(value.ln(), |sums| mean(of(sums)).ln());
        let with = |other: f64| 1.0 / one_more(1.0 / value, other, seen.samples);
        Estimate {
            value,
            low: (value / half.exp()).min(with(1.0)).max(1.0_f64.min(value)),
            high: (value * half.exp()).max(with(0.0)),
            n: seen.n,
        }
    }
}

/// The mean of n values and of a further value.
fn one_more(mean: f64, other: f64, n: f64) -> f64 {
    (mean * n + other) / (n + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without draws that differ, and with samples enough, intervals are the model's; a share of
    /// all or nothing has one, too.
    #[test]
    fn larger_caches_are_known_less_well() {
        let cost = |lost| Cost { lost, lines: 1.0, n: 1, samples: 1.0, ..Cost::default() };
        let none = Vec::new;
        let sums = |part| Sums {
            whole: cost(100.0),
            places: vec![cost(part)],
            paths: none(),
            objects: none(),
            own: none(),
            functions: none(),
        };
        let width = |is_first, part| {
            let sums = sums(part);
            let spread = Spread::new(is_first, &[], &sums, vec![cost(0.01); 100_000]);
            let share = spread.share_of_loss(&|sums| sums.places[0]);
            assert_eq!(share.value, part / 100.0);
            share.high - share.low
        };
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-3, "{found} {expected}");
        near(width(true, 50.0), 2.0 * Z * 0.15 * 0.5);
        near(width(false, 50.0), 2.0 * Z * 0.2 * 0.5);
        near(width(false, 100.0), Z * 0.2 * f64::sqrt(0.02 * 0.98));
    }
}
