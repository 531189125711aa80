//! The short way of most events: an access to one line by an instruction known
//! in the current function, and a call of a function called at the place before.
//!
//! The data of a short-way access is in registers here; every other event goes the long way
//! (`sim`), and the registers are filled again afterwards. Both ways have equal results.

use locality_stream::{Arena, Event, Kind};

use crate::cache::Tables;
use crate::columns::{Column, Costs};
use crate::facts;
use crate::hierarchy::Loader;
use crate::sim::Sim;
use crate::stack::PENDING_BEHIND;
use crate::state::{D1, I1, NONE, State};
use crate::table::Entry;

const _: () = assert!(Column::Dw as usize == Column::Dr as usize + 1);

/// Data of the short way; valid until an event goes the long way.
struct Hot {
    /// Latest record by instruction.
    latest: *const u64,
    latest_len: u32,
    cells: *mut Entry<Costs>,
    data: Tables,
    /// The function plus 1, as in the table.
    function: u64,
    /// Not 0 if another cell pays.
    instead: u32,
    /// log2 of the bytes of a line, and of the bytes represented by a bit of a mask.
    line_bits: u32,
    unit_bits: u32,
    /// False if the short way is impossible.
    ready: bool,
    /// As the first three, of blocks and the instruction cache; valid if `fetch` is true.
    blocks_latest: *const u64,
    blocks_len: u32,
    blocks: *mut Entry<u64>,
    fetched: Tables,
    fetch: bool,
    /// The first run of the current block, and the first instruction with an outstanding fetch;
    /// [`NONE`] if none is outstanding.
    plan: u32,
    fetch_at: u32,
    clock: u64,
    /// Instructions since.
    instructions: u64,
    /// Reads and writes since, and the number of writes.
    accesses: u64,
    writes: u64,
}

impl Hot {
    /// The current function may have changed, or be unknown.
    #[inline(always)]
    fn stand(&mut self, s: &State) {
        self.function = u64::from(s.function) + 1;
        self.instead = s.instead;
        self.ready = is_ready(s);
    }
}

/// Whether accesses can go the short way.
#[inline(always)]
fn is_ready(s: &State) -> bool {
    matches!(s.now.pending, 0 | PENDING_BEHIND) && s.model.prefetch == 0 && s.model.spread_bits == 0
}

