//! The engine: events in, costs in an arena.
//!
//! Per stream, that is per thread or for several in one given order. When the process is killed in
//! the middle of a batch, what that batch had done so far stands; [`CacheSim::open`] makes the sums
//! balance again and tells how many events are in doubt ([`crate::Totals::torn`]).

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{
    Analysis, Arena, ArenaFull, Code, Event, Kind, NO_INSTRUCTION, Offset, Placement, Span,
};

use crate::columns::{COLUMNS, Column, Costs};
use crate::config::{Config, ConfigError};
use crate::facts::Facts;
use crate::objects::Objects;
use crate::stack::PENDING_BEHIND;
use crate::state::{D1, I1, MAGIC, NONE, State, Stride};

/// Why a state cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The hierarchy cannot be simulated.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No room.
    #[error(transparent)]
    Full(#[from] ArenaFull),
}

/// Why a state cannot be taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No complete state, or one of another version.
    #[error("no state of the cache simulation at this place")]
    NoState,
    /// Its tables contradict each other.
    #[error("the state of the cache simulation is damaged")]
    Damaged,
}

/// The simulation of one stream.
pub struct CacheSim<'a, A: Arena + ?Sized> {
    pub(crate) arena: &'a A,
    state: NonNull<State>,
    offset: Offset,
    pub(crate) facts: Facts,
    pub(crate) objects: Objects,
    pub(crate) placed: &'a [Placement],
}

// SAFETY: the state belongs to this simulation alone.
unsafe impl<A: Arena + Sync + ?Sized> Send for CacheSim<'_, A> {}

impl<'a, A: Arena + ?Sized> CacheSim<'a, A> {
    /// A simulation with empty caches.
    pub fn create(arena: &'a A, config: &Config) -> Result<CacheSim<'a, A>, CreateError> {
        config.validate()?;
        let span: Span<State> = Span::allocate(arena, 1).ok_or(ArenaFull)?;
        let state = span.get(arena).ok_or(ArenaFull)?;
        let mut values = State::new(arena, config).ok_or(ArenaFull)?;
        values.now.begin(arena);
        // SAFETY: fresh room for one state, without other references.
        unsafe { state.write(values) };
        compiler_fence(Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { (*state.as_ptr()).magic = MAGIC };
        Ok(CacheSim {
            arena,
            state,
            offset: span.offset(),
            facts: Facts::default(),
            objects: Objects::default(),
            placed: &[],
        })
    }

    /// Takes up the state at `offset`, after any end of its process. The process must not run any
    /// more.
    pub fn open(arena: &'a A, offset: Offset) -> Result<CacheSim<'a, A>, OpenError> {
        let state = Span::<State>::from_parts(offset, 1).get(arena).ok_or(OpenError::NoState)?;
        let mut sim = CacheSim {
            arena,
            state,
            offset,
            facts: Facts::default(),
            objects: Objects::default(),
            placed: &[],
        };
        let values = sim.values();
        if values.magic != MAGIC {
            return Err(OpenError::NoState);
        }
        if !values.is_whole(arena, offset) {
            return Err(OpenError::Damaged);
        }
        values.torn += values.busy;
        // Times of the batch that a kill interrupted were not written back.
        values.clock = values.clock.wrapping_add(values.busy);
        values.consumed += values.busy;
        values.busy = 0;
        Ok(sim)
    }

    /// Shows the placements so far: before each batch with events that may refer to more. Former
    /// placements stay.
    pub fn show(&mut self, placed: &'a [Placement]) {
        self.placed = placed;
        let known = self.values().placed;
        self.objects.follow(placed, known as usize);
    }

    /// Where the state lies, for [`CacheSim::open`].
    pub fn state(&self) -> Offset {
        self.offset
    }

    /// Events taken so far. After a kill the source goes on with the event of this number.
    pub fn consumed(&self) -> u64 {
        // SAFETY: the state belongs to this simulation alone.
        unsafe { self.state.as_ref() }.consumed
    }

    pub(crate) fn values(&mut self) -> &'a mut State {
        // SAFETY: the state belongs to this simulation alone, which every caller borrows for
        // writing.
        unsafe { &mut *self.state.as_ptr() }
    }
}

impl<A: Arena + ?Sized> Analysis for CacheSim<'_, A> {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        let state = self.values();
        if state.full != 0 {
            return Err(ArenaFull);
        }
        state.busy = events.len() as u64;
        compiler_fence(Ordering::SeqCst);
        let mut sim = Sim {
            arena: self.arena,
            s: state,
            facts: &mut self.facts,
            objects: &mut self.objects,
            placed: self.placed,
            code,
        };
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            // SAFETY: the processor has what the function is compiled for.
            unsafe { sim.take_bmi(events) };
        } else {
            sim.take_all(events);
        }
        #[cfg(not(target_arch = "x86_64"))]
        sim.take_all(events);
        sim.s.prune_sometimes(sim.arena, sim.facts);
        compiler_fence(Ordering::SeqCst);
        sim.s.consumed += sim.s.busy;
        sim.s.busy = 0;
        if sim.s.full != 0 { Err(ArenaFull) } else { Ok(()) }
    }
}

