//! What the user typed. What it means on this machine is `plan`.

pub mod agent_args;
pub mod calibrate_args;
pub mod colour;
pub mod config;
pub mod diff_args;
pub mod exact_args;
pub mod export_args;
pub mod help;
pub mod html;
pub mod model_args;
pub mod order;
pub mod pages;
pub mod part;
#[cfg(test)]
mod reference;

use std::{ffi::OsString, ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use locality_approximate::{Gaussian, IgnoreLines};
use locality_arbiter::Policy;
use locality_estimate::estimator::Estimator;
use locality_units::parse as units;

use self::{colour::When, exact_args::ExactArgs, html::HtmlArgs, part::PartArgs};
use locality_capture::{REGISTERS, exclude::Pattern};
use locality_kernel::sources::select::SampleSource;

/// How allocations are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HeapArg {
    /// As fits the target.
    #[value(hide = true)]
    Usual,
    /// By a library that the launched program loads first.
    Preload,
    /// By kernel probes on the allocation functions.
    Probes,
    /// Not at all.
    Off,
}

/// Finds which data a running program reuses badly, and which pair of source lines is to blame.
///
/// The program runs unmodified. A timer pauses a thread for about a millisecond. A hardware
/// breakpoint then watches data that the thread is about to use. The next touch of that data is the
/// reuse.
#[derive(Debug, Parser)]
#[command(
    name = "locality-bpf",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "locality-bpf [OPTIONS] -p PID[,PID…]\n       \
        locality-bpf [OPTIONS] --all | --cgroup PATH | --namespace\n       \
        locality-bpf [OPTIONS] -- COMMAND [ARG]…",
    after_help = "Examples:\n  \
        sudo locality-bpf -p 1234 -d 10          trace process 1234 for ten seconds, print the report\n  \
        sudo locality-bpf -o a.locality -- ./prog arg   launch and trace a program, store the profile\n  \
        sudo locality-bpf --cgroup /sys/fs/cgroup/my.slice -d 1m   one container or slice\n  \
        locality-bpf exact -- ./prog arg          every access of a whole run, under QEMU, without root\n  \
        locality-bpf report a.locality --pairs   call paths of the pairs; --full has the whole report\n  \
        locality-bpf report a.locality --format html --open    one page for a browser\n  \
        locality-bpf report a.locality --format json    report again from a profile, for programs\n  \
        locality-bpf objects a.locality          variables by accesses and predicted cache misses\n  \
        sudo locality-bpf doctor -p 1234         what this machine and that process allow"
)]
pub struct Cli {
    /// Something other than a trace.
    #[command(subcommand)]
    pub other: Option<Other>,
    /// The trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Print more about what the tool itself does (-vv: everything).
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// No progress and no remarks, only the report and errors.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Colours: auto (on a terminal; NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM=dumb are obeyed),
    /// always, or never.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        hide_default_value = true,
        value_name = "WHEN",
        alias = "colour"
    )]
    pub color: When,
}

