//! The command line: parses, calls the commands, prints,
//! and turns errors into one sentence and an exit status.

use std::{io::IsTerminal as _, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use locality_approximate::{Accesses, Options};
use locality_bpf::agent;
use locality_bpf::calibrate;
use locality_bpf::cli::{
    Format, Other, OutputArgs,
    colour::When,
    exact_args::ExactArgs,
    html::HtmlArgs,
    order, pages,
    part::{self, PartArgs},
};
use locality_bpf::compare;
use locality_bpf::diff;
use locality_bpf::export;
use locality_bpf::html::{self, Wanted};
use locality_bpf::mends;
use locality_bpf::model;
use locality_bpf::objects;
use locality_bpf::pager;
use locality_bpf::plan::{self, keep_apart};
use locality_bpf::private_file;
use locality_bpf::top as live;
use locality_capture::watchdog;
use locality_doctor as doctor;
use locality_estimate::estimator::Estimator;
use locality_findings::{Findings, why_empty};
use locality_kernel::{
    ending, launch, sys,
    writing::{check_place, say, to_file, to_stdout, to_stream},
};
use locality_model::{Profile, printable};
use locality_report::{
    json, schema,
    text::{self, Part, Style, screen},
    top,
};
use locality_runner as exact;
use locality_tracer::{
    plan::{Plan, Targets},
    session,
};
use locality_units::parse::WrongUse;

fn main() -> ExitCode {
    // The window process and further helpers run the same program.
    locality_shadow::helper::become_helper_if_asked();
    watchdog::become_guard_if_asked();
    locality_kernel::uprobe::become_probe_process_if_asked();
    locality_symbols::become_symboliser_if_asked();
    locality_service::become_helper_if_asked();
    let cli = match order::parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(page) => return show(&page),
    };
    let when = cli.color;
    let place = Place { launched: false, quiet: cli.quiet, when };
    log_to_stderr(cli.verbose, when.on(&std::io::stderr()));
    // Files of reports need looser limits; a launched command must inherit the original limits.
    if !matches!(cli.other, None | Some(Other::Exact(_))) {
        sys::loosen_limits();
        ending::by_default();
    }
    let done = match cli.other {
        Some(Other::Report { file, estimator, first, output, part, html }) => {
            let output = html.placed(output);
            report(&file, estimator, first, &Printing { output, part, html }, place)
        }
        Some(Other::Compare { a, b, format }) => compare::run(&a, &b, format)
            .and_then(|page| to_stdout(page.as_bytes()))
            .map(|()| ExitCode::SUCCESS),
        Some(Other::Diff(args)) => diff::run(&args, cli.quiet),
        Some(Other::Model(args)) => model::run(&args, cli.quiet),
        Some(Other::Export(args)) => export::run(&args, cli.quiet),
        Some(Other::Agent(args)) => agent::run(args, cli.quiet),
        Some(Other::Top(args)) => live::run(&args, when),
        Some(Other::Query(args)) => agent::query(&args),
        Some(Other::Release(args)) => agent::release(&args, cli.quiet),
        Some(Other::Merge(args)) => agent::merge(&args, cli.quiet),
        Some(Other::Objects {
            file,
            against,
            level,
            skid,
            simulate_skid,
            ignore_lines: ignore,
            estimator,
            output,
        }) => {
            // Misses of stores count like misses of loads.
            let accesses = Accesses::ReadsAndWrites;
            let options = Options { level: level.into(), skid, accesses, ignore, ..Options::default() };
            let against = against.map(|_| objects::Against { options, displace: simulate_skid });
            list_objects(&file, estimator, against.as_ref(), &output, place)
        }
        Some(Other::Exact(args)) => run_exactly(*args, cli.quiet, when),
        Some(Other::Doctor { pid, json }) => examine(pid, json, when),
        Some(Other::Calibrate(args)) => calibrate::run(&args, cli.quiet),
        Some(Other::Completions { shell }) => {
            to_stdout(&pages::completions(shell)).map(|()| ExitCode::SUCCESS)
        }
        Some(Other::Man { folder }) => pages::manual(&folder).map(|()| ExitCode::SUCCESS),
        None => {
            let (output, part, agent) = (cli.trace.print.clone(), cli.trace.part, cli.trace.segment);
            let print = Printing { output, part, html: HtmlArgs::default() };
            not_callgrind(&print.output)
                .and_then(|()| Ok(print.part.check(print.output.format)?))
                .and_then(|()| plan::plan(cli.trace, cli.quiet))
                .and_then(|plan| match agent {
                    Some(agent) => agent::segment(&plan, agent),
                    None => trace(&plan, &print, when),
                })
        }
    };
    done.unwrap_or_else(|error| {
        say(&sentence(&error));
        match error.downcast_ref::<launch::CannotRun>() {
            Some(refused) => ExitCode::from(refused.exit_code()),
            None if error.is::<WrongUse>() => ExitCode::from(2),
            None => ExitCode::FAILURE,
        }
    })
}

