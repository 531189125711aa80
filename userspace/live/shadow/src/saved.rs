//! fxsave, xsave, xsavec and their inverses, as programs use them to keep registers across a lazily
//! bound call.
//!
//! Sources of error: the processor decides which components count as initial; here they are those
//! with initial values.

use iced_x86::{Instruction, Mnemonic as M};
use locality_stream::Kind;

use crate::context::HOST_MXCSR;
use crate::machine::{Machine, Step};
use crate::op::Op;
use crate::window::End;
use crate::xstate::{self, COMPONENTS, HEADER, HELD, MXCSR, XMM, word};

/// Room for an area with all components.
const AREA: usize = 4096;
/// Bit 63 of XCOMP_BV: the compacted form.
const COMPACTED: u64 = 1 << 63;
/// MXCSR bits that may be set.
const MXCSR_MASK: u32 = 0xffff;

impl Machine<'_> {
    /// Runs one of the family.
    pub(crate) fn saved_state(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        match instruction.mnemonic() {
            M::Fxsave | M::Fxsave64 => self.fxsave(op, index),
            M::Fxrstor | M::Fxrstor64 => self.fxrstor(op, index),
            M::Xsave | M::Xsave64 => self.xsave(op, index, false),
            M::Xsavec | M::Xsavec64 => self.xsave(op, index, true),
            M::Xrstor | M::Xrstor64 => self.xrstor(op, index),
            _ => self.stop(End::Unsupported, op.ip),
        }
    }

    /// The requested components, if this machine has all of them.
    fn requested(&self) -> Option<u64> {
        let asked = (self.context.gpr[0] & 0xffff_ffff | self.context.gpr[2] << 32) & self.layout.enabled;
        (self.layout.enabled != 0 && asked & !HELD == 0).then_some(asked)
    }

    fn fxsave(&mut self, op: &Op, index: u32) -> Step {
        let address = self.address(&op.place);
        if !address.is_multiple_of(16) {
            return self.stop(End::Fault, op.ip);
        }
        let mut area = [0; AREA];
        self.copy_in(address, 512, area.as_mut_ptr())?;
        xstate::store(self.context, 0, &mut area, 0);
        xstate::store(self.context, 1, &mut area, 0);
        area[MXCSR..MXCSR + 4].copy_from_slice(&self.context.mxcsr.to_le_bytes());
        area[MXCSR + 4..MXCSR + 8].copy_from_slice(&MXCSR_MASK.to_le_bytes());
        self.copy_out(address, 512, area.as_ptr())?;
        self.record.access(Kind::STORE, index, address, 512, 0);
        Ok(())
    }

    fn fxrstor(&mut self, op: &Op, index: u32) -> Step {
        let address = self.address(&op.place);
        let mut area = [0; AREA];
        if address.is_multiple_of(16) {
            self.copy_in(address, 512, area.as_mut_ptr())?;
        }
        let mxcsr = word(&area, MXCSR) as u32;
        if !address.is_multiple_of(16) || mxcsr & !MXCSR_MASK != 0 {
            return self.stop(End::Fault, op.ip);
        }
        xstate::load(self.context, 0, &area, 0, true);
        xstate::load(self.context, 1, &area, 0, true);
        self.context.mxcsr = mxcsr;
        self.record.access(Kind::LOAD, index, address, 512, 0);
        Ok(())
    }

    fn xsave(&mut self, op: &Op, index: u32, compacted: bool) -> Step {
        let address = self.address(&op.place);
        let Some(asked) = self.requested() else { return self.stop(End::Unsupported, op.ip) };
        if !address.is_multiple_of(64) {
            return self.stop(End::Fault, op.ip);
        }
        let (size, offsets) =
            if compacted { self.layout.compacted(asked) } else { self.layout.standard(asked) };
        let mut area = [0; AREA];
        let (Ok(bytes), true) = (u16::try_from(size), size <= AREA) else {
            return self.stop(End::Unsupported, op.ip);
        };
        self.copy_in(address, bytes, area.as_mut_ptr())?;
        let mut used = xstate::in_use(self.context);
        if self.context.mxcsr != HOST_MXCSR && compacted {
            used |= 2;
        }
        for n in (0..32).filter(|n| asked >> n & 1 != 0) {
            // The plain form writes initial values out too.
            if !compacted || used >> n & 1 != 0 {
                xstate::store(self.context, n, &mut area, offsets[n]);
            }
        }
        if asked & 6 != 0 && (!compacted || asked & used & 2 != 0) {
            area[MXCSR..MXCSR + 4].copy_from_slice(&self.context.mxcsr.to_le_bytes());
            area[MXCSR + 4..MXCSR + 8].copy_from_slice(&MXCSR_MASK.to_le_bytes());
        }
        let kept = if compacted { 0 } else { word(&area, HEADER) & !asked };
        area[HEADER..HEADER + 8].copy_from_slice(&(kept | used & asked).to_le_bytes());
        if compacted {
            area[HEADER + 8..HEADER + 16].copy_from_slice(&(asked | COMPACTED).to_le_bytes());
        }
        self.copy_out(address, bytes, area.as_ptr())?;
        self.record.access(Kind::STORE, index, address, bytes, 0);
        Ok(())
    }

    fn xrstor(&mut self, op: &Op, index: u32) -> Step {
        let address = self.address(&op.place);
        let Some(asked) = self.requested() else { return self.stop(End::Unsupported, op.ip) };
        if !address.is_multiple_of(64) {
            return self.stop(End::Fault, op.ip);
        }
        let mut area = [0; AREA];
        self.copy_in(address, COMPONENTS as u16, area.as_mut_ptr())?;
        let (present, form) = (word(&area, HEADER), word(&area, HEADER + 8));
        let compacted = form & COMPACTED != 0;
        let stored = if compacted { form & !COMPACTED } else { asked };
        if stored & !self.layout.enabled != 0 || present & !self.layout.enabled != 0 {
            return self.stop(End::Fault, op.ip);
        }
        let (size, offsets) =
            if compacted { self.layout.compacted(stored) } else { self.layout.standard(stored) };
        let (Ok(bytes), true) = (u16::try_from(size), size <= AREA) else {
            return self.stop(End::Unsupported, op.ip);
        };
        self.copy_in(address, bytes, area.as_mut_ptr())?;
        let from_memory = if compacted { asked & present & 2 != 0 } else { asked & 6 != 0 };
        let mxcsr = match (from_memory, asked & 6) {
            (true, _) => word(&area, MXCSR) as u32,
            (false, 0) => self.context.mxcsr,
            (false, _) => HOST_MXCSR,
        };
        if mxcsr & !MXCSR_MASK != 0 {
            return self.stop(End::Fault, op.ip);
        }
        for n in (0..32).filter(|n| asked >> n & 1 != 0) {
            xstate::load(self.context, n, &area, offsets[n], present >> n & 1 != 0);
        }
        self.context.mxcsr = mxcsr;
        self.record.access(Kind::LOAD, index, address, bytes, 0);
        Ok(())
    }
}

const _: () = assert!(XMM == 160);
