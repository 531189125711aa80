//! Tables in an arena: a hash table, and records indexed by (function, index of code). None has pointers.

use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Arena, List, Plain, Range, Span};

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Slot {
    /// 0 for a free one.
    key: u64,
    value: u64,
}
// SAFETY: two integers.
unsafe impl Plain for Slot {}

/// A hash table from keys other than 0 to numbers: open addressing with linear probing, at most half full.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Map {
    slots: Span<Slot>,
    used: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Map {}

impl Map {
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A) -> Option<Map> {
        Some(Map { slots: Span::allocate(arena, 256)?, used: 0 })
    }

    #[inline(always)]
    fn probe<A: Arena + ?Sized>(&self, arena: &A, key: u64) -> *mut Slot {
        let count = self.slots.count() as u64;
        // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4). `count` is a power of
        // two above 1.
        let mut at = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (count.leading_zeros() + 1);
        // SAFETY: the span was allocated or checked (`is_whole`), so it lies within the arena.
        let first = unsafe { arena.base().as_ptr().add(self.slots.offset() as usize).cast::<Slot>() };
        loop {
            // SAFETY: `at` is below `count`; the table's owner is the only writer.
            let slot = unsafe { first.add(at as usize) };
            // SAFETY: as above.
            let found = unsafe { (*slot).key };
            if found == key || found == 0 {
                return slot;
            }
            at = (at + 1) & (count - 1);
        }
    }

    /// The number of a key; 0 for an absent one.
    #[inline(always)]
    pub(crate) fn get<A: Arena + ?Sized>(&self, arena: &A, key: u64) -> u32 {
        // SAFETY: `probe` returns a slot of this table. A free one has the value 0.
        unsafe { (*self.probe(arena, key)).value as u32 }
    }

    /// Sets the number of a key; `None` when the arena is full.
    pub(crate) fn set<A: Arena + ?Sized>(&mut self, arena: &A, key: u64, value: u32) -> Option<()> {
        if (self.used + 1) * 2 > self.slots.count() as u64 {
            let old = *self;
            self.slots = Span::allocate(arena, old.slots.count() * 2)?;
            for slot in old.all(arena) {
                // SAFETY: a free slot of the new table.
                unsafe { *self.probe(arena, slot.key) = *slot };
            }
            old.slots.release(arena);
        }
        let slot = self.probe(arena, key);
        // SAFETY: a slot of this table, with `self` as its only owner. A key is there after its
        // value.
        unsafe {
            self.used += u64::from((*slot).key == 0);
            (*slot).value = value.into();
            compiler_fence(Ordering::SeqCst);
            (*slot).key = key;
        }
        Some(())
    }

    /// Empties the table.
    pub(crate) fn clear<A: Arena + ?Sized>(&mut self, arena: &A) {
        if let Some(first) = self.slots.get(arena) {
            // SAFETY: the span's own range; zeros are free slots.
            unsafe { first.write_bytes(0, self.slots.count()) };
        }
        self.used = 0;
    }

    fn all<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> impl Iterator<Item = &'a Slot> + use<'a, A> {
        // SAFETY: the table has no writer meanwhile.
        let slots = unsafe { self.slots.slice(arena) }.unwrap_or_default();
        slots.iter().filter(|slot| slot.key != 0)
    }

    pub(crate) fn range(&self) -> Range {
        self.slots.range()
    }

    /// Checks a table that comes out of another process' hands: probing ends, and numbers are below `bound`.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A, bound: usize) -> bool {
        let count = self.slots.count();
        let sound = count.is_power_of_two() && count >= 256 && self.slots.get(arena).is_some();
        if sound {
            self.used = self.all(arena).count() as u64;
        }
        // A free slot's value may have been written without its key.
        let values_are_below = || {
            // SAFETY: the table has no writer meanwhile.
            let slots = unsafe { self.slots.slice(arena) }.unwrap_or_default();
            slots.iter().all(|slot| slot.value < bound as u64)
        };
        sound && (self.used as usize) < count && values_are_below()
    }
}

/// A record of [`Keyed`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Entry<T> {
    pub(crate) function: u32,
    /// Index of an instruction or a block.
    pub(crate) index: u32,
    pub(crate) value: T,
}
// SAFETY: `T` has no padding and is made of 8-byte integers, after 8 bytes.
unsafe impl<T: Plain> Plain for Entry<T> {}

/// Records by (function, index of code). Code mostly belongs to one function, which a table by index knows.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Keyed<T> {
    /// By index: the record used last, and above its number the function plus 1.
    latest: List<u64>,
    pub(crate) list: List<Entry<T>>,
    numbers: Map,
}

impl<T> Clone for Keyed<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Keyed<T> {}
// SAFETY: integers without padding.
unsafe impl<T: 'static> Plain for Keyed<T> {}

