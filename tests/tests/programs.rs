//! The target programs themselves, untraced: each builds, becomes ready, and leaves what the other
//! tests rely on.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use locality_tests::{Finished, Target, programs, requires};

const LIMIT: Duration = Duration::from_secs(60);
/// A user that is on every Linux system and owns nothing.
const NOBODY: u32 = 65534;

fn run(program: &str, arguments: &[&str]) -> Finished {
    let finished = Target::start(program, arguments).finish(LIMIT);
    assert_eq!(finished.stderr, "", "{program}");
    finished
}

fn checksum(finished: &Finished) -> u64 {
    let line = finished.stdout.last().and_then(|line| line.strip_prefix("checksum "));
    let number = line.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.unwrap_or_else(|| panic!("no checksum in {finished:?}"))
}

/// The numbers of a line like "sent 12 received 12".
fn numbers(finished: &Finished, first_word: &str) -> Vec<u64> {
    let line = finished.stdout.iter().find(|line| line.starts_with(first_word));
    let line = line.unwrap_or_else(|| panic!("no line {first_word} in {finished:?}"));
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn programs_with_a_known_pair_run_for_the_time_asked_and_end_well() {
    for program in programs::all() {
        if locality_tests::markers(&program).is_empty() {
            continue;
        }
        let started = Instant::now();
        let finished = run(&program, &["0.3"]);
        assert!(finished.status.success(), "{program}: {finished:?}");
        assert!(started.elapsed() >= Duration::from_millis(300), "{program} ended too early");
        assert_ne!(checksum(&finished), 0, "{program}");
    }
}

#[test]
fn without_an_argument_a_program_runs_until_it_is_killed() {
    let mut target = Target::start("two_loops", &[]);
    let deadline = Instant::now() + LIMIT;
    while target.cpu_time() < Duration::from_millis(100) {
        assert!(target.is_running() && Instant::now() < deadline, "used only {:?}", target.cpu_time());
        std::thread::sleep(Duration::from_millis(5));
    }
    target.signal(libc::SIGTERM);
    assert!(!target.finish(LIMIT).status.success());
}

#[test]
fn generated_code_is_named_in_a_perf_map_while_it_runs() {
    let target = Target::start("jit_loop", &["0.5", "map"]);
    let path = format!("/tmp/perf-{}.map", target.pid());
    let map = std::fs::read_to_string(&path).unwrap();
    for name in ["jit_write", "jit_read"] {
        assert!(map.lines().any(|line| line.ends_with(&format!(" {name}"))), "{map}");
    }
    assert!(target.finish(LIMIT).status.success());
    assert!(!std::path::Path::new(&path).exists());
}

#[test]
fn the_stripped_program_keeps_only_dynamic_symbols() {
    requires!(command("readelf"));
    let sections = Command::new("readelf").arg("-SsW").arg(programs::build("stripped")).output().unwrap();
    let text = String::from_utf8(sections.stdout).unwrap();
    assert!(text.contains("exported_write") && text.contains("exported_read"), "{text}");
    assert!(
        !text.contains(".symtab") && !text.contains(".debug_info") && !text.contains("elsewhere_0"),
        "{text}"
    );
}

#[test]
fn a_thousand_threads_give_the_same_checksum_each_time() {
    let (first, second) = (run("thread_storm", &["2"]), run("thread_storm", &["1"]));
    assert_eq!(numbers(&first, "threads"), [1000]);
    assert_eq!(checksum(&first), checksum(&second));
    assert_ne!(checksum(&first), 0);
}

#[test]
fn untraced_preemption_loses_no_signal() {
    let finished = run("sigurg_preempt", &["1"]);
    assert!(finished.status.success(), "{finished:?}");
    let numbers = numbers(&finished, "sent");
    assert!(numbers[0] > 1000 && numbers[0] == numbers[1] && numbers[2] == 0, "{numbers:?}");
}

#[test]
fn the_preempting_program_notices_a_signal_too_many() {
    let target = Target::start("sigurg_preempt", &["1"]);
    // An outside signal wakes a worker without a preemption, so more are received than sent.
    let worker = *target.threads().last().unwrap();
    let (pid, worker) = (i32::try_from(target.pid()).unwrap(), i32::try_from(worker).unwrap());
    for _ in 0..20 {
        // SAFETY: tgkill takes plain numbers; both ids are of a child that has not been reaped.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, pid, worker, libc::SIGURG) };
        assert_eq!(result, 0);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(target.finish(LIMIT).status.code(), Some(1));
}

#[test]
fn the_sleeper_is_interrupted_only_from_outside() {
    let finished = run("sleeper", &["0.5"]);
    assert!(finished.status.success(), "{finished:?}");
    assert!(numbers(&finished, "wakes")[0] > 20);
    let target = Target::start("sleeper", &["1"]);
    for _ in 0..20 {
        // A stop and a continuation make epoll_wait return EINTR (signal(7)); that is what a
        // careless tracer does.
        target.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(5));
        target.signal(libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(target.finish(LIMIT).status.code(), Some(1));
}

#[test]
fn children_become_another_program_and_end_as_they_should() {
    let finished = run("fork_exec", &["0.5"]);
    assert!(finished.status.success(), "{finished:?}");
    assert!(numbers(&finished, "children")[0] > 0);
}

#[test]
fn every_expiry_of_the_timer_is_seen() {
    let finished = run("signal_heavy", &["1"]);
    assert!(finished.status.success(), "{finished:?}");
    assert!(numbers(&finished, "expiries")[0] >= 1000, "{finished:?}");
}

#[test]
fn the_deterministic_program_prints_the_same_each_time_and_exits_with_7() {
    let (first, second) = (run("deterministic_output", &["1"]), run("deterministic_output", &["1"]));
    assert_eq!(first.status.code(), Some(7));
    assert_eq!((first.status.code(), &first.stdout), (second.status.code(), &second.stdout));
    assert_eq!(first.stdout.len(), 7, "{first:?}");
}

#[test]
fn the_non_dumpable_program_belongs_to_root_in_proc() {
    requires!(root);
    // In a place open to any user; the directory of the build may be closed.
    let copy = std::env::temp_dir().join(format!("non_dumpable-{}", std::process::id()));
    std::fs::copy(programs::build("non_dumpable"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.arg("0.3").uid(NOBODY);
    let target = Target::start_command(command);
    // The kernel shows that a process is not dumpable by giving its files in /proc to root (proc(5)).
    let owner = |file: &str| std::fs::metadata(format!("/proc/{}/{file}", target.pid())).unwrap().uid();
    assert_eq!(owner("maps"), 0);
    assert!(target.finish(LIMIT).status.success());
    std::fs::remove_file(copy).unwrap();
}

#[test]
fn the_three_ignored_signals_are_blocked() {
    let target = Target::start("all_signals_blocked", &["0.3"]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", target.pid())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    for signal in [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD] {
        assert_ne!(mask & (1 << (signal - 1)), 0, "signal {signal} is not blocked: {mask:x}");
    }
    assert!(target.finish(LIMIT).status.success());
}

#[test]
fn the_debug_registers_are_taken_and_trap_once_each() {
    requires!(watchpoints(4));
    let finished = run("debugger_registers_taken", &["0.3"]);
    assert!(finished.status.success(), "{finished:?}");
    assert_eq!(numbers(&finished, "traps"), [4]);
}

#[test]
fn the_32_bit_program_is_one_and_runs() {
    requires!(ia32);
    let bytes = std::fs::read(programs::build("thirty_two_bit")).unwrap();
    // ELF header (elf(5)): class 1 is 32-bit.
    assert_eq!(bytes[..5], *b"\x7fELF\x01");
    assert!(run("thirty_two_bit", &["1"]).status.success());
}

#[test]
fn redis_starts_without_a_service() {
    requires!(command("redis-benchmark"));
    let mut command = programs::redis_server();
    command.arg("--version");
    let finished = Target::spawn(command).finish(LIMIT);
    assert!(finished.stdout.iter().any(|line| line.starts_with("Redis server")), "{finished:?}");
}
