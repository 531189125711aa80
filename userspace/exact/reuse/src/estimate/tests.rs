//! Estimates against brute force: every sample of few lines, and LRU stacks searched from the top.

use super::*;
use crate::bins::FINE_BINS;
use crate::lines::LINE_GROUPS;
use crate::summary::OfGroup;

/// All samples of twelve lines, each in or out: the estimates' mean is the true number, and the intervals
/// of at least 95 % of the samples contain it.
#[test]
fn a_scaled_count_is_unbiased_and_its_interval_covers() {
    for weights in
        [[1_u64; 12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]]
    {
        let truth = weights.iter().sum::<u64>() as f64;
        let (mut sum, mut covered) = (0.0, 0);
        for sample in 0..1 << 12 {
            let mut groups = [0; LINE_GROUPS];
            for (line, weight) in weights.iter().enumerate().filter(|(line, _)| sample & 1 << line != 0) {
                groups[line * 5] = *weight;
            }
            let found = scaled(&groups, 2);
            assert!(found.low <= found.value && found.value <= found.high, "{found:?}");
            sum += found.value;
            covered += i32::from((found.low..=found.high).contains(&truth));
        }
        assert!((sum / 4096.0 - truth).abs() < 1e-9, "{sum} of {truth}");
        assert!(f64::from(covered) >= 0.95 * 4096.0, "{covered} of 4096 for {weights:?}");
    }
}

/// One line with nearly all of the count is doubtful, many with equal parts are not.
#[test]
fn few_lines_with_most_of_a_count_widen_the_interval() {
    let even = scaled(&[100; LINE_GROUPS], 16);
    let mut one = [1; LINE_GROUPS];
    one[7] = 6400 - 63;
    let uneven = scaled(&one, 16);
    assert_eq!((even.value, uneven.value), (102_400.0, 102_400.0));
    assert!(even.high < 1.05 * even.value && even.low > 0.95 * even.value, "{even:?}");
    assert!(uneven.high > 5.0 * uneven.value && uneven.low < 0.05 * uneven.value, "{uneven:?}");
    let none = scaled(&[0; LINE_GROUPS], 16);
    assert!(none.value == 0.0 && none.low == 0.0 && none.high > 16.0, "{none:?}");
}

#[test]
fn the_binomial_distribution_is_that_of_coins_thrown() {
    // Every outcome of n throws with chance 1/4, by brute force.
    let chance = |n: u32, most: u32| {
        let outcomes = (0..1_u32 << (2 * n)).filter(|throws| {
            let hits = (0..n).filter(|at| throws >> (2 * at) & 3 == 0).count() as u32;
            hits <= most
        });
        outcomes.count() as f64 / f64::from(1_u32 << (2 * n))
    };
    for (n, most) in [(1, 0), (4, 1), (6, 0), (8, 3), (8, 8), (10, 2)] {
        let found = binomial(n.into(), 0.25, most.into());
        assert!((found - chance(n, most)).abs() < 1e-12, "{n} {most}: {found}");
    }
    // The two ways of calculation meet.
    for rate in [0.5, 1.0 / 16.0, 1.0 / 64.0] {
        let n = (99.0 / (rate * (1.0 - rate))) as u64;
        for z in [-3.0, -1.96, 0.0, 1.96, 3.0] {
            let (mean, deviation) = moments(n, rate);
            let most = (mean + z * deviation) as u64;
            let summed = binomial(n, rate, most);
            let more = binomial(n + (4.0 / rate) as u64, rate, most + 4);
            assert!((summed - more).abs() < 0.004, "{rate} {z}: {summed} {more}");
        }
        let (low, high) = (lower_quantile(n, rate), upper_quantile(n, rate));
        assert!(binomial(n, rate, low - 1) <= TAIL && binomial(n, rate, low) > TAIL);
        assert!(binomial(n, rate, high) >= 1.0 - TAIL && binomial(n, rate, high - 1) < 1.0 - TAIL);
    }
}

/// Stack distances of a trace of line numbers, by search; `None` for first touches.
fn distances(trace: impl Iterator<Item = usize>) -> Vec<(usize, Option<u64>)> {
    let mut stack: Vec<usize> = Vec::new();
    let step = |line: usize| {
        let found = stack.iter().rev().position(|other| *other == line);
        if let Some(at) = found {
            stack.remove(stack.len() - 1 - at);
        }
        stack.push(line);
        (line, found.map(|at| at as u64))
    };
    trace.map(step).collect()
}

