//! The order of last touches, and the number of granules
//! touched since a last touch: the stack distance.
//!
//! Each live granule has a slot; slots are handed out in order of time: the stack distance is the
//! number of live slots newer than a granule's own (Bennett and Kruskal, LRU stack processing, IBM
//! J. Res. Dev. 19, 1975; Olken, LBL-12370, 1981). One bit per slot tells whether the slot is live;
//! counts stand over blocks of 512 slots, over 32 blocks, then over 16 at each level. A query
//! climbs from the slot only as far as the newest slot's own subtree: the cost is the logarithm of
//! the *distance*. The following touch moves one bit, and counts only below the end of the climb.
//!
//! The granules touched last have no slot: they stand in a short list
//! (`lanes`), sufficient for most touches of most programs. A granule dropping
//! out of the list takes the next slot, to keep slots in order of time.
//!
//! Memory: 4 bytes and 1.1 bits a slot, 2 to 3 slots a granule. Not here: making and mending the
//! tables (`upkeep`).

use locality_stream::{Arena, ArenaFull, Plain, Span};

use crate::lanes::{RECENT, Recent};
use crate::places::{Reference, entry};
use crate::prefetch::prefetch;

mod upkeep;

/// Slots of a block: one cache line of bits.
const BLOCK_BITS: u32 = 9;
/// Blocks of a group: one cache line of 16-bit counts.
const GROUP_BITS: u32 = 5;
/// Fan-out above: one cache line of 32-bit counts.
const FAN_BITS: u32 = 4;
/// Levels of 32-bit counts; enough for 2^32 slots.
const LEVELS: usize = 5;
/// Slots are handed out in multiples of `SLOT_UNIT`.
const SLOT_UNIT: usize = 1 << BLOCK_BITS;

/// Row `i` selects the places after place `i`. Tables, since a comparison
/// would be compiled to branches, with one misprediction in each query.
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
    /// Granule of each slot; meaningless if the slot is not live.
    granules: Span<Reference>,
    /// Next slot.
    head: u64,
    /// Live slots.
    live: u64,
    /// The granules touched last, without slots.
    recent: Recent,
}
// SAFETY: spans and integers, multiples of 8 bytes, without padding.
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
        // Slot numbers fit 32 bits with one number to spare, for `head`.
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
            recent: [0; RECENT],
        })
    }

    /// Live slots: granules but for the most recent.
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

    /// Sets the values moved by a batch.
    #[inline(always)]
    pub(crate) fn settle(&mut self, head: u32, live: u64, recent: Recent) {
        self.head = u64::from(head);
        self.live = live;
        self.recent = recent;
    }

    /// The granules touched last, newest first.
    #[inline(always)]
    pub(crate) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// An entry has moved.
    pub(crate) fn follow<A: Arena + ?Sized>(&mut self, arena: &A, from: Reference, to: Reference) {
        if let Some(place) = self.recent.iter_mut().find(|place| **place == from) {
            *place = to;
            return;
        }
        // SAFETY: `to` is the reference of a touched or zeroed entry; a slot is below the capacity.
        unsafe {
            let moved = *entry(arena.base().as_ptr(), to);
            if moved.time != 0 && (moved.slot as usize) < self.granules.count() {
                *self.view(arena).granules.add(moved.slot as usize) = to;
            }
        }
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
}

impl View {
    /// Counts a slot at every level.
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

    /// Makes `head` the slot of a granule without slot.
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

    /// Frees `slot`, makes `head` the slot of `granule`,
    /// and returns the number of live slots between.
    ///
    /// # Safety
    /// `slot` must be live, `head` the next slot and below the capacity.
    #[inline(always)]
    pub(crate) unsafe fn touch(&self, slot: u32, head: u32, granule: Reference) -> u32 {
        let (old, new) = (slot as usize >> 6, head as usize >> 6);
        // SAFETY: both are below the capacity, and every
        // table has room for each slot below the capacity.
        unsafe {
            *self.granules.add(head as usize) = granule;
            let word = *self.bits.add(old) & !(1 << (slot & 63));
            *self.bits.add(old) = word;
            let mut newer = (word >> (slot & 63)).count_ones();
            if old != new {
                // The rest of the block, or up to the head: bits beyond the head
                // are 0. Word by word: a word was most likely written just before,
                // and a vector read of the block would have to wait for the write.
                let block = self.bits.add(old & !7);
                for (index, mask) in WORDS_AFTER[old & 7].iter().enumerate() {
                    newer += (block.add(index).read_volatile() & mask).count_ones();
                }
                if old >> 3 != new >> 3 {
                    newer += self.climb(old >> 3, new >> 3);
                }
            }
            *self.bits.add(new) |= 1 << (head & 63);
            newer
        }
    }

    /// Live slots in blocks newer than `old`; moves a count from `old` to `new`.
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
                newer = newer.wrapping_add(count & mask);
            }
            let mut newer = u32::from(newer);
            // A damaged state may have arbitrary counts: results are then wrong, without a fault.
            *self.blocks.add(old) = (*self.blocks.add(old)).wrapping_sub(1);
            *self.blocks.add(new) = (*self.blocks.add(new)).wrapping_add(1);
            old >>= GROUP_BITS;
            new >>= GROUP_BITS;
            for level in self.levels {
                if old == new {
                    break;
                }
                let group = &*level.add(old & !(FAN - 1)).cast::<[u32; FAN]>();
                for (count, mask) in group.iter().zip(&NODES_AFTER[old & (FAN - 1)]) {
                    newer = newer.wrapping_add(count & mask);
                }
                *level.add(old) = (*level.add(old)).wrapping_sub(1);
                *level.add(new) = (*level.add(new)).wrapping_add(1);
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
