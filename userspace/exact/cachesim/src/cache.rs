//! A cache: for each slot the line, the time of the last use, and the line's data.
//!
//! The slots of a set lie together: a search reads one line of the host's cache for eight ways.
//! Before a search the slot of the line found last with equal low bits is tried: most accesses need
//! no search. Lines do not move; the line used longest ago is replaced, by the caller's clock.

use locality_stream::{Arena, Plain, Range, Span};

use crate::config::Level;

/// Data of a resident line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Line {
    /// The loader: a node of the tree; 0 before the first load.
    pub(crate) node: u32,
    /// And an instruction in a function.
    pub(crate) cell: u32,
    /// Accesses.
    pub(crate) count: u32,
    /// Copies known to the next level.
    pub(crate) handed: u32,
    /// Parts used.
    pub(crate) mask: u64,
    /// The line's copy in a later level, which learns of the
    /// use at the end of the earlier copy; see `hierarchy`.
    pub(crate) link: u32,
    /// The data object at the address accessed first.
    pub(crate) object: u32,
}
// SAFETY: integers without padding.
unsafe impl Plain for Line {}

/// The cache; lies in the arena, as do the tables.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Cache {
    /// By slot: the line's number plus 1, 0 for none.
    tags: Span<u64>,
    /// By slot: the time of the last use, 0 for none.
    used: Span<u64>,
    lines: Span<Line>,
    /// By the low bits of a line's number: a slot.
    guesses: Span<u32>,
    /// Sets less 1.
    mask: u64,
    ways: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Cache {}

/// Addresses of the tables, for use.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    tags: *mut u64,
    used: *mut u64,
    lines: *mut Line,
    guesses: *mut u32,
    guess_mask: u64,
    mask: u64,
    ways: u64,
}

impl Tables {
    /// The slot of a resident line, used `now`.
    ///
    /// # Safety
    /// The tables belong to a cache with slots, without further users.
    #[inline(always)]
    pub(crate) unsafe fn use_line(&self, line: u64, now: u64) -> Option<u32> {
        // SAFETY: guesses are slots, and each value of the masked bits has a guess.
        unsafe {
            let guess = *self.guesses.add((line & self.guess_mask) as usize);
            let slot = if *self.tags.add(guess as usize) == line + 1 { guess } else { self.search(line)? };
            *self.used.add(slot as usize) = now;
            Some(slot)
        }
    }

    /// # Safety
    /// As [`Tables::use_line`].
    #[inline(always)]
    unsafe fn search(&self, line: u64) -> Option<u32> {
        let first = ((line & self.mask) * self.ways) as usize;
        // SAFETY: a set has `ways` slots.
        unsafe {
            let at = (first..first + self.ways as usize).find(|slot| *self.tags.add(*slot) == line + 1)?;
            *self.guesses.add((line & self.guess_mask) as usize) = at as u32;
            Some(at as u32)
        }
    }

    /// The record of a slot.
    ///
    /// # Safety
    /// The slot belongs to the cache.
    #[inline(always)]
    pub(crate) unsafe fn line(&self, slot: u32) -> *mut Line {
        // SAFETY: promised by the caller.
        unsafe { self.lines.add(slot as usize) }
    }
}

impl Cache {
    /// No cache.
    pub(crate) fn none() -> Cache {
        Cache {
            tags: Span::default(),
            used: Span::default(),
            lines: Span::default(),
            guesses: Span::default(),
            mask: 0,
            ways: 0,
        }
    }

