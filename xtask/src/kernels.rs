//! `cargo xtask kernels`: boots kernels of Debian under
//! emulation, and checks the claims for each kernel.
//!
//! The machine's own kernel is rarely a user's, and verifiers differ: an older
//! kernel refuses programs that a newer kernel loads. The kernels claimed to
//! work stand in `judge`; docs/limitations.md names the kernels that ran.
//!
//! Limits: an emulated processor has no PMU, and emulated times are no measure of cost.

mod guest;
mod judge;
mod packages;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use guest::Machine;
use judge::Claims;
use packages::{Kernel, Packages};

use locality_shell as shell;

/// What `cargo xtask kernels` can be asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Only these series, as in 6.1,6.12 [default: 6.1, 6.12 and the newest to be had; with --nightly all]
    #[arg(long, value_delimiter = ',', value_parser = series, value_name = "SERIES")]
    only: Vec<(u32, u32)>,
    /// All checks, on four machines each
    #[arg(long)]
    nightly: bool,
    /// Only these checks
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    checks: Vec<String>,
    /// Debian's archive to take kernels from [default: the one that apt of this machine uses]
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
}

/// Series that the short form boots, beside the newest.
const SHORT: [(u32, u32); 2] = [(6, 1), (6, 12)];

/// Series on which the long form makes every check, beside the
/// newest; the remaining series have the checks of the short form.
const LONG: [(u32, u32); 3] = [(6, 1), (6, 12), (6, 18)];

/// The machine of most checks.
const USUAL: Machine = Machine { name: "2 CPUs", cpu: "max", cpus: 2 };

/// Checks of the short form.
const SHORT_CHECKS: [&str; 3] = ["doctor", "trace", "pid_namespace"];

/// Machines of the long form, with what each is asked.
const LONG_CHECKS: [(Machine, &[&str]); 5] = [
    (
        USUAL,
        &[
            "doctor",
            "trace",
            "overhead",
            "windows",
            "cgroup",
            "launch",
            "launch_default",
            "launch_probes",
            "probes",
            "user_only",
            "storm",
            "kill",
            "stop",
            "nobody",
            "pid_namespace",
        ],
    ),
    (Machine { name: "1 CPU", cpu: "max", cpus: 1 }, &["doctor", "overhead", "storm", "kill"]),
    (Machine { name: "4 CPUs", cpu: "max", cpus: 4 }, &["doctor", "overhead", "storm", "stop"]),
    (Machine { name: "no XSAVE", cpu: "qemu64", cpus: 2 }, &["doctor", "windows", "launch"]),
    (Machine { name: "no AVX", cpu: "max,-avx,-avx2,-fma,-f16c,-vaes", cpus: 2 }, &["doctor", "windows"]),
];

/// Longest time of a boot with this many checks.
fn limit(checks: usize) -> Duration {
    Duration::from_secs(120 + 90 * checks as u64)
}

fn series(text: &str) -> Result<(u32, u32), String> {
    let parts =
        text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.ok_or_else(|| format!("`{text}` is no series of kernels, such as 6.12"))
}

/// A line of the table.
struct Line {
    kernel: String,
    machine: &'static str,
    check: String,
    passed: bool,
    said: String,
}

/// Boots the kernels in turn, prints a line for each
/// check, and fails after a check's second failure.
pub fn run(options: &Options) -> Result<()> {
    let began = Instant::now();
    let folder = shell::target_dir().join("kernels");
    let packages = Packages::open(&folder, options.mirror.as_deref())?;
    let kernels = chosen(packages.newest()?, options)?;
    let images: Vec<(Kernel, PathBuf)> = kernels
        .into_iter()
        .map(|kernel| packages.image(&kernel).map(|image| (kernel, image)))
        .collect::<Result<_>>()?;
    let initramfs = guest::initramfs(&folder)?;
    let newest = images.last().map(|(kernel, _)| kernel.series);
    let mut lines = Vec::new();
    for (kernel, image) in &images {
        let claims = Claims { series: kernel.series };
        for (machine, checks) in plan(kernel.series, newest == Some(kernel.series), options) {
            let place =
                folder.join("boots").join(format!("{}-{}", kernel.release, machine.name.replace(' ', "-")));
            let boot =
                |checks: &[&str]| try_once(kernel, image, &initramfs, machine, checks, &place, &claims);
            let mut tried = boot(&checks)?;
            let failed = |name: &str| tried.iter().any(|line| !line.passed && line.check == name);
            let mut again: Vec<&str> = checks.iter().copied().filter(|name| failed(name)).collect();
            if again.is_empty() && tried.iter().any(|line| !line.passed) {
                // The guest failed after its checks.
                again.clone_from(&checks);
                tried.clear();
            }
            if !again.is_empty() {
                // Emulated processors stand still when the host is busy; a fault of ours fails again.
                eprintln!("Linux {}, {}: a second time: {}", kernel.release, machine.name, again.join(", "));
                tried.retain(|line| line.passed);
                tried.extend(boot(&again)?);
            }
            lines.extend(tried);
        }
    }
    close(&lines, began.elapsed())
}

