//! The fuzz driver, started by `cargo xtask fuzz`: input that hostile programs, files and users
//! could make, by the million.
//!
//! Each target makes inputs that are nearly right from a seed's random numbers, and tries them in
//! a child process. A panic, an abort, a hang and an allocation beyond 4 GiB are findings: saved
//! as a file that can be tried again. Equal seeds try equal inputs in equal order. Limits: without
//! feedback of coverage, states that only a long sequence of right steps reaches are not reached.

mod child;
mod random;
mod shared;
mod targets;

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use shared::Shared;

/// An execution that takes longer is a hang.
const HANG: Duration = Duration::from_secs(8);
/// Deaths of child processes that end a target: the findings are many enough.
const MOST_DEATHS: u64 = 40;

const USAGE: &str =
    "usage: fuzz SECONDS [TARGET] [--seed N] [--executions N] [--replay FILE] [--folder FOLDER]";

/// Arguments of the command line.
struct Options {
    time: Duration,
    target: Option<String>,
    seed: u64,
    executions: u64,
    replay: Option<PathBuf>,
    folder: PathBuf,
    /// Number of the first execution, of a child process.
    child: Option<u64>,
}

fn options() -> Result<Options> {
    let mut options = Options {
        time: Duration::ZERO,
        target: None,
        seed: 1,
        executions: u64::MAX,
        replay: None,
        folder: PathBuf::from("target/fuzz"),
        child: None,
    };
    let mut words = std::env::args().skip(1);
    let mut has_time = false;
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value; {USAGE}"));
        let number =
            |text: String| text.parse::<u64>().with_context(|| format!("{text} is no number; {USAGE}"));
        match word.as_str() {
            "--seed" => options.seed = number(value()?)?,
            "--executions" => options.executions = number(value()?)?,
            "--child" => options.child = Some(number(value()?)?),
            "--replay" => options.replay = Some(value()?.into()),
            "--folder" => options.folder = value()?.into(),
            _ if word.starts_with('-') => bail!("{word} is no option; {USAGE}"),
            _ if !has_time => {
                let seconds = word.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                options.time = seconds.with_context(|| format!("{word} is no number of seconds; {USAGE}"))?;
                has_time = true;
            }
            _ if word == targets::FAULTY || targets::NAMES.contains(&word.as_str()) => {
                options.target = Some(word)
            }
            _ => bail!("{word} is no target; the targets are {}", targets::NAMES.join(", ")),
        }
    }
    if !has_time {
        bail!("{USAGE}; the targets are {}", targets::NAMES.join(", "));
    }
    Ok(options)
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a result.
#[expect(clippy::print_stdout, reason = "the result of a developer command belongs on stdout")]
fn say(line: &str) {
    println!("{line}");
}

/// Number of findings.
fn run(options: &Options) -> Result<u64> {
    if let Some(first) = options.child {
        let target = options.target.clone().context("a child process needs a target")?;
        let end = options.executions;
        child::run(&child::Task {
            target,
            seed: options.seed,
            first,
            end,
            time: options.time,
            folder: options.folder.clone(),
        })?;
        return Ok(0);
    }
    fs::create_dir_all(&options.folder)
        .with_context(|| format!("cannot make the folder {}", options.folder.display()))?;
    targets::prepare(&options.folder)?;
    if let Some(file) = &options.replay {
        return replay(options, file);
    }
    let mut findings = 0;
    say(&format!("{:<12}{:>12}{:>14}{:>10}", "target", "executions", "executions/s", "findings"));
    let names = match options.target.as_deref() {
        Some(only) => vec![only],
        None => targets::NAMES.to_vec(),
    };
    for name in names {
        let sum = fuzz(options, name)?;
        let rate = sum.executions as f64 / sum.seconds.max(1e-3);
        say(&format!("{name:<12}{:>12}{rate:>14.0}{:>10}", sum.executions, sum.findings));
        findings += sum.findings;
    }
    if findings > 0 {
        eprintln!(
            "{findings} findings; inputs and causes are in {}",
            options.folder.join("findings").display()
        );
    }
    Ok(findings)
}

