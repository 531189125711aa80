//! The capture thread: stops, watchpoints and ring records of the targets.
//!
//! One OS thread holds the ptrace relation, drains the ring, drives the arbiter and arms
//! watchpoints, so that a stop needs no hand-over. It never touches memory that can block, never
//! symbolises, and tells everything else to the controller through a channel. Its files:
//! `event_loop` the loop, `attach` who is seized, `ptrace_stops` what ptrace reports, `ring_events`
//! what the ring reports, `windows` shadow windows, `window_sampling` uses drawn in them,
//! `watchpoints` armed watchpoints, `shared_regions` those of words that processes share,
//! `trap_cost` what traps cost now, `watchdog` the watchdog,
//! `tracees` who is traced, `pending_tracees` who is too young, `cpu_affinity` where the thread
//! waits, `events` what it sends, `counters` what it counts.

pub mod access;
mod access_counters;
mod attach;
mod code_tables;
pub mod counters;
mod cpu_affinity;
mod event_loop;
pub mod events;
pub mod exclusions;
mod line_fills;
mod pending_tracees;
mod progress_sampling;
mod ptrace_stops;
mod ring_events;
mod shared_regions;
mod string_op_cost;
mod tracees;
mod trap_cost;
pub mod watchdog;
mod watchpoints;
pub mod window_sampling;
mod windows;

pub use code_tables::{CodeTables, SharedCode};
pub use event_loop::{Capture, Command, Handle, Settings, UNGUARDED};
pub use progress_sampling::{METER_CLOCKS, READINGS};
pub use shared_regions::{Overlap, Regions, SharedRegions};
pub use tracees::REGISTERS;
pub use windows::{Wanted, Windows};

/// Name of the capture thread.
pub const THREAD: &str = "capture";

/// Most other threads of a process in which a watch is armed.
pub const SIBLINGS: usize = 16;
