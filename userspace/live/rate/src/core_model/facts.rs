//! What a schedule needs of a static instruction: registers, latency, units.

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use locality_stream::{Class, Flow, Instruction, InstructionRecord};

use crate::core_limits::Machine;

/// What an instruction's latency is due to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Latency {
    /// Integer operations, of vectors also.
    Integer,
    /// Additions of floating point, and what takes their place in a sum: a maximum, a comparison, a
    /// multiplication whose product is added to the destination.
    FloatAdd,
    /// Other multiplications of floating point.
    FloatMultiply,
    /// Divisions and square roots.
    Divide,
    /// Copies, atomic operations, string instructions.
    Other,
}

/// How an address is formed: by what, but for the registers' values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// Base, index, scale; 0: nothing is known.
    pub registers: u32,
    /// Of the stack pointer always 0: processors follow its steps.
    pub displacement: i64,
}

/// What is needed of a static instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Registers that it reads, but for addresses.
    pub reads: u64,
    /// The register that its address begins with.
    pub base: u64,
    /// The register that its address counts with.
    pub index: u64,
    /// How its address is formed.
    pub form: Form,
    pub writes: u64,
    /// Cycles from its inputs to its result, beside those of a load.
    pub latency: u32,
    /// What these are due to.
    pub kind: Latency,
    /// Cycles for which it takes the divider.
    pub divides: u32,
    /// Cycles for which nothing else is started.
    pub holds: u32,
    pub is_float: bool,
    /// Whether it takes an integer unit.
    pub is_integer: bool,
    /// Whether a conditional branch right behind it becomes one operation with it.
    pub fuses: bool,
    /// Whether it is such a branch: it takes no unit and no place of its own. Of a block's facts only.
    pub is_fused: bool,
    pub is_string: bool,
    /// Whether it moves the stack pointer by a constant, beside pushes and calls.
    pub steps_stack: bool,
    /// Whether its result is its input, or at a constant distance: a copy, a step, a scaled index.
    pub passes: bool,
    pub flow: Flow,
    /// Address of what follows it.
    pub next: u64,
}

impl Facts {
    pub fn of(record: &InstructionRecord, machine: &Machine) -> Facts {
        /// The stack pointer: a processor knows it after pushes and calls without waiting.
        const STACK: u64 = 1 << 4;
        let instruction = Instruction::classify(record);
        let decoded = Decoder::with_ip(64, record.code(), record.address, DecoderOptions::NONE).decode();
        let bit = |register| Instruction::register_bit(register).map_or(0, |bit| 1_u64 << bit);
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(&decoded);
        let is_read = |operand: &u32| !matches!(info.op_access(*operand), OpAccess::Write | OpAccess::None);
        let operands =
            (0..decoded.op_count()).filter(is_read).map(|operand| bit(decoded.op_register(operand)));
        let operands = operands.fold(0, |all, bit| all | bit);
        let (mut base, mut index) = match instruction.loads || instruction.stores {
            true => (bit(decoded.memory_base()), bit(decoded.memory_index())),
            false => (0, 0),
        };
        let mut reads = instruction.reads & (!(base | index) | operands);
        let mut writes = instruction.writes;
        if matches!(instruction.class, Class::Stack | Class::Call | Class::Return) {
            base &= !STACK;
            index &= !STACK;
            reads &= !STACK;
            writes &= !STACK;
        }
        let name = name(decoded.mnemonic());
        let (latency, divides, kind) = cost(&decoded, &instruction, &name, machine);
        let holds = match decoded.mnemonic() {
            Mnemonic::Pause => machine.pause,
            Mnemonic::Rdtsc | Mnemonic::Rdtscp => machine.timestamp,
            _ => 0.0,
        };
        let is_computed = matches!(instruction.class, Class::Integer | Class::IntegerMultiply);
        let is_lea = decoded.mnemonic() == Mnemonic::Lea;
        Facts {
            reads,
            base,
            index,
            form: form(&decoded, &instruction),
            writes,
            latency,
            kind,
            divides,
            holds: holds.round() as u32,
            is_float: is_float(&name) && !name.starts_with("Mov"),
            is_integer: is_computed || is_lea || instruction.flow == Flow::Conditional,
            fuses: matches!(
                decoded.mnemonic(),
                Mnemonic::Cmp
                    | Mnemonic::Test
                    | Mnemonic::And
                    | Mnemonic::Add
                    | Mnemonic::Sub
                    | Mnemonic::Inc
                    | Mnemonic::Dec
            ),
            is_fused: false,
            is_string: instruction.class == Class::String,
            steps_stack: matches!(decoded.mnemonic(), Mnemonic::Add | Mnemonic::Sub | Mnemonic::Lea)
                && passes(&decoded, &instruction)
                && writes & !(1 << 16) == STACK,
            passes: passes(&decoded, &instruction),
            flow: instruction.flow,
            next: record.address.wrapping_add(u64::from(record.length)),
        }
    }

