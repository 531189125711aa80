//! Pure analyses and report printers: no I/O, no kernel, no root.
//!
//! Modules stand in the order in which data flows: the model, the arbiter that decides what is
//! observed, weights and intervals, who called what, one module per analysis, time distances to
//! stack distances and miss ratios, how alike two reports are, all findings together, and the
//! printers.

pub use locality_model as model;

pub use locality_arbiter as arbiter;

pub use locality_estimate::estimate;

pub use locality_estimate::context;
pub use locality_findings::observation;

pub use locality_estimate::rates;
pub use locality_estimate::subjects;
pub use locality_estimate::survival;

pub use locality_estimate::interval;

pub use locality_estimate::estimator;
pub use locality_estimate::regions;
pub use locality_estimate::stretches;

pub use locality_estimate::convergence;
pub use locality_estimate::reuse;

pub use locality_findings::analysis;
pub use locality_findings::histogram;
pub use locality_findings::hot;
pub use locality_findings::pairs;
pub use locality_findings::unseen;

pub use locality_mrc as convert;

pub use locality_findings::objects;

pub use locality_findings::cacheuse;

pub use locality_compare as similarity;

pub use locality_findings as findings;
/// The reports.
pub mod report {
    pub use locality_report::*;
    pub use locality_units::print as units;
}
