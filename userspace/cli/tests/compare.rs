//! `locality-bpf compare` as a user runs it: files in, text or JSON out, one sentence and a status
//! for what is wrong.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{fs, path::Path, process::Command};

/// Status, stdout, stderr.
fn compare(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_locality-bpf"));
    let output = command.arg("compare").args(arguments).current_dir(dir).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A report with half of its reuses at the shortest distance and half in the bin that begins at `far`.
fn report(granularity: &str, unit: &str, far: u64) -> String {
    let bins = |low: u64| {
        format!(
            r#"[{{"low":{low},"high":{},"fraction":0.5}},{{"low":{far},"high":{},"fraction":0.5}}]"#,
            low + 1,
            2 * far
        )
    };
    let (time, stack) = (bins(1), bins(0));
    format!(
        r#"{{"schema":"locality-report/1","reuse":{{"{granularity}":{{
            "time":{{"unit":"{unit}","bins":{time},"n":8}},
            "stack":{{"unit":"granules","bins":{stack},"n":8}},"cold_fraction":0.2}}}}}}"#
    )
}

#[test]
fn two_reports_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.json"), report("64", "accesses", 8192)).unwrap();
    fs::write(dir.path().join("b.json"), report("64", "accesses", 16_384)).unwrap();

    let (status, page, errors) = compare(dir.path(), &["a.json", "b.json"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(page.contains("64-byte stack       0.5000  0.7500  0.5000  0.0000  granules"), "{page}");
    // With 16384 lines A hits all its reuses and B half of them, which are 0.4 of its touches.
    assert!(page.contains("by 0.4000 at most, at 1 MiB"), "{page}");

    let (status, page, _) = compare(dir.path(), &["a.json", "a.json", "--format", "json"]);
    let value: serde_json::Value = serde_json::from_str(&page).unwrap();
    assert_eq!((status, value["schema"].as_str()), (0, Some("locality-compare/1")));
    let same = &value["granularity"]["64"];
    assert_eq!((same["time"]["s"].as_f64(), same["stack"]["s_hat"].as_f64()), (Some(1.0), Some(1.0)));
    assert_eq!(same["miss_ratio"]["mean_absolute_error"], 0.0);
}

#[test]
fn what_cannot_be_compared_is_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let good = report("64", "accesses", 8192);
    write("good.json", &good);
    write("words.json", &report("8", "accesses", 8192));
    write("empty.json", "");
    write("cut.json", &good[..good.len() / 2]);
    write("other.json", "{\"a\": 1}");
    write("text.txt", "S = 1.0\n");
    write("old.json", r#"{"schema":"locality-report/0"}"#);
    write("none.json", r#"{"schema":"locality-report/1","reuse":{}}"#);
    write("broken.locality", "SQLite format 3\0 and no more");
    let faults = [
        ("missing.json", "missing.json: there is no such profile file"),
        (".", "directory"),
        ("empty.json", "empty.json is empty"),
        ("cut.json", "cut.json ends in the middle of a report"),
        ("other.json", "other.json is no report of locality-bpf"),
        ("text.txt", "text.txt is neither a profile nor a report"),
        ("old.json", "old.json has schema \"locality-report/0\""),
        ("none.json", "none.json has no reuses to compare"),
        ("broken.locality", "broken.locality"),
        ("words.json", "no granularity in common (64 bytes in A, 8 in B)"),
    ];
    for (file, expected) in faults {
        let (status, page, errors) = compare(dir.path(), &["good.json", file]);
        assert_eq!((status, page.as_str(), errors.lines().count()), (1, "", 1), "{file}: {errors}");
        assert!(errors.starts_with("locality-bpf: ") && errors.contains(expected), "{file}: {errors}");
    }
    assert_eq!(compare(dir.path(), &["good.json"]).0, 2);
    assert_eq!(compare(dir.path(), &["good.json", "good.json", "--format", "html"]).0, 2);
}

/// Reports of both schemas are read, and a path that leads nowhere is a damage.
#[test]
fn reports_with_tables_of_call_paths_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let old = report("64", "accesses", 8192);
    let new = |stack: u32| {
        let pair = format!(r#"{{"use":{{"stack":{stack}}},"reuse":{{"stack":0}}}}"#);
        let tables = r#""frames":[{"function":"f"}],"stacks":[[0]]"#;
        let head = r#"{"schema":"locality-report/2""#;
        old.replacen(r#"{"schema":"locality-report/1""#, &format!(r#"{head},"pairs":[{pair}],{tables}"#), 1)
    };
    write("old.json", &old);
    write("new.json", &new(0));
    write("damaged.json", &new(1));
    let (status, page, errors) = compare(dir.path(), &["old.json", "new.json"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(page.contains("64-byte stack       1.0000"), "{page}");
    let (status, _, errors) = compare(dir.path(), &["old.json", "damaged.json"]);
    assert_eq!(status, 1);
    assert!(errors.contains("damaged.json is damaged at stacks (a call path leads nowhere)"), "{errors}");
}

#[test]
fn unlike_clocks_leave_the_stack_distances() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("live.json"), report("8", "cpu_ns", 8192)).unwrap();
    fs::write(dir.path().join("exact.json"), report("8", "accesses", 8192)).unwrap();
    let (status, page, _) = compare(dir.path(), &["live.json", "exact.json"]);
    assert_eq!(status, 0);
    let said = "8-byte time        not compared: time distances in cpu_ns in A, in accesses in B";
    assert!(page.contains(said), "{page}");
    assert!(page.contains("8-byte stack        1.0000"), "{page}");
}
