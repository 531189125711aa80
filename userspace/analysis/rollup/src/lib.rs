//! Rollups: the results of one segment of a trace for each group of processes, in a few kilobytes.
//!
//! A rollup has a row for each group: CPU time by measurement, accesses, a miss-ratio curve with
//! intervals, bytes loaded into caches, and the places and data objects with the most loads.
//! Rows are merges (`merge`): rows of several segments, or of several groups, add up to one.
//!
//! Sources of error: as in `locality_estimate::reuse`. A reuse across the end of a
//! segment is unknown, so the rollup has the number of watches cut off by the end.
//! Accesses of samples without a window are taken from windows of equal code.

mod key;
mod merge;
mod row;

pub use key::{By, Keys};
pub use merge::{merged, without_small};
pub use row::{CpuTime, Health, PLACE_SIZE, Point, Rollup, Row, Who, of};

/// Fewest windows for a miss ratio.
pub const FEWEST: u64 = 30;

/// The group of the groups without room.
pub const OTHER: &str = "other";

#[cfg(test)]
mod tests;
