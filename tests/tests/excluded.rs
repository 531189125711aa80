//! `--exclude`: programs that match are neither sampled nor stopped, their siblings are.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use locality_tests::live::{LIMIT, wait_for};
use locality_tests::programs::build;
use locality_tests::{Cgroup, Target, Tracer, live, or_skip, requires};
use serde_json::{Value, json};

fn tracer_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse().ok()).unwrap_or(0)
}

/// Names of the sampled programs.
fn names(report: &Value) -> BTreeSet<&str> {
    let rows = report["groups"]["rows"].as_array().unwrap();
    rows.iter().map(|row| row["comm"].as_str().unwrap()).collect()
}

fn trace(cgroup: &Cgroup, folder: &Path, seconds: &str, patterns: &[&str]) -> Tracer {
    let tracer = Tracer::new().args(["-q", "-d", seconds, "--overhead", "5", "--format", "json", "--cgroup"]);
    let tracer = tracer.args([cgroup.folder(), Path::new("-o"), &folder.join("t.locality")]);
    patterns.iter().fold(tracer, |tracer, pattern| tracer.args(["--exclude", pattern]))
}

#[test]
fn an_excluded_program_is_left_alone_beside_its_sibling() {
    requires!(root, btf, watchpoints(4));
    let cgroup = or_skip!(Cgroup::unified());
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let start = |program: &str, arguments: &[&str]| cgroup.target(program, arguments);
    let (walk, loops) = (start("column_walk", &[]), start("two_loops", &["60"]));
    let mut tracer = trace(&cgroup, folder.path(), "6", &["comm:two_l*", "uid:4294967294"]).start();
    let mut looks = 0;
    while tracer.is_running() {
        assert_eq!(tracer_of(loops.pid()), 0, "the excluded program was seized");
        looks += u32::from(tracer_of(walk.pid()) != 0);
        std::thread::sleep(Duration::from_millis(10));
    }
    let traced = tracer.finish(LIMIT);
    assert!(traced.status.success(), "{traced:?}");
    assert!(looks > 50, "the sibling was seized at {looks} looks");
    let report: Value = serde_json::from_str(&traced.stdout.join("\n")).unwrap();
    assert_eq!(names(&report), BTreeSet::from(["column_walk"]));
    let counts = json!([
        { "pattern": "comm:two_l*", "processes": 1 },
        { "pattern": "uid:4294967294", "processes": 0 },
    ]);
    assert_eq!(report["run"]["excluded"], counts, "{:#}", report["run"]);
    let notices = report["notices"].to_string();
    assert!(notices.contains("1 process by comm:two_l*, none by uid:4294967294"), "{notices}");
    let profile = locality_profile::read(&folder.path().join("t.locality")).unwrap();
    assert!(profile.threads.iter().all(|thread| thread.pid == walk.pid()), "{:?}", profile.threads);
    assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
}

