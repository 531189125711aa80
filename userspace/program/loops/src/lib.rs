//! Natural loops in the machine code that windows show: trips, and for each access instruction the strides
//! inside the loop and from one run of the loop to the next.
//!
//! [`Graph`] collects the control flow of all windows of a program, call by call,
//! and finds the program's loops: strongly connected parts with one entry, nested
//! (Aho, Lam, Sethi, Ullman, "Compilers", 2nd edition, 9.6). [`Graph::observe`]
//! then follows one window through the loops. A loop belongs to one function;
//! accesses of a function without loops belong to the loop with the call.
//!
//! Sources of error: control flow that no window has shown is not known, hence an outer loop longer
//! than a window appears only after several windows; a loop with two entries has the entry with the
//! lowest address as header; strides of an instruction shared by several calls mix the calls.
//!
//! Pure: no I/O, no process. Not here: source lines, CPU time, advice.

mod accesses;
mod graph;
mod hash;
mod origin;
mod transfers;
mod walk;

pub use accesses::{Dependence, LoopAccess};
pub use graph::Graph;
pub use transfers::{Edge, MOST_EDGES, Reading, Transfers, transfers};

use locality_stream::{Code, Event};

/// A window: the next instructions of a thread, and their accesses.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    /// Blocks and accesses in order.
    pub events: &'a [Event],
    /// The value moved, for each access event; may be empty.
    pub values: &'a [u64],
    /// The code that `events` refers to.
    pub code: Code<'a>,
    /// Instructions executed.
    pub instructions: u64,
}

/// The loops that a window shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Loops with the most instructions first.
    pub loops: Vec<Loop>,
    /// For each instruction executed, the number of its innermost loop among `loops`.
    pub of_instruction: Vec<Option<u32>>,
}

/// A loop as shown by one window, without inner loops.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Loop {
    /// Address of the first instruction of the header.
    pub header: u64,
    /// Address of the jump back to the header.
    pub latch: u64,
    /// Lowest and highest address of an instruction of the loop in its own function.
    pub span: (u64, u64),
    /// Header of the surrounding loop, perhaps in a calling function.
    pub around: Option<u64>,
    /// Calls from the window's first function down to the loop: return addresses, outermost first, and how
    /// many functions were left before.
    pub called: Vec<u64>,
    /// Functions that the window left before the loop began.
    pub returned: usize,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses made.
    pub accesses: u64,
    /// Times that the header was reached.
    pub iterations: u64,
    /// Iterations of each whole run in the window, in order; without
    /// a whole run, those of a run with a length known from the end.
    pub trips: Vec<u64>,
    /// Whether the window starts in this loop.
    pub is_first: bool,
    /// Access instructions, in descending order of lines, [`MOST_ACCESSES`] at most.
    pub by_access: Vec<LoopAccess>,
}

/// Access instructions of a loop that are listed.
pub const MOST_ACCESSES: usize = 16;

#[cfg(test)]
mod tests;
