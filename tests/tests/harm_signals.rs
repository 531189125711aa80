//! Programs with many signals, births, program changes and ptrace run traced as they run untraced.
//!
//! Each program checks its own run; the exit status says whether signals were lost, added or
//! interrupted calls. Killing and stopping the tracer is `harm_kill.rs`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use locality_tests::overseer::{children, name};
use locality_tests::{Finished, Target, Traced, Tracer, build, requires};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// One trace at a time: the programs notice a machine that is too busy.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A profile in a temporary directory.
struct Profile(std::path::PathBuf);

impl Profile {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("harm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn file(&self) -> String {
        self.0.join("t.locality").display().to_string()
    }

    fn report(&self) -> Value {
        let text = std::fs::read_to_string(self.0.join("report.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Launches a command with a JSON report in a file.
    fn launch(&self, command: &[&str]) -> Traced {
        let report = self.0.join("report.json").display().to_string();
        let options = ["-q", "-o", &self.file(), "--format", "json", "--report", &report, "--"];
        Tracer::new().args(options).args(command).run()
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Runs a program with `arguments`, attaches `late` after the program is ready, and traces to the
/// end. A program whose signals make stops costly may be let go before the first watchpoint or the
/// first reuse: only then may the report be empty.
fn traced_to_the_end(program: &str, arguments: &[&str], late: Duration) -> (Finished, Value) {
    let profile = Profile::new(program);
    let target = Target::start(program, arguments);
    std::thread::sleep(late);
    let traced = Tracer::attach(target.pid(), "20").args(["-q", "-o", &profile.file()]).run();
    let report = traced.report_or_empty();
    // Words watched before the release may not have been touched again.
    let reasons = ["its own signals would make every stop costly", "No reuse was seen"];
    let let_go = report["empty"].as_str().is_none_or(|why| reasons.iter().any(|reason| why.contains(reason)));
    assert!(let_go, "{}: {:#}", traced.status, report["empty"]);
    (target.finish(LIMIT), report)
}

fn stops(report: &Value) -> u64 {
    report["overhead"]["stops"].as_u64().unwrap()
}

fn assert_balanced(report: &Value) {
    assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
}

#[test]
fn a_program_that_preempts_itself_by_sigurg_loses_none() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let (finished, report) = traced_to_the_end("sigurg_preempt", &["3"], Duration::ZERO);
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    assert_balanced(&report);
    // And traced from before the program installs the handler.
    let profile = Profile::new("sigurg-launched");
    let program = build("sigurg_preempt");
    let launched = profile.launch(&[program.to_str().unwrap(), "2"]);
    assert_eq!(launched.status.code(), Some(0), "{} {}", launched.stdout, launched.stderr);
    assert_balanced(&profile.report());
}

#[test]
fn signals_of_the_kernel_reach_handlers_that_were_installed_late() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let (finished, report) = traced_to_the_end("own_signals", &["4"], Duration::ZERO);
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    // In the program's first half SIGURG was free, so a
    // second SIGURG could be mistaken for the tool's.
    assert!(stops(&report) > 5, "{:#}", report["ledger"]);
    assert_balanced(&report);
}

#[test]
fn a_program_of_many_signals_gets_all_and_is_let_go() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let (finished, report) = traced_to_the_end("signal_heavy", &["3"], Duration::ZERO);
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    let notices = report["notices"].to_string();
    assert!(notices.contains("its own signals would make every stop costly"), "{notices}");
    assert_balanced(&report);
}

#[test]
fn traps_of_the_program_arrive_and_one_without_cause_does_not() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    // Some virtual machines lose the cause of a watchpoint's
    // trap, and the remaining trap would kill the program.
    let strays = |finished: &Finished| finished.stdout.iter().any(|line| line.ends_with("strays 1"));
    let untraced = Target::start("own_traps", &["1"]).finish(LIMIT);
    assert!(untraced.status.success() && strays(&untraced), "{untraced:?}");
    // A budget for the cost of the program's signals
    // too, or a slow machine would let the program go.
    let profile = Profile::new("own_traps");
    let target = Target::start("own_traps", &["3"]);
    let tracer = Tracer::attach(target.pid(), "20").args(["-q", "--overhead", "10", "-o", &profile.file()]);
    let (report, finished) = (tracer.run().report_or_empty(), target.finish(LIMIT));
    assert!(finished.status.success() && !strays(&finished), "{finished:?}");
    let kept = &report["ledger"]["stops"]["for a trap whose cause the machine lost"];
    assert!(kept.as_u64() >= Some(1), "{:#}", report["ledger"]);
}

#[test]
fn waits_are_not_interrupted() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("sleeper", &["4"]);
    let profile = Profile::new("sleeper");
    // Attached, paused, continued and released while the program waits.
    let tracer = Tracer::attach(target.pid(), "2").args(["-q", "-o", &profile.file()]).start();
    std::thread::sleep(Duration::from_millis(1200));
    tracer.signal(libc::SIGTSTP);
    std::thread::sleep(Duration::from_millis(300));
    tracer.signal(libc::SIGCONT);
    drop(tracer.finish(LIMIT));
    let finished = target.finish(LIMIT);
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
}

