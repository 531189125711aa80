//! Cycles of each executed instruction of a window, with all limits of a machine or with one
//! removed: the limit whose removal shortens a loop most is what binds the loop.

use locality_stream::Event;

use super::facts::{Facts, Latency};
use super::footprint::Memory;
use super::path::{self, ChainStep};
use super::schedule::{Limits, Schedule};
use super::trace::{Trace, Went};
use crate::core_limits::Machine;
use crate::types::WindowView;

/// What may bind a piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Constraint {
    /// The latency of integer operations, multiplications and those of vectors included.
    IntegerChain,
    /// The latency of additions of floating point; a sum of products, a maximum, a comparison and a
    /// conversion count as one.
    FpAddChain,
    /// The latency of other multiplications of floating point.
    FpMultiplyChain,
    /// The latency of divisions and square roots.
    DivideChain,
    /// Cycles from an address that was computed to the value, in the first-level cache.
    LoadChain,
    /// The wait for an address that was loaded, as it is or at a constant distance. Without the wait
    /// the lines of a chase come side by side.
    PointerChase,
    /// Cycles from a store to a load of its value.
    StoreForwarding,
    /// Branches that the predictor does not foresee.
    Mispredictions,
    /// Lines that come from the second-level cache.
    L1Misses,
    /// Lines that come from beyond the second-level cache.
    DeeperMisses,
    /// Instructions, and taken branches, in a cycle.
    Width,
    /// Loads in a cycle.
    Loads,
    /// Stores in a cycle.
    Stores,
    /// Integer operations in a cycle.
    IntUnits,
    /// Operations of floating point in a cycle.
    FpUnits,
    /// The divider, for one operation at a time.
    Divider,
    /// Instructions that may wait at a time.
    Window,
}

impl Constraint {
    /// All.
    pub const ALL: [Constraint; 17] = [
        Constraint::IntegerChain,
        Constraint::FpAddChain,
        Constraint::FpMultiplyChain,
        Constraint::DivideChain,
        Constraint::LoadChain,
        Constraint::PointerChase,
        Constraint::StoreForwarding,
        Constraint::Mispredictions,
        Constraint::L1Misses,
        Constraint::DeeperMisses,
        Constraint::Width,
        Constraint::Loads,
        Constraint::Stores,
        Constraint::IntUnits,
        Constraint::FpUnits,
        Constraint::Divider,
        Constraint::Window,
    ];

    /// The word for it in reports' `bound_by`.
    pub fn name(self) -> &'static str {
        match self {
            Constraint::IntegerChain => "integer_chain",
            Constraint::FpAddChain => "fp_add_chain",
            Constraint::FpMultiplyChain => "fp_multiply_chain",
            Constraint::DivideChain => "divide_chain",
            Constraint::LoadChain => "load_chain",
            Constraint::PointerChase => "pointer_chase",
            Constraint::StoreForwarding => "store_forwarding",
            Constraint::Mispredictions => "mispredictions",
            Constraint::L1Misses => "l1_misses",
            Constraint::DeeperMisses => "deeper_misses",
            Constraint::Width => "width",
            Constraint::Loads => "loads",
            Constraint::Stores => "stores",
            Constraint::IntUnits => "int_units",
            Constraint::FpUnits => "fp_units",
            Constraint::Divider => "divider",
            Constraint::Window => "window",
        }
    }
}

/// Source of lines that a window touches for the first time.
#[derive(Clone, Copy)]
pub enum Misses<'a> {
    /// The first-level cache: the remaining cycles are the core's.
    None,
    /// The level that holds as many lines as the windows read before go through.
    Footprint,
    /// For each line by the access that touches it first: the index in [`Machine::levels`], or
    /// `None` for the first-level cache.
    Each(&'a dyn Fn(&Event) -> Option<usize>),
}

/// What a replay takes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timing {
    /// By executed instruction, in order: cycles by which this instruction delays the last
    /// completion so far. The wait after a mispredicted branch is the branch's.
    pub cycles: Vec<f32>,
    /// Their sum.
    pub total: f64,
}

/// What an executed instruction asks of the units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Loads of up to 8 bytes.
    pub loads: u32,
    /// Wider loads.
    pub wide_loads: u32,
    /// Stores.
    pub stores: u32,
    /// Operations of integers.
    pub integers: u32,
    /// Operations of floating point.
    pub floats: u32,
    /// Cycles of the divider.
    pub divides: u32,
}

