//! Remedies for QEMU's changes of a program's start: the process' name, and
//! QEMU's own line on the program's stderr when a signal ends the program.
//!
//! Limits: QEMU passes no variable of the environment twice,
//! and shows different addresses and auxiliary vector.

use std::ffi::{CStr, c_char, c_int, c_void};

/// How QEMU's line about a signal begins (`dump_core_and_abort` in `linux-user/signal.c`, 7.2 to 10.0).
const SIGNAL_LINE: &[u8] = b"qemu: uncaught target signal";

/// Names the process after the program, as `execve` does without QEMU.
pub fn name_process(file: &[u8]) {
    let name = file.rsplit(|byte| *byte == b'/').next().unwrap_or(file);
    // The kernel takes the first 15 bytes; the rest of the array stays zero.
    let mut text = [0u8; 16];
    for (to, from) in text.iter_mut().take(15).zip(name) {
        *to = *from;
    }
    // SAFETY: the call reads up to 16 bytes of `text`.
    unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
}

unsafe extern "C" {
    /// The C library's stream for QEMU's messages.
    #[link_name = "stderr"]
    static mut STDERR: *mut libc::FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut libc::FILE;
}

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

/// Has QEMU's messages pass through [`write`], which leaves
/// the line of the signal out. The stream takes no descriptor.
pub fn silence_signal_line() {
    let functions = Functions { read: None, write: Some(write), seek: None, close: None };
    let mode: &CStr = c"w";
    // SAFETY: the plugin is being installed: QEMU has one thread, which is
    // not writing now. A stream of the C library takes the place of a stream.
    unsafe {
        let stream = fopencookie(std::ptr::null_mut(), mode.as_ptr(), functions);
        if !stream.is_null() {
            libc::setvbuf(stream, std::ptr::null_mut(), libc::_IOLBF, 0);
            STDERR = stream;
        }
    }
}

unsafe extern "C" fn write(_: *mut c_void, text: *const c_char, bytes: usize) -> isize {
    // SAFETY: the C library passes `bytes` live bytes.
    let line = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), bytes) };
    if line.starts_with(SIGNAL_LINE) {
        return bytes.cast_signed();
    }
    // SAFETY: as above. As usual for stderr, an error cannot be reported.
    unsafe { libc::write(libc::STDERR_FILENO, text.cast(), bytes) };
    bytes.cast_signed()
}
