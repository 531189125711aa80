//! The symboliser process: started by the tracer from its own program, limited, then one answer to
//! each request.
//!
//! The process has one thread. An error ends the process, and the tracer starts another.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Arc;

use super::wire::{self, Answer, Ask, DYING, MOST_BYTES, Part, Said};
use crate::elf::Bytes;
use crate::module::Module;
use crate::symbolize::Resolved;
use crate::truncated::truncated_pages;

/// The argument that asks a program to become the symboliser process.
pub(super) const ARGUMENT: &str = "--locality-symboliser";
/// Descriptor of the socket from the tracer.
const SOCKET: RawFd = 0;
/// Most private memory, in bytes: twice the limit of the
/// sum that compressed sections of a file may claim.
const MOST_MEMORY: u64 = 4 << 30;
/// Most address space, in bytes. Debug files are mapped (a
/// browser's have a few GiB), without a cost in memory.
const MOST_ADDRESSES: u64 = 64 << 30;

/// To be called first in `main` of each program that isolates names: a program
/// started as the symboliser process serves as one, and the call does not return.
pub fn become_symboliser_if_asked() {
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|argument| argument == ARGUMENT) && arguments.next().is_none() {
        settle();
        // SAFETY: the tracer put the socket at this number; otherwise the first use fails.
        let socket = unsafe { OwnedFd::from_raw_fd(SOCKET) };
        exit(match serve(socket.as_fd()) {
            Ok(()) => 0,
            Err(_) => 1,
        });
    }
}

/// Limits the process's resources. A failed limit makes a hostile file a little more harmful.
fn settle() {
    // SAFETY: system calls with plain arguments; name and limits are live.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"symboliser".as_ptr());
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let limits =
            [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_DATA, MOST_MEMORY), (libc::RLIMIT_AS, MOST_ADDRESSES)];
        for (resource, most) in limits {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(resource, &raw mut limit);
            let most = most.min(limit.rlim_max);
            limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            libc::setrlimit(resource, &raw const limit);
        }
        // The tracer answers these signals, and closes the socket at the tracer's end.
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP, libc::SIGPIPE]
        {
            libc::signal(signal, libc::SIG_IGN);
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_death as *const () as usize;
        // Rust's runtime has made another stack for the handler of its own.
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESETHAND;
        for signal in [libc::SIGABRT, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGSYS] {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
    // When memory is short, better the names than the tracer or a traced program.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Reports the signal that ends the process; a wait for all
/// children of the tracer may take the status first.
extern "C" fn on_death(signal: i32) {
    let words = (DYING | signal as u32 & 0xff).to_le_bytes();
    // SAFETY: system calls with plain arguments and live bytes. The action was reset, so the signal
    // ends the process.
    unsafe {
        libc::send(SOCKET, words.as_ptr().cast(), words.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// What is known of a module.
enum Known {
    /// Not read before somebody asks for it.
    Sent(Box<Ask>, Vec<OwnedFd>),
    /// `None` if unreadable.
    Open(Option<(Resolved, Arc<Module>)>),
}

fn serve(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut modules: HashMap<u32, Known> = HashMap::new();
    loop {
        let Some((ask, descriptors)) = next(socket)? else { return Ok(()) };
        let said = match ask {
            Ask::Module { number, .. } => {
                modules.insert(number, Known::Sent(Box::new(ask), descriptors));
                continue;
            }
            Ask::Frames(number, addresses) => {
                let mut known = modules.get_mut(&number).and_then(open);
                let frames = |inside| {
                    let frames = known.as_mut().map(|(resolved, _)| resolved.resolve(inside));
                    frames.into_iter().flatten().map(Part::from).collect()
                };
                Said::Frames(addresses.into_iter().map(frames).collect())
            }
            Ask::Start(number, inside) => {
                let known = modules.get_mut(&number).and_then(open);
                Said::Start(known.and_then(|(_, module)| Some(module.function(inside)?.0)))
            }
        };
        let answer = Answer { said, cpu_ns: own_cpu_ns(), truncated: truncated_pages() };
        let bytes = wire::packed(&answer)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            // SAFETY: the bytes are live.
            let sent = unsafe {
                libc::send(socket.as_raw_fd(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL)
            };
            let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
            rest = rest.get(sent..).unwrap_or_default();
        }
    }
}

/// Reads the module, unless that was done.
fn open(known: &mut Known) -> Option<&mut (Resolved, Arc<Module>)> {
    if let Known::Sent(ask, descriptors) = known {
        let Ask::Module { path, root, bytes, .. } = &mut **ask else { return None };
        let mut descriptors = std::mem::take(descriptors).into_iter();
        let file = if bytes.is_none() { descriptors.next().map(File::from) } else { None };
        let mapped = match (bytes.take(), &file) {
            (Some(bytes), _) => Some(Bytes::Copied(bytes)),
            (None, Some(file)) => Bytes::map(file).ok(),
            (None, None) => None,
        };
        let directory = descriptors.next();
        let root = match &directory {
            Some(root) => PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())),
            None => Path::new(OsStr::from_bytes(root)).to_owned(),
        };
        // Everything is read here, so the root directory is not needed later.
        let module = mapped.and_then(|bytes| Module::new(path, bytes, file, &root)).map(Arc::new);
        let opened = module.map(|module| (Resolved::new(Arc::clone(&module)), module));
        *known = Known::Open(opened);
    }
    match known {
        Known::Open(opened) => opened.as_mut(),
        Known::Sent(..) => None,
    }
}

/// The next request; `None` when the tracer has let go of the socket.
fn next(socket: BorrowedFd<'_>) -> io::Result<Option<(Ask, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let (got, descriptors) = wire::receive(socket, &mut length, true)?;
    if got == 0 {
        return Ok(None);
    }
    fill(socket, length.get_mut(got..).unwrap_or_default())?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    fill(socket, &mut bytes)?;
    let ask = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
    Ok(Some((ask, descriptors)))
}

fn fill(socket: BorrowedFd<'_>, mut rest: &mut [u8]) -> io::Result<()> {
    while !rest.is_empty() {
        let (got, _) = wire::receive(socket, rest, true)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rest = rest.get_mut(got..).unwrap_or_default();
    }
    Ok(())
}

fn own_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is live.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
