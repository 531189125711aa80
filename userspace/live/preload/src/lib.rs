//! The recorder of allocations that is preloaded into launched programs: stands before the C
//! library's allocator, writes what begins and ends into memory that the tracer shares, and hands
//! every call on.
//!
//! Built twice. As a Rust library it is the layout of the shared memory ([`layout`]), for the
//! tracer, and its parts for tests. With the feature `recorder` it is the shared object itself,
//! which the build script of `locality-bpf` compiles and embeds.
//!
//! Rules, because it runs inside of other programs: no lock, no allocation, no thread-local memory,
//! no system call but in the constructor (`start`) and before an exec (`run`); nothing of the C
//! library but the functions that are handed on to. Every state is in atomics, so that a signal
//! handler may come anywhere, on any stack. A call that is not recorded is a jump: the allocator
//! sees its caller's return address. Limits: x86-64, glibc; a process with another allocator is
//! left alone (`start`).
#![cfg_attr(not(test), no_std)]

pub mod elf;
pub mod exec;
pub mod layout;
pub mod record;
pub mod resolve;
pub mod run;
pub mod stack;
pub mod start;
pub mod sys;

#[cfg(feature = "recorder")]
mod entry;

/// Nothing here panics: no index, no checked arithmetic, no allocation. The compiler requires the
/// function all the same.
#[cfg(all(feature = "recorder", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
