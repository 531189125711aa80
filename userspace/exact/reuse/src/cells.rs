//! Counts by 64-bit key (never 0), in an arena: buckets of eight keys in one cache line and their
//! counts in the next, so that one vector comparison finds a key wherever in its bucket it stands.
//! A full bucket overflows into the next one.
//!
//! Memory: 26 to 51 bytes a key. Keys are never removed. A kill leaves the table whole, in the
//! middle of growth too.

use locality_stream::{Arena, Plain, Range, Span};

use crate::batch::BATCH;
use crate::lanes::{KEYS, Lanes};
use crate::map::{Full, hash};
use crate::prefetch::prefetch;
use crate::twin::Twin;

/// Buckets from which on asking ahead pays: the table leaves little of the second-level cache.
const PREFETCH_FROM: usize = 1 << 11;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Bucket {
    keys: [u64; KEYS],
    counts: [u64; KEYS],
}
// SAFETY: integers.
unsafe impl Plain for Bucket {}

/// The table; lies in an arena itself.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Cells {
    buckets: Twin<Bucket>,
    used: u64,
    /// Keys that it may hold.
    bound: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Cells {}

impl Cells {
    /// A table with room for `keys` keys at first, which grows up to `bound` keys.
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, keys: usize, bound: usize) -> Option<Cells> {
        let first = Span::allocate(arena, (keys / KEYS).max(2).next_power_of_two())?;
        Some(Cells { buckets: Twin::new(first), used: 0, bound: bound as u64 })
    }

    #[inline(always)]
    fn table(&self) -> Span<Bucket> {
        self.buckets.table()
    }

    /// Adds 1 to the count of each of the first `len` keys; returns how many found no room. `homes`
    /// is room for the keys' buckets.
    ///
    /// # Safety
    /// The processor must have the instructions of `L`.
    #[inline(always)]
    pub(crate) unsafe fn count<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        keys: &[u64; BATCH],
        homes: &mut [u64; BATCH],
        len: usize,
    ) -> u64 {
        // Growth in between makes the homes those of a table out of use; `elsewhere` always looks
        // at the right one.
        let (table, active) = (self.table(), self.buckets.active());
        for (home_of_key, key) in homes.iter_mut().zip(keys) {
            *home_of_key = home(table, *key) as u64;
        }
        let buckets = first(arena, table);
        if table.count() > PREFETCH_FROM {
            for home in homes.iter().take(len) {
                let bucket = buckets.wrapping_add(*home as usize).cast::<u8>();
                prefetch(bucket);
                prefetch(bucket.wrapping_add(size_of::<[u64; KEYS]>()));
            }
        }
        let mut lost = 0;
        for (key, home) in keys.iter().zip(homes.iter()).take(len) {
            // SAFETY: the table was allocated or checked, and a home is below its count.
            unsafe {
                let bucket = buckets.add(*home as usize);
                let found = L::find_key(&raw const (*bucket).keys, *key);
                if found != 0 && self.buckets.active() == active {
                    let place = found.trailing_zeros() as usize;
                    *(&raw mut (*bucket).counts).cast::<u64>().add(place) += 1;
                    continue;
                }
            }
            lost += u64::from(self.elsewhere(arena, *key).is_err());
        }
        lost
    }

    /// Counts a key wherever it is, or puts it in.
    #[cold]
    #[inline(never)]
    fn elsewhere<A: Arena + ?Sized>(&mut self, arena: &A, key: u64) -> Result<(), Full> {
        let mut place = probe(arena, self.table(), key);
        // SAFETY: places that `probe` returns lie in the table, of which `self` is the only owner.
        unsafe {
            if *place.key == 0 {
                if self.used >= self.bound {
                    return Err(Full);
                }
                if (self.used + 1) * 8 > self.table().count() as u64 * KEYS as u64 * 5 {
                    self.grow(arena)?;
                    place = probe(arena, self.table(), key);
                }
                self.used += 1;
                *place.key = key;
            }
            *place.count += 1;
        }
        Ok(())
    }

    fn grow<A: Arena + ?Sized>(&mut self, arena: &A) -> Result<(), Full> {
        let old = self.table();
        let new = Span::allocate(arena, old.count() * 2).ok_or(Full)?;
        for (key, count) in self.iterate(arena) {
            let place = probe(arena, new, key);
            // SAFETY: a free place of the new table, which nobody else knows yet.
            unsafe {
                *place.key = key;
                *place.count = count;
            }
        }
        self.buckets.replace(arena, new);
        Ok(())
    }

    /// All keys and counts, in no order. The table must not be written meanwhile.
    pub(crate) fn iterate<'a, A: Arena + ?Sized>(
        &self,
        arena: &'a A,
    ) -> impl Iterator<Item = (u64, u64)> + use<'a, A> {
        // SAFETY: `self` is the only owner, and the caller does not write while iterating.
        let buckets = unsafe { self.table().slice(arena) }.unwrap_or_default();
        buckets
            .iter()
            .flat_map(|bucket| bucket.keys.iter().copied().zip(bucket.counts.iter().copied()))
            .filter(|(key, _)| *key != 0)
    }

    pub(crate) fn range(&self) -> Range {
        self.table().range()
    }

    /// Checks a table that comes out of another process' hands, and counts its keys again:
    /// afterwards every operation stays within the arena and ends.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        let sound = self.buckets.is_sound(arena);
        if sound {
            self.used = self.iterate(arena).count() as u64;
        }
        sound && self.used < (self.table().count() * KEYS) as u64
    }
}

