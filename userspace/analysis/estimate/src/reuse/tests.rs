//! Whole estimates on programs whose reuse is known in closed form, and independence of the order of rows.

use locality_model::testing::{Maker, PERIOD_NS};
use locality_model::{Access, AccessKind, Outcome, Rate, Seen, Use, UseId, Watch, Window};

use super::*;

/// A loop over `granules` words, a word an access, seen in windows of `window` accesses; what a
/// window does not show a watch does, 1 access a nanosecond.
fn looped(granules: u64, window: u64) -> Profile {
    in_turn(&[granules], window)
}

/// The same of several loops that take turns, each at a line of its own.
fn in_turn(loops: &[u64], window: u64) -> Profile {
    let mut make = Maker::new();
    make.profile.run.distance_resolution_ns = 0;
    for n in 0..40 * loops.len() as u32 {
        let number = n as usize % loops.len();
        let (granules, line) = (loops[number], format!("main a.c:{}", number + 1));
        let sample = make.sample(&line, AccessKind::Load);
        let stack = make.stack(&line);
        let rate = Rate { value: 1.0, low: 0.97, high: 1.03, source: "test".to_owned() };
        make.profile.windows.push(Window {
            sample,
            instructions: 2 * window,
            accesses: window,
            end: "whole".to_owned(),
            touches: vec![(8, window), (64, window)],
            rate: Some(rate),
        });
        for skip in 0..4 {
            let access = Access { ip: 1, address: 0x8000 + 8 * skip, size: 8, kind: AccessKind::Load };
            let seen = if skip + granules < window {
                Seen::Reused { distance: granules, access, stack }
            } else {
                Seen::Open { accesses: window - 1 - skip }
            };
            let seen = vec![(8, seen), (64, seen)];
            make.profile.uses.push(Use { sample, skip, access, address: access.address, stack, seen });
        }
        if granules + 3 >= window {
            let touch = locality_model::Touch {
                time_ns: u64::from(n) * PERIOD_NS + granules,
                ..make.touch(&line, AccessKind::Load)
            };
            make.profile.watches.push(Watch {
                sample,
                of_use: Some(UseId(4 * n)),
                address: 0x8000,
                bytes: 8,
                armed_ns: u64::from(n) * PERIOD_NS,
                ended_ns: touch.time_ns,
                use_touch: None,
                use_confirmed: true,
                outcome: Outcome::Reused { touch, distance_ns: granules, accesses: None },
                p_arm: 0.25,
                p_survive: 1.0,
                threads_armed: 1,
                threads_alive: 1,
            });
        }
    }
    make.profile
}

#[test]
fn loops_that_take_turns_fill_a_cache_each_in_its_own_time() {
    let profile = in_turn(&[4, 400], 1_000);
    let (contexts, rates) = (Contexts::new(&profile), Rates::of(&profile));
    let case = Case::new(&profile, &contexts, &rates, 8, None);
    let masses = case.masses(Estimator::default());
    let fills = case.stretches().fill_times(&masses, 100.0);
    let of_sample = |sample: usize| {
        let bins = &fills[case.stretches().of_sample[sample]];
        let mut times: Vec<u64> = bins.iter().map(|bin| scale::low(*bin)).collect();
        times.sort_unstable();
        times
    };
    // The large loop at once, the small one when the program has left it: after a part of the
    // 40,000 accesses that windows show of it at least.
    for sample in 0..80 {
        let times = of_sample(sample);
        let expected = if sample % 2 == 1 { 98..103 } else { 4_000..u64::MAX };
        assert!(times.iter().all(|time| expected.contains(time)), "{sample}: {times:?}");
    }
    let stack = case.stretches().stack_distances(&masses);
    assert!((stack.at_least(396.0) / stack.reuses() - 0.5).abs() < 0.01, "{stack:?}");
    assert!((stack.at_least(4.0) / stack.reuses() - 0.5).abs() < 0.01, "{stack:?}");
    // One loop alone is a run in stretches of time as before.
    let profile = in_turn(&[4], 1_000);
    let (contexts, rates) = (Contexts::new(&profile), Rates::of(&profile));
    let case = Case::new(&profile, &contexts, &rates, 8, None);
    assert!(case.stretches().all.iter().all(|stretch| stretch.stays.0.is_infinite() && stretch.region == 0));
}

