//! The critical path of a window's dependences: instructions that wait for each other from the last
//! completion back to the first.
//!
//! Times are those of the schedule of chains (`schedule`): any number of units, branches foreseen, lines in
//! the first-level cache, the reorder window in place. Here each time also has the instruction to which it is
//! due.

use std::collections::HashMap;

use locality_stream::Locations;

use super::facts::Latency;
use super::schedule::{Limits, REORDER, string_cycles};
use super::trace::{NO_WORD, Trace};

/// Stands for no instruction.
const NONE: u32 = u32::MAX;
/// Part of a loop's iterations through which a chain goes.
const MOST: f64 = 0.5;

/// What a step of a chain takes its time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainClass {
    /// Integer operations, of vectors also.
    Integer,
    /// Additions of floating point, and what takes their place in a sum.
    FpAdd,
    /// Other multiplications of floating point.
    FpMultiply,
    /// Divisions and square roots.
    Divide,
    /// A load from its address to the value, in the first-level cache.
    Load,
    /// A load of a value that was stored just before.
    StoreForwarding,
    /// Others: atomic operations, string instructions.
    Other,
}

impl ChainClass {
    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            ChainClass::Integer => "integer",
            ChainClass::FpAdd => "fp_add",
            ChainClass::FpMultiply => "fp_multiply",
            ChainClass::Divide => "divide",
            ChainClass::Load => "load",
            ChainClass::StoreForwarding => "store_forwarding",
            ChainClass::Other => "other",
        }
    }

    fn of(kind: Latency) -> Self {
        match kind {
            Latency::Integer => ChainClass::Integer,
            Latency::FloatAdd => ChainClass::FpAdd,
            Latency::FloatMultiply => ChainClass::FpMultiply,
            Latency::Divide => ChainClass::Divide,
            Latency::Other => ChainClass::Other,
        }
    }
}

/// An instruction of a loop's chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChainStep {
    /// Index of the static instruction in the window's code.
    pub instruction: u32,
    /// What it takes its time for.
    pub class: ChainClass,
    /// Cycles in the window.
    pub cycles: f64,
}

/// Cycles and executions of the instructions on a path.
type Sums = HashMap<(u32, ChainClass), (f64, u64)>;

/// A time, and the executed instruction to which it is due.
#[derive(Debug, Clone, Copy)]
struct At {
    time: u32,
    by: u32,
}

const START: At = At { time: 0, by: NONE };

impl At {
    fn later(self, other: At) -> At {
        if other.time > self.time { other } else { self }
    }

    fn after(self, cycles: u32) -> At {
        At { time: self.time + cycles, ..self }
    }
}

/// How an executed instruction came to its completion.
struct Link {
    /// The instruction waited for.
    before: u32,
    cycles: u32,
    class: ChainClass,
    /// Whether the reorder window was waited for, not a value.
    is_window: bool,
}

/// The chain of each loop, heaviest instruction first; empty where no chain goes through most iterations.
/// `of_instruction`: the loop of each executed instruction; `iterations`: of each loop.
pub(super) fn chains(
    trace: &Trace,
    limits: Limits,
    of_instruction: &[Option<u32>],
    iterations: &[u64],
) -> Vec<Vec<ChainStep>> {
    let (links, mut at) = links(trace, limits);
    let mut sums = vec![Sums::new(); iterations.len()];
    let mut jumps = vec![0_usize; iterations.len()];
    let mut instructions = vec![0_usize; iterations.len()];
    for number in of_instruction.iter().flatten() {
        if let Some(sum) = instructions.get_mut(*number as usize) {
            *sum += 1;
        }
    }
    while let (Some(link), Some(step)) = (links.get(at as usize), trace.steps.get(at as usize)) {
        let number = of_instruction.get(at as usize).copied().flatten().map(|number| number as usize);
        if let Some(number) = number.filter(|number| *number < iterations.len()) {
            jumps[number] += usize::from(link.is_window);
            if link.cycles > 0 {
                let sum = sums[number].entry((step.instruction, link.class)).or_default();
                (sum.0, sum.1) = (sum.0 + f64::from(link.cycles), sum.1 + 1);
            }
        }
        at = link.before;
    }
    let of_loop = |(number, sums): (usize, Sums)| {
        let visits = sums.values().map(|(_, visits)| *visits).max().unwrap_or(0);
        let turns = iterations.get(number).copied().unwrap_or(0);
        let is_windowed = 2 * jumps[number] * REORDER >= instructions[number];
        if is_windowed || turns < 2 || (visits as f64) < turns as f64 * MOST {
            return Vec::new();
        }
        let step = |((instruction, class), (cycles, _))| ChainStep { instruction, class, cycles };
        let mut steps: Vec<ChainStep> = sums.into_iter().map(step).collect();
        steps.sort_by(|one, other| {
            let order = |step: &ChainStep| (step.instruction, step.class);
            other.cycles.total_cmp(&one.cycles).then_with(|| order(one).cmp(&order(other)))
        });
        steps
    };
    sums.into_iter().enumerate().map(of_loop).collect()
}

