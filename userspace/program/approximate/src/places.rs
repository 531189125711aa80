//! Variables read at each place of a function or of a loop
//! in the function, and the places before another.
//!
//! Spilled registers, temporaries and the compiler's constants have no
//! name and are no reads; a place without further reads states the reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::LoopAt;
use crate::lines::Line;
use crate::program::{Analysed, Program};
use crate::reason::Reason;
use crate::skid::Gaussian;
use crate::value::{Base, BaseAt, Value};
use crate::weights::Reads;

/// Chance that a loop goes round once more rather than ends (Ball and Larus 1993, table 2: the loop
/// branch heuristic is right in 88 % of the cases).
pub(crate) const ROUND_AGAIN: f64 = 0.88;

/// Most instructions that are looked at backwards.
pub(crate) const MOST_STEPS: usize = 128;
/// Ways of less chance are not followed.
pub(crate) const LEAST_CHANCE: f64 = 1e-3;

/// What a sample falls on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// The source line, as in the paper.
    #[default]
    Line,
    /// The instruction, the paper's future work: no need to divide a sample among the reads of its line.
    Instruction,
}

/// Which accesses take part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accesses {
    /// Reads only, as in the paper: for events of loads.
    Reads,
    /// Reads; at places with writes only, the writes: a
    /// sample at the place can belong only to the writes.
    #[default]
    ReadsElseWrites,
    /// Reads and writes: for events of both, as misses of write-allocating caches are.
    ReadsAndWrites,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Line(Line),
    /// Index of the instruction.
    Instruction(usize),
}

/// A read: the object and the way its address is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Read {
    base: Option<BaseAt>,
    offset: i64,
    modulus: u64,
    signature: u64,
}

impl Read {
    fn of(address: Value) -> Self {
        let base = address.base.filter(|_| address.minus.is_none());
        Read { base, offset: address.offset, modulus: address.modulus, signature: address.signature }
    }

    pub(crate) fn address(self) -> Value {
        Value {
            base: self.base,
            minus: None,
            offset: self.offset,
            modulus: self.modulus,
            term: (0, 0),
            signature: self.signature,
        }
    }
}

/// The reads of a function or a loop.
#[derive(Debug, Default)]
pub(crate) struct PlaceReads {
    pub(crate) reads: Reads<Place, Read>,
    /// Further reads at places.
    unnamed: BTreeMap<Place, Reason>,
}

impl PlaceReads {
    pub(crate) fn of(
        program: &mut Program,
        function: &Analysed,
        within: Option<LoopAt>,
        level: Level,
        which: Accesses,
    ) -> Self {
        let mut this = Self::default();
        let mut written: Reads<Place, Read> = Reads::new();
        let blocks: Vec<usize> = match within.and_then(|at| function.graph.loops.get(at)) {
            Some(found) => found.blocks.iter().copied().collect(),
            None => (0..function.graph.blocks.len()).collect(),
        };
        for block in blocks.iter().filter_map(|at| function.graph.blocks.get(*at)) {
            for index in block.instructions.clone() {
                let Some(place) = place(function, index, level) else { continue };
                let accesses = function.flow.accesses.get(index).map_or(&[][..], Vec::as_slice);
                let accesses = accesses.iter().filter(|access| access.reads || which != Accesses::Reads);
                // Eq. 1 counts lines with and without reads; of instructions only possible readers
                // count.
                if level == Level::Line {
                    this.reads.entry(place).or_default();
                }
                for access in accesses {
                    match owned(program, function, access.address) {
                        Ok(()) if access.reads || which == Accesses::ReadsAndWrites => {
                            this.reads.entry(place).or_default().insert(Read::of(access.address));
                        }
                        Ok(()) => {
                            written.entry(place).or_default().insert(Read::of(access.address));
                        }
                        Err(reason) => {
                            this.unnamed.entry(place).or_insert(reason);
                        }
                    }
                }
            }
        }
        for (place, written) in written {
            let reads = this.reads.entry(place).or_default();
            if reads.is_empty() {
                *reads = written;
            }
        }
        this
    }

    pub(crate) fn at(&self, place: Place) -> Result<&BTreeSet<Read>, Reason> {
        let unnamed = || self.unnamed.get(&place).copied().unwrap_or(Reason::NoReads);
        self.reads.get(&place).filter(|reads| !reads.is_empty()).ok_or_else(unnamed)
    }
}

/// Whether a variable may own the address.
fn owned(program: &mut Program, function: &Analysed, address: Value) -> Result<(), Reason> {
    let base = address.base.filter(|_| address.minus.is_none());
    match base.and_then(|base| function.flow.bases.get(base)) {
        Some(Base::Frame) => function.frame_variable(address.offset).map(drop).ok_or(Reason::StackTemporary),
        Some(Base::Address(start)) => {
            let at = start.wrapping_add_signed(address.offset);
            let named = program.static_at(function.module, at).is_some()
                || program.data_symbol(function.module, at).is_some();
            if named { Ok(()) } else { Err(Reason::UnnamedData) }
        }
        _ => Ok(()),
    }
}

