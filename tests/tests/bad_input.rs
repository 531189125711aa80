//! Invalid targets, input and output: one clear sentence with the
//! remedy, the exit status of the contract, and no loss of data.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::BufRead as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use locality_tests::{Target, Traced, Tracer, build, requires};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// A user present on every Linux system, who owns no files.
const NOBODY: u32 = 65534;

/// A directory open to every user, removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bad-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Copies the tracer to a place open to any user; the directory of the build may be closed.
    fn tracer(&self) -> String {
        let copy = self.path("locality-bpf");
        std::fs::copy(Tracer::new().command().get_program(), &copy).unwrap();
        copy
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn run(arguments: &[&str]) -> Traced {
    Tracer::new().args(arguments).run()
}

fn shell(script: &str) -> Traced {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let finished = Target::spawn(command).finish(LIMIT);
    Traced { status: finished.status, stdout: finished.stdout.join("\n"), stderr: finished.stderr }
}

/// Traces a process for `seconds` and discards the profile.
fn trace(pid: u32, seconds: &str) -> Traced {
    trace_with(pid, seconds, &[])
}

fn trace_with(pid: u32, seconds: &str, arguments: &[&str]) -> Traced {
    let scratch = Scratch::new(&format!("trace-{pid}"));
    Tracer::attach(pid, seconds).args(["-q", "-o", &scratch.path("t.locality")]).args(arguments).run()
}

fn notices(report: &Value) -> String {
    report["notices"].to_string()
}

#[test]
fn pids_that_name_no_process_of_ours_to_trace() {
    requires!(root, btf);
    let target = Target::start("producer_consumer", &["20"]);
    let pid = target.pid();
    run(&["-p", "1073741000"]).assert_refused(1, &["1073741000", "no such process", "ps aux"]);
    run(&["-p", &format!("{pid},1073741000"), "-d", "1"])
        .assert_refused(1, &["1073741000", "no such process"]);
    let thread = target.threads().into_iter().find(|tid| *tid != pid).unwrap();
    run(&["-p", &thread.to_string()]).assert_refused(1, &["thread of process", &format!("-p {pid}")]);
    run(&["-p", "2"]).assert_refused(1, &["thread of the kernel"]);
    let mut zombie = Command::new("true").spawn().unwrap();
    while !std::fs::read_to_string(format!("/proc/{}/stat", zombie.id())).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(5));
    }
    run(&["-p", &zombie.id().to_string()]).assert_refused(1, &["has ended"]);
    zombie.wait().unwrap();
}

#[test]
fn a_process_that_ends_at_once() {
    requires!(root, btf, watchpoints(4));
    for life_ms in ["0.02", "0.2", "0.4"] {
        let mut command = Command::new("sleep");
        let target = Target::spawn({
            command.arg(life_ms);
            command
        });
        let traced = trace(target.pid(), "5");
        // No sample was possible: the wording varies, the status is never success.
        assert_eq!(traced.status.code(), Some(1), "{life_ms}: {} {}", traced.stdout, traced.stderr);
        assert!(!traced.stderr.contains("panicked"), "{}", traced.stderr);
        assert!(!traced.stdout.is_empty() || traced.stderr.lines().count() == 1, "{}", traced.stderr);
    }
    let scratch = Scratch::new("true");
    let traced = run(&["-q", "-o", &scratch.path("t.locality"), "--", "true"]);
    assert_eq!(traced.status.code(), Some(0), "{}", traced.stderr);
    assert!(
        traced.stderr.contains("Nothing was sampled") || traced.stderr.contains("reuse"),
        "{}",
        traced.stderr
    );
}

#[test]
fn children_that_ran_before_the_trace_are_named() {
    requires!(root, btf);
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 30 & echo $!; wait"]).stdout(Stdio::piped());
    let mut shell = command.spawn().unwrap();
    let mut child = String::new();
    std::io::BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut child).unwrap();
    let child = child.trim();
    let scratch = Scratch::new("children");
    let traced = |pids: &str| run(&["-d", "1", "-o", &scratch.path("t.locality"), "-p", pids]);
    let parent = traced(&shell.id().to_string());
    let both = traced(&format!("{},{child}", shell.id()));
    let killed = [child, &shell.id().to_string()].map(|pid| Command::new("kill").arg(pid).status().unwrap());
    shell.wait().unwrap();
    assert!(killed.iter().all(std::process::ExitStatus::success));
    assert!(parent.stderr.contains(&format!("(-p {child})")), "{}", parent.stderr);
    assert!(parent.stdout.contains("child process was running before"), "{}", parent.stdout);
    assert!(!both.stdout.contains("child process"), "{}", both.stdout);
}

