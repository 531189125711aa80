//! What becomes of the tracer when the window process hangs or dies, and of that when the tracer dies.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::target::{poke, registers, request, wait};
use super::*;

fn signal(pid: u32, signal: i32) {
    // SAFETY: a system call with plain arguments on a process that was started here.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Kills it and waits until it is dead, not reaped.
fn kill(pid: u32) {
    signal(pid, libc::SIGKILL);
    while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn brief() -> Limits {
    Limits { instructions: 100, pages: 100, time_ns: 2_000_000 }
}

fn impatient() -> Helper {
    let (margin, patience) = (Duration::from_millis(1), Duration::from_millis(700));
    Helper::start(Settings { margin, patience, ..settings() }).unwrap()
}

#[test]
fn one_that_hangs_holds_the_tracer_no_longer_than_the_limit() {
    needs_root!();
    let target = Target::busy();
    let state = target.stop();
    let mut helper = impatient();
    add(&mut helper, &target);
    let first = helper.pid();
    signal(first, libc::SIGSTOP);
    let begin = Instant::now();
    assert_eq!(helper.run(KEY, &state, &brief()).end, End::Helper);
    let waited = begin.elapsed();
    // Not at once, and no longer than a very busy machine may make of three milliseconds.
    assert!(waited >= Duration::from_millis(3) && waited < Duration::from_secs(10), "{waited:?}");
    // While it has not answered, others are not held at all.
    for _ in 0..100 {
        assert_eq!(helper.run(KEY, &state, &brief()).end, End::Helper);
    }
    revive(&mut helper);
    assert_eq!((helper.deaths(), helper.pid() != first), (1, true));
    assert_eq!(helper.run(KEY, &state, &limits(100)).end, End::Instructions);
}

#[test]
fn one_that_spins_at_a_real_time_priority_is_ended_by_the_kernel() {
    needs_root!();
    let target = Target::busy();
    let state = target.stop();
    let (longest, margin) = (Duration::from_millis(5), Duration::from_millis(1));
    let settings = Settings { real_time: Some(1), longest, margin, ..settings() };
    let mut helper = Helper::start(settings).unwrap();
    let stat = proc_text(&helper, "stat");
    // Field 41 of `proc_pid_stat(5)`: the policy.
    if stat.rsplit(')').next().unwrap().split_whitespace().nth(38) != Some("1") {
        return skip("a real-time priority");
    }
    add(&mut helper, &target);
    let pid = helper.pid();
    // It sleeps behind the `syscall` instruction of its futex call: from there on, a jump to itself.
    request(libc::PTRACE_SEIZE, pid, 0, 0);
    request(libc::PTRACE_INTERRUPT, pid, 0, 0);
    assert!(libc::WIFSTOPPED(wait(pid)));
    poke(pid, registers(pid).rip, 0xfeeb);
    request(libc::PTRACE_DETACH, pid, 0, 0);
    assert_eq!(helper.run(KEY, &state, &brief()).end, End::Helper);
    for _ in 0..1000 {
        if proc_text(&helper, "stat").contains(") Z") {
            revive(&mut helper);
            assert!(helper.last_words().contains("signal 9"), "{}", helper.last_words());
            assert_eq!(helper.run(KEY, &state, &limits(1)).end, End::Instructions);
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it spins on");
}

#[test]
fn one_that_dies_in_a_window_does_not_hold_the_tracer() {
    needs_root!();
    let target = Target::busy();
    let state = target.stop();
    let mut helper = helper();
    add(&mut helper, &target);
    let pid = helper.pid();
    signal(pid, libc::SIGSTOP);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            signal(pid, libc::SIGKILL);
        });
        let begin = Instant::now();
        let endless = Limits { instructions: u64::MAX, pages: 100, time_ns: 20_000_000_000 };
        assert_eq!(helper.run(KEY, &state, &endless).end, End::Helper);
        assert!(begin.elapsed() < Duration::from_secs(10));
    });
    revive(&mut helper);
    assert_eq!(helper.deaths(), 1);
}

