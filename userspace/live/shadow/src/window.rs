//! What a window yields: events of the access stream, the values moved, registers at each block,
//! and why it ended.
//!
//! The parts are slices given by the caller, to be written straight into shared memory. A reader of
//! a [`Log`] in shared memory must not trust its numbers.

use locality_stream::{Event, Plain};

/// How far a window goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Limits {
    /// Most instructions; an iteration of a repeated string instruction counts as one.
    pub instructions: u64,
    /// Most distinct pages read.
    pub pages: u64,
    /// Longest time in nanoseconds, looked at from time to time.
    pub time_ns: u64,
}

/// Why a window ended. The names are those of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum End {
    /// As many instructions as were asked for.
    Instructions = 0,
    /// The limit of pages.
    Pages = 1,
    /// The limit of time.
    Time = 2,
    /// The log has no room left.
    Log = 3,
    /// A system call comes next. `detail`: its number.
    SystemCall = 4,
    /// Data that cannot be read (unmapped, the kernel's own pages). `detail`: address.
    Unreadable = 5,
    /// Code that cannot be read. `detail`: address.
    UnreadableCode = 6,
    /// An instruction outside of the list. `detail`: its address.
    Unsupported = 7,
    /// Bytes that are no instruction. `detail`: address.
    Invalid = 8,
    /// The program wrote to a page of code. `detail`: address.
    CodeWritten = 9,
    /// A breakpoint, of a debugger or of a probe. `detail`: address.
    Breakpoint = 10,
    /// The instruction would fault (division by zero, misaligned vector, …). `detail`: address.
    Fault = 11,
    /// A random number, a performance counter or the processor's number comes next. `detail`: address.
    Unrepeatable = 12,
    /// The thread stood in a system call that the kernel wants to start again.
    Restart = 13,
    /// The thread runs 32-bit code.
    NotLongMode = 14,
    /// The process that executes windows died or hung.
    Helper = 15,
    /// The kernel's clock page, of a process in another time namespace than the tracer's children:
    /// the page cannot be read there, and ours tells other times. `detail`: address.
    OtherTime = 16,
}

impl End {
    /// All ends, in order of their numbers.
    pub const ALL: [End; 17] = [
        End::Instructions,
        End::Pages,
        End::Time,
        End::Log,
        End::SystemCall,
        End::Unreadable,
        End::UnreadableCode,
        End::Unsupported,
        End::Invalid,
        End::CodeWritten,
        End::Breakpoint,
        End::Fault,
        End::Unrepeatable,
        End::Restart,
        End::NotLongMode,
        End::Helper,
        End::OtherTime,
    ];

    /// The reason with this number.
    pub fn from_number(number: u32) -> Option<End> {
        End::ALL.get(number as usize).copied()
    }

    /// In words, for reports.
    pub fn name(self) -> &'static str {
        match self {
            End::Instructions => "whole",
            End::Pages => "page limit",
            End::Time => "time limit",
            End::Log => "log full",
            End::SystemCall => "system call",
            End::Unreadable => "unreadable data",
            End::UnreadableCode => "unreadable code",
            End::Unsupported => "unsupported instruction",
            End::Invalid => "no instruction",
            End::CodeWritten => "code was written",
            End::Breakpoint => "breakpoint",
            End::Fault => "fault",
            End::Unrepeatable => "random number or processor number",
            End::Restart => "system call to be restarted",
            End::NotLongMode => "32-bit code",
            End::Helper => "window process did not answer",
            End::OtherTime => "clock of another time namespace",
        }
    }
}

/// How much a window holds, and how it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses, one entry of [`Log::values`] each.
    pub accesses: u64,
    /// What [`End`] says.
    pub detail: u64,
    /// Time spent in nanoseconds.
    pub time_ns: u64,
    /// Entries of [`Log::events`].
    pub events: u32,
    /// Blocks begun, one entry of [`Log::registers`] each.
    pub blocks: u32,
    /// Distinct pages read from the target.
    pub pages: u32,
    /// Number of an [`End`].
    pub end: u32,
}

const _: () = assert!(size_of::<Counts>() == 48);
// SAFETY: repr(C) without padding, integers only.
unsafe impl Plain for Counts {}

/// Where a window is written. The room of each slice bounds the window ([`End::Log`]).
#[derive(Debug)]
pub struct Log<'a> {
    /// Accesses and blocks in order, as in the exact engine's stream: a
    /// [`locality_stream::Kind::BLOCK`] event where control enters straight-line code, and a
    /// [`locality_stream::Kind::BLOCK_CUT`] at the end.
    pub events: &'a mut [Event],
    /// For each access event the value moved: what was loaded, or what is stored; its low 8 bytes,
    /// zero-extended. 0 for accesses of the kinds whose values are not stored (saved states).
    pub values: &'a mut [u64],
    /// For each block event the general registers there, in the order of
    /// [`locality_isa::Registers::general`].
    pub registers: &'a mut [[u64; 16]],
    /// Filled in at the end.
    pub counts: Counts,
}
