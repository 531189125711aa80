//! The engine: events in, times and distributions out.
//!
//! Instructions are executed in program order; each starts when the operands are ready, not before
//! the machine's window and mispredicted branches allow, and the machines ("lanes") go side by
//! side. A block's instructions without an access are executed when the next access or the next
//! block shows the execution; an instruction with accesses is *open* until the next event.

mod special;

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Arena, ArenaFull, Branch, Code, Event, Flow, Kind, Offset, Span};

use crate::OpenError;
use crate::ops::{Block, Compiled, IGNORED, MEMORY, Marks, Op, PLACES, SPECIAL, STRING};
use crate::predict;
use crate::setup::Setup;
use crate::shadow::{Shadow, raise};
use crate::state::{BranchCount, MAGIC, MARKS, NONE, STORES, State, is_predicted};
use crate::summary::{self, LaneSummary, Progress, Summary};

/// Time limit for a reduction.
pub(crate) const LATE: u32 = 3 << 30;
/// Cycles left to lanes without a window by a reduction.
const KEPT: u32 = 1 << 31;
/// Unit of reductions.
const ROUND: u32 = 1 << 26;
/// Stretches over time of lanes without a window.
const OVER_TIME: u64 = 512;

/// A predictor and the lanes served.
struct Predicting {
    state: predict::State,
    lanes: Vec<usize>,
}

/// An engine of `L` lanes.
pub(crate) struct Lanes<'a, const L: usize, A: Arena + ?Sized> {
    pub(crate) arena: &'a A,
    state: NonNull<State<L>>,
    pub(crate) offset: Offset,
    pub(crate) setup: Setup,
    marks: Marks,
    compiled: Compiled,
    blocks: Vec<Block>,
    current: Block,
    shadow: Shadow<'a, L, A>,
    predictors: Vec<Predicting>,
    /// Lanes with a window, by number and size; padding has none and is not counted.
    windows: Vec<(usize, u32)>,
    pub(crate) unlimited: Vec<usize>,
    /// Whether the instruction started last is executed as a step.
    is_step: bool,
    /// Whether the instruction started last does not wait for its accumulator.
    is_reduced: bool,
    /// When the instruction executed last is done, if branches may be mispredicted.
    last_done: [u32; L],
}

// SAFETY: the state belongs to the engine alone.
unsafe impl<const L: usize, A: Arena + Sync + ?Sized> Send for Lanes<'_, L, A> {}

impl<'a, const L: usize, A: Arena + ?Sized> Lanes<'a, L, A> {
    pub fn create(arena: &'a A, setup: &Setup, marks: Marks) -> Result<Self, ArenaFull> {
        let span: Span<State<L>> = Span::allocate(arena, 1).ok_or(ArenaFull)?;
        let state = span.get(arena).ok_or(ArenaFull)?;
        // SAFETY: fresh, zeroed room, a valid value without further references.
        let values = unsafe { &mut *state.as_ptr() };
        values.begin(arena, setup, marks.begins != 0).ok_or(ArenaFull)?;
        compiler_fence(Ordering::SeqCst);
        values.magic = MAGIC;
        Ok(Self::of(arena, state, span.offset(), setup.clone(), marks))
    }

    pub fn open(arena: &'a A, offset: Offset, marks: Marks) -> Result<Self, OpenError> {
        let span = Span::<State<L>>::from_parts(offset, 1);
        let state = span.get(arena).ok_or(OpenError::NoState)?;
        // SAFETY: within the arena; the writer is gone.
        let values = unsafe { &mut *state.as_ptr() };
        if values.magic != MAGIC {
            return Err(OpenError::NoState);
        }
        let setup = values.repair(arena, span.range()).ok_or(OpenError::Damaged)?;
        Ok(Self::of(arena, state, offset, setup, marks))
    }

