//! `locality-bpf export FILE --to FORMAT`: reads a profile, writes a file for another program.

use std::{io::IsTerminal as _, process::ExitCode};

use anyhow::{Result, anyhow, bail};
use locality_exports::{self as exports, Exported, Options};
use locality_findings::{Findings, why_empty};
use locality_kernel::writing::{check_place, keep_apart, say, to_stdout};
use locality_report::json;
use locality_runner as exact;
use locality_units::parse::WrongUse;

use crate::cli::export_args::{ExportArgs, To};
use crate::plan::places;
use crate::private_file;

/// Exports a profile.
///
/// # Errors
/// A profile that cannot be read, is empty, or lacks
/// the data requested; a file that cannot be written.
pub fn run(args: &ExportArgs, quiet: bool) -> Result<ExitCode> {
    let file = args.file.as_path();
    match &args.output {
        Some(output) if keep_apart(output, &places(file)).is_err() => {
            bail!(WrongUse(format!(
                "the export would replace the profile {}: give -o another name",
                file.display()
            )));
        }
        Some(output) if args.to != To::Csv => {
            private_file::keep_apart(output, &[], "export", "-o")?;
            check_place(output, "export", "-o")?;
        }
        None if args.to == To::Csv => {
            bail!(WrongUse("csv is a folder of tables: say where with -o FOLDER".to_owned()));
        }
        None if matches!(args.to, To::Pprof | To::Otlp) && std::io::stdout().is_terminal() => {
            let (name, end) = if args.to == To::Pprof { ("pprof", "pb.gz") } else { ("otlp", "pb") };
            bail!(WrongUse(format!("{name}'s format is not for a terminal: say where with -o FILE.{end}")));
        }
        _ => {}
    }
    let options = Options { to: args.to.into(), metric: args.metric.clone(), end: args.end.into() };
    let unfit = |unfit: exports::Unfit| anyhow!(unfit).context(format!("cannot export {}", file.display()));
    let (exported, partial) = match exact::stored(file)? {
        Some(stored) => {
            if let Some(why) = &stored.empty {
                bail!("cannot export {}: {why}", file.display());
            }
            (exports::exact(&stored, &options).map_err(unfit)?, stored.partial)
        }
        None => {
            let mut profile = locality_profile::read(file)?;
            profile.make_printable();
            if let Some(why) = why_empty(&profile) {
                bail!("cannot export {}: {why}", file.display());
            }
            let findings = Findings::of(&profile);
            let report = json::report(&profile, &findings);
            (exports::live(&profile, &findings, &report, &options).map_err(unfit)?, profile.partial)
        }
    };
    match (&args.output, exported) {
        (Some(output), Exported::File(bytes)) => private_file::write(output, &bytes, "export", quiet)?,
        (Some(output), Exported::Folder(files)) => private_file::write_folder(output, &files, quiet)?,
        (None, Exported::File(bytes)) => to_stdout(&bytes)?,
        (None, Exported::Folder(_)) => bail!(WrongUse("say where with -o FOLDER".to_owned())),
    }
    if partial {
        say(&format!("the profile {} is not complete: `report` says what is missing", file.display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
