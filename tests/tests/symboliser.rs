//! The symboliser process of a trace and of an exact
//! run: the end or stop of the process costs names only.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::process::Command;
use std::time::{Duration, Instant};

use locality_tests::live::alone;
use locality_tests::overseer::{children, name};
use locality_tests::{Finished, Target, Tracer, build, requires};
use serde_json::Value;

/// A program with new code all the time.
const PYTHON: &str = "
import json, os, random, re, statistics, textwrap, time, zlib
random.seed(1)
print('ready', os.getpid(), flush=True)
until = time.time() + 60
while time.time() < until:
    table = {str(i): [random.random() for _ in range(20)] for i in range(50)}
    text = json.dumps(table)
    sorted(json.loads(text), key=lambda key: table[key][0])
    re.findall(r'[0-9]+[.][0-9]', text)
    zlib.compress(text.encode())
    statistics.stdev(table['1'])
    textwrap.wrap(text[:500])
";

fn python() -> Target {
    let mut command = Command::new("python3");
    command.args(["-c", PYTHON]);
    Target::start_command(command)
}

/// The symboliser process of a tracer, once one outside `but` exists.
fn symboliser(tracer: u32, but: &[u32]) -> u32 {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let found = children(tracer).into_iter().find(|pid| name(*pid) == "symboliser" && !but.contains(pid));
        if let Some(pid) = found {
            return pid;
        }
        assert!(Instant::now() < end, "there is no symboliser");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: a system call with plain arguments; the process is a child of a tracer of ours.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

fn report(finished: &Finished) -> Value {
    assert!(finished.status.success(), "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout.join("\n")).expect("a report");
    assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
    assert!(report["run"]["samples"].as_u64().expect("a number") > 0, "{:#}", report["run"]);
    report
}

/// All values of a field, at every depth.
fn all<'r>(value: &'r Value, field: &str, found: &mut Vec<&'r Value>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            if key == field {
                found.push(value);
            }
            all(value, field, found);
        }),
        Value::Array(values) => values.iter().for_each(|value| all(value, field, found)),
        _ => {}
    }
}

fn functions(report: &Value) -> Vec<String> {
    let mut found = Vec::new();
    all(report, "function", &mut found);
    found.into_iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

fn notices(report: &Value) -> String {
    report["notices"].to_string()
}

#[test]
fn a_file_that_ends_its_reader_is_traced_with_the_names_of_others() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let program = build("nested_inlines");
    let mut target = Target::start_command(Command::new(&program));
    let folder = tempfile::tempdir().unwrap();
    let tracer = Tracer::attach(target.pid(), "4").args(["-q", "--overhead", "5", "-o"]);
    let finished = tracer.args([folder.path().join("t.locality")]).start().finish(Duration::from_secs(60));
    assert!(target.is_running());
    let report = report(&finished);
    let said = format!("Names are missing for {}: the symboliser process", program.display());
    assert!(notices(&report).contains(&said), "{}", notices(&report));
    assert_eq!(notices(&report).matches("symboliser").count(), 1, "once: {}", notices(&report));
    assert!(report.to_string().contains("no names: the process that read the file"), "{report:#}");
    // Names of the C library, which sorts.
    let functions = functions(&report);
    assert!(functions.iter().any(|name| name.contains("msort") || name.contains("mem")), "{functions:?}");
}

#[test]
fn an_exact_run_of_such_a_file_ends_well() {
    requires!(command("qemu-x86_64"));
    let program = build("nested_inlines");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let tracer = Tracer::new().args(["exact", "-q", "--format", "json1", "--report"]).args([&file]);
    let done = tracer.args(["--"]).args([program.as_os_str(), "0.1".as_ref()]).run();
    assert!(done.status.success(), "{}", done.stderr);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(notices(&report).contains("the symboliser process, which read the file, ended by SIGSEGV"));
    let functions = functions(&report);
    assert!(functions.iter().any(|name| name.contains("msort")), "{functions:?}");
}

/// As on a file system that never answers.
#[test]
fn one_that_stands_still_is_ended_in_time() {
    requires!(root, btf, watchpoints(4), command("python3"));
    let _alone = alone();
    let target = python();
    let folder = tempfile::tempdir().unwrap();
    let tracer = Tracer::attach(target.pid(), "17").args(["-q", "--overhead", "5", "-o"]);
    let tracer = tracer.args([folder.path().join("t.locality")]).start();
    let stopped = symboliser(tracer.pid(), &[]);
    std::thread::sleep(Duration::from_millis(1500));
    signal(stopped, libc::SIGSTOP);
    let next = symboliser(tracer.pid(), &[stopped]);
    assert_ne!(next, stopped);
    let report = report(&tracer.finish(Duration::from_secs(60)));
    assert!(notices(&report).contains("did not answer within 10 s and was ended"), "{}", notices(&report));
    assert!(!functions(&report).is_empty());
}

#[test]
fn one_that_is_killed_is_replaced() {
    requires!(root, btf, watchpoints(4), command("python3"));
    let _alone = alone();
    let target = python();
    let folder = tempfile::tempdir().unwrap();
    let tracer = Tracer::attach(target.pid(), "8").args(["-q", "--overhead", "5", "-o"]);
    let tracer = tracer.args([folder.path().join("t.locality")]).start();
    let mut killed = Vec::new();
    for _ in 0..3 {
        let pid = symboliser(tracer.pid(), &killed);
        std::thread::sleep(Duration::from_millis(300));
        signal(pid, libc::SIGKILL);
        killed.push(pid);
    }
    let report = report(&tracer.finish(Duration::from_secs(60)));
    assert!(!functions(&report).is_empty(), "{report:#}");
    let overhead = &report["overhead"];
    assert!(overhead["stops"].as_u64().expect("a number") > 0, "{overhead:#}");
}

/// The symboliser ends with the tracer, after every end of the tracer.
#[test]
fn it_ends_with_the_tracer() {
    requires!(root, btf, watchpoints(4), command("python3"));
    let _alone = alone();
    let target = python();
    let folder = tempfile::tempdir().unwrap();
    for end in [libc::SIGKILL, libc::SIGINT] {
        let tracer = Tracer::attach(target.pid(), "30").args(["-q", "--overhead", "5", "-o"]);
        let tracer = tracer.args([folder.path().join("t.locality")]).start();
        let pid = symboliser(tracer.pid(), &[]);
        std::thread::sleep(Duration::from_millis(500));
        tracer.signal(end);
        let status = tracer.finish(Duration::from_secs(30)).status;
        assert_eq!(status.success(), end == libc::SIGINT, "{status}");
        let gone = Instant::now() + Duration::from_secs(5);
        while name(pid) == "symboliser" {
            assert!(Instant::now() < gone, "the symboliser outlives the tracer");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
