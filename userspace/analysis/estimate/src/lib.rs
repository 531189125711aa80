//! From what was sampled and watched to distances with intervals: no I/O, no kernel.
//!
//! Modules stand in the order in which data flows: estimates with their intervals, who called what,
//! accesses from CPU time, uses as subjects that may be censored, survival, the estimators,
//! stretches of the run, and distances and miss ratios.
//!
//! Not here: time distances to stack distances (`locality-mrc`), and what a report says of them
//! (`locality-findings`).

pub mod interval_estimate;

pub mod calling_context;
mod thread_pools;

pub mod access_rates;
pub mod censored_uses;
pub mod kaplan_meier;

pub mod interval_censoring;

pub mod code_phases;
pub mod estimator;
pub mod run_segments;

pub mod convergence;
pub mod reuse;
