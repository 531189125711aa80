//! Extent of a thread's stack, to copy only present memory.
//!
//! No system call may be made, and no fault survived, so only what is certain counts: the page of
//! the stack pointer; the first thread's stack up to the strings of its environment; and a thread's
//! stack of glibc, as the thread's own descriptor says. A signal's stack, a fiber's or one that the
//! program brought itself is copied up to the end of the page.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 4096;
/// The first thread's stack is not believed to be longer: between it and the next mapping lie 128
/// MiB at least (`mmap_base` of arch/x86/mm/mmap.c).
const FIRST_MAX: u64 = 16 << 20;
/// Where in glibc's descriptor of a thread block, size and guard of its stack are looked for: at
/// 0x690 in 2.31 to 2.41.
const DESCRIPTOR: (u64, u64) = (0x600, 0x7c0);

/// Least extent of the first thread's stack; 0 if unknown.
pub static FIRST_END: AtomicU64 = AtomicU64::new(0);
/// Place of the stack's bounds in the descriptor, once found.
static FOUND_AT: AtomicU64 = AtomicU64::new(0);

/// Gives the place of a string of the environment: above everything on the first thread's stack,
/// where the kernel put it, unless moved. Called on that stack.
pub fn learn_first(string: u64) {
    let here = &raw const string as u64;
    if string > here && string - here < FIRST_MAX {
        FIRST_END.store((string | (PAGE - 1)) + 1, Ordering::Relaxed);
    }
}

/// The end of what may be read from `rsp` on.
#[inline]
pub fn end(rsp: u64) -> u64 {
    let first = FIRST_END.load(Ordering::Relaxed);
    if rsp < first && first - rsp < FIRST_MAX {
        return first;
    }
    let page_end = (rsp | (PAGE - 1)).wrapping_add(1);
    let descriptor: u64;
    // SAFETY: by the ABI the first word of a thread's block is its own address; an allocator of
    // glibc reads its neighbours at each call.
    unsafe { asm!("mov {}, fs:[0]", out(reg) descriptor, options(nostack, readonly, preserves_flags)) };
    // Within one page, because memory after another library's descriptor need not be present.
    if rsp >= descriptor || !descriptor.is_multiple_of(64) || descriptor % PAGE + DESCRIPTOR.1 + 24 > PAGE {
        return page_end;
    }
    // SAFETY: on the page of a word that was just read.
    let read = |at: u64| unsafe { ((descriptor + at) as *const u64).read_volatile() };
    let known = FOUND_AT.load(Ordering::Relaxed);
    if known != 0 {
        return if is_stack(descriptor, rsp, read(known), read(known + 8), read(known + 16)) {
            descriptor
        } else {
            page_end
        };
    }
    let mut at = DESCRIPTOR.0;
    while at < DESCRIPTOR.1 {
        if is_stack(descriptor, rsp, read(at), read(at + 8), read(at + 16)) {
            FOUND_AT.store(at, Ordering::Relaxed);
            return descriptor;
        }
        at += 8;
    }
    page_end
}

/// Whether these are the block, its size and its guard of a thread with its descriptor at the
/// block's end and a stack around `rsp`.
fn is_stack(descriptor: u64, rsp: u64, block: u64, size: u64, guard: u64) -> bool {
    let end = block.wrapping_add(size);
    (block | size | guard).is_multiple_of(PAGE)
        && block != 0
        && guard < size
        && end > descriptor
        && end - descriptor <= 2 * PAGE
        && block.wrapping_add(guard) <= rsp
        && rsp < descriptor
        && block < descriptor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> u64 {
        let rsp: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, rsp", out(reg) rsp) };
        rsp
    }

    #[test]
    fn a_threads_stack_ends_at_its_descriptor() {
        let (rsp, end) = std::thread::spawn(|| (here(), end(here()))).join().unwrap();
        // glibc's, which this was built with; the stack of a test has 2 MiB.
        assert!(end > (rsp | 4095) + 1 || end - rsp <= 4096, "{rsp:x} {end:x}");
        assert!(FOUND_AT.load(Ordering::Relaxed) >= DESCRIPTOR.0, "not glibc's descriptor");
    }

    #[test]
    fn memory_that_is_no_stack_counts_to_the_end_of_its_page() {
        let other = std::thread::spawn(|| {
            let block = vec![0u8; 64 << 10];
            let inside = block.as_ptr() as u64 + 5000;
            (inside, end(inside))
        });
        let (inside, end) = other.join().unwrap();
        assert_eq!(end, (inside | 4095) + 1);
    }

    #[test]
    fn only_a_stack_that_holds_the_pointer_counts() {
        let good = |block, size, guard, rsp| is_stack(0x7f00_0080_0700, rsp, block, size, guard);
        assert!(good(0x7f00_0000_0000, 0x80_1000, 0x1000, 0x7f00_0040_0000));
        assert!(!good(0x7f00_0000_0000, 0x80_1000, 0x1000, 0x7f00_0000_0800), "in the guard");
        assert!(!good(0x7f00_0000_0000, 0x90_1000, 0x1000, 0x7f00_0040_0000), "ends elsewhere");
        assert!(!good(0x7f00_0050_0000, 0x30_1000, 0x1000, 0x7f00_0040_0000), "below");
        assert!(!good(0, 0, 0, 0x7f00_0040_0000));
    }
}
