//! Writes docs/reference/json.md from the types of the report (`userspace/report/schema`).
//!
//! The types know of their comments only under test, so a test writes the page; the same test fails
//! where the page is not theirs.

use anyhow::Result;

use locality_shell as shell;

/// Writes the page.
pub fn run() -> Result<()> {
    let test = ["test", "-q", "-p", "locality-schema", "--lib", "tests::page"];
    shell::run(shell::cargo().args(test).env("LOCALITY_WRITE_REFERENCE", "1"))
}
