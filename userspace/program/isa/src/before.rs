//! Whether an instruction, known by the registers after it, can have touched given bytes.
//!
//! The registers before the instruction are the registers after, without the instruction's writes.
//! A few kinds of writes can be undone: steps of string instructions and of the stack pointer.

use iced_x86::{
    Code as Op, FlowControl, Instruction, InstructionInfo, Mnemonic, OpKind, Register, UsedMemory,
};

use crate::interpret::written_registers;
use crate::known::{Known, flag};
use crate::memory::{AccessKind, accesses, is_repeated_string};
use crate::trap::{Trap, Watched};

/// A fast string operation recognises data breakpoints only between groups of
/// elements (Intel SDM, volume 1, section 7.3.9.3), and a trap may come a few
/// iterations late. The manual leaves the size of a group open; a cache line is
/// assumed, not measured, hence the answer is never [`crate::Certainty::Verified`].
const STRING_DELAY_BYTES: u64 = 64;
/// Upper bound for areas with a size known only to CPUID.
const MAX_UNSIZED_BYTES: u64 = 16 * 1024;

/// How well an instruction explains a trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The effective address covers watched bytes.
    Covers(AccessKind),
    /// The effective address, or the extent, is not computable
    /// any more; the access may cover watched bytes.
    Possible(AccessKind),
}

impl Fit {
    pub(crate) fn kind(self) -> AccessKind {
        match self {
            Fit::Covers(kind) | Fit::Possible(kind) => kind,
        }
    }
}

/// Whether `instruction`, after which the trap came, touches the watched bytes; `None` when it cannot.
pub(crate) fn fit(instruction: &Instruction, info: &InstructionInfo, trap: &Trap<'_>) -> Option<Fit> {
    if !continues_at(instruction, trap.registers.rip) || pushed_something_else(instruction, trap) {
        return None;
    }
    let before = undo(instruction, info, trap);
    let mut covers: Option<AccessKind> = None;
    let mut possible: Option<AccessKind> = None;
    let join = |slot: &mut Option<AccessKind>, kind: AccessKind| {
        *slot = Some(slot.map_or(kind, |earlier| earlier.and(kind)));
    };
    for access in accesses(instruction, info) {
        match access.address(&before) {
            None => join(&mut possible, access.kind),
            Some(address) if access.size == 0 => {
                if trap.watched.overlaps(address, MAX_UNSIZED_BYTES) {
                    join(&mut possible, access.kind);
                }
            }
            Some(address) if trap.watched.overlaps(address, u64::from(access.size)) => {
                join(&mut covers, access.kind);
            }
            Some(address) if is_repeated_string(instruction) => {
                let behind =
                    if is_downward(trap) { address } else { address.wrapping_sub(STRING_DELAY_BYTES) };
                if trap.watched.overlaps(behind, STRING_DELAY_BYTES + u64::from(access.size)) {
                    join(&mut possible, access.kind);
                }
            }
            Some(_) => {}
        }
    }
    covers.map(Fit::Covers).or(possible.map(Fit::Possible))
}

/// True when the processor is at `ip` after the instruction: not after a branch elsewhere, except
/// for a REP string instruction between two iterations.
fn continues_at(instruction: &Instruction, ip: u64) -> bool {
    match instruction.flow_control() {
        FlowControl::Next => true,
        // `call` of the next instruction: how old position-independent code learns its own address.
        FlowControl::Call => instruction.near_branch_target() == ip && ip == instruction.next_ip(),
        _ => false,
    }
}

/// True when the word on top of the stack differs from the word of this `push`.
fn pushed_something_else(instruction: &Instruction, trap: &Trap<'_>) -> bool {
    let Some(top) = trap.top_of_stack else { return false };
    if instruction.code() != Op::Push_r64 || instruction.op0_register() == Register::RSP {
        return false;
    }
    Known::all(&trap.registers).get(instruction.op0_register()) != Some(top)
}

fn is_downward(trap: &Trap<'_>) -> bool {
    trap.registers.rflags & flag::DF != 0
}

/// The known bits of the registers before the instruction.
fn undo(instruction: &Instruction, info: &InstructionInfo, trap: &Trap<'_>) -> Known {
    let after = Known::all(&trap.registers);
    let mut before = after.clone();
    for register in written_registers(instruction, info) {
        before.forget(register);
    }
    if instruction.is_string_instruction() {
        let bytes = instruction.memory_size().size() as u64;
        let step = if is_downward(trap) { bytes.wrapping_neg() } else { bytes };
        for pointer in info.used_memory().iter().map(UsedMemory::base) {
            before.set(pointer, after.get(pointer).map(|value| value.wrapping_sub(step)));
        }
    }
    let moved = i64::from(instruction.stack_pointer_increment());
    let pops_stack_pointer = instruction.mnemonic() == Mnemonic::Pop
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().full_register() == Register::RSP;
    if moved != 0 && !pops_stack_pointer {
        before.set(Register::RSP, Some(trap.registers.rsp.wrapping_add_signed(-moved)));
    }
    // `leave` pops from rbp's target, so rsp now points just above.
    match instruction.code() {
        Op::Leaveq => before.set(Register::RBP, Some(trap.registers.rsp.wrapping_sub(8))),
        Op::Leavew => before.set(Register::RBP, Some(trap.registers.rsp.wrapping_sub(2))),
        _ => {}
    }
    before
}

impl Watched {
    /// True when `bytes` bytes from `address` on share a byte with the watched ones.
    pub(crate) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        // Distances wrap: ranges at the ends of the address space need no special case.
        address.wrapping_sub(self.address) < u64::from(self.bytes)
            || self.address.wrapping_sub(address) < bytes
    }
}
