//! Tests of rates: what readings and models say together.

use super::*;
use crate::{
    speed_fit::Interval,
    steps::{Motion, motion},
};

fn kept(region: u64, steady: bool) -> Kept {
    let shape = Shape { model: 1.0, instructions: 2.0, waiting: 0.0 };
    Kept { steady, ..Kept::new(region, shape) }
}

/// The tail of a queue has a steady speed while a search finds much, but what a step is worth
/// differs from window to window; the head's registers differ less in the sum of both.
#[test]
fn what_counts_finds_does_not_speak_for_the_rounds() {
    let agreed = |rate: f64, scatter: f64, off: f64| {
        let common = Common { speed: rate / 10.0, score: 20.0, scatter };
        Agreed::new(common, Slope { value: 0.1, sigma: off / 10.0, windows: 100 }).unwrap()
    };
    let tail = agreed(0.4, 0.16, 0.45);
    let middle = |agreed: &[Agreed]| middle(agreed.to_vec()).map(|one| one.rate.value);
    let told = middle(&[tail, agreed(1.0, 0.3, 0.3), agreed(1.2, 0.4, 0.35)]);
    assert!(told.is_some_and(|rate| (rate - 1.0).abs() < 1e-9), "{told:?}");
    // An index that is exact outweighs them all.
    let index = agreed(2.0, 0.03, 0.0);
    assert_eq!(middle(&[tail, index, agreed(1.0, 0.3, 0.3)]), Some(index.rate.value));
    assert_eq!(middle(&[]), None);
}

/// An index that two places advance, at 2 and 5 accesses a nanosecond and a tenth of a step an access.
#[test]
fn places_of_one_index_keep_speeds_that_differ() {
    let moving = motion(&(0..9).map(|n| (n * 10, u64::from(n))).collect::<Vec<_>>(), 64);
    let Motion::Moving(steps) = &moving else { panic!() };
    let mut quantity = Quantity::new(steps, 64);
    quantity.wrap = Some(1_000_000);
    let mut rates = Rates::new(0.0, Machine::default());
    let mut random = fastrand::Rng::with_seed(8);
    for number in 0..160 {
        let (place, rate) = if number % 2 == 0 { (1, 2.0) } else { (2, 5.0) };
        quantity.observe(number, &moving, (0, 80), 1.0);
        let (ns, from) = (5e4 + 4e5 * random.f64(), random.f64() * 1e6);
        let went = 0.1 * rate * (0.7 + 0.6 * random.f64()) * ns;
        quantity.note_intervals(place, &[Interval { step: ((from + went) % 1e6 - from) as i64, ns }]);
        rates.samples.push(kept(place, true));
    }
    for place in [1, 2] {
        rates.shapes.insert(place, Shape { model: 3.0, ..kept(place, true).shape });
    }
    rates.quantities.push(quantity);
    let common = rates.common(&Scale::default());
    let told = |place: u64| common.get(&place).map_or(0.0, |agreed| agreed.rate.value);
    assert!((told(1) / 2.0 - 1.0).abs() < 0.15 && (told(2) / 5.0 - 1.0).abs() < 0.15, "{common:?}");
}

/// A program of two phases: place 1 runs at 4 accesses a nanosecond, place 2 at 1. Samples of
/// place 1 that were read in place 2 must not make place 1 slow.
#[test]
fn a_rate_is_that_of_the_place_where_it_was_read() {
    let mut learnt = LearnedRates::default();
    for (number, (steady, rate)) in
        [(true, 4.0), (false, 1.0), (false, 1.1), (true, 4.1), (false, 1.0), (true, 3.9)]
            .into_iter()
            .enumerate()
    {
        learnt.learn(number as u32, &kept(1, steady), Estimate::within(rate, 0.05));
    }
    let told = |steady: bool, own: Option<f64>| {
        let own = own.map(|rate| (Estimate::within(rate, 0.05), Source::Registers));
        let rate = learnt.settle(9, &kept(1, steady), own);
        (rate.accesses_per_ns.unwrap().value, rate.source)
    };
    let (rate, source) = told(true, Some(4.2));
    assert!((4.1..=4.2).contains(&rate) && source == Source::Registers, "{rate}");
    // The timing model, which says .9, counts a little.
    let (rate, source) = told(false, Some(1.0));
    assert!((3.6..4.2).contains(&rate) && source == Source::Region, "{rate}");
    assert!((3.6..4.2).contains(&told(false, None).0));
    // What agrees is believed wherever it was read, and a place of which nothing better is known too.
    assert_eq!(told(false, Some(3.8)).1, Source::Registers);
    let elsewhere = learnt.settle(9, &kept(5, false), Some((Estimate::within(1.0, 0.05), Source::Registers)));
    assert_eq!(elsewhere.source, Source::Registers);
}

/// Of a hundred samples of a place four fit a loop's register by chance, or twenty do, or four agree.
#[test]
fn few_fits_of_what_comes_round_are_chance() {
    let points: Vec<(u32, u64)> = (0..9).map(|n| (n * 10, u64::from(n))).collect();
    let Motion::Moving(steps) = motion(&points, 64) else { panic!() };
    let left = |fits: usize, wrap: Option<u64>, apart: f64| {
        let mut rates = Rates::new(0.0, Machine::default());
        let mut quantity = Quantity::new(&steps, 64);
        quantity.wrap = wrap;
        rates.quantities.push(quantity);
        let evidence = vec![Evidence { quantity: 0, tracks: Vec::new(), is_word: false }];
        let kept = Kept { evidence, ..kept(1, true) };
        let fit = |n: u32| Some((Estimate::within(1.0 + f64::from(n) * apart, 0.1), Source::Registers));
        let telling = |number: u32| Telling {
            number,
            kept: &kept,
            is_elsewhere: false,
            rate: fit(number).filter(|_| (number as usize) < fits),
        };
        let mut told: Vec<_> = (0..100).map(telling).collect();
        // What readings from elsewhere fit is as good as that.
        told.push(Telling { is_elsewhere: true, rate: fit(100), ..telling(100) });
        rates.forget_chance_fits(&mut told, &BTreeMap::new());
        told.iter().filter(|telling| telling.rate.is_some()).count()
    };
    let scattered = [left(4, Some(50), 0.2), left(20, Some(50), 0.2), left(4, None, 0.2)];
    assert_eq!((scattered, left(4, Some(50), 0.0)), ([0, 21, 5], 5));
}
