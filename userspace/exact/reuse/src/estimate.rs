//! Estimates of a whole run from the counts of its sampled lines, with intervals.
//!
//! Source: spatially hashed sampling (SHARDS; Waldspurger et al., FAST 2015). One of K lines is sampled,
//! with all its accesses. A count of sampled lines is multiplied by K, and so is a stack distance among
//! sampled lines. Ratios divide by the *known* number of touches instead of K times the touches found,
//! which is the correction SHARDS-adj (section 3.3): what is missing or too much are touches of few hot
//! lines, at distances below the least one that the sample resolves.
//!
//! Two errors are stated, each at 95 %, and an interval has both:
//!
//! * *Which lines were drawn.* Lines are the units, not reuses. The counts stand apart by random groups of
//!   sampled lines; their scatter gives the variance of the total. The interval is that of Fay and Feuer
//!   (Statistics in Medicine 16, 1997, equations 3 to 6) for a sum of Poisson counts with weights, by
//!   chi-square quantiles after Wilson and Hilferty (1931). It widens where few lines carry a count: its
//!   upper bound adds a line of the heaviest group's weight.
//! * *Distances.* Of d distinct lines between use and reuse, a binomial number is sampled. The errors of
//!   different reuses may be one and the same (a loop over an array) or independent. For a cache of c
//!   lines, a reuse at distance c or more shows less than the 2.5 % quantile of Binomial(c, 1/K) lines
//!   with a known chance of at most 2.5 %, by which the upper bound is divided. The lower bound counts
//!   distances above the 97.5 % quantile of Binomial(c − 1, 1/K), less the reuses that are expected
//!   there by chance. Both hold for common and for independent errors.
//!
//! Sources of error: a line that carries a large share of the misses alone is absent from the sample with
//! chance 1 − 1/K, and nothing shows it then; at c lines one line has at most the share 1/(c + 1) of all
//! touches as misses. Distances of threads are each thread's own; lines are drawn once for all threads.

use crate::bins::{LOG2_BINS, fine_bin, fine_low, log2_bin, log2_bounds};
use crate::summary::GrainSummary;

/// Normal quantile of two-sided 95 %.
const Z: f64 = 1.959_963_985;
/// Chance that a distance lies beyond a bound, on each side.
const TAIL: f64 = 0.025;
/// Mean number of sampled lines in the smallest cache of the curve: below, the number is 0 with a chance
/// of more than 2.5 %, and the upper bound is 1.
pub const LEAST_SAMPLED: u64 = 4;

/// An estimated number, with a 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Events seen.
    pub n: u64,
}

impl Estimate {
    /// The estimate as a part of a known number, at most 1.
    pub fn part_of(self, whole: f64) -> Self {
        let part = |value: f64| if whole > 0.0 { (value / whole).clamp(0.0, 1.0) } else { 0.0 };
        Self { value: part(self.value), low: part(self.low), high: part(self.high), n: self.n }
    }
}

/// The whole run's count from the counts of random groups of its sampled lines, one of `one_in` lines
/// being sampled. With no count at all, a line with a single one may have been missed.
pub fn scaled(groups: &[u64], one_in: u32) -> Estimate {
    let (k, number) = (f64::from(one_in), groups.len().max(2) as f64);
    let n: u64 = groups.iter().sum();
    let mean = n as f64 / number;
    let scatter: f64 = groups.iter().map(|count| (*count as f64 - mean).powi(2)).sum();
    // The variance has number − 1 degrees of freedom: Student's quantile instead of the normal one.
    let student = 1.0 + (Z * Z + 1.0) / (2.0 * (number - 1.0));
    let variance = k * k * (1.0 - 1.0 / k) * scatter * number / (number - 1.0) * student;
    let value = k * n as f64;
    let weight = k * groups.iter().copied().max().unwrap_or(0).max(1) as f64;
    let low = if n == 0 || variance <= 0.0 {
        value.min(k * chi_square(TAIL, 2.0 * n as f64) / 2.0)
    } else {
        variance / (2.0 * value) * chi_square(TAIL, 2.0 * value * value / variance)
    };
    let (shifted, wider) = (value + weight, variance + weight * weight);
    let high = wider / (2.0 * shifted) * chi_square(1.0 - TAIL, 2.0 * shifted * shifted / wider);
    Estimate { value, low: low.clamp(0.0, value), high: high.max(value), n }
}

