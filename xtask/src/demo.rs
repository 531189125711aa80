//! `cargo xtask demo`: trace a live process that treats its caches badly, print the report, follow its first
//! advice, and say how much faster the program is.
//!
//! Not here: the flaw (`tests/programs/picture.c`), and the change, a switch of the program.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Seconds of the workload: more than the trace, and few enough to end after a kill.
const WORKLOAD_SECONDS: &str = "120";
const TRACE_SECONDS: &str = "15";
/// Each of the two ways is timed for so long, in turn, so often; the medians count.
const TIMED_SECONDS: &str = "1";
const TURNS: usize = 3;
/// The switch of the program that follows the advice.
const MENDED: &str = "rows";

/// Installs what is missing, builds, and runs the demo.
pub fn run() -> Result<()> {
    shell::need(&[("gcc", "gcc"), ("gcc", "libc6-dev")])?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    let program = build()?;
    let workload = Workload::start(&program)?;
    eprintln!("the demo program brightens a picture of 71 MiB, column by column");
    let mut tracer = shell::as_root(shell::target_dir().join("release/locality-bpf"))?;
    let profile = shell::target_dir().join("demo/picture.locality");
    tracer.args(["-p", &workload.0.id().to_string(), "-d", TRACE_SECONDS, "-o"]).arg(profile);
    shell::run(&mut tracer)
        .context("the demo could not be traced; `locality-bpf doctor` says what this machine lacks")?;
    drop(workload);
    let mut ways = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (rounds, way) in ways.iter_mut().zip([None, Some(MENDED)]) {
            rounds.push(rounds_a_second(&program, way)?);
        }
    }
    let [flawed, mended] = ways.map(|mut rounds| {
        rounds.sort_by(f64::total_cmp);
        rounds.get(TURNS / 2).copied().unwrap_or(f64::NAN)
    });
    eprintln!(
        "\nThe demo program has a switch that interchanges its loops, as the report advises: {flawed:.1} rounds a second \
         become {mended:.1}, {:.1} times as many.",
        mended / flawed
    );
    Ok(())
}

fn build() -> Result<PathBuf> {
    let dir = shell::target_dir().join("demo");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let program = dir.join("picture");
    let source = shell::root().join("tests/programs/picture.c");
    shell::run(Command::new("gcc").args(["-O2", "-g", "-o"]).arg(&program).arg(source))?;
    Ok(program)
}

/// Rounds of the program's work in a second, for one variant.
fn rounds_a_second(program: &Path, way: Option<&str>) -> Result<f64> {
    let output = Command::new(program).arg(TIMED_SECONDS).args(way).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    last.parse().with_context(|| format!("the demo program said {last:?} in place of its speed"))
}

/// The running demo program; ends with us.
struct Workload(Child);

impl Workload {
    fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program).arg(WORKLOAD_SECONDS).stdout(Stdio::piped()).spawn()?;
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
        // An earlier end of the program is fine.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
