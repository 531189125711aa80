//! Shen et al.: stack distances spread binomially around the mean.
//!
//! Source: RDX's appendix, eq. 3–4, after Shen et al. 2007 (POPL, "Locality approximation using
//! time"). In a window of Δ accesses each of the N − 1 other granules occurs with the same chance
//! p(Δ), independently, so their number is binomial; p(Δ) is the window's mean number of other
//! granules over N − 1, the mean that the other methods use (RDX refers to Shen for P_interval).
//! Unlike Shen, cold mass stays in P.
//!
//! Source of error: granules are neither alike nor independent; the spread is too wide for loops.

use super::distances::Distances;
use super::mean::{Part, parts};
use super::scale::Sums;
use super::survival::Survival;

/// From this variance on, the normal distribution replaces the
/// binomial distribution, with steps finer than the scale.
const NORMAL_FROM: f64 = 1e4;
/// Share of the largest term, below which terms are left out.
const NEGLIGIBLE: f64 = 1e-12;

/// Stack distances of a program with `granules` distinct granules (N; at least 1). `touches_per_access` is τ.
pub fn stack_distances(time: &Distances, touches_per_access: f64, granules: f64) -> Distances {
    let mut sums = Sums::default();
    if let Some(survival) = Survival::of(time, touches_per_access) {
        let others = (granules - 1.0).max(0.0);
        for Part { low, last, weight } in parts(time) {
            let mean = (survival.stack_distance(low) + survival.stack_distance(last)) / 2.0;
            binomial(&mut sums, others, mean.min(others), weight);
        }
    }
    sums.finish(time.cold())
}

/// Adds weight as a binomial distribution of `n` trials with the mean `mean`.
fn binomial(sums: &mut Sums, n: f64, mean: f64, weight: f64) {
    let p = if n > 0.0 { mean / n } else { 0.0 };
    if p <= 0.0 || p >= 1.0 {
        return sums.spread(mean, mean, weight);
    }
    let variance = mean * (1.0 - p);
    if variance >= NORMAL_FROM {
        return normal(sums, mean, variance.sqrt(), weight);
    }
    // From the most likely value both ways by the ratio of neighbours, then normalised: no factorials.
    let odds = p / (1.0 - p);
    let mode = ((n + 1.0) * p).floor().min(n.floor());
    let mut terms = vec![(mode, 1.0_f64)];
    let (mut k, mut term) = (mode, 1.0);
    while k + 1.0 <= n && term > NEGLIGIBLE {
        term *= (n - k) / (k + 1.0) * odds;
        k += 1.0;
        terms.push((k, term));
    }
    (k, term) = (mode, 1.0);
    while k >= 1.0 && term > NEGLIGIBLE {
        term *= k / (n - k + 1.0) / odds;
        k -= 1.0;
        terms.push((k, term));
    }
    let total: f64 = terms.iter().map(|term| term.1).sum();
    for (k, term) in terms {
        sums.add(k as u64, weight * term / total);
    }
}

/// Adds weight as a normal distribution, in slices of
/// a quarter of the deviation up to five deviations.
fn normal(sums: &mut Sums, mean: f64, deviation: f64, weight: f64) {
    let middles = || (-20..20).map(|i| (f64::from(i) + 0.5) / 4.0);
    let density = |z: f64| (-z * z / 2.0).exp();
    let total: f64 = middles().map(density).sum();
    for z in middles() {
        let low = mean + (z - 0.125) * deviation;
        sums.spread(low, low + 0.25 * deviation - 1.0, weight * density(z) / total);
    }
}