/// A bin of distances with its share of all reuses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// The first distance of the bin.
    pub low: u64,
    /// The first distance above the bin.
    pub high: u64,
    /// Share of all reuses; `n` counts reuses seen.
    pub share: Estimate,
}

/// Estimates from the counts of sampled lines.
#[derive(Debug, Clone, Copy)]
pub struct SampleEstimates<'a> {
    grain: &'a GrainSummary,
    one_in: u32,
    touches: u64,
}

impl<'a> SampleEstimates<'a> {
    /// Of counts by group of lines, one of `one_in` lines being sampled, in a run with `touches` touches
    /// of lines, sampled or not. `None` if no line was sampled.
    pub fn new(grain: &'a GrainSummary, one_in: u32, touches: u64) -> Option<Self> {
        let is_sampled = one_in > 1 && grain.cold > 0 && !grain.by_group.is_empty();
        is_sampled.then_some(Self { grain, one_in, touches })
    }

    /// Touches of the whole run: counted.
    pub fn touches(&self) -> u64 {
        self.touches
    }

    /// Distinct lines touched in the whole run, the same line counted once for each thread.
    pub fn cold(&self) -> Estimate {
        let cold: Vec<u64> = self.grain.by_group.iter().map(|group| group.cold).collect();
        scaled(&cold, self.one_in)
    }

    /// Reuses of the whole run: touches that are not the first.
    pub fn reuses(&self) -> f64 {
        (self.touches as f64 - self.cold().value).max(0.0)
    }

    /// Misses of a fully associative LRU cache of `granules` lines. `None` at sizes that the sample does
    /// not resolve, below [`LEAST_SAMPLED`] sampled lines, and at sizes between two bins.
    pub fn misses(&self, granules: u64) -> Option<Estimate> {
        let sampled = granules / u64::from(self.one_in);
        if sampled < LEAST_SAMPLED {
            return None;
        }
        let found = self.at_least(granules, true)?;
        let most = self.touches as f64;
        let [value, low, high] = [found.value, found.low, found.high].map(|misses| misses.min(most));
        Some(Estimate { value, low, high, n: found.n })
    }

    /// Sampled touches with at least `distance` sampled lines in between.
    fn seen(&self, distance: u64, with_first: bool) -> Vec<u64> {
        let from = fine_bin(distance);
        let groups = self.grain.by_group.iter();
        let cold = |cold: u64| if with_first { cold } else { 0 };
        groups.map(|group| cold(group.cold) + group.stack.iter().skip(from).sum::<u64>()).collect()
    }

    /// Touches at a stack distance of `granules` or more; first touches too if asked for.
    fn at_least(&self, granules: u64, with_first: bool) -> Option<Estimate> {
        let k = u64::from(self.one_in);
        let threshold = granules / k;
        let is_edge = granules.is_multiple_of(k) && fine_low(fine_bin(threshold)) == threshold;
        if !is_edge || granules == 0 {
            return None;
        }
        let rate = 1.0 / f64::from(self.one_in);
        let middle = scaled(&self.seen(threshold, with_first), self.one_in);
        // The upper bound: at the edge at or below the quantile, more touches are counted.
        let least = lower_quantile(granules, rate);
        let least = fine_low(fine_bin(least));
        let upper = scaled(&self.seen(least, with_first), self.one_in);
        let missed = least.checked_sub(1).map_or(0.0, |below| binomial(granules, rate, below));
        let high = if least == 0 { f64::INFINITY } else { upper.high / (1.0 - missed) };
        // The lower bound: at the edge above the quantile, fewer touches are counted.
        let most = upper_quantile(granules - 1, rate);
        let edge = fine_bin(most) + 1;
        let lower = scaled(&self.seen(fine_low(edge), with_first), self.one_in);
        let low = lower.low - self.by_chance(granules, threshold, most);
        Some(Estimate {
            value: middle.value,
            low: low.clamp(0.0, middle.value.min(lower.low)),
            high: high.max(middle.value),
            n: middle.n,
        })
    }

