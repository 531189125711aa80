//! `execve` under the plugin: the new program is started under QEMU with the plugin again.
//!
//! QEMU 7.2 would run it natively, unseen. Just before it does, we call `execve` ourselves, of QEMU
//! with the new program as its argument. When that cannot be done we return, QEMU makes its own
//! attempt, and the program gets the answer that it would have got: either an error, or a new
//! program that runs natively and is counted as not recorded. The same happens where the run's
//! files cannot be reached, for QEMU would not start: after a change of user or of the root folder,
//! and after the parent's end.

use std::{
    ffi::{CString, c_int, c_uint},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
    sync::atomic::Ordering::{Relaxed, Release},
};

use crate::{
    guest, ignored, mask,
    process::Process,
    program::{Program, Refusal},
    recorder,
    region::{load_text, state, store_text},
    settings::{Mode, Settings},
};

/// Replaces the program as the system call asks; returns when that is not possible.
pub fn replace(process: &Process, vcpu: c_uint, folder: i32, path: u64, lists: [u64; 2], flags: i32) {
    let Some(path) = guest::string(process, path) else { return };
    let (Some(arguments), Some(environment)) =
        (guest::strings(process, lists[0]), guest::strings(process, lists[1]))
    else {
        return;
    };
    let Some(file) = absolute(process, folder, path, flags) else { return };
    let program = match Program::resolve(&file, arguments) {
        Ok(program) => program,
        Err(why) => {
            note_refusal(process, &file, &why);
            return;
        }
    };
    if !reaches_files(process.settings()) {
        note(process, &file, "the run's files cannot be reached from its process");
        return;
    }
    if process.settings().mode != Mode::Empty {
        recorder::rest(vcpu);
    }
    let header = process.region().header();
    header.state.store(state::EXECUTED, Release);
    let (arguments, environment) = process.settings().command(&program, environment);
    let (arguments, environment) = (pointers(&arguments), pointers(&environment));
    if let Some(qemu) = arguments.first() {
        let ignored = ignored::hand_over();
        let before = mask::hand_over();
        // SAFETY: strings and lists end in 0 and live through the call.
        unsafe { libc::execve(*qemu, arguments.as_ptr(), environment.as_ptr()) };
        mask::put_back(before);
        ignored::put_back(&ignored);
    }
    header.state.store(state::RUNNING, Release);
}

/// An existing file that QEMU cannot run: it will run natively.
fn note_refusal(process: &Process, file: &CString, why: &Refusal) {
    let runs_natively = match why {
        Refusal::Foreign(..) | Refusal::Privileged => true,
        Refusal::Interpreter(_, why) => matches!(**why, Refusal::Foreign(..) | Refusal::Privileged),
        Refusal::Unreadable(_) | Refusal::NotExecutable | Refusal::UnknownFormat => false,
    };
    if runs_natively {
        note(process, file, &why.to_string());
    }
}

fn note(process: &Process, file: &CString, why: &str) {
    let header = process.region().header();
    let text = format!("{} ran without recording: {why}", file.to_string_lossy());
    if header.stopped.load(Relaxed) == 0 {
        store_text(&header.reason, text.as_bytes());
    }
    header.children_lost.fetch_add(1, Relaxed);
}

/// Whether a new QEMU could load the plugin and make its file in the run's folder. Capabilities that
/// a thread retained after a change of user end with `execve`, so the folder must be that user's.
fn reaches_files(settings: &Settings) -> bool {
    // SAFETY: the call has no arguments.
    let user = unsafe { libc::geteuid() };
    let is_owner = std::fs::metadata(&settings.folder).is_ok_and(|about| about.uid() == user);
    let may = |path: &Path, how: c_int| {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
        // SAFETY: the path ends in 0.
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), how, libc::AT_EACCESS) == 0 }
    };
    (user == 0 || is_owner)
        && may(&settings.plugin, libc::R_OK)
        && may(&settings.folder, libc::W_OK | libc::X_OK)
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// The path of the file that is meant.
fn absolute(process: &Process, folder: i32, path: CString, flags: i32) -> Option<CString> {
    let bytes = path.as_bytes();
    if bytes.is_empty() {
        let by_descriptor = flags & libc::AT_EMPTY_PATH != 0;
        return by_descriptor.then(|| CString::new(format!("/proc/self/fd/{folder}")).ok()).flatten();
    }
    // SAFETY: the call has no arguments.
    let itself = format!("/proc/{}/exe", unsafe { libc::getpid() });
    if bytes == b"/proc/self/exe" || bytes == itself.as_bytes() {
        // Of QEMU, which is not meant.
        return CString::new(load_text(&process.region().header().program))
            .ok()
            .filter(|path| !path.is_empty());
    }
    if bytes.first() == Some(&b'/') || folder == libc::AT_FDCWD {
        return Some(path);
    }
    CString::new([format!("/proc/self/fd/{folder}/").as_bytes(), bytes].concat()).ok()
}
