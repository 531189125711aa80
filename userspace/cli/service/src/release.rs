//! `locality-bpf release`: makes an agent release every
//! program for a while, so that a debugger can attach.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::{store, sys};

/// Default time without tracing.
pub const DEFAULT: Duration = Duration::from_secs(30);
/// Longest time.
pub const LONGEST: Duration = Duration::from_secs(3600);
/// Time for the agent to release the programs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the agent of a store, and returns after the release of the programs.
///
/// # Errors
/// The store has no agent, the signal is refused, or the agent does not answer.
pub fn all(folder: &Path, time: Duration) -> Result<()> {
    let Some((agent, _)) = store::agent(folder) else {
        bail!("no agent writes to {}: --store names the folder of one", folder.display());
    };
    let seconds = time.min(LONGEST).as_secs_f64().ceil() as i32;
    sys::signal_with(agent, libc::SIGUSR1, seconds)
        .with_context(|| format!("cannot ask the agent (process {agent}), which takes root"))?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match store::agent(folder) {
            Some((_, state)) if state == store::RELEASED => return Ok(()),
            None => return Ok(()),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    bail!("the agent (process {agent}) has not released its programs in {} s", PATIENCE.as_secs())
}
