//! Where the traced code comes from and where the report goes: launched commands, children, new
//! programs, threads born later, threads that may not be stopped; profile and report files.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use locality_model::{Outcome, Profile};
use locality_tests::live::{Live, alone, beside};
use locality_tests::{Finished, Target, Traced, Tracer, build, requires};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(90);

/// A tracer that launches a test program, with its profile in `dir`.
fn launch(dir: &Path, options: &[&str], program: &str, arguments: &[&str]) -> Tracer {
    let profile = dir.join("t.locality");
    let tracer = Tracer::new().limit(LIMIT).args(["-o".as_ref(), profile.as_os_str()]).args(options);
    tracer.args(["--".as_ref(), build(program).as_os_str()]).args(arguments)
}

fn read(dir: &Path) -> Profile {
    locality_profile::read(&dir.join("t.locality")).unwrap_or_else(|e| panic!("{e}"))
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn untraced(program: &str, arguments: &[&str]) -> Finished {
    Target::start(program, arguments).finish(LIMIT)
}

/// Lines printed by a launched program, except the line with the process id.
fn said(traced: &Traced) -> Vec<&str> {
    traced.stdout.lines().filter(|line| !line.starts_with("ready ")).collect()
}

/// Processes with samples.
fn sampled_processes(profile: &Profile) -> BTreeSet<u32> {
    profile.samples.iter().map(|sample| profile.threads[sample.thread.0 as usize].pid).collect()
}

#[test]
fn a_launched_command_owns_stdout_and_the_exit_status() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let dir = tempfile::tempdir().unwrap();
    let reference = untraced("deterministic_output", &["2"]);
    let traced = launch(dir.path(), &[], "deterministic_output", &["2"]).run();
    assert_eq!(traced.status.code(), reference.status.code());
    assert_eq!(said(&traced), reference.stdout);
    // The report for people goes to stderr, as perf stat's does.
    assert!(traced.stderr.contains("deterministic_output"), "{}", traced.stderr);
    assert!(traced.stderr.contains("ordinary_work"), "{}", traced.stderr);
    let profile = read(dir.path());
    assert_eq!(profile.run.ended_by, "the command ended");
    assert_eq!(profile.ledger.imbalance(), None);
    assert_eq!(profile.threads.len(), 1, "{:?}", profile.threads);
    assert!(profile.threads[0].ended_ns.is_some());
    // The trace covers the first instructions, not only
    // later work; at 1 % a sample comes each 30 ms or so.
    let first_ns = profile.samples.first().map(|sample| sample.time_ns);
    assert!(first_ns.is_some_and(|first_ns| first_ns < 1_000_000_000), "{first_ns:?}");
}

#[test]
fn a_launched_command_is_traced_from_its_first_instruction() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let dir = tempfile::tempdir().unwrap();
    // Many short lives, for many samples at program starts.
    let script =
        format!("i=0; while [ $i -lt 300 ]; do {} 0.01; i=$((i+1)); done", build("two_loops").display());
    let profile_file = dir.path().join("t.locality");
    let tracer = Tracer::new().limit(LIMIT).args(["-o".as_ref(), profile_file.as_os_str()]);
    let traced = tracer.args(["--overhead", "5", "--", "sh", "-c", &script]).run();
    assert!(traced.status.success(), "{}", traced.stderr);
    assert_eq!(traced.stdout.lines().filter(|line| line.starts_with("checksum ")).count(), 300);
    let profile = read(dir.path());
    assert_eq!(profile.ledger.imbalance(), None);
    // The dynamic loader runs before any constructor and before main.
    let loader = profile.frames.iter().filter_map(|frame| profile.modules.get(frame.module?.0 as usize));
    assert!(
        loader.clone().any(|module| module.path.contains("/ld-linux")),
        "no sample in the dynamic loader"
    );
}

#[test]
fn a_command_that_dies_of_a_signal_or_cannot_be_run() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("t.locality");
    let tracer = || Tracer::new().args(["-o".as_ref(), profile.as_os_str()]);
    // 128 + the signal's number, as a shell has it.
    assert_eq!(tracer().args(["--", "sh", "-c", "kill -9 $$"]).run().status.code(), Some(128 + 9));
    let missing = tracer().args(["--", "/no/such/command"]).run();
    missing.assert_refused(127, &["/no/such/command", "No such file"]);
    assert_eq!(missing.stderr.matches("No such file").count(), 1, "{}", missing.stderr);
}

#[test]
fn children_and_the_programs_that_they_become_are_followed() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let target = Target::start("fork_exec", &["6"]);
    let live = Live::trace(target.pid(), "5", &["--overhead", "5"]);
    let (profile, parent) = (&live.profile, target.pid());
    let processes = sampled_processes(profile);
    assert!(processes.contains(&parent) && processes.len() >= 3, "samples only in {processes:?}");
    assert!(live.report["threads"]["processes"].as_u64() >= Some(processes.len() as u64));
    // `main` calls `work` at one line as a child of `fork`, and at another line after `exec`.
    let source = fs::read_to_string(locality_tests::programs::source("fork_exec")).unwrap();
    let line_of = |text: &str| source.lines().position(|line| line.contains(text)).map(|at| at as u32 + 1);
    let has = |line: Option<u32>| {
        profile.frames.iter().any(|frame| frame.function.as_deref() == Some("main") && frame.line == line)
    };
    assert!(has(line_of("work(100)")), "no sample after exec");
    assert!(live.whole_stacks() >= 0.9, "only {} of the stacks are whole", live.whole_stacks());
    let finished = target.finish(LIMIT);
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stdout.iter().any(|line| line.ends_with("wrong 0")), "{finished:?}");
}

/// Open descriptors of a process.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or_default()
}

