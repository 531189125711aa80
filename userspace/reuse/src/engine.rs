//! The engine: events in, counts in an arena.
//!
//! Per thread (or for several in one given order), exact to the last count. Time is the number of accesses; an access
//! that spans several granules touches each, in the order of their addresses.
//!
//! When the process is killed in the middle of a batch, at most the accesses of that batch are counted in part:
//! [`Engine::open`] makes the tables consistent again and tells how many ([`crate::Summary::torn`]).

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Analysis, Arena, ArenaFull, Code, Event, Kind, Offset, Plain, Span};

use crate::config::{Config, What};
use crate::contexts::Contexts;
use crate::grain::{BATCH, Batch, Grain, Room, Touches};
use crate::lanes::{Lanes, Portable};
#[cfg(target_arch = "x86_64")]
use crate::lanes::{V3, V4};
use crate::sites::Sites;

/// Granularities of one engine at most.
pub const MAX_GRANULARITIES: usize = 6;
/// Marks a complete state of this version.
const MAGIC: u64 = u64::from_le_bytes(*b"reuse\0\0\x01");

/// The state; all of it lies in the arena.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct State {
    magic: u64,
    /// Events taken.
    pub(crate) consumed: u64,
    /// Events of the batch under way; 0 between batches.
    busy: u64,
    /// Accesses counted: the time.
    pub(crate) accesses: u64,
    pub(crate) stores: u64,
    /// Accesses that were left in the middle by a kill.
    pub(crate) torn: u64,
    /// Events that the source lost.
    pub(crate) lost: u64,
    /// 1 when the arena ran full.
    pub(crate) full: u64,
    pub(crate) phase_accesses: u64,
    /// Phases ended.
    pub(crate) phases: u64,
    max_phases: u64,
    /// 1 for fetches of instructions.
    fetches: u64,
    functions: Span<[u64; 2]>,
    pub(crate) contexts: Contexts,
    pub(crate) sites: Sites,
    pub(crate) grains: [Option64<Grain>; MAX_GRANULARITIES],
}
// SAFETY: integers without padding, 8-byte aligned throughout.
unsafe impl Plain for State {}

/// An `Option` whose bytes are always valid.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Option64<T> {
    is_some: u64,
    value: T,
}

impl<T> Option64<T> {
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        (self.is_some == 1).then_some(&self.value)
    }
    #[inline(always)]
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        (self.is_some == 1).then_some(&mut self.value)
    }
}

/// Why a state cannot be taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No complete state there, or one of another version.
    #[error("no state of the reuse engine at this place")]
    NoState,
    /// Its tables contradict each other.
    #[error("the state of the reuse engine is damaged")]
    Damaged,
}

/// The exact engine.
pub struct Engine<'a, A: Arena + ?Sized> {
    arena: &'a A,
    state: NonNull<State>,
    offset: Offset,
    /// Which instructions are in the functions asked for, as far as known; derived, hence not in the arena.
    selected: Vec<bool>,
    scratch: Box<Scratch>,
}

/// Room for a batch on its way.
struct Scratch {
    batch: Batch,
    touches: Touches,
}

impl Scratch {
    fn new() -> Box<Scratch> {
        Box::new(Scratch { batch: Batch::EMPTY, touches: Touches::EMPTY })
    }
}

// SAFETY: the state belongs to this engine alone.
unsafe impl<A: Arena + Sync + ?Sized> Send for Engine<'_, A> {}

