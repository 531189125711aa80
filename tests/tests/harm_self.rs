//! The tool beside its own processes: the tool traces neither these
//! nor the processes that started the tool, notices the loss of the
//! watchdog, and delays of the tool do not delay the traced program.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use locality_tests::overseer::{children, name};
use locality_tests::programs::build;
use locality_tests::requires::skip;
use locality_tests::tracer::binary;
use locality_tests::{Cgroup, Finished, Target, Tracer, live, or_skip, requires};

const LIMIT: Duration = Duration::from_secs(60);

/// Longest time that a traced program may stand still while the tool is delayed.
const HELD_UP_MS: f64 = 500.0;

/// Processes among `pids` with a tracer at this moment.
fn traced(pids: &[u32]) -> Vec<u32> {
    let tracer = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse::<u32>().ok())
            .unwrap_or(0)
    };
    pids.iter().copied().filter(|pid| tracer(*pid) != 0).collect()
}

#[test]
fn inside_the_traced_cgroup_the_tool_leaves_itself_alone() {
    requires!(root, btf, watchpoints(4));
    let cgroup = or_skip!(Cgroup::unified());
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let target = Target::start("two_loops", &["9"]);
    cgroup.add(target.pid());
    // A lasting shell, in the same cgroup.
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0\"; \"$@\"; exit $?"]).arg(cgroup.folder().join("cgroup.procs"));
    shell.arg(binary()).args(["-q", "-d", "4", "--format", "json", "--cgroup"]).arg(cgroup.folder());
    shell.arg("-o").arg(folder.path().join("t.locality")).arg("--report").arg(&report);
    let shell = Target::spawn(shell).overseen();
    let pid = shell.pid();
    let mut was_traced = 0;
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        assert_eq!(traced(&[pid, std::process::id()]), [0_u32; 0]);
        was_traced += u32::from(!traced(&[target.pid()]).is_empty());
        std::thread::sleep(Duration::from_millis(10));
    }
    let left = shell.finish(LIMIT);
    assert!(left.status.success(), "{left:?}");
    assert!(was_traced > 50, "the program itself was traced at {was_traced} looks");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("Not traced: this tool's own processes"), "{report}");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(
        report["run"]["samples"].as_u64().unwrap() > 0 && report["ledger"]["balanced"] == true,
        "{report:#}"
    );
}

/// A shell that becomes the tool by `exec` leaves the tool a child, an ordinary program.
#[test]
fn a_child_from_before_is_traced_with_its_cgroup() {
    requires!(root, btf, watchpoints(4));
    let cgroup = or_skip!(Cgroup::unified());
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" 9 & exec \"$@\""]).arg(build("two_loops"));
    shell.arg(binary()).args(["-q", "-d", "4", "--format", "json", "--cgroup"]).arg(cgroup.folder());
    shell.arg("-o").arg(folder.path().join("t.locality")).arg("--report").arg(&report);
    let left = Target::spawn(cgroup.start(&shell)).overseen().finish(LIMIT);
    assert!(left.status.success(), "{left:?}");
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert!(report["run"]["samples"].as_u64().unwrap() > 0, "{report:#}");
    assert!(report["pairs"].as_array().is_some_and(|pairs| !pairs.is_empty()), "{report:#}");
}

