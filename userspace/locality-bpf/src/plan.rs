//! What the user typed, as it is on this machine: targets that exist and may be traced, or one
//! sentence why not.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use locality_analysis::{arbiter::Policy, estimator::Estimator};
use locality_common::config::{CGROUPS_MAX, CgroupTarget};

use crate::{
    cli::{HeapArg, OutputArgs, TraceArgs, WrongUse},
    control::host,
    heap,
    kernel::{btf, cgroup, object::Filter, proc, sources::select::SampleSource, sys},
    writing,
};

/// Profile when `-o` is not given.
const DEFAULT_PROFILE: &str = "trace.locality";

/// Least of `--max-stop`: for less, every stop would be for nothing.
const SHORTEST_STOP: Duration = Duration::from_micros(100);

/// Who is traced.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Running processes.
    Processes(Vec<u32>),
    /// A command to launch.
    Command(Vec<OsString>),
    /// Cgroups, and their folders as they were typed.
    Cgroups(Vec<CgroupTarget>, Vec<PathBuf>),
    /// Everyone.
    All,
}

/// How allocations are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// Not at all.
    Off,
    /// By probes in the kernel.
    Probes,
    /// By a library that the launched program loads.
    Preload,
}

/// A trace, ready to start.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Who.
    pub targets: Targets,
    /// How long.
    pub duration: Option<Duration>,
    /// Profile file.
    pub profile: PathBuf,
    /// Allowed cost, percent.
    pub overhead_percent: f64,
    /// Longest stop for arming.
    pub max_stop: Duration,
    /// Whether threads may be stopped.
    pub may_stop: bool,
    /// Debug registers of each thread that watches may take.
    pub registers: u8,
    /// Whether what an earlier start measured is not believed.
    pub recalibrate: bool,
    /// Whether shadow windows are taken at stops.
    pub windows: bool,
    /// Whether threads that are not held may be watched.
    pub watch_unheld: bool,
    /// Whether touches by the kernel are passed over.
    pub user_only: bool,
    /// Whether allocations are followed.
    pub heap: Following,
    /// Least size of those that are, to begin with.
    pub heap_min: u64,
    /// What starts samples.
    pub source: SampleSource,
    /// Who gets debug registers.
    pub policy: Policy,
    /// How reuses are weighed.
    pub estimator: Estimator,
    /// Precision at which the trace ends: half of the widest interval over the bins of time distances.
    pub until_ci: Option<f64>,
    /// How to print.
    pub print: OutputArgs,
    /// No progress and no remarks.
    pub quiet: bool,
}

