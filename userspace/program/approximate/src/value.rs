//! What is known of a value in a register: which object it points into and how far, and a signature
//! that equal computations share.
//!
//! The distance from the object's start is a congruence, offset + k × modulus (Granger 1989): that
//! is what is left of an index into an array of structs, and enough to tell its member.

use std::collections::{BTreeSet, HashMap};

/// Index of a [`Base`] in its function.
pub(crate) type BaseAt = u32;

/// Longest chain of loads that is followed.
const DEEPEST: u8 = 6;

/// Where a pointer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Base {
    /// An address of this module in the code. Offsets count from it.
    Address(u64),
    /// The canonical frame address.
    Frame,
    /// The thread pointer.
    Thread,
    /// The address of another module's symbol, by the slot that holds it.
    Foreign(u64),
    /// What the general register of that number (as in machine code) holds when the function is entered.
    Argument(u8),
    /// Result of the call at that address.
    Call(u64),
    /// What memory at base + offset (+ multiples of the modulus) holds.
    Load(BaseAt, i64, u64),
    /// The value of the variable of that index in the function.
    Variable(usize),
    /// One of several, after paths meet; [`Bases::sources`] has them.
    Merge(u64, u32),
}

/// All bases of a function.
#[derive(Debug, Default)]
pub(crate) struct Bases {
    list: Vec<(Base, u8)>,
    index: HashMap<Base, BaseAt>,
    /// For merges: possible sources. `None` stands for an unknown one.
    pub(crate) sources: HashMap<BaseAt, BTreeSet<Option<BaseAt>>>,
}

impl Bases {
    /// `None` if the chain of loads gets too long.
    pub(crate) fn add(&mut self, base: Base) -> Option<BaseAt> {
        if let Some(at) = self.index.get(&base) {
            return Some(*at);
        }
        let depth = match base {
            Base::Load(from, ..) => self.list.get(from as usize)?.1 + 1,
            _ => 0,
        };
        if depth > DEEPEST {
            return None;
        }
        let at = BaseAt::try_from(self.list.len()).ok()?;
        self.list.push((base, depth));
        self.index.insert(base, at);
        Some(at)
    }

    pub(crate) fn get(&self, at: BaseAt) -> Option<Base> {
        self.list.get(at as usize).map(|(base, _)| *base)
    }
}

/// What is known of a 64-bit value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    /// The object; `None` for a number, or when nothing is known.
    pub(crate) base: Option<BaseAt>,
    /// A second object whose address was subtracted: base − minus + offset.
    pub(crate) minus: Option<BaseAt>,
    pub(crate) offset: i64,
    /// 0: exactly the offset. 1: anything.
    pub(crate) modulus: u64,
    /// If the unknown part is one number times a factor: the number's signature and the factor. (0,
    /// 0) otherwise.
    pub(crate) term: (u64, i64),
    /// Stands for all of the value but the offset: values of equal signature and offset are equal,
    /// as far as this analysis sees. It is linear in what the value is computed from, and 0 for
    /// constants.
    pub(crate) signature: u64,
}

/// Mixes words into a signature.
pub(crate) fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, word| {
        let mixed = (sum ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 32)
    })
}

