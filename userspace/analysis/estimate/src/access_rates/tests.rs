//! Rates by hand.

use locality_model::testing::{Maker, PERIOD_NS};
use locality_model::{AccessKind, Rate, SampleId};

use super::*;

/// Samples 10 ms apart with these rates.
fn profile(rates: &[Option<f64>]) -> Profile {
    let mut make = Maker::new();
    for (index, value) in (0..).zip(rates) {
        make.sample("main a.c:1", AccessKind::Load);
        let rate =
            value.map(|value| Rate { value, low: value / 1.1, high: value * 1.1, source: "test".to_owned() });
        make.profile.windows.push(locality_model::Window {
            sample: SampleId(index),
            instructions: 2,
            accesses: 1,
            end: "whole".to_owned(),
            touches: vec![(8, 1), (64, 1)],
            rate,
        });
    }
    make.profile
}

#[test]
fn between_samples_the_rate_changes_evenly() {
    let rates = Rates::of(&profile(&[Some(1.0), Some(3.0), Some(3.0)]));
    assert_eq!(rates.unit(), Unit::Accesses);
    // The integral of 1 + 2x over the first half and over the whole of the first period.
    let half = rates.accesses(0, 0, PERIOD_NS / 2) / (PERIOD_NS as f64 / 2.0);
    assert!((half - 1.5).abs() < 1e-9, "{half}");
    assert!((rates.between(0, 0, PERIOD_NS) - 2.0).abs() < 1e-9);
    assert!((rates.between(0, 0, 2 * PERIOD_NS) - 2.5).abs() < 1e-9);
    // Near a sample it is the sample's.
    assert!((rates.between(1, PERIOD_NS, PERIOD_NS + 10) - 3.0).abs() < 1e-6);
    assert!((rates.at(0).sigma - (1.21_f64).ln() / WIDTH).abs() < 1e-9);
    let global = rates.global(&profile(&[Some(1.0), Some(3.0), Some(3.0)]));
    assert!((global.between(0, 0, PERIOD_NS) - 7.0 / 3.0).abs() < 1e-9);
}

#[test]
fn unknown_rates_are_borrowed_and_said_so() {
    let rates = Rates::of(&profile(&[Some(1.0), Some(2.0), Some(4.0), None, Some(f64::NAN)]));
    assert_eq!(rates.at(3).value, 2.0);
    assert_eq!(rates.at(4).value, 2.0);
    let shares: Vec<(&str, f64)> =
        rates.sources().iter().map(|(name, share)| (name.as_str(), *share)).collect();
    assert_eq!(shares, [("same stack", 0.4), ("test", 0.6)]);
    let none = Rates::of(&profile(&[None, None]));
    assert_eq!((none.unit(), none.at(1).value), (Unit::CpuNs, 1.0));
}

#[test]
fn rates_of_the_model_alone_are_doubted() {
    let guess = |profile: &mut Profile, at: usize| {
        let (value, source) = (9.0, UNSCALED.to_owned());
        profile.windows[at].rate = Some(Rate { value, low: value / 2.0, high: value * 2.0, source });
    };
    let mut mixed = profile(&[Some(1.0), Some(2.0), None]);
    guess(&mut mixed, 2);
    let rates = Rates::of(&mixed);
    assert!(rates.doubt().is_none() && rates.at(2).value == 9.0, "{:?}", rates.at(2));
    let mut guessed = profile(&[None, None]);
    guess(&mut guessed, 0);
    guess(&mut guessed, 1);
    let rates = Rates::of(&guessed);
    assert_eq!(rates.unit(), Unit::Accesses);
    assert!(rates.doubt().is_some_and(|doubt| (doubt - 2.0).abs() < 1e-6), "{:?}", rates.doubt());
}

/// A program that changes its work within milliseconds, sampled every hundred: what lies between
/// two samples is like all, not like the middle of the two.
#[test]
fn long_ways_go_by_the_mean_of_many_samples() {
    let values: Vec<Option<f64>> = (0..64).map(|n| Some(if n % 4 == 0 { 4.0 } else { 1.0 })).collect();
    let profile = profile(&values);
    let rates = Rates::of(&profile);
    let far = rates.between(32, 32 * PERIOD_NS, 32 * PERIOD_NS + PERIOD_NS / 2);
    let near = rates.between(32, 32 * PERIOD_NS, 32 * PERIOD_NS + LOCAL_NS as u64 / 2);
    let local = LOCAL_NS / (PERIOD_NS as f64 / 2.0);
    assert!((near - 4.0).abs() < 1e-9, "{near}");
    // The means of the sixteen others around the one sample and around the next, at a quarter of the way.
    let others = 0.75 * (4.0 * 4.0 + 12.0) / 16.0 + 0.25 * (3.0 * 4.0 + 13.0) / 16.0;
    assert!((far - (local * 4.0 + (1.0 - local) * others)).abs() < 1e-6, "{far}");
    // All of the run has the accesses that the samples stand for.
    let all = rates.accesses(0, 0, 63 * PERIOD_NS) / (63.0 * PERIOD_NS as f64);
    assert!((all - 1.75).abs() < 0.05, "{all}");
}

/// One sample of many fell into a phase of a millisecond in which the program is thirty times as
/// fast. What lies behind it is like the rest, however far, at the ends of the run too, and where
/// that begins later.
#[test]
fn a_brief_phase_does_not_make_what_is_behind_it_fast() {
    for (all, odd) in [(64_u64, 32_u64), (64, 0), (64, 3), (64, 63), (9, 4), (8, 7)] {
        let values: Vec<Option<f64>> = (0..all).map(|n| Some(if n == odd { 3.0 } else { 0.1 })).collect();
        let mut profile = profile(&values);
        for modelled in [false, true] {
            if let (true, Some(rate)) = (modelled, &mut profile.windows[odd as usize].rate) {
                rate.source = MODELLED.to_owned();
            }
            let rates = Rates::of(&profile);
            let start = odd * PERIOD_NS;
            for (from, ns) in [
                (start, PERIOD_NS / 2),
                (start, 3 * PERIOD_NS),
                (start, 31 * PERIOD_NS),
                (start + 3 * PERIOD_NS / 2, PERIOD_NS),
                (start + 20 * PERIOD_NS, PERIOD_NS),
            ] {
                let until = from + ns;
                let (rate, accesses) = (
                    rates.between(odd as usize, from, until),
                    rates.accesses_behind(odd as usize, from, until),
                );
                let cpu_ns = accesses / rate;
                let near = if modelled { BRIEF_NS } else { LOCAL_NS } - (from - start) as f64;
                let near = if cpu_ns > 0.0 { (near / cpu_ns).clamp(0.0, 1.0) } else { 1.0 };
                let expected = near * 3.0 + (1.0 - near) * 0.1;
                assert!((rate - expected).abs() < 1e-6, "{odd} of {all}, {from} {ns}: {rate}, {expected}");
            }
        }
        // Of a neighbour's way, that phase may be a part.
        if odd == 32 {
            let beside = Rates::of(&profile).between(31, 31 * PERIOD_NS, 31 * PERIOD_NS + PERIOD_NS / 2);
            assert!(beside > 0.2, "{beside}");
        }
    }
}
