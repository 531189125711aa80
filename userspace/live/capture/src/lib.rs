//! The capture thread: stops, watchpoints and ring records of the targets.
//!
//! One OS thread holds the ptrace relation, drains the ring, drives the arbiter and arms
//! watchpoints. A stop needs no hand-over. The thread never touches memory that can block, never
//! symbolises, and sends everything else to the controller through a channel. Files: `event_loop`
//! the loop, `attach` seizing, `ptrace_stops` reports of ptrace, `ring_events` records of the ring,
//! `windows` shadow windows, `window_sampling` uses drawn in windows, `watchpoints` armed
//! watchpoints, `shared_regions` watches of shared words, `trap_cost` the present cost of traps,
//! `watchdog` the watchdog, `tracees` the traced threads, `pending_tracees` threads too young to be
//! traced, `excluded` programs that `exclude` describes, `aside` processes
//! left to debuggers, `cpu_affinity` the waiting thread's processor, `events` messages, `counters` counts.

pub mod access;
mod access_counters;
mod armed_cost;
pub mod aside;
mod attach;
mod code_tables;
pub mod counters;
mod cpu_affinity;
mod event_loop;
pub mod events;
pub mod exclude;
mod excluded;
pub mod exclusions;
pub mod line_fills;
mod pending_tracees;
mod progress_sampling;
mod ptrace_stops;
mod ring_events;
mod shared_regions;
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
