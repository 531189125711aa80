//! Unwind rules from `.eh_frame` for x86-64 (System V ABI, AMD64 supplement, §3.7; DWARF 5, §6.4).
//!
//! gimli parses the tables; here is what a stack walk needs of them. Most rows say "the canonical
//! frame address (CFA) is rsp or rbp plus a constant", and become a small copyable [`Rule`]; the
//! others are evaluated in full each time.
//!
//! Why not framehop: version 0.16 cannot read memory in a CFA expression, as
//! needed for glibc's signal return frame and gcc's realigned stacks. With bad
//! tables, framehop changes to frame pointers without a report, and no reason
//! could be given for a cut stack. Hostile offsets make framehop overflow. Only
//! [`Rule::Offsets`] would remain for framehop, now the oracle of the tests.
//!
//! Limits: a walk knows no registers but rip, rsp and rbp, and the few
//! rows with further registers are refused; `.debug_frame` is not read.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, EhFrameOffset, Evaluation, EvaluationResult,
    Expression, FrameDescriptionEntry, LittleEndian, Location, Pointer, Register, RegisterRule,
    UnwindContext, UnwindExpression, UnwindSection, Value, X86_64,
};

use crate::elf::{Elf, Slice, UnwindIndex, UnwindTables};
use crate::unwind::{CutReason, Registers};

/// How to get from a frame to its caller. The return
/// address lies below the CFA, except in [`Rule::Complex`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// CFA = rsp or rbp + offset; the caller's rbp is stored at CFA + offset, or unchanged.
    Offsets { from_rbp: bool, cfa: i32, rbp: Option<i32> },
    /// Anything else: see [`evaluate`].
    Complex,
    /// The tables mark the outermost frame.
    Root,
    /// The code that ends a signal handler; at rsp lies the interrupted context.
    SignalReturn,
    /// No usable rule; the reason to give when following rbp fails, too.
    FramePointer(CutReason),
}

/// Scratch memory of gimli's evaluation, reused between calls.
pub(crate) type Context = UnwindContext<usize>;

/// The rule at an address of the module.
pub(crate) fn rule(elf: &Elf, address: u64, context: &mut Context) -> Rule {
    let Some(tables) = &elf.unwind_tables else { return Rule::FramePointer(CutReason::NoUnwindInfo) };
    let found = with_row(elf, tables, address, context, |_, _, cfa, rbp, ra| match ra {
        Some(RegisterRule::Undefined) => Rule::Root,
        Some(RegisterRule::Offset(-8)) => simple(cfa, rbp).unwrap_or(Rule::Complex),
        _ => Rule::Complex,
    });
    match found {
        Ok(rule) => rule,
        Err(gimli::Error::NoUnwindInfoForAddress) => Rule::FramePointer(CutReason::NoUnwindInfo),
        Err(_) => Rule::FramePointer(CutReason::BadUnwindInfo),
    }
}

fn simple(cfa: &CfaRule<usize>, rbp: Option<RegisterRule<usize>>) -> Option<Rule> {
    let CfaRule::RegisterAndOffset { register, offset } = *cfa else { return None };
    let from_rbp = match register {
        X86_64::RSP => false,
        X86_64::RBP => true,
        _ => return None,
    };
    let rbp = match rbp {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => None,
        Some(RegisterRule::Offset(offset)) => Some(i32::try_from(offset).ok()?),
        _ => return None,
    };
    Some(Rule::Offsets { from_rbp, cfa: i32::try_from(offset).ok()?, rbp })
}

/// Registers that a function keeps for its caller, rbp and rsp aside:
/// rbx, r12 to r15 (AMD64 supplement, §3.2.1), as DWARF numbers.
pub(crate) const KEPT: [u16; 5] = [3, 12, 13, 14, 15];

/// Place of the caller's register in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Still in the register.
    Unchanged,
    /// At this offset from the canonical frame address.
    Stored(i64),
    /// Somewhere else, or nowhere.
    Unknown,
}

/// Where the frame at an address has its caller's registers, in the order of [`KEPT`].
pub(crate) fn kept(elf: &Elf, address: u64, context: &mut Context) -> Option<[Kept; 5]> {
    let tables = elf.unwind_tables.as_ref()?;
    let (frames, entry) = entry(elf, tables, address).ok()?;
    let row = entry.unwind_info_for_address(&frames, &tables.bases, context, address).ok()?;
    let of = |register| match row.register(Register(register)) {
        None | Some(RegisterRule::SameValue) => Kept::Unchanged,
        Some(RegisterRule::Offset(offset)) => Kept::Stored(offset),
        Some(_) => Kept::Unknown,
    };
    // The code that ends a signal handler preserves the
    // values stored by the kernel, not those in registers.
    if entry.is_signal_trampoline() { None } else { Some(KEPT.map(of)) }
}

/// Start of the table entry (in practice the function) around an address.
pub(crate) fn entry_start(elf: &Elf, address: u64) -> Option<u64> {
    let tables = elf.unwind_tables.as_ref()?;
    Some(entry(elf, tables, address).ok()?.1.initial_address())
}

