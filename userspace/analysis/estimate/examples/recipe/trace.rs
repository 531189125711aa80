//! A trace in memory: accesses, the time at which each begins, and which access next touches each
//! of its granules.

use std::collections::HashMap;

use locality_mrc::distances::Distances;
use locality_mrc::scale::Sums;

use crate::kernels::Kernel;

/// No access.
pub const NEVER: u32 = u32::MAX;

/// A program's accesses.
pub struct Trace {
    pub address: Vec<u64>,
    pub size: Vec<u8>,
    pub place: Vec<u8>,
    /// When each access begins, in nanoseconds.
    pub start: Vec<f64>,
    pub words: Level,
    pub lines: Level,
}

/// Touches of granules of one size.
pub struct Level {
    pub bytes: u64,
    /// Index of the first touch of each access.
    first: Vec<u32>,
    /// Access that next touches the granule of each touch.
    next: Vec<u32>,
    pub touches: u64,
}

/// The truth about a trace at one granule.
pub struct Truth {
    pub time: Distances,
    pub stack: Distances,
}

impl Level {
    fn of(address: &[u64], size: &[u8], bytes: u64) -> Self {
        let mut last: HashMap<u64, u32, BuildFast> = HashMap::default();
        let (mut first, mut next, mut owner) = (Vec::with_capacity(address.len()), Vec::new(), Vec::new());
        for (index, (address, size)) in (0_u32..).zip(address.iter().zip(size)) {
            first.push(next.len() as u32);
            for granule in address / bytes..=(address + u64::from(*size) - 1) / bytes {
                if let Some(before) = last.insert(granule, next.len() as u32) {
                    next[before as usize] = index;
                }
                next.push(NEVER);
                owner.push(index);
            }
        }
        let touches = next.len() as u64;
        Self { bytes, first, next, touches }
    }

    /// The access that next touches the granule of `address`, which access `index` touches.
    pub fn next(&self, index: usize, first_address: u64, address: u64) -> u32 {
        self.next[self.first[index] as usize + (address / self.bytes - first_address / self.bytes) as usize]
    }

    pub fn touches_between(&self, from: usize, until: usize) -> u64 {
        let at = |index: usize| self.first.get(index).map_or(self.touches, |first| u64::from(*first));
        at(until) - at(from)
    }

    fn time(&self) -> Distances {
        let (mut sums, mut cold) = (Sums::default(), 0.0);
        for (index, first) in self.first.iter().enumerate() {
            let end = self.first.get(index + 1).map_or(self.next.len(), |end| *end as usize);
            for next in &self.next[*first as usize..end] {
                match next {
                    &NEVER => cold += 1.0,
                    next => sums.add(u64::from(*next) - index as u64, 1.0),
                }
            }
        }
        sums.finish(cold)
    }
}

impl Trace {
    /// The first `n` accesses of a kernel. An access takes longer the more lies between it and the
    /// last touch of its line: a crude memory hierarchy, so that rates differ between phases and a
    /// clock lands on slow accesses.
    pub fn of(kernel: Kernel, n: usize) -> Self {
        let (mut address, mut size, mut place) = (Vec::new(), Vec::new(), Vec::new());
        kernel(&mut |at, first, bytes| {
            address.push(first);
            size.push(bytes as u8);
            place.push(at);
            address.len() < n
        });
        let mut last: HashMap<u64, u32, BuildFast> = HashMap::default();
        let mut now = 0.0;
        let mut start = Vec::with_capacity(address.len());
        for (index, address) in (0..).zip(&address) {
            start.push(now);
            now += match last.insert(address / 64, index).map(|before| index - before) {
                Some(..2_000) => 0.5,
                Some(..100_000) => 2.0,
                Some(..1_000_000) => 6.0,
                _ => 15.0,
            };
        }
        let (words, lines) = (Level::of(&address, &size, 8), Level::of(&address, &size, 64));
        Self { address, size, place, start, words, lines }
    }

    pub fn len(&self) -> usize {
        self.address.len()
    }

    pub fn end_ns(&self) -> f64 {
        self.start.last().copied().unwrap_or(0.0) + 1.0
    }

    /// First access that begins at this moment or later.
    pub fn at(&self, ns: f64) -> usize {
        self.start.partition_point(|start| *start < ns)
    }

    /// Stack distances by Bennett & Kruskal's tree over touches (IBM J. Res. Dev. 19(4), 1975),
    /// which marks each granule's last one.
    pub fn truth(&self, level: &Level) -> Truth {
        let n = level.touches as usize;
        let (mut tree, mut marked) = (vec![0_u32; n + 1], 0_u64);
        let mut last: HashMap<u64, usize, BuildFast> = HashMap::default();
        let (mut stack, mut touch) = (Sums::default(), 0);
        for (address, size) in self.address.iter().zip(&self.size) {
            for granule in address / level.bytes..=(address + u64::from(*size) - 1) / level.bytes {
                if let Some(before) = last.insert(granule, touch) {
                    let (mut at, mut older) = (before + 1, 0_u64);
                    while at > 0 {
                        older += u64::from(tree[at]);
                        at &= at - 1;
                    }
                    stack.add(marked - older, 1.0);
                    change(&mut tree, before, u32::MAX);
                } else {
                    marked += 1;
                }
                change(&mut tree, touch, 1);
                touch += 1;
            }
        }
        Truth { time: level.time(), stack: stack.finish(last.len() as f64) }
    }
}

fn change(tree: &mut [u32], position: usize, by: u32) {
    let mut at = position + 1;
    while let Some(sum) = tree.get_mut(at) {
        *sum = sum.wrapping_add(by);
        at += at & at.wrapping_neg();
    }
}

#[derive(Default, Clone)]
struct BuildFast;

impl std::hash::BuildHasher for BuildFast {
    type Hasher = Fast;
    fn build_hasher(&self) -> Fast {
        Fast(0)
    }
}

struct Fast(u64);

impl std::hash::Hasher for Fast {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 29);
    }
}
