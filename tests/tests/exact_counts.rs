//! The exact engine against closed forms: loops of known lengths, in static, dynamic and
//! position-independent programs.
//!
//! The loops' accesses are known exactly; accesses at the start and end of the process are not, and
//! a run of the same program with empty loops is subtracted.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use locality_tests::{Tracer, build, requires};
use serde_json::Value;

const WORDS: u64 = 4096;

fn run(file: &std::path::Path, rounds: [u64; 3]) -> Value {
    let file = file.to_str().expect("a path in UTF-8");
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let rounds = rounds.map(|n| n.to_string());
    let mut tracer = Tracer::new()
        .args(["exact", "--granularity", "8,64", "--format", "json1", "--report"])
        .args([&report]);
    tracer = tracer.args(["--", file, &rounds[0], &rounds[1], &rounds[2]]);
    let done = tracer.run();
    assert!(done.status.success(), "{}\n{}", done.status, done.stderr);
    serde_json::from_str(&std::fs::read_to_string(&report).expect("a report")).expect("JSON")
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {report:#}"))
}

/// Misses of a fully associative LRU cache of `bytes` bytes.
fn misses(report: &Value, granule: &str, bytes: u64) -> u64 {
    let curve = report["reuse"][granule]["miss_ratio_curve"].as_array().expect("a curve");
    let point = curve.iter().find(|point| point["bytes"] == bytes);
    number(point.unwrap_or_else(|| panic!("no {bytes} in {curve:?}")), "/misses")
}

fn counts_are_those_of_the_loops(file: &str) {
    let program = build("exact_kernel").with_file_name(file);
    let nothing = run(&program, [0, 0, 0]);
    let report = run(&program, [100, 50, 300]);
    let more = |path: &str| number(&report, path) - number(&nothing, path);
    let (loads, stores, walks) = (100 * WORDS, 50 * WORDS, 300 * WORDS / 8);
    // `atoi` reads longer numbers.
    let slack = 200;
    let near = |seen: u64, exact: u64| assert!(seen.abs_diff(exact) <= slack, "{seen} for {exact}");
    near(more("/mix/accesses"), loads + stores + walks);
    // About four instructions a load (add to the index, compare, load, branch): at least two.
    assert!(more("/mix/instructions") > 2 * (loads + stores + walks));
    for (granule, first) in [("8", WORDS), ("64", WORDS / 8)] {
        near(more(&format!("/reuse/{granule}/cold")), first);
        near(more(&format!("/reuse/{granule}/touches")), loads + stores + walks);
    }
    // Lines: 512 of the array. Within a line 7 of 8 accesses reuse the line at once; the rest come
    // back after the other 511 lines, so they miss any cache below 32 KiB and hit one of 64 KiB.
    let far = 100 * 512 + 50 * 512 + 300 * 512;
    let more_misses = |bytes| misses(&report, "64", bytes) - misses(&nothing, "64", bytes);
    near(more_misses(16 << 10), far);
    near(misses(&report, "64", 1 << 20) - misses(&nothing, "64", 1 << 20), 512);
    // The heaviest pair of lines is the loop of loads, as use and as reuse.
    let source = locality_tests::programs::source("exact_kernel");
    let text = std::fs::read_to_string(source).expect("the source");
    let line = 1 + text.lines().position(|line| line.contains("/* loads */")).expect("the loop") as u64;
    let pair = &report["pairs"][0];
    for end in ["use", "reuse"] {
        assert_eq!(pair[end]["frames"][0]["function"], "main");
        assert_eq!(pair[end]["frames"][0]["line"], line, "{pair:#}");
    }
    assert_eq!(number(pair, "/n"), loads - 512, "each line's first touch is no reuse");
}

#[test]
fn dynamic_program() {
    requires!(command("qemu-x86_64"));
    counts_are_those_of_the_loops("exact_kernel");
}

#[test]
fn position_independent_program() {
    requires!(command("qemu-x86_64"));
    counts_are_those_of_the_loops("pie");
}

#[test]
fn static_program() {
    requires!(command("qemu-x86_64"));
    counts_are_those_of_the_loops("static");
}
