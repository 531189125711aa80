//! StatStack and AET: every reuse of time distance r gets the mean number of distinct granules in a
//! window of r.
//!
//! Source of error: no spread around the mean; one mean for the whole input (see the package's page).

use super::distances::Distances;
use super::scale::Sums;
use super::survival::Survival;

/// Parts of a wide bar, converted apart, because the mean bends within the bar.
pub(super) const PARTS: u64 = 8;

/// Stack distances by StatStack (Eklov & Hagersten 2010, ISPASS, §III: expected stack distance
/// ES(r) = Σ of the share of accesses in the window that are not reused within it).
/// `touches_per_access` is τ.
pub fn stack_distances(time: &Distances, touches_per_access: f64) -> Distances {
    let mut sums = Sums::default();
    if let Some(survival) = Survival::of(time, touches_per_access) {
        for part in parts(time) {
            let low = survival.stack_distance(part.low);
            let high = survival.stack_distance(part.last);
            sums.spread(low, high, part.weight);
        }
    }
    sums.finish(time.cold())
}

/// Miss ratio of an LRU cache of `granules` by AET (Hu et al. 2016, USENIX ATC, eq. 1–3): a granule
/// stays for AET(c), where Σ P(T > j) over j < AET(c) is c, and mr(c) = P(T > AET(c)). The same as
/// [`stack_distances`] to within two granules (rounding, and the granule itself); here for use
/// without the histogram. NaN without touches.
pub fn miss_ratio(survival: &Survival, granules: f64) -> f64 {
    // 0-based stack distance c means that c + 1 distinct granules, itself included, lie in the window.
    let eviction = survival.fill_time(granules + 1.0);
    if eviction.is_infinite() { survival.beyond(1e300) } else { survival.beyond((eviction - 1.0).ceil()) }
}

/// A part of a bar: time distances from `low` to `last`, both included.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub low: f64,
    pub last: f64,
    pub weight: f64,
}

/// Bars cut into parts short enough to be converted by their ends.
pub(super) fn parts(time: &Distances) -> impl Iterator<Item = Part> + '_ {
    time.bars().iter().flat_map(|bar| {
        let width = bar.high - bar.low;
        // Fine bars (a 64th of their distance) need no cutting.
        let n = if width <= bar.low / 16 { 1 } else { width.min(PARTS) };
        (0..n).map(move |i| {
            let edge = |i: u64| bar.low + (u128::from(width) * u128::from(i) / u128::from(n)) as u64;
            let (low, high) = (edge(i), edge(i + 1));
            let weight = bar.weight * (high - low) as f64 / width as f64;
            Part { low: low as f64, last: (high - 1) as f64, weight }
        })
    })
}
