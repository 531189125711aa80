//! A hash table in an arena: 64-bit keys (never 0) to 64-bit values, open addressing with linear
//! probing, at most half full. Keys are never removed.

use locality_stream::{Arena, Plain, Range, Span};

/// The table cannot grow: its bound is reached or the arena is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) key: u64,
    pub(crate) value: u64,
}
// SAFETY: two integers.
unsafe impl Plain for Slot {}

/// The table; lies in an arena itself.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Map {
    slots: Span<Slot>,
    used: u64,
    /// Keys that it may hold.
    bound: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Map {}

/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4): the upper bits of the product
/// are well mixed.
#[inline(always)]
pub(crate) fn hash(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Map {
    /// A table with room for `keys` keys at first, which grows up to `bound` keys.
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, keys: usize, bound: usize) -> Option<Map> {
        let slots = Span::allocate(arena, keys.max(8).next_power_of_two() * 2)?;
        Some(Map { slots, used: 0, bound: bound as u64 })
    }

    /// Bits of a hash that do not choose the slot.
    #[inline(always)]
    fn shift(&self) -> u32 {
        // The number of slots is a power of two, at least 16.
        (self.slots.count() as u64).leading_zeros() + 1
    }

    /// The slot where `key` is or would be.
    #[inline(always)]
    fn probe<A: Arena + ?Sized>(&self, arena: &A, key: u64) -> *mut Slot {
        let mask = self.slots.count() as u64 - 1;
        // SAFETY: the span was allocated or checked (`is_whole`), so it lies within the arena.
        let first = unsafe { arena.base().as_ptr().add(self.slots.offset() as usize).cast::<Slot>() };
        let mut at = hash(key) >> self.shift();
        loop {
            // SAFETY: `at` is at most `mask`, and the span has `mask` + 1 slots.
            let slot = unsafe { first.add(at as usize) };
            // SAFETY: as above; this table's owner is the only writer.
            let found = unsafe { (*slot).key };
            if found == key || found == 0 {
                return slot;
            }
            at = (at + 1) & mask;
        }
    }

    /// The value of a key.
    #[inline(always)]
    pub(crate) fn get<A: Arena + ?Sized>(&self, arena: &A, key: u64) -> Option<u64> {
        // SAFETY: `probe` returns a slot of this table.
        let slot = unsafe { *self.probe(arena, key) };
        (slot.key == key).then_some(slot.value)
    }

    /// The value of a key, which is put in with 0 if it is new.
    #[inline(always)]
    pub(crate) fn value<'a, A: Arena + ?Sized>(
        &'a mut self,
        arena: &'a A,
        key: u64,
    ) -> Result<&'a mut u64, Full> {
        // SAFETY: `probe` returns a slot of this table, of which `self` is the only owner.
        let slot = unsafe { &mut *self.probe(arena, key) };
        if slot.key == key { Ok(&mut slot.value) } else { self.insert(arena, key) }
    }

    #[cold]
    #[inline(never)]
    fn insert<'a, A: Arena + ?Sized>(&'a mut self, arena: &'a A, key: u64) -> Result<&'a mut u64, Full> {
        if self.used >= self.bound {
            return Err(Full);
        }
        if (self.used + 1) * 2 > self.slots.count() as u64 {
            self.grow(arena)?;
        }
        self.used += 1;
        // SAFETY: as in `value`; the slot is free, since the key is new.
        let slot = unsafe { &mut *self.probe(arena, key) };
        slot.key = key;
        Ok(&mut slot.value)
    }

    fn grow<A: Arena + ?Sized>(&mut self, arena: &A) -> Result<(), Full> {
        let old = *self;
        let slots = Span::allocate(arena, self.slots.count() * 2).ok_or(Full)?;
        let new = Map { slots, ..old };
        for slot in old.iterate(arena) {
            // SAFETY: a free slot of the new table, which nobody else knows yet.
            unsafe { *new.probe(arena, slot.key) = slot };
        }
        self.slots = slots;
        old.slots.release(arena);
        Ok(())
    }

    /// All keys and values, in no order. The table must not be written meanwhile.
    pub(crate) fn iterate<'a, A: Arena + ?Sized>(
        &self,
        arena: &'a A,
    ) -> impl Iterator<Item = Slot> + use<'a, A> {
        // SAFETY: `self` is the only owner, and the caller does not write while iterating.
        let slots = unsafe { self.slots.slice(arena) }.unwrap_or_default();
        slots.iter().copied().filter(|slot| slot.key != 0)
    }

    pub(crate) fn range(&self) -> Range {
        self.slots.range()
    }

    /// Checks a table that comes out of another process' hands, and counts its keys again:
    /// afterwards every operation stays within the arena and ends.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        let sound = self.slots.count().is_power_of_two()
            && self.slots.count() >= 16
            && self.slots.get(arena).is_some();
        if sound {
            self.used = self.iterate(arena).count() as u64;
        }
        // One insertion may have been counted but not made, or the reverse.
        sound && self.used * 2 <= self.slots.count() as u64 + 2 && self.slots.count() > self.used as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use locality_stream::Heap;

    use super::*;

    #[test]
    fn agrees_with_the_standard_library() {
        let heap = Heap::new(1 << 22).unwrap();
        let mut map = Map::new(&heap, 1, 5000).unwrap();
        let mut oracle = HashMap::new();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..50_000 {
            let key = random.u64(1..6000);
            match map.value(&heap, key) {
                Ok(value) => {
                    *value += 1;
                    *oracle.entry(key).or_insert(0) += 1;
                }
                Err(Full) => assert!(oracle.len() == 5000 && !oracle.contains_key(&key)),
            }
        }
        assert_eq!(map.iterate(&heap).map(|slot| (slot.key, slot.value)).collect::<HashMap<_, _>>(), oracle);
        assert_eq!((map.used, map.get(&heap, 7000)), (5000, None));
        assert!(oracle.iter().all(|(key, value)| map.get(&heap, *key) == Some(*value)));
        assert!(map.is_whole(&heap));
    }
}
