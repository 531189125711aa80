//! The symboliser process: the same names as without it, and files and processes that end or hang
//! cost theirs alone.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use locality_symbols::{
    CodeAddress, Isolation, Mappings, ModuleInfo, Processes, SourceFrame, Symbolizer, Unknown, unnamed,
};
use object::{Object as _, ObjectSection as _};
use support::{Target, Workshop};

fn isolation() -> Isolation {
    Isolation { program: env!("CARGO_BIN_EXE_locality-symboliser").into(), ..Isolation::default() }
}

fn isolated(settings: Isolation) -> Symbolizer {
    Symbolizer::new(Processes::isolated(settings))
}

fn module(path: &Path) -> ModuleInfo {
    ModuleInfo { path: path.to_str().unwrap().into(), build_id: String::new() }
}

/// Addresses of the file's code, `step` bytes apart.
fn code(path: &Path, step: usize) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let text = object::File::parse(&*bytes).unwrap();
    let text = text.section_by_name(".text").unwrap();
    (text.address()..text.address() + text.size()).step_by(step).collect()
}

/// A program with debug information that ends the reader.
fn nested(workshop: &Workshop) -> PathBuf {
    let source = "../../../../../tests/programs/nested_inlines.c";
    workshop.compile("nested", "gcc", source, "-O1 -Wl,--build-id=none")
}

fn said_of(path: &Path) -> Vec<String> {
    let path = Some(path.to_str().unwrap().to_owned());
    unnamed().into_iter().filter(|unnamed| unnamed.path == path).map(|unnamed| unnamed.how).collect()
}

#[test]
fn names_are_the_same() {
    let workshop = Workshop::new();
    let without = "-Wl,--build-id=none";
    let mut files = vec![
        workshop.compile("templates", "g++", "templates.cpp", &format!("-g -O2 {without}")),
        workshop.compile("split", "g++", "templates.cpp", &format!("-g -gsplit-dwarf -O2 {without}")),
        workshop.compile("packed", "gcc", "chain.c", &format!("-g -O2 -gz=zlib {without}")),
        workshop.compile("linked", "gcc", "chain.c", &format!("-g -O2 {without}")),
        workshop.compile("stripped", "gcc", "signals.c", &format!("-s -O2 {without}")),
    ];
    workshop.tool("objcopy --only-keep-debug linked linked.debug");
    workshop.tool("strip linked");
    workshop.tool("objcopy --add-gnu-debuglink=linked.debug linked");
    files.push(workshop.path("no such file"));
    let (mut here, mut there) = (Symbolizer::new(Processes::new()), isolated(isolation()));
    let mut with_lines = 0;
    for path in &files {
        let (module, addresses) = (module(path), if path.exists() { code(path, 3) } else { vec![7] });
        // Half of the addresses in one request, the rest alone, two outside of the code.
        there
            .prepare_in_file(&module, addresses.iter().copied().filter(|address| address % 2 == 0).collect());
        for address in addresses.into_iter().chain([0, u64::MAX]) {
            let expected = here.symbolize_in_file(&module, address);
            assert_eq!(there.symbolize_in_file(&module, address), expected, "{path:?} {address:#x}");
            with_lines += expected.iter().filter(|frame| frame.line.is_some()).count();
        }
    }
    assert!(with_lines > 500, "{with_lines}");
}

/// All modules of a running program, the vdso among them.
#[test]
fn names_of_a_process_are_the_same() {
    let workshop = Workshop::new();
    let target = Target::start(&workshop.compile("chain", "gcc", "chain.c", "-g -O2"), &[]);
    let (here, there) = (Processes::new(), Processes::isolated(isolation()));
    for processes in [&here, &there] {
        processes.attach(target.pid).unwrap();
    }
    let mappings = Mappings::read(target.pid).unwrap();
    let code = mappings.iter().filter(|mapping| mapping.executable);
    let mut addresses: Vec<_> = code.flat_map(|code| (code.start..code.end).step_by(4099)).collect();
    addresses.extend([0, mappings.find(addresses[0]).unwrap().start - 1, u64::MAX]);
    let (mut symbolizer, mut remote) = (Symbolizer::new(here.clone()), Symbolizer::new(there.clone()));
    remote.prepare(target.pid, addresses.iter().copied().map(CodeAddress::Exact));
    let mut named = 0;
    for address in addresses {
        let expected = symbolizer.symbolize(target.pid, CodeAddress::Exact(address));
        assert_eq!(remote.symbolize(target.pid, CodeAddress::Exact(address)), expected, "{address:#x}");
        assert_eq!(there.function_start(target.pid, address), here.function_start(target.pid, address));
        named += expected.iter().filter(|frame| frame.function.is_some()).count();
    }
    assert!(named > 100, "{named}");
}

