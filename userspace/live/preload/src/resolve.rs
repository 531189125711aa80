//! The functions that receive calls: those called in a process without the recorder.
//!
//! The next definition after ours in the dynamic linker's order of search, as `dlsym(RTLD_NEXT)`
//! has it, for each name.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::elf::LinkMap;

/// Functions that stand before others.
pub const FUNCTIONS: usize = 21;
/// Their places in the table.
pub mod place {
    #![expect(missing_docs, reason = "each is the C function of its name")]
    pub const MALLOC: usize = 0;
    pub const CALLOC: usize = 1;
    pub const REALLOC: usize = 2;
    pub const REALLOCARRAY: usize = 3;
    pub const POSIX_MEMALIGN: usize = 4;
    pub const ALIGNED_ALLOC: usize = 5;
    pub const MEMALIGN: usize = 6;
    pub const VALLOC: usize = 7;
    pub const PVALLOC: usize = 8;
    pub const MMAP: usize = 9;
    pub const MMAP64: usize = 10;
    pub const FREE: usize = 11;
    pub const MUNMAP: usize = 12;
    pub const PRCTL: usize = 13;
    pub const SYSCALL: usize = 14;
    pub const EXECVE: usize = 15;
    pub const EXECV: usize = 16;
    pub const EXECVP: usize = 17;
    pub const EXECVPE: usize = 18;
    pub const POSIX_SPAWN: usize = 19;
    pub const POSIX_SPAWNP: usize = 20;
}

/// Their names.
pub const NAMES: [&[u8]; FUNCTIONS] = [
    b"malloc",
    b"calloc",
    b"realloc",
    b"reallocarray",
    b"posix_memalign",
    b"aligned_alloc",
    b"memalign",
    b"valloc",
    b"pvalloc",
    b"mmap",
    b"mmap64",
    b"free",
    b"munmap",
    b"prctl",
    b"syscall",
    b"execve",
    b"execv",
    b"execvp",
    b"execvpe",
    b"posix_spawn",
    b"posix_spawnp",
];

/// The beginning of what the dynamic linker tells debuggers (`struct r_debug` of link.h).
#[repr(C)]
pub struct Debug {
    version: c_int,
    objects: *const LinkMap,
}

/// Objects that are looked at, at most.
const OBJECTS_MAX: usize = 4096;

/// The allocator of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocator<'a> {
    /// The C library.
    C,
    /// Another one, in the file of this name (empty: the program itself).
    Other(&'a [u8]),
    /// None found.
    Nobody,
}

/// Fills `to` and returns the allocator. `own` is the recorder's dynamic section; `missing` stands
/// for undefined functions.
///
/// # Safety
/// `debug` is the dynamic linker's, and no object is being unloaded.
pub unsafe fn resolve<'a>(
    debug: *const Debug,
    own: u64,
    to: &[AtomicU64; FUNCTIONS],
    missing: u64,
) -> Allocator<'a> {
    let mut found = [0u64; FUNCTIONS];
    let mut allocator = Allocator::Nobody;
    // After us: without us in the list, everybody is.
    let mut behind = !debug.is_null() && {
        // SAFETY: the caller's promise.
        unsafe { !is_listed((*debug).objects, own) }
    };
    // SAFETY: the caller's promise; the list ends with a null pointer.
    let mut next = if debug.is_null() { core::ptr::null() } else { unsafe { (*debug).objects } };
    for _ in 0..OBJECTS_MAX {
        if next.is_null() {
            break;
        }
        // SAFETY: as above.
        let object: &'a LinkMap = unsafe { &*next };
        next = object.next;
        if object.dynamic as u64 == own {
            behind = true;
            continue;
        }
        if allocator == Allocator::Nobody
            // SAFETY: a live entry.
            && unsafe { object.function(b"malloc").or_else(|| object.function(b"free")) }.is_some()
        {
            // SAFETY: as above.
            let name = unsafe { object.file_name() };
            let is_c = name.starts_with(b"libc.so.6") || name.starts_with(b"libc-2.");
            allocator = if is_c { Allocator::C } else { Allocator::Other(name) };
        }
        if behind {
            for (name, function) in NAMES.iter().zip(&mut found).filter(|(_, function)| **function == 0) {
                // SAFETY: as above.
                *function = unsafe { object.function(name) }.unwrap_or(0);
            }
        }
    }
    for (to, function) in to.iter().zip(found) {
        to.store(if function == 0 { missing } else { function }, Ordering::Release);
    }
    allocator
}

/// # Safety
/// The dynamic linker's list.
unsafe fn is_listed(mut next: *const LinkMap, own: u64) -> bool {
    for _ in 0..OBJECTS_MAX {
        if next.is_null() {
            return false;
        }
        // SAFETY: the caller's promise.
        let object = unsafe { &*next };
        if object.dynamic as u64 == own {
            return true;
        }
        next = object.next;
    }
    false
}
