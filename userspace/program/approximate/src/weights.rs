//! Raw assignment and loop compensation (Rutar and Hollingsworth 2011, §3.3.1 and §3.3.2, eq. 1 to 5).
//!
//! A *place* is what a sample falls on: a source line or an instruction. A *read* is a variable
//! together with the way its address is made, so that `y[a]` and `y[b]` are two reads of `y`; each
//! counts once at a place.
//!
//! Where the paper is in two minds, its Figure 2 decides: V of eq. 1 to 5 is the set of all reads
//! in the loop, not only of those at the place; and a raw weight equal to the threshold is above it
//! (y\[b\] at .75 takes part).
//!
//! Not here: finding reads and loops in code (`reads`, `graph`); skid (`skid`).

use std::collections::{BTreeMap, BTreeSet};

/// Threshold of the paper's example: reads at no more than half of the places of the loop gain weight.
pub const THRESHOLD: f64 = 0.75;

/// The unique reads at each place. Places without reads are present with an empty set: eq. 1 counts them.
pub type Reads<P, V> = BTreeMap<P, BTreeSet<V>>;

/// Raw assignment: each unique read at the place gets an equal part of one sample. Empty if nothing is read.
pub fn raw<V: Ord + Clone>(reads: &BTreeSet<V>) -> BTreeMap<V, f64> {
    reads.iter().map(|read| (read.clone(), 1.0 / reads.len() as f64)).collect()
}

/// Final weights of the reads of one loop (eq. 5), and their parts.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopWeights<V: Ord> {
    /// Eq. 1: 1 − (places where it is read ÷ places of the loop)².
    pub raw: BTreeMap<V, f64>,
    /// Eq. 4, zero below the threshold.
    pub adjusted: BTreeMap<V, f64>,
    /// Eq. 5; they sum to the number of reads.
    pub last: BTreeMap<V, f64>,
}

/// Loop compensation for the places of one loop.
///
/// `None` where the equations give no result: no read reaches the threshold, so the weight taken
/// away by eq. 2 has no receiver (a loop on a single line, with raw weights of 0).
pub fn loop_weights<P: Ord, V: Ord + Clone>(reads: &Reads<P, V>, threshold: f64) -> Option<LoopWeights<V>> {
    let places = reads.len() as f64;
    let mut read_at: BTreeMap<V, u32> = BTreeMap::new();
    for read in reads.values().flatten() {
        *read_at.entry(read.clone()).or_default() += 1;
    }
    let raw: BTreeMap<V, f64> =
        read_at.into_iter().map(|(read, count)| (read, 1.0 - (f64::from(count) / places).powi(2))).collect();
    let to_redistribute: f64 = raw.values().map(|weight| 1.0 - weight).sum();
    let takes = |weight: f64| weight >= threshold;
    let threshold_weights: f64 = raw.values().copied().filter(|weight| takes(*weight)).sum();
    if threshold_weights <= 0.0 {
        return None;
    }
    let adjusted: BTreeMap<V, f64> = raw
        .iter()
        .map(|(read, weight)| {
            let part = if takes(*weight) { weight / threshold_weights * to_redistribute } else { 0.0 };
            (read.clone(), part)
        })
        .collect();
    let last = raw
        .iter()
        .zip(adjusted.values())
        .map(|((read, weight), adjusted)| (read.clone(), weight + adjusted))
        .collect();
    Some(LoopWeights { raw, adjusted, last })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is read where: raw parts sum to one, final weights to the number of reads, and
        /// a read at fewer places never weighs less.
        #[test]
        fn sums_and_order(lines in prop::collection::vec(prop::collection::btree_set(0_u8..12, 0..6), 1..9)) {
            let reads: Reads<usize, u8> = lines.into_iter().enumerate().collect();
            for at in reads.values().filter(|at| !at.is_empty()) {
                prop_assert!((raw(at).values().sum::<f64>() - 1.0).abs() < 1e-9);
            }
            let Some(weights) = loop_weights(&reads, THRESHOLD) else {
                // Then each is read in more than half of the places.
                for read in reads.values().flatten() {
                    let count = reads.values().filter(|at| at.contains(read)).count();
                    prop_assert!(2 * count > reads.len());
                }
                return Ok(());
            };
            let sum: f64 = weights.last.values().sum();
            prop_assert!((sum - weights.last.len() as f64).abs() < 1e-9);
            let count = |read: &u8| reads.values().filter(|at| at.contains(read)).count();
            for (a, weight_a) in &weights.last {
                for (b, weight_b) in &weights.last {
                    prop_assert!(count(a) > count(b) || weight_a + 1e-9 >= *weight_b);
                }
            }
        }
    }
}
