//! Accesses per CPU nanosecond around a sample: by looking at progress, or from
//! hardware counters where readings have them.
//!
//! In the milliseconds around a stop the kernel side notes time, registers and some memory words of
//! the thread at a few clock ticks ([`Reading`]); the window at the stop ([`WindowView`]) says what
//! one step of a counting word or register stands for in accesses. [`Rates`] is one process: it takes
//! samples in order, says which words to read from now on, and gives each sample's rate with its
//! interval and [`Source`], at once and better at the end ([`Rates::rates`]).
//!
//! Modules in the order in which data flows: `types`, `window_digest` a window sorted with the help
//! of `table`, `steps` a quantity in one window, `induction` in all windows, `memory_counters` and
//! `register_counters` where quantities are found, `speed_fit` a quantity over the readings,
//! `string_ops` and `pmu` accesses that need no window, `combine` many tracks to a rate, `prior`
//! what is known without them (`core_limits` and `core_model`: a timing model), `rates`;
//! `counted_reuses` and `counted_distance` what registers tell of two touches.
//!
//! The timing model is public as [`Replay`]: the cycles of each instruction of a window, with all
//! limits of a [`Machine`] or with one removed.
//!
//! An access is what the window says is one. Pure: no I/O, no clocks. Not here: taking readings or windows.
//!
//! Sources of error: a window is microseconds, the readings span milliseconds, so a bursty counter
//! needs several windows until its accesses per step are known; a loop that wraps between two readings unseen
//! may look slower than it is, against which intervals of different lengths and several quantities
//! must agree; CPU time that the host took from the machine is counted as the thread's.

mod combine;
mod core_limits;
mod core_model;
mod counted_distance;
mod induction;
mod memory_counters;
mod pmu;
mod prior;
mod rates;
mod register_counters;
mod speed_fit;
mod steps;
mod string_ops;
mod table;
mod types;
mod window_digest;

pub use core_limits::{Level, Machine};
pub use core_model::{ChainClass, ChainStep, Constraint, Demand, Executed, Misses, Replay, Timing};
pub use rates::{Counts, Rates};
pub use types::{Estimate, Moment, Reading, Sample, SampleRate, Source, Span, WORDS, Wanted, WindowView};
