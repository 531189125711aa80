//! Stack distances under optimal replacement (Belady's MIN): off line, on a recorded sequence of touches.
//!
//! Two passes: backwards for each touch's next one, then Mattson's stack with the next use as priority (Mattson, Gecsei,
//! Slutz and Traiger, Evaluation techniques for storage hierarchies, IBM Systems Journal 9, 1970, OPT): a cache of
//! `c` granules misses first touches and touches at distances of at least `c`.
//!
//! Cost: 12 bytes a touch, and for each touch one step per granule above it on the stack; for short recordings, or with
//! a bound on the depth. With a bound of `b`, distances below `b` are exact, and all others are told as beyond.

use std::collections::HashMap;

/// Optimal stack distances of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OptDistances {
    /// Touches.
    pub touches: u64,
    /// First touches.
    pub cold: u64,
    /// Reuses at each distance, from 0, as far as they occur.
    pub distances: Vec<u64>,
    /// Reuses at the bound or beyond.
    pub beyond: u64,
    /// Depth of the stack at most.
    pub bound: usize,
}

impl OptDistances {
    /// Distances among `granules`, in the order of touches; `bound` is the depth of the stack at most.
    pub fn of(granules: &[u64], bound: usize) -> OptDistances {
        let mut next = vec![usize::MAX; granules.len()];
        let mut seen: HashMap<u64, usize> = HashMap::new();
        for ((granule, next), time) in granules.iter().zip(&mut next).zip(0..granules.len()).rev() {
            *next = seen.insert(*granule, time).unwrap_or(usize::MAX);
        }
        let mut result = OptDistances { touches: granules.len() as u64, bound, ..OptDistances::default() };
        // (granule, its next use), top first: the stack of the smallest cache that holds the granule.
        let mut stack: Vec<(u64, usize)> = Vec::new();
        for ((granule, next), time) in granules.iter().zip(next).zip(0..) {
            // The touched granule comes to the top, and what was there is carried down: at each place the one that is
            // used sooner stays, until the touched granule's old place is reached.
            let mut carried = (*granule, next);
            let mut found = None;
            for (distance, place) in stack.iter_mut().enumerate() {
                if place.0 == *granule {
                    *place = carried;
                    found = Some(distance);
                    break;
                }
                if distance == 0 || carried.1 < place.1 {
                    std::mem::swap(place, &mut carried);
                }
            }
            if let Some(distance) = found {
                if result.distances.len() <= distance {
                    result.distances.resize(distance + 1, 0);
                }
                if let Some(n) = result.distances.get_mut(distance) {
                    *n += 1;
                }
                continue;
            }
            if stack.len() < bound {
                stack.push(carried);
            }
            // `seen` has the first touch of each.
            let is_first = seen.get(granule) == Some(&time);
            *(if is_first { &mut result.cold } else { &mut result.beyond }) += 1;
        }
        result
    }

    /// Misses of a cache of `granules` granules under optimal replacement; `None` beyond the bound.
    pub fn misses(&self, granules: usize) -> Option<u64> {
        if self.beyond > 0 && granules > self.bound {
            return None;
        }
        Some(self.cold + self.beyond + self.distances.iter().skip(granules).sum::<u64>())
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

    proptest! {
        #[test]
        fn misses_equal_a_cache_that_looks_ahead(
            granules in proptest::collection::vec(0..14_u64, 0..120), bound in 1..20_usize
        ) {
            let bounded = OptDistances::of(&granules, bound);
            let distances = OptDistances::of(&granules, usize::MAX);
            prop_assert_eq!(distances.beyond, 0);
            for size in 1..16 {
                let misses = belady(&granules, size);
                prop_assert_eq!(distances.misses(size), Some(misses));
                if size <= bound {
                    prop_assert_eq!(bounded.misses(size), Some(misses));
                } else {
                    prop_assert!(bounded.misses(size).is_none_or(|found| found == misses));
                }
            }
        }
    }
}
