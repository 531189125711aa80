//! `locality-bpf diff BASE NEW`: reads both sides,
//! prints the changes; the exit status reports the gate.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Result, anyhow, bail};
use locality_diff::{self as diff, Input, Options, print};
use locality_kernel::writing::{check_place, keep_apart, to_stdout};
use locality_report::{json, schema::Report};
use locality_service::merge;
use locality_units::parse::WrongUse;

use crate::cli::diff_args::{DiffArgs, DiffFormat};
use crate::compare::report_of;
use crate::plan::places;
use crate::private_file;

/// Exit status of a regression.
const REGRESSION: u8 = 3;
/// Exit status with `--strict` for an inconclusive comparison.
const INCONCLUSIVE: u8 = 4;

/// Compares two sides.
///
/// # Errors
/// Files that cannot be read, are empty or cannot be compared; a file that cannot be written.
pub fn run(args: &DiffArgs, quiet: bool) -> Result<ExitCode> {
    let [base, new] = sides(args)?;
    if let Some(output) = &args.output {
        for file in base.iter().chain(&new) {
            if keep_apart(output, &places(file)).is_err() {
                let file = file.display();
                bail!(WrongUse(format!(
                    "the comparison would replace the profile {file}: give -o another name"
                )));
            }
        }
    }
    if let Some(output) = &args.output {
        private_file::keep_apart(output, &[], "comparison", "-o")?;
        check_place(output, "comparison", "-o")?;
    }
    let options =
        Options { fail_on: args.fail_on.clone(), renames: args.map.clone(), margin: args.margin / 100.0 };
    let (base, new) = (read(&base)?, read(&new)?);
    let diff = diff::compare(&base, &new, &options).map_err(|unfit| anyhow!(unfit))?;
    let page = match args.format {
        DiffFormat::Text => print::text(&diff),
        DiffFormat::Json => json::page(&diff),
        DiffFormat::Html => print::html(&diff),
        DiffFormat::Markdown => print::markdown(&diff),
        DiffFormat::Junit => print::junit(&diff),
        DiffFormat::Sarif => print::sarif(&diff),
        DiffFormat::Github => print::github(&diff),
    };
    match &args.output {
        Some(output) => private_file::write(output, page.as_bytes(), "comparison", quiet)?,
        None => to_stdout(page.as_bytes())?,
    }
    Ok(match (diff.failed, diff.inconclusive && args.strict) {
        (true, _) => ExitCode::from(REGRESSION),
        (false, true) => ExitCode::from(INCONCLUSIVE),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// Files of the base and of the new side. A bare file belongs to the side without files.
fn sides(args: &DiffArgs) -> Result<[Vec<PathBuf>; 2], WrongUse> {
    let (mut base, mut new) = (args.base.clone(), args.new.clone());
    match args.files.as_slice() {
        [] => {}
        [one] if base.is_empty() && !new.is_empty() => base.push(one.clone()),
        [one] if new.is_empty() && !base.is_empty() => new.push(one.clone()),
        [first, second] => {
            base.insert(0, first.clone());
            new.insert(0, second.clone());
        }
        _ => return Err(WrongUse("say which file is the base and which is new: `diff BASE NEW`".to_owned())),
    }
    if base.is_empty() || new.is_empty() {
        let side = if base.is_empty() { "base" } else { "new" };
        return Err(WrongUse(format!(
            "there is no profile of the {side} side: `locality-bpf diff BASE NEW`, or several a side by \
             --base and --new"
        )));
    }
    Ok([base, new])
}

fn read(files: &[PathBuf]) -> Result<Input> {
    let mut input = Input::default();
    for file in files {
        let report = report_of(file)?;
        if let Some(why) = &report.empty {
            bail!("cannot compare {}: {why}", file.display());
        }
        input.files.push(shown(file));
        input.reports.push(report);
    }
    merge::each_once(files.iter().map(PathBuf::as_path).zip(input.reports.iter().map(trace)))?;
    Ok(input)
}

/// What a report has in common with copies of the trace alone. Reports of traces have the start in seconds,
/// so the processes, times and samples belong to it.
fn trace(report: &Report) -> String {
    let run = &report.run;
    format!(
        "{} {:?} {:?} {:?} {:?} {:?}",
        run.started, run.started_unix_ns, run.pids, run.cpu_s, run.wall_s, run.samples
    )
}

fn shown(file: &Path) -> String {
    locality_model::printable(&file.display().to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Other};

    fn of(line: &str) -> Result<[usize; 2], String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        let Some(Other::Diff(args)) = cli.other else { panic!("no diff") };
        sides(&args).map(|sides| sides.map(|side| side.len())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_side_has_each_trace_once() {
        let folder = tempfile::tempdir().unwrap();
        let [a, copy] = ["a.json", "copy.json"].map(|name| folder.path().join(name));
        let with_cpu = |cpu_ns: u64| {
            let mut profile = locality_model::testing::loops::windowed();
            profile.run.cpu_ns = cpu_ns;
            json::page(&json::report(&profile, &locality_findings::Findings::of(&profile)))
        };
        std::fs::write(&a, with_cpu(7_000_000_000)).unwrap();
        std::fs::copy(&a, &copy).unwrap();
        let why = read(&[a.clone(), copy.clone()]).map(|input| input.files).unwrap_err();
        assert!(why.is::<WrongUse>() && why.to_string().contains("one trace"), "{why}");
        std::fs::write(&copy, with_cpu(8_000_000_000)).unwrap();
        assert_eq!(read(&[a, copy]).unwrap().reports.len(), 2);
    }

    #[test]
    fn sides_have_one_file_or_several() {
        assert_eq!(of("x diff a b"), Ok([1, 1]));
        assert_eq!(of("x diff --base a b c --new d e"), Ok([3, 2]));
        assert_eq!(of("x diff n --base a b"), Ok([2, 1]));
        assert_eq!(of("x diff a b --base c --new d e"), Ok([2, 3]));
        for wrong in ["x diff", "x diff a", "x diff --base a", "x diff a b c"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
