//! How long a window takes on a processor of today: a list schedule of its instructions.
//!
//! An instruction starts when its inputs are ready, within the issue width, and when all but the
//! last hundreds of instructions before it are done. After a mispredicted branch the next
//! instructions wait. A line touched for the first time in the window costs what the program's
//! footprint says; a stored line comes and goes back. Clock, widths, latencies of loads and
//! floating point, and costs of memory are those of a [`Machine`]. Other latencies are round
//! numbers common to server processors.
//!
//! [`Processor`] tells a window's duration for its rate. [`Replay`] tells the cycles of each
//! instruction, with all limits or with one removed. `trace` makes a window ready once, `schedule`
//! runs for both, `facts` has what is static, `footprint` the cost of lines.
//!
//! Sources of error: for a duration units are counted over the window as a whole, not cycle by
//! cycle; code is taken to be decoded already; a predictor that sees one window in a thousand knows
//! less than a real one; a thread may share its core with another.

mod facts;
mod footprint;
mod path;
mod replay;
mod schedule;
mod trace;

pub use self::path::{ChainClass, ChainStep};
pub use self::replay::{Constraint, Demand, Executed, Misses, Replay, Timing};

use self::footprint::Memory;
use self::schedule::{Limits, Schedule};
use self::trace::{Counts, Trace};
use crate::core_limits::Machine;
use crate::types::WindowView;

/// A processor, with the knowledge about one program.
#[derive(Debug, Clone)]
pub(crate) struct Processor {
    machine: Machine,
    trace: Trace,
    schedule: Schedule,
}

/// What a window takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Duration {
    pub ns: f64,
    /// Share of the time, 0 to 1, of possible waits for lines without prefetching.
    pub waiting: f64,
}

impl Default for Processor {
    fn default() -> Self {
        Self::new(Machine::default())
    }
}

impl Processor {
    pub fn new(machine: Machine) -> Self {
        Self { machine, trace: Trace::default(), schedule: Schedule::new(Limits::of(&machine)) }
    }

    /// Latency of lines of the level that has room for the program's footprint, in nanoseconds; 0 for
    /// the first level.
    pub fn line_latency_ns(&self) -> f64 {
        let level =
            self.trace.footprint.level(&self.machine).and_then(|level| self.machine.levels.get(level));
        level.map_or(0.0, |level| level.latency / self.machine.clock)
    }

    /// How long a window takes.
    pub fn run(&mut self, window: &WindowView<'_>) -> Duration {
        let Self { machine, trace, schedule } = self;
        // Knowledge from earlier windows; a single window shows nothing of it.
        let level = trace.footprint.level(machine);
        let memory = level.and_then(|level| Memory::levels(machine).get(level).copied()).unwrap_or_default();
        trace.read(window, machine);
        let end = schedule.run(trace, Limits::in_whole_slots(machine), memory).max(trace.counts.divides);
        let cycles = bounds(&trace.counts, machine, memory).into_iter().fold(f64::from(end), f64::max);
        let waiting = (f64::from(trace.counts.far * memory.far) / cycles.max(1.0)).min(1.0);
        Duration { ns: cycles / machine.clock, waiting }
    }
}

/// Cycles that each kind of unit needs at least.
fn bounds(counts: &Counts, machine: &Machine, memory: Memory) -> [f64; 4] {
    [
        f64::from(counts.loads) / machine.loads + f64::from(counts.wide_loads) / machine.wide_loads,
        f64::from(counts.stores) / machine.stores,
        f64::from(counts.floats) / machine.floats,
        f64::from(counts.lines) * memory.between + f64::from(counts.stored_lines) * memory.stored,
    ]
}

#[cfg(test)]
mod tests {
    use locality_stream::{BlockRecord, Code, Event, InstructionRecord, Kind};

    use super::schedule::MISPREDICTED;
    use super::*;