/// The place of an instruction.
pub(crate) fn place(function: &Analysed, index: usize, level: Level) -> Option<Place> {
    match level {
        Level::Line => function.lines.get(index).copied().flatten().map(Place::Line),
        Level::Instruction => Some(Place::Instruction(index)),
    }
}

/// The source line of a place.
pub(crate) fn line_of(function: &Analysed, place: Place) -> Option<Line> {
    match place {
        Place::Line(line) => Some(line),
        Place::Instruction(index) => function.lines.get(index).copied().flatten(),
    }
}

/// Possible places of the event of a sample at an instruction, with
/// probabilities. The sum is less than one if the function begins too late.
pub(crate) fn before(
    function: &Analysed,
    index: usize,
    level: Level,
    skid: &Gaussian,
) -> BTreeMap<Place, f64> {
    match level {
        Level::Line => lines_before(function, index, skid),
        Level::Instruction => instructions_before(function, index, skid),
    }
}

/// Lines along all ways backwards, counted by changes of the line: the paper's second
/// way of mapping skid to lines (§3.3.3). Counting by line numbers would take the
/// head of a loop for the code run before the loop's last line, never the reverse.
fn lines_before(function: &Analysed, index: usize, skid: &Gaussian) -> BTreeMap<Place, f64> {
    let Some(own) = function.lines.get(index).copied().flatten() else { return BTreeMap::new() };
    let probabilities = skid.probabilities();
    let last = probabilities.keys().next_back().copied().unwrap_or(0);
    let mut found: BTreeMap<Place, f64> = BTreeMap::new();
    let mut enter = |line: Line, changes: u32, chance: f64| {
        let probability = probabilities.get(&changes).copied().unwrap_or(0.0);
        if probability > 0.0 {
            *found.entry(Place::Line(line)).or_default() += probability * chance;
        }
    };
    enter(own, 0, 1.0);
    // Instruction, its line, and how often the line has changed since the sample.
    let mut now = BTreeMap::from([((index, own, 0), 1.0)]);
    for _ in 0..MOST_STEPS {
        let mut next: BTreeMap<(usize, Line, u32), f64> = BTreeMap::new();
        for ((at, line, changes), chance) in now {
            for (before, part) in predecessors(function, at) {
                let chance = chance * part;
                let there = function.lines.get(before).copied().flatten().unwrap_or(line);
                let changes = changes + u32::from(there != line);
                if changes > last || chance < LEAST_CHANCE {
                    continue;
                }
                if there != line {
                    enter(there, changes, chance);
                }
                *next.entry((before, there, changes)).or_default() += chance;
            }
        }
        if next.is_empty() {
            break;
        }
        now = next;
    }
    found
}

/// Instructions along all ways backwards; where ways meet the chance divides, most of it going round a loop.
fn instructions_before(function: &Analysed, index: usize, skid: &Gaussian) -> BTreeMap<Place, f64> {
    let probabilities = skid.probabilities();
    let mut found: BTreeMap<Place, f64> = BTreeMap::new();
    let mut now = BTreeMap::from([(index, 1.0)]);
    let last = probabilities.keys().next_back().copied().unwrap_or(0).min(MOST_STEPS as u32);
    for distance in 0..=last {
        if let Some(probability) = probabilities.get(&distance) {
            for (at, chance) in &now {
                *found.entry(Place::Instruction(*at)).or_default() += probability * chance;
            }
        }
        let mut next: BTreeMap<usize, f64> = BTreeMap::new();
        for (at, chance) in now {
            for (before, part) in predecessors(function, at) {
                *next.entry(before).or_default() += chance * part;
            }
        }
        now = next;
    }
    found
}

/// The instructions that may have run right before instruction `index`, with the chance of each.
fn predecessors(function: &Analysed, index: usize) -> Vec<(usize, f64)> {
    let graph = &function.graph;
    let Some(at) = graph.block_of(index) else { return Vec::new() };
    let Some(block) = graph.blocks.get(at) else { return Vec::new() };
    if index > block.instructions.start {
        return vec![(index - 1, 1.0)];
    }
    let heads = graph.loops.iter().find(|found| found.head == at);
    let inside = |from: &usize| heads.is_some_and(|found| found.blocks.contains(from));
    let (round, enter): (Vec<usize>, Vec<usize>) = block.predecessors.iter().copied().partition(inside);
    let share = if enter.is_empty() { 1.0 } else { ROUND_AGAIN };
    let (round_part, enter_part) = match (round.len(), enter.len()) {
        (0, entries) => (0.0, 1.0 / entries.max(1) as f64),
        (rounds, entries) => (share / rounds as f64, (1.0 - share) / entries.max(1) as f64),
    };
    let last = |from: usize| graph.blocks.get(from).and_then(|block| block.instructions.end.checked_sub(1));
    let all = round
        .into_iter()
        .map(|from| (from, round_part))
        .chain(enter.into_iter().map(|from| (from, enter_part)));
    all.filter_map(|(from, part)| Some((last(from)?, part))).collect()
}
