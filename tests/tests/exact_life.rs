//! The exact engine under threads, fork, exec, signals
//! and death; the program notices no difference.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use locality_tests::{Traced, Tracer, build, requires};
use serde_json::Value;

/// Loads of one call of `work` in the program.
const WORK: u64 = 50 * 4096;

fn life(what: &[&str]) -> (Traced, Value) {
    let program = build("exact_life");
    let mut command = vec![program.to_str().expect("a path in UTF-8")];
    command.extend(what);
    exact(&command, &[])
}

fn exact(command: &[&str], options: &[&str]) -> (Traced, Value) {
    Tracer::new().args(["exact", "--format", "json1"]).args(options).report_of(command)
}

fn accesses(report: &Value) -> u64 {
    report["mix"]["accesses"].as_u64().expect("a number")
}

#[test]
fn threads_are_all_seen() {
    requires!(command("qemu-x86_64"));
    let (done, report) = life(&["threads"]);
    assert!(done.status.success(), "{}", done.stderr);
    let threads = report["threads"].as_array().expect("threads");
    assert_eq!(threads.len(), 5);
    let busy = threads.iter().filter(|thread| thread["accesses"].as_u64() >= Some(WORK)).count();
    assert_eq!(busy, 4, "{threads:?}");
    assert_eq!(report["partial"], false);
}

#[test]
fn threads_in_one_order_share_their_data() {
    requires!(command("qemu-x86_64"));
    let program = build("exact_life");
    let program = program.to_str().expect("a path in UTF-8");
    let (apart, separate) = exact(&[program, "threads"], &[]);
    let (together, one) = exact(&[program, "threads"], &["--one-order"]);
    assert!(apart.status.success() && together.status.success(), "{}", together.stderr);
    assert!(accesses(&one).abs_diff(accesses(&separate)) < 5_000);
    let footprint = |report: &Value| report["reuse"]["64"]["footprint_bytes"].as_u64().expect("a number");
    // The array of 32 KiB counts once for the process, and once for each of four threads apart.
    assert!(
        footprint(&one) + 3 * 32_768 <= footprint(&separate),
        "{} {}",
        footprint(&one),
        footprint(&separate)
    );
}

#[test]
fn forked_children_are_seen() {
    requires!(command("qemu-x86_64"));
    let (done, report) = life(&["fork"]);
    assert!(done.status.success(), "{}", done.stderr);
    assert!(accesses(&report) >= 3 * WORK);
    let pids: std::collections::BTreeSet<u64> = report["threads"]
        .as_array()
        .expect("threads")
        .iter()
        .filter_map(|thread| thread["pid"].as_u64())
        .collect();
    assert_eq!(pids.len(), 4);
}

#[test]
fn a_program_that_replaces_itself_is_seen_before_and_after() {
    requires!(command("qemu-x86_64"));
    let (done, report) = life(&["exec"]);
    assert_eq!(done.status.code(), Some(7), "{}", done.stderr);
    assert_eq!(done.stdout, "renamed -");
    assert!(accesses(&report) >= WORK);
    let run = &report["run"];
    assert_eq!(run["programs"].as_array().map(Vec::len), Some(2));
    // As in a trace: a date in UTC, of the same instant as the nanoseconds beside the date.
    let started = run["started"].as_str().expect("a date");
    let seconds = run["started_unix_ns"].as_u64().expect("a number") / 1_000_000_000;
    let date =
        std::process::Command::new("date").args(["-u", "+%s", "-d", started]).output().expect("date runs");
    assert_eq!(String::from_utf8_lossy(&date.stdout).trim(), seconds.to_string(), "{started}");
    assert_eq!((&run["exit_status"], &run["measured"]), (&7.into(), &"data accesses".into()));
    assert_eq!((&run["order"], &run["functions"]), (&"each thread's own".into(), &Value::Array(Vec::new())));
    assert_eq!(report["partial"], false);
}

#[test]
fn what_is_spawned_is_seen() {
    requires!(command("qemu-x86_64"));
    let (done, report) = life(&["spawn"]);
    assert!(done.status.success(), "{}", done.stderr);
    let programs = report["run"]["programs"].to_string();
    assert!(programs.contains("/bin/sh"), "{programs}");
}

#[test]
fn an_exec_that_fails_fails_as_ever() {
    requires!(command("qemu-x86_64"));
    let (done, report) = life(&["exec-missing"]);
    assert!(done.status.success());
    assert!(accesses(&report) >= WORK);
}