/// A simulation at work.
pub(crate) struct Sim<'r, A: Arena + ?Sized> {
    pub(crate) arena: &'r A,
    pub(crate) s: &'r mut State,
    pub(crate) facts: &'r mut Facts,
    pub(crate) objects: &'r mut Objects,
    pub(crate) placed: &'r [Placement],
    pub(crate) code: &'r Code<'r>,
}

impl<A: Arena + ?Sized> Sim<'_, A> {
    /// Records a full arena for a missing value.
    pub(crate) fn or_full<T>(&mut self, value: Option<T>) -> Option<T> {
        self.s.full |= u64::from(value.is_none());
        value
    }

    /// As [`Sim::take_all`], with shifts by variable amounts in one instruction.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,popcnt")]
    fn take_bmi(&mut self, events: &[Event]) {
        self.take_all(events);
    }

    /// The pending access has no other half.
    pub(crate) fn release_held(&mut self) {
        let held = std::mem::replace(&mut self.s.held, Event::from_words(0, 0));
        if held.size > 0 {
            self.one(&held);
        }
    }

    /// Takes an event, whatever it is.
    #[inline(always)]
    pub(crate) fn one(&mut self, event: &Event) {
        if event.kind.is_access() {
            self.access(event);
            if event.kind.is_flow() && self.s.model.inclusive == 1 {
                if event.kind.is_store() {
                    self.call(event.value, event.index);
                } else {
                    self.r#return(event.value);
                }
            }
        } else if event.kind == Kind::BLOCK {
            self.block(event.index);
        } else {
            self.other(event.kind, event.value);
        }
    }

    /// The cell of an instruction in a function; cell 0 when there is no room.
    #[inline(always)]
    pub(crate) fn cell(&mut self, function: u32, instruction: u32) -> u32 {
        match self.s.cells.find(self.arena, function, instruction, Costs([0; COLUMNS])) {
            Some(cell) => cell,
            None => {
                self.s.full = 1;
                0
            }
        }
    }

    /// The cell to which an instruction's costs go now.
    #[inline(always)]
    pub(crate) fn current_cell(&mut self, instruction: u32) -> u32 {
        if self.s.instead != 0 { self.s.instead } else { self.cell(self.s.function, instruction) }
    }

    /// Counts something that does not happen often, for a cell and the current node.
    #[inline(always)]
    pub(crate) fn count(&mut self, cell: u32, column: Column) {
        // SAFETY: both are numbers of their lists.
        unsafe {
            self.s.cells.list.at(self.arena, cell).value[column] += 1;
            let node = self.s.nodes.at(self.arena, self.s.node);
            node.costs[column] = node.costs[column].wrapping_add(1);
        }
    }

    #[inline(always)]
    fn access(&mut self, event: &Event) {
        if !matches!(self.s.now.pending, 0 | PENDING_BEHIND) {
            self.enter(NONE, event.index);
        }
        if self.s.now.run < self.s.now.run_end {
            self.fetch_to(event.index);
        }
        let is_store = event.kind.is_store();
        let cell = self.current_cell(event.index);
        let (column, count) = if is_store { (Column::Dw, 2) } else { (Column::Dr, 1) };
        // SAFETY: a number of the list.
        unsafe { self.s.cells.list.at(self.arena, cell).value[column] += 1 };
        self.s.counts[count] += 1;
        let bits = self.s.model.line_bits;
        let size = u64::from(event.size).max(1);
        let last = event.value.saturating_add(size - 1);
        let within = (1_u64 << bits) - 1;
        let number = event.value >> bits;
        let missed = if number == last >> bits {
            let mask = self.s.model.parts(event.value & within, last & within);
            self.touch(D1, number, 1, mask, |_| cell)
        } else {
            self.straddle(event.value, last, cell)
        };
        if missed > 0 {
            self.missed(cell, missed, is_store);
        }
        if self.s.model.prefetch != 0 {
            self.prefetch_for(event, cell, missed);
        }
    }

    /// An access to several lines.
    #[inline(never)]
    fn straddle(&mut self, address: u64, last: u64, cell: u32) -> u32 {
        let bits = self.s.model.line_bits;
        let within = (1_u64 << bits) - 1;
        let last = if self.s.model.callgrind == 1 { last.min(address.saturating_add(within)) } else { last };
        let mut missed = 0;
        for number in address >> bits..=last >> bits {
            let first = if number == address >> bits { address & within } else { 0 };
            let end = if number == last >> bits { last & within } else { within };
            let mask = self.s.model.parts(first, end);
            missed = self.touch(D1, number, 1, mask, |_| cell).max(missed);
        }
        missed
    }

    /// Counts the misses of an access.
    #[inline(never)]
    pub(crate) fn missed(&mut self, cell: u32, missed: u32, is_store: bool) {
        let columns = if is_store {
            [Column::D1mw, Column::D2mw, Column::DLmw]
        } else {
            [Column::D1mr, Column::D2mr, Column::DLmr]
        };
        self.count_misses(cell, missed, columns);
    }

    #[inline(always)]
    fn count_misses(&mut self, cell: u32, missed: u32, [first, second, last]: [Column; 3]) {
        let levels = self.s.model.levels;
        self.count(cell, first);
        if missed >= 2 && levels == 3 {
            self.count(cell, second);
        }
        if missed >= levels && levels > 1 {
            self.count(cell, last);
        }
    }

    #[inline(never)]
    fn prefetch_for(&mut self, event: &Event, cell: u32, missed: u32) {
        let bits = self.s.model.line_bits;
        let number = event.value >> bits;
        if self.s.model.prefetch == 1 {
            if missed > 0 {
                self.prefetch(number.wrapping_add(1), cell);
            }
            return;
        }
        let strides = self.s.now.strides;
        let Some(first) = strides.get(self.arena).filter(|_| strides.count() > 0) else { return };
        // SAFETY: below the span's count.
        let entry = unsafe { &mut *first.as_ptr().add(event.index as usize % strides.count()) };
        let instruction = event.index.wrapping_add(1);
        let stride = event.value.wrapping_sub(entry.address);
        let known = entry.instruction == instruction;
        let steady = known && entry.stride == stride && stride != 0;
        *entry = Stride {
            instruction,
            steady: steady.into(),
            address: event.value,
            stride: if known { stride } else { 0 },
        };
        let next = event.value.wrapping_add(stride) >> bits;
        if steady && next != number {
            self.prefetch(next, cell);
        }
    }

    /// A block begins.
    #[inline(always)]
    fn block(&mut self, block: u32) {
        if self.s.now.block != 0 {
            self.fetch_rest();
        }
        if self.s.now.pending != 0 {
            self.arrive(block);
        }
        if self.s.model.fetch == 1 {
            self.fetch_block(block);
        }
    }

    fn fetch_block(&mut self, block: u32) {
        let Some(record) = self.code.blocks.get(block as usize) else { return };
        let count = u64::from(record.count);
        self.s.counts[0] += count;
        if self.s.instead != 0 {
            // SAFETY: a number of the list.
            unsafe { self.s.cells.list.at(self.arena, self.s.instead).value[Column::Ir] += count };
        } else {
            let function = self.s.function;
            match self.s.blocks.find(self.arena, function, block, 0) {
                // SAFETY: a number of the list.
                Some(number) => unsafe { self.s.blocks.list.at(self.arena, number).value += 1 },
                None => {
                    self.s.full = 1;
                    // SAFETY: cell 0 is always there.
                    unsafe { self.s.cells.list.at(self.arena, 0).value[Column::Ir] += count };
                }
            }
        }
        let (run, end) = self.facts.plan(self.code, block, &self.s.model);
        let now = &mut self.s.now;
        (now.block, now.run, now.run_end) = (block.wrapping_add(1), 0, end - run);
        // Nothing of the block comes before its first instruction.
        if end > run {
            self.fetch_run(run);
        }
    }

    /// The number of the current block's first run.
    #[inline(always)]
    pub(crate) fn first_run(&mut self) -> u32 {
        let block = self.s.now.block.wrapping_sub(1);
        self.facts.plan(self.code, block, &self.s.model).0
    }

    /// Fetches the instructions of the current block up to this one.
    #[inline(always)]
    pub(crate) fn fetch_to(&mut self, instruction: u32) {
        let first = self.first_run();
        while self.s.model.fetch == 1
            && self.s.now.run < self.s.now.run_end
            && self.facts.run(first.wrapping_add(self.s.now.run)).is_some_and(|run| run.first <= instruction)
        {
            self.fetch_run(first);
        }
    }

    /// Fetches what is left of the current block.
    pub(crate) fn fetch_rest(&mut self) {
        if self.s.now.block != 0 && self.s.model.fetch == 1 {
            let first = self.first_run();
            while self.s.now.run < self.s.now.run_end {
                self.fetch_run(first);
            }
            self.s.now.block = 0;
        }
    }

    #[inline(always)]
    fn fetch_run(&mut self, plan: u32) {
        let mut missed = 0;
        loop {
            let Some(run) = self.facts.run(plan.wrapping_add(self.s.now.run)).copied() else {
                self.s.now.run = self.s.now.run_end;
                return;
            };
            self.s.now.run += 1;
            let first = run.first;
            missed = self.touch(I1, run.line, run.count, run.mask, |sim| sim.current_cell(first)).max(missed);
            if run.continues && self.s.now.run < self.s.now.run_end {
                continue;
            }
            if missed > 0 {
                let cell = self.current_cell(first);
                self.count_misses(cell, missed, [Column::I1mr, Column::D2mr, Column::ILmr]);
            }
            return;
        }
    }

    /// The current block was left after `executed` instructions.
    pub(crate) fn cut(&mut self, executed: u64) {
        let block = self.s.now.block.checked_sub(1).filter(|_| self.s.model.fetch == 1);
        let Some(block) = block else { return };
        let Some(record) = self.code.blocks.get(block as usize).copied() else { return };
        let executed = u32::try_from(executed).unwrap_or(u32::MAX).min(record.count);
        self.fetch_to((record.first.saturating_add(executed)).saturating_sub(1));
        (self.s.now.block, self.s.now.run) = (0, self.s.now.run_end);
        let left = u64::from(record.count - executed);
        self.s.counts[0] = self.s.counts[0].wrapping_sub(left);
        if self.s.instead != 0 {
            // SAFETY: a number of the list.
            unsafe { self.s.cells.list.at(self.arena, self.s.instead).value[Column::Ir] -= left };
            return;
        }
        for instruction in record.first.saturating_add(executed)..record.first.saturating_add(record.count) {
            let cell = self.current_cell(instruction);
            // SAFETY: a number of the list. Instructions of whole blocks are added at the end, so
            // this wraps.
            let count = unsafe { &mut self.s.cells.list.at(self.arena, cell).value[Column::Ir] };
            *count = count.wrapping_sub(1);
        }
    }
}

const _: () = assert!(NO_INSTRUCTION == NONE);
