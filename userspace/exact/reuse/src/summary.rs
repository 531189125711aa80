//! An engine's counts, as plain values: merge, curve, pairs, types.
//!
//! Merging adds counts and unites contexts by path. The result does not
//! depend on the order of merging: contexts, sites, pairs and phases
//! are sorted. Distances of merged threads are within each thread.

use std::collections::BTreeMap;

use locality_stream::{Analysis as _, Event};
use locality_stream::{Arena, ArenaFull, Code, DataType, Instruction, Kind};

use crate::bins::{FINE_BINS, LOG2_BINS, fine_low, to_log2};
use crate::engine::{Engine, Option64};
use crate::grain::{Counts, Grain, cell};

/// A calling context: the call instruction leading in, and the context of the call. 0 is the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Context {
    /// Index in [`Summary::contexts`]; lower than the context's own.
    pub parent: u32,
    /// Index of the call instruction; `u32::MAX` in the root.
    pub call: u32,
}

/// An instruction in a context. Site 0 is empty, with `u32::MAX` for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// Index in [`Summary::contexts`].
    pub context: u32,
    /// Index of the instruction; [`locality_stream::NO_INSTRUCTION`] if unknown.
    pub instruction: u32,
}

/// Reuses of a pair with distances in a single bin each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Index of the use in [`Summary::sites`]; 0 for first touches, with bins 0.
    pub use_site: u32,
    /// Index of the reuse.
    pub reuse_site: u32,
    /// Group of the lines, below [`crate::PAIR_GROUPS`]; 0 unless lines are sampled.
    pub group: u8,
    /// log2 bin of the time distance in accesses.
    pub time_bin: u8,
    /// log2 bin of the stack distance in granules.
    pub stack_bin: u8,
    /// Number of the cell's reuses.
    pub count: u64,
}

/// A stretch of a thread's accesses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Phase {
    /// The thread, as given to [`Engine::finish`].
    pub thread: u64,
    /// Number of the first access, from 0.
    pub first: u64,
    /// Accesses.
    pub accesses: u64,
    /// First touches of the run; the remaining touches are reuses.
    pub cold: u64,
    /// Time distances of the reuses in the phase, in fine bins.
    pub time: Vec<u64>,
    /// Sums of the time distances in each bin, modulo 2^64; empty unless requested.
    pub time_sums: Vec<u64>,
    /// Stack distances, in fine bins.
    pub stack: Vec<u64>,
}

/// Counts of a group of sampled lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfGroup {
    /// Touches of lines never touched before.
    pub cold: u64,
    /// Time distances in log2 bins.
    pub time: Vec<u64>,
    /// Stack distances among the sampled lines, in fine bins.
    pub stack: Vec<u64>,
}

impl OfGroup {
    fn of(counts: &crate::grain::OfGroup) -> Self {
        let (first, time) = counts.time.split_first().unwrap_or((&0, &[]));
        Self {
            cold: *first,
            time: std::iter::once(0).chain(time.iter().copied()).collect(),
            stack: counts.stack.iter().copied().take(FINE_BINS - 1).chain([0]).collect(),
        }
    }

    /// Adds another thread's counts of the same group.
    pub fn merge(&mut self, other: &Self) {
        self.cold += other.cold;
        self.time.iter_mut().zip(&other.time).for_each(|(a, b)| *a += b);
        self.stack.iter_mut().zip(&other.stack).for_each(|(a, b)| *a += b);
    }
}

/// Counts at a granularity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrainSummary {
    /// Bytes of a granule.
    pub bytes: u64,
    /// Touches of granules; at least one per access.
    pub touches: u64,
    /// Touches of a granule never touched before; of merged threads, by the touching thread.
    pub cold: u64,
    /// Time distances in [`crate::FINE_BINS`] fine bins.
    pub time: Vec<u64>,
    /// Sums of the time distances in each bin, modulo 2^64: the
    /// basis of the mean place within a bin. Empty unless requested.
    pub time_sums: Vec<u64>,
    /// Stack distances in fine bins.
    pub stack: Vec<u64>,
    /// By thread and time.
    pub phases: Vec<Phase>,
    /// Pairs; empty unless requested.
    pub cells: Vec<Cell>,
    /// Touches without room among the pairs.
    pub pairs_lost: u64,
    /// The counts by group of lines; empty unless lines are sampled.
    pub by_group: Vec<OfGroup>,
}

