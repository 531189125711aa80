//! Proof against the processor: real instructions are single-stepped under ptrace, and every
//! prediction is compared with what they did. Where ptrace is refused the tests say so and pass.

mod programs;
mod random;
mod tracee;
