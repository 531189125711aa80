//! The outside contract, field by field, and a snapshot.

use locality_model::testing::{Maker, demo};
use serde_json::{Value, json};

use super::*;

/// Field paths of the contract in docs/reference/json.md as far as they exist, with their types. `[]`
/// goes through every element.
const CONTRACT: &[(&str, &str)] = &[
    ("schema", "string"),
    ("tool_version", "string"),
    ("run.command", "string"),
    ("run.pids[]", "number"),
    ("run.started", "string"),
    ("run.wall_s", "number"),
    ("run.cpu_s", "number"),
    ("run.host.kernel", "string"),
    ("run.host.cpu", "string"),
    ("run.host.caches[].level", "number"),
    ("run.host.caches[].bytes", "number"),
    ("run.host.caches[].ways", "number"),
    ("run.host.caches[].line", "number"),
    ("run.mode", "string"),
    ("run.sources.address", "string"),
    ("run.sources.clock", "string"),
    ("overhead.budget_percent", "number"),
    ("overhead.measured_percent", "number"),
    ("overhead.by_cause.stop", "number"),
    ("overhead.by_cause.trap", "number"),
    ("overhead.by_cause.bpf", "number"),
    ("overhead.by_cause.controller", "number"),
    ("ledger.seen", "number"),
    ("ledger.filtered", "number"),
    ("ledger.submitted", "number"),
    ("ledger.received", "number"),
    ("ledger.lost", "object"),
    ("ledger.watch.armed", "number"),
    ("ledger.watch.trapped", "number"),
    ("ledger.watch.censored", "number"),
    ("ledger.watch.refused", "number"),
    ("ledger.balanced", "boolean"),
    ("reuse.8.time.unit", "string"),
    ("reuse.8.time.bins[].low", "number"),
    ("reuse.8.time.bins[].high", "number"),
    ("reuse.8.time.bins[].fraction", "number"),
    ("reuse.8.time.bins[].ci95[]", "number"),
    ("reuse.8.time.n", "number"),
    ("pairs[].use.frames[].function", "string"),
    ("pairs[].use.frames[].module", "string"),
    ("pairs[].use.frames[].address", "number"),
    ("pairs[].use.frames[].inlined", "boolean"),
    ("pairs[].reuse.frames[].function", "string"),
    ("pairs[].use.place.file", "string"),
    ("pairs[].use.place.line", "number"),
    ("pairs[].weight", "number"),
    ("pairs[].weight_ci95[]", "number"),
    ("pairs[].n", "number"),
    ("pairs[].time_median.value", "number"),
    ("pairs[].time_median.unit", "string"),
    ("hot.by_function[].share", "number"),
    ("hot.by_line[].ci95[]", "number"),
    ("not_reused.fraction", "number"),
    ("threads.seen", "number"),
    ("notices", "array"),
    ("partial", "boolean"),
];

/// The same of a profile with windows and data objects.
const WITH_WINDOWS: &[(&str, &str)] = &[
    ("run.estimator", "string"),
    ("reuse.8.time.unit", "string"),
    ("reuse.8.stack.bins[].fraction", "number"),
    ("reuse.64.miss_ratio_curve[].ratio", "number"),
    ("reuse.64.at_caches[].level", "number"),
    ("reuse.64.cold_fraction", "number"),
    ("reuse.8.cross_check.estimator", "string"),
    ("reuse.8.cross_check.s", "number"),
    ("reuse.8.cross_check.largest_difference.difference", "number"),
    ("reuse.8.cross_check.largest_difference.outside_ci95", "boolean"),
    ("windows.n", "number"),
    ("windows.ends", "object"),
    ("windows.uses_confirmed.value", "number"),
    ("windows.reuses_counted.value", "number"),
    ("windows.rate_sources", "object"),
    ("windows.accesses_per_ns", "number"),
    ("windows.accesses_per_ns_ci95[]", "number"),
    ("windows.accesses_per_ns_factor_of_doubt", "null"),
    ("objects[].name", "string"),
    ("objects[].kind", "string"),
    ("objects[].access_share", "number"),
    ("objects[].miss_share.L1", "number"),
    ("objects_summary.unknown_share", "number"),
    ("cache_use.levels[].level", "string"),
    ("cache_use.levels[].lines_loaded", "number"),
    ("cache_use.levels[].spatial_loss_bytes_ci95[]", "number"),
    ("cache_use.by_loading_line[].function", "string"),
    ("cache_use.by_loading_line[].file", "string"),
    ("cache_use.by_loading_line[].line", "number"),
    ("cache_use.by_loading_line[].ci95[]", "number"),
    ("cache_use.by_loading_line[].used_bytes_per_line", "number"),
    ("cache_use.by_loading_line[].callers[].function", "string"),
    ("cache_use.by_loading_line[].contexts[].spatial_loss_bytes", "number"),
    ("cache_use.by_function[].self", "number"),
    ("cache_use.by_function[].inclusive_ci95[]", "number"),
    ("cache_use.by_function[].lines_loaded.self", "number"),
    ("cache_use.by_object[].name", "string"),
    ("cache_use.by_object[].access_count", "number"),
    ("cache_use.unknown_caller.spatial_loss_bytes.L1", "number"),
    ("cache_use.balanced", "boolean"),
];

