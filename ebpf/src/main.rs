//! The eBPF programs of locality-bpf: `sample`, `touch`, `meter`, three `lifecycle` programs, and
//! three `heap` ones.
//!
//! One file per program; only `ring` writes the ring buffers, and counts every fate
//! of an event; only `task` reads kernel structures. Decisions that the host can test
//! are in `locality_common::rules`. Limits: x86-64, Linux 5.15 or newer with BTF.
#![no_std]
#![no_main]
// For the compare-and-swap in `touch`, the additions in `ring`, and to hide values from the
// compiler in `copy`.
#![feature(asm_experimental_arch)]

mod accesses;
mod copy;
mod heap;
mod heap_site;
mod ids;
mod kernel_time;
mod lifecycle;
mod log;
mod maps;
mod meter;
mod ring;
mod sample;
mod strings;
mod target;
mod task;
mod touch;

/// The kernel refuses GPL-only helpers without a GPL-compatible licence.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier rejects an object with a reachable panic: the loop is never run.
    loop {}
}
