//! Shadow windows: what a stopped thread is about to do, found by doing it on a private copy (METHOD.md §2).
//!
//! Modules in the order in which data flows: [`state`] the thread's registers, [`memory`] where its bytes come from,
//! [`window`] what comes out. The target is read, never written and never run.
//!
//! Definition of an access, the same as the exact engine's: one memory operand of one executed instruction is one access,
//! two where it is read and written (the load first); each iteration of a repeated string instruction is an execution.

pub mod memory;
pub mod state;
pub mod window;

pub use memory::{Memory, PAGE, Page, Trust};
pub use state::ThreadState;
pub use window::{Counts, End, Limits, Log};
