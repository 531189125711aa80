//! C++ and Rust: demangled names and inlined calls.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use locality_symbols::SourceFrame;
use support::{Target, Workshop, line_of, source_path, walk};

/// Frames of the program itself, without those of libraries.
fn own_frames(frames: Vec<SourceFrame>, source: &str) -> Vec<SourceFrame> {
    let source = source_path(source);
    frames.into_iter().filter(|frame| frame.file.as_deref().map(Path::new) == Some(&source)).collect()
}

#[test]
fn cpp_templates() {
    let workshop = Workshop::new();
    for flags in ["-g -O2", "-g -O0"] {
        let program = workshop.compile("templates", "g++", "templates.cpp", flags);
        let target = Target::start(&program, &[]);
        let walk = walk(&target);
        assert_eq!(walk.cut, None, "{:?}", walk.names());
        let frames = own_frames(walk.frames(), "templates.cpp");
        let names: Vec<_> = frames.iter().map(|frame| frame.function.clone().unwrap()).collect();
        assert!(names[0].starts_with("shapes::Box<long, 5>::wait("), "{names:?}");
        assert!(names[1].contains("main::{lambda(int)"), "{names:?}");
        assert!(names[2].starts_with("int shapes::apply<main::{lambda(int)"), "{names:?}");
        assert_eq!(names[3], "main");
        let lines: Vec<_> = frames.iter().take(4).map(|frame| frame.line.unwrap()).collect();
        assert_eq!(lines, ["wait", "closure", "apply", "main"].map(|name| line_of("templates.cpp", name)));
    }
}

#[test]
fn rust_inlining() {
    let workshop = Workshop::new();
    for flags in ["-g -O --edition 2021", "-g -O --edition 2021 -C symbol-mangling-version=v0"] {
        let program = workshop.compile("inlining", "rustc", "inlining.rs", flags);
        let target = Target::start(&program, &[]);
        let walk = walk(&target);
        assert_eq!(walk.cut, None, "{:?}", walk.names());
        let frames = own_frames(walk.frames(), "inlining.rs");
        let found: Vec<_> = frames
            .iter()
            .map(|frame| (frame.function.clone().unwrap(), frame.line.unwrap(), frame.inlined))
            .collect();
        let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
        let line = |name| line_of("inlining.rs", name);
        // The load itself belongs to the standard library; its callers are ours.
        let at = names.iter().position(|name| name.ends_with("inlining::innermost")).unwrap();
        assert_eq!((found[at].1, found[at].2), (line("innermost"), true), "{found:?}");
        assert!(names[at + 1].contains("inlining::Work") && names[at + 1].ends_with("::work"), "{names:?}");
        assert_eq!((found[at + 1].1, found[at + 1].2), (line("work"), false));
        assert_eq!(found[at + 2], ("inlining::folded".into(), line("folded"), true));
        assert_eq!(found[at + 3], ("inlining::outer".into(), line("outer"), false));
        assert_eq!(found[at + 4], ("inlining::main".into(), line("main"), false));
        if at > 0 {
            assert_eq!(found[at - 1], ("inlining::spins".into(), line("spins"), true));
        }
    }
}
