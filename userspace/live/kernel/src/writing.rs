//! Puts pages where they are wanted: a file, a named pipe, a socket of a shell (`>(command)`),
//! stdout, stderr.
//!
//! A pipe is opened when there is something to write and not before: a reader takes the first end
//! for the end. To wait for a reader is no hang, because signals end the tool at any moment
//! (`ending`).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use locality_units::parse::WrongUse;

use crate::inherited;

/// Checks, before the measurement, that the report can be written.
///
/// # Errors
/// A place that cannot be written, or must not.
pub fn check_report(report: &Path, taken: &[PathBuf]) -> Result<()> {
    keep_apart(report, taken)?;
    check(report)
}

/// Refuses a report in the place of a profile, or of the one before it.
///
/// # Errors
/// Such a place.
pub fn keep_apart(report: &Path, taken: &[PathBuf]) -> Result<(), WrongUse> {
    match taken.iter().find(|place| is_same_place(report, place)) {
        Some(place) => Err(WrongUse(format!(
            "the report would replace the profile {}: give --report another name",
            place.display()
        ))),
        None => Ok(()),
    }
}

/// Refuses a folder, and a name in a missing folder, in place of a file. `what` is to be written there,
/// `flag` names the place.
///
/// # Errors
/// Such a place.
pub fn check_place(file: &Path, what: &str, flag: &str) -> Result<(), WrongUse> {
    let shown = file.display();
    if file.is_dir() {
        return Err(WrongUse(format!(
            "cannot write the {what}: {shown} is a folder; give {flag} the name of a file"
        )));
    }
    match file.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(folder) if !folder.exists() => Err(WrongUse(format!(
            "cannot write the {what} to {shown}: there is no folder {}; make it, or give {flag} another name",
            folder.display()
        ))),
        _ => Ok(()),
    }
}

fn is_same_place(a: &Path, b: &Path) -> bool {
    // One file may have several names.
    let file = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if file(a).is_some() && file(a) == file(b) {
        return true;
    }
    let folder = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).canonicalize().ok()
    };
    a.file_name() == b.file_name() && folder(a) == folder(b)
}

/// Whether a report can be written to a file: now, and not when all is measured. Makes the file
/// where there is none.
///
/// # Errors
/// A place that cannot be written.
pub fn check(file: &Path) -> Result<()> {
    let about = fs::metadata(file);
    check_place(file, "report", "--report")?;
    if about.is_ok_and(|about| about.file_type().is_socket()) {
        bail!("cannot write the report to {}: it is a socket; name a file or a pipe", file.display());
    }
    if is_pipe(file) {
        let name = std::ffi::CString::new(file.as_os_str().as_encoded_bytes())?;
        // SAFETY: the name is live and ends in zero.
        return match unsafe { libc::access(name.as_ptr(), libc::W_OK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()).with_context(|| cannot("report", file)),
        };
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .with_context(|| cannot("report", file))
        .map(|_| ())
}

/// Writes a page to a file. A reader of a pipe that goes away (`| head`) is no error. `what` names the page
/// in messages, as in "report".
///
/// # Errors
/// A place that cannot be written.
pub fn to_file(file: &Path, page: &[u8], what: &str, quiet: bool) -> Result<()> {
    let opened = match is_pipe(file) {
        true => open_pipe(file, what, quiet),
        false => File::create(file),
    };
    let written = opened.and_then(|mut to| to.write_all(page));
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).with_context(|| cannot(what, file))
        }
        _ => Ok(()),
    }
}

/// Writes a page to a file that only its owner can read: a new one in place of whatever file has the name.
/// `owner` is the user and the group who called sudo. What is no file (a pipe) is written as by [`to_file`].
///
/// # Errors
/// A place that cannot be written; the former content stays.
pub fn to_private_file(
    file: &Path,
    page: &[u8],
    owner: Option<(u32, u32)>,
    what: &str,
    quiet: bool,
) -> Result<()> {
    if fs::metadata(file).is_ok_and(|about| !about.is_file()) {
        return to_file(file, page, what, quiet);
    }
    let name = file
        .file_name()
        .with_context(|| format!("the {what} needs the name of a file"))?
        .to_string_lossy()
        .into_owned();
    let new = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut to| {
            if let Some((uid, gid)) = owner {
                fchown(&to, Some(uid), Some(gid))?;
            }
            to.write_all(page)?;
            fs::rename(&new, file)
        });
    if written.is_err() {
        // May have never been there.
        let _ = fs::remove_file(&new);
    }
    written.with_context(|| cannot(what, file))
}

