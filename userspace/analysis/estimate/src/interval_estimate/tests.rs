//! Oracles for weights and intervals: closed forms, and coverage over many synthetic samples.

use proptest::prelude::*;

use super::*;

/// Of samples that each have one observation.
fn alone<T>(members: impl IntoIterator<Item = (T, f64)>) -> Vec<(T, Counted)> {
    let counted = |((what, weight), sample)| (what, Counted { weight, sample });
    members.into_iter().zip(0..).map(counted).collect()
}

#[test]
fn weights_divide_by_the_chance_of_being_seen() {
    assert_eq!(horvitz_thompson(1_000, 0.5, 0.25), Some(8_000.0));
    for (p_arm, p_survive) in
        [(0.0, 1.0), (1.0, 0.0), (1.5, 1.0), (f64::NAN, 1.0), (-0.5, -0.5), (1e-300, 1e-300)]
    {
        assert_eq!(horvitz_thompson(1_000, p_arm, p_survive), None, "{p_arm} {p_survive}");
    }
    assert_eq!(horvitz_thompson(0, 1.0, 1.0), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn shares_sum_to_one_and_lie_in_their_interval(
        members in proptest::collection::vec((0..5_usize, 0.01..100.0_f64), 1..60),
    ) {
        let estimates = shares(&alone(members.clone()), 5);
        let total: f64 = estimates.iter().map(|estimate| estimate.value).sum();
        prop_assert!((total - 1.0).abs() < 1e-9);
        let weights: f64 = members.iter().map(|member| member.1).sum();
        for (group, estimate) in estimates.iter().enumerate() {
            let mine = members.iter().filter(|member| member.0 == group);
            prop_assert_eq!(estimate.n, mine.clone().count() as u64);
            let share = mine.map(|member| member.1).sum::<f64>() / weights;
            prop_assert!((estimate.value - share).abs() < 1e-9);
            prop_assert!(0.0 <= estimate.low && estimate.low <= estimate.value);
            prop_assert!(estimate.value <= estimate.high && estimate.high <= 1.0);
        }
    }

    /// A quantile by definition: enough weight at or below it, not enough strictly below.
    #[test]
    fn a_quantile_splits_the_weight(
        observations in proptest::collection::vec((0..20_u32, 1..9_u32), 1..40),
        q in 0.05..0.95_f64,
    ) {
        let pairs: Vec<(f64, f64)> = observations.iter().map(|&(v, w)| (f64::from(v), f64::from(w))).collect();
        let estimate = quantile(&alone(pairs.clone()), q);
        let weight = |keep: &dyn Fn(f64) -> bool| -> f64 {
            pairs.iter().filter(|pair| keep(pair.0)).map(|pair| pair.1).sum()
        };
        let total = weight(&|_| true);
        prop_assert!(weight(&|v| v <= estimate.value) >= q * total);
        prop_assert!(weight(&|v| v < estimate.value) < q * total);
        prop_assert!(estimate.low <= estimate.value && estimate.value <= estimate.high);
        prop_assert_eq!(estimate.n, pairs.len() as u64);
    }
}

#[test]
fn no_observation_gives_the_whole_range() {
    assert_eq!(shares(&[], 1), [Estimate { value: 0.0, low: 0.0, high: 1.0, n: 0 }]);
    assert_eq!(quantile(&[], 0.5), Estimate::default());
}

#[test]
fn three_of_three_is_not_certain() {
    let estimate = share_of(alone([(true, 1.0); 3]).into_iter());
    assert_eq!((estimate.value, estimate.n), (1.0, 3));
    assert!(estimate.low < 0.5, "{estimate:?}");
}

/// 250 synthetic traces of 120 reuses with unequal weights: the interval must cover the true share
/// in at least 91 % of them (nominal 95 %, less three standard errors of 250 trials) and must not
/// be useless.
#[test]
fn intervals_cover() {
    const TRUTH: f64 = 0.3;
    const TRACES: u64 = 250;
    let (mut covered, mut width) = (0, 0.0);
    for seed in 0..TRACES {
        let mut random = fastrand::Rng::with_seed(seed);
        let reuses = (0..120).map(|_| (random.f64() < TRUTH, 1.0 + 4.0 * random.f64()));
        let estimate = share_of(alone(reuses).into_iter());
        covered += u64::from(estimate.low <= TRUTH && TRUTH <= estimate.high);
        width += estimate.high - estimate.low;
    }
    assert!(covered >= TRACES * 91 / 100, "{covered} of {TRACES}");
    let width = width / TRACES as f64;
    assert!(width < 0.25, "mean width {width}");
}

/// The same with 16 observations a sample that are all alike, the worst that a window can do: they
/// count as one.
#[test]
fn observations_of_one_sample_do_not_narrow_intervals() {
    const TRUTH: f64 = 0.3;
    const TRACES: u64 = 250;
    let mut covered = 0;
    for seed in 0..TRACES {
        let mut random = fastrand::Rng::with_seed(seed);
        let of_sample = |sample: u32| {
            let (holds, weight) = (random.f64() < TRUTH, 1.0 + 4.0 * random.f64());
            [(holds, Counted { weight, sample }); 16]
        };
        let estimate = share_of((0..120).flat_map(of_sample));
        assert_eq!(estimate.n, 120 * 16);
        covered += u64::from(estimate.low <= TRUTH && TRUTH <= estimate.high);
    }
    assert!(covered >= TRACES * 91 / 100, "{covered} of {TRACES}");
    // Five samples cannot bracket a median, however many observations they have.
    let few: Vec<(f64, Counted)> =
        (0..50).map(|n| (f64::from(n), Counted { weight: 1.0, sample: n % 5 })).collect();
    let median = quantile(&few, 0.5);
    assert_eq!((median.low, median.high, median.n), (0.0, 49.0, 50));
}

#[test]
fn wilson_matches_the_textbook() {
    // 8 of 10: 0.490 to 0.943 (Newcombe 1998, method 3).
    let (low, high) = wilson(0.8, 10.0);
    assert!((low - 0.4902).abs() < 5e-4 && (high - 0.9433).abs() < 5e-4, "{low} {high}");
}

/// RDX §IV.A, Listing 2: ten samples whose data is touched again ten samples later, and ten whose
/// data is touched again at once. Both kinds are equally many; plain counts of seen reuses favour
/// the short ones, weighted ones must not.
#[test]
fn long_reuses_keep_their_share() {
    use locality_arbiter::{Arbiter, Policy, WatchKey};
    const RUNS: u64 = 20_000;
    for (policy, slots) in [(Policy::Reservoir, 1), (Policy::QuickReservoir, 3)] {
        let (mut long_weight, mut long_seen, mut short_weight) = (0.0, 0.0, 0.0);
        for seed in 0..RUNS {
            let mut arbiter = Arbiter::new(policy, slots, seed);
            let mut p_arm = [0.0; 30];
            for now in 0..30_usize {
                if let Some(past) = now.checked_sub(10).filter(|past| *past < 10)
                    && let Some(p_survive) = arbiter.ended(WatchKey(past as u64))
                {
                    long_seen += 1.0;
                    long_weight += horvitz_thompson(1, p_arm[past], p_survive).unwrap();
                }
                p_arm[now] = arbiter.offer(WatchKey(now as u64)).p_arm;
                if now >= 20
                    && let Some(p_survive) = arbiter.ended(WatchKey(now as u64))
                {
                    short_weight += horvitz_thompson(1, p_arm[now], p_survive).unwrap();
                }
            }
        }
        let [long_weight, long_seen, short_weight] =
            [long_weight, long_seen, short_weight].map(|sum| sum / RUNS as f64);
        assert!((long_weight - 10.0).abs() < 0.3, "{policy}: {long_weight}");
        assert!((short_weight - 10.0).abs() < 0.3, "{policy}: {short_weight}");
        assert!(long_seen < 5.0, "{policy}: counting would do, {long_seen}");
    }
}

/// A ratio of sums over 40 samples, drawn 200 times from a population: the interval has the population's
/// ratio in about 95 of 100.
#[test]
fn intervals_of_ratios_contain_the_truth() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut within = 0;
    for _ in 0..200 {
        let observed: Vec<((f64, f64), Counted)> = (0..40)
            .map(|sample| {
                let b = 1.0 + random.f64();
                ((b * (2.0 + random.f64()), b), Counted { weight: 1.0, sample })
            })
            .collect();
        let found = ratio(&observed);
        assert!(found.low <= found.value && found.value <= found.high && found.n == 40, "{found:?}");
        within += u32::from(found.low <= 2.5 && 2.5 <= found.high);
    }
    assert!((180..=199).contains(&within), "{within} of 200");
    assert_eq!(ratio(&[]).n, 0);
}