#[test]
fn a_32_bit_process() {
    requires!(root, btf, ia32);
    let target = Target::start("thirty_two_bit", &["20"]);
    trace(target.pid(), "1").assert_refused(1, &["not a 64-bit x86 program"]);
}

#[test]
fn a_process_that_a_debugger_holds_is_measured_without_stops() {
    requires!(root, btf, watchpoints(4));
    let target = Target::start("two_loops", &[]);
    let pid = libc::pid_t::try_from(target.pid()).unwrap();
    // SAFETY: a request without memory arguments; this thread is the debugger until it ends.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) }, 0);
    let report = trace_with(target.pid(), "2", &["--watch-unheld"]).report();
    assert_eq!(report["overhead"]["stops"], 0);
    let expected = format!("already traced by process {}", std::process::id());
    assert!(notices(&report).contains(&expected), "{}", notices(&report));
    assert_eq!(report["ledger"]["balanced"], true);
}

#[test]
fn a_stopped_process_stays_stopped() {
    requires!(root, btf, watchpoints(4));
    let target = Target::start("two_loops", &[]);
    target.signal(libc::SIGSTOP);
    let traced = trace(target.pid(), "1");
    assert_eq!(traced.status.code(), Some(1), "{} {}", traced.stdout, traced.stderr);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", target.pid())).unwrap();
    assert!(stat.contains(") T "), "{stat}");
    target.signal(libc::SIGCONT);
    assert_eq!(trace(target.pid(), "1").status.code(), Some(0));
}

#[test]
fn processes_that_their_user_may_not_look_into() {
    requires!(root, btf, watchpoints(4));
    let scratch = Scratch::new("setuid");
    for (program, mode) in [("non_dumpable", 0o755), ("two_loops", 0o4755)] {
        let copy = scratch.path(program);
        std::fs::copy(build(program), &copy).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&copy);
        command.uid(NOBODY);
        let target = Target::start_command(command);
        let report = trace(target.pid(), "2").report();
        assert!(report["run"]["samples"].as_u64().unwrap() > 3, "{:#}", report["run"]);
    }
}

/// The C compiler here links LeakSanitizer.
fn leak_sanitizer() -> Result<(), String> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-fsanitize=leak", "-x", "c", "-", "-o", "/dev/null"])
        .stderr(Stdio::null())
        .stdin(Stdio::piped());
    let mut gcc = gcc.spawn().map_err(|e| format!("needs gcc: {e}"))?;
    std::io::Write::write_all(&mut gcc.stdin.take().unwrap(), b"int main(void){return 0;}").unwrap();
    match gcc.wait().unwrap().success() {
        true => Ok(()),
        false => Err("needs a gcc that links LeakSanitizer".to_owned()),
    }
}

#[test]
fn a_process_under_leak_sanitizer_can_still_look_for_leaks() {
    requires!(root, btf, watchpoints(4));
    if let Err(reason) = leak_sanitizer() {
        return locality_tests::requires::skip(&reason);
    }
    let target = Target::start("leak_checked", &["3"]);
    let report = trace_with(target.pid(), "20", &["--watch-unheld"]).report();
    let finished = target.finish(LIMIT);
    assert_eq!(finished.status.code(), Some(23), "{finished:?}");
    assert!(finished.stderr.contains("detected memory leaks"), "{finished:?}");
    assert!(notices(&report).contains("looks for leaks"), "{}", notices(&report));
    let scratch = Scratch::new("leak");
    let (profile, report, program) = (scratch.path("t.locality"), scratch.path("r"), build("leak_checked"));
    let launched = run(&["-q", "-o", &profile, "--report", &report, "--", program.to_str().unwrap(), "1"]);
    assert_eq!(launched.status.code(), Some(23), "{}", launched.stderr);
    assert!(launched.stderr.contains("detected memory leaks"), "{}", launched.stderr);
}

