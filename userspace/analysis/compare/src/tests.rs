//! Metric properties, the paper's example, and reports of every kind of wrong.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::curve::{Curve, difference};
use super::reports::{Report, Unfit, compare};
use super::*;

fn exact(counts: &[(u64, u32)]) -> Distances {
    Distances::exact(counts.iter().map(|&(d, w)| (d, w.into())), 0.0).unwrap()
}

#[test]
fn the_papers_example() {
    // RDX §V.A: two bins, all reuses in one of them here and in the other there: S = 0.
    assert_eq!(equation_1(&[1.0, 0.0], &[0.0, 1.0]), 0.0);
    // Eq. 2 on the same: a single average, equal for both.
    assert_eq!(equation_2(&[1.0, 0.0], &[0.0, 1.0]), 1.0);
    // One of three bins off by one: eq. 1 counts all of it, eq. 2 less.
    assert_eq!(equation_1(&[0.5, 0.5, 0.0], &[0.5, 0.0, 0.5]), 0.5);
    assert_eq!(equation_2(&[0.5, 0.5, 0.0], &[0.5, 0.0, 0.5]), 0.875);
}

#[test]
fn the_sliding_window_is_the_papers() {
    // Bins of RDX: .6 .3 0 .1 0 … and .6 0 .4 0 0 …; averages of neighbours .45 .15 .05 .05 0 and
    // .3 .2 .2 0 0. Eq. 1: 1 − (.3 + .4 + .1) / 2; eq. 2: 1 − (.15 + .05 + .15 + .05) / 2.
    let found = of(&exact(&[(7, 6), (4096, 3), (16_384, 1)]), &exact(&[(0, 6), (8192, 4)])).unwrap();
    assert!((found.s - 0.6).abs() < 1e-12 && (found.s_hat - 0.8).abs() < 1e-12, "{found:?}");
}

#[test]
fn bins_are_those_of_the_paper() {
    // 20 bins: all below 4K is one, all from 1G up is one.
    let found = |a, b| of(&exact(&[(a, 1)]), &exact(&[(b, 1)])).unwrap().s;
    assert_eq!((found(0, 4095), found(4095, 4096), found(4096, 8191)), (1.0, 0.0, 1.0));
    assert_eq!((found(8191, 8192), found((1 << 30) - 1, 1 << 30), found(1 << 30, 1 << 50)), (0.0, 0.0, 1.0));
}

#[test]
fn long_reuses_are_renormalised() {
    let found = of(&exact(&[(1, 98), (5000, 1), (9000, 1)]), &exact(&[(1, 90), (5000, 10)])).unwrap();
    assert!((found.s - (1.0 - (0.08 + 0.09 + 0.01) / 2.0)).abs() < 1e-12);
    assert!((found.s_long.unwrap() - 0.5).abs() < 1e-12);
    assert_eq!(of(&exact(&[(1, 1)]), &exact(&[(2, 1)])).unwrap().s_long, None);
    assert_eq!(of(&exact(&[(1, 1)]), &exact(&[(2, 1), (5000, 1)])).unwrap().s_long, Some(0.0));
    assert_eq!(of(&exact(&[]), &exact(&[(1, 1)])), None);
}

#[test]
fn a_coarse_first_bin_is_the_common_one() {
    let bar = |low, high, weight| Bar { low, high, weight };
    let coarse = Distances::new(vec![bar(0, 16_384, 0.5), bar(16_384, 32_768, 0.5)], 0.0).unwrap();
    let fine = exact(&[(1, 1), (5000, 1), (20_000, 2)]);
    let found = of(&coarse, &fine).unwrap();
    // Edges 1 to 8192 are unknown to the coarse one.
    assert_eq!((found.s, found.s_log2, found.dropped_edges), (1.0, 1.0, 14));
    assert_eq!(of(&fine, &coarse), Some(found));
}

