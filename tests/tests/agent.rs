//! The agent: segments, rollups, metrics and profiles for others; kill, restart and end.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use locality_tests::live::{LIMIT, wait_for};
use locality_tests::programs::build;
use locality_tests::requires::skip;
use locality_tests::{Cgroup, Target, Tracer, live, or_skip, overseer, requires};
use serde_json::Value;

fn with_end(store: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(store.join("segments")).into_iter().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == end))
        .collect();
    found.sort();
    found
}

fn segments(store: &Path) -> Vec<PathBuf> {
    with_end(store, "locality")
}

fn agent(store: &Path, arguments: &[&str]) -> Tracer {
    let agent = Tracer::new().args(["agent", "--overhead", "5", "--own", "50", "--store"]);
    agent.args([store]).args(arguments)
}

/// Status and body of the answer to a request.
fn answer(mut stream: impl Read + Write, request: &[u8]) -> (u16, Vec<u8>) {
    // A server may refuse a long request before receiving all bytes.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(head) = head else { return (0, bytes) };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    (status, bytes.split_off(head + 4))
}

fn get(port: u16, target: &str) -> (u16, String) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let (status, body) = answer(TcpStream::connect(("127.0.0.1", port)).unwrap(), request.as_bytes());
    (status, String::from_utf8(body).unwrap())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn has_parser() -> bool {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", "import prometheus_client"]).output().is_ok_and(|run| run.status.success())
}

/// Output of Debian's OpenMetrics parser: a line of JSON for each sample.
fn parsed(metrics: &str) -> Vec<Value> {
    let script = "import json, sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
        for family in parse(sys.stdin.read()):\n \
            for s in family.samples: print(json.dumps([s.name, s.labels, s.value, family.type]))\n";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut python = command.spawn().unwrap();
    python.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "no OpenMetrics:\n{metrics}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Samples by name.
fn named<'a>(samples: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    samples.iter().filter(move |sample| sample[0] == name)
}

fn report(profile: &Path) -> Value {
    Tracer::new().args(["report", "--format", "json"]).args([profile]).run().report()
}

/// The exporter among an agent's children.
fn exporter(agent: u32) -> Option<u32> {
    overseer::children(agent).into_iter().find(|pid| overseer::name(*pid) == "locality-export")
}

/// The address of a Collector that refuses the first request for the moment, and its requests.
fn collector() -> (String, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut request, mut length) = (Vec::new(), 0);
            loop {
                let start = request.len();
                reader.read_until(b'\n', &mut request).unwrap();
                let line = String::from_utf8_lossy(&request[start..]).trim().to_owned();
                if let Some(value) = line.strip_prefix("Content-Length: ") {
                    length = value.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let head = request.len();
            request.resize(head + length, 0);
            reader.read_exact(&mut request[head..]).unwrap();
            let status = if at == 0 { "503 Busy" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            if send.send(request).is_err() {
                return;
            }
        }
    });
    (address, requests)
}

fn bad_requests(port: u16, agent: u32) {
    let memory = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap()
    };
    let pid = exporter(agent).unwrap();
    let before_kb = memory(pid);
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    // Silent and slow clients make room for clients with whole requests.
    let slow: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    slow.iter().for_each(|mut stream| drop(stream.write_all(b"GET /met")));
    let started = Instant::now();
    assert_eq!(get(port, "/metrics").0, 200);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    drop(slow);
    let host = "Host: localhost\r\n\r\n";
    for _ in 0..20 {
        for (request, status) in [
            (format!("POST /metrics HTTP/1.1\r\n{host}"), 405),
            (format!("GET /other HTTP/1.1\r\n{host}"), 404),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), 421),
            ("\x16\x03\x01\x02\r\n\r\n".to_owned(), 400),
            (format!("GET /metrics HTTP/1.1\r\nA: {}\r\n", "x".repeat(1 << 20)), 431),
        ] {
            let (got, _) = answer(connect(), request.as_bytes());
            // The kernel may discard an answer that the client did not wait for.
            assert!(got == status || (got == 0 && request.len() > 4096), "{got} to {:.40}", request);
        }
    }
    let half = connect();
    half.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answer(half, b"").0, 0);
    assert_eq!(get(port, "/metrics").0, 200);
    assert_eq!(exporter(agent), Some(pid), "it was started anew");
    let grown_kb = memory(pid).saturating_sub(before_kb);
    assert!(grown_kb < 8 << 10, "{grown_kb} KiB more");
}

