//! Starts a command that waits for the trace to be ready before loading the program.

use std::{
    ffi::{CString, OsStr, OsString},
    io::{self, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _, net::UnixStream, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::ExitStatus,
};

use super::{ending, inherited};

/// A forked child that waits for [`Launched::go`].
#[derive(Debug)]
pub struct Launched {
    /// Its process id.
    pub pid: u32,
    channel: UnixStream,
}

/// Failed start of a command.
#[derive(Debug, thiserror::Error)]
#[error("cannot run `{name}`")]
pub struct CannotRun {
    name: String,
    source: io::Error,
}

impl CannotRun {
    /// Why a command was not started.
    pub fn new(command: &[OsString], source: io::Error) -> Self {
        let name = command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        Self { name, source }
    }

    /// Exit status of a shell for the error (POSIX, "Exit Status for Commands").
    pub fn exit_code(&self) -> u8 {
        match self.source.kind() {
            io::ErrorKind::NotFound => 127,
            _ => 126,
        }
    }
}

/// Finds the program of a command as `execvp(3)` does.
pub fn find(command: &[OsString]) -> Result<PathBuf, CannotRun> {
    let refused = |error| CannotRun::new(command, error);
    let word = Path::new(command.first().map(OsString::as_os_str).unwrap_or_default());
    if word.as_os_str().is_empty() {
        let nothing = io::Error::new(io::ErrorKind::NotFound, "the command is empty");
        return Err(refused(nothing));
    }
    if word.as_os_str().as_bytes().contains(&b'/') {
        return executable(word).map(|()| word.to_owned()).map_err(refused);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut first_error = None;
    for candidate in std::env::split_paths(&path).map(|directory| directory.join(word)) {
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(refused(
        first_error.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such program on the PATH")),
    ))
}

/// Whether a file may be executed, by somebody at least; the kernel has the last word.
fn executable(path: &Path) -> io::Result<()> {
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
    }
    match metadata.permissions().mode() & 0o111 {
        0 => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it may not be executed; `chmod +x` allows that",
        )),
        _ => Ok(()),
    }
}

/// Forks the child, with the given environment and otherwise the inherited
/// state ([`inherited`]). Must be called while the process has one thread.
pub fn prepare(command: &[OsString], environment: &[CString]) -> io::Result<Launched> {
    let words: Result<Vec<CString>, _> =
        command.iter().map(|word| CString::new(OsStr::new(word).as_bytes())).collect();
    let words =
        words.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an argument holds a zero byte"))?;
    fork(&words, environment)
}

/// Starts a command at once. Must be called while the process has one thread.
pub fn start(words: &[CString], environment: &[CString]) -> io::Result<u32> {
    let launched = fork(words, environment)?;
    let pid = launched.pid;
    launched.go()?;
    Ok(pid)
}

fn fork(words: &[CString], environment: &[CString]) -> io::Result<Launched> {
    inherited::stop_timers();
    // Both ends close on exec, so the parent reads the
    // end of the stream once the program is loaded.
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: with one thread the child may continue as a copy of the parent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            run(words, environment, theirs)
        }
        pid => Ok(Launched { pid: pid as u32, channel: ours }),
    }
}

/// The child's life until `execve`.
fn run(command: &[CString], environment: &[CString], mut channel: UnixStream) -> ! {
    // A name for the child until the kernel sets the program's name, so that lists
    // of the tool's processes omit the child.
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"launched".as_ptr()) };
    let mut go = [0u8];
    if channel.read_exact(&mut go).is_ok() {
        let (words, environment) = (pointers(command), pointers(environment));
        inherited::hand_over();
        // SAFETY: the lists end in null pointers, and the strings are live.
        unsafe { libc::execvpe(words[0], words.as_ptr(), environment.as_ptr()) };
        let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        // The parent reports the error; without a parent the error is lost.
        let _ = channel.write_all(&error.to_ne_bytes());
    }
    // SAFETY: ends the copy of the process without running our own exit handlers.
    unsafe { libc::_exit(127) }
}

/// A list for `execve(2)`.
fn pointers(words: &[CString]) -> Vec<*const libc::c_char> {
    words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
}

impl Launched {
    /// Lets the command run; returns once the program is loaded, or the error of loading.
    pub fn go(mut self) -> io::Result<()> {
        self.channel.write_all(&[1])?;
        let mut error = [0u8; 4];
        match self.channel.read_exact(&mut error) {
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(error))),
            Err(_) => Ok(()),
        }
    }
}

/// A started command.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    /// Its process id.
    pub pid: u32,
    /// Wait status, if the command ended within the trace.
    pub status: Option<i32>,
}

impl Started {
    /// Passes on a signal sent to us.
    pub fn signal(self, signal: i32) {
        // SAFETY: a system call with plain arguments; the child
        // has not been waited for, so the id is still the child's.
        if self.status.is_none() && unsafe { libc::kill(self.pid as libc::pid_t, signal) } != 0 {
            tracing::debug!("command not signalled: {}", io::Error::last_os_error());
        }
    }

