//! Numbering slots anew when they are used up, and making the tables sound again after a kill.
//!
//! Numbering costs a constant per touch in the mean, as at least half of the slots are free afterwards.

use locality_stream::{Arena, ArenaFull, Range};

use super::{BLOCK_BITS, FAN_BITS, GROUP_BITS, Order, SLOT_UNIT};
use crate::lanes::RECENT;
use crate::places::{Places, entry};
use crate::prefetch::prefetch;

impl Order {
    /// Numbers the live slots anew from 0, with more room if over half of it is live: afterwards at
    /// least half of the slots, 256 or more, are free.
    #[cold]
    #[inline(never)]
    pub(crate) fn renumber<A: Arena + ?Sized>(&mut self, arena: &A) -> Result<(), ArenaFull> {
        let capacity = self.granules.count();
        let end = (self.head as usize).div_ceil(64);
        let mut new = *self;
        if self.live as usize * 2 > capacity {
            new = Order::new(arena, self.live as usize * 3)?;
            if new.granules.count() / 2 <= self.live as usize {
                return Err(ArenaFull);
            }
            new.recent = self.recent;
        }
        let base = arena.base().as_ptr();
        let (from, to) = (self.view(arena), new.view(arena));
        let mut next = 0;
        for word_index in 0..end {
            // SAFETY: within `bits`, which has a word for each 64 slots.
            let mut word = unsafe { *from.bits.add(word_index) };
            while word != 0 {
                let slot = word_index << 6 | word.trailing_zeros() as usize;
                word &= word - 1;
                // The entries lie anywhere: have those of the next slots on the way. A slot that is
                // not live names a granule that was, or none (0), so that the address is one of the
                // arena.
                if slot + 32 < capacity {
                    // SAFETY: `slot + 32` is below the capacity.
                    prefetch(entry(base, unsafe { *from.granules.add(slot + 32) }).cast());
                }
                // SAFETY: `slot` is below the capacity, `next` not above `slot`, and the reference
                // that of a live granule. Within one table the write does not overtake the reads.
                unsafe {
                    let granule = *from.granules.add(slot);
                    *to.granules.add(next) = granule;
                    (*entry(base, granule)).slot = next as u32;
                }
                next += 1;
            }
        }
        if new.granules.offset() != self.granules.offset() {
            let old = *self;
            new.live = self.live;
            *self = new;
            self.fill(arena, next);
            old.release(arena);
        } else {
            self.fill(arena, next);
        }
        Ok(())
    }

    /// Makes exactly the first `live` slots live.
    fn fill<A: Arena + ?Sized>(&mut self, arena: &A, live: usize) {
        let view = self.view(arena);
        for word in 0..self.bits.count() {
            let ones = live.saturating_sub(word << 6).min(64) as u32;
            // SAFETY: within `bits`.
            unsafe { *view.bits.add(word) = u64::MAX.checked_shr(64 - ones).unwrap_or(0) };
        }
        for block in 0..self.blocks.count() {
            // SAFETY: within `blocks`.
            unsafe {
                *view.blocks.add(block) = live.saturating_sub(block << BLOCK_BITS).min(SLOT_UNIT) as u16
            };
        }
        let mut bits = BLOCK_BITS + GROUP_BITS;
        for (level, first) in self.levels.iter().zip(view.levels) {
            for node in 0..level.count() {
                // SAFETY: within this level.
                unsafe { *first.add(node) = live.saturating_sub(node << bits).min(1 << bits) as u32 };
            }
            bits += FAN_BITS;
        }
        self.head = live as u64;
        self.live = live as u64;
    }

    fn release<A: Arena + ?Sized>(self, arena: &A) {
        self.bits.release(arena);
        self.blocks.release(arena);
        self.granules.release(arena);
        self.levels.into_iter().for_each(|level| level.release(arena));
    }

