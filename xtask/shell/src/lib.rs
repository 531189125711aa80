//! Running other programs: shown, checked, and as root where needed; and installing packages of the
//! distribution.
//!
//! Limits: packages by apt only; elsewhere the sentence names what to install.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Cargo's output folder.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The QEMU plugin embedded in `locality-bpf`: a copy by the build script of `locality-runner`.
pub fn plugin() -> PathBuf {
    target_dir().join("plugin/liblocality_plugin.so")
}

/// The cargo that runs us, in the repository.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Shows the command on stderr, runs it, and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", words(command));
    let status = command.status().with_context(|| format!("cannot run `{}`", words(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", words(command));
    }
    Ok(())
}

/// The same, with what the command prints sent to stderr: our stdout is for results.
pub fn run_aside(command: &mut Command) -> Result<()> {
    run(command.stdout(std::io::stderr()))
}

/// The command as a person would type it.
pub fn words(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|w| w.to_string_lossy())
        .collect();
    words.join(" ")
}

/// Whether we run as root.
pub fn is_root() -> bool {
    // The owner of our own entry in /proc is our effective user.
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// A command with root's rights: direct, or under sudo.
pub fn as_root(program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    if !has("sudo") {
        bail!("this needs root, and sudo is not installed: run the same command as root");
    }
    let mut command = Command::new("sudo");
    command.arg(program);
    Ok(command)
}

/// Whether a program can be found.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The sbin directories are not on every user's path, but sudo finds what is there.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).is_file())
}

/// Installs the packages of those programs that are missing; pairs of (program, package).
pub fn need(programs: &[(&str, &str)]) -> Result<()> {
    let mut missing: Vec<&str> =
        programs.iter().filter(|(program, _)| !has(program)).map(|(_, package)| *package).collect();
    missing.dedup();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Installs missing packages of libraries; pairs of (file, package). The tests print their missing
/// requirements.
pub fn need_libraries(libraries: &[(&str, &str)]) {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let has = |file: &str| folders.iter().any(|folder| Path::new(folder).join(file).exists());
    for (file, package) in libraries.iter().filter(|(file, _)| !has(file)) {
        if let Err(error) = install(&[*package]) {
            eprintln!("{file} is missing: {error:#}");
        }
    }
}

/// Installs packages of the distribution.
pub fn install(packages: &[&str]) -> Result<()> {
    if !has("apt-get") {
        bail!("missing: {}; install them with this machine's package manager", packages.join(", "));
    }
    let apt = |arguments: &[&str]| -> Result<()> {
        let mut command = as_root("env")?;
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "--no-install-recommends"]);
        run_aside(command.args(arguments).stdin(std::process::Stdio::null()))
    };
    let install: Vec<&str> = std::iter::once("install").chain(packages.iter().copied()).collect();
    // A new machine or image has no package lists; a machine in use need not wait for an update.
    if apt(&install).is_ok() {
        return Ok(());
    }
    apt(&["update"])?;
    apt(&install).with_context(|| format!("cannot install {}", packages.join(", ")))
}
