//! What windows and readings say of a quantity, on series made by hand.

use super::*;
use crate::steps::motion;

/// Of a program of two phases that take turns, a word counts in one only. However many windows
/// there were, a step is worth what it is in that phase.
#[test]
fn a_step_is_worth_the_same_in_a_long_trace() {
    let points: Vec<(u32, u64)> = (0..100).map(|n| (n * 10, u64::from(n))).collect();
    let moving = motion(&points, 64);
    let Motion::Moving(steps) = &moving else { panic!("{moving:?}") };
    let mut quantity = Quantity::new(steps, 64);
    for sample in 0..MOST_RECORDS as u32 * 5 {
        let (motion, speed) = if sample % 2 == 0 { (&moving, 0.4) } else { (&Motion::Constant, 0.0) };
        quantity.observe(sample, motion, (0, 1000), 1.0);
        quantity.note_speed(sample, speed, true);
        if sample >= 20 {
            let slope = quantity.slope(sample / 4, 0.4).unwrap();
            assert!((slope.value - 0.1).abs() < 0.005, "{sample}: {slope:?}");
        }
    }
    assert!(quantity.records.len() <= MOST_RECORDS);
}

/// A loop whose windows begin now in one block most often, now in another: the index that both
/// advance, by .1 and .025 an access, has a speed and a worth in each.
#[test]
fn places_of_one_loop_have_speeds_of_their_own() {
    let moving = |apart: u32| motion(&(0..9).map(|n| (n * apart, u64::from(n))).collect::<Vec<_>>(), 64);
    let Motion::Moving(steps) = moving(10) else { panic!() };
    let mut quantity = Quantity::new(&steps, 64);
    quantity.wrap = Some(100_000);
    let mut random = fastrand::Rng::with_seed(3);
    for sample in 0..120 {
        let (place, apart, speed) = if sample % 3 > 0 { (1, 10, 0.05) } else { (2, 40, 0.02) };
        quantity.observe(sample, &moving(apart), (0, 8 * apart), 1.0);
        let (ns, from) = (5e5 + 4e6 * random.f64(), random.f64() * 1e5);
        quantity.note_intervals(place, &[Interval { step: ((from + speed * ns) % 1e5 - from) as i64, ns }]);
    }
    quantity.note_intervals(3, &[Interval { step: 1, ns: 1e6 }]);
    assert_eq!(quantity.places(), [1, 2]);
    for (place, speed, worth) in [(1, 0.05, 0.1), (2, 0.02, 0.025)] {
        let told = quantity.common_speed(place, (speed / 4.0, speed * 4.0)).unwrap();
        assert!((told.speed / speed - 1.0).abs() < 0.03, "{told:?}");
        let slope = quantity.slope_of(|sample| (sample % 3 > 0) == (place == 1)).unwrap();
        assert!((slope.value / worth - 1.0).abs() < 1e-9 && slope.sigma < 0.05, "{slope:?}");
    }
    assert_eq!(quantity.slope_of(|_| false), None);
}

/// A pointer that goes through 8,000 bytes in steps of 8, up or down, its rounds seen in windows or not.
#[test]
fn a_position_is_told_between_the_ends_of_a_round() {
    let position = |falls: bool, wrap: Option<u64>, value: u64| {
        let at = |n: u64| if falls { 17_992 - n * 8 } else { 10_000 + n * 8 };
        let points: Vec<(u32, u64)> = (0..9).map(|n| (n * 10, at(u64::from(n)))).collect();
        let Motion::Moving(steps) = motion(&points, 64) else { panic!() };
        let mut quantity = Quantity::new(&steps, 64);
        (quantity.wrap, quantity.backward) = (wrap, 2);
        (0..1000).for_each(|n| quantity.note_value(at(n * 77 % 1000)));
        quantity.position(value)
    };
    // The highest of a thousand values may be one part in a thousand short of the end.
    for (wrap, error) in [(None, 8.008), (Some(8_000), 0.0)] {
        assert_eq!(position(false, wrap, 12_000), Some((2_000.0, 5_992.0, error)));
        assert_eq!(position(true, wrap, 12_000), Some((5_992.0, 2_000.0, error)));
        assert_eq!((position(false, wrap, 9_992), position(true, wrap, 18_000)), (None, None));
    }
    // Rounds of 4,000 bytes, in two arrays.
    assert_eq!(position(false, Some(4_000), 12_000), None);
}

