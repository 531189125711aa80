//! Durations, sizes, counts and shares as people read them, and line breaks.
//!
//! Not here: what a number means, and colours or columns of a report.

pub mod print;
pub mod wrap;
