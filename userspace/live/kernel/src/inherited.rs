//! State inherited by the tool, read before changes by the tool, for the launched command.
//!
//! Rust's runtime ignores `SIGPIPE` and opens closed standard descriptors, the tracer blocks
//! `SIGCHLD` and raises resource limits. [`GIVEN`] is therefore filled by the dynamic loader, ahead
//! of `main`. [`hand_over`] restores the state in a forked child. `fork` carries over the remaining
//! state preserved by `execve`: folder, umask, priorities, processors, further descriptors.
//!
//! Limits: the command's parent is the tool, and the command does not lead a process group. CPU
//! time, zombies and page faults that a process brings along over `execve` stay with the tool.

use std::{
    env,
    ffi::{CStr, CString, OsStr, c_int, c_ulong},
    os::unix::ffi::OsStrExt as _,
    path::Path,
    ptr,
    sync::OnceLock,
};

/// Signals of Linux, 1 to 64; signal `n` is bit `n - 1` of a set.
const SIGNALS: c_int = 64;
/// Bytes of the kernel's signal sets; the C library's sets hide two signals.
const SET_BYTES: usize = 8;
/// Resource limits of Linux, `RLIMIT_CPU` to `RLIMIT_RTTIME`.
const LIMITS: usize = 16;
/// Interval timers, preserved by `execve` but not by `fork`.
const TIMERS: [c_int; 3] =
    [libc::ITIMER_REAL as c_int, libc::ITIMER_VIRTUAL as c_int, libc::ITIMER_PROF as c_int];
/// Signals for the tool, whether or not blocked for the command.
const OURS: [c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP, libc::SIGCHLD];

/// The state at the start of this process.
static GIVEN: OnceLock<Inherited> = OnceLock::new();

/// Runs before `main` and Rust's runtime. Then makes this process work with any inherited state:
/// children can be waited for, and ending signals arrive, except pending ones.
#[used]
#[unsafe(link_section = ".init_array")]
static READ_EARLY: extern "C" fn() = {
    extern "C" fn read() {
        let given = given();
        let ours: u64 = OURS.into_iter().map(bit).sum();
        set_mask(Some(set_mask(None) & (!ours | given.pending)));
        // SAFETY: no handler is installed, only the default. A process
        // that ignores SIGCHLD does not learn how children end.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    read
};

/// The state at the start of this process.
pub fn given() -> &'static Inherited {
    GIVEN.get_or_init(Inherited::read)
}

/// State preserved by `execve`, but changed by the tool or `fork`.
#[derive(Debug, Clone, Copy)]
pub struct Inherited {
    /// Ignored signals.
    ignored: u64,
    /// Blocked signals.
    blocked: u64,
    /// Pending signals, blocked until unblocked.
    pending: u64,
    /// Closed standard descriptors.
    closed: [bool; 3],
    /// Soft and hard limits by `RLIMIT_…`; `None` for a limit unknown to the kernel.
    limits: [Option<libc::rlimit>; LIMITS],
    /// `ITIMER_…` at the start, as set by `perl -e 'alarm 5; exec …'`.
    timers: [libc::itimerval; TIMERS.len()],
    /// The signal at the parent's death (`PR_SET_PDEATHSIG`); 0: none.
    death_signal: c_int,
    /// Whether orphaned descendants become children of this process.
    subreaper: c_int,
}

impl Inherited {
    fn read() -> Self {
        // SAFETY: an interval timer of zeros does not run.
        let mut timers = [unsafe { std::mem::zeroed::<libc::itimerval>() }; TIMERS.len()];
        for (which, timer) in TIMERS.iter().zip(&mut timers) {
            // SAFETY: the destination is live; the call fails for no known timer.
            unsafe { libc::syscall(libc::SYS_getitimer, *which, ptr::from_mut(timer)) };
        }
        let (mut death_signal, mut subreaper) = (0, 0);
        // SAFETY: the destinations are live.
        unsafe {
            libc::prctl(libc::PR_GET_PDEATHSIG, ptr::from_mut(&mut death_signal));
            libc::prctl(libc::PR_GET_CHILD_SUBREAPER, ptr::from_mut(&mut subreaper));
        }
        Self {
            ignored: (1..=SIGNALS).filter(|signal| is_ignored(*signal)).map(bit).sum(),
            blocked: set_mask(None),
            pending: pending(),
            // SAFETY: a system call without pointers.
            closed: [0, 1, 2].map(|descriptor| unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0),
            limits: std::array::from_fn(|resource| limit(resource as u32)),
            timers,
            death_signal,
            subreaper,
        }
    }

    /// Whether a standard descriptor (0, 1 or 2) was closed.
    pub fn is_closed(&self, descriptor: c_int) -> bool {
        usize::try_from(descriptor).ok().and_then(|at| self.closed.get(at)).copied().unwrap_or(false)
    }