impl<T: Plain> Keyed<T> {
    /// With record 0 for function 0 and index `none`: who finds no room takes that.
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, none: u32, value: T) -> Option<Self> {
        let mut list = List::new(arena, 256)?;
        list.push(arena, Entry { function: 0, index: none, value })?;
        Some(Keyed { latest: List::new(arena, 1024)?, list, numbers: Map::new(arena)? })
    }

    /// Where the table by index and the records lie in an arena that begins at `base`, with the
    /// former's length.
    #[inline(always)]
    pub(crate) fn parts(&self, base: *mut u8) -> (*const u64, u32, *mut Entry<T>) {
        let at = |offset: u64| base.wrapping_add(offset as usize);
        let latest = at(self.latest.offset()).cast_const().cast();
        (latest, self.latest.len() as u32, at(self.list.offset()).cast())
    }

    /// The number of a record, which is made with `value` if it is new; `None` when the arena is full.
    #[inline(always)]
    pub(crate) fn find<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        function: u32,
        index: u32,
        value: T,
    ) -> Option<u32> {
        if (index as usize) < self.latest.len() {
            // SAFETY: below the length.
            unsafe {
                let latest = *self.latest.at(arena, index);
                if latest >> 32 == u64::from(function) + 1 {
                    return Some(latest as u32);
                }
            }
        }
        self.look_up(arena, function, index, value)
    }

    /// As [`Keyed::find`], for an index in `parts`; `None` without such a record. It becomes the
    /// latest record of the index; no table moves.
    #[inline(never)]
    pub(crate) fn known<A: Arena + ?Sized>(&mut self, arena: &A, function: u32, index: u32) -> Option<u32> {
        let number = self.numbers.get(arena, (u64::from(function) + 1) << 32 | u64::from(index));
        if number == 0 {
            return None;
        }
        *self.latest.get_mut(arena, index)? = (u64::from(function) + 1) << 32 | u64::from(number);
        Some(number)
    }

    #[inline(never)]
    fn look_up<A: Arena + ?Sized>(&mut self, arena: &A, function: u32, index: u32, value: T) -> Option<u32> {
        /// Indices above are not stored by index: code has no such.
        const MOST: u32 = 1 << 28;
        let key = (u64::from(function) + 1) << 32 | u64::from(index);
        let mut number = self.numbers.get(arena, key);
        if number == 0 {
            number = self.list.push(arena, Entry { function, index, value })?;
            self.numbers.set(arena, key, number)?;
        }
        if index < MOST {
            self.latest.extend(arena, index as usize + 1)?;
            *self.latest.get_mut(arena, index)? = (u64::from(function) + 1) << 32 | u64::from(number);
        }
        Some(number)
    }

    pub(crate) fn ranges(&self) -> [Range; 3] {
        [self.latest.range(), self.list.range(), self.numbers.range()]
    }

    /// Checks tables that come out of another process' hands.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        let count = self.list.len();
        self.list.is_whole(arena)
            && count > 0
            && self.latest.is_whole(arena)
            && self.latest.values(arena).iter().all(|latest| (*latest as u32 as usize) < count)
            && self.numbers.is_whole(arena, count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use locality_stream::Heap;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_are_those_of_a_standard_map(
            keys in proptest::collection::vec((0..5_u32, prop_oneof![0..60_u32, Just(u32::MAX)]), 0..600)
        ) {
            let heap = Heap::new(1 << 20).unwrap();
            let mut keyed = Keyed::new(&heap, u32::MAX - 1, 0_u64).unwrap();
            let mut oracle: HashMap<(u32, u32), u64> = HashMap::new();
            for (function, index) in keys {
                let number = keyed.find(&heap, function, index, 0).unwrap();
                let entry = keyed.list.get_mut(&heap, number).unwrap();
                prop_assert_eq!((entry.function, entry.index), (function, index));
                entry.value += 1;
                *oracle.entry((function, index)).or_default() += 1;
            }
            let entries = keyed.list.values(&heap).iter().skip(1);
            let seen: HashMap<_, _> = entries.map(|entry| ((entry.function, entry.index), entry.value)).collect();
            prop_assert_eq!(seen, oracle);
            prop_assert!(keyed.is_whole(&heap));
        }
    }

    #[test]
    fn a_full_arena_is_an_answer() {
        let heap = Heap::new(1 << 16).unwrap();
        let mut keyed = Keyed::new(&heap, u32::MAX, 0_u64).unwrap();
        let refused = (0..10_000).find(|index| keyed.find(&heap, 1, *index, 0).is_none());
        assert!(refused.is_some_and(|index| index > 100));
        assert!(keyed.is_whole(&heap));
    }

    #[test]
    fn an_emptied_map_has_nothing() {
        let heap = Heap::new(1 << 18).unwrap();
        let mut map = Map::new(&heap).unwrap();
        for key in 1..1000 {
            map.set(&heap, key, key as u32 * 2).unwrap();
        }
        assert!((1..1000).all(|key| map.get(&heap, key) == key as u32 * 2));
        map.clear(&heap);
        assert!((1..1000).all(|key| map.get(&heap, key) == 0));
    }
}
