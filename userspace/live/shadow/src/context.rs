//! The registers that stubs load and store, in memory below 2 GB so that a stub names them without
//! a register, and the memory that holds the stubs. Not here: what a stub does ([`crate::stub`])
//! and how it is entered ([`crate::enter`]).

use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;

use crate::memory::PAGE;

/// Status flags: CF, PF, AF, ZF, SF, OF.
pub(crate) const STATUS: u64 = 0x8d5;
/// What `pushfq` in a stub shows besides, and `popfq` wants.
pub(crate) const ALWAYS: u64 = 0x202;
/// Exceptions masked, round to nearest: the state in which compiled code runs.
pub(crate) const HOST_MXCSR: u32 = 0x1f80;
/// Bytes for operands that cross a page or are masked; the largest is a saved state of 512.
pub(crate) const BOUNCE: usize = 1024;
/// Number of the register that is always 0.
pub(crate) const ZERO: u8 = 16;
/// Number of the stack pointer.
pub(crate) const RSP: usize = 4;

/// The state of the thread while a window runs.
#[repr(C, align(64))]
pub(crate) struct Context {
    /// General registers by number; [`ZERO`] stays 0.
    pub(crate) gpr: [u64; 32],
    /// 32 vector registers of 64 bytes.
    pub(crate) vectors: [[u8; 64]; 32],
    /// x87 and MMX state, as `fxsave64` writes it; its MXCSR is the host's.
    pub(crate) fx: [u8; 512],
    pub(crate) bounce: [u8; BOUNCE],
    /// Mask registers.
    pub(crate) masks: [u64; 8],
    /// Status flags; other bits are ignored.
    pub(crate) flags: u64,
    /// Continuation of a faulting stub, and its stack pointer.
    pub(crate) resume: u64,
    pub(crate) stack: u64,
    /// Signal of the fault, 0 for none.
    pub(crate) fault: u64,
    /// The thread's MXCSR.
    pub(crate) mxcsr: u32,
    pub(crate) host_mxcsr: u32,
    pub(crate) fs_base: u64,
    pub(crate) gs_base: u64,
    /// Flags other than the status flags.
    pub(crate) other_flags: u64,
    /// First byte of the stubs and the one after the last.
    pub(crate) code: u64,
    pub(crate) code_end: u64,
}

impl Context {
    /// A general register by its number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u8) -> u64 {
        self.gpr[usize::from(number & 31)]
    }

    /// Sets a general register by its number.
    #[inline(always)]
    pub(crate) fn set(&mut self, number: u8, value: u64) {
        self.gpr[usize::from(number & 31)] = value;
    }

    /// Sets the low `size` bytes of a general register as an instruction does: 4 bytes clear the upper half.
    #[inline(always)]
    pub(crate) fn set_part(&mut self, number: u8, size: u8, value: u64) {
        let old = self.get(number);
        let new = match size {
            1 => old & !0xff | value & 0xff,
            2 => old & !0xffff | value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        };
        self.set(number, new);
    }

    /// All flags in the form of `pushfq`.
    pub(crate) fn rflags(&self) -> u64 {
        self.flags & STATUS | self.other_flags & !STATUS | ALWAYS
    }

    /// The 16 registers of the architecture.
    pub(crate) fn general(&self) -> [u64; 16] {
        std::array::from_fn(|n| self.gpr[n])
    }
}

/// Addresses of the fields as stubs name them.
pub(crate) struct Places {
    base: u32,
}

impl Places {
    pub(crate) fn gpr(&self, number: usize) -> u32 {
        self.base + (offset_of!(Context, gpr) + number * 8) as u32
    }
    pub(crate) fn vector(&self, number: usize) -> u32 {
        self.base + (offset_of!(Context, vectors) + number * 64) as u32
    }
    pub(crate) fn mask(&self, number: usize) -> u32 {
        self.base + (offset_of!(Context, masks) + number * 8) as u32
    }
    pub(crate) fn fx(&self) -> u32 {
        self.base + offset_of!(Context, fx) as u32
    }
    pub(crate) fn flags(&self) -> u32 {
        self.base + offset_of!(Context, flags) as u32
    }
    pub(crate) fn mxcsr(&self) -> u32 {
        self.base + offset_of!(Context, mxcsr) as u32
    }
    pub(crate) fn host_mxcsr(&self) -> u32 {
        self.base + offset_of!(Context, host_mxcsr) as u32
    }
}

/// Bytes for the context: whole pages.
const CONTEXT_BYTES: usize = size_of::<Context>().next_multiple_of(PAGE as usize);
/// Bytes for stubs.
const CODE_BYTES: usize = 8 << 20;

/// The mapping below 2 GB: the context, then the stubs.
pub(crate) struct Low {
    start: NonNull<u8>,
    used: usize,
}

// SAFETY: owned memory without other references; the signal handler reads it only while its stub
// runs.
unsafe impl Send for Low {}

impl Low {
    /// Maps it.
    pub(crate) fn new() -> io::Result<Low> {
        // SAFETY: a fresh anonymous mapping, which touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                CONTEXT_BYTES + CODE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(io::Error::other("mapped at address 0"));
        };
        let mut low = Low { start, used: 0 };
        let code = start.as_ptr() as u64 + CONTEXT_BYTES as u64;
        let context = low.context();
        context.code = code;
        context.code_end = code + CODE_BYTES as u64;
        context.host_mxcsr = HOST_MXCSR;
        Ok(low)
    }

    /// The context.
    pub(crate) fn context(&mut self) -> &mut Context {
        // SAFETY: the mapping begins with room for it, page aligned, and all bytes are valid values
        // of its fields.
        unsafe { self.start.cast::<Context>().as_mut() }
    }

    /// Where the context's fields are.
    pub(crate) fn places(&self) -> Places {
        // MAP_32BIT: below 2 GB.
        Places { base: self.start.as_ptr() as u32 }
    }

    /// Appends a stub; its address, or `None` when there is no room.
    pub(crate) fn append(&mut self, code: &[u8]) -> Option<u64> {
        let end = self.used.checked_add(code.len())?;
        if end > CODE_BYTES {
            return None;
        }
        // SAFETY: within the part for stubs, as just checked; without other references.
        let to = unsafe {
            let to = self.start.as_ptr().add(CONTEXT_BYTES + self.used);
            std::ptr::copy_nonoverlapping(code.as_ptr(), to, code.len());
            to
        };
        self.used = end.next_multiple_of(16);
        Some(to as u64)
    }

    /// Bytes left for stubs.
    pub(crate) fn room(&self) -> usize {
        CODE_BYTES.saturating_sub(self.used)
    }

    /// Forgets all stubs.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }
}

impl Drop for Low {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; no stub runs, since that would borrow `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), CONTEXT_BYTES + CODE_BYTES) };
    }
}
