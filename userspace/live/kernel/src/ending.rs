//! Signals that end the tool at any moment, in any wait: Ctrl-C (SIGINT), SIGTERM and SIGHUP.
//!
//! The first signal ends a trace, and the report follows. A later signal ends the tool without a
//! report: at once if the profile is complete, within [`GRACE_S`] if the profile is still being
//! written. A further signal ends the tool at once. A sentence names the command that prints the
//! report. The handlers are limited to calls allowed in handlers, so a waiting system call (for a
//! reader of a pipe, for a command) is no obstacle. Commands that never call [`listen`] have the
//! default actions ([`by_default`]).
//!
//! Not here: how a trace ends (`session` of the tracer).

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, Ordering::SeqCst},
};

use super::sys;

/// Signals that end the tool.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Seconds for completing the file after the report is cancelled.
const GRACE_S: u32 = 1;

/// Effect of a signal.
mod stage {
    /// The first signal ends the trace, by a handler elsewhere.
    pub const TRACE: u8 = 0;
    /// The trace is ending.
    pub const CLOSING: u8 = 1;
    /// The report is not wanted any more; the file is being completed.
    pub const HURRY: u8 = 2;
    /// The file is complete, or does not exist.
    pub const OVER: u8 = 3;
}

static STAGE: AtomicU8 = AtomicU8::new(stage::TRACE);
/// The signal that cancelled the report.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Sentence printed by a handler that ends the tool; null: no sentence.
static SENTENCE: AtomicPtr<String> = AtomicPtr::new(std::ptr::null_mut());
/// A running launched command, also a target of a SIGTERM to us; 0: none.
static COMMAND: AtomicI32 = AtomicI32::new(0);
static IS_LISTENING: AtomicBool = AtomicBool::new(false);
/// The process that speaks at an end before the trace; not the processes that it forks.
static SPEAKER: AtomicI32 = AtomicI32::new(0);
/// Sentence of an end before the trace.
const EARLY: &[u8] = b"locality-bpf: ended before the trace began; nothing was stored\n";

/// Installs the handlers described at the head of the file, for a
/// trace with `profile`. A hang-up stays ignored under `nohup`.
///
/// # Errors
/// The kernel refuses a handler.
pub fn listen(profile: &Path) -> io::Result<()> {
    will_say(Some(format!(
        "locality-bpf: ended before the profile was complete; `{}` prints what was written until then\n",
        command_that_prints(profile)
    )));
    if IS_LISTENING.swap(true, SeqCst) {
        return Ok(());
    }
    for signal in SIGNALS {
        if signal == libc::SIGHUP && sys::is_ignored(signal) {
            continue;
        }
        // SAFETY: the action is limited to calls allowed in a handler.
        unsafe { signal_hook_registry::register(signal, move || on_signal(signal)) }?;
        unblock(signal);
    }
    // SAFETY: as above.
    unsafe { signal_hook_registry::register(libc::SIGALRM, || end(SIGNAL.load(SeqCst))) }?;
    unblock(libc::SIGALRM);
    Ok(())
}

/// Makes the signals end this process, even if ignored or blocked by the parent,
/// as shells do with Ctrl-C for jobs started with `&`. Not for a process that
/// launches a command, because commands start with the inherited state.
pub fn by_default() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: no handler is installed, only the default restored.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        unblock(signal);
    }
    if SPEAKER.swap(0, SeqCst) != 0 && !sys::is_ignored(libc::SIGHUP) {
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
    }
}

/// As [`by_default`], and the signals that end this process say that no trace began. [`by_default`] ends this
/// state. A hang-up stays ignored under `nohup`.
pub fn before_trace() {
    by_default();
    // SAFETY: a system call without arguments.
    SPEAKER.store(unsafe { libc::getpid() }, SeqCst);
    for signal in SIGNALS.into_iter().filter(|signal| !sys::is_ignored(*signal)) {
        // SAFETY: the handler is limited to calls allowed in a handler.
        unsafe { libc::signal(signal, early as *const () as libc::sighandler_t) };
    }
}

/// Ends the process by a signal that came before the trace.
extern "C" fn early(signal: i32) {
    // SAFETY: system calls with plain arguments and live bytes, allowed in a handler.
    unsafe {
        if libc::getpid() == SPEAKER.load(SeqCst) {
            libc::write(libc::STDERR_FILENO, EARLY.as_ptr().cast(), EARLY.len());
        }
        libc::signal(signal, libc::SIG_DFL);
        unblock(signal);
        libc::raise(signal);
        libc::_exit(128 + signal);
    }
}

