//! Instructions of whose memory operand a mask selects the elements: each run of neighbouring selected elements is one
//! access, and bytes that are not selected count as zero where they cannot be read.
//!
//! Sources of error: a permutation under a mask, which reads its operand whole, is told as reading the elements that the
//! mask names.

use iced_x86::{Instruction, Mnemonic as M, OpKind, Register};
use locality_stream::Kind;

use crate::machine::{Machine, Step, Stopped, peek};
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

impl Machine<'_> {
    /// The elements selected, as bits, with their number and size.
    fn selection(&self, instruction: &Instruction) -> (u64, usize, u16) {
        let memory = instruction.memory_size();
        let size = memory.element_type().size().max(1);
        let count = (memory.size() / size).clamp(1, 64);
        let all = if count == 64 { u64::MAX } else { (1 << count) - 1 };
        let name = format!("{:?}", instruction.mnemonic()).to_ascii_lowercase();
        let mask = if instruction.op_mask() == Register::None {
            let signs = &self.context.vectors[instruction.op1_register().number() & 31];
            (0..count).map(|n| u64::from(signs[(n * size + size - 1) & 63] >> 7) << n).sum()
        } else {
            self.context.masks[instruction.op_mask().number() & 7]
        };
        let is_broadcast = instruction.is_broadcast() || name.contains("broadcast");
        let is_scalar = ["ss", "sd", "sh"].iter().any(|end| name.ends_with(end));
        let selected = if is_broadcast || count == 1 && !is_scalar {
            if mask == 0 { 0 } else { all }
        } else if name.contains("expand") || name.contains("compress") {
            let packed = (mask & all).count_ones();
            if packed == 64 { u64::MAX } else { (1 << packed) - 1 }
        } else {
            mask & all
        };
        (selected, count, size as u16)
    }

    /// Runs it on a copy of its operand.
    pub(crate) fn masked(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        let (selected, count, size) = self.selection(instruction);
        let address = self.address(&op.place);
        let stores = instruction.op0_kind() == OpKind::Memory;
        if op.stub == 0 {
            return self.stop(End::Unsupported, op.ip);
        }
        let place = self.bounce(address);
        for byte in 0..count as u64 * u64::from(size) {
            let from = self.pages.read(address.wrapping_add(byte), self.memory);
            // SAFETY: within `bounce`; the source is a readable byte.
            unsafe { place.add(byte as usize).write(from.map_or(0, |from| from.read())) };
        }
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

    /// maskmovdqu: bytes whose mask has its top bit go to where RDI points.
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
