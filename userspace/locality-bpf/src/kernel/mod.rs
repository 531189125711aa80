//! Everything that speaks to the kernel: system calls, perf events, ptrace, `/proc`, the eBPF
//! object. No policy here: each file wraps one interface, and returns plain values and
//! `io::Error`s.

pub mod btf;
pub mod cgroup;
pub mod object;
pub mod perf;
pub mod proc;
pub mod ptrace;
pub mod records;
pub mod sources;
pub mod sys;
pub mod uprobe;
pub mod verifier;
