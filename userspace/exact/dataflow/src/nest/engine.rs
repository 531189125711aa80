//! The engine of regions: events in, spans by level out.

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Analysis, Arena, ArenaFull, Code, Event, Flow, Kind, Offset, Span};

use super::state::{Counts, Frame, MAGIC, State, UNMEASURED};
use super::{LEVELS, NestSetup, NestSummary, RegionCount};
use crate::OpenError;
#[cfg(target_arch = "x86_64")]
use crate::engine::has_v3;
use crate::engine::{LATE, Lanes};
use crate::ops::{Block, Marks};
use crate::setup::{Lane, Setup};
use crate::state::NONE;

/// Instructions at most of a stub that only leads to a function.
const STUB: u32 = 3;
/// A call, or a return, in [`State::flow`].
const CALLED: u64 = 1;
const RETURNED: u64 = 2;
/// General registers.
const REGISTERS: usize = 16;
/// Places of a call's results: rax, rdx, xmm0, xmm1.
const RESULTS: [usize; 4] = [0, 2, 64, 65];

/// The engine of regions: one thread's events in, with blocks; counts in an arena.
pub struct NestEngine<'a, A: Arena + ?Sized> {
    arena: &'a A,
    state: NonNull<State>,
    offset: Offset,
    setup: NestSetup,
    levels: Lanes<'a, LEVELS, A>,
    before: Block,
}

// SAFETY: the state belongs to the engine alone.
unsafe impl<A: Arena + Sync + ?Sized> Send for NestEngine<'_, A> {}

impl<'a, A: Arena + ?Sized> NestEngine<'a, A> {
    /// An engine with an empty state. If only some functions count, the source shows their events alone.
    ///
    /// # Errors
    /// An arena without room for it.
    pub fn create(arena: &'a A, setup: NestSetup, marks: Marks) -> Result<Self, ArenaFull> {
        let plan = Setup { view: setup.view, latency: setup.latency, lanes: vec![Lane::default()] };
        let mut levels = Lanes::create(arena, &plan, marks)?;
        // Events outside regions are not shown.
        levels.values().restricted = 0;
        let span: Span<State> = Span::allocate(arena, 1).ok_or(ArenaFull)?;
        let state = span.get(arena).ok_or(ArenaFull)?;
        // SAFETY: fresh, zeroed room, a valid value without further references.
        let values = unsafe { &mut *state.as_ptr() };
        values.begin(arena, levels.offset).ok_or(ArenaFull)?;
        compiler_fence(Ordering::SeqCst);
        values.magic = MAGIC;
        Ok(Self::of(arena, state, span.offset(), setup, levels))
    }

    /// Takes up the state at `offset`, after any end of its process. The process must not run any
    /// more.
    ///
    /// # Errors
    /// A place without a state, or a damaged one.
    pub fn open(arena: &'a A, offset: Offset, marks: Marks) -> Result<Self, OpenError> {
        let span = Span::<State>::from_parts(offset, 1);
        let state = span.get(arena).ok_or(OpenError::NoState)?;
        // SAFETY: within the arena; the writer is gone.
        let values = unsafe { &mut *state.as_ptr() };
        if values.magic != MAGIC {
            return Err(OpenError::NoState);
        }
        values.repair(arena, span.range()).ok_or(OpenError::Damaged)?;
        let levels = Lanes::open(arena, values.levels, marks)?;
        let setup = NestSetup { view: levels.setup.view, latency: levels.setup.latency };
        Ok(Self::of(arena, state, offset, setup, levels))
    }

    fn of(
        arena: &'a A,
        state: NonNull<State>,
        offset: Offset,
        setup: NestSetup,
        mut levels: Lanes<'a, LEVELS, A>,
    ) -> Self {
        // Nobody asks for their distributions.
        levels.unlimited.clear();
        Self { arena, state, offset, setup, levels, before: Block::UNKNOWN }
    }

    /// Where the state lies, for [`NestEngine::open`].
    pub fn state(&self) -> Offset {
        self.offset
    }

