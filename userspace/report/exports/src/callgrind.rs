//! `--format callgrind`: the table of costs as a file for KCachegrind, QCachegrind and `callgrind_annotate`.
//!
//! Format: "Callgrind Format Specification", version 1 (valgrind's manual, cl-format): positions
//! are lines, names are given once and then by number, costs end with the last that is not 0. A
//! `calls=` line is followed by the inclusive cost of these calls. Limits: jumps to a function
//! (tail calls) stand as one call, however many they were; addresses are left out, so there is no
//! view of machine code; control characters in names are printed as `?`.

use std::{
    collections::HashSet,
    fmt::{self, Write as _},
};

use locality_report::schema::{
    Report,
    costs::{Call, Costs, Line, UNKNOWN},
};

/// Further contents of the file.
#[derive(Debug, Clone)]
pub struct Header {
    /// Process of the command.
    pub pid: u32,
    /// The command line.
    pub command: String,
    /// How the command ended.
    pub ended_by: String,
    /// Further lines `Name: value` about the simulation, after the table's own.
    pub described: Vec<String>,
}

impl Header {
    /// The header for a report.
    pub fn of(report: &Report) -> Self {
        let (run, cache_use) = (&report.run, report.cache_use.as_ref());
        let mut described = vec!["Replacement: LRU, write-allocate".to_owned()];
        let compatible = cache_use.and_then(|cache_use| cache_use.compatible.as_ref());
        described.push(match compatible.and_then(Option::as_ref) {
            Some(_) => "Counted as: Callgrind does".to_owned(),
            None => "Counted as: locality-bpf does".to_owned(),
        });
        let prefetch = cache_use.and_then(|cache_use| cache_use.prefetch.as_deref()).unwrap_or("none");
        described.push(format!("Prefetch: {prefetch}"));
        let instructions = cache_use.and_then(|cache_use| cache_use.instruction_cache.as_ref());
        if instructions.is_some_and(Option::is_some) {
            described.push("I1 lines: in the L1 events of cache use".to_owned());
        }
        described.push(format!("Order of accesses: {}", run.order.as_deref().unwrap_or_default()));
        let skipped = cache_use.and_then(|cache_use| cache_use.skipped_functions.as_deref());
        if let Some(skipped) = skipped.filter(|skipped| !skipped.is_empty()) {
            described.push(format!("Skipped functions: {}", skipped.join(", ")));
        }
        if report.partial {
            described.push("Partial: yes".to_owned());
        }
        Self {
            pid: run.pids.first().copied().unwrap_or(0),
            command: run.command.clone(),
            ended_by: run.ended_by.clone(),
            described,
        }
    }
}

/// The file's text.
pub fn print(costs: &Costs, header: &Header) -> String {
    let mut text = String::new();
    // Cannot fail: a string takes all text.
    let _ = Writer {
        costs,
        to: &mut text,
        files: HashSet::new(),
        functions: HashSet::new(),
        modules: Vec::new(),
    }
    .all(header);
    text
}

/// A row of a function, in the order of the file.
enum Row<'a> {
    Line(&'a Line),
    Call(&'a Call),
}

struct Writer<'a> {
    costs: &'a Costs,
    to: &'a mut String,
    /// Entries with written names.
    files: HashSet<u32>,
    functions: HashSet<u32>,
    modules: Vec<&'a str>,
}

