//! Options of `model`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Options of the execution model.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// The profile of a trace.
    pub file: PathBuf,
    /// Project to the machine of this file (docs/guide/execution-model.md); may be given several times.
    #[arg(long, value_name = "FILE")]
    pub machine: Vec<PathBuf>,
    /// Give an input another value: NAME=VALUE, or FUNCTION.NAME=VALUE where several functions have the
    /// name; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Take the skeleton from this file, as `--format skeleton` printed it and you edited it.
    #[arg(long, value_name = "FILE")]
    pub skeleton: Option<PathBuf>,
    /// How costs are modelled: schedule, the windows replayed with the miss ratios of the trace; paper, the
    /// extended roofline of the method's paper.
    #[arg(long, value_enum, default_value_t = CostArg::Schedule)]
    pub cost: CostArg,
    /// Compare with an exact run of the same program, as `locality-bpf exact -o EXACT -- COMMAND` stores it.
    /// For the formats text and json.
    #[arg(long, value_name = "EXACT")]
    pub check: Option<PathBuf>,
    /// Least share of the time that the hot spots shall hold, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 90.0, value_parser = percent)]
    pub coverage: f64,
    /// Greatest share of the code that the hot spots may be, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    pub leanness: f64,
    /// How to print: text for people, json for programs, skeleton to edit, dot for Graphviz, svg as a
    /// picture of the hot path, fdata for BOLT (taken branches of the program that has most of them).
    #[arg(long, value_enum, default_value_t = ModelFormat::Text)]
    pub format: ModelFormat,
    /// Write to this file, readable by you alone [default: stdout].
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
}

/// Models of costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the option's own text says what it is")]
pub enum CostArg {
    Schedule,
    Paper,
}

/// Formats of the execution model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the option's own text says what they are")]
pub enum ModelFormat {
    Text,
    Json,
    Skeleton,
    Dot,
    Svg,
    Fdata,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim().parse::<f64>().ok();
    number
        .filter(|number| (0.0..=100.0).contains(number))
        .ok_or_else(|| "a percentage is 0 to 100".to_owned())
}
