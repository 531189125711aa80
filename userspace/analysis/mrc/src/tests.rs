//! Conversions against brute force, where they are exact or bounded, and closed forms.

use proptest::prelude::*;

use super::distances::{Bar, Distances, Malformed};
use super::hotl::Footprint;
use super::phases::{self, Reach};
use super::survival::Survival;
use super::{mean, oracle, scale, shen};

/// Largest difference between two miss-ratio curves at whole sizes up to `sizes`.
fn worst(a: &Distances, b: &Distances, sizes: u32) -> f64 {
    let at = |size| (a.miss_ratio(f64::from(size)) - b.miss_ratio(f64::from(size))).abs();
    (1..=sizes).map(at).fold(0.0, f64::max)
}

fn cyclic(granules: u32, rounds: u32) -> Vec<u32> {
    (0..rounds).flat_map(|_| 0..granules).collect()
}

fn random(granules: u32, n: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..n).map(|_| random.u32(..granules)).collect()
}

#[test]
fn the_scale_has_no_holes() {
    for bin in 0..3000 {
        assert!(scale::low(bin) < scale::low(bin + 1), "{bin}");
        assert_eq!((scale::index(scale::low(bin)), scale::index(scale::low(bin + 1) - 1)), (bin, bin));
    }
    assert_eq!(scale::index(127), 127);
    assert_eq!(scale::low(scale::index(u64::MAX) + 1), u64::MAX);
}

#[test]
fn malformed_histograms_are_refused() {
    let bar = |low, high, weight| Bar { low, high, weight };
    let refused = |bars: Vec<Bar>| Distances::new(bars, 0.0).unwrap_err();
    assert!(matches!(refused(vec![bar(3, 3, 1.0)]), Malformed::Empty(_)));
    assert!(matches!(refused(vec![bar(4, 8, 1.0), bar(0, 5, 1.0)]), Malformed::Overlap(..)));
    assert!(matches!(refused(vec![bar(4, 8, f64::NAN)]), Malformed::Weight(_)));
    assert!(matches!(refused(vec![bar(4, 8, -1.0)]), Malformed::Weight(_)));
    assert!(Distances::exact([(u64::MAX, 1.0)], 0.0).is_err());
    assert_eq!(Distances::new(vec![bar(1, 2, 1.0), bar(1, 2, 2.0)], 0.0).unwrap().reuses(), 3.0);
}

#[test]
fn bins_with_means_put_a_loop_where_it_is() {
    // A loop over 1,040 granules, in bins as wide as a 32nd: [1024, 1056) alone would have its
    // stack distances on both sides of 1,024.
    let bin = Bar { low: 1024, high: 1056, weight: 9e4 };
    let exact = Distances::exact([(1040, 9e4)], 1040.0).unwrap();
    assert_eq!(Distances::with_means([(bin, 1040.0)], 1040.0), Ok(exact));
    let between = Distances::with_means([(bin, 1040.25)], 0.0).unwrap();
    assert!((between.total() - 9e4 * 1040.25).abs() < 1e-3 && between.bars().len() == 2);
    for mean in [1023.9, 1055.1, f64::NAN] {
        assert!(matches!(Distances::with_means([(bin, mean)], 0.0), Err(Malformed::Mean(..))), "{mean}");
    }
    // The last distance of a bin is its own.
    assert_eq!(Distances::with_means([(bin, 1055.0)], 0.0), Distances::exact([(1055, 9e4)], 0.0));
    assert!(Distances::with_means([(Bar { high: 1024, ..bin }, 1024.0)], 0.0).is_err());
}

#[test]
fn loops_have_their_closed_form() {
    // m granules in turn: every reuse has time distance m and stack distance m − 1.
    for granules in [1, 2, 10, 127] {
        let trace = cyclic(granules, 6);
        let (time, stack) = (oracle::time(&trace), oracle::stack(&trace));
        assert_eq!(stack.at_least(f64::from(granules) - 1.0), f64::from(granules) * 5.0);
        let by_mean = mean::stack_distances(&time, 1.0);
        let by_shen = shen::stack_distances(&time, 1.0, f64::from(granules));
        let by_phases = phases::stack_distances(&oracle::phases(&trace, 100), &[], Reach::All);
        let hotl = Footprint::of(&time, trace.len() as f64, Some(&oracle::ends(&trace))).unwrap();
        for size in 1..granules + 2 {
            let truth = oracle::lru_misses(&trace, size as usize) as f64 / trace.len() as f64;
            let sizes = [by_mean.miss_ratio(size.into()), by_shen.miss_ratio(size.into())];
            assert!(
                sizes.iter().all(|ratio| (ratio - truth).abs() < 1e-9),
                "{granules} {size} {sizes:?} {truth}"
            );
            assert!((by_phases.miss_ratio(size.into()) - truth).abs() < 1e-9, "{granules} {size}");
            assert!((hotl.miss_ratio(size.into()) - truth).abs() < 1e-9, "{granules} {size}");
        }
    }
}

