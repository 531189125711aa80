//! Where the file is not simply at its path: deleted, replaced, in another root directory, stripped
//! with the debug information elsewhere; processes that end, load libraries or execute another
//! program; and files without a process.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use locality_symbols::{CodeAddress, ModuleInfo, Processes, Symbolizer, Unknown};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Target, Walk, Workshop, assert_at, is_root, walk};

fn assert_chain(walk: &Walk) {
    assert_eq!(walk.cut, None, "{:?}", walk.names());
    let frames = walk.frames();
    for (frame, name) in frames.iter().zip(["leaf", "middle", "folded", "outer", "main"]) {
        assert_at(frame, name, "chain.c", name);
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..500 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} never happened");
}

#[test]
fn deleted_while_running() {
    if !is_root("/proc/PID/map_files") {
        return;
    }
    let workshop = Workshop::new();
    let program = workshop.compile("chain", "gcc", "chain.c", "-g -O2");
    let target = Target::start(&program, &[]);
    fs::remove_file(&program).unwrap();
    let walk = walk(&target);
    assert_chain(&walk);
    assert_eq!(walk.frames()[0].module.as_ref().unwrap().path, program.to_str().unwrap());
}

/// The new file has other functions at these places: its names would be wrong.
#[test]
fn replaced_while_running() {
    if !is_root("/proc/PID/map_files") {
        return;
    }
    let workshop = Workshop::new();
    let program = workshop.compile("chain", "gcc", "chain.c", "-g -O2");
    let target = Target::start(&program, &[]);
    let other = workshop.compile("other", "gcc", "signals.c", "-g -O2");
    fs::rename(other, &program).unwrap();
    let walk = walk(&target);
    assert_chain(&walk);
    // Later, from a profile, only the new file is there; the build id tells.
    let frame = walk.frames()[0].clone();
    let mut symbolizer = Symbolizer::new(Processes::new());
    let late = symbolizer.symbolize_in_file(frame.module.as_ref().unwrap(), frame.module_address.unwrap());
    assert_eq!(late.len(), 1);
    assert_eq!((late[0].function.clone(), late[0].unknown), (None, Some(Unknown::FileReplaced)));
}

/// Everything is asked for only when process and file are gone.
#[test]
fn symbolised_after_the_end() {
    let workshop = Workshop::new();
    let program = workshop.compile("chain", "gcc", "chain.c", "-g -O2");
    let mut target = Target::start(&program, &[]);
    let walk = walk(&target);
    target.kill();
    drop(workshop);
    assert!(!program.exists());
    assert_chain(&walk);
    assert_eq!(walk.processes.open_modules(), 2, "the program and libc");
    walk.processes.forget(walk.pid);
    assert_eq!(walk.processes.open_modules(), 2, "spare, for the next process");
    let frames = walk.frames();
    assert!(frames.iter().all(|frame| frame.unknown == Some(Unknown::Unmapped)), "{frames:?}");
}

/// Commands that are started again and again map the same files, with modules
/// opened once; of modules no longer mapped, only the last stay open.
#[test]
fn modules_of_ended_processes_are_spare() {
    let workshop = Workshop::new();
    let first = workshop.compile("chain", "gcc", "chain.c", "-g -O2");
    let processes = Processes::new();
    let opened = |program: &std::path::Path| {
        let target = Target::start(program, &[]);
        processes.attach(target.pid).unwrap();
        let mappings = processes.mappings(target.pid).unwrap();
        let mapping = mappings.iter().find(|mapping| mapping.path.ends_with(program.to_str().unwrap()));
        let file = processes.open_module(target.pid, mapping.unwrap()).unwrap();
        processes.forget(target.pid);
        file
    };
    let made = |file: &locality_symbols::ModuleFile, value: u32| *file.derived(|| value).unwrap();
    assert_eq!(made(&opened(&first), 1), 1);
    assert_eq!(made(&opened(&first), 2), 1, "what was made of the file stays");
    assert!(opened(&first).derived(|| "another type").is_none());
    for number in 0..50 {
        let copy = workshop.path(&format!("copy{number}"));
        fs::copy(&first, &copy).unwrap();
        opened(&copy);
    }
    assert_eq!(made(&opened(&first), 3), 3, "the file was opened again");
    assert!((40..60).contains(&processes.open_modules()), "{}", processes.open_modules());
}

