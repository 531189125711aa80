//! The order of last touches, and how many granules were touched since one of them: the stack distance.
//!
//! Each live granule has a slot; slots are handed out in order of time, so that the stack distance is the number of
//! live slots newer than a granule's own (Bennett and Kruskal, LRU stack processing, IBM J. Res. Dev. 19, 1975; Olken,
//! LBL-12370, 1981). One bit a slot tells whether it is live; counts stand over blocks of 512 slots, over 32 of those,
//! then over 16 at each level. A query climbs from the slot only as far as the newest slot's own subtree, so that it
//! costs the logarithm of the *distance*. The touch that follows it moves one bit, and counts only below that point.
//!
//! When the slots are used up they are numbered anew, which costs a constant per touch in the mean, as at least half
//! of them are free. Memory: 4 bytes and 1.1 bits a slot, 2 to 4 slots a granule.

use locality_stream::{Arena, ArenaFull, Plain, Span};

use crate::places::{Places, Reference};
use crate::prefetch::prefetch;

/// Slots of a block: one cache line of bits.
const BLOCK_BITS: u32 = 9;
/// Blocks of a group: one cache line of 16-bit counts.
const GROUP_BITS: u32 = 5;
/// Fan-out above: one cache line of 32-bit counts.
const FAN_BITS: u32 = 4;
/// Levels of 32-bit counts; enough for 2^32 slots.
const LEVELS: usize = 5;
/// Slots are handed out in multiples of this.
const SLOT_UNIT: usize = 1 << BLOCK_BITS;

/// Row `i` keeps what comes after place `i`. Tables, since a comparison would be compiled to branches, of which one in
/// each query is foretold wrongly.
static WORDS_AFTER: [[u64; 8]; 8] = {
    let mut rows = [[0; 8]; 8];
    let mut row = 0;
    while row < 8 {
        let mut at = row + 1;
        while at < 8 {
            rows[row][at] = u64::MAX;
            at += 1;
        }
        row += 1;
    }
    rows
};

/// As [`WORDS_AFTER`], for blocks of a group.
static BLOCKS_AFTER: [[u16; 32]; 32] = {
    let mut rows = [[0; 32]; 32];
    let mut row = 0;
    while row < 32 {
        let mut at = row + 1;
        while at < 32 {
            rows[row][at] = u16::MAX;
            at += 1;
        }
        row += 1;
    }
    rows
};

/// As [`WORDS_AFTER`], for the nodes above.
static NODES_AFTER: [[u32; 16]; 16] = {
    let mut rows = [[0; 16]; 16];
    let mut row = 0;
    while row < 16 {
        let mut at = row + 1;
        while at < 16 {
            rows[row][at] = u32::MAX;
            at += 1;
        }
        row += 1;
    }
    rows
};

/// The order; lies in an arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Order {
    bits: Span<u64>,
    blocks: Span<u16>,
    levels: [Span<u32>; LEVELS],
    /// Which granule has a slot; of no meaning where the slot is not live.
    granules: Span<Reference>,
    /// Next slot.
    head: u64,
    /// Live slots.
    live: u64,
}
// SAFETY: spans and integers, 8 bytes each, without padding.
unsafe impl Plain for Order {}

/// Addresses of the tables, for the time of a batch.
#[derive(Clone, Copy)]
pub(crate) struct View {
    bits: *mut u64,
    blocks: *mut u16,
    levels: [*mut u32; LEVELS],
    granules: *mut Reference,
}

