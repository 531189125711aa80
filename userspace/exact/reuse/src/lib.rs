//! Exact reuse of an access stream.
//!
//! [`Engine`] takes the events of one thread (or of several in one order) and keeps, in an arena,
//! for each granularity: time distances (accesses between two touches of a granule, 1-based), stack
//! distances (distinct granules between them, 0-based), first touches, phases, and the pairs of use
//! and reuse by instruction and calling context. [`Summary`] is what it comes to: plain values that
//! merge.
//!
//! What is exact: every count. Distances are counted in bins (`bins`): exact below 64, then 32 bins
//! per power of two; so the miss ratio of a fully associative LRU cache is exact at every size of
//! at most six significant bits. Pairs keep log2 bins. What is bounded and says so: contexts, sites
//! and pairs.
//!
//! Of a sample of lines ([`SampledLines`], SHARDS) the same counts are taken by groups of lines, and
//! [`SampleEstimates`] makes estimates with intervals of them.
//!
//! Pure: no I/O, no threads. Not here: estimates from watchpoints, symbols.

mod batch;
mod bins;
mod cells;
mod config;
mod contexts;
mod engine;
mod estimate;
mod grain;
mod groups;
mod lanes;
mod lines;
mod map;
mod opt;
mod order;
mod places;
mod prefetch;
mod sets;
mod sites;
mod summary;
mod twin;

pub use bins::{FINE_BINS, LOG2_BINS, fine_bin, fine_low, log2_bin, log2_bounds, to_log2};
pub use config::{Config, What};
pub use engine::{Engine, MAX_GRANULARITIES, OpenError};
pub use estimate::{Estimate, LEAST_SAMPLED, SampleEstimates, Share, beyond, distances, lines_of, scaled};
pub use lines::{LINE_BITS, LINE_GROUPS, MOST_LINES, PAIR_GROUPS, SampledLines, hash_of_line};
pub use opt::OptMisses;
pub use sets::{SetStacks, SetSummary};
pub use summary::{Cell, Context, GrainSummary, OfGroup, Phase, Site, Summary};
