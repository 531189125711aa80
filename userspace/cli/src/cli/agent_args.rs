//! Options of `agent`, `top`, `query` and `merge`.

use std::{path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, ValueEnum};
use locality_capture::exclude::Pattern;
use locality_rollup::By;
use locality_service::{collector::Collector, listen::Listen};
use locality_units::parse as units;

/// The folder of an agent's segments and rollups.
const STORE: &str = "/var/lib/locality-bpf";

/// Who is traced by an agent or by `top`, and at what cost.
#[derive(Debug, Args)]
pub struct WhomArgs {
    /// Trace everything that runs. Threads are stopped, but for those of servers that sessions and containers
    /// depend on.
    #[arg(short, long, group = "whom")]
    pub all: bool,
    /// Trace the processes of a cgroup (v2); may be given several times. Each is a group of its own.
    #[arg(long, value_name = "PATH", group = "whom")]
    pub cgroup: Vec<PathBuf>,
    /// Trace the processes of this pid namespace: of a container, or of a pod that shares its namespace.
    #[arg(long, group = "whom")]
    pub namespace: bool,
    /// Trace running processes, until the last of them ends.
    #[arg(
        short,
        long = "pid",
        value_name = "PID[,PID…]",
        value_delimiter = ',',
        value_parser = units::pid,
        group = "whom"
    )]
    pub pids: Vec<u32>,
    /// Never trace programs that match: container:ID, unit:NAME, exe:FILE, comm:NAME, cgroup:PATH or uid:N,
    /// with `*`, `?` and `[…]` as in a shell; may be given several times.
    ///
    /// `exe` without a `/` is the name of the program file, `comm` the name of the process, and `cgroup`
    /// includes the cgroups below. A program is looked at when it starts, and before it is stopped for the
    /// first time.
    #[arg(long, value_name = "KIND:GLOB", requires = "whom", conflicts_with = "pids")]
    pub exclude: Vec<Pattern>,
    /// What the measurement may cost the traced programs, in percent of their time [default: 1].
    #[arg(long, value_parser = units::percent, value_name = "PERCENT", requires = "whom")]
    pub overhead: Option<f64>,
    /// What tracing and its helpers may use, in percent of the time of all processors [default: 1].
    #[arg(long, value_parser = units::percent, value_name = "PERCENT", requires = "whom")]
    pub own: Option<f64>,
    /// What makes processes one group [default: container].
    #[arg(long, value_enum, value_name = "WHAT", requires = "whom")]
    pub group: Option<ByArg>,
}

impl WhomArgs {
    /// Budget for the cost of the traced programs, in percent.
    pub fn overhead(&self) -> f64 {
        self.overhead.unwrap_or(1.0)
    }

    /// Budget for the own CPU time, in percent.
    pub fn own(&self) -> f64 {
        self.own.unwrap_or(1.0)
    }

    /// What makes processes one group.
    pub fn by(&self) -> ByArg {
        self.group.unwrap_or(ByArg::Container)
    }

    /// Whether anybody is named.
    pub fn is_given(&self) -> bool {
        self.all || self.namespace || !self.cgroup.is_empty() || !self.pids.is_empty()
    }
}