/// What a live profile never measures, and what one without windows and objects does not.
const NEVER: &[&str] = &["mix", "advice"];
const WITHOUT_WINDOWS: &[&str] = &["windows", "objects", "objects_summary", "cache_use"];

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// All values at a path.
fn at<'a>(value: &'a Value, path: &str) -> Vec<&'a Value> {
    path.split('.').fold(vec![value], |values, step| {
        let name = step.trim_end_matches("[]");
        let fields = values.into_iter().map(|value| value.get(name).unwrap_or(&Value::Null));
        if step.ends_with("[]") {
            fields.flat_map(|field| field.as_array().expect(path)).collect()
        } else {
            fields.collect()
        }
    })
}

fn has(report: &Value, contract: &[(&str, &str)]) {
    for (path, expected) in contract {
        let values = at(report, path);
        // Notices may be empty, everything else must have been seen.
        assert!(!values.is_empty(), "{path} is nowhere");
        for value in values {
            assert_eq!(type_name(value), *expected, "{path}");
        }
    }
}

fn report(profile: &Profile) -> Value {
    // Through text, as a reader gets it.
    serde_json::from_str(&print(profile, &Findings::of(profile))).unwrap()
}

#[test]
fn every_contract_field_is_there_with_its_type() {
    let report = report(&demo());
    has(&report, CONTRACT);
    for field in NEVER.iter().chain(WITHOUT_WINDOWS) {
        assert!(report.get(field).is_none(), "{field} is faked");
    }
    assert!(report["reuse"]["8"].get("stack").is_none());
    assert!(report["run"]["sources"].get("rate").is_none());
    assert!(report.get("empty").is_none());
}

#[test]
fn a_profile_with_windows_and_objects_has_more() {
    use locality_model::{Accessed, LoadId, Located, Object, ObjectId, UseId};
    let mut profile = locality_model::testing::loops::windowed();
    let kind = ObjectKind::Heap;
    profile.objects = vec![Object { kind, name: "matrix".to_owned(), ..Object::default() }];
    let uses = (0..profile.uses.len() as u32).map(|id| Accessed::Use(UseId(id)));
    let loads = (0..profile.loads.len() as u32).map(|id| Accessed::Load(LoadId(id)));
    let located = |of| Located { of, object: ObjectId(0), offset: None, field: None };
    profile.located = uses.chain(loads).map(located).collect();
    let report = report(&profile);
    has(&report, WITH_WINDOWS);
    for field in NEVER {
        assert!(report.get(field).is_none(), "{field} is faked");
    }
}

