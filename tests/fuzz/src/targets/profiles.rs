//! Damaged profiles: bytes and pages, or cells and rows of the database.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fastrand::Rng;
use locality_findings::Findings;
use locality_profile::Writer;
use locality_report::{Options, json, text};
use rusqlite::Connection;
use serde_json::Value;

use super::Target;
use crate::random;

/// The largest number of a report: no time, count or size of a run reaches it.
const LARGEST: f64 = 1e25;
/// Rows of each table of the seed.
const ROWS: i64 = 12;
/// New contents of a cell, as SQL.
const CELLS: [&str; 16] = [
    "0",
    "-1",
    "1",
    "1e-320",
    "1e-300",
    "1e300",
    "9e999",
    "-9e999",
    "NULL",
    "0.5",
    "2",
    "9223372036854775807",
    "-9223372036854775808",
    "4294967296",
    "x'00ff'",
    "'x'",
];

/// Name of the seed in the folder. A real profile of this name is used unchanged.
const SEED: &str = "seed.locality";

/// Tables with their columns, and whether the column holds numbers.
fn columns(database: &Connection) -> rusqlite::Result<Vec<(String, String, bool)>> {
    let sql = "SELECT tables.name, columns.name, columns.type IN ('REAL', 'INTEGER')
               FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns WHERE tables.type = 'table'";
    let mut statement = database.prepare(sql)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

fn open_loosely(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.pragma_update(None, "journal_mode", "OFF")?;
    database.pragma_update(None, "synchronous", "OFF")?;
    database.pragma_update(None, "ignore_check_constraints", "ON")?;
    Ok(database)
}

/// Makes the seed: an empty profile with small numbers
/// in every table, to make rows refer to each other.
pub fn prepare(folder: &Path) -> Result<()> {
    let seed = folder.join(SEED);
    if seed.exists() {
        return Ok(());
    }
    drop(Writer::create(&seed, None).context("cannot write a profile")?);
    let database = open_loosely(&seed)?;
    let mut random = Rng::with_seed(7);
    let columns = columns(&database)?;
    let mut tables: Vec<&str> = columns.iter().map(|(table, ..)| table.as_str()).collect();
    tables.dedup();
    for table in tables {
        let own: Vec<_> = columns.iter().filter(|(of, ..)| of == table).collect();
        let names: Vec<&str> = own.iter().map(|(_, column, _)| column.as_str()).collect();
        for row in 0..ROWS {
            let values: Vec<String> = own
                .iter()
                .map(|(_, column, is_number)| match (column.as_str(), is_number) {
                    ("id", _) => row.to_string(),
                    (name, true) if name.starts_with("p_") => format!("{:.3}", 0.05 + random.f64() * 0.9),
                    (name, true) if name.ends_with("_ns") => random.u32(..1_000_000_000).to_string(),
                    (_, true) => random.i64(..ROWS).to_string(),
                    (name, false) => format!("'{name}{row}'"),
                })
                .collect();
            let sql =
                format!("INSERT OR REPLACE INTO {table} ({}) VALUES ({})", names.join(","), values.join(","));
            // A table that refuses a row retains the old content.
            let _ = database.execute(&sql, []);
        }
    }
    Ok(())
}

/// A profile, read and reported.
pub struct Profiles {
    seed: Vec<u8>,
    columns: Vec<(String, String, bool)>,
    /// Cells rather than bytes.
    cells: bool,
    room: tempfile::TempDir,
}

impl Profiles {
    pub fn open(cells: bool, folder: &Path) -> Result<Profiles> {
        let path = folder.join(SEED);
        let seed = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let columns = columns(&Connection::open(&path)?)?;
        Ok(Profiles { seed, columns, cells, room: super::files::room()? })
    }

    fn file(&self) -> PathBuf {
        self.room.path().join("damaged.locality")
    }

    /// One to four statements that change cells, rows or tables.
    fn change(&self, random: &mut Rng) -> rusqlite::Result<()> {
        let database = open_loosely(&self.file())?;
        for _ in 0..1 + random.usize(..4) {
            let (table, column, _) = &self.columns[random.usize(..self.columns.len())];
            let other = &self.columns[random.usize(..self.columns.len())].1;
            let value = CELLS[random.usize(..CELLS.len())];
            let row = random.u8(..);
            let one = format!(
                "WHERE rowid = (SELECT rowid FROM {table} LIMIT 1 OFFSET ({row} % (SELECT max(count(*), 1) FROM {table})))"
            );
            let rows = ["", one.as_str(), "WHERE rowid % 2 = 0"][random.usize(..3)];
            let sql = match random.u8(..12) {
                0 => format!("DELETE FROM {table} {rows}"),
                1 => format!("ALTER TABLE {table} DROP COLUMN {column}"),
                2 => format!("UPDATE OR IGNORE {table} SET {column} = {other} {rows}"),
                3 => format!("UPDATE OR IGNORE {table} SET {column} = {column} * 1e9 {rows}"),
                _ => format!("UPDATE OR IGNORE {table} SET {column} = {value} {rows}"),
            };
            // Refused statements change no cell.
            let _ = database.execute(&sql, []);
        }
        Ok(())
    }
}

impl Target for Profiles {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        if self.cells {
            let changed = fs::write(self.file(), &self.seed).is_ok() && self.change(random).is_ok();
            return if changed { fs::read(self.file()).unwrap_or_default() } else { Vec::new() };
        }
        let mut bytes = self.seed.clone();
        for _ in 0..1 << random.u8(..5) {
            let at = random.usize(..bytes.len());
            let value = random::number(random).to_be_bytes();
            let width = 1 << random.u8(..4);
            match random.u8(..6) {
                0 => random::set(&mut bytes, at, &value[8 - width..]),
                1 => bytes[at] ^= 1 << random.u8(..8),
                // Headers of pages: kind of the page, and places of the cells.
                2 => random::set(&mut bytes, at / 4096 * 4096 + random.usize(..12), &value[8 - width..]),
                3 if random.u8(..8) == 0 => bytes.truncate(at.max(1)),
                4 if at >= 4096 => {
                    let page = at / 4096 * 4096;
                    bytes.copy_within(page - 4096..page, (page - 4096) / 8192 * 4096);
                }
                _ => bytes[at] = random.u8(..),
            }
        }
        bytes
    }

    fn run(&mut self, input: &[u8]) {
        let file = self.file();
        let _ = fs::remove_file(file.with_extension("locality-journal"));
        if fs::write(&file, input).is_err() {
            return;
        }
        match locality_profile::read(&file) {
            Err(error) => assert!(!error.to_string().is_empty(), "an error has words"),
            Ok(profile) => {
                let findings = Findings::of(&profile);
                check_text(&text::print(&profile, &findings, Options::default()));
                check_text(&text::objects(&profile, &findings, Options::default()));
                let screen = text::screen::Options::default();
                check_text(&text::screen::print(&json::report(&profile, &findings), &screen));
                let report: Value =
                    serde_json::from_str(&json::print(&profile, &findings)).unwrap_or_default();
                assert!(report.is_object(), "the report is no JSON object");
                assert!(largest(&report) < LARGEST, "the report has the number {}", largest(&report));
            }
        }
    }
}

fn largest(value: &Value) -> f64 {
    match value {
        Value::Number(number) => number.as_f64().unwrap_or(f64::INFINITY).abs(),
        Value::Array(values) => values.iter().map(largest).fold(0.0, f64::max),
        Value::Object(values) => values.values().map(largest).fold(0.0, f64::max),
        _ => 0.0,
    }
}

/// Panics at a word that is no number.
pub fn check_text(text: &str) {
    let odd =
        |word: &&str| matches!(word.trim_matches(|c: char| !c.is_alphanumeric()), "NaN" | "inf" | "Infinity");
    if let Some(word) = text.split_whitespace().find(odd) {
        let line = text.lines().find(|line| line.contains(word)).unwrap_or_default();
        panic!("a report has {word}: {line}");
    }
}
