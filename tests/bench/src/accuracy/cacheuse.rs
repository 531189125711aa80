//! Cache use of a trace against exact runs of the same
//! work: the loss of loaded bytes by line of code.
//!
//! The two sides name code differently. Loading lines are matched by the base name of the
//! file and the line; code without lines by function, code without names by the function's
//! start; older traces have addresses inside the function. Loads of the dynamic linker are
//! left out on both sides. As for reuses, the shorter exact run is taken from the longer
//! one. Sources of error: exact reports name a hundred lines a level; libraries take other
//! variants of a function under QEMU, which count as different code; equal line numbers in
//! several files of one name are taken for one line.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::Value;

use super::score::{median, within};

/// Below so many bytes lost in a second of CPU time a level is not compared.
const LITTLE: f64 = (20 << 20) as f64;
/// Number of compared loading lines, and the least lost share of a compared line.
const TOP: usize = 10;
const SHARE: f64 = 0.005;
/// Two exact runs differ by less than this share of the longer one's loss by chance.
const CHANCE: f64 = 0.01;

/// A level of a program's caches.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// As both reports call it.
    name: String,
    found: Found,
}

/// What comparing came to.
#[derive(Debug, Clone, PartialEq)]
enum Found {
    /// The trace says that little is lost.
    Little,
    /// The exact runs lose no bytes between repetitions, though the trace shows a large loss.
    OnlyLive,
    Both(Compared),
}

/// The comparison of a level with a large loss.
#[derive(Debug, Clone, PartialEq)]
struct Compared {
    /// Share of loaded bytes never used: exact, live.
    lost: [f64; 2],
    /// Of the first lines of the exact runs, how many are among the trace's first, and how many there are.
    lines: [usize; 2],
    /// Largest error of a line's share.
    off: f64,
    /// Of the trace's first lines, how many have the exact
    /// share in the interval, and the number of lines.
    bands: [usize; 2],
}

/// Lost bytes by line, of one level.
#[derive(Debug, Default)]
struct Lost {
    bytes: f64,
    loaded: f64,
    lines: BTreeMap<String, f64>,
}

/// A line of a trace: share and interval.
type Estimate = (f64, [f64; 2]);

/// Compares level by level. `one` is the exact run that is taken from `all`. Empty for a trace
/// without cache use.
pub fn compare(one: Option<&Value>, all: &Value, live: &Value) -> Vec<Level> {
    let starts = starts(&[one.unwrap_or(&Value::Null), all]);
    let cpu_s = number(&live["run"], "cpu_s");
    let compared = |exact: &Value| {
        let name = exact["level"].as_str()?;
        let level = level(live, name)?;
        let mut truth = lost(all, name, &starts);
        let chance = truth.bytes * CHANCE;
        truth.subtract(&one.map(|one| lost(one, name, &starts)).unwrap_or_default());
        let found = if number(level, "spatial_loss_bytes") < LITTLE * cpu_s {
            Found::Little
        } else if truth.bytes <= chance {
            Found::OnlyLive
        } else {
            let lines = estimates(live, name, &starts);
            Found::Both(level_compared(&truth, number(level, "lost_share"), &lines))
        };
        Some(Level { name: name.to_owned(), found })
    };
    list(all, "levels").filter_map(compared).collect()
}

fn level_compared(truth: &Lost, lost: f64, live: &BTreeMap<String, Estimate>) -> Compared {
    let exact: BTreeMap<&str, f64> =
        truth.lines.iter().map(|(line, bytes)| (line.as_str(), bytes / truth.bytes)).collect();
    let shares = live.iter().map(|(line, estimate)| (line.as_str(), estimate.0)).collect();
    let mut first = top(&exact);
    first.retain(|line| exact[line] >= SHARE);
    let found = top(&shares);
    let error = |line: &&str| {
        let share = |of: &BTreeMap<&str, f64>| of.get(line).copied().unwrap_or(0.0);
        (share(&exact) - share(&shares)).abs()
    };
    let banded: Vec<bool> =
        first.iter().filter_map(|line| Some(within(exact[line], live.get(*line)?.1.into()))).collect();
    Compared {
        lost: [truth.bytes / truth.loaded.max(1.0), lost],
        lines: [first.iter().filter(|line| found.contains(line)).count(), first.len()],
        off: first.iter().chain(&found).map(error).fold(0.0, f64::max),
        bands: [banded.iter().filter(|inside| **inside).count(), banded.len()],
    }
}

