//! Tests of the arbiter: the slot invariant on random sequences, and its probabilities against
//! enumeration and against frequencies of many seeded runs.

use proptest::prelude::*;

use super::reservoir::eviction_probability;
use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    Offer(u64),
    Ended(u64),
    Refused(u64),
    Restore,
    MakeRoom,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..12_u64;
    let step = prop_oneof![
        6 => key.clone().prop_map(Step::Offer),
        2 => key.clone().prop_map(Step::Ended),
        1 => key.prop_map(Step::Refused),
        1 => Just(Step::Restore),
        1 => Just(Step::MakeRoom),
    ];
    proptest::collection::vec(step, 0..200)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Reservoir), Just(Policy::QuickReservoir)]
}

proptest! {
    /// The caller's view (armed and disarmed by the decisions alone) never exceeds the slots, and
    /// agrees with ours.
    #[test]
    fn granted_never_exceeds_owned(policy in policies(), slots in 0..=6_u8, seed: u64, steps in steps()) {
        let mut arbiter = Arbiter::new(policy, slots, seed);
        let mut armed = std::collections::BTreeSet::new();
        for step in steps {
            match step {
                Step::Offer(key) => {
                    let decision = arbiter.offer(WatchKey(key));
                    prop_assert!((0.0..=1.0).contains(&decision.p_arm));
                    if let Some(ended) = decision.evict {
                        prop_assert!(ended.p_survive > 0.0 && ended.p_survive <= 1.0);
                        prop_assert!(decision.arm && armed.remove(&ended.id.0));
                    }
                    if decision.arm {
                        prop_assert!(decision.p_arm > 0.0 && armed.insert(key));
                    }
                }
                Step::Ended(key) => {
                    let survived = arbiter.ended(WatchKey(key));
                    prop_assert_eq!(survived.is_some(), armed.remove(&key));
                    prop_assert!(survived.is_none_or(|p| p > 0.0 && p <= 1.0));
                }
                Step::Refused(key) => {
                    arbiter.refused(WatchKey(key));
                    armed.remove(&key);
                }
                Step::Restore => arbiter.restore(),
                Step::MakeRoom => {
                    if let Some(ended) = arbiter.make_room() {
                        prop_assert!(ended.p_survive > 0.0 && ended.p_survive <= 1.0);
                        prop_assert!(armed.remove(&ended.id.0));
                    }
                }
            }
            prop_assert_eq!(arbiter.granted(), armed.len());
            prop_assert!(armed.iter().all(|&key| arbiter.holds(WatchKey(key))));
            prop_assert!(arbiter.granted() <= arbiter.owned() && arbiter.owned() <= 4);
        }
        let drained: std::collections::BTreeSet<u64> = arbiter.drain().iter().map(|ended| ended.id.0).collect();
        prop_assert_eq!(drained, armed);
        prop_assert_eq!(arbiter.granted(), 0);
    }

    /// The integral against all visiting orders, one by one.
    #[test]
    fn eviction_probability_is_the_mean_over_orders(yields in proptest::collection::vec(0.001..1.0_f64, 1..=4)) {
        let orders = permutations(yields.len());
        for index in 0..yields.len() {
            let mean: f64 = orders
                .iter()
                .map(|order| {
                    let before = order.iter().take_while(|&&slot| slot != index);
                    before.map(|&slot| 1.0 - yields[slot]).product::<f64>() * yields[index]
                })
                .sum::<f64>() / orders.len() as f64;
            prop_assert!((eviction_probability(&yields, index) - mean).abs() < 1e-12);
        }
    }
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(n - 1) {
        for at in 0..n {
            let mut order = shorter.clone();
            order.insert(at, n - 1);
            all.push(order);
        }
    }
    all
}

/// A small program: sample i is taken at time i and its location is touched again
/// `REUSE_AFTER[i % 4]` samples later.
const REUSE_AFTER: [u64; 4] = [1, 3, 9, 30];
const SAMPLES: u64 = 40;

/// Runs it once; returns for each sample Some(1 / (p_arm · p_survive)) when its reuse was seen.
fn run(policy: Policy, slots: u8, seed: u64) -> Vec<Option<f64>> {
    let mut arbiter = Arbiter::new(policy, slots, seed);
    let mut p_arm = vec![0.0; SAMPLES as usize];
    let mut seen = vec![None; SAMPLES as usize];
    for now in 0..SAMPLES + 30 {
        for sample in 0..now.min(SAMPLES) {
            if sample + REUSE_AFTER[(sample % 4) as usize] == now
                && let Some(p_survive) = arbiter.ended(WatchKey(sample))
            {
                seen[sample as usize] = Some(1.0 / (p_arm[sample as usize] * p_survive));
            }
        }
        if now < SAMPLES {
            p_arm[now as usize] = arbiter.offer(WatchKey(now)).p_arm;
        }
    }
    seen
}

