//! Waits end: signals end the tool at any moment, pipes get their report, options stand at any
//! place; colours and rows are the requested ones.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use locality_tests::{Target, Tracer, build, requires};
use serde_json::Value;

/// A tracer is gone after its end by a signal.
const SOON: Duration = Duration::from_secs(4);

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn pipe(folder: &tempfile::TempDir) -> PathBuf {
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe
}

/// A started tracer.
struct Started {
    child: Child,
    /// A file: a command that outlives the tracer would leave a pipe open.
    stderr: tempfile::NamedTempFile,
}

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts a tracer as a shell in a terminal would: with default signals.
fn start(mut tracer: Tracer) -> Started {
    let command = tracer.command();
    let stderr = tempfile::NamedTempFile::new().unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr.reopen().unwrap());
    // SAFETY: `signal` may be called between fork and exec, and is the only call here.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        });
    }
    Started { child: command.spawn().unwrap(), stderr }
}

impl Started {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn said(&self) -> String {
        text(&std::fs::read(self.stderr.path()).unwrap())
    }

    fn send(&self, signal: i32) {
        // SAFETY: plain numbers; the child was not waited for, so the id is still the child's.
        assert_eq!(unsafe { libc::kill(self.pid().cast_signed(), signal) }, 0);
    }

    /// Waits until the tracer is in a system call accepted
    /// by `until`, as a call that waits for a process.
    fn wait_until_it_waits(&mut self, until: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        let file = format!("/proc/{}/syscall", self.pid());
        while !until(&std::fs::read_to_string(&file).unwrap_or_default()) {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", self.said());
            assert!(begun.elapsed() < Duration::from_secs(40), "it does not come to wait: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Status, output, and time of the tracer's end; panics if not gone soon.
    fn left(mut self) -> (ExitStatus, String, Duration) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.said(), begun.elapsed());
            }
            assert!(begun.elapsed() < SOON, "still there after {SOON:?}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A profile of a program of ours.
fn profile(folder: &tempfile::TempDir) -> String {
    let target = Target::start("two_loops", &[]);
    let file = folder.path().join("t.locality").display().to_string();
    // Long enough for samples on a busy machine.
    let traced = Tracer::attach(target.pid(), "5").args(["-q", "--overhead", "5", "-o", &file]).run();
    assert!(traced.status.success(), "{}", traced.stderr);
    file
}

#[test]
fn a_pipe_gets_the_report() {
    requires!(root, btf, watchpoints(4));
    let folder = folder();
    let (target, pipe) = (Target::start("two_loops", &[]), pipe(&folder));
    let mut reader = Command::new("cat");
    let reader = Target::spawn({
        reader.arg(&pipe);
        reader
    });
    let file = folder.path().join("t.locality");
    let traced = Tracer::attach(target.pid(), "1")
        .args(["-q", "-o"])
        .args([&file])
        .args(["--report"])
        .args([&pipe])
        .run();
    let report: Value = serde_json::from_str(&reader.finish(SOON).stdout.join("\n")).unwrap();
    assert_eq!(report["empty"].is_null(), traced.status.success(), "{}", traced.stderr);
    assert_eq!(report["schema"], "locality-report/1");
}

#[test]
fn what_waits_for_a_reader_ends_by_a_signal_and_the_profile_is_whole() {
    requires!(root, btf, watchpoints(4));
    // openat(2), in its flags O_WRONLY.
    let opens =
        |call: &str| call.starts_with("257 ") && call.split(' ').nth(3).is_some_and(|how| how.ends_with('1'));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let folder = folder();
        let (target, pipe) = (Target::start("two_loops", &[]), pipe(&folder));
        let file = folder.path().join("t.locality").display().to_string();
        let tracer = Tracer::attach(target.pid(), "1").args(["-o", &file, "--report"]).args([&pipe]);
        let mut tracer = start(tracer);
        tracer.wait_until_it_waits(opens);
        tracer.send(signal);
        let (status, said, _) = tracer.left();
        assert_eq!(status.signal(), Some(signal), "{said}");
        assert!(said.contains("waits for a reader") && said.contains("the profile is complete"), "{said}");
        let how = format!("locality-bpf report {file}");
        assert!(said.contains(&how), "{said}");
        // On a busy machine a second may be too short for a sample.
        let again = Tracer::new().args(["report", &file, "--format", "json"]).run().report_or_empty();
        assert_eq!(again["partial"], false);
        // Read-only commands wait there, too.
        for command in ["report", "objects"] {
            let mut reader = start(Tracer::new().args(["-q", command, &file, "--report"]).args([&pipe]));
            reader.wait_until_it_waits(opens);
            reader.send(signal);
            assert_eq!(reader.left().0.signal(), Some(signal), "{command}");
        }
    }
}

#[test]
fn a_pipe_that_nobody_reads_on_is_no_hang() {
    requires!(root, btf, watchpoints(4));
    let folder = folder();
    let (file, pipe) = (profile(&folder), pipe(&folder));
    // Open for both directions, so no opening waits.
    let end = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    // SAFETY: a system call with plain arguments: the smallest pipe.
    unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&end), libc::F_SETPIPE_SZ, 4096) };
    let mut report =
        start(Tracer::new().args(["report", &file, "--format", "json", "--report"]).args([&pipe]));
    report.wait_until_it_waits(|call| call.starts_with("1 "));
    report.send(libc::SIGTERM);
    assert_eq!(report.left().0.signal(), Some(libc::SIGTERM));
}

