//! String instructions, one iteration after the other in the order of execution.
//!
//! A window may end between two iterations: registers then say how far it came, as in an
//! interrupted processor.

use iced_x86::{Instruction, Mnemonic as M, Register};
use locality_stream::Kind;

use crate::alu::{cut, sub};
use crate::machine::{Machine, Step};
use crate::op::{Op, Segment};
use crate::window::End;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RSI: u8 = 6;
const RDI: u8 = 7;
const DIRECTION: u64 = 1 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Move,
    Fill,
    Load,
    Compare,
    Scan,
}

fn what(mnemonic: M) -> Option<(What, u16)> {
    Some(match mnemonic {
        M::Movsb => (What::Move, 1),
        M::Movsw => (What::Move, 2),
        M::Movsd => (What::Move, 4),
        M::Movsq => (What::Move, 8),
        M::Stosb => (What::Fill, 1),
        M::Stosw => (What::Fill, 2),
        M::Stosd => (What::Fill, 4),
        M::Stosq => (What::Fill, 8),
        M::Lodsb => (What::Load, 1),
        M::Lodsw => (What::Load, 2),
        M::Lodsd => (What::Load, 4),
        M::Lodsq => (What::Load, 8),
        M::Cmpsb => (What::Compare, 1),
        M::Cmpsw => (What::Compare, 2),
        M::Cmpsd => (What::Compare, 4),
        M::Cmpsq => (What::Compare, 8),
        M::Scasb => (What::Scan, 1),
        M::Scasw => (What::Scan, 2),
        M::Scasd => (What::Scan, 4),
        M::Scasq => (What::Scan, 8),
        _ => return None,
    })
}

/// True for the addresses of 32 bits that a prefix asks for.
fn is_short(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|op| {
        use iced_x86::OpKind as K;
        matches!(instruction.op_kind(op), K::MemorySegESI | K::MemoryESEDI)
    })
}

impl Machine<'_> {
    /// Runs a string instruction to its end, or to a limit of the window. The caller has counted
    /// one instruction.
    pub(crate) fn string(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        let Some((what, size)) = what(instruction.mnemonic()) else {
            return self.stop(End::Unsupported, op.ip);
        };
        let width = if is_short(instruction) { 4 } else { 8 };
        let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        if !repeats {
            return self.iterate(op, index, what, size, width).map(|_| ());
        }
        let ends_at = matches!(what, What::Compare | What::Scan).then(|| instruction.has_repne_prefix());
        let flags = self.context.flags;
        let result = self.repeat(op, index, (what, size), width, ends_at);
        if result.is_err() {
            // Flags are those before the instruction until it has ended (Intel SDM, volume 2, REP).
            self.context.flags = flags;
        }
        result
    }

    fn repeat(
        &mut self,
        op: &Op,
        index: u32,
        (what, size): (What, u16),
        width: u8,
        ends_at: Option<bool>,
    ) -> Step {
        let accesses = if matches!(what, What::Move | What::Compare) { 2 } else { 1 };
        let mut done = 0_u64;
        loop {
            let count = cut(self.context.get(RCX), width.into());
            if count == 0 {
                // With a count of 32 bits the upper half stays as it was where nothing was repeated.
                return Ok(());
            }
            if done > 0 {
                if self.executed + 1 >= self.limits.instructions {
                    return self.stop(End::Instructions, 0);
                }
                if !self.record.has_room(accesses) {
                    return self.stop(End::Log, 0);
                }
                self.tick()?;
            }
            self.iterate(op, index, what, size, width)?;
            self.context.set_part(RCX, width, count - 1);
            if done > 0 {
                self.executed += 1;
            }
            done += 1;
            self.part_done = true;
            let zero = self.context.flags & 0x40 != 0;
            if ends_at.is_some_and(|at| zero == at) || count == 1 {
                self.part_done = false;
                return Ok(());
            }
        }
    }

    fn iterate(&mut self, op: &Op, index: u32, what: What, size: u16, width: u8) -> Step {
        let at = |value: u64| if width == 4 { value & 0xffff_ffff } else { value };
        let base = match op.place.segment {
            Segment::None => 0,
            Segment::Fs => self.context.fs_base,
            Segment::Gs => self.context.gs_base,
        };
        let from = at(self.context.get(RSI)).wrapping_add(base);
        let to = at(self.context.get(RDI));
        let down = self.context.other_flags & DIRECTION != 0;
        let step = if down { u64::from(size).wrapping_neg() } else { size.into() };
        let accumulator = cut(self.context.get(RAX), size);
        match what {
            What::Move => {
                let value = self.load(from, size)?;
                self.store(to, size, value)?;
                self.record.access(Kind::LOAD, index, from, size, value);
                self.record.access(Kind::STORE, index, to, size, value);
            }
            What::Fill => self.store_event(Kind::STORE, index, to, size, accumulator)?,
            What::Load => {
                let value = self.load_event(Kind::LOAD, index, from, size)?;
                self.context.set_part(RAX, size as u8, value);
            }
            What::Compare => {
                let a = self.load(from, size)?;
                let b = self.load(to, size)?;
                self.record.access(Kind::LOAD, index, from, size, a);
                self.record.access(Kind::LOAD, index, to, size, b);
                self.context.flags = sub(a, b, size).1;
            }
            What::Scan => {
                let value = self.load_event(Kind::LOAD, index, to, size)?;
                self.context.flags = sub(accumulator, value, size).1;
            }
        }
        if matches!(what, What::Move | What::Load | What::Compare) {
            let next = self.context.get(RSI).wrapping_add(step);
            self.context.set_part(RSI, width, next);
        }
        if what != What::Load {
            let next = self.context.get(RDI).wrapping_add(step);
            self.context.set_part(RDI, width, next);
        }
        Ok(())
    }
}

/// xlat: the byte at RBX + AL.
impl Machine<'_> {
    pub(crate) fn translate(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        let is_short = instruction.memory_base() == Register::EBX;
        let sum = self.context.get(3).wrapping_add(self.context.get(RAX) & 0xff);
        let base = match op.place.segment {
            Segment::None => 0,
            Segment::Fs => self.context.fs_base,
            Segment::Gs => self.context.gs_base,
        };
        let address = if is_short { sum & 0xffff_ffff } else { sum }.wrapping_add(base);
        let value = self.load_event(Kind::LOAD, index, address, 1)?;
        self.context.set_part(RAX, 1, value);
        Ok(())
    }
}