#[test]
fn a_program_that_leaves_no_signal_is_measured_without_stops_and_that_is_said() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let (finished, report) = traced_to_the_end("all_signals_blocked", &["3"], Duration::ZERO);
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    assert_eq!(stops(&report), 0);
    let notices = report["notices"].to_string();
    assert!(notices.contains("blocks or handles SIGURG"), "{notices}");
    assert_balanced(&report);
}

#[test]
fn children_of_every_kind_end_as_they_should() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    for program in ["spawner", "fork_exec"] {
        let (finished, report) = traced_to_the_end(program, &["3"], Duration::from_millis(100));
        assert_eq!(finished.status.code(), Some(0), "{finished:?}");
        assert_balanced(&report);
    }
}

#[test]
fn a_thread_may_end_the_process_or_make_it_another_program() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    for (mode, status) in [("exit", 9), ("exec", 5)] {
        let (finished, report) = traced_to_the_end("thread_decides", &["3", mode], Duration::ZERO);
        assert_eq!(finished.status.code(), Some(status), "{finished:?}");
        assert_balanced(&report);
        let profile = Profile::new(mode);
        let program = build("thread_decides");
        let launched = profile.launch(&[program.to_str().unwrap(), "2", mode]);
        assert_eq!(launched.status.code(), Some(status), "{}", launched.stderr);
        assert_eq!(launched.stdout.contains("executed"), mode == "exec");
        assert_balanced(&profile.report());
    }
}

/// Waits for the next change of a child's state, for a second at most.
fn next_change(target: &Target) -> Option<i32> {
    let pid = i32::try_from(target.pid()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        let mut status = 0;
        // SAFETY: the destination is live.
        let got =
            unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED | libc::WCONTINUED | libc::WNOHANG) };
        if got == pid {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

#[test]
fn job_control_works_on_a_traced_program() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    // In a separate process group, with the parent in the session: else SIGTSTP is ignored.
    let mut command = Command::new(build("sigurg_preempt"));
    command.arg("6").process_group(0);
    let target = Target::start_command(command);
    let profile = Profile::new("job");
    // At 1 %, the program's signals may cost too much on a
    // machine with slow stops, and the tool rightly lets go.
    let tracer =
        Tracer::attach(target.pid(), "20").args(["--overhead", "5", "-q", "-o", &profile.file()]).start();
    std::thread::sleep(Duration::from_millis(1000));
    for signal in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGSTOP] {
        target.signal(signal);
        let status = next_change(&target).expect("its parent does not hear of the stop");
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == signal, "{status:x}");
        let before = target.cpu_time();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(target.cpu_time(), before, "it runs although stopped by signal {signal}");
        target.signal(libc::SIGCONT);
        let status = next_change(&target).expect("its parent does not hear of the continuation");
        assert!(libc::WIFCONTINUED(status), "{status:x}");
        std::thread::sleep(Duration::from_millis(200));
        assert!(target.cpu_time() > before, "it does not run although continued");
    }
    let finished = target.finish(LIMIT);
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    let tracer = tracer.finish(LIMIT);
    assert_eq!(tracer.status.code(), Some(0), "{tracer:?}");
}

