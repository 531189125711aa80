//! `locality-bpf compare A B`: reads two reports or profiles and prints the similarity.
//!
//! Not here: the meaning of the numbers (`locality_compare`). A profile
//! is recognised by the first bytes, not by name, and reported as by
//! `report --format json`. Limit: reports of more than 1 GiB are refused.

use std::{io::Read as _, path::Path};

use anyhow::{Context as _, Result, anyhow, bail};
use locality_compare::{
    print,
    reports::{self, Report, Unfit},
};
use locality_findings::Findings;
use locality_report::{
    json,
    schema::{self, Unreadable},
};
use locality_units::parse::WrongUse;

use crate::cli::Format;

/// First bytes of each SQLite file (sqlite.org/fileformat2.html, §1.3.1).
const SQLITE: &[u8] = b"SQLite format 3\0";
/// Larger files are no reports.
const MOST_BYTES: u64 = 1 << 30;

/// The comparison of two files, printed.
///
/// # Errors
/// An unreadable file or a file other than a report, with the name; reports without a common part.
pub fn run(a: &Path, b: &Path, format: Format) -> Result<String> {
    if matches!(format, Format::Callgrind | Format::Html) {
        let why = "a comparison is printed as text or json, not as a Callgrind file or a page";
        bail!(WrongUse(why.to_owned()));
    }
    let comparison = reports::compare(&read(a)?, &read(b)?).map_err(|unfit| {
        let both = format!("cannot compare {} (A) with {} (B)", a.display(), b.display());
        anyhow!(unfit).context(both)
    })?;
    let (a, b) = (a.display().to_string(), b.display().to_string());
    Ok(match format {
        Format::Json | Format::Json1 => json::page(&print::value(&comparison, &a, &b)),
        Format::Text | Format::Callgrind | Format::Html => print::text(&comparison, &a, &b),
    })
}

fn read(path: &Path) -> Result<Report> {
    let report = report_of(path)?;
    reports::read(&report).map_err(|unfit: Unfit| anyhow!("{} {unfit}", path.display()))
}

/// The report of a profile, or a report in JSON, with every row.
///
/// # Errors
/// An unreadable file, or neither report nor profile.
pub fn report_of(path: &Path) -> Result<schema::Report> {
    let name = path.display();
    let cannot = || format!("cannot read {name}");
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    if read.is_err() {
        // The reader of profiles has sentences for missing, foreign and unreadable files.
        locality_profile::read(path)?;
    }
    read.with_context(cannot)?;
    if bytes.len() as u64 > MOST_BYTES {
        bail!("{name} is larger than 1 GiB and no report: give a file of --format json or a profile");
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        bail!("{name} is empty: write the report again with --format json --report {name}");
    }
    if bytes.starts_with(SQLITE) { of_profile(path) } else { of_json(path, &bytes) }
}

fn of_profile(path: &Path) -> Result<schema::Report> {
    let mut profile = locality_profile::read(path)?;
    profile.make_printable();
    Ok(json::report(&profile, &Findings::of(&profile)))
}

fn of_json(path: &Path, bytes: &[u8]) -> Result<schema::Report> {
    schema::read(bytes).map_err(|unreadable: Unreadable| {
        let name = path.display();
        match Unfit::of(unreadable) {
            Ok(unfit) => anyhow!("{name} {unfit}"),
            Err(error) if error.is_eof() => {
                anyhow!("{name} ends in the middle of a report ({error}): write it again, its writer was interrupted")
            }
            Err(error) => {
                anyhow!("{name} is neither a profile nor a report in JSON ({error}): make one with --format json --report FILE")
            }
        }
    })
}
