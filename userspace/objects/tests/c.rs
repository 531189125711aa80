//! Objects of C programs, resolved in live processes against what the programs say of themselves.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::{Target, Workshop, check, line_of};

#[test]
fn static_variables() {
    let workshop = Workshop::new();
    let program = workshop.compile("kinds", "gcc", &["kinds.c", "kinds_hidden.c"], "-g -O0");
    let target = Target::start(&program);
    let mut look = target.look();
    let told = |name: &str| name == "stdout";
    let checked = check(&target, &mut look, |truth| truth.kind == "static" && !told(&truth.name));
    assert!(checked >= 14, "{checked}");

    let at = |name: &str| target.truths.iter().find(|truth| truth.name == name).unwrap().address;
    let ticks = look.resolve(at("ticks"));
    assert_eq!(ticks.object.function.as_deref(), Some("tick"));
    let declared = ticks.object.declared.clone().unwrap();
    assert_eq!(declared.line, line_of("kinds.c", "ticks"));
    assert!(declared.file.ends_with("tests/programs/kinds.c"), "{declared:?}");
    let cells = look.resolve(at("cells"));
    assert_eq!(cells.object.bytes, 50 * 56);
    let field = cells.field.unwrap();
    assert_eq!((field.offset, field.bytes, field.offset_within), (8, 8, 8));
    assert_eq!(&*field.path_within, "vx");
}

#[test]
fn stack_and_thread_local_variables() {
    let workshop = Workshop::new();
    for flags in ["-g -O0", "-g -O0 -fomit-frame-pointer", "-g -O1", "-g -O2 -gdwarf-4", "-g -O2"] {
        let program = workshop.compile("kinds", "gcc", &["kinds.c", "kinds_hidden.c"], flags);
        let target = Target::start(&program);
        let mut look = target.look();
        let local = |kind: &str| kind == "stack" || kind == "thread-local";
        let checked = check(&target, &mut look, |truth| local(&truth.kind));
        assert_eq!(checked, 6, "{flags}");
        let own = target.truths.iter().find(|truth| truth.name == "own").unwrap();
        let own = look.resolve(own.address);
        assert_eq!(own.object.function.as_deref(), Some("inner"), "{flags}");
        assert_eq!(own.object.declared.as_ref().unwrap().line, line_of("kinds.c", "own"), "{flags}");
    }
}

/// The C library's `errno` is found through the thread's vector of blocks.
#[test]
fn thread_local_of_a_library() {
    let workshop = Workshop::new();
    let program = workshop.compile("tls", "gcc", &["library_tls.c"], "-g");
    let target = Target::start(&program);
    let mut look = target.look();
    for truth in &target.truths {
        let named = look.resolve(truth.address);
        assert_eq!(
            (named.object.kind.as_str(), &*named.object.name),
            ("thread-local", &*truth.name),
            "{named:?}"
        );
        assert_eq!(named.offset, 0);
    }
    assert_eq!(target.truths.len(), 2);
}

/// Blocks without records are named by the pointers to them; files and mappings by themselves.
#[test]
fn heap_files_and_mappings() {
    let workshop = Workshop::new();
    let program = workshop.compile("kinds", "gcc", &["kinds.c", "kinds_hidden.c"], "-g -O0");
    let target = Target::start(&program);
    let mut look = target.look();
    let kinds = ["heap", "file", "mapped"];
    assert_eq!(check(&target, &mut look, |truth| kinds.contains(&truth.kind.as_str())), 9);
    for truth in target.truths.iter().filter(|truth| truth.kind == "heap") {
        assert!(look.resolve(truth.address).object.inferred);
    }
}
