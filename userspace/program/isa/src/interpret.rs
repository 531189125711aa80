//! Steps over one instruction without a memory access: the next position, and the remaining
//! knowledge.

use iced_x86::{
    Code as Op, FlowControl, Instruction, InstructionInfo, Mnemonic, OpAccess, Register, UsedRegister,
};

use crate::Unreachable;
use crate::known::Known;
use crate::memory::{is_repeated_string, repeat_counter};
use crate::results::results;

/// Applies `instruction`, which must not access memory, to `known`; the address of the next instruction.
pub(crate) fn step(
    instruction: &Instruction,
    info: &InstructionInfo,
    known: &mut Known,
) -> Result<u64, Unreachable> {
    match instruction.flow_control() {
        // A repeated string instruction with a count of zero accesses and changes nothing; only
        // with 32-bit addresses it may clear upper halves.
        FlowControl::Next if is_repeated_string(instruction) && repeat_counter(info) == Register::RCX => {
            Ok(instruction.next_ip())
        }
        FlowControl::Next => {
            apply(instruction, info, known);
            Ok(instruction.next_ip())
        }
        FlowControl::UnconditionalBranch => Ok(instruction.near_branch_target()),
        FlowControl::IndirectBranch => {
            known.get(instruction.op0_register()).ok_or(Unreachable::IndirectBranch)
        }
        FlowControl::ConditionalBranch => {
            let is_taken = takes_branch(instruction, known)?;
            Ok(if is_taken { instruction.near_branch_target() } else { instruction.next_ip() })
        }
        // syscall, sysenter and their like; calls proper push a return address and do not come here.
        FlowControl::Call => Err(Unreachable::SystemCall),
        FlowControl::Interrupt if instruction.code() == Op::Int_imm8 => Err(Unreachable::SystemCall),
        FlowControl::Interrupt | FlowControl::Exception => Err(Unreachable::Trap),
        FlowControl::Return | FlowControl::IndirectCall | FlowControl::XbeginXabortXend => {
            Err(Unreachable::Other)
        }
    }
}

fn takes_branch(instruction: &Instruction, known: &mut Known) -> Result<bool, Unreachable> {
    let counter = match instruction.code() {
        Op::Jrcxz_rel8_64 => return Ok(known.get(Register::RCX).ok_or(Unreachable::FlagsUnknown)? == 0),
        Op::Jecxz_rel8_64 => return Ok(known.get(Register::ECX).ok_or(Unreachable::FlagsUnknown)? == 0),
        Op::Loop_rel8_64_RCX | Op::Loope_rel8_64_RCX | Op::Loopne_rel8_64_RCX => Register::RCX,
        Op::Loop_rel8_64_ECX | Op::Loope_rel8_64_ECX | Op::Loopne_rel8_64_ECX => Register::ECX,
        _ => return known.condition(instruction.condition_code()).ok_or(Unreachable::FlagsUnknown),
    };
    let count = known.get(counter).ok_or(Unreachable::FlagsUnknown)?.wrapping_sub(1);
    known.set(counter, Some(count));
    let goes_on = known.get(counter) != Some(0);
    match instruction.mnemonic() {
        Mnemonic::Loop => Ok(goes_on),
        _ => {
            let condition = known.condition(instruction.condition_code()).ok_or(Unreachable::FlagsUnknown)?;
            Ok(goes_on && condition)
        }
    }
}

fn apply(instruction: &Instruction, info: &InstructionInfo, known: &mut Known) {
    let results = results(instruction, known).unwrap_or_default();
    for register in written_registers(instruction, info) {
        known.forget(register);
    }
    known.forget_flags(instruction.rflags_modified());
    for (register, value) in results.writes.into_iter().flatten() {
        known.set(register, Some(value));
    }
    known.set_flags(results.flags);
}

/// Registers that an instruction writes or may write.
pub(crate) fn written_registers<'a>(
    instruction: &Instruction,
    info: &'a InstructionInfo,
) -> impl Iterator<Item = Register> + use<'a> {
    // iced 1.22 does not list the segment base as written.
    let base = match instruction.mnemonic() {
        Mnemonic::Wrfsbase => Some(Register::FS),
        Mnemonic::Wrgsbase => Some(Register::GS),
        _ => None,
    };
    info.used_registers().iter().filter(|used| is_written(used)).map(UsedRegister::register).chain(base)
}

fn is_written(used: &UsedRegister) -> bool {
    matches!(
        used.access(),
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}
