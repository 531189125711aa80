//! Programs that a recorded process starts: each that may be recorded gets our variables again, on
//! its way through the C library's functions (`execve` and its like, `posix_spawn`).
//!
//! A program is looked at before, as the tracer does with the one that it launches: what is
//! set-uid, static, of another C library, built with a sanitizer or a translator starts as it would
//! alone. The exec is the only place where the recorder makes system calls (`open`, `fstat`,
//! `fgetxattr`, `pread64`, `close`), and none in a process that has set a seccomp filter through
//! the C library. Not recorded are programs started by system calls of the program's own, by
//! `system` and `popen`, and those with more than [`VARIABLES_MAX`] variables.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::exec::{LIBRARY, PATH_BYTES, RING};
use crate::layout::{FILLER, VARIABLE};
use crate::sys;

/// More variables than this, the recorder's included, are not handled.
pub const VARIABLES_MAX: usize = 512;
/// Bytes for an `LD_PRELOAD` of the program's own with ours after it.
const PRELOAD_BYTES: usize = 1024;
/// Interpreters of interpreters are followed so far.
const SCRIPTS_MAX: usize = 4;
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LINKER: &[u8] = b"/ld-linux-x86-64.so.2";
/// What libraries of sanitizers begin with.
const SANITIZERS: [&[u8]; 6] =
    [b"libasan", b"libhwasan", b"liblsan", b"libtsan", b"libmsan", b"libclang_rt."];
/// What translators' names begin with.
const TRANSLATORS: [&[u8]; 6] = [b"valgrind", b"qemu-", b"wine", b"box64", b"drrun", b"pin-"];

/// A seccomp filter is active, which may forbid these calls.
pub static CONFINED: AtomicBool = AtomicBool::new(false);

/// Room for a started program's environment, on the caller's stack.
pub struct Room {
    variables: [MaybeUninit<*const u8>; VARIABLES_MAX],
    preload: [u8; PRELOAD_BYTES],
    ours: [u8; 2 * PATH_BYTES + 32],
}

/// Appends bytes at a place; `None` without room.
fn put(to: &mut [u8], at: &mut usize, bytes: impl Iterator<Item = u8>) -> Option<()> {
    for byte in bytes {
        *to.get_mut(*at)? = byte;
        *at += 1;
    }
    Some(())
}

impl Default for Room {
    #[inline(always)]
    fn default() -> Self {
        Self {
            variables: [const { MaybeUninit::uninit() }; VARIABLES_MAX],
            preload: [0; PRELOAD_BYTES],
            ours: [0; 2 * PATH_BYTES + 32],
        }
    }
}

impl Room {
    /// An environment with our variables after its own; `None` without room.
    ///
    /// # Safety
    /// An array of strings that ends with a null pointer.
    pub unsafe fn fill(&mut self, environment: *const *const u8) -> Option<*const *const u8> {
        let (mut count, mut end, mut had) = (0, 0, false);
        // SAFETY: the caller's promise.
        while let Some(variable) = unsafe { (*environment.add(count)).as_ref() } {
            let mut variable = core::ptr::from_ref(variable);
            // SAFETY: a string of the environment.
            let bytes = unsafe { CStr::from_ptr(variable.cast()) }.to_bytes();
            if bytes.starts_with(PRELOAD) && !had {
                had = true;
                put(&mut self.preload, &mut end, bytes.iter().copied())?;
                put(&mut self.preload, &mut end, b":".iter().copied())?;
                put(&mut self.preload, &mut end, LIBRARY.bytes().chain([0]))?;
                variable = self.preload.as_ptr();
            }
            self.variables.get_mut(count)?.write(variable);
            count += 1;
        }
        if !had {
            put(&mut self.preload, &mut end, PRELOAD.iter().copied().chain(LIBRARY.bytes()).chain([0]))?;
            self.variables.get_mut(count)?.write(self.preload.as_ptr());
            count += 1;
        }
        end = 0;
        put(&mut self.ours, &mut end, VARIABLE.bytes().chain(RING.bytes()).chain([b':']))?;
        put(&mut self.ours, &mut end, LIBRARY.bytes().chain([0]))?;
        self.variables.get_mut(count)?.write(self.ours.as_ptr());
        count += 1;
        if had {
            let filler = end;
            put(&mut self.ours, &mut end, FILLER.bytes().chain([0]))?;
            self.variables.get_mut(count)?.write(self.ours.as_ptr().wrapping_add(filler));
            count += 1;
        }
        self.variables.get_mut(count)?.write(core::ptr::null());
        Some(self.variables.as_ptr().cast())
    }
}

