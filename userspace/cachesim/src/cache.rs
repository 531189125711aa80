//! One cache: sets of lines in the order of their last use, and what is known of each line.
//!
//! A set is a row of words, the line used last in front: a line's number (plus 1) and, in the lowest 8 bits, the way where
//! its record lies. Records do not move. A row of zeros is a set that was never used.
//!
//! Limits: line numbers have 55 bits, so addresses from 2^59 on (with 16-byte lines) are taken for lower ones.

use locality_stream::{Arena, Plain, Span};

use crate::config::Level;

/// Bits of a word that name the way.
pub(crate) const WAY: u64 = 0xff;
/// Line numbers kept.
const LINE: u64 = (1 << 55) - 1;
/// The word of a line that was never loaded, without its way.
const EMPTY: u64 = !WAY;

/// What is known of a resident line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Line {
    /// Who loaded it: a node of the tree; 0 before anything was loaded.
    pub(crate) node: u32,
    /// And an instruction in a function.
    pub(crate) cell: u32,
    /// Accesses.
    pub(crate) count: u32,
    /// Of these, the ones that the level behind knows of.
    pub(crate) handed: u32,
    /// Parts used.
    pub(crate) mask: u64,
    /// The same line in a level behind, which learns of the use when this one ends; see `hierarchy`.
    pub(crate) link: u32,
    pub(crate) reserved: u32,
}
// SAFETY: integers without padding.
unsafe impl Plain for Line {}

/// The cache; its tables lie in the arena, as does itself.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Cache {
    words: Span<u64>,
    lines: Span<Line>,
    /// Sets less 1.
    mask: u64,
    ways: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Cache {}

/// The word of a line, without its way.
#[inline(always)]
pub(crate) fn key(line: u64) -> u64 {
    ((line & LINE) + 1) << 8
}

impl Cache {
    /// No cache.
    pub(crate) fn none() -> Cache {
        Cache { words: Span::default(), lines: Span::default(), mask: 0, ways: 0 }
    }

