//! Bounds in closed form, what holds of any rows, and a profile whose sweep misses too often.

use locality_estimate::estimator::Estimator;
use locality_estimate::reuse::Case;
use locality_model::testing::objects::two_objects;
use locality_model::{Load, Located, ObjectId};
use proptest::prelude::*;

use crate::objects::{Level, Line};

use super::*;

const TOUCHES: f64 = 8_000.0;

fn exactly(value: f64) -> Estimate {
    Estimate { value, low: value / 2.0, high: (value * 1.5).min(1.0), n: 3 }
}

/// Rows with these shares of the misses by line of code, at a level of so many bytes that misses
/// one touch in eight.
fn objects(bytes: u64, rows: &[&[f64]]) -> Objects {
    let line = |(place, share): (u32, &f64)| Line {
        place: PlaceId(place),
        kind: locality_model::AccessKind::Store,
        access_share: exactly(0.1),
        cpu_share: exactly(0.1),
        miss_share: vec![exactly(*share)],
    };
    let row = |(id, lines): (u32, &&[f64])| Row {
        object: Some(ObjectId(id)),
        miss_share: vec![exactly(lines.iter().sum())],
        miss_ratio: vec![0.5],
        lines: (0..).zip(*lines).map(line).collect(),
        ..Row::default()
    };
    Objects {
        levels: vec![Level { level: 1, bytes, miss_ratio: 0.125 }],
        ranked_by: Some(0),
        rows: (0..).zip(rows).map(row).collect(),
        ..Objects::default()
    }
}

/// Bounds by row and line of code, in misses.
fn bounds(rows: &[&[f64]]) -> FirstTouches {
    let most = rows.iter().enumerate().flat_map(|(row, lines)| {
        let cell = move |(place, most): (u32, &f64)| {
            ((row, PlaceId(place)), Most { value: *most, high: most * 1.2 })
        };
        (0..).zip(*lines).map(cell)
    });
    FirstTouches { most: most.collect(), unused: Some(Most { value: 1.0, high: 2.0 }), touches: TOUCHES }
}

fn held(bytes: u64, shares: &[&[f64]], most: &[&[f64]]) -> Objects {
    let mut found = objects(bytes, shares);
    bounds(most).hold(&mut found, |row| Some(row.object?.0 as usize));
    found
}

fn line(found: &Objects, object: u32, place: u32) -> Estimate {
    let row = found.rows.iter().find(|row| row.object == Some(ObjectId(object))).unwrap();
    row.lines.iter().find(|line| line.place == PlaceId(place)).unwrap().miss_share[0]
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} {expected}");
}

#[test]
fn what_a_line_of_code_cannot_miss_another_of_the_object_does() {
    let found = held(SMALLEST, &[&[0.6, 0.1], &[0.3]], &[&[100.0, 1000.0], &[400.0]]);
    near(line(&found, 0, 0).value, 0.1);
    near(line(&found, 0, 0).high, 0.12);
    near(line(&found, 0, 1).value, 0.6);
    assert_eq!((line(&found, 1, 0), found.levels[0].miss_ratio), (exactly(0.3), 0.125));
    assert_eq!(found.rows[0].miss_share[0], exactly(0.7));
    // Sorted anew.
    assert_eq!(found.rows[0].lines[0].place, PlaceId(1));
}

#[test]
fn what_no_line_of_code_has_room_for_is_no_miss() {
    let found = held(SMALLEST, &[&[0.6, 0.1], &[0.3]], &[&[100.0, 100.0], &[400.0]]);
    // 500 of 1,000 misses are left.
    near(found.levels[0].miss_ratio, 0.0625);
    let [a, b, c] = [(0, 0), (0, 1), (1, 0)].map(|(row, place)| line(&found, row, place));
    near(a.value, 0.2);
    near(b.value, 0.2);
    near(c.value, 0.6);
    near(found.rows[0].miss_share[0].value, 0.6);
    assert_eq!((found.rows[0].object, found.rows[1].object), (Some(ObjectId(1)), Some(ObjectId(0))));
    near(found.rows[1].miss_ratio[0], 0.5 * 0.2 / 0.7);
    near(found.rows[0].miss_ratio[0], 0.5);
}

#[test]
fn where_bounds_hold_or_say_nothing_all_is_as_it_was() {
    let shares: &[&[f64]] = &[&[0.6, 0.1], &[0.3]];
    assert_eq!(held(SMALLEST, shares, &[&[600.1, 101.0], &[400.0]]), objects(SMALLEST, shares));
    // A smaller cache loses lines in between.
    assert_eq!(held(SMALLEST / 2, shares, &[&[1.0, 1.0], &[1.0]]), objects(SMALLEST / 2, shares));
    let mut found = objects(SMALLEST, shares);
    FirstTouches::default().hold(&mut found, |_| Some(0));
    assert_eq!(found, objects(SMALLEST, shares));
}