    /// An empty cache of a size checked by [`crate::Config::validate`].
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, level: &Level) -> Option<Cache> {
        let count = (level.sets() * level.ways) as usize;
        Some(Cache {
            tags: Span::allocate(arena, count)?,
            used: Span::allocate(arena, count)?,
            lines: Span::allocate(arena, count)?,
            guesses: Span::allocate(arena, Self::guesses_for(count))?,
            mask: level.sets().checked_sub(1)?,
            ways: level.ways,
        })
    }

    /// As many guesses as pay: a large level is asked for misses of the level before, mostly by a
    /// search.
    fn guesses_for(slots: usize) -> usize {
        (slots * 2).next_power_of_two().min(1 << 11)
    }

    /// Addresses of the tables in an arena at `base`.
    #[inline(always)]
    pub(crate) fn tables(&self, base: *mut u8) -> Tables {
        let at = |offset: u64| base.wrapping_add(offset as usize);
        Tables {
            tags: at(self.tags.offset()).cast(),
            used: at(self.used.offset()).cast(),
            lines: at(self.lines.offset()).cast(),
            guesses: at(self.guesses.offset()).cast(),
            guess_mask: (self.guesses.count() as u64).wrapping_sub(1),
            mask: self.mask,
            ways: self.ways,
        }
    }

    /// The record of a slot.
    ///
    /// # Safety
    /// The slot belongs to the cache, the arena outlives the
    /// reference, and the slot's record has no second reference.
    #[inline(always)]
    pub(crate) unsafe fn line<'a, A: Arena + ?Sized>(&self, arena: &A, slot: u32) -> &'a mut Line {
        debug_assert!((slot as usize) < self.lines.count());
        // SAFETY: promised by the caller.
        unsafe { &mut *self.tables(arena.base().as_ptr()).line(slot) }
    }

    /// The slot of a resident line, used `now`. The cache exists.
    #[inline(always)]
    pub(crate) fn use_line<A: Arena + ?Sized>(&self, arena: &A, line: u64, now: u64) -> Option<u32> {
        debug_assert!(self.ways > 0);
        // SAFETY: the tables were allocated or checked, and the cache is the only owner.
        unsafe { self.tables(arena.base().as_ptr()).use_line(line, now) }
    }

    /// The slot of a resident line; the time of use stays.
    pub(crate) fn peek<A: Arena + ?Sized>(&self, arena: &A, line: u64) -> Option<u32> {
        if self.ways == 0 {
            return None;
        }
        // SAFETY: as above.
        unsafe { self.tables(arena.base().as_ptr()).search(line) }
    }

    /// Puts an absent line in the place of the set's least
    /// recently used line: returns the slot and the former line.
    #[inline(always)]
    pub(crate) fn load<A: Arena + ?Sized>(&self, arena: &A, line: u64, now: u64) -> (u32, Option<u64>) {
        let tables = self.tables(arena.base().as_ptr());
        let first = ((line & self.mask) * self.ways) as usize;
        // SAFETY: a set has `ways` slots, at least one, and the tables have no second user.
        unsafe {
            let (mut slot, mut oldest) = (first, *tables.used.add(first));
            for at in first + 1..first + self.ways as usize {
                let used = *tables.used.add(at);
                (slot, oldest) = if used < oldest { (at, used) } else { (slot, oldest) };
            }
            *tables.used.add(slot) = now;
            *tables.guesses.add((line & tables.guess_mask) as usize) = slot as u32;
            (slot as u32, std::mem::replace(&mut *tables.tags.add(slot), line + 1).checked_sub(1))
        }
    }

    /// Calls `f` with the slot of every resident line.
    pub(crate) fn for_each<A: Arena + ?Sized>(&self, arena: &A, mut f: impl FnMut(u32)) {
        // SAFETY: the tables have no second user.
        let tags = unsafe { self.tags.slice(arena) }.unwrap_or_default();
        (0..).zip(tags).filter(|(_, tag)| **tag != 0).for_each(|(slot, _)| f(slot));
    }

    /// Forgets the lines.
    pub(crate) fn clear<A: Arena + ?Sized>(&self, arena: &A) {
        for table in [&self.tags, &self.used] {
            if let Some(first) = table.get(arena) {
                // SAFETY: the span's own range, with the cache as the only owner.
                unsafe { first.write_bytes(0, table.count()) };
            }
        }
    }

    /// Checks a cache from another process: nodes, cells and objects are below the given bounds.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&self, arena: &A, [nodes, cells, objects]: [usize; 3]) -> bool {
        if self.ways == 0 {
            return self.slots() == 0;
        }
        let slots = self.slots();
        let count = self.mask.checked_add(1).and_then(|sets| sets.checked_mul(self.ways));
        let sound = count == Some(slots as u64)
            && (self.mask + 1).is_power_of_two()
            && u32::try_from(slots).is_ok()
            && self.tags.count() == slots
            && self.used.count() == slots
            && slots.checked_mul(2).is_some()
            && self.guesses.count() == Self::guesses_for(slots)
            && self.tags.get(arena).is_some()
            && self.used.get(arena).is_some()
            && self.lines.get(arena).is_some();
        // SAFETY: the tables have no second user.
        let guesses = unsafe { self.guesses.slice(arena) };
        if !sound || guesses.is_none_or(|all| all.iter().any(|slot| *slot as usize >= slots)) {
            return false;
        }
        let mut lines_are_sound = true;
        self.for_each(arena, |slot| {
            // SAFETY: a slot of the cache, and no second reference.
            let line = unsafe { self.line(arena, slot) };
            lines_are_sound &= (line.node as usize) < nodes
                && (line.cell as usize) < cells
                && (line.object as usize) < objects;
        });
        lines_are_sound
    }

    pub(crate) fn ranges(&self) -> [Range; 4] {
        [self.tags.range(), self.used.range(), self.lines.range(), self.guesses.range()]
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.lines.count()
    }
}

#[cfg(test)]
mod tests {
    use locality_stream::Heap;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against sets as vectors, the line used last in front.
        #[test]
        fn lines_leave_in_the_order_of_their_last_use(
            lines in proptest::collection::vec(prop_oneof![0..40_u64, Just(u64::MAX >> 4), Just(0)], 0..300),
            (set_bits, ways) in (0..3_u32, 1..6_u64),
        ) {
            let heap = Heap::new(1 << 16).unwrap();
            let sets = 1_u64 << set_bits;
            let cache = Cache::new(&heap, &Level::new("L1", sets * ways * 64, ways, 64)).unwrap();
            let mut oracle = vec![Vec::new(); sets as usize];
            for (now, line) in (1..).zip(lines) {
                let set = &mut oracle[(line % sets) as usize];
                let known = set.iter().position(|held| *held == line);
                prop_assert_eq!(cache.peek(&heap, line).is_some(), known.is_some());
                let slot = match cache.use_line(&heap, line, now) {
                    Some(slot) => {
                        set.remove(known.unwrap());
                        slot
                    }
                    None => {
                        prop_assert_eq!(known, None);
                        let (slot, old) = cache.load(&heap, line, now);
                        prop_assert_eq!(old, if set.len() == ways as usize { set.pop() } else { None });
                        slot
                    }
                };
                set.insert(0, line);
                prop_assert_eq!(cache.peek(&heap, line), Some(slot));
                prop_assert_eq!(u64::from(slot) / ways, line % sets);
            }
            let mut slots = Vec::new();
            cache.for_each(&heap, |slot| slots.push(slot));
            prop_assert_eq!(slots.len(), oracle.iter().map(Vec::len).sum::<usize>());
            slots.sort_unstable();
            slots.dedup();
            prop_assert_eq!(slots.len(), oracle.iter().map(Vec::len).sum::<usize>());
            prop_assert!(cache.is_whole(&heap, [1; 3]));
            cache.clear(&heap);
            prop_assert_eq!(cache.peek(&heap, 3), None);
        }
    }
}