/// Options of an agent.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("named").args(["all", "cgroup", "namespace", "pids"]).required(true).multiple(true))]
pub struct AgentArgs {
    /// Who is traced.
    #[command(flatten)]
    pub whom: WhomArgs,
    /// Length of a segment: 1s to 1h. Reuses across the end of a segment are not known.
    #[arg(long, value_parser = units::duration, default_value = "5m", value_name = "DURATION")]
    pub window: Duration,
    /// Folder of segments and rollups.
    #[arg(long, default_value = STORE, value_name = "DIR")]
    pub store: PathBuf,
    /// Bytes of segments at most, 16M to 4G; the oldest go first.
    #[arg(long, value_parser = units::size_above_0, default_value = "256M", value_name = "SIZE")]
    pub store_bytes: u64,
    /// Serve metrics here: ADDRESS:PORT, or unix:PATH, which serves profiles too. One of each at most.
    ///
    /// GET /metrics (OpenMetrics); on a socket GET /profile?group=G&seconds=N (pprof).
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<Listen>,
    /// Let other machines read the metrics.
    #[arg(long, requires = "listen")]
    pub listen_anywhere: bool,
    /// Send each segment's profile to an OpenTelemetry Collector: http://HOST[:PORT] [default port: 4318].
    ///
    /// OTLP over HTTP, profiles of the development version (v1development), one resource for each group.
    #[arg(long, value_name = "URL")]
    pub otlp: Option<Collector>,
    /// Leave folders of files out of profiles that are served or sent.
    #[arg(long)]
    pub no_paths: bool,
    /// Take options from this file (TOML), by their names here: `window = "5m"`. Typed options win.
    ///
    /// Options that may be given several times have lists: `exclude = ["comm:nginx*", "uid:0"]`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the form of the options, print them as a file for --config, and trace nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Run for `top`, which is this process.
    #[arg(long, value_name = "PID", hide = true)]
    pub only_for: Option<u32>,
}

/// What makes processes one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ByArg {
    /// The container; outside of containers the unit of systemd, else the process's name.
    Container,
    /// The unit of systemd, else the process's name.
    Unit,
    /// The program file.
    Exe,
    /// The process's name.
    Comm,
}

impl From<ByArg> for By {
    fn from(by: ByArg) -> Self {
        match by {
            ByArg::Container => Self::Container,
            ByArg::Unit => Self::Unit,
            ByArg::Exe => Self::Exe,
            ByArg::Comm => Self::Comm,
        }
    }
}

/// Options of `top`. Without targets, an agent's store is read.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Who is traced, until the end of `top`.
    #[command(flatten)]
    pub whom: WhomArgs,
    /// The store of a running agent.
    #[arg(long, default_value = STORE, value_name = "DIR", conflicts_with = "whom")]
    pub store: PathBuf,
    /// Only groups with this text in their names.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Print tables one below the other, as without a terminal.
    #[arg(short, long)]
    pub batch: bool,
    /// Print one table, and end.
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Print N tables, then end.
    #[arg(short = 'n', long, value_name = "N", value_parser = units::whole::<u32>(1, u32::MAX))]
    pub count: Option<u32>,
    /// Least time between two tables, 200ms to 1h. A table whose numbers take long to compute stays for 20
    /// times as long.
    #[arg(
        short,
        long,
        value_parser = units::duration,
        default_value = "2s",
        value_name = "DURATION"
    )]
    pub interval: Duration,
    /// text for people; json prints a line for each table.
    #[arg(long, value_enum, default_value_t = QueryFormat::Text)]
    pub format: QueryFormat,
}

/// Options of a query.
#[derive(Debug, Args)]
pub struct QueryArgs {
    /// The agent's store.
    #[arg(long, default_value = STORE, value_name = "DIR")]
    pub store: PathBuf,
    /// One group, with the places and data objects that load the most.
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// How far back.
    #[arg(
        long,
        value_parser = units::duration,
        default_value = "1h",
        value_name = "DURATION"
    )]
    pub since: Duration,
    /// text for people, json for programs.
    #[arg(long, value_enum, default_value_t = QueryFormat::Text)]
    pub format: QueryFormat,
}

/// Forms of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QueryFormat {
    /// A table.
    Text,
    /// After the schema "locality-query/1", or of top "locality-top/1".
    Json,
}

/// Options of a release.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// The agent's store.
    #[arg(long, default_value = STORE, value_name = "DIR")]
    pub store: PathBuf,
    /// How long nobody is traced: at most 1h.
    #[arg(
        long = "for",
        value_parser = units::duration,
        default_value = "30s",
        value_name = "DURATION"
    )]
    pub time: Duration,
}

/// Options of a merge.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The profiles, of traces.
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The profile of all [an earlier one becomes FILE.old].
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}
