//! Call paths of a live profile as a Callgrind file: own costs by line, inclusive costs by call.
//!
//! Samples do not count calls, so each call stands once. Functions inlined by the compiler are
//! functions of their own. A call repeated in a path (recursion) has the path's cost once.

use locality_report::schema::{Report, costs::Event};

use crate::Metric;
use crate::callgrind::{self, Header};
use crate::costs::Builder;
use crate::table::Table;

/// The file's text; `chosen` is the first column.
pub fn print(table: &Table, chosen: usize, report: &Report) -> String {
    let mut columns: Vec<usize> = (0..table.columns.len()).filter(|column| *column != chosen).collect();
    columns.insert(0, chosen);
    let events =
        columns.iter().filter_map(|column| table.columns.get(*column)).map(|column| event(&column.metric));
    let described = vec!["Estimates from samples of a running program; calls are not counted".to_owned()];
    let mut costs = Builder::new(described, events.collect());
    let functions: Vec<(u32, u32)> = table
        .frames
        .iter()
        .map(|frame| {
            let file = costs.file(if frame.file.is_empty() { "???" } else { &frame.file });
            (costs.function(&frame.name, file, &frame.module), file)
        })
        .collect();
    let no_file = costs.file("???");
    let nowhere = costs.function("???", no_file, "");
    let at = |frame: &u32| {
        let known = functions.get(*frame as usize).zip(table.frames.get(*frame as usize));
        known.map(|((function, file), frame)| (*function, (*file, frame.line)))
    };
    for row in &table.rows {
        let own: Vec<u64> =
            columns.iter().map(|column| row.values.get(*column).copied().unwrap_or(0)).collect();
        let (function, place) = row.path.last().and_then(at).unwrap_or((nowhere, (no_file, 0)));
        costs.line(function, place, &own);
        let mut calls = Vec::new();
        for pair in row.path.windows(2) {
            let [caller, callee] = pair else { continue };
            let (Some((caller, place)), Some((callee, _))) = (at(caller), at(callee)) else { continue };
            if !calls.contains(&(caller, place, callee)) {
                calls.push((caller, place, callee));
                costs.call(caller, place, callee, 0, &own);
            }
        }
    }
    let mut described = vec![format!("Samples: {}", report.run.samples.unwrap_or(0))];
    if report.partial {
        described.push("Partial: yes".to_owned());
    }
    let header = Header {
        pid: report.run.pids.first().copied().unwrap_or(0),
        command: report.run.command.clone(),
        ended_by: report.run.ended_by.clone(),
        described,
    };
    callgrind::print(&costs.finish(), &header)
}

/// Names of events are letters and digits.
fn event(metric: &Metric) -> Event {
    let (name, long) = match metric {
        Metric::Far => ("Far".to_owned(), "Far reuses in a million reuses".to_owned()),
        Metric::Misses(level) => (format!("{level}m"), format!("Lines loaded into {level}")),
        Metric::Wasted(level) => (format!("{level}w"), format!("Bytes loaded into {level} but not used")),
        Metric::Accesses => ("Acc".to_owned(), "Memory accesses".to_owned()),
        Metric::Cpu => ("Cpu".to_owned(), "CPU time in nanoseconds".to_owned()),
    };
    Event { long, name }
}
