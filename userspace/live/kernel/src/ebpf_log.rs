//! Passes on what the eBPF programs log, with the feature `ebpf-log` (aya-log).
//!
//! A thread of its own reads the messages; they appear among the tool's own at level "debug".

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya_log::EbpfLogger;

/// How long messages wait in their ring.
const PERIOD: Duration = Duration::from_millis(50);

/// Hands messages to `tracing`.
struct Forward;

impl log::Log for Forward {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::debug!(target: "ebpf", "{}", record.args());
    }

    fn flush(&self) {}
}

/// Reads the messages of these programs until the process ends.
///
/// # Errors
/// The object was compiled without its feature, or there is no thread.
pub fn start(ebpf: &mut Ebpf) -> Result<()> {
    let mut logger = EbpfLogger::init_with_logger(ebpf, Forward).context("cannot read eBPF messages")?;
    let read = move || {
        loop {
            logger.flush();
            thread::sleep(PERIOD);
        }
    };
    thread::Builder::new().name("ebpf-log".into()).spawn(read).context("cannot start a thread")?;
    Ok(())
}