impl<'a, A: Arena + ?Sized> Engine<'a, A> {
    /// An engine with an empty state. Granularities that are no powers of two, and those beyond
    /// [`MAX_GRANULARITIES`], are left out.
    pub fn create(arena: &'a A, config: &Config) -> Result<Engine<'a, A>, ArenaFull> {
        let span: Span<State> = Span::allocate(arena, 1).ok_or(ArenaFull)?;
        let state = span.get(arena).ok_or(ArenaFull)?;
        let room =
            Room { slots: config.first_slots, phases: config.max_phases.max(2), cells: config.max_cells };
        let functions: Span<[u64; 2]> = Span::allocate(arena, config.functions.len()).ok_or(ArenaFull)?;
        if let Some(first) = functions.get(arena) {
            for (index, range) in config.functions.iter().enumerate() {
                // SAFETY: the span has room for all ranges.
                unsafe { first.add(index).write([range.start, range.end]) };
            }
        }
        let contexts = Contexts::new(arena, config.max_contexts.max(1)).ok_or(ArenaFull)?;
        let sites = Sites::new(arena, config.max_sites).ok_or(ArenaFull)?;
        // SAFETY: fresh room for one state, zeroed, which is a valid value; nobody else knows it.
        let values = unsafe { &mut *state.as_ptr() };
        values.phase_accesses = config.phase_accesses.max(1);
        values.max_phases = room.phases as u64 & !1;
        values.fetches = (config.what == What::Instructions).into();
        values.functions = functions;
        values.contexts = contexts;
        values.sites = sites;
        let wanted = config.granularities.iter().filter(|bytes| bytes.is_power_of_two());
        for (grain, bytes) in values.grains.iter_mut().zip(wanted) {
            let pairs = config.pairs.contains(bytes);
            grain.value = Grain::new(arena, bytes.trailing_zeros(), pairs, &room)?;
            grain.is_some = 1;
        }
        compiler_fence(Ordering::SeqCst);
        values.magic = MAGIC;
        Ok(Engine { arena, state, offset: span.offset(), selected: Vec::new(), scratch: Scratch::new() })
    }

    /// Takes up the state at `offset`, however the process ended that kept it. It must not run any more.
    pub fn open(arena: &'a A, offset: Offset) -> Result<Engine<'a, A>, OpenError> {
        let state = Span::<State>::from_parts(offset, 1).get(arena).ok_or(OpenError::NoState)?;
        let mut engine = Engine { arena, state, offset, selected: Vec::new(), scratch: Scratch::new() };
        let values = engine.values();
        if values.magic != MAGIC {
            return Err(OpenError::NoState);
        }
        let torn = values.busy != 0;
        let sound = values.functions.get(arena).is_some()
            && values.phase_accesses > 0
            && values.phases <= values.max_phases
            && values.contexts.is_whole(arena)
            && values.sites.is_whole(arena)
            && values.grains.iter_mut().filter_map(Option64::get_mut).all(|grain| grain.repair(arena, torn));
        if !sound {
            return Err(OpenError::Damaged);
        }
        if torn {
            for grain in values.grains.iter().filter_map(Option64::get) {
                values.accesses = values.accesses.max(grain.latest(arena));
            }
            values.torn += values.busy;
            values.consumed += values.busy;
            values.busy = 0;
        }
        Ok(engine)
    }

    /// Where the state lies, for [`Engine::open`].
    pub fn state(&self) -> Offset {
        self.offset
    }

    /// Events taken so far. After a kill the source goes on with the event of this number.
    pub fn consumed(&self) -> u64 {
        self.read().consumed
    }

    pub(crate) fn arena(&self) -> &'a A {
        self.arena
    }

    pub(crate) fn read(&self) -> &State {
        // SAFETY: the state belongs to this engine alone.
        unsafe { self.state.as_ref() }
    }

    fn values(&mut self) -> &'a mut State {
        // SAFETY: the state belongs to this engine alone, which is borrowed for writing wherever this is called.
        unsafe { &mut *self.state.as_ptr() }
    }

    /// Brings `selected` up to date with the code.
    #[cold]
    fn select(&mut self, code: &Code<'_>) {
        let arena = self.arena;
        // SAFETY: written once, when the state was made.
        let functions = unsafe { self.read().functions.slice(arena) }.unwrap_or_default();
        let new = code.instructions.get(self.selected.len()..).unwrap_or_default();
        self.selected.extend(
            new.iter()
                .map(|record| functions.iter().any(|[start, end]| (*start..*end).contains(&record.address))),
        );
    }

