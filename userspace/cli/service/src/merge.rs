//! `locality-bpf merge A B… -o C`: profiles of segments,
//! processes and machines as a single profile.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use locality_model::merge::Merger;
use locality_model::{Profile, Sample};
use locality_units::parse::WrongUse;

/// Reads profiles and merges the profiles in the order of the starts.
///
/// # Errors
/// A profile is unreadable, of the same trace as another, or unlike the rest; the sentence names the file.
pub fn files(paths: &[PathBuf]) -> Result<Profile> {
    let mut profiles = Vec::with_capacity(paths.len());
    for path in paths {
        profiles.push((path.as_path(), locality_profile::read(path)?));
    }
    // A merge has the start of its earliest profile; its later profiles are not recognised.
    each_once(profiles.iter().map(|(path, profile)| (*path, profile.run.started_unix_ns)))?;
    // The order changes no reuse, but the text of the report.
    profiles.sort_by_key(|(_, profile)| profile.run.started_unix_ns);
    let mut merger = Merger::default();
    for (path, profile) in profiles {
        add(&mut merger, path, profile, |_| true)?;
    }
    Ok(merger.finish())
}

/// Refuses two files of one trace, whose samples would count twice and make intervals too narrow.
/// `files`: paths, each with what a trace has in common with its copies alone, as its start.
///
/// # Errors
/// Two files of one trace.
pub fn each_once<'a, K: Eq + Hash>(files: impl IntoIterator<Item = (&'a Path, K)>) -> Result<(), WrongUse> {
    let mut seen: HashMap<K, &Path> = HashMap::new();
    for (path, trace) in files {
        if let Some(first) = seen.insert(trace, path) {
            return Err(WrongUse(if first == path {
                format!("{} is given twice: name each trace once", path.display())
            } else {
                format!("{} and {} are one trace: name each trace once", first.display(), path.display())
            }));
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use locality_model::testing::loops;

    use super::*;

    #[test]
    fn a_trace_is_merged_once() {
        let folder = tempfile::tempdir().unwrap();
        let [a, copy, b] = ["a", "copy", "b"].map(|name| folder.path().join(name));
        let mut profile = loops::windowed();
        locality_profile::write(&a, &profile, None).unwrap();
        std::fs::copy(&a, &copy).unwrap();
        profile.run.started_unix_ns += 1;
        locality_profile::write(&b, &profile, None).unwrap();
        assert_eq!(files(&[a.clone(), b.clone()]).unwrap().samples.len(), 2 * profile.samples.len());
        for (twice, said) in [(&a, "is given twice"), (&copy, "are one trace")] {
            let why = files(&[a.clone(), b.clone(), twice.clone()]).unwrap_err();
            assert!(why.is::<WrongUse>() && why.to_string().contains(said), "{why}");
        }
    }
}