    fn of(arena: &'a A, state: NonNull<State<L>>, offset: Offset, setup: Setup, marks: Marks) -> Self {
        let lanes = setup.lanes.iter().enumerate();
        let windows = lanes.clone().filter_map(|(at, lane)| Some((at, lane.window?))).collect();
        let unlimited = lanes.clone().filter(|(_, lane)| lane.window.is_none()).map(|(at, _)| at).collect();
        let mut predictors: Vec<(_, Predicting)> = Vec::new();
        for (at, lane) in lanes {
            if let Some((_, known)) = predictors.iter_mut().find(|(predict, _)| *predict == lane.predict) {
                known.lanes.push(at);
            } else if let Some(state) = predict::State::new(lane.predict) {
                predictors.push((lane.predict, Predicting { state, lanes: vec![at] }));
            }
        }
        Lanes {
            arena,
            state,
            offset,
            marks,
            compiled: Compiled::default(),
            blocks: Vec::new(),
            current: Block::UNKNOWN,
            shadow: Shadow::new(arena),
            predictors: predictors.into_iter().map(|(_, predicting)| predicting).collect(),
            windows,
            unlimited,
            is_step: false,
            is_reduced: false,
            last_done: [0; L],
            setup,
        }
    }

    #[inline(always)]
    pub(crate) fn values(&mut self) -> &'a mut State<L> {
        // SAFETY: the state belongs to the engine alone, borrowed for writing.
        unsafe { &mut *self.state.as_ptr() }
    }

    #[inline(always)]
    fn take(&mut self, events: &[Event], code: &Code<'_>) -> Option<()> {
        for event in events {
            if event.kind.is_access() {
                self.access(event)?;
            } else {
                match event.kind {
                    Kind::BLOCK => self.begin_block(event.index, code)?,
                    Kind::BLOCK_CUT => self.cut(event.value)?,
                    Kind::SYSTEM_CALL | Kind::THREAD_END | Kind::SIGNAL | Kind::SIGNAL_END => {
                        self.end_block()?
                    }
                    _ => {}
                }
            }
        }
        Some(())
    }

    #[inline(always)]
    fn begin_block(&mut self, index: u32, code: &Code<'_>) -> Option<()> {
        let block = self.known(index, code)?;
        let s = self.values();
        if s.block != NONE {
            self.end_block()?;
            if is_predicted(self.current.flow) {
                self.resolve(block.address)?;
            }
        }
        if s.restricted != 0 {
            if block.begins && s.regions.enter(self.arena) {
                // Everything before is done.
                let now = s.retired;
                raise(&mut s.least, &now);
            }
            if !s.regions.is_inside() {
                s.block = NONE;
                return Some(());
            }
        }
        self.execute(index, block);
        Some(())
    }

    /// A block by its index.
    #[inline(always)]
    pub(crate) fn known(&mut self, index: u32, code: &Code<'_>) -> Option<Block> {
        match self.blocks.get(index as usize) {
            Some(block) if block.count != 0 => Some(*block),
            _ => self.compile(index, code),
        }
    }

    /// A block is executed from here on.
    #[inline(always)]
    pub(crate) fn execute(&mut self, index: u32, block: Block) {
        let s = self.values();
        if block.count == 0 {
            s.block = NONE;
            return;
        }
        s.sequence = s.sequence.wrapping_add(1);
        if self.setup.view.induction {
            for register in 0..16 {
                if block.written >> register & 1 != 0 {
                    s.written[register] = s.sequence;
                }
                if block.addressed >> register & 1 != 0 {
                    s.addressed[register] = s.sequence;
                }
            }
        }
        (s.block, s.position, s.open) = (index, 0, NONE);
        self.current = block;
    }

    #[cold]
    fn compile(&mut self, index: u32, code: &Code<'_>) -> Option<Block> {
        let records = code.block(index);
        let Some(record) = code.blocks.get(index as usize).filter(|_| !records.is_empty()) else {
            return Some(Block::UNKNOWN);
        };
        let mut block = self.compiled.add(&self.setup, self.marks, record.first, records);
        if is_predicted(block.flow) {
            let instruction = u64::from(block.first + block.count - 1);
            let count = BranchCount { instruction, ..BranchCount::default() };
            block.branch = self.values().branches.push(self.arena, count)?;
        }
        if self.blocks.len() <= index as usize {
            self.blocks.resize(index as usize + 1, Block::UNKNOWN);
        }
        if let Some(slot) = self.blocks.get_mut(index as usize) {
            *slot = block;
        }
        Some(block)
    }

    /// Target taken by the branch at the current block's end.
    #[inline(always)]
    fn resolve(&mut self, next: u64) -> Option<()> {
        let (s, block) = (self.values(), self.current);
        let taken = next != block.end;
        let mut missed = false;
        if !self.predictors.is_empty() {
            let last = block.end;
            let branch =
                Branch { next: block.end, target: next, is_conditional: block.flow == Flow::Conditional };
            for (at, predicting) in self.predictors.iter_mut().enumerate() {
                if !predicting.state.foresees(last, block.target, branch) {
                    missed |= at == 0;
                    // The branch is the instruction executed last.
                    for lane in &predicting.lanes {
                        s.least[*lane] = s.least[*lane].max(self.last_done[*lane]);
                        s.mispredicted[*lane] += 1;
                    }
                }
            }
        }
        let count = s.branches.get_mut(self.arena, block.branch)?;
        count.executed += 1;
        count.taken += u64::from(taken);
        count.mispredicted += u64::from(missed);
        Some(())
    }

    /// Executes the rest of the current block.
    #[inline(always)]
    pub(crate) fn end_block(&mut self) -> Option<()> {
        let s = self.values();
        if s.block == NONE {
            return Some(());
        }
        self.close()?;
        self.run(self.current.count)?;
        s.block = NONE;
        Some(())
    }

    /// The current block was left after `executed` instructions.
    #[cold]
    pub(crate) fn cut(&mut self, executed: u64) -> Option<()> {
        let s = self.values();
        if s.block == NONE {
            return Some(());
        }
        self.close()?;
        self.run(u32::try_from(executed).unwrap_or(u32::MAX).min(self.current.count))?;
        s.block = NONE;
        Some(())
    }

    /// Executes instructions up to a place in the block, without accesses to memory.
    #[inline(always)]
    fn run(&mut self, end: u32) -> Option<()> {
        let s = self.values();
        let ops = self.current.ops as usize;
        while s.position < end {
            let op = *self.compiled.ops.get(ops + s.position as usize)?;
            s.position += 1;
            if op.flags & STRING != 0 && op.flags & MEMORY != 0 {
                // The test ending the repetition is no execution.
                let address = self.address_of(s.position - 1);
                if s.string == [address, s.instructions] {
                    continue;
                }
            }
            let start = self.start(&op);
            self.finish(&op, start)?;
        }
        Some(())
    }

    /// Stands for the address of an instruction of the current
    /// block: the address of a block beginning with the instruction.
    fn address_of(&self, position: u32) -> u64 {
        // A repeated instruction is the last of the block; a separate block has an equal end.
        if position + 1 == self.current.count {
            self.current.end
        } else {
            self.current.address ^ u64::from(position) << 48
        }
    }

    #[inline(always)]
    pub(crate) fn access(&mut self, event: &Event) -> Option<()> {
        let s = self.values();
        if s.restricted != 0 {
            if event.kind == Kind::CALL {
                if s.regions.call(self.arena, event.value) {
                    self.end_block()?;
                    self.end_region();
                }
            } else if event.kind == Kind::RETURN {
                let inside = s.block != NONE;
                if s.regions.leave(self.arena, event.value) && inside {
                    self.open_access(event)?;
                    self.end_block()?;
                    self.end_region();
                    return Some(());
                }
            }
        }
        if s.block != NONE {
            self.open_access(event)?;
        }
        Some(())
    }

    /// The region's caller takes the region's results.
    #[cold]
    fn end_region(&mut self) {
        let s = self.values();
        s.block = NONE;
        // rax, rdx, xmm0, xmm1.
        for place in [0, 2, 64, 65] {
            let time = s.times[place];
            raise(&mut s.retired, &time);
        }
    }

    #[inline(always)]
    fn open_access(&mut self, event: &Event) -> Option<()> {
        let s = self.values();
        let place = event.index.wrapping_sub(self.current.first);
        if place >= self.current.count {
            // Of another block: the source is not in order.
            return Some(());
        }
        let is_store = event.kind.is_store();
        let is_new = s.open != place || {
            let op = self.compiled.ops.get((self.current.ops + place) as usize)?;
            op.flags & STRING != 0 && self.is_next_iteration(is_store, place)
        };
        if is_new {
            if s.open == NONE && place < s.position {
                return Some(());
            }
            self.close()?;
            self.run(place)?;
            let op = *self.compiled.ops.get((self.current.ops + place) as usize)?;
            s.open_start = self.start(&op);
            (s.open, s.position) = (place, place + 1);
            (s.loads_seen, s.stores_seen, s.store_count) = (0, 0, 0);
        }
        if is_store {
            s.stores_seen += 1;
            s.stored += 1;
            if s.store_count as usize == STORES {
                // Of an execution with many stored pieces: earlier
                // pieces are done with the execution's start.
                let start = s.open_start;
                for [address, size] in s.stores {
                    self.shadow.store(&mut s.pages, address, size as u16, &start)?;
                }
                s.store_count = 0;
            }
            s.stores[s.store_count as usize % STORES] = [event.value, event.size.into()];
            s.store_count += 1;
        } else {
            s.loads_seen += 1;
            s.loads += 1;
            self.shadow.load(&s.pages, event.value, event.size, &mut s.open_start);
        }
        Some(())
    }

    /// Whether an access of a string instruction belongs to a new iteration: the current iteration
    /// has an access of the kind already, or a load follows a store. Comparisons load twice.
    fn is_next_iteration(&mut self, is_store: bool, place: u32) -> bool {
        let s = self.values();
        let op = (self.current.ops + place) as usize;
        let both = self.compiled.ops.get(op).is_some_and(|op| op.addresses >= 2);
        match (is_store, s.stores_seen) {
            (true, stores) => stores > 0,
            (false, 1..) => true,
            (false, 0) => s.loads_seen >= if both { 2 } else { 1 },
        }
    }

    /// Finishes the open instruction.
    #[inline(always)]
    fn close(&mut self) -> Option<()> {
        let s = self.values();
        if s.open == NONE {
            return Some(());
        }
        let place = s.open;
        let op = *self.compiled.ops.get(self.current.ops.wrapping_add(place) as usize)?;
        let start = s.open_start;
        s.open = NONE;
        let done = self.finish(&op, start)?;
        let done = if op.flags & IGNORED != 0 { [0; L] } else { done };
        for at in 0..s.store_count as usize {
            let [address, size] = s.stores[at % STORES];
            self.shadow.store(&mut s.pages, address, size as u16, &done)?;
        }
        s.store_count = 0;
        if op.flags & STRING != 0 {
            s.string = [self.address_of(place), s.instructions];
        }
        Some(())
    }

    /// When an instruction starts, as far as registers tell.
    #[inline(always)]
    fn start(&mut self, op: &Op) -> [u32; L] {
        let s = self.values();
        let mut start = s.least;
        if let Some(first) = s.ring.get(self.arena) {
            let mask = s.ring.count() as u64 - 1;
            for (lane, window) in &self.windows {
                // SAFETY: below the count of the ring, which is a power of two.
                let retired = unsafe {
                    &*first.as_ptr().add((s.instructions.wrapping_sub((*window).into()) & mask) as usize)
                };
                let lane = lane % L;
                start[lane] = start[lane].max(retired[lane]);
            }
        }
        let from = op.places as usize;
        let data = from + usize::from(op.addresses);
        let end = data + usize::from(op.data);
        if op.load == 0 {
            for place in self.compiled.places.get(from..end).unwrap_or_default() {
                raise(&mut start, &s.times[usize::from(*place) % PLACES]);
            }
        } else {
            for place in self.compiled.places.get(from..data).unwrap_or_default() {
                raise(&mut start, &s.times[usize::from(*place) % PLACES]);
            }
            for place in self.compiled.places.get(data..end).unwrap_or_default() {
                // Needed when the load is done.
                let time = s.times[usize::from(*place) % PLACES];
                raise(&mut start, &time.map(|time| time.saturating_sub(op.load.into())));
            }
        }
        if op.flags & SPECIAL != 0 {
            self.start_special(op, &mut start);
        }
        start
    }

    /// Writes an instruction's results, and counts the instruction. Returns the completion.
    #[inline(always)]
    fn finish(&mut self, op: &Op, start: [u32; L]) -> Option<[u32; L]> {
        let s = self.values();
        let done = start.map(|start| start.wrapping_add(op.latency.into()));
        if op.flags & (SPECIAL | IGNORED) != 0 {
            self.finish_special(op, &start, &done);
        } else {
            let from = op.places as usize + usize::from(op.addresses) + usize::from(op.data);
            let end = from + usize::from(op.writes);
            for place in self.compiled.places.get(from..end).unwrap_or_default() {
                s.times[usize::from(*place) % PLACES] = done;
            }
            for place in self.compiled.places.get(end..end + usize::from(op.merges)).unwrap_or_default() {
                raise(&mut s.times[usize::from(*place) % PLACES], &done);
            }
        }
        if self.setup.view.reductions {
            self.touch(op);
        }
        s.serial += u64::from(op.latency);
        raise(&mut s.retired, &done);
        let ring = s.ring.get(self.arena)?;
        let mask = s.ring.count() as u64 - 1;
        // SAFETY: below the count of the ring, which is a power of two.
        unsafe { *ring.as_ptr().add((s.instructions & mask) as usize) = s.retired };
        s.instructions += 1;
        for (lane, window) in &self.windows {
            let (lane, at) = (*lane % L, s.instructions.wrapping_sub((*window).into()) & mask);
            let (least, rebased) = (s.least[lane], s.rebased[lane]);
            let floor = || {
                // SAFETY: as above.
                let retired = unsafe { (*ring.as_ptr().add(at as usize))[lane] };
                u64::from(retired.max(least)).min(u64::from(start[lane])) + rebased
            };
            s.levels[lane].count(self.arena, u64::from(start[lane]) + rebased, op.class, floor)?;
        }
        for lane in &self.unlimited {
            let lane = lane % L;
            s.levels[lane].count_any(self.arena, u64::from(start[lane]) + s.rebased[lane], op.class)?;
        }
        if s.instructions == s.next_mark {
            self.mark();
        }
        if !self.predictors.is_empty() {
            self.last_done = done;
        }
        Some(done)
    }

    #[cold]
    fn mark(&mut self) {
        let s = self.values();
        let Some(first) = s.marks.get(self.arena) else { return };
        if s.marked as usize >= MARKS {
            for at in 0..MARKS / 2 {
                // SAFETY: below the count of the table.
                unsafe { *first.as_ptr().add(at) = *first.as_ptr().add(2 * at + 1) };
            }
            s.marked = MARKS as u64 / 2;
            s.stretch *= 2;
        }
        if s.instructions.is_multiple_of(s.stretch) {
            let now = std::array::from_fn(|lane| u64::from(s.retired[lane]) + s.rebased[lane]);
            // SAFETY: below the count of the table.
            unsafe { *first.as_ptr().add(s.marked as usize) = now };
            s.marked += 1;
        }
        s.next_mark = (s.instructions / s.stretch + 1) * s.stretch;
    }

    /// Reduces times before overflow. Exact for windows; without a
    /// window, values older than [`KEPT`] cycles become [`KEPT`] old.
    #[cold]
    pub(crate) fn rebase(&mut self) {
        let s = self.values();
        let mut by = [0; L];
        for (lane, by) in by.iter_mut().enumerate() {
            *by = s.retired[lane].saturating_sub(KEPT) / ROUND * ROUND;
        }
        for (lane, window) in &self.windows {
            let at = s.instructions.wrapping_sub((*window).into()) & (s.ring.count() as u64 - 1);
            let Some(first) = s.ring.get(self.arena) else { return };
            // SAFETY: below the count of the ring.
            let floor = unsafe { (*first.as_ptr().add(at as usize))[*lane % L] };
            by[*lane % L] = floor.max(s.least[*lane % L]) / ROUND * ROUND;
        }
        let sooner = |times: &mut [u32; L]| {
            times.iter_mut().zip(by).for_each(|(time, by)| *time = time.saturating_sub(by));
        };
        s.times.iter_mut().for_each(sooner);
        for times in [&mut s.retired, &mut s.least, &mut s.open_start] {
            sooner(times);
        }
        for at in 0..s.ring.count() {
            let Some(first) = s.ring.get(self.arena) else { return };
            // SAFETY: below the count of the ring.
            sooner(unsafe { &mut *first.as_ptr().add(at) });
        }
        self.shadow.rebase(&s.pages, &by);
        s.rebased.iter_mut().zip(by).for_each(|(sum, by)| *sum += u64::from(by));
    }

    /// After the state was taken up: the block under way is known by index.
    #[inline(always)]
    pub(crate) fn take_up(&mut self, code: &Code<'_>) {
        let s = self.values();
        if s.block != NONE && self.current.count == 0 {
            self.current = self.compile(s.block, code).unwrap_or(Block::UNKNOWN);
            s.block = if self.current.count == 0 { NONE } else { s.block };
        }
    }

    #[inline(always)]
    fn observe_all(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        let s = self.values();
        if s.full != 0 {
            return Err(ArenaFull);
        }
        self.take_up(code);
        for events in events.chunks(4096) {
            s.busy = events.len() as u64;
            compiler_fence(Ordering::SeqCst);
            if self.take(events, code).is_none() {
                s.full = 1;
                s.busy = 0;
                return Err(ArenaFull);
            }
            if s.retired.iter().any(|retired| *retired > LATE) {
                self.rebase();
            }
            compiler_fence(Ordering::SeqCst);
            s.consumed += events.len() as u64;
            s.busy = 0;
        }
        Ok(())
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn observe_v3(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        self.observe_all(events, code)
    }
}