/// Of each executed instruction, and the one that completes last.
fn links(trace: &Trace, limits: Limits) -> (Vec<Link>, u32) {
    let mut links: Vec<Link> = Vec::with_capacity(trace.steps.len());
    let mut locations = [START; Locations::PLACES];
    let mut words = vec![START; trace.words];
    let mut lines = vec![START; trace.firsts.len()];
    let mut retired: Vec<At> = Vec::with_capacity(trace.steps.len());
    let (mut all_done, mut cycle) = (START, START);
    let (mut rest, mut before) = (trace.touches.as_slice(), 0);
    for (number, step) in trace.steps.iter().enumerate() {
        let Some((touches, later)) = rest.split_at_checked((step.touches - before) as usize) else { break };
        (rest, before) = (later, step.touches);
        let Some(facts) = trace.facts.get(step.facts as usize) else { break };
        let own = number as u32;
        if let Some(floor) = number.checked_sub(REORDER).and_then(|at| retired.get(at)) {
            cycle = cycle.later(*floor);
        }
        cycle = cycle.after(facts.holds);
        let ready = |set: Locations, locations: &[At; Locations::PLACES]| {
            let places = set.iter().filter_map(|place| locations.get(place));
            places.fold(START, |latest, at| latest.later(*at))
        };
        let addressed = ready(facts.bases(), &locations);
        let is_chased = step.chases_base || step.chases_index;
        let load = if is_chased { limits.chased_load } else { limits.load };
        let (mut loaded, mut loaded_class) = (START, ChainClass::Load);
        let mut from = START;
        for touch in touches {
            let source = addressed.later(cycle);
            let mut value = source.after(load);
            let mut class = ChainClass::Load;
            let mut origin = source;
            let line = lines.get_mut(touch.line as usize);
            if let Some(line) = line {
                if touch.is_new() {
                    *line = At { time: value.time, by: own };
                } else if line.time > value.time {
                    (value, origin) = (*line, *line);
                }
            }
            let stored = if touch.word == NO_WORD { None } else { words.get(touch.word as usize).copied() };
            if let Some(stored) = stored {
                let forward = if touch.is_renamed { limits.forward } else { limits.forward_anew };
                if stored.time + forward > value.time {
                    (value, class, origin) = (stored.after(forward), ChainClass::StoreForwarding, stored);
                }
            }
            if !touch.is_store && value.time > loaded.time {
                (loaded, loaded_class, from) = (value, class, origin);
            }
        }
        let physical = |set: Locations| if facts.has_x87 { set.at_top(step.top) } else { set };
        if let Some([one, other]) = facts.exchange {
            let places = [physical(one), physical(other)].map(|set| set.iter().next());
            if let [Some(one), Some(other)] = places {
                locations.swap(one, other);
            }
            all_done = all_done.later(cycle);
            retired.push(all_done);
            let is_window = cycle.by != NONE;
            links.push(Link { before: cycle.by, cycles: 0, class: ChainClass::Other, is_window });
            continue;
        }
        let read = ready(physical(facts.reads), &locations);
        // The value waited for longest: of registers, of a load, of nothing but the window.
        let mut source = read;
        let (mut start, mut class) = (read.time, ChainClass::of(facts.kind));
        if loaded.time > start {
            (start, source) = (loaded.time, from);
            if loaded.time - from.time >= facts.latency {
                class = loaded_class;
            }
        }
        let mut is_window = source.by == NONE && cycle.by != NONE;
        if cycle.time > start {
            (start, source, is_window) = (cycle.time, cycle, true);
        } else if source.time == cycle.time && source.by == cycle.by {
            is_window = cycle.by != NONE;
        }
        let string = if facts.is_string { string_cycles(touches.len()) } else { 0 };
        let done = At { time: start + facts.latency + string, by: own };
        links.push(Link { before: source.by, cycles: done.time - source.time, class, is_window });
        physical(facts.writes).each(|place| locations[place % Locations::PLACES] = done);
        physical(facts.merges).each(|place| {
            let at = &mut locations[place % Locations::PLACES];
            *at = at.later(done);
        });
        all_done = all_done.later(done);
        retired.push(all_done);
        if let Some(word) = words.get_mut(step.stored as usize).filter(|_| step.stored != NO_WORD) {
            *word = done;
        }
    }
    (links, all_done.by)
}