#[test]
fn without_rights() {
    requires!(root, btf, command("setpriv"));
    let scratch = Scratch::new("rights");
    let tracer = scratch.tracer();
    let nobody = format!("setpriv --reuid {NOBODY} --clear-groups {tracer}");
    shell(&format!("{nobody} -p 1 -d 1")).assert_refused(1, &["needs root", "sudo"]);
    shell(&format!("{nobody} -- true")).assert_refused(1, &["needs root", "sudo"]);
    let profile = scratch.path("root.locality");
    assert!(run(&["-q", "-o", &profile, "--", "true"]).status.success());
    shell(&format!("{nobody} report {profile}")).assert_refused(1, &["root.locality", "Permission denied"]);
}

#[test]
fn without_kernel_types() {
    requires!(root, btf, command("unshare"));
    let scratch = Scratch::new("btf");
    let script = format!(
        "mount --bind {} /sys/kernel/btf && exec {} -p 1 -d 1",
        scratch.0.display(),
        scratch.tracer()
    );
    shell(&format!("unshare -m sh -c '{script}'"))
        .assert_refused(1, &["/sys/kernel/btf", "CONFIG_DEBUG_INFO_BTF"]);
}

#[test]
fn debug_registers_that_another_has_taken() {
    requires!(root, btf, watchpoints(4));
    let target = Target::start("debugger_registers_taken", &["3"]);
    let scratch = Scratch::new("taken");
    let (pid, profile) = (target.pid().to_string(), scratch.path("t.locality"));
    // Windows show short reuses without any register; the report must state that the rest is
    // missing.
    let traced = run(&["-q", "-p", &pid, "-d", "2", "-o", &profile, "--full"]);
    assert!(matches!(traced.status.code(), Some(0 | 1)), "{}", traced.stderr);
    let text = traced.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("debug registers of the traced threads are taken"), "{}", traced.stdout);
    let again = run(&["report", &profile, "--format", "json"]);
    assert_eq!(again.status.code(), traced.status.code());
    let report: Value = serde_json::from_str(&again.stdout).unwrap();
    assert!(report["ledger"]["watch"]["refused"].as_u64().unwrap() > 0, "{:#}", report["ledger"]);
    assert_eq!(target.finish(LIMIT).status.code(), Some(0));
}

#[test]
fn a_full_disk_costs_the_file_but_not_the_report() {
    requires!(root, btf, watchpoints(4), command("unshare"));
    let target = Target::start("two_loops", &[]);
    let scratch = Scratch::new("disk");
    let (pid, tracer, disk) = (target.pid(), scratch.tracer(), scratch.path("disk"));
    let (rest, file) = (scratch.path("rest.json"), format!("{disk}/t.locality"));
    std::fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=208k tmpfs {disk} && \
         {tracer} -p {pid} -d 20 --overhead 20 -o {file} --format json; status=$?; \
         {tracer} report {file} --format json >{rest}; exit $status"
    );
    let traced = shell(&format!("unshare -m sh -c '{script}'"));
    assert_eq!(traced.status.code(), Some(1), "{}", traced.stderr);
    assert!(traced.stderr.contains("no space left on the disk"), "{}", traced.stderr);
    let samples = |text: &str| -> u64 {
        let report: Value =
            serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text} {}", traced.stderr));
        report["run"]["samples"].as_u64().unwrap()
    };
    let in_file = samples(&std::fs::read_to_string(rest).unwrap());
    assert!(samples(&traced.stdout) > in_file, "{in_file}: {}", traced.stderr);
    let report: Value = serde_json::from_str(&traced.stdout).unwrap();
    assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
    assert!(notices(&report).contains("ended early"), "{}", notices(&report));
}

/// A profile of an interrupted trace is printed as far as it goes, and is no success.
fn unfinished(whole: &str, copy: &str) {
    std::fs::copy(whole, copy).unwrap();
    let database = rusqlite::Connection::open(copy).unwrap();
    assert_eq!(database.execute("UPDATE state SET finished = 0", []).unwrap(), 1);
    drop(database);
    for words in
        [&["report"][..], &["report", "--format", "json"], &["objects"], &["objects", "--format", "json"]]
    {
        let complete = run(&[words, &[whole]].concat());
        assert!(complete.status.success(), "{words:?}: {}", complete.stderr);
        let printed = run(&[words, &[copy]].concat());
        assert_eq!(printed.status.code(), Some(1), "{words:?}: {}", printed.stderr);
        assert!(
            printed.stderr.contains("is not complete") && printed.stderr.contains(copy),
            "{}",
            printed.stderr
        );
        assert!(printed.stdout.len() > 100, "{words:?}: {}", printed.stdout);
    }
}

