//! `cargo xtask ui`: bundles the script and the style of the HTML report for the repository, or
//! checks the present bundle.
//!
//! Handled like the eBPF object: the bundle is checked in with the hashes of the sources.
//! `cargo build` needs no Node; with Node installed, the tests bundle anew and compare every byte.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use locality_shell as shell;

/// Sources of the bundle.
const UI: &str = "userspace/html/ui";
/// The bundle.
const DIST: &str = "userspace/html/dist";
const BUNDLE: [&str; 2] = ["report.js", "report.css"];
/// Hashes of the sources and of the bundle, in the format of `sha256sum`.
const MANIFEST: &str = "userspace/html/dist/report.sources";
/// Programs for the bundle, and their Debian packages.
const NODE: [(&str, &str); 2] = [("node", "nodejs"), ("npm", "npm")];

/// What `cargo xtask ui` can be asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Only fail when the checked-in bundle does not fit its sources; needs no Node
    #[arg(long, conflicts_with = "verify")]
    check: bool,
    /// Bundle into the target directory and compare with the checked-in bundle
    #[arg(long)]
    verify: bool,
}

/// Does it.
pub fn run(options: &Options) -> Result<()> {
    if options.check {
        return check();
    }
    shell::need(&NODE)?;
    if options.verify {
        return verify();
    }
    let root = shell::root();
    bundle(&root.join(DIST))?;
    fs::write(root.join(MANIFEST), manifest(&root)?).with_context(|| format!("cannot write {MANIFEST}"))?;
    for file in BUNDLE {
        let bytes = fs::metadata(root.join(DIST).join(file))?.len();
        crate::say(&format!("{DIST}/{file}: {bytes} bytes"));
    }
    Ok(())
}

/// Fails unless the checked-in bundle fits the sources;
/// with Node, also unless the sources reproduce the bundle.
pub fn verify_where_possible() -> Result<()> {
    check()?;
    if NODE.iter().all(|(program, _)| shell::has(program)) {
        return verify();
    }
    eprintln!("Node is not installed: the script of the HTML report is not bundled anew");
    Ok(())
}

fn check() -> Result<()> {
    let root = shell::root();
    let recorded = fs::read_to_string(root.join(MANIFEST)).unwrap_or_default();
    let now = manifest(&root)?;
    let differing = now.lines().find(|line| !recorded.lines().any(|old| old == *line));
    let differing = differing.or_else(|| recorded.lines().find(|line| !now.lines().any(|new| new == *line)));
    if let Some(line) = differing {
        let file = line.split("  ").last().unwrap_or(line);
        bail!("{DIST} is stale: `{file}` differs; `cargo xtask ui` bundles anew");
    }
    eprintln!("{DIST} fits its sources");
    Ok(())
}

fn verify() -> Result<()> {
    let fresh = shell::target_dir().join("ui");
    bundle(&fresh)?;
    for file in BUNDLE {
        if fs::read(fresh.join(file))? != fs::read(shell::root().join(DIST).join(file))? {
            bail!("{DIST}/{file} is not what its sources make; `cargo xtask ui` bundles anew");
        }
    }
    eprintln!("{DIST} is what its sources make");
    Ok(())
}

/// Installs the locked packages if missing, for the bundler and for tests in a browser.
pub fn install() -> Result<()> {
    let ui = shell::root().join(UI);
    let lock = fs::read(ui.join("package-lock.json"))?;
    let installed = ui.join("node_modules/.locked");
    let digest = hex(&Sha256::digest(&lock));
    if fs::read_to_string(&installed).is_ok_and(|of| of == digest) {
        return Ok(());
    }
    let mut npm = Command::new("npm");
    npm.current_dir(&ui).args(["ci", "--ignore-scripts", "--no-fund", "--no-audit"]);
    shell::run_aside(npm.stdin(Stdio::null()))?;
    fs::write(installed, digest)?;
    Ok(())
}

fn bundle(to: &Path) -> Result<()> {
    install()?;
    fs::create_dir_all(to)?;
    let mut node = Command::new("node");
    node.current_dir(shell::root().join(UI)).arg("build.mjs").arg(to);
    shell::run_aside(node.stdin(Stdio::null()))
}

fn manifest(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    sources(&root.join(UI), &mut files)?;
    files.extend(BUNDLE.map(|file| root.join(DIST).join(file)));
    files.sort();
    let mut text = String::new();
    for file in files {
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let path = file.strip_prefix(root).unwrap_or(&file);
        text.push_str(&format!("{}  {}\n", hex(&Sha256::digest(&bytes)), path.display()));
    }
    Ok(text)
}

/// Scripts, styles and what pins the bundler; tests make no part of the bundle.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["node_modules", "test"].contains(&name.as_str()) {
            sources(&path, files)?;
        } else if !name.starts_with('.')
            && [".js", ".mjs", ".css", ".json"].iter().any(|end| name.ends_with(end))
        {
            files.push(path);
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
