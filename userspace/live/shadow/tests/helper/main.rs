//! The window process as a real process: rights, hangs and deaths, cost to targets, and
//! equality of windows in the window process and in the test process. Needs root, to read
//! the memory of foreign processes; without root, each test prints a line and is skipped.
#![cfg(test)]

mod confined;
mod deaths;
mod target;
mod windows;

use std::time::Duration;

use locality_shadow::helper::{Helper, Room, Settings, TextRange};
use locality_shadow::{End, Limits, ThreadState};

use target::Target;

/// A key.
const KEY: u64 = 1;

/// Returns from the test, with a line on standard error, unless run as root.
macro_rules! needs_root {
    () => {
        // SAFETY: a system call without arguments.
        if unsafe { libc::geteuid() } != 0 {
            return crate::skip("root");
        }
    };
}
pub(crate) use needs_root;

/// One line, in the form that `cargo xtask test` counts; or a failure if every test must run.
fn skip(need: &str) {
    use std::io::Write as _;
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    assert_ne!(
        std::env::var("LOCALITY_REQUIRE").as_deref(),
        Ok("all"),
        "{name} cannot run here: needs {need}"
    );
    drop(writeln!(std::io::stderr(), "SKIP {name}: needs {need}"));
}

fn settings() -> Settings {
    Settings {
        program: env!("CARGO_BIN_EXE_locality-window").into(),
        // Tests run in parallel; no test requires a short limit.
        longest: Duration::from_secs(30),
        margin: Duration::from_secs(10),
        patience: Duration::from_secs(10),
        room: Room::for_windows_of(50_000),
        ..Settings::default()
    }
}

fn helper() -> Helper {
    Helper::start(settings()).unwrap()
}

fn limits(instructions: u64) -> Limits {
    Limits { instructions, pages: 1000, time_ns: 20_000_000_000 }
}

/// Takes the target under [`KEY`].
fn add(helper: &mut Helper, target: &Target) {
    let added = helper.add_process(KEY, target.pid, &target.ranges());
    added.unwrap_or_else(|error| panic!("{error}: {}", helper.last_words()));
}

/// Calls `revive` until a window process exists, a few seconds at most.
fn revive(helper: &mut Helper) {
    for _ in 0..500 {
        if helper.revive().unwrap() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not revived: {}", helper.last_words());
}

/// A file of `/proc` of the window process.
fn proc_text(helper: &Helper, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{}/{file}", helper.pid())).unwrap()
}