#[test]
fn a_second_signal_ends_the_tool_while_the_command_runs_on() {
    requires!(root, btf, watchpoints(4));
    let folder = folder();
    let file = folder.path().join("t.locality").display().to_string();
    let tracer = Tracer::new().args(["-q", "-o", &file, "--"]);
    let mut tracer = start(tracer.args(["sh", "-c", "trap '' INT; echo $$ >&2; while :; do :; done"]));
    std::thread::sleep(Duration::from_secs(3));
    tracer.send(libc::SIGINT);
    // The trace ends, the report is printed, and the tracer waits for the command.
    tracer.wait_until_it_waits(|call| call.starts_with("247 ") || call.starts_with("61 "));
    tracer.send(libc::SIGINT);
    let (status, said, took) = tracer.left();
    let command: i32 = said.lines().next().unwrap().parse().unwrap();
    // SAFETY: plain numbers; the loop never ends alone, so the id is still the loop's.
    assert_eq!(unsafe { libc::kill(command, libc::SIGKILL) }, 0, "the command is gone: {said}");
    assert_eq!(status.signal(), Some(libc::SIGINT), "{said}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(said.contains(" s traced"), "{said}");
    assert!(Tracer::new().args(["report", &file]).run().status.success());
}

#[test]
fn two_signals_in_a_row_leave_a_profile_that_can_be_read() {
    requires!(root, btf, watchpoints(4));
    for pause_ms in [0, 10, 100, 400] {
        let folder = folder();
        let target = Target::start("two_loops", &[]);
        let file = folder.path().join("t.locality").display().to_string();
        let mut tracer = start(Tracer::new().args(["-p", &target.pid().to_string(), "-q", "-o", &file]));
        std::thread::sleep(Duration::from_secs(3));
        tracer.send(libc::SIGINT);
        std::thread::sleep(Duration::from_millis(pause_ms));
        if tracer.child.try_wait().unwrap().is_none() {
            tracer.send(libc::SIGINT);
        }
        let (status, said, _) = tracer.left();
        // The tracer may end before the second signal.
        assert!(
            status.code().is_some_and(|code| code < 2) || status.signal() == Some(libc::SIGINT),
            "{status}: {said}"
        );
        let again = Tracer::new().args(["report", &file, "--format", "json"]).run().report_or_empty();
        assert_eq!(again["schema"], "locality-report/2");
    }
}

#[test]
fn an_exact_run_ends_by_two_signals_though_its_command_ignores_them() {
    requires!(command("qemu-x86_64"));
    let tracer =
        Tracer::new().args(["exact", "--", "sh", "-c", "trap '' INT TERM; echo $$ >&2; while :; do :; done"]);
    let tracer = start(tracer);
    let running = format!("/dev/shm/locality-exact.{}", tracer.pid());
    let begun = Instant::now();
    while tracer.said().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the command does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let command: i32 = tracer.said().lines().next().unwrap().parse().unwrap();
    tracer.send(libc::SIGTERM);
    // Two within half a second are one wish.
    std::thread::sleep(Duration::from_millis(700));
    assert!(Path::new(&running).exists(), "one signal is the command's: {}", tracer.said());
    tracer.send(libc::SIGTERM);
    let (status, said, _) = tracer.left();
    // SAFETY: plain numbers; the loop never ends alone.
    unsafe { libc::kill(command, libc::SIGKILL) };
    assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{said}");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("runs on, unrecorded") && said.contains("accesses ("), "{said}");
    assert!(!Path::new(&running).exists(), "its folder is left");
}

#[test]
fn options_before_a_command_and_after_it() {
    let json = |arguments: &[&str]| {
        let traced = Tracer::new().args(arguments).run();
        assert!(matches!(traced.status.code(), Some(0 | 1)), "{arguments:?}: {}", traced.stderr);
        let value: Value = serde_json::from_str(&traced.stdout).unwrap();
        value["machine"].as_array().unwrap().len()
    };
    let n = json(&["doctor", "--json"]);
    assert_eq!((json(&["-q", "doctor", "--json"]), json(&["doctor", "-q", "--json"])), (n, n));
    let refused =
        |arguments: &[&str], words: &[&str]| Tracer::new().args(arguments).run().assert_refused(2, words);
    refused(&["-d", "5", "doctor"], &["-d (--duration)", "`doctor`", "leave it out"]);
    refused(&["ls"], &["`locality-bpf -- ls`"]);
    refused(&["1234"], &["`locality-bpf -p 1234`"]);
    let misspelt = Tracer::new().args(["reprot", "f"]).run();
    assert!(
        misspelt.status.code() == Some(2) && misspelt.stderr.contains("is `report` meant?"),
        "{}",
        misspelt.stderr
    );
}

#[test]
fn a_stderr_that_is_full_or_gone_is_no_panic() {
    for (arguments, status) in [(&["report", "/no/such/file"][..], 1), (&["-p", "x"], 2), (&["ls"], 2)] {
        let mut tracer = Tracer::new().args(arguments);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended =
            tracer.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).status().unwrap();
        assert_eq!(ended.code(), Some(status), "{arguments:?}");
        let mut tracer = Tracer::new().args(arguments);
        let mut child = tracer.command().stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stderr.take());
        assert_eq!(child.wait().unwrap().code(), Some(status), "{arguments:?}");
    }
}

