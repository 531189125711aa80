//! Reuse at one granularity: for each touch of a granule, the distances from the touch before.
//!
//! A batch goes through in steps, each over the whole batch, to overlap cache misses of different
//! touches: find and prefetch the entries, prefetch the bits of the entries' slots, then count.

use locality_stream::{Arena, ArenaFull, Plain, Range, Span};

use crate::batch::{BATCH, Batch, Touches, bits};
use crate::bins::{FINE_BINS, LOG2_BINS, fine_bin, log2_bin};
use crate::cells::Cells;
use crate::lanes::{Lanes, RECENT};
use crate::lines::{LINE_BITS, LINE_GROUPS, PAIR_GROUPS, SampledLines};
use crate::order::Order;
use crate::places::{Claims, Places, entry};
use crate::prefetch::prefetch;
use crate::summary::Cell;

/// In place of a stack distance: the last fine bin, and
/// log2 bin 0; a time distance of 0 marks a first touch.
const FIRST: u64 = u64::MAX;

/// Cumulative counts.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Counts {
    /// Time distances. Bin 0 has the first touches.
    time: [u64; FINE_BINS],
    /// Stack distances. The last bin, beyond every distance, has the first touches.
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

/// Sums of time distances modulo 2^64, cumulatively; the sum of bin 0 is meaningless.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Sums([u64; FINE_BINS]);
// SAFETY: integers without padding.
unsafe impl Plain for Sums {}

/// Cumulative counts of a group of sampled lines.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct OfGroup {
    /// Time distances in log2 bins. Bin 0 has the first touches.
    pub(crate) time: [u64; LOG2_BINS],
    /// Stack distances in fine bins. The last bin has the first touches.
    pub(crate) stack: [u64; FINE_BINS],
}
// SAFETY: integers without padding.
unsafe impl Plain for OfGroup {}

/// The state; lies in an arena.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Grain {
    /// Size of a granule, as a power of two.
    pub(crate) bits: u32,
    /// 1 when pairs are counted.
    pub(crate) pairs: u32,
    places: Places,
    order: Order,
    counts: Span<Counts>,
    /// Cumulative counts at the ends of phases.
    snapshots: Span<Counts>,
    /// Sums of the distances counted, then sums at the ends of phases; empty unless requested.
    sums: Span<Sums>,
    /// Pairs with distances: see [`cell_key`].
    cells: Cells,
    /// Counts by group of lines; empty unless lines are sampled.
    groups: Span<OfGroup>,
    /// Number of lines of which one is sampled.
    one_in: u64,
    /// Touches without room for the pair.
    pub(crate) pairs_lost: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Grain {}

/// Initial room of a granularity.
pub(crate) struct Room {
    pub(crate) slots: usize,
    pub(crate) phases: usize,
    pub(crate) cells: usize,
    pub(crate) sums: bool,
    pub(crate) lines: Option<SampledLines>,
}

/// Use site, reuse site, group of lines, log2 bins of time and stack distance in one number. Never 0: the
/// reuse's site is known.
#[inline(always)]
fn cell_key(use_site: u32, reuse_site: u32, time: u64, stack: u64) -> u64 {
    let bin = |distance: u64| u64::from(64 - distance.leading_zeros()) & 63;
    u64::from(use_site) << 40 | u64::from(reuse_site) << 16 | bin(time) << 6 | bin(stack)
}

/// The group of sampled lines in a [`cell_key`].
#[inline(always)]
fn group_in_key(group: usize) -> u64 {
    ((group & (PAIR_GROUPS - 1)) as u64) << 12
}

