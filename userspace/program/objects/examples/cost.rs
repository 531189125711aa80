//! Measures what names cost: `cost PID` resolves addresses spread over the process's writable
//! memory and its main thread's frames (taken with ptrace, as only tests and this do), and tells
//! the time to the first answer, the mean time of the later ones by kind of object, and our own
//! peak memory. Times are CPU times.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement may fail loudly")]

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use locality_objects::{HeapBlock, HeapBlocks, Place, ProcessMemory, Resolver, StackFrame};
use locality_symbols::{Processes, Registers, StackSlice, Unwinder};
use nix::sys::{ptrace, wait::waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Addresses per mapping.
const ADDRESSES: u64 = 2000;
const ROUNDS: u32 = 20;

fn main() {
    let pid: u32 = std::env::args().nth(1).and_then(|pid| pid.parse().ok()).unwrap();
    let processes = Processes::new();
    let started = cpu_time();
    let mut resolver = Resolver::new(&processes, pid).unwrap();
    let memory = ProcessMemory::open(pid).ok();
    let mappings = processes.mappings(pid).unwrap();
    println!("mappings read: {:?}", cpu_time() - started);
    // A static variable of the program: the whole of its debug information is asked for.
    let first = mappings.iter().find(|m| m.writable && m.inode != 0).unwrap();
    let started = cpu_time();
    let place = Place::default();
    let named = resolver.resolve(first.start + (first.end - first.start) / 2, &place);
    println!("first answer: {:?} ({} {})", cpu_time() - started, named.object.kind, named.full_name());
    println!("peak memory: {}", status("VmHWM"));
    for (path, faults) in resolver.debug_faults() {
        println!("{path}: {faults:?}");
    }
    let (frames, fs_base) = frames(&processes, pid);
    println!("{} frames", frames.len());
    let (low, high) = (frames.first().unwrap().sp, frames.iter().filter_map(|f| f.cfa).max().unwrap());
    let mut addresses: Vec<u64> = (0..ADDRESSES).map(|i| low + (high - low) * i / ADDRESSES).collect();
    let of_mappings = mappings
        .iter()
        .filter(|m| m.readable && m.writable)
        .flat_map(|m| (0..ADDRESSES).map(move |i| m.start + (m.end - m.start) / ADDRESSES * i));
    addresses.extend(of_mappings);
    let place = Place {
        memory: memory.as_ref().map(|memory| memory as _),
        frames: &frames,
        fs_base: Some(fs_base),
        ..Default::default()
    };
    let started = cpu_time();
    for &address in &addresses {
        resolver.resolve(address, &place);
    }
    println!("first round over {} addresses: {:?}", addresses.len(), cpu_time() - started);
    let mut spent: BTreeMap<&str, (Duration, u32)> = BTreeMap::new();
    for _ in 0..ROUNDS {
        // Runs of one kind are timed as one, to hide the clock's cost.
        for chunk in addresses.chunks(ADDRESSES as usize) {
            let started = cpu_time();
            let mut kind = "";
            for &address in chunk {
                kind = resolver.resolve(address, &place).object.kind.as_str();
            }
            let entry = spent.entry(kind).or_default();
            entry.0 += cpu_time() - started;
            entry.1 += chunk.len() as u32;
        }
    }
    for (kind, (time, count)) in spent {
        println!("{kind}: {:.0} ns each, {count} times", time.as_nanos() as f64 / f64::from(count));
    }
    if let Some(heap) = mappings.iter().find(|m| &*m.path == "[heap]") {
        let place = Place { heap: Some(&Recorded), memory: None, ..place };
        let started = cpu_time();
        for i in 0..1_000_000 {
            resolver.resolve(heap.start + i * 8 % (heap.end - heap.start), &place);
        }
        println!("a million samples in recorded blocks: {:?}", cpu_time() - started);
    }
    println!("peak memory: {}, now {}, of it files {}", status("VmHWM"), status("VmRSS"), status("RssFile"));
}

/// Blocks of 64 bytes from a hundred sites.
struct Recorded;

impl HeapBlocks for Recorded {
    fn block(&self, address: u64) -> Option<HeapBlock> {
        Some(HeapBlock {
            start: address & !63,
            bytes: 64,
            site: (address >> 6) % 100,
            mapped: false,
            since_ns: 0,
        })
    }

    fn stood_at(&self, _: &HeapBlock, _: Instant) -> bool {
        true
    }

    fn stands(&self, _: &HeapBlock) -> bool {
        true
    }
}

/// Our own time on a processor: other programs' load does not count.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

fn frames(processes: &Processes, process: u32) -> (Vec<StackFrame>, u64) {
    let pid = Pid::from_raw(process as i32);
    ptrace::seize(pid, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(pid).unwrap();
    waitpid(pid, None).unwrap();
    let user = ptrace::getregs(pid).unwrap();
    let end = processes.mappings(process).unwrap().find(user.rsp).unwrap().end;
    let mut bytes = vec![0; (end - user.rsp).min(64 << 10) as usize];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    memory.read_exact_at(&mut bytes, user.rsp).unwrap();
    ptrace::detach(pid, None).unwrap();
    let mut frames = Vec::new();
    let registers = Registers { rip: user.rip, rsp: user.rsp, rbp: user.rbp };
    let stack = StackSlice { base: user.rsp, bytes: &bytes };
    Unwinder::for_process(processes, process).unwrap().unwind_frames(registers, &stack, &mut frames);
    (frames, user.fs_base)
}

fn status(key: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}