/// A search goes through the first half of what it finds at a third of the pace of the second,
/// and at neither evenly: three quarters of its time have the slow one.
#[test]
fn a_loop_whose_pace_changes_has_the_mean() {
    let Motion::Moving(steps) = motion(&[(0, 0), (10, 1), (20, 2), (30, 3)], 64) else { panic!() };
    let mut quantity = Quantity::new(&steps, 64);
    quantity.wrap = Some(150_000);
    let (slow, fast, period) = (0.05, 0.15, 150_000.0);
    let (first, round) = (period / slow / 2.0, period / slow / 2.0 + period / fast / 2.0);
    let at = |ns: f64| {
        let (rounds, ns) = ((ns / round).floor(), ns % round);
        rounds * period + if ns < first { ns * slow } else { period / 2.0 + (ns - first) * fast }
    };
    let mut random = fastrand::Rng::with_seed(9);
    for _ in 0..MOST_INTERVALS {
        let (from, ns) = (10.0 * round * random.f64(), 1e5 + 4e5 * random.f64());
        let until = from + ns * (1.0 + 0.75 * (2.0 * random.f64() - 1.0));
        let step = (at(until) % period - at(from) % period) as i64;
        quantity.note_intervals(1, &[Interval { step, ns }]);
    }
    let bounds = (0.02, 0.3);
    let told = quantity.common_speed(1, bounds).unwrap();
    assert!((told.speed / (period / round) - 1.0).abs() < 0.2 && told.scatter > 0.3, "{told:?}");
    // Most of them fit a slower one.
    let intervals: Vec<Interval> = quantity.intervals.iter().map(|(_, interval)| *interval).collect();
    let most = common_speed(&intervals, (period, 0.0), 1.0, bounds).unwrap();
    assert!(most.speed < 0.85 * told.speed && most.score < told.score, "{most:?}");
}

/// A word that counts in every second window, in each at the same speed by the readings, which
/// follow the window: those that were read elsewhere than their window was do not make steps
/// rarer, if there are enough others.
#[test]
fn windows_of_other_work_than_the_readings_do_not_count() {
    let slope = |others_are_steady: bool| {
        let moving = motion(&[(0, 0), (10, 1), (20, 2), (30, 3)], 64);
        let Motion::Moving(steps) = &moving else { panic!("{moving:?}") };
        let mut quantity = Quantity::new(steps, 64);
        for sample in 0..40 {
            let (motion, steady) =
                if sample % 2 == 0 { (&moving, true) } else { (&Motion::Constant, others_are_steady) };
            quantity.observe(sample, motion, (0, 30), 1.0);
            quantity.note_speed(sample, 0.4, steady);
        }
        quantity.slope(20, 0.4).unwrap().value
    };
    assert!((slope(false) - 0.1).abs() < 1e-9 && (slope(true) - 0.05).abs() < 1e-9);
}

/// Of values from anywhere within a range the last of hundreds may be its highest, which takes
/// nothing from the range; one that goes on and on, or jumps, has none.
#[test]
fn a_range_that_grows_by_chance_is_still_one() {
    let mut random = fastrand::Rng::with_seed(5);
    let since = |values: &mut dyn FnMut(u64) -> u64, n: u64| {
        let mut range = Range::default();
        (0..n).for_each(|at| range.note(values(at)));
        range.since
    };
    let unsure = (0..1000)
        .filter(|set| since(&mut |_| random.u64(0..24_000_000), 200 + set % 300) < FEWEST_VALUES / 2)
        .count();
    assert!(unsure <= 10, "{unsure} of 1000");
    assert_eq!(since(&mut |at| at * 1000 + at % 3 * 1500, 500), 0);
    assert_eq!(since(&mut |at| if at < 499 { at * 77 % 100 } else { 1000 }, 500), 0);
}

/// An outer loop steps every 4,500 accesses, and windows have 600 or, one in five, 4,200.
#[test]
fn rare_steps_are_counted_in_long_windows() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut quantity: Option<Quantity> = None;
    for sample in 0..250 {
        let (start, length) = (random.u32(0..45_000), if random.u32(0..5) == 0 { 4200 } else { 600 });
        let points: Vec<(u32, u64)> =
            (0..length).step_by(3).map(|n| (n, u64::from((start + n) / 4500) * 64)).collect();
        let motion = motion(&points, 64);
        if let (None, Motion::Moving(steps)) = (&quantity, &motion) {
            quantity = Some(Quantity::new(steps, 64));
        }
        if let Some(quantity) = &mut quantity {
            quantity.observe(sample, &motion, (0, length), 1.0);
        }
    }
    let slope = quantity.and_then(|quantity| quantity.slope(120, 0.0)).unwrap();
    let off = slope.value * 4500.0 / 64.0 - 1.0;
    assert!(slope.sigma < 0.05 && off.abs() < 2.0 * slope.sigma, "{slope:?} {off}");
}