    /// Checks tables that come out of another process' hands: afterwards every operation stays
    /// within the arena.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&self, arena: &A, places: &Places) -> bool {
        let slots = self.granules.count();
        let mut nodes = (slots >> BLOCK_BITS).next_multiple_of(1 << GROUP_BITS);
        let mut sound = slots.is_multiple_of(SLOT_UNIT)
            && (SLOT_UNIT..u32::MAX as usize).contains(&slots)
            && self.head <= slots as u64
            && self.granules.get(arena).is_some()
            && self.bits.count() == slots >> 6
            && self.bits.get(arena).is_some()
            && self.blocks.count() == nodes
            && self.blocks.get(arena).is_some()
            && self.recent.iter().all(|reference| *reference == 0 || places.contains(arena, *reference));
        nodes >>= GROUP_BITS;
        for level in &self.levels {
            nodes = nodes.next_multiple_of(1 << FAN_BITS);
            sound &= level.count() == nodes && level.get(arena).is_some();
            nodes >>= FAN_BITS;
        }
        sound
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range> + use<> {
        let levels = self.levels.into_iter().map(|level| level.range());
        levels.chain([self.bits.range(), self.blocks.range(), self.granules.range()])
    }

    /// Whether live slots and entries lead to each other, of tables that are whole: afterwards
    /// slots can be believed.
    pub(crate) fn agrees<A: Arena + ?Sized>(&self, arena: &A, places: &Places) -> bool {
        // SAFETY: nobody writes them meanwhile.
        let (bits, granules) = unsafe { (self.bits.slice(arena), self.granules.slice(arena)) };
        let (Some(bits), Some(granules)) = (bits, granules) else { return false };
        let is_live = |slot: u32| {
            u64::from(slot) < self.head
                && bits.get(slot as usize >> 6).is_some_and(|word| word >> (slot & 63) & 1 == 1)
        };
        let (mut with_slot, mut without, mut lost) = (0, 0, 0);
        places.for_each(arena, |_, reference, entry| {
            if entry.time == 0 {
            } else if self.recent.contains(&reference) {
                without += 1;
            } else if is_live(entry.slot) && granules.get(entry.slot as usize) == Some(&reference) {
                with_slot += 1;
            } else {
                lost += 1;
            }
        });
        let recent = self.recent.iter().filter(|reference| **reference != 0).count();
        let live: u64 = bits.iter().map(|word| u64::from(word.count_ones())).sum();
        lost == 0
            && without == recent
            && (with_slot == 0 || recent == RECENT)
            && (live, self.live) == (with_slot, with_slot)
    }

    /// Spoils the order.
    #[cfg(test)]
    pub(crate) fn scramble<A: Arena + ?Sized>(&mut self, arena: &A) {
        self.fill(arena, self.granules.count() / 3);
        self.recent.reverse();
        let view = self.view(arena);
        for slot in 0..self.granules.count() {
            // SAFETY: below the capacity.
            unsafe { *view.granules.add(slot) = 3 };
        }
    }

    /// Makes the order anew from the times of last touches, for a state that was left in the middle
    /// of a batch.
    pub(crate) fn rebuild<A: Arena + ?Sized>(&mut self, arena: &A, places: &Places) -> Result<(), ArenaFull> {
        let mut touched = Vec::new();
        places.for_each(arena, |granule, reference, entry| {
            if entry.time != 0 {
                touched.push((entry.time, granule, reference));
            }
        });
        // The granules of one access are touched in the order of their addresses.
        touched.sort_unstable();
        self.recent = [0; RECENT];
        for place in &mut self.recent {
            *place = touched.pop().map_or(0, |(_, _, reference)| reference);
        }
        if touched.len() >= self.granules.count() {
            *self = Order { recent: self.recent, ..Order::new(arena, touched.len() * 4)? };
        }
        let base = arena.base().as_ptr();
        let view = self.view(arena);
        for (slot, (_, _, reference)) in touched.iter().enumerate() {
            if slot >= self.granules.count() {
                return Err(ArenaFull);
            }
            // SAFETY: `slot` is below the capacity and the reference that of an entry.
            unsafe {
                *view.granules.add(slot) = *reference;
                (*entry(base, *reference)).slot = slot as u32;
            }
        }
        self.fill(arena, touched.len());
        Ok(())
    }
}