/// Addresses of the table entry (in practice the function) around an address.
pub(crate) fn entry_range(elf: &Elf, address: u64) -> Option<std::ops::Range<u64>> {
    let tables = elf.unwind_tables.as_ref()?;
    let (_, entry) = entry(elf, tables, address).ok()?;
    let start = entry.initial_address();
    Some(start..start.checked_add(entry.len())?)
}

/// Does one step by a [`Rule::Complex`] row. `read` reads eight bytes of the stack.
pub(crate) fn evaluate(
    elf: &Elf,
    address: u64,
    registers: &Registers,
    read: &dyn Fn(u64) -> Result<u64, CutReason>,
    context: &mut Context,
) -> Result<Registers, CutReason> {
    let tables = elf.unwind_tables.as_ref().ok_or(CutReason::NoUnwindInfo)?;
    let row = with_row(elf, tables, address, context, |frames, encoding, cfa, rbp, ra| {
        let run = |expression: &UnwindExpression<usize>| {
            let expression = expression.get(frames).map_err(|_| CutReason::BadUnwindInfo)?;
            run(expression, encoding, registers, read)
        };
        let cfa = match cfa {
            CfaRule::RegisterAndOffset { register, offset } => {
                known(*register, registers)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => run(expression)?,
        };
        let value = |rule: Option<RegisterRule<usize>>| match rule {
            Some(RegisterRule::Offset(offset)) => read(cfa.wrapping_add_signed(offset)).map(Some),
            Some(RegisterRule::ValOffset(offset)) => Ok(Some(cfa.wrapping_add_signed(offset))),
            Some(RegisterRule::Expression(expression)) => read(run(&expression)?).map(Some),
            Some(RegisterRule::ValExpression(expression)) => run(&expression).map(Some),
            Some(RegisterRule::Register(register)) => known(register, registers).map(Some),
            _ => Ok(None),
        };
        let rip = value(ra)?.ok_or(CutReason::BadUnwindInfo)?;
        Ok(Registers { rip, rsp: cfa, rbp: value(rbp)?.unwrap_or(registers.rbp) })
    });
    row.map_err(|_| CutReason::BadUnwindInfo)?
}

type Entry<'a> = FrameDescriptionEntry<Slice<'a>>;

fn entry<'a>(
    elf: &'a Elf,
    tables: &UnwindTables,
    address: u64,
) -> Result<(EhFrame<Slice<'a>>, Entry<'a>), gimli::Error> {
    let frames = elf.bytes.get(tables.frames.clone()).unwrap_or_default();
    let mut frames = EhFrame::new(frames, LittleEndian);
    frames.set_address_size(8);
    let offset = match &tables.index {
        UnwindIndex::Header(header) => {
            let header = elf.bytes.get(header.clone()).unwrap_or_default();
            let header = EhFrameHdr::new(header, LittleEndian).parse(&tables.bases, 8)?;
            let table = header.table().ok_or(gimli::Error::NoUnwindInfoForAddress)?;
            // gimli's own conversion to an offset overflows on pointers before the section.
            match table.lookup(address, &tables.bases)? {
                Pointer::Direct(at) => at.checked_sub(tables.frames_address),
                Pointer::Indirect(_) => None,
            }
        }
        UnwindIndex::Sorted(entries) => {
            let behind = entries.partition_point(|(start, _)| *start <= address);
            behind.checked_sub(1).and_then(|at| entries.get(at)).map(|(_, offset)| *offset as u64)
        }
    };
    let offset = offset.and_then(|offset| usize::try_from(offset).ok());
    let offset = EhFrameOffset(offset.ok_or(gimli::Error::NoUnwindInfoForAddress)?);
    let entry = frames.fde_from_offset(&tables.bases, offset, EhFrame::cie_from_offset)?;
    if !entry.contains(address) {
        return Err(gimli::Error::NoUnwindInfoForAddress);
    }
    Ok((frames, entry))
}

/// Start addresses and offsets of the readable entries, by address.
pub(crate) fn sorted_index(frames: &[u8], bases: &BaseAddresses) -> Vec<(u64, usize)> {
    let mut frames = EhFrame::new(frames, LittleEndian);
    frames.set_address_size(8);
    let mut found = Vec::new();
    let mut entries = frames.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        if let Ok(entry) = partial.parse(EhFrame::cie_from_offset) {
            found.push((entry.initial_address(), entry.offset()));
        }
    }
    found.sort_unstable();
    found
}

