//! Runs one instruction at a time on the context and the private copy of memory.

use std::time::Instant;

use iced_x86::Instruction;
use locality_stream::Kind;

use crate::access::{peek, second};
use crate::alu::{arithmetic, cut, extend, shift, step};
use crate::context::{Context, RSP, STATUS};
use crate::enter::call;
use crate::memory::{Memory, PAGE};
use crate::op::{Arithmetic, Do, Op, Place, Segment};
use crate::pages::{Ended, Pages};
use crate::record::Record;
use crate::window::{End, Limits};

/// The window ends; [`Machine::end`] says why.
#[derive(Debug)]
pub(crate) struct Stopped;

/// Done, or the window ends before (or, for a repeated string instruction, in) the instruction.
pub(crate) type Step = Result<(), Stopped>;

/// [`Op::width`] of a stub that uses x87 or MMX.
pub(crate) const X87: u8 = 87;
/// Places of the last instruction's and the last operand's address in what `fxsave64` writes.
const FIP: usize = 8;
const FDP: usize = 16;
/// How often the clock is looked at, in blocks and repetitions.
const CLOCK_EVERY: u32 = 256;
/// Blocks that take as long as to read a page, or to decode a block.
const FRESH: u32 = 32;

/// What a window works on.
pub(crate) struct Machine<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) pages: &'a mut Pages,
    pub(crate) memory: &'a mut dyn Memory,
    pub(crate) record: Record<'a>,
    pub(crate) limits: Limits,
    pub(crate) executed: u64,
    /// The processor's clock at the window's first instruction, once the program has read the clock.
    pub(crate) first_tick: Option<u64>,
    /// Where control goes after the last instruction of a block.
    pub(crate) next: u64,
    /// Why it ended.
    pub(crate) end: Ended,
    pub(crate) started: Instant,
    pub(crate) until_clock: u32,
    /// Some iterations of a repeated instruction are done, others are left.
    pub(crate) part_done: bool,
    /// Processor-supported components of saved states.
    pub(crate) layout: &'a crate::xstate::Layout,
}

impl<'a> Machine<'a> {
    /// Ends the window.
    #[cold]
    pub(crate) fn stop<T>(&mut self, end: End, detail: u64) -> Result<T, Stopped> {
        self.end = (end, detail);
        Err(Stopped)
    }

    #[inline(always)]
    pub(crate) fn kept<T>(&mut self, result: Result<T, Ended>) -> Result<T, Stopped> {
        match result {
            Ok(value) => Ok(value),
            Err((end, detail)) => self.stop(end, detail),
        }
    }

    /// Looks at the clock from time to time.
    #[inline(always)]
    pub(crate) fn tick(&mut self) -> Step {
        self.until_clock -= 1;
        if self.until_clock == 0 { self.look_at_clock() } else { Ok(()) }
    }

    /// Limit of pages or blocks new in this window.
    #[inline(always)]
    pub(crate) fn hurry(&mut self, fresh: u32) {
        if fresh > 0 {
            self.until_clock = self.until_clock.saturating_sub(fresh.saturating_mul(FRESH)).max(1);
        }
    }

    #[cold]
    fn look_at_clock(&mut self) -> Step {
        self.until_clock = CLOCK_EVERY;
        let elapsed = self.started.elapsed().as_nanos();
        if elapsed >= u128::from(self.limits.time_ns) { self.stop(End::Time, elapsed as u64) } else { Ok(()) }
    }

    /// An effective address.
    #[inline(always)]
    pub(crate) fn address(&self, place: &Place) -> u64 {
        let sum = place
            .displacement
            .wrapping_add(self.context.get(place.base))
            .wrapping_add(self.context.get(place.index) << (place.shift & 3));
        let sum = if place.is_short { sum & 0xffff_ffff } else { sum };
        match place.segment {
            Segment::None => sum,
            Segment::Fs => sum.wrapping_add(self.context.fs_base),
            Segment::Gs => sum.wrapping_add(self.context.gs_base),
        }
    }

    /// Runs a stub on an operand of our own.
    ///
    /// # Safety
    /// As for [`call`].
    #[inline(always)]
    pub(crate) unsafe fn native(&mut self, op: &Op, operand: *mut u8) -> Step {
        // SAFETY: as the caller promises.
        if !unsafe { call(self.context, op.stub, operand) } {
            return self.stop(End::Fault, op.ip);
        }
        if op.width == X87 {
            self.point_x87(op, operand as u64);
        }
        Ok(())
    }

    /// Where the stub left its own addresses as those of the last x87 instruction and operand, puts
    /// the thread's.
    #[inline(never)]
    fn point_x87(&mut self, op: &Op, operand: u64) {
        let instruction = crate::xstate::word(&self.context.fx, FIP);
        if (self.context.code..self.context.code_end).contains(&instruction) {
            self.context.fx[FIP..FIP + 8].copy_from_slice(&op.ip.to_le_bytes());
        }
        if operand != 0 && crate::xstate::word(&self.context.fx, FDP) == operand {
            let address = self.address(&op.place);
            self.context.fx[FDP..FDP + 8].copy_from_slice(&address.to_le_bytes());
        }
    }