fn estimate(profile: &Profile, estimator: Estimator) -> Reuse {
    let (contexts, rates) = (Contexts::new(profile), Rates::of(profile));
    Case::new(profile, &contexts, &rates, 8, None).estimate(estimator, 10)
}

#[test]
fn a_loop_has_one_distance_however_it_was_seen() {
    for (granules, window) in [(100, 1_000), (5_000, 1_000)] {
        for estimator in Estimator::ALL {
            let found = estimate(&looped(granules, window), estimator);
            let bin = found.time.iter().find(|bin| (bin.low..bin.high).contains(&granules)).unwrap();
            assert!((bin.fraction.value - 1.0).abs() < 1e-9, "{estimator} {granules}: {found:?}");
            assert_eq!(found.cold.value, 0.0);
            let median = found.median.value;
            assert!((median / granules as f64 - 1.0).abs() < 0.02, "{median}");
            // A loop over 100 words fits 1 KiB and misses 512 bytes each time.
            let fits = 8 * granules.next_power_of_two();
            let at = |bytes| found.at(bytes).unwrap().ratio;
            assert!(at(fits).value < 0.01 && at(fits / 4).value > 0.99, "{estimator} {:?}", found.curve);
            assert!(at(fits).low <= at(fits).value && at(fits).value <= at(fits).high);
            assert!(found.half_width().unwrap() > 0.0);
            // Nothing is cold, but the loop has touched what it comes back to.
            let footprint = found.footprint_bytes.value / (8 * granules) as f64;
            assert!((footprint - 1.0).abs() < 0.05, "{estimator} {footprint}");
        }
    }
}

/// Each watch was reused, so no use is known to outlive every cache: a cache that the run never fills
/// has a miss ratio of 0, as sure as 40 samples make the ratio.
#[test]
fn a_cache_that_is_never_full_hardly_misses() {
    let found = estimate(&looped(50_000, 1_000), Estimator::KaplanMeier);
    let never_full = found.curve.last().unwrap().ratio;
    for share in [never_full, found.cold] {
        assert!(share.value == 0.0 && (0.02..0.1).contains(&share.high), "{share:?}");
    }
}

/// Where accesses were counted, neither the rate nor the clock decides.
#[test]
fn counted_distances_are_not_converted() {
    let mut profile = looped(5_000, 1_000);
    let at = |profile: &Profile, granules: u64| {
        let found = estimate(profile, Estimator::KaplanMeier);
        found
            .time
            .iter()
            .find(|bin| (bin.low..bin.high).contains(&granules))
            .map_or(0.0, |bin| bin.fraction.value)
    };
    for watch in &mut profile.watches {
        if let Outcome::Reused { distance_ns, accesses, .. } = &mut watch.outcome {
            (*distance_ns, *accesses) = (40, Some(5_000));
        }
    }
    assert!((at(&profile, 5_000) - 1.0).abs() < 1e-9);
    for watch in &mut profile.watches {
        if let Outcome::Reused { accesses, .. } = &mut watch.outcome {
            *accesses = None;
        }
    }
    assert_eq!(at(&profile, 5_000), 0.0);
}

/// Rows of watches in any order: the same numbers (ARCHITECTURE invariant 4).
#[test]
fn the_order_of_watches_does_not_matter() {
    let profile = looped(5_000, 1_000);
    let mut turned = profile.clone();
    turned.watches.reverse();
    assert_eq!(estimate(&profile, Estimator::KaplanMeier), estimate(&turned, Estimator::KaplanMeier));
}

#[test]
fn nothing_gives_nothing() {
    let mut profile = looped(100, 1_000);
    profile.uses.clear();
    profile.samples.clear();
    let found = estimate(&profile, Estimator::KaplanMeier);
    assert_eq!((found.n, found.half_width()), (0, None));
}