    /// Cycles an execution of a block that is executed `times`; `touch` says which address each of
    /// its accesses has.
    fn cycles(code: &[&[u8]], times: u64, touch: impl Fn(u64, u32) -> Option<(Kind, u64)>) -> f64 {
        let mut address = 0x1000;
        let mut instructions = Vec::new();
        for bytes in code {
            instructions.push(InstructionRecord::new(address, bytes));
            address += bytes.len() as u64;
        }
        let blocks = [BlockRecord { first: 0, count: code.len() as u32 }];
        let mut events = Vec::new();
        for turn in 0..times {
            events.push(Event::new(Kind::BLOCK, 0, 0));
            let accesses = (0..code.len() as u32).filter_map(|index| Some((index, touch(turn, index)?)));
            events.extend(accesses.map(|(index, (kind, address))| Event::access(kind, index, address, 8)));
        }
        let window = WindowView {
            events: &events,
            values: &[],
            registers: &[],
            code: Code { instructions: &instructions, blocks: &blocks },
            instructions: times * code.len() as u64,
            accesses: events.iter().filter(|event| event.kind.is_access()).count() as u64,
        };
        Processor::default().run(&window).ns * Machine::default().clock / times as f64
    }

    fn is_near(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() < 0.02
    }

    const ADD_TO_ITSELF: &[u8] = &[0x48, 0x01, 0xc0];
    const DIVIDE: &[u8] = &[0x48, 0xf7, 0xf1];
    const FOLLOW: &[u8] = &[0x48, 0x8b, 0x00];
    const LOAD_RBX: &[u8] = &[0x48, 0x8b, 0x03];
    const STORE_RBX: &[u8] = &[0x48, 0x89, 0x03];
    const NOP: &[u8] = &[0x90];
    const PAUSE: &[u8] = &[0xf3, 0x90];

    #[test]
    fn what_waits_for_the_one_before_takes_its_latency() {
        let none = |_: u64, _: u32| None;
        assert!(is_near(cycles(&[ADD_TO_ITSELF; 3], 1000, none), 3.0));
        assert!(is_near(cycles(&[NOP; 12], 1000, none), 12.0 / Machine::default().width));
        assert!(is_near(cycles(&[DIVIDE], 1000, none), 14.0));
        // Nothing is started meanwhile.
        assert!(is_near(cycles(&[PAUSE, NOP, NOP], 1000, none), Machine::default().pause));
        // The next one's address is in the last one's line, which is there.
        let same = |_: u64, _: u32| Some((Kind::LOAD, 0x9000));
        assert!(is_near(cycles(&[FOLLOW], 1000, same), Machine::default().load));
        // Through memory: a store's value is what the next load waits for.
        let cell = |_: u64, index: u32| match index {
            0 => Some((Kind::LOAD, 0x9000)),
            1 => None,
            _ => Some((Kind::STORE, 0x9000)),
        };
        let through_memory = cycles(&[LOAD_RBX, ADD_TO_ITSELF, STORE_RBX], 1000, cell);
        assert!(is_near(through_memory, Machine::default().forward + 1.0), "{through_memory}");
    }

    #[test]
    fn branches_without_a_pattern_cost_their_penalty() {
        // A block that jumps to itself or to the same code elsewhere, by chance or by turns.
        let cycles = |goes: &mut dyn FnMut(u64) -> bool| {
            let jump: &[u8] = &[0x75, 0x10];
            let at = |address| InstructionRecord::new(address, jump);
            let instructions = [at(0x1000), at(0x1012), at(0x1002)];
            let blocks = [0, 1, 2].map(|first| BlockRecord { first, count: 1 });
            let mut events = Vec::new();
            for turn in 0..2000 {
                events.push(Event::new(Kind::BLOCK, 0, 0));
                events.push(Event::new(Kind::BLOCK, if goes(turn) { 1 } else { 2 }, 0));
            }
            let code = Code { instructions: &instructions, blocks: &blocks };
            let window = WindowView {
                events: &events,
                values: &[],
                registers: &[],
                code,
                instructions: 4000,
                accesses: 0,
            };
            Processor::default().run(&window).ns * Machine::default().clock / 2000.0
        };
        let mut random = fastrand::Rng::with_seed(5);
        let (by_chance, by_turns) = (cycles(&mut |_| random.bool()), cycles(&mut |turn| turn % 3 == 0));
        let penalty = f64::from(MISPREDICTED) / 2.0;
        assert!(by_chance > by_turns + 0.7 * penalty && by_turns < 4.0, "{by_chance} {by_turns}");
    }
}
