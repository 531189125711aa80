//! Building the corpus, timing its kernels, and tracing the flawed ones.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::truth::{self, Kernel};
use crate::accuracy::score::median;
use locality_shell as shell;

/// Builds a source of the corpus unless the program is newer than the source.
pub fn build(source: &str, into: &Path) -> Result<PathBuf> {
    let path = truth::folder().join(source);
    let program = into.join(path.file_stem().unwrap_or_default());
    let changed = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let sources = [&path, &truth::folder().join("advice.h")].map(|path| changed(path));
    if changed(&program).is_some_and(|built| sources.iter().flatten().all(|source| *source < built)) {
        return Ok(program);
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let command = text.lines().find_map(|line| line.strip_prefix("// build: "));
    let command = command.with_context(|| format!("{} does not say how to build it", path.display()))?;
    let words = command.split_whitespace().map(|word| match word {
        "$SRC" => path.clone(),
        "$BIN" => program.clone(),
        "$RUSTC" => PathBuf::from(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())),
        word => PathBuf::from(word),
    });
    let words: Vec<PathBuf> = words.collect();
    let (compiler, arguments) = words.split_first().context("no build command")?;
    shell::run_aside(Command::new(compiler).args(arguments))?;
    Ok(program)
}

/// Rounds a second of the ways of a kernel: the median
/// of several turns. In a turn, each way runs once.
///
/// # Errors
/// A program that fails; ways with different results.
pub fn rates(kernel: &Kernel, program: &Path, turns: usize, seconds: f64) -> Result<Vec<f64>> {
    let ways: Vec<&str> = kernel.ways().collect();
    let mut rates = vec![Vec::new(); ways.len()];
    let mut checksum = None;
    for _ in 0..turns {
        for (way, rates) in ways.iter().zip(&mut rates) {
            let (found, rate) = once(kernel, program, way, seconds)?;
            if *checksum.get_or_insert_with(|| found.clone()) != found {
                bail!("{} gives another result {way} than flawed", kernel.name);
            }
            rates.push(rate);
        }
    }
    rates.iter().map(|rates| median(rates).context("no turn was measured")).collect()
}

/// Checksum and rounds a second of a run.
fn once(kernel: &Kernel, program: &Path, way: &str, seconds: f64) -> Result<(String, f64)> {
    let mut command = if kernel.threads > 1 { Command::new(program) } else { pinned(program)? };
    command.args([kernel.name, way, &seconds.to_string()]);
    let out = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    if !out.status.success() {
        bail!("`{}` failed: {}", shell::words(&command), String::from_utf8_lossy(&out.stderr));
    }
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let said = |what: &str| text.lines().find_map(|line| line.strip_prefix(what)).map(str::trim);
    let checksum = said("checksum").with_context(|| format!("{} told no checksum", kernel.name))?;
    let rate = said("rounds_per_second").and_then(|rate| rate.parse().ok());
    Ok((checksum.to_owned(), rate.with_context(|| format!("{} told no rate", kernel.name))?))
}

/// A program on the last of the processors that we may use.
fn pinned(program: &Path) -> Result<Command> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
    let last = list.trim().rsplit([',', '-']).next().unwrap_or("0");
    let mut command = Command::new("taskset");
    command.args(["-c", last]).arg(program);
    Ok(command)
}

/// A hash of a file's bytes.
pub fn digest(path: &Path) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

/// A process to trace; ends with us.
pub struct Subject {
    child: Child,
    /// Stays open: a program without a reader of its output may end.
    output: Option<BufReader<ChildStdout>>,
}

impl Subject {
    /// Starts the flawed way of a kernel and waits until its first round is done.
    pub fn start(kernel: &Kernel, program: &Path, seconds: u32) -> Result<Self> {
        // The program outlives the start and the end of the tracer.
        let mut command = Command::new(program);
        command.args([kernel.name, "flawed", &(seconds + 60).to_string()]);
        Self::until(command, |line| line.starts_with("checksum"))
    }

    /// Starts a command and waits for a line of its output.
    pub fn until(mut command: Command, ready: impl Fn(&str) -> bool) -> Result<Self> {
        let shown = shell::words(&command);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context(shown.clone())?;
        let output = child.stdout.take().context("no output")?;
        let mut output = BufReader::new(output);
        let mut subject = Self { child, output: None };
        let mut line = String::new();
        while !ready(&line) {
            line.clear();
            if output.read_line(&mut line)? == 0 {
                bail!("`{shown}` ended before it was to be traced");
            }
        }
        subject.output = Some(output);
        Ok(subject)
    }

    /// Starts a command with a set-up of less than five seconds, and lets five seconds pass.
    pub fn after_a_while(mut command: Command) -> Result<Self> {
        let shown = shell::words(&command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut subject = Self { child: command.spawn().context(shown.clone())?, output: None };
        std::thread::sleep(Duration::from_secs(5));
        if let Some(status) = subject.child.try_wait()? {
            bail!("`{shown}` ended before it was to be traced: {status}");
        }
        Ok(subject)
    }

    /// Attaches with the defaults; gives the report in JSON, which is written to a file as well.
    pub fn trace(&self, tracer: &Path, seconds: u32, report: &Path) -> Result<Value> {
        let mut command = shell::as_root(tracer)?;
        command.args(["-q", "-p", &self.child.id().to_string(), "-d", &seconds.to_string()]);
        command.args(["--format", "json", "--report"]).arg(report);
        command.arg("-o").arg(report.with_extension("locality"));
        shell::run_aside(&mut command)?;
        let text = std::fs::read(report).with_context(|| format!("cannot read {}", report.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // A process that has ended is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