/// An error with the causes in one line, without repeated
/// causes. (`-v` shows the hundreds of lines of the verifier.)
fn sentence(error: &anyhow::Error) -> String {
    tracing::debug!("{error:?}");
    // A cause may contain the name of a process or a file, chosen by a stranger.
    let said = error.chain().map(ToString::to_string).fold(String::new(), |said, cause| {
        let cause = &printable(cause.lines().next().unwrap_or_default());
        match (said.is_empty(), said.contains(cause.as_str())) {
            (true, _) => cause.to_owned(),
            (_, true) => said,
            _ => format!("{said}: {cause}"),
        }
    });
    match mends::of(error, &said).filter(|mend| !said.contains(mend.as_str())) {
        Some(mend) => format!("{said}; {mend}"),
        None => said,
    }
}

/// Prints a page of the parser in place of work.
fn show(page: &order::Page) -> ExitCode {
    let (to, text): (&mut dyn std::io::Write, _) = match (page.is_answer, &page.coloured, &page.plain) {
        (true, coloured, plain) => {
            (&mut std::io::stdout(), if page.when.on(&std::io::stdout()) { coloured } else { plain })
        }
        (false, coloured, plain) => {
            (&mut std::io::stderr(), if page.when.on(&std::io::stderr()) { coloured } else { plain })
        }
    };
    match (to_stream(to, text.as_bytes()), page.is_answer) {
        (Ok(()), true) => ExitCode::SUCCESS,
        (_, false) => ExitCode::from(2),
        (Err(_), true) => ExitCode::FAILURE,
    }
}

fn log_to_stderr(verbose: u8, colour: bool) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(colour)
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
}

fn trace(plan: &Plan, printing: &Printing, when: When) -> Result<ExitCode> {
    let mut outcome = session::run(plan)?;
    if outcome.unwritten.is_none() {
        ending::complete(&outcome.file);
    }
    outcome.profile.make_printable();
    let place = Place { launched: matches!(plan.targets, Targets::Command(_)), quiet: plan.quiet, when };
    let printed = print(&outcome.profile, plan.estimator, &outcome.file, printing, place);
    match &outcome.unwritten {
        Some(why) => {
            let mend = mends::of_full_disk(why, "-o FILE");
            say(&format!("the profile is not complete: {why}{mend}"));
        }
        None if plan.quiet => {}
        None => say(&format!("profile written to {}", outcome.file.display())),
    }
    ending::printed();
    let printed = printed.map_err(|error| match &outcome.unwritten {
        Some(_) => error,
        None => {
            let how = ending::command_that_prints(&outcome.file);
            anyhow::anyhow!("{}; the profile is complete: `{how}` prints it", sentence(&error))
        }
    });
    if let Some(command) = outcome.command {
        let status = command.wait().context("cannot wait for the command")?;
        if let Some(how) = launch::ended_by_signal(status).filter(|_| !plan.quiet) {
            say(&format!("the command was ended by {how}"));
        }
        printed?;
        return Ok(ExitCode::from(exit_status(launch::exit_code(status), outcome.unwritten.is_none())));
    }
    printed?;
    Ok(if outcome.unwritten.is_some() { ExitCode::FAILURE } else { success(&outcome.profile) })
}

/// The command's exit status; 1 where only the command succeeded.
fn exit_status(of_command: u8, is_success: bool) -> u8 {
    if of_command == 0 { u8::from(!is_success) } else { of_command }
}

/// Samples have no costs of every line and call.
fn not_callgrind(output: &OutputArgs) -> Result<()> {
    if output.format == Format::Callgrind {
        let how = "`locality-bpf exact --format callgrind --report FILE -- COMMAND`";
        bail!(WrongUse(format!("only an exact run has the costs of a Callgrind file: {how}")));
    }
    Ok(())
}