#[test]
fn limits_are_named_and_so_is_the_signal_that_ends_a_command() {
    requires!(root, btf, watchpoints(4));
    let (folder, target) = (folder(), Target::start("two_loops", &[]));
    let file = folder.path().join("t.locality").display().to_string();
    let limited = |limit: &str| {
        let binary = locality_tests::tracer::binary();
        let line = format!("ulimit {limit}; exec {} -q -p {} -d 1 -o {file}", binary.display(), target.pid());
        text(&Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output().unwrap().stderr)
    };
    for (limit, word) in
        [("-n 12", "at most 12 files"), ("-n 40", "at most 40 files"), ("-f 8", "ulimit -f unlimited")]
    {
        let said = limited(limit);
        assert!(said.contains(word) && said.lines().count() == 1, "{limit}: {said}");
    }
    let traced = Tracer::new().args(["-o", &file, "--", "sh", "-c", "kill -SEGV $$"]).run();
    assert_eq!(traced.status.code(), Some(139));
    assert!(traced.stderr.contains("the command was ended by SIGSEGV"), "{}", traced.stderr);
}

/// Whether a command line prints escape sequences of colours,
/// with `variables`; on a terminal if `script` runs the line.
fn is_coloured(arguments: &str, variables: &[(&str, &str)], on_terminal: bool) -> bool {
    let line = format!("{} {arguments}", locality_tests::tracer::binary().display());
    let mut command = match on_terminal {
        true => {
            let mut script = Command::new("script");
            script.args(["-qec", &line, "/dev/null"]);
            script
        }
        false => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &line]);
            shell
        }
    };
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "CI"] {
        command.env_remove(name);
    }
    let output =
        command.env("TERM", "xterm").envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
    [&output.stdout, &output.stderr].into_iter().any(|page| page.windows(2).any(|pair| pair == b"\x1b["))
}

