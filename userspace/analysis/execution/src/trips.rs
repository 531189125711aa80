//! Iterations of loops and input values of bounds, from windows.
//!
//! With entries and exits in windows, 2H / (E + X): arrivals at the header over the
//! mean of entries and exits. For loops longer than windows, the iterations left to go
//! by the test. A stop falls anywhere in a stay, so the greatest of N is N / (N + 1)
//! of the whole for equal stays. If the mean is not half the greatest, the estimate is
//! twice the mean. Intervals come from 16 parts of the windows, left out by turns.
//!
//! Sources of error: stays are met in proportion to their lengths; the second estimate has no
//! correction for length. An input of a bound is the harmonic mean of the values met at stops.

use std::collections::BTreeMap;

use crate::bounds::Bound;
use crate::build::{Counts, MOST_VALUES, Read};
use crate::form::{Atom, Form};
use crate::language::{Input, rounded};
use crate::observed::Observed;

/// Fewest readings for an estimate from iterations left to go.
const FEWEST: usize = 5;

/// Observations of a loop in windows.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Iterations, and half the width of the interval.
    pub value: Option<(f64, f64)>,
    /// Parts of the windows with entries or exits of the loop, or the readings of the estimate.
    pub n: usize,
    /// Weighed arrivals at the header.
    pub iterations: f64,
    /// Weighed entries and exits, half of both.
    pub stays: f64,
    /// Source of the iterations.
    pub from: From,
}

/// Source of iterations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum From {
    /// Nowhere.
    #[default]
    Nothing,
    /// Entries and exits.
    Stays,
    /// Iterations left to go, by the tests.
    LeftToGo,
    /// Instructions executed below the loop, by call stacks (`outer.rs`).
    Stacks,
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

/// Estimates the iterations of a loop from windows.
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
        // Windows with many whole stays suffice.
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

/// Iterations by the tests' iterations left to go: value, half of the interval, readings.
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
    // Two windows from the loop's beginning, or from before, give the length.
    if let [.., second, first] = left.as_slice()
        && first == second
        && *first > 2.0 * mean * (1.0 - 1.0 / n)
    {
        return Some((first + 1.0, 0.0, left.len()));
    }
    let greatest = left.last().copied().unwrap_or(0.0) * (n + 1.0) / n;
    // Standard deviation of the mean of n numbers uniform up to the greatest.
    let deviation = greatest / (12.0 * n).sqrt();
    Some(match (mean - greatest / 2.0).abs() <= 3.0 * deviation {
        true => (greatest + 1.0, 2.0 * greatest / n, left.len()),
        false => (2.0 * mean + 1.0, 4.0 * deviation, left.len()),
    })
}

/// Values of the atoms in bounds.
pub fn inputs(observed: &Observed, read: &Read, file: usize, seen: &[Seen]) -> Vec<Input> {
    let mut values: BTreeMap<Atom, Vec<f64>> = BTreeMap::new();
    for test in read.values.tests.values() {
        let readings = observed.windows.iter().flat_map(|window| &window.readings);
        for (_, left, right) in readings.filter(|(at, ..)| *at == (file, test.ip)) {
            for (form, value) in [(&test.left, left), (&test.right, right)] {
                // A single atom other than a loop variable.
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
    // A bound's only unknown value follows from the iterations.
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
                // The variable's value differs from stay to stay.
                unknown.extend([atom.clone(), atom.clone()]);
            }
        });
        // Memory at an unknown address is a single unknown.
        if let [only] = outermost(&unknown).as_slice() {
            let at = |value: f64| {
                bound.trips.value(&|atom| {
                    let known = inputs.iter().find(|input| input.name == Form::atom(atom.clone()));
                    if atom == only { Some(value) } else { known.map(Input::mean) }
                })
            };
            // Linear up to rounding: two points suffice.
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

/// Atoms outside the loads in the list.
fn outermost(atoms: &[Atom]) -> Vec<Atom> {
    let inside = |atom: &Atom, other: &Atom| match other {
        Atom::Load(at, _) => at.any(|found| found == atom),
        _ => false,
    };
    atoms.iter().filter(|atom| !atoms.iter().any(|other| inside(atom, other))).cloned().collect()
}

/// Values with shares of stays: a stay is met in proportion to the length.
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

/// Whether whole stays in windows contradict a bound: longer
/// stays, or shorter stays if the tests are the only exits.
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