#[test]
fn long_loops_are_right_to_the_scale() {
    let granules = 1_000_000;
    let time = Distances::exact([(granules, 9e6)], 1e6).unwrap();
    let hotl = Footprint::of(&time, 1e7, None).unwrap().stack_distances();
    let phase = phases::Phase { time: time.clone(), accesses: 1e7 };
    let stacks = [
        mean::stack_distances(&time, 1.0),
        shen::stack_distances(&time, 1.0, 1e6),
        phases::stack_distances(&[phase], &[], Reach::All),
        hotl,
    ];
    for stack in stacks {
        assert!((stack.miss_ratio(984_000.0) - 1.0).abs() < 0.02, "{stack:?}");
        assert!((stack.miss_ratio(1_016_000.0) - 0.1).abs() < 0.02, "{stack:?}");
    }
}

#[test]
fn random_references_have_their_closed_form() {
    // Independent and uniform over m: LRU of c holds c of m, so the miss ratio is 1 − c/m.
    let granules = 60;
    let trace = random(granules, 6000);
    let time = oracle::time(&trace);
    let stack = oracle::stack(&trace);
    let n = trace.len() as f64;
    let survival = Survival::of(&time, 1.0).unwrap();
    let hotl = Footprint::of(&time, n, Some(&oracle::ends(&trace))).unwrap();
    let found = [
        ("truth", stack.clone()),
        ("mean", mean::stack_distances(&time, 1.0)),
        ("shen", shen::stack_distances(&time, 1.0, granules.into())),
        ("hotl", hotl.stack_distances()),
        ("own", phases::stack_distances(&oracle::phases(&trace, 1000), &[], Reach::Own)),
        ("all", phases::stack_distances(&oracle::phases(&trace, 1000), &[], Reach::All)),
    ];
    for (name, stack) in &found {
        for size in 1..granules {
            let closed = 1.0 - f64::from(size) / f64::from(granules);
            let ratio = stack.miss_ratio(size.into());
            assert!((ratio - closed).abs() < 0.035, "{name} {size} {ratio} {closed}");
        }
    }
    for size in 1..granules {
        let aet = mean::miss_ratio(&survival, size.into());
        assert!((aet - (1.0 - f64::from(size) / f64::from(granules))).abs() < 0.035, "{size} {aet}");
    }
}

#[test]
fn a_binomial_spread_matches_random_references() {
    // Time distance r over m uniform granules: SD is the number of occupied of m − 1 after r − 1
    // throws that miss one.
    let time = Distances::exact([(40, 1.0)], 0.0).unwrap();
    let found = shen::stack_distances(&time, 1.0, 1000.0);
    let mean: f64 = found.bars().iter().map(|bar| bar.low as f64 * bar.weight).sum();
    let variance: f64 = found.bars().iter().map(|bar| (bar.low as f64 - mean).powi(2) * bar.weight).sum();
    assert!(
        (mean - 39.0).abs() < 1e-6 && (variance - 39.0 * (1.0 - 39.0 / 999.0)).abs() < 1e-4,
        "{mean} {variance}"
    );
    assert!((found.reuses() - 1.0).abs() < 1e-12);
    // The normal branch: same moments, to the fine scale's width.
    let time = Distances::exact([(1 << 20, 1.0)], 0.0).unwrap();
    let found = shen::stack_distances(&time, 1.0, 1e9);
    assert!((found.total() / f64::from(1 << 20) - 1.0).abs() < 0.01 && (found.reuses() - 1.0).abs() < 1e-12);
}

