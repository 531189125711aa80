//! The data model: everything an analysis may see of one traced run.
//!
//! Plain values without behaviour. The tracer fills them, the profile file stores them, analyses
//! read them. Not here: kernel layouts (`locality-common`) and anything that reads a process.
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
pub use flow::{FlowEdge, LoopReading, WindowFlow};
pub use group::Group;
pub use kernel::KernelSample;
pub use loops::{Dependence, LoopAccess, LoopNeeds, SeenLoop};
pub use printable::printable;

/// One traced run, whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// What was run, on what, for how long.
    pub run: Run,
    /// Threads seen, indexed by [`ThreadId`].
    pub threads: Vec<Thread>,
    /// Program files and other mappings that frames refer to, indexed by [`ModuleId`].
    pub modules: Vec<Module>,
    /// Source-level frames, indexed by [`FrameId`]; one address with inlined calls has several.
    pub frames: Vec<Frame>,
    /// Call stacks, indexed by [`StackId`].
    pub stacks: Vec<Stack>,
    /// Kinds of processes that samples belong to, indexed by [`GroupId`]; none in a profile of format
    /// version 6 or before.
    pub groups: Vec<Group>,
    /// Points of execution that the clock sampled.
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
    /// Loops that windows show, in the order of samples; none in a profile that does not know any.
    pub loops: Vec<SeenLoop>,
    /// Control flow of windows, in the order of samples; none in a profile that does not know any.
    pub flows: Vec<WindowFlow>,
    /// What tests of loops compared, in the order of samples; none with `--no-values`.
    pub readings: Vec<LoopReading>,
    /// Samples in the kernel, in the order of time: some of those that [`Run::ticks`] counts.
    pub kernel_samples: Vec<KernelSample>,
    /// Data objects that accesses lie in, indexed by [`ObjectId`]; none in a profile that does not know any.
    pub objects: Vec<Object>,
    /// Structure types of objects, indexed by [`RecordId`].
    pub records: Vec<Record>,
    /// Parts of objects, indexed by [`FieldId`].
    pub fields: Vec<Field>,
    /// Which object each access lies in, where it was looked for.
    pub located: Vec<Located>,
    /// What was seen of the heap; `None` where allocations were not recorded.
    pub heap: Option<Heap>,
    /// What was seen, filtered, lost and refused.
    pub ledger: Ledger,
    /// What the measurement cost the targets.
    pub overhead: Overhead,
    /// Sentences that a reader of the report must know (degraded modes, refused rights, …), most
    /// important first.
    pub notices: Vec<String>,
    /// True when the trace was ended by something other than its own stop (the file was recovered).
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

/// What was run, on what, for how long.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// The launched command line, or the one of the first attached process.
    pub command: String,
    /// Process ids at the start of the trace.
    pub pids: Vec<u32>,
    /// Wall-clock start, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// Monotonic clock at the start; all other times count from here.
    pub started_mono_ns: u64,
    /// Length of the trace.
    pub wall_ns: u64,
    /// CPU time that the targets used meanwhile.
    pub cpu_ns: u64,
    /// Clock samples of the targets, and those of them that met a thread in the kernel; `None` where that is
    /// not known.
    pub ticks: Option<(u64, u64)>,
    /// Page faults of the targets without input or output meanwhile; `None` where that is not known.
    pub page_faults: Option<u64>,
    /// The processor as measured at the start of the trace; `None` in profiles of earlier versions.
    pub processor: Option<Processor>,
    /// The machine.
    pub host: Host,
    /// Live or exact.
    pub mode: Mode,
    /// Where addresses, rates and times came from.
    pub sources: Sources,
    /// Why the trace ended, in words: "duration", "Ctrl-C", "last target ended", ….
    pub ended_by: String,
    /// Watchpoint policy, as on the command line.
    pub policy: String,
    /// Time distances shorter than this cannot be told from 0 (trap cost and clock resolution).
    pub distance_resolution_ns: u64,
    /// How far single readings of what a trap costs, taken during the trace, lay from what was
    /// believed when each was taken: their median. What all readings have in common with the belief
    /// is not in it. Nothing where there were too few.
    pub distance_scatter_ns: Option<u64>,
    /// Touches by the kernel were passed over (`--user-only`), so that no reuse is one.
    pub user_only: bool,
    /// Version of the tool that wrote the profile.
    pub tool_version: String,
}

