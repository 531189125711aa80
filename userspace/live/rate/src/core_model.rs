//! How long a window takes on a processor of today: a list schedule of its instructions.
//!
//! An instruction starts when its inputs are there, so many in a cycle, not before all but some
//! hundred instructions ahead of it are done; behind a branch that the predictor does not foresee,
//! the next ones wait. A line that the window touches for the first time costs what the program's
//! footprint says, and one that it stores to comes and goes back. Clock, widths, the latencies of
//! loads and of floating point, and what memory costs are those of a [`Machine`]; other latencies
//! are round numbers that server processors share.
//!
//! Sources of error: units are counted over the window as a whole, not cycle by cycle; code is
//! taken to be decoded already; a predictor that sees one window in a thousand knows less than a
//! real one; a thread may share its core with another.

mod predictor;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use locality_stream::{BlockRecord, Class, Event, Flow, Instruction, InstructionRecord, Kind};

use self::predictor::{Branch, Predictor};
use crate::core_limits::Machine;
use crate::table::Table;
use crate::types::WindowView;

/// Instructions between the oldest that is not done and the youngest that may start.
const REORDER: usize = 320;
/// Cycles from a mispredicted branch to what follows it.
const MISPREDICTED: u32 = 16;
/// Cycles before the first bytes of a repeated string instruction, and its accesses in a cycle.
const STRING: (u32, u32) = (30, 2);
/// Bytes up to which a step from one execution of an instruction to the next is foreseen by prefetchers.
const PREFETCHED: u64 = 4096;
/// Lines that are remembered: twice as many are more than second-level caches hold.
const MOST_LINES: usize = 1 << 17;
/// Static instructions that are remembered.
const MOST_INSTRUCTIONS: usize = 1 << 16;

/// Share of its latency that a line takes which a prefetcher foresees, by level.
const FORESEEN: [f64; 3] = [0.35, 0.2, 0.1];

/// What lines cost that a window touches for the first time, in cycles.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    /// Latency of a line that a prefetcher foresees.
    near: u32,
    /// Latency of another.
    far: u32,
    /// Time between two lines that are loaded from only.
    between: f64,
    /// Time between two others.
    stored: f64,
}

/// How much memory a program goes through, by how many of a window's lines were in windows before
/// (capture and recapture).
#[derive(Debug, Clone, Default)]
struct Footprint {
    seen: HashSet<u64>,
    /// Sum over the windows of the lines seen before times the window's own.
    pairs: f64,
    /// Lines of windows that were seen before.
    again: f64,
}

impl Footprint {
    fn learn(&mut self, lines: &[u64]) {
        self.pairs += self.seen.len() as f64 * lines.len() as f64;
        self.again += lines.iter().filter(|line| self.seen.contains(line)).count() as f64;
        if self.seen.len() < MOST_LINES {
            self.seen.extend(lines);
        }
    }

    /// What a line costs that comes from where so much memory fits.
    fn memory(&self, machine: &Machine) -> Memory {
        let lines = self.pairs / (self.again + 1.0);
        let level = machine.levels.iter().zip(FORESEEN).rfind(|(level, _)| lines >= level.from);
        level.map_or_else(Memory::default, |(level, foreseen)| Memory {
            near: (level.latency * foreseen).round() as u32,
            far: level.latency.round() as u32,
            between: level.between,
            stored: level.stored,
        })
    }
}

/// A processor, with what is known of one program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Processor {
    machine: Machine,
    known: HashMap<InstructionRecord, Facts>,
    predictor: Predictor,
    footprint: Footprint,
    data: Data,
    /// Blocks of the window at hand.
    blocks: Table,
    /// For each of `blocks`, where its instructions lie in `facts`.
    ranges: Vec<Range<usize>>,
    facts: Vec<Facts>,
}

/// What a window takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Duration {
    pub ns: f64,
    /// Share of it, 0 to 1, in which it may have waited for lines that no prefetcher foresees.
    pub waiting: f64,
}

impl Processor {
    pub fn new(machine: Machine) -> Self {
        Self { machine, ..Self::default() }
    }

