//! Fusion: several passes over common data, replaced by one pass.

use std::collections::BTreeMap;

use locality_model::{AccessKind, Dependence};

use super::{CONCERNED, cost, stride, whole_cost};
use crate::{
    Access, Candidate, Kind, Loop, View,
    gain::{Change, Fix, Pattern, lines},
    words,
};

/// Least far reuses between two loops of a pair.
const FEWEST: u32 = 3;
/// Counting and jumping instructions of an iteration: two fused loops execute one set.
const COUNTING: f64 = 3.0;
/// Least remaining part of a loop's core.
const LEAST_LEFT: f64 = 0.25;

/// Pairs of loops: the second reads, far later, the data touched by the first.
pub(super) fn fuse(view: &View<'_>) -> Vec<Candidate> {
    let mut of_ip: BTreeMap<u64, usize> = BTreeMap::new();
    for (number, of) in view.loops.iter().enumerate() {
        for access in &of.accesses {
            of_ip.entry(access.ip).or_insert(number);
        }
    }
    // Reuses by loop of the use and of the reuse, and the total at each instruction.
    let mut pairs: BTreeMap<(usize, usize), BTreeMap<u64, u32>> = BTreeMap::new();
    let mut all: BTreeMap<u64, u32> = BTreeMap::new();
    for far in view.far {
        *all.entry(far.to).or_default() += 1;
        let (Some(from), Some(to)) = (of_ip.get(&far.from), of_ip.get(&far.to)) else { continue };
        if from != to {
            *pairs.entry((*from, *to)).or_default().entry(far.to).or_default() += 1;
        }
    }
    // The last pass of a round and the first of the next are not adjacent.
    let is_first = |(from, to): &(usize, usize)| {
        view.loops.get(*from).zip(view.loops.get(*to)).is_some_and(|(from, to)| comes_first(view, from, to))
    };
    let found = pairs.iter().filter(|(pair, _)| is_first(pair));
    let found = found.filter_map(|(of, reuses)| pair(view, *of, reuses, &all)).collect();
    rows(found).into_iter().map(|row| together(view, row)).collect()
}

/// A loop reading another loop's data again, far later.
struct Pair {
    from: usize,
    to: usize,
    /// Part of the lines' costs of the second loop.
    concerned: f64,
    fixes: Vec<Fix>,
    object: Option<(locality_model::ObjectId, Option<locality_model::FieldId>)>,
    name: String,
    evidence: String,
}

/// Pairs form a row if the end of one pair starts the next; no loop is in two rows.
fn rows(mut pairs: Vec<Pair>) -> Vec<Vec<Pair>> {
    pairs.sort_by(|a, b| b.concerned.total_cmp(&a.concerned));
    let mut rows: Vec<Vec<Pair>> = Vec::new();
    for pair in pairs {
        let ends = |row: &Vec<Pair>| row.last().is_some_and(|last| last.to == pair.from);
        let begins = |row: &Vec<Pair>| row.first().is_some_and(|first| first.from == pair.to);
        let in_row = |row: &Vec<Pair>, of: usize| row.iter().any(|known| known.from == of || known.to == of);
        if let Some(at) = rows.iter().position(ends) {
            if !rows.iter().any(|row| in_row(row, pair.to)) {
                rows[at].push(pair);
            }
        } else if let Some(at) = rows.iter().position(begins) {
            if !rows.iter().any(|row| in_row(row, pair.from)) {
                rows[at].insert(0, pair);
            }
        } else if !rows.iter().any(|row| in_row(row, pair.from) || in_row(row, pair.to)) {
            rows.push(vec![pair]);
        }
    }
    rows
}

/// One change for the loops of a row.
fn together(view: &View<'_>, row: Vec<Pair>) -> Candidate {
    let (first, last) = (row.first().map_or(0, |pair| pair.from), row.last().map_or(0, |pair| pair.to));
    let loops: Vec<usize> = std::iter::once(first).chain(row.iter().map(|pair| pair.to)).collect();
    let mut functions: Vec<String> =
        loops.iter().filter_map(|of| Some(view.function(view.loops.get(*of)?))).collect();
    functions.dedup();
    let functions = match functions.as_slice() {
        [one] => format!("all in {one}"),
        all => words::list(all),
    };
    let places: Vec<String> = loops.iter().map(|of| view.at(*of)).collect();
    let heaviest = row.iter().max_by(|a, b| a.concerned.total_cmp(&b.concerned));
    let name = heaviest.map_or_else(String::new, |pair| pair.name.clone());
    let mut evidence: Vec<String> = row.iter().map(|pair| pair.evidence.clone()).collect();
    evidence.extend(view.loops.get(last).and_then(|of| view.time(of)));
    Candidate {
        kind: Kind::Fuse,
        title: format!(
            "Run the loops at {} together ({functions}): each reads {name} again after the caches have lost \
             it",
            words::list(&places),
        ),
        of: last,
        other: Some(first),
        object: heaviest.and_then(|pair| pair.object),
        fixes: merged(row.into_iter().flat_map(|pair| pair.fixes)),
        evidence,
        in_the_way: vec![
            "Each round of a loop must need only what the loops before have done by then.".to_owned(),
        ],
    }
}

