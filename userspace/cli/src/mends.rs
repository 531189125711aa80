//! Remedies of errors beyond the knowledge of the failing
//! code: limits of the process, and files other than profiles.

use std::{ffi::c_int, io};

use locality_profile::Error;

/// The remedy of an error; `said`: the error's text.
pub fn of(error: &anyhow::Error, said: &str) -> Option<String> {
    let of_profile = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
    let mend = match of_profile {
        Some(Error::NotFound { .. } | Error::NotAProfile { .. }) => {
            "give the file that a trace wrote: that named by -o, or trace.locality"
        }
        Some(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
            "read it as its owner, or with sudo"
        }
        Some(Error::DiskFull { .. }) if !said.contains("-o FILE") => FULL,
        _ => return of_limits(said),
    };
    Some(mend.to_owned())
}

/// The remedy of a full disk.
const FULL: &str = "make room, or name another place with -o FILE";

/// The remedy to add to `why`, the reason why a file is not complete, where the disk is full; `option` names
/// the place. Empty for another reason.
pub fn of_full_disk(why: &str, option: &str) -> String {
    match why.contains("no space left on the disk") {
        true => format!("; {}", FULL.replace("-o FILE", option)),
        false => String::new(),
    }
}

/// Limits of the process; `None`: unlimited.
#[derive(Debug, Clone, Copy)]
struct Limits {
    files: Option<u64>,
    file_bytes: Option<u64>,
}

fn of_limits(said: &str) -> Option<String> {
    let limit = |which: c_int| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the destination is live.
        let known = unsafe { libc::getrlimit(which as libc::__rlimit_resource_t, &raw mut limit) == 0 };
        (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
    };
    within(
        said,
        Limits { files: limit(libc::RLIMIT_NOFILE as c_int), file_bytes: limit(libc::RLIMIT_FSIZE as c_int) },
    )
}

/// SQLite's message for any failure to open a file; a small
/// limit of descriptors explains the message for a tried path.
const SQLITE_CANNOT_OPEN: &str = "unable to open database file";
/// With a limit from here on, descriptors are not the reason.
const FEW_FILES: u64 = 256;

fn within(said: &str, limits: Limits) -> Option<String> {
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    match limits {
        Limits { files: Some(n), .. }
            if says(&["os error 24"]) || n < FEW_FILES && says(&[SQLITE_CANNOT_OPEN]) =>
        {
            Some(format!(
                "this process may open only {n} files: allow more, as in `ulimit -Hn 4096` of the shell that starts it (LimitNOFILE= \
                 of a service)"
            ))
        }
        Limits { file_bytes: Some(bytes), .. }
            if says(&["os error 27", "disk I/O error", "File too large"]) =>
        {
            Some(format!(
                "a file may have only {} KiB here: lift that by `ulimit -f unlimited` in the shell that starts it (LimitFSIZE= of a \
                 service)",
                bytes / 1024
            ))
        }
        _ if says(&["os error 23"]) => Some(
            "the whole machine has no file left: `sysctl fs.file-max` says how many there are".to_owned(),
        ),
        _ if says(&["os error 28"]) => Some("make room there, or name another place".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_profile_are_mended_by_one_that_is() {
        let path = std::path::PathBuf::from("x");
        let of = |error: Error| {
            let error = anyhow::Error::from(error);
            let said = error.to_string();
            super::of(&error, &said).unwrap_or_default()
        };
        assert!(of(Error::NotFound { path: path.clone() }).contains("-o"));
        assert!(of(Error::NotAProfile { path: path.clone(), what: "a text file".to_owned() }).contains("-o"));
        let full = Error::DiskFull { path: path.clone() };
        let why = full.to_string();
        assert_eq!(of_full_disk(&why, "-o FILE"), format!("; {FULL}"));
        assert!(of_full_disk(&why, "--store DIR").ends_with("with --store DIR"));
        assert_eq!(of_full_disk("x was renamed", "-o FILE"), "");
        assert_eq!(of(full), FULL);
        let source = io::ErrorKind::PermissionDenied.into();
        assert!(of(Error::Io { path, action: "read", source }).contains("sudo"));
    }

    #[test]
    fn the_limit_behind_an_error_is_named() {
        let few = Limits { files: Some(32), file_bytes: None };
        let of = |said: &str, limits: Limits| within(said, limits).unwrap_or_default();
        assert!(of("map error: Too many open files (os error 24)", few).contains("only 32 files"));
        assert!(of("t.locality: unable to open database file: Error code 14", few).contains("ulimit -Hn"));
        let many = Limits { files: Some(4096), file_bytes: None };
        assert_eq!(of("t.locality: unable to open database file: Error code 14", many), "");
        let small = Limits { files: None, file_bytes: Some(8192) };
        assert!(of("disk I/O error: Error code 778", small).contains("only 8 KiB"));
        assert_eq!(of("disk I/O error: Error code 778", many), "");
        assert!(of("No space left on device (os error 28)", many).contains("make room"));
        assert_eq!(of("no such process", small), "");
    }
}
