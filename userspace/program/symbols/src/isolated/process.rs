//! One symboliser process, from the tracer's side: start, requests and answers, end.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::serve::ARGUMENT;
use super::wire::{self, Answer, Ask, DYING, MOST_BYTES, Said};
use super::{CPU_NS, Isolation};
use crate::elf::Bytes;
use crate::module::Module;
use crate::truncated::add_truncated_pages;

/// How long the end of a killed process is waited for.
const BURIAL: Duration = Duration::from_millis(100);

/// A symboliser process from start to end.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    pidfd: OwnedFd,
    socket: OwnedFd,
    patience: Duration,
    /// Numbers of its modules.
    has: HashSet<u32>,
    unsent: Vec<u8>,
    cpu_ns: u64,
    truncated: u64,
    /// The process's message about the end.
    last_words: Option<String>,
    /// An answer was too late, and the tracer ends the process.
    is_late: bool,
}

impl Process {
    pub(super) fn start(settings: &Isolation) -> io::Result<Self> {
        let (socket, theirs) = socket_pair()?;
        // Not through `PATH`, not with our environment.
        let child = Command::new(&settings.program)
            .arg0("locality-symboliser")
            .arg(ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // SAFETY: plain arguments.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
        Ok(Self {
            pid: child.id(),
            pidfd: owned(pidfd)?,
            socket,
            patience: settings.patience,
            has: HashSet::new(),
            unsent: Vec::new(),
            cpu_ns: 0,
            truncated: 0,
            last_words: None,
            is_late: false,
        })
    }

    /// Whether a module must be sent first; afterwards the process counts as having the module.
    pub(super) fn takes(&mut self, number: u32) -> bool {
        self.has.insert(number)
    }

    /// Sends a module.
    pub(super) fn put_module(&mut self, number: u32, module: &Module) -> Result<(), String> {
        let bytes = match &module.elf.bytes {
            Bytes::Copied(bytes) => Some(bytes.clone()),
            Bytes::Mapped(_) => None,
        };
        let directory = libc::O_PATH | libc::O_DIRECTORY;
        let root = OpenOptions::new().read(true).custom_flags(directory).open(&module.root).ok();
        let file = module.file.as_ref().filter(|_| bytes.is_none());
        let with: Vec<BorrowedFd<'_>> = file.into_iter().chain(&root).map(File::as_fd).collect();
        let (path, root) = (module.info.path.clone(), module.root.as_os_str().as_bytes().to_vec());
        let message = wire::packed(&Ask::Module { number, path, root, bytes });
        let message = message.map_err(|error| format!("cannot be asked: {error}"))?;
        self.flush()?;
        let end = Instant::now() + self.patience;
        let sent = self.send(&message, &with, end)?;
        module.sent();
        self.unsent.extend_from_slice(message.get(sent..).unwrap_or_default());
        Ok(())
    }

    /// Sends a request at the next [`Process::flush`].
    pub(super) fn put(&mut self, ask: &Ask) -> Result<(), String> {
        let message = wire::packed(ask).map_err(|error| format!("cannot be asked: {error}"))?;
        self.unsent.extend_from_slice(&message);
        Ok(())
    }

    /// Sends the bytes not sent yet.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        let end = Instant::now() + self.patience;
        let bytes = std::mem::take(&mut self.unsent);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let sent = self.send(rest, &[], end)?;
            rest = rest.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8], with: &[BorrowedFd<'_>], end: Instant) -> Result<usize, String> {
        loop {
            match wire::send(self.socket.as_fd(), bytes, with) {
                Ok(sent) => return Ok(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(libc::POLLOUT, end)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("could not be asked: {error}")),
            }
        }
    }

    /// The next answer.
    pub(super) fn answer(&mut self) -> Result<Said, String> {
        let end = Instant::now() + self.patience;
        let mut length = [0; 4];
        self.receive(&mut length, end)?;
        let length = u32::from_le_bytes(length);
        if length >= DYING {
            self.last_words = Some(format!("ended by {}", signal_name((length - DYING) as i32)));
            return Err("ended".to_owned());
        }
        if length as usize > MOST_BYTES {
            return Err("answered more than it may".to_owned());
        }
        let mut bytes = vec![0; length as usize];
        self.receive(&mut bytes, end)?;
        let answer: Answer = postcard::from_bytes(&bytes).map_err(|_| "answered nonsense".to_owned())?;
        self.count(answer.cpu_ns);
        add_truncated_pages(answer.truncated.saturating_sub(self.truncated));
        self.truncated = self.truncated.max(answer.truncated);
        Ok(answer.said)
    }

