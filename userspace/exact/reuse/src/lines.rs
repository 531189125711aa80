//! A sample of cache lines, drawn by a hash of the line's address.
//!
//! Spatially hashed sampling (SHARDS; Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC construction
//! with SHARDS", FAST 2015, section 3.1): a line is sampled if its hash is below a limit. All accesses
//! to a sampled line are seen, hence reuses are whole. Further bits of the hash divide the sampled lines
//! into [`LINE_GROUPS`] random groups of about equal size, whose scatter is the error of the sample.
//!
//! The hash is the same in each process and each run. Source of error: the sample is random because
//! addresses know nothing of the hash; a program that chose its addresses by this hash would defeat it.

/// log2 of the bytes of a line.
pub const LINE_BITS: u32 = 6;
/// Random groups of the sampled lines.
pub const LINE_GROUPS: usize = 64;
/// Groups by which pairs are counted: the lowest bits of the number of the group.
pub const PAIR_GROUPS: usize = 16;
/// Most lines of which one is sampled.
pub const MOST_LINES: u32 = 4096;

/// Which lines are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledLines {
    /// log2 of the number of lines of which one is sampled.
    bits: u32,
}

impl SampledLines {
    /// One of `one_in` lines, a power of two from 2 to [`MOST_LINES`]; `None` for other numbers.
    pub fn one_in(one_in: u32) -> Option<Self> {
        let is_valid = one_in.is_power_of_two() && (2..=MOST_LINES).contains(&one_in);
        is_valid.then(|| Self { bits: one_in.trailing_zeros() })
    }

    /// The number of lines of which one is sampled.
    pub fn number(self) -> u32 {
        1 << (self.bits & 31)
    }

    /// Hashes of sampled lines are below this limit.
    pub fn limit(self) -> u64 {
        1 << (64 - self.bits)
    }

    /// The group of a sampled line, below [`LINE_GROUPS`].
    #[inline(always)]
    pub fn group(self, line: u64) -> usize {
        ((hash_of_line(line) << (self.bits & 63)) >> (64 - LINE_GROUPS.trailing_zeros())) as usize
    }
}

/// The hash of a line's number. Each bit depends on all bits of the number (two rounds of
/// multiplication, as in SplitMix64): a single multiplication would sample strided lines evenly.
#[inline(always)]
pub fn hash_of_line(line: u64) -> u64 {
    let mixed = (line ^ line >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of sampled lines and of their groups scatter as draws at random do, whatever the stride.
    #[test]
    fn lines_are_drawn_at_random_at_every_stride() {
        let sample = SampledLines::one_in(16).unwrap();
        for stride in [1_u64, 2, 3, 5, 8, 13, 64, 89, 1024, 1597, 4096, 1 << 20] {
            let lines = (0..32_768).map(|index| 0x7f12_3456 + index * stride);
            let sampled: Vec<u64> = lines.filter(|line| hash_of_line(*line) < sample.limit()).collect();
            // 2,048 expected, standard deviation 44.
            assert!((1830..2270).contains(&sampled.len()), "{} of stride {stride}", sampled.len());
            let mut groups = [0_i64; LINE_GROUPS];
            sampled.iter().for_each(|line| groups[sample.group(*line)] += 1);
            let mean = sampled.len() as f64 / LINE_GROUPS as f64;
            let chi: f64 = groups.iter().map(|count| (*count as f64 - mean).powi(2) / mean).sum();
            // 63 degrees of freedom: 99.99 % lie between 28 and 114.
            assert!((28.0..114.0).contains(&chi), "{chi} of stride {stride}");
        }
    }

    #[test]
    fn only_powers_of_two_are_taken() {
        assert_eq!([0, 1, 3, 12, 8192].map(SampledLines::one_in), [None; 5]);
        assert_eq!(SampledLines::one_in(2).unwrap().limit(), 1 << 63);
    }
}
