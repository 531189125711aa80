//! Iterations of loops and values of what bounds depend on, from windows.
//!
//! Of a loop that windows see enter and leave, 2H / (E + X): arrivals at the header over the mean of entries
//! and exits. Of one that is longer than windows, what its test had left to go: a stop falls anywhere in a
//! stay, so the greatest of N is N / (N + 1) of the whole where all stays are alike; where the mean is not
//! half of that, twice the mean. Intervals are those of 16 parts of the windows left out by turns.
//!
//! Sources of error: stays are met in proportion to their lengths; the second estimate is not corrected for
//! that. A value that a bound depends on is taken as the harmonic mean of what stops met.

use std::collections::BTreeMap;

use crate::bounds::Bound;
use crate::build::{Counts, MOST_VALUES, Read};
use crate::form::{Atom, Form};
use crate::language::{Input, rounded};
use crate::observed::Observed;

/// Readings that an estimate from what is left to go needs.
const FEWEST: usize = 5;

/// What windows tell of a loop.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Iterations, and half the width of their interval.
    pub value: Option<(f64, f64)>,
    /// Parts of the windows that saw the loop entered or left, or the readings that the estimate rests on.
    pub n: usize,
    /// Weighed arrivals at the header.
    pub iterations: f64,
    /// Weighed entries and exits, half of both.
    pub stays: f64,
    /// Where the iterations come from.
    pub from: From,
}

/// Where iterations come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum From {
    /// Nowhere.
    #[default]
    Nothing,
    /// Entries and exits.
    Stays,
    /// What tests had left to go.
    LeftToGo,
}

/// Arrivals at a header from inside, entries and exits of a loop, weighed.
fn flow(read: &Read, of: usize, edge: &dyn Fn(usize, usize) -> f64) -> (f64, f64, f64) {
    let found = &read.graph.loops[of];
    let (mut back, mut entries, mut exits) = (0.0, 0.0, 0.0);
    for (block, info) in read.code.blocks.iter().enumerate() {
        for to in &info.next {
            match (found.has(block), found.has(*to)) {
                (true, true) if *to == found.header => back += edge(block, *to),
                (true, false) => exits += edge(block, *to),
                (false, true) => entries += edge(block, *to),
                _ => {}
            }
        }
    }
    (back, entries, exits)
}

/// Stays: windows are cut at both ends, so entries and exits are as many in the mean.
fn stays(entries: f64, exits: f64) -> f64 {
    if entries > 0.0 && exits > 0.0 { (entries + exits) / 2.0 } else { entries.max(exits) }
}

/// What windows tell of a loop.
pub fn of_loop(
    observed: &Observed,
    (number, read): (usize, &Read),
    of: usize,
    counts: &Counts,
    parts: &[Counts],
) -> Seen {
    let whole = |block: usize, to: usize| counts.edge(number, read, block, to);
    let (back, entries, exits) = flow(read, of, &whole);
    let mut seen = Seen { iterations: back + entries, stays: stays(entries, exits), ..Seen::default() };
    if seen.stays > 0.0 {
        let ratio = |(back, entries, exits): (f64, f64, f64)| 1.0 + back / stays(entries, exits).max(1e-300);
        let value = ratio((back, entries, exits));
        let met = parts.iter().map(|part| {
            let own = |block: usize, to: usize| part.edge(number, read, block, to);
            let (_, entries, exits) = flow(read, of, &own);
            let without = |block: usize, to: usize| (whole(block, to) - own(block, to)).max(0.0);
            (entries + exits > 0.0, ratio(flow(read, of, &without)))
        });
        let met: Vec<(bool, f64)> = met.collect();
        seen.n = met.iter().filter(|(has_stays, _)| *has_stays).count();
        let values: Vec<f64> = met.iter().map(|(_, value)| *value).filter(|value| *value < 1e15).collect();
        let used = values.len() as f64;
        let mean = values.iter().sum::<f64>() / used.max(1.0);
        let spread: f64 = values.iter().map(|part| (part - mean).powi(2)).sum();
        let is_enough = used > 1.0 && seen.n > 1;
        let width = if is_enough { 1.96 * ((used - 1.0) / used * spread).sqrt() } else { value };
        (seen.value, seen.from) = (Some((value, width)), From::Stays);
        // Many whole stays in windows: nothing else is needed.
        if seen.n >= FEWEST && width < 0.3 * value {
            return seen;
        }
    }
    if let Some((value, width, n)) = left_to_go(observed, read, of, read.file) {
        let is_longer = seen.value.is_none_or(|(known, interval)| interval > 0.3 * known || seen.n < FEWEST);
        if is_longer {
            (seen.value, seen.n, seen.from) = (Some((value, width)), n, From::LeftToGo);
        }
    }
    seen
}