#[test]
fn a_named_ancestor_is_measured_without_stops() {
    requires!(root, btf, watchpoints(4));
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let mut shell = Command::new("sh");
    let script = "\"$@\" -p $$ & while kill -0 $! 2>/dev/null; do :; done; wait $!";
    shell.args(["-c", script, "sh"]).arg(binary()).args(["-q", "-d", "3", "--format", "json"]);
    shell.arg("-o").arg(folder.path().join("t.locality")).arg("--report").arg(&report);
    let mut shell = Target::spawn(shell).overseen();
    let pid = shell.pid();
    while shell.is_running() {
        assert_eq!(traced(&[pid, std::process::id()]), [0_u32; 0]);
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(shell.finish(LIMIT));
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert!(report["run"]["samples"].as_u64().unwrap() > 0, "{report:#}");
    assert!(report.to_string().contains("it started this tool"), "{report:#}");
}

/// The longest standstill measured by the program.
fn gap_ms(finished: &Finished) -> f64 {
    finished.stderr.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Traces a program beside an untraced one while `hold_up`
/// delays the tracer; returns the tracer's results.
fn held_up(name: &str, change: impl FnOnce(&mut Tracer), hold_up: impl FnOnce(&mut Target)) -> Finished {
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let untraced = Target::start("gap_meter", &["6"]);
    let target = Target::start("gap_meter", &["6"]);
    let mut tracer = Tracer::new()
        .args(["-d", "20", "--overhead", "3", "--full", "--report"])
        .args([folder.path().join("report")]);
    tracer = tracer.args(["-o".as_ref(), folder.path().join("t.locality").as_os_str()]);
    tracer = tracer.args(["-p", &target.pid().to_string()]);
    change(&mut tracer);
    let mut tracer = tracer.start();
    hold_up(&mut tracer);
    let (target, untraced) = (target.finish(LIMIT), untraced.finish(LIMIT));
    let tracer = tracer.finish(LIMIT);
    let (gap, control) = (gap_ms(&target), gap_ms(&untraced));
    eprintln!("{name}: stood still for {gap} ms, untraced {control} ms; {}", tracer.status);
    assert_eq!((target.status, target.stdout), (untraced.status, untraced.stdout));
    assert!(gap <= HELD_UP_MS.max(control * 1.5), "{gap} ms, untraced {control} ms");
    let report = fs::read_to_string(folder.path().join("report")).unwrap_or_default();
    Finished { stdout: report.lines().map(str::to_owned).collect(), ..tracer }
}

/// Waits for a watchdog of the tracer, different from `other`.
fn watchdog(tracer: &Target, other: u32) -> u32 {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        let found = children(tracer.pid()).into_iter().find(|child| name(*child) == "locality-guard");
        if let Some(found) = found.filter(|found| *found != other) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("there is no watchdog")
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: a system call with plain arguments.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

#[test]
fn a_lost_watchdog_is_replaced_and_told() {
    requires!(root, btf, watchpoints(4));
    let left = held_up(
        "watchdog",
        |_| {},
        |tracer| {
            std::thread::sleep(Duration::from_millis(1500));
            let first = watchdog(tracer, 0);
            signal(first, libc::SIGKILL);
            let second = watchdog(tracer, first);
            std::thread::sleep(Duration::from_millis(500));
            signal(second, libc::SIGSTOP);
            let third = watchdog(tracer, second);
            assert!(Path::new(&format!("/proc/{third}")).exists());
        },
    );
    assert!(left.status.success(), "{left:?}");
    let report = left.stdout.join(" ");
    assert!(report.contains("The watchdog process was killed or did not answer 2 times"), "{report}");
}

#[test]
fn a_tracer_whose_stderr_nobody_reads_holds_nobody() {
    requires!(root, btf, watchpoints(4));
    // All output goes into a soon full pipe.
    let (_reader, writer) = std::io::pipe().unwrap();
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start("gap_meter", &["6"]);
    let untraced = Target::start("gap_meter", &["6"]);
    let mut tracer = Tracer::new().args(["-vv", "-d", "20", "-p", &target.pid().to_string(), "-o"]);
    tracer = tracer.args([folder.path().join("t.locality")]);
    let command = tracer.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(writer));
    let mut child = command.spawn().unwrap();
    let (target, untraced) = (target.finish(LIMIT), untraced.finish(LIMIT));
    child.kill().unwrap();
    child.wait().unwrap();
    let (gap, control) = (gap_ms(&target), gap_ms(&untraced));
    assert!(gap <= HELD_UP_MS.max(control * 1.5), "{gap} ms, untraced {control} ms");
    assert_eq!(target.stdout, untraced.stdout);
}

#[test]
fn a_tracer_that_is_debugged_holds_nobody() {
    requires!(root, btf, watchpoints(4), command("gdb"));
    held_up(
        "gdb",
        |_| {},
        |tracer| {
            std::thread::sleep(Duration::from_millis(1500));
            let pid = tracer.pid().to_string();
            let mut gdb = Command::new("gdb");
            gdb.args(["-batch", "-nx", "-ex", "set auto-load off", "-ex", "shell sleep 2", "-p", &pid]);
            drop(gdb.stdin(Stdio::null()).output().unwrap());
        },
    );
}

#[test]
fn a_tracer_with_a_hundredth_of_a_processor_holds_nobody() {
    requires!(root, btf, watchpoints(4));
    let cgroup = or_skip!(Cgroup::old("cpu").or_else(|_| Cgroup::unified()));
    if !["cpu.cfs_quota_us", "cpu.max"].iter().any(|file| cgroup.folder().join(file).exists()) {
        return skip("needs a cgroup that limits CPU time");
    }
    let inside = |tracer: &mut Tracer| *tracer.command() = cgroup.start(tracer.command());
    held_up("quota", inside, |tracer| {
        std::thread::sleep(Duration::from_millis(2000));
        match cgroup.folder().join("cpu.max").exists() {
            true => cgroup.set("cpu.max", "1000 100000"),
            false => cgroup.set("cpu.cfs_quota_us", "1000"),
        }
        std::thread::sleep(Duration::from_millis(3000));
        assert!(cgroup.processes().contains(&(tracer.pid() as i32)) || !tracer.is_running());
        // The tracer may end now.
        match cgroup.folder().join("cpu.max").exists() {
            true => cgroup.set("cpu.max", "max"),
            false => cgroup.set("cpu.cfs_quota_us", "-1"),
        }
        if tracer.is_running() {
            tracer.signal(libc::SIGTERM);
        }
    });
}

#[test]
fn a_program_has_a_debug_register_of_its_own() {
    requires!(root, btf, watchpoints(4));
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let alone = Target::start("own_breakpoint", &["2"]).finish(LIMIT);
    let target = Target::start("own_breakpoint", &["7"]);
    let traced = Tracer::attach(target.pid(), "5").args(["--overhead", "5", "-o"]);
    let report = traced.args([folder.path().join("t.locality")]).report();
    let beside = target.finish(LIMIT);
    let count = |of: &Finished| of.stdout.iter().find(|line| line.starts_with("refused")).cloned();
    assert_eq!(count(&alone), count(&beside));
    assert!(report["ledger"]["watch"]["trapped"].as_u64().unwrap() > 0, "{:#}", report["ledger"]);
}

#[test]
fn pages_that_nobody_has_filled_are_not_asked_for() {
    requires!(root, btf, watchpoints(4));
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let alone = Target::start("filled_on_demand", &["1"]).finish(LIMIT);
    if alone.status.code() == Some(77) {
        return skip("needs userfaultfd");
    }
    let target = Target::start("filled_on_demand", &["6"]);
    let traced =
        Tracer::attach(target.pid(), "4").args(["-o"]).args([folder.path().join("t.locality")]).run();
    let beside = target.finish(LIMIT);
    let of = |of: &Finished| of.stdout.iter().find(|line| line.starts_with("asked for")).cloned();
    assert_eq!(of(&alone), of(&beside), "{}", traced.stderr);
}

/// The lower of two budgets holds: with 10 % of the program's time, a hundred samples in five
/// seconds; with almost no time for the tool, few samples and a notice in the report.
#[test]
fn the_tools_own_time_has_a_limit() {
    requires!(root, btf, watchpoints(4));
    let _beside = live::beside();
    let target = Target::start("two_loops", &["60"]);
    let trace = |more: &[&str]| live::Live::trace(target.pid(), "5", &[&["--overhead", "10"], more].concat());
    let (free, limited) = (trace(&[]), trace(&["--own", "0.05"]));
    assert!(2 * limited.profile.samples.len() < free.profile.samples.len(), "{limited:#?}");
    let says =
        |live: &live::Live| live.report["notices"].to_string().contains("more than the 0.05 % of --own");
    assert_eq!((says(&free), says(&limited)), (false, true), "{:#}", limited.report["notices"]);
}
