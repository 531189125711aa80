//! Writes docs/reference/json.md from the types of the report (`userspace/report/schema`), and
//! docs/reference/cli.md from the parser's help (`userspace/cli`).
//!
//! Comments of types are compiled in under test only. Tests therefore write the pages, and fail when a page
//! differs from the code.

use anyhow::Result;

use locality_shell as shell;

/// Tests that write a page: package and test name.
const WRITERS: [(&str, &str); 2] =
    [("locality-schema", "tests::page"), ("locality-bpf", "cli::reference::the_page_is_the_help")];

/// Writes the pages.
pub fn run() -> Result<()> {
    for (package, test) in WRITERS {
        let test = ["test", "-q", "-p", package, "--lib", test];
        shell::run(shell::cargo().args(test).env("LOCALITY_WRITE_REFERENCE", "1"))?;
    }
    Ok(())
}