#[test]
fn the_end_of_a_traced_program_passes_to_its_parent() {
    requires!(root, btf, watchpoints(4), command("timeout"));
    let _alone = alone();
    for signal in [libc::SIGKILL, libc::SIGSEGV, libc::SIGTERM] {
        let target = Target::start("two_loops", &[]);
        let profile = Profile::new("end");
        let tracer = Tracer::attach(target.pid(), "20").args(["-q", "-o", &profile.file()]).start();
        std::thread::sleep(Duration::from_millis(1000));
        target.signal(signal);
        let finished = target.finish(Duration::from_secs(5));
        assert_eq!(finished.status.signal(), Some(signal), "{finished:?}");
        let tracer = tracer.finish(LIMIT);
        assert_eq!(tracer.status.code(), Some(0), "{tracer:?}");
    }
    let profile = Profile::new("timeout");
    let program = build("two_loops");
    assert_eq!(profile.launch(&["timeout", "1", program.to_str().unwrap()]).status.code(), Some(124));
    let kill = format!("{} 5 & sleep 1; kill -KILL $!; wait $!", program.display());
    assert_eq!(profile.launch(&["sh", "-c", &kill]).status.code(), Some(137));
    let suicide = profile.launch(&["sh", "-c", "kill -SEGV $$"]);
    assert_eq!(suicide.status.code(), Some(139), "{}", suicide.stderr);
}

#[test]
fn the_status_of_a_launched_command_is_ours_whatever_ends_the_trace() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let profile = Profile::new("status");
    let program = build("deterministic_output");
    let program = program.to_str().unwrap();
    let options = ["-q", "-d", "500ms", "-o", &profile.file(), "--", program, "1.4"];
    let traced = Tracer::new().args(options).run();
    assert_eq!(traced.status.code(), Some(7), "{}", traced.stderr);
    assert!(traced.stdout.contains("checksum"), "{}", traced.stdout);
    // SIGTERM means the command.
    let mut tracer = Tracer::new().args(["-q", "-o", &profile.file(), "--", program, "20"]);
    let tracer = Target::start_command(std::mem::replace(tracer.command(), Command::new("true")));
    std::thread::sleep(Duration::from_millis(500));
    tracer.signal(libc::SIGTERM);
    let finished = tracer.finish(Duration::from_secs(10));
    assert_eq!(finished.status.code(), Some(143), "{finished:?}");
}