/// The first lines by share.
fn top<'a>(shares: &BTreeMap<&'a str, f64>) -> Vec<&'a str> {
    let mut lines: Vec<&str> = shares.keys().copied().collect();
    lines.sort_by(|a, b| shares[b].total_cmp(&shares[a]));
    lines.truncate(TOP);
    lines
}

impl Lost {
    /// Subtracts another run's counts; a count that was
    /// larger in the other run is noise of two runs.
    fn subtract(&mut self, other: &Self) {
        self.bytes = (self.bytes - other.bytes).max(0.0);
        self.loaded = (self.loaded - other.loaded).max(0.0);
        for (line, bytes) in &mut self.lines {
            *bytes = (*bytes - other.lines.get(line).unwrap_or(&0.0)).max(0.0);
        }
    }
}

/// What an exact run lost in a level, without the dynamic linker's part.
fn lost(report: &Value, name: &str, starts: &Starts) -> Lost {
    let Some(level) = level(report, name) else { return Lost::default() };
    let (bytes, loaded) = (number(level, "spatial_loss_bytes"), number(level, "bytes_loaded"));
    let mut found = Lost { bytes, loaded, lines: BTreeMap::new() };
    for row in list(report, "by_loading_line").filter(|row| row["level"] == name) {
        let bytes = number(row, "spatial_loss_bytes");
        if is_linker(row) {
            found.bytes -= bytes;
            found.loaded -= number(row, "lines_loaded") * number(level, "line");
        } else {
            *found.lines.entry(key(row, starts)).or_default() += bytes;
        }
    }
    found
}

/// Lines of a trace; the intervals of rows merged to one line are taken for independent.
fn estimates(report: &Value, name: &str, starts: &Starts) -> BTreeMap<String, Estimate> {
    let mut found: BTreeMap<String, Estimate> = BTreeMap::new();
    for row in list(report, "by_loading_line").filter(|row| row["level"] == name && !is_linker(row)) {
        let share = number(row, "share");
        let end = |at: usize| row["ci95"][at].as_f64().unwrap_or(share);
        let (sum, band) = found.entry(key(row, starts)).or_default();
        let below = (*sum - band[0]).hypot(share - end(0));
        let above = (band[1] - *sum).hypot(end(1) - share);
        *sum += share;
        *band = [(*sum - below).max(0.0), (*sum + above).min(1.0)];
    }
    found
}

fn is_linker(row: &Value) -> bool {
    let sources = ["dl-", "do-rel", "rtld", "get-dynamic", "ldsodefs", "dynamic-link"];
    let source = base(&row["file"]);
    sources.iter().any(|start| source.starts_with(start)) || base(&row["module"]).starts_with("ld-")
}

/// Where functions without names start, by module.
type Starts = BTreeMap<String, BTreeSet<u64>>;

fn starts(reports: &[&Value]) -> Starts {
    let mut starts = Starts::new();
    for report in reports {
        for row in list(report, "by_loading_line").chain(list(report, "by_function")) {
            if let Some((module, offset)) = nameless(row) {
                starts.entry(module.to_owned()).or_default().insert(offset);
            }
        }
    }
    starts
}

/// Module and offset of code without a name: `libc.so.6+0x1234`.
fn nameless(row: &Value) -> Option<(&str, u64)> {
    let (module, offset) = row["function"].as_str()?.split_once("+0x")?;
    Some((module, u64::from_str_radix(offset, 16).ok()?))
}

