//! The user's options on the machine: targets that
//! exist and may be traced, or one sentence of refusal.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use locality_common::config::CGROUPS_MAX;
use locality_units::parse::WrongUse;

use crate::cli::{HeapArg, OutputArgs, TraceArgs};
use crate::private_file;

use locality_tracer::plan::{Following, Plan, Recorded, Targets};

use locality_heap as heap;

use locality_kernel::{
    cgroup,
    machine::{self, check_rights},
    proc, writing,
};

/// Profile when `-o` is not given.
const DEFAULT_PROFILE: &str = "trace.locality";

/// Checks options and targets before any effect.
pub fn plan(args: TraceArgs, quiet: bool) -> Result<Plan> {
    check_rights(!args.no_window && !args.no_stop && (!args.all || args.segment.is_some()))?;
    let targets = if args.all {
        Targets::All
    } else if args.namespace {
        if !proc::in_pid_namespace() {
            bail!(
                "this pid namespace is the machine's first one, so --namespace would be the whole machine: -a traces \
                 that, without stops; -p and --cgroup name a part of it"
            );
        }
        Targets::Namespace
    } else if !args.command.is_empty() {
        Targets::Command(args.command)
    } else if !args.cgroup.is_empty() {
        if args.cgroup.len() > CGROUPS_MAX as usize {
            bail!("at most {CGROUPS_MAX} cgroups can be traced at once");
        }
        let found: Result<_> = args.cgroup.iter().map(|path| cgroup::target(path)).collect();
        Targets::Cgroups(found?, args.cgroup)
    } else {
        for pid in &args.pids {
            check_process(*pid)?;
        }
        let mut pids = args.pids;
        let mut seen = HashSet::new();
        pids.retain(|pid| seen.insert(*pid));
        Targets::Processes(pids)
    };
    let profile = args.output.unwrap_or_else(|| DEFAULT_PROFILE.into());
    if let Some(report) = &args.print.report {
        private_file::keep_apart(report, &[], "report", "--report")?;
        writing::check_report(report, &places(&profile))?;
    }
    if args.user_only
        && let Some(why) = locality_kernel::machine::cannot_pass()
    {
        bail!("{why}");
    }
    let launched = matches!(targets, Targets::Command(_));
    let heap = match args.heap {
        Some(HeapArg::Preload) if !launched => bail!(WrongUse(
            "--heap=preload needs a command to launch: --heap=probes follows the allocations of a running \
             program"
                .to_owned()
        )),
        Some(HeapArg::Off) => Following::Off,
        Some(HeapArg::Probes) => Following::Probes,
        _ if args.no_heap => Following::Off,
        _ if launched => Following::Preload,
        Some(_) => Following::Probes,
        None if args.heap_min.is_some() => Following::Probes,
        None => Following::Off,
    };
    let watch_unheld = args.watch_unheld || !machine::in_virtual_machine();
    let is_segment = args.segment.is_some();
    let is_named = matches!(targets, Targets::Processes(_));
    if (args.no_stop || (targets == Targets::All && !is_segment)) && !watch_unheld {
        bail!(
            "in a virtual machine a watchpoint can end a thread that is not paused (about one trap in \
             36,000, on hosts before Linux 6.14): trace processes with -p or a cgroup, without --no-stop, \
             or add --watch-unheld to take that risk"
        );
    }
    Ok(Plan {
        watch_unheld,
        windows: !args.no_window,
        registers: args.registers,
        recalibrate: args.recalibrate,
        // Nobody reads the parallelism of an agent's segment.
        recorded: Recorded { values: !args.no_values, parallelism: !args.no_parallelism && !is_segment },
        user_only: args.user_only,
        heap,
        heap_min: args.heap_min.unwrap_or(heap::MIN_BYTES),
        // Stops of every thread of a machine would show a tracer to each program,
        // so only an agent, set up for the machine, stops threads with `--all`.
        may_stop: !args.no_stop && (targets != Targets::All || is_segment),
        targets,
        exclude: args.exclude,
        duration: args.duration,
        profile,
        overhead_percent: args.overhead,
        own_percent: args.own,
        max_stop: args.max_stop,
        source: args.source,
        policy: args.policy,
        estimator: args.estimator,
        until_ci: args.until_ci,
        steps_aside: is_segment,
        outlives_targets: is_segment && !is_named,
        on_release: || (),
        quiet,
    })
}

/// Paths forbidden to a report: a profile, and the earlier profile.
pub fn places(profile: &Path) -> [PathBuf; 2] {
    [profile.to_owned(), locality_profile::earlier(profile)]
}

/// Refuses a report in the place of a profile or of the earlier profile.
///
/// # Errors
/// The report's path is a profile's path.
pub fn keep_apart(print: &OutputArgs, profile: &Path) -> Result<()> {
    let Some(report) = &print.report else { return Ok(()) };
    Ok(writing::keep_apart(report, &places(profile))?)
}

/// Checks that a process exists and can be traced.
pub fn check_process(pid: u32) -> Result<()> {
    let status = match proc::status(pid) {
        Ok(status) => status,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("cannot trace process {pid}: there is no such process; `ps aux` lists those that run")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot trace process {pid}")),
    };
    if status.tgid != pid {
        bail!(
            "cannot trace {pid}: it is a thread of process {}; trace that with -p {}",
            status.tgid,
            status.tgid
        );
    }
    if pid == std::process::id() {
        bail!("cannot trace process {pid}: that is locality-bpf itself");
    }
    if status.kernel_thread {
        bail!(
            "cannot trace process {pid} ({}): it is a thread of the kernel, and has no user code",
            status.name
        );
    }
    if status.state == 'Z' && proc::threads(pid).is_ok_and(|threads| threads.len() > 1) {
        bail!(
            "cannot trace process {pid} ({}): its first thread has ended while others run on, and what \
             the process maps can no longer be read",
            status.name
        );
    }
    if matches!(status.state, 'Z' | 'X') {
        bail!(
            "cannot trace process {pid} ({}): it has ended and waits for its parent to collect it",
            status.name
        );
    }
    match proc::is_x86_64(pid) {
        Ok(true) => Ok(()),
        Ok(false) => bail!(
            "cannot trace process {pid} ({}): it is not a 64-bit x86 program, the only kind that is \
             supported",
            status.name
        ),
        Err(error) => Err(error).with_context(|| {
            format!(
                "cannot trace process {pid} ({}): its program file cannot be read, which takes root with \
                 CAP_SYS_PTRACE, here and in its container",
                status.name
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn why(pid: u32) -> String {
        check_process(pid).unwrap_err().to_string()
    }

    #[test]
    fn untraceable_processes_are_named_with_the_reason() {
        assert!(why(0x3fff_fff0).contains("no such process"));
        assert!(why(std::process::id()).contains("itself"));
        if proc::status(2).is_ok_and(|status| status.kernel_thread) {
            assert!(why(2).contains("thread of the kernel"));
        }
    }

    #[test]
    fn a_zombie_is_told_from_a_live_process() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(5);
        while !why_or_ok(child.id()).contains("has ended") {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap();
    }

    fn why_or_ok(pid: u32) -> String {
        check_process(pid).map_or_else(|error| error.to_string(), |()| String::new())
    }
}
