//! The tracer in a nested pid namespace, as in a sidecar container:
//! ids are the namespace's, processes outside are never measured,
//! and the capabilities are the least that a container can give.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use locality_model::Profile;
use locality_tests::overseer::children;
use locality_tests::programs::build;
use locality_tests::tracer::binary;
use locality_tests::{Target, live, requires};
use serde_json::Value;

/// A separate namespace with a script as process 1. All processes inside end with the script.
const INSIDE: [&str; 6] = ["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"];

/// Number of pid collisions tried. `LOCALITY_COLLISIONS` asks for more.
const COLLISIONS: u32 = 4;

/// Results of a tracer.
struct Traced {
    folder: tempfile::TempDir,
    output: Output,
}

impl Traced {
    /// Runs a shell script in a separate namespace. `$TRACER` is the tracer with the usual options;
    /// the tracer writes profile and report into a folder.
    fn inside(script: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "60", "unshare"]).args(INSIDE).args([script, "sh"]).args(arguments);
        Self::of(command, "TRACER")
    }

    /// Runs a command with the tracer in the variable `variable`.
    fn of(mut command: Command, variable: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (profile, report) = (folder.path().join("t.locality"), folder.path().join("report"));
        let tracer = format!(
            "{} -q -o {} --format json --report {}",
            binary().display(),
            profile.display(),
            report.display()
        );
        let output = command.env(variable, tracer).stdin(Stdio::null()).output().unwrap();
        Self { folder, output }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn said(&self) -> String {
        format!(
            "{}\n{}{}",
            self.output.status,
            String::from_utf8_lossy(&self.output.stdout),
            String::from_utf8_lossy(&self.output.stderr)
        )
    }

    /// The trace succeeded and the ledger balances.
    fn report(&self) -> Value {
        assert!(self.output.status.success(), "{}", self.said());
        self.whatever_was_sampled()
    }

    /// The report also of a failing trace without samples.
    fn whatever_was_sampled(&self) -> Value {
        let text = fs::read_to_string(self.file("report")).unwrap_or_else(|e| panic!("{e}: {}", self.said()));
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["ledger"]["balanced"], true, "{report:#}");
        report
    }

    fn profile(&self) -> Profile {
        locality_profile::read(&self.file("t.locality")).unwrap_or_else(|e| panic!("{e}: {}", self.said()))
    }
}

/// Names of the sampled threads.
fn sampled(profile: &Profile) -> BTreeSet<&str> {
    let thread = |sample: &locality_model::Sample| &profile.threads[sample.thread.0 as usize];
    profile.samples.iter().map(|sample| thread(sample).name.as_str()).collect()
}

/// Functions interrupted by samples.
fn functions(profile: &Profile) -> BTreeSet<String> {
    let innermost = profile.samples.iter().filter_map(|sample| {
        profile.stacks[sample.stack.0 as usize].frames.first().map(|frame| &profile.frames[frame.0 as usize])
    });
    innermost.map(|frame| frame.function.clone().unwrap_or_else(|| "?".to_owned())).collect()
}

fn held(profile: &Profile) -> usize {
    profile.samples.iter().filter(|sample| sample.held).count()
}

fn path(program: &str) -> String {
    build(program).to_str().unwrap().to_owned()
}

#[test]
fn a_process_is_traced_by_its_number_in_the_namespace() {
    requires!(root, btf, watchpoints(4), command("unshare"));
    let _alone = live::alone();
    let script = "\"$1\" 9 >/dev/null & sleep .5; echo pid $!; $TRACER -p $! -d 4 --overhead 3";
    let traced = Traced::inside(script, &[&path("two_loops")]);
    let (report, profile) = (traced.report(), traced.profile());
    assert_eq!(sampled(&profile), BTreeSet::from(["two_loops"]), "{}", traced.said());
    let number = String::from_utf8_lossy(&traced.output.stdout).trim().to_owned();
    assert!(profile.threads.iter().all(|thread| format!("pid {}", thread.pid) == number), "{number}");
    assert!(
        held(&profile) * 10 >= profile.samples.len() * 9,
        "{} of {}",
        held(&profile),
        profile.samples.len()
    );
    assert!(report["ledger"]["stops"]["with a window"].as_u64().unwrap() > 0, "{:#}", report["ledger"]);
    assert!(report["pairs"].as_array().is_some_and(|pairs| !pairs.is_empty()), "{report:#}");
}

