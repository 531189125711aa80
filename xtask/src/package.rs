//! `cargo xtask package`: packages for Debian's and for RPM's systems, with debug information apart.
//!
//! `cargo deb` and `cargo generate-rpm` read their lists of files in `userspace/cli/Cargo.toml`. What
//! those lists take from `target/package` is made here: the stripped program of the profile `dist`,
//! manual pages, the changes, and the licences of libraries. Not here: installing a package, and the
//! systemd unit's start, which is the administrator's.

mod licences;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use locality_shell as shell;

/// The profile in the workspace's manifest, also the name of its folder.
const PROFILE: &str = "dist";
/// Dependencies of other targets are in no package.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What `cargo xtask package` can be asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Only the files in target/package, or one kind of package [default: both kinds]
    #[arg(long, value_enum)]
    only: Option<Kind>,
}

/// A kind of package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Files,
    Deb,
    Rpm,
}

/// Makes the files and the packages.
pub fn run(options: &Options) -> Result<()> {
    let asked = |kind| options.only.is_none_or(|only| only == kind);
    let (deb, rpm) = (asked(Kind::Deb), asked(Kind::Rpm));
    // Before the long build.
    for (wanted, tool) in [(deb, "cargo-deb"), (rpm, "cargo-generate-rpm")] {
        if wanted && !has_command(tool) {
            bail!("{tool} is missing: `cargo install --locked {tool}` installs it");
        }
    }
    shell::need(&[("objcopy", "binutils")])?;
    shell::run(shell::cargo().args(["build", "--profile", PROFILE, "--package", "locality-bpf"]))?;
    let folder = files()?;
    if deb {
        let deb = ["deb", "--package", "locality-bpf", "--no-build", "--no-strip", "--output"];
        shell::run_aside(shell::cargo().args(deb).arg(&folder))?;
    }
    if rpm {
        // With rpm's own search, packages of a machine without rpm would differ.
        let rpm = ["generate-rpm", "--package", "userspace/cli", "--auto-req", "builtin", "--output"];
        shell::run_aside(shell::cargo().args(rpm).arg(&folder))?;
    }
    for entry in fs::read_dir(&folder)?.flatten() {
        let bytes = entry.metadata()?.len();
        if entry.path().is_file() {
            crate::say(&format!("{:>12} bytes  {}", bytes, entry.path().display()));
        }
    }
    Ok(())
}

fn has_command(name: &str) -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    shell::has(name) || home.is_some_and(|home| home.join("bin").join(name).is_file())
}

/// Makes what packages are made of, in a new `target/package`.
fn files() -> Result<PathBuf> {
    // The place that the manifest names, wherever cargo's output lies.
    let folder = shell::root().join("target/package");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let built = shell::target_dir().join(PROFILE).join("locality-bpf");
    strip(&built, &folder)?;
    shell::run_aside(Command::new(folder.join("locality-bpf")).arg("man").arg(folder.join("man")))?;
    fs::copy(shell::root().join("CHANGELOG.md"), folder.join("changelog"))?;
    let metadata = metadata()?;
    fs::write(folder.join("changelog.Debian"), debian_changelog(&metadata)?)?;
    fs::write(folder.join("licences-of-libraries"), licences::of_libraries(&metadata)?)?;
    Ok(folder)
}

/// What cargo says about the packages of this target and their dependencies.
fn metadata() -> Result<Value> {
    let mut command = shell::cargo();
    command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]);
    serde_json::from_slice(&said(command.current_dir(shell::root()))?).context("cargo's metadata")
}

/// One entry in Debian's format, which names the commit; the changes are in the other file.
fn debian_changelog(metadata: &Value) -> Result<String> {
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let program = packages.find(|package| package["name"] == "locality-bpf");
    let program = program.context("cargo's metadata have no package locality-bpf")?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("cargo's metadata lack a text");
    let (version, maintainer) =
        (text(&program["version"])?, text(&program["metadata"]["deb"]["maintainer"])?);
    let git = |format: &str| -> Result<String> {
        let mut git = Command::new("git");
        git.args(["log", "-1"]).arg(format!("--format={format}")).current_dir(shell::root());
        Ok(String::from_utf8_lossy(&said(&mut git)?).trim().to_owned())
    };
    let (commit, date) = (git("%h")?, git("%cD")?);
    Ok(format!(
        "locality-bpf ({version}-1) unstable; urgency=medium\n\n  \
         * Version {version}, built from commit {commit}. The changes are in changelog.gz.\n\n \
         -- {maintainer}  {date}\n"
    ))
}

/// What a command prints.
fn said(command: &mut Command) -> Result<Vec<u8>> {
    let words = shell::words(command);
    let done = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run `{words}`"))?;
    if !done.status.success() {
        bail!("`{words}` failed: {}", done.status);
    }
    Ok(done.stdout)
}

/// The program without symbols, and a file with them that debuggers find by the program's link.
fn strip(built: &Path, folder: &Path) -> Result<()> {
    let (program, symbols) = (folder.join("locality-bpf"), folder.join("locality-bpf.debug"));
    let objcopy = || Command::new("objcopy");
    let compressed = "--compress-debug-sections";
    shell::run_aside(objcopy().args(["--only-keep-debug", compressed]).arg(built).arg(&symbols))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&symbols);
    shell::run_aside(objcopy().arg("--strip-all").arg(link).arg(built).arg(&program))
}