/// Whether the processor has the instructions that `observe_v3` is compiled for.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_v3() -> bool {
    std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("bmi1")
        && std::is_x86_feature_detected!("bmi2")
}

/// An engine of every number of lanes.
pub(crate) trait AnyLanes {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull>;
    fn state(&self) -> Offset;
    fn consumed(&self) -> u64;
    fn progress(&self) -> Progress;
    fn finish(&mut self) -> Summary;
}

impl<const L: usize, A: Arena + ?Sized> AnyLanes for Lanes<'_, L, A> {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        #[cfg(target_arch = "x86_64")]
        if has_v3() {
            // SAFETY: the processor has the instructions.
            return unsafe { self.observe_v3(events, code) };
        }
        self.observe_all(events, code)
    }

    fn state(&self) -> Offset {
        self.offset
    }

    fn consumed(&self) -> u64 {
        // SAFETY: the state belongs to the engine alone.
        unsafe { self.state.as_ref() }.consumed
    }

    fn progress(&self) -> Progress {
        // SAFETY: the state belongs to the engine alone.
        let s = unsafe { self.state.as_ref() };
        let of_lane = |at: usize| u64::from(s.retired[at]) + s.rebased[at];
        Progress { instructions: s.instructions, cycles: (0..self.setup.lanes.len()).map(of_lane).collect() }
    }

    fn finish(&mut self) -> Summary {
        let s = self.values();
        let total = |lane: usize| u64::from(s.retired[lane]) + s.rebased[lane];
        let setup = self.setup.clone();
        let lanes = setup.lanes.iter().enumerate().map(|(at, lane)| {
            let cycles = total(at);
            let (histogram, resolution, class_resolution) =
                s.levels[at].finish(self.arena, lane.window, cycles);
            let over_time = match lane.window {
                None => {
                    let (length, counts) = s.levels[at].over_time(self.arena, cycles, OVER_TIME);
                    let stretch = |(number, count): (usize, u64)| {
                        let from = number as u64 * length;
                        (from, count, length.min(cycles.saturating_sub(from)))
                    };
                    counts.into_iter().enumerate().map(stretch).collect()
                }
                Some(_) => {
                    // SAFETY: no writer of the marks meanwhile.
                    let marks = unsafe { s.marks.slice(self.arena) }.unwrap_or_default();
                    let marks = marks.iter().take(s.marked as usize).map(|mark| mark[at]);
                    let mut before = 0;
                    let stretch = |(number, cycle): (usize, u64)| {
                        let length = cycle.saturating_sub(std::mem::replace(&mut before, cycle));
                        (number as u64 * s.stretch, s.stretch, length)
                    };
                    marks.enumerate().map(stretch).collect()
                }
            };
            LaneSummary {
                lane: *lane,
                cycles,
                histogram,
                resolution,
                class_resolution,
                over_time,
                mispredicted: s.mispredicted[at],
            }
        });
        Summary {
            setup: setup.clone(),
            instructions: s.instructions,
            loads: s.loads,
            stores: s.stored,
            calls: s.regions.calls(),
            lanes: lanes.collect(),
            branches: summary::by_instruction(s.branches.values(self.arena)),
            torn: s.torn,
            full: s.full != 0,
        }
    }
}
