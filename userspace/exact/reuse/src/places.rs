//! From a granule to the data of the last touch.
//!
//! Eight neighbouring granules are a group. A granule alone in a group has a single entry;
//! with the second granule the group gets a chunk of eight entries, and the single entry
//! moves into the chunk. A small direct-mapped cache stands in front of the table of groups.
//!
//! Memory: 16 bytes a granule and 2 to 4 for the table if neighbours are used too; 34 to 51
//! bytes for a granule alone in the group; 72 to 80 if two of a group are used, the worst case.

use std::sync::atomic::Ordering;

use locality_stream::{Arena, ArenaFull, Plain, Range, Span};

use crate::groups::Groups;
use crate::map::Slot;

/// Granules of a group, as a power of two.
pub(crate) const CHUNK_BITS: u32 = 3;
/// Groups in the cache.
const CACHE: usize = 2048;
/// Chunks in the first and in the largest slab.
const SLABS: (usize, usize) = (32, 1 << 14);

/// An entry's place in the arena, in units of an entry's size; 0 is none.
pub(crate) type Reference = u32;

/// The last touch of a granule.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Entry {
    /// Number of the access, from 1; 0 for a granule never touched.
    pub(crate) time: u64,
    /// Place in [`crate::order::Order`].
    pub(crate) slot: u32,
    /// The last toucher.
    pub(crate) site: u32,
}
// SAFETY: integers without padding.
unsafe impl Plain for Entry {}

/// The lowest bits of a granule's number, and of the reference of the entry in a chunk.
const WITHIN: u64 = (1 << CHUNK_BITS) - 1;
const ENTRY: usize = size_of::<Entry>();
const CHUNK: usize = ENTRY << CHUNK_BITS;

/// The tables; lie in an arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Places {
    groups: Groups,
    cache: Span<Slot>,
    /// The next entry for a single granule; at a multiple of a chunk's size the chunk is used up.
    single: u64,
    /// Entries left by single granules, as a chain by slots.
    left: u64,
    /// Free part of the newest slab, in bytes from the base.
    next: u64,
    end: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Places {}

/// Owners of entries, over the granularities of a state from another process.
pub(crate) struct Claims {
    /// In ascending order, and apart.
    tables: Vec<Range>,
    /// A bit for each possible entry in the taken part of the arena.
    entries: Vec<u8>,
}

impl Claims {
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, mut tables: Vec<Range>) -> Claims {
        tables.retain(|(_, bytes)| *bytes > 0);
        tables.sort_unstable();
        let taken = arena.taken().load(Ordering::Relaxed).min(arena.len());
        Claims { tables, entries: vec![0; taken / CHUNK] }
    }

    /// Claims an entry or a chunk; false if the place is taken.
    fn claim(&mut self, reference: Reference) -> bool {
        let (mask, count) = if is_chunk(reference) { (u8::MAX, 1 << CHUNK_BITS) } else { (1, 1) };
        let mask = mask << (u64::from(reference) & WITHIN);
        let start = u64::from(reference) * ENTRY as u64;
        let behind = self.tables.partition_point(|table| table.0 < start + count * ENTRY as u64);
        let before = behind.checked_sub(1).and_then(|at| self.tables.get(at));
        let is_free = before.is_none_or(|(table, bytes)| table + bytes <= start);
        let Some(held) = self.entries.get_mut(reference as usize >> CHUNK_BITS) else { return false };
        let is_new = *held & mask == 0;
        *held |= mask;
        is_free && is_new && reference != 0
    }
}

/// Result of [`Places::find`].
pub(crate) struct Found {
    pub(crate) reference: Reference,
    /// Old and new reference of another entry's move.
    pub(crate) moved: Option<(Reference, Reference)>,
}

/// True for the reference of a chunk: single entries never stand at the beginning of a chunk.
fn is_chunk(reference: Reference) -> bool {
    reference & WITHIN as Reference == 0
}

/// Keys in the cache: of a granule's group with a chunk, and of the
/// granule if alone. Granules in the upper half of the numbers are not
/// cached when alone, since the keys could be taken for groups' keys.
#[inline(always)]
fn keys(granule: u64) -> (u64, u64) {
    ((granule >> CHUNK_BITS) + 1, if granule >> 63 == 0 { !granule } else { 0 })
}

/// The reference of a granule in a slot of the cache, and whether the slot is the
/// granule's. The slot's value is the reference less the granule's place within the group.
#[inline(always)]
pub(crate) fn cached(slot: &Slot, granule: u64) -> (Reference, bool) {
    let (chunk, single) = keys(granule);
    let known = (slot.key == chunk) | ((slot.key == single) & (single != 0));
    ((slot.value as Reference).wrapping_add((granule & WITHIN) as Reference), known)
}

