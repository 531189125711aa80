//! CPU time of the targets over a trace, the ended ones as last read.

use std::collections::HashMap;

use crate::kernel::{proc, sys};

/// First and latest reading of each process, in nanoseconds.
#[derive(Debug, Default)]
pub struct CpuTimes(HashMap<u32, (u64, u64)>);

impl CpuTimes {
    /// Counts a process from `base_ns` of its CPU time on.
    pub fn add(&mut self, pid: u32, base_ns: u64) {
        self.0.entry(pid).or_insert((base_ns, base_ns));
    }

    /// Counts a process that was met during the trace: all of its time when it was born after `start_ticks`, else what
    /// it uses from now on.
    pub fn meet(&mut self, pid: u32, start_ticks: u64) {
        if !self.0.contains_key(&pid) {
            let born = proc::start_ticks(pid).unwrap_or(u64::MAX);
            let base_ns = if born >= start_ticks { 0 } else { sys::process_cpu_ns(pid).unwrap_or(0) };
            self.add(pid, base_ns);
        }
    }

    /// Nanoseconds that all of them used since they were added.
    pub fn read(&mut self) -> u64 {
        for (pid, (_, last_ns)) in &mut self.0 {
            // An ended process keeps its last reading.
            *last_ns = sys::process_cpu_ns(*pid).unwrap_or(0).max(*last_ns);
        }
        self.0.values().map(|(base_ns, last_ns)| last_ns - base_ns).sum()
    }
}
