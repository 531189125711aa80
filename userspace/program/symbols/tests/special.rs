//! Stacks that are hard to walk: signal frames, realigned frames, the vdso, threads, generated
//! code. And the rules of `.eh_frame` against an independent reader of them, framehop.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use framehop::{ExplicitModuleSectionInfo, Unwinder as _, x86_64};
use locality_symbols::{CodeAddress, CutReason, Mappings, StackSlice, Unknown};
use object::{Object, ObjectSection};
use support::{Target, Walk, Workshop, assert_at, walk, walk_until};

fn walk_program(source: &str, flags: &str, arguments: &[&str]) -> Walk {
    let workshop = Workshop::new();
    let program = workshop.compile("program", "gcc", source, flags);
    walk(&Target::start(&program, arguments))
}

fn position(names: &[String], wanted: &str) -> usize {
    names.iter().position(|name| name == wanted).unwrap_or_else(|| panic!("{wanted} is not in {names:?}"))
}

#[test]
fn signal_handler_on_the_stack() {
    for flags in ["-g -O2", "-g -O2 -static", "-g -O1 -fno-omit-frame-pointer"] {
        let walk = walk_program("signals.c", flags, &["plain"]);
        assert_eq!(walk.cut, None, "{flags}: {:?}", walk.names());
        let frames = walk.frames();
        assert_at(&frames[0], "wait_here", "signals.c", "wait_here");
        assert_at(&frames[1], "handler", "signals.c", "handler");
        // Then glibc's trampoline, and the interrupted instruction itself, not the one behind a call.
        assert_at(&frames[3], "interrupted", "signals.c", "interrupted");
        assert!(matches!(walk.addresses[3], CodeAddress::Exact(_)), "{:?}", walk.addresses);
        assert_at(&frames[4], "main", "signals.c", "main");
    }
}

/// The interrupted address is the first of its function: one byte less would be another function
/// with another frame.
#[test]
fn signal_at_the_first_instruction() {
    let walk = walk_program("signals.c", "-g -O2", &["first"]);
    assert_eq!(walk.cut, None, "{:?}", walk.names());
    let frames = walk.frames();
    assert_eq!(frames[3].function.as_deref(), Some("faults_at_once"));
    assert_at(&frames[4], "interrupted", "signals.c", "call_first");
    assert_at(&frames[5], "main", "signals.c", "main");
}

/// What was interrupted lies on another stack than the copied one.
#[test]
fn signal_on_an_alternate_stack() {
    let walk = walk_program("signals.c", "-g -O2", &["alternate"]);
    assert_eq!(walk.cut, Some(CutReason::StackSliceEnded));
    assert_eq!(walk.names()[..2], ["wait_here", "handler"]);
    assert_eq!(walk.names()[3], "interrupted", "its address stands in the copied signal frame");
    assert_eq!(walk.addresses.len(), 4);
}

/// gcc describes such a frame by an expression that reads memory.
#[test]
fn realigned_frame() {
    for flags in ["-g -O2", "-g -O2 -mavx2 -fomit-frame-pointer"] {
        let walk = walk_program("special.c", flags, &["realigned"]);
        assert_eq!(walk.cut, None, "{flags}: {:?}", walk.names());
        assert_eq!(walk.names()[..3], ["wait_here", "realigned", "main"]);
    }
}

#[test]
fn library_call() {
    let walk = walk_program("special.c", "-g -O2", &["library"]);
    assert_eq!(walk.cut, None);
    let names = walk.names();
    assert_eq!(position(&names, "main"), position(&names, "in_library") + 1);
    let innermost = &walk.frames()[0];
    assert!(innermost.module.as_ref().unwrap().path.contains("libc"), "{innermost:?}");
}

#[test]
fn vdso() {
    let workshop = Workshop::new();
    let program = workshop.compile("program", "gcc", "special.c", "-g -O2");
    let target = Target::start(&program, &["vdso"]);
    let maps = Mappings::read(target.pid).unwrap();
    let vdso = maps.iter().find(|mapping| &*mapping.path == "[vdso]").unwrap();
    let walk = walk_until(&target, |registers| vdso.contains(registers.rip));
    assert_eq!(walk.cut, None, "{:?}", walk.names());
    let frames = walk.frames();
    assert_eq!(frames[0].module.as_ref().unwrap().path, "[vdso]");
    let name = frames[0].function.as_ref().unwrap();
    let unknown = if name.starts_with("[vdso]+") { Unknown::OnlyStart } else { Unknown::Stripped };
    assert_eq!(frames[0].unknown, Some(unknown));
    let names = walk.names();
    assert_eq!(position(&names, "main"), position(&names, "reads_clock") + 1);
}

