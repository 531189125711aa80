//! Pairs against a brute-force count, and independence of merge order.

use std::collections::BTreeMap;

use locality_model::Profile;
use locality_model::testing::{Maker, US, demo};
use proptest::prelude::*;

use super::*;
use crate::cpu_time_histogram::FAR_NS;
use crate::observation::Observations;

fn pairs_of(profile: &Profile) -> (Contexts, Vec<Pair>) {
    let contexts = Contexts::new(profile);
    let observations = Observations::of(profile, &contexts);
    let mut analysis = Pairs::new(&contexts, profile.run.distance_resolution_ns, FAR_NS as f64);
    observations.reuses.into_iter().for_each(|reuse| analysis.observe(reuse));
    let pairs = analysis.finish();
    (contexts, pairs)
}

#[test]
fn the_heaviest_pair_is_the_flaw() {
    let profile = demo();
    let (contexts, pairs) = pairs_of(&profile);
    let line = |place| {
        let frame = contexts.place(place).frame.unwrap();
        profile.frames[frame.0 as usize].line.unwrap()
    };
    let ends: Vec<_> =
        pairs.iter().map(|pair| (line(pair.use_place), line(pair.reuse_place), pair.weight.n)).collect();
    assert_eq!(ends, [(31, 44, 30), (12, 12, 40), (70, 80, 6), (9, 15, 4)]);
    // 30 reuses that survived with probability one half weigh 60 of 110.
    assert!((pairs[0].weight.value - 60.0 / 110.0).abs() < 1e-9);
    assert_eq!(pairs.iter().map(|pair| pair.near).collect::<Vec<_>>(), [false, true, false, false]);
    assert_eq!((pairs[2].kernel.value, pairs[3].cross_thread.value), (0.5, 1.0));
    assert_eq!(pairs[0].median_ns.value, 31_400_000.0);
}

#[test]
fn contexts_of_one_line_pair_are_listed_under_it() {
    let mut make = Maker::new();
    // Recursion: the same two lines at three depths.
    for (depth, times) in [(1, 2), (2, 5), (3, 1)] {
        let outer = " < f r.c:3".repeat(depth);
        for _ in 0..times {
            make.reuse(&format!("f r.c:1{outer}"), &format!("f r.c:2{outer}"), 20 * US);
        }
    }
    let (_, pairs) = pairs_of(&make.profile);
    assert_eq!(pairs.len(), 1);
    assert_eq!((pairs[0].weight.value, pairs[0].weight.n), (1.0, 8));
    let counts: Vec<u64> = pairs[0].contexts.iter().map(|context| context.weight.n).collect();
    assert_eq!(counts, [5, 2, 1]);
    let sum: f64 = pairs[0].contexts.iter().map(|context| context.weight.value).sum();
    assert!((sum - 1.0).abs() < 1e-9);
}

/// `s += a[i] * b[j]`: of two arrays one is near and one far; a third one hardly matters, and of
/// some accesses nothing is known.
#[test]
fn a_line_has_a_pair_for_each_object_that_matters() {
    let mut make = Maker::new();
    for number in 0..40 {
        let distance = if number % 2 == 0 { 5 * US } else { 40_000 * US };
        make.reuse("mm mm.c:5 < main mm.c:9", "mm mm.c:5 < main mm.c:9", distance);
    }
    let contexts = Contexts::new(&make.profile);
    let observations = Observations::of(&make.profile, &contexts);
    let found = |object: &dyn Fn(usize) -> Option<u32>| {
        let mut analysis = Pairs::new(&contexts, make.profile.run.distance_resolution_ns, FAR_NS as f64);
        for (number, reuse) in observations.reuses.iter().enumerate() {
            analysis.observe(Reuse { object: object(number).map(ObjectId), ..reuse.clone() });
        }
        analysis.finish()
    };
    let pairs = found(&|number| match number {
        0..4 => None,
        4 | 5 => Some(9),
        _ => Some(number as u32 % 2),
    });
    let told = |pair: &Pair| (pair.object.map(|(id, _)| id.0), pair.weight.n, pair.near);
    let mut all: Vec<_> = pairs.iter().map(told).collect();
    all.sort_unstable();
    assert_eq!(all, [(None, 6, false), (Some(0), 17, true), (Some(1), 17, false)]);
    assert!(
        pairs.iter().all(|pair| pair.contexts.iter().map(|of| of.weight.n).sum::<u64>() == pair.weight.n)
    );
    // One alone has all of the pair, whatever is not known.
    assert_eq!(found(&|number| (number % 2 == 0).then_some(3)).len(), 1);
}

