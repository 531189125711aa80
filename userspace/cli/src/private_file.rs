//! Files that only the invoking user reads: mode 0600, and under `sudo` owned by whoever called it.
//!
//! Names and lines of a traced program are its owner's business, so exports are as private as profiles.
//! A symbolic link is not followed: under `sudo` it could lead anywhere.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown},
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use locality_kernel::writing;
use locality_profile::Owner;

/// Writes a file, a named pipe or a device.
///
/// # Errors
/// A place that cannot be written.
pub fn write(path: &Path, bytes: &[u8], quiet: bool) -> Result<()> {
    if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        writing::check(path)?;
        return writing::to_file(path, bytes, quiet);
    }
    let cannot = || format!("cannot write {}", path.display());
    if fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink()) {
        bail!("{}: it is a symbolic link; name the file itself", cannot());
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(path).with_context(cannot)?;
    own(&file).with_context(cannot)?;
    file.set_len(0).and_then(|()| file.write_all(bytes)).with_context(cannot)
}

fn own(file: &File) -> std::io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o600))?;
    match Owner::of_sudo() {
        Some(Owner { uid, gid }) => fchown(file, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// Writes files into a folder, which is made where there is none. Other files in the folder stay.
///
/// # Errors
/// A place that cannot be written.
pub fn write_folder(folder: &Path, files: &[(String, Vec<u8>)], quiet: bool) -> Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {
            if let Some(Owner { uid, gid }) = Owner::of_sudo() {
                chown(folder, Some(uid), Some(gid))
                    .with_context(|| format!("cannot own {}", folder.display()))?;
            }
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} is a file: tables need a folder, give -o another name", folder.display())
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot make the folder {}", folder.display()));
        }
    }
    files.iter().try_for_each(|(name, bytes)| write(&folder.join(name), bytes, quiet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out");
        let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        fs::write(&file, "a longer text than the next").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        write(&file, b"short", true).unwrap();
        assert_eq!((fs::read(&file).unwrap().as_slice(), mode()), (&b"short"[..], 0o600));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(write(&link, b"x", true).unwrap_err().to_string().contains("symbolic link"));
        assert_eq!(fs::read(&file).unwrap(), b"short");
        write(Path::new("/dev/null"), b"x", true).unwrap();
    }

    #[test]
    fn tables_come_into_a_private_folder() {
        let folder = tempfile::tempdir().unwrap();
        let tables = folder.path().join("tables");
        let files = [("a.csv".to_owned(), b"1".to_vec())];
        for _ in 0..2 {
            write_folder(&tables, &files, true).unwrap();
        }
        assert_eq!(fs::metadata(&tables).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read(tables.join("a.csv")).unwrap(), b"1");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(write_folder(&file, &files, true).unwrap_err().to_string().contains("need a folder"));
    }
}
