//! From an instruction to an [`Op`]: what is emulated, what runs as a stub, what ends the window.

use iced_x86::{Instruction, InstructionInfoFactory, MemorySize, Mnemonic as M, OpAccess, OpKind, Register};
use locality_isa::is_ambiguous;

use crate::context::{Low, ZERO};
use crate::hash::Map;
use crate::machine::X87;
use crate::op::{Condition, Do, Op, Place, Segment};
use crate::simple::{flow, integer, stack};
use crate::stub::{assemble, uses_x87};
use crate::whitelist::Host;
use crate::window::End;

/// Makes ops; instructions that differ only in addresses share a stub.
pub(crate) struct Decoder {
    host: Host,
    factory: InstructionInfoFactory,
    stubs: Map<Vec<u8>, u64>,
}

/// No room for another stub.
#[derive(Debug)]
pub(crate) struct NoRoom;

impl Decoder {
    pub(crate) fn new(host: Host) -> Decoder {
        Decoder { host, factory: InstructionInfoFactory::new(), stubs: Map::default() }
    }

    /// Forgets the stubs.
    pub(crate) fn clear(&mut self) {
        self.stubs.clear();
    }

    /// The op of a valid instruction, which `bytes` begin with. What is complex goes to `complex`.
    pub(crate) fn op(
        &mut self,
        instruction: &Instruction,
        bytes: &[u8],
        low: &mut Low,
        complex: &mut Vec<Instruction>,
    ) -> Result<Op, NoRoom> {
        let mut op = Op {
            ip: instruction.ip(),
            value: 0,
            stub: 0,
            place: place(instruction),
            what: Do::End(End::Unsupported),
            condition: Condition::of(instruction),
            length: instruction.len() as u8,
            size: 0,
            width: 0,
            register: ZERO,
            source: ZERO,
            events: 2,
        };
        if is_ambiguous(bytes, instruction) {
            return Ok(op);
        }
        if flow(instruction, &mut op) || stack(instruction, &mut op) || integer(instruction, &mut op) {
            return Ok(op);
        }
        if let Some(what) = special(instruction, self.host) {
            op.what = what;
            if what == Do::Complex {
                op.value = complex.len() as u64;
                op.events = most_events(instruction);
                complex.push(*instruction);
                if is_masked(instruction) {
                    op.stub = self.stub(instruction, low)?;
                    let (size, element, selects) = crate::masked::describe(instruction);
                    (op.size, op.width, op.source) = (size, element, selects as u8);
                }
            }
            return Ok(op);
        }
        if !self.host.lists(instruction) {
            return Ok(op);
        }
        let Some(access) = memory_access(instruction, &mut self.factory) else { return Ok(op) };
        op.stub = self.stub(instruction, low)?;
        if op.stub != 0 {
            (op.what, op.size) = access;
            op.width = if uses_x87(instruction) { X87 } else { 0 };
        }
        Ok(op)
    }

    /// Address of the instruction's stub; 0 where none can be made.
    fn stub(&mut self, instruction: &Instruction, low: &mut Low) -> Result<u64, NoRoom> {
        let Some(code) = assemble(instruction, self.host, &low.places(), &mut self.factory) else {
            return Ok(0);
        };
        if let Some(stub) = self.stubs.get(&code) {
            return Ok(*stub);
        }
        let stub = low.append(&code).ok_or(NoRoom)?;
        self.stubs.insert(code, stub);
        Ok(stub)
    }
}

/// The parts of the memory operand's address.
fn place(instruction: &Instruction) -> Place {
    let number = |register: Register| if register.is_gpr() { register.number() as u8 & 15 } else { ZERO };
    let base = instruction.memory_base();
    Place {
        displacement: instruction.memory_displacement64(),
        base: number(base),
        index: number(instruction.memory_index()),
        shift: instruction.memory_index_scale().trailing_zeros() as u8,
        segment: match instruction.memory_segment() {
            Register::FS => Segment::Fs,
            Register::GS => Segment::Gs,
            _ => Segment::None,
        },
        is_short: base == Register::EIP
            || base.is_gpr32()
            || instruction.memory_index().is_gpr32()
            || instruction.memory_displ_size() == 4
                && base == Register::None
                && !instruction.memory_index().is_gpr(),
    }
}