/// A busy process outside has the pid of an idle process inside, and then of a busy process inside.
#[test]
fn a_stranger_with_the_same_number_is_never_measured() {
    requires!(root, btf, watchpoints(4), command("unshare"));
    let _alone = live::alone();
    let asked = std::env::var("LOCALITY_COLLISIONS").ok().and_then(|text| text.parse().ok());
    let last = "/proc/sys/kernel/ns_last_pid";
    for round in 0..asked.unwrap_or(COLLISIONS) {
        let stranger = Target::start("column_walk", &[]);
        let number = stranger.pid().to_string();
        let (program, seconds) =
            if round % 2 == 0 { ("sleep".to_owned(), "30") } else { (path("two_loops"), "9") };
        let script = format!(
            "echo $(($1 - 1)) > {last}; \"$2\" $3 >/dev/null & test $! = $1 || exit 77; sleep .3
             $TRACER -p $1 -d 1 --overhead 5"
        );
        let traced = Traced::inside(&script, &[&number, &program, seconds]);
        assert_ne!(traced.output.status.code(), Some(77), "the number {number} was not given");
        let (report, profile) = (traced.whatever_was_sampled(), traced.profile());
        let filtered = report["ledger"]["filtered_by"]["not a target"].as_u64().unwrap_or(0);
        assert!(filtered > 0, "the stranger was never met: {:#}", report["ledger"]);
        let strangers: Vec<_> =
            functions(&profile).into_iter().filter(|name| name == "?" || name.contains("walk")).collect();
        assert!(strangers.is_empty(), "{strangers:?} in round {round}");
        if round % 2 == 0 {
            assert_eq!(profile.samples.len(), 0, "{:?}", functions(&profile));
        } else {
            assert!(!profile.samples.is_empty(), "{report:#}");
        }
    }
}

/// Processes in a namespace below have a pid here; processes above have none.
#[test]
fn all_of_the_namespace_is_traced_but_the_tool_and_its_ancestors() {
    requires!(root, btf, watchpoints(4), command("unshare"));
    let _alone = live::alone();
    let _stranger = Target::start("gap_meter", &["60"]);
    let script = "\"$1\" 20 >/dev/null & unshare --pid --fork --kill-child \"$2\" >/dev/null &
        sleep .5; $TRACER --namespace -d 6 --overhead 3";
    let traced = Traced::inside(script, &[&path("two_loops"), &path("column_walk")]);
    let (report, profile) = (traced.report(), traced.profile());
    assert_eq!(sampled(&profile), BTreeSet::from(["column_walk", "two_loops"]), "{report:#}");
    assert!(held(&profile) > 0, "{report:#}");
    let notices = report["notices"].to_string();
    assert!(notices.contains("Left out: ") && notices.contains("that started it"), "{notices}");
    assert!(!profile.threads.iter().any(|thread| thread.name.contains("locality")), "{:?}", profile.threads);
}

/// The program of a container, with the tracer started in the program's namespace, as a sidecar is.
#[test]
fn process_1_of_a_container_is_a_target() {
    requires!(root, btf, watchpoints(4), command("unshare"), command("nsenter"));
    let _alone = live::alone();
    let mut container = Command::new("unshare");
    container.args(&INSIDE[..4]).arg(build("two_loops")).arg("60");
    let container = Target::start_command(container);
    let first = children(container.pid())[0].to_string();
    for target in ["-p 1", "--namespace"] {
        let mut sidecar = Command::new("timeout");
        sidecar.args(["-s", "KILL", "60", "nsenter", "-t", &first, "-p", "-m", "sh", "-c"]);
        sidecar.arg(format!("$TRACER {target} -d 3 --overhead 3"));
        let traced = Traced::of(sidecar, "TRACER");
        let (report, profile) = (traced.report(), traced.profile());
        assert_eq!(sampled(&profile), BTreeSet::from(["two_loops"]), "{target}: {report:#}");
        assert!(held(&profile) > 0 && profile.threads.iter().any(|thread| thread.pid == 1), "{report:#}");
    }
}

/// The tracer with exactly these capabilities, as root or as `user`.
fn with_capabilities(capabilities: &[&str], user: Option<&str>, target: &Target) -> Traced {
    let sets = capabilities.iter().fold("-all".to_owned(), |sets, name| format!("{sets},+{name}"));
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60", "setpriv", "--bounding-set", &sets, "--inh-caps", &sets]);
    if let Some(user) = user {
        command.args(["--reuid", user, "--clear-groups", "--ambient-caps", &sets]);
    }
    command.args(["sh", "-c"]).arg(format!("cd / && $TRACER -p {} -d 3 --overhead 3", target.pid()));
    Traced::of_user(command, user)
}

impl Traced {
    /// Runs in a folder writable for `user`.
    fn of_user(mut command: Command, user: Option<&str>) -> Self {
        let Some(user) = user else { return Self::of(command, "TRACER") };
        let folder = tempfile::tempdir().unwrap();
        let own: u32 = user.parse().unwrap();
        std::os::unix::fs::chown(folder.path(), Some(own), Some(own)).unwrap();
        // The folder of the build may be closed to `user`.
        let tracer = folder.path().join("locality-bpf");
        fs::copy(binary(), &tracer).unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let tracer = format!(
            "{} -q -o {} --format json --report {}",
            tracer.display(),
            at("t.locality"),
            at("report")
        );
        let output = command.env("TRACER", tracer).stdin(Stdio::null()).output().unwrap();
        Self { folder, output }
    }
}

