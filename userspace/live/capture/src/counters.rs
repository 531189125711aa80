//! What the capture thread counts, by owner: stops, samples, traps, watches, windows, CPU time,
//! losses. One thread updates each counter, the governor and the summary of the run read all.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use crate::events::Ended;

/// All counters.
#[derive(Debug, Default)]
pub struct Costs {
    /// Stops of threads and their cost.
    pub stop: StopCounters,
    /// Samples, and ticks of the sampling clocks.
    pub sampling: SampleCounters,
    /// Traps of watchpoints and their cost.
    pub trap: TrapCounters,
    /// Watches by how they began and ended.
    pub watch: WatchCounters,
    /// Shadow windows, and readings of progress after them.
    pub window: WindowCounters,
    /// CPU time of others than the capture thread.
    pub cpu: CpuCounters,
    /// Records and events that were read or lost.
    pub loss: LossCounters,
}

/// Stops of threads and their cost.
#[derive(Debug, Default)]
pub struct StopCounters {
    /// Time that target threads stood still because of us.
    pub stop_ns: AtomicU64,
    /// Estimated time of the stops that ptrace imposed: the program's signals, births.
    pub imposed_ns: AtomicU64,
    /// Stops made at samples.
    pub stops: AtomicU64,
    /// The longest of them.
    pub longest_stop_ns: AtomicU64,
    /// Stops imposed by ptrace for the program's own signals.
    pub foreign_stops: AtomicU64,
    /// Traps of watchpoints that reached a thread as a `SIGTRAP` without cause, which was not delivered.
    pub stray_traps: AtomicU64,
    /// Stops at births of threads and processes.
    pub clone_stops: AtomicU64,
    /// Newborn threads and processes that ended before the tracer met them.
    pub brief: AtomicU64,
    /// Stops at another instruction than the sampled one.
    pub skidded_stops: AtomicU64,
    /// Stops that came too late to arm (`--max-stop`).
    pub late_stops: AtomicU64,
    /// Stops that were asked for and never came (the thread ended first).
    pub missed_stops: AtomicU64,
}

/// Samples, and ticks of the sampling clocks.
#[derive(Debug, Default)]
pub struct SampleCounters {
    /// Samples of targets.
    pub samples: AtomicU64,
    /// Accesses represented by samples that count accesses.
    pub sampled_accesses: AtomicU64,
    /// Samples whose place another took, because their threads were not seized yet.
    pub replaced_samples: AtomicU64,
    /// Ticks of the clocks for replacing samples, beyond the first.
    pub surplus_samples: AtomicU64,
    /// Ticks that met a target in kernel mode, or at an operation without access, as last read.
    pub kernel_ticks: AtomicU64,
    /// Ticks in kernel mode among these.
    pub in_kernel: AtomicU64,
}

/// Traps of watchpoints and their cost.
#[derive(Debug, Default)]
pub struct TrapCounters {
    /// Traps of watchpoints that left a record.
    pub traps: AtomicU64,
    /// Passed traps of touches by the kernel, for which nothing is copied.
    pub passed: AtomicU64,
    /// Traps that left none (and lost records, taken for traps), as last read from the kernel side.
    pub silent_traps: AtomicU64,
    /// Readings of what a trap costs.
    pub trap_measurements: AtomicU64,
    /// How far they lay from what was believed (`TrapCost::scatter_ns`); 0: not known.
    pub trap_scatter_ns: AtomicU64,
    /// What slower instructions and switches lost while words were watched.
    pub string_ns: AtomicU64,
    /// Parts in a million of the CPU time with watched words that string instructions,
    /// stores across lines and switches lose.
    pub armed_lost_ppm: [AtomicU64; 3],
    /// Windows in which the recorder counted stores across lines.
    pub store_windows: AtomicU64,
    /// Sum over these windows of the time that such stores take more while a word is watched, in
    /// millionths of the time without a watch.
    pub split_stores_ppm: AtomicU64,
    /// Watches withdrawn because of armed registers.
    pub withdrawn: AtomicU64,
    /// Uses not watched because of armed registers.
    pub unaffordable: AtomicU64,
}

/// Watches by how they began and ended.
#[derive(Debug, Default)]
pub struct WatchCounters {
    /// Watches asked of the kernel.
    pub armed: AtomicU64,
    /// Watches that ended by a reuse.
    pub trapped: AtomicU64,
    /// Watches withdrawn before a trap.
    pub censored: AtomicU64,
    /// Watches that the kernel refused.
    pub refused: AtomicU64,
    /// Uses that were not watched because the thread was not seized.
    pub unguarded: AtomicU64,
    /// Uses whose word was watched already.
    pub watched_already: AtomicU64,
}

/// Shadow windows, and readings of progress after them.
#[derive(Debug, Default)]
pub struct WindowCounters {
    /// Windows taken.
    pub windows: AtomicU64,
    /// Windows not taken because the stop had no time left for one.
    pub windows_late: AtomicU64,
    /// Windows not taken because the thread's vector registers could not be read.
    pub windows_unread: AtomicU64,
    /// Windows not taken because the mappings of the process are not known.
    pub windows_without_mappings: AtomicU64,
    /// Readings of meters.
    pub meter_ticks: AtomicU64,
}

/// CPU time of others than the capture thread.
#[derive(Debug, Default)]
pub struct CpuCounters {
    /// Processes that ended and were not counted yet.
    pub ended: Mutex<Vec<Ended>>,
    /// CPU time of the process that executes windows and of the watchdog.
    pub helpers_cpu_ns: AtomicU64,
    /// CPU time of the targets, as the controller last read it.
    pub target_cpu_ns: AtomicU64,
    /// Cost of the allocation probes, by their calibrated price.
    pub heap_ns: Arc<AtomicU64>,
}

/// Records and events that were read or lost.
#[derive(Debug, Default)]
pub struct LossCounters {
    /// Events that the controller was too slow for.
    pub controller_behind: AtomicU64,
    /// Ring records that user space read.
    pub received: AtomicU64,
    /// Ring records of a kind that is not known.
    pub unknown_records: AtomicU64,
    /// Touches of watches that had been withdrawn before the record was read.
    pub orphan_touches: AtomicU64,
}

impl Costs {
    /// Samples, one a tick of the sampling clock.
    pub fn told_samples(&self) -> u64 {
        get(&self.sampling.samples)
            .saturating_sub(get(&self.sampling.replaced_samples) + get(&self.sampling.surplus_samples))
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Reads a counter.
pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
