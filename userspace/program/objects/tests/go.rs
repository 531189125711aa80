//! Objects of Go programs: package variables, slices, frames without unwind tables.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::{Target, Workshop, check, is_installed};

#[test]
fn kinds() {
    if !is_installed("go") {
        return;
    }
    let workshop = Workshop::new();
    let cache = workshop.path("cache");
    let made = std::process::Command::new("go")
        .args(["build", "-gcflags=-N -l", "-o"])
        .args([workshop.path("kinds"), support::source_path("kinds.go")])
        .env("GOCACHE", cache)
        .env("GO111MODULE", "off")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let target = Target::start(&workshop.path("kinds"));
    let mut look = target.look();
    assert_eq!(check(&target, &mut look, |_| true), 4);
}