impl<'a> Writer<'a> {
    fn all(&mut self, header: &Header) -> fmt::Result {
        let costs = self.costs;
        writeln!(self.to, "# callgrind format")?;
        writeln!(self.to, "version: 1")?;
        writeln!(self.to, "creator: locality-bpf-{}", env!("CARGO_PKG_VERSION"))?;
        writeln!(self.to, "pid: {}", header.pid)?;
        writeln!(self.to, "cmd: {}", clean(&header.command))?;
        writeln!(self.to, "part: 1\n")?;
        for sentence in costs.described.iter().chain(&header.described) {
            writeln!(self.to, "desc: {}", clean(sentence))?;
        }
        writeln!(self.to, "desc: Trigger: {}\n", clean(&header.ended_by))?;
        for event in &costs.events {
            writeln!(self.to, "event: {} : {}", event.name, event.long)?;
        }
        writeln!(self.to, "positions: line")?;
        let names: Vec<&str> = costs.events.iter().map(|event| event.name.as_str()).collect();
        writeln!(self.to, "events: {}", names.join(" "))?;
        writeln!(self.to, "summary: {}", numbers(&costs.total))?;
        let (mut lines, mut calls) = (costs.lines.as_slice(), costs.calls.as_slice());
        for number in 0..costs.functions.len() as u32 {
            let own_lines = split(&mut lines, |row| row.function <= number);
            let own_calls = split(&mut calls, |row| row.caller <= number);
            if !own_lines.is_empty() || !own_calls.is_empty() {
                self.function(number, own_lines, own_calls)?;
            }
        }
        writeln!(self.to, "\ntotals: {}", numbers(&costs.total))
    }

    fn function(&mut self, number: u32, lines: &'a [Line], calls: &'a [Call]) -> fmt::Result {
        let Some(function) = self.costs.functions.get(number as usize) else { return Ok(()) };
        let module = self.module(&function.module);
        writeln!(self.to, "\nob={module}")?;
        let file = self.file(function.file);
        writeln!(self.to, "fl={file}")?;
        let name = self.name(number);
        writeln!(self.to, "fn={name}")?;
        // Entries of the function's own file come first; the
        // costs of a line before the calls from the line.
        let mut rows: Vec<Row<'_>> = lines.iter().map(Row::Line).chain(calls.iter().map(Row::Call)).collect();
        let key = |row: &Row<'_>| match row {
            Row::Line(row) => (row.file != function.file, row.file, row.line, false),
            Row::Call(row) => (row.file != function.file, row.file, row.line, true),
        };
        rows.sort_by_key(key);
        let mut current = function.file;
        for row in rows {
            let (file, line) = match row {
                Row::Line(row) => (row.file, row.line),
                Row::Call(row) => (row.file, row.line),
            };
            if file != current {
                let name = self.file(file);
                let tag = if file == function.file { "fe" } else { "fi" };
                writeln!(self.to, "{tag}={name}")?;
                current = file;
            }
            match row {
                Row::Line(row) => writeln!(self.to, "{line} {}", numbers(&row.costs))?,
                Row::Call(row) => self.call(row, function.module.as_str())?,
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &Call, module: &str) -> fmt::Result {
        let Some(callee) = self.costs.functions.get(call.callee as usize) else { return Ok(()) };
        if callee.module != module {
            let module = self.module(&callee.module);
            writeln!(self.to, "cob={module}")?;
        }
        let file = self.file(callee.file);
        writeln!(self.to, "cfi={file}")?;
        let name = self.name(call.callee);
        writeln!(self.to, "cfn={name}")?;
        // Jumps were not counted, and viewers take costs of 0 calls for own costs. The second
        // number is a line of the called function; the function's first line is unknown here.
        writeln!(self.to, "calls={} 0\n{} {}", call.count.max(1), call.line, numbers(&call.costs))
    }

    fn file(&mut self, number: u32) -> String {
        compressed(number, self.files.insert(number), self.costs.file(number))
    }

    fn name(&mut self, number: u32) -> String {
        let name = self.costs.functions.get(number as usize).map_or("", |function| function.name.as_str());
        compressed(number, self.functions.insert(number), name)
    }

    fn module(&mut self, name: &'a str) -> String {
        let known = self.modules.iter().position(|module| *module == name);
        let number = known.unwrap_or(self.modules.len());
        if known.is_none() {
            self.modules.push(name);
        }
        compressed(number as u32, known.is_none(), name)
    }
}

/// Takes the fitting rows from the front.
fn split<'a, T>(rows: &mut &'a [T], fits: impl FnMut(&T) -> bool) -> &'a [T] {
    let (front, rest) = rows.split_at(rows.partition_point(fits));
    *rows = rest;
    front
}

