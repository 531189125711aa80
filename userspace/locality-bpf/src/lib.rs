//! The tracer behind the command line, as a library for its tests and benchmarks.
//!
//! Modules stand in the order in which a trace passes them: `cli` is what the user typed, `ending`
//! the signals that end the tool, `mends` what mends an error, `compare` holds two reports against
//! each other, `objects` lists variables, `doctor` says what this machine can do, `plan` what the
//! one means on the other, `control` runs the trace, `capture` stops and watches, `guard` keeps the
//! targets from harm, `heap` follows allocations, `exact` runs a program under QEMU instead,
//! `kernel` wraps interfaces, `writing` puts reports where they are wanted.

pub mod cli;
pub mod mends;

pub mod compare;
pub mod doctor;
pub mod objects;

pub mod plan;

pub mod control;

pub mod capture;

pub mod guard;

pub mod heap;

pub mod exact;

pub mod kernel;