#[test]
fn colours_are_those_asked_for() {
    requires!(root, btf, watchpoints(4), command("script"));
    let folder = folder();
    let report = format!("report {}", profile(&folder));
    for page in ["doctor", "--help", "reprot f", &report] {
        let coloured = |option: &str, variables: &[(&str, &str)], on_terminal| {
            is_coloured(&format!("{page} {option}"), variables, on_terminal)
        };
        assert!(coloured("", &[], true), "{page}");
        assert!(!coloured("", &[], false), "{page}");
        assert!(!coloured("", &[("TERM", "dumb")], true), "{page}");
        assert!(!coloured("", &[("NO_COLOR", "1")], true), "{page}");
        assert!(!coloured("", &[("CLICOLOR", "0")], true), "{page}");
        assert!(coloured("", &[("CLICOLOR_FORCE", "1")], false), "{page}");
        assert!(coloured("--color always", &[("NO_COLOR", "1")], false), "{page}");
        assert!(!coloured("--color=never", &[("CLICOLOR_FORCE", "1")], true), "{page}");
        assert!(!coloured("--color auto", &[], false), "{page}");
    }
    // JSON has no colours.
    assert!(!is_coloured(&format!("{report} --format json --color always"), &[], true));
}

#[test]
fn tables_have_the_rows_asked_for() {
    requires!(root, btf, watchpoints(4));
    let folder = folder();
    let file = profile(&folder);
    let all = Tracer::new().args(["report", &file, "--format", "json"]).report();
    let pairs = all["pairs"].as_array().unwrap().len();
    assert!(pairs > 2, "too few pairs to leave some out");
    assert_eq!(all["schema"], "locality-report/2");
    // Call paths are numbers here; json1 has the frames too.
    let old = Tracer::new().args(["report", &file, "--format", "json1"]).report();
    assert_eq!((&old["schema"], &old["stacks"]), (&Value::from("locality-report/1"), &Value::Null));
    let at = |table: &str, number: &Value| all[table][number.as_u64().unwrap() as usize].clone();
    for (pair, old) in all["pairs"].as_array().unwrap().iter().zip(old["pairs"].as_array().unwrap()) {
        for end in ["use", "reuse"] {
            let stack = at("stacks", &pair[end]["stack"]);
            let path = stack.as_array().unwrap().iter().map(|number| at("frames", number));
            assert_eq!(path.collect::<Vec<_>>(), *old[end]["frames"].as_array().unwrap());
            assert_eq!((&pair[end]["frames"], &pair[end]["place"]), (&Value::Null, &old[end]["place"]));
        }
    }
    let few = Tracer::new().args(["report", &file, "--format", "json", "--top", "2"]).report();
    assert_eq!(few["pairs"].as_array().unwrap().len(), 2);
    assert_eq!(few["rows_left_out"]["pairs"], pairs - 2);
    let lines = all["hot"]["by_line"].as_array().unwrap().len();
    for top in [1, 2, lines, lines + 5] {
        let page = Tracer::new().args(["report", &file, "--full", "--top", &top.to_string()]).run().stdout;
        let table =
            page.split("Hot accesses by source line").nth(1).unwrap().split("How to read").next().unwrap();
        let rows = table.lines().filter(|line| line.contains(" %") && line.starts_with("     ")).count();
        assert_eq!(rows, top.min(lines), "{page}");
    }
}

