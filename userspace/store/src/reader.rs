//! Opens and decodes a profile file of every version; extracts the readable part of a damaged file.
//!
//! Not here: the tables (`tables`).
//!
//! Limits: reading the file of a tracer killed inside a transaction needs write
//! permission once, to play back the journal. The whole profile is read into memory.

use std::io;
use std::path::Path;

use locality_model::Profile;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::Error;
use crate::place::{self, Kind};
use crate::schema::SCHEMA_VERSION;
use crate::value::unsigned;
use crate::{repair, sound, tables};

/// Rows as in the file, and damage met on the way.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// Samples keep ids until [`repair`] has closed gaps; the rest is in place.
    pub profile: Profile,
    /// Ids of `profile.samples`, ascending.
    pub sample_ids: Vec<u32>,
    /// Ids of `profile.uses`, ascending.
    pub use_ids: Vec<u32>,
    /// Ids of `profile.loads`, ascending.
    pub load_ids: Vec<u32>,
    /// Ids of `profile.watches`, ascending.
    pub watch_ids: Vec<i64>,
    /// A run row was present.
    pub has_run: bool,
    /// Unreadable parts, one sentence each.
    pub damage: Vec<String>,
}

/// Reads a profile. A damaged or unfinished profile has
/// `partial` set, and a notice names the missing parts.
pub fn read(path: &Path) -> Result<Profile, Error> {
    match place::kind_of(path).map_err(|error| Error::io(path, "read", error))? {
        Kind::Profile => {}
        Kind::Empty => {
            let detail = "the file is empty".to_owned();
            return Err(Error::Damaged { path: path.to_owned(), detail });
        }
        Kind::Foreign(what) => {
            return Err(Error::NotAProfile { path: path.to_owned(), what: what.to_owned() });
        }
    }
    let database = open(path)?;
    let version = version(&database).map_err(|error| Error::sqlite(path, error))?;
    let damage = whole_pages(&database, path).and_then(|()| quick_check(&database)).err();
    let mut decoded = decode(&database, version, path, damage.is_none())?;
    decoded.damage.splice(0..0, damage);
    if !decoded.has_run && decoded.profile.samples.is_empty() {
        let detail = decoded.damage.into_iter().next();
        let detail = detail
            .unwrap_or_else(|| "the tracer ended, or the disk was full, before it wrote anything".to_owned());
        return Err(Error::Damaged { path: path.to_owned(), detail });
    }
    sound::leave_out(&mut decoded);
    Ok(repair::finish(decoded))
}

fn decode(database: &Connection, version: i64, path: &Path, is_whole: bool) -> Result<Decoded, Error> {
    match version {
        1..=SCHEMA_VERSION => Ok(tables::decode(database, version, is_whole)),
        found if found > SCHEMA_VERSION => {
            Err(Error::NewerVersion { path: path.to_owned(), found, known: SCHEMA_VERSION })
        }
        found => Err(Error::Damaged {
            path: path.to_owned(),
            detail: format!("there is no format version {found}"),
        }),
    }
}

/// Opens read-only; for writing only when a killed tracer's journal must be played back.
fn open(path: &Path) -> Result<Connection, Error> {
    // For a file without permission, the system's words, not SQLite's.
    std::fs::File::open(path).map_err(|error: io::Error| Error::io(path, "read", error))?;
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let read_write = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let error = match open_with(path, read_only) {
        Ok(database) => return Ok(database),
        Err(error) => error,
    };
    if error.sqlite_error_code() == Some(ErrorCode::ReadOnly) {
        return open_with(path, read_write).map_err(|_| Error::NeedsRecovery { path: path.to_owned() });
    }
    Err(Error::sqlite(path, error))
}

fn open_with(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let database = Connection::open_with_flags(path, flags)?;
    database.busy_timeout(std::time::Duration::from_secs(2))?;
    // SQLite refuses a file shorter than stated in the header, unless
    // the schema is declared writable. SQLite then reads as far as the
    // file goes, as needed for a truncated profile. We write no data.
    database.pragma_update(None, "writable_schema", "ON")?;
    // The first read plays back a journal.
    version(&database)?;
    Ok(database)
}

fn version(database: &Connection) -> rusqlite::Result<i64> {
    database.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// SQLite reads a file ending inside a page as if zeros followed.
fn whole_pages(database: &Connection, path: &Path) -> Result<(), String> {
    let page_bytes = database.query_row("PRAGMA page_size", [], |row| row.get(0).map(unsigned));
    let page_bytes = page_bytes.map_err(|error| error.to_string())?;
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if bytes.is_multiple_of(page_bytes.max(1)) { Ok(()) } else { Err("it ends inside a page".to_owned()) }
}

/// SQLite's own opinion of the file. <https://www.sqlite.org/pragma.html#pragma_quick_check>
fn quick_check(database: &Connection) -> Result<(), String> {
    let verdict: rusqlite::Result<String> = database.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    match verdict {
        Ok(verdict) if verdict == "ok" => Ok(()),
        Ok(finding) => Err(finding.replace('\n', " ")),
        Err(error) => Err(error.to_string()),
    }
}
