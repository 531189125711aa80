//! Everything that speaks to the kernel: system calls, perf events, ptrace, `/proc`, the eBPF
//! object, signals, files, the start of a command. No policy here: each file wraps one interface,
//! and returns plain values and errors.

pub mod btf;
pub mod cgroup;
#[cfg(feature = "ebpf-log")]
mod ebpf_log;
pub mod ending;
pub mod group;
pub mod inherited;
pub mod launch;
pub mod lock;
pub mod machine;
pub mod memory_file;
pub mod object;
pub mod perf;
pub mod proc;
pub mod ptrace;
pub mod records;
pub mod rights;
pub mod sources;
pub mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod uprobe;
pub mod verifier;
pub mod writing;
