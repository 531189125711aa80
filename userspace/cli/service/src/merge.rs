//! `locality-bpf merge A B… -o C`: profiles of segments,
//! processes and machines as a single profile.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use locality_model::merge::Merger;
use locality_model::{Profile, Sample};

/// Reads profiles and merges the profiles in the order of the starts.
///
/// # Errors
/// A profile is unreadable or unlike the rest; the sentence names the file.
pub fn files(paths: &[PathBuf]) -> Result<Profile> {
    let mut profiles = Vec::with_capacity(paths.len());
    for path in paths {
        profiles.push((path.as_path(), locality_profile::read(path)?));
    }
    // The order changes no reuse, but the text of the report.
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
/// The profile is unlike the rest.
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
