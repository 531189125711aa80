//! `cargo xtask screenshots`: pictures of a real HTML report, for README and guide, always up to
//! date.
//!
//! The report is that of the demo program (`tests/programs/picture.c`), traced anew; the browser is Debian's
//! Chromium.

use std::process::{Command, Stdio};

use anyhow::Result;

use locality_shell as shell;

/// Seconds that the program runs.
const SECONDS: &str = "20";

/// Traces the demo program and takes the pictures.
pub fn run() -> Result<()> {
    shell::need(&[
        ("gcc", "gcc"),
        ("gcc", "libc6-dev"),
        ("node", "nodejs"),
        ("npm", "npm"),
        ("chromium", "chromium"),
    ])?;
    crate::ui::install()?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    let folder = shell::target_dir().join("screenshots");
    std::fs::create_dir_all(&folder)?;
    let program = folder.join("picture");
    // Names in the pictures are neutral.
    let source = "tests/programs/picture.c";
    shell::run(
        Command::new("gcc").current_dir(shell::root()).args(["-O2", "-g", "-o"]).arg(&program).arg(source),
    )?;
    let profile = folder.join("picture.locality");
    let tracer = shell::target_dir().join("release/locality-bpf");
    let mut trace = shell::as_root(&tracer)?;
    trace
        .current_dir(&folder)
        .args(["-q", "-o"])
        .arg(&profile)
        .arg("--report")
        .arg(folder.join("picture.txt"));
    shell::run(trace.args(["--", "./picture", SECONDS]).stdout(Stdio::null()))?;
    let page = folder.join("picture.html");
    // Paths of sources are relative to where the program was compiled.
    let mut report = Command::new(&tracer);
    report.current_dir(shell::root()).arg("report").arg(&profile).args(["--format", "html", "-o"]).arg(&page);
    shell::run(&mut report)?;
    let pictures = shell::root().join("docs/pictures");
    std::fs::create_dir_all(&pictures)?;
    let mut node = Command::new("node");
    node.current_dir(shell::root()).arg("userspace/html/ui/test/pictures.mjs").arg(&page).arg(&pictures);
    shell::run(&mut node)
}