#[test]
fn one_that_is_late_goes_on() {
    needs_root!();
    let target = Target::busy();
    let state = target.stop();
    let mut helper = Helper::start(Settings { margin: Duration::from_millis(1), ..settings() }).unwrap();
    add(&mut helper, &target);
    let first = helper.pid();
    signal(first, libc::SIGSTOP);
    assert_eq!(helper.run(KEY, &state, &brief()).end, End::Helper);
    assert!(!helper.revive().unwrap());
    signal(first, libc::SIGCONT);
    revive(&mut helper);
    assert_eq!((helper.deaths(), helper.pid()), (0, first));
    // The late answer is not taken for the next one's.
    let window = helper.run(KEY, &state, &limits(57));
    assert_eq!((window.end, window.counts.instructions), (End::Instructions, 57));
}

#[test]
fn one_that_dies_again_and_again_is_started_less_and_less_often() {
    needs_root!();
    let mut helper = impatient();
    let generation = helper.generation();
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let begin = Instant::now();
        kill(helper.pid());
        revive(&mut helper);
        pauses.push(begin.elapsed());
    }
    assert_eq!((helper.deaths(), helper.generation() - generation), (3, 3));
    assert!(helper.last_words().contains("signal 9"), "{}", helper.last_words());
    // 100, 200, 400 ms at least.
    for (pause, least) in pauses.iter().zip([100, 200, 400]) {
        assert!(*pause >= Duration::from_millis(least), "{pauses:?}");
    }
}

#[test]
fn one_that_somebody_else_reaped_is_replaced() {
    needs_root!();
    let target = Target::busy();
    let state = target.stop();
    let mut helper = impatient();
    add(&mut helper, &target);
    let pid = helper.pid();
    kill(pid);
    wait(pid);
    let cpu_ns = helper.cpu_ns();
    assert_eq!(helper.run(KEY, &state, &brief()).end, End::Helper);
    revive(&mut helper);
    assert_ne!(helper.pid(), pid);
    assert!(helper.cpu_ns() >= cpu_ns);
    assert_eq!(helper.run(KEY, &state, &limits(100)).end, End::Instructions);
}

#[test]
fn a_program_that_is_no_window_process_is_an_error() {
    needs_root!();
    let start = |program: &str| Helper::start(Settings { program: program.into(), ..settings() });
    assert!(start("/bin/false").unwrap_err().to_string().contains("exit status 1"));
    assert!(start("/nonexistent").unwrap_err().to_string().contains("cannot start a program"));
}

#[test]
fn it_is_ended_with_its_handle() {
    needs_root!();
    let helper = helper();
    let pid = helper.pid();
    assert!(std::fs::metadata(format!("/proc/{pid}")).is_ok());
    drop(helper);
    assert!(std::fs::metadata(format!("/proc/{pid}")).is_err());
}

/// The tracer of the next test: this program again.
#[test]
#[ignore = "a part of the_tracers_death_ends_it, which starts it"]
fn tracer_to_be_killed() {
    if std::env::var_os("LOCALITY_TRACER_TO_BE_KILLED").is_none() {
        return;
    }
    let helper = helper();
    std::fs::write(std::env::var("LOCALITY_TRACER_TO_BE_KILLED").unwrap(), helper.pid().to_string()).unwrap();
    std::thread::sleep(Duration::from_secs(100));
}

#[test]
fn the_tracers_death_ends_it() {
    needs_root!();
    let told = tempfile::NamedTempFile::new().unwrap();
    let mut tracer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "deaths::tracer_to_be_killed", "--ignored"])
        .env("LOCALITY_TRACER_TO_BE_KILLED", told.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = loop {
        let text = std::fs::read_to_string(told.path()).unwrap();
        if let Ok(pid) = text.parse::<u32>() {
            break pid;
        }
        assert!(tracer.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    };
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    assert_eq!(name().trim(), "locality-window");
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    // Its new parent has to reap it; a zombie is dead enough.
    let is_dead = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ")
    };
    for _ in 0..500 {
        if is_dead() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} lives on", name());
}
