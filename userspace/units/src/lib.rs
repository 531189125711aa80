//! Quantities as people type and read them: durations, percentages, sizes, counts; and line breaks.
//!
//! Not here: which options take them (the command line), what a number means, and colours or
//! columns of a report.

pub mod parse;
pub mod print;
pub mod wrap;