#[test]
fn signal_handlers_run() {
    requires!(command("qemu-x86_64"));
    let (done, report) = life(&["signal"]);
    assert!(done.status.success(), "{}", done.stderr);
    assert!(accesses(&report) >= WORK);
}

#[test]
fn death_by_a_signal_leaves_the_counts() {
    requires!(command("qemu-x86_64"));
    for (what, signal, name) in [("segv", 11, "SIGSEGV"), ("kill", 9, "SIGKILL")] {
        let (done, report) = life(&[what]);
        assert_eq!(done.status.code(), Some(128 + signal), "{}", done.stderr);
        assert!(accesses(&report) >= WORK, "{what}: {}", accesses(&report));
        assert_eq!(report["partial"], true);
        assert!(report["run"]["ended_by"].as_str().is_some_and(|text| text.contains(name)));
    }
}

/// As alone: the program's stderr has no line of QEMU's,
/// and a search for the process finds the program's name.
#[test]
fn a_signal_that_ends_the_command_is_told_by_us_alone() {
    requires!(command("qemu-x86_64"));
    let (done, _) = life(&["segv"]);
    assert!(!done.stderr.contains("qemu"), "{}", done.stderr);
    assert!(done.stderr.contains("was ended by SIGSEGV"), "{}", done.stderr);
    let (done, _) = exact(&["sh", "-c", "kill -9 $$"], &["-q"]);
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(137), ""));
    let (done, _) = exact(&["sh", "-c", "cat /proc/$$/comm"], &[]);
    assert_eq!(done.stdout.trim(), "sh");
}

/// A first SIGTERM is for the command, which ignores the signal; a later one is for the tool.
#[test]
fn a_second_signal_ends_a_recording_that_the_command_outlives() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report");
    let mut tracer = Tracer::new().args(["exact", "--format", "json1", "--report"]).args([&file]);
    tracer =
        tracer.args(["--", "sh", "-c", "trap '' TERM; echo $$; while [ -d /proc/$PPID ]; do sleep .1; done"]);
    let command = tracer.command();
    command.stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null());
    let mut child = command.spawn().expect("the tracer starts");
    let mut line = [0; 2];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("the command has begun");
    let signal = || {
        // SAFETY: a system call with plain arguments; the child has not been waited for.
        unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    };
    signal();
    // One request, sent by `timeout` to the child and to the group.
    signal();
    std::thread::sleep(std::time::Duration::from_millis(700));
    signal();
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(128 + 15));
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("a report")).expect("JSON");
    assert_eq!(report["partial"], true);
    assert!(accesses(&report) > 0);
    let ended_by = report["run"]["ended_by"].as_str().expect("words");
    assert!(ended_by.contains("SIGTERM") && ended_by.contains("runs on"), "{ended_by}");
}

#[test]
fn an_instruction_that_qemu_lacks_is_named_and_no_other() {
    requires!(command("qemu-x86_64"));
    let ended_by = |what| {
        let (done, report) = life(&[what]);
        assert_eq!(done.status.code(), Some(128 + 4), "{}", done.stderr);
        assert!(accesses(&report) >= WORK);
        report["run"]["ended_by"].as_str().expect("words").to_owned()
    };
    let lacking = ended_by("avx512");
    assert!(lacking.contains("SIGILL") && lacking.contains("vpaddd (AVX512F)"), "{lacking}");
    let invalid = ended_by("ud2");
    assert!(invalid.contains("SIGILL") && !invalid.contains("QEMU"), "{invalid}");
}

/// The killed tracer leaves the command running; the next run removes the files left over.
#[test]
fn the_command_outlives_a_tracer_that_is_killed() {
    requires!(command("qemu-x86_64"));
    let mut tracer = Tracer::new().args(["exact", "-q", "--"]).args([build("exact_life")]).args(["outlive"]);
    let command = tracer.command();
    command.stdout(Stdio::piped()).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the tracer starts");
    let mut output = child.stdout.take().expect("a pipe");
    let mut line = [0; 8];
    output.read_exact(&mut line).expect("the program waits");
    let left = std::path::PathBuf::from(format!("/dev/shm/locality-exact.{}", child.id()));
    let input = child.stdin.take().expect("a pipe");
    child.kill().expect("it is killed");
    child.wait().expect("it is gone");
    assert!(left.exists());
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("the program goes on");
    assert_eq!(rest, "worked\n");
    let next = Tracer::new().args(["exact", "-q", "--", "true"]).run();
    assert!(next.status.success());
    assert!(!left.exists());
}