/// The cell of a [`cell_key`].
pub(crate) fn cell(key: u64, count: u64) -> Cell {
    const SITE: u64 = (1 << 24) - 1;
    Cell {
        use_site: (key >> 40 & SITE) as u32,
        reuse_site: (key >> 16 & SITE) as u32,
        group: (key >> 12 & 15) as u8,
        time_bin: (key >> 6 & 63) as u8,
        stack_bin: (key & 63) as u8,
        count,
    }
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
            sums: Span::allocate(arena, if room.sums { room.phases + 1 } else { 0 }).ok_or(ArenaFull)?,
            cells: Cells::new(arena, cells.min(2048), cells).ok_or(ArenaFull)?,
            groups: Span::allocate(arena, if room.lines.is_some() { LINE_GROUPS } else { 0 })
                .ok_or(ArenaFull)?,
            one_in: room.lines.map_or(0, |lines| u64::from(lines.number())),
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
        let (mut access, mut beyond) = (0, 0);
        while access < batch.len {
            touches.split(batch, self.bits & 63, first, &mut access, &mut beyond);
            // SAFETY: the granularity's cache, without a second reference meanwhile.
            let missed = touches.find_places(unsafe { self.places.cache(arena) });
            if missed != 0 {
                self.find(arena, touches, missed)?;
            }
            self.distances::<L, A>(arena, touches)?;
            self.count::<L, A>(arena, touches);
        }
        Ok(())
    }

    /// Finds the entries of the touches named by the bits
    /// `missed`, each step for every touch: cache misses overlap.
    #[inline(always)]
    fn find<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        touches: &mut Touches,
        missed: u64,
    ) -> Result<(), ArenaFull> {
        let base = arena.base().as_ptr();
        for index in bits(missed) {
            self.places.prefetch(arena, touches.granule[index & (BATCH - 1)]);
        }
        for index in bits(missed) {
            let index = index & (BATCH - 1);
            let found = self.places.find(arena, touches.granule[index])?;
            if let Some((from, to)) = found.moved {
                self.order.follow(arena, from, to);
                // At once: the entry left may become another granule's in the batch.
                touches.follow(from, to);
            }
            touches.reference[index] = found.reference;
            prefetch(entry(base, found.reference).cast());
        }
        let view = self.order.view(arena);
        for index in bits(missed) {
            // SAFETY: the entry of a reference returned by `find`.
            view.prefetch(unsafe { (*entry(base, touches.reference[index & (BATCH - 1)])).slot });
        }
        Ok(())
    }

    /// Distances of touches from the touches before.
    #[inline(always)]
    fn distances<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        touches: &mut Touches,
    ) -> Result<(), ArenaFull> {
        let len = touches.len.min(BATCH);
        let base = arena.base().as_ptr();
        if self.order.room() < len {
            self.order.renumber(arena)?;
        }
        let view = self.order.view(arena);
        let mut head = self.order.head();
        let mut live = self.order.live();
        // SAFETY: the caller chose a form supported by the processor.
        let mut recent = unsafe { L::load(self.order.recent()) };
        for index in 0..len {
            // SAFETY: `index` is below the lengths of the arrays; references come from `find`, with
            // unmoving entries; a touched granule's slot is live; room for `len` slots was made.
            unsafe {
                let reference = *touches.reference.get_unchecked(index);
                let time = *touches.time.get_unchecked(index);
                let touched = &mut *entry(base, reference);
                let use_time = touched.time;
                *touches.use_time.get_unchecked_mut(index) = use_time;
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
                        // The granule has a slot, hence the list is full: a granule drops out.
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
        let distance = |touches: &Touches, index: usize| {
            let (time, use_time) = (touches.time[index], touches.use_time[index]);
            if use_time == 0 { 0 } else { time.wrapping_sub(use_time) }
        };
        for index in 0..BATCH {
            touches.time_bin[index] = fine_bin(distance(touches, index)) as u64;
            touches.stack_bin[index] = fine_bin(touches.stack[index]) as u64;
        }
        // SAFETY: one value, in an allocated or checked span, without a second reference.
        let counts =
            unsafe { &mut *arena.base().as_ptr().add(self.counts.offset() as usize).cast::<Counts>() };
        for (time, stack) in touches.time_bin.iter().zip(&touches.stack_bin).take(len) {
            // SAFETY: `fine_bin` is below the number of bins.
            unsafe {
                *counts.time.get_unchecked_mut(*time as usize) += 1;
                *counts.stack.get_unchecked_mut(*stack as usize) += 1;
            }
        }
        if self.sums.count() > 0 {
            // SAFETY: the first of an allocated or checked span, without a second reference.
            let sums = unsafe { &mut *arena.base().as_ptr().add(self.sums.offset() as usize).cast::<Sums>() };
            for index in 0..len {
                if let Some(sum) = sums.0.get_mut(touches.time_bin[index] as usize) {
                    *sum = sum.wrapping_add(distance(touches, index));
                }
            }
        }
        let lines = self.lines();
        if let Some(lines) = lines {
            self.count_by_group(arena, touches, lines, len, distance);
        }
        if self.pairs == 0 {
            return;
        }
        for index in 0..BATCH {
            touches.key[index] = cell_key(
                touches.use_site[index],
                touches.site[index],
                distance(touches, index),
                touches.stack[index],
            );
        }
        if let Some(lines) = lines {
            for (key, granule) in touches.key.iter_mut().zip(&touches.granule) {
                *key |= group_in_key(lines.group(self.line(*granule)));
            }
        }
        // SAFETY: the caller chose a form supported by the processor.
        self.pairs_lost += unsafe { self.cells.count::<L, A>(arena, &touches.key, &mut touches.home, len) };
    }

    /// The sample of lines, if not all are seen.
    #[inline(always)]
    fn lines(&self) -> Option<SampledLines> {
        if self.groups.count() == 0 { None } else { SampledLines::one_in(self.one_in as u32) }
    }

    /// The line of a granule.
    #[inline(always)]
    fn line(&self, granule: u64) -> u64 {
        granule << (self.bits & 63) >> LINE_BITS
    }

    fn count_by_group<A: Arena + ?Sized>(
        &self,
        arena: &A,
        touches: &Touches,
        lines: SampledLines,
        len: usize,
        distance: impl Fn(&Touches, usize) -> u64,
    ) {
        let Some(first) = self.groups.get(arena) else { return };
        for index in 0..len.min(BATCH) {
            let group = lines.group(self.line(touches.granule[index]));
            // SAFETY: a group is below LINE_GROUPS, the count of the span, and only this thread writes.
            let of_group = unsafe { &mut *first.as_ptr().add(group) };
            if let Some(count) = of_group.time.get_mut(log2_bin(distance(touches, index))) {
                *count += 1;
            }
            if let Some(count) = of_group.stack.get_mut(touches.stack_bin[index] as usize) {
                *count += 1;
            }
        }
    }

    /// The counts by group of lines; empty unless lines are sampled.
    pub(crate) fn by_group<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [OfGroup] {
        // SAFETY: the owner does not write while reading.
        unsafe { self.groups.slice(arena) }.unwrap_or_default()
    }

    /// Keeps the counts as the counts at the end of phase `index`.
    pub(crate) fn end_phase<A: Arena + ?Sized>(&self, arena: &A, index: usize) {
        if let (Some(counts), Some(snapshots)) = (self.counts.get(arena), self.snapshots.get(arena))
            && index < self.snapshots.count()
        {
            // SAFETY: both are within spans without overlap.
            unsafe { snapshots.add(index).copy_from_nonoverlapping(counts, 1) };
        }
        if let Some(sums) = self.sums.get(arena)
            && index + 1 < self.sums.count()
        {
            // SAFETY: both are within the span, and different.
            unsafe { sums.add(index + 1).copy_from_nonoverlapping(sums, 1) };
        }
    }

    /// Merges `count` phases by twos.
    pub(crate) fn merge_phases<A: Arena + ?Sized>(&self, arena: &A, count: usize) {
        let Some(snapshots) = self.snapshots.get(arena) else { return };
        for index in 0..count.min(self.snapshots.count()) / 2 {
            // SAFETY: both are within the span.
            unsafe { snapshots.add(index).copy_from(snapshots.add(2 * index + 1), 1) };
        }
        let Some(sums) = self.sums.get(arena) else { return };
        for index in 0..count.min(self.sums.count().saturating_sub(1)) / 2 {
            // SAFETY: both are within the span.
            unsafe { sums.add(index + 1).copy_from(sums.add(2 * index + 2), 1) };
        }
    }

    /// The counts up to now.
    pub(crate) fn counts<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> Option<&'a Counts> {
        // SAFETY: the owner does not write while reading.
        unsafe { self.counts.slice(arena) }?.first()
    }

    /// The counts at the ends of phases.
    pub(crate) fn snapshots<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [Counts] {
        // SAFETY: as above.
        unsafe { self.snapshots.slice(arena) }.unwrap_or_default()
    }

    /// Sums of time distances up to now, then sums at the
    /// ends of phases, by fine bin; empty unless requested.
    pub(crate) fn sums<'a, A: Arena + ?Sized>(
        &self,
        arena: &'a A,
    ) -> impl Iterator<Item = Vec<u64>> + use<'a, A> {
        // SAFETY: as above.
        let sums = unsafe { self.sums.slice(arena) }.unwrap_or_default();
        sums.iter().map(|Sums(bins)| std::iter::once(0).chain(bins.iter().skip(1).copied()).collect())
    }

    /// Pairs with distances and numbers; keys as decoded by [`cell`].
    pub(crate) fn cells<A: Arena + ?Sized>(&self, arena: &A) -> impl Iterator<Item = (u64, u64)> {
        self.cells.iterate(arena)
    }

    /// The latest time among entries.
    pub(crate) fn latest<A: Arena + ?Sized>(&self, arena: &A) -> u64 {
        let mut latest = 0;
        self.places.for_each(arena, |_, _, entry| latest = latest.max(entry.time));
        latest
    }

    /// Spoils the parts rebuilt by [`Grain::repair`].
    #[cfg(test)]
    pub(crate) fn scramble<A: Arena + ?Sized>(&mut self, arena: &A) {
        self.order.scramble(arena);
        self.places.for_each(arena, |_, _, entry| entry.slot = 7);
    }

    pub(crate) fn ranges(&self) -> Vec<Range> {
        let mut ranges = vec![self.counts.range(), self.snapshots.range(), self.sums.range()];
        ranges.push(self.groups.range());
        ranges.push(self.cells.range());
        ranges.extend(self.places.ranges());
        ranges.extend(self.order.ranges());
        ranges
    }

    /// Phases with room for counts.
    pub(crate) fn phases(&self) -> u64 {
        self.snapshots.count() as u64
    }

    /// Checks tables from another process, which lie apart; rebuilds the order after a kill
    /// in the middle of a batch (`torn`), or if order and entries contradict each other.
    pub(crate) fn repair<A: Arena + ?Sized>(&mut self, arena: &A, claims: &mut Claims, torn: bool) -> bool {
        let sound = self.bits < 64
            && self.places.is_whole(arena)
            && self.order.is_whole(arena, &self.places)
            && self.counts.count() == 1
            && self.counts.get(arena).is_some()
            && self.snapshots.get(arena).is_some()
            && self.sums.get(arena).is_some()
            && self.groups.get(arena).is_some()
            && [0, LINE_GROUPS].contains(&self.groups.count())
            && self.cells.is_whole(arena);
        sound
            && self.places.claim(arena, claims)
            && (!torn && self.order.agrees(arena, &self.places)
                || self.order.rebuild(arena, &self.places).is_ok())
    }
}