/// A target that becomes an excluded program by exec, and an excluded program that becomes a target.
#[test]
fn exec_changes_who_is_excluded() {
    requires!(root, btf, watchpoints(4));
    let cgroup = or_skip!(Cgroup::unified());
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    // The first seconds are a loop of the shell; arguments: seconds, then the later program.
    let spin = "s=$(date +%s); while test $(($(date +%s) - s)) -lt $1; do n=0; \
        while test $n -lt 30000; do n=$((n + 1)); done; done; shift; exec \"$@\"";
    let script = folder.path().join("excluded_first");
    fs::write(&script, format!("#!/bin/sh\n{spin}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut target = Command::new("sh");
    target.args(["-c", spin, "sh", "4"]).arg(build("two_loops")).arg("60");
    let mut excluded = Command::new(&script);
    excluded.arg("4").arg(build("column_walk"));
    let target = Target::spawn(cgroup.start(&target));
    let excluded = Target::spawn(cgroup.start(&excluded));
    let patterns = ["comm:two_loops", "comm:excluded_first", "comm:date"];
    let mut tracer = trace(&cgroup, folder.path(), "10", &patterns).start();
    let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let (mut seized, mut seized_later, mut never_seized) = (0, 0, 0);
    while tracer.is_running() {
        for (pid, never) in [(target.pid(), "two_loops"), (excluded.pid(), "excluded_first")] {
            let tracer = tracer_of(pid);
            let name = name(pid);
            never_seized += u32::from(tracer != 0 && name.trim() == never);
            seized += u32::from(tracer != 0 && name.trim() == "sh");
            seized_later += u32::from(tracer != 0 && name.trim() == "column_walk");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let traced = tracer.finish(LIMIT);
    assert!(traced.status.success(), "{traced:?}");
    let report: Value = serde_json::from_str(&traced.stdout.join("\n")).unwrap();
    assert_eq!(names(&report), BTreeSet::from(["column_walk", "sh"]), "{:#}", report["groups"]);
    assert!(seized > 20 && seized_later > 20, "seized at {seized} and {seized_later} looks");
    // A target that becomes an excluded program stands at exec until its release.
    assert!(never_seized <= 5, "excluded programs were seized at {never_seized} looks");
    let of = |n: usize| report["run"]["excluded"][n]["processes"].as_u64().unwrap();
    assert!(of(0) == 1 && of(1) >= 1, "{:#}", report["run"]["excluded"]);
    assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
}

/// The whole machine, without programs whose names begin otherwise than with `co`; options of a file.
#[test]
fn an_agent_takes_patterns_from_a_file_and_counts_them() {
    requires!(root, btf, watchpoints(4));
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let (store, socket, file) =
        (folder.path().join("store"), folder.path().join("socket"), folder.path().join("agent.toml"));
    let loops = Target::start("two_loops", &["60"]);
    let _walk = Target::start("column_walk", &[]);
    let options = format!(
        "all = true\nexclude = ['comm:[!c]*', 'comm:c[!o]*', 'exe:/no/such']\nwindow = '1h'\nown = 50\n\
         group = 'comm'\noverhead = 5\nstore = '{}'\nlisten = ['unix:{}']\n",
        store.display(),
        socket.display()
    );
    fs::write(&file, &options).unwrap();
    let agent = || Tracer::new().args(["agent", "--window", "4s", "--config"]).args([&file]);
    let dry = agent().args(["--dry-run"]).run();
    assert!(dry.status.success() && dry.stdout.contains("window = \"4s\""), "{dry:?}");
    assert!(!store.exists(), "a dry run has no store");
    let agent = agent().start();
    let metrics = wait_for("metrics of a segment", || {
        assert_eq!(tracer_of(loops.pid()), 0, "the excluded program was seized");
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.contains("locality_samples{").then_some(text)
    });
    agent.signal(libc::SIGTERM);
    assert!(agent.finish(LIMIT).status.success());
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        line.unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    assert!(value("locality_excluded_processes{kind=\"comm\"}") >= 1.0, "{metrics}");
    assert_eq!(value("locality_excluded_processes{kind=\"exe\"}"), 0.0, "{metrics}");
    let groups = metrics.lines().filter_map(|line| line.strip_prefix("locality_samples{group=\""));
    let groups: Vec<&str> = groups.map(|line| line.split('"').next().unwrap()).collect();
    assert!(groups.contains(&"column_walk"), "{groups:?}");
    let outside: Vec<_> = groups.iter().filter(|name| !name.starts_with("co")).collect();
    assert!(outside.is_empty(), "{groups:?}");
}

#[test]
fn wrong_patterns_are_refused_with_the_fix() {
    requires!(root);
    let own = std::process::id().to_string();
    for (pattern, said) in [
        ("name:x", "there is no kind `name`: write container, unit, exe, comm, cgroup or uid"),
        ("comm:", "nothing follows `comm:`"),
        ("comm:a[", "is no glob"),
        ("x", "a kind is missing: write KIND:GLOB"),
        ("uid:root", "id -u NAME"),
    ] {
        let run = Tracer::new().args(["-a", "-d", "1", "--exclude", pattern]).run();
        assert_eq!(run.status.code(), Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
    let named = Tracer::new().args(["-p", &own, "--exclude", "comm:x"]).run();
    assert_eq!(named.status.code(), Some(2), "{}", named.stderr);
    assert!(named.stderr.contains("cannot be used with"), "{}", named.stderr);
}
