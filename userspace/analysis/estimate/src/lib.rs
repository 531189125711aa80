//! From what was sampled and watched to distances with intervals: no I/O, no kernel.
//!
//! Modules stand in the order in which data flows: estimates with their intervals, who called what,
//! accesses from CPU time, uses as subjects that may be censored, survival, the estimators,
//! stretches of the run, and distances and miss ratios.
//!
//! Not here: time distances to stack distances (`locality-mrc`), and what a report says of them
//! (`locality-findings`).

pub mod estimate;

pub mod context;

pub mod rates;
pub mod subjects;
pub mod survival;

pub mod interval;

pub mod estimator;
pub mod regions;
pub mod stretches;

pub mod convergence;
pub mod reuse;
