//! Rollups of profiles whose samples are known.

use locality_model::merge::Merger;
use locality_model::testing::{Maker, PERIOD_NS, loops};
use locality_model::{Group, GroupId, Profile};

use super::*;

/// A profile of loops whose samples take turns between two groups.
fn two_groups() -> Profile {
    let mut merger = Merger::default();
    (0..4).for_each(|_| merger.add(loops::windowed(), |_| true).unwrap());
    let mut profile = merger.finish();
    for (index, sample) in profile.samples.iter_mut().enumerate() {
        sample.group = Some(GroupId(index as u32 % 2));
    }
    let comm = |comm: &str| Group { comm: comm.to_owned(), ..Group::default() };
    profile.groups = vec![comm("a"), comm("b")];
    profile
}

fn row(ratio: f64, half: f64, touches: f64, windows: u64) -> Row {
    let (low, high) = (ratio - half, ratio + half);
    let bytes = 1 << 20;
    Row {
        group: "g".to_owned(),
        windows,
        curve_windows: windows,
        touches: Some(touches),
        accesses: Some(touches),
        curve: vec![Point { bytes, ratio, low, high, sampling_low: low, sampling_high: high }],
        places: vec![("f a.c:1".to_owned(), touches * ratio)],
        ..Row::default()
    }
}

#[test]
fn groups_have_the_time_of_their_samples() {
    let profile = two_groups();
    let rollup = of(&profile, &Keys { by: By::Comm, cgroups: Vec::new() });
    assert_eq!(rollup.rows.iter().map(|row| row.samples).sum::<u64>(), profile.samples.len() as u64);
    let names: Vec<&str> = rollup.rows.iter().map(|row| row.group.as_str()).collect();
    assert!(names.contains(&"a") && names.contains(&"b"), "{names:?}");
    let cpu: f64 = rollup.rows.iter().map(|row| row.cpu_ns.sum()).sum();
    let periods: u64 = profile.samples.iter().map(|sample| sample.period_ns).sum();
    assert!((cpu - periods as f64).abs() < 1.0, "{cpu}");
    for row in &rollup.rows {
        assert!(row.windows >= FEWEST, "{row:?}");
        assert!(
            row.curve.windows(2).all(|pair| pair[0].bytes < pair[1].bytes && pair[0].ratio >= pair[1].ratio)
        );
        assert!(
            row.curve.iter().all(|point| point.low <= point.ratio && point.ratio <= point.high),
            "{row:?}"
        );
        assert!(row.curve.iter().any(|point| point.bytes == PLACE_SIZE), "{row:?}");
        let placed: f64 = row.places.iter().map(|(_, bytes)| bytes).sum();
        let loaded = row.loaded_bytes(PLACE_SIZE).unwrap();
        assert!(placed <= loaded * (1.0 + 1e-9), "{placed} of {loaded}");
    }
    let json = serde_json::to_string(&rollup).unwrap();
    let read: Rollup = serde_json::from_str(&json).unwrap();
    // The last digit of a number may differ.
    assert_eq!((&read.health, read.rows.len()), (&rollup.health, rollup.rows.len()));
    for (read, row) in read.rows.iter().zip(&rollup.rows) {
        assert_eq!((&read.group, read.windows, read.curve.len()), (&row.group, row.windows, row.curve.len()));
        assert!((read.touches.unwrap() / row.touches.unwrap() - 1.0).abs() < 1e-12);
    }
}

#[test]
fn processes_with_one_name_are_one_group() {
    let mut profile = two_groups();
    for (group, program) in profile.groups.iter_mut().zip(["/x/a", "/y/a"]) {
        (group.comm, group.program) = ("same".to_owned(), program.to_owned());
    }
    let rollup = of(&profile, &Keys { by: By::Exe, cgroups: Vec::new() });
    assert_eq!(rollup.rows.len(), 1);
    assert_eq!((rollup.rows[0].group.as_str(), rollup.rows[0].who.comm.as_str()), ("a", "same"));
    let mut whole = profile.clone();
    whole.samples.iter_mut().for_each(|sample| sample.group = Some(GroupId(0)));
    let at_once = of(&whole, &Keys { by: By::Exe, cgroups: Vec::new() });
    assert_eq!(rollup.rows[0].curve, at_once.rows[0].curve);
}

