//! The engine: events in, counts in an arena.
//!
//! Per thread (or for several in one given order), exact to the last count. Time is the number
//! of accesses; an access spanning several granules touches each, in the order of addresses.
//!
//! When the process is killed in the middle of a batch, at most the
//! accesses of the batch are counted in part: [`Engine::open`] makes the
//! tables consistent again and gives the number ([`crate::Summary::torn`]).

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Analysis, Arena, ArenaFull, Code, Event, Offset, Plain, Range, Span, are_apart};

use crate::batch::{BATCH, Batch, Touches};
use crate::config::{Config, What};
use crate::contexts::Contexts;
use crate::grain::{Grain, Room};
use crate::lanes::{Lanes, Portable};
#[cfg(target_arch = "x86_64")]
use crate::lanes::{V3, V4};
use crate::lines::SampledLines;
use crate::places::Claims;
use crate::sites::Sites;

mod gather;
mod settle;

/// Granularities of an engine at most.
pub const MAX_GRANULARITIES: usize = 6;
/// Marks a complete state of the current version.
const MAGIC: u64 = u64::from_le_bytes(*b"reuse\0\0\x03");

/// The state; entirely in the arena.
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
    /// Accesses interrupted by a kill.
    pub(crate) torn: u64,
    /// Events lost by the source.
    pub(crate) lost: u64,
    /// 1 when the arena ran full.
    pub(crate) full: u64,
    pub(crate) phase_accesses: u64,
    /// Phases ended.
    pub(crate) phases: u64,
    max_phases: u64,
    /// 1 for fetches of instructions.
    fetches: u64,
    /// 1 for events of sampled lines.
    sampled: u64,
    functions: Span<[u64; 2]>,
    pub(crate) contexts: Contexts,
    pub(crate) sites: Sites,
    pub(crate) grains: [Option64<Grain>; MAX_GRANULARITIES],
}
// SAFETY: integers without padding, 8-byte aligned throughout.
unsafe impl Plain for State {}

/// An `Option` valid for every byte pattern.
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

impl State {
    /// Ranges of the state and the tables; `offset` is the state's own place.
    fn ranges<A: Arena + ?Sized>(&self, arena: &A, offset: Offset) -> Vec<Range> {
        let mut ranges = vec![Span::<State>::from_parts(offset, 1).range(), self.functions.range()];
        ranges.extend(self.contexts.ranges(arena));
        ranges.extend(self.sites.ranges());
        ranges.extend(self.grains.iter().filter_map(Option64::get).flat_map(Grain::ranges));
        ranges
    }

    /// Whether the number of ended phases is possible.
    fn phases_are_sound(&self) -> bool {
        let mut grains = self.grains.iter().filter_map(Option64::get).peekable();
        let ended = self.phases.checked_mul(self.phase_accesses);
        self.phase_accesses > 0
            && self.max_phases >= 2
            && self.phases <= self.max_phases
            && ended.is_some_and(|ended| ended <= self.accesses)
            && (self.phases == 0 || grains.peek().is_some())
            && grains.all(|grain| self.max_phases <= grain.phases())
    }
}

/// Why a state cannot be taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No complete state, or a state of another version.
    #[error("no state of the reuse engine at this place")]
    NoState,
    /// The tables contradict each other.
    #[error("the state of the reuse engine is damaged")]
    Damaged,
}

/// The exact engine.
pub struct Engine<'a, A: Arena + ?Sized> {
    arena: &'a A,
    state: NonNull<State>,
    offset: Offset,
    /// Whether each instruction is in a requested function,
    /// as far as known; derived, hence not in the arena.
    selected: Vec<bool>,
    scratch: Box<Scratch>,
}

/// Room for a batch on the way.
struct Scratch {
    batch: Batch,
    touches: Touches,
}

impl Scratch {
    fn new() -> Box<Scratch> {
        Box::new(Scratch { batch: Batch::EMPTY, touches: Touches::EMPTY })
    }
}

// SAFETY: the state belongs to the engine alone.
unsafe impl<A: Arena + Sync + ?Sized> Send for Engine<'_, A> {}

