//! Costs of following allocations: each program untraced, traced without
//! (`--heap=off`) and with the recorder (`--heap=preload`), in turn, and
//! the share of the program's blocks recorded with a call path.
//!
//! Wall and CPU time of the program: untraced by `getrusage`, traced as in the profile, from the
//! program's start to the end. The tracer's own start and report are not part of a program's
//! time. Medians over `--pairs` of ratios within a round. Sources of error: the machine must be
//! idle; the profile's CPU time is read every 250 ms and at the end of the process.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Allocates: a thousand small blocks for each of 1 KiB or more, with work in between. Prints how
/// many were of 1 KiB or more.
const KERNEL: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static volatile unsigned long sink;
__attribute__((noinline)) static void *large(int i) { return malloc(1024 + i % 7 * 512); }
__attribute__((noinline)) static void *small(int i) { return malloc(16 + i % 13 * 8); }
int main(int argc, char **argv) {
    long thousands = atol(argv[1]), spins = atol(argv[2]);
    unsigned long x = 88172645463325252ul;
    for (long n = 0; n < thousands; n++) {
        char *block = large(n);
        block[7] = 1;
        for (int i = 1; i < 1000; i++) {
            char *p = small(i);
            p[3] = i;
            for (long k = 0; k < spins; k++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; }
            free(p);
        }
        free(block);
    }
    sink = x;
    printf("%ld\n", thousands);
    return 0;
}
"#;

/// A number of turns and a number of steps that take about a second together.
const TRIAL: (u64, u64) = (1000, 200);

/// Programs of the distribution.
const PYTHON: &str =
    "d = {}\nfor r in range(48):\n    for i in range(200000): d[i * 7919 & 0xffff] = str(i) * (i % 90)";
const PERL: &str = "for my $r (1..28) { for (1..200000) { $h{$_*7919&0xffff} = 'x' x ($_ % 3000) } }";

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Rounds; medians count
    #[arg(long, default_value_t = 7)]
    pairs: usize,
    /// Seconds that the kernel takes untraced
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Only these programs: kernel, python3, perl
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Measures and prints a table.
pub fn run(options: &Options) -> Result<()> {
    shell::need(&[("gcc", "gcc"), ("gcc", "libc6-dev"), ("python3", "python3"), ("perl", "perl")])?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    let folder = std::env::temp_dir().join(format!("locality-bench-heap-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = table(options, &folder);
    std::fs::remove_dir_all(&folder)?;
    measured
}

fn table(options: &Options, folder: &Path) -> Result<()> {
    let kernel = folder.join("kernel");
    std::fs::write(folder.join("kernel.c"), KERNEL)?;
    shell::run(Command::new("gcc").args(["-O1", "-g", "-o"]).arg(&kernel).arg(folder.join("kernel.c")))?;
    let kernel = kernel.to_string_lossy().into_owned();
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut programs: Vec<(&str, Vec<String>)> = Vec::new();
    if wanted("kernel") {
        // A thousand allocations in a millisecond.
        let trial = [kernel.clone(), TRIAL.0.to_string(), TRIAL.1.to_string()];
        let (wall, _) = seconds(&trial)?;
        let spins = (TRIAL.1 as f64 * (TRIAL.0 as f64 / 1000.0) / wall).round().max(1.0);
        programs.push(("kernel", vec![kernel, (options.seconds * 1000).to_string(), spins.to_string()]));
    }
    for (name, option, text) in [("python3", "-c", PYTHON), ("perl", "-e", PERL)] {
        if wanted(name) {
            programs.push((name, [name, option, text].map(str::to_owned).to_vec()));
        }
    }
    crate::say(
        "| program | untraced s | --heap=off: wall | CPU | --heap=preload: wall | CPU | blocks of 1 KiB or more | recorded with path |",
    );
    crate::say("|---|---|---|---|---|---|---|---|");
    let tracer = shell::target_dir().join("release/locality-bpf").to_string_lossy().into_owned();
    let profile = folder.join("t.locality");
    let traced = |heap: &str, command: &[String]| {
        let options = ["-q", heap, "--report", "/dev/null", "-o", &profile.to_string_lossy(), "--"];
        let words = std::iter::once(tracer.clone()).chain(options.map(str::to_owned));
        words.chain(command.iter().cloned()).collect::<Vec<_>>()
    };
    for (name, command) in &programs {
        let mut untraced = Vec::new();
        let mut ratios: [Vec<f64>; 4] = Default::default();
        let (mut blocks, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..options.pairs {
            let plain = seconds(command)?;
            seconds(&traced("--heap=off", command))?;
            let off = traced_seconds(&profile)?;
            seconds(&traced("--heap=preload", command))?;
            let with = traced_seconds(&profile)?;
            untraced.push(plain.0);
            let these = [off.0 / plain.0, off.1 / plain.1, with.0 / plain.0, with.1 / plain.1];
            ratios.iter_mut().zip(these).for_each(|(all, one)| all.push(one));
            let (large, with_path) = recorded(&profile)?;
            blocks.push(large);
            shares.push(with_path / large.max(1.0));
        }
        let [off_wall, off_cpu, with_wall, with_cpu] = ratios.map(median);
        crate::say(&format!(
            "| {name} | {:.2} | {off_wall:.3} | {off_cpu:.3} | {with_wall:.3} | {with_cpu:.3} | {:.0} | {:.1} % |",
            median(untraced),
            median(blocks),
            median(shares) * 100.0
        ));
    }
    Ok(())
}

/// Wall and CPU seconds of the traced programs, as a profile has them.
fn traced_seconds(profile: &Path) -> Result<(f64, f64)> {
    two_numbers(profile, "select wall_ns / 1e9 from run", "select cpu_ns / 1e9 from run")
}

/// Allocations of the least size or more, as counted by the
/// recorder, and the number with a call path in a profile.
fn recorded(profile: &Path) -> Result<(f64, f64)> {
    two_numbers(profile, "select made - smaller from heap", "select sum(allocations) from allocation_site")
}

fn two_numbers(profile: &Path, first: &str, second: &str) -> Result<(f64, f64)> {
    let script = "import sqlite3, sys\n\
                  database = sqlite3.connect(sys.argv[1])\n\
                  get = lambda query: (database.execute(query).fetchone() or [0])[0] or 0\n\
                  print(get(sys.argv[2]), get(sys.argv[3]))";
    let said = Command::new("python3").args(["-c", script]).arg(profile).args([first, second]).output()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(second))) => Ok((first, second)),
        _ => bail!(
            "{} does not answer `{first}`, `{second}`: {}",
            profile.display(),
            String::from_utf8_lossy(&said.stderr)
        ),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Wall and CPU seconds of a command and every reaped child.
fn seconds(command: &[String]) -> Result<(f64, f64)> {
    let (program, arguments) = command.split_first().context("no command")?;
    let (before, began) = (children_seconds()?, Instant::now());
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    let wall = began.elapsed().as_secs_f64();
    if !status.success() {
        bail!("`{}` failed: {status}", command.join(" "));
    }
    Ok((wall, children_seconds()? - before))
}

/// CPU time of the children that were waited for.
fn children_seconds() -> Result<f64> {
    // SAFETY: zeroed numbers are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the destination is live.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let of = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(of(usage.ru_utime) + of(usage.ru_stime))
}
