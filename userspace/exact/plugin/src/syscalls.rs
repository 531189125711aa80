//! System calls: ends of threads, replaced programs, signals' handlers and mapped files.
//!
//! Numbers and arguments are from x86-64 Linux (`arch/x86/entry/syscalls/syscall_64.tbl`).
//! The kernel's own reads and writes in the program's memory are not seen.

use std::{
    ffi::c_uint,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering::Relaxed,
};

use locality_stream::Kind;

use crate::{
    api::Id,
    execute, guest, ignored, mask, objects,
    process::{self, Process},
    recorder,
    region::state,
    settings::Mode,
};

/// `SIG_DFL` and `SIG_IGN` are no addresses.
const LAST_SPECIAL_HANDLER: u64 = 1;

/// Before a system call.
pub unsafe extern "C" fn on_call(
    _: Id,
    vcpu: c_uint,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    a6: u64,
    _: u64,
    _: u64,
) {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let Some(process) = process::current() else { return };
        if process.settings().mode != Mode::Empty {
            before(process, vcpu, number, [a1, a2, a3]);
            objects::before(process, vcpu, number, [a1, a2, a3, a4, a5, a6]);
        }
        mask::before(process, number, [a1, a2]);
        match number {
            libc::SYS_rt_sigaction if a2 != 0 => note_handler(process, a1, a2),
            libc::SYS_execve => execute::replace(process, vcpu, libc::AT_FDCWD, a1, [a2, a3], 0),
            libc::SYS_execveat => execute::replace(process, vcpu, a1 as i32, a2, [a3, a4], a5 as i32),
            _ => {}
        }
    }));
    if done.is_err() {
        process::stop("a fault at a system call");
    }
}

fn before(process: &Process, vcpu: c_uint, number: i64, [a1, a2, a3]: [u64; 3]) {
    recorder::begin_objects(process, vcpu);
    match number {
        libc::SYS_rt_sigreturn => recorder::note(vcpu, Kind::SIGNAL_END, 0),
        _ => recorder::note(vcpu, Kind::SYSTEM_CALL, number.cast_unsigned()),
    }
    match number {
        libc::SYS_exit => recorder::end_thread(vcpu),
        libc::SYS_exit_group => {
            recorder::end_thread(vcpu);
            process.region().header().state.store(state::ENDED, Relaxed);
        }
        libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_mremap | libc::SYS_mmap => {
            // `mmap` chooses the address: all known code may be affected.
            let (start, bytes) = if number == libc::SYS_mmap && a3 & libc::PROT_EXEC as u64 != 0 {
                (0, u64::MAX)
            } else {
                (a1, a2)
            };
            process.translation().mappings.changed(start, bytes);
        }
        _ => {}
    }
    if process.settings().one_order {
        recorder::rest(vcpu);
    }
}

/// The first field of a `struct sigaction` is the handler.
fn note_handler(process: &Process, signal: u64, action: u64) {
    let mut bytes = [0; 8];
    if guest::read(process, action, &mut bytes) != bytes.len() {
        return;
    }
    let handler = u64::from_le_bytes(bytes);
    ignored::changed(signal, handler);
    if handler > LAST_SPECIAL_HANDLER && process.settings().mode != Mode::Empty {
        process.translation().handlers.insert(handler, signal as u32);
    }
}

/// After a system call. A call to replace the program has failed if execution comes here.
pub unsafe extern "C" fn on_return(_: Id, vcpu: c_uint, number: i64, result: i64) {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let Some(process) = process::current() else { return };
        mask::after(number, result);
        if matches!(number, libc::SYS_execve | libc::SYS_execveat) {
            process.region().header().state.store(state::RUNNING, Relaxed);
        }
        if objects::after(process, vcpu, number, result) {
            recorder::tell_placed(process, vcpu);
        }
    }));
    if done.is_err() {
        process::stop("a fault at a system call's end");
    }
}

/// A vCPU and the vCPU's thread have ended.
pub unsafe extern "C" fn on_vcpu_end(_: Id, vcpu: c_uint) {
    if catch_unwind(AssertUnwindSafe(|| recorder::end_thread(vcpu))).is_err() {
        process::stop("a fault at the end of a thread");
    }
}
