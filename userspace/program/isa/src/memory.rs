//! The data accesses of one instruction: addresses, bytes, directions and order.
//!
//! iced-x86 lists the memory operands; this file adds facts left open by
//! iced (order of execution, sizes under a REP prefix, bit strings, masks)
//! and takes out operands that are no access (cache hints and flushes).

use std::fmt;

use iced_x86::{
    Code, CodeSize, Instruction, InstructionInfo, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::known::Known;

/// Direction of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Read.
    Load,
    /// Write.
    Store,
    /// Read and written by one instruction.
    ReadWrite,
}

impl AccessKind {
    /// The kind of an instruction with accesses of both kinds.
    pub(crate) fn and(self, other: AccessKind) -> AccessKind {
        if self == other { self } else { AccessKind::ReadWrite }
    }
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::ReadWrite => "read-write",
        })
    }
}

/// How the instruction names the location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessForm {
    /// A memory operand.
    Operand,
    /// Implicit: push, pop, call, ret, enter, leave.
    Stack,
    /// A string instruction; with a REP prefix this is the access of one iteration.
    String,
}

/// One access of an instruction, with the address not yet computed.
pub(crate) struct Access<'a> {
    memory: &'a UsedMemory,
    instruction: &'a Instruction,
    /// Bytes; 0 when only CPUID tells (the xsave family, tiles).
    pub(crate) size: u32,
    pub(crate) kind: AccessKind,
    pub(crate) form: AccessForm,
}

impl Access<'_> {
    /// The effective address, if the address's registers are known.
    pub(crate) fn address(&self, known: &Known) -> Option<u64> {
        let address = self.memory.virtual_address(0, |register, _, _| known.address_part(register))?;
        match bit_string_register(self.instruction) {
            None => Some(address),
            // The sum would have to be cut before the segment base is added; too rare to matter.
            Some(_) if self.memory.address_size() == CodeSize::Code32 => None,
            Some(register) => {
                let bits = register.size() as u32 * 8;
                let offset = sign_extend(known.get(register)?, bits);
                let operands_away = offset >> bits.trailing_zeros();
                Some(address.wrapping_add_signed(operands_away * i64::from(bits / 8)))
            }
        }
    }

    /// True for gathers and scatters, whose addresses lie in a vector register.
    pub(crate) fn is_vector_indexed(&self) -> bool {
        self.memory.vsib_size() != 0
    }
}

/// Sign-extends the low `bits` bits of `value`.
pub(crate) fn sign_extend(value: u64, bits: u32) -> i64 {
    let unused = 64 - bits.clamp(1, 64);
    (value << unused) as i64 >> unused
}

/// The register whose bits, beyond the operand's own width, select other operands (`bt [mem], reg`
/// and its kin).
fn bit_string_register(instruction: &Instruction) -> Option<Register> {
    let is_bit_test =
        matches!(instruction.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    (is_bit_test && instruction.op1_kind() == OpKind::Register).then(|| instruction.op1_register())
}

/// True when a mask selects the touched bytes, perhaps none.
pub(crate) fn is_masked(instruction: &Instruction) -> bool {
    instruction.has_op_mask()
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Maskmovq
                | Mnemonic::Maskmovdqu
                | Mnemonic::Vmaskmovdqu
                | Mnemonic::Vmaskmovps
                | Mnemonic::Vmaskmovpd
                | Mnemonic::Vpmaskmovd
                | Mnemonic::Vpmaskmovq
        )
}

/// True for a string instruction under a REP prefix;
/// elsewhere a REP prefix has another meaning or none.
pub(crate) fn is_repeated_string(instruction: &Instruction) -> bool {
    instruction.is_string_instruction() && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// The register that counts a repeated string instruction's iterations, by its address size.
pub(crate) fn repeat_counter(info: &InstructionInfo) -> Register {
    match info.used_memory().first().map(UsedMemory::address_size) {
        Some(CodeSize::Code32) => Register::ECX,
        _ => Register::RCX,
    }
}

/// True for the instructions whose memory operand iced counts as read although no data is accessed.
fn is_cache_control(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb | Mnemonic::Umonitor
    )
}

fn reads(memory: &UsedMemory) -> bool {
    matches!(
        memory.access(),
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn writes(memory: &UsedMemory) -> bool {
    matches!(
        memory.access(),
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// The data accesses of an instruction in order.
pub(crate) fn accesses<'a>(
    instruction: &'a Instruction,
    info: &'a InstructionInfo,
) -> impl Iterator<Item = Access<'a>> {
    let list: &[UsedMemory] = if is_cache_control(instruction) { &[] } else { info.used_memory() };
    // In any order of iced's operands, an instruction has the
    // inputs before the writes; only `enter` pushes first.
    let push_first = instruction.mnemonic() == Mnemonic::Enter;
    let first = list.iter().filter(move |memory| push_first || reads(memory));
    let then = list.iter().filter(move |memory| !push_first && !reads(memory) && writes(memory));
    first.chain(then).map(move |memory| access(instruction, memory))
}

fn access<'a>(instruction: &'a Instruction, memory: &'a UsedMemory) -> Access<'a> {
    let kind = match (reads(memory), writes(memory)) {
        (true, true) => AccessKind::ReadWrite,
        (false, true) => AccessKind::Store,
        _ => AccessKind::Load,
    };
    let is_string = instruction.is_string_instruction();
    // Under a REP prefix iced gives no size, because the whole is unknown; one iteration's is the operand's.
    let size = if is_string { instruction.memory_size() } else { memory.memory_size() }.size();
    let form = match kind {
        _ if is_string => AccessForm::String,
        AccessKind::Store if pushes(instruction) => AccessForm::Stack,
        AccessKind::Load if pops(instruction) => AccessForm::Stack,
        _ => AccessForm::Operand,
    };
    Access { memory, instruction, size: size as u32, kind, form }
}

fn pushes(instruction: &Instruction) -> bool {
    instruction.stack_pointer_increment() < 0
}

fn pops(instruction: &Instruction) -> bool {
    let is_leave = matches!(instruction.code(), Code::Leaveq | Code::Leavew);
    is_leave || instruction.mnemonic() == Mnemonic::Enter || instruction.stack_pointer_increment() > 0
}
