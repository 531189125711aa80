//! Runs the command under QEMU: it owns the terminal, the arguments, the environment and its exit status.
//!
//! Ctrl-C reaches the command as it does without us; we stay to report what it did until then. SIGTERM and SIGHUP are
//! passed on; two of them in a row, or one after the command's end, end us too (`ending`). Not here: what is counted.

use std::{
    ffi::CString,
    io,
    sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst},
    time::{Duration, Instant},
};

use locality_plugin::{
    program::Program,
    settings::{Settings, environment},
};

use super::ending;

/// The command while it runs; 0 before and after.
static COMMAND: AtomicI32 = AtomicI32::new(0);
/// Whether Ctrl-C or a signal to us came.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Signals that mean the command, whoever they were sent to.
const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];

/// How the command ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// As `waitpid` tells it.
    pub wait_status: i32,
    /// How long it ran.
    pub wall: Duration,
    /// CPU time of it and of its children that it waited for.
    pub cpu: Duration,
    /// Whether Ctrl-C or a signal to us came meanwhile.
    pub interrupted: bool,
}

extern "C" fn on_signal(signal: i32) {
    INTERRUPTED.store(true, SeqCst);
    let command = COMMAND.load(SeqCst);
    // The terminal sends Ctrl-C and Ctrl-\ to the command too.
    if command > 0 && matches!(signal, libc::SIGTERM | libc::SIGHUP) {
        // SAFETY: a system call with plain arguments, allowed in a handler.
        unsafe { libc::kill(command, signal) };
    }
    ending::arrived(signal);
}

/// Starts the command.
pub fn start(settings: &Settings, program: &Program) -> io::Result<Running> {
    let (arguments, environment) = settings.command(program, environment());
    let pointers = |words: &[CString]| -> Vec<*mut libc::c_char> {
        words.iter().map(|word| word.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect()
    };
    let (arguments_list, environment_list) = (pointers(&arguments), pointers(&environment));
    for signal in SIGNALS {
        // SAFETY: the handler only does what is allowed in one. An ignored signal stays ignored, as under nohup(1).
        unsafe {
            let handler: extern "C" fn(i32) = on_signal;
            if libc::signal(signal, handler as libc::sighandler_t) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
    let mut pid = 0;
    // SAFETY: all bytes of the structures may be zero before they are initialised; lists end in null and live through
    // the call. Rust ignores SIGPIPE, which the command must not inherit.
    let refused = unsafe {
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        libc::posix_spawnattr_init(&raw mut attributes);
        let mut defaults: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut defaults);
        libc::sigaddset(&raw mut defaults, libc::SIGPIPE);
        libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const defaults);
        libc::posix_spawnattr_setflags(&raw mut attributes, libc::POSIX_SPAWN_SETSIGDEF as libc::c_short);
        let refused = libc::posix_spawn(
            &raw mut pid,
            arguments_list.first().map_or(std::ptr::null(), |word| word.cast_const()),
            std::ptr::null(),
            &raw const attributes,
            arguments_list.as_ptr(),
            environment_list.as_ptr(),
        );
        libc::posix_spawnattr_destroy(&raw mut attributes);
        refused
    };
    if refused != 0 {
        return Err(io::Error::from_raw_os_error(refused));
    }
    COMMAND.store(pid, SeqCst);
    ending::command_runs(true);
    Ok(Running { pid, started: Instant::now() })
}

/// A command that runs.
#[derive(Debug)]
pub struct Running {
    /// Its process id.
    pub pid: i32,
    started: Instant,
}

impl Running {
    /// Waits for its end.
    pub fn wait(self) -> io::Result<Ended> {
        let mut wait_status = 0;
        // SAFETY: all bytes of the structure may be zero.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: the destinations are valid; the child is ours and was not waited for.
            if unsafe { libc::wait4(self.pid, &raw mut wait_status, 0, &raw mut usage) } >= 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        COMMAND.store(0, SeqCst);
        ending::command_runs(false);
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.unsigned_abs())
                + Duration::from_micros(time.tv_usec.unsigned_abs())
        };
        Ok(Ended {
            wait_status,
            wall: self.started.elapsed(),
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
            interrupted: INTERRUPTED.load(SeqCst),
        })
    }
}
