//! `cargo xtask lint`: formatting, clippy with warnings as errors, and the conventions that `tidy` checks.

use anyhow::Result;

use crate::tidy;
use locality_shell as shell;

/// Runs every check, the quick checks first.
pub fn run() -> Result<()> {
    tidy::run()?;
    shell::run(shell::cargo().args(["fmt", "--all", "--", "--check"]))?;
    // The eBPF crate is outside the workspace. Clippy would need
    // the eBPF toolchain's own; the crate is only formatted.
    shell::run(shell::cargo().args(["fmt", "--manifest-path", "ebpf/Cargo.toml", "--", "--check"]))?;
    shell::run(shell::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}
