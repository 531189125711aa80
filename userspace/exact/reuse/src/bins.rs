//! Bins of distances: log2 from 0 for people, and a finer set for curves.
//!
//! Fine bins: exact below 64, then 32 per power of two, to make a cache
//! size with at most six significant bits (2^k, 3·2^k, 5·2^k … granules)
//! an edge between two bins, and the misses at the size a count.

/// Number of log2 bins: `[0,1) [1,2) [2,4) …`.
pub const LOG2_BINS: usize = 64;
/// Number of fine bins.
pub const FINE_BINS: usize = 1920;
const SUB_BITS: u32 = 5;

/// The log2 bin of a distance.
#[inline(always)]
pub fn log2_bin(distance: u64) -> usize {
    ((64 - distance.leading_zeros()) as usize).min(LOG2_BINS - 1)
}

/// Bounds of a log2 bin, `low ≤ distance < high`; the last bin has no upper bound.
pub fn log2_bounds(bin: usize) -> (u64, u64) {
    match bin {
        0 => (0, 1),
        _ if bin >= LOG2_BINS - 1 => (1 << (LOG2_BINS - 2), u64::MAX),
        _ => (1 << (bin - 1), 1 << bin),
    }
}

/// The fine bin of a distance; always below [`FINE_BINS`].
#[inline(always)]
pub fn fine_bin(distance: u64) -> usize {
    // Below 64 no bit is shifted out; above, the upper six bits are left, with a leading 1.
    let shift = 63 - SUB_BITS - (distance | 1 << SUB_BITS).leading_zeros();
    ((shift << SUB_BITS) as usize) + (distance >> shift) as usize
}

/// Lowest distance of a fine bin; the bin ends below the next bin's.
pub fn fine_low(bin: usize) -> u64 {
    let octave = (bin >> SUB_BITS) as u32;
    let within = (bin & ((1 << SUB_BITS) - 1)) as u64;
    match octave {
        0 => within,
        _ => ((1 << SUB_BITS) + within) << (octave - 1),
    }
}

/// Sums fine bins into log2 bins. Exact: every edge of a log2 bin is an edge of a fine bin.
pub fn to_log2(fine: &[u64]) -> Vec<u64> {
    let mut bins = vec![0; LOG2_BINS];
    for (bin, count) in fine.iter().enumerate() {
        if let Some(sum) = bins.get_mut(log2_bin(fine_low(bin))) {
            *sum += count;
        }
    }
    while bins.last() == Some(&0) {
        bins.pop();
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fine_bins_cover_all_distances_in_order() {
        for bin in 0..FINE_BINS {
            let low = fine_low(bin);
            assert_eq!(fine_bin(low), bin);
            if bin > 0 {
                assert!(fine_low(bin - 1) < low);
                assert_eq!(fine_bin(low - 1), bin - 1, "below {low}");
            }
        }
        assert_eq!(fine_bin(u64::MAX), FINE_BINS - 1);
        assert!((0..64).all(|distance| fine_bin(distance) == distance as usize));
        for size in [64, 96, 512, 768, 16384, 20480, 1 << 19] {
            assert_eq!(fine_low(fine_bin(size)), size, "{size} is an edge");
        }
    }

    #[test]
    fn log2_bins_cover_all_distances() {
        for (distance, bin) in
            [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (u64::MAX, 63)]
        {
            assert_eq!(log2_bin(distance), bin);
            let (low, high) = log2_bounds(bin);
            assert!(low <= distance && (distance < high || high == u64::MAX));
        }
        let mut fine = vec![0; FINE_BINS];
        for distance in 0..5000 {
            fine[fine_bin(distance)] += 1;
        }
        assert_eq!(to_log2(&fine), [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 904]);
    }
}