    /// Touches below the distance `granules` that are expected to show more than `most` sampled lines.
    fn by_chance(&self, granules: u64, threshold: u64, most: u64) -> f64 {
        let rate = 1.0 / f64::from(self.one_in);
        // Beyond eight standard deviations nothing is expected.
        let reach = threshold.saturating_sub(8 * threshold.isqrt() + 8);
        let bins = self.grain.stack.iter().enumerate().take(fine_bin(threshold)).skip(fine_bin(reach));
        let expected = bins.filter(|(_, count)| **count > 0).map(|(bin, count)| {
            let distance = (fine_low(bin + 1) * u64::from(self.one_in) - 1).min(granules - 1);
            f64::from(self.one_in) * *count as f64 * (1.0 - binomial(distance, rate, most))
        });
        expected.sum()
    }

    /// Stack distances in log2 bins, of which the first ends at the number of lines of which one is
    /// sampled; shares sum to 1.
    pub fn stack(&self) -> Vec<Share> {
        let (k, reuses) = (u64::from(self.one_in), self.reuses());
        let all = Estimate { value: reuses, low: reuses, high: reuses, n: self.grain.reuses() };
        let mut edges = vec![(0, all)];
        let mut low = k;
        while let Some(beyond) = self.at_least(low, false) {
            let value = beyond.value.min(reuses);
            edges.push((low, Estimate { value, ..beyond }));
            if beyond.n == 0 {
                break;
            }
            low *= 2;
        }
        let bin = |pair: &[(u64, Estimate)]| {
            let [(low, from), (high, to)] = pair else { return None };
            let share = Estimate {
                value: from.value - to.value,
                low: from.low.min(reuses) - to.high.min(reuses),
                high: from.high.min(reuses) - to.low.min(reuses),
                n: from.n.saturating_sub(to.n),
            };
            Some(Share { low: *low, high: *high, share: share.part_of(reuses) })
        };
        edges.windows(2).filter_map(bin).collect()
    }

    /// Time distances in log2 bins. Distances are exact; the shares are of the reuses seen, and sum to 1.
    pub fn time(&self) -> Vec<Share> {
        let groups = &self.grain.by_group;
        let reuses = |group: &crate::OfGroup| group.time.iter().sum::<u64>();
        let used = (0..LOG2_BINS).filter(|bin| groups.iter().any(|group| of_bin(group, *bin) > 0)).max();
        let share = |bin: usize| {
            let (low, high) = log2_bounds(bin);
            let inside: Vec<u64> = groups.iter().map(|group| of_bin(group, bin)).collect();
            let outside: Vec<u64> = groups.iter().zip(&inside).map(|(group, n)| reuses(group) - n).collect();
            Share { low, high, share: share(&inside, &outside, self.one_in) }
        };
        (0..used.map_or(0, |last| last + 1)).map(share).collect()
    }
}

/// Reuses at a stack distance of `granules` or more in the whole run, of counts in log2 bins: `seen` has
/// the counts by group of the reuses in a bin of sampled distances and above. `None` at sizes that the
/// sample does not resolve. The bins' edges are so far apart that no reuse is expected beyond one by chance.
pub fn beyond(granules: u64, one_in: u32, seen: impl Fn(usize) -> Vec<u64>) -> Option<Estimate> {
    let (rate, threshold) = (1.0 / f64::from(one_in), granules / u64::from(one_in));
    if threshold < LEAST_SAMPLED {
        return None;
    }
    let middle = scaled(&seen(log2_bin(threshold)), one_in);
    let least = log2_bounds(log2_bin(lower_quantile(granules, rate))).0;
    let upper = scaled(&seen(log2_bin(least)), one_in);
    let missed = least.checked_sub(1).map_or(0.0, |below| binomial(granules, rate, below));
    let lower = scaled(&seen(log2_bin(upper_quantile(granules - 1, rate)) + 1), one_in);
    Some(Estimate {
        value: middle.value,
        low: lower.low.min(middle.value),
        high: (upper.high / (1.0 - missed)).max(middle.value),
        n: middle.n,
    })
}