impl Plan {
    /// Checks everything that can be checked before anything is touched.
    pub fn new(args: TraceArgs, quiet: bool) -> Result<Self> {
        check_rights()?;
        let targets = if args.all {
            Targets::All
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
        check_report(&args.print, Some(&profile))?;
        if args.user_only
            && let Some(why) = crate::control::host::cannot_pass()
        {
            bail!("{why}");
        }
        if args.max_stop < SHORTEST_STOP {
            bail!(WrongUse(
                "--max-stop is at least 100us: no stop is shorter, and one with a window takes .3 to .6 ms"
                    .to_owned()
            ));
        }
        let launched = matches!(targets, Targets::Command(_));
        let heap = match args.heap {
            Some(HeapArg::Preload) if !launched => bail!(WrongUse(
                "--heap=preload needs a command to launch: --heap=probes follows the allocations of a running program".to_owned()
            )),
            Some(HeapArg::Off) => Following::Off,
            Some(HeapArg::Probes) => Following::Probes,
            _ if args.no_heap => Following::Off,
            _ if launched => Following::Preload,
            Some(_) => Following::Probes,
            None if args.heap_min.is_some() => Following::Probes,
            None => Following::Off,
        };
        let watch_unheld = args.watch_unheld || !in_virtual_machine();
        if (args.no_stop || targets == Targets::All) && !watch_unheld {
            bail!(
                "in a virtual machine a watchpoint can end a thread that is not held (about one trap in 36,000, on hosts \
                 before Linux 6.14): trace processes with -p or a cgroup, without --no-stop, or add --watch-unheld to \
                 take that risk"
            );
        }
        Ok(Self {
            watch_unheld,
            windows: !args.no_window,
            registers: args.registers,
            recalibrate: args.recalibrate,
            user_only: args.user_only,
            heap,
            heap_min: args.heap_min.unwrap_or(heap::MIN_BYTES),
            // Stopping every thread of a machine would make each program on it notice a tracer.
            may_stop: !args.no_stop && targets != Targets::All,
            targets,
            duration: args.duration,
            profile,
            overhead_percent: args.overhead,
            max_stop: args.max_stop,
            source: args.source,
            policy: args.policy,
            estimator: args.estimator,
            until_ci: args.until_ci,
            print: args.print,
            quiet,
        })
    }

    /// The kernel-side filter.
    pub fn filter(&self) -> Filter {
        match &self.targets {
            Targets::Processes(_) | Targets::Command(_) => Filter::Processes,
            Targets::Cgroups(cgroups, _) => Filter::Cgroups(cgroups.clone()),
            Targets::All => Filter::All,
        }
    }

    /// What is traced, in words for the report.
    pub fn describe(&self) -> String {
        match &self.targets {
            Targets::Processes(pids) => pids.first().map(|pid| proc::command_line(*pid)).unwrap_or_default(),
            Targets::Command(words) => {
                words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
            }
            Targets::Cgroups(_, folders) => {
                let names: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
                format!("cgroup {}", names.join(", "))
            }
            Targets::All => "the whole system".to_owned(),
        }
    }
}

/// Whether the report can be written where it is wanted: now, and not when all is measured.
///
/// # Errors
/// A place that cannot be written, or that the profile has.
pub fn check_report(print: &OutputArgs, profile: Option<&Path>) -> Result<()> {
    let Some(report) = &print.report else { return Ok(()) };
    profile.map_or(Ok(()), |profile| keep_apart(print, profile))?;
    writing::check(report)
}

/// Refuses a report in the place of a profile, or of the one before it.
///
/// # Errors
/// Such a place.
pub fn keep_apart(print: &OutputArgs, profile: &Path) -> Result<()> {
    let Some(report) = &print.report else { return Ok(()) };
    let earlier = locality_profile::earlier(profile);
    for kept in [profile, &earlier] {
        if is_same_place(report, kept) {
            bail!(WrongUse(format!(
                "the report would replace the profile {}: give --report another name",
                kept.display()
            )));
        }
    }
    Ok(())
}

fn is_same_place(a: &Path, b: &Path) -> bool {
    // One file may have several names.
    let file = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if file(a).is_some() && file(a) == file(b) {
        return true;
    }
    let folder = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).canonicalize().ok()
    };
    a.file_name() == b.file_name() && folder(a) == folder(b)
}

/// Whether we may trace at all.
pub fn check_rights() -> Result<()> {
    if !sys::is_root() {
        bail!("tracing needs root: run it again with sudo, as in `sudo locality-bpf …`");
    }
    if let Some(why) = host::too_old() {
        bail!("{why}: boot a newer kernel");
    }
    if proc::pid_namespace().is_some_and(|inode| inode != proc::FIRST_PID_NAMESPACE) {
        bail!(
            "in a PID namespace of its own the tracer cannot tell which processes the kernel means: start its container \
             with the host's, as in `docker run --privileged --pid=host IMAGE`"
        );
    }
    if !Path::new(btf::KERNEL_BTF).exists() {
        bail!(
            "this kernel does not publish its types in {}: boot one built with CONFIG_DEBUG_INFO_BTF=y \
             (every current distribution kernel is), and mount /sys",
            btf::KERNEL_BTF
        );
    }
    Ok(())
}

/// Whether a hypervisor runs this machine (CPUID leaf 1, ECX bit 31, which processors themselves leave 0).
fn in_virtual_machine() -> bool {
    std::arch::x86_64::__cpuid(1).ecx >> 31 == 1
}

/// Whether a process exists and is one that we can trace.
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
            "cannot trace process {pid} ({}): its first thread has ended while others run on, and what the process maps can \
             no longer be read",
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
            "cannot trace process {pid} ({}): it is not a 64-bit x86 program, the only kind that is supported",
            status.name
        ),
        Err(error) => Err(error).with_context(|| {
            format!(
                "cannot trace process {pid} ({}): its program file cannot be read, which takes root with CAP_SYS_PTRACE, here and in its container",
                status.name
            )
        }),
    }
}

#[cfg(test)]
mod tests {
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
