//! The data model: a traced run as seen by analyses.
//!
//! Plain values without behaviour. The tracer fills them, the profile file stores them, analyses
//! read them. Not here: kernel layouts (`locality-common`) and code that reads a process.
//!
//! Units: `_ns` nanoseconds; times are on the monotonic clock, counted from
//! [`Run::started_mono_ns`]; addresses are the traced process's virtual addresses.

mod data;
mod first;
mod flow;
mod group;
mod kernel;
mod loops;
pub mod merge;
mod printable;
#[cfg(feature = "testing")]
pub mod testing;

pub use data::{
    Accessed, AllocationSite, Field, FieldId, Heap, Located, Member, Missed, Object, ObjectId, ObjectKind,
    Record, RecordId,
};
pub use flow::{ExecutionSpan, FlowEdge, LoopReading, WindowExecution, WindowFlow};
pub use group::Group;
pub use kernel::KernelSample;
pub use loops::{ChainStep, Dependence, LoopAccess, LoopBranch, LoopNeeds, SeenLoop};
pub use printable::printable;

/// A whole traced run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// Command, machine and duration.
    pub run: Run,
    /// Threads seen, indexed by [`ThreadId`].
    pub threads: Vec<Thread>,
    /// Program files and other mappings referred to by frames, indexed by [`ModuleId`].
    pub modules: Vec<Module>,
    /// Source-level frames, indexed by [`FrameId`]; an address with inlined calls has several.
    pub frames: Vec<Frame>,
    /// Call stacks, indexed by [`StackId`].
    pub stacks: Vec<Stack>,
    /// Kinds of sampled processes, indexed by [`GroupId`];
    /// none in a profile of format version 6 or before.
    pub groups: Vec<Group>,
    /// Points of execution sampled by the clock.
    pub samples: Vec<Sample>,
    /// Watchpoints: one entry per arming.
    pub watches: Vec<Watch>,
    /// Shadow windows, at most one a sample, in the order of samples.
    pub windows: Vec<Window>,
    /// Uses chosen in windows, indexed by [`UseId`], in the order of samples.
    pub uses: Vec<Use>,
    /// Accesses in windows that may load lines of cache, indexed by [`LoadId`], in the order of
    /// samples; none in a profile of format version 3 or before.
    pub loads: Vec<Load>,
    /// Loops shown by windows, in the order of samples; none in a profile without loops.
    pub loops: Vec<SeenLoop>,
    /// Control flow of windows, in the order of samples; none in a profile without control flow.
    pub flows: Vec<WindowFlow>,
    /// Instructions of windows by class, and parallelism, in the order of samples; none with
    /// `--no-parallelism`.
    pub executions: Vec<WindowExecution>,
    /// Values compared by tests of loops, in the order of samples; none with `--no-values`.
    pub readings: Vec<LoopReading>,
    /// Samples in the kernel, in the order of time: a
    /// part of the samples counted in [`Run::ticks`].
    pub kernel_samples: Vec<KernelSample>,
    /// Data objects touched by accesses, indexed by
    /// [`ObjectId`]; none in a profile without objects.
    pub objects: Vec<Object>,
    /// Structure types of objects, indexed by [`RecordId`].
    pub records: Vec<Record>,
    /// Parts of objects, indexed by [`FieldId`].
    pub fields: Vec<Field>,
    /// The object of each access, if objects were searched.
    pub located: Vec<Located>,
    /// Allocations on the heap; `None` if allocations were not recorded.
    pub heap: Option<Heap>,
    /// Events seen, filtered, lost and refused.
    pub ledger: Ledger,
    /// Cost of the measurement to the targets.
    pub overhead: Overhead,
    /// Sentences that a reader of the report must know (degraded modes, refused rights, …), most
    /// important first.
    pub notices: Vec<String>,
    /// True if another cause than the tracer's own stop ended the trace (the file was recovered).
    pub partial: bool,
}

macro_rules! index_types {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
    )*};
}
index_types! {
    /// Index into [`Profile::threads`].
    ThreadId,
    /// Index into [`Profile::modules`].
    ModuleId,
    /// Index into [`Profile::frames`].
    FrameId,
    /// Index into [`Profile::stacks`].
    StackId,
    /// Index into [`Profile::groups`].
    GroupId,
    /// Index into [`Profile::samples`].
    SampleId,
    /// Index into [`Profile::uses`].
    UseId,
    /// Index into [`Profile::watches`].
    WatchId,
    /// Index into [`Profile::loads`].
    LoadId,
}

