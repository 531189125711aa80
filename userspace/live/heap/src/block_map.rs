//! The heap blocks of a process over time: the block around an address at a moment, and its
//! allocation site.
//!
//! A question comes after the asked moment: a freed block stays findable until
//! [`HeapMap::forget_before`] has passed the block's end. Bounded: of too many
//! live blocks the oldest of the smallest size are folded (counted, no longer
//! findable), of too many former blocks the earliest ended are forgotten.
//!
//! Pure: no I/O, no clock. Sources of error: an unseen free leaves the block
//! live until another block takes the place; records of different CPUs may
//! come out of order by microseconds, and then the younger record counts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use locality_objects::HeapBlock;

/// The end of a block that has none yet.
const NEVER: u64 = u64::MAX;

/// A block at the moment that was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its address.
    pub start: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Names the allocating context.
    pub site: u64,
    /// The block is a mapping made by the program.
    pub mapped: bool,
    /// When it was allocated, monotonic clock.
    pub since_ns: u64,
    /// False after a pause of the probes, when the block may have been freed and replaced.
    pub certain: bool,
}

impl Block {
    /// The block in the form for naming objects.
    pub fn of_objects(&self) -> HeapBlock {
        let Self { start, bytes, site, mapped, since_ns, .. } = *self;
        HeapBlock { start, bytes, site, mapped, since_ns }
    }
}

/// By what a block was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Names the allocating context.
    pub site: u64,
    /// By `mmap`.
    pub mapped: bool,
}

/// A block that stands.
#[derive(Debug, Clone, Copy)]
struct Live {
    bytes: u64,
    made: Made,
    since_ns: u64,
    /// The probes were away from this moment on.
    doubted_ns: u64,
}

/// A freed block; its end is in the key.
#[derive(Debug, Clone, Copy)]
struct Former {
    bytes: u64,
    made: Made,
    since_ns: u64,
    doubted_ns: u64,
}

/// Blocks of one process.
#[derive(Debug, Clone)]
pub struct HeapMap {
    /// By address; they do not overlap.
    live: BTreeMap<u64, Live>,
    /// Live blocks by binary size class, then age, then address.
    by_age: BTreeSet<(u8, u64, u64)>,
    /// By size class, then address and end. Within a class, a block that
    /// contains an address begins within two class sizes below the address.
    former: BTreeMap<u8, BTreeMap<(u64, u64), Former>>,
    /// Ends in the order of their arrival, with class and address.
    ends: VecDeque<(u64, u8, u64)>,
    most_live: usize,
    most_former: usize,
    folded: u64,
    unseen_frees: u64,
}

/// The binary size class: 2^class ≤ bytes < 2^(class + 1).
fn class(bytes: u64) -> u8 {
    bytes.max(1).ilog2() as u8
}

/// The first byte after a block; an empty block takes one byte.
fn end(start: u64, bytes: u64) -> u64 {
    start.saturating_add(bytes.max(1))
}

impl HeapMap {
    /// A map with limits for live and for former blocks.
    pub fn new(most_live: usize, most_former: usize) -> Self {
        Self {
            live: BTreeMap::new(),
            by_age: BTreeSet::new(),
            former: BTreeMap::new(),
            ends: VecDeque::new(),
            most_live,
            most_former,
            folded: 0,
            unseen_frees: 0,
        }
    }

    /// Live blocks.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether there is no live block.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Blocks that were folded to bound memory.
    pub fn folded(&self) -> u64 {
        self.folded
    }

    /// Blocks whose place was taken though no free had been seen.
    pub fn unseen_frees(&self) -> u64 {
        self.unseen_frees
    }

