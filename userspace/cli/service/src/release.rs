//! `locality-bpf release`: makes an agent release every
//! program for a while, so that a debugger can attach.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use locality_units::parse::WrongUse;

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
/// Too long a time, an unreadable store or a store without an agent, a refused signal, or an agent without
/// an answer.
pub fn all(folder: &Path, time: Duration) -> Result<()> {
    if time > LONGEST {
        bail!(WrongUse("--for is at most 1h: ask again before the end".to_owned()));
    }
    store::check_readable(folder)?;
    let Some((agent, _)) = store::agent(folder) else {
        bail!("no agent writes to {}: --store names the folder of one", folder.display());
    };
    let seconds = time.as_secs_f64().ceil() as i32;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_long_a_time_is_refused_and_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let why = all(folder.path(), LONGEST + Duration::from_secs(1)).unwrap_err();
        assert!(why.is::<WrongUse>() && why.to_string().contains("at most 1h"), "{why}");
        assert!(all(folder.path(), LONGEST).unwrap_err().to_string().contains("no agent writes"));
    }
}