#[test]
fn a_thousand_threads_are_followed_and_leave_no_descriptor() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let options = ["--format", "json1", "--report", report.to_str().unwrap()];
    let mut tracer = launch(dir.path(), &options, "thread_storm", &["8"]).start();
    let (mut open, started) = (Vec::new(), Instant::now());
    while tracer.is_running() && started.elapsed() < LIMIT {
        open.push(descriptors(tracer.pid()));
        thread::sleep(Duration::from_millis(50));
    }
    let finished = tracer.finish(LIMIT);
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stdout.iter().any(|line| line == "threads 1000"), "{finished:?}");
    let reference = untraced("thread_storm", &["1"]);
    assert_eq!(finished.stdout.last(), reference.stdout.last());
    let (report, profile) = (json(&report), read(dir.path()));
    assert_eq!(profile.ledger.imbalance(), None, "{:#}", report["ledger"]);
    // Births come so fast that threads end before a look at them.
    let brief = |notice: &serde_json::Value| {
        let (n, _) = notice.as_str()?.split_once(" threads or processes were not followed")?;
        n.parse::<u64>().ok()
    };
    let brief = report["notices"].as_array().unwrap().iter().find_map(brief).unwrap_or(0);
    for what in ["seen", "ended"] {
        let counted = report["threads"][what].as_u64().unwrap() + brief;
        assert_eq!(counted, 1001, "{report:#}");
    }
    assert!(!profile.samples.is_empty());
    // Four watches in the nine threads that live at a time, and no more with time.
    let middle = |values: &[usize]| {
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    };
    let (early, late) = open[open.len() / 10..].split_at(open.len() * 4 / 10);
    assert!(middle(late) <= middle(early) + 8, "{open:?}");
    // The tracer closes all of them before the last report.
    let least = *open[open.len() / 10..open.len() * 9 / 10].iter().min().unwrap();
    assert!(open.iter().all(|&now| now <= least + 4 * 9 + 8), "{open:?}");
}

#[test]
fn in_a_virtual_machine_unheld_threads_are_watched_only_on_request() {
    requires!(root, btf);
    let virtual_machine = std::fs::read_to_string("/proc/cpuinfo").unwrap().contains(" hypervisor ");
    let target = Target::start("two_loops", &[]);
    let traced = Tracer::attach(target.pid(), "1").args(["--no-stop", "-o", "/dev/null/none"]).run();
    assert_eq!(traced.stderr.contains("--watch-unheld"), virtual_machine, "{}", traced.stderr);
    assert_eq!(traced.status.code(), Some(1), "{}", traced.stderr);
}

#[test]
fn without_stops_the_report_says_what_that_costs() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("two_loops", &[]);
    let live = Live::trace(target.pid(), "4", &["--no-stop", "--watch-unheld", "--overhead", "3"]);
    assert_eq!(live.report["overhead"]["stops"], 0);
    assert_eq!(live.report["run"]["sources"]["address"], "sampled registers");
    let notices = live.report["notices"].to_string();
    assert!(notices.contains("--no-stop") && notices.contains("without stops"), "{notices}");
    assert!(live.profile.samples.iter().all(|sample| !sample.held));
    assert!(live.profile.watches.iter().all(|watch| !watch.use_confirmed));
    // Without a stop, the word about to be touched is next seen
    // in the next loop: each reuse found is one loop late.
    let reused = live.profile.watches.iter().filter(|watch| matches!(watch.outcome, Outcome::Reused { .. }));
    assert!(reused.clone().count() >= 20, "{:#}", live.report["ledger"]);
    assert!(reused.clone().all(|watch| watch.use_touch.is_some()));
    assert_eq!(live.report["threads"]["not_held"], 1);
}

#[test]
fn a_report_from_the_profile_is_the_first_report() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let dir = tempfile::tempdir().unwrap();
    let (profile, first) = (dir.path().join("t.locality"), dir.path().join("first.json"));
    let target = Target::start("column_walk", &[]);
    let pid = target.pid().to_string();
    let tracer = Tracer::new().args(["-p", &pid, "-d", "3", "--format", "json1", "-o"]).args([&profile]);
    let traced = tracer.args(["--report".as_ref(), first.as_os_str()]).run();
    assert!(traced.status.success(), "{}", traced.stderr);
    assert_eq!(traced.stdout, "", "the report was to go to a file");
    assert_eq!(fs::metadata(&profile).unwrap().permissions().mode() & 0o777, 0o600);
    drop(target);
    let again = Tracer::new().args(["report".as_ref(), profile.as_os_str()]).args(["--format", "json1"]);
    assert_eq!(again.run().report(), json(&first));
    // The text report covers the same trace.
    let text = Tracer::new().args(["report".as_ref(), profile.as_os_str()]).run();
    assert!(text.status.success(), "{}", text.stderr);
    let samples = format!("{} samples", json(&first)["run"]["samples"]);
    let unwrapped = text.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(unwrapped.contains(&samples), "no `{samples}` in {}", text.stdout);
    assert!(unwrapped.contains("column_walk.c"), "{}", text.stdout);
}

#[test]
fn a_trace_ends_when_its_last_process_ends() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("t.locality");
    let (first, second) = (Target::start("two_loops", &["3"]), Target::start("two_loops", &["5"]));
    let pids = format!("{},{}", first.pid(), second.pid());
    let tracer =
        Tracer::new().args(["-p", &pids, "--format", "json1", "--overhead", "3", "-o"]).args([&profile]);
    let live = Live::of(&tracer.limit(LIMIT).run(), &profile);
    assert_eq!(live.report["run"]["ended_by"], "the last traced process ended");
    assert_eq!(sampled_processes(&live.profile), BTreeSet::from([first.pid(), second.pid()]));
    assert!(first.finish(LIMIT).status.success() && second.finish(LIMIT).status.success());
}
