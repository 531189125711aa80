//! An agent's rollups together with the segment being written, for a live table.
//!
//! A segment in writing is copied while a read lock excludes the writer, which takes milliseconds; its
//! rollup is made of the copy. Work is in proportion to the segment's samples.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use locality_rollup::{Keys, Row};
use rusqlite::{Connection, OpenFlags};

use crate::rollups::Rollups;
use crate::{jobs, store, sys};

/// How far back rollups are read.
const SPAN: Duration = Duration::from_secs(3600);
/// How long a segment may wait for its rollup before its last rows are dropped.
const PATIENCE_NS: u64 = 600_000_000_000;

/// Rows of one segment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Segment {
    /// Start, nanoseconds since the Unix epoch.
    pub started_ns: u64,
    /// Length so far.
    pub wall_ns: u64,
    /// A row for each group.
    pub rows: Vec<Row>,
    /// Cost for the targets, as a share of their CPU time; `None` while unknown.
    pub cost: Option<f64>,
}

/// What a store has at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// The moment, nanoseconds since the Unix epoch.
    pub now_ns: u64,
    /// Segments of the last hour, the oldest first.
    pub segments: Vec<Segment>,
    /// Process id and state of the agent; `None` without an agent.
    pub agent: Option<(u32, String)>,
}

/// Process id and state of a store's agent; `None` without an agent.
pub fn agent(folder: &Path) -> Option<(u32, String)> {
    store::agent(folder)
}

/// Asks an agent, a child process not yet waited for, to end.
pub fn end(agent: u32) {
    sys::signal(agent, libc::SIGTERM);
}

/// Reads a store again and again.
#[derive(Debug)]
pub struct Reader {
    folder: PathBuf,
    keys: Option<Keys>,
    /// Segments with a rollup, by start.
    finished: BTreeMap<u64, Segment>,
    /// Segments without one, by start.
    unfinished: BTreeMap<u64, Segment>,
    /// Bytes of a file when it was last read.
    seen: HashMap<PathBuf, u64>,
}

impl Reader {
    /// A reader of the store in a folder.
    ///
    /// # Errors
    /// The store may not be read.
    pub fn new(folder: &Path) -> Result<Self> {
        match fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                bail!("cannot read the store {}, which takes root", folder.display())
            }
            _ => {}
        }
        Ok(Self {
            folder: folder.to_owned(),
            keys: None,
            finished: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            seen: HashMap::new(),
        })
    }

    /// Gives the calling thread a low priority.
    pub fn be_modest() {
        sys::be_nice();
    }

    /// Reads what is new. A store without rollups yet has no segments.
    ///
    /// # Errors
    /// The rollups cannot be read.
    pub fn look(&mut self) -> Result<Found> {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let agent = store::agent(&self.folder);
        self.read_rollups(now_ns.saturating_sub(SPAN.as_nanos() as u64))?;
        self.read_parts(now_ns);
        let segments = self.finished.values().chain(self.unfinished.values()).cloned().collect();
        Ok(Found { now_ns, segments, agent })
    }

    fn read_rollups(&mut self, from_ns: u64) -> Result<()> {
        if !self.folder.join("rollups.sqlite").exists() {
            return Ok(());
        }
        let rollups = Rollups::read(&self.folder)?;
        self.finished.retain(|started_ns, segment| started_ns + segment.wall_ns >= from_ns);
        for (started_ns, wall_ns) in rollups.segments_since(from_ns)? {
            if self.finished.contains_key(&started_ns) {
                continue;
            }
            let cost = self.unfinished.remove(&started_ns).and_then(|segment| segment.cost);
            let rows = rollups.rows_of(started_ns)?;
            self.finished.insert(started_ns, Segment { started_ns, wall_ns, rows, cost });
        }
        Ok(())
    }

    /// Makes rollups of segments without a stored one.
    fn read_parts(&mut self, now_ns: u64) {
        for path in store::parts(&self.folder) {
            let Ok(bytes) = fs::metadata(&path).map(|file| file.len()) else { continue };
            if self.seen.insert(path.clone(), bytes) == Some(bytes) {
                continue;
            }
            match self.rollup(&path) {
                // The tracer has not written a sample, or has just renamed the file.
                Err(error) => tracing::debug!("{}: {error:#}", path.display()),
                Ok(mut segment) if !self.finished.contains_key(&segment.started_ns) => {
                    segment.wall_ns = segment.wall_ns.max(now_ns.saturating_sub(segment.started_ns));
                    self.unfinished.insert(segment.started_ns, segment);
                }
                Ok(_) => {}
            }
        }
        self.seen.retain(|path, _| path.exists());
        self.unfinished.retain(|started_ns, segment| {
            !self.finished.contains_key(started_ns) && started_ns + segment.wall_ns + PATIENCE_NS >= now_ns
        });
    }

    fn rollup(&mut self, part: &Path) -> Result<Segment> {
        let keys = match &self.keys {
            Some(keys) => keys,
            None => self.keys.insert(jobs::noted_keys(&self.folder)?),
        };
        let copy = self.folder.join(format!("now-{}", std::process::id()));
        let read = copied(part, &copy).and_then(|()| Ok(locality_profile::read(&copy)?));
        let _ = fs::remove_file(&copy);
        let mut profile = read?;
        profile.make_printable();
        let rollup = locality_rollup::of(&profile, keys);
        let cost = (rollup.health.cost > 0.0).then_some(rollup.health.cost);
        let (started_ns, wall_ns) = (rollup.started_unix_ns, rollup.wall_ns);
        Ok(Segment { started_ns, wall_ns, rows: rollup.rows, cost })
    }
}