#[test]
fn few_windows_have_no_curve() {
    let mut maker = Maker::new();
    for _ in 0..10 {
        maker.sample("walk demo.c:31 < main demo.c:60", locality_model::AccessKind::Load);
    }
    maker.profile.samples.iter_mut().for_each(|sample| sample.group = Some(GroupId(0)));
    maker.profile.groups = vec![Group { comm: "x".to_owned(), ..Group::default() }];
    let rollup = of(&maker.profile, &Keys::default());
    let row = &rollup.rows[0];
    assert_eq!((row.samples, row.windows, row.curve.len(), row.accesses), (10, 0, 0, None));
    assert_eq!(row.cpu_ns.registers, 10.0 * PERIOD_NS as f64);
    assert!(of(&Profile::default(), &Keys::default()).rows.is_empty());
}

#[test]
fn ratios_are_weighed_by_touches_and_intervals_shrink_by_squares() {
    let rows = [row(0.2, 0.04, 3.0, 40), row(0.4, 0.04, 1.0, 40)];
    let sum = merged("g", &rows).unwrap();
    let point = sum.curve[0];
    assert!((point.ratio - 0.25).abs() < 1e-12, "{point:?}");
    let half = (0.12_f64.powi(2) + 0.04_f64.powi(2)).sqrt() / 4.0;
    assert!(
        (point.high - point.ratio - half).abs() < 1e-12 && (point.ratio - point.low - half).abs() < 1e-12
    );
    let loaded: f64 = rows.iter().map(|row| row.loaded_bytes(1 << 20).unwrap()).sum();
    assert!((sum.loaded_bytes(1 << 20).unwrap() - loaded).abs() < 1e-9);
    // In any order and in any grouping.
    let (a, b, c) = (row(0.1, 0.01, 2.0, 30), row(0.3, 0.02, 5.0, 30), row(0.9, 0.05, 1.0, 30));
    let left = merged("g", [&merged("g", [&a, &b]).unwrap(), &c]).unwrap();
    let right = merged("g", [&c, &merged("g", [&b, &a]).unwrap()]).unwrap();
    let at_once = merged("g", [&a, &b, &c]).unwrap();
    for other in [&left, &right] {
        for (x, y) in [
            (other.curve[0].ratio, at_once.curve[0].ratio),
            (other.curve[0].low, at_once.curve[0].low),
            (other.curve[0].high, at_once.curve[0].high),
            (other.places[0].1, at_once.places[0].1),
        ] {
            assert!((x - y).abs() < 1e-12, "{other:?} {at_once:?}");
        }
        assert_eq!((other.windows, other.curve_windows), (90, 90));
    }
    assert_eq!(merged("g", []), None);
}

#[test]
fn segments_of_few_windows_have_a_curve_together() {
    let rows = [row(0.2, 0.1, 1.0, 20), row(0.4, 0.1, 1.0, 12), Row { windows: 40, ..Row::default() }];
    let sum = merged("g", &rows).unwrap();
    assert!(!rows[0].is_known() && sum.is_known());
    assert_eq!((sum.windows, sum.curve_windows), (72, 32));
    assert!(!merged("g", &rows[1..]).unwrap().is_known());
}

#[test]
fn what_errs_alike_in_all_stays_as_wide() {
    let wide = |ratio: f64| {
        let mut row = row(ratio, 0.1, 1.0, 40);
        row.curve[0].sampling_low = ratio;
        row.curve[0].sampling_high = ratio;
        row
    };
    let rows: Vec<Row> = (0..16).map(|_| wide(0.5)).collect();
    let point = merged("g", &rows).unwrap().curve[0];
    assert!((point.high - 0.6).abs() < 1e-12 && (point.low - 0.4).abs() < 1e-12, "{point:?}");
}