/// What the processor was measured to do, as far as advice needs it. Times are in cycles.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Processor {
    /// Cycles in a nanosecond.
    pub clock: f64,
    /// Of the second-level cache, the last-level cache and memory: how much longer a line takes
    /// than one in the first-level cache, time between lines that follow one another, and the same
    /// of lines that are stored to.
    pub levels: [[f64; 3]; 3],
    /// Between lines of memory at random places whose loads do not depend on each other; 0 where
    /// not measured.
    pub parallel_line: f64,
    /// Nanoseconds of a page fault without input or output; 0 where not measured.
    pub page_fault_ns: f64,
    /// What the core does in a cycle, and how long operations take; `None` where not measured.
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
    /// Stores in a cycle, each to another line than the one before.
    pub stores: f64,
    /// Stores in a cycle, each to the line of the one before.
    pub close_stores: f64,
    /// Integer operations in a cycle.
    pub integers: f64,
    /// Operations of floating point in a cycle.
    pub floats: f64,
    /// Latency of a load from the first-level cache.
    pub load: f64,
    /// From a store to a load of its value by the same address registers.
    pub forward: f64,
    /// From a store to a load of its value by another address.
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

/// Where the numbers come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Effective addresses: "zero-skid stop", "sampled registers", "PEBS", ….
    pub address: String,
    /// Accesses per nanosecond; `None` where no rate is known (distances stay in CPU time).
    pub rate: Option<String>,
    /// The sampling clock: "cpu-clock 97 Hz", ….
    pub clock: String,
    /// What was put into the traced programs to follow allocations: "a library that the command
    /// loaded first (LD_PRELOAD)", …; `None` where nothing was.
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

/// One cache level as sysfs tells it.
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

/// One thread of a target.
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
    /// End, if it was seen.
    pub ended_ns: Option<u64>,
    /// Why the thread could not be held for zero-skid stops; `None` when it was.
    pub not_held: Option<String>,
}

/// A mapped file, or a named mapping ("[vdso]", "[anon]", "[jit]").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    /// Path as the process sees it, or the mapping's name in brackets.
    pub path: String,
    /// GNU build id, lower-case hexadecimal; empty when there is none.
    pub build_id: String,
}

/// One source-level frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Instruction address in the process.
    pub address: u64,
    /// File that it is mapped from.
    pub module: Option<ModuleId>,
    /// Virtual address inside the module's own address space (what `addr2line` takes), when there
    /// is a module.
    pub module_address: Option<u64>,
    /// Demangled function name; `None` with a reason in [`Frame::unknown`].
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Source line, 1-based.
    pub line: Option<u32>,
    /// True for a call that the compiler inlined into the frame that follows.
    pub inlined: bool,
    /// Why function or line is missing: "no debug info", "stripped", "unmapped", ….
    pub unknown: Option<String>,
}

impl Frame {
    /// The address as a reader of the file takes it; of code without a file, that in the process. `None`
    /// of code whose file could not be opened: where it lies in the file is not known then.
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

/// A point of execution that the clock sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// When.
    pub time_ns: u64,
    /// Where.
    pub thread: ThreadId,
    /// Call stack; its innermost frame is the interrupted instruction.
    pub stack: StackId,
    /// CPU time that this sample stands for (the sampling period at that moment).
    pub period_ns: u64,
    /// True when the thread was stopped there, so that the use is exact.
    pub held: bool,
    /// The first memory access at or after the sampled instruction, or why it is unknown.
    pub access: Result<Access, String>,
    /// What kind of process it was then; `None` where the profile does not know it.
    pub group: Option<GroupId>,
}

/// A memory access that is known before it happens, or that a trap showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Instruction that makes the access.
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
    /// Read and written by one instruction.
    ReadWrite,
    /// Not known (kernel copy, undecodable instruction).
    #[default]
    Unknown,
}

