//! Options of `agent`, `query` and `merge`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use locality_rollup::By;
use locality_service::listen::Listen;
use locality_units::parse as units;

/// The folder of an agent's segments and rollups.
const STORE: &str = "/var/lib/locality-bpf";

/// Options of an agent.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Trace everything that runs. Threads are stopped, but for those of servers that sessions and containers
    /// depend on; debuggers cannot attach to a traced program.
    #[arg(short, long, group = "whom", required = true)]
    pub all: bool,
    /// Trace the processes of a cgroup (v2); may be given several times. Each is a group of its own.
    #[arg(long, value_name = "PATH", group = "whom")]
    pub cgroup: Vec<PathBuf>,
    /// Trace the processes of this pid namespace: of a container, or of a pod that shares its namespace.
    #[arg(long, group = "whom")]
    pub namespace: bool,
    /// Trace running processes; the agent ends with the last of them.
    #[arg(
        short,
        long = "pid",
        value_name = "PID[,PID…]",
        value_delimiter = ',',
        value_parser = units::pid,
        allow_negative_numbers = true,
        group = "whom"
    )]
    pub pids: Vec<u32>,
    /// What the measurement may cost the traced programs, in percent of their time.
    #[arg(long, value_parser = units::percent, default_value = "1", value_name = "PERCENT")]
    pub overhead: f64,
    /// What the agent and its helpers may use, in percent of the time of all processors.
    #[arg(long, value_parser = units::percent, default_value = "1", value_name = "PERCENT")]
    pub own: f64,
    /// Length of a segment: 1s to 1h. Reuses across the end of a segment are not known.
    #[arg(
        long,
        value_parser = units::duration,
        default_value = "5m",
        value_name = "DURATION",
        allow_negative_numbers = true
    )]
    pub window: Duration,
    /// What makes processes one group.
    #[arg(long, value_enum, default_value_t = ByArg::Container, value_name = "WHAT")]
    pub group: ByArg,
    /// Folder of segments and rollups.
    #[arg(long, default_value = STORE, value_name = "DIR")]
    pub store: PathBuf,
    /// Bytes of segments at most; the oldest go first.
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
    /// Leave folders of files out of profiles that are served.
    #[arg(long)]
    pub no_paths: bool,
}

/// What makes processes one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ByArg {
    /// The container; outside of containers the unit of systemd, else the process' name.
    Container,
    /// The unit of systemd, else the process' name.
    Unit,
    /// The program file.
    Exe,
    /// The process' name.
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
        value_name = "DURATION",
        allow_negative_numbers = true
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
    /// After the schema "locality-query/1".
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
        value_name = "DURATION",
        allow_negative_numbers = true
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