/// Iterations from what tests had left to go: value, half of its interval, readings.
fn left_to_go(observed: &Observed, read: &Read, of: usize, file: usize) -> Option<(f64, f64, usize)> {
    let bound = read.bounds.iter().find(|bound| bound.of_loop == of)?;
    let tests = std::iter::once(&bound.test).chain(&bound.others);
    let tests: Vec<u64> = tests.filter_map(|test| Some(read.values.tests.get(test)?.ip)).collect();
    let mut left: Vec<f64> = observed
        .windows
        .iter()
        .flat_map(|window| &window.readings)
        .filter(|(at, ..)| at.0 == file && tests.contains(&at.1))
        .map(|(_, left, right)| (*right as f64 - *left as f64) / bound.step as f64)
        .filter(|left| (0.0..1e15).contains(left))
        .collect();
    if left.len() < FEWEST {
        return None;
    }
    left.sort_by(f64::total_cmp);
    let n = left.len() as f64;
    let mean = left.iter().sum::<f64>() / n;
    // Two windows that began with the loop, or had it before them, tell its length.
    if let [.., second, first] = left.as_slice()
        && first == second
        && *first > 2.0 * mean * (1.0 - 1.0 / n)
    {
        return Some((first + 1.0, 0.0, left.len()));
    }
    let greatest = left.last().copied().unwrap_or(0.0) * (n + 1.0) / n;
    // The mean of n numbers up to the greatest has a deviation of so much.
    let deviation = greatest / (12.0 * n).sqrt();
    Some(match (mean - greatest / 2.0).abs() <= 3.0 * deviation {
        true => (greatest + 1.0, 2.0 * greatest / n, left.len()),
        false => (2.0 * mean + 1.0, 4.0 * deviation, left.len()),
    })
}

