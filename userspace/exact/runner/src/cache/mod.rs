//! Cache use of an exact run: `spec` and `machine` configure the simulated caches, `naming` names
//! functions, `objects` names data, `report` and `text` print.
//!
//! Not here: the simulation (`locality-cachesim`), the running process
//! (`locality-plugin`), and costs as a file for Callgrind's viewers (`locality-exports`).

pub mod machine;
mod naming;
pub mod objects;
mod report;
pub mod spec;
mod text;

pub use naming::Simulated;
pub use report::of;
