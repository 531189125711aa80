//! The live table of groups of `locality-bpf top`.
//!
//! [`View`] is the state of the screen: span, order, filter, selection. `draw` makes lines of it,
//! `batch` a text without a terminal, `rows` the cells. These four compute only, and tests draw on
//! a buffer. `terminal` reads keys and draws, and gives the terminal back at each way of ending.
//!
//! Names come from traced programs: no control character of a name reaches the terminal.
//!
//! Not here: where rows come from (`locality-service`, and the caller's feed).

mod batch;
mod draw;
mod rows;
mod terminal;
mod view;

pub use batch::{json, text};
pub use terminal::{Error, follow};
pub use view::View;

use locality_rollup::Row;

/// Rows of one stretch of tracing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    /// Start, nanoseconds since the Unix epoch.
    pub started_ns: u64,
    /// Length, nanoseconds.
    pub wall_ns: u64,
    /// A row for each group.
    pub rows: Vec<Row>,
}

/// What is known at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// The moment, nanoseconds since the Unix epoch.
    pub now_ns: u64,
    /// Stretches of at most the last hour.
    pub parts: Vec<Part>,
    /// Data caches of the machine: level and bytes.
    pub caches: Vec<(u8, u64)>,
    /// Cost for the traced programs, as a share of their CPU time.
    pub cost: Option<f64>,
    /// Who traces, in words.
    pub state: String,
    /// Tracing has ended, and no further rows will come.
    pub is_over: bool,
}
