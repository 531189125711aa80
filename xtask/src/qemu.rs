//! `cargo xtask qemu`: a QEMU of user mode with plugins, for `locality-bpf exact`.
//!
//! Debian 13 builds QEMU without plugins. A package with plugins is installed.
//! Otherwise `qemu-x86_64` alone is built from the distribution's source package,
//! in a few minutes, and put at the first place that `exact` and `doctor` search.
//!
//! The machine's package sources stay as they are: source packages are asked for by a copy of the
//! list, in our folder. Limits: Debian and Ubuntu; elsewhere the sentence says what to build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// The emulator.
const QEMU: &str = "qemu-x86_64";
/// The package, and its source.
const PACKAGE: &str = "qemu-user";
const SOURCE: &str = "qemu";
/// A function exported to plugins, whose name stands in every build with plugins.
const PLUGIN_FUNCTION: &[u8] = b"qemu_plugin_register_vcpu_tb_trans_cb";
/// Library folder for root's own programs; for other users `~/.local/lib/locality-bpf`.
const LIBRARIES: &str = "/usr/local/lib/locality-bpf";
/// What the build needs.
const BUILD_PACKAGES: [&str; 9] = [
    "dpkg-dev",
    "gcc",
    "libc6-dev",
    "make",
    "ninja-build",
    "meson",
    "pkgconf",
    "python3-venv",
    "libglib2.0-dev",
];
/// The emulator alone, with GLib as the only library.
const CONFIGURE: [&str; 7] = [
    "--target-list=x86_64-linux-user",
    "--enable-plugins",
    "--without-default-features",
    "--disable-system",
    "--disable-tools",
    "--disable-docs",
    "--disable-install-blobs",
];

/// What `cargo xtask qemu` can be asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Build one even where there is a suitable one
    #[arg(long)]
    build: bool,
    /// The folder to install it in [default: /usr/local/lib/locality-bpf, without root
    /// ~/.local/lib/locality-bpf]
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

/// Installs an emulator, unless present.
pub fn run(options: &Options) -> Result<()> {
    if !options.build
        && let Some(found) = found()
    {
        crate::say(&format!("{} has plugins: `locality-bpf exact` can use it", found.display()));
        return Ok(());
    }
    if !shell::has("apt-get") {
        bail!(
            "this needs apt-get; elsewhere build QEMU 7.2 or newer with `./configure {}`, and name {QEMU} in LOCALITY_QEMU",
            CONFIGURE.join(" ")
        );
    }
    if !options.build && package_has_plugins()? {
        shell::install(&[PACKAGE])?;
        crate::say(&format!("{QEMU} of the package {PACKAGE} has plugins: `locality-bpf exact` can use it"));
        return Ok(());
    }
    let built = build().context("QEMU could not be built")?;
    let folder = match &options.to {
        Some(folder) => folder.clone(),
        None => libraries()?,
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let place = folder.join(QEMU);
    // Renamed when complete; a running emulator retains the old file.
    let making = folder.join(format!("{QEMU}.new"));
    fs::copy(&built, &making).with_context(|| format!("cannot write {}", making.display()))?;
    shell::run_aside(Command::new("strip").arg(&making))?;
    fs::rename(&making, &place).with_context(|| format!("cannot write {}", place.display()))?;
    if options.to.is_some() {
        crate::say(&format!("built {0}; `LOCALITY_QEMU={0} locality-bpf exact …` uses it", place.display()));
    } else {
        crate::say(&format!("built {}: `locality-bpf exact` uses it", place.display()));
    }
    Ok(())
}

/// For commands that need an emulator: installs the emulator if missing.
pub fn need() -> Result<()> {
    run(&Options { build: false, to: None })
}

/// A suitable emulator, at the places that `exact` searches.
pub fn found() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let named = std::env::var_os("LOCALITY_QEMU").map(PathBuf::from);
    let installed = [Some(LIBRARIES.into()), home()].into_iter().flatten().chain(folders);
    named.into_iter().chain(installed.map(|folder| folder.join(QEMU))).find(|file| has_plugins(file))
}

/// Whether a program file is a QEMU with plugins.
fn has_plugins(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.windows(PLUGIN_FUNCTION.len()).any(|part| part == PLUGIN_FUNCTION))
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/lib/locality-bpf"))
}

fn libraries() -> Result<PathBuf> {
    if shell::is_root() {
        return Ok(LIBRARIES.into());
    }
    home().context("HOME is not set: name a folder with --to")
}