#[test]
fn files_that_are_no_whole_profile() {
    requires!(root, btf, watchpoints(4));
    let target = Target::start("two_loops", &[]);
    let scratch = Scratch::new("files");
    let whole = scratch.path("whole.locality");
    let traced = run(&["-q", "-p", &target.pid().to_string(), "-d", "2", "-o", &whole]);
    assert!(traced.status.success(), "{}", traced.stderr);
    let bytes = std::fs::read(&whole).unwrap();
    let report = |name: &str, bytes: &[u8]| {
        let path = scratch.path(name);
        std::fs::write(&path, bytes).unwrap();
        run(&["report", "--full", &path])
    };
    assert_eq!(report("copy", &bytes).stdout, run(&["report", "--full", &whole]).stdout);
    let samples = |options: &[&str]| {
        let all = [&["report", &whole, "--format", "json"], options].concat();
        let report: Value = serde_json::from_str(&run(&all).stdout).unwrap();
        (report["run"]["samples"].as_u64().unwrap(), notices(&report).contains("first 1 s"))
    };
    let (all, first) = (samples(&[]), samples(&["--first", "1"]));
    assert!(first.0 > 0 && first.0 < all.0 && first.1 && !all.1, "{first:?} of {all:?}");
    assert_eq!(samples(&["--first", "9"]).0, all.0);
    let nothing = run(&["report", &whole, "--first", "0"]);
    assert!(nothing.status.code() == Some(2) && nothing.stderr.contains("--first"), "{}", nothing.stderr);
    report("empty", b"").assert_refused(1, &["empty", "is empty"]);
    report("text", b"just a text\n").assert_refused(1, &["text", "not a locality profile"]);
    let mut newer = bytes.clone();
    // The user version of a SQLite database stands big-endian at byte 60 of the file
    // (sqlite.org/fileformat.html).
    newer[60..64].copy_from_slice(&99u32.to_be_bytes());
    report("newer", &newer).assert_refused(1, &["99", "newer locality-bpf"]);
    for part in [bytes.len() / 2, bytes.len() - 5000] {
        let traced = report("truncated", &bytes[..part]);
        assert!(!traced.stderr.contains("panicked"), "{}", traced.stderr);
        match traced.status.code() {
            Some(1) if traced.stdout.is_empty() => traced.assert_refused(1, &["damaged"]),
            Some(1) => assert!(traced.stdout.contains("damaged"), "{}", traced.stdout),
            _ => panic!("{} {}", traced.status, traced.stderr),
        }
        let listed = run(&["objects", &scratch.path("truncated")]);
        assert_eq!(listed.status.code(), Some(1), "{}", listed.stderr);
    }
    unfinished(&whole, &scratch.path("unfinished"));
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    run(&["report", &pipe]).assert_refused(1, &["pipe", "not a locality profile"]);
    run(&["report", &scratch.path("missing")]).assert_refused(1, &["no such profile file"]);
    run(&["report", &scratch.0.display().to_string()]).assert_refused(1, &["directory"]);
}

#[test]
fn places_that_cannot_be_written() {
    requires!(root, btf, watchpoints(4));
    let target = Target::start("two_loops", &[]);
    let pid = target.pid().to_string();
    let scratch = Scratch::new("places");
    run(&["-p", &pid, "-d", "1", "-o", "/proc/x.locality"])
        .assert_refused(1, &["/proc/x.locality", "-o FILE"]);
    let mut tracer = Tracer::new().args(["-p", &pid, "-d", "1"]);
    tracer.command().current_dir("/proc");
    tracer.run().assert_refused(1, &["trace.locality", "-o FILE"]);
    let foreign = scratch.path("notes");
    std::fs::write(&foreign, "my notes").unwrap();
    run(&["-p", &pid, "-d", "1", "-o", &foreign]).assert_refused(1, &["notes", "-o FILE"]);
    assert_eq!(std::fs::read_to_string(&foreign).unwrap(), "my notes");
    // A report without a place is known before anything is measured, for a launched command too.
    let profile = scratch.path("t.locality");
    run(&["-q", "-p", &pid, "-o", &profile, "--report", "/proc/report"]).assert_refused(1, &["/proc/report"]);
    let marker = scratch.path("ran");
    run(&["-q", "-o", &profile, "--report", "/proc/report", "--", "touch", &marker])
        .assert_refused(1, &["/proc/report"]);
    assert!(!std::path::Path::new(&profile).exists() && !std::path::Path::new(&marker).exists());
    run(&["-q", "-p", &pid, "-d", "1", "-o", &profile, "--report", &profile])
        .assert_refused(2, &["t.locality", "another name"]);
    // If the error comes late, the measured data have a place.
    let traced = run(&["-q", "-p", &pid, "-d", "2", "-o", &profile, "--report", "/dev/full"]);
    traced.assert_refused(1, &["/dev/full"]);
    assert!(run(&["report", &profile]).status.success());
}

