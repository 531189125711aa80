//! Cache use of an exact run, seen from the user: `spec` and `machine` what is simulated, `costs`
//! the table by line and call, `callgrind` that table as a file, `naming` whose costs they are,
//! `objects` in which data, `report` and `text` what is printed.
//!
//! Not here: the simulation (`locality-cachesim`) and who runs it (`locality-plugin`).

pub mod callgrind;
pub mod costs;
pub mod machine;
mod naming;
pub mod objects;
mod report;
pub mod spec;
mod text;

pub use naming::Simulated;
pub use report::of;