fn is_lost(frames: &[SourceFrame], address: u64) -> bool {
    matches!(frames, [SourceFrame { function: None, unknown: Some(Unknown::SymboliserEnded), .. }])
        && frames[0].module_address == Some(address)
}

#[test]
fn a_file_that_ends_its_reader_costs_its_own_names() {
    let workshop = Workshop::new();
    let (nested, before, after) = (
        nested(&workshop),
        workshop.compile("before", "gcc", "chain.c", "-g -O2 -Wl,--build-id=none"),
        workshop.compile("after", "gcc", "chain.c", "-g -O2 -Wl,--build-id=none"),
    );
    let names = |symbolizer: &mut Symbolizer, path: &Path| -> Vec<Option<String>> {
        let frames =
            code(path, 16).into_iter().flat_map(|at| symbolizer.symbolize_in_file(&module(path), at));
        frames.map(|frame| frame.function).collect()
    };
    let mut symbolizer = isolated(isolation());
    assert!(names(&mut symbolizer, &before).contains(&Some("leaf".into())));
    let addresses = code(&nested, 16);
    symbolizer.prepare_in_file(&module(&nested), addresses.clone());
    for address in addresses {
        assert!(is_lost(&symbolizer.symbolize_in_file(&module(&nested), address), address));
    }
    assert!(names(&mut symbolizer, &after).contains(&Some("leaf".into())), "the next process");
    let more = code(&before, 1);
    symbolizer.prepare_in_file(&module(&before), more);
    assert_eq!(symbolizer.symbolize_in_file(&module(&before), 1)[0].unknown, Some(Unknown::NoSymbols));
    let said = said_of(&nested);
    assert!(matches!(&*said, [how] if how.contains("SIGSEGV")), "once: {said:?}");
}

/// In one request with further modules, without loss of the modules' names.
#[test]
fn a_hostile_module_among_others_of_a_process() {
    let workshop = Workshop::new();
    let program = nested(&workshop);
    let mut child =
        std::process::Command::new(&program).stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.as_mut().unwrap()),
        &mut String::new(),
    )
    .unwrap();
    let processes = Processes::isolated(isolation());
    processes.attach(child.id()).unwrap();
    let mappings = Mappings::read(child.id()).unwrap();
    let code = mappings.iter().filter(|mapping| mapping.executable && mapping.inode != 0);
    let addresses: Vec<_> = code.flat_map(|code| (code.start..code.end).step_by(64)).collect();
    let mut symbolizer = Symbolizer::new(processes);
    symbolizer.prepare(child.id(), addresses.iter().copied().map(CodeAddress::Exact));
    let frames = addresses.iter().flat_map(|at| symbolizer.symbolize(child.id(), CodeAddress::Exact(*at)));
    let (own, others): (Vec<_>, Vec<_>) =
        frames.partition(|frame| frame.module.as_ref().unwrap().path == program.to_str().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(own.iter().all(|frame| frame.unknown == Some(Unknown::SymboliserEnded)), "{own:?}");
    assert!(others.iter().all(|frame| frame.unknown != Some(Unknown::SymboliserEnded)));
    assert!(others.iter().filter(|frame| frame.function.is_some()).count() > 1000);
    assert_eq!(said_of(&program).len(), 1);
}

/// A program in the place of the symboliser.
fn instead(workshop: &Workshop, name: &str, script: &str) -> Isolation {
    let program = workshop.path(name);
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    Isolation { program, patience: Duration::from_millis(300) }
}