/// One touch of a watched location.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Touch {
    /// When it trapped.
    pub time_ns: u64,
    /// Who touched.
    pub thread: ThreadId,
    /// Call stack, innermost frame is the accessing instruction.
    pub stack: StackId,
    /// Direction, where the instruction was found.
    pub kind: AccessKind,
    /// True when the kernel touched on the thread's behalf (a system call copied the data).
    pub kernel: bool,
}

/// What a shadow window at a sample showed: the instructions that the thread was about to execute.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// The sample at whose stop it was taken.
    pub sample: SampleId,
    /// Instructions in it.
    pub instructions: u64,
    /// Accesses in it.
    pub accesses: u64,
    /// Why it ended, in words ("whole", "system call", …).
    pub end: String,
    /// Granule touches of the accesses in it by size of granule: an access that spans two granules
    /// touches twice.
    pub touches: Vec<(u32, u64)>,
    /// How fast the thread made accesses around the sample; `None` where that is not known.
    pub rate: Option<Rate>,
}

/// Accesses per nanosecond of CPU time.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// Best guess.
    pub value: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end of its interval.
    pub high: f64,
    /// Where it comes from ("memory counters", "registers", "same code", "model", …).
    pub source: String,
}

/// A use chosen at random among the accesses of a window, whose reuse the window or a watchpoint looks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Use {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Accesses of the thread between the stop and this one.
    pub skip: u64,
    /// The access.
    pub access: Access,
    /// The touched byte that stands for it, chosen at random among the words of the access; its
    /// granules are those followed.
    pub address: u64,
    /// Calling context of the use.
    pub stack: StackId,
    /// What the window showed, by size of granule in bytes (8, 64).
    pub seen: Vec<(u32, Seen)>,
}

/// An access to a line of 64 bytes that was not touched shortly before, drawn at random among those
/// of a part of a window, and what the rest of the window does with the line: it loads the line
/// where that was left alone for long enough.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The sample at whose stop the window was taken.
    pub sample: SampleId,
    /// Accesses of the thread between the stop and this one.
    pub skip: u64,
    /// Accesses since the touch of the line before, [`Burst::GAP`] at least; `None`: the window shows none.
    pub gap: Option<u64>,
    /// The access.
    pub access: Access,
    /// First byte of the line.
    pub line: u64,
    /// Calling context.
    pub stack: StackId,
    /// Such touches that it stands for, for each access of the thread.
    pub stands_for: f64,
    /// Accesses after it that the window holds.
    pub shown: u64,
    /// Touches of the line, this one first.
    pub bursts: Vec<Burst>,
}

/// Touches of a line that follow each other within less than [`Burst::GAP`] accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Accesses from the first of the touches to the first one of these.
    pub from: u64,
    /// … to the last one.
    pub to: u64,
    /// How many.
    pub touches: u64,
    /// Bytes of the line that they touch, a bit each.
    pub bytes: u64,
}

impl Burst {
    /// No cache of 32 KiB or more loses a line in so few accesses: they touch too few others, two
    /// lines each at most.
    pub const GAP: u64 = 256;

    /// Words of eight bytes of a line of which any is among these bytes, a bit each.
    pub fn words(bytes: u64) -> f64 {
        (0..64).step_by(8).filter(|first| bytes >> first & 0xff != 0).count() as f64
    }
}

/// What a window showed of a granule after its use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Seen {
    /// Touched again.
    Reused {
        /// Accesses from use to reuse: the time distance, 1-based.
        distance: u64,
        /// The access that touched it.
        access: Access,
        /// Its calling context.
        stack: StackId,
    },
    /// Not touched by the accesses after the use that the window holds.
    Open {
        /// How many those are.
        accesses: u64,
    },
}

