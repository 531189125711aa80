//! `locality-bpf compare` of a live profile with an exact report of the same program: values in a
//! common unit get numbers, the rest get a sentence with both units.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

use locality_tests::{Target, Tracer, build, live::alone, requires};
use serde_json::Value;

/// Granularities of both reports.
const GRANULARITY: &str = "8,64";

fn live(file: &Path) -> Value {
    let _alone = alone();
    let target = Target::start("two_loops", &[]);
    Tracer::attach(target.pid(), "3").args(["--overhead", "3", "-o"]).args([file]).report()
}

fn exact(file: &Path) -> Value {
    let tracer = Tracer::new().args(["exact", "-q", "--format", "json", "--granularity", GRANULARITY, "-o"]);
    // The program runs until a signal ends the run.
    let tracer = tracer.args([file]).args(["--report", "/dev/stdout", "--", "timeout", "-s", "TERM", "2"]);
    let done = tracer.args([build("two_loops")]).run();
    assert_eq!(done.status.code(), Some(124), "{}", done.stderr);
    let stored = std::fs::read_to_string(file).expect("a stored report");
    serde_json::from_str(&stored).expect("JSON")
}

#[test]
fn a_live_profile_and_an_exact_report() {
    requires!(root, btf, watchpoints(2), command("qemu-x86_64"), command("timeout"));
    let folder = tempfile::tempdir().expect("a folder");
    let (profile, report) = (folder.path().join("t.locality"), folder.path().join("exact.json"));
    let (live, exact) = (live(&profile), exact(&report));
    for (a, b, left, right) in [(&profile, &report, &live, &exact), (&report, &profile, &exact, &live)] {
        let done = Tracer::new().args(["compare", "--format", "json"]).args([a, b]).run();
        let common: Vec<&str> = ["8", "64"]
            .into_iter()
            .filter(|bytes| !left["reuse"][bytes].is_null() && !right["reuse"][bytes].is_null())
            .collect();
        assert!(!common.is_empty(), "{left:#}");
        let units = |bytes: &str, part: &str| {
            let unit = |report: &Value| report["reuse"][bytes][part]["unit"].as_str().map(str::to_owned);
            (unit(left), unit(right))
        };
        let alike = |bytes: &str, part: &str| {
            let (a, b) = units(bytes, part);
            a.is_some() && a == b
        };
        let some = common.iter().any(|bytes| alike(bytes, "time") || alike(bytes, "stack"));
        if !some {
            done.assert_refused(
                1,
                &["cannot compare", "time distances in", "cpu_ns", "accesses", "two live traces"],
            );
            continue;
        }
        assert!(done.status.success(), "{}", done.stderr);
        let found: Value = serde_json::from_str(&done.stdout).expect("JSON");
        for bytes in common {
            for part in ["time", "stack"] {
                let row = &found["granularity"][bytes][part];
                let (a, b) = units(bytes, part);
                if alike(bytes, part) {
                    let s = row["s"].as_f64().unwrap_or(-1.0);
                    assert!((0.0..=1.0).contains(&s) && row["s_hat"].as_f64() >= Some(s), "{row}");
                } else {
                    let why = row["not_compared"].as_str().unwrap_or_default();
                    let told = [a, b]
                        .into_iter()
                        .flatten()
                        .all(|unit| why.contains(&unit) || why.starts_with("no "));
                    assert!(told && !why.is_empty(), "{row}");
                }
            }
        }
    }
}
