//! Streams whose reuse can be written down: strided, blocked, a random walk.
#![expect(clippy::unwrap_used, reason = "a test")]

use locality_reuse::{Config, Engine, GrainSummary, fine_bin};
use locality_stream::{Analysis as _, Code, Event, Heap, Kind};

fn grain(addresses: impl Iterator<Item = u64>) -> GrainSummary {
    let heap = Heap::new(1 << 28).unwrap();
    let config = Config { granularities: vec![64], ..Config::default() };
    let mut engine = Engine::create(&heap, &config).unwrap();
    let events: Vec<Event> = addresses.map(|address| Event::access(Kind::LOAD, 1, address, 8)).collect();
    engine.observe(&events, &Code::default()).unwrap();
    engine.summary(0).grains.remove(0)
}

/// Counts by fine bin from (distance, number).
fn bins(counts: &[(u64, u64)]) -> Vec<u64> {
    let mut bins = vec![0; locality_reuse::FINE_BINS];
    for (distance, n) in counts {
        *bins.get_mut(fine_bin(*distance)).unwrap() += n;
    }
    bins
}

/// `rounds` sweeps over `lines` lines, 8 bytes at a time: 7 of 8 touches reuse the line at once,
/// the others after all.
#[test]
fn sweeps() {
    for (lines, rounds) in [(10, 7), (1000, 5), (30_000, 2)] {
        let found = grain((0..rounds).flat_map(|_| (0..lines * 8).map(|word| word * 8)));
        let again = lines * (rounds - 1);
        assert_eq!((found.touches, found.cold), (lines * rounds * 8, lines));
        assert_eq!(found.stack, bins(&[(0, lines * rounds * 7), (lines - 1, again)]));
        assert_eq!(found.time, bins(&[(1, lines * rounds * 7), (lines * 8 - 7, again)]));
        assert_eq!(found.footprint_bytes(), lines * 64);
    }
}

/// Strides of a page and more, where each granule is alone in its page.
#[test]
fn strides() {
    for stride in [64_u64, 128, 1024, 4096, 4160, 1 << 21] {
        let found = grain((0..3).flat_map(|_| (0..700).map(move |n| 0x1_0000_0000 + n * stride)));
        assert_eq!((found.cold, found.stack), (700, bins(&[(699, 1400)])));
    }
}

/// Blocks of `b` lines, each swept `k` times before the next: a cache of `b` lines misses once a line.
#[test]
fn blocks() {
    let (blocks, b, k) = (40_u64, 96_u64, 5_u64);
    let lines = (0..blocks).flat_map(|block| (0..k).flat_map(move |_| (0..b).map(move |n| block * b + n)));
    let found = grain(lines.map(|line| line * 64));
    assert_eq!(found.stack, bins(&[(b - 1, blocks * b * (k - 1))]));
    assert_eq!(found.misses(b), Some(blocks * b));
    assert_eq!(found.misses(b / 2), Some(blocks * b * k));
}

/// A walk of steps of one line: its footprint is its range, and the distance of each reuse that of
/// the excursion between, which is the range of places visited in it.
#[test]
fn random_walk() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut at = 1_u64 << 20;
    let walk: Vec<u64> = (0..20_000)
        .map(|_| {
            at = if random.bool() { at + 1 } else { at - 1 };
            at
        })
        .collect();
    let found = grain(walk.iter().map(|line| line * 64));
    let range = walk.iter().max().unwrap() - walk.iter().min().unwrap() + 1;
    assert_eq!(found.cold, range);
    // Between two touches the walk stays on one side: the number of lines is the farthest one's distance.
    let mut counts = Vec::new();
    for (index, line) in walk.iter().enumerate() {
        let mut farthest = 0;
        for earlier in walk.get(..index).unwrap().iter().rev() {
            if earlier == line {
                counts.push((farthest, 1));
                break;
            }
            farthest = farthest.max(earlier.abs_diff(*line));
        }
    }
    assert_eq!(found.stack, bins(&counts));
}
