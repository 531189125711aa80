//! Groups of processes: CPU time and misses of each program in each cgroup.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::process::Command;

use locality_tests::programs::build;
use locality_tests::{Cgroup, Target, Tracer, live, or_skip, requires};
use serde_json::Value;

/// Groups of a report by program name.
fn by_name(report: &Value) -> BTreeMap<&str, &Value> {
    let rows = report["groups"]["rows"].as_array().unwrap();
    rows.iter().map(|row| (row["comm"].as_str().unwrap(), row)).collect()
}

/// Miss ratio at a level, with the interval's bounds.
fn misses(group: &Value, level: u64) -> (f64, f64, f64) {
    let points = group["miss_ratios"].as_array().unwrap_or_else(|| panic!("{group:#}"));
    let point = points.iter().find(|point| point["level"] == level).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    (number(&point["ratio"]), number(&point["ci95"][0]), number(&point["ci95"][1]))
}

#[test]
fn programs_of_a_cgroup_have_their_own_rows() {
    requires!(root, btf, watchpoints(4));
    let cgroup = or_skip!(Cgroup::unified());
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    // One walks memory by columns, the second stays within a few lines.
    let start = |program: &str, arguments: &[&str]| cgroup.target(program, arguments);
    let _programs = [start("column_walk", &[]), start("two_loops", &["60"]), start("two_loops", &["60"])];
    let profile = folder.path().join("t.locality");
    let mut tracer = Tracer::new().args(["-q", "-d", "12", "--overhead", "5", "--format", "json"]);
    tracer =
        tracer.args(["--cgroup".as_ref(), cgroup.folder().as_os_str(), "-o".as_ref(), profile.as_os_str()]);
    let report = tracer.report();
    let groups = by_name(&report);
    assert_eq!(
        groups.keys().copied().collect::<Vec<_>>(),
        ["column_walk", "two_loops"],
        "{:#}",
        report["groups"]
    );
    let sum: f64 = groups.values().map(|group| group["cpu_share"]["value"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    for (name, processes) in [("column_walk", 1), ("two_loops", 2)] {
        let group = groups[name];
        assert_eq!(group["processes"], processes, "{group:#}");
        assert!(group["program"].as_str().unwrap().ends_with(&format!("/{name}")), "{group:#}");
        let path = group["cgroup"].as_str().unwrap();
        assert!(cgroup.folder().to_str().unwrap().ends_with(path) && path.len() > 1, "{path}");
        assert!(group["coverage"]["windows"].as_f64().unwrap() > 0.5, "{group:#}");
    }
    // `two_loops` loads a line of eight words at a time from beyond the cache. `column_walk` does
    // the same, but for one access in nine, which walks by columns and misses each time.
    let (loops, loops_low, loops_high) = misses(groups["two_loops"], 1);
    let (walk, walk_low, walk_high) = misses(groups["column_walk"], 1);
    assert!((loops - 1.0 / 8.0).abs() < 0.03 && loops_low <= loops && loops <= loops_high, "{loops}");
    assert!((walk - 2.0 / 9.0).abs() < 0.08 && walk_low <= walk && walk <= walk_high, "{walk}");
    assert!(walk > loops, "{walk} and {loops}");
    let text = Tracer::new().args(["report".as_ref(), profile.as_os_str()]).run().stdout;
    assert!(
        text.contains("What ran") && text.contains("column_walk") && text.contains("LLC misses"),
        "{text}"
    );
}

#[test]
fn a_process_that_becomes_another_program_has_two_groups() {
    requires!(root, btf, watchpoints(4));
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    let script = "echo ready $$; n=0; while test $n -lt 3000000; do n=$((n + 1)); done; exec \"$0\" 60";
    shell.args(["-c", script]).arg(build("two_loops"));
    let target = Target::start_command(shell);
    let tracer = Tracer::new().args(["-q", "-d", "8", "--overhead", "5", "--format", "json"]);
    let tracer = tracer.args(["-p", &target.pid().to_string()]);
    let report = tracer.args([std::path::Path::new("-o"), &folder.path().join("t.locality")]).report();
    let groups = by_name(&report);
    assert_eq!(groups.keys().copied().collect::<Vec<_>>(), ["sh", "two_loops"], "{:#}", report["groups"]);
    assert!(groups.values().all(|group| group["processes"] == 1), "{:#}", report["groups"]);
}
