//! The agent: a trace without end, cut into segments, with metrics for others.
//!
//! `agent` is the process that stays. It starts a tracer for each window of time (the same program, which
//! writes one profile), and keeps the profiles in a ring (`store`). A process of low priority (`jobs`) makes
//! the rollup of each segment, which goes into a database (`rollups`), into counters (`totals`) and to the
//! exporter. The exporter (`exporter`, `confine`) is another user without rights: it answers requests
//! (`http`) from text that was made when the rollup came (`exposition`). `listen` is where it listens,
//! `query` and `merge` read what is stored, `release` lets programs go,
//! `frames` how the two talk, `notify` what systemd hears.
//!
//! State is what lies in the store, so that the agent may be killed at any time.
//!
//! Not here: tracing (`locality-tracer`), what a rollup says (`locality-rollup`).

pub mod agent;
mod confine;
mod exporter;
mod exposition;
mod frames;
mod http;
pub mod jobs;
pub mod listen;
pub mod merge;
mod notify;
pub mod query;
pub mod release;
mod rollups;
mod store;
mod sys;
mod totals;

/// Has this process, a tracer, end its trace when the agent that started it ends; false where that has ended
/// already.
pub fn end_with_agent(agent: u32) -> bool {
    sys::end_with_parent(agent, libc::SIGTERM)
}

/// Says to the agent that started this process, a tracer, that its targets are released.
pub fn say_released() {
    let mut stdout = std::io::stdout();
    let _ = std::io::Write::write_all(&mut stdout, b"released\n");
    let _ = std::io::Write::flush(&mut stdout);
}

/// Becomes a helper of an agent, where this process was started as one, and does not return then.
pub fn become_helper_if_asked() {
    let mut words = std::env::args_os().skip(1);
    let Some(role) = words.next() else { return };
    let Some(settings) = words.next().and_then(|word| word.into_string().ok()) else { return };
    let status = match role.to_str() {
        Some(exporter::ARGUMENT) => exporter::serve(&settings),
        Some(jobs::ROLLUP) => jobs::rollup(&settings),
        Some(jobs::PROFILE) => jobs::profile(&settings),
        _ => return,
    };
    std::process::exit(status);
}