#[test]
fn accesses_of_several_touches() {
    // Each access touches four words: 5 accesses, 20 words, in turn. Every stack distance is 19.
    let reuses = Distances::exact([(5, 20_000.0)], 20.0).unwrap();
    let found = mean::stack_distances(&reuses, 4.0);
    assert!((found.at_least(18.9) - 20_000.0).abs() < 40.0 && found.at_least(20.01) < 1e-9, "{found:?}");
    let phase = phases::Phase { time: reuses, accesses: 5005.0 };
    let found = phases::stack_distances(&[phase], &[], Reach::All);
    assert!((found.at_least(18.9) - 20_000.0).abs() < 40.0, "{found:?}");
}

#[test]
fn the_granule_itself_is_not_in_between() {
    // At time distance 2 one other granule lies between, whatever the rest of the trace.
    let time = Distances::exact([(1, 70.0), (2, 20.0), (9, 8.0)], 2.0).unwrap();
    let survival = Survival::of(&time, 1.0).unwrap();
    assert!((survival.stack_distance(2.0) - 1.0).abs() < 1e-12 && survival.stack_distance(1.0) == 0.0);
    assert!((survival.footprint(2.0) - 1.3).abs() < 1e-12);
}

#[test]
fn phases_do_not_mix() {
    // A tight loop, then a wide one: together the mean is wrong for both, apart it is right.
    let mut trace = cyclic(10, 100);
    trace.extend(cyclic(100, 10).iter().map(|granule| granule + 1000));
    let stack = oracle::stack(&trace);
    let mixed = mean::stack_distances(&oracle::time(&trace), 1.0);
    assert!(worst(&mixed, &stack, 150) > 0.1);
    for reach in [Reach::Own, Reach::All] {
        let apart = phases::stack_distances(&oracle::phases(&trace, 1000), &[], reach);
        assert!(worst(&apart, &stack, 150) < 1e-9, "{reach:?}");
    }
}

#[test]
fn long_reuses_count_the_phases_between() {
    // 300 granules, then a loop over few others, then the 300 again: their window holds both.
    let mut trace: Vec<u32> = (0..300).collect();
    trace.extend(cyclic(20, 100).iter().map(|granule| granule + 1000));
    trace.extend(0..300);
    let phases = oracle::phases(&trace, 100);
    let stack = oracle::stack(&trace);
    let own = phases::stack_distances(&phases, &[], Reach::Own);
    let all = phases::stack_distances(&phases, &[], Reach::All);
    assert!(worst(&own, &stack, 600) > 0.1);
    // The 300 have stack distance 319. At a wrong place within its phase a window may begin 50
    // accesses too early or late.
    assert!(stack.at_least(320.0) == 0.0 && stack.at_least(319.0) == 300.0);
    assert!(worst(&all, &stack, 269) < 0.01 && all.at_least(370.0) < 1.0, "{all:?}");
}

#[test]
fn nothing_converts_to_nothing() {
    let nothing = Distances::default();
    assert_eq!(mean::stack_distances(&nothing, 1.0), nothing);
    assert_eq!(shen::stack_distances(&nothing, 1.0, 0.0), nothing);
    assert_eq!(phases::stack_distances(&[phases::Phase::default()], &[], Reach::All), nothing);
    assert!(Footprint::of(&nothing, 0.0, None).is_none());
    let cold = Distances::new(vec![], 5.0).unwrap();
    assert_eq!(mean::stack_distances(&cold, 1.0), cold);
    assert_eq!(cold.miss_ratio(1.0), 1.0);
}