    /// Addresses of the live blocks.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.live.keys().copied()
    }

    /// A block is allocated. Overlapping blocks must have been freed unseen. Returns the block
    /// folded in exchange, if any.
    pub fn allocate(&mut self, start: u64, bytes: u64, made: Made, at_ns: u64) -> Option<u64> {
        while let Some((&other, _)) =
            self.live.range(..end(start, bytes)).next_back().filter(|(at, old)| end(**at, old.bytes) > start)
        {
            self.end_block(other, at_ns);
            self.unseen_frees += 1;
        }
        let block = Live { bytes, made, since_ns: at_ns, doubted_ns: NEVER };
        self.live.insert(start, block);
        self.by_age.insert((class(bytes), at_ns, start));
        if self.live.len() <= self.most_live {
            return None;
        }
        let (_, _, oldest) = self.by_age.pop_first()?;
        self.live.remove(&oldest);
        self.folded += 1;
        Some(oldest)
    }

    /// The block at `start` is given back at `at_ns` by a call that began at `called_ns`;
    /// a block younger than the call is another. Returns whether the block was known.
    pub fn free(&mut self, start: u64, called_ns: u64, at_ns: u64) -> bool {
        self.live.get(&start).is_some_and(|block| block.since_ns <= called_ns) && self.end_block(start, at_ns)
    }

    /// Blocks of fewer bytes are taken for gone.
    pub fn drop_below(&mut self, bytes: u64, at_ns: u64) {
        self.end_all(at_ns, |block| block.bytes < bytes);
    }

    /// The process runs another program since `at_ns`; returns the blocks ended by the change.
    pub fn clear(&mut self, at_ns: u64) -> Vec<u64> {
        self.end_all(at_ns, |block| block.since_ns <= at_ns)
    }

    /// The probes are away from now on: blocks of fewer than `keep_bytes` are taken
    /// for gone, larger blocks become uncertain. Returns the blocks taken for gone.
    pub fn doubt(&mut self, keep_bytes: u64, at_ns: u64) -> Vec<u64> {
        let gone = self.end_all(at_ns, |block| block.bytes < keep_bytes);
        for block in self.live.values_mut() {
            block.doubted_ns = block.doubted_ns.min(at_ns);
        }
        gone
    }

    fn end_all(&mut self, at_ns: u64, which: impl Fn(&Live) -> bool) -> Vec<u64> {
        let starts: Vec<u64> =
            self.live.iter().filter(|(_, block)| which(block)).map(|(start, _)| *start).collect();
        for start in &starts {
            self.end_block(*start, at_ns);
        }
        starts
    }

    /// Takes over the live blocks of another map, each as if it were allocated now.
    pub fn adopt(&mut self, other: &Self) {
        for (start, block) in &other.live {
            self.allocate(*start, block.bytes, block.made, block.since_ns);
        }
    }

    /// The first blocks of a process forked at `at_ns`.
    #[must_use]
    pub fn forked(&self, at_ns: u64) -> Self {
        let mut child = Self::new(self.most_live, self.most_former);
        let live = self.live.iter().map(|(start, block)| (*start, *block));
        let former = self.former.values().flatten().filter(|((_, until_ns), _)| *until_ns > at_ns).map(
            |((start, _), block)| {
                let Former { bytes, made, since_ns, doubted_ns } = *block;
                (*start, Live { bytes, made, since_ns, doubted_ns })
            },
        );
        for (start, block) in former.chain(live).filter(|(_, block)| block.since_ns <= at_ns) {
            child.by_age.insert((class(block.bytes), block.since_ns, start));
            child.live.insert(start, block);
        }
        child
    }

    /// The block that contained the address at `at_ns`.
    pub fn find(&self, address: u64, at_ns: u64) -> Option<Block> {
        let live = self.live.range(..=address).next_back();
        if let Some((&start, block)) = live
            && address < end(start, block.bytes)
            && block.since_ns <= at_ns
        {
            let Live { bytes, made, since_ns, doubted_ns } = *block;
            let Made { site, mapped } = made;
            return Some(Block { start, bytes, site, mapped, since_ns, certain: at_ns < doubted_ns });
        }
        self.former.iter().find_map(|(class, blocks)| find_former(*class, blocks, address, at_ns))
    }

    /// No question will be asked about a moment before `at_ns` any more.
    pub fn forget_before(&mut self, at_ns: u64) {
        while self.ends.front().is_some_and(|(until_ns, ..)| *until_ns < at_ns) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((until_ns, class, start)) = self.ends.pop_front() else { return };
        let Some(blocks) = self.former.get_mut(&class) else { return };
        blocks.remove(&(start, until_ns));
        if blocks.is_empty() {
            self.former.remove(&class);
        }
    }

    fn end_block(&mut self, start: u64, at_ns: u64) -> bool {
        let Some(block) = self.live.remove(&start) else { return false };
        let Live { bytes, made, since_ns, doubted_ns } = block;
        let class = class(bytes);
        self.by_age.remove(&(class, since_ns, start));
        if at_ns <= since_ns {
            return true;
        }
        let former = Former { bytes, made, since_ns, doubted_ns };
        self.former.entry(class).or_default().insert((start, at_ns), former);
        self.ends.push_back((at_ns, class, start));
        if self.ends.len() > self.most_former {
            self.forget_first();
        }
        true
    }
}

