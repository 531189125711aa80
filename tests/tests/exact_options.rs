//! Options of exact runs against closed forms: restriction to a function, types of data, sets,
//! optimal replacement, phases.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use locality_tests::{Tracer, build, requires};
use serde_json::Value;

const LINES: u64 = 64;
/// Stores of the loop, and the load of the constant.
const DOUBLES: u64 = 512 + 1;
const ROUNDS: u64 = 1500;

fn run(options: &[&str]) -> Value {
    of("exact_parts", options)
}

fn of(program: &str, options: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report");
    let tracer = Tracer::new().args(["exact", "--format", "json1", "--report"]).args([&file]);
    let done = tracer.args(options).args(["--"]).args([build(program)]).run();
    assert!(done.status.success(), "{}\n{}", done.status, done.stderr);
    serde_json::from_str(&std::fs::read_to_string(&file).expect("a report")).expect("JSON")
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {report:#}"))
}

/// Accesses of `around`: its loop, and the return address that `ret` loads. The return address lies
/// on a line of its own.
#[test]
fn only_the_functions_accesses_are_counted() {
    requires!(command("qemu-x86_64"));
    let report = run(&["--function", "around"]);
    assert_eq!(number(&report, "/mix/accesses"), LINES * ROUNDS + 1);
    assert_eq!(number(&report, "/reuse/64/cold"), LINES + 1);
    assert_eq!(report["run"]["functions"][0], "around");
    let frame = &report["pairs"][0]["use"]["frames"][0];
    assert_eq!(frame["function"], "around");
    let calls: Vec<&Value> = report["pairs"][0]["use"]["frames"]
        .as_array()
        .expect("frames")
        .iter()
        .map(|f| &f["function"])
        .collect();
    assert_eq!(calls[1], "main", "callers outside the function are still told: {calls:?}");
    let two = run(&["--function", "around", "--function", "doubles"]);
    assert_eq!(number(&two, "/mix/accesses"), LINES * ROUNDS + 1 + DOUBLES + 1);
}

#[test]
fn a_function_that_is_not_there_is_named() {
    requires!(command("qemu-x86_64"));
    let tracer = Tracer::new().args(["exact", "--function", "no_such_function", "--"]);
    let done = tracer.args([build("exact_parts")]).run();
    assert_eq!(done.status.code(), Some(1), "an empty report is no success");
    assert!(
        done.stderr.contains("No access was recorded. No function called `no_such_function`"),
        "{}",
        done.stderr
    );
    let one = run(&["--function", "around", "--function", "no_such_function"]);
    let notices = one["notices"].to_string();
    assert!(notices.contains("no_such_function") && !notices.contains("`around`"), "{notices}");
}

#[test]
fn sets_are_told_apart() {
    requires!(command("qemu-x86_64"));
    let report = run(&["--function", "strided", "--sets", "16"]);
    let sets = &report["reuse"]["64"]["set_associative"];
    assert_eq!(sets["sets"], 16);
    let misses = |ways: usize| number(sets, &format!("/miss_ratios/{}/misses", ways - 1));
    // Four lines in turn in one set; the return address' line may be in it, once, at the end.
    assert_eq!(misses(3), 4 * ROUNDS + 1);
    assert_eq!(misses(4), 4 + 1);
    // In 64 sets each of the four has its own.
    let report = run(&["--function", "strided", "--sets", "64"]);
    assert_eq!(number(&report, "/reuse/64/set_associative/miss_ratios/0/misses"), 4 + 1);
}

/// Belady: of `n` lines around and around, a cache of `c` misses the first `n`, and then `n - c` of
/// each `n - 1` touches. Of one type alone: granules of the second type in between do not count.
#[test]
fn a_type_of_data_is_a_stream_of_its_own() {
    requires!(command("qemu-x86_64"));
    let report = |data_type: &[&str]| {
        let options = [&["--function", "mixed", "--granularity", "8"], data_type].concat();
        of("exact_types", &options)
    };
    let misses = |report: &Value, bytes: u64| {
        let points = report["reuse"]["8"]["miss_ratio_curve"].as_array().expect("a curve");
        number(points.iter().find(|point| point["bytes"] == bytes).expect("the size"), "/misses")
    };
    let (words, rounds) = (64, 100);
    let floats = report(&["--data-type", "f64"]);
    assert_eq!(floats["run"]["data_types"], serde_json::json!(["f64"]));
    assert_eq!(number(&floats, "/mix/accesses"), words * rounds);
    assert_eq!((number(&floats, "/reuse/8/cold"), misses(&floats, 8 * words)), (words, words));
    assert_eq!(misses(&floats, 8 * words / 2), words * rounds);
    // The loop's stores of integers, and the return address.
    let integers = report(&["--data-type", "i64"]);
    assert_eq!(number(&integers, "/mix/accesses"), words * rounds + 1);
    let both = report(&[]);
    assert_eq!(number(&both, "/mix/accesses"), 2 * words * rounds + 1);
    assert_eq!(misses(&both, 8 * words), 2 * words * rounds + 1, "twice as many granules lie in between");
}

#[test]
fn the_optimum_beats_lru() {
    requires!(command("qemu-x86_64"));
    let report = run(&["--function", "around", "--optimal"]);
    let reuse = &report["reuse"]["64"];
    let at = |curve: &str, bytes: u64| {
        let points = reuse.pointer(curve).and_then(Value::as_array).expect("a curve");
        number(points.iter().find(|point| point["bytes"] == bytes).expect("the size"), "/misses")
    };
    let (lru, optimal) = ("/miss_ratio_curve", "/optimal_replacement/miss_ratio_curve");
    assert_eq!(at(lru, 32 * 64), LINES * ROUNDS + 1);
    assert_eq!(at(lru, 64 * 64), LINES + 1);
    assert_eq!(at(optimal, 64 * 64), LINES + 1);
    assert_eq!(at(optimal, 64), LINES * ROUNDS + 1);
    // A brute-force cache that looks ahead.
    let trace: Vec<u64> = (0..LINES * ROUNDS).map(|at| at % LINES).collect();
    let mut cache: Vec<u64> = Vec::new();
    let mut misses = 0;
    for (time, line) in trace.iter().enumerate() {
        if !cache.contains(line) {
            misses += 1;
            if cache.len() == 32 {
                let next = |held: &u64| (held + LINES - line) % LINES;
                let farthest = (0..32).max_by_key(|at| next(&cache[*at])).expect("a line");
                cache.swap_remove(farthest);
            }
            cache.push(trace[time]);
        }
    }
    // Lines of the last round, never touched again, may be
    // evicted sooner: an early eviction can only save misses.
    assert!(at(optimal, 32 * 64) <= misses + 1);
    assert!(at(optimal, 32 * 64) + LINES >= misses, "{} {misses}", at(optimal, 32 * 64));
}

#[test]
fn types_and_widths_are_told() {
    requires!(command("qemu-x86_64"));
    let report = run(&["--function", "doubles", "--granularity", "8,64"]);
    assert_eq!(number(&report, "/reuse/8/by_data_type/f64/touches"), DOUBLES);
    assert_eq!(number(&report, "/reuse/64/by_data_type/f64/cold"), 64 + 1);
    let report = run(&["--function", "wide"]);
    let types = &report["reuse"]["64"]["by_data_type"];
    let wide: u64 = types
        .as_object()
        .expect("types")
        .iter()
        .filter(|(name, _)| name.ends_with("vector_128"))
        .map(|(_, value)| number(value, "/touches"))
        .sum();
    assert_eq!(wide, 256, "{types:#}");
}

#[test]
fn phases_sum_to_the_whole() {
    requires!(command("qemu-x86_64"));
    let report = run(&[]);
    let phases = report["reuse"]["64"]["phases"].as_array().expect("phases");
    let sum = |field: &str| phases.iter().map(|phase| number(phase, field)).sum::<u64>();
    assert!(phases.len() >= 2, "{}", phases.len());
    assert_eq!(sum("/accesses"), number(&report, "/mix/accesses"));
    assert_eq!(sum("/touches"), number(&report, "/reuse/64/touches"));
    assert_eq!(sum("/cold"), number(&report, "/reuse/64/cold"));
}
