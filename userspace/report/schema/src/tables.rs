//! Call paths as tables: the difference of `locality-report/2` and `/1`.
//!
//! A report in memory has frames beside each path, with equal frames of a live report as
//! one value. [`fold`] moves frames into `frames` and `stacks`, [`unfold`] moves them back.

use std::{collections::HashMap, sync::Arc};

use super::{
    Report, SCHEMA, SCHEMA_1,
    place::{Frame, Path, Place},
};

/// The frames of a path, or its number among `stacks`.
type Way<'a> = (&'a mut Option<Vec<Arc<Frame>>>, &'a mut Option<u32>);

/// Makes a report one of `locality-report/2`. A path
/// without a place gets the place of the innermost frame.
pub fn fold(report: &mut Report) {
    let (mut frames, mut stacks) = (Table::default(), Table::default());
    for path in paths(report) {
        path.place =
            path.place.take().or_else(|| path.frames.iter().flatten().next().map(|frame| place(frame)));
    }
    for (path, stack) in ways(report) {
        let path = path.take().unwrap_or_default();
        let numbers: Vec<u32> = path.into_iter().map(|frame| frames.number(frame)).collect();
        *stack = Some(stacks.number(numbers));
    }
    (report.frames, report.stacks) = (Some(frames.rows), Some(stacks.rows));
    report.schema = SCHEMA.to_owned();
}

/// Makes a report of `locality-report/2` one of `/1`, but for the rows left out.
///
/// # Errors
/// The name of a table with a missing row.
pub fn unfold(report: &mut Report) -> Result<(), &'static str> {
    let frames = report.frames.take().ok_or("frames")?;
    let stacks = report.stacks.take().ok_or("stacks")?;
    for (path, stack) in ways(report) {
        let number = stack.take().ok_or("stacks")?;
        let numbers = stacks.get(number as usize).ok_or("stacks")?;
        let frames = numbers.iter().map(|number| frames.get(*number as usize).cloned());
        *path = Some(frames.collect::<Option<_>>().ok_or("frames")?);
    }
    report.schema = SCHEMA_1.to_owned();
    Ok(())
}

/// Values by number, each once.
struct Table<T> {
    rows: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Table<T> {
    fn number(&mut self, row: T) -> u32 {
        *self.numbers.entry(row).or_insert_with_key(|row| {
            self.rows.push(row.clone());
            self.rows.len() as u32 - 1
        })
    }
}

fn place(frame: &Frame) -> Place {
    Place { file: frame.file.clone(), function: frame.function.clone(), line: frame.line, ..Place::default() }
}

/// Paths of uses and reuses.
fn paths(report: &mut Report) -> impl Iterator<Item = &mut Path> {
    report.pairs.iter_mut().flat_map(|pair| {
        let contexts = pair.contexts.iter_mut().flat_map(|context| [&mut context.used, &mut context.reuse]);
        [&mut pair.used, &mut pair.reuse].into_iter().chain(contexts)
    })
}

/// All call paths.
fn ways(report: &mut Report) -> impl Iterator<Item = Way<'_>> {
    let Report { pairs, objects, objects_summary, .. } = report;
    let pairs = pairs.iter_mut().flat_map(|pair| {
        let contexts = pair.contexts.iter_mut().flat_map(|context| [&mut context.used, &mut context.reuse]);
        [&mut pair.used, &mut pair.reuse].into_iter().chain(contexts)
    });
    let objects = objects.iter_mut().flatten().filter_map(|object| object.site.as_mut());
    let heap = objects_summary.iter_mut().filter_map(|summary| summary.heap.as_mut());
    let sites = heap.flat_map(|heap| heap.sites.iter_mut());
    pairs
        .map(|path| (&mut path.frames, &mut path.stack))
        .chain(objects.map(|site| (&mut site.frames, &mut site.stack)))
        .chain(sites.map(|site| (&mut site.frames, &mut site.stack)))
}
