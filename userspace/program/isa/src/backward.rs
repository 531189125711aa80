//! Which instructions may end at an address. x86 code cannot be decoded backwards: several
//! instructions of different lengths may end at one place, and the processor ran only one.
//!
//! With a known boundary before it, decoding forward settles the question. Without a
//! boundary, every offset in front is tried as a start. Decoding from a wrong offset
//! falls into step with the true decoding after a few instructions: most attempts end
//! in the true last instruction. Data between instructions can mislead the search.

use iced_x86::{Decoder, Instruction};

use crate::code::Code;

/// Longest x86 instruction.
const MAX_LENGTH: usize = 15;
/// Offsets in front that are tried as starts: the longest instruction, and 64 more to fall into step.
const TRIED: usize = 64 + MAX_LENGTH;

/// An instruction that ends at the address asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    pub(crate) instruction: Instruction,
    /// Share of the tried starts that lead to this instruction; 1 when a known boundary does.
    pub(crate) share: f32,
}

/// The instructions that may end at `end`, the most likely first.
///
/// `start` is an instruction boundary before `end`; one outside the code, or from which no
/// instruction ends at `end`, is of no use and is ignored.
pub(crate) fn endings<'a>(
    code: &Code<'a>,
    decoder: &mut Decoder<'a>,
    end: u64,
    start: Option<u64>,
) -> Vec<Ending> {
    if let Some(instruction) = start.and_then(|start| decode_from(code, decoder, start, end)) {
        return vec![Ending { instruction, share: 1.0 }];
    }
    let mut found = Vec::new();
    // By distance before `end`: the length of the last instruction
    // on the path to `end`, 0 for a path that misses `end`.
    let mut last = [0_usize; TRIED + 1];
    let mut votes = [0_u16; MAX_LENGTH + 1];
    for distance in 1..=TRIED {
        let Ok(instruction) = code.decode(decoder, end.wrapping_sub(distance as u64)) else { continue };
        let length = instruction.len();
        if length == distance {
            found.push(instruction);
        }
        let ends_in = match distance.checked_sub(length) {
            None => 0,
            Some(0) => length,
            Some(rest) => last.get(rest).copied().unwrap_or(0),
        };
        if let Some(slot) = last.get_mut(distance) {
            *slot = ends_in;
        }
        if ends_in != 0
            && let Some(vote) = votes.get_mut(ends_in)
        {
            *vote += 1;
        }
    }
    let all: u16 = votes.iter().sum();
    let mut endings: Vec<Ending> = found
        .into_iter()
        .map(|instruction| {
            let vote = votes.get(instruction.len()).copied().unwrap_or(0);
            Ending { instruction, share: f32::from(vote) / f32::from(all.max(1)) }
        })
        .collect();
    endings.sort_by(|a, b| b.share.total_cmp(&a.share));
    endings
}

/// Decodes forward from `start`; the instruction that ends at `end`, if one does.
fn decode_from<'a>(code: &Code<'a>, decoder: &mut Decoder<'a>, start: u64, end: u64) -> Option<Instruction> {
    let mut ip = start;
    while ip < end {
        let instruction = code.decode(decoder, ip).ok()?;
        ip = instruction.next_ip();
        if ip == end {
            return Some(instruction);
        }
    }
    None
}
