//! The controller: what happens around the capture thread. `session` runs a trace from start to
//! report, `recorder_thread` is the thread in which `recorder` turns events into rows of the model,
//! `profile_sink` writes them, `governor` keeps the cost within the budget, `run_summary` and
//! `event_ledger` sum up, `cpu_times` reads what the targets used, `calibrate` measures what a tick
//! and a trap cost here, `core_microbench` what its core can do, `launch` starts a command, in the
//! state that `inherited` read at the start, `object_thread` finds the data objects of addresses,
//! `object_types` the types of those without a name, `shared_memory` who shares watched memory,
//! `host` describes the machine.

pub mod calibrate;
mod calibration_cache;
pub mod call_stacks;
mod convergence;
pub mod core_microbench;
pub mod cpu_times;
mod debuggers;
pub mod event_ledger;
pub mod governor;
mod groups;
pub mod loop_tracking;
pub mod object_thread;
mod object_types;
pub mod parallelism_tracking;
pub mod plan;
pub mod profile_sink;
mod progress;
pub mod rate_tracking;
pub mod recorder;
pub mod recorder_thread;
pub mod run_summary;
mod sample_weights;
pub mod sampling_clock;
pub mod session;
mod shared_memory;
pub mod skid;