/// Command, machine and duration of the run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// The launched command line, or the command line of the first attached process.
    pub command: String,
    /// Process ids at the start of the trace.
    pub pids: Vec<u32>,
    /// Wall-clock start, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// Monotonic clock at the start, the origin of all other times.
    pub started_mono_ns: u64,
    /// Length of the trace.
    pub wall_ns: u64,
    /// CPU time of the targets during the trace.
    pub cpu_ns: u64,
    /// Clock samples of the targets, and clock samples
    /// with a thread in the kernel; `None` if unknown.
    pub ticks: Option<(u64, u64)>,
    /// Page faults of the targets without input or output during the trace; `None` if unknown.
    pub page_faults: Option<u64>,
    /// The processor as measured at the start of the trace; `None` in profiles of earlier versions.
    pub processor: Option<Processor>,
    /// The machine.
    pub host: Host,
    /// Live or exact.
    pub mode: Mode,
    /// Sources of addresses, rates and times.
    pub sources: Sources,
    /// Why the trace ended, in words: "duration", "Ctrl-C", "last target ended", ….
    pub ended_by: String,
    /// Watchpoint policy, as on the command line.
    pub policy: String,
    /// Shorter time distances cannot be distinguished from 0 (trap cost and clock resolution).
    pub distance_resolution_ns: u64,
    /// Median distance of single readings of the trap cost, taken during the
    /// trace, from the value believed at the time of each. An error common to all
    /// readings and the belief is not included. `None` with too few readings.
    pub distance_scatter_ns: Option<u64>,
    /// Touches by the kernel were passed over (`--user-only`), so no reuse is by the kernel.
    pub user_only: bool,
    /// Patterns of `--exclude`, with the number of processes that each left out.
    pub excluded: Vec<(String, u64)>,
    /// Version of the tool that wrote the profile.
    pub tool_version: String,
}

/// Measured properties of the processor, as far as needed for advice. Times are in cycles.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Processor {
    /// Cycles in a nanosecond.
    pub clock: f64,
    /// For the second-level cache, the last-level cache and memory: extra
    /// time of a line over a line in the first-level cache, time between
    /// successive lines, and time between successive lines stored to.
    pub levels: [[f64; 3]; 3],
    /// Time between lines of memory at random places with independent loads; 0 if not measured.
    pub parallel_line: f64,
    /// Nanoseconds of a page fault without input or output; 0 if not measured.
    pub page_fault_ns: f64,
    /// Throughput of the core per cycle, and latencies of operations; `None` if not measured.
    pub core: Option<Core>,
}

/// A processor's core: operations in a cycle on average, and latencies in cycles.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Core {
    /// Instructions in a cycle.
    pub width: f64,
    /// Loads of at most 8 bytes in a cycle.
    pub loads: f64,
    /// Loads of 16 bytes and more in a cycle.
    pub wide_loads: f64,
    /// Stores in a cycle, each to a line other than the previous one.
    pub stores: f64,
    /// Stores in a cycle, each to the previous store's line.
    pub close_stores: f64,
    /// Integer operations in a cycle.
    pub integers: f64,
    /// Operations of floating point in a cycle.
    pub floats: f64,
    /// Latency of a load from the first-level cache.
    pub load: f64,
    /// From a store to a load of the stored value by the same address registers.
    pub forward: f64,
    /// From a store to a load of the stored value by another address.
    pub forward_anew: f64,
    /// Latency of an addition of floating point.
    pub add: f64,
    /// Latency of a multiplication of floating point.
    pub multiply: f64,
}

impl Core {
    /// Number of values.
    pub const VALUES: usize = 12;

    /// In the order of the fields.
    pub fn values(&self) -> [f64; Self::VALUES] {
        let Self { width, loads, wide_loads, stores, close_stores, integers, .. } = *self;
        let Self { floats, load, forward, forward_anew, add, multiply, .. } = *self;
        [
            width,
            loads,
            wide_loads,
            stores,
            close_stores,
            integers,
            floats,
            load,
            forward,
            forward_anew,
            add,
            multiply,
        ]
    }

    /// The inverse of [`Core::values`].
    pub fn from_values(values: [f64; Self::VALUES]) -> Self {
        let [width, loads, wide_loads, stores, close_stores, integers, rest @ ..] = values;
        let [floats, load, forward, forward_anew, add, multiply] = rest;
        Self {
            width,
            loads,
            wide_loads,
            stores,
            close_stores,
            integers,
            floats,
            load,
            forward,
            forward_anew,
            add,
            multiply,
        }
    }
}

