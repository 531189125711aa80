//! From an instruction to an [`Op`]: what is emulated, what runs as a stub, what ends the window.

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, MemorySize, Mnemonic as M, OpAccess, OpKind,
    Register,
};

use crate::context::{Low, ZERO};
use crate::hash::Map;
use crate::machine::X87;
use crate::op::{Arithmetic, Condition, Do, Op, Place, Segment, Shift, low_register};
use crate::stub::{assemble, uses_x87};
use crate::whitelist::Host;
use crate::window::End;

/// Makes ops; stubs are shared by all instructions that differ in their addresses only.
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

    /// The op of a valid instruction. What is complex goes to `complex`.
    pub(crate) fn op(
        &mut self,
        instruction: &Instruction,
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

/// Directions and size of the memory operand of an instruction that runs as a stub; `None` where the size is unknown.
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

/// Jumps, calls, returns and what leaves user mode.
fn flow(instruction: &Instruction, op: &mut Op) -> bool {
    op.value = instruction.near_branch_target();
    op.what = match instruction.flow_control() {
        FlowControl::Next => return false,
        FlowControl::UnconditionalBranch if instruction.is_jmp_short_or_near() => Do::Jump,
        FlowControl::IndirectBranch if instruction.is_jmp_near_indirect() => {
            match low_register(instruction.op0_register()) {
                _ if is_memory(instruction, 0) => Do::JumpMemory,
                Some(register) => {
                    op.register = register;
                    Do::JumpRegister
                }
                None => Do::End(End::Unsupported),
            }
        }
        FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => Do::JumpIf,
        FlowControl::ConditionalBranch
            if instruction.is_loop() || instruction.is_loopcc() || instruction.is_jcx_short() =>
        {
            op.width = match instruction.code() {
                Code::Loop_rel8_64_ECX
                | Code::Loope_rel8_64_ECX
                | Code::Loopne_rel8_64_ECX
                | Code::Jecxz_rel8_64 => 4,
                _ => 8,
            };
            op.source = match instruction.mnemonic() {
                M::Loop => 0,
                M::Loope => 1,
                M::Loopne => 2,
                _ => 3,
            };
            Do::Loop
        }
        FlowControl::Call if instruction.code() == Code::Call_rel32_64 => Do::Call,
        FlowControl::IndirectCall if instruction.code() == Code::Call_rm64 => {
            match low_register(instruction.op0_register()) {
                _ if is_memory(instruction, 0) => Do::CallMemory,
                Some(register) => {
                    op.register = register;
                    Do::CallRegister
                }
                None => Do::End(End::Unsupported),
            }
        }
        FlowControl::Return if matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16) => {
            op.value = if instruction.code() == Code::Retnq { 0 } else { instruction.immediate16().into() };
            Do::Return
        }
        FlowControl::Call if matches!(instruction.mnemonic(), M::Syscall | M::Sysenter) => {
            Do::End(End::SystemCall)
        }
        FlowControl::Interrupt => match instruction.mnemonic() {
            M::Int3 | M::Int1 => Do::End(End::Breakpoint),
            M::Int if instruction.immediate8() == 0x80 => Do::End(End::SystemCall),
            _ => Do::End(End::Fault),
        },
        FlowControl::Exception => Do::End(End::Fault),
        _ => Do::End(End::Unsupported),
    };
    // A branch with the prefix 66 is another thing to Intel than to AMD.
    if instruction.near_branch_target() != 0 && instruction.op0_kind() != OpKind::NearBranch64 {
        op.what = Do::End(End::Unsupported);
    }
    true
}

/// Push, pop and their like.
fn stack(instruction: &Instruction, op: &mut Op) -> bool {
    let register = low_register(instruction.op0_register()).unwrap_or(ZERO);
    op.register = register;
    op.size = 8;
    op.what = match instruction.code() {
        Code::Push_r64 => Do::Push,
        Code::Push_rm64 if is_memory(instruction, 0) => Do::PushMemory,
        Code::Push_rm64 => Do::Push,
        Code::Pushq_imm8 | Code::Pushq_imm32 => {
            op.value = instruction.immediate(0);
            Do::PushValue
        }
        Code::Push_r16 => {
            op.size = 2;
            Do::Push
        }
        Code::Pop_r64 => Do::Pop,
        Code::Pop_r16 => {
            op.size = 2;
            Do::Pop
        }
        Code::Pop_rm64 if is_memory(instruction, 0) => Do::PopMemory,
        Code::Pop_rm64 => Do::Pop,
        Code::Pushfq => Do::PushFlags,
        Code::Popfq => Do::PopFlags,
        Code::Leaveq => Do::Leave,
        Code::Enterq_imm16_imm8 if instruction.immediate8_2nd() == 0 => {
            op.value = instruction.immediate16().into();
            Do::Enter
        }
        _ => {
            op.size = 0;
            op.register = ZERO;
            return false;
        }
    };
    true
}

