//! `cargo xtask demo`: trace a live process that treats its caches badly, and print the report.
//!
//! Not here: the flaw itself, which is `tests/programs/column_walk.c`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Long enough that the workload outlives the trace, short enough that it ends when we are killed.
const WORKLOAD_SECONDS: &str = "120";
const TRACE_SECONDS: &str = "10";

/// Installs what is missing, builds, and runs the demo.
pub fn run() -> Result<()> {
    shell::need(&[("gcc", "gcc"), ("gcc", "libc6-dev")])?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    let workload = Workload::start()?;
    eprintln!(
        "the demo workload walks a matrix column by column, and twice over an array larger than most caches"
    );
    let mut tracer = shell::as_root(shell::target_dir().join("release/locality-bpf"))?;
    tracer.args(["-p", &workload.0.id().to_string(), "-d", TRACE_SECONDS]);
    shell::run(&mut tracer)
        .context("the demo could not be traced; `locality-bpf doctor` says what this machine lacks")
}

/// The running demo program; ends with us.
struct Workload(Child);

impl Workload {
    fn start() -> Result<Self> {
        let dir = shell::target_dir().join("demo");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let program = dir.join("column_walk");
        let source = shell::root().join("tests/programs/column_walk.c");
        shell::run(Command::new("gcc").args(["-O1", "-g", "-o"]).arg(&program).arg(source))?;
        let mut child = Command::new(&program).arg(WORKLOAD_SECONDS).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take();
        let workload = Self(child);
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if !line.starts_with("ready") {
            bail!("the demo workload {} did not start", program.display());
        }
        Ok(workload)
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
