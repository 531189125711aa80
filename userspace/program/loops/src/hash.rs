//! Hash tables of numbers: windows are read many times a second, and hold tens of thousands of addresses.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

pub(crate) type Map<K, V> = HashMap<K, V, Build>;
pub(crate) type Set<K> = HashSet<K, Build>;

/// Makes hashers with a random seed, against chosen colliding addresses of a traced program.
#[derive(Debug, Clone)]
pub(crate) struct Build(u64);

impl Default for Build {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Build {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

/// Folds the halves of a product of 128 bits, number by number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        const ODD: u128 = 0x9E37_79B9_7F4A_7C15;
        let product = u128::from(self.0 ^ number) * ODD;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_at_equal_distances_hash_apart() {
        let build = Build::default();
        for step in [8, 64, 4096, 1 << 20] {
            let low: HashSet<u64> = (0..1000_u64).map(|n| build.hash_one(n * step) % 4096).collect();
            assert!(low.len() > 700, "{step}: {}", low.len());
        }
    }
}
