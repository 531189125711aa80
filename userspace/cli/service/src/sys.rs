//! System calls of the agent, each with its error. Not here: what they are for.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

/// Blocks the signals that end the agent or tell of children, and returns a descriptor that is readable
/// when one has come.
pub(crate) fn signals() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero set is a valid one to overwrite, and it is live; the other arguments are plain.
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

/// The next signal that has come, and the number that came with it.
pub(crate) fn next_signal(signals: &OwnedFd) -> Option<(i32, i32)> {
    // SAFETY: all-zero bytes are a valid value to overwrite.
    let mut info = unsafe { std::mem::zeroed::<libc::signalfd_siginfo>() };
    let size = size_of_val(&info);
    // SAFETY: the destination is live and has that size.
    let got = unsafe { libc::read(signals.as_raw_fd(), (&raw mut info).cast(), size) };
    (got == size as isize).then_some((info.ssi_signo as i32, info.ssi_int))
}

/// What a descriptor is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub fd: BorrowedFd<'a>,
    pub to_write: bool,
}

/// Waits until a descriptor is ready, and says which are.
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

/// Sends a signal to a child that has not been waited for.
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

/// Has this process end by a signal when its parent ends; false where that has ended already.
pub(crate) fn end_with_parent(parent: u32, signal: i32) -> bool {
    // SAFETY: plain arguments.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0);
        libc::getppid().cast_unsigned() == parent
    }
}

/// How much less time than the programs a job gets where there is not enough for all: a tenth.
const NICE: i32 = 10;

/// Gives this process a low priority, and at most so much memory.
pub(crate) fn be_modest(memory: u64) {
    let limit = libc::rlimit { rlim_cur: memory, rlim_max: memory };
    // SAFETY: plain arguments; the limit is live.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        libc::setrlimit(libc::RLIMIT_AS, &raw const limit);
    }
}

/// CPU time of this process and of all children that have been waited for, and of theirs.
pub(crate) fn cpu_time() -> Duration {
    let of = |who| {
        // SAFETY: all-zero bytes are a valid value to overwrite, and it is live.
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