/// Unblocks a signal, possibly blocked by the parent.
fn unblock(signal: i32) {
    // SAFETY: the set is live, and may be all zeros before the initialisation.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

fn on_signal(signal: i32) {
    let advance = |from: u8, to: u8| STAGE.compare_exchange(from, to, SeqCst, SeqCst).is_ok();
    if advance(stage::TRACE, stage::CLOSING) {
        return;
    }
    if advance(stage::CLOSING, stage::HURRY) {
        SIGNAL.store(signal, SeqCst);
        // SAFETY: a system call with plain arguments, allowed in a handler.
        unsafe { libc::alarm(GRACE_S) };
        return;
    }
    end(signal);
}

/// Prints the sentence, and ends the process by the signal. Allowed in a handler.
fn end(signal: i32) {
    // SAFETY: a published sentence is never freed; the calls are allowed in a handler.
    unsafe {
        if let Some(sentence) = SENTENCE.load(SeqCst).as_ref() {
            libc::write(libc::STDERR_FILENO, sentence.as_ptr().cast(), sentence.len());
        }
        let signal = if signal == 0 { libc::SIGTERM } else { signal };
        let command = COMMAND.load(SeqCst);
        if signal == libc::SIGTERM && command > 0 {
            libc::kill(command, signal);
        }
        libc::signal(signal, libc::SIG_DFL);
        unblock(signal);
        libc::raise(signal);
        // Only the first process of a container survives `raise`.
        libc::_exit(128 + signal);
    }
}

/// Sets the sentence printed when a signal ends the tool.
fn will_say(sentence: Option<String>) {
    let sentence = sentence.map_or(std::ptr::null_mut(), |text| Box::into_raw(Box::new(text)));
    // The former text may be in use by a handler at the
    // moment, and is not freed. A run has three texts.
    SENTENCE.store(sentence, SeqCst);
}

/// The trace has ended; the profile is being completed.
pub fn closing() {
    STAGE.fetch_max(stage::CLOSING, SeqCst);
}

/// Whether the report is cancelled, and the file must be completed soon.
pub fn is_urgent() -> bool {
    STAGE.load(SeqCst) == stage::HURRY
}

/// The profile is complete, and only the report follows.
/// Ends the process if the report is cancelled.
pub fn complete(profile: &Path) {
    will_say(Some(format!(
        "locality-bpf: ended without a report; the profile is complete: `{}` prints it\n",
        command_that_prints(profile)
    )));
    over();
}

/// Only printing or waiting remains, without a need for a sentence: a signal ends the process.
pub fn printed() {
    will_say(None);
    over();
}

fn over() {
    if STAGE.swap(stage::OVER, SeqCst) == stage::HURRY {
        end(SIGNAL.load(SeqCst));
    }
    // SAFETY: no handler is installed, only the default
    // restored: Ctrl-Z stops the writer of a report again.
    unsafe { libc::signal(libc::SIGTSTP, libc::SIG_DFL) };
}

/// A command of ours runs (0: no more), also a target of a SIGTERM to us.
pub fn means(command: i32) {
    COMMAND.store(command, SeqCst);
}

/// The command that prints the report of a profile, in the form typed in a shell.
pub fn command_that_prints(profile: &Path) -> String {
    format!("locality-bpf report {}", argument(profile))
}

/// A file as the last argument of a command in a shell.
pub fn argument(file: &Path) -> String {
    let name = file.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    match name.chars().all(is_plain) && !name.starts_with('-') && !name.is_empty() {
        true => name,
        false => format!("-- '{}'", name.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child says at its end by `signal`, after `begin` and with `fork` in a child of its own, and
    /// whether the signal ended the child.
    fn said(signal: i32, begin: fn(), fork: bool) -> (String, bool) {
        let mut ends = [0; 2];
        // SAFETY: the array is live; the child uses system calls alone, without memory.
        let (status, text) = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                libc::dup2(ends[1], libc::STDERR_FILENO);
                begin();
                if fork && libc::fork() != 0 {
                    libc::wait(std::ptr::null_mut());
                    libc::_exit(0);
                }
                libc::raise(signal);
                libc::_exit(9);
            }
            libc::close(ends[1]);
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            let from = <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(ends[0]);
            (status, io::read_to_string(from).unwrap())
        };
        (text, libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal)
    }

    #[test]
    fn an_end_before_the_trace_says_so_once() {
        let sentence = String::from_utf8_lossy(EARLY).into_owned();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            assert_eq!(said(signal, before_trace, false), (sentence.clone(), true));
            assert_eq!(said(signal, before_trace, true), (String::new(), false));
            let begun = || {
                before_trace();
                by_default();
            };
            assert_eq!(said(signal, begun, false), (String::new(), true));
        }
    }

    #[test]
    fn names_are_quoted_for_a_shell() {
        let of = |name: &str| command_that_prints(Path::new(name));
        assert_eq!(of("/tmp/a.locality"), "locality-bpf report /tmp/a.locality");
        assert_eq!(of("my trace"), "locality-bpf report -- 'my trace'");
        assert_eq!(of("it's"), r"locality-bpf report -- 'it'\''s'");
        assert_eq!(of("-q"), "locality-bpf report -- '-q'");
    }
}
