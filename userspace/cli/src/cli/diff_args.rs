//! Options of `diff`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use locality_diff::{condition::Condition, matching::Rename};
use locality_units::parse as units;

/// Options of a comparison of two sides.
#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// The profile of the base, then the new one; or their reports in JSON.
    #[arg(value_name = "BASE NEW", num_args = 0..=2)]
    pub files: Vec<PathBuf>,
    /// Profiles of the base. Several show the variation from run to run.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub base: Vec<PathBuf>,
    /// Profiles of the new side.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub new: Vec<PathBuf>,
    /// Exit with status 3 where this certainly holds, as in 'misses:LLC > +10 %'; may be given several times
    /// [default: where misses or wasted bytes of the whole run certainly grew].
    ///
    /// Quantities: misses:LEVEL or misses:SIZE per 1,000 line touches (L1 … LLC, 32K, 1M, 32M),
    /// wasted:LEVEL and memory (bytes per access), footprint. Thresholds: +10 % and +5/1000 of the
    /// difference, 20/1000 and 4 B of the new side. A condition holds where the bound of the 95 %
    /// interval that is nearer to no change exceeds the threshold.
    #[arg(long, value_name = "CONDITION")]
    pub fail_on: Vec<Condition>,
    /// Exit with status 4 where neither a regression nor its absence is certain.
    #[arg(long)]
    pub strict: bool,
    /// Changes below this percentage of the base count as unchanged.
    #[arg(long, value_parser = units::percent, default_value = "10", value_name = "PERCENT")]
    pub margin: f64,
    /// Replace a text in names of functions, files and objects of the base: s/OLD/NEW/. May be given several
    /// times.
    #[arg(long, value_name = "s/OLD/NEW/")]
    pub map: Vec<Rename>,
    /// text for people, json for programs (locality-diff/1), html for browsers, markdown for
    /// comments, junit, sarif and github (annotations) for CI.
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub format: DiffFormat,
    /// Write to this file [default: stdout].
    #[arg(short, long, value_name = "OUT", alias = "report")]
    pub output: Option<PathBuf>,
}

/// Formats of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the option's own text says what they are")]
pub enum DiffFormat {
    Text,
    Json,
    Html,
    Markdown,
    Junit,
    Sarif,
    Github,
}
