//! From an instruction to an [`Op`] that runs without a stub: control flow, stack, and the
//! commonest integer instructions.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic as M, OpKind};

use crate::context::ZERO;
use crate::op::{Arithmetic, Do, Op, Shift, low_register};
use crate::window::End;

fn is_memory(instruction: &Instruction, op: u32) -> bool {
    instruction.op_kind(op) == OpKind::Memory
}

/// Jumps, calls, returns and what leaves user mode.
pub(crate) fn flow(instruction: &Instruction, op: &mut Op) -> bool {
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
pub(crate) fn stack(instruction: &Instruction, op: &mut Op) -> bool {
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

/// Common instructions, executed in Rust. The rest of the kind runs as stubs.
pub(crate) fn integer(instruction: &Instruction, op: &mut Op) -> bool {
    let to = instruction.op0_register();
    let width = to.size() as u8;
    let destination = if instruction.op0_kind() == OpKind::Register { low_register(to) } else { None };
    let source = match instruction.op1_kind() {
        OpKind::Register => low_register(instruction.op1_register()),
        _ => None,
    };
    let value = instruction.try_immediate(1).ok();
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
