//! Rates of synthetic programs against their known truth. Not here: real programs (`examples/reality`).

#![expect(clippy::unwrap_used, reason = "helper functions of tests")]

mod simulator;

use fastrand::Rng;
use locality_rate::{Estimate, Machine, Rates, Reading, Sample, SampleRate, Source, Span, WindowView};
use simulator::{Level, Place, Program, Sampler, Shape, Variable, random_program};

/// Samples of a program at random moments, and the truth of each.
fn run(program: &Program, sampler: &mut Sampler, tick_ns: f64, samples: usize) -> Vec<(SampleRate, f64)> {
    let mut rates = Rates::new(tick_ns, Machine::default());
    let mut truths = Vec::new();
    let mut stop = 2e9;
    for _ in 0..samples {
        stop += 2e7 + sampler.rng.f64() * 2e7;
        let length = sampler.rng.choice([1000, 3000, 10_000]).unwrap();
        let taken = sampler.take(program, stop, rates.words(), length);
        rates.observe(&taken.sample());
        truths.push(taken.rate);
    }
    assert_eq!(rates.len(), samples);
    rates.rates().into_iter().zip(truths).collect()
}

fn contains(estimate: &Estimate, truth: f64) -> bool {
    estimate.low <= truth && truth <= estimate.high
}

/// Of those with a source of their own: how many, how many intervals contain the truth, ratios to
/// the truth in order.
fn own(results: &[(SampleRate, f64)]) -> (usize, usize, Vec<f64>) {
    let own: Vec<(Estimate, f64)> = results
        .iter()
        .filter(|(rate, _)| rate.source.is_own())
        .map(|(rate, truth)| (rate.accesses_per_ns.unwrap(), *truth))
        .collect();
    let mut ratios: Vec<f64> = own.iter().map(|(estimate, truth)| estimate.value / truth).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    (own.len(), own.iter().filter(|(estimate, truth)| contains(estimate, *truth)).count(), ratios)
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted[((sorted.len() as f64 * q) as usize).min(sorted.len() - 1)]
}

#[test]
fn intervals_contain_the_truth() {
    let mut rng = Rng::with_seed(7);
    let mut results = Vec::new();
    for seed in 0..220 {
        let program = random_program(&mut rng, true);
        results.extend(run(&program, &mut Sampler::new(seed), 15_000.0, 12));
    }
    let (n, inside, ratios) = own(&results);
    // Speeds here have nothing to do with the model, so some are out of what it allows.
    assert!(n * 3 >= results.len() * 2, "{n} of {} have a source of their own", results.len());
    assert!(inside * 10 >= n * 9, "{inside} of {n} intervals contain the truth");
    assert!((quantile(&ratios, 0.5) - 1.0).abs() < 0.01);
    assert!(quantile(&ratios, 0.1) > 0.9 && quantile(&ratios, 0.9) < 1.1);
    // What the readings do not tell is not told with confidence.
    // (How near the model comes is for real programs to tell: these have no instructions to speak of.)
    for (rate, _) in results.iter().filter(|(rate, _)| rate.source == Source::Unknown) {
        let bracket = rate.accesses_per_ns.unwrap();
        assert!(bracket.high / bracket.low > 5.0, "{bracket:?}");
    }
}

#[test]
fn without_progress_nothing_is_known() {
    let mut rng = Rng::with_seed(8);
    let mut told = 0;
    for seed in 0..40 {
        let program = random_program(&mut rng, false);
        told += own(&run(&program, &mut Sampler::new(seed), 15_000.0, 8)).0;
    }
    assert!(told <= 3, "{told} of 320");
}

/// One loop within an endless one, which keeps its index in a register.
fn nest(trips: u64, ns: f64) -> Program {
    let index = Variable { level: 1, shape: Shape::Index, stride: 8, place: Place::Register(3) };
    Program {
        levels: vec![
            Level { trips: u64::MAX >> 24, accesses: 3, instructions: 9 },
            Level { trips, accesses: 4, instructions: 10 },
        ],
        variables: vec![index],
        phases: vec![(1_000_000, ns)],
    }
}

