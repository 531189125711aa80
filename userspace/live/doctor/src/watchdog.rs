//! Whether the watchdog can stand in a cgroup that cannot be frozen together with the tracer.

use super::Check;
use locality_capture::watchdog::{self, Standing};

/// Starts a watchdog, as a trace would, and ends it.
pub(super) fn check() -> Check {
    let of = |found: String| Check::ok("watchdog", "watchdog", found);
    match watchdog::try_out() {
        Ok(Standing::Apart) => of(Standing::Apart.to_string()),
        Ok(standing) => of(standing.to_string())
            .degraded(
                "a freeze of this tool's own cgroup (docker pause, systemctl freeze) stops the traced program for as long",
            )
            .mend("sudo locality-bpf doctor, outside of containers"),
        Err(error) => of(format!("does not start: {error}")).degraded("no thread is stopped, as nobody would free it if the tracer hung"),
    }
}
