//! Exact distances of a trace as it comes: the truth that conversions are held against.
//!
//! A Fenwick tree over positions, renumbered when full: O(log n) an access, memory in the number of granules. Independent of
//! the exact engine on purpose. A touch is an access here (τ = 1): an access that spans k granules is k of them.

use std::collections::HashMap;

use locality_analysis::convert::{distances::Distances, phases::Phase, scale::Sums};

/// Accesses of the shortest phase; phases are merged by twos so that never more than 256 are kept.
const SHORTEST: u64 = 1 << 12;
const MOST: usize = 256;

/// Distances at one granule.
pub struct Exact {
    last: HashMap<u64, u32, BuildFast>,
    tree: Vec<u32>,
    live: Vec<Option<u64>>,
    next: usize,
    /// Accesses so far, and the time of each position.
    now: u64,
    times: Vec<u64>,
    stack: Sums,
    phases: Vec<(Sums, u64, u64)>,
    length: u64,
}

impl Exact {
    pub fn new() -> Self {
        let size = 1 << 16;
        Self {
            last: HashMap::default(),
            tree: vec![0; size + 1],
            live: vec![None; size],
            next: 0,
            now: 0,
            times: vec![0; size],
            stack: Sums::default(),
            phases: vec![(Sums::default(), 0, 0)],
            length: SHORTEST,
        }
    }

    pub fn touch(&mut self, granule: u64) {
        if self.next == self.live.len() {
            self.renumber();
        }
        if self.phases.last().is_some_and(|phase| phase.2 == self.length) {
            self.next_phase();
        }
        let at = self.next;
        self.now += 1;
        let found = self.last.insert(granule, at as u32);
        let Some(phase) = self.phases.last_mut() else { return };
        phase.2 += 1;
        if let Some(before) = found {
            let before = before as usize;
            phase.0.add(self.now - self.times[before], 1.0);
            let newer = self.last.len() as u64 - u64::from(self.upto(before + 1));
            self.stack.add(newer, 1.0);
            self.change(before, u32::MAX);
            self.live[before] = None;
        } else {
            phase.1 += 1;
        }
        self.change(at, 1);
        self.live[at] = Some(granule);
        self.times[at] = self.now;
        self.next += 1;
    }

    pub fn finish(&self) -> Found {
        let cold = self.last.len() as f64;
        let phase = |phase: &(Sums, u64, u64)| Phase {
            time: phase.0.finish(phase.1 as f64),
            accesses: phase.2 as f64,
        };
        let mut time = Sums::default();
        self.phases.iter().for_each(|phase| time.merge(&phase.0));
        Found {
            accesses: self.now as f64,
            time: time.finish(cold),
            stack: self.stack.finish(cold),
            phases: self.phases.iter().map(phase).collect(),
        }
    }

    fn next_phase(&mut self) {
        if self.phases.len() == MOST {
            let pairs = self.phases.chunks(2).map(|pair| {
                let mut sums = pair[0].0.clone();
                sums.merge(&pair[1].0);
                (sums, pair[0].1 + pair[1].1, pair[0].2 + pair[1].2)
            });
            self.phases = pairs.collect();
            self.length *= 2;
        }
        self.phases.push((Sums::default(), 0, 0));
    }

    /// Live positions below `end`.
    fn upto(&self, end: usize) -> u32 {
        let (mut at, mut sum) = (end, 0_u32);
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        sum
    }

    fn change(&mut self, position: usize, by: u32) {
        let mut at = position + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    fn renumber(&mut self) {
        let kept: Vec<(u64, u64)> = self
            .live
            .iter()
            .zip(&self.times)
            .filter_map(|(granule, time)| Some(((*granule)?, *time)))
            .collect();
        let size = (kept.len() * 4).max(self.live.len());
        self.live = vec![None; size];
        self.times = vec![0; size];
        self.tree = vec![0; size + 1];
        for (at, (granule, time)) in kept.iter().enumerate() {
            self.last.insert(*granule, at as u32);
            self.live[at] = Some(*granule);
            self.times[at] = *time;
            self.tree[at + 1] = 1;
        }
        // Build in O(n): each node hands its sum to its parent.
        for at in 1..=size {
            let parent = at + (at & at.wrapping_neg());
            if parent <= size {
                self.tree[parent] += self.tree[at];
            }
        }
        self.next = kept.len();
    }
}

/// What a trace is like at one granule.
pub struct Found {
    pub accesses: f64,
    pub time: Distances,
    pub stack: Distances,
    pub phases: Vec<Phase>,
}

#[derive(Default, Clone)]
pub struct BuildFast;

impl std::hash::BuildHasher for BuildFast {
    type Hasher = Fast;
    fn build_hasher(&self) -> Fast {
        Fast(0)
    }
}

pub struct Fast(u64);

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
