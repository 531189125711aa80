//! A reserved place for a file written at once after the measurement: created before, to find
//! errors early.
//!
//! Not here: the content. Limit: a process killed before
//! writing leaves an empty file, replaced by the next run.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::place::{self, Owner};

/// An empty file with mode 0600. Without a later write
/// the file is removed, and the former file restored.
#[derive(Debug)]
pub struct Reserved {
    path: PathBuf,
    file: File,
    owner: Option<Owner>,
    /// The former file is FILE.old now.
    has_earlier: bool,
}

impl Reserved {
    /// Makes the place. An earlier profile becomes `FILE.old`, as
    /// does a file known to `is_ours`; foreign files are an error.
    pub fn create(path: &Path, owner: Option<Owner>, is_ours: impl Fn(&Path) -> bool) -> Result<Self, Error> {
        let has_earlier = fs::metadata(path).is_ok_and(|there| there.len() > 0);
        let (path, file) = place::create_empty(path, owner, &is_ours)?;
        Ok(Self { path, file, owner, has_earlier })
    }

    /// Writes the file; returns the path. An incomplete file is removed.
    pub fn write(mut self, bytes: &[u8]) -> Result<PathBuf, Error> {
        if !self.is_there()? {
            // Whatever was measured may have cleaned up here.
            self.file = place::create_new(&self.path, self.owner)?;
        }
        if let Err(error) = self.file.write_all(bytes) {
            // The first error tells more than errors of removing the useless file.
            let _ = self.file.set_len(0);
            return Err(Error::io(&self.path, "write", error));
        }
        Ok(self.path.clone())
    }

    /// False for a missing file; a foreign file in the place is an error.
    fn is_there(&self) -> Result<bool, Error> {
        let ours = self.file.metadata().map_err(|error| Error::io(&self.path, "look at", error))?;
        match fs::symlink_metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(true),
            Ok(_) => Err(Error::Moved { path: self.path.clone() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io(&self.path, "look at", error)),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let is_empty = self.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if is_empty && matches!(self.is_there(), Ok(true)) {
            // No data is lost with the file.
            let _ = match self.has_earlier {
                true => fs::rename(place::earlier(&self.path), &self.path),
                false => fs::remove_file(&self.path),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ours(path: &Path) -> bool {
        fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"ours"))
    }

    fn reserve(path: &Path) -> Result<Reserved, Error> {
        Reserved::create(path, None, is_ours)
    }

    #[test]
    fn what_is_there_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (file, old) = (folder.path().join("a"), folder.path().join("a.old"));
        for text in ["ours 1", "ours 2"] {
            let place = reserve(&file).unwrap();
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
            assert_eq!(
                place.write(text.as_bytes()).unwrap(),
                folder.path().canonicalize().unwrap().join("a")
            );
        }
        assert_eq!((fs::read(&file).unwrap(), fs::read(&old).unwrap()), (b"ours 2".into(), b"ours 1".into()));
        // What a killed run left is nothing, and takes the place of nothing.
        fs::write(&file, "").unwrap();
        assert!(reserve(&file).unwrap().write(b"ours 3").is_ok());
        assert_eq!(fs::read(&old).unwrap(), b"ours 1");
        fs::write(&file, "int main;").unwrap();
        let why = reserve(&file).unwrap_err().to_string();
        assert!(why.contains("not a locality profile but a text file"), "{why}");
        assert_eq!(fs::read(&file).unwrap(), b"int main;");
        assert!(reserve(folder.path()).is_err() && reserve(&folder.path().join("no/such")).is_err());
    }

    #[test]
    fn a_place_of_which_nothing_came_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        drop(reserve(&file).unwrap());
        assert!(!file.exists());
        fs::write(&file, "ours before").unwrap();
        drop(reserve(&file).unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"ours before");
        fs::remove_file(&file).unwrap();
        let place = reserve(&file).unwrap();
        assert!(matches!(reserve(&file), Err(Error::InUse { .. })));
        fs::remove_file(&file).unwrap();
        place.write(b"ours").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"ours");
        let place = reserve(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::write(&file, "another's").unwrap();
        assert!(matches!(place.write(b"ours"), Err(Error::Moved { .. })));
        assert_eq!(fs::read(&file).unwrap(), b"another's");
    }
}
