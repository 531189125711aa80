//! Rollups: what one segment of a trace says of each group of processes, in a few kilobytes.
//!
//! A rollup has a row for each group: CPU time by how it was measured, accesses, a miss-ratio curve with
//! intervals, bytes loaded into caches, and the places and data objects that load the most. Rows are merges
//! (`merge`): rows of several segments, or of several groups, add up to one.
//!
//! Sources of error: those of `locality_estimate::reuse`. A reuse across the end of a segment is not known,
//! so that the row has the watches that the end cut off. Accesses of samples without a window are those of
//! the same code elsewhere.

mod key;
mod merge;
mod row;

pub use key::{By, Keys};
pub use merge::{merged, without_small};
pub use row::{CpuTime, Health, PLACE_SIZE, Point, Rollup, Row, Who, of};

/// Windows from which on miss ratios are given.
pub const FEWEST: u64 = 30;

/// The group of all groups for which there is no room.
pub const OTHER: &str = "other";

#[cfg(test)]
mod tests;