/// An executed instruction of the window that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Executed {
    /// Index of the static instruction in the window's code.
    pub instruction: u32,
    /// Whether control may go to more than one place: a conditional branch, or an indirect jump or call.
    pub has_choice: bool,
    /// Whether the predictor missed the branch.
    pub is_mispredicted: bool,
    /// Whether its address comes out of a load, as it is or at a constant distance.
    pub is_chased: bool,
    /// Lines touched as the first in the window.
    pub new_lines: u32,
    /// Demand on the units.
    pub demand: Demand,
}

impl Demand {
    /// Adds what another instruction asks.
    pub fn add(&mut self, more: Demand) {
        self.loads += more.loads;
        self.wide_loads += more.wide_loads;
        self.stores += more.stores;
        self.integers += more.integers;
        self.floats += more.floats;
        self.divides += more.divides;
    }

    /// Least cycles of the busiest unit for this and the given number of instructions, and the
    /// limit; loads and stores count as if each had a line of its own.
    pub fn cycles(&self, instructions: u64, machine: &Machine) -> (f64, Constraint) {
        let per = |n: u32, in_a_cycle: f64| f64::from(n) / in_a_cycle;
        let all = [
            (instructions as f64 / machine.width, Constraint::Width),
            (per(self.loads, machine.loads) + per(self.wide_loads, machine.wide_loads), Constraint::Loads),
            (per(self.stores, machine.stores.max(machine.close_stores)), Constraint::Stores),
            (per(self.integers, machine.integers), Constraint::IntUnits),
            (per(self.floats, machine.floats), Constraint::FpUnits),
            (f64::from(self.divides), Constraint::Divider),
        ];
        all.into_iter().fold((0.0, Constraint::Width), |most, one| if one.0 > most.0 { one } else { most })
    }
}

/// Replays of one program's windows on one machine.
///
/// [`Replay::read`] takes windows in the order of the trace, since the branch predictor and the
/// footprint learn from them. [`Replay::time`] may then be called for each constraint.
#[derive(Debug, Clone)]
pub struct Replay {
    machine: Machine,
    trace: Trace,
    schedule: Schedule,
    /// What lines of each level cost.
    levels: [Memory; 3],
    /// Level of the footprint before the window that was read.
    level: Option<usize>,
    /// For each line of the window, its level.
    line_levels: Vec<Option<usize>>,
}