/// `yes | head`: the command dies of SIGPIPE, as untraced.
#[test]
fn a_reader_that_goes_away_ends_the_command() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut tracer = Tracer::new().args(["exact", "-q", "--report"]).args([folder.path().join("report")]);
    tracer = tracer.args(["--", "yes"]);
    let command = tracer.command();
    command.stdout(Stdio::piped()).stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the tracer starts");
    let mut line = [0; 2];
    child.stdout.take().expect("a pipe").read_exact(&mut line).expect("a line");
    assert_eq!(child.wait().expect("it ends").code(), Some(128 + 13));
    let report = std::fs::read_to_string(folder.path().join("report")).expect("a report");
    assert!(report.contains("SIGPIPE"), "{report}");
}

#[test]
fn generated_code_is_counted() {
    requires!(command("qemu-x86_64"));
    let program = build("jit_loop");
    let (done, report) = exact(&["timeout", "2", program.to_str().expect("a path in UTF-8")], &[]);
    let frames = report["pairs"].to_string();
    assert!(frames.contains("generated code") && frames.contains("[jit]"), "{}", done.stderr);
}

#[test]
fn ctrl_c_ends_the_command_and_leaves_a_partial_report() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report");
    let mut tracer = Tracer::new().args(["exact", "--format", "json1", "--report"]).args([&file]);
    tracer = tracer.args(["--"]).args([build("exact_life")]).args(["wait"]);
    let command = tracer.command();
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    // A separate process group, as of a terminal's foreground job.
    std::os::unix::process::CommandExt::process_group(command, 0);
    // A shell starts background commands with SIGINT ignored, and children inherit the disposition.
    // SAFETY: `signal` may be called between fork and exec, and is the only call here.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, || {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    let mut child = command.spawn().expect("the tracer starts");
    let mut line = [0; 8];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("the program waits");
    // SAFETY: a system call with plain arguments; the group is the child's.
    unsafe { libc::kill(-child.id().cast_signed(), libc::SIGINT) };
    let status = child.wait().expect("it ends");
    assert_eq!((status.code(), status.signal()), (Some(130), None));
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("a report")).expect("JSON");
    assert_eq!(report["partial"], true);
    assert!(accesses(&report) >= WORK);
}

#[test]
fn a_script_and_what_it_calls_are_seen() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/bin/sh -e\necho \"$1\"\n/bin/cat /dev/null | /bin/cat\nexit 5\n")
        .expect("a script");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    let (done, report) = exact(&[script.to_str().expect("a path in UTF-8"), "two words"], &[]);
    assert_eq!(done.status.code(), Some(5), "{}", done.stderr);
    assert_eq!(done.stdout, "two words");
    let programs = report["run"]["programs"].to_string();
    assert!(programs.matches("/bin/cat").count() == 2, "{programs}");
}

#[test]
fn input_output_arguments_and_environment_pass_through() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut tracer = Tracer::new().args(["exact", "-q", "--report"]).args([folder.path().join("report")]);
    tracer = tracer.args([
        "--",
        "sh",
        "-c",
        "cat; echo \"$1 $LOCALITY_TEST\"; echo wrong >&2; exit 4",
        "sh",
        "a, b",
    ]);
    let command = tracer.command();
    command.env("LOCALITY_TEST", "of the environment");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the tracer starts");
    child.stdin.take().expect("a pipe").write_all(b"from stdin\n").expect("it reads");
    let done = child.wait_with_output().expect("it ends");
    assert_eq!(done.status.code(), Some(4));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "from stdin\na, b of the environment\n");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "wrong\n");
}

#[test]
fn a_stored_report_is_printed_again() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let stored = folder.path().join("run.locality");
    let first = Tracer::new().args(["exact", "-q", "-o"]).args([&stored]).args(["--", "true"]).run();
    assert!(first.status.success(), "{}", first.stderr);
    assert!(first.stderr.contains("Exact run of `true`"), "{}", first.stderr);
    let again = Tracer::new().args(["report"]).args([&stored]).run();
    assert_eq!(again.stdout.trim(), first.stderr.trim());
    let json = Tracer::new().args(["report", "--format", "json1"]).args([&stored]).report();
    assert_eq!(json["run"]["mode"], "exact");
}

#[test]
fn the_folder_of_the_run_is_gone_afterwards() {
    requires!(command("qemu-x86_64"));
    let tracer = Tracer::new().args(["exact", "-q", "--", "true"]).start();
    let name = format!("/dev/shm/locality-exact.{}", tracer.pid());
    tracer.finish(std::time::Duration::from_secs(60));
    assert!(!std::path::Path::new(&name).exists());
}
