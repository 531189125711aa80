//! The hot path: call stacks and the loops around each call and stop, merged
//! into a tree (section V-C of the paper). Shares are of CPU time at stops.

use std::collections::BTreeMap;

use crate::build::{Built, Index};
use crate::observed::Observed;

/// A step of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A function, by number.
    Function(usize),
    /// A loop of a function, by label.
    Loop(usize, u64),
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct PathNode {
    /// Function or loop.
    pub step: Step,
    /// Share of the time in the node and below.
    pub share: f64,
    /// Nodes below in the order of addresses, in most code the order of execution.
    pub below: Vec<PathNode>,
}

#[derive(Default)]
struct Gathered {
    time: f64,
    below: BTreeMap<(u64, Step), Gathered>,
}

/// Paths with at least the share `least` of the time.
pub fn hot(built: &Built, observed: &Observed, least: f64) -> Vec<PathNode> {
    let index = Index::of(built);
    let all: f64 = observed.stacks.iter().map(|stack| stack.time).sum();
    let mut root = Gathered::default();
    for stack in &observed.stacks {
        let mut at = &mut root;
        // Address in the caller, for the order.
        let mut place = 0;
        for frame in stack.frames.iter().rev() {
            let Some(function) = index.find(*frame) else { continue };
            let Some(read) = built.functions.get(function) else { continue };
            let mut steps = vec![Step::Function(function)];
            if let Some(block) = read.code.block_of_byte(frame.1) {
                let around = read.graph.around(block);
                let label = |of: &usize| read.code.blocks[read.graph.loops[*of].header].start;
                steps.extend(around.iter().rev().map(|of| Step::Loop(function, label(of))));
            }
            for step in steps {
                let order = match step {
                    Step::Function(_) => place,
                    Step::Loop(_, label) => label,
                };
                at = at.below.entry((order, step)).or_default();
                at.time += stack.time;
            }
            place = frame.1;
        }
    }
    finish(root, all, least)
}

fn finish(gathered: Gathered, all: f64, least: f64) -> Vec<PathNode> {
    let mut nodes: Vec<PathNode> = Vec::new();
    for ((_, step), below) in gathered.below {
        let share = below.time / all.max(1e-300);
        if share < least {
            continue;
        }
        let below = finish(below, all, least);
        // Several calls of one function below a node become one step.
        match nodes.iter_mut().find(|node| node.step == step) {
            Some(known) => {
                known.share += share;
                known.below.extend(below);
            }
            None => nodes.push(PathNode { step, share, below }),
        }
    }
    nodes
}