#[test]
fn bounds_are_lines_per_access() {
    // A sweep over doubles, seen by more and more uses.
    let most = [8.0, 80.0, 8e6].map(|n| Most::of(1_000.0, 8_000.0, n).value / 8_000.0);
    assert!(most[0] > 0.2 && most[1] < 0.145 && (most[2] - 0.125).abs() < 1e-6, "{most:?}");
    // Each access a line, or two.
    assert_eq!(Most::of(8_000.0, 8_000.0, 100.0).value, 8_000.0);
    assert_eq!(Most::of(16_000.0, 8_000.0, 100.0).value, 16_000.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_line_of_code_has_more_than_its_bound_and_rows_are_their_lines(
        cells in prop::collection::vec(prop::collection::vec((0.0..1.0_f64, 0.0..400.0_f64), 1..5), 1..5),
    ) {
        let total: f64 = cells.iter().flatten().map(|cell| cell.0).sum();
        let part = |of: fn(&(f64, f64)) -> f64, by: f64| -> Vec<Vec<f64>> {
            cells.iter().map(|row| row.iter().map(|cell| of(cell) * by).collect()).collect()
        };
        let (shares, most) = (part(|cell| cell.0, 1.0 / total), part(|cell| cell.1, 1.0));
        let slices = |of: &[Vec<f64>]| of.iter().map(|row| row.clone().leak() as &[f64]).collect::<Vec<_>>();
        let found = held(SMALLEST, &slices(&shares), &slices(&most));
        let misses = found.levels[0].miss_ratio * TOUCHES;
        prop_assert!(misses <= 0.125 * TOUCHES * (1.0 + 1e-9));
        let mut sum = 0.0;
        for row in &found.rows {
            let lines: f64 = row.lines.iter().map(|line| line.miss_share[0].value).sum();
            prop_assert!((lines - row.miss_share[0].value).abs() < 1e-9, "{:?}", row);
            for line in &row.lines {
                let share = line.miss_share[0];
                prop_assert!(share.low <= share.value && share.value <= share.high);
                let most = most[row.object.unwrap().0 as usize][line.place.0 as usize];
                prop_assert!(share.value * misses <= most * (1.0 + 1e-9), "{} {most}", share.value * misses);
            }
            sum += lines;
        }
        prop_assert!((sum - 1.0).abs() < 1e-9 || misses < 1e-9, "{}", sum);
    }
}

/// Of a quarter of the accesses, which all seem to miss, windows show one in eight to be a first touch.
#[test]
fn the_misses_of_a_profile_are_held_to_its_first_touches() {
    let found = |profile: &Profile| {
        let (contexts, rates) = (Contexts::new(profile), Rates::of(profile));
        let case = Case::new(profile, &contexts, &rates, 64, None);
        Objects::of(profile, &contexts, &rates, &case, Estimator::default()).unwrap()
    };
    let mut profile = two_objects(60, 2, 8).profile;
    let before = found(&profile);
    assert!((before.levels[0].miss_ratio - 0.25).abs() < 0.01, "{:?}", before.levels);
    for used in profile.uses.iter().step_by(8) {
        let located = Located {
            of: Accessed::Load(LoadId(profile.loads.len() as u32)),
            object: ObjectId(1),
            offset: Some(0),
            field: None,
        };
        profile.located.push(located);
        profile.loads.push(Load {
            sample: used.sample,
            skip: 300,
            gap: None,
            access: used.access,
            line: used.address & !63,
            stack: used.stack,
            stands_for: 0.25 / 8.0,
            shown: 100,
            bursts: vec![Burst { from: 0, to: 7, touches: 8, bytes: u64::MAX }],
        });
    }
    let after = found(&profile);
    // 120 uses.
    let most = (0.125 + Z * Z / 240.0) / (1.0 + Z * Z / 120.0);
    for (level, before) in after.levels.iter().zip(&before.levels) {
        let expected = 0.25 * most;
        assert!((level.miss_ratio - expected).abs() < 0.002, "{level:?} {expected}, before {before:?}");
    }
    assert!((after.rows[0].miss_ratio[0] - most).abs() < 0.005, "{:?}", after.rows[0].miss_ratio);
    assert!(after.rows[0].miss_share[0].value > 0.99);
}
