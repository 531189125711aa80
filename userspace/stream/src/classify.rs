//! Facts from an instruction's bytes: class, type of data, registers, flow.
//!
//! Decoding is iced-x86's. Sources of error: the type of data is the instruction's view. `movups`
//! of integers counts as floating point, a copy by `mov` of a `double` as an integer, as moved by
//! the processor. x87 and MMX registers are one register in this module, as are all flags.

use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, EncodingKind, FlowControl, InstructionInfo,
    InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, Register,
};

use crate::code::InstructionRecord;
use crate::event::Kind;

mod data_type;
pub use data_type::NoDataType;

/// What an instruction does, for the instruction mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Integer, scalar or address moves, loads and stores: no computation.
    Move,
    /// Pushes, pops, enter, leave.
    Stack,
    /// Integer arithmetic, logic, comparisons.
    Integer,
    /// Integer multiplication and division.
    IntegerMultiply,
    /// Scalar floating point, x87 included.
    Float,
    /// Packed, integer or floating point, moves included.
    Vector,
    /// String instructions, with or without REP.
    String,
    /// Jumps, conditional or not.
    Branch,
    /// Calls.
    Call,
    /// Returns.
    Return,
    /// System calls.
    SystemCall,
    /// Everything else: no-operations, fences, cache hints, undecodable bytes.
    Other,
}

impl Class {
    /// All classes, in the order of reports.
    pub const ALL: [Class; 12] = [
        Class::Move,
        Class::Stack,
        Class::Integer,
        Class::IntegerMultiply,
        Class::Float,
        Class::Vector,
        Class::String,
        Class::Branch,
        Class::Call,
        Class::Return,
        Class::SystemCall,
        Class::Other,
    ];

    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Class::Move => "move",
            Class::Stack => "stack",
            Class::Integer => "integer",
            Class::IntegerMultiply => "integer multiply",
            Class::Float => "float",
            Class::Vector => "vector",
            Class::String => "string",
            Class::Branch => "branch",
            Class::Call => "call",
            Class::Return => "return",
            Class::SystemCall => "system call",
            Class::Other => "other",
        }
    }
}

/// Where control goes after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flow {
    /// To the next one.
    Next,
    /// Elsewhere, always.
    Jump,
    /// Elsewhere or to the next one.
    Conditional,
    /// To an address from a register or memory.
    IndirectJump,
    /// To a function.
    Call,
    /// To a function whose address comes from a register or memory.
    IndirectCall,
    /// Back from a function.
    Return,
    /// Into the kernel.
    SystemCall,
    /// An exception by design, or no instruction.
    Trap,
}

/// The type of an instruction's memory operand; widths in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// No memory operand.
    None,
    /// One integer or address.
    Integer(u16),
    /// One floating-point number.
    Float(u16),
    /// Several integers, with their total width.
    IntegerVector(u16),
    /// Several floating-point numbers, with their total width.
    FloatVector(u16),
    /// Anything else (saved states, descriptors); 0 where the width is not fixed.
    Other(u16),
}

/// The static facts of one instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Address.
    pub address: u64,
    /// Length in bytes; 0 where the bytes are no instruction.
    pub length: u8,
    /// Its class.
    pub class: Class,
    /// Type of the memory operand, implicit operands included.
    pub data: DataType,
    /// Where control goes.
    pub flow: Flow,
    /// True when it may load.
    pub loads: bool,
    /// True when it may store.
    pub stores: bool,
    /// Registers read, as a set; see [`Instruction::register_bit`].
    pub reads: u64,
    /// Registers written.
    pub writes: u64,
}

impl Instruction {
    /// The facts of one record.
    pub fn classify(record: &InstructionRecord) -> Instruction {
        classify(record, &mut InstructionInfoFactory::new())
    }

    /// The facts of many records.
    pub fn classify_all(records: &[InstructionRecord]) -> Vec<Instruction> {
        let mut factory = InstructionInfoFactory::new();
        records.iter().map(|record| classify(record, &mut factory)).collect()
    }

