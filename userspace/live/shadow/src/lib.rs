//! Shadow windows: what a stopped thread is about to do, found by doing it on a private copy.
//!
//! Modules in the order in which data flows: [`state`] the thread's registers, [`memory`] where its
//! bytes come from, [`window`] what comes out; [`helper`] the process without rights in which it
//! happens. The target is read, never written and never run.
//!
//! Definition of an access, the same as the exact engine's: one memory operand of one executed
//! instruction is one access, two where it is read and written (the load first); each iteration of
//! a repeated string instruction is an execution.
//!
//! How: [`Executor`] decodes blocks once; the commonest integer instructions, control flow, stack
//! and string instructions are done in Rust, everything else on the whitelist runs in a stub of its
//! own on registers loaded from a context, its memory operand re-encoded to the private copy. No
//! address of the target is ever dereferenced.
//!
//! Sources of error: what other threads write during the window is not seen; a window ends before a
//! system call or a random number; its clocks are the kernel's and the processor's, but go by
//! instructions; flags that the architecture leaves undefined are
//! Intel's; of saved states (xsavec) only the registers count, not which of them the processor
//! takes for unused; 32-bit code and shadow stacks are not executed.

mod access;
mod alu;
mod blocks;
mod context;
mod decode;
mod enter;
mod executor;
mod flow;
mod gather;
mod hash;
pub mod helper;
mod machine;
mod masked;
pub mod memory;
mod op;
mod pages;
mod process;
mod record;
mod saved;
mod simple;
mod special;
pub mod state;
mod strings;
mod stub;
mod whitelist;
pub mod window;
mod xstate;

pub use blocks::{TableCounts, Tables};
pub use executor::Executor;
pub use memory::{Memory, PAGE, Page, Trust};
pub use state::ThreadState;
pub use window::{Counts, End, Limits, Log};
