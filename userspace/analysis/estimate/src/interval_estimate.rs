//! Weights of observations, and numbers with an interval.
//!
//! A reuse is seen only if the sample was armed and the watch survived until the trap. The
//! Horvitz–Thompson weight of a seen reuse divides by the probability of both (Horvitz &
//! Thompson 1952, JASA 47(260), eq. 2.2 as a ratio), which the arbiter knows exactly: w =
//! period / (p_arm · p_survive). Unlike RDX's proportional attribution (§IV.A) the weight
//! assumes no property of contexts; the price is variance if survival is unlikely.
//!
//! Intervals are 95 %: percentile bootstrap over the samples with a fixed seed,
//! observations of a sample together (from a single window, hence alike: Davison &
//! Hinkley 1997, Bootstrap Methods and their Application, §3.8), widened to
//! Wilson's interval at Kish's effective number of samples, because resampling
//! cannot show misses of a small sample (three out of three would give 100 % ± 0).
//!
//! Sources of error: samples are treated as independent, but neighbours in
//! time are alike: intervals are too narrow for programs with few long
//! phases; locations with reuse dependent on our stops; refused watches count
//! as missing at random; a share does not cover uses impossible to watch.

use std::collections::{BTreeMap, HashMap};

/// An estimate with a 95 % interval and the number of observations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// Best guess.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of observations.
    pub n: u64,
}

/// Bootstrap replicates; the 2.5 % quantile of 400 rests on ten replicates at each end.
const REPLICATES: usize = 400;
const SEED: u64 = 0x10CA_1177;
/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_964;
/// Below six values, a quantile's interval is minimum
/// to maximum: six values bracket the median with 97 %.
const FEWEST_FOR_QUANTILES: usize = 6;

/// Horvitz–Thompson weight. `None` for impossible probabilities (a damaged file), to limit the
/// effect of a bad row.
pub fn horvitz_thompson(period_ns: u64, p_arm: f64, p_survive: f64) -> Option<f64> {
    let possible = |p: f64| p > 0.0 && p <= 1.0;
    let weight = period_ns as f64 / (p_arm * p_survive);
    (possible(p_arm) && possible(p_survive) && weight.is_finite() && weight > 0.0).then_some(weight)
}

/// Weight and sample of an observation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counted {
    /// Weight.
    pub weight: f64,
    /// Index of the sample.
    pub sample: u32,
}

/// Counts distinct samples in order of arrival.
#[derive(Debug, Clone, Copy, Default)]
pub struct Distinct {
    /// Samples counted.
    pub n: u64,
    last: Option<u32>,
}

impl Distinct {
    /// Counts the sample unless equal to the last.
    pub fn add(&mut self, sample: u32) {
        self.n += u64::from(self.last != Some(sample));
        self.last = Some(sample);
    }
}

/// Share of each group in the total weight. `members[i]` = (group, weight) of observation i; groups
/// are `0..groups`.
pub fn shares(members: &[(usize, Counted)], groups: usize) -> Vec<Estimate> {
    let mut counts = vec![0_u64; groups];
    // By group and sample: far fewer entries than observations.
    let mut sums: BTreeMap<(usize, u32), f64> = BTreeMap::new();
    for (group, counted) in members {
        counts[*group] += 1;
        *sums.entry((*group, counted.sample)).or_default() += counted.weight;
    }
    let samples = Samples::of(sums.keys().map(|(_, sample)| *sample));
    let weights: Vec<(usize, f64)> = sums.iter().map(|((group, _), weight)| (*group, *weight)).collect();
    let values = group_shares(&weights, std::iter::repeat(1.0), groups);
    let mut replicates = vec![Vec::with_capacity(REPLICATES); groups];
    samples.resample(|times| {
        let drawn = group_shares(&weights, samples.of_each(times), groups);
        for (column, share) in replicates.iter_mut().zip(drawn) {
            column.push(share as f32);
        }
    });
    let effective = effective_size(samples.sums(weights.iter().map(|(_, weight)| *weight)).into_iter());
    let estimate = |((value, n), mut column): ((f64, u64), Vec<f32>)| {
        column.sort_unstable_by(f32::total_cmp);
        let (low, high) = wilson(value, effective);
        Estimate {
            value,
            low: f64::from(percentile(&column, 0.025)).min(low),
            high: f64::from(percentile(&column, 0.975)).max(high),
            n,
        }
    };
    values.into_iter().zip(counts).zip(replicates).map(estimate).collect()
}

/// Share of the observations with the flag. n counts the observations.
pub fn share_of(members: impl Iterator<Item = (bool, Counted)>) -> Estimate {
    let members: Vec<(usize, Counted)> =
        members.map(|(holds, counted)| (usize::from(holds), counted)).collect();
    let n = members.len() as u64;
    Estimate { n, ..shares(&members, 2)[1] }
}

/// Weighted quantile q of values: the smallest with at least q of the weight at or below it. With
/// fewer than six samples the interval is from minimum to maximum, and covers less than 95 %.
pub fn quantile(observations: &[(f64, Counted)], q: f64) -> Estimate {
    let sorted = sorted(observations);
    let samples = Samples::of(sorted.iter().map(|(_, counted)| counted.sample));
    let sorted: Vec<(f64, f64)> =
        sorted.into_iter().map(|(value, counted)| (value, counted.weight)).collect();
    let value = sorted_quantile(&sorted, std::iter::repeat(1.0), q);
    let n = sorted.len() as u64;
    if samples.number < FEWEST_FOR_QUANTILES {
        let end = |entry: Option<&(f64, f64)>| entry.map_or(value, |entry| entry.0);
        return Estimate { value, low: end(sorted.first()), high: end(sorted.last()), n };
    }
    let mut replicates = Vec::with_capacity(REPLICATES);
    samples.resample(|times| replicates.push(sorted_quantile(&sorted, samples.of_each(times), q) as f32));
    replicates.sort_unstable_by(f32::total_cmp);
    let low = f64::from(percentile(&replicates, 0.025)).min(value);
    let high = f64::from(percentile(&replicates, 0.975)).max(value);
    Estimate { value, low, high, n }
}