/// Looks at one address after the other, downwards; for each, the ends are in order.
fn find_former(class: u8, blocks: &BTreeMap<(u64, u64), Former>, address: u64, at_ns: u64) -> Option<Block> {
    let widest = 1u64.checked_shl(u32::from(class) + 1).unwrap_or(u64::MAX);
    let mut below = blocks.range(..=(address, NEVER)).next_back();
    while let Some((&(start, _), _)) = below {
        if address - start >= widest {
            return None;
        }
        // Only the first block to end after the moment may have stood then.
        if let Some((_, block)) = blocks.range((start, at_ns.saturating_add(1))..=(start, NEVER)).next()
            && block.since_ns <= at_ns
            && address < end(start, block.bytes)
        {
            let Former { bytes, made, since_ns, doubted_ns } = *block;
            let Made { site, mapped } = made;
            return Some(Block { start, bytes, site, mapped, since_ns, certain: at_ns < doubted_ns });
        }
        below = blocks.range(..(start, 0)).next_back();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every other site is one of `mmap`.
    fn made(site: u64) -> Made {
        Made { site, mapped: site.is_multiple_of(2) }
    }

    /// All blocks that ever were, in a list.
    #[derive(Debug, Default)]
    struct Naive(Vec<(Block, u64, u64)>);

    impl Naive {
        fn end(&mut self, matching: impl Fn(&Block) -> bool, at_ns: u64) {
            for (block, until_ns, _) in &mut self.0 {
                if *until_ns == NEVER && matching(block) {
                    *until_ns = at_ns;
                }
            }
        }

        fn allocate(&mut self, start: u64, bytes: u64, made: Made, at_ns: u64) {
            self.end(|old| old.start < end(start, bytes) && end(old.start, old.bytes) > start, at_ns);
            let Made { site, mapped } = made;
            let block = Block { start, bytes, site, mapped, since_ns: at_ns, certain: true };
            self.0.push((block, NEVER, NEVER));
        }

        fn find(&self, address: u64, at_ns: u64) -> Option<Block> {
            let mut all = self.0.iter().filter(|(block, until_ns, _)| {
                block.start <= address
                    && address < end(block.start, block.bytes)
                    && block.since_ns <= at_ns
                    && at_ns < *until_ns
            });
            let (block, _, doubted_ns) = all.next()?;
            assert!(all.next().is_none(), "two blocks at one moment");
            Some(Block { certain: at_ns < *doubted_ns, ..*block })
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Allocate(u64, u64),
        Free(u64),
        Move(u64, u64, u64),
        Clear,
        Doubt(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let address = || 0u64..256;
        let bytes = || prop_oneof![0u64..4, 0u64..64];
        prop_oneof![
            8 => (address(), bytes()).prop_map(|(start, bytes)| Step::Allocate(start, bytes)),
            6 => address().prop_map(Step::Free),
            2 => (address(), address(), bytes()).prop_map(|(old, new, bytes)| Step::Move(old, new, bytes)),
            1 => Just(Step::Clear),
            1 => (0u64..40).prop_map(Step::Doubt),
        ]
    }

    fn apply(map: &mut HeapMap, naive: &mut Naive, step: &Step, site: u64, at_ns: u64) {
        let made = made(site);
        match *step {
            Step::Allocate(start, bytes) => {
                map.allocate(start, bytes, made, at_ns);
                naive.allocate(start, bytes, made, at_ns);
            }
            Step::Free(start) => {
                map.free(start, at_ns, at_ns);
                naive.end(|block| block.start == start, at_ns);
            }
            Step::Move(old, new, bytes) => {
                map.free(old, at_ns, at_ns);
                naive.end(|block| block.start == old, at_ns);
                map.allocate(new, bytes, made, at_ns);
                naive.allocate(new, bytes, made, at_ns);
            }
            Step::Clear => {
                map.clear(at_ns);
                naive.end(|_| true, at_ns);
            }
            Step::Doubt(keep) => {
                map.doubt(keep, at_ns);
                naive.end(|block| block.bytes < keep, at_ns);
                for (_, until_ns, doubted_ns) in &mut naive.0 {
                    if *until_ns == NEVER {
                        *doubted_ns = (*doubted_ns).min(at_ns);
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_moment_is_as_in_a_list_of_all_blocks(
            steps in proptest::collection::vec(step(), 1..40),
            forked_at in 0u64..40,
        ) {
            let (mut map, mut naive) = (HeapMap::new(10_000, 10_000), Naive::default());
            for (number, step) in (1u64..).zip(&steps) {
                apply(&mut map, &mut naive, step, number, number * 10);
            }
            let child = map.forked(forked_at * 10 + 5);
            for address in 0..330 {
                for at_ns in (0..=steps.len() as u64 + 1).flat_map(|number| [number * 10, number * 10 + 5]) {
                    prop_assert_eq!(map.find(address, at_ns), naive.find(address, at_ns), "{} {}", address, at_ns);
                }
                let (found, expected) = (child.find(address, 9_999), naive.find(address, forked_at * 10 + 5));
                prop_assert_eq!(found.map(|block| block.start), expected.map(|block| block.start));
            }
            let by_age: Vec<u64> = map.by_age.iter().map(|(_, _, start)| *start).collect();
            prop_assert_eq!(by_age.len(), map.len());
            prop_assert!(by_age.iter().all(|start| map.live.contains_key(start)));
        }

        #[test]
        fn forgetting_leaves_what_may_still_be_asked(
            steps in proptest::collection::vec(step(), 1..40),
            horizon in 0u64..500,
        ) {
            let (mut map, mut naive) = (HeapMap::new(10_000, 10_000), Naive::default());
            for (number, step) in (1u64..).zip(&steps) {
                apply(&mut map, &mut naive, step, number, number * 10);
            }
            map.forget_before(horizon);
            prop_assert!(map.former.values().flatten().all(|((_, until_ns), _)| *until_ns >= horizon));
            prop_assert_eq!(map.former.values().map(BTreeMap::len).sum::<usize>(), map.ends.len());
            for at_ns in [horizon, horizon + 5, horizon + 100] {
                for address in 0..330 {
                    prop_assert_eq!(map.find(address, at_ns), naive.find(address, at_ns));
                }
            }
        }

        #[test]
        fn memory_is_bounded_and_small_old_blocks_go_first(sizes in proptest::collection::vec(1u64..5000, 1..200)) {
            let mut map = HeapMap::new(16, 16);
            let mut folded = Vec::new();
            for (number, bytes) in (1u64..).zip(&sizes) {
                folded.extend(map.allocate(number * 10_000, *bytes, made(number), number));
                prop_assert!(map.len() <= 16);
            }
            prop_assert_eq!(map.folded() as usize, folded.len());
            prop_assert_eq!(folded.len() + map.len(), sizes.len());
            // Whatever stands is no smaller than a folded block that was there at the same time,
            // class by class.
            let size_of = |start: u64| sizes[(start / 10_000 - 1) as usize];
            for gone in &folded {
                let younger = map.live.iter().filter(|(start, _)| **start < *gone);
                for (start, _) in younger {
                    prop_assert!(class(size_of(*start)) > class(size_of(*gone)), "{} {}", start, gone);
                }
            }
            map.clear(1_000_000);
            prop_assert!(map.ends.len() <= 16 && map.is_empty());
        }
    }

    #[test]
    fn a_free_does_not_end_a_younger_block_at_the_same_place() {
        let mut map = HeapMap::new(8, 8);
        map.allocate(0x1000, 64, made(1), 10);
        assert!(map.free(0x1000, 20, 20));
        map.allocate(0x1000, 64, made(2), 30);
        assert!(!map.free(0x1000, 25, 25));
        assert_eq!(map.find(0x1010, 40).unwrap().site, 2);
        assert_eq!(map.find(0x1010, 19).unwrap().site, 1);
        assert_eq!(map.find(0x1010, 20), None);
    }
}
