//! The first data access at or after `rip` whose place follows from the registers alone.
//!
//! The instruction at `rip` most often makes it. Instructions without a memory access are
//! interpreted ([`crate::results`]) up to the first one with an access. Memory is never read, so
//! the first load ends the search.

use std::fmt;

use iced_x86::{Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic};

use crate::code::{Code, Undecoded};
use crate::interpret::step;
use crate::known::Known;
use crate::memory::{AccessForm, AccessKind, accesses, is_masked, is_repeated_string, repeat_counter};
use crate::registers::Registers;

/// Instructions that are looked at before giving up; more than a straight line of code without an
/// access ever has.
const MAX_INSTRUCTIONS: u32 = 64;

/// An access of the thread in the near future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownAccess {
    /// Instruction that makes the access.
    pub ip: u64,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u32,
    /// Direction.
    pub kind: AccessKind,
    /// Operand, stack or string access.
    pub form: AccessForm,
    /// Instructions between `rip` and [`KnownAccess::ip`], each without an access; 0 when `rip`
    /// itself accesses.
    pub skipped: u32,
}

impl KnownAccess {
    /// The aligned 8-byte words of the access, lowest first: the units of watchpoints.
    pub fn words(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.address & !7;
        let offset = self.address & 7;
        let count = (offset + u64::from(self.size)).div_ceil(8);
        (0..count).map(move |index| first.wrapping_add(index * 8))
    }
}

/// Why the next access cannot be known from the registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unreachable {
    /// A register of the address (or a REP count) was written by an instruction that is not interpreted.
    AddressRegisterUnknown,
    /// A branch depends on flags or a counter that are not known.
    FlagsUnknown,
    /// The path leaves the code bytes that were given.
    LeftCode,
    /// The bytes are no instruction.
    UndecodableCode,
    /// A system call comes first.
    SystemCall,
    /// A gather or scatter: many addresses, in a vector register.
    GatherScatter,
    /// A mask decides about the touched bytes.
    Masked,
    /// The number of bytes depends on CPUID (the xsave family, tiles).
    SizeUnknown,
    /// No access within the examined instructions.
    TooLong,
    /// An indirect branch through an unknown register.
    IndirectBranch,
    /// An instruction that traps by design (breakpoint, `ud2`).
    Trap,
    /// A privileged or input/output instruction.
    Privileged,
    /// An instruction unknown to this package (transactions, `clzero`).
    Other,
}

impl Unreachable {
    /// A short phrase for reports and ledgers.
    pub fn phrase(self) -> &'static str {
        match self {
            Unreachable::AddressRegisterUnknown => "address register unknown",
            Unreachable::FlagsUnknown => "branch on unknown flags",
            Unreachable::LeftCode => "left the copied code",
            Unreachable::UndecodableCode => "undecodable code",
            Unreachable::SystemCall => "system call first",
            Unreachable::GatherScatter => "gather or scatter",
            Unreachable::Masked => "masked access",
            Unreachable::SizeUnknown => "access size unknown",
            Unreachable::TooLong => "no access nearby",
            Unreachable::IndirectBranch => "indirect branch",
            Unreachable::Trap => "trapping instruction",
            Unreachable::Privileged => "privileged instruction",
            Unreachable::Other => "unsupported instruction",
        }
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phrase())
    }
}

impl std::error::Error for Unreachable {}

/// Finds the first data access at or after `registers.rip`.
///
/// Branches are followed only within `code`. Of the steps of five programs, 0.4 to 10 % leave 128
/// bytes to both sides of `rip`, and 0.2 to 6 % leave 512 (`src/native/programs.rs`): more code
/// reaches more accesses.
pub fn first_access(code: &Code<'_>, registers: &Registers) -> Result<KnownAccess, Unreachable> {
    walk(code, registers, |_, _| ())
}

/// As [`first_access`]; `visit` receives the address of each
/// instruction on the path and the known bits before the instruction.
pub(crate) fn walk(
    code: &Code<'_>,
    registers: &Registers,
    mut visit: impl FnMut(u64, &Known),
) -> Result<KnownAccess, Unreachable> {
    let mut known = Known::all(registers);
    let mut decoder = code.decoder();
    let mut factory = InstructionInfoFactory::new();
    let mut ip = registers.rip;
    for skipped in 0..MAX_INSTRUCTIONS {
        visit(ip, &known);
        let instruction = code.decode(&mut decoder, ip).map_err(|undecoded| match undecoded {
            Undecoded::Outside => Unreachable::LeftCode,
            Undecoded::Invalid => Unreachable::UndecodableCode,
        })?;
        if instruction.is_privileged() {
            return Err(Unreachable::Privileged);
        }
        let info = factory.info(&instruction);
        if let Some(access) = access_of(&instruction, info, &known, skipped)? {
            return Ok(access);
        }
        ip = step(&instruction, info, &mut known)?;
    }
    Err(Unreachable::TooLong)
}

/// The first access of one instruction; `Ok(None)` without one.
fn access_of(
    instruction: &Instruction,
    info: &InstructionInfo,
    known: &Known,
    skipped: u32,
) -> Result<Option<KnownAccess>, Unreachable> {
    // `clzero` writes the cache line at rax, an access missing in iced's list.
    if matches!(instruction.mnemonic(), Mnemonic::Clzero) {
        return Err(Unreachable::Other);
    }
    let Some(access) = accesses(instruction, info).next() else { return Ok(None) };
    if is_repeated_string(instruction) {
        let count = known.get(repeat_counter(info)).ok_or(Unreachable::AddressRegisterUnknown)?;
        if count == 0 {
            return Ok(None);
        }
    }
    if access.is_vector_indexed() {
        return Err(Unreachable::GatherScatter);
    }
    if is_masked(instruction) {
        return Err(Unreachable::Masked);
    }
    if access.size == 0 {
        return Err(Unreachable::SizeUnknown);
    }
    Ok(Some(KnownAccess {
        ip: instruction.ip(),
        address: access.address(known).ok_or(Unreachable::AddressRegisterUnknown)?,
        size: access.size,
        kind: access.kind,
        form: access.form,
        skipped,
    }))
}