#[test]
fn a_reader_that_went_away() {
    requires!(root, btf, watchpoints(4));
    let target = Target::start("two_loops", &[]);
    let scratch = Scratch::new("pipe");
    let mut tracer = Tracer::new().args(["-q", "-p", &target.pid().to_string(), "-d", "1"]);
    tracer.command().args(["-o", &scratch.path("t.locality")]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tracer.command().spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn commands_that_cannot_run() {
    requires!(root, btf, watchpoints(4));
    let scratch = Scratch::new("commands");
    let profile = scratch.path("t.locality");
    let launch = |word: &str| run(&["-o", &profile, "--", word]);
    launch("no-such-command-here").assert_refused(127, &["no-such-command-here", "PATH"]);
    launch("").assert_refused(127, &["empty"]);
    launch(&scratch.path("missing")).assert_refused(127, &["missing"]);
    launch("/").assert_refused(126, &["directory"]);
    let plain = scratch.path("plain");
    std::fs::write(&plain, "echo").unwrap();
    launch(&plain).assert_refused(126, &["plain", "chmod +x"]);
    assert!(!Path::new(&profile).exists(), "a profile of nothing");
    let script = scratch.path("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    launch(&script).assert_refused(127, &["script"]);
}

#[test]
fn wrong_use() {
    for arguments in [
        &["-p"][..],
        &["-p", "x"],
        &["-p", "1", "-d", "0"],
        &["-p", "1", "-d", "soon"],
        &["-p", "1", "-d", "-1"],
        &["report", "p.locality", "--first", "-1"],
        &["report", "p.locality", "--top", "many"],
        &["report", "p.locality", "--pairs", "--data"],
        &["-p", "1", "--overhead", "0"],
        &["-p", "1", "--", "true"],
        &["--"],
        &["report"],
        &["-p", "1", "--until-ci", "5%", "--no-stop"],
        &[],
    ] {
        let traced = run(arguments);
        assert_eq!(traced.status.code(), Some(2), "{arguments:?}: {}", traced.stderr);
        assert!(traced.stderr.contains("Usage") || traced.stderr.contains("error:"), "{}", traced.stderr);
    }
    for words in [&["report", "p.locality"][..], &["-p", "1"]] {
        let words = [words, &["--code", "--format", "json"]].concat();
        run(&words).assert_refused(2, &["--code is a part of the text report", "--format out"]);
    }
    for pid in ["abc", "-1", "0", ""] {
        let traced = run(&["-p", pid]);
        assert!(
            traced.status.code() == Some(2) && traced.stderr.contains("as in -p 1234"),
            "{}",
            traced.stderr
        );
    }
    run(&["-p", "1", "--format", "callgrind"]).assert_refused(2, &["only an exact run"]);
    // A report in the profile's place would be the end of the profile.
    for command in ["report", "objects"] {
        let scratch = Scratch::new(&format!("onto-{command}"));
        let profile = scratch.path("p.locality");
        std::fs::write(&profile, "all that there is").unwrap();
        let (link, earlier) = (scratch.path("latest"), format!("{profile}.old"));
        std::os::unix::fs::symlink(&profile, &link).unwrap();
        for (read, written) in
            [(&profile, &profile), (&link, &profile), (&profile, &link), (&profile, &earlier)]
        {
            let onto = run(&[command, read, "--report", written]);
            onto.assert_refused(2, &["would replace the profile", "another name"]);
        }
        assert_eq!(std::fs::read_to_string(&profile).unwrap(), "all that there is");
    }
}

#[test]
fn a_cgroup_that_does_not_exist() {
    requires!(root, btf);
    run(&["--cgroup", "/no/such.slice", "-d", "1"]).assert_refused(1, &["no cgroup /no/such.slice"]);
}
