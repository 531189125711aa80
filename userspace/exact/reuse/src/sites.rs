//! Touchers: an instruction in a calling context, numbered
//! to let a granule remember the last toucher in 4 bytes.
//!
//! Site 0 is empty: the "use" before a first touch. With the sites at the bound, an instruction
//! in a new context takes the site without context; if new too, site 1, for unknown instructions.

use locality_stream::{Arena, List, NO_INSTRUCTION, Plain, Range, Span};

use crate::batch::site_key;
use crate::map::{Map, Slot, hash};

/// Sites representable in a pair's key.
pub(crate) const MAX_SITES: usize = 1 << 24;
/// Sites found without a look into the hash table.
const CACHE: usize = 1 << 14;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Site {
    pub(crate) context: u32,
    pub(crate) instruction: u32,
}
// SAFETY: two integers.
unsafe impl Plain for Site {}

/// The tables; lie in an arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Sites {
    list: List<Site>,
    numbers: Map,
    cache: Span<Slot>,
    bound: u64,
    /// Accesses with the context left out.
    pub(crate) folded: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Sites {}

impl Sites {
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, bound: usize) -> Option<Sites> {
        let bound = bound.clamp(4, MAX_SITES - 1);
        let mut list = List::new(arena, bound.min(1024))?;
        list.push(arena, Site { context: u32::MAX, instruction: u32::MAX })?;
        let mut sites = Sites {
            list,
            numbers: Map::new(arena, 64, bound)?,
            cache: Span::allocate(arena, CACHE)?,
            bound: bound as u64,
            folded: 0,
        };
        sites.look_up(arena, 0, NO_INSTRUCTION)?;
        Some(sites)
    }

    /// The number of a site.
    #[inline(always)]
    pub(crate) fn find<A: Arena + ?Sized>(&mut self, arena: &A, context: u32, instruction: u32) -> u32 {
        let key = site_key(context, instruction);
        // SAFETY: the cache was allocated or checked with `CACHE` slots.
        let cached = unsafe {
            &mut *arena
                .base()
                .as_ptr()
                .add(self.cache.offset() as usize)
                .cast::<Slot>()
                .add((hash(key) >> (64 - CACHE.trailing_zeros())) as usize)
        };
        if cached.key != key {
            let Some(site) = self.look_up(arena, context, instruction) else {
                return self.without_context(arena, instruction);
            };
            cached.key = 0;
            cached.value = u64::from(site);
            cached.key = key;
        }
        cached.value as u32
    }

    /// The cache of sites by the upper bits of the keys' hashes.
    ///
    /// # Safety
    /// The tables must not change as long as the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn cache<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [Slot; CACHE] {
        // SAFETY: the cache was allocated or checked with `CACHE` slots; the caller excludes writers.
        unsafe { &*arena.base().as_ptr().add(self.cache.offset() as usize).cast() }
    }

    #[inline(never)]
    fn without_context<A: Arena + ?Sized>(&mut self, arena: &A, instruction: u32) -> u32 {
        self.folded += 1;
        self.look_up(arena, 0, instruction).unwrap_or(1)
    }

    #[inline(never)]
    fn look_up<A: Arena + ?Sized>(&mut self, arena: &A, context: u32, instruction: u32) -> Option<u32> {
        let key = site_key(context, instruction);
        if let Some(found) = self.numbers.get(arena, key)
            && found != 0
        {
            return Some(found as u32);
        }
        // A quarter of the room is reserved for sites without context.
        let bound = if context == 0 { self.bound } else { self.bound / 4 * 3 };
        if self.list.len() as u64 > bound {
            return None;
        }
        self.list.push(arena, Site { context, instruction })?;
        let number = self.list.len() as u64 - 1;
        *self.numbers.value(arena, key).ok()? = number;
        Some(number as u32)
    }

    /// The sites; site 0 is empty.
    pub(crate) fn list<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [Site] {
        self.list.values(arena)
    }

    pub(crate) fn ranges(&self) -> [Range; 3] {
        [self.list.range(), self.numbers.range(), self.cache.range()]
    }

    /// Checks tables from another process.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        let sound = self.list.is_whole(arena)
            && !self.list.is_empty()
            && self.list.len() <= MAX_SITES
            && self.numbers.is_whole(arena)
            && self.cache.count() == CACHE
            && self.cache.get(arena).is_some();
        if sound && let Some(first) = self.cache.get(arena) {
            for index in 0..CACHE {
                // SAFETY: within the span checked by `get`.
                unsafe { (*first.as_ptr().add(index)).key = 0 };
            }
        }
        sound && self.numbers.iterate(arena).all(|slot| slot.value < self.list.len() as u64)
    }
}
