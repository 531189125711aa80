//! Cache use of an exact run, seen from the user: `spec` and `machine` what is simulated, `naming` whose
//! costs they are, `objects` in which data, `report` and `text` what is printed.
//!
//! Not here: the simulation (`locality-cachesim`), who runs it (`locality-plugin`), and costs as a file for
//! Callgrind's viewers (`locality-exports`).

pub mod machine;
mod naming;
pub mod objects;
mod report;
pub mod spec;
mod text;

pub use naming::Simulated;
pub use report::of;