/// A process that has ended before its files were opened, and another that runs the same file.
#[test]
fn files_that_another_process_showed() {
    let workshop = Workshop::new();
    let program = workshop.compile("chain", "gcc", "chain.c", "-g -O2");
    let processes = Processes::new();
    let mut gone = Target::start(&program, &[]);
    processes.attach(gone.pid).unwrap();
    let code = |pid| {
        let mappings = processes.mappings(pid).unwrap();
        let of_program = |mapping: &&locality_symbols::Mapping| mapping.path.ends_with("/chain");
        mappings.iter().filter(of_program).find(|mapping| mapping.executable).unwrap().clone()
    };
    let mapping = code(gone.pid);
    gone.kill();
    assert_eq!(processes.open_module(gone.pid, &mapping).unwrap_err(), Unknown::FileGone);
    let other = Target::start(&program, &[]);
    processes.attach(other.pid).unwrap();
    let shown = processes.open_module(other.pid, &code(other.pid)).unwrap();
    let found = processes.open_module(gone.pid, &mapping).unwrap();
    assert_eq!(found.bytes().as_ptr(), shown.bytes().as_ptr(), "the same mapping of the file");
}

#[test]
fn from_the_file_alone() {
    let workshop = Workshop::new();
    for flags in ["-g -O2", "-g -O2 -no-pie"] {
        let program = workshop.compile("chain", "gcc", "chain.c", flags);
        let walk = walk(&Target::start(&program, &[]));
        let live: Vec<_> = walk.frames();
        let mut symbolizer = Symbolizer::new(Processes::new());
        for frame in live.iter().filter(|frame| !frame.inlined) {
            let module = frame.module.as_ref().unwrap();
            let late = symbolizer.symbolize_in_file(module, frame.module_address.unwrap());
            let physical = late.last().unwrap();
            assert_eq!(
                (&physical.function, &physical.file, physical.line),
                (&frame.function, &frame.file, frame.line)
            );
        }
        let gone = ModuleInfo { path: "/no/such/file".into(), build_id: "0123456789".into() };
        assert_eq!(symbolizer.symbolize_in_file(&gone, 0x1000)[0].unknown, Some(Unknown::FileGone));
    }
}

#[test]
fn debug_file_by_link() {
    for directory in ["", ".debug/"] {
        let workshop = Workshop::new();
        fs::create_dir(workshop.path(".debug")).unwrap();
        let program = workshop.compile("chain", "gcc", "chain.c", "-g -O2 -Wl,--build-id=none");
        workshop
            .tool(&format!("objcopy --only-keep-debug --compress-debug-sections chain {directory}chain.dbg"));
        workshop.tool(&format!("objcopy --strip-all --add-gnu-debuglink={directory}chain.dbg chain"));
        assert_chain(&walk(&Target::start(&program, &[])));
        // A debug file with another CRC is another program's.
        let debug = workshop.path(&format!("{directory}chain.dbg"));
        let mut bytes = fs::read(&debug).unwrap();
        bytes.push(0);
        fs::write(debug, bytes).unwrap();
        let without = walk(&Target::start(&program, &[]));
        assert_eq!(without.frames()[0].unknown, Some(Unknown::OnlyStart));
    }
}

/// A container: another root directory, with the debug file by build id below it.
#[test]
fn debug_file_by_build_id_in_another_root() {
    if !is_root("chroot") {
        return;
    }
    let workshop = Workshop::new();
    let program =
        workshop.compile("chain", "gcc", "chain.c", "-g -O2 -static -Wl,--build-id=0xabcdef0123456789");
    let place = workshop.path("usr/lib/debug/.build-id/ab");
    fs::create_dir_all(&place).unwrap();
    workshop.tool("objcopy --only-keep-debug chain usr/lib/debug/.build-id/ab/cdef0123456789.debug");
    workshop.tool("strip chain");
    let mut command = Command::new("chroot");
    let target = Target::spawn(command.arg(workshop.directory.path()).arg("/chain"));
    let walk = walk(&target);
    assert_chain(&walk);
    let module = walk.frames()[0].module.clone().unwrap();
    assert_eq!((&*module.path, &*module.build_id), (program.to_str().unwrap(), "abcdef0123456789"));
}

