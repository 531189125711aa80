//! Synthetic programs in closed form: nests of loops whose state at any access can be computed, so
//! that readings millions of accesses apart cost nothing, and whose true rate at any moment is
//! known.
#![expect(clippy::unwrap_used, reason = "helper functions of tests")]

use fastrand::Rng;
use locality_rate::{Moment, Reading, Sample, Wanted, WindowView};
use locality_stream::{BlockRecord, Code, Event, InstructionRecord, Kind};

/// What a loop does at the begin of each iteration, besides the loops within.
#[derive(Debug, Clone)]
pub struct Level {
    /// Iterations until the loop ends and the one around it goes on; of the outermost without end.
    pub trips: u64,
    /// Accesses of its block, at least one for each word that it keeps.
    pub accesses: u64,
    /// Instructions of its block.
    pub instructions: u64,
}

/// How a variable follows the iterations of its level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// From 0 again each time that the loop is entered.
    Index,
    /// Never goes back.
    Running,
    /// Never goes back, and stands still during the second half of each stretch of so many iterations.
    Bursts(u64),
    /// A hash: no progress to be seen.
    Random,
}

/// A register or a word.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    pub level: usize,
    pub shape: Shape,
    pub stride: u64,
    /// Register number, or the address of a word.
    pub place: Place,
}

#[derive(Debug, Clone, Copy)]
pub enum Place {
    Register(usize),
    Word { address: u64, bits: u32 },
}

/// A program: outermost loop first.
#[derive(Debug, Clone)]
pub struct Program {
    pub levels: Vec<Level>,
    pub variables: Vec<Variable>,
    /// (accesses, ns per access): phases that repeat in this order.
    pub phases: Vec<(u64, f64)>,
}

/// Where execution stands: iterations of each level so far in all, and which level's block is being executed.
struct Position {
    iterations: Vec<u64>,
    level: usize,
    /// Accesses of the block done.
    within: u64,
}

fn hash(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

impl Program {
    /// Accesses of one iteration of a level.
    fn size(&self, level: usize) -> u64 {
        let inner = self.levels.get(level + 1).map_or(0, |inner| inner.trips * self.size(level + 1));
        self.levels[level].accesses + inner
    }

    fn position(&self, access: u64) -> Position {
        let mut rest = access;
        let mut iterations = Vec::new();
        for level in 0..self.levels.len() {
            let number = rest / self.size(level);
            rest %= self.size(level);
            let before = iterations.last().map_or(0, |outer: &u64| outer * self.levels[level].trips);
            iterations.push(before + number);
            let accesses = self.levels[level].accesses;
            if rest < accesses {
                // Inner loops of this iteration have not begun: their totals are those of the
                // iterations before.
                for inner in level + 1..self.levels.len() {
                    let outer = iterations[inner - 1];
                    // −1 stands for: the last iteration of the previous round.
                    iterations.push((outer * self.levels[inner].trips).saturating_sub(1));
                }
                return Position { iterations, level, within: rest };
            }
            rest -= accesses;
        }
        unreachable!("every access belongs to a block")
    }

    fn value(&self, variable: &Variable, position: &Position) -> u64 {
        let n = position.iterations[variable.level];
        let base = 0x10_0000 * (1 + variable.level as u64);
        match variable.shape {
            Shape::Index => (n % self.levels[variable.level].trips) * variable.stride,
            Shape::Running => base + n * variable.stride,
            Shape::Bursts(length) => {
                base + (n / length * (length / 2) + (n % length).min(length / 2)) * variable.stride
            }
            Shape::Random => hash(n ^ base),
        }
    }

    /// The variable's value before the current iteration's update.
    fn value_before(&self, variable: &Variable, position: &Position) -> u64 {
        let mut earlier = position.iterations.clone();
        earlier[variable.level] = earlier[variable.level].saturating_sub(1);
        self.value(variable, &Position { iterations: earlier, level: position.level, within: 0 })
    }

    fn registers(&self, position: &Position) -> [u64; 16] {
        let mut registers = [0x7fff_0000; 16];
        for variable in &self.variables {
            if let Place::Register(number) = variable.place {
                registers[number] = self.value(variable, position);
            }
        }
        registers
    }

    /// Where a trap of an access finds the thread: behind the first instruction of its block.
    pub fn moment(&self, access: u64) -> Moment {
        let position = self.position(access);
        Moment { ip: Program::block_start(position.level) + 1, registers: self.registers(&position) }
    }

    fn block_start(level: usize) -> u64 {
        0x40_1000 + 0x40 * level as u64
    }

    /// CPU time at which an access is made.
    pub fn time(&self, access: u64) -> f64 {
        let length: u64 = self.phases.iter().map(|phase| phase.0).sum();
        let round: f64 = self.phases.iter().map(|phase| phase.0 as f64 * phase.1).sum();
        let mut time = (access / length) as f64 * round;
        let mut rest = access % length;
        for (accesses, ns) in &self.phases {
            let here = rest.min(*accesses);
            time += here as f64 * ns;
            rest -= here;
        }
        time
    }

    /// The access that is made at a CPU time.
    pub fn access_at(&self, time: f64) -> u64 {
        let length: u64 = self.phases.iter().map(|phase| phase.0).sum();
        let round: f64 = self.phases.iter().map(|phase| phase.0 as f64 * phase.1).sum();
        let mut access = (time / round) as u64 * length;
        let mut rest = time % round;
        for (accesses, ns) in &self.phases {
            let here = rest.min(*accesses as f64 * ns);
            access += (here / ns) as u64;
            rest -= here;
        }
        access
    }
}

/// What belongs to a window.
#[derive(Debug, Default)]
pub struct Window {
    pub events: Vec<Event>,
    pub values: Vec<u64>,
    pub registers: Vec<[u64; 16]>,
    pub instructions_table: Vec<InstructionRecord>,
    pub blocks: Vec<BlockRecord>,
    pub instructions: u64,
    pub accesses: u64,
}

impl Window {
    pub fn view(&self) -> WindowView<'_> {
        WindowView {
            events: &self.events,
            values: &self.values,
            registers: &self.registers,
            code: Code { instructions: &self.instructions_table, blocks: &self.blocks },
            instructions: self.instructions,
            accesses: self.accesses,
        }
    }
}

