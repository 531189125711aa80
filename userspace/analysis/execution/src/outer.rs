//! The outer parts of the tree: loops too long for windows, and calls that no caller of the text explains.
//!
//! A loop of many windows' length shows neither entries nor exits in windows. Yet call stacks tell which
//! windows were taken inside, and each window stands for P / T times its instructions (`observed.rs`). The
//! sum over these windows is the loop's work in the whole run, callees included:
//!
//! ```text
//! work of a loop = entries · iterations · work of an iteration
//! ```
//!
//! The tree gives entries and the work of an iteration, so the iterations follow. Arrivals at the header in
//! windows, over the entries, are preferred. Of several loops inside each other, the product alone is
//! determined: the outermost loop with arrivals takes all of it, else the innermost loop.
//!
//! A function with more work than the tree expects has callers unseen by windows, or callbacks. The rest is
//! given to calls from outside of the text, outer functions first.
//!
//! Sources of error: a window that begins in a loop may leave the loop; code without windows has no work.

use std::collections::{BTreeMap, BTreeSet};

use crate::build::{Built, Index};
use crate::check::has_bound;
use crate::language::{LoopText, Statement, rounded};
use crate::observed::Observed;
use crate::tree::{self, Expected};
use crate::trips::From;

/// Least share of all work.
const LEAST_SHARE: f64 = 0.01;
/// Fewest windows.
const FEWEST: usize = 5;
/// Most loops, and most functions.
const MOST: usize = 32;
/// Calls of a function, for the tree to have the work of a call.
const TRIAL: f64 = 1e-9;
/// Greatest work expected of a function, over the work found, that leaves calls unexplained.
const EXPLAINED: f64 = 0.8;

/// Work found below a loop or in a function: computing instructions in the run.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    sum: f64,
    /// Sum of squares, for the interval.
    squares: f64,
    windows: usize,
}

impl Work {
    fn add(&mut self, work: f64) {
        (self.sum, self.squares) = (self.sum + work, self.squares + work * work);
        self.windows += 1;
    }
}

/// Work of loops and functions by stacks.
#[derive(Debug, Default)]
struct Found {
    all: f64,
    loops: BTreeMap<(usize, u64), Work>,
    functions: BTreeMap<usize, Work>,
}

fn find(built: &Built, observed: &Observed, index: &Index) -> Found {
    let mut found = Found::default();
    for window in &observed.windows {
        let Some(stack) = window.stack.and_then(|number| observed.stacks.get(number)) else { continue };
        let work = window.weight * window.instructions as f64;
        if !(work > 0.0 && work.is_finite()) {
            continue;
        }
        found.all += work;
        let (mut loops, mut functions) = (BTreeSet::new(), BTreeSet::new());
        for at in &stack.frames {
            let Some(number) = index.find(*at) else { continue };
            functions.insert(number);
            let Some(read) = built.functions.get(number) else { continue };
            let Some(block) = read.code.block_of_byte(at.1) else { continue };
            for of in read.graph.around(block) {
                let header = read.graph.loops.get(of).and_then(|of| read.code.blocks.get(of.header));
                loops.extend(header.map(|header| (number, header.start)));
            }
        }
        loops.into_iter().for_each(|key| found.loops.entry(key).or_default().add(work));
        functions.into_iter().for_each(|number| found.functions.entry(number).or_default().add(work));
    }
    found
}

/// Fits iterations of loops without an estimate, and calls that the text does not explain.
pub(crate) fn fit(built: &mut Built, observed: &Observed, index: &Index) {
    let found = find(built, observed, index);
    let is_heavy = |work: &Work| work.windows >= FEWEST && work.sum >= LEAST_SHARE * found.all;
    let mut functions: Vec<(usize, Work)> =
        found.functions.iter().filter(|(_, work)| is_heavy(work)).map(|(key, work)| (*key, *work)).collect();
    functions.sort_by(|a, b| b.1.sum.total_cmp(&a.1.sum));
    functions.truncate(MOST);
    let Ok(mut expected) = tree::evaluate(&built.skeleton) else { return };
    // Functions without a caller join the tree, an outer one with all that it calls.
    for (number, _) in &functions {
        if expected.calls.get(*number).is_some_and(|calls| *calls <= 0.0) {
            expected = change(built, expected, |built| built.skeleton.functions[*number].calls = TRIAL);
        }
    }
    let mut loops: Vec<((usize, u64), Work)> =
        found.loops.iter().filter(|(_, work)| is_heavy(work)).map(|(key, work)| (*key, *work)).collect();
    loops.retain(|(key, _)| {
        built.loops.get(key).is_none_or(|seen| seen.value.is_none()) && !has_bound(built, &expected, *key)
    });
    let depth = |(number, label): (usize, u64)| {
        let read = &built.functions[number];
        let header = read.code.block_at(label);
        read.graph.loops.iter().find(|found| Some(found.header) == header).map_or(0, |found| found.depth)
    };
    // Outer loops first: first the loops with iterations in windows, then the rest, inner ones first.
    loops.sort_by(|a, b| b.1.sum.total_cmp(&a.1.sum).then(depth(a.0).cmp(&depth(b.0))));
    loops.truncate(MOST);
    let (mut counted, mut rest): (Vec<_>, Vec<_>) =
        loops.into_iter().partition(|(key, _)| built.executions.get(key).is_some_and(|count| *count > 0.0));
    rest.reverse();
    let first = counted.len();
    counted.append(&mut rest);
    for (place, (key, work)) in counted.into_iter().enumerate() {
        // A function of the trial has no calls of its own yet: one call is as good as any.
        let is_trial = expected.calls.get(key.0).is_some_and(|calls| *calls <= 1e3 * TRIAL);
        let scale = if is_trial { expected.calls[key.0].max(1e-300) } else { 1.0 };
        let trips = expected.trips.get(&key).copied().unwrap_or(0.0);
        let ratio = if place < first {
            let entries = expected.entries.get(&key).copied().unwrap_or(0.0) / scale;
            built.executions.get(&key).copied().unwrap_or(0.0) / (entries * trips)
        } else {
            work.sum * scale / expected.within.get(&key).copied().unwrap_or(0.0)
        };
        if !(ratio.is_finite() && trips > 0.0 && ratio * trips >= 1.0 && ratio * trips < 1e15) {
            continue;
        }
        let value = rounded(trips * ratio);
        let width = rounded(1.96 * value * work.squares.sqrt() / work.sum);
        expected = change(built, expected, |built| {
            with_loop(&mut built.skeleton.functions[key.0].body, key.1, &mut |text| {
                text.seen = Some((value, width));
            });
        });
        let seen = built.loops.entry(key).or_default();
        (seen.value, seen.n, seen.from) = (Some((value, width)), work.windows, From::Stacks);
        built.guessed = built.guessed.saturating_sub(1);
    }
    for (number, work) in &functions {
        let text_calls = built.skeleton.functions[*number].calls;
        let own = if text_calls <= TRIAL { 0.0 } else { text_calls };
        let each = expected.work.get(*number).copied().unwrap_or(0.0);
        let calls = (expected.calls[*number] - (text_calls - own)).max(0.0);
        let is_unexplained = each > 0.0 && calls * each < EXPLAINED * work.sum;
        let more = if is_unexplained { rounded(own + work.sum / each - calls) } else { own };
        if more != text_calls {
            expected = change(built, expected, |built| built.skeleton.functions[*number].calls = more);
        }
    }
    for function in built.skeleton.functions.iter_mut().filter(|function| function.calls == TRIAL) {
        function.calls = 0.0;
    }
}

