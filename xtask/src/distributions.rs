//! `cargo xtask distributions`: follows the README's
//! instructions on fresh systems of other distributions.
//!
//! Each system is made by debootstrap and entered by chroot: libraries, compiler and packages
//! are the distribution's, the kernel is this machine's. "With Rust" is this machine's
//! toolchain, at an equal path. Inside run the README's demo (a live trace), `cargo xtask qemu`,
//! `doctor` and an exact run, with `--tests` also the README's `cargo xtask test`.
//!
//! Mounts are made in a namespace of each command and go with every end of the
//! command. Needs root, 4 GB on disk and ten to thirty minutes a distribution.
//! Limits: Debian; a chroot has neither a kernel nor services of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Suites that are tried.
const SUITES: [&str; 2] = ["bookworm", "trixie"];
/// Packages of a machine with Rust, since rustc links with them.
const LINKER: [&str; 3] = ["gcc", "libc6-dev", "ca-certificates"];
/// Where the clone lies inside.
const CLONE: &str = "/root/locality-bpf";
/// Where the programs of a system are; rustup's folder goes in front.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Enters: mounts the file systems that programs expect
/// and the toolchain ($2, $3), then runs the rest inside.
const ENTER: &str = r#"set -e
root=$1 cargo=$2 rustup=$3; shift 3
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for folder in "$cargo" "$rustup"; do mkdir -p "$root$folder"; mount --bind "$folder" "$root$folder"; done
exec chroot "$root" "$@""#;

/// What `cargo xtask distributions` can be asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Only this suite: bookworm, trixie
    #[arg(long)]
    only: Option<String>,
    /// Also run `cargo xtask test`
    #[arg(long)]
    tests: bool,
    /// Use the system that an earlier run left, instead of a fresh one
    #[arg(long)]
    again: bool,
}

