//! Messages from the capture thread to the controller, in the order of events.

use locality_common::record::{KernelRecord, MeterRecord, SampleRecord, TouchRecord};
use locality_model::Access;
use locality_rate::Moment;
use locality_shadow::{Counts, End};
use locality_stream::Event as StreamEvent;

use super::{line_fills::SplitStores, window_sampling::Found};
use locality_heap::HeapSite;

/// One event.
#[derive(Debug)]
pub enum Event {
    /// A thread was seen for the first time.
    ThreadStarted {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Its name.
        name: String,
        /// Why the thread cannot be seized, if known.
        not_held: Option<String>,
        /// Monotonic clock.
        time_ns: u64,
    },
    /// A seized thread was released.
    ThreadReleased {
        /// Thread.
        tid: u32,
        /// Why.
        reason: String,
    },
    /// A thread ended.
    ThreadEnded {
        /// Thread.
        tid: u32,
        /// Monotonic clock.
        time_ns: u64,
    },
    /// A process runs another program: its mappings are new.
    Exec {
        /// Process.
        pid: u32,
    },
    /// A sample, after its stop if the thread was stopped.
    Sample(Box<SampleEvent>),
    /// The clock met a thread in the kernel; with a copy of the stack from `rsp`.
    KernelSample(Box<KernelRecord>, Vec<u8>),
    /// A site of allocations was met for the first time. (From the heap thread.)
    HeapSite(Box<HeapSite>),
    /// A thread's progress after a stop.
    Meter(Box<MeterRecord>),
    /// A watch ended.
    WatchEnded(Box<WatchEnd>),
    /// A watch that measured the cost of traps ended: process and word.
    TrapCostMeasured(u32, u64),
    /// The launched command ended with this wait status.
    CommandEnded(i32),
    /// No target is left.
    NoTargets,
    /// The capture thread cannot go on.
    Failed(String),
    /// The watchdog is gone: no thread may be seized any more.
    Unguarded,
    /// A second has passed: what was collected goes to the file. (From the controller, not from the
    /// capture thread.)
    Second,
}

impl From<Box<HeapSite>> for Event {
    fn from(site: Box<HeapSite>) -> Self {
        Self::HeapSite(site)
    }
}

impl Event {
    /// Whether the controller must hear of it, however late.
    pub fn is_essential(&self) -> bool {
        matches!(self, Self::CommandEnded(_) | Self::NoTargets | Self::Failed(_) | Self::Unguarded)
    }
}

/// A sampled point of execution.
#[derive(Debug)]
pub struct SampleEvent {
    /// What the kernel recorded.
    pub record: SampleRecord,
    /// Copy of the user stack from `rsp`.
    pub stack: Vec<u8>,
    /// True when the thread was stopped there.
    pub held: bool,
    /// The fs base of a stopped thread.
    pub fs_base: Option<u64>,
    /// The first access from the sample on, or why the access is unknown.
    pub access: Result<Access, &'static str>,
    /// Each watch armed for the sample: its number, for the [`WatchEnd`] to come, and the followed
    /// use of the window; `None`: the first access.
    pub watches: Vec<(u64, Option<usize>)>,
    /// The window at the sample's stop.
    pub window: Option<Box<WindowTaken>>,
}

/// A shadow window.
#[derive(Debug)]
pub struct WindowTaken {
    /// How much it holds.
    pub counts: Counts,
    /// Why it ended.
    pub end: End,
    /// Whether the process ends or runs another program.
    pub gone: bool,
    /// Uses drawn in the window.
    pub found: Found,
    /// The first access of the window.
    pub first: Option<Access>,
    /// Stores across lines.
    pub split_stores: SplitStores,
    /// Events, values and registers of the window, for the
    /// rate of accesses; empty if the thread is not metered.
    pub log: WindowLog,
    /// Number of the list of words that the meter reads.
    pub wanted: u32,
}

/// A copy of what [`locality_shadow::Log`] says.
#[derive(Debug, Default)]
pub struct WindowLog {
    /// Accesses and blocks.
    pub events: Vec<StreamEvent>,
    /// Values moved.
    pub values: Vec<u64>,
    /// Registers at each block.
    pub registers: Vec<[u64; 16]>,
    /// The window process whose numbering of code the events have.
    pub generation: u32,
}

/// A trap, with the copy of the user stack from `rsp`.
#[derive(Debug, Clone)]
pub struct Trap {
    /// What the kernel recorded.
    pub record: TouchRecord,
    /// Stack bytes.
    pub stack: Vec<u8>,
}

/// How a watch ended.
#[derive(Debug)]
pub struct WatchEnd {
    /// Number of the watch.
    pub watch: u64,
    /// Process.
    pub tgid: u32,
    /// Watched word.
    pub address: u64,
    /// When it was armed.
    pub armed_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// The trap of the use, if one came. For a watch armed without a stop the trap defines the use.
    pub used: Option<Box<Trap>>,
    /// True when the thread stood before the use when the watch was armed.
    pub held: bool,
    /// Chance of being armed.
    pub p_arm: f64,
    /// Chance of surviving until the end.
    pub p_survive: f64,
    /// Threads with the watch armed.
    pub threads_armed: u32,
    /// Threads that were alive then.
    pub threads_alive: u32,
    /// Further processes with the watch armed, each with its own address of the word.
    pub also_in: Vec<(u32, u64)>,
    /// What happened.
    pub outcome: EndOutcome,
}

/// The touch after a use.
#[derive(Debug)]
pub struct Reuse {
    /// Its trap.
    pub trap: Box<Trap>,
    /// From the use to the reuse or, if short, from a later touch to the next
    /// (`rules::behind_reuse`).
    pub distance: Distance,
}

/// How far apart two touches of a word are.
#[derive(Debug)]
pub struct Distance {
    /// CPU time.
    pub ns: u64,
    /// CPU time from the use to the second one, about.
    pub until_ns: u64,
    /// Accesses between use and reuse, if counted.
    pub accesses: Option<u64>,
    /// Both touches, if one thread made them in user mode.
    pub between: Option<Box<[Moment; 2]>>,
}

/// What became of a watch.
#[derive(Debug)]
pub enum EndOutcome {
    /// Touched again.
    Reused(Reuse),
    /// Replaced by a newer sample.
    Replaced,
    /// Still armed at the end of the trace.
    StillArmed,
    /// The kernel refused the debug register.
    Refused,
    /// The process is gone.
    Gone,
}

/// A process that ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Which.
    pub pid: u32,
    /// CPU time of the process in all.
    pub cpu_ns: u64,
    /// It was born during the trace.
    pub is_newborn: bool,
}