/// Writes a page to an open stream. A reader that closed its end early is no error.
///
/// # Errors
/// A stream that is closed, or full.
pub fn to_stream(mut to: impl Write, page: &[u8]) -> Result<()> {
    match to.write_all(page).and_then(|()| to.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot print: the place that stdout or stderr leads to takes no more")
        }
        _ => Ok(()),
    }
}

/// Writes a page to the standard output, as [`to_stream`] does.
///
/// # Errors
/// As [`to_stream`], and a standard output that was closed when the tool was started (`>&-`): Rust's
/// runtime opens `/dev/null` in its place, where a page would be lost without an error.
pub fn to_stdout(page: &[u8]) -> Result<()> {
    if inherited::given().is_closed(libc::STDOUT_FILENO) && !page.is_empty() {
        bail!("cannot print: stdout is closed; leave out `>&-`, or send stdout to a file");
    }
    to_stream(io::stdout(), page)
}

fn cannot(what: &str, file: &Path) -> String {
    format!("cannot write the {what} to {}", file.display())
}

fn is_pipe(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|about| about.file_type().is_fifo())
}

/// Waits for a reader.
fn open_pipe(file: &Path, what: &str, quiet: bool) -> io::Result<File> {
    let at_once = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(file);
    match &at_once {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            if !quiet {
                say(&format!(
                    "the {what} waits for a reader of {0}, as in `cat {0}`; Ctrl-C ends without",
                    file.display()
                ));
            }
        }
        // With a reader: opened again for blocking writes while this end stays open.
        Ok(_) => {}
        Err(_) => return at_once,
    }
    OpenOptions::new().write(true).open(file)
}

/// A sentence on stderr, with our name before it. A stderr that is full or gone is no reason to
/// end: `eprintln!` panics there.
pub fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "locality-bpf: {sentence}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn pipe(folder: &tempfile::TempDir) -> std::path::PathBuf {
        let file = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        file
    }

    #[test]
    fn a_page_larger_than_a_pipe_arrives_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = pipe(&folder);
        check(&file).unwrap();
        let reader = std::thread::spawn({
            let file = file.clone();
            move || {
                let mut text = String::new();
                File::open(file).unwrap().read_to_string(&mut text).unwrap();
                text
            }
        });
        let page = "row\n".repeat(100_000);
        to_file(&file, page.as_bytes(), "report", true).unwrap();
        assert_eq!(reader.join().unwrap(), page);
    }

    #[test]
    fn a_private_file_is_new_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, target) = (folder.path().join("page.html"), folder.path().join("target"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &file).unwrap();
        // SAFETY: the calls have no arguments.
        let own = unsafe { (libc::geteuid(), libc::getegid()) };
        to_private_file(&file, b"page", Some(own), "report", true).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        let about = fs::symlink_metadata(&file).unwrap();
        assert_eq!((about.is_file(), about.mode() & 0o777, about.uid()), (true, 0o600, own.0));
        to_private_file(&file, b"again", None, "report", true).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "again");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let why = format!(
            "{:#}",
            to_private_file(&folder.path().join("none/x"), b"", None, "report", true).unwrap_err()
        );
        assert!(why.contains("cannot write the report"), "{why}");
        to_private_file(Path::new("/dev/null"), b"page", None, "report", true).unwrap();
    }

    #[test]
    fn a_reader_that_goes_away_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = pipe(&folder);
        let reader = std::thread::spawn({
            let file = file.clone();
            move || File::open(file).unwrap().read_exact(&mut [0; 16]).unwrap()
        });
        to_file(&file, &[b'x'; 1 << 20], "report", true).unwrap();
        reader.join().unwrap();
    }

    #[test]
    fn places_that_cannot_be_written_are_refused_before_the_trace() {
        let folder = tempfile::tempdir().unwrap();
        let why = check(folder.path()).unwrap_err().to_string();
        assert!(why.contains("is a folder"), "{why}");
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let why = check(&socket).unwrap_err().to_string();
        assert!(why.contains("socket"), "{why}");
        let why = check(&folder.path().join("none/file")).unwrap_err().to_string();
        assert!(why.contains("there is no folder"), "{why}");
        check_place(Path::new("file"), "export", "-o").unwrap();
        let full = Path::new("/dev/full");
        check(full).unwrap();
        let why = format!("{:#}", to_file(full, b"page", "export", true).unwrap_err());
        assert!(why.contains("No space left") && why.contains("write the export to /dev/full"), "{why}");
    }
}
