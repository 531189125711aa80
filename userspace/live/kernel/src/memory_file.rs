//! Files in memory that only descriptors name (`memfd_create(2)`).

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

/// Since Linux 6.3 a file for executable mappings needs this flag; older kernels refuse it.
const MFD_EXEC: libc::c_uint = 0x10;

/// A new file that may be mapped executable, closed by an exec.
///
/// # Errors
/// The kernel's, also where `vm.memfd_noexec` forbids such files.
pub fn create(name: &CStr) -> io::Result<OwnedFd> {
    with_flags(name, libc::MFD_CLOEXEC)
}

/// A file as [`create`] makes, with `bytes` that nobody can change any more.
///
/// # Errors
/// As [`create`]; `EFBIG` where `ulimit -f` allows no file of the size.
pub fn sealed(name: &CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    without_limit(bytes.len() as u64, || {
        let file = with_flags(name, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?;
        let mut writer = File::from(file.try_clone()?);
        writer.write_all(bytes)?;
        let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: a system call with plain arguments.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(file)
    })
}

fn with_flags(name: &CStr, flags: libc::c_uint) -> io::Result<OwnedFd> {
    for flags in [flags | MFD_EXEC, flags] {
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: a new descriptor without another owner.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Err(io::Error::last_os_error())
}

/// Makes files of up to `needed` bytes regardless of `ulimit -f`: a larger file would end us by
/// SIGXFSZ. The limit stands again afterwards, for a command inherits the limit.
///
/// # Errors
/// Those of `make`; `EFBIG` where the hard limit is too low and cannot be raised.
pub fn without_limit<T>(needed: u64, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the destination is live.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur >= needed {
        return make();
    }
    let set = |limit: &libc::rlimit| {
        // SAFETY: the source is live.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, limit) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    if set(&libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY }).is_err() {
        // Only root raises the hard limit.
        if limit.rlim_max < needed {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        set(&libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max })?;
    }
    let made = make();
    set(&limit)?;
    made
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn a_sealed_file_has_its_bytes_for_ever() {
        let file = File::from(sealed(c"sealed", b"bytes").unwrap());
        let mut read = [0; 6];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), 5);
        assert_eq!(&read[..5], b"bytes");
        assert!(file.write_at(b"x", 0).is_err() && file.set_len(1).is_err() && file.set_len(9).is_err());
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // By another name too; root alone may open the file for writing at all.
        if let Ok(again) = File::options().write(true).open(path) {
            assert!(again.write_at(b"x", 0).is_err());
        }
    }
}
