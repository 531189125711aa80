//! What a schedule needs of a static instruction: registers, latency, units.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use locality_stream::{
    Class, Dependences, Flow, Instruction, InstructionRecord, LatencyClass, Locations, Top,
};

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
    /// Locations read, except for addresses.
    pub reads: Locations,
    /// Base register of the address.
    pub base: Locations,
    /// Index register of the address.
    pub index: Locations,
    /// What implicit addresses are.
    pub implicit: Locations,
    /// How its address is formed.
    pub form: Form,
    /// Locations written as a whole.
    pub writes: Locations,
    /// Locations written in part.
    pub merges: Locations,
    /// Locations exchanged: processors rename them.
    pub exchange: Option<[Locations; 2]>,
    pub top: Top,
    /// Whether the top of the x87 stack says which registers the sets mean.
    pub has_x87: bool,
    /// Cycles from inputs to result, beside the cycles of a load.
    pub latency: u32,
    /// Cause of these cycles.
    pub kind: Latency,
    /// Cycles of the divider.
    pub divides: u32,
    /// Cycles without the start of another instruction.
    pub holds: u32,
    pub is_float: bool,
    /// Whether it takes an integer unit.
    pub is_integer: bool,
    /// Whether a conditional branch right after fuses with the instruction.
    pub fuses: bool,
    /// Whether the instruction is such a fused branch, without a unit and a slot. In a block's
    /// facts only.
    pub is_fused: bool,
    pub is_string: bool,
    /// Whether it moves the stack pointer by a constant, beside pushes and calls.
    pub steps_stack: bool,
    /// Whether its result is its input, or at a constant distance: a copy, a step, a scaled index.
    pub passes: bool,
    pub flow: Flow,
    /// Address of the next instruction.
    pub next: u64,
}

impl Facts {
    pub fn of(record: &InstructionRecord, machine: &Machine) -> Facts {
        let instruction = Instruction::classify(record);
        let found = Dependences::of(record);
        let decoded = Decoder::with_ip(64, record.code(), record.address, DecoderOptions::NONE).decode();
        // A processor knows the stack pointer after pushes and calls without waiting.
        let known = match instruction.class {
            Class::Stack | Class::Call | Class::Return => Locations::STACK_POINTER,
            _ => Locations::NONE,
        };
        let accessed = |register| match instruction.loads || instruction.stores {
            true => Locations::of(register).without(known),
            false => Locations::NONE,
        };
        let (base, index) = (accessed(decoded.memory_base()), accessed(decoded.memory_index()));
        let (latency, divides, kind) = cost(found.latency, machine);
        // `leave` and its like are followed as well.
        let is_followed = instruction.class == Class::Stack && instruction.flow == Flow::Next;
        let holds = match decoded.mnemonic() {
            Mnemonic::Pause => machine.pause,
            Mnemonic::Rdtsc | Mnemonic::Rdtscp => machine.timestamp,
            _ => 0.0,
        };
        let is_computed = matches!(instruction.class, Class::Integer | Class::IntegerMultiply)
            || matches!(
                decoded.mnemonic(),
                Mnemonic::Lea | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd
            );
        Facts {
            reads: found.data.without(known),
            base,
            index,
            implicit: found.addresses().without(base).without(index).without(known),
            form: form(&decoded, &instruction),
            writes: found.whole.without(known),
            merges: found.merged.without(known),
            exchange: found.exchange,
            top: found.top,
            has_x87: found.data.with(found.writes()).has_x87(),
            latency: if is_followed { 0 } else { latency },
            kind,
            divides,
            holds: holds.round() as u32,
            is_float: is_float(&decoded) || is_of_stack(&found),
            is_integer: (is_computed && !is_moved(found.latency)) || instruction.flow == Flow::Conditional,
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
            steps_stack: found.step.is_some() && found.stack != 0,
            passes: passes(&decoded, &instruction),
            flow: instruction.flow,
            next: record.address.wrapping_add(u64::from(record.length)),
        }
    }

    /// Whether the instruction takes an integer unit.
    pub fn takes_integer_unit(&self) -> bool {
        self.is_integer && !self.is_float && !self.is_fused
    }

    /// Whether control may go to more than one place.
    pub fn has_choice(&self) -> bool {
        matches!(self.flow, Flow::Conditional | Flow::IndirectJump | Flow::IndirectCall)
    }

    /// Locations of addresses.
    pub fn bases(&self) -> Locations {
        self.base.with(self.index).with(self.implicit)
    }

    /// All locations written.
    pub fn writes(&self) -> Locations {
        self.writes.with(self.merges)
    }
}

/// Whether no unit computes anything.
fn is_moved(latency: LatencyClass) -> bool {
    matches!(latency, LatencyClass::Nothing | LatencyClass::Copy | LatencyClass::Load | LatencyClass::Store)
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
    let last = decoded.op_count().checked_sub(1);
    let by_constant = last.is_some_and(|operand| decoded.try_immediate(operand).is_ok());
    match decoded.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Shl | Mnemonic::And | Mnemonic::Imul => {
            by_constant && !instruction.loads
        }
        Mnemonic::Inc | Mnemonic::Dec => !instruction.loads,
        _ => instruction.class == Class::Move || decoded.mnemonic() == Mnemonic::Pop,
    }
}

/// Whether an instruction is an operation of floating point or of its vectors, by name, and no
/// copy.
fn is_float(decoded: &iced_x86::Instruction) -> bool {
    let name = format!("{:?}", decoded.mnemonic()).to_ascii_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    ["ps", "pd", "ss", "sd"].iter().any(|suffix| name.ends_with(suffix)) && !name.starts_with("mov")
}

/// Whether it computes with registers of the x87 stack.
fn is_of_stack(found: &Dependences) -> bool {
    use LatencyClass::{Convert, FpAdd, FpDivide, FpFunction, FpMultiply};
    let computes = matches!(found.latency, FpAdd | FpMultiply | FpDivide | FpFunction | Convert);
    computes && found.data.with(found.writes()).has_x87()
}

/// Latency beside that of a load, how long the divider is taken, in cycles, and what the latency is
/// due to.
fn cost(latency: LatencyClass, machine: &Machine) -> (u32, u32, Latency) {
    let multiply = machine.multiply.round() as u32;
    match latency {
        LatencyClass::Nothing | LatencyClass::Copy | LatencyClass::Load | LatencyClass::Store => {
            (0, 0, Latency::Other)
        }
        LatencyClass::Integer | LatencyClass::VectorInteger | LatencyClass::Branch => {
            (1, 0, Latency::Integer)
        }
        LatencyClass::IntegerMultiply | LatencyClass::Transfer => (3, 0, Latency::Integer),
        LatencyClass::VectorMultiply => (multiply, 0, Latency::Integer),
        LatencyClass::IntegerDivide => (14, 6, Latency::Divide),
        LatencyClass::FpDivide => (13, 4, Latency::Divide),
        LatencyClass::FpFunction => (60, 0, Latency::Other),
        LatencyClass::FpAdd => (machine.add.round() as u32, 0, Latency::FloatAdd),
        LatencyClass::FpOther | LatencyClass::FpSum | LatencyClass::Convert => {
            (multiply, 0, Latency::FloatAdd)
        }
        LatencyClass::FpMultiply | LatencyClass::FpMultiplyAdd => (multiply, 0, Latency::FloatMultiply),
        LatencyClass::Atomic => (18, 0, Latency::Other),
        LatencyClass::String | LatencyClass::Call | LatencyClass::Return | LatencyClass::System => {
            (1, 0, Latency::Other)
        }
    }
}
