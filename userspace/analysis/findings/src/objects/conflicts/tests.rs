//! Conflicts against the definition, counted use by use.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::objects::shares::tests::{profile, random_use};

/// The definition, word for word.
fn by_definition(uses: &[DataUse], level: usize) -> BTreeMap<(usize, usize), f64> {
    let mut found = BTreeMap::new();
    let total: f64 = uses.iter().map(|one| one.misses[level]).sum();
    for one in uses.iter().filter(|one| one.row.is_some()) {
        let mut own: Vec<&DataUse> = uses.iter().filter(|other| other.pid == one.pid).collect();
        own.sort_by_key(|other| (other.time_ns, other.position));
        let end = one.reused_ns.unwrap_or(one.time_ns).max(one.time_ns);
        let mut between: Vec<&DataUse> =
            own.iter().filter(|other| (one.time_ns..=end).contains(&other.time_ns)).copied().collect();
        let mut before: Vec<&DataUse> =
            own.iter().filter(|other| other.time_ns < one.time_ns).copied().collect();
        let mut after: Vec<&DataUse> =
            own.iter().filter(|other| other.time_ns > end).rev().copied().collect();
        while between.len() < NEAREST.min(own.len()) {
            let near = match (before.last(), after.last()) {
                (Some(b), Some(a)) => one.time_ns - b.time_ns < a.time_ns - end,
                (b, _) => b.is_some(),
            };
            between.extend(if near { before.pop() } else { after.pop() });
        }
        let all: f64 = between.iter().map(|other| other.misses[0]).sum();
        for other in between.iter().filter(|other| other.row.is_some() && other.misses[0] > 0.0) {
            let share = one.misses[level] * other.misses[0] / all / total;
            *found.entry((one.row.unwrap(), other.row.unwrap())).or_default() += share;
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn conflicts_are_those_of_the_definition(seed: u64, n in 1..500_u32) {
        let mut random = fastrand::Rng::with_seed(seed);
        let uses: Vec<DataUse> = (0..n).map(|position| random_use(&mut random, position, position / 3)).collect();
        let profile = profile(4);
        let rows = Rows::of(&profile, &locality_estimate::calling_context::Contexts::new(&profile));
        for level in 0..2 {
            let truth = by_definition(&uses, level);
            let found = find(&uses, &rows, level);
            prop_assert_eq!(found.len(), truth.values().filter(|share| **share >= SMALL).count());
            for pair in &found {
                let truth = truth[&(pair.victim.0 as usize, pair.by.0 as usize)];
                prop_assert!((pair.share - truth).abs() < 1e-9, "{} {}", pair.share, truth);
            }
        }
    }
}

/// A stream that is larger than the cache displaces itself and a table; the table displaces nothing.
#[test]
fn a_stream_displaces_itself_and_the_table() {
    let mut random = fastrand::Rng::with_seed(1);
    let uses: Vec<DataUse> = (0..400)
        .map(|position| {
            let mut one = random_use(&mut random, position, position / 4);
            let stream = position % 2 == 0;
            (one.pid, one.row, one.reused_ns) = (1, Some(usize::from(stream)), None);
            // The table's lines are always still in the first level, but not longer than the stream
            // lets them in the second one.
            (one.misses[0], one.misses[1]) = if stream { (1.0, 1.0) } else { (0.0, 0.25) };
            one
        })
        .collect();
    let profile = profile(2);
    let rows = Rows::of(&profile, &locality_estimate::calling_context::Contexts::new(&profile));
    let found = find(&uses, &rows, 1);
    let pairs: Vec<(u32, u32)> = found.iter().map(|pair| (pair.victim.0, pair.by.0)).collect();
    assert_eq!(pairs, [(1, 1), (0, 1)]);
    assert!((found[0].share - 0.8).abs() < 1e-9 && (found[1].share - 0.2).abs() < 1e-9);
}
