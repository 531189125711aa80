//! Passes over the same data that one pass could make: fusion.

use std::collections::BTreeMap;

use super::{CONCERNED, cost, stride, whole_cost};
use crate::{
    Candidate, Kind, Loop, View,
    gain::{Change, Fix, Pattern, lines},
};

/// Far reuses between two loops that make a pair.
const FEWEST: u32 = 3;

/// Loops of which the second reads, far later, what the first touched.
pub(super) fn fuse(view: &View<'_>) -> Vec<Candidate> {
    let mut of_ip: BTreeMap<u64, usize> = BTreeMap::new();
    for (number, of) in view.loops.iter().enumerate() {
        for access in &of.accesses {
            of_ip.entry(access.ip).or_insert(number);
        }
    }
    // Reuses by loop of the use and of the reuse, and all at each instruction.
    let mut pairs: BTreeMap<(usize, usize), BTreeMap<u64, u32>> = BTreeMap::new();
    let mut all: BTreeMap<u64, u32> = BTreeMap::new();
    for far in view.far {
        *all.entry(far.to).or_default() += 1;
        let (Some(from), Some(to)) = (of_ip.get(&far.from), of_ip.get(&far.to)) else { continue };
        if from != to {
            *pairs.entry((*from, *to)).or_default().entry(far.to).or_default() += 1;
        }
    }
    // The last pass of a round and the first of the next are not beside each other.
    let is_first = |(from, to): &(usize, usize)| {
        view.loops.get(*from).zip(view.loops.get(*to)).is_some_and(|(from, to)| comes_first(view, from, to))
    };
    let found = pairs.iter().filter(|(pair, _)| is_first(pair));
    found.filter_map(|(of, reuses)| pair(view, *of, reuses, &all)).collect()
}

/// Whether the program comes to one loop before the other, as the code of their common caller stands.
fn comes_first(view: &View<'_>, one: &Loop, other: &Loop) -> bool {
    let addresses = |of: &Loop| -> Vec<(u64, Option<String>)> {
        let stack = view.profile.stacks.get(of.stack.0 as usize);
        let frames = stack.map_or(&[][..], |stack| &stack.frames).iter().rev();
        let known = frames.filter_map(|id| view.profile.frames.get(id.0 as usize));
        known.filter(|frame| !frame.inlined).map(|frame| (frame.address, frame.function.clone())).collect()
    };
    let (one, other) = (addresses(one), addresses(other));
    let apart = one.iter().zip(&other).find(|(a, b)| a.0 != b.0);
    apart.is_none_or(|(a, b)| a.1 != b.1 || a.0 < b.0)
}

fn pair(
    view: &View<'_>,
    (from, to): (usize, usize),
    reuses: &BTreeMap<u64, u32>,
    all: &BTreeMap<u64, u32>,
) -> Option<Candidate> {
    let (first, second) = (view.loops.get(from)?, view.loops.get(to)?);
    let n: u32 = reuses.values().sum();
    if n < FEWEST {
        return None;
    }
    let changes: Vec<Change> = second
        .accesses
        .iter()
        .enumerate()
        .filter_map(|(at, access)| {
            let step = stride(access)?;
            let reused = *reuses.get(&access.ip)?;
            // The other loop walks the same way.
            let is_alike = first.accesses.iter().any(|other| stride(other) == Some(step));
            let share = f64::from(reused) / f64::from(all.get(&access.ip).copied().unwrap_or(reused));
            let misses = lines(access).map(|lines| lines * (1.0 - share));
            is_alike.then_some(Change { access: at, misses, pattern: Pattern::of(access) })
        })
        .collect();
    let concerned: f64 =
        changes.iter().filter_map(|change| Some(cost(view, second.accesses.get(change.access)?))).sum();
    if concerned <= 0.0 || concerned < CONCERNED * whole_cost(view, second) {
        return None;
    }
    let access = changes
        .iter()
        .filter_map(|change| second.accesses.get(change.access))
        .max_by(|a, b| cost(view, a).total_cmp(&cost(view, b)))?;
    let mut evidence = vec![format!(
        "{n} watched reuses of {} lead from {} to {}, beyond the reach of the caches.",
        view.name(access),
        view.at(from),
        view.at(to)
    )];
    evidence.extend(view.time(second));
    // What only these two loops touch need not be stored at all.
    let passed_on = passed_on(view, (from, to), second, &changes);
    let (one, other) = (view.function(first), view.function(second));
    let functions = if one == other { format!("both in {one}") } else { format!("{one} and {other}") };
    Some(Candidate {
        kind: Kind::Fuse,
        fixes: [Fix::lines(to, changes)].into_iter().chain(passed_on).collect(),
        title: format!(
            "Run the loops at {} and {} together ({functions}): the second reads {} again after the \
             caches have lost it",
            view.at(from),
            view.at(to),
            view.name(access)
        ),
        of: to,
        other: Some(from),
        object: access.object,
        evidence,
        in_the_way: vec![
            "Each round of the second loop must need only what the first has done by then.".to_owned(),
        ],
    })
}

/// Stores of the first loop whose values only the second loop reads: both are gone where a value is
/// passed on.
fn passed_on(view: &View<'_>, (from, to): (usize, usize), second: &Loop, changes: &[Change]) -> Option<Fix> {
    let first = view.loops.get(from)?;
    let read: Vec<_> = changes
        .iter()
        .filter_map(|change| second.accesses.get(change.access)?.object.map(|(object, _)| object))
        .collect();
    let elsewhere = |object| {
        let others = view.loops.iter().enumerate().filter(|(number, _)| *number != from && *number != to);
        let mut accesses = others.flat_map(|(_, of)| &of.accesses);
        accesses.any(|access| access.object.is_some_and(|(other, _)| other == object))
    };
    let is_stored_only = |object| {
        let mut of_it =
            first.accesses.iter().filter(|access| access.object.is_some_and(|(other, _)| other == object));
        of_it.all(|access| access.kind == locality_model::AccessKind::Store)
    };
    let stores: Vec<Change> = first
        .accesses
        .iter()
        .enumerate()
        .filter(|(_, access)| {
            access.object.is_some_and(|(object, _)| {
                read.contains(&object) && is_stored_only(object) && !elsewhere(object)
            })
        })
        .map(|(at, access)| Change { access: at, misses: [0.0; 3], pattern: Pattern::of(access) })
        .collect();
    (!stores.is_empty()).then(|| Fix::lines(from, stores))
}
