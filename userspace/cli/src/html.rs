//! The HTML report: reads the page's source files, and writes the page.
//!
//! Paths of source files come from the debug information of traced programs. Users pass
//! pages on, so a file is read with the rights of the user who called sudo, and only
//! with a name of source code. Thus no program can put a root-only file into a report.

use std::{
    fs::{File, Metadata},
    io::{IsTerminal as _, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Result;
use locality_html::Source;
use locality_kernel::writing::{self, say, to_stdout};
use locality_model::Profile;
use locality_profile::Owner;
use locality_report::schema::Report;

use crate::{
    browser,
    cli::{OutputArgs, html::HtmlArgs},
    private_file,
};

/// Limit of bytes of one source file, and of a page's source files.
const FILE_BYTES: u64 = 1 << 20;
const ALL_BYTES: u64 = 4 << 20;
/// Source files of a page, at most.
const FILES: usize = 200;

/// Ends of names of source code.
const LANGUAGES: [&str; 42] = [
    "adb", "ads", "asm", "c", "c++", "cc", "cpp", "cs", "cu", "cxx", "d", "def", "f", "f03", "f08", "f77",
    "f90", "f95", "for", "go", "h", "h++", "hh", "hpp", "hs", "hxx", "inc", "inl", "ipp", "java", "jl", "js",
    "kt", "ml", "nim", "py", "pyx", "rs", "s", "swift", "tcc", "zig",
];

/// Options and destination of a page.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Options of the page.
    pub args: &'a HtmlArgs,
    /// Format and destination.
    pub output: &'a OutputArgs,
    /// The page's profile; `None` if no profile was written.
    pub profile: Option<&'a Path>,
    /// A launched command owns stdout.
    pub launched: bool,
    /// No remarks.
    pub quiet: bool,
}

/// Makes the page of a report and writes it; `profile` is of a live trace.
///
/// # Errors
/// The file cannot be written.
pub fn write(report: Report, profile: Option<&Profile>, wanted: &Wanted<'_>) -> Result<()> {
    let owner = Owner::of_sudo();
    let sources = match wanted.args.no_source {
        true => Vec::new(),
        false => {
            let started = profile.map(|profile| profile.run.started_unix_ns).or(report.run.started_unix_ns);
            read_all(locality_html::files(&report), started, owner)
        }
    };
    let page = locality_html::page(report, profile, &sources, wanted.output.top);
    let Some(file) = place(wanted) else { return to_stdout(page.as_bytes()) };
    if let Some(profile) = wanted.profile {
        writing::keep_apart(&file, &[profile.to_owned(), locality_profile::earlier(profile)])?;
    }
    writing::check_place(&file, "report", "--report")?;
    private_file::write(&file, page.as_bytes(), "report", wanted.quiet)?;
    if wanted.output.report.is_none() && !wanted.quiet {
        say(&format!("HTML report written to {}", file.display()));
    }
    if wanted.args.open
        && let Err(why) = browser::open(&file, owner)
    {
        say(&format!("{why}; the report is {}", file.display()));
    }
    Ok(())
}

/// The page's file; `None` for stdout.
fn place(wanted: &Wanted<'_>) -> Option<PathBuf> {
    if wanted.output.report.is_some() {
        return wanted.output.report.clone();
    }
    let is_file = wanted.args.open || wanted.launched || std::io::stdout().is_terminal();
    let stem = wanted.profile.and_then(Path::file_stem).unwrap_or("report".as_ref());
    is_file.then(|| Path::new(stem).with_extension("html"))
}

/// Reads files with the rights of the user who called sudo.
fn read_all(files: Vec<String>, started_unix_ns: Option<u64>, owner: Option<Owner>) -> Vec<Source> {
    let read = move || {
        // Without the change of rights no file is read.
        let refused = owner.filter(|owner| owner.uid != 0).and_then(|owner| become_user(owner).err());
        let mut left = ALL_BYTES;
        let source = |file: String| {
            let (text, changed) = match &refused {
                Some(why) => (Err(why.clone()), false),
                None => match read_one(&file, &mut left) {
                    Ok((text, about)) => (Ok(text), is_newer(&about, started_unix_ns)),
                    Err(why) => (Err(why), false),
                },
            };
            Source { file, text, changed }
        };
        files.into_iter().take(FILES).map(source).collect()
    };
    // Rights to files belong to a thread: other threads keep root's rights.
    std::thread::scope(|scope| scope.spawn(read).join()).unwrap_or_default()
}

/// Gives the thread a user's rights to files, with only the user's primary group.
fn become_user(Owner { uid, gid }: Owner) -> Result<(), String> {
    // SAFETY: the calls take numbers, and no list of groups; unlike the
    // functions of the C library, the system calls change one thread only.
    let now = unsafe {
        if libc::geteuid() != 0 {
            return Ok(());
        }
        libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>());
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        // The call with an impossible user changes no rights and returns the present user.
        libc::syscall(libc::SYS_setfsuid, u32::MAX)
    };
    match now == i64::from(uid) {
        true => Ok(()),
        false => Err("not read, because the rights of the user behind sudo could not be taken".to_owned()),
    }
}