/// Whether a program, named by a path, is to be recorded.
///
/// # Safety
/// A string that ends with a zero byte.
pub unsafe fn may(path: *const u8) -> bool {
    if path.is_null() || CONFINED.load(Ordering::Relaxed) || RING.bytes().next().is_none() {
        return false;
    }
    let mut script;
    let mut path = path;
    for _ in 0..SCRIPTS_MAX {
        // SAFETY: the caller's promise; later, of our own buffer.
        let name = unsafe { CStr::from_ptr(path.cast()) }.to_bytes();
        let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
        if name == b"rr"
            || name == b"pin"
            || TRANSLATORS.iter().any(|translator| name.starts_with(translator))
        {
            return false;
        }
        let mut interpreter = [0u8; 256];
        match look(path, &mut interpreter) {
            Kind::Eligible => return is_readable(LIBRARY.as_ptr()),
            Kind::Not => return false,
            Kind::Script => script = interpreter,
        }
        path = script.as_ptr();
    }
    false
}

/// What a file is.
enum Kind {
    Eligible,
    Not,
    /// Of an interpreter.
    Script,
}

fn open(path: *const u8) -> i64 {
    // SAFETY: the path ends with a zero byte.
    unsafe { sys::call(sys::OPEN, [path as u64, sys::O_CLOEXEC | sys::O_NONBLOCK, 0, 0, 0, 0]) }
}

fn is_readable(path: *const u8) -> bool {
    let fd = open(path);
    if fd >= 0 {
        sys::close(fd);
    }
    fd >= 0
}

fn look(path: *const u8, interpreter: &mut [u8; 256]) -> Kind {
    let fd = open(path);
    if fd < 0 {
        return Kind::Not;
    }
    let kind = of_file(fd, interpreter).unwrap_or(Kind::Not);
    sys::close(fd);
    kind
}

/// A number of so many bytes in a file's bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let of = bytes.get(at..at.checked_add(size)?)?;
    Some(of.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

fn of_file(fd: i64, interpreter: &mut [u8; 256]) -> Option<Kind> {
    let mut status = [0u8; 256];
    // SAFETY: a `struct stat` has 144 bytes.
    if unsafe { sys::call(sys::FSTAT, [fd as u64, status.as_mut_ptr() as u64, 0, 0, 0, 0]) } < 0 {
        return None;
    }
    let mode = number(&status, 24, 4)?;
    if mode & 0o170_000 != 0o100_000 || mode & 0o6000 != 0 {
        return None;
    }
    // SAFETY: the name ends with a zero byte; no buffer is given.
    let capabilities =
        unsafe { sys::call(sys::FGETXATTR, [fd as u64, c"security.capability".as_ptr() as u64, 0, 0, 0, 0]) };
    if capabilities > 0 {
        return None;
    }
    let mut start = [0u8; 1024];
    let n = sys::read_at(fd, &mut start, 0);
    let start = start.get(..n)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
        let word = line.split(|byte| byte.is_ascii_whitespace()).next()?;
        if word.is_empty() || word.len() + 1 > interpreter.len() {
            return None;
        }
        let mut at = 0;
        put(interpreter, &mut at, word.iter().copied().chain([0]))?;
        return Some(Kind::Script);
    }
    of_elf(fd, start).map(|()| Kind::Eligible)
}

