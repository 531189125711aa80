//! Hot spots: loops without the loops inside them, and functions without their loops (section V-B of the
//! paper), and how good a selection is (section VI).
//!
//! Shares on this machine come from stops, never from a model: what a model does not know (page faults, the
//! translation of addresses) is in them. Intervals are those of 32 parts of the samples.

use std::collections::BTreeMap;

use crate::build::{Built, Index};
use crate::observed::Observed;

/// Parts of the samples, in order of time, whose shares give the interval.
const PARTS: usize = 32;

/// Place of a spot: number of the function, and the loop's label.
pub type Place = (usize, Option<u64>);

/// A piece of code with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Spot {
    /// Which.
    pub place: Place,
    /// Share of the time at stops here, and its interval.
    pub share: (f64, f64, f64),
    /// Stops in it.
    pub n: usize,
    /// Share of the instructions executed; 0 where no window tells.
    pub instructions: f64,
    /// Instructions of its code.
    pub code: usize,
    /// Whether it belongs to the selection.
    pub selected: bool,
}

/// Time of each spot at stops, heaviest first; what lies in no function that was read is missing.
pub fn at_stops(built: &Built, observed: &Observed) -> Vec<Spot> {
    let index = Index::of(built);
    let all: f64 = observed.stacks.iter().map(|stack| stack.time).sum();
    let mut times: BTreeMap<Place, (f64, usize, Vec<f64>)> = BTreeMap::new();
    let mut totals = vec![0.0; PARTS];
    let count = observed.stacks.len().max(1);
    for (number, stack) in observed.stacks.iter().enumerate() {
        let part = number * PARTS / count;
        totals[part] += stack.time;
        let Some(at) = stack.frames.first() else { continue };
        let Some(place) = index.find(*at).and_then(|function| spot_of(built, function, at.1)) else {
            continue;
        };
        let seen = times.entry(place).or_insert_with(|| (0.0, 0, vec![0.0; PARTS]));
        (seen.0, seen.1) = (seen.0 + stack.time, seen.1 + 1);
        seen.2[part] += stack.time;
    }
    let executed = instructions(built);
    let all_executed: f64 = executed.values().map(|(count, _)| count).sum();
    let mut spots: Vec<Spot> = times
        .into_iter()
        .map(|(place, (time, n, parts))| {
            let share = time / all.max(1e-300);
            // Ratio of sums by parts.
            let used = totals.iter().filter(|total| **total > 0.0).count().max(2) as f64;
            let spread: f64 =
                parts.iter().zip(&totals).map(|(part, total)| (part - share * total).powi(2)).sum();
            let width = 1.96 * (used / (used - 1.0) * spread).sqrt() / all.max(1e-300);
            let (count, code) = executed.get(&place).copied().unwrap_or((0.0, 0));
            Spot {
                place,
                share: (share, (share - width).max(0.0), (share + width).min(1.0)),
                n,
                instructions: count / all_executed.max(1e-300),
                code,
                selected: false,
            }
        })
        .collect();
    spots.sort_by(|a, b| b.share.0.total_cmp(&a.share.0).then(a.place.cmp(&b.place)));
    spots
}

/// The spot of an address.
pub fn spot_of(built: &Built, function: usize, address: u64) -> Option<Place> {
    let read = built.functions.get(function)?;
    let block = read.code.block_of_byte(address)?;
    let of = read.graph.innermost.get(block).copied().flatten();
    let label = of.and_then(|of| read.graph.loops.get(of)).map(|found| read.code.blocks[found.header].start);
    Some((function, label))
}

/// Weighed instructions executed, and instructions of the code, of each spot.
pub fn instructions(built: &Built) -> BTreeMap<Place, (f64, usize)> {
    let mut sums: BTreeMap<Place, (f64, usize)> = BTreeMap::new();
    for (number, read) in built.functions.iter().enumerate() {
        for (block, info) in read.code.blocks.iter().enumerate() {
            let of =
                read.graph.innermost[block].map(|of| read.code.blocks[read.graph.loops[of].header].start);
            let size = read.code.of(block).len();
            let count = built.executions.get(&(number, info.start)).copied().unwrap_or(0.0);
            let sum = sums.entry((number, of)).or_default();
            (sum.0, sum.1) = (sum.0 + count * size as f64, sum.1 + size);
        }
    }
    sums
}

/// Marks the spots that hold `coverage` of the time with at most `leanness` of the code, greedily from the
/// heaviest on; leanness goes first. Returns what they hold and how much code they are.
pub fn select(spots: &mut [Spot], code: usize, coverage: f64, leanness: f64) -> (f64, f64) {
    let (mut time, mut size) = (0.0, 0);
    for spot in spots {
        let fits = (size + spot.code) as f64 <= leanness * code as f64;
        spot.selected = time < coverage && fits;
        if spot.selected {
            (time, size) = (time + spot.share.0, size + spot.code);
        }
    }
    (time, size as f64 / code.max(1) as f64)
}

/// Selection quality for 1 … `most` spots: of the first N of `order`, the time that they really hold, over
/// what the N heaviest hold: 1 - |P - M| / M.
pub fn selection_quality<K: Ord + Copy>(order: &[K], measured: &BTreeMap<K, f64>, most: usize) -> Vec<f64> {
    let mut heaviest: Vec<f64> = measured.values().copied().collect();
    heaviest.sort_by(|a, b| b.total_cmp(a));
    let sizes = 1..=most.min(heaviest.len());
    sizes
        .map(|n| {
            let best: f64 = heaviest.iter().take(n).sum();
            let found: f64 = order.iter().take(n).filter_map(|key| measured.get(key)).sum();
            if best > 0.0 { 1.0 - (found - best).abs() / best } else { 1.0 }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(share: f64, code: usize) -> Spot {
        Spot {
            place: (0, Some(code as u64)),
            share: (share, share, share),
            n: 1,
            instructions: 0.0,
            code,
            selected: false,
        }
    }

    #[test]
    fn leanness_goes_before_coverage() {
        let mut spots = [spot(0.5, 5), spot(0.3, 50), spot(0.15, 4), spot(0.05, 1)];
        let found = select(&mut spots, 100, 0.9, 0.1);
        assert!((found.0 - 0.7).abs() < 1e-9 && (found.1 - 0.1).abs() < 1e-9, "{found:?}");
        assert_eq!(spots.clone().map(|spot| spot.selected), [true, false, true, true]);
        let found = select(&mut spots, 100, 0.75, 1.0);
        assert!((found.0 - 0.8).abs() < 1e-9);
    }

    #[test]
    fn quality_is_what_the_chosen_really_hold() {
        let measured = BTreeMap::from([(1, 0.5), (2, 0.3), (3, 0.2)]);
        let found = selection_quality(&[2, 1, 3], &measured, 10);
        let expected = [0.6, 1.0, 1.0];
        assert!(
            found.len() == 3 && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9),
            "{found:?}"
        );
    }
}