/// Changes the skeleton and evaluates it; takes the change back if there is no value.
fn change(built: &mut Built, before: Expected, apply: impl FnOnce(&mut Built)) -> Expected {
    let skeleton = built.skeleton.clone();
    apply(built);
    match tree::evaluate(&built.skeleton) {
        Ok(expected) => expected,
        Err(_) => {
            built.skeleton = skeleton;
            before
        }
    }
}

fn with_loop(body: &mut [Statement], label: u64, each: &mut dyn FnMut(&mut LoopText)) {
    for statement in body {
        if let Statement::Loop(text) = statement {
            if text.label == label {
                each(text);
            }
            with_loop(&mut text.body, label, each);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use crate::observed::{StackSeen, WindowSeen};
    use crate::testing::One;

    /// mov ecx, 10; add rax, 1; dec rcx; jne 1005; ret
    const CODE: [u8; 15] = [0xb9, 10, 0, 0, 0, 0x48, 0x83, 0xc0, 0x01, 0x48, 0xff, 0xc9, 0x75, 0xf7, 0xc3];

    /// Windows inside of the loop alone, of 300 instructions each, that stand for ten times as many.
    fn observed(windows: usize) -> Observed {
        let window = |stack: usize| WindowSeen {
            weight: 10.0,
            instructions: 300,
            stack: Some(stack),
            first: Some((0, 0x1005)),
            edges: vec![((0, 0x100c), (0, 0x1005), 99.0)],
            ..WindowSeen::default()
        };
        let stack = || StackSeen { time: 1.0, frames: vec![(0, 0x1005)] };
        Observed {
            windows: (0..windows).map(window).collect(),
            stacks: (0..windows).map(|_| stack()).collect(),
        }
    }

    #[test]
    fn a_loop_beyond_windows_has_the_iterations_of_its_work() {
        let mut built = build::build(&One(&CODE), &observed(8));
        // The bound is constant; without it only the stacks tell.
        let key = (0, 0x1005);
        with_loop(&mut built.skeleton.functions[0].body, key.1, &mut |text| {
            (text.bound, text.seen) = (None, Some((1.0, 0.0)));
        });
        // By its bound the loop was called often.
        built.skeleton.functions[0].calls = 1.0;
        built.loops.remove(&key);
        let index = Index::of(&built);
        let unfitted = built.skeleton.clone();
        fit(&mut built, &observed(8), &index);
        // 8 windows with 100 arrivals each, for ten times as many.
        let expected = tree::evaluate(&built.skeleton).unwrap();
        assert!((expected.trips[&key] - 8_000.0).abs() < 1.0, "{expected:?}");
        assert_eq!((built.loops[&key].from, built.loops[&key].n), (From::Stacks, 8));
        // By work alone: 8 times 300 instructions, ten times each, of three instructions an iteration.
        (built.skeleton, built.executions) = (unfitted.clone(), BTreeMap::new());
        built.loops.remove(&key);
        fit(&mut built, &observed(8), &index);
        let expected = tree::evaluate(&built.skeleton).unwrap();
        assert!((expected.trips[&key] - 8_000.0).abs() < 1.0, "{expected:?}");
        // Too few windows give nothing.
        built.skeleton = unfitted.clone();
        built.loops.remove(&key);
        fit(&mut built, &observed(4), &index);
        assert!(built.skeleton == unfitted && !built.loops.contains_key(&key));
    }
}
