//! The folder of an agent: segments in a ring, and a lock.
//!
//! A segment is written as `segment-MS.part` and renamed to `segment-MS.locality`
//! when complete; MS is the start in milliseconds since the Unix epoch. The next
//! start takes over the parts of a killed tracer. The oldest segments are removed
//! when the store has too many bytes, or when too old.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use locality_units::parse::WrongUse;

/// Longest age of a segment.
const OLDEST: Duration = Duration::from_secs(7 * 24 * 3600);
const PREFIX: &str = "segment-";
const COMPLETE: &str = ".locality";
const PART: &str = ".part";

/// States of an agent.
pub(crate) const STARTING: &str = "starting";
pub(crate) const TRACING: &str = "tracing";
pub(crate) const RELEASED: &str = "released";

/// Refuses a store that is a file, or unreadable for this user. A missing store passes.
///
/// # Errors
/// A sentence with the mend.
pub(crate) fn check_readable(folder: &Path) -> Result<()> {
    let name = folder.display();
    match fs::read_dir(folder).map_err(|error| error.kind()) {
        Err(io::ErrorKind::NotADirectory) => {
            bail!(WrongUse(format!("{name} is a file: --store names an agent's folder")))
        }
        Err(io::ErrorKind::PermissionDenied) => {
            bail!("cannot read {name}: run as root, as in `sudo locality-bpf …`")
        }
        _ => Ok(()),
    }
}

/// Process id and state of a store's agent; `None` without an agent.
pub(crate) fn agent(folder: &Path) -> Option<(u32, String)> {
    let path = folder.join("lock");
    let file = File::open(&path).ok()?;
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    let text = fs::read_to_string(&path).ok()?;
    let (pid, state) = text.trim().split_once(' ')?;
    Some((pid.parse().ok()?, state.to_owned()))
}

/// The store of one agent, locked against further agents.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    bytes: u64,
    lock: File,
}

/// A complete segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub path: PathBuf,
    pub started_ms: u64,
    pub bytes: u64,
    pub ended: SystemTime,
}

impl Store {
    /// Opens the store, or creates a new store.
    ///
    /// # Errors
    /// The store cannot be created or written, or another agent has the lock.
    pub(crate) fn open(folder: &Path, bytes: u64) -> Result<Self> {
        if folder.is_file() {
            bail!(WrongUse(format!("{} is a file: --store names a folder", folder.display())));
        }
        let segments = folder.join("segments");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&segments)
            .with_context(|| format!("cannot make the store {}", folder.display()))?;
        let folder = fs::canonicalize(folder)
            .with_context(|| format!("cannot open the store {}", folder.display()))?;
        let path = folder.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot write to the store {}", folder.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let who = fs::read_to_string(&path).unwrap_or_default();
                bail!(
                    "another agent (process {}) writes to the store {}: stop that one, or name another \
                     folder with --store",
                    who.split_whitespace().next().unwrap_or("unknown"),
                    folder.display()
                );
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock the store {}", folder.display()));
            }
        }
        let mut store = Self { folder, bytes, lock };
        store
            .note(STARTING)
            .with_context(|| format!("cannot write to the store {}", store.folder.display()))?;
        Ok(store)
    }

    /// Writes the agent's process id and state, for `release`.
    pub(crate) fn note(&mut self, state: &str) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        writeln!(self.lock, "{} {state}", std::process::id())
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path for a segment that starts now.
    pub(crate) fn next_part(&self) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        self.folder.join(format!("segments/{PREFIX}{now:013}{PART}"))
    }

    /// Renames a part to a segment; removes an empty part (`None`).
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn complete(&self, part: &Path) -> io::Result<Option<PathBuf>> {
        let journal = with(part, "-journal");
        match fs::metadata(part) {
            Ok(file) if file.len() == 0 && !journal.exists() => return fs::remove_file(part).map(|()| None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let segment = part.with_extension(&COMPLETE[1..]);
        // SQLite finds a journal by the file's name, and plays the journal back.
        match fs::rename(&journal, with(&segment, "-journal")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(part, &segment)?;
        Ok(Some(segment))
    }

    /// Parts of killed tracers, without a lock.
    pub(crate) fn left_behind(&self) -> Vec<PathBuf> {
        let is_free = |path: &PathBuf| File::open(path).is_ok_and(|file| file.try_lock_shared().is_ok());
        let mut parts: Vec<PathBuf> =
            entries(&self.folder).filter(|path| ends(path, PART)).filter(is_free).collect();
        parts.sort();
        parts
    }

    /// Segments, the oldest first.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        segments(&self.folder)
    }

    /// Bytes of the segments.
    pub(crate) fn used(&self) -> u64 {
        self.segments().iter().map(|segment| segment.bytes).sum()
    }

    /// Removes the oldest segments until the rest has
    /// room; the newest stays. Returns the number removed.
    pub(crate) fn make_room(&self) -> usize {
        let segments = self.segments();
        let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
        let mut gone = 0;
        for segment in segments.iter().take(segments.len().saturating_sub(1)) {
            let age = SystemTime::now().duration_since(segment.ended).unwrap_or_default();
            if bytes <= self.bytes && age <= OLDEST {
                break;
            }
            bytes -= segment.bytes;
            gone += usize::from(fs::remove_file(&segment.path).is_ok());
            let _ = fs::remove_file(with(&segment.path, "-journal"));
        }
        gone
    }
}

/// Segments of a store, the oldest first.
pub(crate) fn segments(folder: &Path) -> Vec<Segment> {
    let segment = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let started_ms = name.strip_prefix(PREFIX)?.strip_suffix(COMPLETE)?.parse().ok()?;
        let file = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        Some(Segment { started_ms, bytes: file.len(), ended: file.modified().ok()?, path })
    };
    let mut found: Vec<Segment> = entries(folder).filter_map(segment).collect();
    found.sort_by_key(|segment| segment.started_ms);
    found
}