/// The command owns stdout and sets the exit status, unless only the command succeeded.
/// A report that cannot be written to the file is printed, if no profile is stored.
fn run_exactly(args: ExactArgs, quiet: bool, when: When) -> Result<ExitCode> {
    let place = Place { launched: true, quiet, when };
    let print = args.print.clone();
    let profile = args.output.clone();
    let page = (&HtmlArgs::default(), profile.as_deref());
    if let Some(report) = &print.report {
        private_file::keep_apart(report, &[], "report", "--report")?;
    }
    let exact::Outcome { report, exit_status, file, death } = exact::run(&args.into())?;
    if let Some(how) = death.filter(|_| !quiet) {
        say(&format!("the command was ended by {how}"));
    }
    let mut failed = report.empty.is_some();
    let mut is_stored = false;
    match file.map(|file| exact::store(&report, file)) {
        Some(Ok(file)) => {
            is_stored = true;
            exact::ending::stored(&file);
            if !quiet {
                say(&format!("profile written to {}", file.display()));
            }
        }
        Some(Err(error)) => {
            failed = true;
            say(&format!("the profile is not stored: {}", sentence(&error)));
        }
        None => {}
    }
    if let Err(error) = print_exact(&report, &print, page, place) {
        failed = true;
        say(&sentence(&error));
        if print.report.is_some() && !is_stored {
            print_exact(&report, &OutputArgs { report: None, ..print.clone() }, page, place)?;
        }
    }
    Ok(ExitCode::from(self::exit_status(exit_status, !failed)))
}

/// `html`: options of a page, and the page's profile.
fn print_exact(
    report: &schema::Report,
    output: &OutputArgs,
    html: (&HtmlArgs, Option<&Path>),
    place: Place,
) -> Result<()> {
    let page = match output.format {
        Format::Html => {
            let Place { launched, quiet, .. } = place;
            let (args, profile) = html;
            let wanted = Wanted { args, output, profile, launched, quiet };
            return html::write(exact::without_costs(report.clone()), None, &wanted);
        }
        Format::Json => {
            let mut report = exact::without_costs(report.clone());
            top::tables(&mut report, output.top);
            json::page(&report)
        }
        Format::Json1 => {
            let mut report = exact::without_costs(report.clone());
            output.top.into_iter().for_each(|rows| top::cut(&mut report, rows, false));
            json::page(&report)
        }
        Format::Text => exact::text::print(report, output.top.unwrap_or(text::TOP)),
        Format::Callgrind => exact::callgrind(report)?,
    };
    put(&page, output, place)
}