#[test]
fn the_values_are_those_of_the_findings() {
    let report = report(&demo());
    assert_eq!(report["schema"], "locality-report/1");
    assert_eq!(report["run"]["started"], "2023-11-14T22:13:20Z");
    let pairs = report["pairs"].as_array().unwrap();
    let weights: Vec<f64> = pairs.iter().map(|pair| pair["weight"].as_f64().unwrap()).collect();
    assert!(weights.is_sorted_by(|a, b| a >= b));
    assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    let first = &pairs[0];
    assert_eq!((&first["use"]["place"]["line"], &first["reuse"]["place"]["line"]), (&json!(31), &json!(44)));
    assert_eq!(first["use"]["frames"][0]["function"], "fill");
    assert_eq!(first["common_ancestor"]["function"], "run");
    assert_eq!((&first["far"], &first["near"]), (&json!(true), &json!(false)));
    let bins = report["reuse"]["8"]["time"]["bins"].as_array().unwrap();
    let sum: f64 = bins.iter().map(|bin| bin["fraction"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9);
    assert_eq!((&bins[0]["low"], &bins[0]["high"]), (&json!(0), &json!(16_384)));
    assert_eq!(pairs[2]["use"]["place"]["via"], "memcpy");
    assert!(first.get("object").is_none());
    assert!(report["overhead"]["by_cause"].get("heap").is_none());
}

/// What `/2` has since is no part of `/1`.
#[test]
fn earlier_reports_have_no_verdict_advice_loops_and_kernel_time() {
    let profile = locality_model::testing::loops::windowed();
    let findings = Findings::of(&profile);
    let mut full = super::report(&profile, &findings);
    assert!(full.verdict.is_some());
    full.advice = Some(Vec::new());
    full.advice_none = Some("Nothing to save.".to_owned());
    full.kernel_time = Some(crate::schema::loops::KernelTime::default());
    full.loops = Some(Vec::new());
    let new = ["advice", "advice_none", "kernel_time", "loops", "verdict"];
    let keys = |report: &Report| serde_json::to_value(report).unwrap().as_object().unwrap().clone();
    assert!(new.iter().all(|field| keys(&full).contains_key(*field)));
    let mut cut = full.clone();
    as_earlier(&mut cut, &findings);
    assert_eq!(page(&cut), print(&profile, &findings));
    assert!(new.iter().all(|field| !keys(&cut).contains_key(*field)));
    let tables = |report: &mut Report| crate::top::tables(report, None);
    tables(&mut full);
    assert!(new.iter().all(|field| keys(&full).contains_key(*field)));
}

#[test]
fn probes_of_allocations_are_a_cause_of_their_own() {
    let mut profile = demo();
    profile.overhead.heap_ns = Some(profile.overhead.bpf_ns / 2);
    let causes = &report(&profile)["overhead"]["by_cause"];
    let (heap, bpf) = (causes["heap"].as_f64().unwrap(), causes["bpf"].as_f64().unwrap());
    assert!(heap > 0.0 && (heap - bpf / 2.0).abs() < 1e-12, "{causes}");
}

#[test]
fn a_call_path_that_is_cut_says_why() {
    let mut make = Maker::new();
    let reused = "sum a.c:5 < total a.c:10";
    make.reuse("fill a.c:3 < main a.c:9", reused, 40_000);
    let stack = make.stack(reused);
    make.profile.stacks[stack.0 as usize].cut = Some("the copied part of the stack ended".to_owned());
    let report = report(&make.balanced());
    for pair in [&report["pairs"][0], &report["pairs"][0]["contexts"][0]] {
        assert_eq!(pair["reuse"]["cut"], "the copied part of the stack ended", "{pair:#}");
        assert_eq!(pair["reuse"]["frames"].as_array().unwrap().len(), 2, "{pair:#}");
        assert!(pair["use"].get("cut").is_none(), "{pair:#}");
    }
}

/// A pair is of one object where one alone matters; between places that several have, each has its own.
#[test]
fn pairs_name_their_object() {
    use locality_model::{Accessed, Located, Object, ObjectId, WatchId};
    let on = |objects: &[u32]| {
        let mut make = Maker::new();
        let kind = ObjectKind::Heap;
        let named = |name: &str| Object { kind, name: name.to_owned(), ..Object::default() };
        make.profile.objects = ["cells", "rows", "other"].map(named).to_vec();
        for (watch, object) in (0..).zip(objects) {
            make.reuse("fill a.c:3 < main a.c:9", "sum a.c:5 < main a.c:10", 40_000);
            let (of, object) = (Accessed::WatchUse(WatchId(watch)), ObjectId(*object));
            make.profile.located.push(Located { of, object, offset: None, field: None });
        }
        let report = report(&make.balanced());
        let pairs = report["pairs"].as_array().unwrap().iter();
        pairs.map(|pair| (pair["object"].clone(), pair["n"].as_u64().unwrap())).collect::<Vec<_>>()
    };
    let told = on(&[1, 1, 0, 1]);
    assert_eq!(
        told.iter().map(|(object, n)| (&object["name"], *n)).collect::<Vec<_>>(),
        [(&Value::from("rows"), 3), (&Value::from("cells"), 1)]
    );
    // One in twelve is not worth a pair.
    let told = on(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!((told.len(), told[0].1), (1, 12));
    assert!((told[0].0["share"].as_f64().unwrap() - 11.0 / 12.0).abs() < 1e-9);
}

#[test]
fn an_imbalance_and_emptiness_are_said() {
    let mut profile = Maker::new().balanced();
    profile.ledger.lost = vec![("ring full".to_owned(), 2), ("ring full".to_owned(), 3)];
    let report = report(&profile);
    assert_eq!(report["ledger"]["balanced"], false);
    assert_eq!(report["ledger"]["lost"]["ring full"], 5);
    assert!(report["ledger"]["imbalance"].as_str().unwrap().starts_with("seen 11000 ≠"));
    assert!(report["empty"].as_str().unwrap().starts_with("Nothing was sampled"));
    assert_eq!(report["pairs"], json!([]));
}

#[test]
fn the_ledger_of_a_trace_that_was_cut_short_is_not_known() {
    let mut make = Maker::new();
    make.reuse("fill a.c:3", "sum a.c:5", 40_000);
    make.profile.partial = true;
    let report = report(&make.profile);
    for number in ["balanced", "seen", "received"] {
        assert!(report["ledger"][number].is_null(), "{number}: {}", report["ledger"]);
    }
    assert!(report["ledger"]["watch"]["armed"].is_null());
    assert!(report["ledger"].get("imbalance").is_none());
}

#[test]
fn the_demo_report() {
    let mut make = Maker::new();
    for n in 0..3 {
        make.reuse("fill a.c:3 < main a.c:9", "sum a.c:5 < main a.c:10", 40_000 + n);
    }
    let profile = make.balanced();
    insta::assert_snapshot!(print(&profile, &Findings::of(&profile)));
}
