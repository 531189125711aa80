//! Which entries there are: a hash table in an arena from groups of neighbouring granules to references.
//!
//! A group is known by any of its granules. Buckets of five are one cache line; a full one
//! overflows into the next. Memory: 16 to 32 bytes a group. Groups are never removed. A kill leaves
//! the table whole, in the middle of growth too.

use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Arena, ArenaFull, Plain, Range, Span};

use crate::map::hash;
use crate::places::{CHUNK_BITS, Reference};
use crate::prefetch::prefetch;
use crate::twin::Twin;

/// Groups of a bucket.
const WAYS: usize = 5;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Bucket {
    granules: [u64; WAYS],
    /// 0 where there is none.
    values: [Reference; WAYS],
    reserved: u32,
}
const _: () = assert!(size_of::<Bucket>() == 64);
// SAFETY: integers without padding.
unsafe impl Plain for Bucket {}

/// The table; lies in an arena itself.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Groups {
    buckets: Twin<Bucket>,
    used: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Groups {}

/// A place for a group, in a table that must not grow as long as this is used.
pub(crate) struct Place {
    granule: *mut u64,
    value: *mut Reference,
}

impl Place {
    /// Granule and reference; `None` when the group is new.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<(u64, Reference)> {
        // SAFETY: places lie in their table, which this thread alone uses.
        let (granule, value) = unsafe { (*self.granule, *self.value) };
        (value != 0).then_some((granule, value))
    }

    /// Sets the reference of a group that is known by `granule`; one store switches.
    pub(crate) fn set(&self, granule: u64, value: Reference) {
        // SAFETY: as above.
        unsafe {
            if *self.value == 0 {
                *self.granule = granule;
            }
            compiler_fence(Ordering::SeqCst);
            *self.value = value;
            compiler_fence(Ordering::SeqCst);
        }
    }
}

impl Groups {
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A) -> Option<Groups> {
        Some(Groups { buckets: Twin::new(Span::allocate(arena, 8)?), used: 0 })
    }

    /// Number of groups.
    pub(crate) fn len(&self) -> usize {
        self.used as usize
    }

    #[inline(always)]
    fn table(&self) -> Span<Bucket> {
        self.buckets.table()
    }

    /// Where the group of `granule` is.
    #[inline(always)]
    pub(crate) fn find<A: Arena + ?Sized>(&self, arena: &A, granule: u64) -> Place {
        probe(arena, self.table(), granule)
    }

    /// A place for the group of `granule`, which must be new and is counted as known from now on.
    pub(crate) fn insert<A: Arena + ?Sized>(&mut self, arena: &A, granule: u64) -> Result<Place, ArenaFull> {
        let count = self.table().count();
        if (self.used + 1) * 5 > (count * WAYS) as u64 * 4 {
            let new = Span::allocate(arena, count * 2).ok_or(ArenaFull)?;
            for (granule, value) in self.iterate(arena) {
                probe(arena, new, granule).set(granule, value);
            }
            self.buckets.replace(arena, new);
        }
        self.used += 1;
        Ok(self.find(arena, granule))
    }

    /// Asks for what finding the group of a granule will read.
    #[inline(always)]
    pub(crate) fn prefetch<A: Arena + ?Sized>(&self, arena: &A, granule: u64) {
        let table = self.table();
        prefetch(first(arena, table).wrapping_add(home(table, granule)).cast());
    }

    /// All groups by their granules, with their references, in no order. The table must not be
    /// written meanwhile.
    pub(crate) fn iterate<'a, A: Arena + ?Sized>(
        &self,
        arena: &'a A,
    ) -> impl Iterator<Item = (u64, Reference)> + use<'a, A> {
        // SAFETY: `self` is the only owner, and the caller does not write while iterating.
        let buckets = unsafe { self.table().slice(arena) }.unwrap_or_default();
        buckets
            .iter()
            .flat_map(|bucket| bucket.granules.iter().copied().zip(bucket.values.iter().copied()))
            .filter(|(_, value)| *value != 0)
    }

    pub(crate) fn range(&self) -> Range {
        self.table().range()
    }

    /// Checks a table that comes out of another process' hands, and counts its groups again:
    /// afterwards every operation stays within the arena and ends.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        let sound = self.buckets.is_sound(arena);
        if sound {
            self.used = self.iterate(arena).count() as u64;
        }
        sound && self.used < (self.table().count() * WAYS) as u64
    }
}

/// The first bucket of a table.
#[inline(always)]
fn first<A: Arena + ?Sized>(arena: &A, table: Span<Bucket>) -> *mut Bucket {
    arena.base().as_ptr().wrapping_add(table.offset() as usize).cast()
}

/// The bucket to which a granule's group belongs. The number of buckets is a power of two, at least 2.
#[inline(always)]
fn home(table: Span<Bucket>, granule: u64) -> usize {
    (hash((granule >> CHUNK_BITS) + 1) >> ((table.count() as u64).leading_zeros() + 1)) as usize
}

/// Where a granule's group is, or would be.
#[inline(always)]
fn probe<A: Arena + ?Sized>(arena: &A, table: Span<Bucket>, granule: u64) -> Place {
    let mut at = home(table, granule);
    loop {
        // SAFETY: `at` is below the table's count, and its owner is the only one who uses it.
        let bucket = unsafe { &mut *first(arena, table).add(at) };
        // Without branches, since which of the ways it is cannot be foretold. Free ones come after
        // those in use.
        let (mut found, mut free) = (0_u32, 0_u32);
        for (way, (held, value)) in bucket.granules.iter().zip(&bucket.values).enumerate() {
            found |= u32::from((*held ^ granule) >> CHUNK_BITS == 0) << way;
            free |= u32::from(*value == 0) << way;
        }
        // What a free way holds is of no meaning.
        found = if found & !free != 0 { found & !free } else { free };
        let way = found.trailing_zeros() as usize;
        if let (Some(granule), Some(value)) = (bucket.granules.get_mut(way), bucket.values.get_mut(way)) {
            return Place { granule, value };
        }
        at = (at + 1) & (table.count() - 1);
    }
}
