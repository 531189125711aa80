//! Passes over the same data that one pass could make: fusion.

use std::collections::BTreeMap;

use super::{CONCERNED, cost, stride, whole_cost};
use crate::{
    Candidate, Kind, View,
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
    // Of two passes that take turns one comes first: the one at the lower address, in one function.
    let is_first = |(from, to): &(usize, usize)| {
        let back = pairs.contains_key(&(*to, *from));
        !back
            || view
                .loops
                .get(*from)
                .zip(view.loops.get(*to))
                .is_some_and(|(from, to)| from.header < to.header)
    };
    let found = pairs.iter().filter(|(pair, _)| is_first(pair));
    found.filter_map(|(of, reuses)| pair(view, *of, reuses, &all)).collect()
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
    let (one, other) = (view.function(first), view.function(second));
    let functions = if one == other { format!("both in {one}") } else { format!("{one} and {other}") };
    Some(Candidate {
        kind: Kind::Fuse,
        fixes: vec![Fix::lines(to, changes)],
        title: format!(
            "Run the loops at {} and {} together ({functions}): the second reads {} again after the caches have lost it",
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
