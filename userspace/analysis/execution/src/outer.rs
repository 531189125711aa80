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
//! The tree gives entries and the work of an iteration, so the iterations follow. Inner loops come first,
//! since their work is part of an iteration's. Of several such loops inside each other, the product alone is
//! determined; the innermost takes all of it.
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
    // Inner loops have less work; of equal work the deeper one is inside, if one function has both.
    let depth = |(number, label): (usize, u64)| {
        let read = &built.functions[number];
        let header = read.code.block_at(label);
        read.graph.loops.iter().find(|found| Some(found.header) == header).map_or(0, |found| found.depth)
    };
    loops.sort_by(|a, b| a.1.sum.total_cmp(&b.1.sum).then(depth(b.0).cmp(&depth(a.0))));
    loops.truncate(MOST);
    for (key, work) in loops {
        // A function of the trial has no calls of its own yet: one call is as good as any.
        let is_trial = expected.calls.get(key.0).is_some_and(|calls| *calls <= 1e3 * TRIAL);
        let scale = if is_trial { expected.calls[key.0].max(1e-300) } else { 1.0 };
        let within = expected.within.get(&key).copied().unwrap_or(0.0) / scale;
        let trips = expected.trips.get(&key).copied().unwrap_or(0.0);
        let ratio = work.sum / within;
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
