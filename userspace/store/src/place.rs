//! Place of a profile: existing files, owner of the new file, and first bytes.
//!
//! Not here: SQL. Limit: a directory writable by another user can be raced;
//! no foreign file is opened or overwritten then, but creation may fail.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::schema::APPLICATION_ID;

/// Future owner of the file (`SUDO_UID`, `SUDO_GID`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Owner {
    /// The caller of `sudo`.
    pub fn of_sudo() -> Option<Self> {
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        Some(Self { uid: number("SUDO_UID")?, gid: number("SUDO_GID")? })
    }
}

/// Kind of a file by the first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A profile of ours, whatever the state.
    Profile,
    /// No bytes.
    Empty,
    /// Another kind, in words.
    Foreign(&'static str),
}

/// SQLite's file header: magic at 0, application id (big-endian) at 68.
/// <https://www.sqlite.org/fileformat.html#the_database_header>
const HEADER_BYTES: u64 = 100;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const APPLICATION_ID_AT: usize = 68;

/// Whether a file is a profile, by the first bytes. False for an unreadable file, a pipe or a device.
pub fn is_profile(path: &Path) -> bool {
    matches!(kind_of(path), Ok(Kind::Profile))
}

/// Recognises a file by the first bytes.
pub(crate) fn kind_of(path: &Path) -> io::Result<Kind> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Ok(Kind::Foreign("a directory"));
    }
    if !metadata.is_file() {
        // Opening a pipe would block, a device might do anything.
        return Ok(Kind::Foreign("a pipe, socket or device"));
    }
    let mut head = Vec::new();
    File::open(path)?.take(HEADER_BYTES).read_to_end(&mut head)?;
    Ok(kind_of_bytes(&head))
}

fn kind_of_bytes(head: &[u8]) -> Kind {
    if head.is_empty() {
        return Kind::Empty;
    }
    if let Some(rest) = head.strip_prefix(MAGIC.as_slice()) {
        let at = APPLICATION_ID_AT - MAGIC.len();
        return match rest.get(at..at + 4) {
            Some(id) if id == APPLICATION_ID.to_be_bytes().as_slice() => Kind::Profile,
            Some(_) => Kind::Foreign("the SQLite database of another program"),
            None => Kind::Foreign("the first bytes of a SQLite database"),
        };
    }
    if head.starts_with(b"\x7fELF") {
        Kind::Foreign("an ELF program or library")
    } else if head.starts_with(b"PERFILE2") {
        Kind::Foreign("a perf.data file")
    } else if std::str::from_utf8(head).is_ok() {
        Kind::Foreign("a text file")
    } else {
        Kind::Foreign("a file of unknown type")
    }
}

/// Creates the empty file with mode 0600. An earlier profile becomes `FILE.old`, as
/// `perf record` does; a foreign file is left alone. Returns the path to open, with symbolic
/// links resolved in the directory, and the locked file. The lock marks a writer at work. Close
/// the file after the database (`fcntl(2)`: closing the file drops the database's own locks).
///
/// `is_ours` recognises further files to give way.
pub(crate) fn create_empty(
    path: &Path,
    owner: Option<Owner>,
    is_ours: &dyn Fn(&Path) -> bool,
) -> Result<(PathBuf, File), Error> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name =
        path.file_name().ok_or_else(|| Error::io(path, "create", io::ErrorKind::IsADirectory.into()))?;
    let directory = directory.canonicalize().map_err(|error| Error::io(path, "create", error))?;
    let path = directory.join(name);
    set_aside(&path, is_ours)?;
    let file = create_new(&path, owner)?;
    Ok((path, file))
}

/// Creates a new file, and locks the file.
pub(crate) fn create_new(path: &Path, owner: Option<Owner>) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(path).map_err(|error| Error::io(path, "create", error))?;
    if let Some(Owner { uid, gid }) = owner {
        fchown(&file, Some(uid), Some(gid)).map_err(|error| Error::io(path, "change the owner of", error))?;
    }
    // A file system without locks gives up the protection from a second writer, and no more.
    let _ = file.try_lock();
    Ok(file)
}

/// Whether a profile holds samples; `None` if unreadable,
/// or if a journal has yet to be played back.
fn has_samples(path: &Path) -> Option<bool> {
    if with_suffix(path, "-journal").exists() {
        return None;
    }
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = rusqlite::Connection::open_with_flags(path, flags).ok()?;
    database.query_row("SELECT EXISTS (SELECT 1 FROM sample)", [], |row| row.get(0)).ok()
}

/// Renames an earlier profile, unless the earlier profile is empty and
/// would displace a profile with samples. A killed tracer's journal moves
/// along. Removes an empty file, to preserve the former `FILE.old`.
fn set_aside(path: &Path, is_ours: &dyn Fn(&Path) -> bool) -> Result<(), Error> {
    let Some(there) = may_replace(path, is_ours)? else { return Ok(()) };
    if File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock))) {
        return Err(Error::InUse { path: path.to_owned() });
    }
    let journal = with_suffix(path, "-journal");
    if there == Kind::Empty && !journal.exists() {
        return fs::remove_file(path).map_err(|error| Error::io(path, "remove", error));
    }
    let old = earlier(path);
    let before = may_replace(&old, is_ours)?;
    if before == Some(Kind::Profile) && has_samples(&old) == Some(true) && has_samples(path) == Some(false) {
        return fs::remove_file(path).map_err(|error| Error::io(path, "remove", error));
    }
    fs::rename(path, &old).map_err(|error| Error::io(path, "rename", error))?;
    // The journal belongs to the file of equal name: a journal left
    // beside the new file would be played back into the new file.
    let journals = (journal, with_suffix(&old, "-journal"));
    for result in [fs::remove_file(&journals.1), fs::rename(&journals.0, &journals.1)] {
        match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(&journals.0, "rename", error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Place of the former profile: `FILE.old`.
pub fn earlier(path: &Path) -> PathBuf {
    with_suffix(path, ".old")
}

/// The existing file, if replaceable: an earlier profile or an empty file.
fn may_replace(path: &Path, is_ours: &dyn Fn(&Path) -> bool) -> Result<Option<Kind>, Error> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
        return Err(Error::WouldClobber { path: path.to_owned(), what: "a symbolic link".to_owned() });
    }
    match kind_of(path) {
        Ok(there @ (Kind::Profile | Kind::Empty)) => Ok(Some(there)),
        Ok(Kind::Foreign(_)) if path.is_file() && is_ours(path) => Ok(Some(Kind::Profile)),
        Ok(Kind::Foreign(what)) => Err(Error::WouldClobber { path: path.to_owned(), what: what.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path, "look at", error)),
    }
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognised_by_their_first_bytes() {
        let mut header = [0_u8; 100];
        header[..16].copy_from_slice(MAGIC);
        assert_eq!(kind_of_bytes(&header), Kind::Foreign("the SQLite database of another program"));
        header[68..72].copy_from_slice(&APPLICATION_ID.to_be_bytes());
        assert_eq!(kind_of_bytes(&header), Kind::Profile);
        for length in 0..=100 {
            assert_eq!(kind_of_bytes(&header[..length]) == Kind::Profile, length >= 72);
        }
        assert_eq!(kind_of_bytes(b""), Kind::Empty);
        assert_eq!(kind_of_bytes(b"\x7fELF\x02"), Kind::Foreign("an ELF program or library"));
        assert_eq!(kind_of_bytes(b"hello"), Kind::Foreign("a text file"));
        assert_eq!(kind_of_bytes(b"\xff\xfe\x00"), Kind::Foreign("a file of unknown type"));
    }
}
