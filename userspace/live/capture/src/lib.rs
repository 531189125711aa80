//! The capture thread: stops, watchpoints and ring records of the targets.
//!
//! One OS thread holds the ptrace relation, drains the ring, drives the arbiter and arms
//! watchpoints, so that a stop needs no hand-over. It never touches memory that can block, never
//! symbolises, and tells everything else to the controller through a channel. Its files: `engine`
//! the loop, `holding` who is seized, `stops` what ptrace reports, `touches` what the ring reports,
//! `windows` shadow windows, `choice` uses drawn in them, `watching` armed watchpoints, `gauge`
//! what traps cost now, `guard` the watchdog, `members` who is traced, `unmet` who is too young,
//! `place` where the thread waits, `event` what it tells.

pub mod access;
pub mod choice;
mod code;
mod counting;
mod engine;
pub mod event;
mod gauge;
pub mod guard;
mod holding;
mod loads;
mod members;
mod metering;
mod place;
pub mod spared;
mod stops;
mod strings;
mod touches;
mod unmet;
mod watching;
mod windows;

pub use code::{CodeTables, SharedCode};
pub use engine::{Capture, Command, Handle, Settings, UNGUARDED};
pub use members::REGISTERS;
pub use metering::{METER_CLOCKS, READINGS};
pub use windows::{Wanted, Windows};

/// Name of the capture thread.
pub const THREAD: &str = "capture";

/// Most other threads of a process in which a watch is armed.
pub const SIBLINGS: usize = 16;