/// How the accesses were seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Sampled on a running process.
    #[default]
    Live,
    /// Every access, by the exact engine.
    Exact,
}

/// Sources of the numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Effective addresses: "zero-skid stop", "sampled registers", "PEBS", ….
    pub address: String,
    /// Accesses per nanosecond; `None` if no rate is known (distances stay in CPU time).
    pub rate: Option<String>,
    /// The sampling clock: "cpu-clock 97 Hz", ….
    pub clock: String,
    /// Recorder or probes put into the traced programs to follow allocations: "a
    /// library that the command loaded first (LD_PRELOAD)", …; `None` without any.
    pub heap: Option<String>,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// `uname -r`.
    pub kernel: String,
    /// CPU model name.
    pub cpu: String,
    /// Online CPUs.
    pub cpus: u32,
    /// Data and unified caches, smallest level first.
    pub caches: Vec<CacheLevel>,
}

/// A cache level, as reported by sysfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLevel {
    /// 1, 2, 3.
    pub level: u8,
    /// Capacity.
    pub bytes: u64,
    /// Associativity.
    pub ways: u32,
    /// Line size in bytes.
    pub line: u32,
}

/// A thread of a target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    /// Process id (thread group).
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Name at last sight.
    pub name: String,
    /// First sight.
    pub started_ns: u64,
    /// End, if seen.
    pub ended_ns: Option<u64>,
    /// Why the thread could not be stopped with zero skid; `None` if it could.
    pub not_held: Option<String>,
}

impl Thread {
    /// The process's own id. In a merge, [`Thread::pid`] has a multiple of the kernel's upper limit more,
    /// which separates processes of several profiles.
    pub fn process_id(&self) -> u32 {
        self.pid % merge::PIDS
    }
}

/// A mapped file, or a named mapping ("[vdso]", "[anon]", "[jit]").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    /// Path as seen by the process, or the mapping's name in brackets.
    pub path: String,
    /// GNU build id, lower-case hexadecimal; empty without one.
    pub build_id: String,
}

/// A source-level frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Instruction address in the process.
    pub address: u64,
    /// File of the code.
    pub module: Option<ModuleId>,
    /// Virtual address inside the module's own address
    /// space (as for `addr2line`), if there is a module.
    pub module_address: Option<u64>,
    /// Demangled function name; `None` with a reason in [`Frame::unknown`].
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Source line, 1-based.
    pub line: Option<u32>,
    /// True for a call inlined by the compiler into the next frame.
    pub inlined: bool,
    /// Why function or line is missing: "no debug info", "stripped", "unmapped", ….
    pub unknown: Option<String>,
}

impl Frame {
    /// The address for a reader of the file; for code without a file,
    /// the address in the process. `None` if the file of the code could
    /// not be opened: the place of the code in the file is unknown.
    pub fn address_in_file(&self) -> Option<u64> {
        match self.module {
            Some(_) => self.module_address,
            None => Some(self.address),
        }
    }
}

/// A call stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Innermost first.
    pub frames: Vec<FrameId>,
    /// Why the outermost frames are missing; `None` when the stack is whole.
    pub cut: Option<String>,
}

/// A point of execution sampled by the clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// When.
    pub time_ns: u64,
    /// Sampled thread.
    pub thread: ThreadId,
    /// Call stack; the innermost frame is the interrupted instruction.
    pub stack: StackId,
    /// CPU time represented by the sample (the sampling period at that moment).
    pub period_ns: u64,
    /// True if the thread was stopped at the sample, so the use is exact.
    pub held: bool,
    /// The first memory access at or after the sampled
    /// instruction, or the reason for an unknown access.
    pub access: Result<Access, String>,
    /// Kind of the process at the time of the sample; `None` if unknown to the profile.
    pub group: Option<GroupId>,
}

/// A memory access known before execution, or shown by a trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Accessing instruction.
    pub ip: u64,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u32,
    /// Direction.
    pub kind: AccessKind,
}

/// Direction of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessKind {
    /// Read.
    Load,
    /// Write.
    Store,
    /// Read and written by a single instruction.
    ReadWrite,
    /// Not known (kernel copy, undecodable instruction).
    #[default]
    Unknown,
}

/// A touch of a watched location.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Touch {
    /// Time of the trap.
    pub time_ns: u64,
    /// The touching thread.
    pub thread: ThreadId,
    /// Call stack, innermost frame is the accessing instruction.
    pub stack: StackId,
    /// Direction, if the instruction was found.
    pub kind: AccessKind,
    /// True when the kernel touched on the thread's behalf (a system call copied the data).
    pub kernel: bool,
}