/// Copies a database that another process writes, between two of its transactions.
fn copied(from: &Path, to: &Path) -> Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(from, flags)?;
    database.busy_timeout(Duration::from_secs(1))?;
    database.execute_batch("BEGIN")?;
    // The first read takes the lock, which the end of the connection returns.
    database.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
    fs::copy(from, to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use locality_rollup::Rollup;

    use super::*;

    #[test]
    fn rollups_are_read_once_and_damaged_parts_are_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = Reader::new(folder.path()).unwrap();
        assert_eq!(reader.look().unwrap().segments, []);
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let mut rollups = Rollups::open(folder.path()).unwrap();
        let row = |group: &str| Row { group: group.to_owned(), samples: 3, ..Row::default() };
        for (ago_s, group) in [(7200, "old"), (20, "web"), (10, "db")] {
            let started_unix_ns = now_ns - ago_s * 1_000_000_000;
            let rollup = Rollup { started_unix_ns, wall_ns: 5, rows: vec![row(group)], ..Rollup::default() };
            rollups.put(&rollup).unwrap();
        }
        fs::create_dir(folder.path().join("segments")).unwrap();
        fs::write(folder.path().join("segments/segment-0000000000007.part"), "junk").unwrap();
        let found = reader.look().unwrap();
        let names: Vec<&str> = found.segments.iter().map(|segment| segment.rows[0].group.as_str()).collect();
        assert_eq!((names, found.agent), (vec!["web", "db"], None));
        assert!(
            fs::read_dir(folder.path())
                .unwrap()
                .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with("now-") })
        );
    }

    #[test]
    fn a_copy_is_of_whole_transactions() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("a"), folder.path().join("b"));
        let writer = Connection::open(&path).unwrap();
        writer.execute_batch("CREATE TABLE t (n); BEGIN; INSERT INTO t VALUES (1); COMMIT").unwrap();
        writer.execute_batch("BEGIN; INSERT INTO t VALUES (2)").unwrap();
        copied(&path, &copy).unwrap();
        writer.execute_batch("COMMIT").unwrap();
        let count = |path: &Path| {
            let database = Connection::open(path).unwrap();
            database.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!((count(&copy), count(&path)), (1, 2));
    }
}
