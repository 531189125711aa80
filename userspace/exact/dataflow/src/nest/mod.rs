//! Self-parallelism of nested regions: how many children of a call or of a loop could run at once.
//!
//! After Garcia, Jeon, Louie and Taylor, "Kremlin: Rethinking and Rebooting gprof for the Multicore Age"
//! (PLDI 2011, §2.2, equation 1). A *region* is a call of a function, or a loop from entry to exit. The
//! children of a call are its calls and loops; the children of a loop are its iterations.
//!
//! ```text
//! SP(region) = (Σ span(child) + cycles of own instructions) ÷ span(region)
//! ```
//!
//! The span of a region is the longest chain of dependences inside; values from before are ready. So every
//! level of the nest has times of its own: a machine without a window for each of [`LEVELS`] levels, and a
//! region begins after all that its level has seen. Iterations are a level of their own. Regions below the
//! last level are part of the region around them, and are counted as not measured.
//!
//! Loops are found as by [`crate::TaskEngine`]: a jump back within a function. Sources of error beyond those
//! named there: control dependences do not count, as in the 2012 paper; recursive calls nest without end,
//! so the inner ones are not measured.

mod engine;
mod state;

use std::{fmt, str::FromStr};

pub use engine::NestEngine;

use crate::setup::{BadSetup, Latency, View};

/// Levels with times of their own: a call takes one, a loop two.
pub(crate) const LEVELS: usize = 16;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NestSetup {
    /// Dependences that are ignored.
    pub view: View,
    /// How long instructions take.
    pub latency: Latency,
}

impl fmt::Display for NestSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ignored: String = self.view.ignored().iter().filter_map(|name| name.chars().next()).collect();
        write!(f, "{ignored}/{}", self.latency.name())
    }
}

impl FromStr for NestSetup {
    type Err = BadSetup;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, BadSetup> {
        let bad = || BadSetup::of(format!("`{text}` describes no regions"));
        let (ignored, latency) = text.split_once('/').ok_or_else(bad)?;
        let has = |letter| ignored.contains(letter);
        let latencies = [Latency::Unit, Latency::Machine];
        Ok(NestSetup {
            view: View { stack: has('s'), induction: has('i'), copies: has('c'), reductions: has('r') },
            latency: latencies.into_iter().find(|known| known.name() == latency).ok_or_else(bad)?,
        })
    }
}

/// Counts of a function, or of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionCount {
    /// Index of the block: the function's first, or the loop's header.
    pub block: u32,
    /// Whether it is a loop.
    pub is_loop: bool,
    /// Calls, or runs of the loop, measured ones only.
    pub instances: u64,
    /// Iterations of measured runs of a loop; 0 for a function.
    pub iterations: u64,
    /// Instructions, with those of callees and inner loops; of nested instances those of the outermost.
    pub work: u64,
    /// Cycles of the longest chains, summed over instances.
    pub span: u64,
    /// Cycles of children one after the other, with own instructions, summed over instances.
    pub parts: u64,
    /// Instances below the last level.
    pub unmeasured: u64,
}

/// Results of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NestSummary {
    /// The requested setup.
    pub setup: NestSetup,
    /// Instructions executed.
    pub work: u64,
    /// Regions with instances, functions before loops, by block.
    pub regions: Vec<RegionCount>,
    /// Events interrupted by a kill.
    pub torn: u64,
    /// Whether room ran out before the end.
    pub full: bool,
}
