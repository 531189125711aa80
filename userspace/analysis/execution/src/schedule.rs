//! Cost of blocks by a schedule: windows made again ([`crate::rebuild`]) are replayed by the timing model of
//! `locality_rate` on a machine, with the miss ratios that the trace found for each instruction.
//!
//! In place of the paper's constant miss rate and of its overlap by a rule (section V-A), a line comes from
//! the level that the instruction's first touches of lines come from, and overlaps with what does not depend
//! on it. The cost of a block is that of its executions in all windows, each by what the window stands for.
//!
//! Sources of error: those of the timing model and of the windows made again; page faults and the
//! translation of addresses are not modelled; blocks that no window shows have no cost. Good for ratios
//! between machines and between spots, not for seconds.

use std::collections::{BTreeMap, HashSet};

pub use locality_rate::{Level, Machine as Processor};
use locality_rate::{Misses, Replay, Timing, WindowView};
use locality_stream::{Code, Event, Kind};

pub use crate::addresses::AccessSeen;
use crate::build::Built;
use crate::observed::{At, Observed};
use crate::rebuild::{Rebuilder, Walk};
use crate::spots::{self, Place};

/// Windows that are replayed.
pub const MOST_WINDOWS: usize = 96;

/// Which first touches of lines in windows miss a cache of some size.
#[derive(Debug, Clone, Default)]
pub struct SizeMisses {
    /// By instruction and whether it stores.
    pub by_instruction: BTreeMap<(At, bool), TouchMisses>,
    /// Share of all instructions together.
    pub all: f64,
}

/// First touches of lines by an instruction.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TouchMisses {
    /// First touches in the trace.
    pub touches: f64,
    /// The share of them that misses.
    pub share: f64,
}

impl TouchMisses {
    /// Adds touches, of which this share misses.
    pub fn add(&mut self, touches: f64, share: f64) {
        let missing = self.touches * self.share + touches * share;
        self.touches += touches;
        self.share = missing / self.touches.max(f64::MIN_POSITIVE);
    }
}

impl SizeMisses {
    fn share(&self, at: At, stores: bool) -> f64 {
        self.by_instruction.get(&(at, stores)).map_or(self.all, |misses| misses.share)
    }
}

/// What misses the first-level, the second-level and the last-level cache.
pub type LineSources<'a> = [&'a SizeMisses; 3];

/// What windows made again cost.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// Nanoseconds of an execution, by function and block.
    pub blocks: BTreeMap<(usize, u64), f64>,
}

/// Windows made again, for replays on several machines.
pub struct Replays<'a> {
    pub(crate) rebuilder: Rebuilder<'a>,
    /// Executions of the program that each stands for, and the window.
    pub(crate) walks: Vec<(f64, Walk)>,
    /// By instruction, first touches of lines in these walks, and executions of the access.
    touches: BTreeMap<At, (f64, f64)>,
}

impl<'a> Replays<'a> {
    /// Of a trace's windows, [`MOST_WINDOWS`] of them, evenly over the run.
    pub fn of(built: &'a Built, observed: &Observed, accesses: BTreeMap<At, AccessSeen>) -> Self {
        let mut rebuilder = Rebuilder::new(built, accesses);
        let step = observed.windows.len().div_ceil(MOST_WINDOWS).max(1);
        let chosen = observed.windows.iter().enumerate().step_by(step);
        let walks: Vec<(f64, Walk)> = chosen
            .map(|(number, window)| (window.weight, rebuilder.walk(window, number)))
            .filter(|(_, walk)| walk.instructions > 0)
            .collect();
        let mut touches: BTreeMap<At, (f64, f64)> = BTreeMap::new();
        for (_, walk) in &walks {
            let mut lines = HashSet::new();
            for event in walk.events.iter().filter(|event| event.kind.is_access()) {
                let Some((at, ..)) = rebuilder.places.get(event.index as usize) else { continue };
                let seen = touches.entry(*at).or_default();
                (seen.0, seen.1) =
                    (seen.0 + f64::from(u8::from(lines.insert(event.value >> 6))), seen.1 + 1.0);
            }
        }
        Self { rebuilder, walks, touches }
    }

    /// A window as the timing model takes it.
    pub(crate) fn view<'v>(&'v self, walk: &'v Walk) -> WindowView<'v> {
        WindowView {
            events: &walk.events,
            values: &[],
            registers: &[],
            code: Code { instructions: &self.rebuilder.instructions, blocks: &self.rebuilder.blocks },
            instructions: walk.instructions,
            accesses: walk.events.iter().filter(|event| event.kind.is_access()).count() as u64,
        }
    }

    /// Costs on a machine.
    pub fn costs(&self, machine: Processor, sources: LineSources<'_>) -> Costs {
        let mut sums: BTreeMap<(usize, u64), (f64, f64)> = BTreeMap::new();
        let mut replay = Replay::new(machine);
        let mut timing = Timing::default();
        for (weight, walk) in &self.walks {
            replay.read(&self.view(walk));
            let level = |event: &Event| self.level(event, sources, walk.window as u64);
            replay.time_into(Misses::Each(&level), None, &mut timing);
            for (executed, cycles) in replay.executed().zip(&timing.cycles) {
                let place = self.rebuilder.places.get(executed.instruction as usize);
                let Some((at, function, label)) = place else { continue };
                let sum = sums.entry((*function, *label)).or_default();
                sum.0 += weight * f64::from(*cycles);
                sum.1 += weight * f64::from(u8::from(at.1 == *label));
            }
        }
        let clock = machine.clock;
        let blocks = sums.into_iter().filter(|(_, (_, count))| *count > 0.0);
        Costs { blocks: blocks.map(|(key, (cycles, count))| (key, cycles / count / clock)).collect() }
    }