struct Place {
    key: *mut u64,
    count: *mut u64,
}

/// The first bucket of a table.
#[inline(always)]
fn first<A: Arena + ?Sized>(arena: &A, table: Span<Bucket>) -> *mut Bucket {
    arena.base().as_ptr().wrapping_add(table.offset() as usize).cast()
}

/// The bucket to which a key belongs. The number of buckets is a power of two, at least 2.
#[inline(always)]
fn home(table: Span<Bucket>, key: u64) -> usize {
    (hash(key) >> ((table.count() as u64).leading_zeros() + 1)) as usize
}

/// Where a key is or would be.
fn probe<A: Arena + ?Sized>(arena: &A, table: Span<Bucket>, key: u64) -> Place {
    let mut at = home(table, key);
    loop {
        // SAFETY: `at` is below the table's count; this table's owner is the only one who uses it.
        let bucket = unsafe { &mut *first(arena, table).add(at) };
        for (held, count) in bucket.keys.iter_mut().zip(&mut bucket.counts) {
            if *held == key || *held == 0 {
                return Place { key: held, count };
            }
        }
        at = (at + 1) & (table.count() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use locality_stream::Heap;

    use super::*;
    use crate::lanes::Portable;

    #[test]
    fn agrees_with_the_standard_library() {
        let heap = Heap::new(1 << 22).unwrap();
        let mut cells = Cells::new(&heap, 1, 5000).unwrap();
        let mut oracle = HashMap::new();
        let mut random = fastrand::Rng::with_seed(1);
        let mut lost = 0;
        for _ in 0..5000 {
            let keys: [u64; BATCH] = std::array::from_fn(|_| random.u64(1..6000));
            for key in keys.iter().take(10) {
                if oracle.len() == 5000 && !oracle.contains_key(key) {
                    lost += 1;
                } else {
                    *oracle.entry(*key).or_insert(0_u64) += 1;
                }
            }
            // SAFETY: the portable form runs everywhere.
            lost -= unsafe { cells.count::<Portable, _>(&heap, &keys, &mut [0; BATCH], 10) };
            assert_eq!(lost, 0);
        }
        assert_eq!(oracle.len(), 5000);
        assert_eq!(cells.iterate(&heap).collect::<HashMap<_, _>>(), oracle);
        assert!(cells.is_whole(&heap));
        assert_eq!(cells.used, 5000);
    }
}
