//! HTML reports in a real browser: of traces, of an exact run, of reports
//! impossible for a trace. The browser checks are `userspace/html/ui/test/run.mjs`;
//! here are the reports, their readers, and the user who opens them.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use locality_tests::{Target, Tracer, build, requires};

/// Time limits of pages have this factor, because further tests share the machine.
const PATIENCE: &str = "6";
const BROWSER_LIMIT: Duration = Duration::from_secs(600);

fn ui() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../userspace/html/ui")
}

/// The locked packages of the tests, as `cargo xtask test` installs them.
fn packages() -> Result<(), String> {
    match ui().join("node_modules/playwright-core").is_dir() {
        true => Ok(()),
        false => Err("needs the packages of userspace/html/ui (cargo xtask ui --verify)".to_owned()),
    }
}

/// The report of a profile as a page, and all pairs as JSON.
fn both(folder: &Path, name: &str, profile: &Path) {
    let page = folder.join(format!("{name}.html"));
    let page =
        Tracer::new().args(["report", "-q", "--format", "html", "-o"]).args([&page]).args([profile]).run();
    // An empty report and the report of an interrupted trace say so, and exit 1.
    assert!(page.status.code().is_some_and(|code| code < 2), "{name}: {}", page.stderr);
    let json = folder.join(format!("{name}.json"));
    let all = ["report", "-q", "--format", "json", "--top", "1000000", "--report"];
    let json = Tracer::new().args(all).args([&json]).args([profile]).run();
    assert!(json.status.code().is_some_and(|code| code < 2), "{name}: {}", json.stderr);
}

fn trace(profile: &Path, options: &[&str], command: &[&str]) {
    let tracer = Tracer::new().args(["-q", "--report", "/dev/null", "-o"]).args([profile]);
    let done = tracer.args(options).args(["--"]).args(command).run();
    assert!(profile.exists(), "{}", done.stderr);
}

fn node(script: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new("node");
    command.current_dir(ui()).arg(script).args(arguments).env("LOCALITY_PATIENCE", PATIENCE);
    let done = Target::spawn(command).finish(BROWSER_LIMIT);
    let said = done.stdout.join("\n");
    assert!(done.status.success(), "{said}\n{}", done.stderr);
    said
}

