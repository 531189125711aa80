//! Results of an instruction without memory operands in general
//! registers and flags, if computable from known values.
//!
//! This module has only instructions that compilers put between memory accesses. The
//! caller first makes every register unknown that the instruction writes, then applies the
//! results: a missing case costs knowledge and never truth. Flags that the architecture
//! leaves undefined are not among the results, nor is AF, a flag not read by user code.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};

use crate::known::{Bits, Known, flag, low_bits};
use crate::memory::sign_extend;

/// Registers and flags after an instruction, as far as they are known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Results {
    pub(crate) writes: [Option<(Register, u64)>; 2],
    pub(crate) flags: Bits,
}

impl Results {
    fn write(register: Register, value: u64) -> Self {
        Results { writes: [Some((register, value)), None], flags: Bits::default() }
    }

    fn writes(first: (Register, u64), second: (Register, u64)) -> Self {
        Results { writes: [Some(first), Some(second)], flags: Bits::default() }
    }

    fn with(mut self, flags: Bits) -> Self {
        self.flags.value |= flags.value & flags.mask;
        self.flags.mask |= flags.mask;
        self
    }

    fn with_flag(self, bit: u64, set: bool) -> Self {
        self.with(Bits { value: if set { bit } else { 0 }, mask: bit })
    }
}

/// The results of `instruction`, or `None` when nothing can be said.
pub(crate) fn results(instruction: &Instruction, known: &Known) -> Option<Results> {
    let operand = |index: u32| operand(instruction, index, known);
    let register = instruction.op0_register();
    let bits = register.size() as u32 * 8;
    let write = |value: u64| Some(Results::write(register, value));
    match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movzx => write(operand(1)?),
        Mnemonic::Movsx | Mnemonic::Movsxd => {
            write(sign_extend(operand(1)?, instruction.op1_register().size() as u32 * 8) as u64)
        }
        // The segment does not matter to `lea`.
        Mnemonic::Lea => write(instruction.virtual_address(1, 0, |part, _, _| {
            if part.is_segment_register() { Some(0) } else { known.get(part) }
        })?),
        Mnemonic::Xchg => {
            Some(Results::writes((register, operand(1)?), (instruction.op1_register(), operand(0)?)))
        }
        Mnemonic::Bswap if bits >= 32 => write(operand(0)?.swap_bytes() >> (64 - bits)),
        Mnemonic::Not => write(!operand(0)?),
        Mnemonic::Add
        | Mnemonic::Adc
        | Mnemonic::Sub
        | Mnemonic::Sbb
        | Mnemonic::Cmp
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Test => binary(instruction, known, bits),
        Mnemonic::Inc => Some(keep_carry(sum(register, operand(0)?, 1, false, bits))),
        Mnemonic::Dec => Some(keep_carry(difference(register, operand(0)?, 1, false, bits))),
        Mnemonic::Neg => Some(difference(register, 0, operand(0)?, false, bits)),
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => shift(instruction, known, bits),
        Mnemonic::Rol | Mnemonic::Ror => rotate(instruction, known, bits),
        Mnemonic::Shlx => write(operand(1)? << shift_count(operand(2)?, bits)),
        Mnemonic::Shrx => write(operand(1)? >> shift_count(operand(2)?, bits)),
        Mnemonic::Sarx => write((sign_extend(operand(1)?, bits) >> shift_count(operand(2)?, bits)) as u64),
        Mnemonic::Rorx => write(rotate_left(operand(1)?, bits - shift_count(operand(2)?, bits), bits)),
        Mnemonic::Imul | Mnemonic::Mul => multiply(instruction, known, bits),
        Mnemonic::Cbw => Some(extend_accumulator(known, Register::AL, Register::AX)?),
        Mnemonic::Cwde => Some(extend_accumulator(known, Register::AX, Register::EAX)?),
        Mnemonic::Cdqe => Some(extend_accumulator(known, Register::EAX, Register::RAX)?),
        Mnemonic::Cwd => Some(spread_sign(known, Register::AX, Register::DX)?),
        Mnemonic::Cdq => Some(spread_sign(known, Register::EAX, Register::EDX)?),
        Mnemonic::Cqo => Some(spread_sign(known, Register::RAX, Register::RDX)?),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => bit_test(instruction, known, bits),
        Mnemonic::Bsf | Mnemonic::Bsr | Mnemonic::Tzcnt | Mnemonic::Popcnt => bit_count(instruction, known),
        Mnemonic::Andn => Some(bit_field(register, !operand(1)? & operand(2)?, bits, false)),
        Mnemonic::Blsr | Mnemonic::Blsi | Mnemonic::Blsmsk => lowest_bit(instruction, known, bits),
        Mnemonic::Bzhi => {
            let kept = operand(2)? as u8;
            let value = operand(1)? & low_bits(u32::from(kept));
            Some(bit_field(register, value, bits, u32::from(kept) >= bits))
        }
        Mnemonic::Clc => Some(Results::default().with_flag(flag::CF, false)),
        Mnemonic::Stc => Some(Results::default().with_flag(flag::CF, true)),
        Mnemonic::Cmc => Some(Results::default().with_flag(flag::CF, !known.flag(flag::CF)?)),
        Mnemonic::Cld => Some(Results::default().with_flag(flag::DF, false)),
        Mnemonic::Std => Some(Results::default().with_flag(flag::DF, true)),
        _ if instruction.condition_code() == ConditionCode::None => None,
        // setcc and cmovcc; conditional jumps, which have a condition too, write no register.
        _ if instruction.op0_kind() != OpKind::Register => None,
        _ if instruction.op_count() == 1 => write(u64::from(known.condition(instruction.condition_code())?)),
        // A move that does not take place still clears the upper half of a 32-bit destination.
        _ => write(if known.condition(instruction.condition_code())? { operand(1)? } else { operand(0)? }),
    }
}

