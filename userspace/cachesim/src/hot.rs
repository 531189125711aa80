//! The way of most events: an access that hits the first level, by an instruction that is known in the current function.
//!
//! Everything such an access needs stands in registers here; whatever is not such an access goes the long way (`sim`), after
//! which the registers are filled again. Both ways do the same.

use locality_stream::{Arena, Event, Kind};

use crate::cache::{Line, WAY, key};
use crate::columns::{Column, Costs};
use crate::facts;
use crate::sim::Sim;
use crate::stack::PENDING_BEHIND;
use crate::state::{D1, I1};
use crate::table::Entry;

const _: () = assert!(Column::Dw as usize == Column::Dr as usize + 1);

/// A cache's tables.
#[derive(Clone, Copy)]
struct Set {
    words: *mut u64,
    lines: *mut Line,
    /// Sets less 1.
    sets: u64,
    ways: u64,
}

impl Set {
    /// The record of a line, which becomes the one used last of its set.
    ///
    /// # Safety
    /// The tables are those of a cache, and nobody else uses them.
    #[inline(always)]
    unsafe fn find(&self, line: u64) -> Option<*mut Line> {
        let first = (line & self.sets) * self.ways;
        let key = key(line);
        // SAFETY: a set has `ways` words, and a way's number is below that.
        unsafe {
            let words = self.words.add(first as usize);
            let mut word = *words;
            if word ^ key > WAY {
                let mut at = 1;
                loop {
                    if at >= self.ways as usize {
                        return None;
                    }
                    word = *words.add(at);
                    if word ^ key <= WAY {
                        break;
                    }
                    at += 1;
                }
                while at > 0 {
                    *words.add(at) = *words.add(at - 1);
                    at -= 1;
                }
                *words = word;
            }
            Some(self.lines.add((first + (word & WAY)) as usize))
        }
    }
}

/// What the short way knows; true until something goes the long way.
struct Hot {
    /// By instruction: its latest record.
    latest: *const u64,
    latest_len: u32,
    cells: *mut Entry<Costs>,
    data: Set,
    /// The function plus 1, as the table has it.
    function: u64,
    /// Not 0 where another cell pays.
    instead: u32,
    /// log2 of the bytes of a line, and of those that a bit of a mask stands for.
    line_bits: u32,
    unit_bits: u32,
    /// False where nothing can go the short way.
    ready: bool,
    /// As the first three, of blocks and the instruction cache; where `fetch` is true.
    blocks_latest: *const u64,
    blocks_len: u32,
    blocks: *mut Entry<u64>,
    fetched: Set,
    fetch: bool,
    /// Instructions since.
    instructions: u64,
    /// Reads and writes since, and writes among them.
    accesses: u64,
    writes: u64,
}

