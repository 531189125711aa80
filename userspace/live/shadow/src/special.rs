//! Instructions that are neither common nor can run as a stub.

use std::arch::x86_64::{__cpuid_count, __rdtscp, _rdtsc, _xgetbv};

use iced_x86::{Instruction, Mnemonic as M};
use locality_stream::Kind;

use crate::alu::extend;
use crate::machine::{Machine, Step};
use crate::op::Op;
use crate::window::End;

const DIRECTION: u64 = 1 << 10;
/// Leaves of CPUID that depend on the processor.
const OF_PROCESSOR: [u32; 5] = [0x1, 0xb, 0x1f, 0x8000_001e, 0x8000_0026];

impl Machine<'_> {
    /// Runs an instruction that [`crate::decode`] called complex.
    #[inline(never)]
    pub(crate) fn complex(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        if instruction.is_string_instruction() {
            return self.string(op, index, instruction);
        }
        if instruction.is_vsib() {
            return self.gather(op, index, instruction);
        }
        match instruction.mnemonic() {
            M::Cld => self.context.other_flags &= !DIRECTION,
            M::Std => self.context.other_flags |= DIRECTION,
            M::Xlatb => return self.translate(op, index, instruction),
            M::Rdfsbase | M::Rdgsbase => {
                let fs = instruction.mnemonic() == M::Rdfsbase;
                let value = if fs { self.context.fs_base } else { self.context.gs_base };
                let to = instruction.op0_register();
                self.context.set_part(to.number() as u8 & 15, to.size() as u8, value);
            }
            M::Cpuid => return self.cpuid(op),
            M::Rdtsc | M::Rdtscp => self.read_clock(instruction.mnemonic() == M::Rdtscp),
            M::Xgetbv => {
                if self.context.gpr[1] & 0xffff_ffff != 0 {
                    return self.stop(End::Unrepeatable, op.ip);
                }
                if self.layout.enabled == 0 {
                    return self.stop(End::Unsupported, op.ip);
                }
                // SAFETY: the processor has XSAVE, enabled by the kernel.
                let value = unsafe { _xgetbv(0) };
                self.context.set_part(0, 4, value);
                self.context.set_part(2, 4, value >> 32);
            }
            M::Ldmxcsr | M::Vldmxcsr => {
                let address = self.address(&op.place);
                let value = self.load(address, 4)?;
                if value & !0xffff != 0 {
                    return self.stop(End::Fault, op.ip);
                }
                self.record.access(Kind::LOAD, index, address, 4, value);
                self.context.mxcsr = value as u32;
            }
            M::Stmxcsr | M::Vstmxcsr => {
                let address = self.address(&op.place);
                let value = self.context.mxcsr.into();
                self.store_event(Kind::STORE, index, address, 4, value)?;
            }
            M::Vzeroupper => self.context.vectors.iter_mut().take(16).for_each(|v| v[16..].fill(0)),
            M::Vzeroall => self.context.vectors.iter_mut().take(16).for_each(|v| v.fill(0)),
            M::Maskmovdqu | M::Vmaskmovdqu | M::Maskmovq => return self.mask_move(op, index, instruction),
            M::Bt | M::Bts | M::Btr | M::Btc => return self.bit_string(op, index, instruction),
            M::Fxsave
            | M::Fxsave64
            | M::Fxrstor
            | M::Fxrstor64
            | M::Xsave
            | M::Xsave64
            | M::Xsavec
            | M::Xsavec64
            | M::Xsaveopt
            | M::Xsaveopt64
            | M::Xrstor
            | M::Xrstor64 => return self.saved_state(op, index, instruction),
            _ => return self.masked(op, index, instruction),
        }
        Ok(())
    }

    /// Runs the instruction here: the target runs on the same machine.
    fn cpuid(&mut self, op: &Op) -> Step {
        let (leaf, sub) = (self.context.gpr[0] as u32, self.context.gpr[1] as u32);
        if OF_PROCESSOR.contains(&leaf) {
            return self.stop(End::Unrepeatable, op.ip);
        }
        let result = __cpuid_count(leaf, sub);
        for (register, value) in [(0, result.eax), (3, result.ebx), (1, result.ecx), (2, result.edx)] {
            self.context.set_part(register, 4, value.into());
        }
        Ok(())
    }

    /// The processor's clock as the program would read it: from now on, one tick an instruction. A
    /// window takes some ten times as long as the program would, so that the true clock would end
    /// waits for a deadline too soon. The first reading decides when the window began, so no
    /// reading is older than a clock page that the window has read before it.
    fn read_clock(&mut self, with_processor: bool) {
        let executed = self.executed;
        // SAFETY: the instruction has no precondition; the kernel enables it for all programs.
        let first = *self.first_tick.get_or_insert_with(|| unsafe { _rdtsc() }.wrapping_sub(executed));
        let ticks = first.wrapping_add(executed);
        self.context.set_part(0, 4, ticks & 0xffff_ffff);
        self.context.set_part(2, 4, ticks >> 32);
        if with_processor {
            let mut processor = 0;
            // SAFETY: the program's own processor has the instruction, and the destination is live.
            unsafe { __rdtscp(&raw mut processor) };
            self.context.set_part(1, 4, processor.into());
        }
    }

    /// bt, bts, btr, btc with a register as the bit's number, which may lie far beyond the operand.
    fn bit_string(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        let register = instruction.op1_register();
        let size = register.size() as u16;
        let bits = i64::from(size) * 8;
        let number = extend(self.context.get(register.full_register().number() as u8), size) as i64;
        if op.place.is_short {
            return self.stop(End::Unsupported, op.ip);
        }
        let away = number.div_euclid(bits) * i64::from(size);
        let address = self.address(&op.place).wrapping_add_signed(away);
        let bit = 1_u64 << number.rem_euclid(bits);
        let old = self.load(address, size)?;
        let new = match instruction.mnemonic() {
            M::Bts => old | bit,
            M::Btr => old & !bit,
            M::Btc => old ^ bit,
            _ => old,
        };
        let stores = instruction.mnemonic() != M::Bt;
        if stores {
            self.store(address, size, new)?;
        }
        self.record.access(Kind::LOAD, index, address, size, old);
        if stores {
            self.record.access(Kind::STORE, index, address, size, new);
        }
        self.context.flags = self.context.flags & !1 | u64::from(old & bit != 0);
        Ok(())
    }
}
