//! Optional counts beside the engine: misses of set-associative caches (`--sets`), and under
//! optimal replacement (`--optimal`), both after Mattson et al., IBM Systems Journal 9, 1970.
//!
//! Of one granule size, and of each thread (or of the process, in a run in one order); results of
//! several threads are added. Under optimal replacement caches of 1, 2, 4 … granules are reported.

use std::sync::atomic::Ordering::Relaxed;

pub use locality_plugin::extra::take;
use locality_plugin::{
    extra::touches,
    region::{self, Region},
};
use locality_report::schema::reuse::{Optimal, Point, Reuse, SetAssociative, SetPoint};
use locality_reuse::{OptMisses, SetStacks, SetSummary};

use super::report::ratio;

/// Results.
#[derive(Debug, Default)]
pub struct Extra {
    sets: Option<SetSummary>,
    /// With the size of a granule.
    optimal: Option<(u64, OptMisses)>,
    /// Touches unknown to optimal replacement.
    lost: u64,
    /// Events counted in part.
    pub torn: u64,
}

impl Extra {
    /// Adds the counts of a thread or a process.
    pub fn add(&mut self, region: &Region, extra: &region::Extra) {
        let mut other = Self { lost: extra.lost.load(Relaxed), ..Self::default() };
        if extra.busy.load(Relaxed) != 0 {
            other.torn = region::BUFFER_EVENTS as u64;
        }
        other.sets = SetStacks::open(region, extra.sets.load(Relaxed)).and_then(|sets| sets.summary());
        if extra.touches.load(Relaxed) != 0 {
            // SAFETY: the process is gone, hence the range has no writer.
            let mut optimal = OptMisses::of(unsafe { touches(region, extra) });
            let repeats = extra.repeats.load(Relaxed);
            optimal.touches += repeats;
            optimal.hit(0, repeats);
            let bits = region.header().extra_granule.load(Relaxed).min(63);
            other.optimal = Some((1 << bits, optimal));
        }
        self.merge(&other);
    }

    /// Adds the counts of another thread or process.
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

    /// Puts the results into the report of a granularity, if counted at the granularity.
    pub fn describe(&self, bytes: u64, report: &mut Reuse) {
        let sets = self.sets.as_ref().filter(|sets| sets.bytes == bytes);
        report.set_associative = sets.map(|sets| {
            let point = |ways: usize| {
                let misses = sets.misses(ways)?;
                Some(SetPoint {
                    bytes: sets.sets * ways as u64 * bytes,
                    misses,
                    ratio: ratio(misses, sets.touches).into(),
                    ways: ways as u64,
                })
            };
            let miss_ratios = (1..=sets.distances.len()).filter_map(point).collect();
            SetAssociative { miss_ratios, sets: sets.sets, touches: sets.touches }
        });
        let optimal = self.optimal.as_ref().filter(|(granule, _)| *granule == bytes);
        report.optimal_replacement = optimal.map(|(_, optimal)| {
            let point = |level: usize| {
                let misses = optimal.misses(level);
                Point {
                    bytes: (bytes << level).into(),
                    misses: Some(misses),
                    ratio: ratio(misses, optimal.touches).into(),
                    ..Point::default()
                }
            };
            Optimal {
                // The last cache with hits misses only first touches.
                miss_ratio_curve: (0..optimal.hits.len().max(1)).map(point).collect(),
                touches: optimal.touches,
                touches_not_kept: self.lost,
            }
        });
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
        let mut report = Reuse::default();
        sum.describe(8, &mut report);
        assert_eq!(report, Reuse::default());
        sum.describe(64, &mut report);
        assert_eq!(report.set_associative, None);
        let optimal = report.optimal_replacement.unwrap();
        // One granule: each of the first four touches misses, then 5 once. Two granules: the three
        // first touches.
        let misses: Vec<_> = optimal.miss_ratio_curve.iter().map(|point| point.misses).take(2).collect();
        assert_eq!((misses, optimal.touches), (vec![Some(5), Some(3)], 6));
    }
}