/// Looks into the distribution's package without installing it.
fn package_has_plugins() -> Result<bool> {
    let folder = work_folder()?.join("package");
    fs::create_dir_all(&folder)?;
    let download = || {
        let mut command = Command::new("apt-get");
        command.args(["-q", "download", PACKAGE]).current_dir(&folder).stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !download() {
        // A fresh machine has no package lists.
        shell::run_aside(shell::as_root("apt-get")?.args(["-q", "update"]))?;
        if !download() {
            return Ok(false);
        }
    }
    let packages = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
    let Some(package) = packages.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb")) else {
        return Ok(false);
    };
    shell::run_aside(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&folder))?;
    let has_plugins = has_plugins(&folder.join("usr/bin").join(QEMU));
    fs::remove_dir_all(&folder)?;
    Ok(has_plugins)
}

fn work_folder() -> Result<PathBuf> {
    let folder = shell::target_dir().join("qemu");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Builds it; the path of the new program.
fn build() -> Result<PathBuf> {
    shell::install(&BUILD_PACKAGES)?;
    let folder = work_folder()?.join("source");
    // What an interrupted run left.
    let _ = fs::remove_dir_all(&folder);
    let apt = private_apt(&folder)?;
    // A third party's source of packages may have no source packages, which does no harm.
    if let Err(why) = shell::run_aside(apt().args(["update"])) {
        eprintln!("{why:#}");
    }
    shell::run_aside(apt().args(["source", SOURCE]))?;
    let source = fs::read_dir(&folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.join("configure").is_file())
        .context("apt-get source brought no folder with a file `configure`")?;
    let out = source.join("locality-build");
    fs::create_dir_all(&out)?;
    shell::run_aside(Command::new("../configure").args(CONFIGURE).current_dir(&out))?;
    // Other users' work on the machine comes first.
    shell::run_aside(Command::new("nice").args(["-n", "10", "ninja", QEMU]).current_dir(&out))?;
    Ok(out.join(QEMU))
}

/// An `apt-get` that knows the machine's package sources as
/// sources of source packages, with its files in `folder`.
fn private_apt(folder: &Path) -> Result<impl Fn() -> Command> {
    let (parts, lists, cache) = (folder.join("sources.d"), folder.join("lists"), folder.join("cache"));
    for needed in [&parts, &lists.join("partial"), &cache.join("archives/partial")] {
        fs::create_dir_all(needed).with_context(|| format!("cannot create {}", needed.display()))?;
    }
    let etc = Path::new("/etc/apt");
    let mut files: Vec<PathBuf> =
        fs::read_dir(etc.join("sources.list.d")).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.push(etc.join("sources.list"));
    for file in files {
        let (Ok(text), Some(name)) = (fs::read_to_string(&file), file.file_name()) else { continue };
        fs::write(parts.join(name), for_sources(&text))?;
    }
    let folder = folder.to_owned();
    Ok(move || {
        let mut command = Command::new("apt-get");
        let option = |name: &str, path: &Path| format!("{name}={}", path.display());
        command.args(["-q", "-o", "Dir::Etc::SourceList=/dev/null"]);
        command.args([
            "-o",
            &option("Dir::Etc::SourceParts", &parts),
            "-o",
            &option("Dir::State::Lists", &lists),
        ]);
        command.args(["-o", &option("Dir::Cache", &cache)]);
        // apt's own user may not read this folder.
        command.args(["-o", "APT::Sandbox::User=root"]).current_dir(&folder).stdin(Stdio::null());
        command
    })
}

/// A list of package sources (`sources.list(5)`, both formats) that asks for source packages.
fn for_sources(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("deb ").or_else(|| line.strip_prefix("deb\t")) {
        Some(rest) => format!("deb-src {rest}\n"),
        None if line.starts_with("Types:") => "Types: deb-src\n".to_owned(),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_of_package_sources_are_read() {
        let old = "# ours\ndeb [signed-by=/k] http://h/d trixie main\ndeb-src http://h/d trixie main\n";
        let asked = "# ours\ndeb-src [signed-by=/k] http://h/d trixie main\ndeb-src http://h/d trixie main\n";
        assert_eq!(for_sources(old), asked);
        let new = "Types: deb deb-src\nURIs: http://h/d\nSuites: trixie\n";
        assert_eq!(for_sources(new), "Types: deb-src\nURIs: http://h/d\nSuites: trixie\n");
    }

    #[test]
    fn plugins_are_seen_in_the_file() {
        let folder = std::env::temp_dir().join(format!("xtask-qemu-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join(QEMU);
        fs::write(&file, [b"\x7fELF", PLUGIN_FUNCTION, b"\0"].concat()).unwrap();
        assert!(has_plugins(&file));
        fs::write(&file, b"\x7fELF qemu_plugin_register\0").unwrap();
        assert!(!has_plugins(&file) && !has_plugins(&folder));
        fs::remove_dir_all(&folder).unwrap();
    }
}