#[test]
fn library_loaded_late() {
    let workshop = Workshop::new();
    let library = workshop.compile("library.so", "gcc", "library.c", "-g -O2 -shared -fPIC");
    let program = workshop.compile("loads", "gcc", "loads.c", "-g -O2");
    let target = Target::start(&program, &[library.to_str().unwrap()]);
    let processes = Processes::new();
    processes.attach(target.pid).unwrap();
    let before = processes.mappings(target.pid).unwrap();
    assert!(!before.iter().any(|mapping| mapping.path.ends_with("library.so")));
    kill(Pid::from_raw(target.pid as i32), Signal::SIGUSR1).unwrap();
    wait_until("dlopen", || {
        let now = locality_symbols::Mappings::read(target.pid).unwrap();
        now.iter().any(|mapping| mapping.executable && mapping.path.ends_with("library.so"))
    });
    std::thread::sleep(Duration::from_millis(50));
    let (registers, stack) = target.capture();
    let mut unwinder = locality_symbols::Unwinder::for_process(&processes, target.pid).unwrap();
    let slice = locality_symbols::StackSlice { base: registers.rsp, bytes: &stack };
    let mut out = Vec::new();
    assert_eq!(unwinder.unwind(registers, &slice, &mut out), None);
    let mut symbolizer = Symbolizer::new(processes);
    assert_at(&symbolizer.symbolize(target.pid, out[0])[0], "hidden", "library.c", "hidden");
    assert_at(&symbolizer.symbolize(target.pid, out[1])[0], "exported_wait", "library.c", "exported_wait");
    assert_eq!(symbolizer.symbolize(target.pid, out[2])[0].function.as_deref(), Some("main"));
}

/// Without a request for new mappings, the next stack notices code of another file.
#[test]
fn a_library_in_the_place_of_another() {
    let workshop = Workshop::new();
    let library = |name: &str| {
        let flags = format!("-g -O2 -shared -fPIC -DNAME={name}");
        workshop.compile(&format!("{name}.so"), "gcc", "swaps.c", &flags).to_str().unwrap().to_owned()
    };
    let (first, other) = (library("first"), library("other"));
    let program = workshop.compile("swaps", "gcc", "swaps.c", "-g -O2");
    let target = Target::start(&program, &[&first, "first", &other, "other", &first, "first"]);
    let processes = Processes::new();
    let mut unwinder: Option<locality_symbols::Unwinder> = None;
    let mut places = Vec::new();
    for name in ["first", "other", "first"] {
        let loaded = format!("/{name}.so");
        wait_until("dlopen", || {
            let now = locality_symbols::Mappings::read(target.pid).unwrap();
            now.iter().any(|mapping| mapping.executable && mapping.path.ends_with(&loaded))
        });
        std::thread::sleep(Duration::from_millis(150));
        let (registers, stack) = target.capture();
        let unwinder = unwinder
            .get_or_insert_with(|| locality_symbols::Unwinder::for_process(&processes, target.pid).unwrap());
        let slice = locality_symbols::StackSlice { base: registers.rsp, bytes: &stack };
        let mut out = Vec::new();
        assert_eq!(unwinder.unwind(registers, &slice, &mut out), None);
        let frame = Symbolizer::new(processes.clone()).symbolize(target.pid, out[0]).remove(0);
        assert_eq!(frame.function.as_deref(), Some(name));
        assert!(frame.module.unwrap().path.ends_with(&loaded));
        places.push(processes.function_start(target.pid, registers.rip));
        kill(Pid::from_raw(target.pid as i32), Signal::SIGUSR1).unwrap();
    }
    assert_eq!((places[0], places[1]), (places[1], places[2]), "each has the place of the one before");
}

#[test]
fn another_program_executed() {
    let workshop = Workshop::new();
    let chain = workshop.compile("chain", "gcc", "chain.c", "-g -O2");
    let loads = workshop.compile("loads", "gcc", "loads.c", "-g -O2");
    let target = Target::start(&loads, &["", chain.to_str().unwrap()]);
    let before = walk(&target);
    let names = before.names();
    kill(Pid::from_raw(target.pid as i32), Signal::SIGUSR2).unwrap();
    // In the middle of it there are no mappings at all.
    wait_until("exec", || {
        let now = locality_symbols::Mappings::read(target.pid).unwrap_or_default();
        now.iter().any(|mapping| mapping.path.ends_with("/chain"))
    });
    std::thread::sleep(Duration::from_millis(50));
    // The exec is not reported yet: new mappings are not mixed up with earlier mappings.
    let (mappings, readings) = (before.processes.mappings(target.pid), before.processes.readings(target.pid));
    assert!(before.processes.refresh(target.pid).is_err());
    assert_eq!(before.processes.mappings(target.pid), mappings);
    before.processes.exec(target.pid).unwrap();
    assert_ne!(before.processes.mappings(target.pid), mappings);
    assert!(before.processes.readings(target.pid) > readings && before.processes.refresh(target.pid).is_ok());
    assert_chain(&walk(&target));
    let now: Vec<_> = before
        .addresses
        .iter()
        .map(|&at| before.processes.function_start(target.pid, at.address()))
        .collect();
    assert_eq!(now.len(), before.addresses.len());
    assert_eq!(
        before.names(),
        names,
        "addresses of the program from before keep their names where nothing overlaps"
    );
}

