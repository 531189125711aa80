//! Register values of which some bits may be unknown: what is left of a thread's registers after an
//! instruction was stepped over whose result cannot be computed. Partial registers follow the
//! architecture: a write to a 32-bit register clears the upper half, writes to 8 and 16 bits leave
//! the rest.

use iced_x86::{ConditionCode, Register, RflagsBits};

use crate::Registers;

/// Flag bits of `rflags`.
pub(crate) mod flag {
    pub(crate) const CF: u64 = 1;
    pub(crate) const PF: u64 = 1 << 2;
    pub(crate) const AF: u64 = 1 << 4;
    pub(crate) const ZF: u64 = 1 << 6;
    pub(crate) const SF: u64 = 1 << 7;
    pub(crate) const DF: u64 = 1 << 10;
    pub(crate) const OF: u64 = 1 << 11;
}

/// Known bits of a 64-bit value: `value` holds where `mask` is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bits {
    pub(crate) value: u64,
    pub(crate) mask: u64,
}

/// Registers with possibly unknown bits.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    general: [Bits; 16],
    pub(crate) flags: Bits,
    fs_base: Option<u64>,
    gs_base: Option<u64>,
}

/// A mask of the low `bits` bits.
pub(crate) fn low_bits(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Number of the full register, position of the lowest bit and width in bits of a general register.
fn place(register: Register) -> Option<(usize, u32, u32)> {
    if !register.is_gpr() {
        return None;
    }
    let shift = match register {
        Register::AH | Register::CH | Register::DH | Register::BH => 8,
        _ => 0,
    };
    Some((register.full_register().number(), shift, register.size() as u32 * 8))
}

impl Known {
    /// Everything known.
    pub(crate) fn all(registers: &Registers) -> Self {
        Known {
            general: registers.general().map(|value| Bits { value, mask: u64::MAX }),
            flags: Bits { value: registers.rflags, mask: u64::MAX },
            fs_base: Some(registers.fs_base),
            gs_base: Some(registers.gs_base),
        }
    }

    /// Value of a general register of any width, if all its bits are known.
    pub(crate) fn get(&self, register: Register) -> Option<u64> {
        let (number, shift, width) = place(register)?;
        let bits = self.general.get(number)?;
        let wanted = low_bits(width);
        (bits.mask >> shift & wanted == wanted).then_some(bits.value >> shift & wanted)
    }

    /// Value of a general register, or base address of a segment: what an effective address is made of.
    pub(crate) fn address_part(&self, register: Register) -> Option<u64> {
        match register {
            Register::FS => self.fs_base,
            Register::GS => self.gs_base,
            // Bases other than FS and GS are zero in 64-bit mode.
            Register::ES | Register::CS | Register::SS | Register::DS => Some(0),
            _ => self.get(register),
        }
    }

    /// Writes a general register; `None` makes it unknown.
    pub(crate) fn set(&mut self, register: Register, value: Option<u64>) {
        let Some((number, shift, width)) = place(register) else { return };
        let Some(bits) = self.general.get_mut(number) else { return };
        if width == 32 {
            *bits = Bits { value: 0, mask: !low_bits(32) };
        }
        let field = low_bits(width) << shift;
        bits.mask &= !field;
        if let Some(value) = value {
            bits.value = bits.value & !field | (value << shift) & field;
            bits.mask |= field;
        }
    }

    /// Makes a register of any kind unknown; without effect on untracked ones.
    pub(crate) fn forget(&mut self, register: Register) {
        match register {
            Register::FS => self.fs_base = None,
            Register::GS => self.gs_base = None,
            // A conditional write may leave the upper half unchanged.
            _ if register.is_gpr32() => self.set(register.full_register(), None),
            _ => self.set(register, None),
        }
    }

    /// Makes flags unknown that are given as iced's [`RflagsBits`].
    pub(crate) fn forget_flags(&mut self, rflags_bits: u32) {
        let pairs = [
            (RflagsBits::OF, flag::OF),
            (RflagsBits::SF, flag::SF),
            (RflagsBits::ZF, flag::ZF),
            (RflagsBits::AF, flag::AF),
            (RflagsBits::CF, flag::CF),
            (RflagsBits::PF, flag::PF),
            (RflagsBits::DF, flag::DF),
        ];
        for (theirs, ours) in pairs {
            if rflags_bits & theirs != 0 {
                self.flags.mask &= !ours;
            }
        }
    }

    /// Sets the flags that `flags` knows.
    pub(crate) fn set_flags(&mut self, flags: Bits) {
        self.flags.value = self.flags.value & !flags.mask | flags.value & flags.mask;
        self.flags.mask |= flags.mask;
    }

    /// A flag, if known.
    pub(crate) fn flag(&self, bit: u64) -> Option<bool> {
        (self.flags.mask & bit != 0).then_some(self.flags.value & bit != 0)
    }

    /// Whether a condition holds, if the flags tell.
    pub(crate) fn condition(&self, code: ConditionCode) -> Option<bool> {
        let either = |a: Option<bool>, b: Option<bool>| match (a, b) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
        let less = || Some(self.flag(flag::SF)? != self.flag(flag::OF)?);
        let not = |a: Option<bool>| a.map(|a| !a);
        match code {
            ConditionCode::None => None,
            ConditionCode::o => self.flag(flag::OF),
            ConditionCode::no => not(self.flag(flag::OF)),
            ConditionCode::b => self.flag(flag::CF),
            ConditionCode::ae => not(self.flag(flag::CF)),
            ConditionCode::e => self.flag(flag::ZF),
            ConditionCode::ne => not(self.flag(flag::ZF)),
            ConditionCode::be => either(self.flag(flag::CF), self.flag(flag::ZF)),
            ConditionCode::a => not(either(self.flag(flag::CF), self.flag(flag::ZF))),
            ConditionCode::s => self.flag(flag::SF),
            ConditionCode::ns => not(self.flag(flag::SF)),
            ConditionCode::p => self.flag(flag::PF),
            ConditionCode::np => not(self.flag(flag::PF)),
            ConditionCode::l => less(),
            ConditionCode::ge => not(less()),
            ConditionCode::le => either(self.flag(flag::ZF), less()),
            ConditionCode::g => not(either(self.flag(flag::ZF), less())),
        }
    }

    /// The known general registers, in the order of their encoding.
    #[cfg(test)]
    pub(crate) fn general_bits(&self) -> &[Bits; 16] {
        &self.general
    }
}
