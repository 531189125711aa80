//! The model against an exact run of the same program: the tables of the paper's section VI for any program.
//!
//! An exact run counts executions of instructions. Counts of transfers follow where a block has one
//! successor, or a successor has one block before it; the remaining branch of two follows from the rest.
//! Branches and loops without such counts are left out, and counted.
//!
//! Sources of error: the exact run may have another input or another length than the trace. A library may
//! choose other variants of functions there, for lack of instructions in the emulated processor.

use std::collections::BTreeMap;

use crate::build::{Built, Read};
use crate::code::Leave;
use crate::observed::At;
use crate::spots::{self, Place};
use crate::tree::Expected;

/// Executions of instructions in files of the profile.
#[derive(Debug, Clone, Default)]
pub struct Exact {
    /// By file and first address of a run of instructions: first address after, executions.
    pub runs: BTreeMap<At, (u64, f64)>,
    /// Instructions executed, in all files.
    pub instructions: f64,
}

impl Exact {
    /// Executions of the instruction at an address.
    pub fn at(&self, at: At) -> f64 {
        let found = self.runs.range((at.0, 0)..=at).next_back();
        found.filter(|(_, (end, _))| at.1 < *end).map_or(0.0, |(_, (_, count))| *count)
    }

    /// Executions of blocks, by number of the function and label; blocks never executed are left out.
    pub fn executions(&self, built: &Built) -> BTreeMap<(usize, u64), f64> {
        let mut found = BTreeMap::new();
        for (number, read) in built.functions.iter().enumerate() {
            for block in &read.code.blocks {
                let count = self.at((read.file, block.start));
                if count > 0.0 {
                    found.insert((number, block.start), count);
                }
            }
        }
        found
    }
}

/// Branches of the model against exact ones.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Branches {
    /// Branches compared.
    pub n: usize,
    /// Branches executed whose exact probability does not follow.
    pub left_out: usize,
    /// Mean of |p - exact|, weighed by executions.
    pub mean: f64,
    /// Bound of |p - exact| for 95 % of executions.
    pub p95: f64,
}

/// A loop's iterations.
#[derive(Debug, Clone, PartialEq)]
pub struct Trips {
    /// The loop.
    pub place: Place,
    /// Share of the exact run's instructions, without inner loops.
    pub share: f64,
    /// By the model; `None`: not known.
    pub model: Option<f64>,
    /// Exact.
    pub exact: f64,
}

/// The comparison.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Check {
    /// Total variation of shares of instructions by block: windows against the exact run; `None` without
    /// windows.
    pub windows: Option<f64>,
    /// The same of the tree; `None` without a tree.
    pub tree: Option<f64>,
    /// Share of the exact run's instructions in functions that the trace never met.
    pub unmet: f64,
    /// Branches.
    pub branches: Branches,
    /// Loops with at least [`LEAST_SHARE`] of the instructions, most first.
    pub loops: Vec<Trips>,
    /// Such loops whose exact iterations do not follow.
    pub loops_left_out: usize,
}

/// Least share of a loop's instructions.
pub const LEAST_SHARE: f64 = 0.01;

/// Compares.
pub fn check(built: &Built, expected: Option<&Expected>, exact: &Exact) -> Check {
    let all = exact.instructions.max(1.0);
    let mut truth: BTreeMap<(usize, u64), f64> = BTreeMap::new();
    let mut spots: BTreeMap<Place, f64> = BTreeMap::new();
    for (number, read) in built.functions.iter().enumerate() {
        for (place, block) in read.code.blocks.iter().enumerate() {
            let counts = read.code.of(place).iter().map(|code| exact.at((read.file, code.ip())));
            let share = counts.sum::<f64>() / all;
            if share > 0.0 {
                *truth.entry((number, block.start)).or_default() += share;
                if let Some(place) = spots::spot_of(built, number, block.start) {
                    *spots.entry(place).or_default() += share;
                }
            }
        }
    }
    let (mut loops, mut loops_left_out) = (Vec::new(), 0);
    for (place, share) in spots.into_iter().filter(|(_, share)| *share >= LEAST_SHARE) {
        let Some(label) = place.1 else { continue };
        match exact_trips(&built.functions[place.0], label, exact) {
            Some(found) => {
                let key = (place.0, label);
                let seen = built.loops.get(&key).and_then(|seen| seen.value).map(|(value, _)| value);
                let by_tree = expected.and_then(|expected| expected.trips.get(&key)).copied();
                // Without an estimate and without a bound the tree only assumes a number.
                let is_known = seen.is_some() || expected.is_some_and(|of| has_bound(built, of, key));
                let model = by_tree.filter(|trips| *trips > 0.0 && is_known).or(seen);
                loops.push(Trips { place, share, model, exact: found });
            }
            None => loops_left_out += 1,
        }
    }
    loops.sort_by(|a, b| b.share.total_cmp(&a.share));
    Check {
        windows: variation(built, &built.executions, &truth),
        tree: expected.and_then(|expected| variation(built, &expected.blocks, &truth)),
        unmet: (1.0 - truth.values().sum::<f64>()).max(0.0),
        branches: branches(built, exact),
        loops,
        loops_left_out,
    }
}

