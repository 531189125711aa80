//! Reuse at one granularity: for each touch of a granule, its distances from the touch before.
//!
//! A batch goes through in steps, each over all its touches, so that cache misses of different touches overlap: find the
//! entries (asking for them), ask for the bits of their slots, then count.

use locality_stream::{Arena, ArenaFull, Plain, Span};

use crate::bins::{FINE_BINS, fine_bin};
use crate::cells::Cells;
use crate::lanes::{Lanes, RECENT};
use crate::order::Order;
use crate::places::{Places, Reference, entry};
use crate::prefetch::prefetch;

/// Accesses of a batch.
pub(crate) const BATCH: usize = 64;
/// Footprint, in granules, from which on asking ahead pays: the tables no longer fit the second-level cache.
const PREFETCH_FROM: u64 = 1 << 14;

/// Accesses on their way.
pub(crate) struct Batch {
    pub(crate) address: [u64; BATCH],
    /// Addresses of last bytes. The end of the address space does not wrap.
    pub(crate) last: [u64; BATCH],
    pub(crate) site: [u32; BATCH],
    /// At most [`BATCH`].
    pub(crate) len: usize,
}

/// Touches whose entries are known, and then what was found there. Kept by the engine between batches only because
/// making it anew would mean filling it with zeros.
pub(crate) struct Touches {
    reference: [Reference; BATCH],
    site: [u32; BATCH],
    time: [u64; BATCH],
    use_site: [u32; BATCH],
    /// Time distance; 0 for a first touch.
    distance: [u64; BATCH],
    /// Stack distance; [`FIRST`] for a first touch.
    stack: [u64; BATCH],
    time_bin: [u64; BATCH],
    stack_bin: [u64; BATCH],
    key: [u64; BATCH],
    len: usize,
}

impl Touches {
    pub(crate) const EMPTY: Touches = Touches {
        reference: [0; BATCH],
        site: [0; BATCH],
        time: [0; BATCH],
        use_site: [0; BATCH],
        distance: [0; BATCH],
        stack: [0; BATCH],
        time_bin: [0; BATCH],
        stack_bin: [0; BATCH],
        key: [0; BATCH],
        len: 0,
    };
}

impl Batch {
    pub(crate) const EMPTY: Batch = Batch { address: [0; BATCH], last: [0; BATCH], site: [0; BATCH], len: 0 };
}

/// In place of a stack distance: the last fine bin, and log2 bin 0, which with a time distance of 0 is no reuse's.
const FIRST: u64 = u64::MAX;

/// What is counted, cumulatively.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Counts {
    /// Time distances. Bin 0 has the first touches.
    time: [u64; FINE_BINS],
    /// Stack distances. The last bin, which no distance reaches, has the first touches.
    stack: [u64; FINE_BINS],
}

impl Counts {
    pub(crate) const ZERO: Counts = Counts { time: [0; FINE_BINS], stack: [0; FINE_BINS] };

    /// First touches.
    pub(crate) fn cold(&self) -> u64 {
        self.time.first().copied().unwrap_or(0)
    }

    /// Reuses by time distance.
    pub(crate) fn time(&self) -> Vec<u64> {
        std::iter::once(0).chain(self.time.iter().copied().skip(1)).collect()
    }

    /// Reuses by stack distance.
    pub(crate) fn stack(&self) -> Vec<u64> {
        self.stack.iter().copied().take(FINE_BINS - 1).chain([0]).collect()
    }
}
// SAFETY: integers without padding.
unsafe impl Plain for Counts {}

/// The state; lies in an arena.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Grain {
    /// Size of a granule, as a power of two.
    pub(crate) bits: u32,
    /// 1 when pairs are kept.
    pub(crate) pairs: u32,
    places: Places,
    order: Order,
    counts: Span<Counts>,
    /// Cumulative counts at the ends of phases.
    snapshots: Span<Counts>,
    /// Pairs with their distances: see [`cell_key`].
    cells: Cells,
    /// Touches whose pair found no room.
    pub(crate) pairs_lost: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Grain {}

/// Room that a granularity starts with.
pub(crate) struct Room {
    pub(crate) slots: usize,
    pub(crate) phases: usize,
    pub(crate) cells: usize,
}

/// Use site, reuse site, log2 bins of time and stack distance in one number. Never 0: the reuse's site is known.
#[inline(always)]
fn cell_key(use_site: u32, reuse_site: u32, time: u64, stack: u64) -> u64 {
    let bin = |distance: u64| u64::from(64 - distance.leading_zeros()) & 63;
    u64::from(use_site) << 38 | u64::from(reuse_site) << 12 | bin(time) << 6 | bin(stack)
}

/// The parts of [`cell_key`].
pub(crate) fn cell_parts(key: u64) -> (u32, u32, u8, u8) {
    const SITE: u64 = (1 << 26) - 1;
    ((key >> 38 & SITE) as u32, (key >> 12 & SITE) as u32, (key >> 6 & 63) as u8, (key & 63) as u8)
}