    /// The soft and the hard limit of a resource (`RLIMIT_…`).
    pub fn limit(&self, resource: u32) -> Option<(u64, u64)> {
        let limit = (*self.limits.get(resource as usize)?)?;
        Some((limit.rlim_cur, limit.rlim_max))
    }
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Whether a signal is ignored, including the C library's two hidden signals.
fn is_ignored(signal: c_int) -> bool {
    // The kernel's `struct sigaction` begins with the handler, and has 32 bytes.
    let mut action = [0usize; 4];
    let none = ptr::null::<usize>();
    // SAFETY: the destination is live and as large as the kernel's structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            c_ulong::from(signal.unsigned_abs()),
            none,
            action.as_mut_ptr(),
            SET_BYTES,
        )
    };
    done == 0 && action[0] == libc::SIG_IGN
}

/// The thread's blocked signals; replaced by a given set.
fn set_mask(mask: Option<u64>) -> u64 {
    let mut before = 0u64;
    let new = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the sets are live and have the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, &raw mut before, SET_BYTES) };
    before
}

fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: the destination is live and has the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set, SET_BYTES) };
    set
}

fn limit(resource: u32) -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the destination is live.
    (unsafe { libc::getrlimit(resource, &mut limit) } == 0).then_some(limit)
}

/// Stops the inherited timers before the launch of a command: the timers
/// belong to the command, and are restarted there by [`hand_over`].
pub fn stop_timers() {
    let given = given();
    for (which, timer) in TIMERS.iter().zip(&given.timers) {
        if is_running(timer) {
            // SAFETY: a timer of zeros is live for the call.
            unsafe {
                let off = std::mem::zeroed::<libc::itimerval>();
                libc::syscall(libc::SYS_setitimer, *which, &raw const off, ptr::null::<libc::itimerval>());
            }
        }
    }
}

fn is_running(timer: &libc::itimerval) -> bool {
    timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0
}

/// Restores the inherited state in a forked child about to become the command.
///
/// Allocates nothing, and makes only calls allowed after `fork`.
pub fn hand_over() {
    let given = given();
    // SAFETY: system calls with pointers live for each. No call can harm
    // a following call; after a refusal the command has the tool's state.
    unsafe {
        for (resource, wanted) in (0u32..).zip(&given.limits) {
            if let (Some(wanted), Some(now)) = (wanted, limit(resource))
                && (wanted.rlim_cur, wanted.rlim_max) != (now.rlim_cur, now.rlim_max)
            {
                libc::setrlimit(resource, wanted);
            }
        }
        for signal in 1..=SIGNALS {
            // Handlers of ours would swallow signals ahead of `execve`.
            let ignored = given.ignored & bit(signal) != 0;
            libc::signal(signal, if ignored { libc::SIG_IGN } else { libc::SIG_DFL });
        }
        for (descriptor, _) in (0..).zip(given.closed).filter(|(_, closed)| *closed) {
            libc::close(descriptor);
        }
        if given.death_signal != 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, given.death_signal);
        }
        if given.subreaper != 0 {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, given.subreaper);
        }
        set_mask(Some(given.blocked));
        for signal in (1..=SIGNALS).filter(|signal| given.pending & bit(*signal) != 0) {
            libc::kill(libc::getpid(), signal);
        }
        for (which, timer) in TIMERS.iter().zip(&given.timers).filter(|(_, timer)| is_running(timer)) {
            libc::syscall(libc::SYS_setitimer, *which, ptr::from_ref(timer), ptr::null::<libc::itimerval>());
        }
    }
}

/// The environment of a command: the inherited environment, in order. Shells put the
/// started file into `_`; if `_` names our program, the command's file is put there.
pub fn environment(file: &Path) -> Vec<CString> {
    let itself = env::current_exe().ok();
    let names_us =
        |value: &[u8]| itself.is_some() && Path::new(OsStr::from_bytes(value)).canonicalize().ok() == itself;
    let mut words = own_words();
    for word in &mut words {
        if word.as_bytes().strip_prefix(b"_=").is_some_and(names_us)
            && let Ok(named) = CString::new([b"_=", file.as_os_str().as_bytes()].concat())
        {
            *word = named;
        }
    }
    words
}

/// All words of our environment; the standard library leaves out words without a name.
fn own_words() -> Vec<CString> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut words = Vec::new();
    // SAFETY: the list ends in a null pointer, each word
    // in 0, and no code of ours changes the environment.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            words.push(CStr::from_ptr(*next).to_owned());
            next = next.add(1);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_ahead_of_main() {
        // Rust's runtime ignores it in `main`, in tests too.
        assert!(is_ignored(libc::SIGPIPE));
        assert_eq!(given().ignored & bit(libc::SIGPIPE), 0, "{:?}", given());
        let files = limit(libc::RLIMIT_NOFILE).unwrap();
        assert_eq!(given().limit(libc::RLIMIT_NOFILE), Some((files.rlim_cur, files.rlim_max)));
        assert_eq!(given().limit(1000), None);
    }

    #[test]
    fn only_what_names_us_is_replaced() {
        let words = environment(Path::new("/bin/true"));
        assert_eq!(words.len(), env::vars_os().count());
        assert!(words.iter().all(|word| word.as_bytes().contains(&b'=')));
        let path = OsStr::from_bytes(words.iter().find_map(|w| w.as_bytes().strip_prefix(b"PATH=")).unwrap());
        assert_eq!(Some(path), env::var_os("PATH").as_deref());
    }
}
