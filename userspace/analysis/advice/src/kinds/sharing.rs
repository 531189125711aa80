//! Lines touched by several threads, stored by at least one
//! thread: false sharing if each thread has separate words.
//!
//! Windows of different threads show the words of a line touched repeatedly by
//! each thread's loop. Sources of error: threads touching a line at different
//! times of the trace do not contend for the line; words outside of windows.

use std::collections::{BTreeMap, BTreeSet};

use locality_model::AccessKind;

use super::{unchanged, waits_beyond_lines};
use crate::{Candidate, Kind, View, gain::Fix};

/// Windows of a thread with a touch of the line, at least.
const FEWEST: u32 = 2;
/// Executions of an access in a window to count as coming back to a word.
const OFTEN: u64 = 8;
/// Stalls explicable by sharing: least multiple of core cycles and line costs that the loop takes.
const WORTH: f64 = 1.1;

/// A thread's accesses to a line.
#[derive(Default)]
struct Touches {
    words: BTreeSet<u64>,
    stores: bool,
    windows: u32,
    /// Loops with the accesses.
    loops: BTreeSet<usize>,
    /// Touching instructions.
    ips: BTreeSet<u64>,
}

/// Changes to lines contended by threads, one for each group of loops.
pub(super) fn false_sharing(view: &View<'_>) -> Vec<Candidate> {
    let numbers: BTreeMap<u64, usize> = view
        .loops
        .iter()
        .enumerate()
        .flat_map(|(number, of)| of.headers.iter().map(move |at| (*at, number)))
        .collect();
    let mut by_line: BTreeMap<u64, BTreeMap<u32, Touches>> = BTreeMap::new();
    for row in &view.profile.loops {
        let (Some(number), Some(sample)) =
            (numbers.get(&row.header), view.profile.samples.get(row.sample.0 as usize))
        else {
            continue;
        };
        let again = |access: &&locality_model::LoopAccess| {
            access.executions >= OFTEN && access.stride == Some(0) && access.stride_count * 2 > access.steps
        };
        let mut met = BTreeSet::new();
        for access in row.by_access.iter().filter(again) {
            let line = access.address >> 6;
            let of = by_line.entry(line).or_default().entry(sample.thread.0).or_default();
            of.words.insert(access.address & !7);
            of.stores |= access.kind == AccessKind::Store;
            of.windows += u32::from(met.insert(line));
            of.loops.insert(*number);
            of.ips.insert(access.ip);
        }
    }
    // Lines of equal sets of loops form one finding: arrays of counters have several.
    let mut found: BTreeMap<BTreeSet<usize>, (BTreeSet<u32>, BTreeSet<u64>, bool)> = BTreeMap::new();
    for threads in by_line.values() {
        let busy: Vec<(&u32, &Touches)> = threads.iter().filter(|(_, of)| of.windows >= FEWEST).collect();
        let stores = busy.iter().any(|(_, of)| of.stores);
        if busy.len() < 2 || !stores {
            continue;
        }
        let mut words = BTreeSet::new();
        let apart = busy.iter().all(|(_, of)| of.words.iter().all(|word| words.insert(*word)));
        let loops = busy.iter().flat_map(|(_, of)| of.loops.iter().copied()).collect();
        let entry = found.entry(loops).or_insert_with(|| (BTreeSet::new(), BTreeSet::new(), true));
        entry.0.extend(busy.iter().map(|(thread, _)| **thread));
        entry.1.extend(busy.iter().flat_map(|(_, of)| of.ips.iter().copied()));
        entry.2 &= apart;
    }
    found.into_iter().filter_map(|(loops, finding)| candidate(view, &loops, &finding)).collect()
}

fn candidate(
    view: &View<'_>,
    loops: &BTreeSet<usize>,
    (threads, ips, apart): &(BTreeSet<u32>, BTreeSet<u64>, bool),
) -> Option<Candidate> {
    let waiting = || {
        let known = loops.iter().filter_map(|number| Some((*number, view.loops.get(*number)?)));
        known.filter(|(_, of)| waits_beyond_lines(view, of, WORTH))
    };
    let (heaviest, of) = waiting().next()?;
    let access = of.accesses.iter().find(|access| ips.contains(&access.ip))?;
    // The rest is the cost of the loops' lines without contending threads.
    let fixes = waiting().map(|(number, of)| Fix::only(number, unchanged(of), 0.0));
    let name = |id: &u32| {
        let thread = view.profile.threads.get(*id as usize)?;
        Some(format!("{} ({})", thread.name, thread.tid))
    };
    let names: Vec<String> = threads.iter().take(4).filter_map(name).collect();
    let mut evidence = vec![format!(
        "{} threads touch {} line of {}, and at least one stores to it: {}.",
        threads.len(),
        if *apart { "different words of the same" } else { "the same words of a" },
        view.name(access),
        names.join(", ")
    )];
    evidence.extend(view.time(of));
    let title = match apart {
        true => format!(
            "Give each thread a line of its own for {} at {} in {}: threads take the line from each other",
            view.name(access),
            view.at(heaviest),
            view.function(of)
        ),
        false => format!(
            "Let each thread have a copy of {} at {} in {}, and join the copies at the end: threads take \
             the line from each other",
            view.name(access),
            view.at(heaviest),
            view.function(of)
        ),
    };
    Some(Candidate {
        kind: Kind::Sharing,
        fixes: fixes.collect(),
        title,
        of: heaviest,
        other: loops.iter().copied().find(|number| *number != heaviest),
        object: access.object,
        evidence,
        in_the_way: Vec::new(),
    })
}