/// Windows told the step of an outer loop to a seventh; its inner loop has rounds of 4,500 accesses.
#[test]
fn an_outer_loop_steps_by_whole_rounds() {
    let points: Vec<(u32, u64)> = (0..1000).map(|n| (n * 3, u64::from(n) * 64)).collect();
    let Motion::Moving(steps) = motion(&points, 64) else { panic!() };
    let mut inner = Quantity::new(&steps, 64);
    inner.observe(0, &Motion::Moving(steps), (0, 3000), 1.0);
    assert_eq!(inner.round(0), None);
    (0..400).for_each(|n| inner.note_value(n * 97 % 1500 * 64));
    inner.backward = 2;
    let round = inner.round(0).unwrap();
    assert!((round.0 / 4500.0 - 1.0).abs() < 0.01 && round.1 < 0.05, "{round:?}");
    let Motion::Moving(steps) = motion(&[(0, 0), (10, 16)], 64) else { panic!() };
    let outer = Quantity::new(&steps, 64);
    let told = |value: f64, sigma| {
        let told = Slope { value: 16.0 / value, sigma, windows: 48 };
        outer.slope_by_rounds(told, round).map(|slope| (16.0 / slope.value / 4500.0).round())
    };
    assert_eq!(
        (told(5100.0, 0.14), told(3900.0, 0.14), told(9300.0, 0.05)),
        (Some(1.0), Some(1.0), Some(2.0))
    );
    // Another loop's, or nobody's guess.
    assert_eq!((told(6700.0, 0.05), told(40_000.0, 0.14)), (None, None));
}

/// A column of 3,000 rows takes longer than any window: one of twenty windows meets its end.
#[test]
fn one_end_of_a_round_tells_what_the_outer_step_is_worth() {
    let at = |n: u32| (n * 2, u64::from(n % 3000) * 24_800);
    let windows = [(100..260_u32), (2900..3100), (500..700)];
    let mut inner: Option<Quantity> = None;
    let mut outer: Option<Quantity> = None;
    for (sample, turns) in (0..).zip(windows) {
        let seen = (0, 400);
        let row = motion(&turns.clone().map(at).collect::<Vec<_>>(), 64);
        let column = motion(&turns.map(|n| (n * 2, u64::from(n / 3000) * 16)).collect::<Vec<_>>(), 64);
        for (quantity, motion) in [(&mut inner, &row), (&mut outer, &column)] {
            if let (None, Motion::Moving(steps)) = (&quantity, motion) {
                *quantity = Some(Quantity::new(steps, 64));
            }
            if let Some(quantity) = quantity {
                quantity.observe(sample, motion, seen, 1.0);
            }
        }
        if let (Some(outer), Motion::Moving(row), Motion::Moving(column)) = (&mut outer, row, column) {
            outer.note_beside(0, row.wraps == column.edges);
        }
    }
    let (inner, mut outer) = (inner.unwrap(), outer.unwrap());
    let slope = outer.slope_by_wraps(0, inner.round(2).unwrap()).unwrap();
    assert!((16.0 / slope.value / 6000.0 - 1.0).abs() < 0.02 && slope.sigma < 0.05, "{slope:?}");
    assert_eq!(outer.slope_by_wraps(1, (6000.0, 0.01)), None);
    outer.note_beside(0, false);
    assert_eq!(outer.slope_by_wraps(0, (6000.0, 0.01)), None);
}

/// A counter that is only stored to, once or a few times in a window: 500 steps of 3 in 50,000 accesses.
#[test]
fn steps_before_the_first_store_count() {
    let observed = |per_window: u32| {
        let mut quantity: Option<Quantity> = None;
        let (mut step, mut counted) = (0, 0);
        for sample in 0..500 / per_window {
            let points: Vec<(u32, u64)> =
                (0..per_window).map(|n| (n * 100 + counted * 7 % 100, u64::from(step + n) * 3)).collect();
            step += per_window;
            counted += 1;
            let motion = motion(&points, 64);
            if let (None, Motion::Moving(steps)) = (&quantity, &motion) {
                quantity = Some(Quantity::new(steps, 64));
            }
            if let Some(quantity) = &mut quantity {
                quantity.observe(sample, &motion, (0, per_window * 100), 1.0);
                quantity.note_unseen(sample);
            }
        }
        quantity.and_then(|quantity| quantity.slope(10, 0.0)).map(|slope| slope.value)
    };
    for per_window in [2, 4, 10] {
        let slope = observed(per_window).unwrap();
        assert!((slope - 0.03).abs() < 0.003, "{per_window}: {slope}");
    }
    // One store in each shows no step at all.
    assert_eq!(observed(1), None);
}
