//! Files readable by the invoking user alone: mode 0600, and under `sudo` owned by the caller.
//!
//! Names and lines of a traced program concern the owner alone, so exports are as private as
//! profiles. A symbolic link is not followed: under `sudo` a link could lead to any file.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt as _, chown},
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use locality_kernel::writing;
use locality_profile::Owner;

/// Writes a file in place of a file of the name, or into a named pipe or a device.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, bytes: &[u8], quiet: bool) -> Result<()> {
    let owner = Owner::of_sudo().map(|owner| (owner.uid, owner.gid));
    writing::to_private_file(path, bytes, owner, quiet)
}

/// Writes files into an existing or new folder. Further files in the folder stay.
///
/// # Errors
/// The folder or a file cannot be written.
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

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