#[test]
fn aliases_are_not_believed() {
    // From far shorter than the intervals to about as long; windows see no wrap of the longer ones.
    for (seed, trips) in [100, 700, 5_000, 20_000, 40_000, 90_000, 200_000].into_iter().enumerate() {
        let results = run(&nest(trips, 0.5), &mut Sampler::new(seed as u64), 15_000.0, 40);
        let (n, inside, ratios) = own(&results);
        assert!(inside * 10 >= n * 9, "{trips} trips: {inside} of {n}: {ratios:?}");
    }
}

/// The touches of a word in a sweep are a round apart, and the clock is up to a quarter wrong. In a
/// program that is at other work in half of the samples nothing is counted over longer times than
/// readings show.
#[test]
fn a_round_is_counted_whatever_the_clock_says() {
    let mut other = Program { variables: Vec::new(), ..nest(1, 0.5) };
    other.levels.push(Level { trips: 10_000_000, accesses: 4, instructions: 10 });
    for (trips, phases) in [(200_000, false), (3_000_000, false), (3_000_000, true)] {
        let (program, mut sampler, mut rng) = (nest(trips, 0.5), Sampler::new(3), Rng::with_seed(4));
        let round = 3 + 4 * trips;
        let mut rates = Rates::new(15_000.0, Machine::default());
        let mut spans = Vec::new();
        for number in 0..80 {
            let stop = 2e9 + f64::from(number) * 3e7 + sampler.rng.f64() * 2e7;
            // Elsewhere: in a block of another place.
            let is_other = phases && number % 2 == 0;
            let taken = sampler.take(if is_other { &other } else { &program }, stop, rates.words(), 3000);
            rates.observe(&taken.sample());
            let at = program.access_at(stop) + 1_000;
            let cpu_ns = 0.5 * round as f64 * (0.8 + 0.45 * rng.f64());
            let (from, to) = (program.moment(at), program.moment(at + round));
            // The touches behind a reuse and behind that.
            let (error_ns, until_ns) = (8_000.0, 2.0 * cpu_ns);
            spans.push(Span { sample: number as usize, from, to, cpu_ns, error_ns, until_ns, without: 700 });
        }
        let told = rates.rates();
        let counts = rates.counts(&told);
        let counted: Vec<f64> =
            spans.iter().filter_map(|span| Some(counts.between(span)?.value / round as f64)).collect();
        if phases {
            assert!(counted.is_empty(), "{counted:?}");
        } else {
            assert!(counted.len() >= 60, "{}", counted.len());
            assert!(counted.iter().all(|rounds| (rounds - 1.0).abs() < 0.03), "{counted:?}");
        }
    }
}

/// A loop calls another now and then, where one in fifteen of its readings finds it: of its
/// accesses that is as small a part if it runs as fast, and three times as much if it is three
/// times as fast.
#[test]
fn a_round_with_another_loop_in_it_is_not_counted() {
    let program = nest(3_000_000, 0.5);
    let round = 3 + 4 * 3_000_000;
    for (other_ns, is_counted) in [(0.5, true), (0.17, false)] {
        let mut other = nest(1, other_ns);
        other.levels.push(Level { trips: 10_000_000, accesses: 4, instructions: 10 });
        other.variables[0] = Variable { level: 2, place: Place::Register(4), ..other.variables[0] };
        let mut sampler = Sampler::new(9);
        let mut rates = Rates::new(15_000.0, Machine::default());
        let mut spans = Vec::new();
        for number in 0..240_u32 {
            let stop = 2e9 + f64::from(number) * 3e7 + sampler.rng.f64() * 2e7;
            let of_other = sampler.take(&other, stop, rates.words(), 3000);
            if number % 12 == 0 {
                rates.observe(&of_other.sample());
                continue;
            }
            let taken = sampler.take(&program, stop, rates.words(), 3000);
            let mut sample = taken.sample();
            let mut readings = sample.readings.to_vec();
            if number % 3 == 0 {
                let elsewhere = of_other.sample().readings[2];
                readings[2] = Reading { ip: elsewhere.ip, registers: elsewhere.registers, ..readings[2] };
            }
            sample.readings = &readings;
            rates.observe(&sample);
            let at = program.access_at(stop) + 1_000;
            let (from, to, cpu_ns) = (program.moment(at), program.moment(at + round), 0.5 * round as f64);
            let sample = number as usize;
            spans.push(Span {
                sample,
                from,
                to,
                cpu_ns,
                error_ns: 8e3,
                until_ns: 2.0 * cpu_ns,
                without: 700,
            });
        }
        let told = rates.rates();
        let counts = rates.counts(&told);
        let counted = spans.iter().filter(|span| counts.between(span).is_some()).count();
        assert_eq!(counted > 100, is_counted, "{counted} of {} beside {other_ns} ns", spans.len());
        assert!(is_counted || counted == 0, "{counted}");
    }
}

