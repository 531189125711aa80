//! A profile gives an answer or a refusal: for every value of one cell,
//! no command panics, and no text or JSON has an impossible number.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use locality_tests::{Target, Traced, Tracer, build, requires};
use rusqlite::Connection;
use serde_json::Value;

/// Values of a damaged cell, as SQL.
const VALUES: [&str; 9] =
    ["0", "-1", "1e-320", "1e-300", "1e300", "9e999", "-9e999", "NULL", "9223372036854775807"];

/// The largest number of a report: no time, count or size of a run reaches it.
const LARGEST: f64 = 1e25;

/// Tables and columns that hold numbers.
fn columns(profile: &Path) -> Vec<(String, String)> {
    let database = Connection::open(profile).unwrap();
    let sql = "SELECT tables.name, columns.name FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
               WHERE tables.type = 'table' AND columns.type IN ('REAL', 'INTEGER') AND columns.name <> 'id'";
    let mut statement = database.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// Sets a cell in a row of the middle, or in all rows; false
/// where the schema refuses the value or the table has no row.
fn set(from: &Path, to: &Path, table: &str, column: &str, value: &str, all: bool) -> bool {
    std::fs::copy(from, to).unwrap();
    let database = Connection::open(to).unwrap();
    database.pragma_update(None, "journal_mode", "OFF").unwrap();
    // A damaged file obeys no rule of the schema.
    database.pragma_update(None, "ignore_check_constraints", "ON").unwrap();
    let one =
        format!("WHERE id = (SELECT id FROM {table} LIMIT 1 OFFSET (SELECT count(*) / 2 FROM {table}))");
    let of = if all { "" } else { &one };
    database.execute(&format!("UPDATE {table} SET {column} = {value} {of}"), []).is_ok_and(|rows| rows > 0)
}

fn largest(value: &Value) -> f64 {
    match value {
        Value::Number(number) => number.as_f64().unwrap_or(f64::INFINITY).abs(),
        Value::Array(values) => values.iter().map(largest).fold(0.0, f64::max),
        Value::Object(values) => values.values().map(largest).fold(0.0, f64::max),
        _ => 0.0,
    }
}

fn check(profile: &Path, words: &[&str], what: &str) {
    // The commands trace no process, so the check for traces of the tool is needless.
    let mut tracer = Tracer::new().args(words).args([profile]);
    let mut command = Command::new(tracer.command().get_program());
    command.args(tracer.command().get_args()).env("NO_COLOR", "1");
    let finished = Target::spawn(command).finish(Duration::from_secs(120));
    let traced =
        Traced { status: finished.status, stdout: finished.stdout.join("\n"), stderr: finished.stderr };
    assert!(
        matches!(traced.status.code(), Some(0 | 1)),
        "{what} {words:?}: {} {}",
        traced.status,
        traced.stderr
    );
    assert!(!traced.stderr.contains("panicked"), "{what} {words:?}: {}", traced.stderr);
    if words.contains(&"json") && !traced.stdout.is_empty() {
        let report: Value = serde_json::from_str(&traced.stdout).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(largest(&report) < LARGEST, "{what} {words:?}: {}", largest(&report));
        return;
    }
    let odd =
        |word: &str| matches!(word.trim_matches(|c: char| !c.is_alphanumeric()), "NaN" | "inf" | "Infinity");
    assert!(!traced.stdout.split_whitespace().any(odd), "{what} {words:?}: {}", traced.stdout);
}

/// Samples of the damaged profile: a report takes time for each sample, and few suffice.
const SAMPLES: u32 = 8;

/// Leaves the first samples and their rows.
fn shorten(profile: &Path) {
    let of_sample = ["watch", "window", "window_use", "line_load", "loop"];
    let of_sample = of_sample.map(|table| format!("DELETE FROM {table} WHERE sample >= {SAMPLES};"));
    let sql = format!(
        "DELETE FROM sample WHERE id >= {SAMPLES}; {}
         DELETE FROM seen WHERE of_use NOT IN (SELECT id FROM window_use);
         DELETE FROM burst WHERE of_load NOT IN (SELECT id FROM line_load);
         DELETE FROM loop_access WHERE loop NOT IN (SELECT id FROM loop);
         DELETE FROM located WHERE sample >= {SAMPLES} OR before >= {SAMPLES}
             OR of_use NOT IN (SELECT id FROM window_use) OR of_load NOT IN (SELECT id FROM line_load)
             OR watch NOT IN (SELECT id FROM watch) OR reuse NOT IN (SELECT id FROM watch);
         -- The program is hardly ever in the kernel.
         INSERT INTO kernel_sample SELECT 1, time_ns, thread, stack, 'read' FROM sample
             WHERE NOT EXISTS (SELECT 1 FROM kernel_sample) LIMIT 1;",
        of_sample.concat()
    );
    let database = Connection::open(profile).unwrap();
    database.execute_batch(&sql).unwrap();
    for (table, _) in columns(profile) {
        let sql = format!("SELECT count(*) FROM {table}");
        let rows: i64 = database.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert!(rows > 0, "no row of {table} is tried");
    }
}

/// A short trace of a program with windows, watches,
/// structures and allocations, so each table has rows.
fn traced(folder: &Path) -> PathBuf {
    let profile = folder.join("whole.locality");
    let program = build("objects");
    let tracer = Tracer::new().args(["-q", "--overhead", "5", "--report", "/dev/null", "-o"]);
    let traced = tracer.args([&profile]).args(["--"]).args([program]).args(["nested", "3"]).run();
    assert!(traced.status.success(), "{}", traced.stderr);
    shorten(&profile);
    let whole = Tracer::new().args(["report"]).args([&profile]).run();
    assert!(whole.status.success(), "{}", whole.stderr);
    profile
}

/// Sets cells of one column to all values, and runs commands on each profile; the number of runs.
fn sweep(index: usize, (table, column): &(String, String), whole: &Path, damaged: &Path) -> usize {
    let commands: [&[&str]; 5] = [
        &["report", "--format", "json"],
        &["report"],
        &["report", "--full"],
        &["objects", "--format", "json"],
        &["report", "--first", "500ms"],
    ];
    let mut tried = 0;
    for (turn, value) in VALUES.iter().enumerate() {
        // Probabilities, costs and rates meet two commands more.
        let is_real = column.starts_with("p_") || table == "overhead" || column.starts_with("rate");
        let whole_table = (index + turn).is_multiple_of(2);
        if !set(whole, damaged, table, column, value, whole_table) {
            continue;
        }
        let what = format!("{table}.{column} = {value} (all rows: {whole_table})");
        for (number, words) in commands.iter().enumerate() {
            // Each command gets a turn.
            if (index + turn + number).is_multiple_of(commands.len()) || (is_real && number < 2) {
                check(damaged, words, &what);
                tried += 1;
            }
        }
    }
    tried
}

#[test]
fn one_odd_cell_is_an_answer_or_a_refusal() {
    requires!(root, btf, watchpoints(4));
    let folder = tempfile::tempdir().unwrap();
    let whole = traced(folder.path());
    let columns = columns(&whole);
    assert!(columns.len() > 60, "{columns:?}");
    let (next, tried) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let workers = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let damaged = folder.path().join(format!("damaged{worker}.locality"));
            let (columns, whole, next, tried) = (&columns, &whole, &next, &tried);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(column) = columns.get(index) else { return };
                    tried.fetch_add(sweep(index, column, whole, &damaged), Ordering::Relaxed);
                }
            });
        }
    });
    let tried = tried.into_inner();
    assert!(tried > 1500, "{tried}");
}
