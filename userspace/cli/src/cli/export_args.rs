//! Options of `export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use locality_exports::{End, Format, Metric};

/// Options of an export.
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// The profile, of a trace or of `exact -o`.
    pub file: PathBuf,
    /// The format: pprof, folded (flame graphs), speedscope, firefox (profiler.firefox.com), callgrind
    /// (KCachegrind), csv (a folder of tables), otlp (OpenTelemetry, v1development).
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: To,
    /// Write to this file, or folder of tables, readable by you alone [default: stdout; csv needs one].
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// What call paths are weighted by: far (far reuses, in a million reuses), misses:LEVEL, wasted:LEVEL
    /// (bytes loaded but not used), accesses, or cpu; with LEVEL L1, L2 or LLC [default: far, else the
    /// first that the profile has].
    ///
    /// pprof, OTLP, speedscope and callgrind files have all metrics, and show this one first.
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<Metric>,
    /// Which call path stands for a far reuse.
    #[arg(long, value_enum, default_value_t = EndArg::Reuse, value_name = "END")]
    pub end: EndArg,
}

/// Formats of exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the option's own text says what they are")]
pub enum To {
    Pprof,
    Folded,
    Speedscope,
    Firefox,
    Callgrind,
    Csv,
    Otlp,
}

impl From<To> for Format {
    fn from(to: To) -> Self {
        match to {
            To::Pprof => Self::Pprof,
            To::Folded => Self::Folded,
            To::Speedscope => Self::Speedscope,
            To::Firefox => Self::Firefox,
            To::Callgrind => Self::Callgrind,
            To::Csv => Self::Csv,
            To::Otlp => Self::Otlp,
        }
    }
}

/// Ends of a reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
pub enum EndArg {
    Use,
    Reuse,
}

impl From<EndArg> for End {
    fn from(end: EndArg) -> Self {
        match end {
            EndArg::Use => Self::Use,
            EndArg::Reuse => Self::Reuse,
        }
    }
}