/// Boots a kernel on a machine and prints a line for each check.
fn try_once(
    kernel: &Kernel,
    image: &Path,
    initramfs: &Path,
    machine: Machine,
    checks: &[&str],
    place: &Path,
    claims: &Claims,
) -> Result<Vec<Line>> {
    let boot = guest::boot(image, initramfs, machine, checks, limit(checks.len()), place)?;
    eprintln!("Linux {}, {}: {:.0} s", kernel.release, machine.name, boot.took.as_secs_f64());
    let line = |check: &str, verdict: Result<String, String>| {
        let (passed, said) = verdict.map_or_else(|why| (false, why), |said| (true, said));
        let kernel = kernel.release.clone();
        let line = Line { kernel, machine: machine.name, check: check.into(), passed, said };
        crate::say(&line.text());
        line
    };
    let verdict = |check: &&str| line(check, judge::judge(check, &boot.results.join(check), claims));
    let mut lines: Vec<Line> = checks.iter().map(verdict).collect();
    if let Some(why) = &boot.failure {
        lines.push(line("boot", Err(format!("{why}; see {}", boot.log.display()))));
    }
    Ok(lines)
}

impl Line {
    fn text(&self) -> String {
        let passed = if self.passed { "pass" } else { "FAIL" };
        format!("{passed}  {:<26} {:<9} {:<15} {}", self.kernel, self.machine, self.check, self.said)
    }
}

/// Which kernels are booted.
fn chosen(all: Vec<Kernel>, options: &Options) -> Result<Vec<Kernel>> {
    let wanted = |kernel: &Kernel, newest: bool| match options.only.as_slice() {
        [] if options.nightly => true,
        [] => newest || SHORT.contains(&kernel.series),
        only => only.contains(&kernel.series),
    };
    let newest = all.last().map(|kernel| kernel.series);
    let kernels: Vec<Kernel> = all.iter().filter(|k| wanted(k, newest == Some(k.series))).cloned().collect();
    let had: Vec<String> = all.iter().map(|kernel| name(kernel.series)).collect();
    let asked = if options.only.is_empty() { &SHORT[..] } else { &options.only };
    if let Some(absent) = asked.iter().find(|series| kernels.iter().all(|kernel| kernel.series != **series)) {
        bail!("no kernel {} is to be had; there are {}", name(*absent), had.join(", "));
    }
    Ok(kernels)
}

fn name(series: (u32, u32)) -> String {
    format!("{}.{}", series.0, series.1)
}

/// Machines to boot a kernel on, each with its checks.
fn plan(series: (u32, u32), is_newest: bool, options: &Options) -> Vec<(Machine, Vec<&str>)> {
    let all = options.nightly && (is_newest || LONG.contains(&series) || options.only.contains(&series));
    let plan = match all {
        _ if series < judge::OLDEST => vec![(USUAL, vec!["refused"])],
        true => LONG_CHECKS.iter().map(|(machine, checks)| (*machine, checks.to_vec())).collect(),
        false => vec![(USUAL, SHORT_CHECKS.to_vec())],
    };
    if options.checks.is_empty() {
        return plan;
    }
    let asked = |check: &&str| options.checks.iter().any(|asked| asked == check);
    let plan =
        plan.into_iter().map(|(machine, checks)| (machine, checks.into_iter().filter(asked).collect()));
    plan.filter(|(_, checks): &(Machine, Vec<&str>)| !checks.is_empty()).collect()
}

/// The table: a row for each kernel and machine.
fn close(lines: &[Line], took: Duration) -> Result<()> {
    let mut rows: Vec<(&str, &str)> = lines.iter().map(|line| (line.kernel.as_str(), line.machine)).collect();
    rows.dedup();
    crate::say("");
    for (kernel, machine) in rows {
        let of_row = || lines.iter().filter(|line| (line.kernel.as_str(), line.machine) == (kernel, machine));
        let failed: Vec<&str> =
            of_row().filter(|line| !line.passed).map(|line| line.check.as_str()).collect();
        let passed = of_row().count() - failed.len();
        let failed =
            if failed.is_empty() { String::new() } else { format!(", FAILED: {}", failed.join(", ")) };
        crate::say(&format!("Linux {kernel:<26} {machine:<9} {passed} passed{failed}"));
    }
    let failed = lines.iter().filter(|line| !line.passed).count();
    crate::say(&format!("{} checks, {failed} failed, in {:.0} s", lines.len(), took.as_secs_f64()));
    match (lines.is_empty(), failed) {
        (true, _) => bail!("no check of these names"),
        (_, 0) => Ok(()),
        (_, failed) => bail!("{failed} of {} checks failed", lines.len()),
    }
}