/// Result of a shadow window at a sample: the instructions that the thread was about to execute.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Instructions in the window.
    pub instructions: u64,
    /// Accesses in the window.
    pub accesses: u64,
    /// Reason for the end, in words ("whole", "system call", …).
    pub end: String,
    /// Touches of granules in the window by size of granule:
    /// an access that spans two granules touches twice.
    pub touches: Vec<(u32, u64)>,
    /// The thread's rate of accesses around the sample; `None` if unknown.
    pub rate: Option<Rate>,
}

/// Accesses per nanosecond of CPU time.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// Best guess.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Source of the rate ("memory counters", "registers", "same code", "model", …).
    pub source: String,
}

/// A use chosen at random among the accesses of a window,
/// with a reuse sought by the window or a watchpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Use {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Accesses of the thread between the stop and the use.
    pub skip: u64,
    /// The access.
    pub access: Access,
    /// The touched byte that represents the use, chosen at random among
    /// the words of the access; the byte's granules are followed.
    pub address: u64,
    /// Calling context of the use.
    pub stack: StackId,
    /// Reuse in the window, by size of granule in bytes (8, 64).
    pub seen: Vec<(u32, Seen)>,
}

/// An access to a line of 64 bytes not touched shortly before, drawn at random among
/// such accesses in a part of a window, with the later touches of the line in the
/// window. The access loads the line if the line was left alone for long enough.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Accesses of the thread between the stop and the access.
    pub skip: u64,
    /// Accesses since the touch of the line before, [`Burst::GAP`] at least; `None`: the window shows none.
    pub gap: Option<u64>,
    /// The access.
    pub access: Access,
    /// First byte of the line.
    pub line: u64,
    /// Calling context.
    pub stack: StackId,
    /// Such touches represented by the draw, for each access of the thread.
    pub stands_for: f64,
    /// Accesses in the window after the drawn one.
    pub shown: u64,
    /// Touches of the line, the drawn one first.
    pub bursts: Vec<Burst>,
}

/// Touches of a line with gaps of less than [`Burst::GAP`] accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Accesses from the first touch of the load to the first touch of the burst.
    pub from: u64,
    /// … to the last touch of the burst.
    pub to: u64,
    /// How many.
    pub touches: u64,
    /// Touched bytes of the line, a bit each.
    pub bytes: u64,
}

impl Burst {
    /// No cache of 32 KiB or more loses a line in 256 accesses:
    /// the accesses touch too few other lines, at most two each.
    pub const GAP: u64 = 256;

    /// Words of eight bytes in a line with at least one byte in `bytes`, a bit each.
    pub fn words(bytes: u64) -> f64 {
        (0..64).step_by(8).filter(|first| bytes >> first & 0xff != 0).count() as f64
    }
}

/// Reuse of a granule after the use, as shown by a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Seen {
    /// Touched again.
    Reused {
        /// Accesses from use to reuse: the time distance, 1-based.
        distance: u64,
        /// The touching access.
        access: Access,
        /// Calling context of the reuse.
        stack: StackId,
    },
    /// Not touched by the accesses after the use in the window.
    Open {
        /// Number of accesses in the window after the use.
        accesses: u64,
    },
}

/// An arming of a watchpoint, and the outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Watch {
    /// The sample that requested the watchpoint.
    pub sample: SampleId,
    /// The followed use in the sample's window; `None` without a window: the use is then the
    /// sample's own access. Several watches may follow one use, on different words of the line.
    pub of_use: Option<UseId>,
    /// First watched byte, aligned to [`Watch::bytes`].
    pub address: u64,
    /// Watched bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Time of arming.
    pub armed_ns: u64,
    /// Time of disarming, by whatever cause.
    pub ended_ns: u64,
    /// The use: from the stop (exact), or from the first trap if
    /// the thread was not stopped; `None` if the use never came.
    pub use_touch: Option<Touch>,
    /// True if the first trap confirmed the use at the expected instruction.
    pub use_confirmed: bool,
    /// End of the watch.
    pub outcome: Outcome,
    /// Probability, in (0, 1], that the use was chosen among the window's uses, that the stop
    /// was not taken for another purpose, and that the policy armed the watchpoint at all.
    pub p_arm: f64,
    /// Probability, in (0, 1], that the policy let the watchpoint live until [`Watch::ended_ns`].
    pub p_survive: f64,
    /// Threads of the process with the watchpoint armed.
    pub threads_armed: u32,
    /// Live threads of the process.
    pub threads_alive: u32,
}

