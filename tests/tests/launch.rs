//! A launched command starts as it would alone, live and
//! under `exact`, for every state arranged by the parent.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use locality_tests::{build, requires};

/// A parent: arranges the state named by the first
/// argument, then becomes the rest of the arguments.
const PARENT: &str = r#"
import ctypes, os, resource, signal, sys
prctl = ctypes.CDLL(None).prctl
def kept(number):
    file = os.open(__file__ if '__file__' in globals() else '/etc/passwd', os.O_RDONLY)
    os.lseek(file, 3, os.SEEK_SET)
    os.dup2(file, number, inheritable=True)
    os.close(file)
def limit(which, soft, hard): resource.setrlimit(which, (soft, hard))
every = resource.RLIM_INFINITY
def ways():
    yield 'plain', lambda: None
    yield 'nohup', lambda: (signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGPIPE, signal.SIG_IGN))
    yield 'default', lambda: [signal.signal(s, signal.SIG_DFL) for s in (signal.SIGPIPE, signal.SIGXFSZ)]
    yield 'ignored', lambda: [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 10, 13, 15, 17, 20, 25, 28)]
    yield 'blocked', lambda: (signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 10, 15, 17, 20]),
                              os.kill(os.getpid(), 10), os.kill(os.getpid(), 17))
    yield 'real-time', lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [34, 50, 64])
    yield 'descriptors', lambda: (kept(3), kept(4), kept(9), kept(200))
    yield 'no input', lambda: os.close(0)
    yield 'no error', lambda: os.close(2)
    yield 'few descriptors', lambda: limit(resource.RLIMIT_NOFILE, 32, 32)
    yield 'soft', lambda: (limit(resource.RLIMIT_NOFILE, 64, 4096), limit(resource.RLIMIT_CORE, 0, 4096),
                           limit(resource.RLIMIT_STACK, 1 << 20, every), limit(resource.RLIMIT_MEMLOCK, 65536, 65536))
    yield 'stack', lambda: limit(resource.RLIMIT_STACK, every, every)
    yield 'file size', lambda: limit(resource.RLIMIT_FSIZE, 1 << 20, every)
    yield 'session', lambda: os.setsid()
    yield 'folder', lambda: (os.chdir('/'), os.umask(0o77))
    yield 'priority', lambda: (os.nice(7), os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[-1]]))
    yield 'batch', lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    yield 'process', lambda: (prctl(1, 12), prctl(29, 123456), prctl(38, 1, 0, 0, 0),
                              open('/proc/self/oom_score_adj', 'w').write('77'), ctypes.CDLL(None).personality(0x40000))
    yield 'reaper', lambda: prctl(36, 1)
    yield 'timer', lambda: (signal.setitimer(signal.ITIMER_REAL, 300), signal.setitimer(signal.ITIMER_PROF, 300, 7))
    yield 'environment', lambda: (os.environ.clear(), os.environ.update(
        {'B': '1', 'A': 'x,y', 'QEMU_X': 'z', 'E': '', 'PATH': '/usr/bin:/bin', 'LOCALITY_TEST': 'ü\n!'}))
    yield 'linker', lambda: (os.environ.clear(), os.environ.update({'LD_LIBRARY_PATH': '/nowhere', 'LD_BIND_NOW': '1', 'Z': '2'}))
    yield 'alarm', lambda: signal.setitimer(signal.ITIMER_REAL, 6)
dict(ways())[sys.argv[1]]()
os.execvp(sys.argv[2], sys.argv[2:])
"#;

/// The states that [`PARENT`] arranges, but for the alarm and for states lost under QEMU: real-time
/// signals by number, whether the program is a reaper of orphans.
const WAYS: [&str; 20] = [
    "plain",
    "nohup",
    "default",
    "ignored",
    "blocked",
    "descriptors",
    "no input",
    "no error",
    "few descriptors",
    "soft",
    "stack",
    "file size",
    "session",
    "folder",
    "priority",
    "batch",
    "process",
    "timer",
    "environment",
    "linker",
];

/// The tracer's program file.
fn tracer() -> PathBuf {
    locality_tests::tracer::binary()
}

/// Starts a command below the parent.
fn below(way: &str, command: &[&str], folder: &Path) -> Output {
    Command::new("/usr/bin/env")
        .args(["python3", "-c", PARENT, way])
        .args(command)
        .env("LOCALITY_TEST_FOLDER", folder)
        .stdin(Stdio::null())
        .output()
        .expect("python3 runs")
}

/// The program's output and exit status.
fn seen(output: &Output) -> (Vec<String>, Option<i32>) {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // QEMU receives these variables apart from the rest, so they come first under QEMU.
    let is_apart =
        |line: &String| line.starts_with("environment LD_") || line.starts_with("environment QEMU_");
    lines.sort_by_key(|line| std::cmp::Reverse(is_apart(line)));
    (lines, output.status.code())
}

