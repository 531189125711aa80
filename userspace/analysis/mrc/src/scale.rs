//! The fine scale of distances, and sums on it.
//!
//! 64 bins in each power of two; every distance below 128 has a separate bin. A distance
//! is known to 1.6 %, far less than the models' error, in a few KiB for every range.

use super::distances::{Bar, Distances};

/// log2 of the number of bins in each power of two.
const SUB_BITS: u32 = 6;
/// Distances below the constant have a bin each.
const SINGLE: u64 = 2 << SUB_BITS;

/// Bin of a distance.
pub fn index(distance: u64) -> usize {
    if distance < SINGLE {
        return distance as usize;
    }
    let shift = distance.ilog2() - SUB_BITS;
    (u64::from(shift) << SUB_BITS) as usize + (distance >> shift) as usize
}

/// First distance of a bin; saturates beyond the last.
pub fn low(index: usize) -> u64 {
    let index = index as u64;
    if index < SINGLE {
        return index;
    }
    let shift = (index >> SUB_BITS) - 1;
    let mantissa = index - (shift << SUB_BITS);
    if shift > u64::from(63 - SUB_BITS) { u64::MAX } else { mantissa << shift }
}

/// Sums weights on the fine scale. The order of additions does not matter but for rounding.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    weights: Vec<f64>,
}

impl Sums {
    /// Adds weight at one distance.
    pub fn add(&mut self, distance: u64, weight: f64) {
        let index = index(distance);
        if self.weights.len() <= index {
            self.weights.resize(index + 1, 0.0);
        }
        if let Some(sum) = self.weights.get_mut(index) {
            *sum += weight;
        }
    }

    /// Adds weight for whole distances with means spread evenly from `low` to `high`;
    /// both may be fractions. A mean m stands for the interval from m to m + 1; the
    /// interval's share in each whole distance preserves the mean. Negative is 0.
    pub fn spread(&mut self, low: f64, high: f64, weight: f64) {
        let low = low.max(0.0);
        let end = high.max(low) + 1.0;
        let density = weight / (end - low);
        let mut from = low;
        while from < end {
            let until = (self::low(index(from as u64) + 1) as f64).min(end);
            if until <= from {
                // Beyond 2^53 the sum of a distance and 1 is the distance.
                return self.add(from as u64, density * (end - from));
            }
            self.add(from as u64, density * (until - from));
            from = until;
        }
        if end <= low {
            self.add(low as u64, weight);
        }
    }

    /// Adds the sums of another part.
    pub fn merge(&mut self, other: &Self) {
        if self.weights.len() < other.weights.len() {
            self.weights.resize(other.weights.len(), 0.0);
        }
        self.weights.iter_mut().zip(&other.weights).for_each(|(sum, more)| *sum += more);
    }

    /// The histogram of the weights added, and of `cold` touches without a distance.
    pub fn finish(&self, cold: f64) -> Distances {
        let filled = self.weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
        let bars = filled.map(|(i, &weight)| Bar { low: low(i), high: low(i + 1), weight });
        Distances::of_sorted(bars.collect(), cold)
    }
}
