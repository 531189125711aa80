//! Input (readings, windows) and output (rates with an interval and their source).

use locality_stream::{Code, Event};

/// Memory words that the kernel side reads at each clock tick of a process.
pub const WORDS: usize = 4;

/// A thread's registers and a few memory words at one clock tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Monotonic clock in nanoseconds.
    pub time_ns: u64,
    /// Context switches of the thread so far. Equal in two readings: the thread ran without pause
    /// between them.
    pub switches: u64,
    /// Accesses of the thread so far by hardware counters, if available.
    pub accesses: Option<u64>,
    /// Instruction pointer.
    pub ip: u64,
    /// General registers in the order of their encoding (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 … r15).
    pub registers: [u64; 16],
    /// The 8 bytes at each address that was asked for.
    pub words: [u64; WORDS],
    /// Bit i: `words[i]` could be read.
    pub read: u8,
    /// [`Wanted::number`] of the list that was read.
    pub wanted: u32,
}

/// Which words to read from now on. Multiples of 8; 0 stands for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Grows by one with each change of the list; 0 is the empty list with which every process begins.
    pub number: u32,
    /// Addresses in the traced process.
    pub addresses: [u64; WORDS],
}

/// A window: what the thread did right after the stop.
#[derive(Debug, Clone, Copy)]
pub struct WindowView<'a> {
    /// Accesses and blocks in order.
    pub events: &'a [Event],
    /// For each access event, the value moved.
    pub values: &'a [u64],
    /// For each block event, the general registers there.
    pub registers: &'a [[u64; 16]],
    /// The code that `events` refers to.
    pub code: Code<'a>,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses made.
    pub accesses: u64,
}

/// One sample.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// The thread; any unique number within the process.
    pub thread: u32,
    /// Light readings within milliseconds of the stop, oldest first. The stop itself may be among them.
    pub readings: &'a [Reading],
    /// The window at the stop, if taken.
    pub window: Option<WindowView<'a>>,
}

/// A thread's state after a touch of a watched word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moment {
    /// Instruction pointer of the trap, after the instruction that touched.
    pub ip: u64,
    /// General registers, as in [`Reading::registers`].
    pub registers: [u64; 16],
}

/// Two consecutive touches by one thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The watching sample, by its number among those of the process.
    pub sample: usize,
    /// The first.
    pub from: Moment,
    /// The second.
    pub to: Moment,
    /// CPU time in between.
    pub cpu_ns: f64,
    /// Standard deviation of this value.
    pub error_ns: f64,
    /// CPU time from the sample's stop to the second, about.
    pub until_ns: f64,
    /// Accesses after the first that are known not to have touched the word.
    pub without: u64,
}

/// A number with its interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// Best guess.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Estimate {
    /// `value` with a relative uncertainty: low = value / (1 + relative), high = value · (1 + relative).
    pub fn within(value: f64, relative: f64) -> Estimate {
        Estimate { value, low: value / (1.0 + relative), high: value * (1.0 + relative) }
    }

    /// Whether the rate is evidence for other samples.
    pub(crate) fn is_precise(self) -> bool {
        const HALF: f64 = 0.35;
        self.value > 0.0 && self.high <= self.value * (1.0 + HALF)
    }

    /// Standard deviation of its logarithm.
    pub(crate) fn deviation(self) -> f64 {
        (self.high / self.value).ln() / 2.0
    }

    /// Times a factor that is known.
    pub fn times(self, factor: f64) -> Estimate {
        Estimate { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }
}

/// Where a rate comes from, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Hardware counters of loads and stores, read beside the stop.
    Counters,
    /// Memory words that count, read beside the stop; the window says the accesses per step.
    Words,
    /// Registers that advance by a constant stride, read beside the stop.
    Registers,
    /// As [`Source::Words`] or [`Source::Registers`], by a quantity that only never turned back, or
    /// by one reading alone; accesses per step come from several windows.
    Slopes,
    /// The median of other samples of the same place, or the one speed common to all its readings.
    Region,
    /// A timing model of the window, scaled to samples of the process that have a source of their
    /// own and whose code waits for memory about as much; never unscaled.
    Model,
    /// The unscaled timing model alone, or nothing; the interval is a bracket.
    Unknown,
}

impl Source {
    /// All, best first.
    pub const ALL: [Source; 7] = [
        Source::Counters,
        Source::Words,
        Source::Registers,
        Source::Slopes,
        Source::Region,
        Source::Model,
        Source::Unknown,
    ];

    /// In words, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Source::Counters => "hardware counters",
            Source::Words => "memory counters",
            Source::Registers => "loop registers",
            Source::Slopes => "pooled counters",
            Source::Region => "same code",
            Source::Model => "timing model",
            Source::Unknown => "unscaled timing model",
        }
    }

    /// True where the sample's own readings gave the rate.
    pub fn is_own(self) -> bool {
        self <= Source::Slopes
    }
}

/// How fast a thread went around a sample, per nanosecond of CPU time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRate {
    /// Accesses. With [`Source::Unknown`] the ends are a bracket and the value is its middle;
    /// `None` where not even a bracket is known.
    pub accesses_per_ns: Option<Estimate>,
    /// Instructions.
    pub instructions_per_ns: Option<Estimate>,
    /// Source of the rate.
    pub source: Source,
}

impl SampleRate {
    /// Nothing known.
    pub const NONE: SampleRate =
        SampleRate { accesses_per_ns: None, instructions_per_ns: None, source: Source::Unknown };
}
