//! Quantities as people type and read them: durations, percentages, sizes.
//!
//! Not here: which options take them (the command line).

pub mod parse;