    /// Runs an instruction other than the last of a block, whose record has number `index`.
    #[inline(always)]
    pub(crate) fn run(&mut self, op: &Op, index: u32, complex: &[Instruction]) -> Step {
        match op.what {
            Do::Nothing => {}
            // SAFETY: a stub without an operand accesses no memory.
            Do::Stub => unsafe { self.native(op, std::ptr::null_mut())? },
            Do::StubLoad => {
                let address = self.address(&op.place);
                let from = self.readable(address, op.size)?;
                // SAFETY: `size` bytes are readable there; the stub does not write them.
                let value = unsafe {
                    let value = peek(from, op.size);
                    self.native(op, from.cast_mut())?;
                    value
                };
                self.record.access(Kind::LOAD, index, address, op.size, value);
            }
            Do::StubStore => self.stub_store(op, index)?,
            Do::StubModify => self.stub_modify(op, index)?,
            Do::Load => {
                let address = self.address(&op.place);
                let value = self.load_event(Kind::LOAD, index, address, op.size)?;
                self.context.set_part(op.register, op.width, value);
            }
            Do::LoadSigned => {
                let address = self.address(&op.place);
                let value = self.load_event(Kind::LOAD, index, address, op.size)?;
                self.context.set_part(op.register, op.width, extend(value, op.size));
            }
            Do::Store => {
                let address = self.address(&op.place);
                let value = self.context.get(op.source);
                self.store_event(Kind::STORE, index, address, op.size, value)?;
            }
            Do::StoreValue => {
                let address = self.address(&op.place);
                self.store_event(Kind::STORE, index, address, op.size, op.value)?;
            }
            Do::Move => {
                let value = cut(self.context.get(op.source), op.size);
                self.context.set_part(op.register, op.width, value);
            }
            Do::MoveSigned => {
                let value = extend(self.context.get(op.source), op.size);
                self.context.set_part(op.register, op.width, value);
            }
            Do::MoveValue => self.context.set_part(op.register, op.width, op.value),
            Do::Address => {
                let place = Place { segment: Segment::None, ..op.place };
                let address = self.address(&place);
                self.context.set_part(op.register, op.width, address);
            }
            Do::RegisterRegister(what) => {
                self.calculate(op, what, self.context.get(op.source));
            }
            Do::RegisterValue(what) => self.calculate(op, what, op.value),
            Do::RegisterMemory(what) => {
                let address = self.address(&op.place);
                let value = self.load_event(Kind::LOAD, index, address, op.size)?;
                self.calculate(op, what, value);
            }
            Do::MemoryRegister(what) => self.modify(op, index, what, self.context.get(op.source))?,
            Do::MemoryValue(what) => self.modify(op, index, what, op.value)?,
            Do::Shift(what) => {
                let (result, flags) = shift(what, self.context.get(op.register), op.value as u32, op.size);
                self.context.set_part(op.register, op.width, result);
                self.context.flags = flags;
            }
            Do::Increment | Do::Decrement => {
                let down = op.what == Do::Decrement;
                let (result, flags) =
                    step(self.context.get(op.register), down, op.width.into(), self.context.flags);
                self.context.set_part(op.register, op.width, result);
                self.context.flags = flags;
            }
            Do::MoveIf => {
                let holds = op.condition.holds(self.context.flags);
                let value = self.context.get(if holds { op.source } else { op.register });
                self.context.set_part(op.register, op.width, value);
            }
            Do::SetIf => {
                let holds = op.condition.holds(self.context.flags);
                self.context.set_part(op.register, 1, holds.into());
            }
            Do::Push => {
                let value = self.context.get(op.register);
                self.push(op, index, Kind::STORE, value)?;
            }
            Do::PushValue => self.push(op, index, Kind::STORE, op.value)?,
            Do::PushMemory => {
                let address = self.address(&op.place);
                let value = self.load(address, 8)?;
                let top = self.context.gpr[RSP].wrapping_sub(8);
                self.store(top, 8, value)?;
                self.record.access(Kind::LOAD, index, address, 8, value);
                self.record.access(Kind::STORE, index, top, 8, value);
                self.context.gpr[RSP] = top;
            }
            Do::PushFlags => {
                // RF and VM are shown as 0.
                let value = self.context.rflags() & !0x3_0000;
                self.push(op, index, Kind::STORE, value)?;
            }
            Do::Pop => {
                let top = self.context.gpr[RSP];
                let value = self.load_event(Kind::LOAD, index, top, op.size)?;
                self.context.gpr[RSP] = top.wrapping_add(op.size.into());
                self.context.set_part(op.register, op.size as u8, value);
            }
            Do::PopMemory => self.pop_memory(op, index)?,
            Do::PopFlags => self.pop_flags(op, index)?,
            Do::Leave => {
                let frame = self.context.gpr[5];
                let value = self.load_event(Kind::LOAD, index, frame, 8)?;
                self.context.gpr[RSP] = frame.wrapping_add(8);
                self.context.gpr[5] = value;
            }
            Do::Enter => {
                let top = self.context.gpr[RSP].wrapping_sub(8);
                let frame = self.context.gpr[5];
                self.store_event(Kind::STORE, index, top, 8, frame)?;
                self.context.gpr[5] = top;
                self.context.gpr[RSP] = top.wrapping_sub(op.value);
            }
            Do::Complex => {
                let Some(instruction) = complex.get(op.value as usize) else {
                    return self.stop(End::Unsupported, op.ip);
                };
                self.complex(op, index, instruction)?;
            }
            Do::End(End::SystemCall) => {
                let number = self.context.gpr[0];
                return self.stop(End::SystemCall, number);
            }
            Do::End(end) => return self.stop(end, op.ip),
            _ => return self.flow(op, index),
        }
        Ok(())
    }