/// Text on a terminal of `columns` columns for a command line, without escape sequences.
fn on_terminal(columns: u32, arguments: &str, variables: &[(&str, &str)]) -> String {
    let binary = locality_tests::tracer::binary();
    let line = format!("stty cols {columns} rows 24; {} {arguments} --color never", binary.display());
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    for name in ["LOCALITY_PAGER", "PAGER", "LESS"] {
        script.env_remove(name);
    }
    let output = script.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

#[test]
fn the_report_is_one_screen_and_has_parts() {
    requires!(root, btf, watchpoints(4), command("script"));
    let folder = folder();
    let file = profile(&folder);
    let report = |options: &[&str], locale: &str| {
        let mut tracer = Tracer::new().args(["report", &file]).args(options);
        tracer.command().env("LC_ALL", locale);
        let printed = tracer.run();
        assert!(printed.status.success(), "{}", printed.stderr);
        printed.stdout
    };
    let screen = report(&[], "C.UTF-8");
    assert!(screen.lines().count() <= 60, "{screen}");
    for part in ["What to do", "How sure", "Cost ", " watchpoints", "locality-bpf report --pairs "] {
        assert!(screen.contains(part), "no `{part}` in {screen}");
    }
    assert!(report(&[], "C").is_ascii() && !screen.is_ascii());
    let full = report(&["--full"], "C.UTF-8");
    let parts = [
        ("--pairs", "Reuse pairs by weight"),
        ("--data", "Data objects"),
        ("--code", "Hot accesses by function"),
        ("--trust", "Ledger "),
    ];
    for (flag, title) in parts {
        let part = report(&[flag], "C.UTF-8");
        assert!(part.contains(title) && full.contains(title) && !screen.contains(title), "{flag}: {part}");
        assert!(part.len() < full.len(), "{flag}");
        let others = parts.iter().filter(|(other, _)| *other != flag);
        assert!(others.into_iter().all(|(_, other)| !part.contains(other)), "{flag}: {part}");
    }
    // Lines end before the terminal does.
    for columns in [72, 90, 132] {
        let page = on_terminal(columns, &format!("report {file}"), &[]);
        assert!(page.contains("What to do"), "{page}");
        let most = page.lines().filter(|line| !line.contains(&file)).map(|line| line.chars().count()).max();
        assert!(
            most.is_some_and(|most| most <= columns as usize && most > columns as usize * 2 / 3),
            "{page}"
        );
    }
    // The pager gets the whole report and no more.
    let pager = [("LOCALITY_PAGER", "sed s/^/paged:/")];
    let paged = |options: &str| on_terminal(100, &format!("report {file} {options}"), &pager);
    let lines = paged("--full");
    assert!(lines.lines().count() > 20 && lines.lines().all(|line| line.starts_with("paged:")), "{lines}");
    assert!(!paged("").contains("paged:") && !paged("--trust").contains("paged:"));
    assert!(!report(&["--full"], "C.UTF-8").contains("paged:"));
    let missing =
        on_terminal(100, &format!("report {file} --full"), &[("PAGER", "/no/such/pager 2>/dev/null")]);
    assert!(missing.contains("Ledger "), "{missing}");
}

#[test]
fn threads_of_the_kernel_that_work_for_a_program_are_named() {
    requires!(root, btf, watchpoints(4));
    // A read that would block goes from the polling thread to a worker.
    let names = ["[kernel] io_uring worker", "[kernel] io_uring polling thread"];
    for (how, names) in [("async", &names[..1]), ("poll", &names[..])] {
        let folder = folder();
        let alone =
            Command::new(build("uring_refill")).args(["0.1", how]).stdout(Stdio::null()).status().unwrap();
        if alone.code() == Some(77) {
            return locality_tests::requires::skip("needs io_uring");
        }
        let file = folder.path().join("t.locality").display().to_string();
        let tracer = Tracer::new().args(["-q", "-o", &file, "--no-heap", "-d", "6", "--"]);
        let traced = tracer.args([build("uring_refill")]).args(["7", how]).run();
        assert_eq!(traced.status.code(), Some(0), "{}", traced.stderr);
        let page = Tracer::new().args(["report", &file, "--full"]).run().stdout;
        assert!(page.contains("[kernel] io_uring"), "{page}");
        assert!(!page.contains("0xffffffff"), "{page}");
        let report = Tracer::new().args(["report", &file, "--format", "json1"]).report();
        let pairs = report["pairs"].as_array().unwrap();
        let by_kernel: Vec<_> = pairs
            .iter()
            .filter(|pair| {
                pair["reuse"]["place"]["function"].as_str().is_some_and(|name| names.contains(&name))
            })
            .collect();
        assert!(!by_kernel.is_empty());
        for pair in by_kernel {
            assert!(pair["kernel_share"]["value"].as_f64() > Some(0.9), "{pair:#}");
            assert!(pair["reuse"]["frames"][0]["address"].is_null(), "{pair:#}");
        }
    }
}

/// The share of pairs from one function to a second function.
fn share_of(report: &Value, from: &str, to: &str) -> f64 {
    let name = |end: &Value| end["place"]["function"].as_str().unwrap_or_default().to_owned();
    let pairs = report["pairs"].as_array().unwrap();
    let weight = |pair: &Value| pair["weight"].as_f64().unwrap_or(0.0);
    let all: f64 = pairs.iter().map(weight).sum();
    let own = pairs.iter().filter(|pair| name(&pair["use"]) == from && name(&pair["reuse"]) == to);
    own.map(weight).sum::<f64>() / all.max(f64::MIN_POSITIVE)
}

#[test]
fn touches_of_shared_memory_by_another_traced_process_are_reuses() {
    requires!(root, btf, watchpoints(4));
    let folder = folder();
    let file = folder.path().join("t.locality");
    for how in ["anonymous", "memfd"] {
        let target = Target::start("shared_turns", &["0", how]);
        let pid = target.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let both = format!("{pid},{}", children.trim());
        let mut tracer = Tracer::new();
        tracer
            .command()
            .args(["-p", &both, "-d", "6", "--overhead", "5", "-q", "--format", "json", "-o"])
            .arg(&file);
        let report = tracer.run().report();
        // One process reads the second process's last write, in both directions.
        let shares =
            [("produce", "consume"), ("consume", "produce")].map(|(from, to)| share_of(&report, from, to));
        assert!(shares.iter().all(|share| *share > 0.2), "{how}: {shares:?} {:#}", report["pairs"]);
        assert_eq!(report["ledger"]["balanced"], true, "{how}: {:#}", report["ledger"]);
    }
}

#[test]
fn memory_that_another_process_touches_is_said() {
    requires!(root, btf, watchpoints(4));
    for how in ["anonymous", "memfd", "private"] {
        let target = Target::start("shared_turns", &["0", how]);
        let folder = folder();
        let file = folder.path().join("t.locality").display().to_string();
        let report = Tracer::attach(target.pid(), "4").args(["-q", "-o", &file]).run().report_or_empty();
        let notices = report["notices"].to_string();
        let is_said = notices.contains("by other processes") && notices.contains("(shared_turns)");
        assert_eq!(is_said, how != "private", "{how}: {notices}");
    }
}