    /// How long a window takes.
    pub fn run(&mut self, window: &WindowView<'_>) -> Duration {
        let machine = self.machine;
        self.data.clear(&machine, self.footprint.memory(&machine));
        self.blocks.clear();
        self.ranges.clear();
        self.facts.clear();
        let mut schedule = Schedule::new(machine.width.round() as u32);
        let mut left = window.instructions;
        let mut events = window.events.iter().peekable();
        if self.known.len() > MOST_INSTRUCTIONS {
            self.known.clear();
        }
        while let Some(event) = events.next() {
            let block = window.code.blocks.get(event.index as usize).filter(|_| event.kind == Kind::BLOCK);
            let Some(BlockRecord { first, .. }) = block.copied() else { continue };
            let range = self.block(window, event.index);
            for (index, facts) in (first..).zip(self.facts.get(range).unwrap_or_default()) {
                if left == 0 {
                    break;
                }
                left -= 1;
                schedule.dispatch();
                schedule.wait(schedule.cycle + facts.holds);
                let addressed = schedule.ready(facts.bases);
                let (mut loaded, mut stored, mut touched) = (0, None, 0);
                while let Some(access) = events.next_if(|next| next.kind.is_access() && next.index == index) {
                    touched += 1;
                    let at = self.data.touch(access, addressed);
                    if access.kind.is_store() {
                        stored = Some(access.value);
                    } else {
                        loaded = loaded.max(at);
                    }
                }
                let done = schedule.execute(facts, loaded, touched);
                if let Some(address) = stored {
                    self.data.store(address, done);
                }
                if facts.flow == Flow::Next {
                    continue;
                }
                let next = events.peek().filter(|next| next.kind == Kind::BLOCK);
                let Some(target) = next.and_then(|next| window.code.block(next.index).first()) else {
                    continue;
                };
                let branch = Branch {
                    next: facts.next,
                    target: target.address,
                    is_conditional: facts.flow == Flow::Conditional,
                };
                let has_choice =
                    matches!(facts.flow, Flow::Conditional | Flow::IndirectJump | Flow::IndirectCall);
                if has_choice && !self.predictor.foresees(branch) {
                    schedule.wait(done + MISPREDICTED);
                } else if branch.target != branch.next {
                    schedule.next_cycle();
                }
            }
        }
        self.footprint.learn(self.data.lines.keys());
        let bounds = self.data.bounds(&machine, schedule.floats);
        let end = schedule.end().max(schedule.divides);
        let cycles = bounds.into_iter().fold(f64::from(end), f64::max);
        let waiting = (f64::from(self.data.far * self.data.memory.far) / cycles.max(1.0)).min(1.0);
        Duration { ns: cycles / machine.clock, waiting }
    }

    /// Where the instructions of a block lie in `facts`.
    fn block(&mut self, window: &WindowView<'_>, index: u32) -> Range<usize> {
        let place = self.blocks.insert(index.into()) as usize;
        if place >= self.ranges.len() {
            let start = self.facts.len();
            let records = window.code.block(index).iter();
            let (known, machine) = (&mut self.known, &self.machine);
            self.facts.extend(records.map(|it| *known.entry(*it).or_insert_with(|| Facts::of(it, machine))));
            self.ranges.push(start..self.facts.len());
        }
        self.ranges.get(place).cloned().unwrap_or_default()
    }
}

/// What is needed of a static instruction.
#[derive(Debug, Clone, Copy)]
struct Facts {
    /// Registers that it reads, but for addresses.
    reads: u64,
    /// Registers of addresses.
    bases: u64,
    writes: u64,
    /// Cycles from its inputs to its result, beside those of a load.
    latency: u32,
    /// Cycles for which it takes the divider.
    divides: u32,
    /// Cycles for which nothing else is started.
    holds: u32,
    is_float: bool,
    is_string: bool,
    flow: Flow,
    /// Address of what follows it.
    next: u64,
}

