//! The report as one HTML file: script, style and data are inside, and nothing is fetched.
//!
//! Input are a typed report, the profile of the report (samples over time, threads), and
//! texts of source files. [`page`] packs the input as tables (`locality-view/1`, an internal
//! format), deflates the tables, and puts them with the checked-in script and style (`dist/`,
//! made of `ui/` by `cargo xtask ui`) into one page. Names come from the traced program: the
//! page has names as base64 only, and the script shows names by `textContent` only.
//!
//! Not here: reading files, and starting a browser (`cli`).

mod numbers;
mod pack;
mod paths;
mod shell;
mod sources;

use locality_model::Profile;
use locality_report::schema::{Report, tables};
use locality_report::top;

pub use sources::{Source, files};

/// The script of every page.
pub const SCRIPT: &str = include_str!("../dist/report.js");
/// The style of every page.
pub const STYLE: &str = include_str!("../dist/report.css");

/// The page of a report in memory: `profile` is the live trace's.
///
/// All pairs, unless `rows` bounds those that are not far; other tables have [`top::ROWS`] rows, or `rows`.
pub fn page(
    mut report: Report,
    profile: Option<&Profile>,
    sources: &[Source],
    rows: Option<usize>,
) -> String {
    let pairs = rows.is_none().then(|| std::mem::take(&mut report.pairs));
    top::cut(&mut report, rows.unwrap_or(top::ROWS), rows.is_none());
    report.pairs = pairs.unwrap_or(report.pairs);
    tables::fold(&mut report);
    let fallback = shell::fallback(&report);
    let title = report.run.command.clone();
    let data = pack::pack(report, profile, sources);
    shell::page(&title, &fallback, &shell::deflated(data.as_bytes()))
}

#[cfg(test)]
mod tests;
