//! Tests that need more than a machine has.

use std::io::Write as _;

/// Says why a test does not run here: one line that the test runner does not hide and
/// `cargo xtask test` counts. With `LOCALITY_REQUIRE=all` it fails instead.
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("test").to_owned();
    assert!(
        std::env::var("LOCALITY_REQUIRE").unwrap_or_default() != "all",
        "{test} cannot run here: {reason}"
    );
    drop(writeln!(std::io::stderr(), "SKIP {test}: {reason}"));
}
