//! The engine's interface, for any number of machines.

use locality_stream::{Analysis, Arena, ArenaFull, Code, Event, Offset, Span};

use crate::OpenError;
use crate::engine::{AnyLanes, Lanes};
use crate::ops::Marks;
use crate::setup::Setup;
use crate::state::MAGIC;
use crate::summary::{Progress, Summary};

/// The engine of parallelism: one thread's events in, times in an arena.
pub struct Engine<'a, A: Arena + ?Sized> {
    lanes: Box<dyn AnyLanes + 'a>,
    arena: std::marker::PhantomData<&'a A>,
}

// SAFETY: what is in the box is sent with its arena, which may be used by several threads.
unsafe impl<A: Arena + Sync + ?Sized> Send for Engine<'_, A> {}

impl<'a, A: Arena + ?Sized> Engine<'a, A> {
    /// An engine with an empty state. With a mark for the beginning of regions, only those count.
    ///
    /// # Errors
    /// An arena without room for it.
    pub fn create(arena: &'a A, setup: &Setup, marks: Marks) -> Result<Self, ArenaFull> {
        let lanes: Box<dyn AnyLanes + 'a> = match setup.lanes.len() {
            ..=2 => Box::new(Lanes::<2, A>::create(arena, setup, marks)?),
            3..=4 => Box::new(Lanes::<4, A>::create(arena, setup, marks)?),
            _ => Box::new(Lanes::<8, A>::create(arena, setup, marks)?),
        };
        Ok(Self { lanes, arena: std::marker::PhantomData })
    }

    /// Takes up the state at `offset`, after any end of its process. The process must not run any
    /// more.
    ///
    /// # Errors
    /// A place without a state, or a damaged one.
    pub fn open(arena: &'a A, offset: Offset, marks: Marks) -> Result<Self, OpenError> {
        let head = Span::<[u64; 2]>::from_parts(offset, 1).get(arena).ok_or(OpenError::NoState)?;
        // SAFETY: within the arena.
        let [magic, width] = unsafe { head.as_ptr().read() };
        if magic != MAGIC {
            return Err(OpenError::NoState);
        }
        let lanes: Box<dyn AnyLanes + 'a> = match width {
            2 => Box::new(Lanes::<2, A>::open(arena, offset, marks)?),
            4 => Box::new(Lanes::<4, A>::open(arena, offset, marks)?),
            8 => Box::new(Lanes::<8, A>::open(arena, offset, marks)?),
            _ => return Err(OpenError::Damaged),
        };
        Ok(Self { lanes, arena: std::marker::PhantomData })
    }

    /// Where the state lies, for [`Engine::open`].
    pub fn state(&self) -> Offset {
        self.lanes.state()
    }

    /// Events taken so far. After a kill the source goes on with the event of this number.
    pub fn consumed(&self) -> u64 {
        self.lanes.consumed()
    }

    /// Sums so far.
    pub fn progress(&self) -> Progress {
        self.lanes.progress()
    }

    /// Its result.
    pub fn finish(&mut self) -> Summary {
        self.lanes.finish()
    }
}

impl<A: Arena + ?Sized> Analysis for Engine<'_, A> {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        self.lanes.observe(events, code)
    }
}