/// What a row is matched by.
fn key(row: &Value, starts: &Starts) -> String {
    if let Some(line) = row["line"].as_u64() {
        return format!("{}:{line}", base(&row["file"]));
    }
    let start = |(module, offset): (&str, u64)| {
        let start = starts.get(module)?.range(..=offset).next_back()?;
        Some(format!("{module}+0x{start:x}"))
    };
    let name = row["function"].as_str().unwrap_or_default();
    // Versions of symbols are reported by one side only.
    let name = || name.split('@').next().unwrap_or_default().to_owned();
    nameless(row).and_then(start).unwrap_or_else(name)
}

fn base(path: &Value) -> &str {
    let path = path.as_str().unwrap_or_default();
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn list<'a>(report: &'a Value, table: &str) -> impl Iterator<Item = &'a Value> {
    report["cache_use"][table].as_array().into_iter().flatten()
}

fn level<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    list(report, "levels").find(|level| level["level"] == name)
}

fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or(0.0)
}

const LITTLE_IS_LOST: &str = "less than 20 MiB lost in a second of CPU time by";
const ONLY_LIVE: &str = "20 MiB a second or more by the trace, next to nothing by the exact runs:";

/// The table for docs/journal/2026-11-cache-use.md: programs with their number of samples.
pub fn markdown(rows: &[(&str, f64, Vec<Level>)]) -> String {
    let mut page = "\nCache use of live traces: what is lost, and which loading lines lose it\n\n\
        | program | samples | level | lost exact | live | lines | off | bands |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let mut levels: BTreeMap<&str, Vec<&Compared>> = BTreeMap::new();
    let mut others: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (program, samples, found) in rows {
        for level in found {
            let of = match &level.found {
                Found::Both(of) => of,
                other => {
                    let why = if *other == Found::Little { LITTLE_IS_LOST } else { ONLY_LIVE };
                    others.entry((&level.name, why)).or_default().push(program);
                    continue;
                }
            };
            levels.entry(&level.name).or_default().push(of);
            let [lost, live, off] = [of.lost[0], of.lost[1], of.off].map(share);
            let [lines, bands] = [of.lines, of.bands].map(|[some, all]| format!("{some} of {all}"));
            let name = &level.name;
            page += &format!(
                "| {program} | {samples:.0} | {name} | {lost} | {live} | {lines} | {off} | {bands} |\n"
            );
        }
    }
    for (name, all) in &levels {
        let middle = |figure: fn(&Compared) -> f64| {
            let values: Vec<f64> = all.iter().map(|of| figure(of)).collect();
            median(&values).map_or(String::new(), share)
        };
        let [inside, of] = [0, 1].map(|at| all.iter().map(|level| level.bands[at]).sum::<usize>());
        page += &format!(
            "| **median of {}; sum of bands** | | {name} | {} | {} | {} of the lines | {} | {inside} of {of} |\n",
            all.len(),
            middle(|of| of.lost[0]),
            middle(|of| of.lost[1]),
            middle(|of| of.lines[0] as f64 / of.lines[1].max(1) as f64),
            middle(|of| of.off),
        );
    }
    for ((name, why), programs) in others {
        page += &format!("\n{name}: {why} {}.\n", programs.join(", "));
    }
    page
}

