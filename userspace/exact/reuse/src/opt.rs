//! Misses under optimal replacement (Belady's MIN) at every power of two: off line, on a recorded
//! sequence of touches.
//!
//! Two passes: backwards for each touch's next touch, then Mattson's stack with the next
//! use as priority (Mattson, Gecsei, Slutz and Traiger, Evaluation techniques for storage
//! hierarchies, IBM Systems Journal 9, 1970, OPT): the granules of a cache are the next
//! smaller cache's and more. Only the granules in the stack's first 1, 2, 4 … places
//! matter for caches of as many granules. The places between two sizes form a heap, not
//! in order: a touch found in the k-th heap costs a push and a pop in each earlier heap.
//!
//! Exact. Cost: 8 bytes a touch and about 40 for each distinct
//! granule; O(k · k) steps for a touch at a distance below 2^k.

use std::collections::{BinaryHeap, HashMap};

/// Reuses by the smallest cache of a power of two with a hit under optimal replacement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OptMisses {
    /// Touches.
    pub touches: u64,
    /// First touches.
    pub cold: u64,
    /// Reuses that hit in a cache of 1 granule; of 2 but not of
    /// 1; of 4 but not of 2; further powers as far as needed.
    pub hits: Vec<u64>,
}

/// The place of a touch that never occurs.
const NEVER: u32 = u32::MAX;

impl OptMisses {
    /// Of `granules` in the order of touches. Touches beyond 2^32 − 1 are left out.
    pub fn of(granules: &[u64]) -> OptMisses {
        let granules = granules.get(..NEVER as usize).unwrap_or(granules);
        // Granules by number, and the next touch of each.
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let mut last: Vec<u32> = Vec::new();
        let mut touches = vec![(0_u32, NEVER); granules.len()];
        for ((granule, touch), time) in granules.iter().zip(&mut touches).zip(0..granules.len()).rev() {
            let new = numbers.len() as u32;
            let number = *numbers.entry(*granule).or_insert(new);
            if number == new {
                last.push(NEVER);
            }
            if let Some(last) = last.get_mut(number as usize) {
                *touch = (number, *last);
                *last = time as u32;
            }
        }
        let mut stack = Stack { levels: Vec::new(), of: vec![ABSENT; numbers.len()] };
        drop((numbers, last));
        let mut result = OptMisses { touches: granules.len() as u64, ..OptMisses::default() };
        for (number, next) in touches {
            match stack.touch(number, next) {
                None => result.cold += 1,
                Some(level) => result.hit(level, 1),
            }
        }
        result
    }

    /// Counts reuses with a hit in a cache of 2^`level`
    /// granules and a miss in the next smaller cache.
    pub fn hit(&mut self, level: usize, count: u64) {
        if self.hits.len() <= level {
            self.hits.resize(level + 1, 0);
        }
        if let Some(hits) = self.hits.get_mut(level) {
            *hits += count;
        }
    }

    /// Misses of a cache of 2^`level` granules under optimal replacement.
    pub fn misses(&self, level: usize) -> u64 {
        self.touches.saturating_sub(self.hits.iter().take(level + 1).sum::<u64>())
    }
}

/// In no level.
const ABSENT: u8 = u8::MAX;

/// Mattson's stack, ordered between levels only.
struct Stack {
    levels: Vec<Level>,
    /// Level of each granule.
    of: Vec<u8>,
}

/// The granules in a cache of 2^k beyond the next smaller cache.
#[derive(Default)]
struct Level {
    /// (Next use, granule), the latest on top. Stale entries, of granules touched since,
    /// have a passed next use: stale entries never get on top of present entries.
    heap: BinaryHeap<(u32, u32)>,
    /// How many are here.
    live: usize,
}

impl Stack {
    /// Touches a granule with the next touch at `next`. Returns the granule's former level.
    fn touch(&mut self, number: u32, next: u32) -> Option<usize> {
        let of = self.of.get_mut(number as usize)?;
        let found = (*of != ABSENT).then_some(usize::from(*of));
        *of = 0;
        // The touched granule comes to the top; in each level before the
        // granule's, the granule with the latest next use is carried down.
        let mut carried = (next, number);
        for at in 0.. {
            if self.levels.len() == at {
                self.levels.push(Level::default());
            }
            let level = self.levels.get_mut(at)?;
            if found == Some(at) {
                level.live -= 1;
            }
            let capacity = if at == 0 { 1 } else { 1 << (at - 1) };
            let full = level.live == capacity;
            // The touched granule stays in the first level, in the single place.
            let evicted = if full && at == 0 { level.heap.pop() } else { None };
            level.heap.push(carried);
            if let Some(of) = self.of.get_mut(carried.1 as usize) {
                *of = at as u8;
            }
            if !full {
                level.live += 1;
                level.tidy();
                return found;
            }
            carried = match evicted {
                Some(evicted) => evicted,
                None => level.heap.pop()?,
            };
            level.tidy();
        }
        found
    }
}

impl Level {
    /// Drops stale entries, the lowest, once in the majority.
    fn tidy(&mut self) {
        if self.heap.len() > 2 * self.live + 8 {
            let mut all = std::mem::take(&mut self.heap).into_vec();
            let gone = all.len() - self.live;
            if gone < all.len() {
                all.select_nth_unstable(gone);
            }
            all.drain(..gone);
            self.heap = all.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache that looks ahead: on a miss it throws out what is used latest, or never.
    fn belady(granules: &[u64], size: usize) -> u64 {
        let mut cache: Vec<u64> = Vec::new();
        let mut misses = 0;
        for (time, granule) in granules.iter().enumerate() {
            if cache.contains(granule) {
                continue;
            }
            misses += 1;
            if cache.len() == size {
                let next = |cached: &u64| granules[time..].iter().position(|later| later == cached);
                let victim = (0..size).max_by_key(|at| next(&cache[*at]).unwrap_or(usize::MAX)).unwrap();
                cache.swap_remove(victim);
            }
            cache.push(*granule);
        }
        misses
    }

    #[test]
    fn a_loop_has_its_closed_form() {
        // Of a loop over n granules a cache of c keeps c − 1 through each round: n − c + 1 misses
        // in every n − 1 touches.
        let (n, rounds) = (1000_u64, 40);
        let trace: Vec<u64> = (0..n * rounds).map(|i| i % n).collect();
        let found = OptMisses::of(&trace);
        assert_eq!(
            (found.touches, found.cold, found.misses(10), found.misses(0)),
            (40_000, 1000, 1000, 40_000)
        );
        for level in 1..10 {
            let expected = (n * (rounds - 1)) as f64 * (n as f64 - f64::from(1 << level)) / (n as f64 - 1.0);
            let misses = found.misses(level) as f64 - n as f64;
            assert!((misses - expected).abs() <= n as f64, "{level}: {misses} {expected}");
        }
    }

    proptest! {
        #[test]
        fn misses_equal_a_cache_that_looks_ahead(granules in proptest::collection::vec(0..40_u64, 0..300)) {
            let found = OptMisses::of(&granules);
            for level in 0..8 {
                prop_assert_eq!(found.misses(level), belady(&granules, 1 << level), "{}", level);
            }
        }

        #[test]
        fn many_touches_of_few_granules_are_no_different(granules in proptest::collection::vec(0..5_u64, 200..900)) {
            let found = OptMisses::of(&granules);
            for level in 0..4 {
                prop_assert_eq!(found.misses(level), belady(&granules, 1 << level), "{}", level);
            }
        }
    }
}
