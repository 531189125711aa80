//! Samples displaced by a skid, to test its negation (`skid`) on exact addresses.
//!
//! A sample goes forward along the control flow, by changes of the source line or by instructions,
//! all ways at once, each with its chance: into functions that are called directly, and from a
//! return to the caller on the sample's path.
//!
//! Sources of error: the direction of a branch is not known; branches
//! that stay in the innermost loop share [`ROUND_AGAIN`]. Execution in
//! functions without debug information takes no line and no instruction.

use std::collections::BTreeMap;

use iced_x86::FlowControl;

use crate::lines::Line;
use crate::places::{LEAST_CHANCE, Level, MOST_STEPS, ROUND_AGAIN};
use crate::program::{Analysed, Program};
use crate::rank::{Analyzer, Frame, Sample};
use crate::skid::Gaussian;

/// A call path, innermost first.
type Path = Vec<Option<Frame>>;

impl Analyzer {
    /// Places of the sample after the skid: samples with the sample's weight in sum.
    pub fn displaced(&mut self, sample: &Sample, level: Level, skid: &Gaussian) -> Vec<Sample> {
        let probabilities = skid.probabilities();
        let last = probabilities.keys().next_back().copied().unwrap_or(0);
        let mut moved = Vec::new();
        // Path, its line, and how often the line has changed since the event.
        let mut now: BTreeMap<(Path, Option<Line>, u32), f64> = BTreeMap::new();
        if let Some(line) = line(&mut self.program, &sample.frames) {
            now.insert((sample.frames.clone(), line, 0), 1.0);
        }
        for _ in 0..MOST_STEPS {
            let mut next: BTreeMap<(Path, Option<Line>, u32), f64> = BTreeMap::new();
            for ((path, own, changes), chance) in now {
                for (to, part) in after(&mut self.program, &path) {
                    let chance = chance * part;
                    let there = line(&mut self.program, &to).flatten().or(own);
                    let further = level == Level::Instruction || there != own;
                    let changes = changes + u32::from(further);
                    if changes > last || chance < LEAST_CHANCE {
                        continue;
                    }
                    let probability = probabilities.get(&changes).copied().unwrap_or(0.0);
                    if further && probability > 0.0 {
                        let weight = sample.weight * probability * chance;
                        moved.push(Sample { frames: to.clone(), weight });
                    }
                    *next.entry((to, there, changes)).or_default() += chance;
                }
            }
            now = next;
        }
        // The weight of paths that cannot be followed to the full distance stays.
        let weight = sample.weight - moved.iter().map(|sample| sample.weight).sum::<f64>();
        moved.push(Sample { frames: sample.frames.clone(), weight });
        moved
    }
}

/// The line of a path's innermost instruction; `None` for unknown code.
fn line(program: &mut Program, path: &Path) -> Option<Option<Line>> {
    let at = path.first().copied().flatten()?;
    let function = program.function(at.module, at.address).ok()?;
    function.lines.get(function.graph.instruction_at(at.address)?).copied()
}

/// Places of a thread one instruction later, with the chance of each.
fn after(program: &mut Program, path: &Path) -> Vec<(Path, f64)> {
    let Some(at) = path.first().copied().flatten() else { return Vec::new() };
    let Ok(function) = program.function(at.module, at.address) else { return Vec::new() };
    let graph = &function.graph;
    let Some(index) = graph.instruction_at(at.address) else { return Vec::new() };
    let Some(instruction) = graph.instructions.get(index) else { return Vec::new() };
    let with = |address: u64, rest: &[Option<Frame>]| -> Path {
        std::iter::once(Some(Frame { module: at.module, address })).chain(rest.iter().copied()).collect()
    };
    // Inlined functions repeat the frame.
    let own = path.iter().take_while(|frame| **frame == Some(at)).count();
    let outside = path.get(own..).unwrap_or_default();
    match instruction.flow_control() {
        FlowControl::Call => {
            let target = instruction.near_branch_target();
            let callee = program.function(at.module, target).ok();
            if callee.is_some_and(|callee| callee.entry() == target) {
                let call = with(instruction.ip(), outside);
                return vec![(with(target, &call), 1.0)];
            }
        }
        FlowControl::Return => {
            return returned(program, outside).into_iter().map(|path| (path, 1.0)).collect();
        }
        _ => {}
    }
    let next = successors(&function, index);
    let address = |index: usize| graph.instructions.get(index).map(iced_x86::Instruction::ip);
    next.into_iter().filter_map(|(index, part)| Some((with(address(index)?, outside), part))).collect()
}

/// The path after a return to its first frame, with a return address or an address inside the call.
fn returned(program: &mut Program, outside: &[Option<Frame>]) -> Option<Path> {
    let to = outside.first().copied().flatten()?;
    let caller = program.function(to.module, to.address).ok()?;
    let call = caller.graph.instruction_at(caller.call_at(to.address)?)?;
    let address = caller.graph.instructions.get(call + 1)?.ip();
    let again = outside.iter().take_while(|frame| **frame == Some(to)).count();
    let rest = outside.get(again..)?.iter().copied();
    Some(std::iter::once(Some(Frame { module: to.module, address })).chain(rest).collect())
}

/// The instructions of a function that may run right after
/// instruction `index`, with the chance of each.
fn successors(function: &Analysed, index: usize) -> Vec<(usize, f64)> {
    let graph = &function.graph;
    let Some(block) = graph.block_of(index).and_then(|at| graph.blocks.get(at)) else { return Vec::new() };
    if index + 1 < block.instructions.end {
        return vec![(index + 1, 1.0)];
    }
    let around = block.innermost.and_then(|at| graph.loops.get(at));
    let stays = |to: &usize| around.is_some_and(|around| around.blocks.contains(to));
    let (inside, outside): (Vec<usize>, Vec<usize>) = block.successors.iter().copied().partition(stays);
    let staying = match (inside.len(), outside.len()) {
        (0, _) => 0.0,
        (_, 0) => 1.0,
        _ => ROUND_AGAIN,
    };
    let parts = [(inside, staying), (outside, 1.0 - staying)];
    let each = parts.into_iter().flat_map(|(blocks, part)| {
        let part = part / blocks.len().max(1) as f64;
        blocks.into_iter().map(move |to| (to, part))
    });
    each.filter_map(|(to, part)| Some((graph.blocks.get(to)?.instructions.start, part))).collect()
}
