//! A few hundred executions of each target: the driver works, and finds nothing. Long runs:
//! `cargo xtask fuzz SECONDS`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::process::{Command, Output};

fn fuzz(folder: &Path, words: &[&str]) -> Output {
    let mut driver = Command::new(env!("CARGO_BIN_EXE_locality-fuzz"));
    driver.args(words).arg("--folder").arg(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn some_hundred_inputs_of_each_target_find_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let done = fuzz(folder.path(), &["60", "--executions", "300"]);
    let (table, errors) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{table}{errors}");
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 19, "{table}");
    for row in rows {
        assert!(row[1].parse::<u64>().unwrap() >= 20 && row[3] == "0", "{table}{errors}");
    }
}

#[test]
fn a_saved_input_is_tried_again_and_unknown_targets_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    std::fs::write(&input, "7f2c1a5d8000-").unwrap();
    let again = fuzz(folder.path(), &["0", "maps", "--replay", input.to_str().unwrap()]);
    assert!(again.status.success() && text(&again.stdout).contains("no finding"), "{}", text(&again.stderr));
    let unknown = fuzz(folder.path(), &["1", "map"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        text(&unknown.stderr).contains("map is no target; the targets are isa, "),
        "{}",
        text(&unknown.stderr)
    );
}

/// What the driver says of a reader with faults: each kind is found, saved, and found again.
#[test]
fn panics_aborts_hangs_and_large_allocations_are_findings() {
    let folder = tempfile::tempdir().unwrap();
    let done = fuzz(folder.path(), &["60", "faulty", "--executions", "14", "--seed", "4"]);
    let (table, errors) = (text(&done.stdout), text(&done.stderr));
    assert_eq!(done.status.code(), Some(1), "{table}{errors}");
    let mut causes = Vec::new();
    for entry in std::fs::read_dir(folder.path().join("findings")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some() {
            causes.push(std::fs::read_to_string(path).unwrap());
        } else if path.to_string_lossy().contains("-panic-") {
            let again = fuzz(folder.path(), &["0", "faulty", "--replay", path.to_str().unwrap()]);
            assert_eq!(again.status.code(), Some(1));
            assert!(text(&again.stdout).contains("overflow"), "{}", text(&again.stdout));
        }
    }
    for expected in ["attempt to add with overflow", "memory allocation of", "signal: 6", "longer than 8 s"] {
        assert!(causes.iter().any(|cause| cause.contains(expected)), "{expected}: {causes:?} {errors}");
    }
    let number = |column: usize| -> u64 {
        table.lines().last().unwrap().split_whitespace().nth(column).unwrap().parse().unwrap()
    };
    assert_eq!(number(1), 14, "{table}");
    // Panics of one place are saved three times at most.
    assert!(number(3) as usize >= causes.len() && causes.len() >= 4, "{table}{causes:?}");
}