/// Segments being written or completed, the oldest first.
pub(crate) fn parts(folder: &Path) -> Vec<PathBuf> {
    let mut parts: Vec<PathBuf> = entries(folder).filter(|path| ends(path, PART)).collect();
    parts.sort();
    parts
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder.join("segments")).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

fn ends(path: &Path, suffix: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with(PREFIX) && name.ends_with(suffix)
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(store: &Store, ms: u64, bytes: usize) -> PathBuf {
        let path = store.folder.join(format!("segments/{PREFIX}{ms:013}{PART}"));
        fs::write(&path, vec![0; bytes]).unwrap();
        path
    }

    #[test]
    fn segments_are_a_ring_by_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("a/b"), 100).unwrap();
        for ms in [3, 1, 2, 10] {
            let path = part(&store, ms, 40);
            let segment = store.complete(&path).unwrap().unwrap();
            assert!(segment.exists() && !path.exists());
        }
        let starts = |store: &Store| store.segments().iter().map(|s| s.started_ms).collect::<Vec<_>>();
        assert_eq!((starts(&store), store.used()), (vec![1, 2, 3, 10], 160));
        assert_eq!((store.make_room(), starts(&store)), (2, vec![3, 10]));
        let large = part(&store, 11, 1000);
        store.complete(&large).unwrap();
        assert_eq!((store.make_room(), starts(&store)), (2, vec![11]), "the newest stays");
    }

    #[test]
    fn old_segments_go_and_strangers_stay() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), 1 << 20).unwrap();
        let stranger = store.folder.join("segments/notes.locality");
        fs::write(&stranger, "mine").unwrap();
        for ms in [1, 2] {
            let segment = store.complete(&part(&store, ms, 40)).unwrap().unwrap();
            let old = SystemTime::now() - OLDEST - Duration::from_secs(60);
            File::options().write(true).open(segment).unwrap().set_modified(old).unwrap();
        }
        assert_eq!(store.make_room(), 1);
        assert_eq!(store.segments().len(), 1);
        assert!(stranger.exists());
    }

    #[test]
    fn what_a_killed_tracer_left_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), 100).unwrap();
        let (left, empty, busy) = (part(&store, 1, 5), part(&store, 2, 0), part(&store, 3, 5));
        fs::write(with(&left, "-journal"), "j").unwrap();
        let writer = File::options().write(true).open(&busy).unwrap();
        writer.lock().unwrap();
        assert_eq!(store.left_behind(), [left.clone(), empty.clone()]);
        let segment = store.complete(&left).unwrap().unwrap();
        assert!(with(&segment, "-journal").exists() && !with(&left, "-journal").exists());
        assert_eq!(store.complete(&empty).unwrap(), None);
        assert!(!empty.exists());
        assert_eq!(store.complete(&empty).unwrap(), None, "gone already");
    }

    #[test]
    fn a_store_has_one_agent() {
        let folder = tempfile::tempdir().unwrap();
        let first = Store::open(folder.path(), 100).unwrap();
        let why = Store::open(folder.path(), 100).unwrap_err().to_string();
        assert!(why.contains(&format!("process {}", std::process::id())) && why.contains("--store"), "{why}");
        assert_eq!(agent(folder.path()), Some((std::process::id(), STARTING.to_owned())));
        drop(first);
        assert_eq!(agent(folder.path()), None);
        Store::open(folder.path(), 100).unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(format!("{:#}", Store::open(&file, 1).unwrap_err()).contains("is a file"));
        assert!(check_readable(&file).unwrap_err().to_string().contains("is a file"));
        assert!(check_readable(folder.path()).is_ok() && check_readable(&folder.path().join("none")).is_ok());
    }
}
