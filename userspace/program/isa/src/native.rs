//! Proof against the processor: real instructions are single-stepped
//! under ptrace, and every prediction is compared with the executed step.
//! Without the right to ptrace, the tests report the refusal and pass.

mod programs;
mod random;
mod tracee;