impl<'a, A: Arena + ?Sized> Engine<'a, A> {
    /// An engine with an empty state. Granularities other than powers of
    /// two, and granularities beyond [`MAX_GRANULARITIES`], are left out.
    pub fn create(arena: &'a A, config: &Config) -> Result<Engine<'a, A>, ArenaFull> {
        let span: Span<State> = Span::allocate(arena, 1).ok_or(ArenaFull)?;
        let state = span.get(arena).ok_or(ArenaFull)?;
        let room = Room {
            slots: config.first_slots,
            phases: config.max_phases.max(2),
            cells: config.max_cells,
            sums: config.sums,
            lines: SampledLines::one_in(config.sample_lines),
        };
        let functions: Span<[u64; 2]> = Span::allocate(arena, config.functions.len()).ok_or(ArenaFull)?;
        if let Some(first) = functions.get(arena) {
            for (index, range) in config.functions.iter().enumerate() {
                // SAFETY: the span has room for each range.
                unsafe { first.add(index).write([range.start, range.end]) };
            }
        }
        let contexts = Contexts::new(arena, config.max_contexts.max(1)).ok_or(ArenaFull)?;
        let sites = Sites::new(arena, config.max_sites).ok_or(ArenaFull)?;
        // SAFETY: fresh room for a state, zeroed, which
        // is a valid value; no further reference exists.
        let values = unsafe { &mut *state.as_ptr() };
        values.sampled = room.lines.is_some().into();
        // Phases would need groups of their own.
        values.phase_accesses = if room.lines.is_some() { u64::MAX } else { config.phase_accesses.max(1) };
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

    /// Takes up the state at `offset`, however the owning
    /// process ended. The process must not run any more.
    pub fn open(arena: &'a A, offset: Offset) -> Result<Engine<'a, A>, OpenError> {
        let state = Span::<State>::from_parts(offset, 1).get(arena).ok_or(OpenError::NoState)?;
        let mut engine = Engine { arena, state, offset, selected: Vec::new(), scratch: Scratch::new() };
        let values = engine.values();
        if values.magic != MAGIC {
            return Err(OpenError::NoState);
        }
        let torn = values.busy != 0;
        let tables = values.ranges(arena, offset);
        // Before anything is changed or looked up.
        if !are_apart(arena, tables.clone()) {
            return Err(OpenError::Damaged);
        }
        let mut claims = Claims::new(arena, tables);
        let sound = values.functions.get(arena).is_some()
            && values.phases_are_sound()
            && values.contexts.is_whole(arena)
            && values.sites.is_whole(arena)
            && values
                .grains
                .iter_mut()
                .filter_map(Option64::get_mut)
                .all(|grain| grain.repair(arena, &mut claims, torn));
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
        if values.accesses > i64::MAX as u64 {
            return Err(OpenError::Damaged);
        }
        Ok(engine)
    }

    /// Offset of the state, for [`Engine::open`].
    pub fn state(&self) -> Offset {
        self.offset
    }

    /// Events taken up to now. After a kill the source
    /// goes on with the event of the returned number.
    pub fn consumed(&self) -> u64 {
        self.read().consumed
    }

    pub(crate) fn arena(&self) -> &'a A {
        self.arena
    }

    pub(crate) fn read(&self) -> &State {
        // SAFETY: the state belongs to the engine alone.
        unsafe { self.state.as_ref() }
    }

    fn values(&mut self) -> &'a mut State {
        // SAFETY: the state belongs to the engine alone, borrowed for writing by every caller.
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
        scratch.batch.clear();
        if state.sampled != 0 {
            return state.gather_sampled::<L, A>(arena, events, scratch);
        }
        let plain = state.fetches == 0 && !filter;
        // No more accesses than events: a batch never overflows here.
        for chunk in events.chunks(BATCH) {
            let mut unsettled = chunk.len() as u64;
            if plain {
                state.gather(arena, chunk, scratch);
            } else {
                for (event, left) in chunk.iter().zip((0..chunk.len() as u64).rev()) {
                    // In between, `fetch` settles the events before the current event.
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
    #[target_feature(
        enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
    )]
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
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512vpopcntdq")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            // SAFETY: the processor has the instructions that the function is compiled for.
            return unsafe { self.take_v4(events, code) };
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            // SAFETY: the processor has the instructions that the function is compiled for.
            return unsafe { self.take_v3(events, code) };
        }
        self.take::<Portable>(events, code)
    }
}

#[cfg(test)]
mod tests;