/// One more granule of the same access.
#[cold]
#[inline(never)]
fn again(at: usize, carry: u64) -> (usize, u64) {
    (at - 1, carry + 1)
}

impl Grain {
    pub(crate) fn new<A: Arena + ?Sized>(
        arena: &A,
        bits: u32,
        pairs: bool,
        room: &Room,
    ) -> Result<Grain, ArenaFull> {
        let cells = if pairs { room.cells } else { 8 };
        Ok(Grain {
            bits,
            pairs: pairs.into(),
            places: Places::new(arena)?,
            order: Order::new(arena, room.slots)?,
            counts: Span::allocate(arena, 1).ok_or(ArenaFull)?,
            snapshots: Span::allocate(arena, room.phases).ok_or(ArenaFull)?,
            cells: Cells::new(arena, cells.min(2048), cells).ok_or(ArenaFull)?,
            pairs_lost: 0,
        })
    }

    /// Takes the accesses of a batch; the first has the number `first`.
    #[inline(always)]
    pub(crate) fn take<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        batch: &Batch,
        touches: &mut Touches,
        first: u64,
    ) -> Result<(), ArenaFull> {
        let far = self.order.live() > PREFETCH_FROM;
        if far {
            for address in batch.address.iter().take(batch.len) {
                self.places.prefetch(arena, address >> self.bits);
            }
        }
        let (mut access, mut beyond) = (0, 0);
        while access < batch.len {
            self.find(arena, batch, first, touches, &mut access, &mut beyond)?;
            self.distances::<L, A>(arena, touches, far)?;
            self.count::<L, A>(arena, touches);
        }
        Ok(())
    }

    /// Finds the entries of accesses from number `access` on, of which `beyond` granules are done, until the accesses
    /// or the room for touches are used up.
    #[inline(always)]
    fn find<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        batch: &Batch,
        first: u64,
        touches: &mut Touches,
        access: &mut usize,
        beyond: &mut u64,
    ) -> Result<(), ArenaFull> {
        let bits = self.bits & 63;
        let base = arena.base().as_ptr();
        let (mut at, mut carry, mut len) = (*access, *beyond, 0);
        let accesses = batch.len.min(BATCH);
        while at < accesses && len < BATCH {
            // SAFETY: `at` and `len` are below the lengths of the arrays.
            unsafe {
                let granule = (*batch.address.get_unchecked(at) >> bits) + carry;
                *touches.reference.get_unchecked_mut(len) = self.places.find(arena, base, granule)?;
                *touches.site.get_unchecked_mut(len) = *batch.site.get_unchecked(at);
                *touches.time.get_unchecked_mut(len) = first + at as u64;
                len += 1;
                at += 1;
                // A branch on purpose: which access comes next must not wait for this one's address.
                if granule < *batch.last.get_unchecked(at - 1) >> bits {
                    (at, carry) = again(at, carry);
                } else {
                    carry = 0;
                }
            }
        }
        (*access, *beyond, touches.len) = (at, carry, len);
        Ok(())
    }

    /// Distances of touches from the touches before.
    #[inline(always)]
    fn distances<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        touches: &mut Touches,
        far: bool,
    ) -> Result<(), ArenaFull> {
        let len = touches.len.min(BATCH);
        let base = arena.base().as_ptr();
        if self.order.room() < len {
            self.order.renumber(arena)?;
        }
        let view = self.order.view(arena);
        let mut head = self.order.head();
        let mut live = self.order.live();
        // SAFETY: the caller chose a form that the processor has.
        let mut recent = unsafe { L::load(self.order.recent()) };
        if far {
            for reference in touches.reference.iter().take(len) {
                prefetch(entry(base, *reference).cast());
            }
            for reference in touches.reference.iter().take(len) {
                // SAFETY: the entry of a reference that `find` returned.
                view.prefetch(unsafe { (*entry(base, *reference)).slot });
            }
        }
        for index in 0..len {
            // SAFETY: `index` is below the lengths of the arrays; references are those that `find` returned, whose
            // entries do not move; a touched granule's slot is live; there was room for `len` slots.
            unsafe {
                let reference = *touches.reference.get_unchecked(index);
                let time = *touches.time.get_unchecked(index);
                let touched = &mut *entry(base, reference);
                let use_time = touched.time;
                *touches.use_site.get_unchecked_mut(index) = touched.site;
                touched.time = time;
                touched.site = *touches.site.get_unchecked(index);
                let found = L::find(recent, reference);
                let stack = if found != 0 {
                    u64::from(found.trailing_zeros())
                } else {
                    let slot = touched.slot;
                    let dropped = L::last(recent);
                    let next = head;
                    if dropped != 0 {
                        (*entry(base, dropped)).slot = next;
                        head += 1;
                    }
                    if use_time != 0 {
                        // It has a slot, so the list is full: one drops out.
                        RECENT as u64 + u64::from(view.touch(slot, next, dropped))
                    } else {
                        if dropped != 0 {
                            live += 1;
                            view.push(next, dropped);
                        }
                        FIRST
                    }
                };
                recent = L::front(recent, reference, found);
                *touches.stack.get_unchecked_mut(index) = stack;
                *touches.distance.get_unchecked_mut(index) = if use_time == 0 { 0 } else { time - use_time };
            }
        }
        // SAFETY: as above.
        self.order.settle(head, live, unsafe { L::store(recent) });
        Ok(())
    }

    /// Counts distances and pairs.
    #[inline(always)]
    fn count<L: Lanes, A: Arena + ?Sized>(&mut self, arena: &A, touches: &mut Touches) {
        let len = touches.len.min(BATCH);
        // Over whole arrays, whatever of them is in use: without branches, which is what vector instructions want.
        for index in 0..BATCH {
            touches.time_bin[index] = fine_bin(touches.distance[index]) as u64;
            touches.stack_bin[index] = fine_bin(touches.stack[index]) as u64;
        }
        // SAFETY: one value, in a span that was allocated or checked; nothing else refers to it.
        let counts =
            unsafe { &mut *arena.base().as_ptr().add(self.counts.offset() as usize).cast::<Counts>() };
        for (time, stack) in touches.time_bin.iter().zip(&touches.stack_bin).take(len) {
            // SAFETY: `fine_bin` is below the number of bins.
            unsafe {
                *counts.time.get_unchecked_mut(*time as usize) += 1;
                *counts.stack.get_unchecked_mut(*stack as usize) += 1;
            }
        }
        if self.pairs == 0 {
            return;
        }
        for index in 0..BATCH {
            touches.key[index] = cell_key(
                touches.use_site[index],
                touches.site[index],
                touches.distance[index],
                touches.stack[index],
            );
        }
        // SAFETY: the caller chose a form that the processor has.
        self.pairs_lost +=
            unsafe { self.cells.count::<L, A>(arena, touches.key.get(..len).unwrap_or_default()) };
    }

    /// Keeps the counts as those at the end of phase `index`.
    pub(crate) fn end_phase<A: Arena + ?Sized>(&self, arena: &A, index: usize) {
        if let (Some(counts), Some(snapshots)) = (self.counts.get(arena), self.snapshots.get(arena))
            && index < self.snapshots.count()
        {
            // SAFETY: both are within their spans, which do not overlap.
            unsafe { snapshots.add(index).copy_from_nonoverlapping(counts, 1) };
        }
    }

    /// Makes one phase of each two, of `count` phases.
    pub(crate) fn merge_phases<A: Arena + ?Sized>(&self, arena: &A, count: usize) {
        let Some(snapshots) = self.snapshots.get(arena) else { return };
        for index in 0..count.min(self.snapshots.count()) / 2 {
            // SAFETY: both are within the span.
            unsafe { snapshots.add(index).copy_from(snapshots.add(2 * index + 1), 1) };
        }
    }

    /// The counts so far.
    pub(crate) fn counts<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> Option<&'a Counts> {
        // SAFETY: the owner does not write while it reads.
        unsafe { self.counts.slice(arena) }?.first()
    }

    /// The counts at the ends of phases.
    pub(crate) fn snapshots<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [Counts] {
        // SAFETY: as above.
        unsafe { self.snapshots.slice(arena) }.unwrap_or_default()
    }

    /// Pairs with their distances and numbers; keys as [`cell_parts`] takes them apart.
    pub(crate) fn cells<A: Arena + ?Sized>(&self, arena: &A) -> impl Iterator<Item = (u64, u64)> {
        self.cells.iterate(arena)
    }

    /// The latest time of any entry.
    pub(crate) fn latest<A: Arena + ?Sized>(&self, arena: &A) -> u64 {
        let mut latest = 0;
        self.places.for_each(arena, |_, _, entry| latest = latest.max(entry.time));
        latest
    }

    /// Spoils what [`Grain::repair`] makes anew.
    #[cfg(test)]
    pub(crate) fn scramble<A: Arena + ?Sized>(&mut self, arena: &A) {
        self.order.scramble(arena);
        self.places.for_each(arena, |_, _, entry| entry.slot = 7);
    }

    /// Checks tables that come out of another process' hands; `torn` when it was killed in the middle of a batch.
    pub(crate) fn repair<A: Arena + ?Sized>(&mut self, arena: &A, torn: bool) -> bool {
        let sound = self.bits < 64
            && self.places.is_whole(arena)
            && self.order.is_whole(arena, &self.places)
            && self.counts.count() == 1
            && self.counts.get(arena).is_some()
            && self.snapshots.get(arena).is_some()
            && self.cells.is_whole(arena);
        sound && (!torn || self.order.rebuild(arena, &self.places).is_ok())
    }
}