/// How a watch ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// The location was touched again.
    Reused {
        /// The reuse.
        touch: Touch,
        /// CPU time of the process between use and reuse, our own traps and stops taken off.
        distance_ns: u64,
        /// Accesses of the thread in `distance_ns`, the reuse included: by the
        /// thread's hardware counters, or by the registers of the touching loop,
        /// to some percent. `None` if neither counts, and between threads.
        accesses: Option<u64>,
    },
    /// The policy gave the register to a newer sample (right-censored).
    Replaced,
    /// Still armed when the trace ended (right-censored).
    StillArmed,
    /// The kernel refused the register.
    Refused,
    /// The process ended or replaced its program meanwhile.
    Gone,
}

/// Events seen, filtered, lost and refused. See [`Ledger::imbalance`] for the equations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Events seen by the eBPF programs.
    pub seen: u64,
    /// … outside of the targets, in kernel mode, or otherwise out of scope.
    pub filtered: u64,
    /// … written to the ring.
    pub submitted: u64,
    /// Records read by user space.
    pub received: u64,
    /// Losses by cause; each cause is a counter in the kernel or in user space.
    pub lost: Vec<(String, u64)>,
    /// Events filtered, by cause (a breakdown of [`Ledger::filtered`]).
    pub filtered_by: Vec<(String, u64)>,
    /// Watchpoints armed.
    pub armed: u64,
    /// … with a reuse of the location.
    pub trapped: u64,
    /// … withdrawn before (replaced, still armed, process gone).
    pub censored: u64,
    /// … refused by the kernel.
    pub refused: u64,
    /// Uses not reached by any scan, by reason.
    pub unreachable: Vec<(String, u64)>,
    /// Stops asked for, made, and not made by cause.
    pub stops: Vec<(String, u64)>,
}

impl Profile {
    /// The ledger; `None` if the trace was cut short before the ledger was written.
    pub fn known_ledger(&self) -> Option<&Ledger> {
        (!self.partial || self.ledger != Ledger::default()).then_some(&self.ledger)
    }
}

impl Ledger {
    /// Sum of all losses.
    pub fn lost_total(&self) -> u64 {
        // Saturating, as below: a damaged profile may have arbitrary numbers.
        self.lost.iter().fold(0, |sum, (_, n)| u64::saturating_add(sum, *n))
    }

    /// The first violated equation, in words, or `None` if the ledger balances: seen = filtered
    /// + submitted + lost, submitted = received, armed = trapped + censored + refused.
    pub fn imbalance(&self) -> Option<String> {
        let kernel = self.filtered.saturating_add(self.submitted).saturating_add(self.lost_total());
        if self.seen != kernel {
            return Some(format!(
                "seen {} ≠ filtered {} + submitted {} + lost {}",
                self.seen,
                self.filtered,
                self.submitted,
                self.lost_total()
            ));
        }
        if self.submitted != self.received {
            return Some(format!("submitted {} ≠ received {}", self.submitted, self.received));
        }
        if self.armed != self.trapped.saturating_add(self.censored).saturating_add(self.refused) {
            return Some(format!(
                "armed {} ≠ trapped {} + censored {} + refused {}",
                self.armed, self.trapped, self.censored, self.refused
            ));
        }
        None
    }
}

/// Cost of the measurement to the targets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overhead {
    /// Cost allowed by the user, percent of the targets' CPU time.
    pub budget_percent: f64,
    /// (stopped time + traps + BPF in the targets' threads) / (targets' CPU time + stopped time), percent.
    pub measured_percent: f64,
    /// Time of target threads stopped by the tracer.
    pub stop_ns: u64,
    /// Traps × calibrated trap cost.
    pub trap_ns: u64,
    /// BPF run time and clock interrupts in the targets' threads.
    pub bpf_ns: u64,
    /// Probes of allocation functions, if allocations are followed.
    pub heap_ns: Option<u64>,
    /// Time lost while words were watched, on machines that are slower then: by string instructions,
    /// stores across cache lines, and switches between threads.
    pub string_ns: Option<u64>,
    /// Our own CPU time.
    pub controller_ns: u64,
    /// Number of stops.
    pub stops: u64,
    /// The longest stop.
    pub longest_stop_ns: u64,
    /// The limit set by the user (`--max-stop`).
    pub max_stop_ns: u64,
}
