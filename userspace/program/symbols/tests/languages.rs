//! C++ and Rust: demangled names and inlined calls.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use locality_symbols::{ModuleInfo, Processes, SourceFrame, Symbolizer, Unknown};
use object::{Object as _, ObjectSection as _};
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

/// Compilers put a parallel region into a function with a name of their own.
#[test]
fn parallel_regions_are_called_by_their_function() {
    let workshop = Workshop::new();
    for (compiler, flags) in [
        ("g++", "-g -O2 -fopenmp"),
        ("g++", "-g -O0 -fopenmp"),
        ("clang++", "-g -O2 -fopenmp"),
        ("clang++", "-g -O0 -fopenmp"),
    ] {
        if !is_installed(compiler) {
            continue;
        }
        let program = workshop.compile("regions", compiler, "regions.cpp", flags);
        let target = Target::start(&program, &[]);
        let frames = own_frames(walk(&target).frames(), "regions.cpp");
        let found: Vec<_> =
            frames.iter().map(|frame| (frame.function.clone().unwrap(), frame.line.unwrap())).collect();
        // Without optimisation, clang's region begins with the loop behind the directive.
        let first = line_of("regions.cpp", "region");
        let region = |line| format!("Field::relax (parallel loop, regions.cpp:{line})");
        let at = found.iter().position(|(name, line)| {
            *line == line_of("regions.cpp", "wait") && (*name == region(first) || *name == region(first + 1))
        });
        let at = at.unwrap_or_else(|| panic!("{compiler} {flags}: no {} in {found:?}", region(first)));
        let names: Vec<&str> = found[at..].iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.iter().filter(|name| name.contains("omp")).count(), 0, "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("Field::relax(int)")), "{names:?}");
        assert_eq!(names.last(), Some(&"main"), "{compiler} {flags}: {names:?}");
    }
}

/// A call of another module goes through a stub of the linker, which no source has.
#[test]
fn stubs_of_the_linkage_table_are_called_by_what_they_lead_to() {
    let workshop = Workshop::new();
    for flags in
        ["-O1 -g -Wl,-z,lazy", "-O1 -s -Wl,-z,now", "-O1 -s -Wl,-z,lazy -fcf-protection=full -Wl,-z,ibtplt"]
    {
        let program = workshop.compile("chain", "gcc", "chain.c", flags);
        let bytes = std::fs::read(&program).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let build_id = file.build_id().unwrap().unwrap_or_default();
        let build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let module = ModuleInfo { path: program.to_str().unwrap().into(), build_id };
        let mut symbolizer = Symbolizer::new(Processes::new());
        let mut names = Vec::new();
        for section in
            file.sections().filter(|section| section.name().is_ok_and(|name| name.starts_with(".plt")))
        {
            for address in (section.address()..section.address() + section.size()).step_by(8) {
                let frames = symbolizer.symbolize_in_file(&module, address);
                assert_eq!(frames.len(), 1);
                assert_eq!(frames[0].unknown, Some(Unknown::LinkersStub), "{frames:?}");
                names.push(frames[0].function.clone().unwrap());
            }
        }
        assert!(names.iter().any(|name| name == "puts@plt"), "{flags}: {names:?}");
        assert!(names.iter().all(|name| name.ends_with("@plt") || name == "[.plt]"), "{flags}: {names:?}");
    }
}

fn is_installed(compiler: &str) -> bool {
    let found = std::process::Command::new(compiler).arg("--version").output().is_ok();
    assert!(found || std::env::var("LOCALITY_REQUIRE").as_deref() != Ok("all"), "{compiler} is needed");
    if !found {
        eprintln!("skipped: needs {compiler}");
    }
    found
}
