//! Processes and files that are not as they should be: an answer with a reason, never a panic.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;

use locality_symbols::{
    CodeAddress, CutReason, ModuleInfo, Processes, Registers, StackSlice, Symbolizer, Unknown, Unwinder,
};
use support::{Target, Workshop, walk};

const NO_PID: u32 = u32::MAX - 7;

#[test]
fn no_such_process() {
    let processes = Processes::new();
    assert!(processes.attach(NO_PID).is_err());
    assert!(processes.refresh(NO_PID).is_err());
    assert!(Unwinder::for_process(&processes, NO_PID).is_err());
    assert!(processes.mappings(NO_PID).is_none());
    assert_eq!(processes.function_start(NO_PID, 0x1000), None);
    assert_eq!(processes.text_bytes(NO_PID, 0x1000..0x1010), None);
    let frames = Symbolizer::new(processes).symbolize(NO_PID, CodeAddress::Exact(0x1000));
    assert_eq!((frames.len(), frames[0].unknown), (1, Some(Unknown::Unmapped)));
}

/// Kernel threads and zombies have no mappings.
#[test]
fn process_without_memory() {
    let processes = Processes::new();
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        assert!(processes.attach(2).is_err());
    } else {
        eprintln!("skipped the kernel thread: process 2 is not kthreadd here");
    }
    let mut child = std::process::Command::new("true").spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(processes.attach(child.id()).is_err(), "a zombie");
    child.wait().unwrap();
}

#[test]
fn wild_registers() {
    let processes = Processes::new();
    let own = std::process::id();
    let mut unwinder = Unwinder::for_process(&processes, own).unwrap();
    let here = wild_registers as *const () as u64;
    let stack = [0xffu8; 4096];
    for rip in [0, 1, here, u64::MAX, 1 << 63] {
        for rsp in [0, 7, 0x7000_0000_0000, u64::MAX - 3, u64::MAX] {
            for rbp in [0, 8, rsp, u64::MAX] {
                let mut out = Vec::new();
                let slice = StackSlice { base: rsp, bytes: &stack };
                let cut = unwinder.unwind(Registers { rip, rsp, rbp }, &slice, &mut out);
                assert_eq!(out[0], CodeAddress::Exact(rip));
                assert!(cut.is_some());
                assert!(rip == here || cut == Some(CutReason::Unmapped));
            }
        }
    }
}

#[test]
fn truncated_and_foreign_files() {
    let workshop = Workshop::new();
    let program = workshop.compile("chain", "gcc", "chain.c", "-g -O2 -Wl,--build-id=none");
    let whole = fs::read(&program).unwrap();
    let mut symbolizer = Symbolizer::new(Processes::new());
    for (number, bytes) in [0, 1, 16, 63, 64, 200, 1000, 4096, 8000, whole.len() - 1].into_iter().enumerate()
    {
        let cut = workshop.path(&format!("cut{number}"));
        fs::write(&cut, &whole[..bytes]).unwrap();
        let module = ModuleInfo { path: cut.to_str().unwrap().into(), build_id: String::new() };
        for address in [0, 0x1149, 0x1160, u64::MAX] {
            let frames = symbolizer.symbolize_in_file(&module, address);
            assert!(frames.iter().all(|frame| frame.unknown.is_some() || frame.line.is_some()), "{frames:?}");
        }
    }
    for path in ["/etc/passwd", "/dev/zero", "/tmp", "/proc/self/mem", ""] {
        let module = ModuleInfo { path: path.into(), build_id: String::new() };
        assert!(symbolizer.symbolize_in_file(&module, 0x1000)[0].unknown.is_some(), "{path}");
    }
}

/// Debug information with random bytes in it, read for every 16th address of the code.
#[test]
fn garbage_in_debug_info() {
    let workshop = Workshop::new();
    let program = workshop.compile("templates", "g++", "templates.cpp", "-g -O2 -Wl,--build-id=none");
    let whole = fs::read(&program).unwrap();
    let section = |name: &str| {
        use object::{Object, ObjectSection};
        let file = object::File::parse(&*whole).unwrap();
        file.section_by_name(name).unwrap().file_range().unwrap()
    };
    let text = {
        use object::{Object, ObjectSection};
        let file = object::File::parse(&*whole).unwrap();
        let text = file.section_by_name(".text").unwrap();
        text.address()..text.address() + text.size()
    };
    // With this compiler and seed blazesym 0.2.7 panics once in these rounds, which must not reach us.
    let mut random = Random(2);
    for round in 0..150 {
        let mut bytes = whole.clone();
        for name in [".debug_info", ".debug_abbrev", ".debug_line", ".debug_rnglists", ".symtab", ".strtab"] {
            let (start, len) = section(name);
            for _ in 0..1 + round % 8 {
                bytes[(start + random.next() % len) as usize] = random.next() as u8;
            }
        }
        let path = workshop.path(&format!("garbage{round}"));
        fs::write(&path, &bytes).unwrap();
        let module = ModuleInfo { path: path.to_str().unwrap().into(), build_id: String::new() };
        let mut symbolizer = Symbolizer::new(Processes::new());
        for address in text.clone().step_by(16) {
            assert!(!symbolizer.symbolize_in_file(&module, address).is_empty());
        }
    }
}

/// The running program's unwind tables are garbage: the walk ends, and says that they are bad or
/// leads somewhere.
#[test]
fn garbage_in_unwind_tables() {
    use object::{Object, ObjectSection};
    let workshop = Workshop::new();
    let program = workshop.compile("chain", "gcc", "chain.c", "-g -O2");
    let whole = fs::read(&program).unwrap();
    let (start, len) = {
        let file = object::File::parse(&*whole).unwrap();
        file.section_by_name(".eh_frame").unwrap().file_range().unwrap()
    };
    let mut bytes = whole.clone();
    bytes[start as usize..(start + len) as usize].fill(0xa5);
    let broken = workshop.path("broken");
    fs::write(&broken, bytes).unwrap();
    workshop.tool("chmod +x broken");
    let walk = walk(&Target::start(&broken, &[]));
    assert_eq!(walk.cut, Some(CutReason::BadUnwindInfo), "{:?}", walk.names());
    // The leaf's caller is known without tables: its return address is on top of the stack.
    assert_eq!(walk.names(), ["leaf", "middle"]);
}

/// xorshift64: enough to spread garbage, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