/// Whether the tree had the loop's iterations from its bound.
pub(crate) fn has_bound(built: &Built, expected: &Expected, (number, label): (usize, u64)) -> bool {
    let mut found = false;
    if let Some(function) = built.skeleton.functions.get(number) {
        function.loops(&mut |text| {
            let is_bounded = text.bound.is_some() && !text.tests.is_empty();
            found |= text.label == label && is_bounded;
        });
    }
    found && !expected.unknown.contains_key(&(number, label))
}

/// Half the sum of differences of shares of instructions. `truth` may sum to less than 1: the rest is the
/// share of instructions that the model has no block for. `None` without executions.
fn variation(
    built: &Built,
    executions: &BTreeMap<(usize, u64), f64>,
    truth: &BTreeMap<(usize, u64), f64>,
) -> Option<f64> {
    if !executions.values().any(|count| *count > 0.0) {
        return None;
    }
    let size = |(number, label): &(usize, u64)| {
        let read = built.functions.get(*number)?;
        Some(read.code.of(read.code.block_at(*label)?).len() as f64)
    };
    let counts: BTreeMap<(usize, u64), f64> =
        executions.iter().filter_map(|(key, count)| Some((*key, count * size(key)?))).collect();
    let all: f64 = counts.values().sum::<f64>().max(1e-300);
    let mut sum = (1.0 - truth.values().sum::<f64>()).max(0.0);
    for (key, count) in &counts {
        sum += (count / all - truth.get(key).unwrap_or(&0.0)).abs();
    }
    sum += truth.iter().filter(|(key, _)| !counts.contains_key(key)).map(|(_, share)| share).sum::<f64>();
    Some(0.5 * sum)
}

/// Executions of a transfer between two blocks of a function, where they follow.
fn transfer(read: &Read, from: usize, to: usize, exact: &Exact) -> Option<f64> {
    let count = |block: usize| exact.at((read.file, read.code.blocks[block].start));
    let follows = |to: usize| {
        let alone = read.graph.before.get(to)?.len() == 1 && to != read.code.first;
        alone.then(|| count(to).min(leaves(read, from, exact)))
    };
    let block = read.code.blocks.get(from)?;
    match block.next.as_slice() {
        // A conditional branch with one successor also leads out of the function.
        [_] if block.leave != Leave::Branches => Some(leaves(read, from, exact)),
        [one, two] if one != two => {
            let other = if *one == to { *two } else { *one };
            follows(to).or_else(|| Some(leaves(read, from, exact) - follows(other)?))
        }
        _ => follows(to),
    }
}

/// Executions of a block's end, which a call within the block may never reach.
fn leaves(read: &Read, block: usize, exact: &Exact) -> f64 {
    read.code.last(block).map_or(0.0, |last| exact.at((read.file, last.ip())))
}

/// Iterations of a loop: arrivals at the header for each entry.
fn exact_trips(read: &Read, label: u64, exact: &Exact) -> Option<f64> {
    let header = read.code.block_at(label)?;
    let found = read.graph.loops.iter().find(|found| found.header == header)?;
    let arrivals = exact.at((read.file, label));
    let sum = |blocks: &mut dyn Iterator<Item = usize>| -> Option<f64> {
        let mut sum = 0.0;
        for block in blocks {
            sum += transfer(read, block, header, exact)?;
        }
        Some(sum)
    };
    let again = sum(&mut found.latches.iter().copied()).map(|again| arrivals - again);
    let mut outside = read.graph.before[header].iter().copied().filter(|block| !found.has(*block));
    let entries = again.or_else(|| if header == read.code.first { None } else { sum(&mut outside) });
    entries.filter(|entries| *entries >= 1.0).map(|entries| arrivals / entries)
}

