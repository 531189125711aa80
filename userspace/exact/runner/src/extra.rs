//! What is counted beside the engine when asked for: misses of set-associative caches (`--sets`),
//! and under optimal replacement (`--optimal`), both after Mattson et al., IBM Systems Journal 9, 1970.
//!
//! Of one granule size, and of each thread (or of the process, in a run in one order); results of
//! several are added. Under optimal replacement caches of 1, 2, 4 … granules are told.

use std::sync::atomic::Ordering::Relaxed;

pub use locality_plugin::extra::take;
use locality_plugin::{
    extra::touches,
    region::{self, Region},
};
use locality_reuse::{OptMisses, SetStacks, SetSummary};
use serde_json::{Value, json};

use super::report::ratio;

/// Results.
#[derive(Debug, Default)]
pub struct Extra {
    sets: Option<SetSummary>,
    /// With the size of a granule.
    optimal: Option<(u64, OptMisses)>,
    /// Touches that optimal replacement does not know of.
    lost: u64,
    /// Events counted in part.
    pub torn: u64,
}

impl Extra {
    /// Adds what a thread or a process has counted.
    pub fn add(&mut self, region: &Region, extra: &region::Extra) {
        let mut other = Self { lost: extra.lost.load(Relaxed), ..Self::default() };
        if extra.busy.load(Relaxed) != 0 {
            other.torn = region::BUFFER_EVENTS as u64;
        }
        other.sets = SetStacks::open(region, extra.sets.load(Relaxed)).and_then(|sets| sets.summary());
        if extra.touches.load(Relaxed) != 0 {
            // SAFETY: the process is gone, so nobody writes them.
            let mut optimal = OptMisses::of(unsafe { touches(region, extra) });
            let repeats = extra.repeats.load(Relaxed);
            optimal.touches += repeats;
            optimal.hit(0, repeats);
            let bits = region.header().extra_granule.load(Relaxed).min(63);
            other.optimal = Some((1 << bits, optimal));
        }
        self.merge(&other);
    }

    /// Adds those of another thread or process.
    pub fn merge(&mut self, other: &Self) {
        self.lost += other.lost;
        self.torn += other.torn;
        match (&mut self.sets, &other.sets) {
            (Some(ours), Some(theirs)) => {
                ours.touches += theirs.touches;
                add(&mut ours.distances, &theirs.distances);
            }
            (ours @ None, Some(theirs)) => *ours = Some(theirs.clone()),
            (_, None) => {}
        }
        match (&mut self.optimal, &other.optimal) {
            (Some((_, ours)), Some((_, theirs))) => {
                ours.touches += theirs.touches;
                ours.cold += theirs.cold;
                add(&mut ours.hits, &theirs.hits);
            }
            (ours @ None, Some(theirs)) => *ours = Some(theirs.clone()),
            (_, None) => {}
        }
    }

    /// Puts the results into the report of a granularity, if they are about it.
    pub fn describe(&self, bytes: u64, report: &mut Value) {
        if let Some(sets) = self.sets.as_ref().filter(|sets| sets.bytes == bytes) {
            let point = |ways: usize| {
                let misses = sets.misses(ways)?;
                Some(json!({
                    "ways": ways,
                    "bytes": sets.sets * ways as u64 * bytes,
                    "misses": misses,
                    "ratio": ratio(misses, sets.touches),
                }))
            };
            let points: Vec<Value> = (1..=sets.distances.len()).filter_map(point).collect();
            report["set_associative"] =
                json!({ "sets": sets.sets, "touches": sets.touches, "miss_ratios": points });
        }
        if let Some((_, optimal)) = self.optimal.as_ref().filter(|(granule, _)| *granule == bytes) {
            let point = |level: usize| {
                let misses = optimal.misses(level);
                json!({ "bytes": bytes << level, "misses": misses, "ratio": ratio(misses, optimal.touches) })
            };
            // The last that has hits misses only first touches.
            let points: Vec<Value> = (0..optimal.hits.len().max(1)).map(point).collect();
            report["optimal_replacement"] = json!({
                "touches": optimal.touches,
                "touches_not_kept": self.lost,
                "miss_ratio_curve": points,
            });
        }
    }
}

fn add(ours: &mut Vec<u64>, theirs: &[u64]) {
    if ours.len() < theirs.len() {
        ours.resize(theirs.len(), 0);
    }
    ours.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(granules: &[u64]) -> Extra {
        Extra { optimal: Some((64, OptMisses::of(granules))), ..Extra::default() }
    }

    #[test]
    fn results_add_up_and_are_told_of_their_granularity_only() {
        let mut sum = of(&[1, 2, 1, 2]);
        sum.merge(&of(&[5, 5]));
        let mut report = json!({});
        sum.describe(8, &mut report);
        assert_eq!(report, json!({}));
        sum.describe(64, &mut report);
        let curve = &report["optimal_replacement"]["miss_ratio_curve"];
        // One granule: each of the first four touches misses, then 5 once. Two granules: the three
        // first touches.
        assert_eq!((curve[0]["misses"].as_u64(), curve[1]["misses"].as_u64()), (Some(5), Some(3)));
        assert_eq!(report["optimal_replacement"]["touches"], 6);
        assert!(report["set_associative"].is_null());
    }
}
