//! Parallelism of an access stream: when each instruction could have run.
//!
//! After Caparrós Cabezas, "A Tool for Analysis and Visualization of Application Properties" (IBM
//! Research Report RZ 3834, 2012): only read-after-write dependences count, through registers,
//! flags and bytes of memory. An instruction starts when what it reads is there; instructions
//! divided by cycles are the parallelism (work ÷ span). With a window of W instructions, none starts
//! before the one W before it, and all before that, are done (Wall, ASPLOS 1991, continuous windows);
//! after a branch that the predictor does not foresee, the next ones wait for it.
//!
//! [`Engine`] takes the events of one thread, which must tell blocks, and keeps times of locations,
//! distributions and branches in an arena, for up to [`LANES`] machines at once; [`Summary`] is what
//! they come to. [`Regions`] tells inclusive regions of functions. A [`View`] says which dependences
//! are ignored.
//!
//! [`NestEngine`] tells nested regions apart: calls of functions and iterations of loops, and how many
//! of them could run at once.
//!
//! [`TaskEngine`] has basic blocks, calls or iterations in place of instructions, and the bytes that they
//! hand over; [`partition`] divides them.
//!
//! Modules in the order in which data flows: `setup`, `ops` blocks as lists of places, `shadow` who
//! wrote memory last, `engine` times, `predict` branches, `levels` distributions, `summary`, `tasks`.
//!
//! Exact but for: what a kernel does in system calls; the last part of a thread that was killed (its
//! predictor begins anew there); values older than 2^31 cycles in runs of more than 3 × 2^30 cycles
//! without a window.
//!
//! Pure: no I/O, no threads. Not here: symbols, printing, caches.

mod engine;
mod handle;
mod levels;
mod nest;
mod ops;
pub mod partition;
mod predict;
mod regions;
mod setup;
mod shadow;
mod sharing;
mod state;
mod summary;
mod tasks;

pub use handle::Engine;
pub use levels::{BINS, Histogram, bin};
pub use nest::{NestEngine, NestSetup, NestSummary, RegionCount};
pub use ops::{CLASSES, Marks};
pub use regions::Regions;
pub use setup::{BadSetup, LANES, LARGEST_WINDOW, Lane, Latency, Predict, Setup, View, window};
pub use sharing::{Shared, Sharing};
pub use state::BranchCount;
pub use summary::{LaneSummary, Progress, Summary};
pub use tasks::{EdgeCount, NO_BLOCK, Node, NodeCount, TaskEngine, TaskSetup, TaskSummary};

/// Why a state cannot be taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No complete state, or one of another version.
    #[error("no state of the parallelism engine at this place")]
    NoState,
    /// Its tables contradict each other.
    #[error("the state of the parallelism engine is damaged")]
    Damaged,
}

#[cfg(test)]
mod tests;
