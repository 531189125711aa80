//! Writes docs/reference/json.md from the types of the report (`userspace/report/schema`), and
//! docs/reference/cli.md from the parser's help (`userspace/cli`).
//!
//! The types know of their comments only under test, so tests write the pages; the same tests fail
//! where a page differs from its source.

use anyhow::Result;

use locality_shell as shell;

/// A test that writes a page: its package and its name.
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
