//! Errors of a profile file, as values. Each message is one sentence with a remedy.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rusqlite::ffi;

/// Why a profile could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file does not exist.
    #[error("{}: there is no such profile file", .path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// The file is no profile.
    #[error("{} is not a locality profile but {what}", .path.display())]
    NotAProfile {
        /// The file.
        path: PathBuf,
        /// Apparent kind of the file.
        what: String,
    },
    /// A profile without readable content.
    #[error("{} is a damaged locality profile and nothing can be recovered from it: {detail}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// First failure.
        detail: String,
    },
    /// Written by a later version of the tool.
    #[error("{} has profile format {found}, this program knows up to {known}: use a newer locality-bpf", .path.display())]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Format version of the file.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The tracer died while writing, and the file cannot be repaired without write permission.
    #[error(
        "{} was being written when its tracer died: read it once where it, {}-journal beside it and their directory are writable",
        .path.display(), .path.display()
    )]
    NeedsRecovery {
        /// The file.
        path: PathBuf,
    },
    /// The limit of rows waiting for an unwritable file; no more are stored.
    #[error("{}: the file takes no rows, and no more can wait", .path.display())]
    Waiting {
        /// The file.
        path: PathBuf,
    },
    /// Creating would destroy a file other than a profile.
    #[error("{} exists and is not a locality profile but {what}: choose another name with -o FILE", .path.display())]
    WouldClobber {
        /// The file.
        path: PathBuf,
        /// Apparent kind of the file.
        what: String,
    },
    /// No room on the file system; rows not committed are still in the writer's memory.
    #[error("no space left on the disk for {}", .path.display())]
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// Another program holds the database; commit again later.
    #[error("{} is locked by another program", .path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Another trace is writing to the file.
    #[error("{} is being written by another trace: choose another name with -o FILE", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file was renamed or deleted during writing.
    #[error("{} was renamed or deleted while it was being written", .path.display())]
    Moved {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Attempted action.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// SQLite failed for another reason.
    #[error("{}: {source}", .path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's own words.
        source: rusqlite::Error,
    },
}

impl Error {
    /// Names an I/O error; a full disk has a separate variant.
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound if action == "read" => Self::NotFound { path },
            io::ErrorKind::StorageFull => Self::DiskFull { path },
            _ => Self::Io { path, action, source },
        }
    }

    /// Names a SQLite error by result code (<https://www.sqlite.org/rescode.html>).
    pub(crate) fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        let code = source.sqlite_error().map(|error| (error.code, error.extended_code));
        match code {
            Some((_, ffi::SQLITE_READONLY_DBMOVED)) => Self::Moved { path },
            Some((_, ffi::SQLITE_READONLY_ROLLBACK)) => Self::NeedsRecovery { path },
            Some((ErrorCode::DiskFull, _)) => Self::DiskFull { path },
            Some((ErrorCode::DatabaseBusy, _)) => Self::Busy { path },
            Some((ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, _)) => {
                Self::Damaged { path, detail: source.to_string() }
            }
            _ => Self::Sqlite { path, source },
        }
    }
}
