//! Runs impossible for the exact engine are refused
//! in one sentence, with the exit status of a shell.

use locality_tests::{Tracer, build, requires};

fn refused(command: &[&str], status: i32, words: &[&str]) {
    Tracer::new().args(["exact", "--"]).args(command).run().assert_refused(status, words);
}

#[test]
fn no_qemu() {
    let mut tracer = Tracer::new().args(["exact", "--", "/bin/true"]);
    tracer.command().env("PATH", "/nowhere");
    let done = tracer.run();
    if std::path::Path::new("/usr/local/lib/locality-bpf/qemu-x86_64").exists() {
        // QEMU is found at the installed path, without `PATH`.
        assert!(done.status.success(), "{}", done.stderr);
    } else {
        done.assert_refused(1, &["qemu-x86_64", "cargo xtask qemu", "apt-get install qemu-user"]);
    }
}

/// As in the packages of some distributions: QEMU does not know the option.
#[test]
fn a_qemu_without_plugins() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("qemu-x86_64");
    let script = |version: &str| {
        let text =
            format!("#!/bin/sh\n[ $1 = --version ] && echo 'qemu-x86_64 version {version} (Distribution)'\n");
        std::fs::write(&file, text).expect("a script");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("its mode");
    };
    let run = |words: &[&str]| {
        let mut tracer = Tracer::new().args(["exact", "--", "/bin/true"]);
        tracer.command().env("LOCALITY_QEMU", &file);
        tracer.run().assert_refused(1, words);
    };
    script("10.0.13");
    run(&["10.0.13", "without plugins", "cargo xtask qemu"]);
    let mut doctor = Tracer::new().args(["doctor"]);
    doctor.command().env("LOCALITY_QEMU", &file);
    let page = doctor.run().stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("without plugins") && page.contains("$ cargo xtask qemu"), "{page}");
    script("6.2.0");
    run(&["6.2.0", "7.2 or newer", "cargo xtask qemu"]);
    std::fs::remove_file(&file).expect("it was there");
    run(&["LOCALITY_QEMU", "no program"]);
}

#[test]
fn a_machine_file_without_an_end() {
    requires!(command("qemu-x86_64"));
    Tracer::new()
        .args(["exact", "--cache", "/dev/zero", "--", "true"])
        .run()
        .assert_refused(2, &["--cache /dev/zero", "no text file"]);
}

#[test]
fn commands_that_cannot_run() {
    requires!(command("qemu-x86_64"));
    refused(&["no-such-command-here"], 127, &["no-such-command-here"]);
    refused(&["/etc/passwd"], 126, &["/etc/passwd"]);
    refused(&["/"], 126, &["directory"]);
}

#[test]
fn a_program_of_another_architecture() {
    requires!(command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("arm");
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    header.resize(64, 0);
    (header[16], header[18]) = (2, 183);
    std::fs::write(&path, header).expect("a file");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    refused(&[path.to_str().expect("a path in UTF-8")], 126, &["AArch64", "64-bit x86"]);
    let small = build("thirty_two_bit");
    refused(&[small.to_str().expect("a path in UTF-8")], 126, &["32-bit x86"]);
}