#[test]
fn huge_distances_cost_nothing() {
    let bars = (0..60).map(|bit| Bar { low: 1 << bit, high: 2 << bit, weight: 1.0 });
    let time = Distances::new(bars.collect(), 1.0).unwrap();
    for found in [mean::stack_distances(&time, 1.0), shen::stack_distances(&time, 1.0, 1e15)] {
        assert!((found.reuses() - 60.0).abs() < 1e-6, "{}", found.reuses());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn footprints_are_exact(trace in proptest::collection::vec(0..12_u32, 1..120)) {
        let n = trace.len();
        let footprint = Footprint::of(&oracle::time(&trace), n as f64, Some(&oracle::ends(&trace))).unwrap();
        for window in 1..=n {
            let truth = oracle::footprint(&trace, window);
            prop_assert!((footprint.at(window as f64) - truth).abs() < 1e-9, "{window}");
        }
    }

    #[test]
    fn survival_is_its_definition(
        counts in proptest::collection::vec((1..400_u64, 0..9_u32), 1..30),
        cold in 0..5_u32,
        tau in 1..4_u32,
    ) {
        let time = Distances::exact(counts.iter().map(|&(d, w)| (d, w.into())), cold.into()).unwrap();
        let Some(survival) = Survival::of(&time, tau.into()) else { return Ok(()) };
        let beyond = |j: u64| {
            let above: u32 = counts.iter().filter(|count| count.0 > j).map(|count| count.1).sum();
            f64::from(above + cold) / time.touches()
        };
        let mut sum = 0.0;
        for j in 0..500_u64 {
            prop_assert!((survival.beyond(j as f64) - beyond(j)).abs() < 1e-9);
            prop_assert!((survival.footprint(j as f64) - sum).abs() < 1e-6, "{} {}", j, sum);
            sum += f64::from(tau) * beyond(j);
        }
        // The inverse is one, wherever the footprint rises.
        for c in 1..20 {
            let c = survival.footprint(500.0) * f64::from(c) / 21.0;
            prop_assert!((survival.footprint(survival.fill_time(c)) - c).abs() < 1e-6);
        }
        if cold == 0 {
            prop_assert_eq!(survival.fill_time(survival.footprint(500.0) + 1.0), f64::INFINITY);
        }
    }

    #[test]
    fn wide_bars_are_many_even_counts(low in 1..300_u64, width in 1..200_u64, cold in 1..5_u32) {
        let bar = Bar { low, high: low + width, weight: width as f64 };
        let wide = Survival::of(&Distances::new(vec![bar], cold.into()).unwrap(), 1.0).unwrap();
        let counts = (low..low + width).map(|distance| (distance, 1.0));
        let many = Survival::of(&Distances::exact(counts, cold.into()).unwrap(), 1.0).unwrap();
        for j in (0..600).map(f64::from) {
            prop_assert!((wide.beyond(j) - many.beyond(j)).abs() < 1e-9);
            prop_assert!((wide.footprint(j) - many.footprint(j)).abs() < 1e-6);
        }
    }

    #[test]
    fn stack_distances_give_lru_misses(trace in proptest::collection::vec(0..30_u32, 1..200)) {
        let stack = oracle::stack(&trace);
        for size in 1..32_u32 {
            let misses = stack.miss_ratio(size.into()) * trace.len() as f64;
            prop_assert!((misses - oracle::lru_misses(&trace, size as usize) as f64).abs() < 1e-6);
        }
    }

    #[test]
    fn conversions_keep_mass_and_order(trace in proptest::collection::vec(0..40_u32, 1..300), length in 20..90_usize) {
        let time = oracle::time(&trace);
        let n = trace.len() as f64;
        let stacks = [
            mean::stack_distances(&time, 1.0),
            shen::stack_distances(&time, 1.0, time.cold()),
            Footprint::of(&time, n, None).unwrap().stack_distances(),
            phases::stack_distances(&oracle::phases(&trace, length), &[], Reach::Own),
            phases::stack_distances(&oracle::phases(&trace, length), &[], Reach::All),
        ];
        for stack in &stacks {
            prop_assert!((stack.touches() - n).abs() < 1e-6 * n && stack.cold() == time.cold());
            let ratios: Vec<f64> = (0..50).map(|size| stack.miss_ratio(f64::from(size))).collect();
            prop_assert!(ratios.windows(2).all(|pair| pair[0] >= pair[1] - 1e-12));
        }
        // AET asks the same without the histogram, and without what the granule itself takes up:
        // less than one.
        let survival = Survival::of(&time, 1.0).unwrap();
        for size in 1..40_u32 {
            let aet = mean::miss_ratio(&survival, size.into());
            let (above, below) = (stacks[0].miss_ratio(f64::from(size) - 1.0), stacks[0].miss_ratio(f64::from(size) + 2.0));
            prop_assert!(aet <= above + 1e-9 && aet >= below - 1e-9, "{} {} {} {}", size, above, aet, below);
        }
    }

    #[test]
    fn unions_add_up(
        a in proptest::collection::vec(0..100_u64, 1..20),
        b in (0..50_u64, 1..60_u64),
        at in 0..120_u32,
    ) {
        let a = Distances::exact(a.iter().map(|&d| (d, 1.0)), 1.0).unwrap();
        let b = Distances::new(vec![Bar { low: b.0, high: b.0 + b.1, weight: 3.0 }], 2.0).unwrap();
        let both = Distances::union(&[&a, &b]);
        prop_assert_eq!(both.cold(), 3.0);
        prop_assert!((both.at_least(at.into()) - a.at_least(at.into()) - b.at_least(at.into())).abs() < 1e-9);
        prop_assert!(Distances::new(both.bars().to_vec(), 0.0).is_ok());
    }

    #[test]
    fn order_of_parts_does_not_matter(
        parts in proptest::collection::vec((0..1_u64 << 40, 0..1000_u32, 1..9_u32), 1..20),
        split in 0..20_usize,
    ) {
        let add = |sums: &mut scale::Sums, parts: &[(u64, u32, u32)]| {
            for &(low, width, weight) in parts {
                sums.spread(low as f64 + 0.25, low as f64 + f64::from(width), weight.into());
            }
        };
        let (first, second) = parts.split_at(split.min(parts.len()));
        let (mut whole, mut late, mut early) = (scale::Sums::default(), scale::Sums::default(), scale::Sums::default());
        add(&mut whole, &parts);
        add(&mut late, second);
        add(&mut early, first);
        late.merge(&early);
        let (whole, merged) = (whole.finish(0.0), late.finish(0.0));
        let weight: u32 = parts.iter().map(|part| part.2).sum();
        prop_assert!((whole.reuses() - f64::from(weight)).abs() < 1e-6);
        for bar in whole.bars() {
            prop_assert!((whole.at_least(bar.low as f64) - merged.at_least(bar.low as f64)).abs() < 1e-6);
        }
    }
}

/// Work on 20 granules takes turns with work on 400; stays are exponential, of 1,000 accesses.
#[test]
fn work_that_takes_turns_is_not_like_its_mean() {
    let mut random = fastrand::Rng::with_seed(11);
    let (mut trace, mut kinds) = (Vec::new(), Vec::new());
    let (stay, mut kind) = (1_000.0, 0);
    while trace.len() < 20_000 {
        for _ in 0..(-stay * (1.0 - random.f64()).ln()) as usize {
            trace.push(if kind == 0 { random.u32(..20) } else { 20 + random.u32(..400) });
            kinds.push(kind);
        }
        kind = 1 - kind;
    }
    let found = oracle::distances(&trace);
    let of_kind = |kind: u32| {
        let mine = || found.iter().zip(&kinds).filter(|(_, of)| **of == kind).map(|(found, _)| *found);
        let cold = mine().filter(|found| found.is_none()).count() as f64;
        let time = Distances::exact(mine().flatten().map(|(time, _)| (time, 1.0)), cold).unwrap();
        phases::Phase { time, accesses: mine().count() as f64 }
    };
    let kinds = [of_kind(0), of_kind(1)];
    let all = phases::Phase { time: oracle::time(&trace), accesses: trace.len() as f64 };
    let told = |stays: (f64, f64)| {
        let around = phases::Around::of(&all, stays, trace.len() as f64);
        let of_kind = |phase: &phases::Phase| {
            phases::stack_distances(std::slice::from_ref(phase), std::slice::from_ref(&around), Reach::All)
        };
        Distances::union(&[&of_kind(&kinds[0]), &of_kind(&kinds[1])])
    };
    let stack = oracle::stack(&trace);
    let error = |of: &Distances| worst(of, &stack, 450);
    let mean = error(&mean::stack_distances(&oracle::time(&trace), 1.0));
    let known = error(&told((stay, stay)));
    // Within some orders of magnitude that is better than nothing.
    let guessed = error(&told((stay / 10.0, stay * 10.0)));
    assert!(known < mean / 3.0, "{known} {mean}");
    assert!(guessed < mean / 2.0, "{guessed} {mean}");
    // Turns taken at once are the mean.
    assert!((error(&told((0.0, 0.0))) - mean).abs() < 0.01);
    // What fills 100 granules: the large work soon, the small one when its stay is over.
    let around = [phases::Around::of(&all, (stay, stay), trace.len() as f64)];
    let fill = |phase: &phases::Phase| {
        let bins = phases::fill_times(std::slice::from_ref(phase), &around, 100.0);
        let mut times: Vec<u64> = bins[0].iter().map(|bin| scale::low(*bin)).collect();
        times.sort_unstable();
        times
    };
    let (small, large) = (fill(&kinds[0]), fill(&kinds[1]));
    assert!(large.iter().all(|time| (100..300).contains(time)), "{large:?}");
    assert!(small[0] > 200 && small[2] > 500 && small[3] > 1_500, "{small:?}");
}
