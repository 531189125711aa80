//! Records and rules shared by the eBPF programs and user space.
//!
//! Every structure that crosses the kernel boundary is laid out here once, beside a size
//! assertion, and every decision that both sides must take alike is a pure function
//! here. The crate has no code that needs an allocator, a map, or a system call.
#![no_std]

pub mod config;
pub mod counter;
pub mod heap;
pub mod record;
pub mod rules;
