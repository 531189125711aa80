//! The agent: an endless trace, cut into segments, with metrics for scrapers.
//!
//! `agent` is the main process. For each window of time the agent starts a tracer (a process of
//! the same program, with one profile), and stores the profiles in a ring (`store`). A process of
//! low priority (`jobs`) makes the rollup of each segment, for a database (`rollups`), for
//! counters (`totals`) and for the exporter. The exporter (`exporter`, `confine`) is another user
//! without rights, and answers requests (`http`) from text made at the last rollup (`exposition`).
//! A further job sends segments to an OpenTelemetry Collector (`collector`).
//! `listen` opens the sockets, `query`, `live` and `merge` read the store, `release` frees the programs
//! for a while, `frames` has the messages between agent and exporter, `notify` reports to systemd.
//!
//! State lies in the store alone, so the agent may be killed at any time.
//!
//! Not here: tracing (`locality-tracer`), the contents of a rollup (`locality-rollup`).

pub mod agent;
pub mod collector;
mod confine;
mod exporter;
mod exposition;
mod frames;
mod http;
pub mod jobs;
pub mod listen;
pub mod live;
pub mod merge;
mod notify;
pub mod query;
pub mod release;
mod rollups;
mod store;
mod sys;
mod totals;

/// Makes a tracer end the trace at the end of the
/// parent agent; false if the agent has ended already.
pub fn end_with_agent(agent: u32) -> bool {
    sys::end_with_parent(agent, libc::SIGTERM)
}

/// Reports the release of a tracer's targets to the parent agent.
pub fn say_released() {
    let mut stdout = std::io::stdout();
    let _ = std::io::Write::write_all(&mut stdout, b"released\n");
    let _ = std::io::Write::flush(&mut stdout);
}

/// Becomes a helper if an agent started the process as a helper; does not return then.
pub fn become_helper_if_asked() {
    let mut words = std::env::args_os().skip(1);
    let Some(role) = words.next() else { return };
    let Some(settings) = words.next().and_then(|word| word.into_string().ok()) else { return };
    let status = match role.to_str() {
        Some(exporter::ARGUMENT) => exporter::serve(&settings),
        Some(jobs::ROLLUP) => jobs::rollup(&settings),
        Some(jobs::PROFILE) => jobs::profile(&settings),
        Some(jobs::SEND) => jobs::send(&settings),
        _ => return,
    };
    std::process::exit(status);
}
