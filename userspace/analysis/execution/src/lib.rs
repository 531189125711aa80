//! The execution model of a program: a skeleton from its machine code, parameters from windows of the live
//! process, expected repetitions, costs, hot spots and hot paths (Guo, Meng, Yi, Morozov, Kumaran,
//! "Analytically Modeling Application Execution for Software-Hardware Co-Design", IPDPS 2014).
//!
//! Sources of error: listed by each module; the largest are data-dependent
//! loops, with trips from windows alone, and code without a window.
//!
//! Pure: bytes of the program and observations are given by the caller. Not here: files, printing.

mod addresses;
pub mod bounds;
pub mod breakdown;
pub mod build;
pub mod check;
pub mod code;
pub mod cost;
pub mod form;
pub mod graph;
mod inputs;
pub mod language;
pub mod machine;
pub mod observed;
mod outer;
pub mod parse;
pub mod paths;
pub mod rebuild;
pub mod schedule;
pub mod spots;
pub mod tree;
pub mod trips;
pub mod values;
pub mod work;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