fn branches(built: &Built, exact: &Exact) -> Branches {
    let mut found = Branches::default();
    let mut rows: Vec<(f64, f64)> = Vec::new();
    for (read, text) in built.functions.iter().zip(&built.skeleton.functions) {
        text.blocks(&mut |block| {
            let Some(from) = read.code.block_at(block.label) else { return };
            let executed = leaves(read, from, exact);
            let leads_out = read.code.blocks[from].leave == Leave::Branches;
            let [one, two] = read.code.blocks[from].next.as_slice() else {
                found.left_out += usize::from(executed > 0.0 && leads_out);
                return;
            };
            if executed <= 0.0 || one == two {
                return;
            }
            let start = read.code.blocks[*one].start;
            let model = block.next.iter().find(|(label, _)| *label == start);
            match (model, transfer(read, from, *one, exact)) {
                (Some((_, model)), Some(taken)) => {
                    rows.push(((model - (taken / executed).clamp(0.0, 1.0)).abs(), executed));
                }
                _ => found.left_out += 1,
            }
        });
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = rows.iter().map(|(_, executed)| executed).sum();
    found.n = rows.len();
    found.mean = rows.iter().map(|(off, executed)| off * executed).sum::<f64>() / all.max(1.0);
    let mut sum = 0.0;
    let within = rows.iter().find(|(_, executed)| {
        sum += executed;
        sum >= 0.95 * all
    });
    found.p95 = within.map_or(0.0, |(off, _)| *off);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use crate::observed::{Observed, StackSeen, WindowSeen};
    use crate::testing::One;

    /// mov ecx, 10; add rax, 1; dec rcx; jne 1005; ret
    const CODE: [u8; 15] = [0xb9, 10, 0, 0, 0, 0x48, 0x83, 0xc0, 0x01, 0x48, 0xff, 0xc9, 0x75, 0xf7, 0xc3];

    fn built(taken: f64) -> Built {
        let edge = |from: u64, to: u64, count: f64| ((0, from), (0, to), count);
        let window = WindowSeen {
            weight: 1.0,
            instructions: 3 * taken as u64 + 5,
            first: Some((0, 0x1000)),
            edges: vec![edge(0x100c, 0x1005, taken), edge(0x100c, 0x100e, 1.0)],
            ..WindowSeen::default()
        };
        // The root of the tree is the outermost function of stacks.
        let stacks = vec![StackSeen { time: 1.0, frames: vec![(0, 0x1005)] }];
        build::build(&One(&CODE), &Observed { windows: vec![window], stacks })
    }

    fn exact(trips: f64) -> Exact {
        let runs = BTreeMap::from([
            ((0, 0x1000), (0x1005, 7.0)),
            ((0, 0x1005), (0x100e, 7.0 * trips)),
            ((0, 0x100e), (0x100f, 7.0)),
        ]);
        Exact { runs, instructions: 14.0 + 21.0 * trips }
    }

    #[test]
    fn the_same_run_differs_in_nothing() {
        let (built, exact) = (built(9.0), exact(10.0));
        let expected = crate::tree::evaluate(&built.skeleton).unwrap();
        let found = check(&built, Some(&expected), &exact);
        assert!(
            found.windows.unwrap() < 1e-9 && found.tree.unwrap() < 1e-9 && found.unmet < 1e-9,
            "{found:?}"
        );
        assert_eq!((found.branches.n, found.branches.left_out, found.loops_left_out), (1, 0, 0));
        assert!(found.branches.mean < 1e-9 && found.branches.p95 < 1e-9, "{found:?}");
        assert_eq!(found.loops.len(), 1);
        assert_eq!((found.loops[0].model, found.loops[0].exact), (Some(10.0), 10.0));
    }

    #[test]
    fn another_run_differs_by_as_much_as_it_is_another() {
        let (built, mut exact) = (built(3.0), exact(10.0));
        // As many instructions again in another file.
        exact.instructions *= 2.0;
        let found = check(&built, None, &exact);
        assert!((found.unmet - 0.5).abs() < 1e-9 && found.tree.is_none(), "{found:?}");
        // The windows: 1, 12 and 1 of 14 instructions; exactly: 7, 210 and 7 of 448.
        let (windows, truth) = ([1.0 / 14.0, 12.0 / 14.0, 1.0 / 14.0], [7.0, 210.0, 7.0]);
        let sum: f64 = windows.iter().zip(truth).map(|(a, b): (&f64, f64)| (a - b / 448.0).abs()).sum();
        assert!((found.windows.unwrap() - 0.5 * (sum + 0.5)).abs() < 1e-9, "{found:?}");
        assert!((found.branches.mean - (0.9 - 0.75)).abs() < 1e-9, "{found:?}");
    }
}