    /// The kind of event that a load (or store) of this instruction is. For the templates of a source.
    pub fn access_kind(&self, is_store: bool) -> Kind {
        match (self.flow, is_store) {
            (Flow::Call | Flow::IndirectCall, true) => Kind::CALL,
            (Flow::Return, false) => Kind::RETURN,
            (_, true) => Kind::STORE,
            (_, false) => Kind::LOAD,
        }
    }

    /// Bit of a register in [`Instruction::reads`] and [`Instruction::writes`]: general registers 0
    /// to 15 by their number, 16 flags (added by the classifier), 17 x87 and MMX, 18 segment and
    /// system registers, 24 to 31 masks, 32 to 63 vector registers. Parts of a register count as
    /// the whole.
    pub fn register_bit(register: Register) -> Option<u32> {
        let full = register.full_register();
        let number = full.number() as u32;
        if full.is_gpr() {
            Some(number)
        } else if full.is_vector_register() {
            Some(32 + number)
        } else if full.is_k() {
            Some(24 + number)
        } else if full.is_st() || full.is_mm() {
            Some(17)
        } else if full.is_segment_register() || full.is_cr() || full.is_dr() {
            Some(18)
        } else {
            None
        }
    }
}

const FLAGS: u64 = 1 << 16;

fn classify(record: &InstructionRecord, factory: &mut InstructionInfoFactory) -> Instruction {
    let mut decoder = Decoder::with_ip(64, record.code(), record.address, DecoderOptions::NONE);
    let decoded = decoder.decode();
    let mut facts = Instruction {
        address: record.address,
        length: 0,
        class: Class::Other,
        data: DataType::None,
        flow: Flow::Trap,
        loads: false,
        stores: false,
        reads: 0,
        writes: 0,
    };
    if decoded.is_invalid() {
        return facts;
    }
    facts.length = decoded.len() as u8;
    facts.flow = flow(&decoded);
    let info = factory.info(&decoded);
    for used in info.used_registers() {
        let bit = Instruction::register_bit(used.register()).map_or(0, |bit| 1 << bit);
        facts.reads |= if is_read(used.access()) { bit } else { 0 };
        facts.writes |= if is_write(used.access()) { bit } else { 0 };
    }
    facts.reads |= if decoded.rflags_read() != 0 { FLAGS } else { 0 };
    facts.writes |= if decoded.rflags_modified() != 0 { FLAGS } else { 0 };
    for memory in info.used_memory() {
        facts.loads |= is_read(memory.access());
        facts.stores |= is_write(memory.access());
    }
    if facts.loads || facts.stores {
        facts.data = data_type(&decoded, info);
    }
    facts.class = class(&decoded, &facts);
    facts
}