/// Value of a register or immediate operand.
fn operand(instruction: &Instruction, index: u32, known: &Known) -> Option<u64> {
    match instruction.op_kind(index) {
        OpKind::Register => known.get(instruction.op_register(index)),
        _ => instruction.try_immediate(index).ok(),
    }
}

/// Sign, zero and parity of a result.
fn result_flags(value: u64, bits: u32) -> Bits {
    let value = value & low_bits(bits);
    let mut flags = 0;
    if value == 0 {
        flags |= flag::ZF;
    }
    if value >> (bits.max(1) - 1) & 1 != 0 {
        flags |= flag::SF;
    }
    if (value as u8).count_ones().is_multiple_of(2) {
        flags |= flag::PF;
    }
    Bits { value: flags, mask: flag::ZF | flag::SF | flag::PF }
}

fn sum(register: Register, a: u64, b: u64, carry: bool, bits: u32) -> Results {
    let (a, b) = (a & low_bits(bits), b & low_bits(bits));
    let wide = u128::from(a) + u128::from(b) + u128::from(carry);
    let value = wide as u64 & low_bits(bits);
    let overflow = (a ^ value) & (b ^ value) & sign_bit(bits) != 0;
    Results::write(register, value)
        .with(result_flags(value, bits))
        .with_flag(flag::CF, wide >> bits != 0)
        .with_flag(flag::OF, overflow)
}

fn difference(register: Register, a: u64, b: u64, borrow: bool, bits: u32) -> Results {
    let (a, b) = (a & low_bits(bits), b & low_bits(bits));
    let value = a.wrapping_sub(b).wrapping_sub(u64::from(borrow)) & low_bits(bits);
    let overflow = (a ^ b) & (a ^ value) & sign_bit(bits) != 0;
    Results::write(register, value)
        .with(result_flags(value, bits))
        .with_flag(flag::CF, u128::from(a) < u128::from(b) + u128::from(borrow))
        .with_flag(flag::OF, overflow)
}

fn sign_bit(bits: u32) -> u64 {
    1 << (bits.clamp(1, 64) - 1)
}

/// inc and dec leave the carry unchanged; iced does not list the
/// carry as written, hence the carry must not be among the results.
fn keep_carry(mut results: Results) -> Results {
    results.flags.mask &= !flag::CF;
    results.flags.value &= !flag::CF;
    results
}