/// Directions and size of the memory operand of an instruction that runs as a stub; `None` where
/// the size is unknown.
fn memory_access(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Option<(Do, u16)> {
    let has_operand = (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
    if instruction.mnemonic() == M::Lea {
        return None;
    }
    let info = factory.info(instruction);
    let Some(memory) = info.used_memory().first() else {
        return (!has_operand).then_some((Do::Stub, 0));
    };
    if info.used_memory().len() != 1 || !has_operand {
        return None;
    }
    let size = match memory.memory_size() {
        MemorySize::Unknown => 0,
        size => size.size() as u16,
    };
    let what = match memory.access() {
        OpAccess::Read | OpAccess::CondRead => Do::StubLoad,
        OpAccess::Write | OpAccess::CondWrite => Do::StubStore,
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => Do::StubModify,
        OpAccess::None | OpAccess::NoMemAccess => return None,
    };
    (1..=512).contains(&size).then_some((what, size))
}

fn is_memory(instruction: &Instruction, op: u32) -> bool {
    instruction.op_kind(op) == OpKind::Memory
}

/// Most accesses of a complex instruction, of an iteration where it is repeated.
fn most_events(instruction: &Instruction) -> u8 {
    match instruction.mnemonic() {
        _ if instruction.is_vsib() => 16,
        M::Maskmovdqu | M::Vmaskmovdqu => 8,
        // Every second of 64 bytes.
        _ if is_masked(instruction) => 32,
        _ => 2,
    }
}

/// Instructions without a stub, or with several.
fn special(instruction: &Instruction, host: Host) -> Option<Do> {
    let masked = is_masked(instruction) && host.lists(instruction);
    let only_if = |yes| if yes { Do::Complex } else { Do::End(End::Unsupported) };
    Some(match instruction.mnemonic() {
        M::Nop
        | M::Reservednop
        | M::Pause
        | M::Endbr64
        | M::Endbr32
        | M::Lfence
        | M::Mfence
        | M::Sfence
        | M::Prefetch
        | M::Prefetchnta
        | M::Prefetcht0
        | M::Prefetcht1
        | M::Prefetcht2
        | M::Prefetchw
        | M::Prefetchwt1
        | M::Prefetchit0
        | M::Prefetchit1
        | M::Clflush
        | M::Clflushopt
        | M::Clwb
        | M::Cldemote
        | M::Serialize
        | M::Rdsspd
        | M::Rdsspq => Do::Nothing,
        M::Rdrand | M::Rdseed | M::Rdpid | M::Rdpmc => Do::End(End::Unrepeatable),
        M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd => Do::End(End::Unsupported),
        M::Cpuid
        | M::Xgetbv
        | M::Cld
        | M::Std
        | M::Xlatb
        | M::Rdfsbase
        | M::Rdgsbase
        | M::Rdtsc
        | M::Ldmxcsr
        | M::Stmxcsr
        | M::Maskmovq
        | M::Maskmovdqu
        | M::Fxsave
        | M::Fxsave64
        | M::Fxrstor
        | M::Fxrstor64
        | M::Xsave
        | M::Xsave64
        | M::Xsavec
        | M::Xsavec64
        | M::Xsaveopt
        | M::Xsaveopt64
        | M::Xrstor
        | M::Xrstor64 => Do::Complex,
        M::Rdtscp => only_if(host.rdtscp),
        M::Vldmxcsr | M::Vstmxcsr | M::Vmaskmovdqu | M::Vzeroupper | M::Vzeroall => only_if(host.avx),
        M::Bt | M::Bts | M::Btr | M::Btc
            if is_memory(instruction, 0) && instruction.op1_kind() == OpKind::Register =>
        {
            Do::Complex
        }
        _ if instruction.is_string_instruction() => Do::Complex,
        _ if instruction.is_vsib() => only_if(crate::gather::is_known(instruction, host)),
        _ if masked => Do::Complex,
        _ => return None,
    })
}

/// True where a mask decides which elements of the memory operand are accessed.
pub(crate) fn is_masked(instruction: &Instruction) -> bool {
    let has_operand = (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
    has_operand
        && !instruction.is_vsib()
        && (instruction.has_op_mask()
            || matches!(
                instruction.mnemonic(),
                M::Vmaskmovps | M::Vmaskmovpd | M::Vpmaskmovd | M::Vpmaskmovq
            ))
}
