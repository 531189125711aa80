//! Programs with odd names or odd files: names are any bytes, and files in `/tmp` may be any
//! user's. The trace goes on, the program too, and the report says which data are missing.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use locality_tests::{Target, Tracer, build, programs, requires};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Bytes as a name.
fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// Each name breaks a different way to read text: cut within a letter, no UTF-8 at all, and text
/// similar to further fields of the kernel's files.
const NAMES: [&[u8]; 6] = [
    b"\xe8\xa8\x88\xe7\xae\x97\xe3\x82\xb9\xe3\x83\xac\xe3\x83",
    b"\xff\xfe\x80 \xc3",
    b") S 1 2 3 (",
    b"a\nTgid:\t1\nb",
    b" \\ \t\r",
    b"\x1b[31m\x9b",
];

/// The report of a running program after `seconds`; the profile is discarded.
fn attach(pid: u32, seconds: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("t.locality");
    Tracer::attach(pid, seconds).args(["-q", "--overhead", "5", "-o"]).args([profile]).run().report()
}

fn assert_measured(report: &Value) {
    assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
    let watch = &report["ledger"]["watch"];
    assert!(watch["armed"].as_u64().unwrap() > 0, "{watch:#} {:#}", report["notices"]);
    assert!(report["overhead"]["stops"].as_u64().unwrap() > 0, "{:#}", report["overhead"]);
    assert_eq!(report["threads"]["not_held"], 0, "{:#}", report["threads"]);
}

#[test]
fn threads_with_any_name_are_held_and_watched() {
    requires!(root, btf, watchpoints(4));
    for name in NAMES {
        let mut command = Command::new(build("odd_names"));
        command.arg("20").arg(os(name));
        let target = Target::start_command(command);
        let report = attach(target.pid(), "2");
        assert_measured(&report);
    }
}

#[test]
fn programs_with_any_name_are_attached_and_launched() {
    requires!(root, btf, watchpoints(4));
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let program = folder.path().join(os(&[b"x", name, b"-and-more-than-15-bytes"].concat()));
        std::fs::copy(build("odd_names"), &program).unwrap();
        let mut command = Command::new(&program);
        command.arg("20").arg(os(name));
        let target = Target::start_command(command);
        let report = attach(target.pid(), "2");
        assert_measured(&report);
        let command = report["run"]["command"].as_str().unwrap();
        assert!(!command.contains(char::is_control), "{command:?}");
        drop(target);
        let profile = folder.path().join(os(&[b"t", name].concat()));
        let (text, words) = (folder.path().join("report"), [OsStr::new("1"), &os(name)].map(OsStr::to_owned));
        let traced = Tracer::new()
            .args(["-q", "--overhead", "5", "--format", "json", "-o"])
            .args([
                profile.as_os_str(),
                "--report".as_ref(),
                text.as_os_str(),
                "--".as_ref(),
                program.as_os_str(),
            ])
            .args(words)
            .run();
        assert!(traced.status.success(), "{}", traced.stderr);
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&text).unwrap()).unwrap();
        assert_measured(&report);
    }
}

/// Mounts with odd names: of tmpfs, and of the cgroup hierarchy, below which the cgroup is named.
#[test]
fn one_odd_mount_does_not_hide_the_cgroups() {
    requires!(root, btf, watchpoints(4), command("unshare"));
    let folder = tempfile::tempdir().unwrap();
    let (mut tracer, program) = (Tracer::new(), build("odd_names"));
    let script = r#"
        set -e
        cd "$FOLDER"
        odd=$(printf 'odd \t\\ \377 x'); newline='a
b #'
        mkdir "$odd" "$newline" "h $odd"
        mount -t tmpfs -o size=64k "na me" "$odd"
        mount -t tmpfs none "$newline"
        mount -t cgroup2 none "h $odd" || { echo no-cgroup2; exit 0; }
        cgroup="h $odd/odd $$ $(printf '\377')"
        mkdir "$cgroup"
        "$PROGRAM" 20 >/dev/null & pid=$!
        echo $pid >"$cgroup/cgroup.procs"
        status=0
        "$TRACER" -q -o t.locality --cgroup "$FOLDER/$cgroup" -d 2 --overhead 5 --format json || status=$?
        "$TRACER" -q -o t.locality --cgroup "${cgroup#*/}" -d 1 --overhead 5 --format json >relative || status=$?
        kill $pid; wait $pid || true
        rmdir "$cgroup"
        exit $status
    "#;
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script])
        .env("FOLDER", folder.path())
        .env("PROGRAM", program)
        .env("TRACER", tracer.command().get_program());
    let finished = Target::spawn(command).finish(LIMIT);
    let text = finished.stdout.join("\n");
    if text.contains("no-cgroup2") {
        return locality_tests::requires::skip("needs a kernel that mounts cgroup2");
    }
    assert!(finished.status.success(), "{}", finished.stderr);
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_measured(&report);
}

