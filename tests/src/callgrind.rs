//! Reads files in Callgrind's format, and lists the differences of two files of one program.
//!
//! Format: "Callgrind Format Specification" in valgrind's manual. A function is
//! identified by object file and name; inlined code belongs to the surrounding
//! function. Not here: running Callgrind. Limits: one part a file, no jumps.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A file's numbers.
#[derive(Debug, Default, Clone)]
pub struct Costs {
    /// Columns.
    pub events: Vec<String>,
    /// Totals of the whole run as in the file (`totals:`).
    pub told: Vec<u64>,
    /// Costs by object and function, without the functions called.
    pub functions: BTreeMap<(String, String), Vec<u64>>,
    /// Costs by function, file and line: of no object apart.
    pub lines: BTreeMap<(String, String, u64), Vec<u64>>,
    /// Calls: caller, callee, count and inclusive cost.
    pub calls: BTreeMap<(String, String), (u64, Vec<u64>)>,
}

/// Names given by number.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// "(3) main" is main from now on, and "(3)" too.
    fn take(&mut self, text: &str) -> String {
        let Some((number, name)) = text.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
            return text.to_owned();
        };
        let name = name.trim();
        if number.is_empty() || !number.chars().all(|c| c.is_ascii_digit()) {
            return text.to_owned();
        }
        if name.is_empty() {
            return self.0.get(number).cloned().unwrap_or_else(|| panic!("({number}) has no name yet"));
        }
        self.0.insert(number.to_owned(), name.to_owned());
        name.to_owned()
    }
}

impl Costs {
    /// Reads a file.
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self::parse(&String::from_utf8_lossy(&text))
    }

    /// Reads a file's text; panics if the text is not in the format.
    pub fn parse(text: &str) -> Self {
        let mut costs = Self::default();
        let (mut objects, mut files, mut functions) = (Names::default(), Names::default(), Names::default());
        let (mut object, mut file, mut function, mut callee) =
            (String::new(), String::new(), String::new(), String::new());
        let mut subpositions = 1;
        let mut position = [0u64; 2];
        let mut calls: Option<u64> = None;
        for line in text.lines() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(first) = line.chars().next()
                && (first.is_ascii_digit() || matches!(first, '+' | '-' | '*'))
            {
                let mut words = line.split_whitespace();
                for place in position.iter_mut().take(subpositions) {
                    let word = words.next().unwrap_or_else(|| panic!("no position in {line}"));
                    *place = moved(*place, word);
                }
                let numbers: Vec<u64> =
                    words.map(|word| word.parse().unwrap_or_else(|_| panic!("no costs: {line}"))).collect();
                assert!(numbers.len() <= costs.events.len(), "too many costs: {line}");
                match calls.take() {
                    Some(count) => {
                        let key = (function.clone(), callee.clone());
                        let entry = costs.calls.entry(key).or_default();
                        entry.0 += count;
                        add(&mut entry.1, &numbers);
                    }
                    None => {
                        let name = function.split('\'').next().unwrap_or_default().to_owned();
                        let key = (object.clone(), name.clone());
                        add(costs.functions.entry(key).or_default(), &numbers);
                        let at = position.get(subpositions - 1).copied().unwrap_or(0);
                        add(costs.lines.entry((name, file.clone(), at)).or_default(), &numbers);
                    }
                }
                continue;
            }
            if let Some((tag, value)) = line.split_once('=').filter(|(tag, _)| !tag.contains([' ', ':'])) {
                match tag {
                    "ob" => object = objects.take(value),
                    "fl" | "fi" | "fe" => file = files.take(value),
                    "fn" => function = functions.take(value),
                    "cob" => drop(objects.take(value)),
                    "cfi" | "cfl" => drop(files.take(value)),
                    "cfn" => callee = functions.take(value),
                    "calls" => calls = value.split_whitespace().next().and_then(|count| count.parse().ok()),
                    _ => panic!("unknown line {line}"),
                }
                continue;
            }
            let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("unknown line {line}"));
            let words = || value.split_whitespace();
            match key {
                "positions" => subpositions = words().count(),
                "events" => costs.events = words().map(str::to_owned).collect(),
                "totals" => costs.told = words().filter_map(|word| word.parse().ok()).collect(),
                _ => {}
            }
        }
        let width = costs.events.len();
        let calls = costs.calls.values_mut().map(|call| &mut call.1);
        for row in costs.functions.values_mut().chain(costs.lines.values_mut()).chain(calls) {
            row.resize(width, 0);
        }
        costs
    }

    /// Column of an event.
    pub fn column(&self, event: &str) -> Option<usize> {
        self.events.iter().position(|name| name == event)
    }

    /// The sum over the functions.
    pub fn sum(&self, event: &str) -> u64 {
        let column = self.column(event).unwrap_or(usize::MAX);
        self.functions.values().filter_map(|row| row.get(column)).sum()
    }

    /// Costs by function of an object with the file name; `None`: of every object, by file name.
    pub fn of_object(&self, name: Option<&str>) -> BTreeMap<String, Vec<u64>> {
        let mut sums: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for ((object, function), row) in &self.functions {
            let object = object.rsplit('/').next().unwrap_or_default();
            match name {
                Some(name) if name == object => add(sums.entry(common(function)).or_default(), row),
                Some(_) => {}
                None => add(sums.entry(object.to_owned()).or_default(), row),
            }
        }
        sums
    }
}

/// A function's name in both files. Callgrind prints GCC's names of OpenMP
/// regions (`f._omp_fn.0`), locality prints the place
/// (`f (parallel loop, f.c:17)`): the regions of a function are taken together.
fn common(function: &str) -> String {
    let region = ["._omp_fn.", " (parallel loop"].iter().find_map(|mark| function.split_once(mark));
    region.map_or_else(|| function.to_owned(), |(outer, _)| format!("{outer} (regions)"))
}

