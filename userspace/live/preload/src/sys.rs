//! The few system calls of the constructor, and the time stamp counter.

use core::arch::asm;

/// `open(2)`.
pub const OPEN: u64 = 2;
/// `close(2)`.
pub const CLOSE: u64 = 3;
/// `fstat(2)`.
pub const FSTAT: u64 = 5;
/// `mmap(2)`.
pub const MMAP: u64 = 9;
/// `munmap(2)`.
pub const MUNMAP: u64 = 11;
/// `pread64(2)`.
pub const PREAD: u64 = 17;
/// `madvise(2)`.
pub const MADVISE: u64 = 28;
/// `getpid(2)`.
pub const GETPID: u64 = 39;
/// `fgetxattr(2)`.
pub const FGETXATTR: u64 = 193;

/// `O_CLOEXEC`.
pub const O_CLOEXEC: u64 = 0o2_000_000;
/// `O_RDWR`.
pub const O_RDWR: u64 = 2;
/// `O_NONBLOCK`: a pipe in the place of a program does not hold us up.
pub const O_NONBLOCK: u64 = 0o4000;

/// A system call; a negative number is an error.
///
/// # Safety
/// As the call demands.
#[inline]
pub unsafe fn call(number: u64, a: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the caller answers for the call; the kernel changes rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Reads up to `to.len()` bytes of a file at an offset; how many came, 0 on errors.
pub fn read_at(fd: i64, to: &mut [u8], at: u64) -> usize {
    // SAFETY: the destination is live.
    let n = unsafe { call(PREAD, [fd as u64, to.as_mut_ptr() as u64, to.len() as u64, at, 0, 0]) };
    usize::try_from(n).unwrap_or(0)
}

/// Closes a descriptor.
pub fn close(fd: i64) {
    // SAFETY: plain arguments; the descriptor is the caller's.
    unsafe { call(CLOSE, [fd as u64, 0, 0, 0, 0, 0]) };
}

/// The time stamp counter.
#[inline(always)]
pub fn time() -> u64 {
    // SAFETY: in a process that may not read the counter, nothing is recorded (`record::leave`).
    unsafe { core::arch::x86_64::_rdtsc() }
}
