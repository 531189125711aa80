//! The instruction of a data-watchpoint trap.
//!
//! x86 reports such a trap after the access, with `rip` after the instruction. Exceptions: between
//! two iterations of a REP string instruction `rip` is the instruction itself; after a call, ret or
//! jmp through memory it is the target.
//!
//! Sources of error: an instruction that overwrote the address register cannot be
//! checked; code in front of `rip` that holds data can make a false instruction look
//! likely; a jump target after an instruction with a lost address may be mistaken
//! for the end of the instruction. [`Certainty`] states the possible errors.

use std::fmt;

use iced_x86::{FlowControl, InstructionInfoFactory};

use crate::backward::{Ending, endings};
use crate::before::{Fit, fit};
use crate::code::Code;
use crate::memory::{AccessKind, is_repeated_string};
use crate::registers::Registers;

/// Share of the decoding attempts that must agree on an instruction before it is taken as the true one.
const SURE_SHARE: f32 = 0.8;

/// The bytes that a watchpoint covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// First byte.
    pub address: u64,
    /// 1, 2, 4 or 8.
    pub bytes: u8,
}

/// The known facts of a watchpoint's trap.
#[derive(Debug, Clone, Copy)]
pub struct Trap<'a> {
    /// The registers that the trap reported; `rip` lies after the access.
    pub registers: Registers,
    /// The watchpoint.
    pub watched: Watched,
    /// Start of the function around `rip`, or an instruction boundary before
    /// `rip`. Equality with `rip` marks `rip` as an entry, reached by a branch.
    pub function_start: Option<u64>,
    /// The 8 bytes at `rsp`, if they were read: the return address when a call made the access.
    pub top_of_stack: Option<u64>,
    /// Code in front of [`Trap::top_of_stack`], where it was read: without it, only calls within
    /// the code around `rip` can be verified.
    pub call_site: Option<Code<'a>>,
}

impl Trap<'_> {
    /// True when the watched bytes lie on top of the stack: only then do [`Trap::top_of_stack`] and
    /// [`Trap::call_site`] matter.
    pub fn is_on_top_of_stack(&self) -> bool {
        self.watched.overlaps(self.registers.rsp, 8)
    }
}

/// Who made the access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The instruction at this address.
    Instruction {
        /// Its first byte.
        ip: u64,
    },
    /// The call that ends at the return address, pushed onto the watched bytes.
    Call {
        /// [`Trap::top_of_stack`].
        return_address: Option<u64>,
    },
    /// A `ret`, somewhere in the function that has just returned to `rip`; it popped the watched bytes.
    Return,
}

/// How sure the answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Certainty {
    /// Several explanations remain, and only the likelihood favours this explanation.
    Unverifiable,
    /// Either the instruction or the address is sure, without a contradiction by the other.
    Consistent,
    /// The instruction is sure and its effective address covers watched bytes.
    Verified,
}

/// The access that a trap reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The instruction that made the access.
    pub site: Site,
    /// Direction.
    pub kind: AccessKind,
    /// How sure it is.
    pub certainty: Certainty,
    /// Further explanations compatible with the registers.
    pub alternatives: u8,
}

/// Why the accessing instruction was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NotFound {
    /// The code before `rip` did not touch the bytes: `rip` was
    /// reached by a branch, for example a jump through memory.
    AfterBranch,
    /// No instruction ends at `rip`, or the code before it is missing.
    NoInstruction,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotFound::AfterBranch => "reached by a branch",
            NotFound::NoInstruction => "no instruction before the trap",
        })
    }
}

impl std::error::Error for NotFound {}