/// Two loops take turns, at 2 and 5 accesses a nanosecond: between touches by one and by the other
/// lies what was left of the first and what was done of the second.
#[test]
fn loops_that_follow_each_other_are_counted_to_the_end_and_from_the_start() {
    let first = nest(800_000, 0.5);
    let mut second = nest(1, 0.2);
    second.levels.push(Level { trips: 300_000, accesses: 6, instructions: 10 });
    second.variables[0] = Variable { level: 2, place: Place::Register(4), ..second.variables[0] };
    let (round, next_round) = (3 + 4 * 800_000, 7 + 6 * 300_000);
    let (mut sampler, mut rng) = (Sampler::new(5), Rng::with_seed(6));
    let mut rates = Rates::new(15_000.0, Machine::default());
    let mut spans = Vec::new();
    for number in 0..120 {
        let stop = 2e9 + f64::from(number) * 3e7 + sampler.rng.f64() * 2e7;
        let program = if number % 2 == 0 { &first } else { &second };
        let taken = sampler.take(program, stop, rates.words(), 3000);
        rates.observe(&taken.sample());
        if number % 2 == 0 {
            let (done, then) =
                (rng.u64(round / 9..round / 9 * 8), rng.u64(next_round / 9..next_round / 9 * 8));
            let (from, to) = (first.moment(7 * round + done), second.moment(9 * next_round + then));
            let cpu_ns = (round - done) as f64 * 0.5 + then as f64 * 0.2;
            let span = Span {
                sample: number as usize,
                from,
                to,
                cpu_ns,
                error_ns: 8_000.0,
                // Every second one begins at the stop, whose cold caches may delay it.
                until_ns: if number % 4 == 0 { cpu_ns } else { 2.0 * cpu_ns },
                without: 700,
            };
            spans.push((span, (round - done + then) as f64));
        }
    }
    let told = rates.rates();
    let counts = rates.counts(&told);
    // By the time between them, from what the loops take.
    let counted = |time: &dyn Fn(f64) -> f64| -> Vec<(usize, f64)> {
        let one = |(span, truth): &(Span, f64)| {
            let cpu_ns = time(span.cpu_ns);
            let span = Span { cpu_ns, until_ns: span.until_ns * cpu_ns / span.cpu_ns, ..*span };
            Some((span.sample, counts.between(&span)?.value / truth))
        };
        spans.iter().filter_map(one).collect()
    };
    for times in [0.85, 1.0, 1.15] {
        let counted = counted(&|cpu_ns| cpu_ns * times);
        assert!(counted.len() >= 45, "{} with {times}", counted.len());
        assert!(counted.iter().all(|(_, ratio)| (ratio - 1.0).abs() < 0.03), "{counted:?}");
    }
    // A little more than a fifth late: only behind the stop may caches be to blame.
    let late = counted(&|cpu_ns| (cpu_ns + 40_000.0) / 0.8);
    let cold = late.iter().filter(|(number, _)| number % 4 == 0).count();
    assert!(cold >= 20 && late.len() - cold <= 3, "{late:?}");
    // Several rounds, or not those loops at all; and times that say nothing because a trap costs as much.
    assert!([0.5, 1.6, 2.5].into_iter().all(|times| counted(&|cpu_ns| cpu_ns * times).is_empty()));
    let unclear = |(span, _): &(Span, f64)| Span { error_ns: 0.2 * span.cpu_ns, ..*span };
    assert!(spans.iter().all(|span| counts.between(&unclear(span)).is_none()));
}