/// Despite any behaviour or answer of the process, the caller has the frames in time.
#[test]
fn processes_that_hang_end_or_talk_nonsense() {
    let workshop = Workshop::new();
    let scripts = [
        ("hangs", "exec sleep 100", "did not answer within 0.3 s"),
        ("loops", "while :; do :; done", "did not answer within 0.3 s"),
        ("aborts", "head -c 4 >/dev/null; kill -ABRT $$", "SIGABRT"),
        ("is_killed", "kill -KILL $$", "SIGKILL"),
        ("exits", "exit 3", "exit status 3"),
        ("claims", r"printf '\377\377\377\177x' >&0; exec sleep 100", "answered more than it may"),
        (
            "garbage",
            r"printf '\005\000\000\000\001\377\377\377\377' >&0; exec sleep 100",
            "answered nonsense",
        ),
        // An empty list of frames where there was one address: `Said::Frames`, CPU time, pages.
        (
            "mismatch",
            r"printf '\004\000\000\000\000\000\000\000' >&0; exec sleep 100",
            "answered something else",
        ),
        ("half", r"printf '\005\000\000\000\001' >&0; exec sleep 100", "did not answer within 0.3 s"),
        ("dies_talking", r"head -c 4 >/dev/null; printf '\013\377\377\377' >&0; kill -ABRT $$", "SIGSEGV"),
    ];
    for (name, script, how) in scripts {
        let file = workshop.compile(&format!("of_{name}"), "gcc", "chain.c", "-g -O2 -Wl,--build-id=none");
        let mut symbolizer = isolated(instead(&workshop, name, script));
        let began = Instant::now();
        assert!(is_lost(&symbolizer.symbolize_in_file(&module(&file), 0x1139), 0x1139), "{name}");
        assert!(began.elapsed() < Duration::from_secs(3), "{name}: {:?}", began.elapsed());
        let began = Instant::now();
        assert!(is_lost(&symbolizer.symbolize_in_file(&module(&file), 0x1140), 0x1140));
        assert!(began.elapsed() < Duration::from_millis(200), "{name} is not asked again");
        let said = said_of(&file);
        assert!(matches!(&*said, [said] if said.contains(how)), "{name}: {said:?}");
    }
}

#[test]
fn after_many_ends_nobody_is_asked() {
    let workshop = Workshop::new();
    let settings = instead(&workshop, "ends", "echo x >>\"$0.starts\"; exit 3");
    let mut symbolizer = isolated(settings.clone());
    let first = workshop.compile("file", "gcc", "chain.c", "-g -O2 -Wl,--build-id=none");
    for number in 0..12 {
        let file = workshop.path(&format!("file{number}"));
        fs::copy(&first, &file).unwrap();
        assert!(is_lost(&symbolizer.symbolize_in_file(&module(&file), 0x1139), 0x1139));
    }
    let starts = fs::read_to_string(settings.program.with_extension("starts")).unwrap();
    assert_eq!(starts.lines().count(), 8);
    assert!(unnamed().iter().any(|unnamed| unnamed.path.is_none() && unnamed.how.contains("ended 8 times")));
    // A process that cannot be started.
    let settings = Isolation { program: workshop.path("nobody"), ..settings };
    let mut symbolizer = isolated(settings);
    assert!(is_lost(&symbolizer.symbolize_in_file(&module(&first), 0x1139), 0x1139));
}

/// Killed between requests, by the kernel or a person: the
/// next process takes over, and no name is lost.
#[test]
fn a_death_between_requests_costs_nothing() {
    let workshop = Workshop::new();
    let file = workshop.compile("chain", "gcc", "chain.c", "-g -O2 -Wl,--build-id=none");
    let other = workshop.path("other");
    fs::copy(&file, &other).unwrap();
    // One whose process is known: its number is in a file, by a script that becomes the process.
    let program = env!("CARGO_BIN_EXE_locality-symboliser");
    let settings = instead(&workshop, "starts", &format!("echo $$ >\"$0.pid\"; exec {program} \"$@\""));
    let mut symbolizer = isolated(Isolation { patience: Duration::from_secs(10), ..settings.clone() });
    let mut killed = Vec::new();
    for (round, path) in [&file, &other, &file].into_iter().enumerate() {
        let at = code(path, 16);
        let at = at[at.len() / 2 + round];
        let frames = symbolizer.symbolize_in_file(&module(path), at);
        assert!(frames.iter().all(|frame| frame.unknown != Some(Unknown::SymboliserEnded)), "{frames:?}");
        let pid = fs::read_to_string(settings.program.with_extension("pid")).unwrap();
        let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
        assert!(!killed.contains(&pid));
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.starts_with("Name:\tsymboliser\n"), "{status}");
        nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        killed.push(pid);
    }
    assert!(said_of(&file).is_empty() && said_of(&other).is_empty());
}
