//! Shares against the plain formula, their intervals against repeated sampling, and independence of
//! the order of merges.

use locality_model::{Object, ObjectKind};
use proptest::prelude::*;

use super::*;

pub(in crate::objects) fn profile(objects: u32) -> Profile {
    let object = |id: u32| Object { kind: ObjectKind::Static, name: format!("o{id}"), ..Object::default() };
    Profile { objects: (0..objects).map(object).collect(), ..Profile::default() }
}

pub(in crate::objects) fn random_use(random: &mut fastrand::Rng, position: u32, sample: u32) -> DataUse {
    let mut misses = [0.0; crate::objects::LEVELS];
    misses[0] = random.f64();
    misses[1] = misses[0] * random.f64();
    DataUse {
        position,
        sample,
        pid: random.u32(..2),
        time_ns: u64::from(sample) * 10,
        reused_ns: random.bool().then(|| u64::from(sample) * 10 + random.u64(..100)),
        row: (random.u8(..8) > 0).then(|| random.usize(..4)),
        field: None,
        stack: locality_model::StackId(random.u32(..3)),
        place: PlaceId(random.u32(..3)),
        is_at_place: true,
        kind: KINDS[random.usize(..4)],
        accesses: random.f64(),
        touches: 1.0,
        misses,
        reuse: random.bool().then(|| (PlaceId(random.u32(..3)), KINDS[random.usize(..4)])),
        missed: if random.bool() { misses } else { [0.0; crate::objects::LEVELS] },
        cpu_ns: random.f64(),
    }
}

fn uses(seed: u64, samples: u32) -> Vec<DataUse> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut uses = Vec::new();
    for sample in 0..samples {
        for _ in 0..random.u32(1..6) {
            uses.push(random_use(&mut random, uses.len() as u32, sample));
        }
    }
    uses
}

const CACHES: [(u8, u64); 2] = [(1, 1 << 15), (2, 1 << 20)];

