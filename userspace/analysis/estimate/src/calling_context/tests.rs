//! Which stacks are one context, and which frame is the place.

use locality_model::testing::Maker;

use super::*;

/// Function and line of the place of a stack in words, and the library function it went through.
fn place_in(stack: &str) -> (String, Option<u32>, Option<String>) {
    let mut make = Maker::new();
    let id = make.stack(stack);
    let contexts = Contexts::new(&make.profile);
    let place = contexts.place(contexts.place_of(contexts.of(id).unwrap()));
    let frame = place.frame.map(|frame| make.profile.frames[frame.0 as usize].clone()).unwrap_or_default();
    (function_name(&make.profile, &frame), frame.line, place.via)
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// An address in the process is no address in the file.
#[test]
fn code_of_a_file_that_could_not_be_opened() {
    let mut make = Maker::new();
    make.stack("?@/opt/x.so");
    let frame = make.profile.frames[0].clone();
    assert_eq!(function_name(&make.profile, &frame), "x.so+0x1000");
    let gone = Frame { module_address: None, address: 0x7f00_0000_1234, ..frame };
    assert_eq!(gone.address_in_file(), None);
    assert_eq!(function_name(&make.profile, &gone), "x.so at 0x7f0000001234");
    assert_eq!(Frame { module: None, ..gone }.address_in_file(), Some(0x7f00_0000_1234));
}

#[test]
fn the_place_is_the_innermost_own_source_line() {
    for (stack, function, line, via) in [
        ("fill a.c:3 < main a.c:9", "fill", Some(3), None),
        // Library code, with and without debug information, is named but not blamed.
        ("memcpy@/lib/libc.so.6 < copy a.c:3 < main a.c:9", "copy", Some(3), some("memcpy")),
        ("memmove@/lib/libc.so.6 ../sysdeps/x.S:7 < copy a.c:3", "copy", Some(3), some("memmove")),
        // Inlined toolchain code is the function that it was inlined into.
        ("+next /rustc/1/library/core/src/iter.rs:80 < total src/main.rs:5", "total", Some(5), None),
        ("+operator[] /usr/include/c++/12/vector:9 < total a.cc:5", "total", Some(5), None),
        // A stripped own library called from own code with lines.
        ("plugin@/opt/plugin.so < run a.c:4", "run", Some(4), some("plugin")),
        // No line anywhere: the innermost own function, else the innermost frame.
        ("memcpy@/lib/libc.so.6 < copy < main", "copy", None, some("memcpy")),
        ("?@/opt/x.so", "x.so+0x1000", None, None),
        ("malloc@/lib/libc.so.6 < start@/lib/libc.so.6", "malloc", None, None),
        // Only toolchain frames, one with a line.
        (
            "?@/lib/libc.so.6 < start@/lib/libc.so.6 ./csu/start.c:1",
            "start",
            Some(1),
            some("libc.so.6+0x1000"),
        ),
        ("", "unknown", None, None),
    ] {
        assert_eq!(place_in(stack), (function.to_owned(), line, via), "{stack}");
    }
}

#[test]
fn addresses_do_not_tell_contexts_apart_but_lines_do() {
    let mut make = Maker::new();
    let same = make.stack("fill a.c:3 < main a.c:9");
    let line = make.stack("fill a.c:4 < main a.c:9");
    let caller = make.stack("fill a.c:3 < main a.c:10");
    // The same source frames at other addresses.
    let mut copies = Vec::new();
    for frame in make.profile.stacks[same.0 as usize].frames.clone() {
        let mut copy = make.profile.frames[frame.0 as usize].clone();
        copy.address += 0x100;
        copy.module_address = copy.module_address.map(|address| address + 0x100);
        make.profile.frames.push(copy);
        copies.push(FrameId(make.profile.frames.len() as u32 - 1));
    }
    make.profile.stacks.push(locality_model::Stack { frames: copies, cut: None });
    let copy = StackId(make.profile.stacks.len() as u32 - 1);

    let contexts = Contexts::new(&make.profile);
    let of = |stack| contexts.of(stack).unwrap();
    assert_eq!(of(same), of(copy));
    assert_ne!(of(same), of(line));
    assert_ne!(of(same), of(caller));
    assert_eq!(contexts.place_of(of(same)), contexts.place_of(of(caller)));
    assert_ne!(contexts.place_of(of(same)), contexts.place_of(of(line)));
}

#[test]
fn unknown_functions_are_told_apart_by_module_address() {
    let mut make = Maker::new();
    let (a, b) = (make.stack("?@/opt/x.so < main a.c:1"), make.stack("+?@/opt/x.so < main a.c:1"));
    let contexts = Contexts::new(&make.profile);
    assert_ne!(contexts.of(a), contexts.of(b));
}

#[test]
fn ids_that_lead_nowhere_are_survived() {
    let mut make = Maker::new();
    make.profile.stacks.push(locality_model::Stack { frames: vec![FrameId(77)], cut: None });
    make.stack("main a.c:1");
    make.profile.frames[0].module = Some(locality_model::ModuleId(99));
    let contexts = Contexts::new(&make.profile);
    assert_eq!(contexts.of(StackId(5)), None);
    assert!(contexts.frames(contexts.of(StackId(0)).unwrap()).is_empty());
    assert_eq!(contexts.place(PlaceId(900)), Place::default());
    assert!(contexts.frames(ContextId(900)).is_empty());
    assert_eq!(contexts.cut(contexts.of(StackId(0)).unwrap()), Some(FRAMES_LACKING));
    assert_eq!((contexts.cut(contexts.of(StackId(1)).unwrap()), contexts.cut(ContextId(900))), (None, None));
}

#[test]
fn a_cut_stack_is_another_context_than_a_whole_one() {
    let mut make = Maker::new();
    let whole = make.stack("fill a.c:3 < main a.c:9");
    let frames = make.profile.stacks[whole.0 as usize].frames.clone();
    let cut = Some("no unwind information".to_owned());
    make.profile.stacks.push(locality_model::Stack { frames, cut: cut.clone() });
    let contexts = Contexts::new(&make.profile);
    let [whole, unwound] = [whole, StackId(1)].map(|stack| contexts.of(stack).unwrap());
    assert_ne!(whole, unwound);
    assert_eq!((contexts.cut(whole), contexts.cut(unwound)), (None, cut.as_deref()));
    assert_eq!(contexts.frames(whole), contexts.frames(unwound));
    assert_eq!(contexts.place_of(whole), contexts.place_of(unwound));
}

#[test]
fn the_common_ancestor_is_where_paths_part() {
    for (used, reused, equal, ancestor) in [
        // Parted by a call from two lines of run.
        ("a x.c:1 < run x.c:5 < main x.c:9", "b x.c:2 < run x.c:6 < main x.c:9", 1, Some(("run", 5))),
        // The same call site in run, then different functions (through a pointer).
        ("a x.c:1 < run x.c:5 < main x.c:9", "b x.c:2 < run x.c:5 < main x.c:9", 2, Some(("run", 5))),
        // Two loops of one function; one path.
        ("main x.c:3", "main x.c:4", 0, Some(("main", 3))),
        ("a x.c:1 < main x.c:9", "a x.c:1 < main x.c:9", 2, Some(("a", 1))),
        // Recursion: one path is the beginning of the other.
        ("f x.c:1 < main x.c:9", "f x.c:2 < f x.c:1 < main x.c:9", 2, Some(("f", 1))),
        // Nothing in common.
        ("produce x.c:1", "consume x.c:2", 0, None),
        ("", "consume x.c:2", 0, None),
    ] {
        let mut make = Maker::new();
        let (a, b) = (make.stack(used), make.stack(reused));
        let contexts = Contexts::new(&make.profile);
        let (a, b) = (contexts.of(a).unwrap(), contexts.of(b).unwrap());
        let (found, frame) = contexts.common_ancestor(&make.profile, a, b);
        let frame = frame.map(|frame| &make.profile.frames[frame.0 as usize]);
        let frame = frame.map(|frame| (frame.function.as_deref().unwrap(), frame.line.unwrap()));
        assert_eq!((found, frame), (equal, ancestor), "{used} / {reused}");
    }
}
