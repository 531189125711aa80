//! docs/format.md against the schema: every column is described, every query in it runs and answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use locality_model::*;
use rusqlite::Connection;

use crate::common::{random_profile, write_file};

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md");
    fs::read_to_string(&path).unwrap()
}

fn queries() -> Vec<String> {
    let document = document();
    let blocks = document.split("```sql\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// A file in which every query finds something.
fn example(directory: &Path) -> PathBuf {
    let path = directory.join("example.locality");
    let mut profile = random_profile(11, 40);
    for (index, frame) in profile.frames.iter_mut().enumerate() {
        frame.function = Some(format!("f{index}"));
        frame.file = Some("demo.c".to_owned());
        frame.line = Some(index as u32 + 1);
    }
    for stack in &mut profile.stacks {
        stack.frames.push(FrameId(0));
    }
    for sample in &mut profile.samples {
        sample.period_ns = 10_000_000;
    }
    let touch =
        Touch { time_ns: 5, thread: ThreadId(0), stack: StackId(0), kind: AccessKind::Load, kernel: false };
    for watch in &mut profile.watches {
        watch.use_touch = Some(touch);
        watch.outcome = Outcome::Reused { touch, distance_ns: 1_000, accesses: None };
        (watch.armed_ns, watch.ended_ns) = (1, 1_000);
    }
    profile.objects = vec![Object { name: "cells".to_owned(), ..Object::default() }];
    profile.fields = vec![Field { path: "[].vx".to_owned(), ..Field::default() }];
    let located = |id| Located {
        of: Accessed::Use(UseId(id)),
        object: ObjectId(0),
        offset: Some(8),
        field: Some(FieldId(0)),
    };
    profile.located = (0..40).map(located).collect();
    profile.ledger = Ledger { seen: 3, filtered: 1, submitted: 1, received: 1, ..Ledger::default() };
    profile.ledger.lost = vec![("ring full".to_owned(), 1)];
    write_file(&path, &profile);
    path
}

#[test]
fn every_documented_query_answers() {
    let directory = tempfile::tempdir().unwrap();
    let database = Connection::open(example(directory.path())).unwrap();
    let queries = queries();
    assert!(queries.len() >= 5);
    for query in &queries {
        let mut statement = database.prepare(query).unwrap_or_else(|error| panic!("{error}: {query}"));
        let mut rows = statement.query([]).unwrap();
        assert!(rows.next().unwrap().is_some(), "no answer: {query}");
    }
    let balance = queries.last().unwrap();
    let zero: (i64, i64, i64) =
        database.query_row(balance, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).unwrap();
    assert_eq!(zero, (0, 0, 0));
}

#[test]
fn the_shell_answers_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = example(directory.path());
    for query in queries() {
        match Command::new("sqlite3").arg("-readonly").arg(&path).arg(&query).output() {
            Ok(output) => {
                assert!(output.status.success() && !output.stdout.is_empty(), "{query}: {output:?}")
            }
            Err(error) => return println!("SKIP: the sqlite3 shell cannot be run: {error}"),
        }
    }
}

#[test]
fn every_table_and_column_is_described() {
    let directory = tempfile::tempdir().unwrap();
    let database = Connection::open(example(directory.path())).unwrap();
    let document = document();
    let mut names = database
        .prepare(
            "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c WHERE m.type IN ('table', 'view')",
        )
        .unwrap();
    let names: Vec<(String, String)> =
        names.query_map([], |r| Ok((r.get(0)?, r.get(1)?))).unwrap().map(Result::unwrap).collect();
    assert!(names.len() > 80, "{}", names.len());
    for (table, column) in names {
        // The section of a table starts with its name in backquotes and ends before the next one's.
        let start =
            document.find(&format!("`{table}`")).unwrap_or_else(|| panic!("{table} is not described"));
        let section = &document[start..];
        assert!(section.contains(&format!("`{column}`")), "{table}.{column} is not described");
    }
    let version = format!("format version {}", locality_profile::SCHEMA_VERSION);
    assert!(document.lines().next().unwrap().ends_with(&version));
    assert!(document.contains(&format!("application id {}", locality_profile::APPLICATION_ID)));
}