fn binary(instruction: &Instruction, known: &Known, bits: u32) -> Option<Results> {
    let register = instruction.op0_register();
    let mnemonic = instruction.mnemonic();
    let same = instruction.op1_kind() == OpKind::Register && instruction.op1_register() == register;
    // Whatever the value: a register minus itself, or exclusive-or itself, is zero.
    let (a, b) = if same && matches!(mnemonic, Mnemonic::Xor | Mnemonic::Sub | Mnemonic::Cmp | Mnemonic::Sbb)
    {
        (0, 0)
    } else {
        (operand(instruction, 0, known)?, operand(instruction, 1, known)?)
    };
    let logic = |value: u64| {
        Results::write(register, value)
            .with(result_flags(value, bits))
            .with_flag(flag::CF, false)
            .with_flag(flag::OF, false)
    };
    let mut results = match mnemonic {
        Mnemonic::Add => sum(register, a, b, false, bits),
        Mnemonic::Adc => sum(register, a, b, known.flag(flag::CF)?, bits),
        Mnemonic::Sub | Mnemonic::Cmp => difference(register, a, b, false, bits),
        Mnemonic::Sbb => difference(register, a, b, known.flag(flag::CF)?, bits),
        Mnemonic::Or => logic(a | b),
        Mnemonic::Xor => logic(a ^ b),
        _ => logic(a & b),
    };
    if matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test) {
        results.writes = [None, None];
    }
    Some(results)
}

/// The processor takes 6 bits of the count for 64-bit operands, 5 for all others.
fn shift_count(count: u64, bits: u32) -> u32 {
    count as u32 & if bits == 64 { 0x3f } else { 0x1f }
}

fn shift(instruction: &Instruction, known: &Known, bits: u32) -> Option<Results> {
    let register = instruction.op0_register();
    let old = operand(instruction, 0, known)?;
    let count = shift_count(operand(instruction, 1, known)?, bits);
    if count == 0 {
        return Some(Results::write(register, old).with(known.flags));
    }
    let signed = sign_extend(old, bits);
    let (value, carry) = match instruction.mnemonic() {
        Mnemonic::Sar => ((signed >> count) as u64, signed >> (count - 1) & 1 != 0),
        Mnemonic::Shr => (old >> count, old >> (count - 1) & 1 != 0),
        _ => (old << count, old << (count - 1) & sign_bit(bits) != 0),
    };
    let results = Results::write(register, value).with(result_flags(value, bits));
    let carry_defined = count < bits || instruction.mnemonic() == Mnemonic::Sar;
    Some(if carry_defined { results.with_flag(flag::CF, carry) } else { results })
}

/// Rotates the low `bits` bits of `value`.
fn rotate_left(value: u64, count: u32, bits: u32) -> u64 {
    let count = count % bits.max(1);
    let value = value & low_bits(bits);
    if count == 0 { value } else { (value << count | value >> (bits - count)) & low_bits(bits) }
}

fn rotate(instruction: &Instruction, known: &Known, bits: u32) -> Option<Results> {
    let register = instruction.op0_register();
    let old = operand(instruction, 0, known)?;
    let count = shift_count(operand(instruction, 1, known)?, bits);
    if count == 0 {
        return Some(Results::write(register, old).with(known.flags));
    }
    let is_left = instruction.mnemonic() == Mnemonic::Rol;
    let value = rotate_left(old, if is_left { count } else { bits - count % bits.max(1) }, bits);
    let carry = if is_left { value & 1 != 0 } else { value & sign_bit(bits) != 0 };
    Some(Results::write(register, value).with_flag(flag::CF, carry))
}