/// The report of a program that runs generated code, after `seconds`.
fn perf_map(mode: &str, seconds: &str) -> Value {
    let target = Target::start("perf_map", &["20", mode]);
    let report = attach(target.pid(), seconds);
    target.signal(libc::SIGTERM);
    let pid = target.pid();
    drop(target);
    for left in [format!("/tmp/perf-{pid}.map"), format!("/tmp/perf_map_of_{pid}")] {
        drop(std::fs::remove_file(left));
    }
    report
}

#[test]
fn later_functions_of_a_perf_map_take_the_place_of_earlier_ones() {
    requires!(root, btf, watchpoints(4));
    for mode in ["larger", "smaller"] {
        let text = perf_map(mode, "2").to_string();
        assert!(text.contains("run_now") && !text.contains("ran_before"), "{mode}: {text}");
    }
    // Both functions ran during the trace, one by one, at one address.
    let text = perf_map("later", "4").to_string();
    assert!(text.contains("run_now"), "{text}");
}

#[test]
fn a_perf_map_that_may_be_anyones_is_not_believed() {
    requires!(root, btf, watchpoints(4));
    for (mode, why) in [
        ("older", "older than the process"),
        ("foreign", "belongs to another user"),
        ("link", "not a regular file"),
        ("fifo", "not a regular file"),
        ("huge", "too large"),
    ] {
        let text = perf_map(mode, "2").to_string();
        assert!(!text.contains("run_now") && text.contains(why), "{mode}: {text}");
    }
}

/// Lets every compressed section of an ELF file claim `claimed`
/// bytes (Elf64_Ehdr, Elf64_Shdr and Elf64_Chdr of elf(5)).
fn claim(file: &Path, claimed: u64) -> usize {
    let mut bytes = std::fs::read(file).unwrap();
    let at = |bytes: &[u8], at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)) as usize
    };
    let (table, entry, count) = (at(&bytes, 0x28, 8), at(&bytes, 0x3a, 2), at(&bytes, 0x3c, 2));
    let mut changed = 0;
    for section in (0..count).map(|index| table + index * entry) {
        const SHF_COMPRESSED: usize = 0x800;
        if at(&bytes, section + 8, 8) & SHF_COMPRESSED != 0 {
            let size_at = at(&bytes, section + 24, 8) + 8;
            bytes[size_at..size_at + 8].copy_from_slice(&claimed.to_le_bytes());
            changed += 1;
        }
    }
    std::fs::write(file, bytes).unwrap();
    changed
}

/// Traces a program for 3 s and lists the variables accessed, too; the program must run on.
fn harmless(program: &Path, says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("t.locality");
    let mut target = Target::start_command(Command::new(program));
    let traced = Tracer::attach(target.pid(), "3").args(["-q", "--overhead", "5", "-o"]).args([&profile]);
    let traced = traced.limit(Duration::from_secs(150)).run();
    assert!(target.is_running());
    let report = traced.report();
    assert!(report["run"]["samples"].as_u64().unwrap() > 0, "{:#}", report["run"]);
    assert!(!report["notices"].to_string().contains("impossible numbers"), "{:#}", report["notices"]);
    assert!(report["notices"].to_string().contains(says), "{:#}", report["notices"]);
    let objects = Tracer::new().args(["objects", "--against", "approximate"]).args([&profile]).run();
    assert!(matches!(objects.status.code(), Some(0 | 1)), "{}", objects.stderr);
}

#[test]
fn debug_information_that_claims_too_much_costs_only_names() {
    requires!(root, btf, watchpoints(4));
    let folder = tempfile::tempdir().unwrap();
    for claimed in [1 << 60, u64::MAX, 3 << 30] {
        let program = programs::build_in(folder.path(), "two_loops", "-gz=zlib");
        assert!(claim(&program, claimed) > 2);
        harmless(&program, "claims more than it can hold");
    }
    // The same claims in a separate debug file.
    let program = programs::build_in(folder.path(), "two_loops", "-gz=zlib");
    let script = "cd \"$(dirname \"$0\")\" && objcopy --only-keep-debug two_loops two_loops.debug && \
                  strip two_loops && objcopy --add-gnu-debuglink=two_loops.debug two_loops";
    assert!(Command::new("sh").args(["-c", script]).arg(&program).status().unwrap().success());
    assert!(claim(&program.with_extension("debug"), 1 << 60) > 2);
    harmless(&program, "claims more than it can hold");
}

#[test]
fn debug_information_that_leads_to_a_fifo_is_not_followed() {
    requires!(root, btf, watchpoints(4), command("mkfifo"));
    let folder = tempfile::tempdir().unwrap();
    let program = programs::build_in(folder.path(), "two_loops", "");
    let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let text = [pipe.as_os_str().as_encoded_bytes(), b"\0", &[7; 20]].concat();
    std::fs::write(&link, text).unwrap();
    let section = format!(".gnu_debugaltlink={}", link.display());
    let added = Command::new("objcopy").args(["--add-section", &section]).arg(&program).status();
    assert!(added.unwrap().success());
    harmless(&program, "no regular one");
}