/// The lines that a count rests on, as if all carried equal parts of it (Kish): at most the count, at
/// least 1.
pub fn lines_of(groups: &[u64]) -> f64 {
    let (n, number) = (groups.iter().sum::<u64>() as f64, groups.len().max(2) as f64);
    let scatter: f64 = groups.iter().map(|count| (*count as f64 - n / number).powi(2)).sum();
    let squares = scatter * number / (number - 1.0);
    if squares > 0.0 { (n * n / squares).clamp(1.0, n.max(1.0)) } else { n.max(1.0) }
}

/// Numbers of lines between which a distance lies that shows `low` or more sampled lines, and less than
/// `high`: 95 %, by the square root of a Poisson count.
pub fn distances(low: u64, high: u64, one_in: u32) -> (f64, f64) {
    let k = f64::from(one_in);
    let least = ((low as f64).sqrt() - Z / 2.0).max(0.0).powi(2);
    (k * least, k * ((high as f64).sqrt() + Z / 2.0).powi(2))
}

fn of_bin(group: &crate::OfGroup, bin: usize) -> u64 {
    group.time.get(bin).copied().unwrap_or(0)
}

/// The share of counts inside, from both counts by group: each at the end of its interval that moves the
/// share farthest.
fn share(inside: &[u64], outside: &[u64], one_in: u32) -> Estimate {
    let (inside, outside) = (scaled(inside, one_in), scaled(outside, one_in));
    let part = |part: f64, rest: f64| if part + rest > 0.0 { part / (part + rest) } else { 0.0 };
    Estimate {
        value: part(inside.value, outside.value),
        low: part(inside.low, outside.high),
        high: part(inside.high, outside.low),
        n: inside.n,
    }
}

/// The largest number that Binomial(n, rate) falls below with a chance of at most 2.5 %.
fn lower_quantile(n: u64, rate: f64) -> u64 {
    let (mean, deviation) = moments(n, rate);
    let mut number = (mean - 4.0 * deviation - 2.0).max(0.0) as u64;
    while number < n && binomial(n, rate, number) <= TAIL {
        number += 1;
    }
    number
}

/// The least number that Binomial(n, rate) exceeds with a chance of at most 2.5 %.
fn upper_quantile(n: u64, rate: f64) -> u64 {
    let (mean, deviation) = moments(n, rate);
    let mut number = (mean + deviation).max(0.0) as u64;
    while number < n && binomial(n, rate, number) < 1.0 - TAIL {
        number += 1;
    }
    number
}

fn moments(n: u64, rate: f64) -> (f64, f64) {
    let mean = n as f64 * rate;
    (mean, (mean * (1.0 - rate)).sqrt())
}

/// The chance that Binomial(n, rate) is at most `most`: the sum for small variances, else the normal
/// distribution with the first Edgeworth correction.
fn binomial(n: u64, rate: f64, most: u64) -> f64 {
    if most >= n {
        return 1.0;
    }
    let (mean, deviation) = moments(n, rate);
    if deviation > 10.0 {
        let z = (most as f64 + 0.5 - mean) / deviation;
        let skew = (1.0 - 2.0 * rate) / deviation;
        let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        return (normal(z) - skew / 6.0 * (z * z - 1.0) * density).clamp(0.0, 1.0);
    }
    let mut term = (n as f64 * (-rate).ln_1p()).exp();
    let mut sum = term;
    for number in 1..=most {
        term *= (n - number + 1) as f64 / number as f64 * rate / (1.0 - rate);
        sum += term;
    }
    sum.min(1.0)
}

/// The normal distribution (Abramowitz and Stegun 26.2.17: error below 7.5e-8).
fn normal(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let terms = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let tail: f64 = terms.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    let tail = tail * (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z > 0.0 { 1.0 - tail } else { tail }
}

/// A quantile of chi-square at [`TAIL`] or 1 − [`TAIL`] (Wilson and Hilferty, PNAS 17, 1931).
fn chi_square(chance: f64, freedom: f64) -> f64 {
    if freedom <= 0.0 {
        return 0.0;
    }
    let z = if chance < 0.5 { -Z } else { Z };
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + z * part.sqrt()).max(0.0).powi(3)
}

#[cfg(test)]
mod tests;