    /// Takes events; compiled for several instruction sets.
    #[inline(always)]
    fn take<L: Lanes>(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        let arena = self.arena;
        let state = self.values();
        if state.full != 0 {
            return Err(ArenaFull);
        }
        let filter = state.functions.count() > 0;
        if filter {
            self.select(code);
        }
        let scratch = &mut *self.scratch;
        scratch.batch.len = 0;
        let plain = state.fetches == 0 && !filter;
        // No more accesses than events: a batch never overflows here.
        for chunk in events.chunks(BATCH) {
            let mut unsettled = chunk.len() as u64;
            if plain {
                state.gather(arena, chunk, scratch);
            } else {
                for (event, left) in chunk.iter().zip((0..chunk.len() as u64).rev()) {
                    // What `fetch` settles in between are the events before this one.
                    unsettled -= left;
                    state.pick::<L, A>(
                        arena,
                        event,
                        code,
                        scratch,
                        &mut unsettled,
                        filter.then_some(&self.selected),
                    )?;
                    unsettled += left;
                }
            }
            state.settle::<L, A>(arena, scratch, &mut unsettled)?;
        }
        Ok(())
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt")]
    fn take_v4(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        self.take::<V4>(events, code)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn take_v3(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        self.take::<V3>(events, code)
    }
}

impl<A: Arena + ?Sized> Analysis for Engine<'_, A> {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vpopcntdq")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.take_v4(events, code) };
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.take_v3(events, code) };
        }
        self.take::<Portable>(events, code)
    }
}

impl Batch {
    #[inline(always)]
    fn push(&mut self, address: u64, size: u32, site: u32) {
        let at = self.len;
        if at < BATCH {
            (self.address[at], self.site[at]) = (address, site);
            self.last[at] = address.saturating_add(u64::from(size.saturating_sub(1)));
            self.len = at + 1;
        }
    }
}

impl State {
    /// Takes all accesses of `chunk`, at most [`BATCH`] events, into the batch.
    #[inline(always)]
    fn gather<A: Arena + ?Sized>(&mut self, arena: &A, chunk: &[Event], scratch: &mut Scratch) {
        let (mut len, mut stores) = (0, 0);
        let mut context = self.contexts.current;
        let batch = &mut scratch.batch;
        for event in chunk.iter().take(BATCH) {
            if event.kind.is_access() {
                batch.address[len] = event.value;
                batch.last[len] = event.value.saturating_add(u64::from(event.size.saturating_sub(1)));
                batch.site[len] = self.sites.find(arena, context, event.index);
                len += 1;
                stores += u64::from(event.kind.0 & 1);
                if event.kind.is_flow() {
                    self.flow(arena, event);
                    context = self.contexts.current;
                }
            } else {
                self.switch_or_lose(arena, event);
                context = self.contexts.current;
            }
        }
        batch.len = len;
        self.stores += stores;
    }