/// Compares runs alone and launched, for each way to be started.
fn compare(ways: &[&str], options: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, tracer) = (build("inherits"), tracer());
    let (program, tracer) = (program.to_str().expect("UTF-8"), tracer.to_str().expect("UTF-8"));
    let (profile, report) = (folder.path().join("profile"), folder.path().join("report"));
    let (profile, report) = (profile.to_str().expect("UTF-8"), report.to_str().expect("UTF-8"));
    for way in ways {
        let words = [program, "one", "", "a b"];
        let alone = below(way, &words, folder.path());
        let mut command = vec![tracer];
        command.extend(options);
        command.extend(["-q", "-o", profile, "--report", report, "--"]);
        command.extend(words);
        let launched = below(way, &command, folder.path());
        let (expected, got) = (seen(&alone), seen(&launched));
        if got.1 == Some(1) && *way == "few descriptors" {
            // Without the right to raise the limit, an error comes and the program does not start.
            let said = String::from_utf8_lossy(&launched.stderr);
            assert!(said.contains("`ulimit -n`") && said.contains("prlimit") && got.0.is_empty(), "{said}");
            continue;
        }
        assert_eq!(expected.1, Some(3), "{way}: {}", String::from_utf8_lossy(&alone.stderr));
        let differences: Vec<_> = expected
            .0
            .iter()
            .filter(|line| !got.0.contains(line))
            .chain(got.0.iter().filter(|line| !expected.0.contains(line)))
            .collect();
        let said = String::from_utf8_lossy(&launched.stderr);
        assert!(differences.is_empty(), "{way}, {options:?}: {differences:#?}\n{said}");
        assert_eq!(expected, got, "{way}, {options:?}: {said}");
        assert!(Path::new(report).exists(), "{way}, {options:?}: no report; {said}");
        std::fs::remove_file(report).expect("the report was there");
    }
}

#[test]
fn a_traced_command_starts_as_alone() {
    requires!(root, btf, command("python3"));
    compare(&WAYS, &["--no-heap"]);
    compare(&["real-time", "reaper"], &["--no-heap"]);
}

#[test]
fn a_command_under_exact_starts_as_alone() {
    requires!(root, command("python3"), command("qemu-x86_64"));
    compare(&WAYS, &["exact"]);
}

/// The alarm of a parent ends the command, and not the tracer.
#[test]
fn an_alarm_is_the_commands() {
    requires!(root, btf, command("python3"), command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let (program, tracer) = (build("inherits"), tracer());
    let (program, tracer) = (program.to_str().expect("UTF-8"), tracer.to_str().expect("UTF-8"));
    let report = folder.path().join("report");
    let report = report.to_str().expect("UTF-8");
    for mode in ["--no-heap", "exact"] {
        let started = Instant::now();
        let command = [tracer, mode, "-q", "-o", report, "--report", report, "--", program, "--wait", "60"];
        let profile = folder.path().join("profile");
        let mut command = command.to_vec();
        command[4] = profile.to_str().expect("UTF-8");
        let done = below("alarm", &command, folder.path());
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(128 + libc::SIGALRM), "{mode}: {said}");
        assert!(started.elapsed() < Duration::from_secs(50), "{mode}: {said}");
        assert!(Path::new(report).exists(), "{mode}: {said}");
        std::fs::remove_file(report).expect("the report was there");
    }
}

/// A program executed by a command gets the command's mask and ignored signals.
#[test]
fn what_a_command_executes_starts_as_alone() {
    requires!(root, command("python3"), command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let (program, tracer) = (build("inherits"), tracer());
    let (program, tracer) = (program.to_str().expect("UTF-8"), tracer.to_str().expect("UTF-8"));
    let report = folder.path().join("report");
    let report = report.to_str().expect("UTF-8");
    // How the command starts, and how the command starts the program.
    let ways = [("plain", "blocked"), ("plain", "ignored"), ("plain", "descriptors"), ("ignored", "plain")];
    for (outside, way) in ways {
        let command = ["python3", "-c", PARENT, way, program, "one"];
        let alone = below(outside, &command, folder.path());
        let mut launched = vec![tracer, "exact", "-q", "--report", report, "--"];
        launched.extend(command);
        let launched = below(outside, &launched, folder.path());
        // Signals pending for the program are QEMU's until the program takes them.
        let lines = |output: &Output| -> Vec<String> {
            seen(output).0.into_iter().filter(|line| !line.ends_with("pending")).collect()
        };
        let (expected, got) = (lines(&alone), lines(&launched));
        assert_eq!(expected, got, "{outside}, {way}: {}", String::from_utf8_lossy(&launched.stderr));
    }
}