/// Address of an entry in the arena beginning at `base`.
#[inline(always)]
pub(crate) fn entry(base: *mut u8, reference: Reference) -> *mut Entry {
    base.wrapping_add(reference as usize * ENTRY).cast()
}

impl Places {
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A) -> Result<Places, ArenaFull> {
        let groups = Groups::new(arena).ok_or(ArenaFull)?;
        let cache = Span::allocate(arena, CACHE).ok_or(ArenaFull)?;
        Ok(Places { groups, cache, single: 0, left: 0, next: 0, end: 0 })
    }

    /// The cache; see [`cached`].
    ///
    /// # Safety
    /// The tables must not change as long as the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn cache<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [Slot; CACHE] {
        // SAFETY: the cache was allocated or checked with `CACHE` slots; the caller excludes writers.
        unsafe { &*arena.base().as_ptr().add(self.cache.offset() as usize).cast() }
    }

    /// The reference of a granule's entry, created if new; in the cache afterwards.
    #[inline(always)]
    pub(crate) fn find<A: Arena + ?Sized>(&mut self, arena: &A, granule: u64) -> Result<Found, ArenaFull> {
        let within = (granule & WITHIN) as Reference;
        // SAFETY: the cache was allocated or checked with `CACHE` slots.
        let slot = unsafe {
            let first = arena.base().as_ptr().add(self.cache.offset() as usize).cast::<Slot>();
            &mut *first.add((granule >> CHUNK_BITS) as usize & (CACHE - 1))
        };
        // An access shortly before may have looked up the granule.
        if let (reference, true) = cached(slot, granule) {
            return Ok(Found { reference, moved: None });
        }
        let (chunk_key, single_key) = keys(granule);
        let (reference, key, moved) = match self.groups.find(arena, granule).get() {
            Some((_, chunk)) if is_chunk(chunk) => (chunk | within, chunk_key, None),
            Some((known, single)) if known == granule => (single, single_key, None),
            Some((other, single)) => {
                let chunk = self.promote(arena, other, single)?;
                let to = chunk | (other & WITHIN) as Reference;
                (chunk | within, chunk_key, Some((single, to)))
            }
            None => (self.new_single(arena, granule)?, single_key, None),
        };
        // In the given order: a cached key has a value.
        slot.key = 0;
        slot.value = u64::from(reference.wrapping_sub(within));
        slot.key = key;
        Ok(Found { reference, moved })
    }

    /// Makes an entry for the first granule of a group.
    #[cold]
    #[inline(never)]
    fn new_single<A: Arena + ?Sized>(&mut self, arena: &A, granule: u64) -> Result<Reference, ArenaFull> {
        let single = self.single(arena)?;
        self.groups.insert(arena, granule)?.set(granule, single);
        Ok(single)
    }

    /// Makes a chunk for a group with `other` alone before.
    #[cold]
    #[inline(never)]
    fn promote<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        other: u64,
        single: Reference,
    ) -> Result<Reference, ArenaFull> {
        let base = arena.base().as_ptr();
        let chunk = self.chunk(arena)?;
        // SAFETY: both are different entries of the table; further references
        // to the single entry exist only with callers notified of the move.
        unsafe {
            let to = entry(base, chunk | (other & WITHIN) as Reference);
            to.copy_from_nonoverlapping(entry(base, single), 1);
            // From here on the chunk is the group's: `set` keeps the order of stores.
            self.groups.find(arena, other).set(other, chunk);
            *entry(base, single) = Entry { time: 0, slot: self.left as u32, site: 0 };
        }
        self.left = single.into();
        Ok(chunk)
    }

    /// An unused chunk.
    fn chunk<A: Arena + ?Sized>(&mut self, arena: &A) -> Result<Reference, ArenaFull> {
        if self.next + CHUNK as u64 > self.end {
            let count = (self.groups.len() / 16).clamp(SLABS.0, SLABS.1);
            let slab = arena.allocate(count * CHUNK).ok_or(ArenaFull)?;
            self.next = slab;
            self.end = slab + (count * CHUNK) as u64;
        }
        let reference = Reference::try_from(self.next / ENTRY as u64).map_err(|_| ArenaFull)?;
        self.next += CHUNK as u64;
        Ok(reference)
    }

    /// An unused entry, not at the beginning of a chunk.
    fn single<A: Arena + ?Sized>(&mut self, arena: &A) -> Result<Reference, ArenaFull> {
        let left = self.left as Reference;
        if left != 0 {
            // SAFETY: an abandoned entry.
            unsafe {
                let free = entry(arena.base().as_ptr(), left);
                self.left = (*free).slot.into();
                *free = Entry { time: 0, slot: 0, site: 0 };
            }
            return Ok(left);
        }
        if is_chunk(self.single as Reference) {
            self.single = u64::from(self.chunk(arena)?) + 1;
        }
        self.single += 1;
        Ok(self.single as Reference - 1)
    }

    /// Prefetches the memory read by a granule's look-up.
    #[inline(always)]
    pub(crate) fn prefetch<A: Arena + ?Sized>(&self, arena: &A, granule: u64) {
        self.groups.prefetch(arena, granule);
    }

    /// Calls `f` with the granule, the reference and the
    /// entry of every existing entry, touched or not.
    pub(crate) fn for_each<A: Arena + ?Sized>(
        &self,
        arena: &A,
        mut f: impl FnMut(u64, Reference, &mut Entry),
    ) {
        for (granule, value) in self.groups.iterate(arena) {
            let entries = if is_chunk(value) { 0..=WITHIN } else { granule & WITHIN..=granule & WITHIN };
            for index in entries {
                let reference = if is_chunk(value) { value | index as Reference } else { value };
                if self.contains(arena, reference) {
                    // SAFETY: within the arena; `self` is the only owner of the entries.
                    f(granule & !WITHIN | index, reference, unsafe {
                        &mut *entry(arena.base().as_ptr(), reference)
                    });
                }
            }
        }
    }

    /// True when an entry's bytes lie in the arena.
    pub(crate) fn contains<A: Arena + ?Sized>(&self, arena: &A, reference: Reference) -> bool {
        reference != 0 && (reference as usize + 1) * ENTRY <= arena.len()
    }

    /// Ranges of the tables, and room for entries to come.
    pub(crate) fn ranges(&self) -> [Range; 4] {
        let entry = ENTRY as u64;
        let singles = if is_chunk(self.single as Reference) { 0 } else { (!self.single & WITHIN) + 1 };
        let single = (self.single.saturating_mul(entry), singles * entry);
        let slab = (self.next, self.end.saturating_sub(self.next));
        [self.groups.range(), self.cache.range(), single, slab]
    }

    /// Claims the entries; false if an entry has another owner, or lies in a table.
    pub(crate) fn claim<A: Arena + ?Sized>(&self, arena: &A, claims: &mut Claims) -> bool {
        self.groups.iterate(arena).all(|(_, reference)| claims.claim(reference))
    }

    /// Checks tables from another process.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        let sound = self.groups.is_whole(arena)
            && self.cache.count() == CACHE
            && self.cache.get(arena).is_some()
            && self.end <= arena.len() as u64
            && self.next <= self.end
            && self.single <= arena.len() as u64 / ENTRY as u64
            && self.groups.iterate(arena).all(|(_, value)| {
                self.contains(arena, if is_chunk(value) { value | WITHIN as Reference } else { value })
            });
        if sound {
            // The cache is only a copy: begin with an empty cache. A
            // kill may have interrupted the abandonment of entries.
            self.left = 0;
            for index in 0..CACHE {
                if let Some(first) = self.cache.get(arena) {
                    // SAFETY: within the span checked by `get`.
                    unsafe { (*first.as_ptr().add(index)).key = 0 };
                }
            }
        }
        sound
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use locality_stream::Heap;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each granule has an entry of its own, whose contents stay with it when it moves.
        #[test]
        fn every_granule_keeps_its_entry(
            granules in proptest::collection::vec(
                prop_oneof![0..40_u64, (0..300_u64).prop_map(|n| n * 512), (0..40_u64).prop_map(|n| u64::MAX - n),
                    (0..20_u64).prop_map(|n| (1 << 63) | n)],
                0..400,
            )
        ) {
            let heap = Heap::new(1 << 22).unwrap();
            let base = heap.base().as_ptr();
            let mut places = Places::new(&heap).unwrap();
            let mut oracle = BTreeMap::new();
            for (granule, time) in granules.into_iter().zip(1..) {
                let found = places.find(&heap, granule).unwrap();
                // SAFETY: the entry of a reference that `find` returned; the cache is not written meanwhile.
                unsafe {
                    let held = (*entry(base, found.reference)).time;
                    prop_assert_eq!(held, oracle.get(&granule).copied().unwrap_or(0));
                    (*entry(base, found.reference)).time = time;
                    let slot = &places.cache(&heap)[(granule >> CHUNK_BITS) as usize & (CACHE - 1)];
                    let (reference, known) = cached(slot, granule);
                    prop_assert!(!known || reference == found.reference);
                    // Its neighbours are not taken for it.
                    for other in [granule ^ 1, granule ^ 8, granule ^ (1 << 63), !granule] {
                        let (reference, known) = cached(slot, other);
                        prop_assert!(!known || reference != found.reference);
                    }
                }
                oracle.insert(granule, time);
            }
            let mut seen = BTreeMap::new();
            let mut references = BTreeSet::new();
            places.for_each(&heap, |granule, reference, entry| {
                assert!(references.insert(reference));
                if entry.time != 0 {
                    seen.insert(granule, entry.time);
                }
            });
            prop_assert_eq!(seen, oracle);
            prop_assert!(places.is_whole(&heap));
        }
    }
}
