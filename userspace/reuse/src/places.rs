//! From a granule to what is known of its last touch.
//!
//! Sixteen neighbouring granules share a chunk of 256 bytes, found through a hash table; a small direct-mapped cache
//! of chunks stands in front of it. Memory: 16 bytes a granule and 2 to 4 for the table where neighbours are used too.
//! A granule that is alone among its sixteen costs 288 to 320 bytes.

use locality_stream::{Arena, ArenaFull, Plain, Span};

use crate::map::{Full, Map, Slot};
use crate::prefetch::prefetch;

/// Granules of a chunk, as a power of two.
pub(crate) const CHUNK_BITS: u32 = 4;
/// Chunks in the cache.
const CACHE: usize = 1024;
/// Chunks in the first and in the largest slab.
const SLABS: (usize, usize) = (16, 1 << 14);

/// An entry's place in the arena, in units of its size; 0 is none.
pub(crate) type Reference = u32;

/// The last touch of a granule.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Entry {
    /// Number of the access, from 1; 0 for a granule that was never touched.
    pub(crate) time: u64,
    /// Its place in [`crate::order::Order`].
    pub(crate) slot: u32,
    /// Who touched it.
    pub(crate) site: u32,
}
// SAFETY: integers without padding.
unsafe impl Plain for Entry {}

const ENTRY: usize = size_of::<Entry>();
const CHUNK: usize = ENTRY << CHUNK_BITS;

/// The tables; lie in an arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Places {
    chunks: Map,
    cache: Span<Slot>,
    /// Free part of the newest slab, in bytes from the base.
    next: u64,
    end: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Places {}

/// Address of an entry in the arena that begins at `base`.
#[inline(always)]
pub(crate) fn entry(base: *mut u8, reference: Reference) -> *mut Entry {
    base.wrapping_add(reference as usize * ENTRY).cast()
}

impl Places {
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A) -> Result<Places, ArenaFull> {
        let chunks = Map::new(arena, SLABS.0, usize::MAX).ok_or(ArenaFull)?;
        let cache = Span::allocate(arena, CACHE).ok_or(ArenaFull)?;
        Ok(Places { chunks, cache, next: 0, end: 0 })
    }

    /// The cache: chunks by their number plus 1, at the place of its lowest bits.
    ///
    /// # Safety
    /// Nothing may change the tables as long as the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn cache<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [Slot; CACHE] {
        // SAFETY: the cache was allocated or checked with `CACHE` slots; the caller excludes writers.
        unsafe { &*arena.base().as_ptr().add(self.cache.offset() as usize).cast() }
    }

    /// The reference of a granule's entry, which is made if it is new; the cache has it afterwards.
    #[inline(always)]
    pub(crate) fn find<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        granule: u64,
    ) -> Result<Reference, ArenaFull> {
        // Keys are never 0.
        let key = (granule >> CHUNK_BITS) + 1;
        // SAFETY: the cache was allocated or checked with `CACHE` slots.
        let cached = unsafe {
            let first = arena.base().as_ptr().add(self.cache.offset() as usize).cast::<Slot>();
            &mut *first.add(key as usize & (CACHE - 1))
        };
        if cached.key != key {
            let reference = self.chunk(arena, key)?;
            // In this order: a cached key has its value.
            cached.key = 0;
            cached.value = u64::from(reference);
            cached.key = key;
        }
        Ok(cached.value as Reference | (granule as u32 & ((1 << CHUNK_BITS) - 1)))
    }

    #[inline(never)]
    fn chunk<A: Arena + ?Sized>(&mut self, arena: &A, key: u64) -> Result<Reference, ArenaFull> {
        if let Some(found) = self.chunks.get(arena, key)
            && found != 0
        {
            return Ok(found as Reference);
        }
        if self.next + CHUNK as u64 > self.end {
            let count = (self.chunks.len() as usize / 4).clamp(SLABS.0, SLABS.1);
            let slab = arena.allocate(count * CHUNK).ok_or(ArenaFull)?;
            self.next = slab;
            self.end = slab + (count * CHUNK) as u64;
        }
        let reference = Reference::try_from(self.next / ENTRY as u64).map_err(|_| ArenaFull)?;
        *self.chunks.value(arena, key).map_err(|Full| ArenaFull)? = u64::from(reference);
        self.next += CHUNK as u64;
        Ok(reference)
    }

    /// Asks for what looking up a granule will read.
    #[inline(always)]
    pub(crate) fn prefetch<A: Arena + ?Sized>(&self, arena: &A, granule: u64) {
        prefetch(self.chunks.home(arena, (granule >> CHUNK_BITS) + 1));
    }

    /// Calls `f` with the granule, the reference and the entry of every entry that exists, touched or not.
    pub(crate) fn for_each<A: Arena + ?Sized>(
        &self,
        arena: &A,
        mut f: impl FnMut(u64, Reference, &mut Entry),
    ) {
        for chunk in self.chunks.iterate(arena).filter(|chunk| chunk.value != 0) {
            for index in 0..1 << CHUNK_BITS {
                let reference = chunk.value as Reference | index;
                if self.contains(arena, reference) {
                    let granule = ((chunk.key - 1) << CHUNK_BITS) + u64::from(index);
                    // SAFETY: within the arena; `self` is the only owner of its chunks.
                    f(granule, reference, unsafe { &mut *entry(arena.base().as_ptr(), reference) });
                }
            }
        }
    }

    /// True when an entry's bytes lie in the arena.
    pub(crate) fn contains<A: Arena + ?Sized>(&self, arena: &A, reference: Reference) -> bool {
        reference != 0 && (reference as usize + 1) * ENTRY <= arena.len()
    }

    /// Checks tables that come out of another process' hands.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        let sound = self.chunks.is_whole(arena)
            && self.cache.count() == CACHE
            && self.cache.get(arena).is_some()
            && self.end <= arena.len() as u64
            && self.next <= self.end
            && self.chunks.iterate(arena).all(|chunk| {
                chunk.value.is_multiple_of(1 << CHUNK_BITS)
                    && (chunk.value == 0 || self.contains(arena, chunk.value as Reference | 15))
            });
        if sound {
            // The cache is only a copy: begin with an empty one.
            for index in 0..CACHE {
                if let Some(first) = self.cache.get(arena) {
                    // SAFETY: within the span, which `get` checked.
                    unsafe { (*first.as_ptr().add(index)).key = 0 };
                }
            }
        }
        sound
    }
}
