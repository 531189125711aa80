//! Blocks as lists of places: derived once from the code, so that an execution only looks up times.
//!
//! Times of a thread lie in one array ([`PLACES`]): times of the locations of `stream::Locations`,
//! then the *early* times of general registers and flags, which induction variables have beside
//! ordinary times. Flags overwritten within the block before a read are left out.

use locality_stream::{
    By, Class, Dependences, Flow, Instruction, InstructionRecord, LatencyClass, Locations, Step, Top,
};

use crate::setup::{LOAD, Latency, Setup};

/// Places of times.
pub(crate) const PLACES: usize = 128;
/// First place of the early times.
pub(crate) const EARLY: usize = Locations::PLACES;
/// Locations with an early time: general registers, the carry, the remaining flags.
pub(crate) const WITH_EARLY: usize = 18;
const CARRY: usize = 16;
const FLAGS: usize = 17;

/// Set if the instruction may access memory.
pub(crate) const MEMORY: u8 = 1;
/// Set for a string instruction, with an execution for each iteration.
pub(crate) const STRING: u8 = 2;
/// Set if [`Op::special`] has more.
pub(crate) const SPECIAL: u8 = 4;
/// Set for an instruction without readers.
pub(crate) const IGNORED: u8 = 8;

/// Set for a move from register to register whose value keeps its origin.
pub(crate) const MOVE: u8 = 16;

/// Classes of instructions in distributions.
pub const CLASSES: [&str; 16] = [
    "move",
    "load",
    "store",
    "stack",
    "integer",
    "integer_multiply",
    "float_add",
    "float_multiply",
    "float_divide",
    "float_other",
    "vector",
    "string",
    "branch",
    "call",
    "return",
    "other",
];

/// An instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    /// Start of the instruction's places: of addresses, of data, written, merged.
    pub places: u32,
    pub special: u32,
    pub addresses: u8,
    pub data: u8,
    pub writes: u8,
    pub merges: u8,
    /// Cycles from start to result.
    pub latency: u8,
    /// Cycles of the load, before which the remaining operands are not needed.
    pub load: u8,
    pub class: u8,
    pub flags: u8,
}

/// Properties of few instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Special {
    /// An induction step; `last`: number of the block of the last execution, 0 for never; `reduces`,
    /// `used`: as of a reduction.
    Step { register: u8, by: Option<u8>, carry: bool, flags: bool, reduces: bool, used: bool, last: u32 },
    /// Registers counted from the top of the x87 stack, a moving top.
    X87 { data: Locations, whole: Locations, merged: Locations, top: Top, is_exchange: bool },
    /// A reduction, with the accumulator's place; `used`: another instruction took the last result.
    Reduction { place: u8, used: bool },
    /// Two registers changing places without taking time.
    Exchange([u8; 2]),
}

/// A block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub ops: u32,
    /// Number of instructions; 0: not known yet.
    pub count: u32,
    /// Index of the first instruction.
    pub first: u32,
    /// Position of the branch's count; `u32::MAX` for an end without a branch.
    pub branch: u32,
    pub address: u64,
    pub end: u64,
    /// Target of the branch at the block's end; 0: not known.
    pub target: u64,
    pub flow: Flow,
    /// General registers written.
    pub written: u16,
    /// General registers used in addresses or comparisons.
    pub addressed: u16,
    /// Whether the first instruction begins a region.
    pub begins: bool,
}

impl Block {
    pub const UNKNOWN: Block = Block {
        ops: 0,
        count: 0,
        first: 0,
        branch: u32::MAX,
        address: 0,
        end: 0,
        target: 0,
        flow: Flow::Next,
        written: 0,
        addressed: 0,
        begins: false,
    };
}

/// The blocks met.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    pub ops: Vec<Op>,
    pub places: Vec<u8>,
    pub specials: Vec<Special>,
}

/// Marks in recorded addresses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks {
    /// Bits outside of an address.
    pub all: u64,
    /// Instructions without readers.
    pub ignored: u64,
    /// First instructions of a region.
    pub begins: u64,
}

struct Lists {
    addresses: Vec<u8>,
    data: Vec<u8>,
    writes: Vec<u8>,
    merges: Vec<u8>,
}

