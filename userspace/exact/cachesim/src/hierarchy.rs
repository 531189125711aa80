//! The model: effects of an access on the caches.
//!
//! * One to three data levels, and an instruction cache beside the first. The last
//!   of several levels is shared by the threads of a stream, the rest is private;
//!   a single level is private too. Instruction misses go to the second level.
//! * The least recently used line of the set is replaced. Writes allocate. A level receives
//!   only the misses of the level before, in order. Levels are neither inclusive nor exclusive.
//!   No write-backs, no coherence between threads' own caches, no translation of addresses.
//! * An access counts once, as a miss of a level if at least one line
//!   misses the level. An access touches lines in the order of addresses.
//! * Use of a line, at each level, from load to replacement (or the end): accesses, and
//!   bytes used. A level after the first learns of both at the replacement of the earlier
//!   level's copy or of the own copy: a *link* leads from a copy to the source copy in
//!   the next level, and is cut when the source copy is replaced. If a copy outlives the
//!   source copy, later accesses count for the copy of the level after the next.
//! * A line prefetched and never used loses every byte, and costs as one
//!   access. Later levels without the line load the line too, without a miss.
//! * Lines are counted when charged: each loaded line once.
//!
//! **Callgrind's way** (valgrind 3.19, `callgrind/sim.c`, `--cache-sim=yes --cacheuse=yes`): one
//! hierarchy for the threads; use in 32 parts of a line; 1000 / accesses, an integer; the last
//! level learns of use only from copies replaced before the own copy, regardless of the slot's
//! present line; an unreported line of the last level has no cost; an access touches two lines at
//! most; a read and a write at one address by one instruction, without lock, are one write.
//! Callgrind identifies addresses equal in the lower 32 bits, in contrast to the simulation here.

use locality_stream::Arena;

use crate::cache::{Cache, Line};
use crate::columns::Column;
use crate::objects::{UNKNOWN_OBJECT, USE};
use crate::sim::Sim;
use crate::state::{D1, I1, L2, Model, PRIVATE, State, Thread};

/// Marks links to the last level; the rest lead to the second of three.
const TO_LAST: u32 = 1 << 31;

/// Loader of a line: a node and a cell.
#[derive(Clone, Copy)]
pub(crate) struct Loader {
    pub(crate) node: u32,
    pub(crate) cell: u32,
    /// Accesses of the load: 0 for a prefetch.
    pub(crate) count: u32,
    pub(crate) mask: u64,
    /// The data object; found out when the first level loads the line.
    pub(crate) object: u32,
}

impl Model {
    /// The parts of a line with the bytes from `first` to `last` (within the line).
    #[inline(always)]
    pub(crate) fn parts(&self, first: u64, last: u64) -> u64 {
        let low = first >> self.unit_bits << self.spread_bits;
        let high = ((last >> self.unit_bits) + 1) << self.spread_bits;
        u64::MAX << (low & 63) & u64::MAX >> (64_u64.wrapping_sub(high) & 63)
    }
}

impl State {
    /// Charges a line replaced, or left at the end, to the loader. `level`
    /// is 0, 1 or 2 for the columns of the first, the second and the last.
    #[inline(always)]
    fn charge<A: Arena + ?Sized>(&mut self, arena: &A, line: &Line, level: usize) {
        let model = &self.model;
        let parts = (1_u64 << model.mask_bits).saturating_sub(line.mask.count_ones().into());
        let loss = parts << model.line_bits >> model.mask_bits;
        let cost = model.unit / u64::from(line.count.max(1));
        let costs_nothing = model.callgrind == 1 && line.count == 0;
        let (access_column, loss_column, lines_column) = USE.get(level).copied().unwrap_or(USE[0]);
        if let Some(cell) = self.cells.list.get_mut(arena, line.cell) {
            if !costs_nothing {
                cell.value[access_column] += cost;
                cell.value[loss_column] += loss;
            }
            cell.value[lines_column] += 1;
        }
        if let Some(node) = self.nodes.get_mut(arena, line.node) {
            if !costs_nothing {
                node.costs[access_column] = node.costs[access_column].wrapping_add(cost);
                node.costs[loss_column] = node.costs[loss_column].wrapping_add(loss);
            }
            node.costs[lines_column] = node.costs[lines_column].wrapping_add(1);
            node.lines = node.lines.wrapping_sub(1);
        }
        if self.model.objects == 1 {
            let costs = if costs_nothing { (0, 0) } else { (cost, loss) };
            // SAFETY: lines have objects of the list, which
            // has the unknown object if objects count.
            unsafe { self.charge_object(arena, line.object, level, costs) };
        }
    }