/// The exporter runs as the user `nobody`, without privileges.
fn is_confined(agent: u32) {
    let status =
        wait_for("exporter", || fs::read_to_string(format!("/proc/{}/status", exporter(agent)?)).ok());
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(field("Uid:")[..2].iter().all(|uid| uid == "65534"), "{status}");
    for (name, value) in [
        ("CapEff:", "0000000000000000"),
        ("CapBnd:", "0000000000000000"),
        ("NoNewPrivs:", "1"),
        ("Seccomp:", "2"),
    ] {
        assert_eq!(field(name), [value], "{name} {status}");
    }
}

#[test]
fn a_cgroup_is_measured_without_end_and_others_read_what_is_found() {
    requires!(root, btf, watchpoints(4));
    let cgroup = or_skip!(Cgroup::unified());
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let _program = cgroup.target("column_walk", &[]);
    let (port, socket) = (free_port(), folder.path().join("socket"));
    let (tcp, unix) = (format!("127.0.0.1:{port}"), format!("unix:{}", socket.display()));
    let name = cgroup.folder().to_str().unwrap();
    let (collector, requests) = collector();
    let more =
        ["--cgroup", name, "--window", "4s", "--listen", &tcp, "--listen", &unix, "--otlp", &collector];
    // The cgroup contains the agent too, with all processes started by the agent.
    let mut command = agent(&store, &more);
    let agent = Target::spawn(cgroup.start(command.command()));
    let metrics = wait_for("miss ratio", || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        body.contains("locality_miss_ratio{").then(|| body.to_owned())
    });
    is_confined(agent.pid());
    if !has_parser() {
        skip("needs a parser of OpenMetrics (Debian's package python3-prometheus-client)");
    } else {
        let samples = parsed(&metrics);
        let at = |name: &str| {
            let mut of = named(&samples, name).filter(|sample| sample[1]["cache_bytes"] == "32768");
            of.next().unwrap()[2].as_f64().unwrap()
        };
        // One access in nine walks by columns and always
        // misses; the rest miss once a line of eight.
        let (low, ratio, high) =
            (at("locality_miss_ratio_low"), at("locality_miss_ratio"), at("locality_miss_ratio_high"));
        assert!(low <= ratio && ratio <= high && (ratio - 2.0 / 9.0).abs() < 0.1, "{low} {ratio} {high}");
        let groups: Vec<&str> =
            named(&samples, "locality_samples").map(|sample| sample[1]["group"].as_str().unwrap()).collect();
        assert_eq!(groups, [name], "ours are no targets");
        assert!(named(&samples, "locality_cpu_seconds_total").count() == 3);
        assert!(named(&samples, "locality_cost_ratio").all(|sample| sample[2].as_f64().unwrap() < 0.5));
        assert!(samples.iter().all(|sample| sample[3] != "unknown"), "{samples:?}");
    }
    bad_requests(port, agent.pid());
    let other =
        Tracer::new().args(["agent", "--own", "50", "--cgroup", name, "--store"]).args([&store]).run();
    other.assert_refused(1, &["another agent", &agent.pid().to_string(), "--store"]);
    assert_eq!(get(port, "/profile").0, 403);
    let request = format!("GET /profile?seconds=3600&group={} HTTP/1.1\r\nHost: x\r\n\r\n", name);
    let (status, profile) = answer(UnixStream::connect(&socket).unwrap(), request.as_bytes());
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&profile));
    if requires::command("go").is_ok() {
        let file = folder.path().join("profile.pb.gz");
        fs::write(&file, &profile).unwrap();
        let top = Command::new("go").args(["tool", "pprof", "-top"]).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&top.stdout);
        assert!(top.status.success() && text.contains("column_walk"), "{text}");
    }
    let (status, why) =
        answer(UnixStream::connect(&socket).unwrap(), b"GET /profile?group=none HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(status == 404 && String::from_utf8_lossy(&why).contains("there is no group"), "{status}");
    wait_for("second segment", || (segments(&store).len() >= 2).then_some(()));
    agent.signal(libc::SIGTERM);
    let ended = agent.finish(LIMIT);
    assert!(ended.status.success(), "{ended:?}");
    let requests: Vec<Vec<u8>> = requests.try_iter().collect();
    // The first request was refused for the moment, and came again.
    assert!(requests.len() >= 3 && requests[0] == requests[1], "{} requests", requests.len());
    let head = String::from_utf8_lossy(&requests[0]).into_owned();
    assert!(head.starts_with("POST /v1development/profiles HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: application/x-protobuf\r\n"), "{head}");
    assert!(!socket.exists() && with_end(&store, "part").is_empty());
    let mut found = segments(&store);
    // The segment that the signal ended may be too short for a sample or a reuse.
    let is_empty = |segment: &PathBuf| {
        let last = Tracer::new().args(["report", "--format", "json"]).args([segment]).run();
        let empty = ["No reuse was seen", "Nothing was sampled"];
        !last.status.success() && empty.iter().any(|why| last.stderr.contains(why))
    };
    found.pop_if(|last| is_empty(last));
    assert!(found.len() >= 2, "{found:?}");
    let reports: Vec<Value> = found.iter().map(|segment| report(segment)).collect();
    for report in &reports {
        assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
        let groups = report["groups"]["rows"].as_array().unwrap();
        let names: Vec<&str> = groups.iter().map(|row| row["comm"].as_str().unwrap()).collect();
        assert_eq!(names, ["column_walk"]);
    }
    let page = Tracer::new().args(["query", "--group", name, "--store"]).args([&store]).run();
    assert!(page.status.success() && page.stdout.contains("Places by bytes loaded"), "{page:?}");
    merged_is_the_sum(folder.path(), &found, &reports);
}

