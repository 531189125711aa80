//! Results and flags of the commonest integer instructions.

use crate::op::{Arithmetic, Shift};

const CF: u64 = 1;
const AF: u64 = 1 << 4;
const OF: u64 = 1 << 11;

/// The low `size` bytes of a value (1, 2, 4 or 8).
#[inline(always)]
pub(crate) fn cut(value: u64, size: u16) -> u64 {
    let unused = 64 - u32::from(size) * 8;
    value << unused >> unused
}

/// Sign-extends the low `size` bytes.
#[inline(always)]
pub(crate) fn extend(value: u64, size: u16) -> u64 {
    let unused = 64 - u32::from(size) * 8;
    ((value << unused) as i64 >> unused) as u64
}

/// PF, ZF and SF of a result, which has no bits beyond `size` bytes.
#[inline(always)]
fn of_result(value: u64, size: u16) -> u64 {
    let parity = u64::from((value as u8).count_ones() & 1 == 0) << 2;
    let zero = u64::from(value == 0) << 6;
    let sign = (value >> (size * 8 - 1) & 1) << 7;
    parity | zero | sign
}

/// The sum of two values of `size` bytes, and the flags.
#[inline(always)]
pub(crate) fn add(a: u64, b: u64, size: u16) -> (u64, u64) {
    let top = size * 8 - 1;
    let sum = cut(a.wrapping_add(b), size);
    let carry = u64::from(sum < a);
    let overflow = ((a ^ sum) & (b ^ sum)) >> top & 1;
    (sum, of_result(sum, size) | carry | (a ^ b ^ sum) & AF | overflow << 11)
}

/// The difference of two values of `size` bytes, and the flags.
#[inline(always)]
pub(crate) fn sub(a: u64, b: u64, size: u16) -> (u64, u64) {
    let top = size * 8 - 1;
    let difference = cut(a.wrapping_sub(b), size);
    let borrow = u64::from(a < b);
    let overflow = ((a ^ b) & (a ^ difference)) >> top & 1;
    (difference, of_result(difference, size) | borrow | (a ^ b ^ difference) & AF | overflow << 11)
}

/// Result and flags of `what` on values of `size` bytes; higher bits of `a` and `b` do not matter.
#[inline(always)]
pub(crate) fn arithmetic(what: Arithmetic, a: u64, b: u64, size: u16) -> (u64, u64) {
    let (a, b) = (cut(a, size), cut(b, size));
    let logic = |value| (value, of_result(value, size));
    match what {
        Arithmetic::Add => add(a, b, size),
        Arithmetic::Sub | Arithmetic::Cmp => sub(a, b, size),
        Arithmetic::And | Arithmetic::Test => logic(a & b),
        Arithmetic::Or => logic(a | b),
        Arithmetic::Xor => logic(a ^ b),
    }
}

/// A value plus 1 or minus 1; the carry stays.
#[inline(always)]
pub(crate) fn step(value: u64, down: bool, size: u16, flags: u64) -> (u64, u64) {
    let value = cut(value, size);
    let (result, new) = if down { sub(value, 1, size) } else { add(value, 1, size) };
    (result, new & !CF | flags & CF)
}

/// A shift by `count`, from 1 to the number of bits less one. AF is undefined, and OF for counts
/// other than 1; both are what Intel's processors leave (AF clear, OF as if the count were 1), as
/// `tests` compare.
#[inline(always)]
pub(crate) fn shift(what: Shift, value: u64, count: u32, size: u16) -> (u64, u64) {
    let bits = u32::from(size) * 8;
    let value = cut(value, size);
    let (result, carry, overflow) = match what {
        Shift::Left => {
            let overflow = ((value >> (bits - 1)) ^ (value >> (bits - 2))) & 1;
            (cut(value << count, size), value >> (bits - count) & 1, overflow)
        }
        Shift::Right => (value >> count, value >> (count - 1) & 1, value >> (bits - 1) & 1),
        Shift::RightSigned => {
            let signed = extend(value, size) as i64;
            (cut((signed >> count) as u64, size), (signed >> (count - 1)) as u64 & 1, 0)
        }
    };
    (result, of_result(result, size) | carry | (overflow * OF))
}