/// One arming of a watchpoint, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Watch {
    /// The sample that asked for it.
    pub sample: SampleId,
    /// The use in that sample's window that it follows; `None` where there was no window: then the
    /// use is the sample's own access. Several watches may follow one use, on different words of
    /// its line.
    pub of_use: Option<UseId>,
    /// First watched byte, aligned to [`Watch::bytes`].
    pub address: u64,
    /// Watched bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// When it was armed.
    pub armed_ns: u64,
    /// When it was disarmed, by whatever cause.
    pub ended_ns: u64,
    /// The use. From the stop (exact), or the first trap where the thread was not held; `None` when
    /// it never came.
    pub use_touch: Option<Touch>,
    /// True when the first trap confirmed the use at its instruction.
    pub use_confirmed: bool,
    /// What happened.
    pub outcome: Outcome,
    /// Probability that this use was chosen among those of its window, that the stop was not taken
    /// for something else, and that the policy armed it at all, in (0, 1].
    pub p_arm: f64,
    /// Probability that the policy let it live until [`Watch::ended_ns`], in (0, 1].
    pub p_survive: f64,
    /// Threads of the process in which it was armed.
    pub threads_armed: u32,
    /// Threads of the process that were alive.
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
        /// Accesses of the thread in that time, the reuse included: by its hardware counters, or by
        /// the registers of the loop that touched, to some percent. `None` where neither counts,
        /// and between threads.
        accesses: Option<u64>,
    },
    /// The policy gave its register to a newer sample (right-censored).
    Replaced,
    /// Still armed when the trace ended (right-censored).
    StillArmed,
    /// The kernel refused the register.
    Refused,
    /// The process ended or replaced its program meanwhile.
    Gone,
}

/// What was seen, filtered, lost and refused. See [`Ledger::imbalance`] for what must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Events that the eBPF programs saw.
    pub seen: u64,
    /// … of which not of a target, or in kernel mode, or otherwise out of scope.
    pub filtered: u64,
    /// … of which written to the ring.
    pub submitted: u64,
    /// Records that user space read.
    pub received: u64,
    /// Losses by cause; each cause is one counter in the kernel or in user space.
    pub lost: Vec<(String, u64)>,
    /// Events that were filtered, by cause (a breakdown of [`Ledger::filtered`]).
    pub filtered_by: Vec<(String, u64)>,
    /// Watchpoints armed.
    pub armed: u64,
    /// … whose location was reused.
    pub trapped: u64,
    /// … withdrawn before (replaced, still armed, process gone).
    pub censored: u64,
    /// … refused by the kernel.
    pub refused: u64,
    /// Uses that no scan could reach, by reason.
    pub unreachable: Vec<(String, u64)>,
    /// Stops asked for, made, and not made by cause.
    pub stops: Vec<(String, u64)>,
}

impl Profile {
    /// What was seen and lost; `None` where the trace was cut short before that was written.
    pub fn known_ledger(&self) -> Option<&Ledger> {
        (!self.partial || self.ledger != Ledger::default()).then_some(&self.ledger)
    }
}

impl Ledger {
    /// Sum of all losses.
    pub fn lost_total(&self) -> u64 {
        // Saturating, as below: a damaged profile may hold any number.
        self.lost.iter().fold(0, |sum, (_, n)| u64::saturating_add(sum, *n))
    }

    /// The first equation that does not hold, in words, or `None` when the books balance:
    /// seen = filtered + submitted + lost, submitted = received, armed = trapped + censored + refused.
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

/// What the measurement cost the targets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overhead {
    /// What the user allowed, percent of the targets' CPU time.
    pub budget_percent: f64,
    /// (stopped time + traps + BPF in the targets' threads) / (targets' CPU time + stopped time), percent.
    pub measured_percent: f64,
    /// Time that target threads stood still because of us.
    pub stop_ns: u64,
    /// Traps × calibrated trap cost.
    pub trap_ns: u64,
    /// BPF run time and clock interrupts in the targets' threads.
    pub bpf_ns: u64,
    /// Probes of allocation functions, where allocations are followed.
    pub heap_ns: Option<u64>,
    /// What string instructions lost while words were watched, where they are slower then.
    pub string_ns: Option<u64>,
    /// Our own CPU time.
    pub controller_ns: u64,
    /// Number of stops.
    pub stops: u64,
    /// The longest one.
    pub longest_stop_ns: u64,
    /// The limit that the user set (`--max-stop`).
    pub max_stop_ns: u64,
}