impl<A: Arena + ?Sized> Sim<'_, A> {
    #[inline(always)]
    fn hot(&mut self) -> Hot {
        let (mut plan, mut fetch_at) = (0, NONE);
        if self.s.now.run < self.s.now.run_end {
            plan = self.first_run();
            fetch_at = self.facts.run(plan.wrapping_add(self.s.now.run)).map_or(0, |run| run.first);
        }
        let s = &*self.s;
        let base = self.arena.base().as_ptr();
        let (blocks_latest, blocks_len, blocks) = s.blocks.parts(base);
        let (latest, latest_len, cells) = s.cells.parts(base);
        Hot {
            latest,
            latest_len,
            cells,
            data: s.now.caches[D1].tables(base),
            blocks_latest,
            blocks_len,
            blocks,
            fetched: s.now.caches[I1].tables(base),
            fetch: s.model.fetch == 1,
            plan,
            fetch_at,
            clock: s.clock,
            instructions: 0,
            function: u64::from(s.function) + 1,
            instead: s.instead,
            line_bits: s.model.line_bits,
            unit_bits: s.model.unit_bits,
            ready: is_ready(s),
            accesses: 0,
            writes: 0,
        }
    }

    /// Adds the counts of the short way.
    #[inline(always)]
    fn cool(&mut self, hot: &mut Hot) {
        self.s.clock = hot.clock;
        self.s.counts[0] = self.s.counts[0].wrapping_add(hot.instructions);
        let reads = hot.accesses.wrapping_sub(hot.writes);
        self.s.counts[1] = self.s.counts[1].wrapping_add(reads);
        self.s.counts[2] = self.s.counts[2].wrapping_add(hot.writes);
        (hot.accesses, hot.writes, hot.instructions) = (0, 0, 0);
    }

    /// Takes events: in Callgrind's way or not, and by the size of a line.
    #[inline(always)]
    pub(crate) fn take_all(&mut self, events: &[Event]) {
        match (self.s.model.callgrind == 1, self.s.model.line_bits == 6) {
            (false, true) => self.take::<false, true>(events),
            (false, false) => self.take::<false, false>(events),
            (true, true) => self.take::<true, true>(events),
            (true, false) => self.take::<true, false>(events),
        }
    }

    /// Takes events. With `JOIN`, which is Callgrind's way, a read and a write at one
    /// address by one instruction become a write. With `USUAL` a line has 64 bytes.
    #[inline(always)]
    fn take<const JOIN: bool, const USUAL: bool>(&mut self, events: &[Event]) {
        let mut rest = events;
        if JOIN && let Some(first) = rest.first() {
            let held = std::mem::replace(&mut self.s.held, Event::from_words(0, 0));
            if held.size > 0 && !self.joins(&held, first) {
                self.one(&held);
            }
        }
        let mut hot = self.hot();
        while let Some((event, more)) = rest.split_first() {
            rest = more;
            if JOIN && event.kind == Kind::LOAD {
                match more.first() {
                    Some(next) if self.joins(event, next) => continue,
                    None if event.size > 0 => {
                        self.s.held = *event;
                        break;
                    }
                    _ => {}
                }
            }
            let short = if event.kind.is_access() {
                self.short_access::<JOIN, USUAL>(&mut hot, event)
            } else {
                event.kind == Kind::BLOCK && self.short_block(&mut hot, event.index)
            };
            if !short {
                self.cool(&mut hot);
                self.slow(event);
                hot = self.hot();
            } else if event.kind.is_flow() && self.s.model.inclusive == 1 {
                self.cool(&mut hot);
                self.flow(event);
                // Calls and returns move no table.
                hot.stand(self.s);
            }
        }
        self.cool(&mut hot);
    }

    /// Whether a read is the first half of a change.
    #[inline(always)]
    fn joins(&self, read: &Event, next: &Event) -> bool {
        next.kind == Kind::STORE
            && (next.index, next.value, next.size) == (read.index, read.value, read.size)
            && !self.code.instruction(next.index).is_some_and(facts::is_atomic)
    }

    #[inline(never)]
    fn slow(&mut self, event: &Event) {
        self.one(event);
    }

    #[inline(never)]
    fn flow(&mut self, event: &Event) {
        if event.kind.is_store() {
            self.call(event.value, event.index);
        } else {
            self.r#return(event.value);
        }
    }

    /// Takes an access the short way; false, without effect, if the long way is needed.
    #[inline(always)]
    fn short_access<const JOIN: bool, const USUAL: bool>(&mut self, hot: &mut Hot, event: &Event) -> bool {
        let (line_bits, unit_bits) =
            if USUAL { (6, u32::from(JOIN)) } else { (hot.line_bits, hot.unit_bits) };
        let within = (1_u64 << line_bits) - 1;
        let line = event.value >> line_bits;
        let low = event.value & within;
        // 0 bytes wrap to very many.
        let high = (low + u64::from(event.size)).wrapping_sub(1);
        if event.index >= hot.fetch_at && hot.ready {
            self.fetch_up_to(hot, event.index);
        }
        if !hot.ready || high > within || event.index >= hot.latest_len {
            return false;
        }
        let (low, high) = (low >> unit_bits, high >> unit_bits);
        let mask = u64::MAX << (low & 63) & u64::MAX >> (63 - (high & 63));
        let is_store = event.kind.is_store();
        // SAFETY: the index is below the table's length; the table's numbers are below the length
        // of the list of cells. Both lie in the arena, and no table moves on the short way.
        unsafe {
            let mut number = hot.instead;
            if number == 0 {
                let latest = *hot.latest.add(event.index as usize);
                number = latest as u32;
                if latest >> 32 != hot.function {
                    // Code of several functions: the target of jumps.
                    match self.s.cells.known(self.arena, self.s.function, event.index) {
                        Some(known) => number = known,
                        None => return false,
                    }
                }
            }
            // Reads and writes are adjacent.
            let cell = &mut *hot.cells.add(number as usize);
            let count = &mut cell.value.0[Column::Dr as usize + usize::from(is_store)];
            *count = count.wrapping_add(1);
            hot.accesses = hot.accesses.wrapping_add(1);
            hot.writes = hot.writes.wrapping_add(is_store.into());
            hot.clock = hot.clock.wrapping_add(1);
            match hot.data.use_line(line, hot.clock) {
                Some(slot) => {
                    let held = &mut *hot.data.line(slot);
                    held.count = held.count.wrapping_add(1);
                    held.mask |= mask;
                }
                None => {
                    self.s.clock = hot.clock;
                    self.miss(line, mask, number, is_store);
                }
            }
        }
        true
    }

    /// An access to a line absent from the first level. No table moves.
    #[inline(never)]
    fn miss(&mut self, line: u64, mask: u64, cell: u32, is_store: bool) {
        let missed = self.load(D1, line, Loader { node: self.s.node, cell, count: 1, mask, object: 0 });
        self.missed(cell, missed, is_store);
    }

    /// Takes a block the short way: the start of a function called here before, with the first
    /// fetched line resident. False if the long way is needed (the call may be done by then).
    #[inline(always)]
    fn short_block(&mut self, hot: &mut Hot, block: u32) -> bool {
        if hot.fetch_at != NONE {
            self.fetch_up_to(hot, NONE);
        }
        if self.s.now.pending != 0 {
            self.cool(hot);
            if !self.enter_again(block) {
                return false;
            }
            hot.stand(self.s);
        }
        if !hot.fetch {
            return true;
        }
        if hot.instead != 0 || block >= hot.blocks_len {
            return false;
        }
        let Some(record) = self.code.blocks.get(block as usize) else { return false };
        let (plan, end) = self.facts.plan(self.code, block, &self.s.model);
        let Some(run) = self.facts.run(plan).filter(|_| plan < end) else { return false };
        let at = run.first;
        // SAFETY: as in `short_access`, of blocks and the instruction cache.
        unsafe {
            let latest = *hot.blocks_latest.add(block as usize);
            if latest >> 32 != hot.function {
                return false;
            }
            hot.clock = hot.clock.wrapping_add(1);
            let Some(slot) = hot.fetched.use_line(run.line, hot.clock) else { return false };
            let held = &mut *hot.fetched.line(slot);
            held.count = held.count.wrapping_add(run.count);
            held.mask |= run.mask;
            let executions = &mut (*hot.blocks.add(latest as u32 as usize)).value;
            *executions = executions.wrapping_add(1);
        }
        hot.instructions = hot.instructions.wrapping_add(record.count.into());
        let now = &mut self.s.now;
        (now.block, now.run, now.run_end) = (block.wrapping_add(1), 1, end - plan);
        if now.run < now.run_end {
            hot.plan = plan;
            // An instruction in two lines is fetched from both.
            self.fetch_up_to(hot, at);
        }
        true
    }

    /// Fetches the current block's instructions up to `instruction`.
    #[inline(always)]
    fn fetch_up_to(&mut self, hot: &mut Hot, instruction: u32) {
        while self.s.now.run < self.s.now.run_end
            && let Some(run) = self.facts.run(hot.plan.wrapping_add(self.s.now.run))
        {
            if run.first > instruction {
                hot.fetch_at = run.first;
                return;
            }
            hot.clock = hot.clock.wrapping_add(1);
            // SAFETY: the tables belong to the instruction cache, present if runs are.
            unsafe {
                let Some(slot) = hot.fetched.use_line(run.line, hot.clock) else {
                    self.cool(hot);
                    self.fetch_to(instruction);
                    *hot = self.hot();
                    return;
                };
                let held = &mut *hot.fetched.line(slot);
                held.count = held.count.wrapping_add(run.count);
                held.mask |= run.mask;
            }
            self.s.now.run += 1;
        }
        hot.fetch_at = NONE;
    }
}