/// An engine's whole counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Accesses.
    pub accesses: u64,
    /// Accesses with a store.
    pub stores: u64,
    /// Accesses of a batch interrupted by a kill: counted in part.
    pub torn: u64,
    /// Events not delivered by the source.
    pub lost: u64,
    /// Number of engines out of memory.
    pub full: u64,
    /// Calls without a separate context, and accesses with the context left out.
    pub folded: u64,
    /// Calling contexts, parents first.
    pub contexts: Vec<Context>,
    /// Instructions in contexts.
    pub sites: Vec<Site>,
    /// By granularity, ascending.
    pub grains: Vec<GrainSummary>,
}

impl<A: Arena + ?Sized> Engine<'_, A> {
    /// The results. `thread` names the source in phases; `code`
    /// is needed for open blocks in analyses of fetches.
    pub fn finish(mut self, thread: u64, code: &Code<'_>) -> Summary {
        // The last block of each thread ends with the run. A full arena has been noted in the state.
        let _: Result<(), ArenaFull> = self.observe(&[Event::new(Kind::THREAD_END, 0, thread)], code);
        self.summary(thread)
    }

    /// The results up to now.
    pub fn summary(&self, thread: u64) -> Summary {
        let (state, arena) = (self.read(), self.arena());
        let nodes = state.contexts.nodes(arena).iter();
        let sites = state.sites.list(arena).iter();
        let mut summary = Summary {
            accesses: state.accesses,
            stores: state.stores,
            torn: state.torn,
            lost: state.lost,
            full: state.full,
            folded: state.contexts.folded + state.sites.folded,
            contexts: nodes.map(|node| Context { parent: node.parent, call: node.call }).collect(),
            sites: sites.map(|site| Site { context: site.context, instruction: site.instruction }).collect(),
            grains: Vec::new(),
        };
        let ends = (1..=state.phases).map(|n| n * state.phase_accesses).collect::<Vec<_>>();
        for grain in state.grains.iter().filter_map(Option64::get) {
            summary.grains.extend(grain_summary(grain, arena, thread, &ends, state.accesses));
        }
        summary.sort();
        summary
    }
}

fn grain_summary<A: Arena + ?Sized>(
    grain: &Grain,
    arena: &A,
    thread: u64,
    ends: &[u64],
    accesses: u64,
) -> Option<GrainSummary> {
    let counts = grain.counts(arena)?;
    let mut before = &Counts::ZERO;
    let mut start = 0;
    let mut phases = Vec::new();
    let last = (accesses > ends.last().copied().unwrap_or(0)).then_some((&accesses, counts));
    let (mut sums, mut sums_before) = (grain.sums(arena), Vec::new());
    let time_sums = sums.next().unwrap_or_default();
    // The sums at the end of the last phase are the current sums.
    let mut sums = sums.take(ends.len()).chain([time_sums.clone()]);
    for (end, after) in ends.iter().zip(grain.snapshots(arena)).chain(last) {
        let less = |after: Vec<u64>, before: Vec<u64>, minus: fn(u64, u64) -> u64| {
            let mut bins: Vec<u64> = after.iter().zip(&before).map(|(a, b)| minus(*a, *b)).collect();
            bins.truncate(bins.iter().rposition(|n| *n != 0).map_or(0, |last| last + 1));
            bins
        };
        let sums_after = sums.next().unwrap_or_default();
        sums_before.resize(sums_after.len(), 0);
        phases.push(Phase {
            thread,
            first: start,
            accesses: end.saturating_sub(start),
            cold: after.cold().saturating_sub(before.cold()),
            time: less(after.time(), before.time(), u64::saturating_sub),
            time_sums: less(
                sums_after.clone(),
                std::mem::replace(&mut sums_before, sums_after),
                u64::wrapping_sub,
            ),
            stack: less(after.stack(), before.stack(), u64::saturating_sub),
        });
        (before, start) = (after, *end);
    }
    let cells = grain.cells(arena).filter(|_| grain.pairs != 0).map(|(key, count)| cell(key, count));
    Some(GrainSummary {
        bytes: 1 << grain.bits,
        touches: counts.cold() + counts.time().iter().sum::<u64>(),
        cold: counts.cold(),
        time: counts.time(),
        time_sums,
        stack: counts.stack(),
        phases,
        cells: cells.collect(),
        pairs_lost: grain.pairs_lost,
        by_group: grain.by_group(arena).iter().map(OfGroup::of).collect(),
    })
}