impl<A: Arena + ?Sized> Sim<'_, A> {
    #[inline(always)]
    fn hot(&self) -> Hot {
        let s = &*self.s;
        let base = self.arena.base().as_ptr();
        let set = |cache: usize| {
            let (words, lines, sets, ways) = s.now.caches[cache].parts(base);
            Set { words, lines, sets, ways }
        };
        let (blocks_latest, blocks_len, blocks) = s.blocks.parts(base);
        let (latest, latest_len, cells) = s.cells.parts(base);
        Hot {
            latest,
            latest_len,
            cells,
            data: set(D1),
            blocks_latest,
            blocks_len,
            blocks,
            fetched: set(I1),
            fetch: s.model.fetch == 1,
            instructions: 0,
            function: u64::from(s.function) + 1,
            instead: s.instead,
            line_bits: s.model.line_bits,
            unit_bits: s.model.unit_bits,
            ready: matches!(s.now.pending, 0 | PENDING_BEHIND)
                && s.now.run >= s.now.run_end
                && s.model.prefetch == 0
                && s.model.spread_bits == 0,
            accesses: 0,
            writes: 0,
        }
    }

    /// Adds what the short way has counted.
    #[inline(always)]
    fn cool(&mut self, hot: &Hot) {
        self.s.counts[0] = self.s.counts[0].wrapping_add(hot.instructions);
        let reads = hot.accesses.wrapping_sub(hot.writes);
        self.s.counts[1] = self.s.counts[1].wrapping_add(reads);
        self.s.counts[2] = self.s.counts[2].wrapping_add(hot.writes);
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

    /// Takes events. With `JOIN`, which is Callgrind's way, a read and a write of one instruction at one address become a
    /// write. With `USUAL` a line has 64 bytes.
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
            if event.kind.is_access() && self.hit::<JOIN, USUAL>(&mut hot, event) {
                if event.kind.is_flow() {
                    self.cool(&hot);
                    self.flow(event);
                    // Calls and returns move no table.
                    hot.function = u64::from(self.s.function) + 1;
                    hot.instead = self.s.instead;
                    hot.ready &= matches!(self.s.now.pending, 0 | PENDING_BEHIND);
                    (hot.accesses, hot.writes, hot.instructions) = (0, 0, 0);
                }
            } else if !(event.kind == Kind::BLOCK && self.block_hit(&mut hot, event.index)) {
                self.cool(&hot);
                self.slow(event);
                hot = self.hot();
            }
        }
        self.cool(&hot);
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

    /// Takes an access the short way; false, and nothing is done, where it has to go the long one.
    #[inline(always)]
    fn hit<const JOIN: bool, const USUAL: bool>(&self, hot: &mut Hot, event: &Event) -> bool {
        let (line_bits, unit_bits) =
            if USUAL { (6, u32::from(JOIN)) } else { (hot.line_bits, hot.unit_bits) };
        let within = (1_u64 << line_bits) - 1;
        let line = event.value >> line_bits;
        let low = event.value & within;
        // 0 bytes wrap to very many.
        let high = (low + u64::from(event.size)).wrapping_sub(1);
        if !hot.ready || high > within || event.index >= hot.latest_len {
            return false;
        }
        // SAFETY: the index is below the table's length; its numbers are below the length of the list of cells. All of them lie
        // in the arena, and nothing moves on this way.
        unsafe {
            let mut number = hot.instead;
            if number == 0 {
                let latest = *hot.latest.add(event.index as usize);
                if latest >> 32 != hot.function {
                    return false;
                }
                number = latest as u32;
            }
            let Some(held) = hot.data.find(line) else { return false };
            let held = &mut *held;
            held.count = held.count.wrapping_add(1);
            let (low, high) = (low >> unit_bits, high >> unit_bits);
            held.mask |= u64::MAX << (low & 63) & u64::MAX >> (63 - (high & 63));
            let is_store = event.kind.is_store();
            // Next to each other.
            let cell = &mut *hot.cells.add(number as usize);
            let count = &mut cell.value.0[Column::Dr as usize + usize::from(is_store)];
            *count = count.wrapping_add(1);
            hot.accesses = hot.accesses.wrapping_add(1);
            hot.writes = hot.writes.wrapping_add(is_store.into());
        }
        true
    }

    /// Fetches a block the short way: one whose instructions lie in one line; false, and nothing is done, where it has to go
    /// the long one.
    #[inline(always)]
    fn block_hit(&mut self, hot: &mut Hot, block: u32) -> bool {
        if !hot.fetch || !hot.ready || hot.instead != 0 || self.s.now.pending != 0 || block >= hot.blocks_len
        {
            return false;
        }
        let Some(run) = self.facts.only_run(block) else { return false };
        // SAFETY: as in `hit`, of blocks and the instruction cache.
        unsafe {
            let latest = *hot.blocks_latest.add(block as usize);
            if latest >> 32 != hot.function {
                return false;
            }
            let Some(held) = hot.fetched.find(run.line) else { return false };
            let held = &mut *held;
            held.count = held.count.wrapping_add(run.count);
            held.mask |= self.s.parts(run.first_byte.into(), run.last_byte.into());
            let executions = &mut (*hot.blocks.add(latest as u32 as usize)).value;
            *executions = executions.wrapping_add(1);
        }
        hot.instructions = hot.instructions.wrapping_add(run.count.into());
        // All of it is fetched.
        let now = &mut self.s.now;
        (now.block, now.run, now.run_end) = (block.wrapping_add(1), 1, 1);
        true
    }
}