impl Facts {
    fn of(record: &InstructionRecord, machine: &Machine) -> Facts {
        /// The stack pointer: a processor knows it after pushes and calls without waiting.
        const STACK: u64 = 1 << 4;
        let instruction = Instruction::classify(record);
        let decoded = Decoder::with_ip(64, record.code(), record.address, DecoderOptions::NONE).decode();
        let bit = |register| Instruction::register_bit(register).map_or(0, |bit| 1_u64 << bit);
        let operands = (0..decoded.op_count()).map(|operand| bit(decoded.op_register(operand)));
        let operands = operands.fold(0, |all, bit| all | bit);
        let mut bases = match instruction.loads || instruction.stores {
            true => bit(decoded.memory_base()) | bit(decoded.memory_index()),
            false => 0,
        };
        let mut reads = instruction.reads & (!bases | operands);
        let mut writes = instruction.writes;
        if matches!(instruction.class, Class::Stack | Class::Call | Class::Return) {
            bases &= !STACK;
            reads &= !STACK;
            writes &= !STACK;
        }
        let name = format!("{:?}", decoded.mnemonic());
        let name = name.strip_prefix('V').unwrap_or(&name);
        let (latency, divides) = cost(&decoded, &instruction, name, machine);
        let holds = match decoded.mnemonic() {
            Mnemonic::Pause => machine.pause,
            Mnemonic::Rdtsc | Mnemonic::Rdtscp => machine.timestamp,
            _ => 0.0,
        };
        Facts {
            reads,
            bases,
            writes,
            latency,
            divides,
            holds: holds.round() as u32,
            is_float: is_float(name) && !name.starts_with("Mov"),
            is_string: instruction.class == Class::String,
            flow: instruction.flow,
            next: record.address.wrapping_add(u64::from(record.length)),
        }
    }
}

fn is_float(name: &str) -> bool {
    ["ps", "pd", "ss", "sd"].iter().any(|suffix| name.ends_with(suffix))
}

/// Latency beside that of a load, and how long the divider is taken, in cycles. `name` is the
/// mnemonic's, without a leading V.
fn cost(
    decoded: &iced_x86::Instruction,
    instruction: &Instruction,
    name: &str,
    machine: &Machine,
) -> (u32, u32) {
    let is_any = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let touches_memory = instruction.loads || instruction.stores;
    let is_copy =
        (touches_memory && is_any(&["Mov"])) || matches!(name, "Mov" | "Movaps" | "Movapd" | "Movdqa");
    if matches!(decoded.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
        (14, 6)
    } else if (is_float(name) && is_any(&["Div", "Sqrt"])) || is_any(&["Fdiv", "Fidiv", "Fsqrt"]) {
        (13, 4)
    } else if decoded.has_lock_prefix() || (name == "Xchg" && touches_memory) {
        (18, 0)
    } else if is_copy || (instruction.class == Class::Stack && instruction.flow == Flow::Next) {
        (0, 0)
    } else if (is_float(name) && is_any(&["Add", "Sub"])) || is_any(&["Ucomi", "Comi", "Fadd", "Fsub"]) {
        (machine.add.round() as u32, 0)
    } else if (is_float(name) && is_any(&["Mul", "Fm", "Fnm", "Min", "Max", "Hadd", "Round"]))
        || is_any(&["Cvt", "Aes", "Sha", "Pmul", "Pmadd", "Fmul"])
    {
        (machine.multiply.round() as u32, 0)
    } else if is_any(&[
        "Imul", "Mul", "Pclmul", "Crc32", "Popcnt", "Pdep", "Pext", "Lzcnt", "Tzcnt", "Bsf", "Bsr",
        "Pmovmsk", "Movmsk",
    ]) {
        (3, 0)
    } else {
        (1, 0)
    }
}

/// The window's data: which lines are there, and when.
#[derive(Debug, Clone, Default)]
struct Data {
    memory: Memory,
    /// Cycles from an address to the value, in the first-level cache; and from a store's value to a
    /// load of it.
    load: u32,
    forward: u32,
    lines: Table,
    /// When each of `lines` is there, and whether it was stored to.
    arrivals: Vec<(u32, bool)>,
    /// Words that were stored to.
    words: Table,
    /// When the value of each of `words` is there.
    stores: Vec<u32>,
    /// Static instructions that made accesses.
    sites: Table,
    /// For each of `sites`: last address, and the step to it.
    steps: Vec<(u64, u64)>,
    /// Loads of up to 8 bytes, wider ones, stores, lines that are loaded from only, and others.
    counts: [u32; 5],
    /// Lines that no prefetcher foresees.
    far: u32,
}