    /// Waits for the command's end after the end of the trace, and
    /// returns the wait status. The command is not traced any more.
    pub fn wait(self) -> io::Result<i32> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        // Waits without collecting the child: after collection, a passed-on signal might reach
        // another process with the child's number.
        // SAFETY: all bytes of the structure may be zero.
        let mut about = unsafe { std::mem::zeroed::<libc::siginfo_t>() };
        loop {
            let how = libc::WEXITED | libc::WNOWAIT;
            // SAFETY: the destination is live. The child is ours and
            // has not been waited for, so the id is still the child's.
            if unsafe { libc::waitid(libc::P_PID, self.pid, &raw mut about, how) } >= 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        ending::means(0);
        let mut status = 0;
        // SAFETY: as above; the child has ended, so the call does not wait.
        match unsafe { libc::waitpid(self.pid as libc::pid_t, &mut status, 0) } {
            0.. => Ok(status),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The end of a command by a signal, with the remedy if a limit was the reason.
pub fn ended_by_signal(wait_status: i32) -> Option<String> {
    let signal = ExitStatus::from_raw(wait_status).signal()?;
    let (name, mend) = match signal {
        libc::SIGHUP => ("SIGHUP", ""),
        libc::SIGINT => ("SIGINT (Ctrl-C)", ""),
        libc::SIGQUIT => ("SIGQUIT", ""),
        libc::SIGILL => ("SIGILL", ""),
        libc::SIGTRAP => ("SIGTRAP", ""),
        libc::SIGABRT => ("SIGABRT", ""),
        libc::SIGBUS => ("SIGBUS", ""),
        libc::SIGFPE => ("SIGFPE", ""),
        libc::SIGKILL => ("SIGKILL", "where nobody sent that, `dmesg` says whether memory was short"),
        libc::SIGSEGV => ("SIGSEGV", ""),
        libc::SIGPIPE => ("SIGPIPE", "its output had no reader any more"),
        libc::SIGALRM => ("SIGALRM", ""),
        libc::SIGTERM => ("SIGTERM", ""),
        libc::SIGXCPU => ("SIGXCPU", "its CPU time is limited: `ulimit -t unlimited` lifts that"),
        libc::SIGXFSZ => ("SIGXFSZ", "the size of its files is limited: `ulimit -f unlimited` lifts that"),
        libc::SIGSYS => ("SIGSYS", "a filter forbids it a system call"),
        _ => ("", ""),
    };
    let name = if name.is_empty() { format!("signal {signal}") } else { name.to_owned() };
    Some(if mend.is_empty() { name } else { format!("{name}: {mend}") })
}

/// The exit status that a shell would show for a wait status.
pub fn exit_code(wait_status: i32) -> u8 {
    let status = ExitStatus::from_raw(wait_status);
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}

/// Cause of the end of a trace by the command.
pub fn end_of_command(wait_status: i32) -> String {
    match ExitStatus::from_raw(wait_status).signal() {
        Some(signal) => format!("the command, which {} ended", signal_name(signal)),
        None => "the command ended".to_owned(),
    }
}

/// A signal's name, "SIGSEGV" or "signal 34".
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT (Ctrl-C)",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(word: &str) -> CannotRun {
        find(&[word.into()]).unwrap_err()
    }

    #[test]
    fn commands_are_found_or_refused_as_by_a_shell() {
        assert!(find(&["sh".into(), "-c".into()]).unwrap().ends_with("sh"));
        assert_eq!(refusal("no-such-program-here").exit_code(), 127);
        assert_eq!(refusal("/no/such/program").exit_code(), 127);
        assert_eq!(refusal("").exit_code(), 127);
        assert_eq!(refusal("/").exit_code(), 126);
        let file = tempfile::NamedTempFile::new().unwrap();
        let refusal = refusal(file.path().to_str().unwrap());
        assert_eq!(refusal.exit_code(), 126);
        let sentence = format!("{:#}", anyhow::Error::from(refusal));
        assert!(sentence.contains("chmod +x"), "{sentence}");
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(exit_code(7 << 8), 7);
        assert_eq!(exit_code(0), 0);
        assert_eq!(exit_code(libc::SIGKILL), 137);
        assert_eq!(ended_by_signal(7 << 8), None);
        assert_eq!(ended_by_signal(libc::SIGSEGV).unwrap(), "SIGSEGV");
        assert!(ended_by_signal(libc::SIGXFSZ).unwrap().contains("`ulimit -f unlimited`"));
        assert_eq!(ended_by_signal(libc::SIGUSR1).unwrap(), "signal 10");
        assert_eq!(
            (signal_name(40), signal_name(libc::SIGUSR1)),
            ("signal 40".to_owned(), "SIGUSR1".to_owned())
        );
    }
}
