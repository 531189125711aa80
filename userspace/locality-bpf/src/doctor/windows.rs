//! Whether shadow windows can be taken: starts the process that executes them, and asks it something.

use locality_shadow::helper::{Helper, Settings};

use super::Check;

pub(super) fn check() -> Check {
    let (id, name) = ("windows", "shadow windows");
    let tried = Helper::start(Settings::default()).and_then(|mut helper| helper.round_trip());
    match tried {
        Ok(turn) => {
            let found = format!("their process starts, and answers within {} µs", turn.as_micros().max(1));
            Check::ok(id, name, found)
        }
        Err(error) => Check::ok(id, name, error.to_string()).degraded(
            "uses are the accesses at the stops, short reuses are not seen exactly, and distances are told in CPU time only",
        ),
    }
}
