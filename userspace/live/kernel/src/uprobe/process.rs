//! The probe process: a child that creates and closes links of probes for the tracer.
//!
//! A thread with a fatal signal can neither write nor remove breakpoints: `__get_user_pages` in the
//! kernel's mm/gup.c gives up for it, and `uprobe_unregister_nosync` in kernel/events/uprobes.c then
//! logs `failed to unregister, leaking uprobe`. A tracer that SIGKILL meets in such a call would leave
//! breakpoints in the traced program. The probe process makes the calls in its place. After the
//! tracer's death, the process closes all links as a healthy process, and ends.
//!
//! Requests and answers go through a socket, as a length in bytes (`u32`) and that many bytes, all numbers
//! little-endian. A request is served in a thread of its own, because closing a link waits for a grace
//! period. The programs are descriptors 1 and 2 of the process.
//!
//! Limit: SIGKILL of the probe process itself may still leave breakpoints.

use std::{
    collections::HashMap,
    ffi::CString,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use super::{LinkRequest, create_link};
use crate::sys;

/// The argument that turns this program into the probe process.
const ARGUMENT: &str = "--locality-probes";

/// The program of probe processes, if not this one.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// A longer message is no message: offsets and cookies of some ten thousand probes.
const MOST_BYTES: u32 = 1 << 20;

const CREATE: u64 = 1;
const CLOSE: u64 = 2;

/// The tracer's side.
#[derive(Debug)]
pub(super) struct ProbeProcess {
    child: Mutex<Child>,
    requests: Mutex<UnixStream>,
    waiting: Arc<Mutex<Waiting>>,
    next: AtomicU64,
}

/// Requests without an answer, by number; `None` after the end of the probe process.
type Waiting = Option<HashMap<u64, mpsc::Sender<i32>>>;

impl ProbeProcess {
    /// Starts the process.
    ///
    /// # Shapes
    /// One or two loaded programs, which requests name by their index.
    pub(super) fn start(programs: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let program = |index: usize| {
            let program = programs.get(index).map(|program| program.try_clone_to_owned()).transpose();
            program.map(|program| program.map_or_else(Stdio::null, Stdio::from))
        };
        let child = Command::new(PROGRAM.get().map_or("/proc/self/exe".as_ref(), PathBuf::as_path))
            .arg0("locality-probes")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(program(0)?)
            .stderr(program(1)?)
            .spawn()?;
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (answers, answered) = (ours.try_clone()?, Arc::clone(&waiting));
        std::thread::Builder::new()
            .name("probe answers".into())
            .spawn(move || receive(answers, &answered))?;
        Ok(Self { child: Mutex::new(child), requests: Mutex::new(ours), waiting, next: AtomicU64::new(1) })
    }

    /// Whether the process takes requests.
    pub(super) fn is_alive(&self) -> bool {
        lock(&self.waiting).is_some()
    }

    /// Creates a link. Returns the link's number.
    ///
    /// # Errors
    /// The kernel's error, or the end of the probe process.
    pub(super) fn create(&self, request: &LinkRequest<'_>) -> io::Result<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = request.path.to_bytes();
        let probes = request.probes.iter().flat_map(|probe| [probe.offset, probe.cookie]);
        let words = [
            number,
            CREATE,
            request.program as u64,
            u64::from(request.attach_type),
            u64::from(request.multi_flags),
            u64::from(request.pid),
            request.probes.len() as u64,
        ];
        let words = words.into_iter().chain(probes);
        let message: Vec<u8> = words.flat_map(u64::to_le_bytes).chain(path.iter().copied()).collect();
        match self.ask(number, &message)? {
            0 => Ok(number),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Closes a link; returns after the breakpoints are gone. Without a probe process the kernel removes
    /// the breakpoints.
    pub(super) fn close(&self, link: u64) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let message: Vec<u8> = [number, CLOSE, link].into_iter().flat_map(u64::to_le_bytes).collect();
        if let Err(error) = self.ask(number, &message) {
            tracing::debug!("probes not removed by the probe process: {error}");
        }
    }

    fn ask(&self, number: u64, message: &[u8]) -> io::Result<i32> {
        let ended = || io::Error::other("the process for probes has ended");
        let (answer, answered) = mpsc::channel();
        lock(&self.waiting).as_mut().ok_or_else(ended)?.insert(number, answer);
        send(&mut *lock(&self.requests), message).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())
    }
}

impl Drop for ProbeProcess {
    /// All links are closed when the process has ended.
    fn drop(&mut self) {
        // The end of requests ends the process.
        let _ = lock(&self.requests).shutdown(std::net::Shutdown::Write);
        // A wait for all children elsewhere may have reaped the child.
        let _ = lock(&self.child).wait();
    }
}

/// Hands answers to the requests, until the process ends.
fn receive(mut answers: UnixStream, waiting: &Mutex<Waiting>) {
    while let Ok(Some(answer)) = read(&mut answers) {
        let mut words = Words(&answer);
        let (Some(number), Some(errno)) = (words.next(), words.next()) else { break };
        let request = lock(waiting).as_mut().and_then(|waiting| waiting.remove(&number));
        if let Some(request) = request {
            // A requester waits for its answer.
            let _ = request.send(errno as i32);
        }
    }
    // Requests still waiting find their channel closed.
    *lock(waiting) = None;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers at the start of a message.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }
}

