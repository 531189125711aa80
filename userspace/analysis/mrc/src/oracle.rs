//! Brute force: distances and LRU misses of a small trace, straight from the definitions. O(n²).

use super::distances::Distances;
use super::hotl::Ends;
use super::phases::Phase;

/// Time and stack distances of each access of a trace of granules; `None` for first touches.
pub(crate) fn distances(trace: &[u32]) -> Vec<Option<(u64, u64)>> {
    let of = |(now, granule): (usize, &u32)| {
        let before = trace[..now].iter().rposition(|other| other == granule)?;
        let mut between = trace[before + 1..now].to_vec();
        between.sort_unstable();
        between.dedup();
        Some(((now - before) as u64, between.len() as u64))
    };
    trace.iter().enumerate().map(of).collect()
}

fn histogram(found: impl Iterator<Item = Option<u64>>) -> Distances {
    let found: Vec<Option<u64>> = found.collect();
    let cold = found.iter().filter(|d| d.is_none()).count() as f64;
    Distances::exact(found.into_iter().flatten().map(|d| (d, 1.0)), cold).unwrap()
}

/// Time distances.
pub(crate) fn time(trace: &[u32]) -> Distances {
    histogram(distances(trace).into_iter().map(|found| found.map(|d| d.0)))
}

/// Stack distances.
pub(crate) fn stack(trace: &[u32]) -> Distances {
    histogram(distances(trace).into_iter().map(|found| found.map(|d| d.1)))
}

/// Gaps before first and after last touches.
pub(crate) fn ends(trace: &[u32]) -> Ends {
    let firsts = |trace: &[u32]| {
        let found = distances(trace);
        let places = (1..).zip(found).filter(|(_, found)| found.is_none()).map(|(place, _)| (place, 1.0));
        Distances::exact(places, 0.0).unwrap()
    };
    let backwards: Vec<u32> = trace.iter().rev().copied().collect();
    Ends { first: firsts(trace), last: firsts(&backwards) }
}

/// Phases of `length` accesses.
pub(crate) fn phases(trace: &[u32], length: usize) -> Vec<Phase> {
    let found = distances(trace);
    let phase = |found: &[Option<(u64, u64)>]| Phase {
        time: histogram(found.iter().map(|found| found.map(|d| d.0))),
        accesses: found.len() as f64,
    };
    found.chunks(length).map(phase).collect()
}

/// Misses of a fully associative LRU cache, simulated as a list.
pub(crate) fn lru_misses(trace: &[u32], granules: usize) -> u64 {
    let mut cache: Vec<u32> = Vec::new();
    let mut misses = 0;
    for granule in trace {
        match cache.iter().position(|held| held == granule) {
            Some(at) => drop(cache.remove(at)),
            None => misses += 1,
        }
        cache.insert(0, *granule);
        cache.truncate(granules);
    }
    misses
}

/// Average number of distinct granules over the windows of a length.
pub(crate) fn footprint(trace: &[u32], window: usize) -> f64 {
    let distinct = |window: &[u32]| {
        let mut seen = window.to_vec();
        seen.sort_unstable();
        seen.dedup();
        seen.len() as f64
    };
    let windows = trace.windows(window);
    let n = windows.len() as f64;
    windows.map(distinct).sum::<f64>() / n
}
