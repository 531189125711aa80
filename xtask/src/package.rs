//! `cargo xtask package`: packages for Debian's and for RPM's systems, with debug information apart.
//!
//! `cargo deb` and `cargo generate-rpm` read their lists of files in `userspace/cli/Cargo.toml`. What
//! those lists take from `target/package` is made here: the stripped program, manual pages, and the
//! changes. Not here: installing a package, and the systemd unit's start, which is the administrator's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

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
    shell::run(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    let folder = files()?;
    if deb {
        let deb = ["deb", "--package", "locality-bpf", "--no-build", "--no-strip", "--output"];
        shell::run_aside(shell::cargo().args(deb).arg(&folder))?;
    }
    if rpm {
        let rpm = ["generate-rpm", "--package", "userspace/cli", "--output"];
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
    let built = shell::target_dir().join("release/locality-bpf");
    strip(&built, &folder)?;
    shell::run_aside(Command::new(folder.join("locality-bpf")).arg("man").arg(folder.join("man")))?;
    fs::copy(shell::root().join("CHANGELOG.md"), folder.join("changelog"))?;
    Ok(folder)
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