/// What is done in Rust because it is common. All else of the kind runs as a stub.
fn integer(instruction: &Instruction, op: &mut Op) -> bool {
    let to = instruction.op0_register();
    let width = to.size() as u8;
    let destination = if instruction.op0_kind() == OpKind::Register { low_register(to) } else { None };
    let source = match instruction.op1_kind() {
        OpKind::Register => low_register(instruction.op1_register()),
        _ => None,
    };
    let value = match instruction.op1_kind() {
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => Some(instruction.immediate(1)),
        _ => None,
    };
    let size = match instruction.op1_kind() {
        OpKind::Memory => instruction.memory_size().size() as u16,
        OpKind::Register => instruction.op1_register().size() as u16,
        _ => width.into(),
    };
    let (from_memory, to_memory) = (is_memory(instruction, 1), is_memory(instruction, 0));
    let mnemonic = instruction.mnemonic();
    op.what = match (mnemonic, destination, source, value) {
        (M::Lea, Some(_), ..) if width >= 4 => Do::Address,
        (M::Mov | M::Movzx, Some(_), Some(_), _) => Do::Move,
        (M::Mov | M::Movzx, Some(_), ..) if from_memory => Do::Load,
        (M::Mov, Some(_), _, Some(_)) => Do::MoveValue,
        (M::Mov, _, Some(_), _) if to_memory => Do::Store,
        (M::Mov, _, _, Some(_)) if to_memory => Do::StoreValue,
        (M::Movsx | M::Movsxd, Some(_), Some(_), _) if width >= 4 => Do::MoveSigned,
        (M::Movsx | M::Movsxd, Some(_), ..) if width >= 4 && from_memory => Do::LoadSigned,
        (M::Cdqe, ..) => {
            (op.register, op.source, op.size, op.width) = (0, 0, 4, 8);
            op.what = Do::MoveSigned;
            return true;
        }
        (M::Add | M::Sub | M::And | M::Or | M::Xor | M::Cmp | M::Test, ..) => {
            let what = match mnemonic {
                M::Add => Arithmetic::Add,
                M::Sub => Arithmetic::Sub,
                M::And => Arithmetic::And,
                M::Or => Arithmetic::Or,
                M::Xor => Arithmetic::Xor,
                M::Cmp => Arithmetic::Cmp,
                _ => Arithmetic::Test,
            };
            match (destination, source, value) {
                (Some(_), Some(_), _) => Do::RegisterRegister(what),
                (Some(_), _, Some(_)) => Do::RegisterValue(what),
                (Some(_), ..) if from_memory => Do::RegisterMemory(what),
                (_, Some(_), _) if to_memory => Do::MemoryRegister(what),
                (_, _, Some(_)) if to_memory => Do::MemoryValue(what),
                _ => return false,
            }
        }
        (M::Shl | M::Sal | M::Shr | M::Sar, Some(_), _, Some(count)) if width >= 4 => {
            let count = count & if width == 8 { 63 } else { 31 };
            let what = match mnemonic {
                M::Shr => Shift::Right,
                M::Sar => Shift::RightSigned,
                _ => Shift::Left,
            };
            if count == 0 {
                return false;
            }
            op.value = count;
            (op.register, op.width) = (destination.unwrap_or(ZERO), width);
            op.size = width.into();
            op.what = Do::Shift(what);
            return true;
        }
        (M::Inc, Some(_), ..) if width >= 4 => Do::Increment,
        (M::Dec, Some(_), ..) if width >= 4 => Do::Decrement,
        (_, Some(_), Some(_), _)
            if instruction.condition_code() != iced_x86::ConditionCode::None && width >= 4 =>
        {
            Do::MoveIf
        }
        (_, Some(_), None, None)
            if instruction.condition_code() != iced_x86::ConditionCode::None
                && instruction.op_count() == 1
                && width == 1 =>
        {
            Do::SetIf
        }
        _ => return false,
    };
    op.register = destination.unwrap_or(ZERO);
    op.source = source.unwrap_or(ZERO);
    op.value = value.unwrap_or(0);
    op.width = width;
    op.size = if to_memory { instruction.memory_size().size() as u16 } else { size };
    matches!(op.size, 1 | 2 | 4 | 8) || op.what == Do::Address
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

/// What needs no stub, or more than one.
fn special(instruction: &Instruction, host: Host) -> Option<Do> {
    let masked = is_masked(instruction) && host.lists(instruction);
    let avx = |yes| if yes { Do::Complex } else { Do::End(End::Unsupported) };
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
        M::Rdtsc | M::Rdtscp | M::Rdrand | M::Rdseed | M::Rdpid | M::Rdpmc => Do::End(End::Unrepeatable),
        M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd => Do::End(End::Unsupported),
        M::Cpuid
        | M::Xgetbv
        | M::Cld
        | M::Std
        | M::Xlatb
        | M::Rdfsbase
        | M::Rdgsbase
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
        M::Vldmxcsr | M::Vstmxcsr | M::Vmaskmovdqu | M::Vzeroupper | M::Vzeroall => avx(host.avx),
        M::Bt | M::Bts | M::Btr | M::Btc
            if is_memory(instruction, 0) && instruction.op1_kind() == OpKind::Register =>
        {
            Do::Complex
        }
        _ if instruction.is_string_instruction() => Do::Complex,
        _ if instruction.is_vsib() => avx(crate::gather::is_known(instruction, host)),
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