#[test]
fn code_bytes_and_function_starts() {
    let workshop = Workshop::new();
    for flags in ["-g -O2", "-O2 -no-pie", "-O2 -s"] {
        let program = workshop.compile("chain", "gcc", "chain.c", flags);
        let target = Target::start(&program, &[]);
        let walk = walk(&target);
        let memory = fs::File::open(format!("/proc/{}/mem", target.pid)).unwrap();
        for at in &walk.addresses {
            let address = at.lookup();
            let start = walk.processes.function_start(target.pid, address).unwrap();
            assert!(start <= address && address - start < 10_000, "{flags} {address:#x} {start:#x}");
            let mut truth = vec![0; (address - start) as usize];
            memory.read_exact_at(&mut truth, start).unwrap();
            assert_eq!(walk.processes.text_bytes(target.pid, start..address), Some(truth), "{flags}");
        }
        let start = walk.processes.function_start(target.pid, walk.registers.rip).unwrap();
        if flags != "-O2 -s" {
            let mut symbolizer = Symbolizer::new(walk.processes.clone());
            assert_eq!(
                symbolizer.symbolize(target.pid, CodeAddress::Exact(start))[0].function.as_deref(),
                Some("leaf")
            );
            assert_ne!(
                symbolizer.symbolize(target.pid, CodeAddress::Exact(start - 1))[0].function.as_deref(),
                Some("leaf")
            );
        }
        let text = |range| walk.processes.text_bytes(target.pid, range);
        assert_eq!(text(0..16), None);
        let reversed = start + 8..start;
        assert_eq!(text(reversed), None);
        assert_eq!(text(start..start + (2 << 20)), None);
        assert_eq!(text(start..u64::MAX), None);
    }
}

/// A runtime in a process id namespace names the perf map by the runtime's id in the namespace.
#[test]
fn perf_map_in_a_pid_namespace() {
    if !is_root("a process id namespace") {
        return;
    }
    let workshop = Workshop::new();
    let program = workshop.compile("special", "gcc", "special.c", "-g -O2 -fno-omit-frame-pointer -static");
    fs::create_dir(workshop.path("tmp")).unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "chroot"])
        .arg(workshop.directory.path())
        .args(["/special", "jit"]);
    let mut target = Target::spawn(&mut command);
    assert!(program.exists() && workshop.path("tmp/perf-1.map").exists());
    let outer = target.pid;
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
    target.pid = children.trim().parse().unwrap();
    let walk = walk(&target);
    assert_eq!(walk.names()[1], "generated::function");
}

/// A program started by a link is called by the link, and may change name
/// and arguments meanwhile; another process of the file has a separate name.
#[test]
fn a_program_that_was_started_by_a_link_is_called_by_it() {
    let workshop = Workshop::new();
    let file = workshop.compile("check-tool", "gcc", "chain.c", "-O1 -g");
    let link = workshop.path("server");
    std::os::unix::fs::symlink("check-tool", &link).unwrap();
    let module = |target: &Target| {
        let frames = walk(target).frames();
        let own = frames.iter().find(|frame| frame.function.as_deref() == Some("main")).unwrap();
        own.module.clone().unwrap().path.clone()
    };
    let server = Target::start(&link, &[]);
    assert_eq!(module(&server), link.to_str().unwrap());
    let mut other = std::process::Command::new(&link);
    // What the program is told as its name is no matter.
    let other = Target::spawn(std::os::unix::process::CommandExt::arg0(&mut other, "something-else"));
    assert_eq!(module(&other), link.to_str().unwrap());
    let mut relative = std::process::Command::new("./server");
    let relative = Target::spawn(relative.current_dir(link.parent().unwrap()));
    assert_eq!(module(&relative), link.to_str().unwrap());
    assert_eq!(module(&Target::start(&file, &[])), file.to_str().unwrap());
}