/// Commands besides tracing.
#[derive(Debug, Subcommand)]
pub enum Other {
    /// Report again from a profile file: one screen, or with --full, --pairs, --data, --code or --trust
    /// more.
    ///
    /// Example: locality-bpf report trace.locality --code
    Report {
        /// The profile.
        file: PathBuf,
        /// How reuses are weighted: kaplan-meier, horvitz-thompson, or proportional (RDX's).
        #[arg(long, default_value_t, value_name = "ESTIMATOR")]
        estimator: Estimator,
        /// Use only the first part of the trace, of this length, with rates from all of it. Shows
        /// whether the estimates have converged.
        #[arg(long, value_name = "DURATION", value_parser = units::duration)]
        first: Option<Duration>,
        /// How to print.
        #[command(flatten)]
        output: OutputArgs,
        /// Which part of the text.
        #[command(flatten)]
        part: PartArgs,
        /// The HTML report.
        #[command(flatten)]
        html: HtmlArgs,
    },
    /// Compare the distance histograms and miss ratios of two reports, for each granularity.
    ///
    /// Example: locality-bpf compare exact.json trace.locality
    Compare {
        /// The first report (JSON) or profile.
        a: PathBuf,
        /// The second report or profile.
        b: PathBuf,
        /// text for people, json for programs.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// What changed between two profiles, how sure that is, and whether it is a regression (exit
    /// status 3).
    ///
    /// Example: locality-bpf diff base.locality new.locality --fail-on 'misses:LLC > +10 %'
    Diff(diff_args::DiffArgs),
    /// A profile in another program's format: pprof, OpenTelemetry, flame graphs, speedscope,
    /// Firefox Profiler, KCachegrind, tables.
    ///
    /// Example: locality-bpf export trace.locality --to pprof -o trace.pb.gz
    Export(export_args::ExportArgs),
    /// Trace without end, in segments, with metrics for Prometheus (docs/guide/fleet.md).
    ///
    /// Example: sudo locality-bpf agent --cgroup /sys/fs/cgroup/web.slice --listen 127.0.0.1:9955
    #[command(
        override_usage = "locality-bpf agent [OPTIONS] --all | --cgroup PATH | --namespace | -p PID[,PID…]"
    )]
    Agent(agent_args::AgentArgs),
    /// A live table of the groups, by CPU time and cache misses: of a running agent, or traced by -p,
    /// --cgroup, --namespace or --all until `top` ends.
    ///
    /// Example: sudo locality-bpf top -p 1234
    #[command(
        override_usage = "locality-bpf top [OPTIONS] [--store DIR | -p PID[,PID…] | --cgroup PATH | --namespace | --all]"
    )]
    Top(agent_args::TopArgs),
    /// What an agent found in each group, by default in the last hour.
    ///
    /// Example: sudo locality-bpf query --since 1h
    Query(agent_args::QueryArgs),
    /// Has an agent release all programs for a while, so that a debugger can attach.
    ///
    /// Example: sudo locality-bpf release --for 5m && sudo gdb -p 1234
    Release(agent_args::ReleaseArgs),
    /// Several profiles as one: of segments, of processes, of machines.
    ///
    /// Example: locality-bpf merge a.locality b.locality -o both.locality
    Merge(agent_args::MergeArgs),
    /// The execution model: hot spots and the path to them, trip counts as expressions of inputs, and the
    /// effect of other inputs.
    ///
    /// Example: locality-bpf model trace.locality --set 'main.ret@1118=1024'
    Model(model_args::ModelArgs),
    /// Variables: which data objects the accesses and the predicted cache misses fall on, field by field.
    ///
    /// Example: locality-bpf objects trace.locality --against approximate
    Objects {
        /// The profile.
        file: PathBuf,
        /// Add the result of another method: approximate, from code addresses and call paths alone.
        #[arg(long, value_enum, value_name = "METHOD")]
        against: Option<Method>,
        /// Unit that samples of the other method are attributed to: source line (as in its paper) or
        /// instruction.
        #[arg(long, value_enum, default_value_t = Level::Line, requires = "against")]
        level: Level,
        /// Distance from an event to its sample, in lines or instructions (--level): MEAN,VARIANCE,
        /// or `paper` for 1 line. The other method then looks for each event before its sample.
        /// `calibrate` measures the skid of the clock.
        #[arg(long, value_name = "SKID", requires = "against")]
        skid: Option<Gaussian>,
        /// Move the samples of the other method by this skid first, to see what --skid corrects.
        #[arg(long, value_name = "SKID", requires = "against")]
        simulate_skid: Option<Gaussian>,
        /// Exclude variables from the other method that are declared on these lines: FILE:LINE or
        /// FILE:FIRST-LAST.
        #[arg(long, value_name = "FILE:LINES", requires = "against")]
        ignore_lines: Vec<IgnoreLines>,
        /// How reuses are weighted: kaplan-meier, horvitz-thompson, or proportional (RDX's).
        #[arg(long, default_value_t, value_name = "ESTIMATOR")]
        estimator: Estimator,
        /// How to print.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Run a command under QEMU and count every access exactly, without root. Needs QEMU with plugins;
    /// `locality-bpf doctor` says how to get QEMU.
    ///
    /// Example: locality-bpf exact --report run.txt -- ./prog arg
    Exact(Box<ExactArgs>),
    /// What this machine can do, what is missing, and how to fix it.
    ///
    /// Example: sudo locality-bpf doctor -p 1234
    Doctor {
        /// Also examine this process.
        #[arg(short, long, value_name = "PID", value_parser = units::pid)]
        pid: Option<u32>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the completions of a shell: bash, zsh, fish, elvish or powershell.
    ///
    /// Example: locality-bpf completions bash > /etc/bash_completion.d/locality-bpf
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages into a folder.
    #[command(hide = true)]
    Man {
        /// The folder.
        folder: PathBuf,
    },
    /// Measure the costs of a clock tick and of a watchpoint trap on this machine, the skid of clock
    /// samples, and the processor.
    ///
    /// Example: sudo locality-bpf calibrate
    Calibrate(calibrate_args::CalibrateArgs),
}

/// Options of a trace.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Trace running processes.
    #[arg(
        short,
        long = "pid",
        value_name = "PID[,PID…]",
        value_delimiter = ',',
        value_parser = units::pid,
        group = "target",
        required = true
    )]
    pub pids: Vec<u32>,
    /// Trace everything that runs, without pausing threads.
    #[arg(short, long, group = "target")]
    pub all: bool,
    /// Trace the processes of this pid namespace: of a container, or of a pod that shares its namespace.
    ///
    /// For a sidecar. Processes outside of the namespace are never measured. The tool and the
    /// processes that started it are excluded.
    #[arg(long, group = "target")]
    pub namespace: bool,
    /// Trace the processes of a cgroup (v2), for instance of one container.
    #[arg(long, value_name = "PATH", group = "target")]
    pub cgroup: Vec<PathBuf>,
    /// Never trace programs that match: container:ID, unit:NAME, exe:FILE, comm:NAME, cgroup:PATH or uid:N,
    /// with `*`, `?` and `[…]` as in a shell; may be given several times, with --all, --cgroup and
    /// --namespace.
    ///
    /// `exe` without a `/` is the name of the program file, `comm` the name of the process, and `cgroup`
    /// includes the cgroups below.
    #[arg(long, value_name = "KIND:GLOB", conflicts_with_all = ["pids", "command"])]
    pub exclude: Vec<Pattern>,
    /// Launch this command and trace it from its first instruction; exit with its status.
    #[arg(last = true, value_name = "COMMAND", group = "target")]
    pub command: Vec<OsString>,
    /// Stop after this time, as in 10 (seconds), 500ms, 10s, 2m [default: until Ctrl-C or the last
    /// process ends].
    #[arg(short, long, value_parser = units::duration, value_name = "DURATION")]
    pub duration: Option<Duration>,
    /// The profile file [default: trace.locality; an earlier one becomes trace.locality.old].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Budget of the trace, in percent of the traced program's CPU time.
    #[arg(long, value_parser = units::percent, default_value = "1", value_name = "PERCENT")]
    pub overhead: f64,
    /// CPU time that this tool itself may use, in percent of all processors [default: no limit].
    ///
    /// The tool takes fewer samples where their analysis would exceed the limit, but at least two
    /// for each second of the program's CPU time. The report says if the limit was exceeded.
    #[arg(long, value_parser = units::percent, value_name = "PERCENT")]
    pub own: Option<f64>,
    /// Target for the longest pause of a thread. A pause may last twice as long when the CPU is busy
    /// or caches are cold.
    #[arg(long, value_parser = max_stop, default_value = "1ms", value_name = "TIME")]
    pub max_stop: Duration,
    /// How to follow allocations, to name heap blocks by their allocation site: preload, probes or off
    /// [default: preload for a launched command, else off].
    ///
    /// `preload`: a launched program loads a small library first (LD_PRELOAD), which records
    /// allocations. Programs with an allocator of their own, static programs and translators are not
    /// recorded, and the report says so. `probes`: kernel breakpoints in the code of the traced
    /// programs, on malloc, free and similar functions (Linux 6.6 or newer). A program that runs
    /// copies of its code, or allocates on two stacks at once, can then end by SIGTRAP or SIGILL.
    /// The cost is part of the budget. Without a value: `preload` for a launched command, else
    /// `probes`.
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "usual",
        conflicts_with = "all"
    )]
    pub heap: Option<HeapArg>,
    /// Do not follow allocations: the same as --heap=off.
    #[arg(long, conflicts_with = "heap")]
    pub no_heap: bool,
    /// Follow allocations of this size and above [default: 1K]; implies --heap.
    ///
    /// Smaller allocations are only counted. Each followed block costs some microseconds of the
    /// budget. Where the budget does not suffice, the limit rises, and the report says so.
    #[arg(long, value_parser = units::size_above_0, value_name = "SIZE", conflicts_with_all = ["all", "no_heap"])]
    pub heap_min: Option<u64>,
    /// Debug registers of each thread for watchpoints, 1 to 4.
    ///
    /// A thread has four. The default leaves one for a debugger or for the program itself.
    #[arg(
        long,
        value_parser = units::whole::<u8>(1, REGISTERS),
        default_value_t = REGISTERS - 1,
        value_name = "N"
    )]
    pub registers: u8,
    /// Measure the costs of ticks and traps on this machine again, instead of using a measurement
    /// from the last 24 hours.
    #[arg(long)]
    pub recalibrate: bool,
    /// Record no data values. By default the profile has the least and the greatest integer that each
    /// instruction of a loop moves, so that advice can name narrower types.
    #[arg(long)]
    pub no_values: bool,
    /// Record no parallelism. By default each window shows how many of its instructions could have run
    /// at once.
    #[arg(long)]
    pub no_parallelism: bool,
    /// Never pause a thread. Watchpoints are then set later, and the first trap counts as the use.
    #[arg(long)]
    pub no_stop: bool,
    /// Do not emulate ahead at pauses. Distances are then CPU time, without miss ratios.
    #[arg(long)]
    pub no_window: bool,
    /// Ignore accesses by the kernel in system calls: a reuse is then the program's own next access.
    ///
    /// By default a buffer that `read` fills again is reused there, and marked kernel. Distances
    /// count the program's own accesses either way. Needs Linux 6.10.
    #[arg(long)]
    pub user_only: bool,
    /// Also watch threads that cannot be paused. In a virtual machine on a host before Linux 6.14
    /// this can kill them (SIGTRAP).
    ///
    /// Such a host now and then loses the reason of a trap (about one in 36,000), and a thread that
    /// is not paused then dies. Required with --no-stop and -a inside a virtual machine.
    #[arg(long)]
    pub watch_unheld: bool,
    /// Event that starts samples: the clock, or hardware that samples accesses. pebs and ibs are refused
    /// without that hardware.
    #[arg(long, value_enum, default_value_t, value_name = "SOURCE")]
    pub source: SampleSource,
    /// Which uses get the debug registers: reservoir, or quick+reservoir.
    #[arg(long, default_value = "quick+reservoir", value_name = "POLICY")]
    pub policy: Policy,
    /// How reuses are weighted: kaplan-meier, horvitz-thompson, or proportional (RDX's).
    #[arg(long, default_value_t, value_name = "ESTIMATOR")]
    pub estimator: Estimator,
    /// Stop when time distances are known this precisely: the widest half of a 95 % interval over
    /// all bins, as a share (0.05 or 5%). With -d, the earlier of the two. Needs pauses and windows.
    #[arg(long, value_parser = units::share, value_name = "WIDTH", conflicts_with_all = ["no_window", "no_stop", "all"])]
    pub until_ci: Option<f64>,
    /// Write a segment for the agent that is this process: no report, and an end with the agent.
    #[arg(long, hide = true, value_name = "PID")]
    pub segment: Option<u32>,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Which part of the text.
    #[command(flatten)]
    pub part: PartArgs,
}

