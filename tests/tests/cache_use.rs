//! Cache use of a running program: the transposition of the 2016 paper, of which each line that is loaded uses 8 of 64 bytes.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::process::Command;

use locality_tests::live::{Live, alone};
use locality_tests::programs::source;
use locality_tests::{Target, Tracer, build, requires};
use serde_json::Value;

fn rows<'a>(report: &'a Value, table: &str, level: &str) -> Vec<&'a Value> {
    let all = report["cache_use"][table].as_array().unwrap_or_else(|| panic!("no {table} in {report:#}"));
    all.iter().filter(|row| row["level"] == level).collect()
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {value:#}"))
}

/// Lines of the source that load 8 bytes of 64.
fn marked() -> Vec<u64> {
    let text = std::fs::read_to_string(source("transposition")).expect("the source");
    (1..).zip(text.lines()).filter(|(_, line)| line.contains("LOSS:8 */")).map(|(number, _)| number).collect()
}

#[test]
fn the_transpositions_loads_are_found_in_the_running_program() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    // Alone, so that each call path leads to `main`.
    let mut program = Command::new(build("transposition"));
    program.env("OMP_NUM_THREADS", "1");
    let target = Target::start_command(program);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("t.locality");
    let tracer = Tracer::attach(target.pid(), "6").args(["--overhead", "5"]);
    let live = Live::of(&tracer.args(["-o".as_ref(), file.as_os_str()]).run(), &file);
    let report = &live.report;
    let marked = marked();
    let loads = rows(report, "by_loading_line", "L1").into_iter().filter(|row| row["access"] == "load");
    let first: Vec<&Value> = loads.take(4).collect();
    let found = |line: &u64| first.iter().copied().find(|row| row["line"] == *line);
    let top: Vec<&Value> = marked.iter().filter_map(found).collect();
    assert_eq!((top.len(), marked.len()), (4, 4), "{first:#?}");
    let mut lost = 0.0;
    for row in &top {
        let used = number(row, "/used_bytes_per_line");
        assert!((7.0..20.0).contains(&used), "{row:#}");
        assert!((0.1..0.4).contains(&number(row, "/share")), "{row:#}");
        assert!((1.0..3.0).contains(&number(row, "/access_count")), "{row:#}");
        assert_eq!(row["object"], "old", "{row:#}");
        lost += number(row, "/spatial_loss_bytes");
    }
    for row in &top {
        let frames = row["callers"].as_array().expect("frames").iter();
        let callers: Vec<&str> = frames.filter_map(|frame| frame["function"].as_str()).take(4).collect();
        assert_eq!(callers, ["GOMP_parallel", "gather", "sweep", "main"], "{row:#}");
    }
    let level = &report["cache_use"]["levels"][0];
    assert!(lost > 0.9 * number(level, "/spatial_loss_bytes"), "{level:#}");
    let gather = rows(report, "by_function", "L1").into_iter().find(|row| row["function"] == "gather");
    let share = number(gather.expect("gather"), "/share");
    assert!(share > 0.9, "{share}");

    // The page says the same.
    let page = Tracer::new().args(["report".as_ref(), file.as_os_str()]).run().stdout;
    assert!(page.contains("of 64 bytes per line used at transposition.c:"), "{page}");
}
