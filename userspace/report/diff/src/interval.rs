//! Intervals of differences, and how sure each is.
//!
//! The interval of each side comes from draws of whole samples
//! (`locality_estimate::reuse`). Both sides are traced, and so drawn, independently: the
//! variance of the difference is the sum of both. The limits of a difference θ₁ − θ₂ are
//! recovered from the limits of the sides, lopsided as these are (MOVER: Zou & Donner 2008,
//! Statistics in Medicine 27, eq. 2): lower = d − √((θ₁ − l₁)² + (u₂ − θ₂)²), upper = d +
//! √((u₁ − θ₁)² + (θ₂ − l₂)²). An interval from new draws of both sides, compared pair by
//! pair, differs only by chance (`tests::limits_are_those_of_resampling_both_sides`).
//!
//! Sources of error: limits of products take both factors as independent; p-values take the error as normal
//! on the side towards no change.

/// Two-sided 95 % of the normal distribution.
pub const Z: f64 = 1.959_964;
/// Two-sided 90 %: the level of two one-sided tests at 5 %.
const Z90: f64 = 1.644_854;
/// Permitted share of false discoveries among the rows called changed.
pub const FALSE_DISCOVERIES: f64 = 0.05;

/// A value with the limits of the 95 % interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Value {
    /// Best guess.
    pub value: f64,
    /// Lower limit.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
    /// Observations of the value; `None` for a counted value.
    pub n: Option<u64>,
}

impl Value {
    /// A counted number.
    pub fn exact(value: f64) -> Self {
        Self { value, low: value, high: value, n: None }
    }

    /// In another unit.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor, n: self.n }
    }

    /// The product of two independent values.
    #[must_use]
    pub fn product(self, other: Self) -> Self {
        let value = self.value * other.value;
        let distance = |own: f64, others: f64| (own * other.value).hypot(others * self.value);
        Self {
            value,
            low: (value - distance(self.value - self.low, other.value - other.low)).max(0.0),
            high: value + distance(self.high - self.value, other.high - other.value),
            n: self.n.into_iter().chain(other.n).min(),
        }
    }

    /// The sum of two independent values.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let value = self.value + other.value;
        Self {
            value,
            low: value - (self.value - self.low).hypot(other.value - other.low),
            high: value + (self.high - self.value).hypot(other.high - other.value),
            n: self.n.zip(other.n).map(|(a, b)| a + b).or(self.n).or(other.n),
        }
    }

    /// The mean of one side's profiles. The intervals of profiles lack the variation
    /// from run to run, so the variance between runs is added, as far as the variance
    /// within runs is exceeded (a random-effects mean: DerSimonian & Laird 1986,
    /// unweighted), with Student's quantile at Satterthwaite's degrees of freedom.
    pub fn mean(values: &[Self]) -> Option<Self> {
        let k = values.len() as f64;
        let (first, rest) = values.split_first()?;
        if rest.is_empty() {
            return Some(*first);
        }
        let value = values.iter().map(|one| one.value).sum::<f64>() / k;
        let side = |half: &dyn Fn(&Self) -> f64| {
            let within = values.iter().map(|one| (half(one) / Z).powi(2)).sum::<f64>() / k;
            let all = values.iter().map(|one| (one.value - value).powi(2)).sum::<f64>() / (k - 1.0);
            let between = (all - within).max(0.0);
            let variance = (within + between) / k;
            let free = if between > 0.0 { (k - 1.0) * ((within + between) / between).powi(2) } else { 1e9 };
            student(free) * variance.sqrt()
        };
        Some(Self {
            value,
            low: (value - side(&|one| one.value - one.low)).max(0.0),
            high: value + side(&|one| one.high - one.value),
            n: values.iter().map(|one| one.n).sum(),
        })
    }
}