/// Tries a saved input in this process: a panic is printed, an abort ends the process.
fn replay(options: &Options, file: &Path) -> Result<u64> {
    let name = options.target.as_deref().context("a replay needs a target")?;
    let input = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut target = targets::open(name, &options.folder)?;
    child::confine()?;
    let started = Instant::now();
    match child::attempt(target.as_mut(), &input) {
        Ok(()) => {
            say(&format!("{name}: no finding, {:.3} s", started.elapsed().as_secs_f64()));
            Ok(u64::from(started.elapsed() > HANG))
        }
        Err(panic) => {
            say(&format!("{name}: {panic}"));
            Ok(1)
        }
    }
}

/// Results of a target.
struct Sum {
    executions: u64,
    findings: u64,
    seconds: f64,
}

fn fuzz(options: &Options, name: &str) -> Result<Sum> {
    let current = options.folder.join("current");
    let started = Instant::now();
    let (mut first, mut findings, mut deaths, mut wrapped) = (0, 0, 0, 0);
    while first < options.executions && started.elapsed() < options.time && deaths < MOST_DEATHS {
        let shared =
            Shared::open(&current, true).context("cannot make the page shared with child processes")?;
        let left = options.time.saturating_sub(started.elapsed());
        let errors = options.folder.join("errors");
        let mut child = Command::new(std::env::current_exe()?)
            .args([&left.as_secs_f64().to_string(), name, "--child", &first.to_string()])
            .args(["--seed", &options.seed.to_string(), "--executions", &options.executions.to_string()])
            .arg("--folder")
            .arg(&options.folder)
            .stdout(Stdio::null())
            .stderr(File::create(&errors)?)
            .spawn()
            .context("cannot start a child process")?;
        let (status, is_hang) = wait(&mut child, &shared)?;
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", child.id()));
        findings += shared.panicked().load(Ordering::Relaxed);
        wrapped += shared.wrapped().load(Ordering::Relaxed);
        let begun = shared.begun().load(Ordering::Acquire);
        first += begun;
        let text = String::from_utf8_lossy(&fs::read(&errors)?).into_owned();
        if status.success() {
            eprint!("{text}");
            break;
        }
        if begun == 0 || begun == shared.ended().load(Ordering::Acquire) {
            bail!("a child process of {name} ended outside of an execution: {status} {text}");
        }
        let kind = if is_hang { "hang" } else { "abort" };
        let cause =
            if is_hang { format!("longer than {} s", HANG.as_secs()) } else { format!("{status} {text}") };
        let kind = if status.signal().is_some() || is_hang { kind } else { "exit" };
        save(&options.folder, name, kind, options.seed, first - 1, &shared.input(), &cause)?;
        findings += 1;
        deaths += 1;
    }
    if wrapped > 0 {
        eprintln!(
            "{name}: {wrapped} sums overflowed in libraries, which wrap in a release; they are no findings"
        );
    }
    Ok(Sum { executions: first, findings, seconds: started.elapsed().as_secs_f64() })
}

/// Waits for the child's end, and ends the child when an execution takes too long.
fn wait(child: &mut std::process::Child, shared: &Shared) -> Result<(std::process::ExitStatus, bool)> {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        let begun = shared.begun().load(Ordering::Acquire);
        let is_running = begun > shared.ended().load(Ordering::Acquire);
        if begun != seen || !is_running {
            (seen, since) = (begun, Instant::now());
        }
        if since.elapsed() > HANG {
            child.kill()?;
            return Ok((child.wait()?, true));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Saves an input, and the cause beside the input.
fn save(
    folder: &Path,
    target: &str,
    kind: &str,
    seed: u64,
    execution: u64,
    input: &[u8],
    cause: &str,
) -> Result<()> {
    let findings = folder.join("findings");
    fs::create_dir_all(&findings)?;
    let file = findings.join(format!("{target}-{kind}-{seed}-{execution}"));
    fs::write(&file, input)?;
    fs::write(file.with_extension("txt"), format!("{cause}\n"))?;
    eprintln!("{target}: {kind} in execution {execution}: {} ({})", cause.trim(), file.display());
    Ok(())
}