/// Greatest common divisor; of 0 and x it is x.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Value {
    pub(crate) fn unknown(signature: u64) -> Self {
        Value { base: None, minus: None, offset: 0, modulus: 1, term: (signature, 1), signature }
    }

    pub(crate) fn number(number: i64) -> Self {
        Value { base: None, minus: None, offset: number, modulus: 0, term: (0, 0), signature: 0 }
    }

    pub(crate) fn of(base: BaseAt, signature: u64) -> Self {
        Value { base: Some(base), minus: None, offset: 0, modulus: 0, term: (0, 0), signature }
    }

    /// The number, if single and known.
    pub(crate) fn exact(self) -> Option<i64> {
        (self.base.is_none() && self.minus.is_none() && self.modulus == 0).then_some(self.offset)
    }

    /// The sum of two values. Of two pointers nothing is known, unless one is a difference.
    pub(crate) fn plus(self, other: Value) -> Value {
        let signature = self.signature.wrapping_add(other.signature);
        let (base, minus) = match cancel([self.base, other.base], [self.minus, other.minus]) {
            Some(parts) => parts,
            None => return Value::unknown(signature),
        };
        let (term, modulus) = match (self.term, other.term) {
            _ if self.modulus == 0 => (other.term, other.modulus),
            _ if other.modulus == 0 => (self.term, self.modulus),
            // p + 2p is 3p, which a greatest common divisor would not tell.
            ((a, times_a), (b, times_b)) if a == b && times_a != 0 && times_b != 0 => {
                match times_a.wrapping_add(times_b) {
                    0 => ((0, 0), 0),
                    times => ((a, times), times.unsigned_abs()),
                }
            }
            _ => ((0, 0), gcd(self.modulus, other.modulus)),
        };
        Value { base, minus, offset: self.offset.wrapping_add(other.offset), modulus, term, signature }
    }

    pub(crate) fn minus(self, other: Value) -> Value {
        self.plus(Value {
            base: other.minus,
            minus: other.base,
            offset: other.offset.wrapping_neg(),
            term: (other.term.0, other.term.1.wrapping_neg()),
            modulus: other.modulus,
            signature: other.signature.wrapping_neg(),
        })
    }

    /// A number times a constant.
    pub(crate) fn times(self, factor: i64) -> Value {
        let signature = self.signature.wrapping_mul(factor as u64);
        if factor == 1 {
            return self;
        }
        if self.base.is_some() || self.minus.is_some() {
            return Value::unknown(signature);
        }
        Value {
            offset: self.offset.wrapping_mul(factor),
            modulus: self.modulus.saturating_mul(factor.unsigned_abs()),
            term: if factor == 0 { (0, 0) } else { (self.term.0, self.term.1.wrapping_mul(factor)) },
            signature,
            ..self
        }
    }

    /// The same object, at an unknown distance; of a number nothing is left.
    pub(crate) fn blurred(self, signature: u64) -> Value {
        Value { offset: 0, modulus: 1, term: (0, 0), signature, ..self }
    }
}

/// What is left of bases and subtracted bases when equal ones cancel; `None` when more than one of
/// either is left.
fn cancel(plus: [Option<BaseAt>; 2], minus: [Option<BaseAt>; 2]) -> Option<(Option<BaseAt>, Option<BaseAt>)> {
    let mut plus: Vec<BaseAt> = plus.into_iter().flatten().collect();
    let mut minus: Vec<BaseAt> = minus.into_iter().flatten().collect();
    plus.retain(|base| match minus.iter().position(|other| other == base) {
        Some(at) => {
            minus.remove(at);
            false
        }
        None => true,
    });
    (plus.len() <= 1 && minus.len() <= 1).then(|| (plus.first().copied(), minus.first().copied()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holds(value: Value, number: i64) -> bool {
        match value.modulus {
            0 => number == value.offset,
            modulus => number.wrapping_sub(value.offset).rem_euclid(modulus as i64) == 0,
        }
    }

    proptest! {
        /// Numbers of known congruence: each pair of members gives a member of the result.
        #[test]
        fn arithmetic_is_sound(
            (a, m, i) in (-50..50_i64, 0..20_u64, -5..5_i64),
            (b, n, j) in (-50..50_i64, 0..20_u64, -5..5_i64),
            factor in -9..9_i64,
        ) {
            let value = |offset, modulus| Value { offset, modulus, term: (0, 0), ..Value::unknown(7) };
            let (x, y) = (a + i * m as i64, b + j * n as i64);
            prop_assert!(holds(value(a, m).plus(value(b, n)), x + y));
            prop_assert!(holds(value(a, m).minus(value(b, n)), x - y));
            prop_assert!(holds(value(a, m).times(factor), x * factor));
        }
    }

    #[test]
    fn three_times() {
        let p = Value::unknown(9);
        let size = p.plus(p).plus(p).times(8).plus(Value::number(16));
        assert_eq!((size.offset, size.modulus), (16, 24));
        assert_eq!(size.minus(p.times(24)).exact(), Some(16));
    }

    #[test]
    fn pointers() {
        let p = Value::of(3, 11);
        let q = Value::of(4, 12);
        assert_eq!(p.plus(Value::number(8)).minus(Value::number(8)).offset, 0);
        assert_eq!(p.plus(q).base, None);
        let difference = q.minus(p);
        assert_eq!(p.plus(difference), q);
        assert_eq!(p.minus(p).base, None);
        assert_eq!(p.minus(p).minus, None);
        // Neither the order of a sum matters nor the way in which it is made.
        let index = Value::unknown(5);
        assert_eq!(p.plus(index.times(8)), index.times(8).plus(p));
        let twice = p.plus(index.plus(Value::number(2)).times(8)).minus(Value::number(16));
        assert_eq!(twice, p.plus(index.times(8)));
    }
}
