//! The window process as a real process: what it may, what it survives, what it costs nobody, and
//! that a window in it is the same as one in this process. Needs root, as it reads others' memory;
//! without, each test says so and is skipped.
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

/// Returns from the test, with a line on standard error, unless this is root.
macro_rules! needs_root {
    () => {
        // SAFETY: a system call without arguments.
        if unsafe { libc::geteuid() } != 0 {
            return crate::skip("root");
        }
    };
}
pub(crate) use needs_root;

/// One line, in the form that `cargo xtask test` counts; or a failure where all is to be run.
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
        // Tests run beside others; what is tested is never that a limit is short.
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

/// Calls `revive` until there is a window process, some seconds at most.
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