#[test]
fn thread_start_is_a_root() {
    let workshop = Workshop::new();
    let program = workshop.compile("program", "gcc", "special.c", "-g -O2 -pthread");
    let mut target = Target::start(&program, &["thread"]);
    let main = target.pid;
    let tasks = std::fs::read_dir(format!("/proc/{main}/task")).unwrap();
    let ids = tasks.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u32>().unwrap());
    target.pid = ids.max().unwrap();
    assert_ne!(target.pid, main);
    let walk = walk(&target);
    assert_eq!(walk.cut, None, "{:?}", walk.names());
    assert_eq!(walk.names()[..2], ["wait_here", "thread"]);
    assert!(walk.addresses.len() >= 4);
}

#[test]
fn generated_code() {
    let workshop = Workshop::new();
    let program = workshop.compile("program", "gcc", "special.c", "-g -O2 -fno-omit-frame-pointer");
    let mut target = Target::start(&program, &["jit"]);
    let walk = walk(&target);
    let map = format!("/tmp/perf-{}.map", target.pid);
    // The map was opened during the walk: neither its end nor the process's takes the name away.
    std::fs::remove_file(map).unwrap();
    target.kill();
    assert_eq!(walk.cut, None, "{:?}", walk.names());
    let frames = walk.frames();
    let names = walk.names();
    assert_eq!(names[..4], ["wait_here", "generated::function", "through_generated_code", "main"]);
    assert_eq!(frames[1].unknown, Some(Unknown::PerfMapHasNoLines));
    assert_eq!(frames[1].module.as_ref().unwrap().path, "[jit]");
    assert_eq!(walk.processes.function_start(walk.pid, walk.addresses[1].address()), None);
}

#[test]
fn generated_code_without_a_map() {
    let workshop = Workshop::new();
    let program = workshop.compile("program", "gcc", "special.c", "-g -O2 -fno-omit-frame-pointer");
    let target = Target::spawn(std::process::Command::new(program).arg("jit").env("NO_PERF_MAP", "1"));
    let walk = walk(&target);
    assert_eq!(walk.cut, None, "{:?}", walk.names());
    assert_eq!(walk.frames()[1].unknown, Some(Unknown::NoPerfMap));
    assert_eq!(walk.names()[2], "through_generated_code");
}

/// framehop reads the same tables on its own. Where it can follow (no signal frames, no realigned
/// ones), both must agree on every address.
#[test]
fn agrees_with_framehop() {
    let workshop = Workshop::new();
    for (flags, arguments) in
        [("-g -O2", &["100"][..]), ("-g -O1 -fno-omit-frame-pointer", &[]), ("-O3", &["1"])]
    {
        let program = workshop.compile("chain", "gcc", "chain.c", flags);
        let target = Target::start(&program, arguments);
        let ours = walk(&target);
        assert_eq!(ours.cut, None);
        let mut oracle = x86_64::UnwinderX86_64::<Vec<u8>>::new();
        let maps = Mappings::read(target.pid).unwrap();
        for code in maps.iter().filter(|mapping| mapping.executable && mapping.inode != 0) {
            oracle.add_module(framehop_module(code));
        }
        let stack = StackSlice { base: ours.registers.rsp, bytes: &ours.stack };
        let mut read = |address: u64| {
            let at = address.checked_sub(stack.base).ok_or(())? as usize;
            stack.bytes.get(at..at + 8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).ok_or(())
        };
        let mut cache = x86_64::CacheX86_64::<_>::new();
        let start = x86_64::UnwindRegsX86_64::new(ours.registers.rip, ours.registers.rsp, ours.registers.rbp);
        let mut frames = oracle.iter_frames(ours.registers.rip, start, &mut cache, &mut read);
        let mut theirs = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            theirs.push(frame.address());
        }
        let ours: Vec<u64> = ours.addresses.iter().map(|at| at.address()).collect();
        assert_eq!(ours, theirs, "{flags}");
    }
}

fn framehop_module(code: &locality_symbols::Mapping) -> framehop::Module<Vec<u8>> {
    let bytes = std::fs::read(&*code.path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        let range = section.address()..section.address() + section.size();
        Some((range, section.data().ok()?.to_vec()))
    };
    let text = section(".text").unwrap();
    let text_section = file.section_by_name(".text").unwrap();
    // All segments of these files keep address minus offset within .text's segment.
    let file_base = text_section.address() - text_section.file_range().unwrap().0;
    let base = code.start - code.offset - file_base;
    let (frame, header) = (section(".eh_frame").unzip(), section(".eh_frame_hdr").unzip());
    let info = ExplicitModuleSectionInfo {
        text_svma: Some(text.0),
        eh_frame_svma: frame.0,
        eh_frame: frame.1,
        eh_frame_hdr_svma: header.0,
        eh_frame_hdr: header.1,
        ..Default::default()
    };
    framehop::Module::new(code.path.to_string(), code.start..code.end, base, info)
}