/// Two-sided 95 % of Student's distribution: tabulated below three degrees of freedom, else the expansion of
/// Abramowitz & Stegun 26.7.5 to second order.
fn student(free: f64) -> f64 {
    let (one, two, three) = (12.706, 4.303, 3.182);
    if free <= 1.0 {
        return one;
    }
    if free < 3.0 {
        // Linear in 1/freedom between the tabulated values.
        let (a, b, from, to) = if free < 2.0 { (1.0, 2.0, one, two) } else { (2.0, 3.0, two, three) };
        let part = (1.0 / a - 1.0 / free) / (1.0 / a - 1.0 / b);
        return from + part * (to - from);
    }
    let z2 = Z * Z;
    Z * (1.0 + (z2 + 1.0) / (4.0 * free) + (5.0 * z2 * z2 + 16.0 * z2 + 3.0) / (96.0 * free * free))
}

/// A difference, new less base.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Best guess.
    pub value: f64,
    /// Lower limit.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
}

impl Difference {
    /// Of two independent sides.
    pub fn of(base: Value, new: Value) -> Self {
        let value = new.value - base.value;
        Self {
            value,
            low: value - (new.value - new.low).hypot(base.high - base.value),
            high: value + (new.high - new.value).hypot(base.value - base.low),
        }
    }

