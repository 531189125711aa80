//! Objects of Rust programs.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::{Target, Workshop, check};

#[test]
fn kinds() {
    let workshop = Workshop::new();
    for flags in [
        "--edition 2024 -g",
        "--edition 2024 -g -Cdwarf-version=5",
        "--edition 2024 -g -Csymbol-mangling-version=v0",
    ] {
        let program = workshop.compile("kinds", "rustc", &["kinds.rs"], flags);
        let target = Target::start(&program);
        let mut look = target.look();
        assert_eq!(check(&target, &mut look, |_| true), 10, "{flags}");
    }
}