fn multiply(instruction: &Instruction, known: &Known, bits: u32) -> Option<Results> {
    let is_signed = instruction.mnemonic() == Mnemonic::Imul;
    let widen = |value: u64| if is_signed { i128::from(sign_extend(value, bits)) } else { i128::from(value) };
    let (a, b) = match instruction.op_count() {
        1 => {
            let accumulator = match bits {
                8 => Register::AL,
                16 => Register::AX,
                32 => Register::EAX,
                _ => Register::RAX,
            };
            (known.get(accumulator)?, operand(instruction, 0, known)?)
        }
        2 => (operand(instruction, 0, known)?, operand(instruction, 1, known)?),
        _ => (operand(instruction, 1, known)?, operand(instruction, 2, known)?),
    };
    // Two unsigned 64-bit factors can exceed i128, but the wrapped bits are the right ones.
    let product = widen(a).wrapping_mul(widen(b));
    let low = product as u64 & low_bits(bits);
    let high = (product >> bits) as u64 & low_bits(bits);
    let overflow = if is_signed { widen(low) != product } else { high != 0 };
    let results = match (instruction.op_count(), bits) {
        (1, 8) => Results::write(Register::AX, product as u64 & 0xffff),
        (1, 16) => Results::writes((Register::AX, low), (Register::DX, high)),
        (1, 32) => Results::writes((Register::EAX, low), (Register::EDX, high)),
        (1, _) => Results::writes((Register::RAX, low), (Register::RDX, high)),
        _ => Results::write(instruction.op0_register(), low),
    };
    Some(results.with_flag(flag::CF, overflow).with_flag(flag::OF, overflow))
}

/// cbw, cwde, cdqe.
fn extend_accumulator(known: &Known, from: Register, to: Register) -> Option<Results> {
    Some(Results::write(to, sign_extend(known.get(from)?, from.size() as u32 * 8) as u64))
}

/// cwd, cdq, cqo.
fn spread_sign(known: &Known, from: Register, to: Register) -> Option<Results> {
    Some(Results::write(to, (sign_extend(known.get(from)?, from.size() as u32 * 8) >> 63) as u64))
}

fn bit_test(instruction: &Instruction, known: &Known, bits: u32) -> Option<Results> {
    let old = operand(instruction, 0, known)?;
    let bit = 1 << (operand(instruction, 1, known)? % u64::from(bits.max(1)));
    let results = match instruction.mnemonic() {
        Mnemonic::Bts => Results::write(instruction.op0_register(), old | bit),
        Mnemonic::Btr => Results::write(instruction.op0_register(), old & !bit),
        Mnemonic::Btc => Results::write(instruction.op0_register(), old ^ bit),
        _ => Results::default(),
    };
    Some(results.with_flag(flag::CF, old & bit != 0))
}

fn bit_count(instruction: &Instruction, known: &Known) -> Option<Results> {
    let register = instruction.op0_register();
    let value = operand(instruction, 1, known)?;
    if instruction.mnemonic() == Mnemonic::Popcnt {
        let all = flag::CF | flag::PF | flag::ZF | flag::SF | flag::OF;
        let flags = Bits { value: if value == 0 { flag::ZF } else { 0 }, mask: all };
        return Some(Results::write(register, u64::from(value.count_ones())).with(flags));
    }
    // For zero, bsf and bsr give no result, and tzcnt
    // differs on processors that execute tzcnt as bsf.
    if value == 0 {
        return None;
    }
    match instruction.mnemonic() {
        Mnemonic::Bsf => {
            Some(Results::write(register, value.trailing_zeros().into()).with_flag(flag::ZF, false))
        }
        Mnemonic::Bsr => Some(Results::write(register, value.ilog2().into()).with_flag(flag::ZF, false)),
        _ => Some(Results::write(register, value.trailing_zeros().into())),
    }
}

/// A result of the BMI instructions that set SF, ZF and CF and clear OF.
fn bit_field(register: Register, value: u64, bits: u32, carry: bool) -> Results {
    let mut flags = result_flags(value, bits);
    flags.mask &= !flag::PF;
    Results::write(register, value & low_bits(bits))
        .with(flags)
        .with_flag(flag::OF, false)
        .with_flag(flag::CF, carry)
}

fn lowest_bit(instruction: &Instruction, known: &Known, bits: u32) -> Option<Results> {
    let value = operand(instruction, 1, known)?;
    let below = value.wrapping_sub(1);
    let (result, carry) = match instruction.mnemonic() {
        Mnemonic::Blsr => (value & below, value == 0),
        Mnemonic::Blsi => (value & value.wrapping_neg(), value != 0),
        _ => (value ^ below, value == 0),
    };
    Some(bit_field(instruction.op0_register(), result, bits, carry))
}