fn send(to: &mut impl io::Write, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).ok().filter(|length| *length <= MOST_BYTES);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    to.write_all(&[&length.to_le_bytes(), message].concat())
}

/// The next message; `None` at the end.
fn read(from: &mut impl io::Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length);
    if length > MOST_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length as usize];
    from.read_exact(&mut message)?;
    Ok(Some(message))
}

/// Later probe processes run `program`, for tests whose own `main` does not call
/// [`become_probe_process_if_asked`]. The first call counts.
pub fn start_probe_process_from(program: PathBuf) {
    PROGRAM.get_or_init(|| program);
}

/// To be called first in `main`: a program started as the probe process becomes the probe process and
/// does not return.
pub fn become_probe_process_if_asked() {
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|argument| argument == ARGUMENT) && arguments.next().is_none() {
        // SAFETY: system calls with plain arguments; the name is a C string. A session of its own keeps
        // the terminal's signals away, and the process ends with the requests.
        unsafe {
            libc::setsid();
            libc::prctl(libc::PR_SET_NAME, c"locality-probes".as_ptr());
            for signal in
                [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP, libc::SIGPIPE]
            {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
        // SAFETY: the tracer put its socket there; anything else fails at the first read.
        serve(UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) }));
        std::process::exit(0);
    }
}

/// Links, by number.
type Links = Mutex<HashMap<u64, OwnedFd>>;

/// Serves requests until their end, then closes all links.
fn serve(mut requests: UnixStream) {
    let Ok(answers) = requests.try_clone() else { return };
    let (links, answers) = (Links::default(), Mutex::new(answers));
    let (links, answers) = (&links, &answers);
    std::thread::scope(|scope| {
        while let Ok(Some(request)) = read(&mut requests) {
            scope.spawn(move || {
                // While this thread waits for a processor, the traced program pays.
                let _hurry = sys::Hurry::begin();
                let Some((number, errno)) = answer(&request, links) else { return };
                let message = [number, errno as u64].map(u64::to_le_bytes).concat();
                // A tracer that is gone reads nothing.
                let _ = send(&mut *lock(answers), &message);
            });
        }
    });
    // Each link's end waits for a grace period.
    let links = std::mem::take(&mut *lock(links));
    std::thread::scope(|scope| {
        for link in links.into_values() {
            scope.spawn(move || drop(link));
        }
    });
}

/// Serves a request: its number, and 0 or the kernel's error.
fn answer(request: &[u8], links: &Links) -> Option<(u64, i32)> {
    let mut words = Words(request);
    let (number, kind) = (words.next()?, words.next()?);
    let errno = match kind {
        CREATE => match create(&mut words)? {
            Ok(link) => {
                lock(links).insert(number, link);
                0
            }
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        },
        CLOSE => {
            let link = lock(links).remove(&words.next()?);
            drop(link);
            0
        }
        _ => return None,
    };
    Some((number, errno))
}

fn create(words: &mut Words<'_>) -> Option<io::Result<OwnedFd>> {
    let (program, attach_type, multi_flags) = (words.next()?, words.next()?, words.next()?);
    let (pid, count) = (words.next()?, words.next()?);
    let mut probes = Vec::new();
    for _ in 0..count {
        probes.push(super::Probe { offset: words.next()?, cookie: words.next()?, followed: false, byte: 0 });
    }
    let path = CString::new(words.0).ok()?;
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let descriptor = if program == 0 { stdout.as_fd() } else { stderr.as_fd() };
    let request = LinkRequest {
        program: program as usize,
        attach_type: attach_type as u32,
        multi_flags: multi_flags as u32,
        pid: pid as u32,
        path: &path,
        probes: &probes,
    };
    Some(create_link(descriptor.as_raw_fd(), &request))
}