/// What an engine counts of the sampled lines; each line has a group, or is not sampled.
fn counted(trace: &[usize], groups: &[Option<usize>]) -> GrainSummary {
    let empty = OfGroup { cold: 0, time: vec![0; LOG2_BINS], stack: vec![0; FINE_BINS] };
    let mut by_group = vec![empty; LINE_GROUPS];
    let mut sum = vec![0; FINE_BINS];
    let (mut touches, mut cold) = (0, 0);
    for (line, distance) in distances(trace.iter().copied().filter(|line| groups[*line].is_some())) {
        let of_group = &mut by_group[groups[line].unwrap()];
        touches += 1;
        match distance {
            None => (of_group.cold, cold) = (of_group.cold + 1, cold + 1),
            Some(distance) => {
                of_group.stack[fine_bin(distance)] += 1;
                of_group.time[7] += 1;
                sum[fine_bin(distance)] += 1;
            }
        }
    }
    let time = vec![0; FINE_BINS];
    let phases = Vec::new();
    let (time_sums, cells) = (Vec::new(), Vec::new());
    GrainSummary {
        bytes: 64,
        touches,
        cold,
        time,
        time_sums,
        stack: sum,
        phases,
        cells,
        pairs_lost: 0,
        by_group,
    }
}

/// Traces of different kinds: a loop over an array, random lines, hot and cold lines, phases.
fn traces(random: &mut fastrand::Rng) -> Vec<Vec<usize>> {
    const N: usize = 30_000;
    let skewed = |random: &mut fastrand::Rng| ((2000.0_f64).powf(random.f64()) - 1.0) as usize;
    vec![
        (0..N).map(|at| at % 1500).collect(),
        (0..N).map(|_| random.usize(..1200)).collect(),
        (0..N).map(|_| skewed(random)).collect(),
        // A scan with a hot line between each two steps, then a loop.
        (0..N).map(|at| if at % 2 == 0 { at % 14 } else { 20 + at / 2 % 1000 }).collect(),
        (0..N).map(|at| if at < N / 2 { at % 300 } else { 300 + at % 900 }).collect(),
    ]
}

/// At 95 % of sizes or more the interval contains the ratio of a cache that sees everything.
#[test]
fn intervals_of_the_curve_contain_the_curve() {
    let mut random = fastrand::Rng::with_seed(7);
    for (kind, trace) in traces(&mut random).iter().enumerate() {
        let truth = distances(trace.iter().copied());
        let sizes: Vec<u64> = (0..7).flat_map(|bit| [16 << bit, 24 << bit]).collect();
        let (mut inside, mut all, mut width) = (0, 0, 0.0);
        for _ in 0..60 {
            let one_in = 4;
            let draw = |_| (random.u32(..one_in) == 0).then(|| random.usize(..LINE_GROUPS));
            let groups: Vec<Option<usize>> = (0..2100).map(draw).collect();
            let counts = counted(trace, &groups);
            let sampled = SampleEstimates::new(&counts, one_in, trace.len() as u64).unwrap();
            for size in &sizes {
                let misses = truth.iter().filter(|(_, at)| at.is_none_or(|at| at >= *size)).count() as f64;
                let found = sampled.misses(*size).unwrap();
                assert!(found.low <= found.value && found.value <= found.high);
                all += 1;
                inside += i32::from((found.low..=found.high).contains(&misses));
                width += (found.high - found.low) / trace.len() as f64;
            }
            let lines = truth.iter().filter(|(_, at)| at.is_none()).count() as f64;
            let cold = sampled.cold();
            assert!((cold.value - lines).abs() < 6.0 * (4.0 * lines).sqrt(), "{cold:?} of {lines}");
        }
        assert!(f64::from(inside) >= 0.95 * f64::from(all), "{inside} of {all} in trace {kind}");
        // An interval from 0 to 1 would contain everything.
        assert!(width / f64::from(all) < 0.35, "mean width {} in trace {kind}", width / f64::from(all));
    }
}

#[test]
fn shares_sum_to_one_and_lie_in_their_intervals() {
    let mut random = fastrand::Rng::with_seed(3);
    for trace in traces(&mut random) {
        let draw = |_| random.bool().then(|| random.usize(..LINE_GROUPS));
        let groups: Vec<Option<usize>> = (0..2100).map(draw).collect();
        let counts = counted(&trace, &groups);
        let sampled = SampleEstimates::new(&counts, 2, trace.len() as u64).unwrap();
        for bins in [sampled.stack(), sampled.time()] {
            let sum: f64 = bins.iter().map(|bin| bin.share.value).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            for pair in bins.windows(2) {
                assert_eq!(pair[0].high, pair[1].low);
            }
            for Share { share, .. } in bins {
                assert!(share.low <= share.value + 1e-12 && share.value <= share.high + 1e-12, "{share:?}");
            }
        }
    }
}

#[test]
fn sizes_that_the_sample_does_not_resolve_have_no_number() {
    let counts = counted(&[0, 1, 2, 0, 1, 2], &[Some(0), Some(1), Some(2)]);
    let sampled = SampleEstimates::new(&counts, 16, 96).unwrap();
    let sizes = [1, 16, 48, 63, 65, 64, 128];
    let known: Vec<bool> = sizes.iter().map(|size| sampled.misses(*size).is_some()).collect();
    assert_eq!(known, [false, false, false, false, false, true, true]);
    let none = counted(&[0, 1], &[None, None]);
    assert!(SampleEstimates::new(&none, 16, 2).is_none());
}
