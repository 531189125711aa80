//! The program is one file: copied alone into an empty folder, it does exact runs. Where files in memory
//! do not exist, the plugin lies in a private folder; what others put there is refused.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use locality_tests::{build, requires, tracer::binary};
use serde_json::Value;

/// Places for the plugin, after the temporary folder.
const PLACES: [&str; 2] = ["/var/tmp", "/dev/shm"];

/// An exact run by a copy of the program alone, started by a shell after `before`; `$$` is the tracer's
/// process, and `$1` the temporary folder.
fn run(folder: &Path, through: Option<&Path>, before: &str, command: &[&str]) -> Output {
    let alone = folder.join("alone");
    fs::create_dir_all(&alone).expect("a folder");
    let program = alone.join("locality-bpf");
    fs::copy(binary(), &program).expect("a copy");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("{before}\nshift; exec \"$@\""), "sh"]).arg(folder);
    shell.args(through).arg(&program).args(["exact", "--format", "json", "--report"]);
    shell.arg(folder.join("report")).arg("--").args(command);
    shell.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("TMPDIR", folder);
    let done = shell.current_dir(&alone).output().expect("a shell");
    let left = fs::read_dir(&alone).expect("the folder").count();
    assert_eq!(left, 1, "the program wrote beside itself");
    done
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("report")).expect("a report")).expect("JSON")
}

/// Folders with the plugin that a run left.
fn left(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("locality-plugin.")).count()
}

#[test]
fn the_program_alone_counts_and_leaves_nothing() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    // The second program is executed by the first.
    let done = run(folder.path(), None, "", &["/bin/sh", "-c", "/bin/echo one; exec /bin/echo two"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(done.stdout, b"one\ntwo\n");
    let report = report(folder.path());
    assert!(report["mix"]["accesses"].as_u64().is_some_and(|n| n > 10_000), "{:#}", report["mix"]);
    assert!(!report["notices"].to_string().contains("could not be recorded"), "{:#}", report["notices"]);
    assert_eq!(left(folder.path()), 0);
}

#[test]
fn without_files_in_memory_a_private_folder_has_the_plugin() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let through = build("no_memory_files");
    let shown = format!("stat -c '%a %u' {0}/locality-plugin.*; exec /bin/echo two", folder.path().display());
    let done = run(folder.path(), Some(&through), "", &["/bin/sh", "-c", &shown]);
    assert!(done.status.success(), "{done:?}");
    // SAFETY: a system call without arguments.
    let own = unsafe { libc::geteuid() };
    assert_eq!(String::from_utf8_lossy(&done.stdout), format!("700 {own}\ntwo\n"));
    assert!(!report(folder.path())["notices"].to_string().contains("could not be recorded"));
    assert_eq!(left(folder.path()), 0);
}

#[test]
fn a_changed_plugin_in_a_folder_is_not_loaded() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let through = build("no_memory_files");
    let hostile =
        "mkdir -m 700 $1/locality-plugin.$$; echo changed >$1/locality-plugin.$$/liblocality_plugin.so";
    let done = run(folder.path(), Some(&through), hostile, &["/bin/echo", "one"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!((done.stdout.as_slice(), left(folder.path())), (b"one\n".as_slice(), 0));
}

#[test]
fn folders_of_others_are_passed_over() {
    requires!(command("qemu-x86_64"));
    let through = build("no_memory_files");
    let hostile = ["mkdir $1/elsewhere; ln -s $1/elsewhere", "mkdir -m 755", "touch", "mkdir -m 700"];
    for make in hostile {
        let folder = tempfile::tempdir().expect("a folder");
        // The last one is another user's, for root alone can make it.
        let mut before = format!("{make} $1/locality-plugin.$$");
        if make == "mkdir -m 700" {
            requires!(root);
            before += "; chown 65534 $1/locality-plugin.$$";
        }
        let done = run(folder.path(), Some(&through), &before, &["/bin/echo", "one"]);
        assert!(done.status.success(), "{make}: {done:?}");
        assert_eq!((done.stdout.as_slice(), left(folder.path())), (b"one\n".as_slice(), 1), "{make}");
        let elsewhere = fs::read_dir(folder.path().join("elsewhere")).map_or(0, Iterator::count);
        assert_eq!(elsewhere, 0, "a link was followed");
    }
}

#[test]
fn without_any_place_the_run_is_refused() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let through = build("no_memory_files");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("its mode");
    let places = PLACES.map(|place| format!("ln -s /nowhere {place}/locality-plugin.$$")).join("; ");
    let before = format!("{places}; echo $$ >$1/process");
    let done = run(folder.path(), Some(&through), &before, &["/bin/echo", "one"]);
    let process = fs::read_to_string(folder.path().join("process")).expect("a process");
    for place in PLACES {
        fs::remove_file(format!("{place}/locality-plugin.{}", process.trim())).expect("the link stays");
    }
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    for words in ["no place for the QEMU plugin", "others can write to", "no folder of ours", "TMPDIR"] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
    assert!(done.stdout.is_empty());
}

/// A program that may not open the run's files runs unrecorded, as without us.
#[test]
fn a_program_of_another_user_runs_unrecorded() {
    requires!(root, command("qemu-x86_64"), command("setpriv"));
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["/usr/bin/setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/id", "-u"];
    let done = run(folder.path(), None, "", &words);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(done.stdout, b"65534\n");
    let notices = report(folder.path())["notices"].to_string();
    assert!(notices.contains("1 program that could not be recorded"), "{notices}");
}