/// Hands the row for an address to `use_row`: section, encoding, and the rules for CFA, rbp and
/// return address.
fn with_row<'a, T>(
    elf: &'a Elf,
    tables: &UnwindTables,
    address: u64,
    context: &mut Context,
    use_row: impl FnOnce(
        &EhFrame<Slice<'a>>,
        gimli::Encoding,
        &CfaRule<usize>,
        Option<RegisterRule<usize>>,
        Option<RegisterRule<usize>>,
    ) -> T,
) -> Result<T, gimli::Error> {
    let (frames, entry) = entry(elf, tables, address)?;
    let row = entry.unwind_info_for_address(&frames, &tables.bases, context, address)?;
    let (rbp, ra) = (row.register(X86_64::RBP), row.register(X86_64::RA));
    Ok(use_row(&frames, entry.cie().encoding(), row.cfa(), rbp, ra))
}

/// Runs a DWARF expression that yields an address or a value.
fn run(
    expression: Expression<Slice<'_>>,
    encoding: gimli::Encoding,
    registers: &Registers,
    read: &dyn Fn(u64) -> Result<u64, CutReason>,
) -> Result<u64, CutReason> {
    let bad = |_| CutReason::BadUnwindInfo;
    let mut evaluation = Evaluation::new(expression.0, encoding);
    // Tables may hold endless loops.
    evaluation.set_max_iterations(1000);
    let mut state = evaluation.evaluate().map_err(bad)?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                evaluation.resume_with_register(Value::Generic(known(register, registers)?)).map_err(bad)?
            }
            EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                evaluation.resume_with_memory(Value::Generic(read(address)?)).map_err(bad)?
            }
            _ => return Err(CutReason::BadUnwindInfo),
        };
    }
    match evaluation.as_result() {
        [piece] => match piece.location {
            Location::Address { address } => Ok(address),
            _ => Err(CutReason::BadUnwindInfo),
        },
        _ => Err(CutReason::BadUnwindInfo),
    }
}

fn known(register: Register, registers: &Registers) -> Result<u64, CutReason> {
    match register {
        X86_64::RSP => Ok(registers.rsp),
        X86_64::RBP => Ok(registers.rbp),
        X86_64::RA => Ok(registers.rip),
        _ => Err(CutReason::RegisterUnknown),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::elf::Bytes;

    /// A small program with all its tables, and one without the header.
    fn programs() -> Vec<Vec<u8>> {
        let directory = tempfile::tempdir().unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/special.c");
        let out = directory.path().join("program");
        ["-Wl,--eh-frame-hdr", "-Wl,--no-eh-frame-hdr"]
            .map(|flag| {
                let status = Command::new("gcc").args(["-O2", flag, "-o"]).arg(&out).arg(source).status();
                assert!(status.unwrap().success());
                std::fs::read(&out).unwrap()
            })
            .into()
    }

    fn walk_over(bytes: Vec<u8>) -> Vec<Rule> {
        let Some(elf) = Elf::parse(Bytes::Copied(bytes)) else { return Vec::new() };
        let symbols = elf.symbols();
        let mut context = Context::new();
        let registers = Registers { rip: 0x1000, rsp: 0x7ff0_0000, rbp: 0x7ff0_0100 };
        // Every word of the stack holds its own address.
        let read =
            |address| if address < u64::MAX / 2 { Ok(address) } else { Err(CutReason::StackSliceEnded) };
        (0x1000..0x1600)
            .map(|address| {
                let rule = rule(&elf, address, &mut context);
                if rule == Rule::Complex {
                    let _ = evaluate(&elf, address, &registers, &read, &mut context);
                }
                let _ = (entry_start(&elf, address), symbols.find(&elf, address));
                rule
            })
            .collect()
    }

    /// The sorted index stands in for the header: both programs have the same rules at the same places.
    #[test]
    fn index_equals_header() {
        let mut rules = programs().into_iter().map(|bytes| {
            let elf = Elf::parse(Bytes::Copied(bytes.clone())).unwrap();
            let kind = matches!(elf.unwind_tables.unwrap().index, UnwindIndex::Header(_));
            (kind, walk_over(bytes))
        });
        let (with, without) = (rules.next().unwrap(), rules.next().unwrap());
        assert_eq!((with.0, without.0), (true, false));
        assert_eq!(with.1, without.1);
        for wanted in [Rule::Root, Rule::Complex, Rule::Offsets { from_rbp: false, cfa: 8, rbp: None }] {
            assert!(with.1.contains(&wanted), "{wanted:?}");
        }
    }

    /// Random bytes in headers and tables, and files cut anywhere: never a panic, never an endless loop.
    #[test]
    fn garbage() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for whole in programs() {
            let tables = Elf::parse(Bytes::Copied(whole.clone())).unwrap().unwind_tables.unwrap();
            // The header, where there is one, stands right before the table.
            let (start, end) =
                (tables.frames.start - 0x100, tables.frames.end.min(tables.frames.start + 0x400));
            for round in 0..150 {
                let mut bytes = whole.clone();
                for _ in 0..1 + round % 20 {
                    let (from, to) = if round % 4 == 0 { (0, 0x400) } else { (start, end) };
                    bytes[from + next() as usize % (to - from)] = next() as u8;
                }
                if round % 5 == 0 {
                    bytes.truncate(next() as usize % whole.len());
                }
                walk_over(bytes);
            }
        }
    }
}