impl GrainSummary {
    /// Bytes of the granules touched; of merged threads, counted once for each thread.
    pub fn footprint_bytes(&self) -> u64 {
        self.cold * self.bytes
    }

    /// Touches of a granule touched before.
    pub fn reuses(&self) -> u64 {
        self.touches - self.cold.min(self.touches)
    }

    /// Time distances in log2 bins, trailing empty bins left out.
    pub fn time_log2(&self) -> Vec<u64> {
        to_log2(&self.time)
    }

    /// Stack distances in log2 bins.
    pub fn stack_log2(&self) -> Vec<u64> {
        to_log2(&self.stack)
    }

    /// Misses of a fully associative LRU cache of `granules` granules: first touches,
    /// and reuses at a stack distance of at least `granules` (Mattson et al., IBM
    /// Systems Journal 9, 1970). Exact if the size is the low edge of a fine bin, as
    /// every size up to 64 or of at most six significant bits; otherwise `None`.
    pub fn misses(&self, granules: u64) -> Option<u64> {
        let bin = crate::bins::fine_bin(granules);
        (fine_low(bin) == granules).then(|| self.cold + self.stack.iter().skip(bin).sum::<u64>())
    }

    /// The whole curve: (bytes, misses) at every edge up to
    /// the first size with only first touches as misses.
    pub fn miss_curve(&self) -> Vec<(u64, u64)> {
        let mut misses = self.touches;
        let mut curve = Vec::new();
        for (bin, reuses) in self.stack.iter().enumerate() {
            curve.push((fine_low(bin).saturating_mul(self.bytes), misses));
            if misses <= self.cold {
                break;
            }
            misses = misses.saturating_sub(*reuses);
        }
        curve
    }

    /// Reuses by the type of data accessed by the reusing
    /// instruction. `facts` are the instructions by index.
    pub fn by_data_type(&self, sites: &[Site], facts: &[Instruction]) -> BTreeMap<DataType, TypeReuse> {
        let mut types: BTreeMap<DataType, TypeReuse> = BTreeMap::new();
        for cell in &self.cells {
            let site = sites.get(cell.reuse_site as usize);
            let data = site
                .and_then(|site| facts.get(site.instruction as usize))
                .map_or(DataType::None, |facts| facts.data);
            types.entry(data).or_default().add(cell);
        }
        types
    }
}

/// Reuses of a data type; the distances count accesses of every type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeReuse {
    /// Touches.
    pub touches: u64,
    /// First touches.
    pub cold: u64,
    /// Time distances in log2 bins.
    pub time: [u64; LOG2_BINS],
    /// Stack distances in log2 bins.
    pub stack: [u64; LOG2_BINS],
}

impl Default for TypeReuse {
    fn default() -> Self {
        TypeReuse { touches: 0, cold: 0, time: [0; LOG2_BINS], stack: [0; LOG2_BINS] }
    }
}

impl TypeReuse {
    /// Adds a pair's reuses.
    pub fn add(&mut self, cell: &Cell) {
        self.touches += cell.count;
        if cell.use_site == 0 {
            self.cold += cell.count;
            return;
        }
        if let Some(n) = self.time.get_mut(usize::from(cell.time_bin)) {
            *n += cell.count;
        }
        if let Some(n) = self.stack.get_mut(usize::from(cell.stack_bin)) {
            *n += cell.count;
        }
    }
}