fn found(parts: &[&[DataUse]]) -> Objects {
    let profile = profile(4);
    let contexts = locality_estimate::calling_context::Contexts::new(&profile);
    let rows = Rows::of(&profile, &contexts);
    let mut whole = Shares::new(&profile, &rows, &CACHES, true);
    for part in parts {
        let mut shard = Shares::new(&profile, &rows, &CACHES, true);
        part.iter().for_each(|one| shard.observe(*one));
        whole.merge(shard);
    }
    whole.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shares_are_the_plain_sums(seed: u64, samples in 1..40_u32) {
        let uses = uses(seed, samples);
        let found = found(&[&uses]);
        let total = |of: &dyn Fn(&DataUse) -> f64| uses.iter().map(of).sum::<f64>();
        for row in &found.rows {
            let id = row.object.unwrap().0 as usize;
            let own = |of: fn(&DataUse) -> f64| {
                uses.iter().filter(|one| one.row == Some(id)).map(of).sum::<f64>()
            };
            prop_assert!((row.accesses.unwrap() - own(|one| one.accesses)).abs() < 1e-9);
            let close = |estimate: &Estimate, truth: f64| {
                (estimate.value - truth).abs() < 1e-9 && estimate.low <= truth + 1e-9 && truth <= estimate.high + 1e-9
            };
            prop_assert!(close(&row.access_share, own(|one| one.accesses) / total(&|one| one.accesses)));
            prop_assert!(close(&row.cpu_share, own(|one| one.cpu_ns) / total(&|one| one.cpu_ns)));
            prop_assert!(close(&row.miss_share[1], own(|one| one.misses[1]) / total(&|one| one.misses[1])));
            prop_assert!((row.miss_ratio[0] - own(|one| one.misses[0]) / own(|one| one.touches)).abs() < 1e-9);
            // Misses of the object by where the seen ones come back, else by where the uses are.
            let mine: Vec<&DataUse> = uses.iter().filter(|one| one.row == Some(id)).collect();
            let seen: f64 = mine.iter().filter(|one| one.reuse.is_some()).map(|one| one.missed[0]).sum();
            for line in &row.lines {
                let here = mine.iter().filter(|one| one.place == line.place);
                let (accesses, misses) =
                    here.fold((0.0, 0.0), |(a, m), one| (a + one.accesses, m + one.misses[0]));
                prop_assert!(close(&line.access_share, accesses / total(&|one| one.accesses)));
                let back = mine.iter().filter(|one| one.reuse.is_some_and(|(place, _)| place == line.place));
                let back: f64 = back.map(|one| one.missed[0]).sum();
                let part = if seen > 0.0 { back / seen } else { misses / own(|one| one.misses[0]) };
                let whole = row.miss_share[0].value;
                prop_assert!((line.miss_share[0].value - whole * part).abs() < 1e-9);
            }
            let missed: f64 = row.lines.iter().map(|line| line.miss_share[0].value).sum();
            prop_assert!((missed - row.miss_share[0].value).abs() < 1e-9);
            let lines: f64 = row.lines.iter().map(|line| line.access_share.value).sum();
            prop_assert!((lines - row.access_share.value).abs() < 1e-9);
        }
        for stack in &found.stacks {
            let here = uses.iter().filter(|one| one.stack == stack.stack);
            let (accesses, misses) = here.fold((0.0, 0.0), |(a, m), one| (a + one.accesses, m + one.misses[1]));
            prop_assert!((stack.accesses - accesses).abs() < 1e-9 && (stack.misses[1] - misses).abs() < 1e-9);
        }
        let nowhere: f64 = uses.iter().filter(|one| one.row.is_none()).map(|one| one.accesses).sum();
        prop_assert!((found.unknown.value - nowhere / total(&|one| one.accesses)).abs() < 1e-9);
    }

    #[test]
    fn the_order_of_merges_does_not_matter(seed: u64, cut in 0..60_usize) {
        let uses = uses(seed, 20);
        let cut = cut.min(uses.len());
        let (a, b) = uses.split_at(cut);
        let turned: Vec<DataUse> = b.iter().rev().copied().collect();
        prop_assert_eq!(found(&[&uses]), found(&[&turned, a]));
    }

    /// The streamed sums against the definition, sample by sample.
    #[test]
    fn the_variance_is_the_linearised_one(seed: u64, samples in 2..30_u32) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ratios = Ratios::new();
        let (mut x, mut t) = (vec![0.0; samples as usize], vec![0.0; samples as usize]);
        for sample in 0..samples {
            for _ in 0..random.u32(1..5) {
                let (own, weight) = (random.bool(), random.f64() + 0.01);
                ratios.add(own.then_some(0), sample, weight);
                t[sample as usize] += weight;
                x[sample as usize] += if own { weight } else { 0.0 };
            }
        }
        let (sx, st): (f64, f64) = (x.iter().sum(), t.iter().sum());
        let p = sx / st;
        prop_assume!(p > 0.0 && p < 1.0);
        let n = f64::from(samples);
        let squares: f64 = x.iter().zip(&t).map(|(x, t)| (x - p * t).powi(2)).sum();
        let variance = n / (n - 1.0) * squares / (st * st);
        let most = st * st / t.iter().map(|t| t * t).sum::<f64>();
        let (low, high) = wilson(p, (p * (1.0 - p) / variance).min(most));
        let found = ratios.finish()[&0];
        prop_assert!((found.low - low).abs() < 1e-9 && (found.high - high).abs() < 1e-9);
    }
}

/// Of 300 runs of 60 samples whose uses are much alike, the interval holds the truth in more than
/// nine of ten.
#[test]
fn intervals_cover_clustered_uses() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut covered = 0;
    for _ in 0..300 {
        let mut ratios = Ratios::new();
        for sample in 0..60 {
            // A sample of object 0 in three of ten; nine of ten of its uses are then of that
            // object, else one in ten.
            let often = if random.f64() < 0.3 { 0.9 } else { 0.1 };
            for _ in 0..8 {
                ratios.add(Some(usize::from(random.f64() >= often)), sample, 1.0);
            }
        }
        let truth = 0.3 * 0.9 + 0.7 * 0.1;
        let found = ratios.finish()[&0];
        covered += usize::from((found.low..=found.high).contains(&truth));
    }
    assert!((275..=300).contains(&covered), "{covered}");
}

#[test]
fn the_level_of_the_ranking_is_the_last_with_misses() {
    let mut uses = uses(5, 30);
    uses.iter_mut().for_each(|one| one.misses[1] *= 1e-5);
    assert_eq!(found(&[&uses]).ranked_by, Some(0));
    uses.iter_mut().for_each(|one| one.misses = [0.0; crate::objects::LEVELS]);
    let none = found(&[&uses]);
    assert_eq!((none.ranked_by, none.conflicts.len()), (None, 0));
    let shares: Vec<f64> = none.rows.iter().map(|row| row.access_share.value).collect();
    assert!(shares.is_sorted_by(|a, b| a >= b));
}