#[test]
fn curves_differ_by_their_definition() {
    let curve = |points: &[(f64, f64)]| Curve::new(points.to_vec()).unwrap();
    let a = curve(&[(64.0, 1.0), (128.0, 0.5), (256.0, 0.25)]);
    let b = curve(&[(64.0, 1.0), (256.0, 0.0)]);
    assert_eq!((a.at(1.0), a.at(128.0), a.at(1e9), b.at(128.0)), (1.0, 0.5, 0.25, 0.5));
    let found = difference(&a, &b, 64).unwrap();
    assert_eq!((found.sizes, found.worst), (3, (0.25, 256)));
    assert!((found.mean - 0.25 / 3.0).abs() < 1e-12);
    assert!(Curve::new(vec![(64.0, 1.5)]).is_none() && Curve::new(vec![]).is_none());
    // Stack distances 0, 0, 1, 3 and a cold touch.
    let stack = Distances::exact([(0, 2.0), (1, 1.0), (3, 1.0)], 1.0).unwrap();
    let of = Curve::of(&stack, 8).unwrap();
    assert_eq!([8.0, 16.0, 32.0, 1e6].map(|bytes| (of.at(bytes) * 5.0).round()), [3.0, 2.0, 1.0, 1.0]);
}

/// A report as a file has it.
fn read(report: &Value) -> Result<Report, Unfit> {
    let read = locality_report::schema::read(report.to_string().as_bytes());
    super::reports::read(&read.map_err(|why| Unfit::of(why).unwrap())?)
}

fn report(grains: Value) -> Value {
    json!({ "schema": "locality-report/1", "reuse": grains })
}

fn histogram(unit: &str, bins: &[(u64, u64, f64)]) -> Value {
    let bins: Vec<Value> = bins
        .iter()
        .map(|(low, high, fraction)| json!({ "low": low, "high": high, "fraction": fraction }))
        .collect();
    json!({ "unit": unit, "bins": bins, "n": 100 })
}

#[test]
fn reports_are_compared_by_granularity() {
    let near = histogram("granules", &[(0, 1, 0.5), (1, 2, 0.25), (2, 4, 0.25)]);
    let far = histogram("granules", &[(0, 1, 0.5), (1, 2, 0.5)]);
    let time = histogram("accesses", &[(1, 2, 1.0)]);
    let a = report(json!({
        "8": { "time": time },
        "64": { "time": time, "stack": near, "cold_fraction": 0.5 },
    }));
    let b = report(json!({ "64": { "time": time, "stack": far, "cold_fraction": 0.5 } }));
    let found = compare(&read(&a).unwrap(), &read(&b).unwrap()).unwrap();
    assert_eq!((found.rows.len(), found.rows[0].bytes, found.unmatched.clone()), (1, 64, vec![8]));
    let row = &found.rows[0];
    assert_eq!(row.time.as_ref().unwrap().0.s_log2, 1.0);
    assert_eq!(row.stack.as_ref().unwrap().0.s_log2, 0.75);
    // Miss ratios, half cold: 0.75, 0.625, 0.5 and 0.75, 0.5, 0.5 at 1, 2 and 4 granules.
    let misses = row.misses.as_ref().unwrap();
    assert_eq!((misses.sizes, misses.worst), (3, (0.125, 128)));
    let page = print::text(&found, "a.json", "b.json");
    for said in ["64-byte stack", "0.7500", "at 128 bytes", "granularity of 8 bytes"] {
        assert!(page.contains(said), "{said} in {page}");
    }
    let value = serde_json::to_value(print::value(&found, "a.json", "b.json")).unwrap();
    assert_eq!(value["granularity"]["64"]["stack"]["s_log2"], 0.75);
    assert_eq!(value["granularity"]["64"]["time"]["s_long"], Value::Null);
}