impl Summary {
    /// Adds another thread's results, with equal numbering of instructions.
    pub fn merge(&mut self, other: &Summary) {
        self.accesses += other.accesses;
        self.stores += other.stores;
        self.torn += other.torn;
        self.lost += other.lost;
        self.full += other.full;
        self.folded += other.folded;
        let mut known: BTreeMap<Context, u32> = self.contexts.iter().copied().zip(0..).skip(1).collect();
        let mut contexts = vec![0_u32];
        for context in other.contexts.iter().skip(1) {
            let parent = contexts.get(context.parent as usize).copied().unwrap_or(0);
            let context = Context { parent, call: context.call };
            let next = self.contexts.len() as u32;
            let number = *known.entry(context).or_insert(next);
            if number == next {
                self.contexts.push(context);
            }
            contexts.push(number);
        }
        let mut known: BTreeMap<Site, u32> = self.sites.iter().copied().zip(0..).collect();
        let mut sites = vec![0];
        for site in other.sites.iter().skip(1) {
            let context = contexts.get(site.context as usize).copied().unwrap_or(0);
            let site = Site { context, instruction: site.instruction };
            let next = self.sites.len() as u32;
            let number = *known.entry(site).or_insert(next);
            if number == next {
                self.sites.push(site);
            }
            sites.push(number);
        }
        let site = |old: u32| sites.get(old as usize).copied().unwrap_or(0);
        for theirs in &other.grains {
            let cells = theirs.cells.iter().map(|cell| Cell {
                use_site: site(cell.use_site),
                reuse_site: site(cell.reuse_site),
                ..*cell
            });
            match self.grains.iter_mut().find(|ours| ours.bytes == theirs.bytes) {
                Some(ours) => {
                    ours.touches += theirs.touches;
                    ours.cold += theirs.cold;
                    ours.pairs_lost += theirs.pairs_lost;
                    ours.time.iter_mut().zip(&theirs.time).for_each(|(a, b)| *a += b);
                    let sums = ours.time_sums.iter_mut().zip(&theirs.time_sums);
                    sums.for_each(|(a, b)| *a = a.wrapping_add(*b));
                    ours.stack.iter_mut().zip(&theirs.stack).for_each(|(a, b)| *a += b);
                    ours.phases.extend(theirs.phases.iter().cloned());
                    ours.by_group.iter_mut().zip(&theirs.by_group).for_each(|(a, b)| a.merge(b));
                    ours.cells.extend(cells);
                }
                None => self.grains.push(GrainSummary { cells: cells.collect(), ..theirs.clone() }),
            }
        }
        self.sort();
    }

    /// Brings contexts, sites, pairs and phases into an order dependent on content only.
    fn sort(&mut self) {
        // Contexts by depth-first search, children by call.
        let mut children: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for (index, context) in (0_u32..).zip(&self.contexts).skip(1) {
            children.entry(context.parent).or_default().push((context.call, index));
        }
        let mut new_numbers = vec![0_u32; self.contexts.len()];
        let mut sorted = vec![Context { parent: 0, call: u32::MAX }];
        let mut to_do = vec![0_u32];
        while let Some(parent) = to_do.pop() {
            let new_parent = new_numbers.get(parent as usize).copied().unwrap_or(0);
            let mut below = children.remove(&parent).unwrap_or_default();
            below.sort_unstable();
            for (call, index) in below {
                if let Some(number) = new_numbers.get_mut(index as usize) {
                    *number = sorted.len() as u32;
                }
                sorted.push(Context { parent: new_parent, call });
                to_do.push(index);
            }
        }
        self.contexts = sorted;
        for site in self.sites.iter_mut().skip(1) {
            site.context = new_numbers.get(site.context as usize).copied().unwrap_or(0);
        }
        let mut order: Vec<(Site, usize)> = self.sites.iter().copied().zip(0..).skip(1).collect();
        order.sort_unstable();
        let mut new_sites = vec![0_u32; self.sites.len()];
        self.sites.truncate(1);
        for (site, old) in order {
            if let Some(number) = new_sites.get_mut(old) {
                *number = self.sites.len() as u32;
            }
            self.sites.push(site);
        }
        self.grains.sort_unstable_by_key(|grain| grain.bytes);
        for grain in &mut self.grains {
            for cell in &mut grain.cells {
                cell.use_site = new_sites.get(cell.use_site as usize).copied().unwrap_or(0);
                cell.reuse_site = new_sites.get(cell.reuse_site as usize).copied().unwrap_or(0);
            }
            grain.cells.sort_unstable();
            grain.cells.dedup_by(|later, first| {
                let same = Cell { count: 0, ..*later } == Cell { count: 0, ..*first };
                first.count += if same { later.count } else { 0 };
                same
            });
            grain.phases.sort_unstable();
        }
    }
}
