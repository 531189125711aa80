//! Rollups in a database (SQLite): `rollups.sqlite` in the agent's store.
//!
//! Table `rollup`: a row for each group of a segment, `started_ns` (Unix epoch) and `wall_ns` of the
//! segment, the group's name, and the row as JSON (`locality_rollup::Row`).

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use locality_rollup::{Rollup, Row};
use rusqlite::{Connection, OpenFlags, params};

/// How long rollups stay.
const OLDEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// Limit of rows, about a gigabyte.
const MOST: u64 = 100_000;

const CREATE: &str = "
CREATE TABLE IF NOT EXISTS rollup (
    started_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL, name TEXT NOT NULL, row TEXT NOT NULL,
    PRIMARY KEY (started_ns, name)
) WITHOUT ROWID;
";

/// The database.
#[derive(Debug)]
pub(crate) struct Rollups {
    database: Connection,
}

/// Puts an empty database in place. A reader meets no file, or a file with the table.
fn create(folder: &Path, path: &Path) {
    let new = folder.join("rollups.new");
    let _ = std::fs::remove_file(&new);
    let made = Connection::open(&new).and_then(|database| database.execute_batch(CREATE));
    if made.is_ok() {
        let _ = std::fs::rename(&new, path);
    }
}

impl Rollups {
    /// Opens or creates the database of a store. A damaged database is set aside.
    ///
    /// # Errors
    /// The store cannot be written.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("rollups.sqlite");
        let open = || {
            if !path.exists() {
                create(folder, &path);
            }
            let database = Connection::open(&path)?;
            database.busy_timeout(Duration::from_secs(2))?;
            database.pragma_update(None, "synchronous", "OFF")?;
            database.execute_batch(CREATE)?;
            database.query_row("SELECT count(*) FROM rollup", [], |_| Ok(()))?;
            Ok::<_, rusqlite::Error>(database)
        };
        let database = open().or_else(|error| {
            tracing::warn!("{} is damaged and was set aside: {error}", path.display());
            let _ = std::fs::rename(&path, folder.join("rollups.damaged"));
            open()
        });
        let database = database.with_context(|| format!("cannot write to {}", path.display()))?;
        Ok(Self { database })
    }

    /// Opens the database of a store for reading.
    ///
    /// # Errors
    /// The database is missing, or may not be read.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("rollups.sqlite");
        if std::fs::metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            bail!("there are no rollups in {}: --store names the folder of an agent", folder.display());
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let database = Connection::open_with_flags(&path, flags)
            .with_context(|| format!("cannot read {}", path.display()))?;
        database.busy_timeout(Duration::from_secs(2))?;
        Ok(Self { database })
    }

    /// Stores a segment's rollup, in place of earlier rows of the segment.
    ///
    /// # Errors
    /// The database cannot be written.
    pub(crate) fn put(&mut self, rollup: &Rollup) -> Result<()> {
        let started = rollup.started_unix_ns.cast_signed();
        let transaction = self.database.transaction()?;
        for row in &rollup.rows {
            transaction.prepare_cached("INSERT OR REPLACE INTO rollup VALUES (?, ?, ?, ?)")?.execute(
                params![started, rollup.wall_ns.cast_signed(), row.group, serde_json::to_string(row)?],
            )?;
        }
        let oldest = started - OLDEST.as_nanos() as i64;
        transaction.execute("DELETE FROM rollup WHERE started_ns < ?", [oldest])?;
        transaction.execute(
            "DELETE FROM rollup WHERE started_ns < \
             (SELECT started_ns FROM rollup ORDER BY started_ns DESC LIMIT 1 OFFSET ?)",
            [MOST.cast_signed()],
        )?;
        transaction.commit()?;
        Ok(())
    }

    /// Starts and lengths of segments that ended at `ended_ns` or later, the oldest first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn segments_since(&self, ended_ns: u64) -> Result<Vec<(u64, u64)>> {
        let mut statement = self.database.prepare_cached(
            "SELECT DISTINCT started_ns, wall_ns FROM rollup WHERE started_ns + wall_ns >= ? ORDER BY started_ns",
        )?;
        let times = statement.query_map([ended_ns.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
        Ok(times.collect::<rusqlite::Result<_>>()?)
    }

    /// Rows of the segment started at `started_ns`, by group.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn rows_of(&self, started_ns: u64) -> Result<Vec<Row>> {
        self.rows("SELECT row FROM rollup WHERE started_ns = ? ORDER BY name", started_ns)
    }

    /// Rows of segments started at `started_ns` or later, by group and time.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn since(&self, started_ns: u64) -> Result<Vec<Row>> {
        self.rows("SELECT row FROM rollup WHERE started_ns >= ? ORDER BY name, started_ns", started_ns)
    }

    fn rows(&self, question: &str, started_ns: u64) -> Result<Vec<Row>> {
        let mut statement = self.database.prepare_cached(question)?;
        let rows = statement.query_map([started_ns.cast_signed()], |row| row.get::<_, String>(0))?;
        let mut found = Vec::new();
        for row in rows {
            found.push(serde_json::from_str(&row?).context("a rollup of another version")?);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollup(started_unix_ns: u64, samples: u64) -> Rollup {
        let row = Row { group: "g".to_owned(), samples, ..Row::default() };
        Rollup { started_unix_ns, wall_ns: 5, rows: vec![row], ..Rollup::default() }
    }

    #[test]
    fn rollups_stay_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let mut rollups = Rollups::open(folder.path()).unwrap();
        let day = 24 * 3600 * 1_000_000_000_u64;
        rollups.put(&rollup(40 * day, 1)).unwrap();
        rollups.put(&rollup(41 * day, 2)).unwrap();
        rollups.put(&rollup(41 * day, 3)).unwrap();
        let samples = |rollups: &Rollups, from| {
            rollups.since(from).unwrap().iter().map(|row| row.samples).collect::<Vec<_>>()
        };
        assert_eq!((samples(&rollups, 0), samples(&rollups, 41 * day)), (vec![1, 3], vec![3]));
        drop(rollups);
        let mut rollups = Rollups::open(folder.path()).unwrap();
        rollups.put(&rollup(71 * day, 4)).unwrap();
        assert_eq!(samples(&rollups, 0), [3, 4]);
        drop(rollups);
        std::fs::write(folder.path().join("rollups.sqlite"), [7; 5000]).unwrap();
        let rollups = Rollups::open(folder.path()).unwrap();
        assert!(samples(&rollups, 0).is_empty() && folder.path().join("rollups.damaged").exists());
    }

    /// A reader that comes while an agent starts finds no database, or one that can be asked.
    #[test]
    fn a_database_is_never_without_its_table() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rollups.sqlite");
            std::thread::scope(|scope| {
                scope.spawn(|| Rollups::open(folder.path()).unwrap());
                while !path.exists() {
                    std::hint::spin_loop();
                }
                assert_eq!(Rollups::read(folder.path()).unwrap().since(0).unwrap().len(), 0);
            });
        }
    }
}