    #[inline(always)]
    fn calculate(&mut self, op: &Op, what: Arithmetic, value: u64) {
        let (result, flags) = arithmetic(what, self.context.get(op.register), value, op.size);
        self.context.flags = flags;
        if !what.only_compares() {
            self.context.set_part(op.register, op.width, result);
        }
    }

    #[inline(always)]
    fn modify(&mut self, op: &Op, index: u32, what: Arithmetic, value: u64) -> Step {
        let address = self.address(&op.place);
        let old = self.load(address, op.size)?;
        let (result, flags) = arithmetic(what, old, value, op.size);
        if !what.only_compares() {
            self.store(address, op.size, result)?;
        }
        self.record.access(Kind::LOAD, index, address, op.size, old);
        if !what.only_compares() {
            self.record.access(Kind::STORE, index, address, op.size, result);
        }
        self.context.flags = flags;
        Ok(())
    }

    fn stub_store(&mut self, op: &Op, index: u32) -> Step {
        let address = self.address(&op.place);
        let second = second(address, op.size);
        let to = self.pages.write(address, self.memory);
        let to = self.kept(to)?;
        let value = if address / PAGE == second / PAGE {
            // SAFETY: the page has `size` bytes from there on.
            unsafe {
                self.native(op, to)?;
                peek(to, op.size)
            }
        } else {
            let checked = self.pages.write(second, self.memory);
            self.kept(checked)?;
            let place = self.bounce(address);
            // SAFETY: `bounce` has room for the largest operand.
            let value = unsafe {
                self.native(op, place)?;
                peek(place, op.size)
            };
            self.copy_out(address, op.size, place)?;
            value
        };
        self.record.access(Kind::STORE, index, address, op.size, value);
        Ok(())
    }

    fn stub_modify(&mut self, op: &Op, index: u32) -> Step {
        let address = self.address(&op.place);
        let second = second(address, op.size);
        let to = self.pages.write(address, self.memory);
        let mut place = self.kept(to)?;
        let crosses = address / PAGE != second / PAGE;
        if crosses {
            let checked = self.pages.write(second, self.memory);
            self.kept(checked)?;
            place = self.bounce(address);
            self.copy_in(address, op.size, place)?;
        }
        // SAFETY: the page, or `bounce`, has `size` bytes from there on.
        let (old, new) = unsafe {
            let old = peek(place, op.size);
            self.native(op, place)?;
            (old, peek(place, op.size))
        };
        if crosses {
            self.copy_out(address, op.size, place)?;
        }
        self.record.access(Kind::LOAD, index, address, op.size, old);
        self.record.access(Kind::STORE, index, address, op.size, new);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, op: &Op, index: u32, kind: Kind, value: u64) -> Step {
        let top = self.context.gpr[RSP].wrapping_sub(op.size.into());
        self.store_event(kind, index, top, op.size, value)?;
        self.context.gpr[RSP] = top;
        Ok(())
    }

    /// The address is computed with the stack pointer already raised.
    fn pop_memory(&mut self, op: &Op, index: u32) -> Step {
        let top = self.context.gpr[RSP];
        let value = self.load(top, 8)?;
        self.context.gpr[RSP] = top.wrapping_add(8);
        let address = self.address(&op.place);
        if let Err(stopped) = self.store(address, 8, value) {
            self.context.gpr[RSP] = top;
            return Err(stopped);
        }
        self.record.access(Kind::LOAD, index, top, 8, value);
        self.record.access(Kind::STORE, index, address, 8, value);
        Ok(())
    }

    /// A program that sets the trap flag wants to be stepped: that ends the window.
    fn pop_flags(&mut self, op: &Op, index: u32) -> Step {
        const TRAP: u64 = 1 << 8;
        /// TF, DF, NT, AC and ID.
        const SETTABLE: u64 = TRAP | 1 << 10 | 1 << 14 | 1 << 18 | 1 << 21;
        let top = self.context.gpr[RSP];
        let value = self.load(top, 8)?;
        if value & TRAP != 0 {
            return self.stop(End::Unsupported, op.ip);
        }
        self.record.access(Kind::LOAD, index, top, 8, value);
        self.context.gpr[RSP] = top.wrapping_add(8);
        self.context.flags = value & STATUS;
        self.context.other_flags = self.context.other_flags & !SETTABLE | value & SETTABLE;
        Ok(())
    }
}