impl Order {
    /// An order with room for `slots` slots at first.
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, slots: usize) -> Result<Order, ArenaFull> {
        Order::allocate(arena, slots).ok_or(ArenaFull)
    }

    fn allocate<A: Arena + ?Sized>(arena: &A, slots: usize) -> Option<Order> {
        // Slot numbers fit 32 bits with one to spare, for `head`.
        let slots =
            slots.max(1).checked_next_multiple_of(SLOT_UNIT)?.min((u32::MAX as usize) & !(SLOT_UNIT - 1));
        let mut nodes = (slots >> BLOCK_BITS).next_multiple_of(1 << GROUP_BITS);
        let blocks = Span::allocate(arena, nodes)?;
        nodes >>= GROUP_BITS;
        let mut levels = [Span::default(); LEVELS];
        for level in &mut levels {
            nodes = nodes.next_multiple_of(1 << FAN_BITS);
            *level = Span::allocate(arena, nodes)?;
            nodes >>= FAN_BITS;
        }
        Some(Order {
            bits: Span::allocate(arena, slots >> 6)?,
            blocks,
            levels,
            granules: Span::allocate(arena, slots)?,
            head: 0,
            live: 0,
        })
    }

    /// Live granules.
    #[inline(always)]
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Slots left.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.granules.count() - self.head as usize
    }

    /// Next slot.
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.head as u32
    }

    /// Sets what a batch moved.
    #[inline(always)]
    pub(crate) fn settle(&mut self, head: u32, live: u64) {
        self.head = u64::from(head);
        self.live = live;
    }

    /// The tables' addresses.
    #[inline(always)]
    pub(crate) fn view<A: Arena + ?Sized>(&self, arena: &A) -> View {
        let at = |offset: u64| arena.base().as_ptr().wrapping_add(offset as usize);
        View {
            bits: at(self.bits.offset()).cast(),
            blocks: at(self.blocks.offset()).cast(),
            levels: self.levels.map(|level| at(level.offset()).cast()),
            granules: at(self.granules.offset()).cast(),
        }
    }

    /// Numbers the live slots anew from 0, with more room if over half of it is live: afterwards at least half of the
    /// slots, 256 or more, are free.
    #[cold]
    #[inline(never)]
    pub(crate) fn renumber<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        places: &Places,
    ) -> Result<(), ArenaFull> {
        let capacity = self.granules.count();
        let end = (self.head as usize).div_ceil(64);
        let mut new = *self;
        if self.live as usize * 2 > capacity {
            new = Order::new(arena, self.live as usize * 4)?;
            if new.granules.count() / 2 <= self.live as usize {
                return Err(ArenaFull);
            }
        }
        let (from, to) = (self.view(arena), new.view(arena));
        let mut next = 0;
        for word_index in 0..end {
            // SAFETY: within `bits`, which has a word for each 64 slots.
            let mut word = unsafe { *from.bits.add(word_index) };
            while word != 0 {
                let slot = word_index << 6 | word.trailing_zeros() as usize;
                word &= word - 1;
                // The entries lie anywhere: have those of the next slots on the way. A slot that is not live names a
                // granule that was, or none (0), so that the address is one of the arena.
                if slot + 32 < capacity {
                    // SAFETY: `slot + 32` is below the capacity.
                    prefetch(places.entry(arena, unsafe { *from.granules.add(slot + 32) }).cast());
                }
                // SAFETY: `slot` is below the capacity, `next` not above `slot`, and the reference that of a live
                // granule. Within one table the write does not overtake the reads.
                unsafe {
                    let granule = *from.granules.add(slot);
                    *to.granules.add(next) = granule;
                    (*places.entry(arena, granule)).slot = next as u32;
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

    /// Checks tables that come out of another process' hands: afterwards every operation stays within the arena.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&self, arena: &A) -> bool {
        let slots = self.granules.count();
        let mut nodes = (slots >> BLOCK_BITS).next_multiple_of(1 << GROUP_BITS);
        let mut sound = slots.is_multiple_of(SLOT_UNIT)
            && (SLOT_UNIT..u32::MAX as usize).contains(&slots)
            && self.head <= slots as u64
            && self.granules.get(arena).is_some()
            && self.bits.count() == slots >> 6
            && self.bits.get(arena).is_some()
            && self.blocks.count() == nodes
            && self.blocks.get(arena).is_some();
        nodes >>= GROUP_BITS;
        for level in &self.levels {
            nodes = nodes.next_multiple_of(1 << FAN_BITS);
            sound &= level.count() == nodes && level.get(arena).is_some();
            nodes >>= FAN_BITS;
        }
        sound
    }

    /// Spoils the order.
    #[cfg(test)]
    pub(crate) fn scramble<A: Arena + ?Sized>(&mut self, arena: &A) {
        self.fill(arena, self.granules.count() / 3);
        let view = self.view(arena);
        for slot in 0..self.granules.count() {
            // SAFETY: below the capacity.
            unsafe { *view.granules.add(slot) = 3 };
        }
    }

    /// Makes the order anew from the times of last touches, for a state that was left in the middle of a batch.
    pub(crate) fn rebuild<A: Arena + ?Sized>(&mut self, arena: &A, places: &Places) -> Result<(), ArenaFull> {
        let mut touched = Vec::new();
        places.for_each(arena, |granule, reference, entry| {
            if entry.time != 0 {
                touched.push((entry.time, granule, reference));
            }
        });
        // The granules of one access are touched in the order of their addresses.
        touched.sort_unstable();
        if touched.len() >= self.granules.count() {
            *self = Order::new(arena, touched.len() * 4)?;
        }
        let view = self.view(arena);
        for (slot, (_, _, reference)) in touched.iter().enumerate() {
            if slot >= self.granules.count() {
                return Err(ArenaFull);
            }
            // SAFETY: `slot` is below the capacity and the reference that of an entry.
            unsafe {
                *view.granules.add(slot) = *reference;
                (*places.entry(arena, *reference)).slot = slot as u32;
            }
        }
        self.fill(arena, touched.len());
        Ok(())
    }
}

impl View {
    /// Counts a slot at all levels.
    ///
    /// # Safety
    /// `slot` must be below the capacity.
    #[inline(always)]
    unsafe fn count(&self, slot: u32) {
        let mut node = (slot >> BLOCK_BITS) as usize;
        // SAFETY: each level has a node for every slot below the capacity.
        unsafe {
            *self.blocks.add(node) += 1;
            node >>= GROUP_BITS;
            for level in self.levels {
                *level.add(node) += 1;
                node >>= FAN_BITS;
            }
        }
    }

    /// Makes `head` the slot of a granule that had none.
    ///
    /// # Safety
    /// `head` must be below the capacity and the next slot.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, head: u32, granule: Reference) {
        // SAFETY: as the caller promises.
        unsafe {
            *self.granules.add(head as usize) = granule;
            *self.bits.add(head as usize >> 6) |= 1 << (head & 63);
            self.count(head);
        }
    }

    /// Moves a granule from `slot` to `head` and returns how many live slots lay between them.
    ///
    /// # Safety
    /// `slot` must be live, `head` the next slot and below the capacity.
    #[inline(always)]
    pub(crate) unsafe fn touch(&self, slot: u32, head: u32, granule: Reference) -> u32 {
        let (old, new) = (slot as usize >> 6, head as usize >> 6);
        // SAFETY: both are below the capacity, and every table has room for each slot below it.
        unsafe {
            *self.granules.add(head as usize) = granule;
            let word = *self.bits.add(old) & !(1 << (slot & 63));
            *self.bits.add(old) = word;
            let mut newer = (word >> (slot & 63)).count_ones();
            if old != new {
                // The rest of the block, or up to the head: bits beyond the head are 0.
                let block = &*self.bits.add(old & !7).cast::<[u64; 8]>();
                for (word, mask) in block.iter().zip(&WORDS_AFTER[old & 7]) {
                    newer += (word & mask).count_ones();
                }
                if old >> 3 != new >> 3 {
                    newer += self.climb(old >> 3, new >> 3);
                }
            }
            *self.bits.add(new) |= 1 << (head & 63);
            newer
        }
    }

    /// Live slots in blocks newer than `old`; moves one count from `old` to `new`.
    ///
    /// # Safety
    /// Both must be blocks of slots below the capacity, `old` before `new` and not empty.
    #[inline(always)]
    unsafe fn climb(&self, mut old: usize, mut new: usize) -> u32 {
        const FAN: usize = 1 << FAN_BITS;
        // SAFETY: levels are padded to whole groups, and the last level is one group.
        unsafe {
            let group = &*self.blocks.add(old & !31).cast::<[u16; 32]>();
            let mut newer = 0_u16;
            for (count, mask) in group.iter().zip(&BLOCKS_AFTER[old & 31]) {
                newer += count & mask;
            }
            let mut newer = u32::from(newer);
            *self.blocks.add(old) -= 1;
            *self.blocks.add(new) += 1;
            old >>= GROUP_BITS;
            new >>= GROUP_BITS;
            for level in self.levels {
                if old == new {
                    break;
                }
                let group = &*level.add(old & !(FAN - 1)).cast::<[u32; FAN]>();
                for (count, mask) in group.iter().zip(&NODES_AFTER[old & (FAN - 1)]) {
                    newer += count & mask;
                }
                *level.add(old) -= 1;
                *level.add(new) += 1;
                old >>= FAN_BITS;
                new >>= FAN_BITS;
            }
            newer
        }
    }

    /// Asks for the cache line with a slot's bit.
    #[inline(always)]
    pub(crate) fn prefetch(&self, slot: u32) {
        prefetch(self.bits.wrapping_add(slot as usize >> 6).cast());
    }
}