    /// As [`State::gather`], for one event, where not every access is seen.
    fn pick<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        event: &Event,
        code: &Code<'_>,
        scratch: &mut Scratch,
        unsettled: &mut u64,
        selected: Option<&Vec<bool>>,
    ) -> Result<(), ArenaFull> {
        if !event.kind.is_access() {
            return self.other::<L, A>(arena, event, code, scratch, unsettled, selected);
        }
        let chosen = |all: &Vec<bool>| all.get(event.index as usize).copied().unwrap_or(false);
        if self.fetches == 0 && selected.is_none_or(chosen) {
            let site = self.sites.find(arena, self.contexts.current, event.index);
            scratch.batch.push(event.value, event.size.into(), site);
            self.stores += u64::from(event.kind.is_store());
        }
        if event.kind.is_flow() {
            self.flow(arena, event);
        }
        Ok(())
    }

    #[inline(always)]
    fn flow<A: Arena + ?Sized>(&mut self, arena: &A, event: &Event) {
        if event.kind.is_store() {
            self.contexts.call(arena, event.value, event.index);
        } else {
            self.contexts.r#return(arena, event.value);
        }
    }

    /// An event that is no access, for what concerns all analyses.
    #[inline(never)]
    fn switch_or_lose<A: Arena + ?Sized>(&mut self, arena: &A, event: &Event) {
        match event.kind {
            Kind::THREAD => self.full |= u64::from(self.contexts.switch(arena, event.value).is_none()),
            Kind::LOST => self.lost = self.lost.saturating_add(event.value),
            _ => {}
        }
    }

    /// Counts a batch in all granularities, parted where a phase ends.
    #[inline(always)]
    fn settle<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        scratch: &mut Scratch,
        unsettled: &mut u64,
    ) -> Result<(), ArenaFull> {
        self.busy = *unsettled;
        compiler_fence(Ordering::SeqCst);
        let left = self.phase_accesses.saturating_mul(self.phases + 1) - self.accesses;
        let result = if (scratch.batch.len as u64) < left {
            self.count::<L, A>(arena, &scratch.batch, &mut scratch.touches)
        } else {
            self.count_across_phases::<L, A>(arena, scratch)
        };
        self.full |= u64::from(result.is_err());
        scratch.batch.len = 0;
        compiler_fence(Ordering::SeqCst);
        self.consumed += *unsettled;
        self.busy = 0;
        *unsettled = 0;
        result
    }

    #[inline(always)]
    fn count<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        batch: &Batch,
        touches: &mut Touches,
    ) -> Result<(), ArenaFull> {
        let first = self.accesses + 1;
        for grain in self.grains.iter_mut().filter_map(Option64::get_mut) {
            grain.take::<L, A>(arena, batch, touches, first)?;
        }
        self.accesses += batch.len as u64;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn count_across_phases<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        scratch: &mut Scratch,
    ) -> Result<(), ArenaFull> {
        let Scratch { batch, touches } = scratch;
        let mut done = 0;
        while done < batch.len {
            let left = self.phase_accesses.saturating_mul(self.phases + 1) - self.accesses;
            let until = batch.len.min(done + usize::try_from(left).unwrap_or(BATCH));
            let mut part = Batch::EMPTY;
            let accesses = batch.address.iter().zip(&batch.last).zip(&batch.site);
            for ((address, last), site) in accesses.take(until).skip(done) {
                part.push(*address, (last - address) as u32 + 1, *site);
            }
            self.count::<L, A>(arena, &part, touches)?;
            done = until;
            if self.accesses == self.phase_accesses.saturating_mul(self.phases + 1) {
                self.end_phase(arena);
            }
        }
        Ok(())
    }

    fn end_phase<A: Arena + ?Sized>(&mut self, arena: &A) {
        let grains = self.grains;
        for grain in grains.iter().filter_map(Option64::get) {
            grain.end_phase(arena, self.phases as usize);
        }
        self.phases += 1;
        if self.phases == self.max_phases {
            for grain in grains.iter().filter_map(Option64::get) {
                grain.merge_phases(arena, self.phases as usize);
            }
            self.phases /= 2;
            self.phase_accesses *= 2;
        }
    }

    /// An event that is no access.
    #[inline(never)]
    fn other<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        event: &Event,
        code: &Code<'_>,
        scratch: &mut Scratch,
        unsettled: &mut u64,
        selected: Option<&Vec<bool>>,
    ) -> Result<(), ArenaFull> {
        match event.kind {
            Kind::BLOCK if self.fetches == 1 => {
                self.fetch::<L, A>(arena, code, usize::MAX, scratch, unsettled, selected)?;
                self.contexts.now.block_context = self.contexts.current;
                self.contexts.now.block = event.index.saturating_add(1);
            }
            Kind::BLOCK_CUT | Kind::THREAD_END if self.fetches == 1 => {
                let limit = if event.kind == Kind::BLOCK_CUT { event.value as usize } else { usize::MAX };
                self.fetch::<L, A>(arena, code, limit, scratch, unsettled, selected)?;
            }
            _ => self.switch_or_lose(arena, event),
        }
        Ok(())
    }

    /// Counts the fetches of the block begun last, of at most `limit` instructions.
    fn fetch<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        code: &Code<'_>,
        limit: usize,
        scratch: &mut Scratch,
        unsettled: &mut u64,
        selected: Option<&Vec<bool>>,
    ) -> Result<(), ArenaFull> {
        let context = self.contexts.now.block_context;
        let Some(block) = std::mem::take(&mut self.contexts.now.block).checked_sub(1) else { return Ok(()) };
        let Some(first) = code.blocks.get(block as usize).map(|block| block.first) else { return Ok(()) };
        for (index, record) in (first..).zip(code.block(block)).take(limit) {
            if selected.is_some_and(|selected| !selected.get(index as usize).copied().unwrap_or(false)) {
                continue;
            }
            let site = self.sites.find(arena, context, index);
            scratch.batch.push(record.address, record.length.into(), site);
            if scratch.batch.len == BATCH {
                self.settle::<L, A>(arena, scratch, unsettled)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
