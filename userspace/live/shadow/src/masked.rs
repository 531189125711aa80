//! Instructions of whose memory operand a mask selects the elements: each run of neighbouring
//! selected elements is one access, and bytes that are not selected count as zero where they cannot
//! be read.
//!
//! Sources of error: a permutation under a mask, which reads its operand whole, is reported as reading
//! the elements that the mask names.

use iced_x86::{Instruction, Mnemonic as M, OpKind, Register};
use locality_stream::Kind;

use crate::access::peek;
use crate::machine::{Machine, Step, Stopped};
use crate::memory::PAGE;
use crate::op::{Op, Segment};
use crate::window::End;

/// Neighbouring elements: the first one's place in bytes, and their bytes.
type Run = (u16, u16);

/// Runs of set bits among the first `count`, in bytes.
fn runs(selected: u64, count: usize, size: u16) -> impl Iterator<Item = Run> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let is_set = |n: usize| n < count && selected >> n & 1 != 0;
        while at < count && !is_set(at) {
            at += 1;
        }
        let first = at;
        while is_set(at) {
            at += 1;
        }
        (at > first).then(|| (first as u16 * size, (at - first) as u16 * size))
    })
}

/// Which elements of the operand a mask selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selects {
    /// Element n by bit n.
    Each = 0,
    /// All by any bit: one element, or a few, for many.
    Whole = 1,
    /// As many as bits are set, from the first on: expansion and compression.
    Packed = 2,
}

/// What [`Op`] needs to know of a masked operand: all bytes, bytes of an element, and how the mask selects.
pub(crate) fn describe(instruction: &Instruction) -> (u16, u8, Selects) {
    let memory = instruction.memory_size();
    let size = memory.element_type().size().clamp(1, 8);
    let count = (memory.size() / size).clamp(1, 64);
    let name = format!("{:?}", instruction.mnemonic()).to_ascii_lowercase();
    let is_broadcast = instruction.is_broadcast() || name.contains("broadcast");
    let is_scalar = ["ss", "sd", "sh"].iter().any(|end| name.ends_with(end));
    let selects = if is_broadcast || count == 1 && !is_scalar {
        Selects::Whole
    } else if name.contains("expand") || name.contains("compress") {
        Selects::Packed
    } else {
        Selects::Each
    };
    ((count * size) as u16, size as u8, selects)
}

/// The low `count` bits.
fn low(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

impl Machine<'_> {
    /// The elements selected, as bits, with their number and size.
    fn selection(&self, op: &Op, instruction: &Instruction) -> (u64, usize, u16) {
        let size = usize::from(op.width.max(1));
        let count = usize::from(op.size) / size;
        let mask = if instruction.op_mask() == Register::None {
            let signs = &self.context.vectors[instruction.op1_register().number() & 31];
            (0..count).map(|n| u64::from(signs[(n * size + size - 1) & 63] >> 7) << n).sum()
        } else {
            self.context.masks[instruction.op_mask().number() & 7]
        };
        let selected = match op.source {
            whole if whole == Selects::Whole as u8 => low(if mask == 0 { 0 } else { count }),
            packed if packed == Selects::Packed as u8 => low((mask & low(count)).count_ones() as usize),
            _ => mask & low(count),
        };
        (selected, count, size as u16)
    }

    /// Runs the instruction on a copy of its operand.
    pub(crate) fn masked(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        let (selected, count, size) = self.selection(op, instruction);
        let address = self.address(&op.place);
        let stores = instruction.op0_kind() == OpKind::Memory;
        if op.stub == 0 {
            return self.stop(End::Unsupported, op.ip);
        }
        let place = self.bounce(address);
        self.copy_readable(address, op.size, place);
        for (at, bytes) in runs(selected, count, size) {
            let first = address.wrapping_add(at.into());
            self.check(first, bytes, stores)?;
        }
        // SAFETY: `bounce` has room for the operand.
        let before = |at: u16, bytes| unsafe { peek(place.add(at.into()), bytes) };
        if !stores {
            for (at, bytes) in runs(selected, count, size) {
                let first = address.wrapping_add(at.into());
                self.record.access(Kind::LOAD, index, first, bytes, before(at, bytes));
            }
        }
        // SAFETY: as above.
        unsafe { self.native(op, place)? };
        if stores {
            for (at, bytes) in runs(selected, count, size) {
                let first = address.wrapping_add(at.into());
                // SAFETY: within `bounce`.
                let from = unsafe { place.add(at.into()) };
                self.copy_out(first, bytes, from)?;
                self.record.access(Kind::STORE, index, first, bytes, before(at, bytes));
            }
        }
        Ok(())
    }

    /// Copies the operand, with zeros for what cannot be read.
    fn copy_readable(&mut self, address: u64, size: u16, place: *mut u8) {
        let mut done = 0_u64;
        while done < u64::from(size) {
            let at = address.wrapping_add(done);
            let piece = (PAGE - at % PAGE).min(u64::from(size) - done) as usize;
            // SAFETY: `place` has room for the operand, and a page that was found has `piece` bytes
            // from there on.
            unsafe {
                let to = place.add(done as usize);
                match self.pages.read(at, self.memory) {
                    Ok(from) => std::ptr::copy_nonoverlapping(from, to, piece),
                    Err(_) => to.write_bytes(0, piece),
                }
            }
            done += piece as u64;
        }
    }

    /// Whether the first and the last of these bytes may be accessed.
    fn check(&mut self, address: u64, bytes: u16, stores: bool) -> Result<(), Stopped> {
        for at in [address, address.wrapping_add(u64::from(bytes) - 1)] {
            let found = if stores {
                self.pages.write(at, self.memory).map(|_| ())
            } else {
                self.pages.read(at, self.memory).map(|_| ())
            };
            if let Err((end, detail)) = found {
                return self.stop(end, detail);
            }
        }
        Ok(())
    }

    /// maskmovdqu: bytes with the mask's top bit go to the address in RDI.
    pub(crate) fn mask_move(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        if instruction.mnemonic() == M::Maskmovq {
            return self.stop(End::Unsupported, op.ip);
        }
        let (data, mask) = (instruction.op1_register(), instruction.op2_register());
        let data = self.context.vectors[data.number() & 31];
        let mask = self.context.vectors[mask.number() & 31];
        let selected: u64 = (0..16).map(|n| u64::from(mask[n] >> 7) << n).sum();
        let base = match op.place.segment {
            Segment::None => 0,
            Segment::Fs => self.context.fs_base,
            Segment::Gs => self.context.gs_base,
        };
        let to = match instruction.op0_kind() {
            OpKind::MemorySegEDI => self.context.get(7) & 0xffff_ffff,
            _ => self.context.get(7),
        }
        .wrapping_add(base);
        for (at, bytes) in runs(selected, 16, 1) {
            self.check(to.wrapping_add(at.into()), bytes, true)?;
        }
        for (at, bytes) in runs(selected, 16, 1) {
            // SAFETY: `runs` stays within the 16 bytes of the register.
            let from = unsafe { data.as_ptr().add(at.into()) };
            let address = to.wrapping_add(at.into());
            self.copy_out(address, bytes, from)?;
            // SAFETY: as above.
            self.record.access(Kind::STORE, index, address, bytes, unsafe { peek(from, bytes) });
        }
        Ok(())
    }
}