fn share(value: f64) -> String {
    super::table::number(value, 3)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(lost: u64, rows: &[Value]) -> Value {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                let mut row = row.clone();
                row["level"] = json!("L1");
                row
            })
            .collect();
        json!({
            "run": { "cpu_s": 1.0 },
            "cache_use": {
                "levels": [{ "level": "L1", "line": 64, "bytes_loaded": lost * 2, "spatial_loss_bytes": lost,
                             "lost_share": 0.4 }],
                "by_loading_line": rows, "by_function": [],
            },
        })
    }

    fn exact(function: &str, file: &str, line: Option<u64>, lost: u64) -> Value {
        json!({ "function": function, "file": file, "line": line, "module": "/bin/p", "spatial_loss_bytes": lost,
                "lines_loaded": lost / 64 })
    }

    fn live(function: &str, file: &str, line: Option<u64>, share: f64, ci95: [f64; 2]) -> Value {
        json!({ "function": function, "file": file, "line": line, "module": "/bin/p", "share": share, "ci95": ci95 })
    }

    const MANY: u64 = 100 << 20;

    #[test]
    fn start_up_and_the_linker_are_gone_and_lines_match_by_base_name() {
        let linker = exact("_dl_relocate_object", "/usr/src/dl-reloc.c", Some(9), 6400);
        let one = report(9600, &[linker.clone(), exact("f", "/a/x.c", Some(1), 3200)]);
        let all = report(
            22400,
            &[
                linker,
                exact("f", "/a/x.c", Some(1), 9600),
                exact("g", "/a/x.c", Some(2), 3200),
                exact("f", "/a/x.c", Some(1), 3200),
            ],
        );
        let found = report(
            MANY,
            &[
                live("f", "x.c", Some(1), 0.5, [0.4, 0.6]),
                live("f.part.0", "x.c", Some(1), 0.2, [0.1, 0.3]),
                live("h", "y.c", Some(2), 0.3, [0.2, 0.4]),
            ],
        );
        let levels = compare(Some(&one), &all, &found);
        // 9600 of 12800 bytes by x.c:1, 3200 by x.c:2, which the trace has not; it has y.c:2 instead, .3 off.
        let Found::Both(of) = &levels[0].found else { panic!("{levels:?}") };
        assert_eq!((of.lines, of.bands, of.lost), ([1, 2], [1, 1], [0.5, 0.4]));
        assert!((of.off - 0.3).abs() < 1e-9);
    }

    #[test]
    fn code_without_names_is_matched_by_where_its_function_starts() {
        let all = report(
            6400,
            &[
                exact("p+0x100", "", None, 3200),
                exact("p+0x200", "", None, 1600),
                exact("memcpy@GLIBC", "", None, 1600),
            ],
        );
        let found = report(
            MANY,
            &[
                live("p+0x1f8", "", None, 0.5, [0.5, 0.5]),
                live("p+0x20", "", None, 0.15, [0.1, 0.2]),
                live("memcpy", "", None, 0.35, [0.3, 0.4]),
            ],
        );
        let levels = compare(None, &all, &found);
        let Found::Both(of) = &levels[0].found else { panic!("{levels:?}") };
        assert_eq!((of.lines, of.bands, of.off), ([2, 3], [1, 2], 0.25));
    }

    #[test]
    fn what_loses_little_is_named() {
        let all = report(6400, &[exact("f", "x.c", Some(1), 6400)]);
        let compared = compare(None, &all, &report(MANY, &[live("f", "x.c", Some(1), 1.0, [0.9, 1.0])]));
        let little = compare(None, &all, &report(1 << 20, &[]));
        // The longer run loses a line more than the shorter one, of a hundred.
        let nearly = report(6400 - 64, &[exact("f", "x.c", Some(1), 6400 - 64)]);
        let only_live = compare(Some(&nearly), &all, &report(MANY, &[]));
        let page = markdown(&[("a", 7.0, compared), ("b", 8.0, little), ("c", 9.0, only_live)]);
        assert!(page.contains("| a | 7 | L1 | .500 | .400 | 1 of 1 | .000 | 1 of 1 |\n"), "{page}");
        assert!(
            page.contains("| **median of 1; sum of bands** | | L1 | .500 | .400 | 1.000 of the lines |"),
            "{page}"
        );
        assert!(page.contains("\nL1: less than 20 MiB lost in a second of CPU time by b.\n"), "{page}");
        assert!(page.contains("next to nothing by the exact runs: c.\n"), "{page}");
    }
}