/// Changes of a loop are merged.
fn merged(fixes: impl Iterator<Item = Fix>) -> Vec<Fix> {
    let mut merged: Vec<Fix> = Vec::new();
    for fix in fixes {
        let Some(known) = merged.iter_mut().find(|known| known.of == fix.of) else {
            merged.push(fix);
            continue;
        };
        known.core = (known.core.0 * fix.core.0, known.core.1 * fix.core.1);
        for change in fix.changes {
            match known.changes.iter_mut().find(|known| known.access == change.access) {
                Some(known) => {
                    known.misses = std::array::from_fn(|at| known.misses[at].min(change.misses[at]))
                }
                None => known.changes.push(change),
            }
        }
    }
    merged
}

/// Remaining part of the core after the removal of instructions; a chain retains the length.
fn core_without(of: &Loop, gone: f64) -> (f64, f64) {
    let is_chain = of.bound_by.as_ref().is_some_and(|(bound, _)| bound.ends_with("_chain"));
    let left = (1.0 - gone / of.instructions.max(1.0)).clamp(LEAST_LEFT, 1.0);
    if is_chain { (1.0, 1.0) } else { (left, 1.0) }
}

/// Whether the program reaches loop `one` before loop
/// `other`, by the code order in the common caller.
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
) -> Option<Pair> {
    let (first, second) = (view.loops.get(from)?, view.loops.get(to)?);
    let n: u32 = reuses.values().sum();
    if n < FEWEST || needs_whole(first, second) {
        return None;
    }
    let changes: Vec<Change> = second
        .accesses
        .iter()
        .enumerate()
        .filter_map(|(at, access)| {
            let step = stride(access)?;
            let reused = *reuses.get(&access.ip)?;
            // The second loop walks alike.
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
    let evidence = format!(
        "{n} watched reuses of {} lead from {} to {}, beyond the reach of the caches.",
        view.name(access),
        view.at(from),
        view.at(to)
    );
    // Data of the two loops alone need not be stored.
    let passed_on = passed_on(view, (from, to), second, &changes);
    let loads = changes.iter().filter_map(|change| second.accesses.get(change.access));
    let loaded: f64 =
        loads.filter(|access| access.kind == AccessKind::Load).map(|access| access.per_iteration).sum();
    let name = view.name(access);
    let fix = Fix { core: core_without(second, COUNTING + loaded), ..Fix::lines(to, changes) };
    let fixes = [fix].into_iter().chain(passed_on).collect();
    Some(Pair { from, to, concerned, fixes, object: access.object, name, evidence })
}

/// Whether the second loop reads the first loop's stores at different places:
/// sums, counts, neighbours by index. The first loop must then finish before.
fn needs_whole(first: &Loop, second: &Loop) -> bool {
    let stores = first.accesses.iter().filter(|access| access.kind == AccessKind::Store);
    let mut pairs = stores.flat_map(|store| {
        let same = |other: &&Access| {
            store.object.is_some()
                && other.object.map(|(object, _)| object) == store.object.map(|(object, _)| object)
        };
        second.accesses.iter().filter(same).map(move |other| (store, other))
    });
    pairs.any(|(store, other)| {
        let step = stride(store).filter(|step| *step != 0);
        step.is_none() || stride(other) != step || other.dependence != Dependence::None
    })
}

/// Stores of the first loop, with values read or overwritten only
/// by the second loop: a value passed in a register needs no store.
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
    // The second loop stores to equal elements.
    let is_replaced = |access: &Access| {
        second.accesses.iter().any(|other| {
            other.kind == AccessKind::Store
                && other.object.is_some()
                && other.object.map(|(object, _)| object) == access.object.map(|(object, _)| object)
                && stride(other) == stride(access)
        })
    };
    let is_stored_only = |object| {
        let mut of_it =
            first.accesses.iter().filter(|access| access.object.is_some_and(|(other, _)| other == object));
        of_it.all(|access| access.kind == AccessKind::Store)
    };
    let stores: Vec<Change> = first
        .accesses
        .iter()
        .enumerate()
        .filter(|(_, access)| {
            access.kind == AccessKind::Store
                && access.object.is_some_and(|(object, _)| {
                    let is_last = is_stored_only(object) && !elsewhere(object);
                    read.contains(&object) && (is_last || is_replaced(access))
                })
        })
        .map(|(at, access)| Change { access: at, misses: [0.0; 3], pattern: Pattern::of(access) })
        .collect();
    let stored =
        stores.iter().filter_map(|change| Some(first.accesses.get(change.access)?.per_iteration)).sum();
    (!stores.is_empty()).then(|| Fix { core: core_without(first, stored), ..Fix::lines(from, stores) })
}