impl Data {
    fn clear(&mut self, machine: &Machine, memory: Memory) {
        let Data { lines, arrivals, words, stores, sites, steps, counts, .. } = self;
        self.memory = memory;
        (self.load, self.forward) = (machine.load.round() as u32, machine.forward.round() as u32);
        lines.clear();
        arrivals.clear();
        words.clear();
        stores.clear();
        sites.clear();
        steps.clear();
        *counts = [0; 5];
        self.far = 0;
    }

    /// When an access whose address is known at `addressed` has its value.
    fn touch(&mut self, access: &Event, addressed: u32) -> u32 {
        let [loads, wide_loads, stores, lines, stored_lines] = &mut self.counts;
        *match (access.kind.is_store(), access.size > 8) {
            (true, _) => stores,
            (false, true) => wide_loads,
            (false, false) => loads,
        } += 1;
        let site = self.sites.insert(access.index.into()) as usize;
        if site >= self.steps.len() {
            self.steps.push((access.value, 0));
        }
        let Some((address, last_step)) = self.steps.get_mut(site) else { return addressed };
        let (step, new_step) = (*last_step, access.value.wrapping_sub(*address));
        (*address, *last_step) = (access.value, new_step);
        let line = access.value >> 6;
        let place = self.lines.insert(line) as usize;
        if place >= self.arrivals.len() {
            *lines += 1;
            let is_steady = step == new_step && (new_step as i64).unsigned_abs() < PREFETCHED && step != 0;
            let has = |offset: i64| self.lines.get(line.wrapping_add_signed(offset)).is_some();
            let is_near = is_steady || [-1, 1, -2].into_iter().any(has);
            self.far += u32::from(!is_near);
            let latency = if is_near { self.memory.near } else { self.memory.far };
            self.arrivals.push((addressed + self.load + latency, false));
        }
        let Some((arrival, is_stored)) = self.arrivals.get_mut(place) else { return addressed };
        if access.kind.is_store() && !std::mem::replace(is_stored, true) {
            *lines -= 1;
            *stored_lines += 1;
        }
        let stored = self.words.get(access.value >> 3).and_then(|word| self.stores.get(word as usize));
        (addressed + self.load).max(*arrival).max(stored.map_or(0, |at| at + self.forward))
    }

    fn store(&mut self, address: u64, done: u32) {
        let word = self.words.insert(address >> 3) as usize;
        match self.stores.get_mut(word) {
            Some(at) => *at = done,
            None => self.stores.push(done),
        }
    }

    /// Cycles that each kind of unit needs at least.
    fn bounds(&self, machine: &Machine, floats: u32) -> [f64; 4] {
        let [loads, wide_loads, stores, lines, stored_lines] = self.counts.map(f64::from);
        [
            loads / machine.loads + wide_loads / machine.wide_loads,
            stores / machine.stores,
            f64::from(floats) / machine.floats,
            lines * self.memory.between + stored_lines * self.memory.stored,
        ]
    }
}

/// Which cycle it is, and what is under way.
#[derive(Debug, Clone)]
struct Schedule {
    /// Instructions that are started in a cycle, at most.
    width: u32,
    cycle: u32,
    /// Instructions started in this cycle.
    started: u32,
    /// When each register's value is there.
    registers: [u32; 64],
    /// When each of the last instructions and all before it are done.
    retired: [u32; REORDER],
    /// Place of the next one in `retired`.
    next: usize,
    /// When all so far are done.
    all_done: u32,
    /// Cycles that the divider is taken.
    divides: u32,
    /// Instructions of floating point.
    floats: u32,
}

impl Schedule {
    fn new(width: u32) -> Self {
        Schedule {
            width,
            cycle: 0,
            started: 0,
            registers: [0; 64],
            retired: [0; REORDER],
            next: 0,
            all_done: 0,
            divides: 0,
            floats: 0,
        }
    }

