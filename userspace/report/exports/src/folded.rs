//! Folded call paths, a line each: frames from the outermost inwards, separated by `;`, then the weight.
//!
//! The format is the one of stackcollapse-perf.pl, read by flamegraph.pl,
//! inferno and speedscope. The path ends at a space, so the last space of a line
//! stands before the weight; `;` and line breaks within names are replaced.

use std::collections::BTreeMap;

use crate::table::Table;

/// The text of one column.
pub fn print(table: &Table, column: usize) -> String {
    let names: Vec<String> = table.frames.iter().map(|frame| clean(&frame.name)).collect();
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for row in &table.rows {
        let value = row.values.get(column).copied().unwrap_or(0);
        if value > 0 {
            let path: Vec<&str> =
                row.path.iter().filter_map(|frame| names.get(*frame as usize)).map(String::as_str).collect();
            let path = if path.is_empty() { "[unknown]".to_owned() } else { path.join(";") };
            *lines.entry(path).or_default() += value;
        }
    }
    lines.into_iter().map(|(path, value)| format!("{path} {value}\n")).collect()
}

fn clean(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() || c == '\n' { '?' } else { c }).collect();
    let name = name.replace(';', ":");
    if name.trim().is_empty() { "[unknown]".to_owned() } else { name }
}