pub(crate) fn is_read(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

pub(crate) fn is_write(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

fn flow(instruction: &iced_x86::Instruction) -> Flow {
    match instruction.flow_control() {
        FlowControl::Next => Flow::Next,
        FlowControl::UnconditionalBranch => Flow::Jump,
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => Flow::Conditional,
        FlowControl::Return => Flow::Return,
        // iced counts syscall and its like as calls.
        FlowControl::Call if !instruction.is_call_near() && !instruction.is_call_far() => Flow::SystemCall,
        FlowControl::Call => Flow::Call,
        FlowControl::IndirectCall => Flow::IndirectCall,
        FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int => Flow::SystemCall,
        FlowControl::Interrupt | FlowControl::Exception => Flow::Trap,
    }
}

fn data_type(instruction: &iced_x86::Instruction, info: &InstructionInfo) -> DataType {
    let explicit = instruction.memory_size();
    let size = if explicit == MemorySize::Unknown {
        info.used_memory().first().map_or(MemorySize::Unknown, |memory| memory.memory_size())
    } else {
        explicit
    };
    let bytes = size.size() as u16;
    let is_float = matches!(
        size.element_type(),
        MemorySize::Float16
            | MemorySize::Float32
            | MemorySize::Float64
            | MemorySize::Float80
            | MemorySize::Float128
            | MemorySize::BFloat16
    );
    let element = size.element_type();
    let is_integer = element.size() > 0 && element.size() <= 64 && !is_float;
    match (is_float, is_integer, size.is_packed()) {
        (true, _, false) => DataType::Float(bytes),
        (true, _, true) => DataType::FloatVector(bytes),
        // Whole vector registers as one number (`movdqu`) count as vectors.
        (_, true, packed) if packed || bytes > 8 => DataType::IntegerVector(bytes),
        (_, true, _) => DataType::Integer(bytes),
        _ => DataType::Other(bytes),
    }
}

fn class(instruction: &iced_x86::Instruction, facts: &Instruction) -> Class {
    match facts.flow {
        Flow::Jump | Flow::Conditional | Flow::IndirectJump => return Class::Branch,
        Flow::Call | Flow::IndirectCall => return Class::Call,
        Flow::Return => return Class::Return,
        Flow::SystemCall => return Class::SystemCall,
        Flow::Trap => return Class::Other,
        Flow::Next => {}
    }
    if instruction.is_string_instruction() {
        return Class::String;
    }
    if instruction.is_stack_instruction() {
        return Class::Stack;
    }
    let features = instruction.cpuid_features();
    if features.iter().any(|feature| matches!(feature, CpuidFeature::FPU | CpuidFeature::FPU287)) {
        return Class::Float;
    }
    let is_vector_register = |register: Register| register.is_vector_register() || register.is_mm();
    let uses_vectors = (0..instruction.op_count()).any(|op| is_vector_register(instruction.op_register(op)));
    if uses_vectors || instruction.encoding() == EncodingKind::EVEX {
        return if is_scalar(instruction) { Class::Float } else { Class::Vector };
    }
    match instruction.mnemonic() {
        Mnemonic::Mov
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Lea
        | Mnemonic::Xchg
        | Mnemonic::Movbe
        | Mnemonic::Bswap
        | Mnemonic::Movnti
        | Mnemonic::Cbw
        | Mnemonic::Cwde
        | Mnemonic::Cdqe
        | Mnemonic::Cwd
        | Mnemonic::Cdq
        | Mnemonic::Cqo => Class::Move,
        Mnemonic::Mul | Mnemonic::Imul | Mnemonic::Div | Mnemonic::Idiv | Mnemonic::Mulx => {
            Class::IntegerMultiply
        }
        Mnemonic::Nop
        | Mnemonic::Endbr64
        | Mnemonic::Pause
        | Mnemonic::Cpuid
        | Mnemonic::Rdtsc
        | Mnemonic::Rdtscp
        | Mnemonic::Lfence
        | Mnemonic::Mfence
        | Mnemonic::Sfence
        | Mnemonic::Xgetbv
        | Mnemonic::Fxsave
        | Mnemonic::Fxrstor
        | Mnemonic::Xsave
        | Mnemonic::Xsavec
        | Mnemonic::Xrstor => Class::Other,
        mnemonic if format!("{mnemonic:?}").starts_with("Cmov") => Class::Move,
        mnemonic if format!("{mnemonic:?}").starts_with("Prefetch") => Class::Other,
        _ => Class::Integer,
    }
}

/// True for vector-register instructions that compute on one floating-point element (`addsd`,
/// `cvtsi2ss`, `movsd`).
fn is_scalar(instruction: &iced_x86::Instruction) -> bool {
    let name = format!("{:?}", instruction.mnemonic());
    let name = name.to_ascii_lowercase();
    let ends = |end: &str| name.ends_with(end);
    // `pabsd` and `pmovsxbd` style names end in other letters, except the shifts (`psrad`) and `*ssd`.
    let is_packed_integer = name.starts_with('p') || name.starts_with("vp");
    (ends("ss")
        || ends("sd")
        || ends("comisd")
        || ends("comiss")
        || name.contains("2ss")
        || name.contains("2sd")
        || name.contains("sd2")
        || name.contains("ss2"))
        && !is_packed_integer
        && !name.contains("broadcast")
}

#[cfg(test)]
mod tests;