#[test]
fn pages_hold_what_they_promise_in_a_browser() {
    requires!(root, btf, watchpoints(1), command("node"), command("chromium"), command("qemu-x86_64"));
    if let Err(reason) = packages() {
        locality_tests::requires::skip(&reason);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let profile = |name: &str| folder.path().join(format!("{name}.locality"));
    let picture = build("picture");
    let picture = picture.to_str().expect("a path");
    trace(&profile("live"), &["-d", "6"], &[picture, "8"]);
    trace(&profile("without_windows"), &["-d", "3", "--no-window"], &[picture, "5"]);
    trace(&profile("empty"), &[], &["sleep", "1"]);
    let stripped = folder.path().join("stripped");
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(picture).status().expect("strip runs");
    assert!(strip.success());
    trace(&profile("stripped"), &["-d", "3"], &[stripped.to_str().expect("a path"), "5"]);
    let tracer = Tracer::new().args(["-q", "--report", "/dev/null", "-o"]).args([profile("partial")]);
    let killed = tracer.args(["--", picture, "8"]).start();
    std::thread::sleep(Duration::from_secs(4));
    killed.signal(libc::SIGKILL);
    killed.finish(Duration::from_secs(20));
    let exact =
        Tracer::new().args(["exact", "-q", "--granularity", "8,64", "--cache-use", "--objects", "-o"]);
    let exact =
        exact.args([profile("exact")]).args(["--report", "/dev/null", "--"]).args([build("exact_objects")]);
    let done = exact.run();
    assert!(done.status.success(), "{}", done.stderr);
    node("test/made.mjs", &[&profile("exact"), folder.path()]);
    for name in ["live", "without_windows", "empty", "stripped", "partial", "exact", "hostile"] {
        both(folder.path(), name, &profile(name));
    }
    let from = Instant::now();
    both(folder.path(), "large", &profile("large"));
    println!("the page and the JSON of 100,000 pairs took {:.1} s", from.elapsed().as_secs_f64());
    println!("{}", node("test/run.mjs", &[folder.path()]));
}

/// A small exact report, without a trace.
fn small(folder: &Path) -> PathBuf {
    let file = folder.join("small.locality");
    let report =
        r#"{"schema":"locality-report/1","run":{"mode":"exact","command":"x"},"pairs":[],"reuse":{}}"#;
    std::fs::write(&file, report).expect("a report");
    file
}

#[test]
fn a_page_belongs_to_the_user_behind_sudo_alone() {
    requires!(root);
    let folder = tempfile::tempdir().expect("a folder");
    let (profile, page) = (small(folder.path()), folder.path().join("page.html"));
    let mut tracer = Tracer::new().args(["report", "--format", "html", "-o"]).args([&page]).args([&profile]);
    tracer.command().env("SUDO_UID", "65534").env("SUDO_GID", "65534");
    let done = tracer.run();
    assert!(done.status.success(), "{}", done.stderr);
    let about = std::fs::metadata(&page).expect("a page");
    assert_eq!((about.permissions().mode() & 0o777, about.uid(), about.gid()), (0o600, 65_534, 65_534));
    // Never in the place of the profile.
    let over =
        Tracer::new().args(["report", "--format", "html", "-o"]).args([&profile]).args([&profile]).run();
    over.assert_refused(2, &["would replace the profile"]);
}

#[test]
fn the_browser_starts_as_the_user_behind_sudo_and_never_as_root() {
    requires!(root);
    let folder = tempfile::tempdir().expect("a folder");
    chown(folder.path(), Some(65_534), Some(65_534)).expect("a folder of nobody");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("its mode");
    let (profile, page) = (small(folder.path()), folder.path().join("page.html"));
    let (browser, mark) = (folder.path().join("browser"), folder.path().join("mark"));
    let script = format!("#!/bin/sh\n(id -u; id -G; echo \"$1\"; head -c 15 \"$1\") > {}\n", mark.display());
    std::fs::write(&browser, script).expect("a browser");
    std::fs::set_permissions(&browser, PermissionsExt::from_mode(0o755)).expect("its mode");
    let open = |user: Option<&str>| {
        let mut tracer = Tracer::new().args(["report", "--format", "html", "--open", "-o"]).args([&page]);
        let command = tracer.command();
        command.arg(&profile).env("BROWSER", &browser).env_remove("SUDO_UID").env_remove("SUDO_GID");
        if let Some(user) = user {
            command.env("SUDO_UID", user).env("SUDO_GID", user);
        }
        tracer.run()
    };
    for user in [None, Some("0")] {
        let done = open(user);
        assert!(done.status.success() && done.stderr.contains("not started as root"), "{}", done.stderr);
        assert!(page.exists() && !mark.exists());
    }
    let done = open(Some("65534"));
    assert!(done.status.success() && done.stderr.is_empty(), "{}", done.stderr);
    let until = Instant::now() + Duration::from_secs(10);
    let seen = || std::fs::read_to_string(&mark).unwrap_or_default();
    while !seen().contains("<!doctype html>") && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = seen();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["65534", "65534"], "user and groups: {said}");
    assert!(lines[2].ends_with("/page.html"), "{said}");
}

#[test]
fn options_of_the_page_need_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = small(folder.path());
    for option in ["--open", "--no-source"] {
        let done = Tracer::new().args(["report", option]).args([&profile]).run();
        done.assert_refused(2, &[option, "add --format html"]);
    }
    let page = Tracer::new().args(["report", "--format", "html", "--no-source"]).args([&profile]).run();
    assert!(page.stdout.starts_with("<!doctype html>"), "{}", page.stderr);
}