/// Text and metadata of a source file.
fn read_one(file: &str, left: &mut u64) -> Result<(String, Metadata), String> {
    let path = Path::new(file);
    let end = path.extension().map(|end| end.to_string_lossy().to_lowercase()).unwrap_or_default();
    if !LANGUAGES.contains(&end.as_str()) {
        return Err("not read, because its name is not that of source code".to_owned());
    }
    // A pipe would wait for a writer.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "not on this machine".to_owned(),
        _ => format!("not read: {error}"),
    })?;
    let about = file.metadata().map_err(|error| format!("not read: {error}"))?;
    if !about.is_file() {
        return Err("not read, because it is no file".to_owned());
    }
    if about.len() > FILE_BYTES || about.len() > *left {
        return Err(format!("left out, because of its {} KiB", about.len() >> 10));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut bytes).map_err(|error| format!("not read: {error}"))?;
    *left = left.saturating_sub(bytes.len() as u64);
    if bytes.contains(&0) {
        return Err("not read, because it is no text".to_owned());
    }
    let text = String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    Ok((text, about))
}

/// Whether a file was written after the trace began, by a second or more.
fn is_newer(about: &Metadata, started_unix_ns: Option<u64>) -> bool {
    started_unix_ns.is_some_and(|started| about.mtime() > (started / 1_000_000_000) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_source_code_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, text: &[u8]| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            let mut left = 100;
            read_one(file.to_str().unwrap(), &mut left).map(|(text, _)| (text, left))
        };
        assert_eq!(of("a.c", b"int a;\n").unwrap(), ("int a;\n".to_owned(), 93));
        assert!(of("B.CPP", "ü".as_bytes()).is_ok());
        assert_eq!(of("latin.h", b"\xfc").unwrap().0, "\u{fffd}");
        assert!(of("shadow", b"root:x").unwrap_err().contains("source code"));
        assert!(of("key.pem", b"key").unwrap_err().contains("source code"));
        assert!(of("zero.c", b"a\0b").unwrap_err().contains("no text"));
        assert!(of("large.c", &[b'a'; 200]).unwrap_err().contains("left out"));
        let mut left = 100;
        assert_eq!(read_one("/nowhere/at/all.c", &mut left).unwrap_err(), "not on this machine");
        std::fs::create_dir(folder.path().join("folder.c")).unwrap();
        let folder = folder.path().join("folder.c");
        assert!(read_one(folder.to_str().unwrap(), &mut left).unwrap_err().contains("no file"));
    }

    #[test]
    fn a_pipe_does_not_wait_for_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pipe.c");
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let mut left = 100;
        assert!(read_one(file.to_str().unwrap(), &mut left).unwrap_err().contains("no file"));
    }

    #[test]
    fn files_of_root_are_not_read_for_another_user() {
        // SAFETY: the call has no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(folder.path(), Some(65_534), Some(65_534)).unwrap();
        let file = folder.path().join("secret.c");
        std::fs::write(&file, "int secret;").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let read = |owner| read_all(vec![file.to_str().unwrap().to_owned()], Some(0), owner).remove(0);
        let of_root = read(None);
        assert_eq!((of_root.text.as_deref(), of_root.changed), (Ok("int secret;"), true));
        let of_user = read(Some(Owner { uid: 65_534, gid: 65_534 }));
        assert!(of_user.text.unwrap_err().contains("ermission denied"));
        // The rights of this thread are what they were.
        assert!(std::fs::read(&file).is_ok());
    }
}
