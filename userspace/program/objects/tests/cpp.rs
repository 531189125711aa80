//! Objects of C++ programs.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::{Target, Workshop, check};

#[test]
fn kinds() {
    let workshop = Workshop::new();
    for flags in
        ["-std=c++17 -g -O0", "-std=c++17 -g -O0 -fdebug-types-section", "-std=c++17 -g -O1 -gdwarf-4"]
    {
        let program = workshop.compile("kinds", "g++", &["kinds.cc"], flags);
        let target = Target::start(&program);
        let mut look = target.look();
        assert_eq!(check(&target, &mut look, |_| true), 17, "{flags}");
        let calls = target.truths.iter().find(|truth| truth.name == "calls").unwrap();
        let function = look.resolve(calls.address).object.function.clone().unwrap();
        assert!(function.starts_with("counted"), "{function} {flags}");
    }
}
