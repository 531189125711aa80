//! What the tracer gets of a window: by value while the thread is stopped, or copied.

use locality_stream::{Code, Event};

use super::Helper;
use super::layout::{Answer, unflat};
use crate::state::ThreadState;
use crate::window::{Counts, End};

/// An executed window. Its numbers are possible: each count fits its room. Its content may be
/// arbitrary if the window process was taken over: look values up, never index with them.
#[derive(Debug)]
pub struct Window<'a> {
    /// How much it holds.
    pub counts: Counts,
    /// Why it ended.
    pub end: End,
    /// The process' memory is gone: it has ended or executed another program.
    pub gone: bool,
    answer: Answer,
    helper: &'a mut Helper,
}

/// A window's content, copied: later windows do not change it.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    /// How much there is.
    pub counts: Counts,
    /// As [`crate::Log::events`].
    pub events: Vec<Event>,
    /// As [`crate::Log::values`].
    pub values: Vec<u64>,
    /// As [`crate::Log::registers`].
    pub registers: Vec<[u64; 16]>,
    /// Of [`Helper::generation`].
    pub generation: u32,
}

impl<'a> Window<'a> {
    /// The window of this answer with checked counts.
    pub(super) fn new(answer: Answer, end: End, helper: &'a mut Helper) -> Window<'a> {
        Window { counts: answer.counts, end, gone: answer.gone != 0, answer, helper }
    }

    /// One event, by value. Cheap: for choosing a use while the thread is stopped.
    pub fn event(&self, index: usize) -> Option<Event> {
        let within = index < self.counts.events as usize;
        self.helper.process.as_ref().filter(|_| within)?.event(index)
    }

    /// The value moved by the access with this number.
    pub fn value(&self, index: usize) -> Option<u64> {
        let within = (index as u64) < self.counts.accesses;
        self.helper.process.as_ref().filter(|_| within)?.value(index)
    }

    /// The general registers at the beginning of the block with this number.
    pub fn registers(&self, index: usize) -> Option<[u64; 16]> {
        let within = index < self.counts.blocks as usize;
        self.helper.process.as_ref().filter(|_| within)?.registers(index)
    }

    /// All events in order, by value.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        let count = self.counts.events as usize;
        self.helper.process.as_ref().into_iter().flat_map(move |process| process.events(count))
    }

    /// The thread's state after the window.
    pub fn state(&self) -> ThreadState {
        let mut extended = Vec::new();
        if let Some(process) = &self.helper.process {
            process.copy_extended(self.answer.extended as usize, &mut extended);
        }
        ThreadState { registers: unflat(&self.answer.registers), extended }
    }

    /// Copies everything, over the former content of `into`. Better after the resume.
    pub fn copy(&self, into: &mut Kept) {
        into.counts = self.counts;
        into.generation = self.helper.generation;
        into.events.clear();
        into.values.clear();
        into.registers.clear();
        if let Some(process) = &self.helper.process {
            process.copy_window(&self.counts, &mut into.events, &mut into.values, &mut into.registers);
        }
    }

    /// As [`Helper::code`], this window's code included.
    pub fn code(&mut self) -> Code<'_> {
        self.helper.code()
    }
}