/// Numbers begin at 1, as Callgrind's.
fn compressed(number: u32, first: bool, name: &str) -> String {
    let name = if name.is_empty() { UNKNOWN } else { name };
    if first { format!("({}) {}", number + 1, clean(name)) } else { format!("({})", number + 1) }
}

/// Costs up to the last other than 0; at least one.
fn numbers(costs: &[u64]) -> String {
    let used = costs.iter().rposition(|cost| *cost != 0).map_or(1, |last| last + 1);
    let words: Vec<String> = costs.iter().take(used).map(u64::to_string).collect();
    words.join(" ")
}

fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use locality_report::schema::costs::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::costs::Builder;

    fn of(report: Value) -> Header {
        Header::of(&serde_json::from_value(report).unwrap())
    }

    fn header() -> Header {
        of(json!({
            "run": { "pids": [7], "command": "./a\nb", "ended_by": "the command ended", "order": "each thread's own" },
            "cache_use": { "prefetch": "stride", "skipped_functions": ["f", "g"], "instruction_cache": {} },
            "partial": true,
        }))
    }

    #[test]
    fn names_are_told_once_and_inlined_lines_by_file() {
        let event = |name: &str| Event { name: name.to_owned(), long: format!("long {name}") };
        let mut table = Builder::new(vec!["L1: small".into()], vec![event("Dr"), event("Dw")]);
        let (a, h) = (table.file("a.c"), table.file("b.h"));
        let main = table.function("main", a, "/bin/a");
        let other = table.function("g", a, "/lib/b");
        table.line(main, (a, 3), &[5, 0]);
        table.line(main, (h, 1), &[0, 2]);
        table.line(other, (a, 9), &[1, 1]);
        table.call(main, (a, 4), other, 2, &[1, 1]);
        table.call(other, (a, 9), main, 0, &[0, 0]);
        let text = print(&table.finish(), &header());
        let body = text.split_once("summary: 6 3\\n".replace("\\n", "\n").as_str()).unwrap().1;
        assert_eq!(
            body,
            "\nob=(1) /bin/a\nfl=(1) a.c\nfn=(1) main\n3 5\ncob=(2) /lib/b\ncfi=(1)\ncfn=(2) g\ncalls=2 0\n4 1 1\n\
             fi=(2) b.h\n1 0 2\n\
             \nob=(2)\nfl=(1)\nfn=(2)\n9 1 1\ncob=(1)\ncfi=(1)\ncfn=(1)\ncalls=1 0\n9 0\n\ntotals: 6 3\n"
        );
        assert!(text.contains("cmd: ./a?b\n") && text.contains("event: Dw : long Dw\n"), "{text}");
        let described: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("desc: ")).collect();
        assert_eq!(
            described,
            [
                "L1: small",
                "Replacement: LRU, write-allocate",
                "Counted as: locality-bpf does",
                "Prefetch: stride",
                "I1 lines: in the L1 events of cache use",
                "Order of accesses: each thread's own",
                "Skipped functions: f, g",
                "Partial: yes",
                "Trigger: the command ended",
            ]
        );
        let whole = of(json!({ "cache_use": { "compatible": "callgrind", "prefetch": "none" } }));
        let told = [
            "Replacement: LRU, write-allocate",
            "Counted as: Callgrind does",
            "Prefetch: none",
            "Order of accesses: ",
        ];
        assert_eq!(whole.described, told);
    }

    #[test]
    fn nothing_is_a_file_too() {
        let text = print(&Costs::default(), &header());
        assert!(
            text.starts_with("# callgrind format\nversion: 1\n") && text.ends_with("totals: \n"),
            "{text}"
        );
    }
}
