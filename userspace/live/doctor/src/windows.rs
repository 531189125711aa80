//! Whether shadow windows can be taken: starts the executing process and sends a request; and reads
//! a window's initial registers from a child.

use std::{
    io,
    time::{Duration, Instant},
};

use locality_shadow::{
    ThreadState,
    helper::{Helper, Settings},
};

use super::{Check, stop_test::Spinning};
use locality_kernel::ptrace;

/// Longest wait for the child's stop.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) fn check() -> Check {
    let found = |text: String| Check::ok("windows", "shadow windows", text);
    let lost = "uses are the accesses at the stops, short reuses are not seen exactly, and distances are told in CPU time only";
    let tried = Helper::start(Settings::default()).and_then(|mut helper| helper.round_trip());
    match (tried, registers_of_a_child()) {
        (Err(error), _) => found(error.to_string()).degraded(lost),
        (Ok(_), Err(error)) => {
            found(format!("the vector registers of a stopped thread cannot be read: {error}")).degraded(lost)
        }
        (Ok(turn), Ok(())) => {
            found(format!("their process starts, and answers within {} µs", turn.as_micros().max(1)))
        }
    }
}

/// Reads the vector registers of a child, as at a stop. Passes if no child can be stopped at all:
/// another check reports that.
fn registers_of_a_child() -> io::Result<()> {
    let Ok(child) = Spinning::start() else { return Ok(()) };
    // SAFETY: a signal that is ignored by default, for our own child.
    if ptrace::seize(child.pid).is_err() || unsafe { libc::kill(child.pid as i32, libc::SIGURG) } != 0 {
        return Ok(());
    }
    let began = Instant::now();
    while !matches!(ptrace::next_status_of(child.pid), Ok(Some(_))) {
        if began.elapsed() > PATIENCE {
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    let mut area = Vec::new();
    ptrace::extended_state(child.pid, ThreadState::extended_bytes(), &mut area)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_register_set_can_be_read_too() {
        let child = Spinning::start().unwrap();
        if ptrace::seize(child.pid).is_err() {
            locality_kernel::testing::skip("ptrace is refused");
            return;
        }
        // SAFETY: as in `registers_of_a_child`.
        unsafe { libc::kill(child.pid as i32, libc::SIGURG) };
        while !matches!(ptrace::next_status_of(child.pid), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut newer, mut older) = (Vec::new(), Vec::new());
        ptrace::extended_state(child.pid, 512, &mut older).unwrap();
        assert_eq!(older.len(), 512);
        if std::is_x86_feature_detected!("xsave") {
            ptrace::extended_state(child.pid, ThreadState::extended_bytes(), &mut newer).unwrap();
            // Control words and the low halves of the vector registers; behind those lies what
            // software may use.
            assert_eq!(newer[..4], older[..4]);
            assert_eq!(newer[160..416], older[160..416]);
        }
    }
}
