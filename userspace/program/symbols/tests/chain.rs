//! One chain of calls, compiled in many ways: the stack must be whole and, where there is debug
//! information, every function, file and line right.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use locality_symbols::{CutReason, Unknown};
use support::{Target, Walk, Workshop, assert_at, line_of, walk};

fn walk_variant(flags: &str, arguments: &[&str]) -> Walk {
    let workshop = Workshop::new();
    let program = workshop.compile("chain", "gcc", "chain.c", flags);
    walk(&Target::start(&program, arguments))
}

fn assert_whole_with_lines(flags: &str) {
    let walk = walk_variant(flags, &[]);
    assert_eq!(walk.cut, None, "{flags}: {:?}", walk.names());
    let frames = walk.frames();
    for (frame, name) in frames.iter().zip(["leaf", "middle", "folded", "outer", "main"]) {
        assert_at(frame, name, "chain.c", name);
        assert_eq!(frame.inlined, name == "folded");
        let module = frame.module.as_ref().unwrap();
        assert!(module.path.ends_with("/chain"), "{module:?}");
        assert_eq!(module.build_id.len(), 40, "{module:?}");
    }
    assert!(frames.len() >= 6, "{flags}: {:?}", walk.names());
    assert_eq!(frames.last().unwrap().function.as_deref(), Some("_start"), "{flags}");
}

#[test]
fn optimised() {
    assert_whole_with_lines("-g -O2");
}

#[test]
fn without_frame_pointers() {
    assert_whole_with_lines("-g -O2 -fomit-frame-pointer");
}

#[test]
fn with_frame_pointers() {
    assert_whole_with_lines("-g -O1 -fno-omit-frame-pointer");
}

#[test]
fn position_dependent() {
    assert_whole_with_lines("-g -O2 -no-pie");
}

#[test]
fn static_program() {
    assert_whole_with_lines("-g -O2 -static");
}

#[test]
fn dwarf_4_and_compressed() {
    assert_whole_with_lines("-gdwarf-4 -O2 -gz=zlib");
}

/// Lines and inlined calls come from the parts.
#[test]
fn split_debug_info() {
    assert_whole_with_lines("-O2 -fomit-frame-pointer -gsplit-dwarf -gdwarf-4");
    assert_whole_with_lines("-O2 -fomit-frame-pointer -gsplit-dwarf -gdwarf-5");
}

#[test]
fn no_unwind_tables_but_frame_pointers() {
    assert_whole_with_lines("-g -O0 -fno-asynchronous-unwind-tables");
}

/// gcc leaves the frame pointer out of small leaf functions whatever the flags.
#[test]
fn a_leaf_without_a_frame_between_frame_pointers() {
    assert_whole_with_lines("-g -O1 -fno-omit-frame-pointer -fno-asynchronous-unwind-tables");
}

/// Neither tables nor frame pointers: the walk must end with the reason, not with invented frames.
/// The leaf's caller is known by the return address on top of the stack.
#[test]
fn nothing_to_unwind_by() {
    let walk = walk_variant("-g -O2 -fomit-frame-pointer -fno-asynchronous-unwind-tables", &[]);
    assert_eq!(walk.cut, Some(CutReason::NoUnwindInfo), "{:?}", walk.names());
    assert_eq!(walk.names(), ["leaf", "middle"]);
}

#[test]
fn symbols_without_lines() {
    let walk = walk_variant("-O2", &[]);
    assert_eq!(walk.cut, None);
    assert_eq!(walk.names()[..4], ["leaf", "middle", "outer", "main"]);
    assert_eq!(walk.frames()[0].unknown, Some(Unknown::NoDebugInfo));
    assert_eq!(walk.frames()[0].line, None);
}

#[test]
fn stripped() {
    let workshop = Workshop::new();
    let target = Target::start(&workshop.compile("chain", "gcc", "chain.c", "-O2 -s"), &[]);
    let walk = walk(&target);
    assert_eq!(walk.cut, None);
    let frames = walk.frames();
    // By its start, in the file's addresses.
    let start = walk.processes.function_start(target.pid, frames[0].address).unwrap();
    let inside = frames[0].module_address.unwrap() - (frames[0].address - start);
    assert_eq!(frames[0].function, Some(format!("chain+{inside:#x}")));
    assert_eq!(frames[0].unknown, Some(Unknown::OnlyStart));
    // libc exports this one; its callers' names are lost, the frames are not.
    assert!(walk.names().iter().any(|name| name.starts_with("__libc_start_main")), "{:?}", walk.names());
}

/// `-rdynamic` leaves the exported names when the rest is stripped.
#[test]
fn stripped_but_exported() {
    let walk = walk_variant("-O2 -s -rdynamic", &[]);
    assert_eq!(walk.names()[..4], ["leaf", "middle", "outer", "main"]);
    assert_eq!(walk.frames()[0].unknown, Some(Unknown::Stripped));
}

#[test]
fn recursion() {
    let walk = walk_variant("-g -O2 -fno-optimize-sibling-calls", &["100"]);
    assert_eq!(walk.cut, None);
    let frames = walk.frames();
    let recursive: Vec<_> = frames
        .iter()
        .filter(|frame| frame.function.as_deref() == Some("recursive") && !frame.inlined)
        .collect();
    // gcc may unroll by inlining the function into itself; every level is a frame either way.
    let levels = frames.iter().filter(|frame| frame.function.as_deref() == Some("recursive")).count();
    assert_eq!(levels, 101, "{} physical", recursive.len());
    assert!(frames.iter().filter(|f| f.line == Some(line_of("chain.c", "recursive"))).count() == 101);
}

#[test]
fn too_deep() {
    let walk = walk_variant("-g -O0", &["a", "b"]);
    assert_eq!(walk.cut, Some(CutReason::TooDeep));
    assert_eq!(walk.addresses.len(), locality_symbols::MAX_FRAMES);
}

/// The kernel program copies only so much of a stack.
#[test]
fn short_slice() {
    let whole = walk_variant("-g -O0", &["a"]);
    let processes = whole.processes.clone();
    let mut unwinder = locality_symbols::Unwinder::for_process(&processes, whole.pid).unwrap();
    for bytes in [0, 1, 7, 8, 100, 1000] {
        let slice = locality_symbols::StackSlice { base: whole.registers.rsp, bytes: &whole.stack[..bytes] };
        let mut out = Vec::new();
        let cut = unwinder.unwind(whole.registers, &slice, &mut out);
        assert_eq!(cut, Some(CutReason::StackSliceEnded), "{bytes} bytes");
        assert_eq!(out, whole.addresses[..out.len()], "{bytes} bytes");
    }
}
