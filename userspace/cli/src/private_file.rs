//! Files readable by the invoking user alone: mode 0600, and under `sudo` owned by the caller.
//!
//! Names and lines of a traced program concern the owner alone, so exports are as private as
//! profiles. A symbolic link is not followed: under `sudo` a link could lead to any file.
//! A page never replaces a profile, nor a file that the command reads.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt as _, chown},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use locality_kernel::writing;
use locality_profile::Owner;
use locality_units::parse::WrongUse;

/// Refuses a page in place of a file that the command reads, or of any profile. `what` is the page, and
/// `flag` names the place.
///
/// # Errors
/// Such a place.
pub fn keep_apart(page: &Path, read: &[PathBuf], what: &str, flag: &str) -> Result<(), WrongUse> {
    let is_read = read.iter().any(|file| writing::keep_apart(page, std::slice::from_ref(file)).is_err());
    let kind = match locality_profile::is_profile(page) {
        true => "the profile ",
        false if is_read => "the input ",
        false => return Ok(()),
    };
    Err(WrongUse(format!("the {what} would replace {kind}{}: give {flag} another name", page.display())))
}

/// Writes a file in place of a file of the name, or into a named pipe or a device. `what` names the page in
/// messages, as in "export".
///
/// # Errors
/// The file cannot be written, or is a profile.
pub fn write(path: &Path, bytes: &[u8], what: &str, quiet: bool) -> Result<()> {
    if locality_profile::is_profile(path) {
        bail!(WrongUse(format!(
            "the {what} would replace the profile {}: give another name",
            path.display()
        )));
    }
    let owner = Owner::of_sudo().map(|owner| (owner.uid, owner.gid));
    writing::to_private_file(path, bytes, owner, what, quiet)
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
    files.iter().try_for_each(|(name, bytes)| write(&folder.join(name), bytes, "export", quiet))
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

    #[test]
    fn a_page_replaces_neither_a_profile_nor_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let [profile, text, page] = ["p.locality", "bst", "page"].map(|name| folder.path().join(name));
        locality_profile::write(&profile, &locality_model::testing::loops::windowed(), None).unwrap();
        fs::write(&text, "skeleton").unwrap();
        let before = fs::read(&profile).unwrap();
        let why = write(&profile, b"page", "model", true).unwrap_err();
        assert!(why.is::<WrongUse>() && why.to_string().contains("would replace the profile"), "{why}");
        let read = [text.clone()];
        for (place, said) in [(&profile, "the model would replace the profile"), (&text, "the input")] {
            let why = keep_apart(place, &read, "model", "-o").unwrap_err().to_string();
            assert!(why.contains(said) && why.ends_with("give -o another name"), "{why}");
        }
        keep_apart(&page, &read, "model", "-o").unwrap();
        assert_eq!(fs::read(&profile).unwrap(), before);
    }
}