/// The median hides four tenths of the reuses.
#[test]
fn a_pair_with_far_reuses_is_not_near() {
    let mut make = Maker::new();
    for number in 0..10 {
        let distance = if number < 6 { 5 * US } else { 40_000 * US };
        make.reuse("walk a.c:5", "walk a.c:5", distance);
        make.reuse("walk a.c:7", "walk a.c:7", 5 * US);
    }
    let (_, pairs) = pairs_of(&make.profile);
    let mixed = pairs.iter().find(|pair| pair.far).unwrap();
    assert_eq!((mixed.near_median, mixed.near, mixed.far_weight.n), (true, false, 4));
    assert!((mixed.far_weight.value - 0.2).abs() < 1e-9, "{:?}", mixed.far_weight);
    assert_eq!(mixed.far_median.map(|median| median.value), Some(40_000_000.0));
    let of_contexts: f64 = mixed.contexts.iter().map(|context| context.far_weight).sum();
    assert!((of_contexts - mixed.far_weight.value).abs() < 1e-9);
    let near = pairs.iter().find(|pair| !pair.far).unwrap();
    assert_eq!((near.near, near.far_weight.n, near.far_median), (true, 0, None));
}

/// A random profile over five lines: (use line, reuse line, distance in µs, survival in eighths).
type Row = (u32, u32, u64, u32);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    proptest::collection::vec((0..5_u32, 0..5_u32, 0..2_000_u64, 1..=8_u32), 1..60)
}

fn made(rows: &[Row]) -> Profile {
    let mut make = Maker::new();
    for &(used, reused, distance_us, eighths) in rows {
        let (used, reused) = (format!("f a.c:{}", used + 1), format!("g a.c:{}", reused + 1));
        make.reuse(&used, &reused, distance_us * US).p_survive = f64::from(eighths) / 8.0;
    }
    make.profile
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn weights_are_those_of_a_plain_count(rows in rows()) {
        let mut expected: BTreeMap<(u32, u32), (f64, u64)> = BTreeMap::new();
        let mut total = 0.0;
        for &(used, reused, _, eighths) in &rows {
            let entry = expected.entry((used + 1, reused + 1)).or_default();
            let weight = 8.0 / f64::from(eighths);
            *entry = (entry.0 + weight, entry.1 + 1);
            total += weight;
        }
        let profile = made(&rows);
        let (contexts, pairs) = pairs_of(&profile);
        prop_assert_eq!(pairs.len(), expected.len());
        prop_assert!(pairs.is_sorted_by(|a, b| a.weight.value >= b.weight.value));
        for pair in &pairs {
            let line = |place| profile.frames[contexts.place(place).frame.unwrap().0 as usize].line.unwrap();
            let (weight, n) = expected[&(line(pair.use_place), line(pair.reuse_place))];
            prop_assert!((pair.weight.value - weight / total).abs() < 1e-9);
            prop_assert_eq!(pair.weight.n, n);
        }
    }

    /// Invariant 4 of ARCHITECTURE.md, to the last bit.
    #[test]
    fn merge_order_does_not_matter(rows in rows(), shards in 1..5_usize, seed: u64) {
        let profile = made(&rows);
        let (contexts, whole) = pairs_of(&profile);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut parts = vec![Pairs::new(&contexts, profile.run.distance_resolution_ns, FAR_NS as f64); shards];
        let mut reuses = Observations::of(&profile, &contexts).reuses;
        random.shuffle(&mut reuses);
        for reuse in reuses {
            parts[random.usize(..shards)].observe(reuse);
        }
        let mut merged = parts.swap_remove(random.usize(..shards));
        parts.into_iter().for_each(|part| merged.merge(part));
        prop_assert_eq!(merged.finish(), whole);
    }
}