impl Compiled {
    /// Compiles a block.
    pub fn add(&mut self, setup: &Setup, marks: Marks, first: u32, marked: &[InstructionRecord]) -> Block {
        let records: Vec<InstructionRecord> = marked
            .iter()
            .map(|record| InstructionRecord { address: record.address & !marks.all, ..*record })
            .collect();
        let found = Dependences::of_all(&records);
        let facts = Instruction::classify_all(&records);
        let mut block =
            Block { ops: self.ops.len() as u32, count: records.len() as u32, first, ..Block::UNKNOWN };
        for dependences in &found {
            block.written |= general(dependences.writes());
            block.addressed |= general(dependences.addresses().with(dependences.hints));
            if dependences.is_comparison {
                block.addressed |= general(dependences.data);
            }
        }
        // From the end, because writes in vain are known from the end.
        let mut lists: Vec<(Op, Lists)> = Vec::new();
        let mut needed = [true; 2];
        for ((dependences, facts), record) in found.iter().zip(&facts).zip(marked).rev() {
            let op =
                self.op(setup, dependences, facts, record.address & marks.ignored != 0, &block, &mut needed);
            lists.push(op);
        }
        for (mut op, lists) in lists.into_iter().rev() {
            op.places = self.places.len() as u32;
            for (count, list) in [
                (&mut op.addresses, &lists.addresses),
                (&mut op.data, &lists.data),
                (&mut op.writes, &lists.writes),
                (&mut op.merges, &lists.merges),
            ] {
                *count = list.len() as u8;
                self.places.extend(list);
            }
            self.ops.push(op);
        }
        if let (Some(begin), Some(last), Some(facts)) = (records.first(), records.last(), facts.last()) {
            block.address = begin.address;
            block.end = last.address.wrapping_add(u64::from(last.length));
            block.flow = facts.flow;
            block.target = if facts.flow == Flow::Conditional { target(last) } else { 0 };
        }
        block.begins = marked.first().is_some_and(|record| record.address & marks.begins != 0);
        block
    }

    fn op(
        &mut self,
        setup: &Setup,
        found: &Dependences,
        facts: &Instruction,
        ignored: bool,
        block: &Block,
        needed: &mut [bool; 2],
    ) -> (Op, Lists) {
        let view = setup.view;
        let (mut data, mut whole, mut merged) = (found.data, found.whole, found.merged);
        let mut addresses = found.addresses().with(found.hints);
        if view.copies {
            data = data.without(found.kept);
        }
        if view.stack && (found.stack != 0 || found.leaves) {
            let pointer = Locations::STACK_POINTER;
            // A step has the register among the data; for further instructions the address decides.
            if found.step.is_none() {
                data = data.without(pointer);
            }
            if found.leaves {
                addresses = addresses.without(pointer);
            }
            (whole, merged) = (whole.without(pointer), merged.without(pointer));
        }
        // Writes in vain.
        let is_free = view.copies && found.is_copy;
        let mut writes_flag = [false; 2];
        for (at, location) in [Locations::CARRY, Locations::FLAGS].into_iter().enumerate() {
            let is_needed = needed.get_mut(at);
            let Some(is_needed) = is_needed else { continue };
            let (is_whole, is_merged) = (whole.has(location), merged.has(location));
            if !*is_needed {
                (whole, merged) = (whole.without(location), merged.without(location));
            } else if let Some(writes) = writes_flag.get_mut(at) {
                *writes = is_whole || is_merged;
            }
            // Merged flags depend on the old flags only if read themselves.
            *is_needed = (*is_needed && !is_whole) || data.has(location);
        }
        let touches = found.memory.iter().any(|operand| operand.is_loaded || operand.is_stored);
        let loads = found.memory.iter().any(|operand| operand.is_loaded);
        let is_string = facts.class == Class::String;
        let mut flags = 0;
        // Undecodable bytes may access all memory.
        flags |= if touches || facts.length == 0 { MEMORY } else { 0 };
        flags |= if is_string { STRING } else { 0 };
        flags |= if ignored { IGNORED } else { 0 };
        let load = if loads && setup.latency == Latency::Machine { LOAD } else { 0 };
        let mut special = None;
        let has_x87 = found.data.with(found.writes()).has_x87() || found.top != Top::Stays;
        let is_pointer = view.stack && found.stack != 0;
        // A block writing the added register makes no steps.
        let is_step = |step: &Step| match step.by {
            By::Constant(_) => true,
            By::Register(by) => block.written & 1 << by == 0,
        };
        if has_x87 {
            let x87 = |set: Locations| {
                set.shared((0..8).fold(Locations::NONE, |all, n| all.with(Locations::x87(n))))
            };
            special = Some(Special::X87 {
                data: x87(data),
                whole: x87(whole),
                merged: x87(merged),
                top: found.top,
                is_exchange: view.copies && found.exchange.is_some(),
            });
            let others = |set: Locations| set.without(x87(set));
            (data, whole, merged) = (others(data), others(whole), others(merged));
        } else if let (true, Some([one, other])) = (view.copies, found.exchange) {
            let number = |set: Locations| set.iter().next().unwrap_or_default() as u8;
            special = Some(Special::Exchange([number(one), number(other)]));
            whole = whole.without(one).without(other);
        } else if let (true, Some(step)) = (view.induction && !is_pointer, found.step.filter(is_step)) {
            let by = match step.by {
                By::Constant(_) => None,
                By::Register(by) => Some(by),
            };
            let [carry, others] = writes_flag;
            let reduces = view.reductions && !found.reduces.is_empty();
            special = Some(Special::Step {
                register: step.register,
                by,
                carry,
                flags: others,
                reduces,
                used: false,
                last: 0,
            });
            (data, whole, merged) = (Locations::NONE, Locations::NONE, Locations::NONE);
            addresses = Locations::NONE;
        } else if let (true, Some(place)) = (view.reductions && !is_pointer, found.reduces.iter().next()) {
            special = Some(Special::Reduction { place: place as u8, used: false });
            (data, whole) = (data.without(found.reduces), whole.without(found.reduces));
        }
        let is_single = |set: Locations| set.iter().count() == 1;
        let moves = view.copies && found.is_copy && !touches && special.is_none();
        if moves && is_single(data) && is_single(whole) && merged.is_empty() {
            flags |= MOVE;
        }
        let jumps = matches!(facts.flow, Flow::Conditional | Flow::IndirectJump | Flow::IndirectCall);
        let is_early = view.induction && (found.is_comparison || jumps);
        let early = |set: Locations, is_early: bool| -> Vec<u8> {
            set.iter().map(|at| (if is_early && at < WITH_EARLY { EARLY + at } else { at }) as u8).collect()
        };
        let both = |set: Locations| -> Vec<u8> {
            let twice = set.iter().filter(|at| view.induction && *at < WITH_EARLY).map(|at| EARLY + at);
            set.iter().chain(twice).map(|at| at as u8).collect()
        };
        let lists = Lists {
            addresses: early(addresses, view.induction),
            data: early(data, is_early),
            writes: both(whole),
            merges: both(merged),
        };
        let op = Op {
            places: 0,
            special: self.specials.len() as u32,
            addresses: 0,
            data: 0,
            writes: 0,
            merges: 0,
            latency: load + setup.latency.cycles(found.latency, is_free),
            load,
            class: class(facts, found),
            flags: flags | if special.is_some() { SPECIAL } else { 0 },
        };
        self.specials.extend(special);
        (op, lists)
    }
}