    /// Half of the interval.
    pub fn half(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Chance of an equal or larger difference without a change.
    pub fn p_value(&self) -> f64 {
        let towards = if self.value > 0.0 { self.value - self.low } else { self.high - self.value };
        if self.value == 0.0 {
            return 1.0;
        }
        if towards <= 0.0 { 0.0 } else { 2.0 * above(Z * self.value.abs() / towards) }
    }

    /// Whether two one-sided tests at 5 % find the change smaller
    /// than a margin: the 90 % interval lies within the margin.
    pub fn is_within(&self, margin: f64) -> bool {
        let low = self.value - (self.value - self.low) * Z90 / Z;
        let high = self.value + (self.high - self.value) * Z90 / Z;
        -margin <= low && high <= margin
    }
}

/// Share of the normal distribution above z, by the complementary error function's rational bound of
/// Abramowitz & Stegun 26.2.17 (error below 7.5e-8).
fn above(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    (density * poly).clamp(0.0, 0.5)
}

/// Rejected hypotheses, with at most the given share of false
/// rejections (Benjamini & Hochberg 1995, JRSS B 57(1), procedure 1).
pub fn discoveries(p_values: &[f64], share: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    let p = |at: &usize| p_values.get(*at).copied().unwrap_or(1.0);
    order.sort_by(|a, b| p(a).total_cmp(&p(b)));
    let n = p_values.len() as f64;
    let last = order.iter().enumerate().rev().find(|(rank, at)| p(at) <= share * (rank + 1) as f64 / n);
    let rejected = last.map_or(0, |(rank, _)| rank + 1);
    let mut found = vec![false; p_values.len()];
    for at in order.into_iter().take(rejected) {
        if let Some(found) = found.get_mut(at) {
            *found = true;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(value: f64, low: f64, high: f64) -> Value {
        Value { value, low, high, n: Some(9) }
    }

    #[test]
    fn differences_have_the_worked_limits_of_their_source() {
        // Zou & Donner 2008, table of Newcombe's example (a): 56/70 and 48/80 with Wilson's limits.
        let difference = Difference::of(value(0.6, 0.4904, 0.7), value(0.8, 0.6918, 0.8776));
        assert!((difference.value - 0.2).abs() < 1e-12);
        assert!((difference.low - 0.0524).abs() < 5e-4 && (difference.high - 0.3339).abs() < 6e-4);
        assert!((difference.p_value() - 0.0080).abs() < 5e-3, "{}", difference.p_value());
    }

    /// Draws of whole samples on both sides, set against each other one by one, give the same limits.
    #[test]
    fn limits_are_those_of_resampling_both_sides() {
        let mut random = fastrand::Rng::with_seed(7);
        for (n, m, share) in [(60, 90, 0.3), (200, 50, 0.5)] {
            let mut side = |n: usize, share: f64| -> Vec<f64> {
                (0..n).map(|_| (random.f64() < share) as u8 as f64 * (1.0 + random.f64())).collect()
            };
            let (base, new) = (side(n, share), side(m, share * 1.2));
            let mean = |samples: &[f64]| samples.iter().sum::<f64>() / samples.len() as f64;
            let mut draw = |samples: &[f64]| {
                let drawn: Vec<f64> =
                    samples.iter().map(|_| samples[random.usize(..samples.len())]).collect();
                mean(&drawn)
            };
            let draws: Vec<(f64, f64)> = (0..4_000).map(|_| (draw(&base), draw(&new))).collect();
            let deviation = |of: &dyn Fn(&(f64, f64)) -> f64, about: f64| {
                (draws.iter().map(|pair| (of(pair) - about).powi(2)).sum::<f64>() / draws.len() as f64).sqrt()
            };
            let own =
                |value: f64, sd: f64| Value { value, low: value - Z * sd, high: value + Z * sd, n: None };
            let base_value = own(mean(&base), deviation(&|pair| pair.0, mean(&base)));
            let new_value = own(mean(&new), deviation(&|pair| pair.1, mean(&new)));
            let recovered = Difference::of(base_value, new_value);
            let direct = Z * deviation(&|pair| pair.1 - pair.0, recovered.value);
            assert!((recovered.half() / direct - 1.0).abs() < 0.05, "{} {direct}", recovered.half());
        }
    }

    #[test]
    fn counted_differences_are_certain() {
        let difference = Difference::of(Value::exact(3.0), Value::exact(4.0));
        assert_eq!((difference.low, difference.high, difference.p_value()), (1.0, 1.0, 0.0));
        assert!(difference.is_within(1.0) && !difference.is_within(0.9));
        assert_eq!(Difference::of(Value::exact(3.0), Value::exact(3.0)).p_value(), 1.0);
    }

    #[test]
    fn runs_that_differ_widen_their_mean() {
        let runs = |values: &[f64]| {
            let all: Vec<Value> = values.iter().map(|v| value(*v, v - 1.0, v + 1.0)).collect();
            Value::mean(&all).unwrap()
        };
        let half = |value: Value| value.high - value.value;
        assert_eq!(half(runs(&[5.0])), 1.0);
        // Runs alike: the mean of four is twice as certain.
        assert!((half(runs(&[5.0, 5.1, 4.9, 5.0])) - 0.5).abs() < 1e-6);
        // Runs that differ by more than their intervals: Student's quantile of their deviation.
        let apart = runs(&[3.0, 5.0, 7.0]);
        assert!((apart.value - 5.0).abs() < 1e-12 && half(apart) > 3.0, "{apart:?}");
        assert!(Value::mean(&[]).is_none());
    }

    #[test]
    fn quantiles_and_tails_are_those_of_tables() {
        for (free, t) in [(1.0, 12.706), (2.0, 4.303), (5.0, 2.571), (10.0, 2.228), (1e9, 1.960)] {
            assert!((student(free) / t - 1.0).abs() < 0.02, "{free}");
        }
        for (z, tail) in [(0.0, 0.5), (1.0, 0.158_655), (1.96, 0.024_998), (3.0, 0.001_350)] {
            assert!((above(z) - tail).abs() < 1e-6, "{z}");
        }
    }

    #[test]
    fn few_of_the_discoveries_are_false() {
        // The example of the paper: of these 15 p-values the first four are rejected.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
            0.6528, 0.7590, 1.0,
        ];
        let found = discoveries(&p, 0.05);
        assert_eq!(found.iter().filter(|found| **found).count(), 4);
        assert!(found[..4].iter().all(|found| *found));
        assert!(discoveries(&[], 0.05).is_empty());
    }
}
