//! The kernel's acceptance and refusals: each eBPF program within its complexity budget, and
//! watchpoints unknown to this kind of machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use locality_tests::live::{alone, wait_for};
use locality_tests::{Target, Tracer, requires};
use perf_event_open_sys::bindings::{HW_BREAKPOINT_R, HW_BREAKPOINT_RW, HW_BREAKPOINT_W, HW_BREAKPOINT_X};

use locality_tests::requires::open_watchpoint;

/// The committed budget: a program and the most
/// instructions that the verifier may process, a line each.
const BUDGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/complexity.budget");

/// A larger excess over the measured value is no budget any more.
const HEADROOM_MAX: f64 = 1.5;

fn budget() -> BTreeMap<String, u32> {
    let text = fs::read_to_string(Path::new(BUDGET)).unwrap_or_else(|e| panic!("{BUDGET}: {e}"));
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        (
            words.next().unwrap_or_default().to_owned(),
            words.next().and_then(|max| max.parse().ok()).unwrap_or(0),
        )
    };
    lines.map(entry).collect()
}

/// Verified instructions of a process's eBPF programs, by name, as the kernel counted.
fn programs_of(pid: u32) -> BTreeMap<String, u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let ids: Vec<u32> = entries
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .filter_map(|text| text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok()))
        .collect();
    let loaded = aya::programs::loaded_programs().filter_map(Result::ok);
    let ours = loaded.filter(|program| ids.contains(&program.id()));
    ours.filter_map(|program| {
        Some((program.name_as_str()?.to_owned(), program.verified_instruction_count()?))
    })
    .collect()
}

#[test]
fn each_program_passes_the_verifier_within_its_budget() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let budget = budget();
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("two_loops", &[]);
    let profile = dir.path().join("t.locality");
    let tracer = Tracer::attach(target.pid(), "60")
        .args(["--heap"])
        .args(["-o".as_ref(), profile.as_os_str()])
        .start();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut programs = programs_of(tracer.pid());
    while programs.len() < budget.len() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
        programs = programs_of(tracer.pid());
    }
    tracer.signal(libc::SIGTERM);
    let finished = tracer.finish(Duration::from_secs(20));
    println!("verified instructions: {programs:?}");
    assert_eq!(
        programs.keys().collect::<Vec<_>>(),
        budget.keys().collect::<Vec<_>>(),
        "loaded and budgeted programs differ; {}",
        finished.stderr
    );
    for (name, verified) in programs {
        let max = budget[&name];
        assert!(verified <= max, "{name} has become complex: {verified} verified instructions, budget {max}");
        assert!(
            f64::from(max) <= HEADROOM_MAX * f64::from(verified),
            "{name} has a budget of {max} and needs {verified}: lower it in ebpf/complexity.budget"
        );
    }
}

/// Words to watch, more than registers.
static WORDS: [u64; 8] = [0; 8];

fn address(index: usize) -> u64 {
    &raw const WORDS[index] as u64
}

#[test]
fn a_fifth_watchpoint_in_a_thread_is_refused() {
    requires!(watchpoints(4));
    let held: Vec<_> =
        (0..4).map(|index| open_watchpoint(address(index), 8, HW_BREAKPOINT_RW).unwrap()).collect();
    let refused = open_watchpoint(address(4), 8, HW_BREAKPOINT_RW).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    // A register given back can be taken again, and the refusal took none. A child started by another test
    // has copies of the descriptors until its exec, and the registers with them.
    drop(held);
    wait_for("four free registers", || {
        let again = (0..4).map(|index| open_watchpoint(address(index), 8, HW_BREAKPOINT_RW).ok());
        again.collect::<Option<Vec<_>>>()
    });
}

#[test]
fn reads_alone_cannot_be_watched() {
    requires!(watchpoints(1));
    // arch_build_bp_info() of arch/x86/kernel/hw_breakpoint.c knows write, read-write and execute.
    let refused = open_watchpoint(address(0), 8, HW_BREAKPOINT_R).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    for kind in [HW_BREAKPOINT_W, HW_BREAKPOINT_RW] {
        assert!(open_watchpoint(address(0), 8, kind).is_ok());
    }
    // An instruction's breakpoint has the length of a long.
    assert!(open_watchpoint(address as fn(usize) -> u64 as usize as u64, 8, HW_BREAKPOINT_X).is_ok());
}

#[test]
fn more_than_eight_bytes_or_unaligned_ones_cannot_be_watched() {
    requires!(watchpoints(1));
    for bytes in [1, 2, 4, 8] {
        assert!(open_watchpoint(address(0), bytes, HW_BREAKPOINT_RW).is_ok(), "{bytes} bytes");
    }
    for bytes in [0, 3, 5, 16, 64] {
        let refused = open_watchpoint(address(0), bytes, HW_BREAKPOINT_RW).unwrap_err();
        // The second error where the address is aligned to `bytes` bytes: AMD has such breakpoints
        // (`arch_build_bp_info` in the kernel's arch/x86/kernel/hw_breakpoint.c).
        let refusals = [Some(libc::EINVAL), Some(libc::EOPNOTSUPP)];
        assert!(refusals.contains(&refused.raw_os_error()), "{bytes} bytes: {refused}");
    }
    let unaligned = open_watchpoint(address(0) + 4, 8, HW_BREAKPOINT_RW).unwrap_err();
    assert_eq!(unaligned.raw_os_error(), Some(libc::EINVAL));
}