/// General registers as a set of bits.
fn general(set: Locations) -> u16 {
    set.iter().take_while(|at| *at < CARRY).fold(0, |all, at| all | 1 << at)
}

/// Places of the flags, ordinary and early.
pub(crate) const CARRY_PLACES: [usize; 2] = [CARRY, EARLY + CARRY];
pub(crate) const FLAGS_PLACES: [usize; 2] = [FLAGS, EARLY + FLAGS];

/// Target of a conditional branch.
fn target(record: &InstructionRecord) -> u64 {
    let code = record.code();
    let end = record.address.wrapping_add(code.len() as u64);
    let opcode: Vec<u8> = code
        .iter()
        .copied()
        .filter(|byte| !matches!(byte, 0x2e | 0x3e | 0x66 | 0x67 | 0xf2 | 0xf3))
        .collect();
    let by = match (opcode.as_slice(), code) {
        ([0x0f, ..], [.., a, b, c, d]) => i64::from(i32::from_le_bytes([*a, *b, *c, *d])),
        (_, [.., last]) => i64::from(*last as i8),
        _ => return 0,
    };
    end.wrapping_add_signed(by)
}

/// The instruction's number among [`CLASSES`].
fn class(facts: &Instruction, found: &Dependences) -> u8 {
    match facts.class {
        Class::Move if facts.stores => 2,
        Class::Move if facts.loads => 1,
        Class::Move => 0,
        Class::Stack => 3,
        Class::Integer => 4,
        Class::IntegerMultiply => 5,
        Class::Float => match found.latency {
            LatencyClass::FpAdd => 6,
            LatencyClass::FpMultiply | LatencyClass::FpSum | LatencyClass::FpMultiplyAdd => 7,
            LatencyClass::FpDivide => 8,
            LatencyClass::Load => 1,
            LatencyClass::Store => 2,
            _ => 9,
        },
        Class::Vector if found.latency == LatencyClass::Load => 1,
        Class::Vector if found.latency == LatencyClass::Store => 2,
        Class::Vector => 10,
        Class::String => 11,
        Class::Branch => 12,
        Class::Call => 13,
        Class::Return => 14,
        Class::SystemCall | Class::Other => 15,
    }
}
