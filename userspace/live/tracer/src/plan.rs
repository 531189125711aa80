//! A requested trace: targets, duration, cost.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use locality_arbiter::Policy;
use locality_capture::exclude::Pattern;
use locality_common::config::CgroupTarget;
use locality_estimate::estimator::Estimator;

use super::governor::OwnBudget;
use locality_kernel::{object::Filter, proc, sources::select::SampleSource};

/// Who is traced.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Running processes.
    Processes(Vec<u32>),
    /// A command to launch.
    Command(Vec<OsString>),
    /// Cgroups, with their folders as typed.
    Cgroups(Vec<CgroupTarget>, Vec<PathBuf>),
    /// Everyone, without stops.
    All,
    /// All processes of this pid namespace, which is not the initial one.
    Namespace,
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
    /// Programs that are not traced.
    pub exclude: Vec<Pattern>,
    /// How long.
    pub duration: Option<Duration>,
    /// Profile file.
    pub profile: PathBuf,
    /// Allowed cost, percent.
    pub overhead_percent: f64,
    /// Limit of the tool's own time, percent of all processors; `None` without a limit.
    pub own_percent: Option<f64>,
    /// Longest stop for arming.
    pub max_stop: Duration,
    /// Whether threads may be stopped.
    pub may_stop: bool,
    /// Debug registers of each thread that watches may take.
    pub registers: u8,
    /// Whether what an earlier start measured is not believed.
    pub recalibrate: bool,
    /// What the profile has of windows.
    pub recorded: Recorded,
    /// Whether shadow windows are taken at stops.
    pub windows: bool,
    /// Whether threads that are not seized may be watched.
    pub watch_unheld: bool,
    /// Whether touches by the kernel are passed over.
    pub user_only: bool,
    /// Whether allocations are followed.
    pub heap: Following,
    /// Least size of followed allocations at the start.
    pub heap_min: u64,
    /// What starts samples.
    pub source: SampleSource,
    /// Who gets debug registers.
    pub policy: Policy,
    /// How reuses are weighed.
    pub estimator: Estimator,
    /// Precision at which the trace ends: half of the widest interval over the bins of time distances.
    pub until_ci: Option<f64>,
    /// Whether processes are released that a debugger may want, as soon as the debugger starts.
    pub steps_aside: bool,
    /// Whether the trace goes on when no target is left, for others may come.
    pub outlives_targets: bool,
    /// Called when all targets are released, while the profile is still being completed.
    pub on_release: fn(),
    /// No progress and no remarks.
    pub quiet: bool,
}

/// Parts of a profile that a user can leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The least and the greatest integer that loops move.
    pub values: bool,
    /// Instructions of windows by class, and their parallelism.
    pub parallelism: bool,
}

impl Plan {
    /// Budget of the tool's own time on this machine.
    pub fn own_budget(&self) -> Option<OwnBudget> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Some(OwnBudget { share: self.own_percent? / 100.0, processors })
    }

    /// The kernel-side filter.
    pub fn filter(&self) -> Filter {
        match &self.targets {
            Targets::Processes(_) | Targets::Command(_) => Filter::Processes,
            Targets::Cgroups(cgroups, _) => Filter::Cgroups(cgroups.clone()),
            // Who has no number in our pid namespace is no target either way.
            Targets::All | Targets::Namespace => Filter::All,
        }
    }

    /// What is traced, in words for the report.
    pub fn describe(&self) -> String {
        match &self.targets {
            Targets::Processes(pids) => {
                let mut commands: Vec<String> = pids.iter().map(|pid| proc::command_line(*pid)).collect();
                commands.dedup();
                commands.join(", ")
            }
            Targets::Command(words) => {
                words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
            }
            Targets::Cgroups(_, folders) => {
                let names: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
                format!("cgroup {}", names.join(", "))
            }
            Targets::All if proc::in_pid_namespace() => "the whole pid namespace".to_owned(),
            Targets::All => "the whole system".to_owned(),
            Targets::Namespace => "the pid namespace".to_owned(),
        }
    }
}
