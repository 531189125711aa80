//! `cargo xtask lint`: formatting, clippy with warnings as errors, and the conventions that `tidy` checks.

use anyhow::Result;

use crate::tidy;
use locality_shell as shell;

/// Runs all checks, the quick ones first.
pub fn run() -> Result<()> {
    tidy::run()?;
    shell::run(shell::cargo().args(["fmt", "--all", "--", "--check"]))?;
    // The eBPF crate is outside the workspace. Clippy would need the eBPF toolchain's own, so it is
    // only formatted.
    shell::run(shell::cargo().args(["fmt", "--manifest-path", "ebpf/Cargo.toml", "--", "--check"]))?;
    shell::run(shell::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}