fn merged_is_the_sum(folder: &Path, parts: &[PathBuf], reports: &[Value]) {
    let whole = folder.join("whole.locality");
    let merge =
        |output: &Path| Tracer::new().args(["merge"]).args(parts).args([Path::new("-o"), output]).run();
    assert!(merge(&whole).status.success());
    let of_whole = report(&whole);
    let sum = |of: &dyn Fn(&Value) -> f64| reports.iter().map(of).sum::<f64>();
    for path in ["/run/cpu_s", "/run/wall_s", "/ledger/seen", "/ledger/watch/armed"] {
        let of = |report: &Value| report.pointer(path).unwrap().as_f64().unwrap();
        let (got, expected) = (of(&of_whole), sum(&of));
        assert!((got - expected).abs() <= 1e-6 * expected, "{path}: {got}, not {expected}");
    }
    let samples = |path: &Path| {
        let database = rusqlite::Connection::open(path).unwrap();
        database.query_row("SELECT count(*) FROM sample", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(samples(&whole), parts.iter().map(|part| samples(part)).sum::<i64>());
    assert_eq!(of_whole["ledger"]["balanced"], true);
    merge(&parts[0]).assert_refused(2, &["would replace", "-o"]);
}

#[test]
fn a_killed_agent_loses_at_most_a_second_and_the_next_one_goes_on() {
    requires!(root, btf, watchpoints(4));
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let program = Target::start("two_loops", &["60"]);
    let pid = program.pid().to_string();
    let first = agent(&store, &["-p", &pid, "--window", "60s"]).start();
    let part = wait_for("segment", || {
        let part = with_end(&store, "part").into_iter().next()?;
        let database = rusqlite::Connection::open(&part).ok()?;
        let samples: i64 = database.query_row("SELECT count(*) FROM sample", [], |row| row.get(0)).ok()?;
        (samples > 10).then_some(part)
    });
    first.signal(libc::SIGKILL);
    first.finish(LIMIT);
    // The killed agent's tracer ends too, and lets the program go.
    wait_for("end of the tracer", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().any(|line| line == "TracerPid:\t0").then_some(())
    });
    let second = agent(&store, &["-p", &pid, "--window", "3s"]).start();
    wait_for("third segment", || (segments(&store).len() >= 2).then_some(()));
    // A debugger could attach now.
    let release = Tracer::new().args(["release", "--for", "2s", "--store"]).args([&store]).run();
    assert!(release.status.success(), "{release:?}");
    let held = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(held().lines().any(|line| line == "TracerPid:\t0"), "{}", held());
    let then = segments(&store).len();
    wait_for("segment after the release", || (segments(&store).len() > then + 1).then_some(()));
    assert!(!part.exists());
    let left = part.with_extension("locality");
    assert!(report(&left)["run"]["cpu_s"].as_f64().unwrap() > 0.0);
    // With the last named process the agent ends too.
    drop(program);
    let ended = second.finish(LIMIT);
    assert!(ended.status.success() && ended.stderr.contains("last traced process"), "{ended:?}");
    assert!(with_end(&store, "part").is_empty());
    let rollups = rusqlite::Connection::open(store.join("rollups.sqlite")).unwrap();
    let of_left: i64 = rollups
        .query_row(
            "SELECT count(*) FROM rollup WHERE started_ns = (SELECT min(started_ns) FROM rollup)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(of_left, 1, "the segment of the killed agent has its rollup");
}

#[test]
fn an_agent_refuses_what_it_cannot_do() {
    requires!(root);
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let own = std::process::id().to_string();
    let refused = |arguments: &[&str], status, words: &[&str]| {
        agent(&store, arguments).run().assert_refused(status, words);
    };
    let anywhere = ["-p", &own, "--listen", "0.0.0.0:9955"];
    refused(&anywhere, 2, &["--listen-anywhere"]);
    refused(&["-p", &own, "--window", "1ms"], 2, &["--window", "1s"]);
    refused(&["-p", "1073741800"], 1, &["no such process"]);
    refused(&["--cgroup", "/nowhere"], 1, &["/nowhere"]);
    refused(&["-p", &own, "--listen", "unix:/nowhere/socket"], 1, &["/nowhere/socket"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    refused(&["-p", &own, "--listen", &taken], 1, &[&taken, "another port"]);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let bad = Tracer::new().args(["agent", "-p", &own, "--store"]).args([&file]).run();
    bad.assert_refused(2, &["is a file", "--store names a folder"]);
    let nobody = Tracer::new().args(["release", "--store"]).args([folder.path()]).run();
    nobody.assert_refused(1, &["no agent", "--store"]);
    let none = Tracer::new().args(["query", "--store"]).args([folder.path()]).run();
    none.assert_refused(1, &["no rollups"]);
    let junk = folder.path().join("junk.locality");
    fs::write(&junk, "junk").unwrap();
    let merge = Tracer::new().args(["merge"]).args([&junk, &junk, Path::new("-o"), &folder.path().join("o")]);
    merge.run().assert_refused(1, &["junk.locality", "not a locality profile"]);
}

/// Output of gdb with commands after these arguments.
fn gdb(arguments: &[&str], commands: &[&str]) -> String {
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]);
    gdb.args(commands.iter().flat_map(|command| ["-ex", command])).args(arguments);
    let output = gdb.stdin(std::process::Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// gdb attaches at once, and the other programs stay seized; a program starts under gdb.
#[test]
fn debuggers_work_while_an_agent_traces() {
    requires!(root, btf, watchpoints(4), command("gdb"));
    let cgroup = or_skip!(Cgroup::unified());
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let start = || cgroup.target("two_loops", &["120"]);
    let programs = [start(), start(), start()];
    let is_seized = |program: &Target| {
        let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap();
        status.lines().any(|line| line.starts_with("TracerPid:") && line != "TracerPid:\t0")
    };
    let name = cgroup.folder().to_str().unwrap();
    // gdb itself is outside of the cgroup.
    let agent = agent(&store, &["--cgroup", name, "--window", "60s"]).start();
    wait_for("seized programs", || programs.iter().all(is_seized).then_some(()));
    let [first, others @ ..] = &programs;
    for round in 0..5 {
        let said = gdb(&["-p", &first.pid().to_string()], &["print $pc", "detach"]);
        assert!(said.contains("$1 = ") && said.contains("detached"), "round {round}: {said}");
    }
    wait_for("seized others", || others.iter().all(is_seized).then_some(()));
    assert!(!is_seized(first), "the program is left to debuggers in this segment");
    let attach = format!("attach {}", others[0].pid());
    let said = gdb(&[], &[&attach, "print $pc", "detach"]);
    assert!(said.contains("$1 = ") && said.contains("detached"), "{said}");
    wait_for("seized others", || others.iter().all(is_seized).then_some(()));
    let launched = build("two_loops");
    let said = gdb(&["--args", launched.to_str().unwrap(), "1"], &["run"]);
    assert!(said.contains("exited normally"), "{said}");
    // gdb without a number may attach to anybody later; all are seized again after its end.
    wait_for("seized others", || others.iter().all(is_seized).then_some(()));
    agent.signal(libc::SIGTERM);
    assert!(agent.finish(LIMIT).status.success());
    let report = report(&segments(&store)[0]);
    assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
    let reasons = report.to_string();
    assert!(reasons.contains("left to a debugger"), "{reasons}");
}
