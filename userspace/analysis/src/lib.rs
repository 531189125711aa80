//! Pure analyses and report printers: no I/O, no kernel, no root.
//!
//! Modules stand in the order in which data flows: the model, the arbiter that decides what is
//! observed, weights and intervals, who called what, one module per analysis, time distances to
//! stack distances and miss ratios, how alike two reports are, all findings together, and the
//! printers.

pub use locality_model as model;

pub use locality_arbiter as arbiter;

pub mod estimate;

pub mod context;
pub mod observation;

pub mod rates;
pub mod subjects;
pub mod survival;

pub mod interval;

pub mod estimator;
pub mod regions;
pub mod stretches;

pub mod convergence;
pub mod reuse;

pub mod analysis;
pub mod histogram;
pub mod hot;
pub mod pairs;
pub mod unseen;

pub use locality_mrc as convert;

pub mod objects;

pub mod cacheuse;

pub use locality_compare as similarity;

pub mod findings;
pub mod report;

#[cfg(test)]
use locality_model::testing;
