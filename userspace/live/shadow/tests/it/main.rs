//! Windows on made-up memory, and against what the processor does.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests print what they skip and measured")]
#![cfg(all(test, target_os = "linux", target_arch = "x86_64"))]

mod code;
mod commands;
mod input;
mod programs;
mod random;
mod support;
mod target;
