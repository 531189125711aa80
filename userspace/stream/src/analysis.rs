//! The interface of analyses.

use crate::code::Code;
use crate::event::Event;

/// The arena has no room left: the analysis stopped at an
/// event, and the counts up to the event stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of memory reserved for the analysis")]
pub struct ArenaFull;

/// An analysis of one thread's events (or of several threads' in one order, see [`crate::Kind::THREAD`]).
///
/// State per thread; results are merged after [`Analysis::observe`] has seen everything, and do not
/// depend on the order of merging. How it finishes and merges is each analysis' own.
pub trait Analysis {
    /// Takes the next events, in order. After an error further events are ignored.
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull>;
}