    /// Events taken so far. After a kill the source goes on with the event of this number.
    pub fn consumed(&self) -> u64 {
        // SAFETY: the state belongs to the engine alone.
        unsafe { self.state.as_ref() }.consumed
    }

    #[inline(always)]
    fn values(&mut self) -> &'a mut State {
        // SAFETY: the state belongs to the engine alone, borrowed for writing.
        unsafe { &mut *self.state.as_ptr() }
    }

    #[inline(always)]
    fn take(&mut self, events: &[Event], code: &Code<'_>) -> Option<()> {
        for event in events {
            if event.kind.is_access() {
                if event.kind.is_flow() && self.levels.values().block != NONE {
                    let what = if event.kind == Kind::CALL { CALLED } else { RETURNED };
                    self.values().flow = [what, event.value];
                }
                self.levels.access(event)?;
            } else {
                match event.kind {
                    Kind::BLOCK => self.begin_block(event.index, code)?,
                    Kind::BLOCK_CUT => self.levels.cut(event.value)?,
                    Kind::SYSTEM_CALL | Kind::THREAD_END => self.levels.end_block()?,
                    Kind::SIGNAL | Kind::SIGNAL_END => {
                        self.levels.end_block()?;
                        // A handler is no successor of the interrupted block.
                        self.before = Block::UNKNOWN;
                        self.values().flow = [0; 2];
                    }
                    _ => {}
                }
            }
        }
        Some(())
    }

    #[inline(always)]
    fn begin_block(&mut self, index: u32, code: &Code<'_>) -> Option<()> {
        let block = self.levels.known(index, code)?;
        self.levels.end_block()?;
        let before = std::mem::replace(&mut self.before, block);
        if block.count != 0 {
            self.follow(index, &before, &block)?;
        }
        self.levels.execute(index, block);
        Some(())
    }

    /// A block begins: regions may have ended before, and begin here.
    #[inline(always)]
    fn follow(&mut self, index: u32, before: &Block, block: &Block) -> Option<()> {
        let s = self.values();
        let [what, slot] = s.flow;
        if what != 0 {
            // A stub belongs to the caller.
            if what == CALLED && block.count <= STUB && block.flow == Flow::IndirectJump && s.depth != 0 {
                return Some(());
            }
            s.flow = [0; 2];
            self.unwind(slot, what == RETURNED)?;
            if what == CALLED && s.depth != 0 {
                self.push(2 * index, slot, 0, block.address)?;
            }
        }
        if s.depth == 0 {
            // The middle of a function, unless known by name.
            let entry = if block.begins || what == CALLED { block.address } else { 0 };
            self.push(2 * index, u64::MAX, 0, entry)?;
        }
        self.follow_loop(index, before, block, what == 0)
    }

    #[inline(always)]
    fn follow_loop(&mut self, index: u32, before: &Block, block: &Block, is_near: bool) -> Option<()> {
        let s = self.values();
        // Loops left by this block.
        let mut entry = 0;
        while let Some(frame) = self.frame(s.depth) {
            entry = frame.entry;
            if frame.header == 0 {
                break;
            }
            let end = s.nodes.get_mut(self.arena, frame.node as u32).map_or(0, |counts| counts.end);
            if (frame.header..end).contains(&block.address) {
                break;
            }
            self.pop()?;
        }
        let node = 2 * index + 1;
        // A jump to another function at a lower address is no loop.
        let is_back = is_near
            && matches!(before.flow, Flow::Conditional | Flow::Jump)
            && (entry..before.end).contains(&block.address)
            && before.count != 0;
        if is_back {
            self.know(node)?;
            let counts = s.nodes.get_mut(self.arena, node)?;
            counts.end = counts.end.max(before.end);
        }
        let is_header = is_back || s.nodes.get_mut(self.arena, node).is_some_and(|counts| counts.end != 0);
        if !is_header {
            return Some(());
        }
        // The header of a loop under way, perhaps with inner loops left.
        let mut depth = s.depth;
        while let Some(frame) = self.frame(depth).filter(|frame| frame.header != 0) {
            if frame.header == block.address {
                while self.values().depth > depth {
                    self.pop()?;
                }
                return self.turn();
            }
            depth -= 1;
        }
        self.push(node, 0, block.address, entry)
    }

    /// Drops calls with a return address below `slot`, and at `slot`, with the loops inside. A return to
    /// an unseen caller leaves all.
    fn unwind(&mut self, slot: u64, returns: bool) -> Option<()> {
        let s = self.values();
        let mut depth = s.depth;
        let mut left = None;
        while let Some(frame) = self.frame(depth) {
            if frame.header == 0 {
                if frame.slot > slot {
                    break;
                }
                left = Some(depth - 1);
                if frame.slot == slot {
                    break;
                }
            }
            depth -= 1;
        }
        let is_base = left.is_none() && self.frame(depth).is_some_and(|frame| frame.slot == u64::MAX);
        let left = left.unwrap_or(if returns && is_base { 0 } else { s.depth });
        while self.values().depth > left {
            self.pop()?;
        }
        Some(())
    }

    #[inline(always)]
    fn frame(&mut self, depth: u64) -> Option<&'a mut Frame> {
        let s = self.values();
        let at = usize::try_from(depth).ok()?.checked_sub(1).filter(|at| *at < s.frames.count())?;
        // SAFETY: below the count of the table, which the engine alone uses, one frame at a time.
        Some(unsafe { &mut *s.frames.get(self.arena)?.as_ptr().add(at) })
    }

    /// Room for a node's counts.
    #[inline(always)]
    fn know(&mut self, node: u32) -> Option<()> {
        let s = self.values();
        match s.nodes.len() <= node as usize {
            true => s.nodes.extend(self.arena, node as usize + 1),
            false => Some(()),
        }
    }

    /// Everything before is done at this level. The cycle.
    #[inline(always)]
    fn begin_at(&mut self, level: u64) -> u64 {
        let times = self.levels.values();
        let at = level as usize % LEVELS;
        // Chains of steps may be ahead of what is done.
        let chains = times.times.iter().take(REGISTERS).map(|time| time[at]);
        let now = chains.fold(times.retired[at], u32::max);
        (times.retired[at], times.least[at]) = (now, now);
        u64::from(now) + times.rebased[at]
    }

    /// The cycle of the last result at this level.
    #[inline(always)]
    fn done_at(&mut self, level: u64) -> u64 {
        let times = self.levels.values();
        let at = level as usize % LEVELS;
        u64::from(times.retired[at]) + times.rebased[at]
    }

    /// A region begins.
    #[inline(never)]
    fn push(&mut self, node: u32, slot: u64, header: u64, entry: u64) -> Option<()> {
        let s = self.values();
        self.know(node)?;
        let is_loop = header != 0;
        let needed = if is_loop { 2 } else { 1 };
        let Some(place) = self.frame(s.depth + 1) else {
            // As part of the last region.
            s.nodes.get_mut(self.arena, node)?.unmeasured += 1;
            return Some(());
        };
        // Below a region that is not measured, none is.
        let level = if s.used + needed <= LEVELS as u64 { s.used } else { UNMEASURED };
        let times = self.levels.values();
        let mut frame = Frame {
            slot,
            header,
            entry,
            node: node.into(),
            level,
            begun: 0,
            turn: 0,
            work: times.instructions,
            serial: times.serial,
            parts: 0,
            inside: 0,
            turns: is_loop.into(),
        };
        s.used = LEVELS as u64;
        if level != UNMEASURED {
            s.used = level + needed;
            frame.begun = self.begin_at(level);
            if is_loop {
                frame.turn = self.begin_at(level + 1);
            }
        }
        *place = frame;
        s.nodes.get_mut(self.arena, node)?.active += 1;
        s.depth += 1;
        Some(())
    }

    /// The next iteration of the innermost region begins.
    #[inline(always)]
    fn turn(&mut self) -> Option<()> {
        let depth = self.values().depth;
        let Some(frame) = self.frame(depth) else { return Some(()) };
        frame.turns += 1;
        if frame.level != UNMEASURED {
            frame.parts += self.done_at(frame.level + 1).saturating_sub(frame.turn);
            frame.turn = self.begin_at(frame.level + 1);
        }
        Some(())
    }

    /// The innermost region ends.
    #[inline(never)]
    fn pop(&mut self) -> Option<()> {
        let s = self.values();
        let Some(frame) = self.frame(s.depth).copied() else { return Some(()) };
        s.depth -= 1;
        let times = self.levels.values();
        let (work, serial) = (times.instructions - frame.work, times.serial - frame.serial);
        let around = self.frame(s.depth);
        let counts = s.nodes.get_mut(self.arena, frame.node as u32)?;
        counts.active = counts.active.saturating_sub(1);
        if counts.active == 0 {
            counts.work += work;
        }
        if frame.level == UNMEASURED {
            counts.unmeasured += 1;
            let is_measured = around.is_none_or(|around| around.level != UNMEASURED);
            // Levels are free again above the first region without.
            if is_measured {
                s.used = self.frame(s.depth).map_or(0, |around| next_level(around));
            }
            return Some(());
        }
        s.used = frame.level;
        let mut parts = frame.parts;
        if frame.header != 0 {
            parts += self.done_at(frame.level + 1).saturating_sub(frame.turn);
            counts.iterations += frame.turns;
        } else {
            parts += serial.saturating_sub(frame.inside);
            // The caller takes the results.
            let at = frame.level as usize % LEVELS;
            let results = RESULTS.map(|place| times.times[place][at]);
            times.retired[at] = results.into_iter().fold(times.retired[at], u32::max);
        }
        let span = self.done_at(frame.level).saturating_sub(frame.begun);
        counts.instances += 1;
        counts.span += span;
        counts.parts += parts;
        // A loop's children are its iterations.
        if let Some(around) = around.filter(|around| around.header == 0) {
            around.parts += span;
            around.inside += serial;
        }
        Some(())
    }

    /// Its result.
    pub fn finish(&mut self) -> NestSummary {
        let s = self.values();
        // Regions under way end here.
        while self.values().depth > 0 {
            if self.pop().is_none() {
                break;
            }
        }
        let counts = s.nodes.values(self.arena);
        let region = |(node, counts): (usize, &Counts)| RegionCount {
            block: node as u32 / 2,
            is_loop: node % 2 == 1,
            instances: counts.instances,
            iterations: counts.iterations,
            work: counts.work,
            span: counts.span,
            parts: counts.parts,
            unmeasured: counts.unmeasured,
        };
        let all = counts.iter().enumerate().map(region);
        let mut regions: Vec<RegionCount> =
            all.filter(|region| region.instances + region.unmeasured > 0).collect();
        regions.sort_by_key(|region| (region.is_loop, region.block));
        NestSummary {
            setup: self.setup,
            work: self.levels.values().instructions,
            regions,
            torn: s.torn,
            full: s.full != 0,
        }
    }

    #[inline(always)]
    fn observe_all(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        let s = self.values();
        if s.full != 0 {
            return Err(ArenaFull);
        }
        self.levels.take_up(code);
        let times = self.levels.values();
        for events in events.chunks(4096) {
            (s.busy, times.busy) = (events.len() as u64, events.len() as u64);
            compiler_fence(Ordering::SeqCst);
            if self.take(events, code).is_none() {
                s.full = 1;
                (s.busy, times.busy) = (0, 0);
                return Err(ArenaFull);
            }
            if times.retired.iter().any(|retired| *retired > LATE) {
                self.levels.rebase();
            }
            compiler_fence(Ordering::SeqCst);
            s.consumed += events.len() as u64;
            (s.busy, times.busy) = (0, 0);
        }
        Ok(())
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn observe_v3(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        self.observe_all(events, code)
    }
}

/// The level of a region's children.
fn next_level(frame: &Frame) -> u64 {
    if frame.level == UNMEASURED {
        LEVELS as u64
    } else {
        frame.level + if frame.header == 0 { 1 } else { 2 }
    }
}

impl<A: Arena + ?Sized> Analysis for NestEngine<'_, A> {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        #[cfg(target_arch = "x86_64")]
        if has_v3() {
            // SAFETY: the processor has the instructions.
            return unsafe { self.observe_v3(events, code) };
        }
        self.observe_all(events, code)
    }
}