/// Finds the instruction of the access that `trap` reported.
///
/// `code` should reach 80 bytes or more before `rip`, and 15 beyond it for REP string instructions.
pub fn accessing_instruction(code: &Code<'_>, trap: &Trap<'_>) -> Result<Found, NotFound> {
    let rip = trap.registers.rip;
    let mut decoder = code.decoder();
    let mut factory = InstructionInfoFactory::new();
    let endings = match trap.function_start {
        Some(start) if start == rip => Vec::new(),
        start => endings(code, &mut decoder, rip, start),
    };
    let mut explanations = Vec::new();
    for (rank, ending) in endings.iter().enumerate() {
        let info = factory.info(&ending.instruction);
        if let Some(fit) = fit(&ending.instruction, info, trap) {
            explanations.push(before_rip(ending, rank, fit));
        }
    }
    if let Ok(instruction) = code.decode(&mut decoder, rip)
        && is_repeated_string(&instruction)
        && let Some(fit) = fit(&instruction, factory.info(&instruction), trap)
    {
        explanations.push(explanation(Site::Instruction { ip: rip }, fit, true));
    }
    let is_entry = trap.function_start == Some(rip);
    explanations.extend(call(code, trap, is_entry));
    explanations.extend(returned(trap, &endings));

    let others = explanations.len().saturating_sub(1).min(255) as u8;
    // Of equals the first wins: the list is in order of likelihood.
    let best = explanations.into_iter().rev().max_by_key(|found| found.certainty);
    match best {
        Some(found) => Ok(Found { alternatives: others, ..found }),
        None if endings.is_empty() && !is_entry => Err(NotFound::NoInstruction),
        None => Err(NotFound::AfterBranch),
    }
}

fn explanation(site: Site, fit: Fit, is_sure: bool) -> Found {
    let certainty = match (fit, is_sure) {
        (Fit::Covers(_), true) => Certainty::Verified,
        (Fit::Covers(_), false) | (Fit::Possible(_), true) => Certainty::Consistent,
        (Fit::Possible(_), false) => Certainty::Unverifiable,
    };
    Found { site, kind: fit.kind(), certainty, alternatives: 0 }
}

fn before_rip(ending: &Ending, rank: usize, fit: Fit) -> Found {
    let is_sure = rank == 0 && ending.share >= SURE_SHARE;
    explanation(Site::Instruction { ip: ending.instruction.ip() }, fit, is_sure)
}

/// A call pushed its return address onto the watched bytes and jumped to `rip`.
fn call(code: &Code<'_>, trap: &Trap<'_>, is_entry: bool) -> Option<Found> {
    if !trap.is_on_top_of_stack() {
        return None;
    }
    let site_code = trap.call_site.as_ref().unwrap_or(code);
    let sites = trap.top_of_stack.map(|top| endings(site_code, &mut site_code.decoder(), top, None));
    let certainty = match sites {
        None => is_entry.then_some(Certainty::Consistent)?,
        // The code before the return address is not at hand.
        Some(sites) if sites.is_empty() && is_entry => Certainty::Consistent,
        Some(sites) if sites.is_empty() => Certainty::Unverifiable,
        Some(sites) => sites.iter().filter_map(|site| calls(site, trap.registers.rip)).max()?,
    };
    let site = Site::Call { return_address: trap.top_of_stack };
    Some(Found { site, kind: AccessKind::Store, certainty, alternatives: 0 })
}

fn calls(site: &Ending, target: u64) -> Option<Certainty> {
    match site.instruction.flow_control() {
        FlowControl::Call if site.instruction.near_branch_target() == target => Some(Certainty::Verified),
        FlowControl::IndirectCall => Some(Certainty::Consistent),
        _ => None,
    }
}

/// A `ret` popped the watched bytes and came back to `rip`, which a call precedes.
fn returned(trap: &Trap<'_>, endings: &[Ending]) -> Option<Found> {
    if !trap.watched.overlaps(trap.registers.rsp.wrapping_sub(8), 8) {
        return None;
    }
    let is_call = |ending: &Ending| {
        matches!(ending.instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
    };
    let rank = endings.iter().position(is_call)?;
    let is_sure = rank == 0 && endings.first()?.share >= SURE_SHARE;
    let certainty = if is_sure { Certainty::Verified } else { Certainty::Consistent };
    Some(Found { site: Site::Return, kind: AccessKind::Load, certainty, alternatives: 0 })
}
