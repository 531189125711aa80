//! System calls of the agent, each with errors. Not here: the purpose.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

/// Blocks the signals of the agent's end and of children;
/// returns a descriptor, readable after a signal.
pub(crate) fn signals() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero set is valid to overwrite, and is live; the other arguments are plain.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD, libc::SIGUSR1] {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The next signal received, and the number sent along.
pub(crate) fn next_signal(signals: &OwnedFd) -> Option<(i32, i32)> {
    // SAFETY: all-zero bytes are a valid value to overwrite.
    let mut info = unsafe { std::mem::zeroed::<libc::signalfd_siginfo>() };
    let size = size_of_val(&info);
    // SAFETY: the destination is live and has `size` bytes.
    let got = unsafe { libc::read(signals.as_raw_fd(), (&raw mut info).cast(), size) };
    (got == size as isize).then_some((info.ssi_signo as i32, info.ssi_int))
}

/// A descriptor, and the event to wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub fd: BorrowedFd<'a>,
    pub to_write: bool,
}

/// Waits until a descriptor is ready; returns readiness by descriptor.
pub(crate) fn ready(waits: &[Wait<'_>], timeout: Duration) -> Vec<bool> {
    let mut polled: Vec<libc::pollfd> = waits
        .iter()
        .map(|wait| {
            let events = if wait.to_write { libc::POLLOUT } else { libc::POLLIN };
            libc::pollfd { fd: wait.fd.as_raw_fd(), events, revents: 0 }
        })
        .collect();
    let ms = timeout.as_millis().min(60_000) as i32;
    // SAFETY: the entries are live, and as many as said.
    let n = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
    polled.iter().map(|polled| n > 0 && polled.revents != 0).collect()
}

/// Sends a signal to a child before the wait for the child.
pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: plain arguments.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// Sends a process a signal with a number.
pub(crate) fn signal_with(pid: u32, signal: i32, number: i32) -> io::Result<()> {
    let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(number as usize) };
    // SAFETY: plain arguments; the number is no address, and the receiver takes it for none.
    match unsafe { libc::sigqueue(pid.cast_signed(), signal, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a signal end the process at the parent's end; false if the parent has ended already.
pub(crate) fn end_with_parent(parent: u32, signal: i32) -> bool {
    // SAFETY: plain arguments.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0);
        libc::getppid().cast_unsigned() == parent
    }
}

/// Niceness of a job: on busy processors, a tenth of a program's time.
const NICE: i32 = 10;

/// Gives the calling thread a low priority.
pub(crate) fn be_nice() {
    // SAFETY: plain arguments.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Whether a process is the parent of this one.
pub(crate) fn is_parent(pid: u32) -> bool {
    // SAFETY: no arguments.
    unsafe { libc::getppid() }.cast_unsigned() == pid
}

/// Gives the process a low priority, and a limit of memory in bytes.
pub(crate) fn be_modest(memory: u64) {
    let limit = libc::rlimit { rlim_cur: memory, rlim_max: memory };
    // SAFETY: plain arguments; the limit is live.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        libc::setrlimit(libc::RLIMIT_AS, &raw const limit);
    }
}

/// CPU time of the process and of waited-for descendants.
pub(crate) fn cpu_time() -> Duration {
    let of = |who| {
        // SAFETY: all-zero bytes are a valid value to overwrite, and the value is live.
        let usage = unsafe {
            let mut usage = std::mem::zeroed::<libc::rusage>();
            libc::getrusage(who, &raw mut usage);
            usage
        };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.cast_unsigned())
                + Duration::from_micros(time.tv_usec.cast_unsigned())
        };
        time(usage.ru_utime) + time(usage.ru_stime)
    };
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN)
}
