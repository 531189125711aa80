//! Measures what unwinding and symbolising a live process costs: `cost PID` takes stacks with
//! ptrace (as only tests and this do), then prints times and memory. `cost spin` is a process to
//! look at: this very program, busy.
#![expect(clippy::print_stdout, reason = "prints its figures")]
#![expect(clippy::unwrap_used, reason = "a measurement may fail loudly")]

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use locality_symbols::{Mappings, Processes, Registers, StackSlice, Symbolizer, Unwinder};
use nix::sys::{ptrace, wait::waitpid};
use nix::unistd::Pid;

const STACKS: usize = 50;
const STACK_BYTES: u64 = 64 << 10;

fn main() {
    let argument = std::env::args().nth(1).unwrap_or_default();
    match argument.parse() {
        Ok(pid) => measure(pid),
        Err(_) => spin(argument.len() as u64),
    }
}

fn spin(mut n: u64) {
    loop {
        let text = format!("{n} {:?}", Mappings::parse(b"1-2 r-xp 0 0:0 0 x\n"));
        n = std::hint::black_box(text.len() as u64);
    }
}

fn measure(pid: u32) {
    let mut stacks = Vec::new();
    for _ in 0..STACKS {
        stacks.push(capture(pid));
        std::thread::sleep(Duration::from_millis(13));
    }
    println!("before                    {}", memory());
    let processes = Processes::new();
    let mut unwinder = Unwinder::for_process(&processes, pid).unwrap();
    let mut unwind = |(registers, bytes): &(Registers, Vec<u8>)| {
        let mut out = Vec::new();
        let started = Instant::now();
        let cut = unwinder.unwind(*registers, &StackSlice { base: registers.rsp, bytes }, &mut out);
        (started.elapsed(), out, cut)
    };
    let first = unwind(&stacks[0]).0;
    let cold: Vec<_> = stacks[1..].iter().map(|stack| unwind(stack).0).collect();
    let warm: Vec<_> = stacks.iter().map(&mut unwind).collect();
    let frames: usize = warm.iter().map(|(_, out, _)| out.len()).sum();
    println!("unwind: {STACKS} stacks, {:.1} frames each", frames as f64 / STACKS as f64);
    println!("  first stack {first:?}; others cold {}", spread(cold));
    println!("  warm {}", spread(warm.iter().map(|(time, ..)| *time).collect()));
    println!(
        "  cut {:?}",
        warm.iter().filter_map(|(_, _, cut)| *cut).collect::<std::collections::HashSet<_>>()
    );
    println!("after unwinding           {}", memory());

    let mut symbolizer = Symbolizer::new(processes.clone());
    let mut addresses: Vec<_> = warm.into_iter().flat_map(|(_, out, _)| out).collect();
    addresses.sort();
    addresses.dedup();
    let mut resolve = || {
        addresses
            .iter()
            .map(|&at| {
                let started = Instant::now();
                let frames = symbolizer.symbolize(pid, at);
                let time = started.elapsed();
                std::hint::black_box(frames);
                time
            })
            .collect::<Vec<_>>()
    };
    let cold = resolve();
    println!("symbolise: {} distinct addresses, {} modules", addresses.len(), processes.open_modules());
    println!("  cold {}, sum {:?}", spread(cold.clone()), cold.iter().sum::<Duration>());
    println!("  warm {}", spread(resolve()));
    println!("after symbolising         {}", memory());
}

fn capture(pid: u32) -> (Registers, Vec<u8>) {
    let id = Pid::from_raw(pid as i32);
    ptrace::seize(id, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(id).unwrap();
    waitpid(id, None).unwrap();
    let user = ptrace::getregs(id).unwrap();
    let end = Mappings::read(pid).unwrap().find(user.rsp).unwrap().end;
    let mut bytes = vec![0; (end - user.rsp).min(STACK_BYTES) as usize];
    let file = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    file.read_exact_at(&mut bytes, user.rsp).unwrap();
    ptrace::detach(id, None).unwrap();
    (Registers { rip: user.rip, rsp: user.rsp, rbp: user.rbp }, bytes)
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    format!("median {:?}, p90 {:?}, largest {:?}", at(50), at(90), at(100))
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() as f64 / 1024.0
    };
    format!("resident {:.1} MiB: own {:.1}, files {:.1}", of("VmRSS:"), of("RssAnon:"), of("RssFile:"))
}