    /// The copy at a link, and the copy's cache.
    #[inline(always)]
    fn behind<'a, A: Arena + ?Sized>(&self, arena: &A, second: &Cache, link: u32) -> Option<&'a mut Line> {
        let cache = if link & TO_LAST == 0 { second } else { &self.last };
        let slot = (link & !TO_LAST).checked_sub(1)?;
        // SAFETY: below the cache's number of slots; callers hold no reference to a line of a later level.
        ((slot as usize) < cache.slots()).then(|| unsafe { cache.line(arena, slot) })
    }

    /// Passes new facts to the next level's copy.
    #[inline(always)]
    fn hand<A: Arena + ?Sized>(&self, arena: &A, second: &Cache, line: &mut Line) {
        if let Some(behind) = self.behind(arena, second, line.link) {
            behind.count = behind.count.saturating_add(line.count.saturating_sub(line.handed));
            behind.mask |= line.mask;
            line.handed = line.count;
        }
    }

    /// Collects the use of a line from a thread's first-level copies, for
    /// the next copy `to`, and links the first-level copies to `then`.
    fn collect<A: Arena + ?Sized>(
        &self,
        arena: &A,
        caches: &[Cache; PRIVATE],
        number: u64,
        to: u32,
        then: u32,
    ) {
        for cache in [&caches[I1], &caches[D1]] {
            if let Some(slot) = cache.peek(arena, number) {
                // SAFETY: a slot of the cache, and no second
                // reference to a line of the first level.
                let line = unsafe { cache.line(arena, slot) };
                if line.link == to {
                    self.hand(arena, &caches[L2], line);
                    line.link = then;
                }
            }
        }
    }
}

impl<A: Arena + ?Sized> Sim<'_, A> {
    /// Touches a line in a thread's first-level cache; returns the number of levels missed.
    #[inline(always)]
    pub(crate) fn touch(
        &mut self,
        cache: usize,
        number: u64,
        count: u32,
        mask: u64,
        cell: impl Fn(&mut Self) -> u32,
    ) -> u32 {
        self.s.clock = self.s.clock.wrapping_add(1);
        let first = &self.s.now.caches[cache & 1];
        match first.use_line(self.arena, number, self.s.clock) {
            Some(slot) => {
                // SAFETY: a slot of the cache, and no second reference.
                let line = unsafe { first.line(self.arena, slot) };
                line.count = line.count.wrapping_add(count);
                line.mask |= mask;
                0
            }
            None => {
                let cell = cell(self);
                self.load(cache & 1, number, Loader { node: self.s.node, cell, count, mask, object: 0 })
            }
        }
    }

    /// Loads a line absent from the first level; returns the number of levels missed.
    #[inline(never)]
    pub(crate) fn load(&mut self, cache: usize, number: u64, loader: Loader) -> u32 {
        let loader = Loader { object: self.object(number, &loader), ..loader };
        let (arena, s) = (self.arena, &mut *self.s);
        // A damaged state may have arbitrary counts: results are then wrong, without a fault.
        s.loads = s.loads.wrapping_add(1);
        let first = &s.now.caches[cache];
        let (slot, old) = first.load(arena, number, s.clock);
        // SAFETY: a slot of the cache, and no second reference to a line of the first level.
        let line = unsafe { first.line(arena, slot) };
        if old.is_some() {
            s.charge(arena, line, 0);
            s.hand(arena, &s.now.caches[L2], line);
        }
        *line = begin(&loader);
        // SAFETY: the loader's node is in the list.
        let lines = unsafe { &mut s.nodes.at(arena, loader.node).lines };
        *lines = lines.wrapping_add(1);
        let behind = Loader { count: 0, mask: 0, ..loader };
        let (missed, link) = match s.model.levels {
            1 => (0, 0),
            2 => s.last_level(arena, number, behind),
            _ => s.second_level(arena, number, behind),
        };
        line.link = link;
        missed + 1
    }

    /// The data object at the first address accessed in a line; 0 if objects do not count.
    #[inline(always)]
    fn object(&mut self, number: u64, loader: &Loader) -> u32 {
        let model = &self.s.model;
        if model.objects == 0 {
            return UNKNOWN_OBJECT;
        }
        // A prefetched line has no access yet: the first byte stands for an access.
        let part = u64::from(loader.mask.trailing_zeros() & 63);
        let address = number << model.line_bits | part << model.unit_bits >> model.spread_bits;
        let object = self.objects.at(loader.cell, address, self.placed);
        if object as usize >= self.s.objects.len() {
            return self.new_object(object);
        }
        object
    }

    /// Makes room for an object's costs; without room the costs go to the unknown object.
    #[cold]
    fn new_object(&mut self, object: u32) -> u32 {
        let made = self.s.objects.extend(self.arena, object as usize + 1);
        self.or_full(made).map_or(UNKNOWN_OBJECT, |()| object)
    }

    /// Brings an unrequested line into the first data level; no effect for a resident line.
    pub(crate) fn prefetch(&mut self, number: u64, cell: u32) {
        if self.s.now.caches[D1].peek(self.arena, number).is_none() {
            self.s.clock = self.s.clock.wrapping_add(1);
            self.load(D1, number, Loader { node: self.s.node, cell, count: 0, mask: 0, object: 0 });
            self.count(cell, Column::Pf1);
        }
    }

    /// Charges the lines of a thread's own caches, as if replaced now.
    pub(crate) fn give_up(&mut self, thread: &Thread) {
        let (arena, s) = (self.arena, &mut *self.s);
        let caches = thread.caches;
        for (cache, level) in [(&caches[I1], 0), (&caches[D1], 0), (&caches[L2], 1)] {
            if cache.slots() == 0 {
                continue;
            }
            cache.for_each(arena, |slot| {
                // SAFETY: a slot of the cache, and no second reference to a line of the level.
                let line = unsafe { cache.line(arena, slot) };
                s.charge(arena, line, level);
                s.hand(arena, &caches[L2], line);
            });
            cache.clear(arena);
        }
    }

    /// Charges the lines of the last level.
    pub(crate) fn give_up_last(&mut self) {
        let (arena, s) = (self.arena, &mut *self.s);
        let last = s.last;
        if last.slots() > 0 {
            last.for_each(arena, |slot| {
                // SAFETY: as above.
                let line = unsafe { last.line(arena, slot) };
                s.charge(arena, line, 2);
            });
            last.clear(arena);
        }
    }
}