#[test]
fn equal_intervals_do_not_alias() {
    for (seed, trips) in [20_000, 40_000, 90_000, 130_000].into_iter().enumerate() {
        let mut sampler = Sampler::new(seed as u64);
        (sampler.shortest_ns, sampler.longest_ns) = (500_000, 500_001);
        let (n, inside, ratios) = own(&run(&nest(trips, 0.5), &mut sampler, 15_000.0, 40));
        assert!(inside * 10 >= n * 9, "{trips} trips: {inside} of {n}: {ratios:?}");
    }
}

/// A counter of the inner loop in memory.
fn counting(place: Place, trips: u64) -> Program {
    let mut program = nest(trips, 0.8);
    program.levels[1].accesses = 6;
    program.variables = vec![Variable { level: 1, shape: Shape::Running, stride: 1, place }];
    program
}

#[test]
fn a_counter_in_memory_is_found_and_read() {
    for (bits, address) in [(32, 0x7ffd_0004), (64, 0x7ffd_0008)] {
        let results = run(&counting(Place::Word { address, bits }, 50), &mut Sampler::new(3), 15_000.0, 20);
        // The first sample discovers it, the second reads it.
        for (rate, truth) in results.iter().skip(1) {
            let estimate = rate.accesses_per_ns.unwrap();
            assert_eq!(rate.source, Source::Words);
            assert!((estimate.value / truth - 1.0).abs() < 0.03 && contains(&estimate, *truth));
            let instructions = rate.instructions_per_ns.unwrap().value / estimate.value;
            assert!((instructions / (10.0 / 6.0) - 1.0).abs() < 0.05);
        }
    }
}

#[test]
fn pauses_and_ticks_do_not_count() {
    let program = counting(Place::Word { address: 0x7ffd_0000, bits: 64 }, 50);
    let error = |preempted: f64, tick_ns: f64| {
        let mut sampler = Sampler::new(5);
        sampler.preempted = preempted;
        let (n, _, ratios) = own(&run(&program, &mut sampler, tick_ns, 20));
        assert!(n >= 12);
        quantile(&ratios, 0.5) - 1.0
    };
    assert!(error(0.5, 15_000.0).abs() < 0.01);
    // Ticks not subtracted look like slowness.
    assert!(error(0.0, 0.0) < -0.015);
}

#[test]
fn a_counter_of_two_threads_is_not_used() {
    let program = counting(Place::Word { address: 0x7ffd_0000, bits: 64 }, 50);
    let mut sampler = Sampler::new(6);
    let mut rates = Rates::new(15_000.0, Machine::default());
    let mut last = SampleRate::NONE;
    for thread in [1, 2, 1, 2, 1, 2] {
        let stop = 3e9 + f64::from(thread) * 1e8;
        let taken = sampler.take(&program, stop, rates.words(), 3000);
        last = rates.observe(&Sample { thread, ..taken.sample() });
    }
    assert!(!last.source.is_own());
}

