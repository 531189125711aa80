//! `cargo xtask bench conversions`: kernels, and real programs under valgrind's lackey, an access trace independent of ours.
//!
//! Prints for each program, granule and method: accesses, distinct granules, S, Ŝ, Slog2, Slong, the miss ratio's mean
//! absolute error and its worst. Limit: of each program the first 30 million data accesses, of its first thread.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// Name and command of each program; files are those of the repository.
const PROGRAMS: &[(&str, &str)] = &[
    ("gzip", "gzip -c Cargo.lock userspace/analysis/src/arbiter.rs"),
    ("bzip2", "bzip2 -c Cargo.lock"),
    ("xz", "xz -T1 -c Cargo.lock"),
    ("grep", "grep -E -c [a-z]+[0-9]+ Cargo.lock"),
    ("sed", "sed s/the/THE/g Cargo.lock"),
    ("sha256sum", "sha256sum Cargo.lock"),
    ("objdump", "objdump -d /usr/bin/xz"),
    ("find", "find /usr/share -name none"),
    ("git", "git log --stat -3"),
    ("bc", "bc -l"),
];

/// Runs all of them.
pub fn run() -> Result<()> {
    shell::need(&[
        ("valgrind", "valgrind"),
        ("bc", "bc"),
        ("bzip2", "bzip2"),
        ("xz", "xz-utils"),
        ("objdump", "binutils"),
    ])?;
    let build =
        ["build", "--quiet", "--release", "--package", "locality-analysis", "--example", "conversions"];
    shell::run(shell::cargo().args(build))?;
    let study = shell::target_dir().join("release/examples/conversions");
    shell::run(&mut Command::new(&study))?;
    for (name, command) in PROGRAMS {
        // Lackey writes to descriptor 9; the program's own output is dropped.
        let lackey = format!(
            "exec valgrind --tool=lackey --trace-mem=yes --log-fd=9 {command} 9>&1 >/dev/null 2>/dev/null"
        );
        let input = if *name == "bc" { "scale=300; 4*a(1)\n" } else { "" };
        let mut traced = Command::new("sh")
            .args(["-c", &format!("printf '%s' '{input}' | ({lackey})")])
            .current_dir(shell::root())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run sh")?;
        let Some(trace) = traced.stdout.take() else { bail!("{name} has no output to read") };
        let done = shell::run(Command::new(&study).args(["--lackey", name]).stdin(trace));
        // It is no failure of the program if its reader had enough.
        traced.wait().context("cannot wait for valgrind")?;
        done?;
    }
    Ok(())
}
