//! Writes docs/reference/json.md from the types of the report (`userspace/report/src/schema`).
//!
//! The types know of their comments only under test, so a test writes the page; the same test fails
//! where the page is not theirs.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Writes the page.
pub fn run() -> Result<()> {
    let test = ["test", "-q", "-p", "locality-report", "--lib", "schema::tests::page"];
    let status = Command::new("cargo")
        .args(test)
        .env("LOCALITY_WRITE_REFERENCE", "1")
        .current_dir(shell::root())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("the page was not written");
    }
    Ok(())
}