fn begin(loader: &Loader) -> Line {
    Line {
        node: loader.node,
        cell: loader.cell,
        count: loader.count,
        handed: 0,
        mask: loader.mask,
        link: 0,
        object: loader.object,
    }
}

impl State {
    /// Asks the second of three levels: how many levels miss from here on, and the link to the copy.
    fn second_level<A: Arena + ?Sized>(&mut self, arena: &A, number: u64, loader: Loader) -> (u32, u32) {
        let caches = self.now.caches;
        let second = caches[L2];
        if let Some(slot) = second.use_line(arena, number, self.clock) {
            return (0, slot + 1);
        }
        let (slot, old) = second.load(arena, number, self.clock);
        // SAFETY: a slot of the cache; `collect` makes a new
        // reference after the last use of the reference here.
        let old_link = unsafe { second.line(arena, slot) }.link;
        if let Some(old) = old {
            self.collect(arena, &caches, old, slot + 1, old_link);
        }
        // SAFETY: as above, and the collecting is over.
        let line = unsafe { second.line(arena, slot) };
        if old.is_some() {
            self.charge(arena, line, 1);
            self.hand(arena, &caches[L2], line);
        }
        *line = begin(&loader);
        // SAFETY: the loader's node is in the list.
        let lines = unsafe { &mut self.nodes.at(arena, loader.node).lines };
        *lines = lines.wrapping_add(1);
        let (missed, link) = self.last_level(arena, number, loader);
        line.link = link;
        (missed + 1, slot + 1)
    }

    /// Asks the last level.
    #[inline(always)]
    fn last_level<A: Arena + ?Sized>(&mut self, arena: &A, number: u64, loader: Loader) -> (u32, u32) {
        let last = self.last;
        if let Some(slot) = last.use_line(arena, number, self.clock) {
            return (0, (slot + 1) | TO_LAST);
        }
        let (slot, old) = last.load(arena, number, self.clock);
        let link = (slot + 1) | TO_LAST;
        if let Some(old) = old
            && self.model.callgrind == 0
        {
            for (index, thread) in (0..).zip(self.threads.values(arena)) {
                // The current thread's place is not up to
                // date, but the thread's caches do not change.
                if thread.ended == 1 && index != self.thread {
                    continue;
                }
                let caches = thread.caches;
                self.collect(arena, &caches, old, link, 0);
                if let Some(second) = caches[L2].peek(arena, old) {
                    // SAFETY: a slot of the cache; not used while `collect` is.
                    if unsafe { caches[L2].line(arena, second) }.link == link {
                        self.collect(arena, &caches, old, second + 1, second + 1);
                        // SAFETY: as above.
                        let line = unsafe { caches[L2].line(arena, second) };
                        self.hand(arena, &caches[L2], line);
                        line.link = 0;
                    }
                }
            }
        }
        // SAFETY: a slot of the cache, and no second reference to the line.
        let line = unsafe { last.line(arena, slot) };
        if old.is_some() {
            self.charge(arena, line, 2);
        }
        *line = begin(&loader);
        // SAFETY: the loader's node is in the list.
        let lines = unsafe { &mut self.nodes.at(arena, loader.node).lines };
        *lines = lines.wrapping_add(1);
        (1, link)
    }
}