/// Shortest and longest value of `--max-stop`. A shorter stop would be useless. The watchdog takes a tracer
/// that is silent for 60 ms for a tracer that hangs.
const STOPS: RangeInclusive<Duration> = Duration::from_micros(100)..=Duration::from_millis(50);

/// Parses the target for the longest stop.
fn max_stop(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    STOPS.contains(&time).then_some(time).ok_or_else(|| {
        "write 100us to 50ms: no stop is shorter, and one with a window takes .3 to .6 ms".to_owned()
    })
}

/// How a report is printed.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// text for people, html for a browser (one file), json for programs (json1: the schema of earlier
    /// versions), callgrind for KCachegrind (of an exact run with simulated caches).
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Write the report to a file [default: stdout; stderr when a command is launched].
    #[arg(long = "report", value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Rows of each table [default: as many as fit on the screen, 10 or fewer of other text, 100 of
    /// JSON, all of json1].
    #[arg(long, value_name = "N", value_parser = units::rows)]
    pub top: Option<usize>,
}

/// Another method of attribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// From code addresses and call paths alone.
    Approximate,
}

/// What a sample falls on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// A source line.
    Line,
    /// An instruction.
    Instruction,
}

impl From<Level> for locality_approximate::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::Line => Self::Line,
            Level::Instruction => Self::Instruction,
        }
    }
}