/// Each sample's inverse-probability weight has expectation 1 (that is what "exact probability"
/// means). The mean over runs must lie within 4.5 standard errors of 1 for every one of the 40
/// samples: by chance about one run in 3,000 of this test would fail, and the seeds are fixed.
#[test]
fn inverse_probabilities_average_to_one() {
    const RUNS: u64 = 8_000;
    for (policy, slots) in [
        (Policy::Reservoir, 1),
        (Policy::Reservoir, 4),
        (Policy::QuickReservoir, 1),
        (Policy::QuickReservoir, 2),
        (Policy::QuickReservoir, 4),
    ] {
        let mut sums = vec![(0.0, 0.0); SAMPLES as usize];
        for seed in 0..RUNS {
            for (sum, weight) in sums.iter_mut().zip(run(policy, slots, seed)) {
                let weight = weight.unwrap_or(0.0);
                sum.0 += weight;
                sum.1 += weight * weight;
            }
        }
        for (sample, (sum, squares)) in sums.into_iter().enumerate() {
            let mean = sum / RUNS as f64;
            let error = ((squares / RUNS as f64 - mean * mean).max(0.0) / RUNS as f64).sqrt();
            assert!(
                (mean - 1.0).abs() <= 4.5 * error + 1e-9,
                "{policy} with {slots} slots, sample {sample}: mean {mean} ± {error}"
            );
        }
    }
}

/// RDX §IV.A: with one register and no trap, each of k samples is the monitored one with probability 1/k.
#[test]
fn one_register_without_traps_is_uniform() {
    const RUNS: u64 = 20_000;
    const OFFERS: u64 = 10;
    let mut last = [0_u64; OFFERS as usize];
    for seed in 0..RUNS {
        let mut arbiter = Arbiter::new(Policy::Reservoir, 1, seed);
        for key in 0..OFFERS {
            arbiter.offer(WatchKey(key));
        }
        let drained = arbiter.drain();
        assert_eq!(drained.len(), 1);
        last[drained[0].id.0 as usize] += 1;
        // Armed with 1/(i+1), survived to k = 10: the product is 1/10 for each.
        let armed = 1.0 / (drained[0].id.0 + 1) as f64;
        assert!((armed * drained[0].p_survive - 0.1).abs() < 1e-12);
    }
    let expected = RUNS as f64 / OFFERS as f64;
    let error = (expected * (1.0 - 1.0 / OFFERS as f64)).sqrt();
    for count in last {
        assert!((count as f64 - expected).abs() < 4.5 * error, "{last:?}");
    }
}

#[test]
fn quick_slot_takes_every_sample() {
    let mut arbiter = Arbiter::new(Policy::QuickReservoir, 4, 7);
    for key in 0..1000 {
        let decision = arbiter.offer(WatchKey(key));
        assert!(decision.arm && decision.p_arm == 1.0);
        assert_eq!(decision.evict.is_some(), key >= 4);
        assert!(arbiter.holds(WatchKey(key)));
    }
    assert_eq!(arbiter.granted(), 4);
}

#[test]
fn without_slots_nothing_is_armed() {
    let mut arbiter = Arbiter::new(Policy::QuickReservoir, 0, 1);
    assert_eq!(arbiter.offer(WatchKey(1)), Decision { arm: false, evict: None, p_arm: 0.0 });
    assert!(arbiter.drain().is_empty());
}

#[test]
fn a_held_key_is_not_armed_twice() {
    let mut arbiter = Arbiter::new(Policy::Reservoir, 4, 1);
    assert!(arbiter.offer(WatchKey(1)).arm);
    assert!(!arbiter.offer(WatchKey(1)).arm);
    assert_eq!(arbiter.granted(), 1);
}

#[test]
fn refused_registers_come_back_with_restore() {
    let mut arbiter = Arbiter::new(Policy::QuickReservoir, 4, 1);
    for key in 0..4 {
        assert!(arbiter.offer(WatchKey(key)).arm);
    }
    arbiter.refused(WatchKey(3));
    assert_eq!((arbiter.owned(), arbiter.granted()), (3, 3));
    arbiter.refused(WatchKey(0));
    arbiter.refused(WatchKey(1));
    assert_eq!((arbiter.owned(), arbiter.granted()), (1, 1));
    arbiter.refused(WatchKey(2));
    assert_eq!((arbiter.owned(), arbiter.granted()), (0, 0));
    assert!(!arbiter.offer(WatchKey(5)).arm);
    arbiter.refused(WatchKey(99));
    arbiter.restore();
    assert_eq!(arbiter.owned(), 4);
    assert!(arbiter.offer(WatchKey(6)).arm);
}

#[test]
fn same_seed_same_decisions() {
    assert_eq!(run(Policy::Reservoir, 2, 5), run(Policy::Reservoir, 2, 5));
}

#[test]
fn policy_names_round_trip() {
    for policy in [Policy::Reservoir, Policy::QuickReservoir] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert!("fifo".parse::<Policy>().is_err());
}

/// Watches that made room for others count through their chance to survive: the sum of 1 / p over
/// survivors is the number of watches, on average. The newest watch of all and the oldest stay.
#[test]
fn survivors_stand_for_watches_that_made_room() {
    let (runs, mut sum) = (40_000, 0.0);
    for seed in 0..runs {
        let mut arbiter = Arbiter::new(Policy::QuickReservoir, 3, seed);
        for key in 1..=3 {
            arbiter.offer(WatchKey(key));
        }
        for _ in 0..3 {
            arbiter.make_room();
        }
        assert!(arbiter.holds(WatchKey(3)) && arbiter.holds(WatchKey(1)));
        sum += arbiter.drain().iter().map(|ended| 1.0 / ended.p_survive).sum::<f64>();
    }
    let mean = sum / runs as f64;
    assert!((mean - 3.0).abs() < 0.03, "{mean}");
    assert!(Arbiter::new(Policy::Reservoir, 3, 1).make_room().is_none());
}
