//! Runs the command under QEMU: the command owns the terminal,
//! the arguments, the environment and the exit status.
//!
//! A signal of the terminal (Ctrl-C) reaches the command as without us; a signal sent to
//! us is passed on. We stay to report the command's work up to the signal. A second
//! signal, 0.5 s later or more, is for us: the report covers the run up to the signal, and
//! the command runs on. After the command a signal ends us (`ending`). Not here: counting.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use locality_plugin::{program::Program, settings::Settings};

use super::ending;
use locality_kernel::sys::{self, Waker};
use locality_kernel::{inherited, launch};

/// The command's process id during the run; 0 before and after.
static COMMAND: AtomicI32 = AtomicI32::new(0);
/// The first signal to us or of the terminal; 0: none.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// Time of the first signal, in nanoseconds of the monotonic clock.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// The signal meant for us, not the command; 0: none.
static FOR_US: AtomicI32 = AtomicI32::new(0);
/// Descriptor of the [`Waker`], made readable by a signal for us; -1: none.
static WAKER: AtomicI32 = AtomicI32::new(-1);
/// Signals meant for the command, whatever the addressee.
const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];
/// Two signals within 0.5 s are one request: `timeout(1)`
/// signals the child and then the child's group.
const ONE_REQUEST_NS: u64 = 500_000_000;

/// How the command ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// The status from `waitpid`; `None` if the command runs on, because a second signal came.
    pub wait_status: Option<i32>,
    /// Elapsed time of the run.
    pub wall: Duration,
    /// CPU time of the command and of the awaited children.
    pub cpu: Duration,
    /// The last signal during the run, Ctrl-C or sent to us.
    pub interrupted: Option<i32>,
}

extern "C" fn on_signal(signal: i32, about: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: the kernel passes a live structure to handlers requesting a structure.
    let code = unsafe { about.as_ref() }.map_or(libc::SI_USER, |about| about.si_code);
    let command = COMMAND.load(SeqCst);
    let (now, is_first) = (sys::monotonic_ns(), FIRST.compare_exchange(0, signal, SeqCst, SeqCst).is_ok());
    if is_first {
        FIRST_NS.store(now, SeqCst);
    }
    let is_again = !is_first && now.saturating_sub(FIRST_NS.load(SeqCst)) >= ONE_REQUEST_NS;
    if command > 0 && code != libc::SI_KERNEL {
        // SAFETY: a system call with plain arguments, allowed in a handler.
        unsafe { libc::kill(command, signal) };
    }
    if command == 0 && (is_first || is_again) {
        ending::arrived(signal);
    } else if is_again {
        FOR_US.store(signal, SeqCst);
        let one = 1u64;
        // SAFETY: eight live bytes; a system call allowed in a
        // handler. Without a descriptor the call has no effect.
        unsafe { libc::write(WAKER.load(SeqCst), (&raw const one).cast(), size_of::<u64>()) };
    }
}

/// Has signals passed on. An ignored signal stays ignored, as under `nohup(1)`.
fn listen() -> io::Result<Waker> {
    let waker = Waker::blocking()?;
    WAKER.store(waker.as_raw_fd(), SeqCst);
    for signal in SIGNALS.into_iter().filter(|signal| !sys::is_ignored(*signal)) {
        // SAFETY: a structure of zeros is valid; the handler only makes calls allowed in handlers.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(i32, *const libc::siginfo_t, *const libc::c_void) = on_signal;
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
    Ok(waker)
}

/// Holds signals back, or lets signals come.
fn set_blocked(blocked: bool) {
    let how = if blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: the set is live and initialised.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in SIGNALS {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigprocmask(how, &raw const set, std::ptr::null_mut());
    }
}

/// Starts the command. Must be called while the process has a single thread.
pub fn start(settings: &Settings, program: &Program) -> io::Result<Running> {
    let file = Path::new(OsStr::from_bytes(program.file.as_bytes()));
    let (arguments, environment) = settings.command(program, inherited::environment(file));
    inherited::stop_timers();
    let waker = listen()?;
    // The child would swallow a signal before `execve`.
    set_blocked(true);
    let started = launch::start(&arguments, &environment);
    COMMAND.store(started.as_ref().map_or(0, |pid| pid.cast_signed()), SeqCst);
    set_blocked(false);
    let pid = started?.cast_signed();
    // SAFETY: a system call with plain arguments; the child has not been waited for.
    let end = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if end < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor, without a second owner.
    let end = unsafe { OwnedFd::from_raw_fd(end as i32) };
    Ok(Running { pid, started: Instant::now(), end, waker })
}

/// A running command.
#[derive(Debug)]
pub struct Running {
    /// Process id.
    pub pid: i32,
    started: Instant,
    /// Readable after the command's end.
    end: OwnedFd,
    waker: Waker,
}

impl Running {
    /// Waits for the command's end, or for a second signal.
    pub fn wait(self) -> io::Result<Ended> {
        let mut watched = [self.end.as_raw_fd(), self.waker.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        loop {
            // SAFETY: the array is live and the length is given.
            if unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, -1) } >= 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let has_ended = watched.first().is_some_and(|end| end.revents != 0);
        // SAFETY: the bytes of the structure may be zero.
        let (mut wait_status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
        // SAFETY: the destinations are live; the child is ours and
        // was not waited for. The child has ended: no waiting.
        if has_ended && unsafe { libc::wait4(self.pid, &raw mut wait_status, 0, &raw mut usage) } < 0 {
            return Err(io::Error::last_os_error());
        }
        COMMAND.store(0, SeqCst);
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.unsigned_abs())
                + Duration::from_micros(time.tv_usec.unsigned_abs())
        };
        let signal = match FOR_US.load(SeqCst) {
            0 => FIRST.load(SeqCst),
            signal => signal,
        };
        Ok(Ended {
            wait_status: has_ended.then_some(wait_status),
            wall: self.started.elapsed(),
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
            interrupted: (signal != 0).then_some(signal),
        })
    }
}