/// Two loops side by side in one function, 6 and 3 accesses a nanosecond. After each third stop in
/// the first one all readings find the thread in the second, and of stops in the second there are
/// no readings at all.
#[test]
fn readings_speak_for_the_loop_that_they_were_taken_in() {
    const BEHIND: u64 = 0x90;
    let mut sampler = Sampler::new(3);
    let [mut first, mut second] = [nest(500, 1.0 / 6.0), nest(500, 1.0 / 3.0)];
    for program in [&mut first, &mut second] {
        program.variables[0].shape = Shape::Running;
    }
    let mut rates = Rates::new(15_000.0, Machine::default());
    for n in 0..60 {
        let [here, mut there] = [&first, &second]
            .map(|program| sampler.take(program, 2e9 + 4e7 * f64::from(n), rates.words(), 3000));
        there.readings.iter_mut().for_each(|reading| reading.ip += BEHIND);
        there.window.instructions_table.iter_mut().for_each(|record| record.address += BEHIND);
        let (window, readings) = match n % 3 {
            0 => (&here.window, &here.readings[..]),
            1 => (&here.window, &there.readings[..]),
            _ => (&there.window, &[][..]),
        };
        rates.observe(&Sample { thread: 1, readings, window: Some(window.view()) });
    }
    for (n, rate) in rates.rates().into_iter().enumerate() {
        let (told, true_rate) = (rate.accesses_per_ns.unwrap().value, if n % 3 == 2 { 3.0 } else { 6.0 });
        assert!((told / true_rate - 1.0).abs() < 0.1, "{n}: {rate:?}");
        assert!(n % 3 == 0 || !rate.source.is_own(), "{n}: {rate:?}");
    }
}

#[test]
fn the_same_samples_give_the_same_rates() {
    let program = random_program(&mut Rng::with_seed(4), true);
    let once = run(&program, &mut Sampler::new(1), 15_000.0, 10);
    assert_eq!(once, run(&program, &mut Sampler::new(1), 15_000.0, 10));
}

/// Hardware counters say the rate outright, whatever else is known.
#[test]
fn counted_accesses_are_the_rate() {
    let mut rng = Rng::with_seed(4);
    let mut rates = Rates::new(5_000.0, Machine::default());
    let program = random_program(&mut rng, true);
    for round in 0..20_u64 {
        let mut taken = Sampler::new(round).take(&program, 2e9, rates.words(), 1_000);
        for (reading, n) in taken.readings.iter_mut().zip(0..) {
            (reading.time_ns, reading.switches) = (1_000_000 * n, 7);
            // 0.25 a nanosecond, less what a reading costs.
            reading.accesses = Some(248_750 * n);
        }
        let rate = rates.observe(&taken.sample());
        assert_eq!(rate.source, Source::Counters);
        let estimate = rate.accesses_per_ns.unwrap();
        assert!((estimate.value - 0.25).abs() < 1e-9 && contains(&estimate, 0.25), "{estimate:?}");
    }
}

#[test]
fn nonsense_does_no_harm() {
    let mut rng = Rng::with_seed(9);
    let mut rates = Rates::new(15_000.0, Machine::default());
    let program = random_program(&mut rng, true);
    for round in 0..60 {
        let taken = Sampler::new(round).take(&program, 2e9, rates.words(), 500);
        let mut window = taken.window;
        // Indices, sizes and lengths as another process may have left them.
        for event in &mut window.events {
            if rng.u32(0..4) == 0 {
                event.index = rng.u32(..);
                event.value = rng.u64(..);
                event.size = rng.u16(..);
            }
        }
        window.values.truncate(rng.usize(0..=window.values.len()));
        window.registers.truncate(rng.usize(0..=window.registers.len()));
        let readings: Vec<Reading> = (0..rng.usize(0..9))
            .map(|_| Reading {
                time_ns: rng.u64(..),
                switches: rng.u64(0..2),
                accesses: rng.bool().then(|| rng.u64(..)),
                ip: 0x40_1000 + rng.u64(0..0x100),
                registers: [rng.u64(..); 16],
                words: [rng.u64(..); 4],
                read: rng.u8(..),
                wanted: rng.u32(0..20),
            })
            .collect();
        let view = WindowView { instructions: rng.u64(..), accesses: rng.u64(..), ..window.view() };
        let window = rng.bool().then_some(view);
        let rate = rates.observe(&Sample { thread: rng.u32(0..2), readings: &readings, window });
        if let Some(estimate) = rate.accesses_per_ns {
            assert!(estimate.low <= estimate.value && estimate.value <= estimate.high);
        }
    }
    assert_eq!(rates.rates().len(), 60);
}
