//! `cargo xtask demo`: trace a live process that treats its caches badly, print
//! the report, follow its first advice, and print the program's speed-up.
//!
//! Not here: the flaw (`tests/programs/picture.c`), and the change, a switch of the program.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Seconds of the workload: more than the trace, and few enough to end after a kill.
const WORKLOAD_SECONDS: &str = "120";
/// Long enough for windows to meet the ends of columns. Without an end the step of the outer loop is not
/// known, and advice is withheld. 12 of 789 windows met an end; a trace of 15 s had none in 1 of 5 cases.
const TRACE_SECONDS: &str = "40";
/// Time for each of the two ways, and how often each is timed, in turn; the medians count.
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
    let binary = shell::target_dir().join("release/locality-bpf");
    let mut tracer = shell::as_root(&binary)?;
    let profile = shell::target_dir().join("demo/picture.locality");
    tracer.args(["-p", &workload.0.id().to_string(), "-d", TRACE_SECONDS, "-o"]).arg(&profile);
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
    let predicted = predicted(&binary, &profile)?.unwrap_or_else(|| {
        "this report has no such advice: the machine was too busy, or the trace too short".to_owned()
    });
    eprintln!(
        "\nThe demo program has a switch that interchanges its loops ({predicted}): {flawed:.1} rounds \
         a second become {mended:.1}, {:.1} times as many.",
        mended / flawed
    );
    Ok(())
}

/// The gain that the report predicts for interchanged loops, in words; `None` without the advice.
fn predicted(binary: &Path, profile: &Path) -> Result<Option<String>> {
    let output = Command::new(binary).arg("report").arg(profile).args(["--format", "json"]).output()?;
    let report = serde_json::from_slice(&output.stdout).context("the JSON report cannot be read")?;
    Ok(of_interchange(&report))
}

fn of_interchange(report: &serde_json::Value) -> Option<String> {
    let is_interchange = |advice: &&serde_json::Value| advice["kind"] == "interchange";
    let speedup = &report["advice"].as_array()?.iter().find(is_interchange)?["gain"]["speedup"];
    let number = |value: &serde_json::Value| value.as_f64();
    let (value, low, high) = (&speedup["value"], &speedup["ci95"][0], &speedup["ci95"][1]);
    let (value, low, high) = (number(value)?, number(low)?, number(high)?);
    Some(format!("as the report advises, with {value:.1} [{low:.1}–{high:.1}] times the speed"))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_advice_that_is_there_is_claimed() {
        let gain = json!({"speedup": {"value": 6.13, "ci95": [3.71, 9.2]}});
        let report = |kind: &str| json!({"advice": [{"kind": kind, "gain": gain}]});
        let said = of_interchange(&report("interchange")).unwrap();
        assert_eq!(said, "as the report advises, with 6.1 [3.7–9.2] times the speed");
        for report in [report("tile"), json!({"advice": []}), json!({})] {
            assert_eq!(of_interchange(&report), None, "{report}");
        }
    }
}
