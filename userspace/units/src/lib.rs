//! Quantities as people type and read them: durations, percentages, sizes, counts; and line breaks.
//!
//! Not here: the options with quantities (the command line),
//! the meaning of a number, and colours or columns of a report.

pub mod parse;
pub mod print;
pub mod wrap;