fn report(
    file: &Path,
    estimator: Estimator,
    first: Option<Duration>,
    printing: &Printing,
    place: Place,
) -> Result<ExitCode> {
    let Printing { output, part, html } = printing;
    part.check(output.format)?;
    html.check(output.format)?;
    keep_apart(output, file)?;
    if let Some(stored) = exact::stored(file)? {
        if first.is_some() {
            bail!("{} is an exact report, which has no first seconds: leave --first out", file.display());
        }
        if let Some(flag) = part.flag().filter(|_| !part.full) {
            bail!("{} is an exact report, whose text has no parts: leave {flag} out", file.display());
        }
        print_exact(&stored, output, (html, Some(file)), place)?;
        return Ok(if stored.empty.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    not_callgrind(output)?;
    let mut profile = locality_profile::read(file)?;
    profile.make_printable();
    if let Some(first) = first {
        let whole_ns = profile.run.wall_ns;
        profile = profile.first(first.as_nanos() as u64);
        if profile.run.wall_ns < whole_ns {
            profile.notices.push(format!(
                "Only the first {} s of the trace, with rates learnt from all of it; losses are those of the whole.",
                first.as_secs_f64()
            ));
        }
    }
    print(&profile, estimator, file, printing, place)?;
    if profile.partial {
        return Ok(incomplete(file, "the report"));
    }
    Ok(success(&profile))
}

/// The rest of an incomplete profile was printed: no success, for data are missing.
fn incomplete(file: &Path, what_says: &str) -> ExitCode {
    say(&format!("the profile {} is not complete: {what_says} says what is missing", file.display()));
    ExitCode::FAILURE
}

fn list_objects(
    file: &Path,
    estimator: Estimator,
    against: Option<&objects::Against>,
    output: &OutputArgs,
    place: Place,
) -> Result<ExitCode> {
    keep_apart(output, file)?;
    let colour = in_colours(output, place);
    let style = if colour { Style::Ansi } else { Style::Plain };
    let options = text::Options { top: output.top, style };
    let listed = objects::run(file, estimator, against, output.format, options)?;
    put(&listed.page, output, place)?;
    Ok(if listed.is_complete { ExitCode::SUCCESS } else { incomplete(file, "`locality-bpf report`") })
}

/// Exit status 1: a trace is not possible.
fn examine(pid: Option<u32>, as_json: bool, when: When) -> Result<ExitCode> {
    let report = doctor::examine(pid);
    let mut page = Vec::new();
    if as_json {
        doctor::print_json(&report, &mut page)?;
    } else {
        let colour = when.on(&std::io::stdout());
        doctor::print_text(&report, doctor::Style { colour }, &mut page)?;
    }
    to_stdout(&page)?;
    Ok(if report.possible { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Options and part of a printed report.
struct Printing {
    output: OutputArgs,
    part: PartArgs,
    html: HtmlArgs,
}

/// Destination of a report without a file.
#[derive(Clone, Copy)]
struct Place {
    /// A launched command owns stdout.
    launched: bool,
    quiet: bool,
    when: When,
}

/// Whether a report has colours at the destination.
fn in_colours(output: &OutputArgs, Place { launched, when, .. }: Place) -> bool {
    match (&output.report, launched) {
        (Some(_), _) => when.in_file(),
        (None, true) => when.on(&std::io::stderr()),
        (None, false) => when.on(&std::io::stdout()),
    }
}

/// An empty report is no success.
fn success(profile: &Profile) -> ExitCode {
    match why_empty(profile) {
        Some(_) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}

/// Prints a report to the file given, or to stdout; to stderr if a launched command owns stdout.
fn print(
    profile: &Profile,
    estimator: Estimator,
    file: &Path,
    Printing { output, part, html }: &Printing,
    place: Place,
) -> Result<()> {
    let findings = Findings::with(profile, estimator);
    let mut page = match output.format {
        Format::Html => {
            let Place { launched, quiet, .. } = place;
            let wanted = Wanted { args: html, output, profile: Some(file), launched, quiet };
            return html::write(json::report(profile, &findings), Some(profile), &wanted);
        }
        Format::Json | Format::Json1 => {
            if let Some(why) = why_empty(profile) {
                say(&why);
            }
            let mut report = json::report(profile, &findings);
            if output.format == Format::Json {
                top::tables(&mut report, output.top);
            } else {
                json::as_earlier(&mut report, &findings);
                output.top.into_iter().for_each(|rows| top::cut(&mut report, rows, false));
            }
            json::page(&report)
        }
        Format::Text => {
            let report = json::report(profile, &findings);
            let here = std::env::current_dir().ok();
            let style = if in_colours(output, place) { Style::Ansi } else { Style::Plain };
            match part.part() {
                Part::Screen => screen::print(
                    &report,
                    &screen::Options {
                        columns: columns(output, place),
                        ascii: part::is_ascii(),
                        style,
                        top: output.top,
                        file: Some(ending::argument(as_typed(file, here.as_deref()))),
                    },
                ),
                part => {
                    text::part(profile, &findings, &report, part, text::Options { top: output.top, style })
                }
            }
        }
        Format::Callgrind => return not_callgrind(output),
    };
    if !page.ends_with('\n') {
        page.push('\n');
    }
    let is_paged = part.full && output.report.is_none() && !place.launched && std::io::stdout().is_terminal();
    if is_paged && pager::show(&page) {
        return Ok(());
    }
    put(&page, output, place)
}

/// A file's path relative to the working directory, for a command line; absolute where that is the root.
fn as_typed<'a>(file: &'a Path, here: Option<&Path>) -> &'a Path {
    let here = here.filter(|here| here.parent().is_some());
    here.and_then(|here| file.strip_prefix(here).ok()).unwrap_or(file)
}

/// Columns of the report's terminal.
fn columns(output: &OutputArgs, place: Place) -> Option<usize> {
    match (&output.report, place.launched) {
        (Some(_), _) => None,
        (None, true) => part::columns(&std::io::stderr()),
        (None, false) => part::columns(&std::io::stdout()),
    }
}

/// Writes to the file given, or to stdout; to stderr if a launched command owns stdout.
fn put(page: &str, output: &OutputArgs, place: Place) -> Result<()> {
    match (&output.report, place.launched) {
        (Some(file), _) => {
            check_place(file, "report", "--report")?;
            private_file::keep_apart(file, &[], "report", "--report")?;
            to_file(file, page.as_bytes(), "report", place.quiet)
        }
        (None, true) => to_stream(std::io::stderr(), page.as_bytes()),
        (None, false) => to_stdout(page.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_file_is_no_success_of_a_command() {
        let of = |status| [true, false].map(|is_success| exit_status(status, is_success));
        assert_eq!([of(0), of(7), of(139)], [[0, 1], [7, 7], [139, 139]]);
    }

    #[test]
    fn a_path_below_the_working_directory_is_short() {
        let of = |file: &'static str, here: &str| as_typed(Path::new(file), Some(Path::new(here)));
        assert_eq!(of("/home/u/t.locality", "/home/u"), Path::new("t.locality"));
        assert_eq!(of("/tmp/a/t.locality", "/"), Path::new("/tmp/a/t.locality"));
        assert_eq!(of("/tmp/t.locality", "/home"), Path::new("/tmp/t.locality"));
        assert_eq!(of("t.locality", "/home"), Path::new("t.locality"));
    }
}
