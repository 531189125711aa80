//! The exact engine's source: a plugin of QEMU's user mode for recording every access of a program.
//!
//! QEMU calls `qemu_plugin_install`. Translated code then calls `recorder`'s functions. The
//! analyses of `locality-reuse` and `locality-cachesim` take the events from full buffers,
//! in a thread beside the recording thread. Counts lie in a file, mapped by the parent after
//! the process's end ([`region`]). The plugin prints no output and changes no data of the
//! program. After a failure the plugin stops recording and stores the reason in the file.
//!
//! Modules in the order of use: `api` QEMU's functions, [`settings`] the parent's request,
//! [`region`] the file, `process` data shared by callbacks, `translate`, `shape` and
//! [`functions`] code, `recorder` and `sampled` events, `worker` and `analyses` the analysis of events,
//! `syscalls`, [`objects`], `mask`, `ignored`, `execute`, `start` and `fork` the life of a process.
//!
//! Limits: system calls' own accesses are not seen; an
//! image has at most [`region::LANES`] threads at a time.

mod analyses;
mod api;
mod execute;
pub mod extra;
mod fork;
pub mod functions;
mod guest;
mod ignored;
pub mod inside;
pub mod lacking;
mod mappings;
mod mask;
pub mod objects;
mod process;
pub mod program;
mod recorder;
pub mod region;
mod sampled;
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

/// The interface version of the plugin; read by QEMU after loading. Set by [`SET_VERSION`].
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

/// Called by QEMU: sets everything up. On failure the
/// result is not 0, and QEMU does not start the program.
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
    // No message of ours appears on the program's stderr, not even a panic's.
    std::panic::set_hook(Box::new(|_| {}));
    let done = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: promised by the caller.
        let words = unsafe { api::arguments(count, words) };
        install(id, &words)
    }));
    match done {
        Ok(Ok(())) => 0,
        Ok(Err(why)) => {
            // QEMU will not start the program: stderr is the only
            // place for the reason, and the parent shows stderr.
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
    ignored::begin();
    let process = process::Process::install(id, api, settings)?;
    // SAFETY: QEMU's functions, with callbacks callable on every thread.
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
