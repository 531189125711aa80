//! Costs by function, line and call, with names: the source
//! of the callgrind file and of the report's tables.
//!
//! One column an event; the table's maker chooses the events. A function is a symbol;
//! a line of the function may lie in another file, after inlining. Not here: printing.

use std::collections::HashMap;

use locality_report::schema::costs::{Call, Costs, Event, Function, Line};

/// Makes a table; rows with equal keys are added up.
#[derive(Debug, Default)]
pub struct Builder {
    costs: Costs,
    files: HashMap<String, u32>,
    functions: HashMap<Function, u32>,
    lines: HashMap<(u32, u32, u32), usize>,
    calls: HashMap<(u32, u32, u32, u32), usize>,
}

/// A place in the source: file number and line.
pub type Place = (u32, u32);

impl Builder {
    /// An empty table with the given columns.
    pub fn new(described: Vec<String>, events: Vec<Event>) -> Self {
        let total = vec![0; events.len()];
        Self { costs: Costs { described, events, total, ..Costs::default() }, ..Self::default() }
    }

    /// The number of a file.
    pub fn file(&mut self, name: &str) -> u32 {
        if let Some(number) = self.files.get(name) {
            return *number;
        }
        let number = self.costs.files.len() as u32;
        self.costs.files.push(name.to_owned());
        self.files.insert(name.to_owned(), number);
        number
    }

    /// The number of a function.
    pub fn function(&mut self, name: &str, file: u32, module: &str) -> u32 {
        let function = Function { name: name.to_owned(), file, module: module.to_owned() };
        if let Some(number) = self.functions.get(&function) {
            return *number;
        }
        let number = self.costs.functions.len() as u32;
        self.costs.functions.push(function.clone());
        self.functions.insert(function, number);
        number
    }

    /// Adds the self cost of a line.
    pub fn line(&mut self, function: u32, (file, line): Place, costs: &[u64]) {
        add(&mut self.costs.total, costs);
        let rows = &mut self.costs.lines;
        let at = *self.lines.entry((function, file, line)).or_insert(rows.len());
        match rows.get_mut(at) {
            Some(row) => add(&mut row.costs, costs),
            None => rows.push(Line { function, file, line, costs: costs.to_vec() }),
        }
    }

    /// Adds costs below calls.
    pub fn call(&mut self, caller: u32, (file, line): Place, callee: u32, count: u64, costs: &[u64]) {
        let rows = &mut self.costs.calls;
        let at = *self.calls.entry((caller, file, line, callee)).or_insert(rows.len());
        match rows.get_mut(at) {
            Some(row) => {
                row.count += count;
                add(&mut row.costs, costs);
            }
            None => rows.push(Call { caller, file, line, callee, count, costs: costs.to_vec() }),
        }
    }

    /// The table, ordered.
    pub fn finish(mut self) -> Costs {
        self.costs.lines.sort_by_key(|row| (row.function, row.file, row.line));
        self.costs.calls.sort_by_key(|row| (row.caller, row.file, row.line, row.callee));
        self.costs
    }
}

fn add(ours: &mut [u64], theirs: &[u64]) {
    ours.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
}

#[cfg(test)]
mod tests {
    use locality_report::schema::costs::UNKNOWN;

    use super::*;

    #[test]
    fn rows_of_one_key_are_one() {
        let event = |name: &str| Event { name: name.to_owned(), long: String::new() };
        let mut table = Builder::new(Vec::new(), vec![event("Dr"), event("Dw")]);
        let (a, b) = (table.file("a.c"), table.file("b.h"));
        assert_eq!(table.file("a.c"), a);
        let (f, g) = (table.function("f", a, "m"), table.function("g", a, "m"));
        assert_eq!(table.function("f", a, "m"), f);
        assert_ne!(table.function("f", b, "m"), f);
        table.line(g, (a, 9), &[1, 1]);
        table.line(f, (b, 2), &[1, 2]);
        table.line(f, (a, 7), &[10, 20]);
        table.line(f, (b, 2), &[3, 4]);
        table.call(f, (a, 7), g, 2, &[1, 1]);
        table.call(f, (a, 7), g, 3, &[1, 0]);
        let costs = table.finish();
        assert_eq!(costs.total, [15, 27]);
        let lines: Vec<(u32, u32, u32)> = costs.lines.iter().map(|l| (l.function, l.file, l.line)).collect();
        assert_eq!(lines, [(f, a, 7), (f, b, 2), (g, a, 9)]);
        assert_eq!(costs.lines[1].costs, [4, 6]);
        assert_eq!((costs.calls.len(), costs.calls[0].count, &costs.calls[0].costs), (1, 5, &vec![2, 1]));
        assert_eq!((costs.column("Dw"), costs.column("Ir"), costs.file(77)), (Some(1), None, UNKNOWN));
    }
}