/// Window processes left by dead tracers with the five capabilities, found by bounding set.
fn orphans() -> Vec<String> {
    let left = || {
        let folders = fs::read_dir("/proc").unwrap().flatten();
        let statuses = folders.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
        let is_one = |status: &String| {
            let has = |line: &str| status.lines().any(|of| of == line);
            has("Name:\tlocality-window") && has("CapBnd:\t000000c0000800c0") && !has("State:\tZ (zombie)")
        };
        statuses.filter(is_one).collect::<Vec<String>>()
    };
    let until = Instant::now() + Duration::from_secs(5);
    while !left().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    left()
}

const LEAST: [&str; 5] = ["bpf", "perfmon", "sys_ptrace", "setuid", "setgid"];

#[test]
fn five_capabilities_suffice_and_each_is_needed() {
    requires!(root, btf, watchpoints(4), command("setpriv"));
    let _alone = live::alone();
    let target = Target::start("two_loops", &["60"]);
    let traced = with_capabilities(&LEAST, None, &target);
    let report = traced.report();
    let notices = report["notices"].to_string();
    for lost in ["CAP_CHECKPOINT_RESTORE", "CAP_SYS_NICE", "CAP_DAC_READ_SEARCH"] {
        assert!(notices.contains(&format!("Without {lost}, ")), "{notices}");
    }
    assert!(report["ledger"]["stops"]["with a window"].as_u64().unwrap() > 0, "{:#}", report["ledger"]);
    assert_eq!(orphans(), [""; 0], "the window process is left");
    for missing in LEAST {
        let others: Vec<&str> = LEAST.into_iter().filter(|name| *name != missing).collect();
        let refused = with_capabilities(&others, None, &target);
        let said = String::from_utf8_lossy(&refused.output.stderr).into_owned();
        assert_eq!(refused.output.status.code(), Some(1), "{said}");
        assert!(
            said.contains(&format!("CAP_{}", missing.to_uppercase())) && said.lines().count() == 1,
            "{said}"
        );
        assert!(!refused.file("t.locality").exists());
    }
}

#[test]
fn a_user_with_the_capabilities_traces_as_root_does() {
    requires!(root, btf, watchpoints(4), command("setpriv"));
    let _alone = live::alone();
    let target = Target::start("two_loops", &["60"]);
    let all = [LEAST.as_slice(), &["checkpoint_restore", "sys_nice", "dac_read_search"]].concat();
    let traced = with_capabilities(&all, Some("65533"), &target);
    let report = traced.report();
    assert!(!report["notices"].to_string().contains("Without CAP_"), "{:#}", report["notices"]);
    let stops = &report["ledger"]["stops"];
    assert!(stops["with a window"].as_u64().is_some_and(|n| n > 0), "{stops:#}");
    assert!(functions(&traced.profile()).iter().any(|name| name != "?"), "{report:#}");
}

/// One sentence, exit status 1, and no profile.
fn refused(mut command: Command, words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("t.locality");
    let output = command.arg("-o").arg(&profile).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    assert!(!profile.exists());
}

#[test]
fn namespaces_in_which_nothing_can_be_told_are_refused() {
    requires!(root, btf, command("unshare"));
    let unshare = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(arguments).arg(binary());
        command
    };
    let with = |mut command: Command, arguments: &[&str]| {
        command.args(arguments);
        command
    };
    // `/proc` still belongs to the namespace around.
    refused(with(unshare(&["--pid", "--fork"]), &["-p", "1"]), &["/proc", "mount -t proc"]);
    if Path::new("/proc/self/ns/user").exists() {
        let inside = unshare(&["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
        refused(with(inside, &["-p", "1"]), &["user namespace", "nsenter --user"]);
    }
    refused(with(unshare(&["--cgroup"]), &["--cgroup", "x"]), &["cgroup namespace", "--namespace"]);
    refused(with(Command::new(binary()), &["--namespace"]), &["first one", "-p and --cgroup"]);
}

#[test]
fn the_root_of_all_cgroups_is_refused() {
    requires!(root, btf);
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let Some(root) = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| at.to_owned())
    }) else {
        return locality_tests::requires::skip("needs a mounted cgroup2");
    };
    for folder in [root.as_str(), "."] {
        let mut tracer = Command::new(binary());
        tracer.args(["-d", "1", "--cgroup", folder]);
        refused(tracer, &["the root of all cgroups", "-a traces that"]);
    }
}
