//! Before the program begins: takes our traces out of its environment, and maps the shared memory.
//!
//! The only system calls of a process that is recorded are made here; all descriptors are closed again.

use core::sync::atomic::Ordering;

use crate::layout::{FILLER, Front, MAGIC, Shared, VARIABLE, state};
use crate::resolve::Allocator;
use crate::{exec, record, stack, sys};

const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const PT_LOAD: u32 = 1;
const PT_PHDR: u32 = 6;
const MAP_SHARED: u64 = 1;
const MAP_PRIVATE_ANONYMOUS: u64 = 0x22;
const READ_WRITE: u64 = 3;
const MADV_WIPEONFORK: u64 = 18;
const PAGE: u64 = 4096;

/// A program header of ELF.
#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
    align: u64,
}

/// Whether a string begins with these bytes.
///
/// # Safety
/// It ends with a zero byte.
pub unsafe fn begins(text: *const u8, with: &[u8]) -> bool {
    // SAFETY: no byte after a zero byte is read, for it differs from `with`'s.
    with.iter().enumerate().all(|(at, byte)| unsafe { *text.add(at) } == *byte)
}

/// Sets everything up; returns the counters for all later calls, if the process is recorded.
///
/// # Safety
/// `environment` is 0 or the C library's pointer to its environment, `auxiliary` 0 or its
/// `getauxval`.
pub unsafe fn start(allocator: Allocator<'_>, environment: u64, auxiliary: u64) -> Option<*const Front> {
    let environment = environment as *mut *mut *mut u8;
    // SAFETY: the caller's promise.
    let string = unsafe { exec::take_out(environment.as_ref().copied()?) }?;
    if allocator == Allocator::Nobody {
        return None;
    }
    // SAFETY: the path ends with a zero byte; the mapping is a new one.
    let shared = unsafe {
        let fd = sys::call(sys::OPEN, [exec::RING.as_ptr() as u64, sys::O_RDWR | sys::O_CLOEXEC, 0, 0, 0, 0]);
        if fd < 0 {
            return None;
        }
        let bytes = size_of::<Shared>() as u64;
        let at = sys::call(sys::MMAP, [0, bytes, READ_WRITE, MAP_SHARED, fd as u64, 0]);
        sys::close(fd);
        if at < 0 {
            return None;
        }
        &*(at as *const Shared)
    };
    if shared.magic.load(Ordering::Relaxed) != MAGIC {
        return None;
    }
    // SAFETY: a new page, which is never given back.
    let token = unsafe {
        let at = sys::call(sys::MMAP, [0, PAGE, READ_WRITE, MAP_PRIVATE_ANONYMOUS, u64::MAX, 0]);
        if at < 0 || sys::call(sys::MADVISE, [at as u64, PAGE, MADV_WIPEONFORK, 0, 0, 0]) < 0 {
            return None;
        }
        &*(at as *const core::sync::atomic::AtomicU64)
    };
    // SAFETY: no arguments.
    let pid = unsafe { sys::call(sys::GETPID, [0; 6]) } as u32;
    let number = record::meet(shared, token, 0, pid)?;
    let process = shared.processes.get(number as usize)?;
    if let Allocator::Other(name) = allocator {
        let mut bytes = name.iter();
        for word in &process.why {
            let mut next = || bytes.next().copied().unwrap_or(0);
            let word_bytes = [next(), next(), next(), next(), next(), next(), next(), next()];
            word.store(u64::from_le_bytes(word_bytes), Ordering::Relaxed);
        }
        process.state.store(state::FOREIGN, Ordering::Release);
        return None;
    }
    stack::learn_first(string);
    // SAFETY: `getauxval`, and the headers at its addresses.
    unsafe { learn_text(auxiliary) };
    record::TOKEN.store(core::ptr::from_ref(token).cast_mut(), Ordering::Release);
    record::SHARED.store(core::ptr::from_ref(shared).cast_mut(), Ordering::Release);
    Some(&raw const shared.front)
}

/// Where the program's text lies.
///
/// # Safety
/// 0 or `getauxval`.
unsafe fn learn_text(auxiliary: u64) {
    if auxiliary == 0 {
        return;
    }
    // SAFETY: the caller's promise; the kernel's headers of the program.
    unsafe {
        let of: extern "C" fn(u64) -> u64 = core::mem::transmute(auxiliary as *const ());
        let (headers, count) = (of(AT_PHDR), of(AT_PHNUM));
        if headers == 0 {
            return;
        }
        let header = |at: u64| &*((headers + at * size_of::<Header>() as u64) as *const Header);
        let mut base = 0;
        for at in 0..count {
            if header(at).kind == PT_PHDR {
                base = headers.wrapping_sub(header(at).address);
            }
        }
        for at in 0..count {
            let header = header(at);
            if header.kind == PT_LOAD && header.flags & 1 == 1 {
                record::TEXT[0].store(base.wrapping_add(header.address), Ordering::Relaxed);
                record::TEXT[1].store(header.memory_bytes, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// What is looked for in the environment.
pub const OURS: [&[u8]; 2] = [VARIABLE.as_bytes(), FILLER.as_bytes()];
