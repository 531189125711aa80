//! System calls of both sides of the window process, each with its error. Not here: what they are for.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// An error number or a non-negative result.
fn result(value: libc::c_long) -> io::Result<libc::c_long> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = result(fd)? as RawFd;
    // SAFETY: the system call returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(super) fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// A clock's time in nanoseconds.
pub(super) fn clock_ns(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is live.
    result(unsafe { libc::clock_gettime(clock, &raw mut time) }.into())?;
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CPU time of a process that is not reaped yet.
pub(super) fn cpu_ns(pid: u32) -> io::Result<u64> {
    // CPUCLOCK_SCHED of the process: the kernel's encoding of a per-process clock.
    clock_ns((!(pid as i32) << 3) | 2)
}

/// Sleeps while `word` is `value`, until `deadline_ns` of `CLOCK_MONOTONIC` at the latest. May return early.
pub(super) fn futex_wait(word: &AtomicU32, value: u32, deadline_ns: Option<u64>) {
    let until = deadline_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let until = until.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let none = std::ptr::null::<u32>();
    // SAFETY: the word and the time are live for the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET,
            value,
            until,
            none,
            libc::FUTEX_BITSET_MATCH_ANY,
        )
    };
}

/// Wakes who sleeps on `word`.
pub(super) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is live for the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// A file in memory of `bytes` zeros that nobody can shrink, grow or unseal.
pub(super) fn sealed_memory(bytes: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string and plain arguments.
    let fd = owned(unsafe { libc::memfd_create(c"locality-window".as_ptr(), flags) }.into())?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain arguments on a descriptor that we own.
    unsafe {
        result(libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t).into())?;
        result(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals).into())?;
    }
    Ok(fd)
}

/// Two ends of a socket that keeps messages apart.
pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    result(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) }.into())?;
    Ok((owned(fds[0].into())?, owned(fds[1].into())?))
}

/// Room for one descriptor's control message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 32]);

fn message(bytes: &mut libc::iovec, control: &mut Control, with_control: bool) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid header.
    let mut header = unsafe { std::mem::zeroed::<libc::msghdr>() };
    header.msg_iov = bytes;
    header.msg_iovlen = 1;
    if with_control {
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: computes a size.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    }
    header
}

/// Sends a message and a descriptor; never waits.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let header = message(&mut part, &mut control, fd.is_some());
    if let Some(fd) = fd {
        // SAFETY: the control buffer has room for one message of one descriptor, as `message` said.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the header, the bytes and the control buffer are live; the kernel reads the bytes only.
    result(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) } as libc::c_long)?;
    Ok(())
}

/// Receives a message and the descriptor that came with it; `Ok(0, _)` when the other end is gone.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    wait: bool,
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut header = message(&mut part, &mut control, true);
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the header, the buffer and the control buffer are live.
    let got = result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) } as libc::c_long)?;
    // SAFETY: the kernel filled in the control buffer and its length.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    if first.is_null() {
        return Ok((got as usize, None));
    }
    // SAFETY: not null, so it points to a whole header in our buffer.
    let (level, kind, len) = unsafe { ((*first).cmsg_level, (*first).cmsg_type, (*first).cmsg_len) };
    // SAFETY: computes a size.
    let one = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as usize;
    if (level, kind, len) != (libc::SOL_SOCKET, libc::SCM_RIGHTS, one) {
        return Ok((got as usize, None));
    }
    // SAFETY: a message of this kind and length carries one new descriptor without another owner.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<RawFd>().read_unaligned()) };
    Ok((got as usize, Some(fd)))
}

/// Whether a descriptor becomes readable in time. A process' descriptor is readable when the
/// process has ended.
pub(super) fn readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = within.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: one live entry.
    (unsafe { libc::poll(&raw mut poll, 1, ms) }) > 0
}

/// A descriptor of a child that is not reaped yet.
pub(super) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain arguments.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Kills a process for good.
pub(super) fn kill(pidfd: BorrowedFd<'_>) {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: plain arguments. It can only fail when the process has ended.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, none, 0) };
}

/// What is left of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It lives.
    Alive,
    /// The child has ended, with its entry still present.
    Ended,
    /// Its entry was already reaped.
    Gone,
}

fn wait(pidfd: BorrowedFd<'_>, flags: i32) -> (Life, libc::siginfo_t) {
    // SAFETY: all-zero bytes are a valid value to overwrite.
    let mut info = unsafe { std::mem::zeroed::<libc::siginfo_t>() };
    let id = pidfd.as_raw_fd() as libc::id_t;
    // SAFETY: the destination is live; `si_pid` is set to 0 or to the child's by a successful call.
    let life = unsafe {
        match libc::waitid(libc::P_PIDFD, id, &raw mut info, libc::WEXITED | libc::WNOHANG | flags) {
            0 if info.si_pid() == 0 => Life::Alive,
            0 => Life::Ended,
            _ => Life::Gone,
        }
    };
    (life, info)
}

/// State of a child, without reaping it.
pub(super) fn life(pidfd: BorrowedFd<'_>) -> Life {
    wait(pidfd, libc::WNOWAIT).0
}

/// Takes the entry of a child that has ended, and says how it did if that is known.
pub(super) fn reap(pidfd: BorrowedFd<'_>) -> String {
    let (life, info) = wait(pidfd, 0);
    // SAFETY: filled in by the kernel for a child that has ended.
    let status = unsafe { info.si_status() };
    match (life, info.si_code) {
        (Life::Ended, libc::CLD_EXITED) => format!("exit status {status}"),
        (Life::Ended, _) => format!("signal {status}"),
        _ => String::new(),
    }
}

/// The processor of this thread, and whether the thread has a real-time priority.
pub(super) fn placement() -> (usize, bool) {
    // SAFETY: system calls with plain arguments.
    unsafe {
        let cpu = libc::sched_getcpu();
        let policy = libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK;
        (usize::try_from(cpu).unwrap_or(usize::MAX), matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR))
    }
}

/// Processors allowed for a thread (0: this one).
pub(super) fn affinity(tid: u32) -> io::Result<libc::cpu_set_t> {
    // SAFETY: an all-zero set is a valid one; it is live and its size is given.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        result(libc::sched_getaffinity(tid as i32, size_of_val(&set), &raw mut set).into())?;
        Ok(set)
    }
}

/// Sets the processors allowed for a thread (0: this one).
pub(super) fn set_affinity(tid: u32, set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the set is live and its size is given.
    result(unsafe { libc::sched_setaffinity(tid as i32, size_of_val(set), set) }.into()).map(drop)
}

/// Whether two sets have the same processors.
pub(super) fn are_equal(a: &libc::cpu_set_t, b: &libc::cpu_set_t) -> bool {
    // SAFETY: plain arguments.
    unsafe { libc::CPU_EQUAL(a, b) }
}

/// The set of one processor; `None` beyond what a set holds.
pub(super) fn only(cpu: usize) -> Option<libc::cpu_set_t> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return None;
    }
    // SAFETY: an all-zero set is a valid one, and the number lies in it.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(cpu, &mut set);
        Some(set)
    }
}
