//! Weights of observations, and numbers with an interval.
//!
//! A reuse is seen only if its sample was armed and its watch survived until the trap. The Horvitz–Thompson weight of
//! what was seen divides by the probability of that (Horvitz & Thompson 1952, JASA 47(260), eq. 2.2 as a ratio; METHOD.md
//! §3), which the arbiter knows exactly: w = period / (p_arm · p_survive). Unlike RDX's proportional attribution (§IV.A)
//! it assumes nothing about contexts; its price is variance where survival is unlikely.
//!
//! Intervals are 95 %: percentile bootstrap over the observations with a fixed seed, widened to Wilson's interval at
//! Kish's effective sample size, because resampling cannot show what a small sample has missed (three out of three would
//! give 100 % ± 0).
//!
//! Sources of error: observations are treated as independent, but neighbours in time are alike, so intervals are too
//! narrow for programs with few long phases; locations whose reuse depends on our stops; refused watches count as
//! missing at random; a share says nothing about uses that could not be watched.

/// An estimate with its 95 % interval and the number of observations behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// Best guess.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Observations behind it.
    pub n: u64,
}

/// Bootstrap replicates; the 2.5 % quantile of 400 rests on ten of them at each end.
const REPLICATES: usize = 400;
const SEED: u64 = 0x10CA_1177;
/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_964;
/// Below this, min and max are all that can be said about a quantile: six values bracket the median with 97 %.
const FEWEST_FOR_QUANTILES: usize = 6;

/// Horvitz–Thompson weight. `None` for probabilities that no policy can give (a damaged file), so that one bad row cannot
/// outweigh the rest.
pub fn horvitz_thompson(period_ns: u64, p_arm: f64, p_survive: f64) -> Option<f64> {
    let possible = |p: f64| p > 0.0 && p <= 1.0;
    let weight = period_ns as f64 / (p_arm * p_survive);
    (possible(p_arm) && possible(p_survive) && weight.is_finite() && weight > 0.0).then_some(weight)
}

/// Share of each group in the total weight. `members[i]` = (group, weight) of observation i; groups are `0..groups`.
pub fn shares(members: &[(usize, f64)], groups: usize) -> Vec<Estimate> {
    let ones = vec![1.0; members.len()];
    let values = group_shares(members, &ones, groups);
    let mut counts = vec![0_u64; groups];
    for &(group, _) in members {
        counts[group] += 1;
    }
    let mut replicates = vec![Vec::with_capacity(REPLICATES); groups];
    resample(members.len(), |multiplicity| {
        for (column, share) in replicates.iter_mut().zip(group_shares(members, multiplicity, groups)) {
            column.push(share as f32);
        }
    });
    let effective = effective_size(members.iter().map(|&(_, weight)| weight));
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

/// Share of the observations for which the flag holds. Its n is that of all of them.
pub fn share_of(members: impl Iterator<Item = (bool, f64)>) -> Estimate {
    let members: Vec<(usize, f64)> = members.map(|(holds, weight)| (usize::from(holds), weight)).collect();
    let n = members.len() as u64;
    Estimate { n, ..shares(&members, 2)[1] }
}

/// Weighted quantile q of (value, weight) pairs: the smallest value with at least q of the weight at or below it. With
/// fewer than six observations the interval is simply all that was seen, and covers less than 95 %.
pub fn quantile(observations: &[(f64, f64)], q: f64) -> Estimate {
    let mut sorted = observations.to_vec();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let ones = vec![1.0; sorted.len()];
    let value = sorted_quantile(&sorted, &ones, q);
    let n = sorted.len() as u64;
    if sorted.len() < FEWEST_FOR_QUANTILES {
        let end = |entry: Option<&(f64, f64)>| entry.map_or(value, |entry| entry.0);
        return Estimate { value, low: end(sorted.first()), high: end(sorted.last()), n };
    }
    let mut replicates = Vec::with_capacity(REPLICATES);
    resample(sorted.len(), |multiplicity| replicates.push(sorted_quantile(&sorted, multiplicity, q) as f32));
    replicates.sort_unstable_by(f32::total_cmp);
    let low = f64::from(percentile(&replicates, 0.025)).min(value);
    let high = f64::from(percentile(&replicates, 0.975)).max(value);
    Estimate { value, low, high, n }
}

fn group_shares(members: &[(usize, f64)], multiplicity: &[f64], groups: usize) -> Vec<f64> {
    let mut sums = vec![0.0; groups];
    for (&(group, weight), times) in members.iter().zip(multiplicity) {
        sums[group] += weight * times;
    }
    let total: f64 = sums.iter().sum();
    if total > 0.0 {
        sums.iter_mut().for_each(|sum| *sum /= total);
    }
    sums
}

fn sorted_quantile(sorted: &[(f64, f64)], multiplicity: &[f64], q: f64) -> f64 {
    let total: f64 = sorted.iter().zip(multiplicity).map(|((_, weight), times)| weight * times).sum();
    let mut below = 0.0;
    for ((value, weight), times) in sorted.iter().zip(multiplicity) {
        below += weight * times;
        if below >= q * total && *times > 0.0 {
            return *value;
        }
    }
    // Rounding may leave the last sum a hair short of the total.
    sorted.last().map_or(0.0, |entry| entry.0)
}

/// Calls back with how often each of n observations was drawn, n draws with replacement, once per replicate.
fn resample(n: usize, mut replicate: impl FnMut(&[f64])) {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut multiplicity = vec![0.0; n];
    for _ in 0..if n == 0 { 0 } else { REPLICATES } {
        multiplicity.fill(0.0);
        for _ in 0..n {
            multiplicity[random.usize(..n)] += 1.0;
        }
        replicate(&multiplicity);
    }
}

fn percentile(sorted: &[f32], q: f64) -> f32 {
    let at = (sorted.len() as f64 * q) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// Kish's effective sample size (Σw)² / Σw².
fn effective_size(weights: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
    if squares > 0.0 { sum * sum / squares } else { 0.0 }
}

/// Wilson's score interval of a proportion (Wilson 1927, JASA 22(158)).
pub(crate) fn wilson(p: f64, n: f64) -> (f64, f64) {
    if n <= 0.0 {
        return (0.0, 1.0);
    }
    let z2 = Z * Z / n;
    let centre = (p + z2 / 2.0) / (1.0 + z2);
    let half = Z / (1.0 + z2) * (p * (1.0 - p) / n + z2 / (4.0 * n)).sqrt();
    // p itself belongs to the interval; rounding may push an end past it at 0 and 1.
    ((centre - half).clamp(0.0, p), (centre + half).clamp(p, 1.0))
}

#[cfg(test)]
mod tests;