impl Replay {
    /// On this machine.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            trace: Trace::default(),
            schedule: Schedule::new(Limits::of(&machine)),
            levels: Memory::levels(&machine),
            level: None,
            line_levels: Vec::new(),
        }
    }

    /// Takes a window in place of the last one.
    pub fn read(&mut self, window: &WindowView<'_>) {
        self.level = self.trace.footprint.level(&self.machine);
        self.trace.read(window, &self.machine);
    }

    /// The instructions executed in the window, in order.
    pub fn executed(&self) -> impl Iterator<Item = Executed> {
        let mut rest = self.trace.touches.as_slice();
        let mut before = 0;
        self.trace.steps.iter().map(move |step| {
            let (touches, later) =
                rest.split_at_checked((step.touches - before) as usize).unwrap_or_default();
            (rest, before) = (later, step.touches);
            let (mut demand, mut has_choice) = (Demand::default(), false);
            for touch in touches {
                *match (touch.is_store, touch.is_wide) {
                    (true, _) => &mut demand.stores,
                    (false, true) => &mut demand.wide_loads,
                    (false, false) => &mut demand.loads,
                } += 1;
            }
            if let Some(facts) = self.trace.facts.get(step.facts as usize) {
                demand.floats = u32::from(facts.is_float);
                demand.integers = u32::from(facts.takes_integer_unit());
                demand.divides = facts.divides;
                has_choice = facts.has_choice();
            }
            Executed {
                instruction: step.instruction,
                has_choice,
                is_mispredicted: step.went == Went::Mispredicted,
                is_chased: step.chases_base || step.chases_index,
                new_lines: touches.iter().filter(|touch| touch.is_new()).count() as u32,
                demand,
            }
        })
    }

    /// Whether a limit can shorten the window that was read when all lines are in the first-level cache:
    /// without a division, the divider cannot.
    pub fn may_bind(&self, limit: Constraint) -> bool {
        let Trace { steps, facts, counts, words, .. } = &self.trace;
        let has = |is: &dyn Fn(&Facts) -> bool| facts.iter().any(is);
        match limit {
            Constraint::IntegerChain => has(&|facts| facts.kind == Latency::Integer),
            Constraint::FpAddChain => has(&|facts| facts.kind == Latency::FloatAdd),
            Constraint::FpMultiplyChain => has(&|facts| facts.kind == Latency::FloatMultiply),
            Constraint::DivideChain => has(&|facts| facts.kind == Latency::Divide),
            Constraint::PointerChase => steps.iter().any(|step| step.chases_base || step.chases_index),
            Constraint::StoreForwarding => *words > 0 && counts.loads + counts.wide_loads > 0,
            Constraint::Mispredictions => steps.iter().any(|step| step.went == Went::Mispredicted),
            Constraint::L1Misses | Constraint::DeeperMisses => false,
            Constraint::LoadChain | Constraint::Loads => counts.loads + counts.wide_loads > 0,
            Constraint::Stores => counts.stores > 0,
            Constraint::FpUnits => counts.floats > 0,
            Constraint::Divider => counts.divides > 0,
            Constraint::Width | Constraint::IntUnits | Constraint::Window => true,
        }
    }

    /// The cycles of the window that was read last.
    pub fn time(&mut self, misses: Misses<'_>, without: Option<Constraint>) -> Timing {
        let mut timing = Timing::default();
        self.time_into(misses, without, &mut timing);
        timing
    }

    /// The same in the memory of a timing that is no longer needed.
    pub fn time_into(&mut self, misses: Misses<'_>, without: Option<Constraint>, timing: &mut Timing) {
        let limits = limits(&self.machine, without);
        self.replay(misses, limits, without, timing);
    }

    /// The cycles of dependences alone, with all lines in the first-level cache: units and instructions in a
    /// cycle are as many as one likes, and branches are foreseen. The reorder window stays.
    pub fn chains_into(&mut self, timing: &mut Timing) {
        let limits = Limits::of(&self.machine).of_chains();
        self.replay(Misses::None, limits, None, timing);
    }

    /// The chain of dependences of each loop in the window that was read, the instruction with the most
    /// cycles first; empty for a loop without a chain through most of its iterations. `of_instruction`: the
    /// number of the loop of each executed instruction; `iterations`: of each loop.
    pub fn chain_steps(&self, of_instruction: &[Option<u32>], iterations: &[u64]) -> Vec<Vec<ChainStep>> {
        path::chains(&self.trace, Limits::of(&self.machine).of_chains(), of_instruction, iterations)
    }

    fn replay(
        &mut self,
        misses: Misses<'_>,
        limits: Limits,
        without: Option<Constraint>,
        timing: &mut Timing,
    ) {
        let Self { trace, schedule, levels, level, line_levels, .. } = self;
        line_levels.clear();
        match misses {
            Misses::None => line_levels.resize(trace.firsts.len(), None),
            Misses::Footprint => line_levels.resize(trace.firsts.len(), *level),
            Misses::Each(level) => line_levels.extend(trace.firsts.iter().map(level)),
        }
        let mut levels = *levels;
        match (without, &mut levels) {
            (Some(Constraint::L1Misses), [second, ..]) => *second = Memory::default(),
            (Some(Constraint::DeeperMisses), [_, last, memory]) => {
                (*last, *memory) = (Memory::default(), Memory::default());
            }
            _ => {}
        }
        let memory = |line: u32| {
            let level = line_levels.get(line as usize).copied().flatten();
            level.and_then(|level| levels.get(level).copied()).unwrap_or_default()
        };
        let Timing { cycles, total } = timing;
        cycles.clear();
        cycles.reserve(trace.steps.len());
        *total = 0.0;
        schedule.replay(trace, limits, memory, |more| {
            cycles.push(more as f32);
            *total += f64::from(more);
        });
    }
}

/// All limits but one.
fn limits(machine: &Machine, without: Option<Constraint>) -> Limits {
    let all = Limits::of(machine);
    let Some(without) = without else { return all };
    match without {
        Constraint::IntegerChain => Limits { free: Some(Latency::Integer), ..all },
        Constraint::FpAddChain => Limits { free: Some(Latency::FloatAdd), ..all },
        Constraint::FpMultiplyChain => Limits { free: Some(Latency::FloatMultiply), ..all },
        Constraint::DivideChain => Limits { free: Some(Latency::Divide), ..all },
        Constraint::LoadChain => Limits { load: 0, ..all },
        Constraint::PointerChase => Limits { chases: false, ..all },
        Constraint::StoreForwarding => Limits { forward: 0, forward_anew: 0, ..all },
        Constraint::Mispredictions => Limits { mispredicts: false, ..all },
        // Of the lines, not of the core.
        Constraint::L1Misses | Constraint::DeeperMisses => all,
        Constraint::Width => Limits { width: None, ..all },
        Constraint::Loads => all.without_loads(),
        Constraint::Stores => all.without_stores(),
        Constraint::IntUnits => all.without_integers(),
        Constraint::FpUnits => all.without_floats(),
        Constraint::Divider => all.without_divider(),
        Constraint::Window => Limits { has_window: false, ..all },
    }
}

#[cfg(test)]
mod tests;