#[test]
fn a_setuid_program_keeps_its_rights() {
    requires!(root, btf, watchpoints(4), command("setpriv"), command("id"));
    let _alone = alone();
    let profile = Profile::new("setuid");
    std::fs::set_permissions(&profile.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = profile.0.join("id");
    std::fs::copy("/usr/bin/id", &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let command = ["setpriv", "--reuid", "65534", "--clear-groups", copy.to_str().unwrap(), "-u"];
    let untraced = Command::new(command[0]).args(&command[1..]).output().unwrap();
    let traced = profile.launch(&command);
    assert_eq!(traced.stdout.trim(), String::from_utf8_lossy(&untraced.stdout).trim(), "{}", traced.stderr);
}

#[test]
fn a_debugger_works_inside_a_trace() {
    requires!(root, btf, watchpoints(4), command("gdb"), command("strace"));
    let _alone = alone();
    let program = build("deterministic_output");
    let program = program.to_str().unwrap();
    let profile = Profile::new("gdb");
    let traced = profile.launch(&["gdb", "-batch", "-ex", "run", program]);
    assert!(traced.stdout.contains("exited with code 07"), "{} {}", traced.stdout, traced.stderr);
    let notices = profile.report()["notices"].to_string();
    assert!(notices.contains("already traced by process"), "{notices}");
    // strace counts by system call, and has no name
    // for the call by which a probed function returns.
    for _ in 0..5 {
        let traced = profile.launch(&["strace", "-f", "-c", "-o", "/dev/null", program, "1"]);
        assert_eq!(traced.status.code(), Some(7), "{} {}", traced.stdout, traced.stderr);
    }
}

/// Some processors copy byte by byte while a word is
/// watched; a program with many copies loses much time.
#[test]
fn a_program_that_copies_is_watched_no_longer_than_the_budget_allows() {
    requires!(root, btf, watchpoints(4));
    watched_within_the_budget("reads", "string instructions ", "rep movs`");
}

/// Some processors are slower at stores across lines while a word is watched.
#[test]
fn a_program_with_stores_across_lines_is_watched_no_longer_than_the_budget_allows() {
    requires!(root, btf, watchpoints(4));
    watched_within_the_budget("splits", "stores across cache lines are ", "across cache lines");
}

/// Traces a kernel that loses half of its time or more while a word is watched, if `calibrate` says
/// so after `slower`. The notice then has `words`.
fn watched_within_the_budget(kernel: &str, slower: &str, words: &str) {
    let _alone = alone();
    let calibrated = Tracer::new().args(["calibrate"]).run();
    let said = calibrated.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let factor = said.split(slower).nth(1).and_then(|rest| {
        let (number, _) = rest.split_once(" times slower")?;
        number.parse::<f64>().ok()
    });
    let mut command = Command::new(build("bench_kernels"));
    command.arg(kernel);
    let program = Target::spawn(command);
    std::thread::sleep(Duration::from_millis(500));
    let profile = Profile::new("copies");
    // Few words are touched again: a report without a reuse will do.
    let tracer = Tracer::attach(program.pid(), "6").args(["-q", "-o", &profile.file()]);
    let report = tracer.run().report_or_empty();
    let overhead = &report["overhead"];
    let lost = overhead["by_cause"]["strings"].as_f64().unwrap_or_default();
    // Without an account of slower instructions, half of the program's time.
    assert!(overhead["measured_percent"].as_f64().is_some_and(|all| all < 3.0), "{overhead}");
    let notices = report["notices"].to_string();
    let is_told = notices.contains("To keep the budget") && notices.contains(words);
    // On a processor without these slower instructions, next to nothing is lost.
    assert!(factor.is_some(), "`calibrate` says how much slower: {said}");
    let is_slowed = factor.is_some_and(|factor| factor > 2.0);
    assert_eq!((is_slowed, is_slowed), (lost > 0.05, is_told), "{overhead} {notices}");
    assert_balanced(&report);
}

#[test]
fn without_its_watchdog_the_tracer_stops_nobody_and_says_so() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("deterministic_output", &["9"]);
    let profile = Profile::new("watchdog");
    let tracer = Tracer::attach(target.pid(), "7").args(["-q", "-o", &profile.file()]).start();
    std::thread::sleep(Duration::from_millis(1200));
    // The tracer starts watchdogs in place of lost ones, but not for ever.
    let (mut killed, mut newest) = (Vec::new(), Instant::now());
    while newest.elapsed() < Duration::from_secs(2) {
        let found = children(tracer.pid()).into_iter().filter(|pid| name(*pid) == "locality-guard");
        for watchdog in found.filter(|pid| !killed.contains(pid)).collect::<Vec<_>>() {
            // SAFETY: a system call with plain arguments; the watchdog is a child of our child,
            // which collects it.
            assert_eq!(unsafe { libc::kill(watchdog as i32, libc::SIGKILL) }, 0);
            killed.push(watchdog);
            newest = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(killed.len() > 1, "{killed:?}");
    std::thread::sleep(Duration::from_millis(300));
    let status = std::fs::read_to_string(format!("/proc/{}/status", target.pid())).unwrap();
    assert!(status.contains("TracerPid:\t0\n"), "it is still held: {status}");
    let tracer = tracer.finish(LIMIT);
    assert_eq!(tracer.status.code(), Some(0), "{tracer:?}");
    let report: Value = serde_json::from_str(&tracer.stdout.join("\n")).unwrap();
    let notices = report["notices"].to_string();
    assert!(notices.contains("there is no watchdog process"), "{notices}");
    assert!(stops(&report) > 0);
    assert_balanced(&report);
    assert_eq!(target.finish(LIMIT).status.code(), Some(7));
}