/// The window of so many instructions that begins at an access.
pub fn window(program: &Program, access: u64, instructions: u64) -> Window {
    let mut window = Window::default();
    for (level, facts) in program.levels.iter().enumerate() {
        let first = window.instructions_table.len() as u32;
        for n in 0..facts.instructions {
            let address = Program::block_start(level) + n;
            window.instructions_table.push(InstructionRecord::new(address, &[0x90]));
        }
        window.blocks.push(BlockRecord { first, count: facts.instructions as u32 });
    }
    let mut access = access;
    while window.instructions < instructions {
        let position = program.position(access);
        let (level, facts) = (position.level, &program.levels[position.level]);
        window.events.push(Event::new(Kind::BLOCK, level as u32, 0));
        window.registers.push(program.registers(&position));
        let first = window.blocks[level].first;
        let mut made = position.within;
        let mut push = |kind: Kind, address: u64, bytes: u16, value: u64| {
            if made < facts.accesses {
                window.events.push(Event::access(kind, first, address, bytes));
                window.values.push(value);
                made += 1;
            }
        };
        for variable in program.variables.iter().filter(|variable| variable.level == level) {
            if let Place::Word { address, bits } = variable.place {
                let mask = if bits == 32 { 0xffff_ffff } else { u64::MAX };
                let (before, now) =
                    (program.value_before(variable, &position), program.value(variable, &position));
                push(Kind::LOAD, address, (bits / 8) as u16, before & mask);
                push(Kind::STORE, address, (bits / 8) as u16, now & mask);
            }
        }
        for n in made..facts.accesses {
            let address = 0x7000_0000 + (access + n) % 0x10_0000 * 8;
            window.events.push(Event::access(Kind::LOAD, first, address, 8));
            window.values.push(hash(n));
        }
        window.instructions += facts.instructions;
        access += facts.accesses - position.within;
    }
    window.accesses = window.values.len() as u64;
    window
}

/// How readings are taken.
#[derive(Debug, Clone)]
pub struct Sampler {
    pub rng: Rng,
    /// Readings before the stop.
    pub readings: usize,
    pub shortest_ns: u64,
    pub longest_ns: u64,
    /// Cost of a tick, which the program's clock does not see.
    pub tick_ns: f64,
    /// Probability of a context switch in an interval.
    pub preempted: f64,
    /// Standard deviation of a reading's time.
    pub jitter_ns: f64,
}

/// A sample as taken: readings, window, the truth.
#[derive(Debug)]
pub struct Taken {
    pub readings: Vec<Reading>,
    pub window: Window,
    /// Accesses per nanosecond of CPU time over the readings.
    pub rate: f64,
}

impl Taken {
    pub fn sample(&self) -> Sample<'_> {
        Sample { thread: 1, readings: &self.readings, window: Some(self.window.view()) }
    }
}

