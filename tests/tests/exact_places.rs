//! Output of an exact run: unwritable places are reported before the command runs, existing files
//! stay, and no counted data is lost.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

use locality_tests::{Traced, Tracer, requires};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn exact(options: &[&str], command: &[&str]) -> Traced {
    Tracer::new().args(["exact", "-q"]).args(options).args(["--"]).args(command).run()
}

/// The command of a stored report.
fn command_of(file: &Path) -> String {
    let report = Tracer::new().args(["report", "--format", "json1"]).args([file]).report();
    report["run"]["command"].as_str().expect("a command").to_owned()
}

#[test]
fn places_that_cannot_be_written_are_known_before() {
    requires!(command("qemu-x86_64"));
    let folder = folder();
    let (marker, source, both) =
        (folder.path().join("ran"), folder.path().join("main.c"), folder.path().join("both"));
    fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
    let refused = |options: &[&str], status, words: &[&str]| {
        exact(options, &["touch", text(&marker)]).assert_refused(status, words);
        assert!(!marker.exists(), "{options:?}");
    };
    refused(&["-o", "/proc/x.locality"], 1, &["/proc/x.locality", "-o FILE"]);
    refused(&["-o", text(folder.path())], 1, &["a directory", "-o FILE"]);
    refused(&["-o", text(&source)], 1, &["main.c", "not a locality profile but a text file", "-o FILE"]);
    refused(&["--report", "/proc/report"], 1, &["cannot write the report to /proc/report"]);
    refused(&["-o", text(&both), "--report", text(&both)], 2, &["both", "another name"]);
    assert_eq!(fs::read_to_string(&source).expect("the source"), "int main(void) { return 0; }\n");
    // A run that does not begin leaves its place free.
    exact(&["-o", text(&both)], &["no-such-command-here"]).assert_refused(127, &["no-such-command-here"]);
    assert!(!both.exists());
}

#[test]
fn an_earlier_report_becomes_old() {
    requires!(command("qemu-x86_64"));
    let folder = folder();
    let (file, old) = (folder.path().join("run"), folder.path().join("run.old"));
    for command in ["true", "id"] {
        assert!(exact(&["-o", text(&file)], &[command]).status.success());
    }
    assert_eq!((command_of(&file).as_str(), command_of(&old).as_str()), ("id", "true"));
    // The command may remove unknown files.
    assert!(exact(&["-o", text(&file)], &["rm", text(&file)]).status.success());
    assert!(command_of(&file).starts_with("rm ") && command_of(&old) == "id");
}

/// A nearly full folder, in a separate mount namespace.
fn in_small_folder(disk: &Path, script: &str) -> Traced {
    let mount = format!("mount -t tmpfs -o size=16k tmpfs {} && {script}", disk.display());
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", &mount]);
    let done = locality_tests::Target::spawn(command).finish(std::time::Duration::from_secs(60));
    Traced { status: done.status, stdout: done.stdout.join("\n"), stderr: done.stderr }
}

#[test]
fn a_full_disk_costs_the_file_but_not_the_report() {
    requires!(root, command("qemu-x86_64"), command("unshare"));
    let folder = folder();
    let disk: PathBuf = folder.path().join("disk");
    fs::create_dir(&disk).expect("a folder");
    let tracer = Tracer::new().command().get_program().to_owned();
    let tracer = text(Path::new(&tracer)).to_owned();
    for (command, status) in [("true", 1), ("sh -c 'exit 5'", 5)] {
        let file = disk.join("run");
        // Remaining files are listed on stdout.
        let script = format!(
            "{tracer} exact -q -o {file} -- {command}; status=$?; ls {disk}; exit $status",
            file = file.display(),
            disk = disk.display()
        );
        let done = in_small_folder(&disk, &script);
        assert_eq!(done.status.code(), Some(status), "{}", done.stderr);
        assert!(
            done.stderr.contains("the profile is not stored: no space left on the disk"),
            "{}",
            done.stderr
        );
        assert!(done.stderr.contains("Exact run of") && done.stderr.contains("Reuse of"), "{}", done.stderr);
        assert_eq!(done.stdout, "", "half a file is none");
    }
}

#[test]
fn a_report_that_finds_no_room_is_printed() {
    requires!(command("qemu-x86_64"));
    let folder = folder();
    let file = folder.path().join("run");
    for (command, status) in [(&["true"][..], 1), (&["sh", "-c", "exit 5"], 5)] {
        let done = exact(&["--report", "/dev/full"], command);
        assert_eq!(done.status.code(), Some(status), "{}", done.stderr);
        assert!(done.stderr.contains("cannot write the report to /dev/full"), "{}", done.stderr);
        assert!(done.stderr.contains("Exact run of"), "{}", done.stderr);
        let done = exact(&["--report", "/dev/full", "-o", text(&file)], command);
        done.assert_refused(status, &["cannot write the report to /dev/full"]);
        assert_eq!(command_of(&file), command.join(" "));
    }
}
