//! The exact engine's source: a plugin of QEMU's user mode that records every access of a program.
//!
//! QEMU calls `qemu_plugin_install`. Translated code then calls `recorder`'s functions, whose
//! events the analyses of `locality-reuse` and `locality-cachesim` take from full buffers, in a
//! thread beside the one that filled them. Everything counted lies in a file that the parent maps
//! when the process is gone ([`region`]). The plugin prints nothing, writes nothing of the
//! program's, and when something fails it stops recording and says why in its file.
//!
//! Modules in the order of use: `api` QEMU's functions, [`settings`] what the parent asks for,
//! [`region`] the file, `process` what callbacks share, `translate`, `shape` and [`functions`]
//! code, `recorder` events, `worker` and `analyses` what becomes of them, `syscalls`, [`objects`],
//! `mask`, `execute`, `start` and `fork` the life of a process.
//!
//! Limits: system calls' own accesses are not seen; one image has at most [`region::LANES`] threads
//! at a time.

mod analyses;
mod api;
mod execute;
pub mod extra;
mod fork;
pub mod functions;
mod guest;
pub mod inside;
pub mod lacking;
mod mappings;
mod mask;
pub mod objects;
mod process;
pub mod program;
mod recorder;
pub mod region;
pub mod settings;
mod shape;
mod start;
mod syscalls;
mod translate;
mod turn;
mod worker;

use std::{
    ffi::{c_char, c_int, c_void},
    os::unix::ffi::OsStrExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};

use api::{Api, Id};
use settings::{Mode, Settings};

/// The version of the interface that this plugin is for; QEMU reads it after loading. Set by [`SET_VERSION`].
#[unsafe(no_mangle)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// Runs when the plugin is loaded, before QEMU looks at the version.
#[used]
#[unsafe(link_section = ".init_array")]
static SET_VERSION: extern "C" fn() = {
    extern "C" fn set() {
        qemu_plugin_version.store(api::wanted_version(), Relaxed);
    }
    set
};

/// Called by QEMU: sets everything up. Not 0, and QEMU does not start the program, when that is not possible.
///
/// # Safety
/// Only for QEMU, with a valid list of arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    _info: *const c_void,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // Nothing of ours appears on the program's stderr, a panic's message neither.
    std::panic::set_hook(Box::new(|_| {}));
    let done = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: promised by the caller.
        let words = unsafe { api::arguments(count, words) };
        install(id, &words)
    }));
    match done {
        Ok(Ok(())) => 0,
        Ok(Err(why)) => {
            // QEMU will not start the program: this is the only place to say it, and the parent shows it.
            eprintln!("locality-plugin: {why}");
            1
        }
        Err(_) => 1,
    }
}

fn install(id: Id, words: &[String]) -> Result<(), String> {
    let api = Api::find()?;
    let settings = Settings::parse(words)?;
    let mode = settings.mode;
    start::name_process(settings.program.as_os_str().as_bytes());
    mask::begin();
    let process = process::Process::install(id, api, settings)?;
    // SAFETY: QEMU's functions, with callbacks that work on every thread.
    unsafe {
        (api.register_translate)(process.id(), translate::on_translate);
        (api.register_syscall)(process.id(), syscalls::on_call);
        (api.register_syscall_return)(process.id(), syscalls::on_return);
        if mode != Mode::Empty {
            (api.register_vcpu_exit)(process.id(), syscalls::on_vcpu_end);
        }
    }
    recorder::start(process);
    if !fork::prepare() {
        return Err("the C library refuses pthread_atfork".to_owned());
    }
    start::silence_signal_line();
    Ok(())
}
