//! `locality-bpf merge A B… -o C`: profiles of segments, processes and machines as one.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use locality_model::merge::Merger;
use locality_model::{Profile, Sample};

/// Reads profiles and puts them together, in the order of their starts.
///
/// # Errors
/// One cannot be read, or is unlike the others; the sentence names it.
pub fn files(paths: &[PathBuf]) -> Result<Profile> {
    let mut profiles = Vec::with_capacity(paths.len());
    for path in paths {
        profiles.push((path.as_path(), locality_profile::read(path)?));
    }
    // Where a word is reused does not depend on the order; the text of the report does.
    profiles.sort_by_key(|(_, profile)| profile.run.started_unix_ns);
    let mut merger = Merger::default();
    for (path, profile) in profiles {
        add(&mut merger, path, profile, |_| true)?;
    }
    Ok(merger.finish())
}

/// Adds a profile from a file.
///
/// # Errors
/// It is unlike the others.
pub(crate) fn add(
    merger: &mut Merger,
    path: &Path,
    profile: Profile,
    keep: impl Fn(&Sample) -> bool,
) -> Result<()> {
    if profile.run.mode == locality_model::Mode::Exact {
        bail!("{} is of an exact run: only traces can be merged", path.display());
    }
    merger
        .add(profile, keep)
        .map_err(|unlike| anyhow::anyhow!("{unlike}"))
        .with_context(|| format!("{} cannot be merged with the others", path.display()))
}
