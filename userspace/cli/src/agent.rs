//! `agent` and related commands: segments, `query`, `release` and `merge`.

use std::{
    ffi::OsString,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser as _;
use locality_findings::why_empty;
use locality_kernel::{
    ending, proc,
    writing::{check_place, say, to_stdout},
};
use locality_profile::Owner;
use locality_rollup::Keys;
use locality_runner as exact;
use locality_service::{agent, merge as merging, query as asking};
use locality_tracer::{plan::Plan, session};
use locality_units::{parse::WrongUse, print::timestamp};

use crate::cli::{
    Cli,
    agent_args::{AgentArgs, MergeArgs, QueryArgs, QueryFormat, ReleaseArgs, WhomArgs},
    config,
};
use crate::mends;
use crate::plan::{self, places};

/// Runs an agent until a signal ends it.
///
/// # Errors
/// The agent cannot start.
pub fn run(args: AgentArgs, quiet: bool) -> Result<ExitCode> {
    let page = args.dry_run.then(|| config::page(&args));
    let words = words(&args.whom);
    let whom = &args.whom;
    let targets = whom.pids.iter().map(|pid| (*pid, proc::start_ticks(*pid).unwrap_or(0))).collect();
    let options = agent::Options {
        words: words.clone(),
        targets,
        own_percent: whom.own(),
        window: args.window,
        keys: Keys {
            by: whom.by().into(),
            cgroups: whom.cgroup.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        },
        store: args.store,
        store_bytes: args.store_bytes,
        listen: args.listen,
        listen_anywhere: args.listen_anywhere,
        collector: args.otlp,
        with_paths: !args.no_paths,
        quiet,
        only_for: args.only_for,
    };
    agent::check(&options)?;
    if let Some(page) = page {
        to_stdout(page.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    check(words, &args.whom.pids)?;
    agent::run(options).map(|()| ExitCode::SUCCESS)
}

/// Words of a trace of each segment, without named processes.
fn words(whom: &WhomArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["--overhead".into(), whom.overhead().to_string().into()];
    words.extend(targets(whom));
    words
}

/// Words that name who is traced, and who is not, without named processes.
pub fn targets(whom: &WhomArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if whom.all {
        words.push("--all".into());
    } else if whom.namespace {
        words.push("--namespace".into());
    }
    for path in &whom.cgroup {
        words.extend(["--cgroup".into(), path.clone().into_os_string()]);
    }
    for pattern in &whom.exclude {
        words.extend(["--exclude".into(), pattern.to_string().into()]);
    }
    words
}

/// Checks the options like the first segment.
fn check(mut words: Vec<OsString>, pids: &[u32]) -> Result<()> {
    words.splice(0..0, ["locality-bpf", "--segment", "1"].map(OsString::from));
    for pid in pids {
        words.extend(["--pid".into(), pid.to_string().into()]);
    }
    let cli = Cli::try_parse_from(words).context("a segment cannot be traced so")?;
    plan::plan(cli.trace, true).map(drop).map_err(worded)
}

/// Words of a trace's refusals, and of the agent's in their place.
const WORDS: [(&str, &str); 2] =
    [("-o FILE", "--store DIR"), ("-a traces that, without stops", "`agent --all` traces everything")];

/// A refusal of a trace with the options of the agent.
fn worded(error: anyhow::Error) -> anyhow::Error {
    let said = format!("{error:#}");
    let own = WORDS.iter().fold(said.clone(), |said, (of_trace, own)| said.replace(of_trace, own));
    if own == said { error } else { anyhow!(own) }
}

/// Traces one segment, without a report.
///
/// # Errors
/// The trace failed, or the file is not complete.
pub fn segment(plan: &Plan, agent: u32) -> Result<ExitCode> {
    if !locality_service::end_with_agent(agent) {
        bail!("a segment is traced for an agent, and there is none");
    }
    let plan = Plan { on_release: locality_service::say_released, ..plan.clone() };
    let outcome = session::run(&plan).map_err(worded)?;
    ending::complete(&outcome.file);
    match outcome.unwritten {
        Some(why) => {
            bail!("the segment is not complete: {why}{}", mends::of_full_disk(&why, "--store DIR"))
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Prints an agent's rollups.
///
/// # Errors
/// The store is missing or empty.
pub fn query(args: &QueryArgs) -> Result<ExitCode> {
    let is_json = args.format == QueryFormat::Json;
    let page = asking::page(&args.store, args.group.as_deref(), args.since, is_json)?;
    to_stdout(page.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Makes an agent release the traced programs.
///
/// # Errors
/// No agent, or no answer of the agent.
pub fn release(args: &ReleaseArgs, quiet: bool) -> Result<ExitCode> {
    locality_service::release::all(&args.store, args.time)?;
    if !quiet {
        let until = SystemTime::now() + args.time;
        let until = until.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        say(&format!("all programs are released until {}", timestamp(until)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Merges several profiles into a file.
///
/// # Errors
/// A profile is unreadable or unlike the rest, or the file cannot be written.
pub fn merge(args: &MergeArgs, quiet: bool) -> Result<ExitCode> {
    for file in &args.files {
        let canonical = |path: &std::path::Path| std::fs::canonicalize(path).ok();
        let own = canonical(file);
        if places(&args.output).iter().any(|place| own.is_some() && canonical(place) == own) {
            bail!(WrongUse(format!("the merge would replace {}: give -o another name", file.display())));
        }
        if exact::stored(file)?.is_some() {
            bail!("{} is of an exact run: only traces can be merged", file.display());
        }
    }
    check_place(&args.output, "profile", "-o")?;
    let profile = merging::files(&args.files)?;
    if let Some(why) = why_empty(&profile) {
        bail!("nothing is merged: {why}");
    }
    locality_profile::write(&args.output, &profile, Owner::of_sudo())?;
    if !quiet {
        say(&format!("profile written to {}", args.output.display()));
    }
    if profile.partial {
        say("one of the profiles is not complete: `report` says what is missing");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_trace_name_the_agents_options() {
        let path = std::path::PathBuf::from("/s/x");
        let full = locality_tracer::profile_sink::unwritable(locality_profile::Error::DiskFull { path });
        let said = worded(full).to_string();
        assert!(said.contains("--store DIR: no space left") && !said.contains("-o FILE"), "{said}");
        let said =
            worded(anyhow!("this is the whole machine: -a traces that, without stops; or")).to_string();
        assert_eq!(said, "this is the whole machine: `agent --all` traces everything; or");
        assert!(worded(WrongUse("another".to_owned()).into()).is::<WrongUse>());
    }
}