/// Values of atoms that bounds depend on.
pub fn inputs(observed: &Observed, read: &Read, file: usize, seen: &[Seen]) -> Vec<Input> {
    let mut values: BTreeMap<Atom, Vec<f64>> = BTreeMap::new();
    for test in read.values.tests.values() {
        let readings = observed.windows.iter().flat_map(|window| &window.readings);
        for (_, left, right) in readings.filter(|(at, ..)| *at == (file, test.ip)) {
            for (form, value) in [(&test.left, left), (&test.right, right)] {
                // One atom that is no loop variable, with a factor that divides.
                let mut terms = form.terms.iter();
                let (Some((atom, factor)), None) = (terms.next(), terms.next()) else { continue };
                let is_variable =
                    matches!(atom, Atom::Name(name) if name.starts_with("iv") || name.starts_with("it"));
                let rest = (*value as f64) - form.constant as f64;
                if !is_variable && rest.abs() < 1e15 {
                    values.entry(atom.clone()).or_default().push(rest / *factor as f64);
                }
            }
        }
    }
    let mut inputs: Vec<Input> = values.into_iter().map(|(atom, values)| input(atom, values)).collect();
    // Where a bound depends on one more value, the iterations tell it.
    for bound in &read.bounds {
        let Some((trips, _)) = seen.get(bound.of_loop).and_then(|seen| seen.value) else { continue };
        let mut unknown: Vec<Atom> = Vec::new();
        bound.trips.visit(&mut |atom| {
            let is_known = inputs.iter().any(|input| input.name == Form::atom(atom.clone()));
            let is_input = !matches!(atom, Atom::Op(..));
            let is_variable =
                matches!(atom, Atom::Name(name) if name.starts_with("iv") || name.starts_with("it"));
            if is_input && !is_known && !unknown.contains(atom) {
                unknown.push(atom.clone());
            }
            if is_variable {
                // Its value differs from stay to stay.
                unknown.extend([atom.clone(), atom.clone()]);
            }
        });
        // Memory at an unknown address is one unknown.
        if let [only] = outermost(&unknown).as_slice() {
            let at = |value: f64| {
                bound.trips.value(&|atom| {
                    let known = inputs.iter().find(|input| input.name == Form::atom(atom.clone()));
                    if atom == only { Some(value) } else { known.map(Input::mean) }
                })
            };
            // Linear up to rounding: two points tell it.
            let (Ok(low), Ok(high)) = (at(0.0), at(1_048_576.0)) else { continue };
            let slope = (high - low) / 1_048_576.0;
            if slope.abs() > 1e-9 {
                let value = ((trips - low) / slope).round();
                if value.abs() < 1e15 {
                    let from = "iterations of its loop".to_owned();
                    inputs.push(Input { name: Form::atom(only.clone()), values: vec![(value, 1.0)], from });
                }
            }
        }
    }
    inputs
}

/// Atoms without those that only stand inside others of them.
fn outermost(atoms: &[Atom]) -> Vec<Atom> {
    let inside = |atom: &Atom, other: &Atom| match other {
        Atom::Load(at, _) => at.any(|found| found == atom),
        _ => false,
    };
    atoms.iter().filter(|atom| !atoms.iter().any(|other| inside(atom, other))).cloned().collect()
}

/// Values with their shares of stays: a stay is met in proportion to its length.
fn input(atom: Atom, values: Vec<f64>) -> Input {
    let n = values.len();
    let mut shares: BTreeMap<i64, f64> = BTreeMap::new();
    for value in &values {
        *shares.entry(value.round() as i64).or_default() += 1.0 / value.abs().max(1.0);
    }
    let all: f64 = shares.values().sum();
    let mut found: Vec<(f64, f64)> =
        shares.into_iter().map(|(value, share)| (value as f64, share / all)).collect();
    if found.len() > MOST_VALUES {
        let mean = found.iter().map(|(value, share)| value * share).sum::<f64>();
        found = vec![(mean, 1.0)];
    }
    let last = found.len() - 1;
    let mut rest = 1.0;
    for (number, (_, share)) in found.iter_mut().enumerate() {
        *share = if number == last { rounded(rest) } else { rounded(*share) };
        rest -= *share;
    }
    if let [(_, share)] = found.as_mut_slice() {
        *share = 1.0;
    }
    Input { name: Form::atom(atom), values: found, from: format!("compared at {n} stops") }
}

/// Whether whole stays that windows saw contradict a bound: they are longer, or, where the test is the only
/// exit, shorter.
pub fn contradicts(bound: &Bound, inputs: &[Input], seen: &Seen) -> bool {
    let Some((value, width)) = seen.value.filter(|_| seen.from == From::Stays && seen.n >= 8) else {
        return false;
    };
    let known = |atom: &Atom| {
        let input = inputs.iter().find(|input| input.name == Form::atom(atom.clone()))?;
        (input.from != "iterations of its loop").then(|| input.mean())
    };
    let Ok(trips) = bound.trips.value(&known) else { return false };
    let trips = trips.max(1.0);
    let margin = width + 0.25 * value;
    value > trips + margin || bound.exits == 1 + bound.others.len() && value < trips - margin
}