#[test]
fn what_is_no_report_says_so() {
    let said = |report: &Value| read(report).unwrap_err().to_string();
    assert!(said(&json!([1, 2])).contains("is no report of locality-bpf"));
    assert!(said(&json!({ "schema": "locality-report/9" })).contains("has schema \"locality-report/9\""));
    assert!(said(&report(json!({}))).contains("no reuses"));
    assert!(said(&json!({ "schema": "locality-report/1" })).contains("no reuses"));
    let mut empty = report(json!({}));
    empty["empty"] = json!("Nothing was sampled.");
    assert!(said(&empty).contains("Nothing was sampled."));
    let faults = [
        (json!({ "x": {} }), "reuse.x"),
        (json!({ "0": {} }), "reuse.0"),
        (json!([]), "expected a map"),
        (json!({ "8": { "time": { "bins": [] } } }), "no unit"),
        (json!({ "8": { "time": { "unit": "accesses" } } }), "no bins"),
        (json!({ "8": { "time": { "unit": "accesses", "bins": [{ "low": 1 }] } } }), "a bin without"),
        (json!({ "8": { "time": histogram("accesses", &[(4, 4, 1.0)]) } }), "is empty"),
        (json!({ "8": { "stack": histogram("granules", &[(0, 4, 0.5), (2, 8, 0.5)]) } }), "overlap"),
        (json!({ "8": { "time": histogram("accesses", &[(0, 4, -1.0)]) } }), "no number of reuses"),
        (json!({ "8": { "time": histogram("accesses", &[(0, 4, 0.5)]) } }), "sum to 0.500"),
        (json!({ "8": { "miss_ratio_curve": [{ "bytes": 8, "ratio": 2 }] } }), "a ratio from 0 to 1"),
    ];
    for (grains, expected) in faults {
        let said = said(&report(grains));
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn unlike_reports_are_refused() {
    let with = |bytes: &str, unit: &str| {
        read(&report(json!({ bytes: { "time": histogram(unit, &[(1, 2, 1.0)]) } }))).unwrap()
    };
    let refused = compare(&with("8", "accesses"), &with("64", "accesses")).unwrap_err();
    assert_eq!(refused, Unfit::Granules(vec![8], vec![64]));
    let refused = compare(&with("8", "accesses"), &with("8", "cpu_ns")).unwrap_err().to_string();
    assert!(refused.contains("in accesses in A, in cpu_ns in B"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn s_is_a_similarity(
        a in proptest::collection::vec((0..40_u32, 1..9_u32), 1..20),
        b in proptest::collection::vec((0..40_u32, 1..9_u32), 1..20),
        c in proptest::collection::vec((0..40_u32, 1..9_u32), 1..20),
        scale in 1..50_u32,
    ) {
        let of_bits = |bits: &[(u32, u32)]| exact(&bits.iter().map(|&(bit, w)| (1 << bit, w)).collect::<Vec<_>>());
        let (x, y, z) = (of_bits(&a), of_bits(&b), of_bits(&c));
        let own = of(&x, &x).unwrap();
        prop_assert_eq!((own.s, own.s_hat, own.s_log2, own.dropped_edges), (1.0, 1.0, 1.0, 0));
        prop_assert!(own.s_long.is_none_or(|s| s == 1.0));
        let (xy, yx) = (of(&x, &y).unwrap(), of(&y, &x).unwrap());
        prop_assert!((xy.s - yx.s).abs() + (xy.s_hat - yx.s_hat).abs() + (xy.s_log2 - yx.s_log2).abs() < 1e-12);
        let all = [xy.s, xy.s_hat, xy.s_log2, xy.s_long.unwrap_or(0.0)];
        prop_assert!(all.iter().all(|s| (0.0..=1.0).contains(s)));
        // Averages of neighbours forgive, and finer bins tell more apart.
        prop_assert!(xy.s_hat >= xy.s - 1e-12 && xy.s_log2 <= xy.s + 1e-12);
        // 1 − S is half the L1 norm: the triangle inequality.
        let (yz, xz) = (of(&y, &z).unwrap(), of(&x, &z).unwrap());
        prop_assert!(1.0 - xz.s <= 2.0 - xy.s - yz.s + 1e-12);
        // Only shares count.
        let scaled: Vec<(u32, u32)> = b.iter().map(|&(bit, w)| (bit, w * scale)).collect();
        prop_assert!((of(&x, &of_bits(&scaled)).unwrap().s - xy.s).abs() < 1e-12);
    }
}