/// Report formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One page for a browser, with all that it needs inside.
    Html,
    /// After the schema "locality-report/2": call paths are tables.
    Json,
    /// After the schema "locality-report/1" of earlier versions.
    Json1,
    /// Callgrind's file format.
    Callgrind,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_contract_parses() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
        let cli = parse("locality-bpf -p 1,2 -d 500ms -o x.locality --overhead 2% --no-stop").unwrap();
        assert_eq!((cli.trace.pids, cli.trace.duration), (vec![1, 2], Some(Duration::from_millis(500))));
        assert_eq!(parse("locality-bpf -- ls -l -a").unwrap().trace.command, ["ls", "-l", "-a"]);
        assert!(parse("locality-bpf -a -d 10").unwrap().trace.all);
        assert!(parse("locality-bpf --namespace -d 10").unwrap().trace.namespace);
        assert!(parse("locality-bpf --namespace -p 1").is_err());
        let heap_min = |line| parse(line).unwrap().trace.heap_min;
        assert_eq!(heap_min("locality-bpf -p 1 --heap --heap-min 2K"), Some(2048));
        assert_eq!(heap_min("locality-bpf -- ls"), None);
        let heap = |line| parse(line).unwrap().trace.heap;
        assert_eq!(heap("locality-bpf --heap -- ls"), Some(HeapArg::Usual));
        assert_eq!(heap("locality-bpf --heap=preload -- ls"), Some(HeapArg::Preload));
        assert_eq!(heap("locality-bpf -p 1 --heap=probes"), Some(HeapArg::Probes));
        assert_eq!(heap("locality-bpf --heap=off -- ls"), Some(HeapArg::Off));
        let source = |line| parse(line).unwrap().trace.source;
        assert_eq!(source("locality-bpf -p 1"), SampleSource::Auto);
        assert_eq!(source("locality-bpf --source ibs -p 1"), SampleSource::Ibs);
        assert!(parse("locality-bpf -p 1 --trust").unwrap().trace.part.trust);
        assert!(matches!(
            parse("locality-bpf report f --format json").unwrap().other,
            Some(Other::Report { .. })
        ));
        assert!(matches!(
            parse("locality-bpf doctor -p 3 --json").unwrap().other,
            Some(Other::Doctor { .. })
        ));
        let objects = "locality-bpf objects f --against approximate --skid paper --simulate-skid 1,.5 --ignore-lines a.c:3-9 --top 5";
        assert!(matches!(parse(objects).unwrap().other, Some(Other::Objects { .. })));
        let Some(Other::Exact(exact)) =
            parse("locality-bpf exact -o f --granularity 8,64 --report r -- ls -l").unwrap().other
        else {
            panic!("not an exact run")
        };
        let exact = locality_runner::Options::from(*exact);
        assert!(exact.simulation().is_none());
        assert_eq!((exact.granules(), exact.command), (vec![8, 64], vec!["ls".into(), "-l".into()]));
    }

    #[test]
    fn any_option_of_the_simulation_asks_for_it() {
        let exact = |options: &str| match parse(&format!("locality-bpf exact {options} -- ls")).unwrap().other
        {
            Some(Other::Exact(args)) => locality_runner::Options::from(*args),
            _ => panic!("not an exact run"),
        };
        assert!(exact("").simulation().is_none());
        assert_eq!(exact("").granules(), [64]);
        for options in [
            "--cache-use",
            "--cache L1=32K,8,64 --cache LL=1M,16",
            "--cache host",
            "--compatible callgrind",
            "--prefetch next-line",
            "--instruction-fetch",
            "--objects",
            "--skip-function GOMP_parallel --skip-function main",
            "--format callgrind",
        ] {
            let exact = exact(options);
            assert!(exact.simulation().is_some() && exact.granules().is_empty(), "{options}");
        }
        assert_eq!(exact("--cache-use --granularity 8").granules(), [8]);
        for restriction in ["--function f", "--data-type f64", "--instructions"] {
            let check = |format: &str| exact(&format!("{restriction} --format {format}")).check();
            let why = check("callgrind").unwrap_err().to_string();
            assert!(why.contains(&format!("leave out {}", restriction.split(' ').next().unwrap())), "{why}");
            check("json").unwrap();
        }
        for option in ["--sets 64", "--optimal", "--fine"] {
            let why = exact(&format!("--cache-use {option}")).check().unwrap_err().to_string();
            assert!(
                why.contains(option.split(' ').next().unwrap()) && why.contains("--granularity"),
                "{why}"
            );
            exact(&format!("--cache-use --granularity 64 {option}")).check().unwrap();
            exact(option).check().unwrap();
        }
        for option in ["--function", "--inclusive", "--skip-function"] {
            let line = ["locality-bpf", "exact", option, "", "--", "ls"];
            let Some(Other::Exact(args)) = Cli::try_parse_from(line).unwrap().other else { panic!() };
            let why = locality_runner::Options::from(*args).check().unwrap_err().to_string();
            assert!(why.starts_with(&format!("{option} has an empty name")), "{why}");
        }
        exact("--granularity 1,2,4,8,16,32").check().unwrap();
        assert!(exact("--granularity 1,2,4,8,16,32,64").check().unwrap_err().to_string().contains("6 sizes"));
        assert_eq!(exact("--skip-function a --skip-function b").caches.skip_function, ["a", "b"]);
    }

    #[test]
    fn numbers_outside_a_range_are_refused_with_the_range() {
        for (line, said) in [
            ("locality-bpf -p 1 --max-stop 1h", "write 100us to 50ms"),
            ("locality-bpf -p 1 --max-stop 50us", "write 100us to 50ms"),
            ("locality-bpf -p 1 --registers nan", "write a whole number from 1 to 4"),
            ("locality-bpf -p 1 --registers 5", "write a whole number from 1 to 4"),
            ("locality-bpf top -n 1e9", "write a whole number from 1 to 4294967295"),
            ("locality-bpf exact --sets nan -- ls", "write a whole number from 1 to 1048576"),
            ("locality-bpf exact --parallelism --tasks blocks --partition 1 -- ls", "from 2 to 1024"),
            ("locality-bpf report f --top 0", "write how many rows to print, 1 or more, as in 20"),
        ] {
            let why = parse(line).unwrap_err().to_string();
            assert!(why.contains(said) && !why.contains("invalid digit"), "{line}: {why}");
        }
        for line in ["locality-bpf -p 1 --max-stop 100us", "locality-bpf -p 1 --max-stop 50ms --registers 4"]
        {
            parse(line).unwrap();
        }
    }

    #[test]
    fn wrong_use_is_refused() {
        for line in [
            "locality-bpf",
            "locality-bpf -p",
            "locality-bpf -p x",
            "locality-bpf -p 1 -a",
            "locality-bpf -p 1 -- ls",
            "locality-bpf -p 1 --overhead 0",
            "locality-bpf -p 1 -d 0",
            "locality-bpf -p 1 --policy best",
            "locality-bpf -p 1 --heap-min 0",
            "locality-bpf -p 1 --heap=kernel",
            "locality-bpf --no-heap --heap=probes -- ls",
            "locality-bpf -p 1 --heap-min 1.5",
            "locality-bpf -a --heap-min 16",
            "locality-bpf --no-heap --heap-min 16 -- ls",
            "locality-bpf -p 1 --source spe",
            "locality-bpf ls",
            "locality-bpf exact",
            "locality-bpf exact ls",
            "locality-bpf report f --pairs --data",
            "locality-bpf -p 1 --full --code",
            "locality-bpf exact --pairs -- ls",
            "locality-bpf objects",
            "locality-bpf objects f --against best",
            "locality-bpf objects f --level instruction",
            "locality-bpf objects f --skid paper",
            "locality-bpf objects f --against approximate --skid 1",
            "locality-bpf objects f --against approximate --ignore-lines x",
            "locality-bpf exact --granularity 3 -- ls",
            "locality-bpf exact --sets 0 -- ls",
            "locality-bpf exact --data-type float -- ls",
            "locality-bpf exact --optimal --instructions -- ls",
            "locality-bpf exact --cache L1=32K,8,48 -- ls",
            "locality-bpf exact --cache L5=32K,8,64 -- ls",
            "locality-bpf exact --compatible cachegrind -- ls",
            "locality-bpf exact --prefetch all -- ls",
            "locality-bpf exact --cache-use --function f -- ls",
            "locality-bpf exact --cache host --instructions -- ls",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
