//! Profiles in the formats of other programs: values in, bytes out.
//!
//! `table` has call paths with costs, `live` and `exact` make the table, and each format has a
//! module. Formats with several metrics contain all metrics, the chosen one first or selected.
//!
//! Not here: files, and the choice of a profile (`locality-bpf`).

pub mod callgrind;
pub mod costs;
mod csv_tables;
mod exact;
mod firefox;
mod folded;
mod live;
pub mod otlp;
mod path_costs;
mod pprof;
mod speedscope;
pub mod table;
mod wire;

use std::{fmt, str::FromStr};

use locality_findings::Findings;
use locality_model::Profile;
use locality_report::schema::Report;
use table::Table;

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Gzipped `profile.proto` of pprof.
    Pprof,
    /// A line a call path: flamegraph.pl, inferno, speedscope.
    Folded,
    /// JSON of <https://www.speedscope.app>.
    Speedscope,
    /// JSON of <https://profiler.firefox.com>.
    Firefox,
    /// Callgrind's format: KCachegrind, `callgrind_annotate`.
    Callgrind,
    /// A folder of tables, comma-separated.
    Csv,
    /// Profiles of OpenTelemetry, development version.
    Otlp,
}

/// Weight of call paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// Far reuses, in a million reuses.
    Far,
    /// Lines loaded into a level of cache.
    Misses(String),
    /// Bytes loaded into a level of cache and not used before the eviction.
    Wasted(String),
    /// Memory accesses.
    Accesses,
    /// CPU time in nanoseconds.
    Cpu,
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
        let level = level.map(str::to_uppercase).filter(|level| level.starts_with('L'));
        match (name, level) {
            ("far", None) if text == "far" => Ok(Self::Far),
            ("accesses", None) if text == "accesses" => Ok(Self::Accesses),
            ("cpu", None) if text == "cpu" => Ok(Self::Cpu),
            ("misses", Some(level)) => Ok(Self::Misses(level)),
            ("wasted", Some(level)) => Ok(Self::Wasted(level)),
            _ => Err("give far, misses:LEVEL, wasted:LEVEL, accesses or cpu, with a LEVEL like L1 or LLC"
                .to_owned()),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Far => f.write_str("far"),
            Self::Misses(level) => write!(f, "misses:{level}"),
            Self::Wasted(level) => write!(f, "wasted:{level}"),
            Self::Accesses => f.write_str("accesses"),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

/// The end of a pair of use and reuse that gives the call path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum End {
    /// Call path of the use.
    Use,
    /// Place of the reuse, after a cache has lost the data.
    #[default]
    Reuse,
}

/// Content and form of the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The format.
    pub to: Format,
    /// The metric; `None`: far reuses if any, else CPU time or the first available.
    pub metric: Option<Metric>,
    /// The call path of a pair.
    pub end: End,
}

/// An export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exported {
    /// A single file.
    File(Vec<u8>),
    /// Files of a folder, by name.
    Folder(Vec<(String, Vec<u8>)>),
}

/// Why a profile cannot be exported in the form asked for, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub String);

/// Exports a live profile. `report` is the profile's report with all rows.
///
/// # Errors
/// A metric missing in the profile.
pub fn live(
    profile: &Profile,
    findings: &Findings,
    report: &Report,
    options: &Options,
) -> Result<Exported, Unfit> {
    let lacking =
        "misses, wasted bytes and accesses need a trace with windows whose rate of accesses is known";
    let paths = || {
        let table = live::table(profile, findings, options.end);
        table.choose(options.metric.as_ref(), lacking).map(|chosen| (table, chosen))
    };
    let bytes = match options.to {
        Format::Csv => return csv_tables::of(report).map(Exported::Folder),
        Format::Firefox => {
            // A metric that the profile lacks is refused, although the format has all.
            paths()?;
            firefox::print(profile, findings)
        }
        Format::Callgrind => {
            let (table, chosen) = paths()?;
            path_costs::print(&table, chosen, report).into_bytes()
        }
        Format::Folded => print(&folded, paths()?, report),
        Format::Speedscope => print(&speedscope::print, paths()?, report),
        Format::Pprof => print(&pprof::print, paths()?, report),
        Format::Otlp => {
            let (table, chosen) = paths()?;
            let run = &profile.run;
            let time = (run.started_unix_ns, run.wall_ns);
            otlp::print(&[otlp::Part { resource: otlp::named(&run.command), table, chosen, time }])
        }
    };
    Ok(Exported::File(bytes))
}

/// Exports a stored exact report.
///
/// # Errors
/// A format or metric for live traces only, or a missing simulation of caches.
pub fn exact(report: &Report, options: &Options) -> Result<Exported, Unfit> {
    let lacking = "the call paths of an exact report have only far reuses: use --metric far, or --to callgrind for the costs of \
                   simulated caches";
    let paths = || {
        let table = exact::table(report, options.end);
        table.choose(options.metric.as_ref(), lacking).map(|chosen| (table, chosen))
    };
    let bytes = match options.to {
        Format::Csv => return csv_tables::of(report).map(Exported::Folder),
        Format::Firefox => {
            return Err(Unfit(
                "an exact report has no times, which Firefox's profiler needs: use --to speedscope, folded or pprof"
                    .to_owned(),
            ));
        }
        Format::Callgrind => {
            let costs = report.cache_use.as_ref().and_then(|cache_use| cache_use.costs.as_ref());
            let costs = costs.ok_or_else(|| {
                Unfit(
                    "this exact report has no simulated caches, whose costs a Callgrind file has: run `exact --cache-use` \
                     again"
                        .to_owned(),
                )
            })?;
            callgrind::print(costs, &callgrind::Header::of(report)).into_bytes()
        }
        Format::Folded => print(&folded, paths()?, report),
        Format::Speedscope => print(&speedscope::print, paths()?, report),
        Format::Pprof => print(&pprof::print, paths()?, report),
        Format::Otlp => {
            let (table, chosen) = paths()?;
            let resource = otlp::named(&report.run.command);
            // The report has no time of the run.
            otlp::print(&[otlp::Part { resource, table, chosen, time: (0, 0) }])
        }
    };
    Ok(Exported::File(bytes))
}

/// A format of call paths: the table, the chosen column and the report.
type Printer = dyn Fn(&Table, usize, &Report) -> Vec<u8>;

fn print(printer: &Printer, (table, chosen): (Table, usize), report: &Report) -> Vec<u8> {
    printer(&table, chosen, report)
}

fn folded(table: &Table, chosen: usize, _: &Report) -> Vec<u8> {
    folded::print(table, chosen).into_bytes()
}

#[cfg(test)]
mod tests;
