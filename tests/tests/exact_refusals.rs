//! What the exact engine cannot run is refused in one sentence, with the status that a shell would give.

use locality_tests::{Tracer, build, requires};

fn refused(command: &[&str], status: i32, words: &[&str]) {
    Tracer::new().args(["exact", "--"]).args(command).run().assert_refused(status, words);
}

#[test]
fn no_qemu() {
    let mut tracer = Tracer::new().args(["exact", "--", "/bin/true"]);
    tracer.command().env("PATH", "/nowhere");
    tracer.run().assert_refused(1, &["qemu-x86_64", "apt-get install qemu-user"]);
}

#[test]
fn no_plugin() {
    requires!(command("qemu-x86_64"));
    let mut tracer = Tracer::new().args(["exact", "--", "true"]);
    tracer.command().env("LOCALITY_PLUGIN", "/nowhere/plugin.so");
    tracer.run().assert_refused(1, &["/nowhere/plugin.so"]);
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