impl Sampler {
    pub fn new(seed: u64) -> Sampler {
        Sampler {
            rng: Rng::with_seed(seed),
            readings: 8,
            shortest_ns: 250_000,
            longest_ns: 1_000_000,
            tick_ns: 15_000.0,
            preempted: 0.05,
            jitter_ns: 500.0,
        }
    }

    /// One sample, the stop at CPU time `stop`.
    pub fn take(&mut self, program: &Program, stop: f64, wanted: Wanted, instructions: u64) -> Taken {
        let gaps: Vec<f64> = (0..self.readings)
            .map(|_| (self.shortest_ns + self.rng.u64(0..=self.longest_ns - self.shortest_ns)) as f64)
            .collect();
        let mut cpu = stop - gaps.iter().sum::<f64>();
        let first = program.access_at(cpu);
        let (mut wall, mut switches) = (1e9 + self.rng.f64() * 1e9, 100);
        let mut readings = Vec::new();
        for at in 0..=self.readings {
            let access = program.access_at(cpu);
            let position = program.position(access);
            let mut reading = Reading {
                time_ns: (wall + (self.rng.f64() - 0.5) * self.jitter_ns * 3.4) as u64,
                switches,
                ip: Program::block_start(position.level)
                    + self.rng.u64(0..program.levels[position.level].instructions),
                registers: program.registers(&position),
                wanted: wanted.number,
                ..Reading::default()
            };
            for (slot, address) in wanted.addresses.iter().enumerate().filter(|(_, address)| **address != 0) {
                reading.read |= 1 << slot;
                for variable in &program.variables {
                    if let Place::Word { address: word, bits } = variable.place
                        && word & !7 == *address
                    {
                        let value = program.value(variable, &position);
                        let value = if bits == 32 { value & 0xffff_ffff } else { value };
                        reading.words[slot] |= value << ((word & 7) * 8);
                    }
                }
            }
            readings.push(reading);
            if let Some(gap) = gaps.get(at) {
                cpu += gap;
                wall += gap + self.tick_ns;
                if self.rng.f64() < self.preempted {
                    switches += 1;
                    wall += self.rng.f64() * 4e6;
                }
            }
        }
        let stop_access = program.access_at(stop);
        let window = window(program, stop_access, instructions);
        let rate = (stop_access - first) as f64 / (stop - program.time(first));
        Taken { readings, window, rate }
    }
}

/// Trips, sizes and variables at random. `progress`: whether anything tells how far it is.
pub fn random_program(rng: &mut Rng, progress: bool) -> Program {
    let depth = rng.usize(1..4);
    let log_uniform = |rng: &mut Rng, low: f64, high: f64| (low * (high / low).powf(rng.f64())) as u64;
    let mut levels: Vec<Level> = (0..depth)
        .map(|_| Level {
            trips: log_uniform(rng, 3.0, 3000.0),
            accesses: rng.u64(1..12),
            instructions: rng.u64(6..40),
        })
        .collect();
    levels[0].trips = u64::MAX >> 24;
    let mut variables = Vec::new();
    let mut free = vec![0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    rng.shuffle(&mut free);
    let mut address = 0x7ffd_0000;
    for (level, facts) in levels.iter_mut().enumerate() {
        for _ in 0..rng.usize(1..4) {
            let in_word = rng.u32(0..3) == 0;
            let shape = match rng.u32(0..8) {
                _ if !progress => Shape::Random,
                0 | 1 => Shape::Running,
                2 => Shape::Bursts(log_uniform(rng, 8.0, 2000.0)),
                3..=5 => Shape::Index,
                _ => Shape::Random,
            };
            let place = if in_word {
                let bits = if rng.bool() { 32 } else { 64 };
                address += 8 * rng.u64(1..9);
                facts.accesses += 2;
                Place::Word { address: address + if bits == 32 { 4 * rng.u64(0..2) } else { 0 }, bits }
            } else {
                Place::Register(free.pop().unwrap())
            };
            variables.push(Variable { level, shape, stride: 1 << rng.u32(0..7), place });
        }
    }
    let mut program = Program { levels, variables, phases: vec![(1, 1.0)] };
    // The innermost loop sets the pace: 0.04 to 0.12 ns an instruction, as far from the model's
    // 0.06 as real programs are.
    let inner = &program.levels[depth - 1];
    let per_access = inner.instructions as f64 / inner.accesses as f64;
    program.phases = (0..rng.usize(1..4))
        .map(|_| (log_uniform(rng, 1e7, 1e9), per_access * 0.04 * 3_f64.powf(rng.f64())))
        .collect();
    program
}
