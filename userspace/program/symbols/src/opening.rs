//! Opens files that a traced process, or anyone, may have put in place: regular files only, and
//! below a process's root.
//!
//! A path is first opened without its file (`O_PATH`, open(2)), an open that neither
//! waits for the other end of a FIFO nor starts a device. Only a regular file is then
//! opened for reading, through the first descriptor, and cannot be exchanged in between.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Which symbolic links of a path are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// All symbolic links.
    All,
    /// All symbolic links but the last.
    NotTheLast,
}

/// Opens a regular file for reading. Another kind of file is [`io::ErrorKind::InvalidInput`].
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    readable(&OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?)
}

/// Opens a regular file at an absolute path as a process with this root directory sees it: symbolic
/// links lead to files below the root, too. Another kind of file is
/// [`io::ErrorKind::InvalidInput`].
pub(crate) fn open_below(root: &Path, path: &Path, links: Links) -> io::Result<File> {
    let directory =
        OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(root)?;
    let no_follow = if links == Links::NotTheLast { libc::O_NOFOLLOW } else { 0 };
    let flags = (libc::O_PATH | libc::O_CLOEXEC | no_follow) as u64;
    let text = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all fields are numbers, valid as 0; the structure may grow, hence no literal.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    (how.flags, how.resolve) = (flags, libc::RESOLVE_IN_ROOT);
    // SAFETY: path and structure outlive the call, and the size is the structure's.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory.as_raw_fd(),
            text.as_ptr(),
            &raw mut how,
            size_of_val(&how),
        )
    };
    if let Ok(descriptor) = i32::try_from(opened)
        && descriptor >= 0
    {
        // SAFETY: the kernel has just returned this descriptor, without another owner.
        return readable(&unsafe { File::from_raw_fd(descriptor) });
    }
    let error = io::Error::last_os_error();
    // Filters of containers may not know the call. Links at the end of the path are then still not followed.
    if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
        return Err(error);
    }
    let place = root.join(path.strip_prefix("/").unwrap_or(path));
    readable(&OpenOptions::new().read(true).custom_flags(libc::O_PATH | no_follow).open(place)?)
}

/// The file of a descriptor opened without access.
fn readable(place: &File) -> io::Result<File> {
    if !place.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_below_the_root_and_only_regular_files_are_opened() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("tmp")).unwrap();
        fs::write(at("tmp/file"), "below").unwrap();
        fs::write(at("hostname"), "below too").unwrap();
        symlink("/tmp/file", at("absolute")).unwrap();
        symlink("../../../hostname", at("tmp/upwards")).unwrap();
        symlink("/tmp", at("folder")).unwrap();
        let text = |path: &str, links| {
            let mut text = String::new();
            open_below(root.path(), Path::new(path), links)?.read_to_string(&mut text).map(|_| text)
        };
        for path in ["/tmp/file", "/absolute", "/folder/file"] {
            assert_eq!(text(path, Links::All).unwrap(), "below", "{path}");
        }
        assert_eq!(text("/tmp/upwards", Links::All).unwrap(), "below too");
        assert_eq!(text("/folder/file", Links::NotTheLast).unwrap(), "below");
        let kind = |path: &str, links| text(path, links).unwrap_err().kind();
        assert_eq!(kind("/absolute", Links::NotTheLast), io::ErrorKind::InvalidInput);
        assert_eq!(kind("/tmp", Links::All), io::ErrorKind::InvalidInput);
        assert_eq!(kind("/missing", Links::All), io::ErrorKind::NotFound);
        let pipe = CString::new(at("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        // Would wait for a writer.
        assert_eq!(kind("/pipe", Links::All), io::ErrorKind::InvalidInput);
        assert_eq!(open_regular(&at("pipe")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(open_regular(Path::new("/dev/zero")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(open_regular(&at("absolute")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        assert!(open_regular(&at("tmp/file")).is_ok());
    }
}