    /// The next instruction comes in.
    fn dispatch(&mut self) {
        if self.started >= self.width {
            self.next_cycle();
        }
        self.wait(self.retired.get(self.next).copied().unwrap_or(0));
        self.started += 1;
    }

    fn next_cycle(&mut self) {
        self.wait(self.cycle + 1);
    }

    fn wait(&mut self, cycle: u32) {
        if cycle > self.cycle {
            (self.cycle, self.started) = (cycle, 0);
        }
    }

    /// When all of these registers are there.
    fn ready(&self, registers: u64) -> u32 {
        let each = Bits(registers).filter_map(|bit| self.registers.get(bit));
        each.fold(self.cycle, |latest, at| latest.max(*at))
    }

    /// When the instruction is done whose loads are there at `loaded`; `touched`: its accesses.
    fn execute(&mut self, facts: &Facts, loaded: u32, touched: u32) -> u32 {
        let start = self.ready(facts.reads).max(loaded);
        self.divides += facts.divides;
        self.floats += u32::from(facts.is_float);
        let string = if facts.is_string { STRING.0 + touched / STRING.1 } else { 0 };
        let done = start + facts.latency + string;
        for bit in Bits(facts.writes) {
            if let Some(at) = self.registers.get_mut(bit) {
                *at = done;
            }
        }
        self.all_done = self.all_done.max(done);
        if let Some(retired) = self.retired.get_mut(self.next) {
            *retired = self.all_done;
        }
        self.next = (self.next + 1) % REORDER;
        done
    }

    fn end(&self) -> u32 {
        self.all_done.max(self.cycle)
    }
}

/// The positions of the bits that are set.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    }
}

#[cfg(test)]
mod tests {
    use locality_stream::{Code, NO_INSTRUCTION};

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
    fn lines_that_are_far_are_waited_for_one_after_the_other_or_together() {
        // One window alone: nothing is known of the footprint, so its lines are taken to be in the
        // nearest cache.
        let machine = Machine::default();
        let far = Footprint::default().memory(&machine).far;
        let load = machine.load as u32;
        let mut data = Data::default();
        data.clear(&machine, Memory { near: 1, far: 100, between: 2.0, stored: 3.0 });
        let access = |address| Event::access(Kind::LOAD, NO_INSTRUCTION, address, 8);
        assert_eq!((far, data.touch(&access(0x10_0000), 7)), (0, 7 + load + 100));
        // The same line is not there earlier, and its neighbour was foreseen.
        assert_eq!(data.touch(&access(0x10_0008), 7), 7 + load + 100);
        assert_eq!(data.touch(&access(0x10_0040), 200), 200 + load + 1);
        assert_eq!(data.touch(&access(0x90_0000), 200), 200 + load + 100);
        assert_eq!(data.counts, [4, 0, 0, 3, 0]);
        // A line that is stored to, however often, goes back once; another one comes to be stored to.
        let store = |address| Event::access(Kind::STORE, NO_INSTRUCTION, address, 8);
        for address in [0x10_0000, 0x10_0008, 0x20_0000] {
            data.touch(&store(address), 300);
        }
        assert_eq!(data.counts, [4, 0, 3, 2, 2]);
        assert_eq!(data.bounds(&machine, 0)[3], 2.0 * 2.0 + 2.0 * 3.0);
    }

    #[test]
    fn footprints_follow_from_lines_that_come_again() {
        let mut random = fastrand::Rng::with_seed(4);
        let levels = Machine::default().levels;
        for (lines, latency) in [(300_u64, 0.0), (20_000, levels[0].latency), (100_000, levels[1].latency)] {
            let mut footprint = Footprint::default();
            for _ in 0..100 {
                let window: HashSet<u64> = (0..200).map(|_| random.u64(0..lines)).collect();
                footprint.learn(&window.into_iter().collect::<Vec<_>>());
            }
            let found = footprint.pairs / footprint.again;
            assert!((0.8..1.25).contains(&(found / lines as f64)), "{lines}: {found}");
            assert_eq!(f64::from(footprint.memory(&Machine::default()).far), latency);
        }
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
