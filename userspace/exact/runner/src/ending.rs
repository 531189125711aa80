//! Signals for the end of an exact run before the report:
//! after the end of the command, or of the recording.
//!
//! A thread waits for the signals, because the run's folder
//! must be removed, which is forbidden in a handler.

use std::{
    fs,
    io::{self, Read as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI32, Ordering::SeqCst},
    },
};

use locality_kernel::{ending::command_that_prints, writing::say};

/// Descriptor for a handler's message to the thread; -1: not yet open.
static TELL: AtomicI32 = AtomicI32::new(-1);
static PROFILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Starts the thread to remove `folder` before ending the process.
///
/// # Errors
/// The system has no pipe or thread for us.
pub fn watch(folder: &Path) -> io::Result<()> {
    let (mut told, tell) = io::pipe()?;
    let folder = folder.to_owned();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut signal = [0];
        if told.read_exact(&mut signal).is_ok() {
            end(&folder, signal[0].into());
        }
    })?;
    // Open for the life of the process, as a handler may run at every moment.
    TELL.store(std::mem::ManuallyDrop::new(OwnedFd::from(tell)).as_raw_fd(), SeqCst);
    Ok(())
}

/// A signal came. Allowed in a handler.
pub fn arrived(signal: i32) {
    let byte = [signal as u8];
    // SAFETY: one live byte; a descriptor of ours, or -1, refused by the kernel.
    unsafe { libc::write(TELL.load(SeqCst), byte.as_ptr().cast(), 1) };
}

/// The report is stored.
pub fn stored(profile: &Path) {
    *PROFILE.lock().unwrap_or_else(PoisonError::into_inner) = Some(profile.to_owned());
}

fn end(folder: &Path, signal: i32) -> ! {
    let _ = fs::remove_dir_all(folder);
    let profile = PROFILE.lock().unwrap_or_else(PoisonError::into_inner).take();
    match profile {
        Some(profile) => say(&format!(
            "ended without a report; the profile is complete: `{}` prints it",
            command_that_prints(&profile)
        )),
        None => say("ended before the counts were collected; there is no report"),
    }
    // SAFETY: system calls with plain arguments; no handler is installed.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
        // The signal is another thread's, or blocked.
        libc::usleep(100_000);
        libc::_exit(128 + signal)
    }
}