/// The C library and valgrind's additions to a program:
/// code that differs with the processor's features.
const NOT_OWN: [&str; 5] = ["libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6", "vgpreload_", "???"];

impl Costs {
    /// Costs by function and object of the program's own code: the file and
    /// the libraries, without the C library. Functions without a symbol are
    /// one row an object, because both tools name the functions by addresses.
    pub fn own(&self) -> BTreeMap<String, Vec<u64>> {
        let mut sums: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for ((object, function), row) in &self.functions {
            let object = object.rsplit('/').next().unwrap_or_default();
            if object.is_empty() || NOT_OWN.iter().any(|name| object.starts_with(name)) {
                continue;
            }
            let unnamed =
                function.starts_with("0x") || function.starts_with("???") || function.contains("+0x");
            let name = if unnamed { "[no name]".to_owned() } else { common(function) };
            add(sums.entry(format!("{name} ({object})")).or_default(), row);
        }
        sums
    }
}

/// Costs of one function in both files.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The function, or the object.
    pub name: String,
    /// The event.
    pub event: String,
    /// In the first file.
    pub a: u64,
    /// In the second.
    pub b: u64,
    /// |a − b| ÷ max(a, b).
    pub relative: f64,
    /// The larger of the two as a share of the column's sum in the second file.
    pub share: f64,
}

/// Every pair of costs of two tables, the largest relative difference first.
pub fn differences(
    a: (&Costs, &BTreeMap<String, Vec<u64>>),
    b: (&Costs, &BTreeMap<String, Vec<u64>>),
    events: &[&str],
) -> Vec<Difference> {
    let mut found = Vec::new();
    for event in events {
        let (Some(in_a), Some(in_b)) = (a.0.column(event), b.0.column(event)) else {
            panic!("not both have {event}: {:?} {:?}", a.0.events, b.0.events)
        };
        let all = b.0.sum(event).max(1);
        let names: std::collections::BTreeSet<&String> = a.1.keys().chain(b.1.keys()).collect();
        for name in names {
            let value = |table: &BTreeMap<String, Vec<u64>>, column: usize| {
                table.get(name).and_then(|row| row.get(column)).copied().unwrap_or(0)
            };
            let (a, b) = (value(a.1, in_a), value(b.1, in_b));
            let larger = a.max(b);
            if larger > 0 {
                found.push(Difference {
                    name: name.clone(),
                    event: (*event).to_owned(),
                    a,
                    b,
                    relative: a.abs_diff(b) as f64 / larger as f64,
                    share: larger as f64 / all as f64,
                });
            }
        }
    }
    found.sort_by(|x, y| y.relative.total_cmp(&x.relative));
    found
}

/// A position: absolute in decimal or hexadecimal, relative, or unchanged.
fn moved(before: u64, word: &str) -> u64 {
    let number = |text: &str| {
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.unwrap_or_else(|_| panic!("{word} is no position"))
    };
    match word.split_at(1) {
        ("*", _) => before,
        ("+", by) => before + number(by),
        ("-", by) => before - number(by),
        _ => number(word),
    }
}

fn add(ours: &mut Vec<u64>, theirs: &[u64]) {
    if ours.len() < theirs.len() {
        ours.resize(theirs.len(), 0);
    }
    ours.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# callgrind format\nversion: 1\ncmd: a=b\npositions: instr line\nevents: Ir Dr Dw\n\n\
        ob=(1) /bin/x\nfl=(1) a.c\nfn=(1) main\n0x10 5 1 2 3\n+4 +2 1\nfi=(2) a.h\n* -6 1 1\n\
        cob=(2) /lib/y\ncfi=(1)\ncfn=(2) g\ncalls=3 0x80 0\n* * 40 4\n\n\
        ob=(2)\nfl=(1)\nfn=(2)\n0x80 9 5\nfn=(3) main'2\n0x90 9 7\ntotals: 15 3 3\n";

    #[test]
    fn a_file_is_read() {
        let costs = Costs::parse(FILE);
        let key = |object: &str, name: &str| (object.to_owned(), name.to_owned());
        assert_eq!(costs.functions[&key("/bin/x", "main")], [3, 3, 3]);
        assert_eq!(costs.functions[&key("/lib/y", "g")], [5, 0, 0]);
        assert_eq!(costs.functions[&key("/lib/y", "main")], [7, 0, 0]);
        assert_eq!(costs.calls[&key("main", "g")], (3, vec![40, 4, 0]));
        assert_eq!(costs.lines[&("main".to_owned(), "a.h".to_owned(), 1)], [1, 1, 0]);
        assert_eq!((costs.sum("Ir"), costs.told.as_slice()), (15, [15, 3, 3].as_slice()));
        assert_eq!(costs.of_object(Some("x")).len(), 1);
        assert_eq!(costs.of_object(None)["y"], [12, 0, 0]);
    }

    #[test]
    fn regions_have_one_name_in_both_files() {
        assert_eq!(common("gather._omp_fn.0"), common("gather (parallel loop, transposition.c:17)"));
        assert_eq!(common("gather"), "gather");
    }

    #[test]
    fn differences_are_found() {
        let (a, b) = (Costs::parse(FILE), Costs::parse(&FILE.replace("0x80 9 5", "0x80 9 10")));
        let (x, y) = (a.of_object(Some("y")), b.of_object(Some("y")));
        let found = differences((&a, &x), (&b, &y), &["Ir", "Dr"]);
        assert_eq!((found.len(), found[0].name.as_str(), found[0].relative), (2, "g", 0.5));
        assert_eq!((found[0].share, found[1].relative), (0.5, 0.0));
    }
}
