//! `locality-bpf release`: has an agent release all programs for a while, so that a debugger can attach.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::{store, sys};

/// How long nobody is traced where nothing is said.
pub const DEFAULT: Duration = Duration::from_secs(30);
/// Longest time.
pub const LONGEST: Duration = Duration::from_secs(3600);
/// How long the agent gets for that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the agent of a store, and returns when its programs are released.
///
/// # Errors
/// There is no agent, it may not be asked, or it does not answer.
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
