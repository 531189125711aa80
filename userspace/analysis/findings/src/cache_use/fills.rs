//! After how many accesses a cache is full, by stretch of
//! the run: in the trace, and in draws of the samples.
//!
//! If a program's data just fit into a cache, a few percent more or less of data
//! between use and reuse decide between one load and a load in each round. Draws
//! tell how far chance goes. Effects outside the model (sets, levels filtering
//! accesses of further levels, the conversion of distances) are a factor on the
//! cache's size, redrawn for each draw and constant over the run ([`MODEL`]).
//!
//! Sources of error: for speed, draws have the fill times of few stretches, and each stretch
//! changes like the chosen stretch around the changed stretch's middle. Errors of rates affect fill
//! times and the compared distances alike, hence are left out; counted distances break the rule.

use locality_estimate::estimator::{BootstrapReplicate, Estimator, Study, WeightedHistogram};
use locality_estimate::reuse::Case;
use locality_estimate::run_segments::Stretches;
use locality_mrc::scale;

use super::line_lifetimes::LINE;

/// Standard deviation of the logarithm of a cache's effective size:
/// of the first cache, filled by windows, and of larger caches.
const MODEL: [f64; 2] = [0.05, 0.2];

/// Fill times of caches.
pub(super) struct Fills<'a> {
    few: &'a Stretches,
    study: Study<'a>,
    estimator: Estimator,
    caches: Vec<Cache>,
    /// Index among the few stretches, for each stretch.
    within: Vec<usize>,
}

/// Fill times of a cache by stretch; `u64::MAX` if never full.
struct Cache {
    lines: f64,
    seen: Vec<u64>,
    /// For few stretches.
    of_few: Vec<u64>,
    /// As [`MODEL`].
    model: f64,
}

impl<'a> Fills<'a> {
    /// Of caches by size in `bytes`, smallest first, with
    /// the weights of the case's stretches by distance.
    pub fn of(
        case: &'a Case<'_>,
        estimator: Estimator,
        masses: &[WeightedHistogram],
        bytes: impl Iterator<Item = u64>,
    ) -> Self {
        let (few, study) = case.few_stretches();
        let all = case.stretches();
        let mut parts = vec![Vec::new(); all.all.len()];
        for (fine, coarse) in all.of_sample.iter().zip(&few.of_sample) {
            if let Some(part) = parts.get_mut(*fine) {
                part.push(*coarse);
            }
        }
        let of_middle = |part: Vec<usize>| part.get(part.len() / 2).copied().unwrap_or_default();
        let within = parts.into_iter().map(of_middle).collect();
        let of_few = study.estimate(estimator, BootstrapReplicate::SEEN);
        let cache = |(index, bytes): (usize, u64)| {
            let lines = bytes as f64 / LINE;
            let (seen, of_few) = (fills(all, masses, lines), fills(few, &of_few, lines));
            Cache { lines, seen, of_few, model: MODEL[usize::from(index > 0)] }
        };
        let caches = bytes.enumerate().map(cache).collect();
        Self { few, study, estimator, caches, within }
    }

    /// As in the trace.
    pub fn seen(&self, cache: usize) -> &[u64] {
        self.caches.get(cache).map_or(&[], |cache| &cache.seen)
    }

    /// By cache, with each sample counted `weights` times, and with
    /// the model's error `deviations` standard deviations large.
    pub fn drawn(&self, weights: &[f64], deviations: f64) -> Vec<Vec<u64>> {
        let masses =
            self.study.estimate(self.estimator, BootstrapReplicate { weights, ..BootstrapReplicate::SEEN });
        let of_cache = |cache: &Cache| {
            let now = fills(self.few, &masses, cache.lines * (cache.model * deviations).exp());
            let of_stretch = |(seen, within): (&u64, &usize)| {
                let few = |of: &[u64]| of.get(*within).copied().unwrap_or(u64::MAX);
                varied(*seen, few(&cache.of_few), few(&now))
            };
            cache.seen.iter().zip(&self.within).map(of_stretch).collect()
        };
        self.caches.iter().map(of_cache).collect()
    }
}

/// A fill time, as a wider stretch's changes from `before` to `now`.
fn varied(seen: u64, before: u64, now: u64) -> u64 {
    match (before, now) {
        (u64::MAX, now) => seen.min(now),
        (_, u64::MAX) => u64::MAX,
        (before, now) if seen < u64::MAX => (seen as f64 * now as f64 / before.max(1) as f64) as u64,
        _ => seen,
    }
}

fn fills(stretches: &Stretches, masses: &[WeightedHistogram], lines: f64) -> Vec<u64> {
    stretches.fill_times(masses, lines).into_iter().map(middle).collect()
}

/// The distance in the middle of equally likely bins; the largest without bins.
fn middle(mut bins: Vec<usize>) -> u64 {
    bins.sort_unstable();
    bins.get(bins.len() / 2).map_or(u64::MAX, |bin| scale::low(*bin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_time_changes_as_that_of_the_stretches_around_it() {
        assert_eq!(varied(1_000, 2_000, 3_000), 1_500);
        assert_eq!(varied(1_000, 2_000, u64::MAX), u64::MAX);
        // What is never full stays so unless the draw fills it, and what fills before that does so
        // in the draw.
        assert_eq!(varied(u64::MAX, 2_000, 3_000), u64::MAX);
        assert_eq!(varied(u64::MAX, u64::MAX, 3_000), 3_000);
        assert_eq!(varied(1_000, u64::MAX, u64::MAX), 1_000);
        assert_eq!(varied(1_000, u64::MAX, 3_000_000), 1_000);
    }
}