    /// Whether it takes an integer unit of its own.
    pub fn takes_integer_unit(&self) -> bool {
        self.is_integer && !self.is_float && !self.is_fused
    }

    /// Registers of addresses.
    pub fn bases(&self) -> u64 {
        self.base | self.index
    }
}

/// See [`Facts::form`].
fn form(decoded: &iced_x86::Instruction, instruction: &Instruction) -> Form {
    if matches!(instruction.class, Class::Stack | Class::Call | Class::Return) {
        return Form { registers: 1 + Register::RSP as u32, displacement: 0 };
    }
    if !(0..decoded.op_count()).any(|operand| decoded.op_kind(operand) == OpKind::Memory) {
        return Form::default();
    }
    let [base, index] = [decoded.memory_base(), decoded.memory_index()].map(|register| register as u32);
    let registers = 1 + base + (index << 10) + (decoded.memory_index_scale() << 20);
    let is_of_stack = decoded.memory_base() == Register::RSP && decoded.memory_index() == Register::None;
    let displacement = if is_of_stack { 0 } else { decoded.memory_displacement64() as i64 };
    let registers = if is_of_stack { 1 + Register::RSP as u32 } else { registers };
    Form { registers, displacement }
}

/// See [`Facts::passes`].
fn passes(decoded: &iced_x86::Instruction, instruction: &Instruction) -> bool {
    let last = decoded.op_count().checked_sub(1).map(|operand| decoded.op_kind(operand));
    let by_constant = matches!(
        last,
        Some(
            OpKind::Immediate8
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        )
    );
    match decoded.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Shl | Mnemonic::And | Mnemonic::Imul => {
            by_constant && !instruction.loads
        }
        Mnemonic::Inc | Mnemonic::Dec => !instruction.loads,
        _ => instruction.class == Class::Move || decoded.mnemonic() == Mnemonic::Pop,
    }
}

/// A mnemonic's name, of an instruction for vectors that of the older one which does the same
/// without VEX or EVEX prefix: `Addsd` for `Vaddsd`.
fn name(mnemonic: Mnemonic) -> String {
    let name = format!("{mnemonic:?}");
    let mut letters = name.strip_prefix('V').unwrap_or_default().chars();
    match letters.next() {
        Some(first) => first.to_ascii_uppercase().to_string() + letters.as_str(),
        None => name,
    }
}

fn is_float(name: &str) -> bool {
    ["ps", "pd", "ss", "sd"].iter().any(|suffix| name.ends_with(suffix))
}

/// Latency beside that of a load, how long the divider is taken, in cycles, and what the latency is
/// due to. `name` is the mnemonic's, without a leading V.
fn cost(
    decoded: &iced_x86::Instruction,
    instruction: &Instruction,
    name: &str,
    machine: &Machine,
) -> (u32, u32, Latency) {
    let is_any = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let touches_memory = instruction.loads || instruction.stores;
    let is_copy =
        (touches_memory && is_any(&["Mov"])) || matches!(name, "Mov" | "Movaps" | "Movapd" | "Movdqa");
    let multiply = machine.multiply.round() as u32;
    if matches!(decoded.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
        (14, 6, Latency::Divide)
    } else if (is_float(name) && is_any(&["Div", "Sqrt"])) || is_any(&["Fdiv", "Fidiv", "Fsqrt"]) {
        (13, 4, Latency::Divide)
    } else if decoded.has_lock_prefix() || (name == "Xchg" && touches_memory) {
        (18, 0, Latency::Other)
    } else if is_copy || (instruction.class == Class::Stack && instruction.flow == Flow::Next) {
        (0, 0, Latency::Other)
    } else if (is_float(name) && is_any(&["Add", "Sub"])) || is_any(&["Ucomi", "Comi", "Fadd", "Fsub"]) {
        (machine.add.round() as u32, 0, Latency::FloatAdd)
    } else if is_float(name) && is_any(&["Fm", "Fnm"]) {
        // `231`: the product is added to the destination.
        let kind = if name.contains("231") { Latency::FloatAdd } else { Latency::FloatMultiply };
        (multiply, 0, kind)
    } else if is_float(name) && is_any(&["Min", "Max", "Hadd", "Round"]) {
        (multiply, 0, Latency::FloatAdd)
    } else if (is_float(name) && is_any(&["Mul"])) || is_any(&["Fmul"]) {
        (multiply, 0, Latency::FloatMultiply)
    } else if is_any(&["Cvt"]) {
        (multiply, 0, Latency::FloatAdd)
    } else if is_any(&["Aes", "Sha", "Pmul", "Pmadd"]) {
        (multiply, 0, Latency::Integer)
    } else if is_any(&[
        "Imul", "Mul", "Pclmul", "Crc32", "Popcnt", "Pdep", "Pext", "Lzcnt", "Tzcnt", "Bsf", "Bsr",
        "Pmovmsk", "Movmsk",
    ]) {
        (3, 0, Latency::Integer)
    } else {
        (1, 0, Latency::Integer)
    }
}