    /// An empty cache of a size that [`crate::Config::validate`] has checked.
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, level: &Level) -> Option<Cache> {
        let count = (level.sets() * level.ways) as usize;
        Some(Cache {
            words: Span::allocate(arena, count)?,
            lines: Span::allocate(arena, count)?,
            mask: level.sets().checked_sub(1)?,
            ways: level.ways,
        })
    }

    /// Where words and records lie in an arena that begins at `base`; the number of sets less 1, and of ways.
    #[inline(always)]
    pub(crate) fn parts(&self, base: *mut u8) -> (*mut u64, *mut Line, u64, u64) {
        let at = |offset: u64| base.wrapping_add(offset as usize);
        (at(self.words.offset()).cast(), at(self.lines.offset()).cast(), self.mask, self.ways)
    }

    /// The words of the set of a line, and the set's first slot.
    #[inline(always)]
    fn set<A: Arena + ?Sized>(&self, arena: &A, line: u64) -> (*mut u64, u32) {
        let first = (line & self.mask) * self.ways;
        // SAFETY: the spans were allocated or checked with (mask + 1) * ways values.
        let words = unsafe {
            arena.base().as_ptr().add(self.words.offset() as usize).cast::<u64>().add(first as usize)
        };
        (words, first as u32)
    }

    /// The record of a slot.
    ///
    /// # Safety
    /// The slot is one of this cache, the arena outlives the reference, and no other reference to its record is in use.
    #[inline(always)]
    pub(crate) unsafe fn line<'a, A: Arena + ?Sized>(&self, arena: &A, slot: u32) -> &'a mut Line {
        debug_assert!((slot as usize) < self.lines.count());
        // SAFETY: promised by the caller.
        unsafe {
            &mut *arena.base().as_ptr().add(self.lines.offset() as usize).cast::<Line>().add(slot as usize)
        }
    }

    /// The slot of a resident line, which becomes the one used last.
    #[inline(always)]
    pub(crate) fn use_line<A: Arena + ?Sized>(&self, arena: &A, line: u64) -> Option<u32> {
        let (words, first) = self.set(arena, line);
        let key = key(line);
        // SAFETY: a set has `ways` words, at least one.
        let word = unsafe { *words };
        if word ^ key <= WAY {
            return Some(first + (word & WAY) as u32);
        }
        for at in 1..self.ways as usize {
            // SAFETY: below `ways`.
            unsafe {
                let word = *words.add(at);
                if word ^ key <= WAY {
                    words.copy_to(words.add(1), at);
                    *words = word;
                    return Some(first + (word & WAY) as u32);
                }
            }
        }
        None
    }

    /// The slot of a resident line; the order stays.
    pub(crate) fn peek<A: Arena + ?Sized>(&self, arena: &A, line: u64) -> Option<u32> {
        if self.ways == 0 {
            return None;
        }
        let (words, first) = self.set(arena, line);
        let key = key(line);
        // SAFETY: below `ways`.
        let word =
            (0..self.ways as usize).map(|at| unsafe { *words.add(at) }).find(|word| word ^ key <= WAY)?;
        Some(first + (word & WAY) as u32)
    }

    /// Puts a line that is not resident in front of its set: its slot, and the line that had it.
    pub(crate) fn load<A: Arena + ?Sized>(&self, arena: &A, line: u64) -> (u32, Option<u64>) {
        let (words, first) = self.set(arena, line);
        let ways = self.ways as usize;
        // SAFETY: a set has `ways` words, at least one; a way's number is below `ways`.
        unsafe {
            if *words.add(ways - 1) == 0 {
                for way in 0..ways {
                    *words.add(way) = EMPTY | way as u64;
                }
            }
            let old = *words.add(ways - 1);
            words.copy_to(words.add(1), ways - 1);
            *words = key(line) | (old & WAY);
            // The number without its upper bits.
            let number = Some((old >> 8).wrapping_sub(1)).filter(|_| old & !WAY != EMPTY);
            (first + (old & WAY) as u32, number)
        }
    }

    /// Calls `f` with the slot of every line that was ever loaded.
    pub(crate) fn for_each<A: Arena + ?Sized>(&self, arena: &A, mut f: impl FnMut(u32)) {
        for set in 0..=self.mask {
            let (words, first) = self.set(arena, set);
            for at in 0..self.ways as usize {
                // SAFETY: below `ways`.
                let word = unsafe { *words.add(at) };
                if word == 0 {
                    break;
                }
                if word & !WAY != EMPTY {
                    f(first + (word & WAY) as u32);
                }
            }
        }
    }

    /// Forgets all lines.
    pub(crate) fn clear<A: Arena + ?Sized>(&self, arena: &A) {
        if let Some(first) = self.words.get(arena) {
            // SAFETY: the span's own range, whose only owner is this cache.
            unsafe { first.write_bytes(0, self.words.count()) };
        }
    }

    /// Checks a cache that comes out of another process' hands: nodes and cells are below these bounds.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&self, arena: &A, nodes: usize, cells: usize) -> bool {
        if self.ways == 0 {
            return self.words.count() == 0;
        }
        let count = self.mask.checked_add(1).and_then(|sets| sets.checked_mul(self.ways));
        let sound = self.ways <= WAY + 1
            && count == Some(self.words.count() as u64)
            && count == Some(self.lines.count() as u64)
            && u32::try_from(self.lines.count()).is_ok()
            && self.words.get(arena).is_some()
            && self.lines.get(arena).is_some();
        let mut lines_are_sound = true;
        if sound {
            let ways_are_sound = (0..=self.mask).all(|set| {
                let (words, _) = self.set(arena, set);
                // SAFETY: below `ways`.
                (0..self.ways as usize).all(|at| unsafe { *words.add(at) } & WAY < self.ways)
            });
            if !ways_are_sound {
                return false;
            }
            self.for_each(arena, |slot| {
                // SAFETY: a slot of this cache, and no other reference.
                let line = unsafe { self.line(arena, slot) };
                lines_are_sound &= (line.node as usize) < nodes && (line.cell as usize) < cells;
            });
        }
        sound && lines_are_sound
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
            lines in proptest::collection::vec(prop_oneof![0..40_u64, Just(LINE - 3), Just(0)], 0..300),
            (set_bits, ways) in (0..3_u32, 1..6_u64),
        ) {
            let heap = Heap::new(1 << 16).unwrap();
            let sets = 1_u64 << set_bits;
            let cache = Cache::new(&heap, &Level::new("L1", sets * ways * 64, ways, 64)).unwrap();
            let mut oracle = vec![Vec::new(); sets as usize];
            for line in lines {
                let set = &mut oracle[(line % sets) as usize];
                let known = set.iter().position(|held| *held == line);
                prop_assert_eq!(cache.peek(&heap, line).is_some(), known.is_some());
                let slot = match cache.use_line(&heap, line) {
                    Some(slot) => {
                        set.remove(known.unwrap());
                        slot
                    }
                    None => {
                        prop_assert_eq!(known, None);
                        let (slot, old) = cache.load(&heap, line);
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
            prop_assert!(cache.is_whole(&heap, 1, 1));
            cache.clear(&heap);
            prop_assert_eq!(cache.peek(&heap, 3), None);
        }
    }
}