/// `Some` for a program that may be recorded.
fn of_elf(fd: i64, start: &[u8]) -> Option<()> {
    const PT_LOAD: u64 = 1;
    const PT_DYNAMIC: u64 = 2;
    const PT_INTERP: u64 = 3;
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    // A 64-bit file of x86-64.
    if !start.starts_with(b"\x7fELF\x02\x01") || number(start, 18, 2)? != 62 {
        return None;
    }
    let (headers, size, count) = (number(start, 32, 8)?, number(start, 54, 2)?, number(start, 56, 2)?);
    let header = |at: u64| {
        let from = headers.checked_add(at.checked_mul(size)?)?;
        start.get(usize::try_from(from).ok()?..)?.get(..56)
    };
    let mut linked = false;
    let mut dynamic = None;
    for at in 0..count {
        let header = header(at)?;
        let (offset, bytes) = (number(header, 8, 8)?, number(header, 32, 8)?);
        match number(header, 0, 4)? {
            PT_INTERP => {
                let mut path = [0u8; 128];
                let n = sys::read_at(fd, path.get_mut(..usize::try_from(bytes).ok()?.min(128))?, offset);
                linked = path.get(..n)?.strip_suffix(b"\0")?.ends_with(LINKER);
            }
            PT_DYNAMIC => dynamic = Some((offset, bytes)),
            _ => {}
        }
    }
    let (offset, bytes) = dynamic.filter(|_| linked)?;
    let mut entries = [0u8; 2048];
    let n = sys::read_at(fd, &mut entries, offset);
    // A value that does not fit is unknown.
    let entries = entries.get(..n.min(usize::try_from(bytes).ok()?))?;
    let pairs = || {
        entries.chunks_exact(16).map_while(|entry| match (number(entry, 0, 8), number(entry, 8, 8)) {
            (Some(0), _) | (None, _) | (_, None) => None,
            (Some(tag), Some(value)) => Some((tag, value)),
        })
    };
    let strings = pairs().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let strings = (0..count).find_map(|at| {
        let header = header(at)?;
        let (offset, address, bytes) =
            (number(header, 8, 8)?, number(header, 16, 8)?, number(header, 32, 8)?);
        let within = strings.checked_sub(address)?;
        (number(header, 0, 4)? == PT_LOAD && within < bytes).then_some(offset + within)
    })?;
    for (_, value) in pairs().filter(|(tag, _)| *tag == DT_NEEDED) {
        let mut name = [0u8; 16];
        let n = sys::read_at(fd, &mut name, strings.checked_add(value)?);
        let name = name.get(..n)?;
        if SANITIZERS.iter().any(|sanitizer| name.starts_with(sanitizer)) {
            return None;
        }
    }
    Some(())
}

/// Has `then` see each path at which a program of this name may lie, until it says true; as `execvp` looks.
///
/// # Safety
/// `file` and `path` are strings; `path` may be null.
pub unsafe fn search(file: *const u8, path: *const u8) -> bool {
    if file.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(file.cast()) }.to_bytes();
    if name.contains(&b'/') {
        // SAFETY: as above.
        return unsafe { may(file) };
    }
    let folders = if path.is_null() {
        b"/bin:/usr/bin".as_slice()
    } else {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(path.cast()) }.to_bytes()
    };
    for folder in folders.split(|byte| *byte == b':') {
        let mut whole = [0u8; 512];
        let mut at = 0;
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        let parts = folder.iter().chain(slash).chain(name).copied().chain([0]);
        if put(&mut whole, &mut at, parts).is_none() {
            return false;
        }
        if is_readable(whole.as_ptr()) {
            // SAFETY: it ends with a zero byte.
            return unsafe { may(whole.as_ptr()) };
        }
    }
    false
}

/// The value of a variable, or null.
///
/// # Safety
/// `environment` is null, or an array of strings that ends with a null pointer; `name` ends with `=`.
pub unsafe fn value(environment: *const *const u8, name: &[u8]) -> *const u8 {
    if environment.is_null() {
        return core::ptr::null();
    }
    let mut at = 0;
    // SAFETY: the caller's promise.
    while let Some(variable) = unsafe { (*environment.add(at)).as_ref() } {
        let variable = core::ptr::from_ref(variable);
        // SAFETY: as above.
        if unsafe { CStr::from_ptr(variable.cast()) }.to_bytes().starts_with(name) {
            return variable.wrapping_add(name.len());
        }
        at += 1;
    }
    core::ptr::null()
}
