//! `profile.proto` of pprof, gzipped: <https://github.com/google/pprof/blob/main/proto/profile.proto>.
//!
//! Written without a compiler of protocol buffers: eight messages of integers
//! and strings. Each call path is a sample with all metrics; `object`, `thread`
//! and the place at the other end of a reuse are labels. Frames inlined by the
//! compiler are lines of one location, innermost first, as in the format.

use std::collections::HashMap;

use locality_report::schema::Report;

use crate::table::{Frame, Table};
use crate::wire::{Numbered, bytes, gzipped, number, packed};

/// The gzipped message; `chosen` is the metric that viewers show first.
pub fn print(table: &Table, chosen: usize, report: &Report) -> Vec<u8> {
    gzipped(&message(table, chosen, report))
}

fn message(table: &Table, chosen: usize, report: &Report) -> Vec<u8> {
    let mut strings = Numbered::default();
    let mut out = Vec::new();
    for column in &table.columns {
        let mut value_type = Vec::new();
        number(&mut value_type, 1, strings.number(column.metric.to_string()));
        number(&mut value_type, 2, strings.number(column.unit));
        bytes(&mut out, 1, &value_type);
    }
    let mut locations = Locations::default();
    for row in &table.rows {
        let ids: Vec<u64> = locations.of(table, &row.path);
        let mut sample = Vec::new();
        packed(&mut sample, 1, ids.into_iter());
        packed(&mut sample, 2, row.values.iter().copied());
        for (key, value) in &row.labels {
            let mut label = Vec::new();
            number(&mut label, 1, strings.number(key));
            number(&mut label, 2, strings.number(value));
            bytes(&mut sample, 3, &label);
        }
        bytes(&mut out, 2, &sample);
    }
    let mut mappings: HashMap<&str, u64> = HashMap::new();
    let mut modules: Vec<&str> = Vec::new();
    for frame in &table.frames {
        if !frame.module.is_empty() && !mappings.contains_key(frame.module.as_str()) {
            modules.push(&frame.module);
            mappings.insert(&frame.module, modules.len() as u64);
        }
    }
    for (id, module) in (1..).zip(&modules) {
        let mut mapping = Vec::new();
        number(&mut mapping, 1, id);
        // Addresses are file addresses: one range for the whole module.
        number(&mut mapping, 3, u64::MAX);
        number(&mut mapping, 5, strings.number(module));
        // Functions, files, lines and inlined frames are
        // complete: a viewer has no symbols to look up.
        (7..=10).for_each(|field| number(&mut mapping, field, 1));
        bytes(&mut out, 3, &mapping);
    }
    let mut functions: HashMap<(&str, &str), u64> = HashMap::new();
    let mut in_order: Vec<&Frame> = Vec::new();
    for (id, frames) in (1..).zip(&locations.all) {
        let frames: Vec<&Frame> =
            frames.iter().filter_map(|frame| table.frames.get(*frame as usize)).collect();
        let mut location = Vec::new();
        number(&mut location, 1, id);
        if let Some(first) = frames.first() {
            number(&mut location, 2, mappings.get(first.module.as_str()).copied().unwrap_or(0));
            number(&mut location, 3, first.address);
        }
        for frame in frames {
            let next = functions.len() as u64 + 1;
            let function = *functions.entry((&frame.name, &frame.file)).or_insert(next);
            if function == next {
                in_order.push(frame);
            }
            let mut line = Vec::new();
            number(&mut line, 1, function);
            number(&mut line, 2, u64::from(frame.line));
            bytes(&mut location, 4, &line);
        }
        bytes(&mut out, 4, &location);
    }
    for (id, frame) in (1..).zip(in_order) {
        let mut function = Vec::new();
        number(&mut function, 1, id);
        number(&mut function, 2, strings.number(&frame.name));
        number(&mut function, 3, strings.number(&frame.name));
        number(&mut function, 4, strings.number(&frame.file));
        bytes(&mut out, 5, &function);
    }
    let wall_ns = report.run.wall_s.finite().map_or(0.0, |seconds| seconds * 1e9) as u64;
    number(&mut out, 10, wall_ns);
    let comment = strings.number(format!("locality-bpf: {}", report.run.command));
    packed(&mut out, 13, std::iter::once(comment));
    let name = table.columns.get(chosen).map(|column| column.metric.to_string()).unwrap_or_default();
    number(&mut out, 14, strings.number(&name));
    strings.write(&mut out, 6);
    out
}

/// Places of call paths: a frame with inlined frames, innermost first.
#[derive(Default)]
struct Locations {
    all: Vec<Vec<u32>>,
    numbers: HashMap<Vec<u32>, u64>,
}

impl Locations {
    /// Numbers from 1 of a path, innermost first.
    fn of(&mut self, table: &Table, path: &[u32]) -> Vec<u64> {
        table.places(path).into_iter().map(|frames| self.number(frames)).collect()
    }

    fn number(&mut self, frames: Vec<u32>) -> u64 {
        let next = self.all.len() as u64 + 1;
        let number = *self.numbers.entry(frames.clone()).or_insert(next);
        if number == next {
            self.all.push(frames);
        }
        number
    }
}
