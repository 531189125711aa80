//! Content of registers and stack slots at one point of a function, and the rest after paths meet.

use std::collections::{BTreeMap, BTreeSet};

use crate::value::{Base, BaseAt, Bases, Value, gcd, mix};

/// Number of the stack pointer in machine code.
pub(crate) const RSP: usize = 4;

/// A value stored in the frame, and its size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) value: Value,
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) registers: [Value; 16],
    /// By offset from the canonical frame address.
    pub(crate) slots: BTreeMap<i64, Stored>,
    /// Offsets of which pointers went elsewhere.
    pub(crate) escaped: BTreeSet<i64>,
}

impl State {
    /// At a function's entry.
    pub(crate) fn entry(bases: &mut Bases) -> Self {
        let mut this = Self::unknown(0);
        for (number, register) in this.registers.iter_mut().enumerate() {
            if let Some(base) = bases.add(Base::Argument(number as u8)) {
                *register = Value::of(base, mix(&[11, number as u64]));
            }
        }
        if let (Some(frame), Some(stack_pointer)) = (bases.add(Base::Frame), this.registers.get_mut(RSP)) {
            *stack_pointer = Value { offset: -8, ..Value::of(frame, mix(&[12])) };
        }
        this
    }

    /// Nothing known at that code address.
    pub(crate) fn unknown(address: u64) -> Self {
        let registers = std::array::from_fn(|number| Value::unknown(mix(&[13, address, number as u64])));
        State { registers, slots: BTreeMap::new(), escaped: BTreeSet::new() }
    }

    /// Takes in what comes from another way into the block at that address. True if anything changed.
    pub(crate) fn merge(&mut self, other: &State, block: u64, bases: &mut Bases) -> bool {
        let before = self.clone();
        for (number, (mine, theirs)) in self.registers.iter_mut().zip(&other.registers).enumerate() {
            *mine = join(*mine, *theirs, (block, number as u32), bases);
        }
        self.slots.retain(|offset, mine| {
            let Some(theirs) = other.slots.get(offset).filter(|theirs| theirs.bytes == mine.bytes) else {
                return false;
            };
            mine.value = join(mine.value, theirs.value, (block, *offset as u32 | 1 << 31), bases);
            true
        });
        self.escaped.extend(&other.escaped);
        *self != before
    }

    /// Forgets slots that another function may have written; `extent` tells how long the object at
    /// an offset is.
    pub(crate) fn forget_escaped(&mut self, extent: impl Fn(i64) -> i64) {
        for start in &self.escaped {
            let end = start.saturating_add(extent(*start).max(1));
            self.slots.retain(|offset, stored| {
                *offset >= end || offset.saturating_add(stored.bytes as i64) <= *start
            });
        }
    }
}

/// What two values have in common. `at` names the place, so that equal meetings give equal results.
pub(crate) fn join(old: Value, new: Value, at: (u64, u32), bases: &mut Bases) -> Value {
    if old == new {
        return old;
    }
    let meeting = mix(&[14, at.0, u64::from(at.1)]);
    if (old.base, old.minus) == (new.base, new.minus) {
        let apart = old.offset.wrapping_sub(new.offset).unsigned_abs();
        let signature = if old.signature == new.signature { old.signature } else { meeting };
        let modulus = gcd(gcd(old.modulus, new.modulus), apart);
        let times = i64::try_from(modulus).unwrap_or(0);
        let term = if old.term == new.term && apart == 0 { old.term } else { (mix(&[15, meeting]), times) };
        return Value { modulus, term, signature, ..old };
    }
    let is_pointer = |value: Value| value.base.is_some() && value.minus.is_none();
    // A null pointer points nowhere.
    let is_null = |value: Value| value.exact().is_some_and(|number| (0..4096).contains(&number));
    if is_pointer(old) && is_null(new) {
        return old;
    }
    if is_null(old) && is_pointer(new) {
        return new;
    }
    if !is_pointer(old) && !is_pointer(new) {
        return Value::unknown(meeting);
    }
    let Some(merged) = bases.add(Base::Merge(at.0, at.1)) else { return Value::unknown(meeting) };
    let source = |value: Value| -> Option<BaseAt> { value.base.filter(|_| value.minus.is_none()) };
    let sources = bases.sources.entry(merged).or_default();
    for value in [old, new] {
        if source(value) != Some(merged) {
            sources.insert(source(value));
        }
    }
    if old.base == Some(merged) { old } else { Value::of(merged, meeting) }
}