    /// Where the line of a first touch comes from.
    pub(crate) fn level(&self, event: &Event, sources: LineSources<'_>, walk: u64) -> Option<usize> {
        // A call's or a return's line is the stack's.
        if event.kind == Kind::CALL || event.kind == Kind::RETURN {
            return None;
        }
        let (at, ..) = self.rebuilder.places.get(event.index as usize)?;
        // Arbitrary addresses may meet more lines than there were.
        let real = self.rebuilder.accesses.get(at).and_then(|seen| seen.lines).zip(self.touches.get(at));
        let part = real.map_or(1.0, |(real, (new, executed))| (real * executed / new.max(1.0)).min(1.0));
        let chance = draw(event.value ^ walk << 48);
        let is_store = event.kind.is_store();
        (0..3).rev().find(|level| chance < part * sources[*level].share(*at, is_store))
    }
}

/// From 0 to below 1, the same for the same line.
fn draw(value: u64) -> f64 {
    let mixed = (value >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ (mixed >> 29)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Nanoseconds of all executions by function and innermost loop.
pub fn by_spot(
    built: &Built,
    costs: &Costs,
    executions: &BTreeMap<(usize, u64), f64>,
) -> BTreeMap<Place, f64> {
    let mut sums: BTreeMap<Place, f64> = BTreeMap::new();
    for ((function, label), cost) in &costs.blocks {
        let count = executions.get(&(*function, *label)).copied().unwrap_or(0.0);
        if let Some(place) = spots::spot_of(built, *function, *label).filter(|_| count > 0.0) {
            *sums.entry(place).or_default() += cost * count;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use crate::observed::WindowSeen;
    use crate::testing::One;

    /// A chase, then a count, then a return.
    const CODE: [u8; 18] = [
        0x48, 0x8b, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf8, // mov rax, [rax]; dec rcx; jne 1000
        0x48, 0x83, 0xc2, 0x01, 0x48, 0xff, 0xce, 0x75, 0xf7, // add rdx, 1; dec rsi; jne 1008
        0xc3,
    ];

    fn observed() -> Observed {
        let edge = |from: u64, to: u64, count: f64| ((0, from), (0, to), count);
        let window = WindowSeen {
            weight: 3.0,
            instructions: 3 * 400 + 3 * 800 + 1,
            first: Some((0, 0x1000)),
            edges: vec![
                edge(0x1006, 0x1000, 399.0),
                edge(0x1006, 0x1008, 1.0),
                edge(0x100f, 0x1008, 799.0),
                edge(0x100f, 0x1011, 1.0),
            ],
            ..WindowSeen::default()
        };
        Observed { windows: vec![window], ..Observed::default() }
    }

    #[test]
    fn a_chase_costs_its_latency_and_a_count_a_cycle() {
        let observed = observed();
        let built = build::build(&One(&CODE), &observed);
        let replays = Replays::of(&built, &observed, BTreeMap::new());
        let machine = Processor::default();
        let cost = |all: f64, label: u64| {
            let misses = SizeMisses { all, ..SizeMisses::default() };
            replays.costs(machine, [&misses; 3]).blocks[&(0, label)] * machine.clock
        };
        let memory = machine.load + machine.levels[2].latency;
        assert!((cost(1.0, 0x1000) / memory - 1.0).abs() < 0.05, "{}", cost(1.0, 0x1000));
        assert!((cost(0.0, 0x1000) / machine.load - 1.0).abs() < 0.1, "{}", cost(0.0, 0x1000));
        assert!((cost(1.0, 0x1008) - 1.0).abs() < 0.2, "{}", cost(1.0, 0x1008));
        // Lines that windows showed less often come from the first-level cache.
        let seen = AccessSeen { stride: None, lines: Some(0.1) };
        let replays = Replays::of(&built, &observed, BTreeMap::from([((0, 0x1000), seen)]));
        let misses = SizeMisses { all: 1.0, ..SizeMisses::default() };
        let found = replays.costs(machine, [&misses; 3]).blocks[&(0, 0x1000)] * machine.clock;
        assert!((0.05 * memory..0.2 * memory).contains(&found), "{found}");
    }

    #[test]
    fn touches_of_several_processes_are_one_share() {
        let mut misses = TouchMisses::default();
        misses.add(30.0, 1.0);
        misses.add(10.0, 0.2);
        assert!((misses.touches - 40.0).abs() < 1e-9 && (misses.share - 0.8).abs() < 1e-9, "{misses:?}");
    }

    #[test]
    fn a_walk_takes_each_transfer_as_often_as_its_window() {
        let observed = observed();
        let built = build::build(&One(&CODE), &observed);
        let mut rebuilder = Rebuilder::new(&built, BTreeMap::new());
        let walk = rebuilder.walk(&observed.windows[0], 0);
        assert_eq!(walk.instructions, 3601);
        let times = |address: u64| {
            let blocks = walk.events.iter().filter(|event| event.kind == Kind::BLOCK);
            let first = |event: &&Event| {
                let record = rebuilder.blocks[event.index as usize];
                rebuilder.places[record.first as usize].0.1 == address
            };
            blocks.filter(first).count()
        };
        assert_eq!((times(0x1000), times(0x1008), times(0x1011)), (400, 800, 1));
    }
}
