//! Options of `calibrate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Options of a calibration.
#[derive(Debug, Clone, Args)]
pub struct CalibrateArgs {
    /// How to print: text for people, toml as a machine file for `locality-bpf model FILE --machine`.
    #[arg(long, value_enum, default_value_t = CalibrateFormat::Text)]
    pub format: CalibrateFormat,
    /// Measure anew; `calibrate` always does.
    #[arg(long)]
    pub recalibrate: bool,
    /// Write to this file, readable by you alone [default: stdout].
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
}

/// Formats of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the option's own text says what they are")]
pub enum CalibrateFormat {
    Text,
    Toml,
}
