//! `ptrace(2)` and `waitpid(2)` as the freezer needs them. Every call must come from the thread that seized.
//!
//! The relation ends with this thread: the kernel releases each tracee without interrupting it
//! (`exit_ptrace`), which `PTRACE_DETACH` cannot do for a running thread.

use std::io;

/// What `waitpid` reported of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Ended with this wait status.
    Ended(i32),
    /// About to be delivered this signal.
    Signal(i32),
    /// Stopped for a `PTRACE_EVENT_*`; the second value is the signal of a `PTRACE_EVENT_STOP`.
    Event(i32, i32),
}

fn request(request: libc::c_uint, tid: u32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the callers pass pointers only to live values of the request's type.
    match unsafe { libc::ptrace(request, tid as libc::pid_t, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Seizes a thread without stopping it. The kernel seizes its new threads, which start stopped. Its
/// children are not seized, so the program itself may debug a child.
///
/// Without `PTRACE_O_EXITKILL`: at the end of the tool they run on.
pub fn seize(tid: u32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC;
    request(libc::PTRACE_SEIZE, tid, 0, options as usize)
}

/// From now on, new threads of a stopped thread are neither seized nor announced.
pub fn ignore_clones(tid: u32) -> io::Result<()> {
    request(libc::PTRACE_SETOPTIONS, tid, 0, libc::PTRACE_O_TRACEEXEC as usize)
}

/// Lets a stopped thread run, with a signal to deliver or 0.
pub fn resume(tid: u32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// Leaves a thread of a stopped process stopped, but no longer by us (`PTRACE_LISTEN`).
pub fn listen(tid: u32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Releases a stopped thread, with a signal to deliver or 0.
pub fn detach(tid: u32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// `si_code` of the signal that a thread is stopped for.
pub fn signal_code(tid: u32) -> io::Result<i32> {
    // SAFETY: all-zero bytes are a valid value to overwrite.
    let mut info = unsafe { std::mem::zeroed::<libc::siginfo_t>() };
    request(libc::PTRACE_GETSIGINFO, tid, 0, &raw mut info as usize)?;
    Ok(info.si_code)
}

/// The message of a `PTRACE_EVENT_*` stop: for a birth the new thread's id.
pub fn event_message(tid: u32) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    request(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message as usize)?;
    Ok(message)
}

/// A byte of the code that a stopped thread has just executed.
pub fn code_byte(tid: u32, address: u64) -> io::Result<u8> {
    // SAFETY: the library reads the word into a place of its own and returns it; -1 is a word too,
    // so the error is in `errno` alone, which is this thread's.
    let word = unsafe {
        *libc::__errno_location() = 0;
        libc::ptrace(libc::PTRACE_PEEKTEXT, tid as libc::pid_t, address as usize, 0usize)
    };
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => Ok(word as u8),
        error => Err(error),
    }
}

/// Registers of a stopped thread.
pub fn registers(tid: u32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero bytes are a valid value to overwrite.
    let mut regs = unsafe { std::mem::zeroed::<libc::user_regs_struct>() };
    request(libc::PTRACE_GETREGS, tid, 0, &raw mut regs as usize)?;
    Ok(regs)
}

/// Vector and x87 registers of a stopped thread, as an XSAVE area in the standard form, its first
/// `bytes` or less. Of a processor without XSAVE, whose area has no more than [`FXSAVE_BYTES`], as
/// `fxsave` writes them. Overwrites `area`.
#[doc(alias = "NT_X86_XSTATE")]
pub fn extended_state(tid: u32, bytes: usize, area: &mut Vec<u8>) -> io::Result<()> {
    /// Note types of the XSAVE area and of the older one (`NT_X86_XSTATE` and `NT_PRFPREG` in the kernel's
    /// include/uapi/linux/elf.h).
    const NT_X86_XSTATE: usize = 0x202;
    const NT_PRFPREG: usize = 2;
    let kind = if bytes > FXSAVE_BYTES { NT_X86_XSTATE } else { NT_PRFPREG };
    area.resize(bytes, 0);
    let mut room = libc::iovec { iov_base: area.as_mut_ptr().cast(), iov_len: area.len() };
    request(libc::PTRACE_GETREGSET, tid, kind, &raw mut room as usize)?;
    area.truncate(room.iov_len);
    Ok(())
}

/// What `fxsave` writes, in bytes.
const FXSAVE_BYTES: usize = 512;

/// The next report of any tracee or child of this OS thread, without waiting.
pub fn next_status() -> io::Result<Option<(u32, Status)>> {
    next_status_among(-1)
}

/// Whether a report is pending, without taking it. False if unknown.
pub fn has_status() -> bool {
    // SAFETY: plain data, valid as all zeroes; without a report the kernel leaves the process id 0.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WSTOPPED | libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the destination is live, and filled by a successful call.
    unsafe { libc::waitid(libc::P_ALL, 0, &mut found, options) == 0 && found.si_pid() != 0 }
}

/// The next report of one thread, without waiting.
pub fn next_status_of(tid: u32) -> io::Result<Option<Status>> {
    Ok(next_status_among(tid as libc::pid_t)?.map(|(_, status)| status))
}

fn next_status_among(tid: libc::pid_t) -> io::Result<Option<(u32, Status)>> {
    let mut status = 0;
    // SAFETY: the destination is live.
    let tid = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
    match tid {
        0 => Ok(None),
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
            error => Err(error),
        },
        tid => Ok(Some((tid as u32, decode(status)))),
    }
}

fn decode(status: i32) -> Status {
    if !libc::WIFSTOPPED(status) {
        return Status::Ended(status);
    }
    match status >> 16 {
        0 => Status::Signal(libc::WSTOPSIG(status)),
        event => Status::Event(event, libc::WSTOPSIG(status)),
    }
}