/// Weighted quantiles of values, as those of [`quantile`], without intervals.
pub fn quantiles<const N: usize>(observations: &[(f64, Counted)], q: [f64; N]) -> [f64; N] {
    let sorted: Vec<(f64, f64)> =
        sorted(observations).into_iter().map(|(value, counted)| (value, counted.weight)).collect();
    q.map(|q| sorted_quantile(&sorted, std::iter::repeat(1.0), q))
}

fn sorted(observations: &[(f64, Counted)]) -> Vec<(f64, Counted)> {
    let mut sorted = observations.to_vec();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.weight.total_cmp(&b.1.weight)));
    sorted
}

/// Ratio of two weighted sums, Σwa ÷ Σwb of observations (a, b). The interval is the bootstrap's over
/// samples (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13).
pub fn ratio(observations: &[((f64, f64), Counted)]) -> Estimate {
    let samples = Samples::of(observations.iter().map(|(_, counted)| counted.sample));
    let quotient = |times: &mut dyn Iterator<Item = f64>| {
        let mut sums = (0.0, 0.0);
        for (((a, b), counted), times) in observations.iter().zip(times) {
            sums.0 += a * counted.weight * times;
            sums.1 += b * counted.weight * times;
        }
        if sums.1 > 0.0 { sums.0 / sums.1 } else { 0.0 }
    };
    let value = quotient(&mut std::iter::repeat(1.0));
    let mut replicates = Vec::with_capacity(REPLICATES);
    samples.resample(|times| replicates.push(quotient(&mut samples.of_each(times)) as f32));
    replicates.sort_unstable_by(f32::total_cmp);
    let low = f64::from(percentile(&replicates, 0.025)).min(value);
    let high = f64::from(percentile(&replicates, 0.975)).max(value);
    Estimate { value, low, high, n: samples.number as u64 }
}

/// Groups of observations by sample.
struct Samples {
    /// By observation, numbered from 0.
    of: Vec<usize>,
    number: usize,
}

impl Samples {
    fn of(samples: impl Iterator<Item = u32>) -> Self {
        let mut known = HashMap::new();
        let mut number = |sample: u32| {
            let next = known.len();
            *known.entry(sample).or_insert(next)
        };
        let of = samples.map(&mut number).collect();
        Self { of, number: known.len() }
    }

    /// Association of observations with samples.
    fn of_each<'a>(&'a self, values: &'a [f64]) -> impl Iterator<Item = f64> + Clone + 'a {
        self.of.iter().map(|sample| values[*sample])
    }

    /// Sums by sample.
    fn sums(&self, values: impl Iterator<Item = f64>) -> Vec<f64> {
        let mut sums = vec![0.0; self.number];
        self.of.iter().zip(values).for_each(|(sample, value)| sums[*sample] += value);
        sums
    }

    /// Calls back with how often each of the n samples was drawn, n draws with replacement, once
    /// per replicate.
    fn resample(&self, mut replicate: impl FnMut(&[f64])) {
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut times = vec![0.0; self.number];
        for _ in 0..if self.number == 0 { 0 } else { REPLICATES } {
            times.fill(0.0);
            for _ in 0..self.number {
                times[random.usize(..self.number)] += 1.0;
            }
            replicate(&times);
        }
    }
}

fn group_shares(members: &[(usize, f64)], times: impl Iterator<Item = f64>, groups: usize) -> Vec<f64> {
    let mut sums = vec![0.0; groups];
    for (&(group, weight), times) in members.iter().zip(times) {
        sums[group] += weight * times;
    }
    let total: f64 = sums.iter().sum();
    if total > 0.0 {
        sums.iter_mut().for_each(|sum| *sum /= total);
    }
    sums
}

fn sorted_quantile(sorted: &[(f64, f64)], times: impl Iterator<Item = f64> + Clone, q: f64) -> f64 {
    let total: f64 = sorted.iter().zip(times.clone()).map(|((_, weight), times)| weight * times).sum();
    let mut below = 0.0;
    for ((value, weight), times) in sorted.iter().zip(times) {
        below += weight * times;
        if below >= q * total && times > 0.0 {
            return *value;
        }
    }
    // Rounding may leave the last sum a hair short of the total.
    sorted.last().map_or(0.0, |entry| entry.0)
}

fn percentile(sorted: &[f32], q: f64) -> f32 {
    let at = (sorted.len() as f64 * q) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// Kish's effective sample size (Σw)² / Σw².
pub fn effective_size(weights: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
    if squares > 0.0 { sum * sum / squares } else { 0.0 }
}

/// Wilson's score interval of a proportion (Wilson 1927, JASA 22(158)).
pub fn wilson(p: f64, n: f64) -> (f64, f64) {
    if n.is_nan() || n <= 0.0 || !(0.0..=1.0).contains(&p) {
        return (0.0, 1.0);
    }
    let z2 = Z * Z / n;
    let centre = (p + z2 / 2.0) / (1.0 + z2);
    let half = Z / (1.0 + z2) * (p * (1.0 - p) / n + z2 / (4.0 * n)).sqrt();
    // p belongs to the interval; rounding may push an end past p at 0 and 1.
    ((centre - half).clamp(0.0, p), (centre + half).clamp(p, 1.0))
}

#[cfg(test)]
mod tests;