#[test]
fn the_small_are_one_row_and_few_windows_hide_a_curve() {
    let named = |name: &str, row: Row| Row { group: name.to_owned(), ..row };
    let rows = [
        named("big", row(0.2, 0.1, 1.0, 40)),
        named("s1", row(0.4, 0.1, 1.0, 20)),
        named("s2", row(0.6, 0.1, 1.0, 20)),
    ];
    let kept = without_small(&rows, |name| name == "big");
    assert_eq!(kept.iter().map(|row| row.group.as_str()).collect::<Vec<_>>(), ["big", OTHER]);
    assert!((kept[1].curve[0].ratio - 0.5).abs() < 1e-12);
    let few = without_small(&rows[..2], |name| name == "big");
    assert!(few[1].curve.is_empty(), "{few:?}");
}

#[test]
fn a_working_set_is_the_least_cache_that_suffices() {
    let point = |bytes, ratio: f64, half: f64| Point {
        bytes,
        ratio,
        sampling_low: ratio - half,
        sampling_high: ratio + half,
        ..Point::default()
    };
    let of = |half| Row {
        curve: vec![
            point(1 << 10, 0.9, half),
            point(1 << 15, 0.5, half),
            point(1 << 20, 0.16, half),
            point(1 << 25, 0.12, half),
            point(1 << 30, 0.1, half),
        ],
        ..Row::default()
    };
    assert_eq!(of(0.0).working_set(0.05), Some((1 << 25, 1 << 25, 1 << 25)));
    assert_eq!(of(0.0).working_set(0.1), Some((1 << 20, 1 << 20, 1 << 20)));
    assert_eq!(of(0.02).working_set(0.05), Some((1 << 25, 1 << 20, 1 << 30)));
    assert_eq!(of(0.5).working_set(0.05), Some((1 << 25, 1 << 10, 1 << 30)));
    assert_eq!(Row::default().working_set(0.05), None);
}

#[test]
fn a_footprint_is_typical_and_no_noise_raises_it() {
    let of = |footprint| Row { footprint_bytes: Some(footprint), ..row(0.2, 0.1, 1.0, 40) };
    let mb = |value: f64, low: f64, high: f64| of((value * 1e6, low * 1e6, high * 1e6));
    let noisy = [mb(85.0, 40.0, 300.0), mb(288.0, 0.0, 50e3), mb(70.0, 35.0, 250.0)];
    assert_eq!(merged("g", &noisy).unwrap().footprint_bytes, Some((85e6, 35e6, 300e6)));
    // More segments, with the same errors: the same value.
    let many: Vec<Row> = noisy.iter().cycle().take(30).cloned().collect();
    assert_eq!(merged("g", &many).unwrap().footprint_bytes, Some((85e6, 35e6, 300e6)));
    let two = merged("g", [&mb(10.0, 0.0, 40.0), &mb(40.0, 20.0, 90.0)]).unwrap().footprint_bytes.unwrap();
    assert!((two.0 - 20e6).abs() < 1.0 && two.1 == 0.0 && (two.2 - 60e6).abs() < 1.0, "{two:?}");
    let none = Row { footprint_bytes: None, ..noisy[0].clone() };
    assert_eq!(merged("g", [&none, &noisy[0]]).unwrap().footprint_bytes, noisy[0].footprint_bytes);
    assert_eq!(merged("g", [&none]).unwrap().footprint_bytes, None);
    // Groups have different memory.
    let named = |name: &str| Row { group: name.to_owned(), ..noisy[0].clone() };
    let rest = without_small(&[named("big"), named("s1"), named("s2")], |name| name == "big");
    assert!(rest[0].footprint_bytes.is_some() && rest[1].footprint_bytes.is_none(), "{rest:?}");
}