/// The run's rate is as sure as its samples' rates are, and as they are alike; where nothing was
/// measured the doubt says so.
#[test]
fn the_rate_of_the_run_has_an_interval() {
    let rate = |profile: &Profile| {
        let (contexts, rates) = (Contexts::new(profile), Rates::of(profile));
        let rate = Case::new(profile, &contexts, &rates, 8, None).rate();
        rate.map(|rate| (rate.value, rate.high / rate.value, rate.low * rate.high / rate.value.powi(2)))
    };
    let mut profile = looped(100, 1000);
    let (value, sure, even) = rate(&profile).unwrap();
    assert!((value - 1.0).abs() < 1e-9 && (even - 1.0).abs() < 1e-9, "{value} {even}");
    assert!(sure > 1.004 && sure < 1.06, "{sure}");
    // Half of the run is four times as fast: which half is drawn more often says more than the
    // readings' errors.
    for window in profile.windows.iter_mut().step_by(2) {
        window.rate = Some(Rate { value: 4.0, low: 3.9, high: 4.1, source: "test".to_owned() });
    }
    let (value, unlike, _) = rate(&profile).unwrap();
    assert!((value - 2.5).abs() < 0.2 && unlike > 1.1, "{value} {unlike}");
    for window in &mut profile.windows {
        let source = crate::access_rates::UNSCALED.to_owned();
        window.rate = Some(Rate { value: 1.0, low: 1.0 / 3.0, high: 3.0, source });
    }
    let (_, doubted, _) = rate(&profile).unwrap();
    assert!(doubted >= 3.0 - 1e-9, "{doubted}");
    profile.windows.iter_mut().for_each(|window| window.rate = None);
    assert_eq!(rate(&profile), None);
}

/// The other estimator agrees where all is seen, and not where watches of other distances were
/// withdrawn more often.
#[test]
fn another_estimator_checks() {
    let check = |profile: &Profile, estimator: Estimator| {
        let (contexts, rates) = (Contexts::new(profile), Rates::of(profile));
        let case = Case::new(profile, &contexts, &rates, 8, None);
        case.cross_check(estimator, &case.estimate(estimator, REPLICATES)).unwrap()
    };
    let mut profile = looped(10_000, 1_000);
    let same = check(&profile, Estimator::KaplanMeier);
    assert_eq!((same.estimator, same.outside), (Estimator::HorvitzThompson, false), "{same:?}");
    assert!(same.s > 0.99 && same.largest.2.abs() < 0.01, "{same:?}");
    assert_eq!(check(&profile, Estimator::HorvitzThompson).estimator, Estimator::KaplanMeier);
    // Half of the watches see a reuse ten times as late, and claim that they were as likely to be
    // withdrawn as not to see it.
    for watch in profile.watches.iter_mut().step_by(2) {
        if let Outcome::Reused { touch, distance_ns, .. } = &mut watch.outcome {
            touch.time_ns += 9 * *distance_ns;
            *distance_ns *= 10;
        }
        watch.ended_ns = watch.armed_ns + 100_000;
        watch.p_survive = 0.05;
    }
    let other = check(&profile, Estimator::KaplanMeier);
    assert!(other.s < 0.8 && other.outside && other.largest.2.abs() > 0.2, "{other:?}");
}

#[test]
fn words_are_no_more_bytes_than_their_lines() {
    let of =
        |value, low, high| Reuse { footprint_bytes: Estimate { value, low, high, n: 1 }, ..Reuse::default() };
    let mut both = [of(400.0, 100.0, 900.0), of(100.0, 50.0, 300.0)];
    agree(&mut both);
    let [words, lines] = both.map(|reuse| reuse.footprint_bytes);
    assert_eq!((words.value, words.low, words.high), (200.0, 100.0, 300.0));
    assert_eq!((lines.value, lines.low, lines.high), (200.0, 100.0, 300.0));
    let mut unknown = [of(400.0, 100.0, 900.0), of(0.0, 0.0, 0.0)];
    agree(&mut unknown);
    assert_eq!(unknown[0].footprint_bytes.value, 400.0);
}
