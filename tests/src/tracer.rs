//! Runs the tracer, `locality-bpf`, with a time limit, and reads its report.
//!
//! The binary is `LOCALITY_BPF` if set (as by `cargo xtask test`), else the release build, which is
//! built first.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::target::Target;

/// A call of the tracer in preparation.
#[derive(Debug)]
pub struct Tracer {
    command: Command,
    limit: Duration,
}

/// Results of an ended tracer.
#[derive(Debug)]
pub struct Traced {
    /// Exit status.
    pub status: ExitStatus,
    /// The whole stdout.
    pub stdout: String,
    /// The whole stderr.
    pub stderr: String,
}

impl Default for Tracer {
    fn default() -> Self {
        Self::new()
    }
}

impl Tracer {
    /// Without arguments, limited to a minute.
    pub fn new() -> Self {
        let mut command = Command::new(binary());
        command.env("NO_COLOR", "1");
        Self { command, limit: Duration::from_secs(60) }
    }

    /// `-p PID -d SECONDS --format json`, as most tests use.
    pub fn attach(pid: u32, seconds: &str) -> Self {
        Self::new().args(["-p", &pid.to_string(), "-d", seconds, "--format", "json1"])
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Changes the limit.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The command, for further settings: users, limits, descriptors.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Starts the tracer and returns at once; the handle signals the
    /// tracer or waits for the end, and kills the tracer when dropped.
    pub fn start(self) -> Target {
        Target::spawn(self.command).overseen()
    }

    /// Runs the tracer to the end; panics when the limit is over.
    pub fn run(mut self) -> Traced {
        self.command.stdin(Stdio::null());
        let limit = self.limit;
        let finished = self.start().finish(limit);
        Traced { status: finished.status, stdout: finished.stdout.join("\n"), stderr: finished.stderr }
    }

    /// Runs the tracer with a command, which owns stdout: the JSON report goes through a file. Panics
    /// without a report.
    pub fn report_of(self, command: impl IntoIterator<Item = impl AsRef<OsStr>>) -> (Traced, Value) {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("no folder: {e}"));
        let file = folder.path().join("report");
        let done = self.args(["--report"]).args([&file]).args(["--"]).args(command).run();
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("no report: {e}\n{}", done.stderr));
        (done, serde_json::from_str(&text).unwrap_or_else(|e| panic!("no JSON: {e}\n{text}")))
    }

    /// Runs the tracer to the end and returns the JSON report; panics unless the run succeeded.
    pub fn report(self) -> Value {
        self.run().report()
    }
}

impl Traced {
    /// The JSON report on stdout; panics unless the tracer succeeded.
    pub fn report(&self) -> Value {
        assert!(self.status.success(), "the tracer failed: {}\n{}", self.status, self.stderr);
        self.report_or_empty()
    }

    /// The JSON report on stdout, also of a failed trace without watches, with the reason in
    /// `empty`; panics without one.
    pub fn report_or_empty(&self) -> Value {
        let report: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("the report is not JSON: {e}\n{}\n{}", self.stdout, self.stderr));
        let schema = report["schema"].as_str();
        assert!(matches!(schema, Some("locality-report/1" | "locality-report/2")), "{schema:?}");
        assert_eq!(
            report["empty"].is_null(),
            self.status.success(),
            "{}: {:#}",
            self.status,
            report["empty"]
        );
        report
    }

    /// Panics unless the tracer failed with this status
    /// and one sentence on stderr with each of `words`.
    pub fn assert_refused(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status.code(), Some(status), "{}", self.stderr);
        assert_eq!(self.stderr.trim().lines().count(), 1, "more than one line: {}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not in: {}", self.stderr);
        }
    }
}

/// The tracer's path.
pub fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY
        .get_or_init(|| {
            if let Some(path) = std::env::var_os("LOCALITY_BPF") {
                return PathBuf::from(path);
            }
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--release", "--package", "locality-bpf", "--manifest-path"]);
            cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
            let status = cargo.status().unwrap_or_else(|e| panic!("cannot run cargo: {e}"));
            assert!(status.success(), "locality-bpf does not build");
            let own = std::env::current_exe().unwrap_or_else(|e| panic!("where am I: {e}"));
            let target = own.ancestors().nth(3).unwrap_or(&own).to_owned();
            target.join("release/locality-bpf")
        })
        .clone()
}