/// Tries each, and fails when a distribution did not do as the README says.
pub fn run(options: &Options) -> Result<()> {
    if !shell::is_root() {
        bail!("this needs root, for debootstrap and chroot: run the same command as root");
    }
    shell::need(&[("debootstrap", "debootstrap"), ("git", "git"), ("tar", "tar")])?;
    let suites = SUITES.into_iter().filter(|suite| options.only.as_deref().is_none_or(|only| only == *suite));
    let suites: Vec<&str> = suites.collect();
    if suites.is_empty() {
        bail!("unknown suite; there are {}", SUITES.join(", "));
    }
    let mut failed = Vec::new();
    for suite in suites {
        match try_suite(suite, options) {
            Ok(said) => crate::say(&format!("{suite}: {said}")),
            Err(why) => {
                crate::say(&format!("{suite}: failed: {why:#}"));
                failed.push(suite);
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed on {}", failed.join(", "));
    }
    Ok(())
}

/// A system that was made.
struct System {
    root: PathBuf,
    cargo_home: PathBuf,
    rustup_home: PathBuf,
}

fn try_suite(suite: &str, options: &Options) -> Result<String> {
    let system = System::of(suite)?;
    if !options.again || !system.root.join("usr").exists() {
        system.make(suite)?;
    }
    system.bring_clone()?;
    system.shell(&format!(
        "apt-get -q update && apt-get -q -y --no-install-recommends install {}",
        LINKER.join(" ")
    ))?;
    system.shell("cargo xtask demo").context("the README's demo")?;
    system.shell("cargo xtask qemu").context("`cargo xtask qemu`")?;
    system.shell("cargo build --release --package locality-bpf")?;
    // A live trace and an exact run, of a program of the distribution itself.
    let exact = system.output("target/release/locality-bpf exact --format json --report /tmp/exact.json -- /bin/ls / >/dev/null && cat /tmp/exact.json")?;
    if !exact.contains("\"mode\": \"exact\"") {
        bail!("the exact run of /bin/ls has no report: {exact}");
    }
    let doctor = system.output("target/release/locality-bpf doctor --json")?;
    let works = |line: &&str| line.contains("QEMU ") && line.contains("with plugins");
    let Some(found) = doctor.lines().find(works) else { bail!("doctor does not see the emulator: {doctor}") };
    if options.tests {
        system.shell("cargo xtask test").context("the README's tests")?;
    }
    Ok(format!(
        "demo traced, exact runs ({})",
        found.trim().trim_start_matches("\"found\": ").trim_matches([',', '"'])
    ))
}

impl System {
    fn of(suite: &str) -> Result<Self> {
        let home = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?);
        let folder = |variable: &str, usual: &str| {
            std::env::var_os(variable).map_or_else(|| home.join(usual), PathBuf::from)
        };
        Ok(Self {
            root: shell::target_dir().join("distributions").join(suite),
            cargo_home: folder("CARGO_HOME", ".cargo"),
            rustup_home: folder("RUSTUP_HOME", ".rustup"),
        })
    }

    /// Makes a fresh system.
    fn make(&self, suite: &str) -> Result<()> {
        if self.root.exists() {
            fs::remove_dir_all(&self.root)
                .with_context(|| format!("cannot remove {}", self.root.display()))?;
        }
        fs::create_dir_all(&self.root)?;
        shell::run_aside(Command::new("debootstrap").args(["--variant=minbase", suite]).arg(&self.root))?;
        // Names of hosts, and trusted certificates of this machine.
        for file in ["/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"] {
            let to = self.root.join(file.trim_start_matches('/'));
            if Path::new(file).exists() {
                fs::create_dir_all(to.parent().unwrap_or(&self.root))?;
                fs::copy(file, &to).with_context(|| format!("cannot copy {file}"))?;
            }
        }
        Ok(())
    }

    /// Copies the committed files; earlier builds of the system stay.
    fn bring_clone(&self) -> Result<()> {
        let clone = self.root.join(CLONE.trim_start_matches('/'));
        fs::create_dir_all(&clone)?;
        let mut archive = Command::new("git");
        archive.args(["archive", "HEAD"]).current_dir(shell::root()).stdout(Stdio::piped());
        let mut archive = archive.spawn().context("cannot run git")?;
        let packed = archive.stdout.take().context("git has no output")?;
        shell::run_aside(Command::new("tar").arg("-xC").arg(&clone).stdin(packed))?;
        if !archive.wait()?.success() {
            bail!("`git archive HEAD` failed");
        }
        Ok(())
    }

    /// A command line in the clone, inside.
    fn inside(&self, line: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-c", ENTER, "enter"]);
        command.arg(&self.root).arg(&self.cargo_home).arg(&self.rustup_home);
        let path = format!("PATH={}:{PATH}", self.cargo_home.join("bin").display());
        command.args(["env", &path, "bash", "-c", &format!("cd {CLONE} && {line}")]);
        // Variables of this run of cargo must not reach the inner run.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("CARGO_") && name != "CARGO_HOME" {
                command.env_remove(name);
            }
        }
        command.env("CARGO_HOME", &self.cargo_home).env("RUSTUP_HOME", &self.rustup_home);
        command.env_remove("LOCALITY_QEMU").stdin(Stdio::null());
        command
    }

    fn shell(&self, line: &str) -> Result<()> {
        eprintln!("[{}] {line}", self.root.display());
        let status = self.inside(line).stdout(std::io::stderr()).status().context("cannot run unshare")?;
        if !status.success() {
            bail!("`{line}` failed: {status}");
        }
        Ok(())
    }

    fn output(&self, line: &str) -> Result<String> {
        eprintln!("[{}] {line}", self.root.display());
        let done = self.inside(line).stderr(Stdio::inherit()).output().context("cannot run unshare")?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        if said.is_empty() {
            bail!("`{line}` printed nothing: {}", done.status);
        }
        Ok(said)
    }
}
