//! What an engine is asked to measure, and the bounds of its memory.

use std::ops::Range;

/// Which accesses are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Loads and stores.
    Data,
    /// Fetches of instructions: each executed instruction is one access to its bytes. Needs block events.
    Instructions,
}

/// Settings of an [`crate::Engine`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Accesses measured.
    pub what: What,
    /// Granularities in bytes, powers of two; at most [`crate::MAX_GRANULARITIES`].
    pub granularities: Vec<u64>,
    /// Granularities (among those above) for which pairs are counted.
    pub pairs: Vec<u64>,
    /// Whether the time distances in each bin are summed too, in all and by phase: tells their mean.
    pub sums: bool,
    /// Only accesses by instructions in these address ranges are seen; empty: all.
    pub functions: Vec<Range<u64>>,
    /// Phases at most, an even number of at least 2; they merge by twos when there are more.
    pub max_phases: usize,
    /// Accesses of a phase at first.
    pub phase_accesses: u64,
    /// Nodes of the calling-context tree at most; 1 for no contexts.
    pub max_contexts: usize,
    /// Instructions in contexts at most.
    pub max_sites: usize,
    /// Pairs with their distance bins at most, for each granularity; 26 to 51 bytes each.
    pub max_cells: usize,
    /// The events are those of a sample of lines: one of this number of lines, as
    /// [`crate::SampledLines`] takes; 0: of all lines. Then phases are not counted, and counts are
    /// parted by groups of lines.
    pub sample_lines: u32,
    /// Room for last touches at first, in granules; grows.
    pub first_slots: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            what: What::Data,
            granularities: vec![8, 64],
            pairs: vec![64],
            sums: false,
            functions: Vec::new(),
            max_phases: 128,
            phase_accesses: 1 << 16,
            max_contexts: 1 << 15,
            max_sites: 1 << 21,
            max_cells: 1 << 21,
            sample_lines: 0,
            first_slots: 1 << 13,
        }
    }
}