    fn receive(&mut self, into: &mut [u8], end: Instant) -> Result<(), String> {
        let mut filled = 0;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match wire::receive(self.socket.as_fd(), rest, false) {
                Ok((0, _)) => return Err("ended".to_owned()),
                Ok((got, _)) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(libc::POLLIN, end)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err("ended".to_owned()),
            }
        }
        Ok(())
    }

    fn wait(&mut self, events: libc::c_short, end: Instant) -> Result<(), String> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || !is_ready(self.socket.as_fd(), events, left) && Instant::now() >= end {
            self.is_late = true;
            return Err(format!("did not answer within {} s and was ended", self.patience.as_secs_f64()));
        }
        Ok(())
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        is_ready(self.pidfd.as_fd(), libc::POLLIN, Duration::ZERO)
    }

    fn count(&mut self, cpu_ns: u64) {
        CPU_NS.fetch_add(cpu_ns.saturating_sub(self.cpu_ns), Ordering::Relaxed);
        self.cpu_ns = self.cpu_ns.max(cpu_ns);
    }

    /// Ends a process that is not needed any more.
    pub(super) fn end(mut self) {
        self.is_late = true;
        self.bury();
    }

    /// Ends the process. Returns the manner of an earlier end.
    pub(super) fn bury(mut self) -> Option<String> {
        let pidfd = self.pidfd.as_raw_fd();
        // A crash closes the socket before the process is seen to have ended; an answer of nonsense
        // ends nothing.
        let by_itself = !self.is_late && is_ready(self.pidfd.as_fd(), libc::POLLIN, BURIAL);
        if !by_itself {
            // The process lives, or is not reaped: no other process has the number.
            if let Some(cpu_ns) = cpu_ns(self.pid) {
                self.count(cpu_ns);
            }
            let none = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: plain arguments. It can only fail when the process has ended.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, none, 0) };
            // A process blocked in the kernel (a file system that does not answer) stays, without
            // being waited for.
            is_ready(self.pidfd.as_fd(), libc::POLLIN, BURIAL);
        }
        // SAFETY: all-zero bytes are valid values to overwrite.
        let (mut info, mut usage) =
            unsafe { (std::mem::zeroed::<libc::siginfo_t>(), std::mem::zeroed::<libc::rusage>()) };
        let flags = libc::WEXITED | libc::WNOHANG;
        // SAFETY: both destinations are live. Another wait
        // for all children may have taken the entry.
        let reaped = unsafe {
            libc::syscall(libc::SYS_waitid, libc::P_PIDFD, pidfd, &raw mut info, flags, &raw mut usage)
        };
        // SAFETY: zero, or filled in by the kernel for a child that has ended.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        let is_known = reaped == 0 && pid != 0;
        if is_known {
            let time = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
            self.count(time(usage.ru_utime) + time(usage.ru_stime));
        }
        let how = match (is_known, info.si_code) {
            (true, libc::CLD_EXITED) => format!("ended with exit status {status}"),
            (true, _) => format!("ended by {}", signal_name(status)),
            (false, _) => "ended by a signal".to_owned(),
        };
        by_itself.then(|| self.last_words.unwrap_or(how))
    }
}

fn owned(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(descriptor) {
        // SAFETY: the system call returned a new descriptor without another owner.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((owned(fds[0].into())?, owned(fds[1].into())?))
}

fn is_ready(fd: BorrowedFd<'_>, events: libc::c_short, within: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // Rounded up, or the last millisecond would be spent in a loop.
    let ms = within.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
    // SAFETY: one live entry.
    (unsafe { libc::poll(&raw mut poll, 1, ms) }) > 0
}

/// CPU time of a process that is not reaped yet: the kernel's encoding of a per-process clock
/// (CPUCLOCK_SCHED).
fn cpu_ns(pid: u32) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is live.
    let result = unsafe { libc::clock_gettime(!pid.cast_signed() << 3 | 2, &raw mut time) };
    (result == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGABRT => "SIGABRT (as of an allocation that fails)".to_owned(),
        libc::SIGSEGV => "SIGSEGV (as of recursion that is too deep)".to_owned(),
        libc::SIGBUS => "SIGBUS (as of a file that cannot be read)".to_owned(),
        libc::SIGKILL => "SIGKILL".to_owned(),
        other => format!("signal {other}"),
    }
}
