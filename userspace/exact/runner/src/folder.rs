//! The run's folder, with a file of each traced process: made, watched and removed.
//!
//! In memory with enough room (`/dev/shm`), otherwise on
//! disk. A killed run's folder is removed by the next run.

use std::{
    ffi::CString,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

/// Start of folders' names, before the parent's process id.
const PREFIX: &str = "locality-exact.";
/// The same of a folder with the plugin.
pub const PLUGIN_PREFIX: &str = "locality-plugin.";
/// Sufficient room of a place.
const ENOUGH_BYTES: u64 = 1 << 30;
/// Least free room: below, recording ends before the machine suffers.
pub const RESERVE_BYTES: u64 = 256 << 20;

/// A folder, removed when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a folder in the best place.
    pub fn create() -> Result<Self> {
        let temporary = std::env::temp_dir();
        let places = [Path::new("/dev/shm"), &temporary, Path::new("/var/tmp")];
        let mut rooms: Vec<(u64, &Path)> =
            places.into_iter().filter_map(|place| Some((free(place).ok()?, place))).collect();
        // The first with enough room, otherwise the place with
        // most: a stable sort preserves the order of places.
        rooms.sort_by_key(|(bytes, _)| std::cmp::Reverse((*bytes).min(ENOUGH_BYTES)));
        let mut refused = None;
        for (bytes, place) in rooms {
            if bytes < RESERVE_BYTES {
                continue;
            }
            remove_stale(place);
            let path = place.join(format!("{PREFIX}{}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) => refused = Some((path, error)),
            }
        }
        match refused {
            Some((path, error)) => Err(error).with_context(|| format!("cannot make {}", path.display())),
            None => bail!(
                "no room for the run's counts: 256 MiB are needed in /dev/shm, {} or /var/tmp",
                temporary.display()
            ),
        }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files in the folder: process id, number, path.
    pub fn images(&self) -> Vec<(u32, u32, PathBuf)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut images: Vec<(u32, u32, PathBuf)> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (pid, number) = name.split_once('.')?;
                Some((pid.parse().ok()?, number.parse().ok()?, entry.path()))
            })
            .collect();
        images.sort();
        images
    }

    /// Free bytes, of the place and of the machine's memory.
    pub fn free(&self) -> u64 {
        free(&self.path).unwrap_or(u64::MAX).min(free_memory().unwrap_or(u64::MAX))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::debug!("{} is not removed: {error}", self.path.display());
        }
    }
}

fn free(place: &Path) -> io::Result<u64> {
    let text = CString::new(place.as_os_str().as_bytes())?;
    // SAFETY: the bytes of the structure may be zero.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `text` ends in 0, `about` is valid for the write.
    match unsafe { libc::statvfs(text.as_ptr(), &raw mut about) } {
        0 => Ok(about.f_bavail.saturating_mul(about.f_frsize)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn free_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Removes folders of ended parents. Running programs of ended parents retain mappings.
pub fn remove_stale(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let of = |prefix| name.to_str()?.strip_prefix(prefix)?.parse::<u32>().ok();
        let pid = of(PREFIX).or_else(|| of(PLUGIN_PREFIX));
        if let Some(pid) = pid
            && !Path::new("/proc").join(pid.to_string()).exists()
        {
            // Another user's folder stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
