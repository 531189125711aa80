//! Uses without a reuse: shares by hand, and unbiasedness under the arbiter.

use locality_arbiter::{Arbiter, Policy, WatchKey};
use locality_model::testing::Maker;
use locality_model::{Outcome, Profile};

use super::*;
use crate::observation::Observations;

fn analyse(profile: &Profile) -> (Contexts, Unseen) {
    let contexts = Contexts::new(profile);
    let watched = Observations::of(profile, &contexts).watched;
    let mut forward = UnseenUses::new(&contexts);
    let mut backward = UnseenUses::new(&contexts);
    watched.iter().for_each(|watch| forward.observe(watch.clone()));
    for watch in watched.into_iter().rev() {
        let mut one = UnseenUses::new(&contexts);
        one.observe(watch);
        backward.merge(one);
    }
    let found = forward.finish();
    assert_eq!(backward.finish(), found);
    (contexts, found)
}

#[test]
fn shares_by_line() {
    let mut make = Maker::new();
    for _ in 0..6 {
        make.reuse("warm a.c:1", "warm a.c:2", 5);
    }
    make.watch("warm a.c:1", Outcome::Gone).p_survive = 0.5;
    make.watch("cold a.c:3", Outcome::StillArmed).p_survive = 0.25;
    for _ in 0..3 {
        make.watch("cold a.c:3", Outcome::Replaced);
    }
    let (_, found) = analyse(&make.profile);
    // Weights: 6 reused, 2 and 4 not.
    assert_eq!((found.overall.value, found.overall.n), (0.5, 8));
    let lines: Vec<_> = found
        .lines
        .iter()
        .map(|line| (line.weight.value, line.not_reused.value, line.watched, line.withdrawn))
        .collect();
    assert_eq!(lines, [(4.0 / 12.0, 1.0, 4, 3), (2.0 / 12.0, 0.25, 7, 0)]);
}

/// 20 samples, every fourth of a location that is never touched again, the others after five more
/// samples. Whatever the policy withdraws, the weighted sums of both fates must average to the true
/// 5 and 15.
#[test]
fn withdrawn_watches_do_not_bias_the_share() {
    const RUNS: u64 = 20_000;
    let mut sums = [0.0, 0.0];
    for seed in 0..RUNS {
        let mut arbiter = Arbiter::new(Policy::QuickReservoir, 3, seed);
        for now in 0..25_u64 {
            if let Some(past) = now.checked_sub(5).filter(|past| past % 4 != 0)
                && let Some(p) = arbiter.ended(WatchKey(past))
            {
                sums[0] += 1.0 / p;
            }
            if now < 20 {
                arbiter.offer(WatchKey(now));
            }
        }
        sums[1] += arbiter.drain().iter().map(|ended| 1.0 / ended.p_survive).sum::<f64>();
    }
    let [reused, not_reused] = sums.map(|sum| sum / RUNS as f64);
    assert!((reused - 15.0).abs() < 0.15, "{reused}");
    assert!((not_reused - 5.0).abs() < 0.15, "{not_reused}");
}
