//! The whole run: images summed, pairs named and ranked.
//!
//! Distances are those of each thread (or of the process, in a run in one order); sums over threads and processes add
//! counts and never mix their orders. Pairs are ranked before they are named; those beyond [`NAMED`] are counted and
//! not named.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use locality_reuse::{Cell, GrainSummary, LOG2_BINS, Summary};
use locality_stream::{Class, DataType};

use super::{
    image::{Image, Thread},
    names::{Frame, Names},
};

/// Pairs of instructions in contexts that are named, per image and granularity: the heaviest.
const NAMED: usize = 4000;
/// Frames of a context, at most.
const DEPTH: usize = 64;

/// Everything that is reported.
#[derive(Default)]
pub struct Total {
    /// Accesses.
    pub accesses: u64,
    /// Stores among them.
    pub stores: u64,
    /// Executed instructions by class.
    pub mix: BTreeMap<Class, u64>,
    /// By granularity in bytes.
    pub grains: BTreeMap<u64, Grain>,
    /// Threads with their process.
    pub threads: Vec<(u32, Thread)>,
    /// Programs that ran: process, file.
    pub programs: Vec<(u32, String)>,
    /// Sentences that the reader must know.
    pub notices: Vec<String>,
    /// Whether something is missing.
    pub partial: bool,
    /// Buffers that were not in the promised order.
    pub out_of_turn: u64,
    /// Accesses counted in part, or lost.
    pub torn: u64,
    /// Accesses without their calling context.
    pub folded: u64,
}

/// One granularity.
#[derive(Default)]
pub struct Grain {
    /// Distances and counts; no pairs.
    pub sum: Option<GrainSummary>,
    /// Touches, first touches and distances by type of data.
    pub types: BTreeMap<DataType, Typed>,
    /// Pairs by source place, not ranked.
    pub pairs: HashMap<PlacePair, Pair>,
    /// Reuses that were not named.
    pub unnamed: u64,
    /// Pairs that were not named.
    pub unnamed_pairs: u64,
}

/// Touches by instructions whose data are of one type.
#[derive(Default)]
pub struct Typed {
    /// First touches.
    pub cold: u64,
    /// Reuses; their distances are those among all accesses.
    pub reuses: Counts,
}

/// Two source places: function, file and line of the innermost frames.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlacePair {
    /// Of the use.
    pub by: String,
    /// Of the reuse.
    pub again: String,
}

/// The reuses of a pair of places.
#[derive(Default)]
pub struct Pair {
    /// How many, and their distances.
    pub counts: Counts,
    /// The same by calling contexts.
    pub contexts: HashMap<(Vec<usize>, Vec<usize>), (Counts, Context)>,
}

/// Frames of a use and of its reuse, innermost first.
#[derive(Default, Clone)]
pub struct Context {
    /// Of the use.
    pub by: Vec<Frame>,
    /// Of the reuse.
    pub again: Vec<Frame>,
}

/// Reuses and their distances in log2 bins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// How many.
    pub n: u64,
    /// By time distance.
    pub time: [u64; LOG2_BINS],
    /// By stack distance.
    pub stack: [u64; LOG2_BINS],
}

impl Default for Counts {
    fn default() -> Self {
        Self { n: 0, time: [0; LOG2_BINS], stack: [0; LOG2_BINS] }
    }
}

impl Counts {
    fn add(&mut self, cell: &Cell) {
        self.n += cell.count;
        for (bins, bin) in [(&mut self.time, cell.time_bin), (&mut self.stack, cell.stack_bin)] {
            if let Some(count) = bins.get_mut(usize::from(bin)) {
                *count += cell.count;
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        self.n += other.n;
        for (ours, theirs) in [(&mut self.time, &other.time), (&mut self.stack, &other.stack)] {
            ours.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
        }
    }

    /// Reuses that miss in a fully associative LRU cache of that many granules: a power of two, so that the bins tell.
    pub fn misses(&self, granules: u64) -> u64 {
        self.stack.iter().skip(locality_reuse::log2_bin(granules)).sum()
    }
}

impl Total {
    /// Adds an image.
    pub fn add(&mut self, image: Image, names: &mut Names) {
        self.programs.push((image.pid, image.program.clone()));
        for (class, count) in &image.mix {
            *self.mix.entry(*class).or_default() += count;
        }
        self.out_of_turn += u64::from(image.out_of_turn);
        self.threads.extend(image.threads.iter().cloned().map(|thread| (image.pid, thread)));
        if let Some(why) = &image.stopped {
            self.partial = true;
            self.notices.push(format!("Process {} was recorded only in part: {why}.", image.pid));
        }
        if let Some(remark) = &image.remark {
            self.notices.push(format!("Process {}: {remark}.", image.pid));
        }
        if image.children_lost > 0 {
            self.notices.push(format!(
                "Process {} started {} that could not be recorded.",
                image.pid,
                plural(image.children_lost.into(), "program")
            ));
        }
        let Some(summary) = &image.summary else { return };
        self.accesses += summary.accesses;
        self.stores += summary.stores;
        self.torn += summary.torn + summary.lost;
        self.folded += summary.folded;
        if summary.full > 0 {
            self.partial = true;
        }
        for grain in &summary.grains {
            self.grains.entry(grain.bytes).or_default().add(&image, summary, grain, names);
        }
    }
}

fn plural(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

impl Grain {
    fn add(&mut self, image: &Image, summary: &Summary, grain: &GrainSummary, names: &mut Names) {
        for (data, reuse) in grain.by_data_type(&summary.sites, &image.facts) {
            let ours = self.types.entry(data).or_default();
            ours.cold += reuse.cold;
            let reuses = Counts { n: reuse.touches - reuse.cold, time: reuse.time, stack: reuse.stack };
            ours.reuses.merge(&reuses);
        }
        self.add_pairs(image, summary, grain, names);
        let bare = GrainSummary { cells: Vec::new(), ..grain.clone() };
        match &mut self.sum {
            None => self.sum = Some(bare),
            Some(sum) => {
                sum.touches += bare.touches;
                sum.cold += bare.cold;
                sum.pairs_lost += bare.pairs_lost;
                sum.time.iter_mut().zip(&bare.time).for_each(|(a, b)| *a += b);
                sum.stack.iter_mut().zip(&bare.stack).for_each(|(a, b)| *a += b);
                sum.phases.extend(bare.phases);
            }
        }
    }

    fn add_pairs(&mut self, image: &Image, summary: &Summary, grain: &GrainSummary, names: &mut Names) {
        let mut pairs: HashMap<(u32, u32), Counts> = HashMap::new();
        for cell in grain.cells.iter().filter(|cell| cell.use_site != 0) {
            pairs.entry((cell.use_site, cell.reuse_site)).or_default().add(cell);
        }
        let mut ranked: Vec<((u32, u32), Counts)> = pairs.into_iter().collect();
        // Far reuses count as much as frequent ones: half of the names go to each.
        ranked.sort_unstable_by_key(|(sites, counts)| (std::cmp::Reverse(counts.n), *sites));
        let mut rest = ranked.split_off(ranked.len().min(NAMED / 2));
        let far_granules = (FAR_BYTES / grain.bytes).max(1);
        rest.sort_unstable_by_key(|(sites, counts)| (std::cmp::Reverse(counts.misses(far_granules)), *sites));
        let unnamed = rest.split_off(rest.len().min(NAMED / 2));
        self.unnamed_pairs += unnamed.len() as u64;
        self.unnamed += unnamed.iter().map(|(_, counts)| counts.n).sum::<u64>();
        let mut known: HashMap<u32, Arc<[Frame]>> = HashMap::new();
        for ((by, again), counts) in ranked.into_iter().chain(rest) {
            let mut frames_of = |site: u32| {
                Arc::clone(known.entry(site).or_insert_with(|| stack(image, summary, site, names).into()))
            };
            let (by, again) = (frames_of(by), frames_of(again));
            let key = PlacePair { by: place(&by), again: place(&again) };
            let pair = self.pairs.entry(key).or_default();
            pair.counts.merge(&counts);
            let identity =
                |frames: &[Frame]| frames.iter().map(|frame| Arc::as_ptr(frame) as usize).collect();
            let context = pair.contexts.entry((identity(&by), identity(&again))).or_default();
            context.0.merge(&counts);
            context.1 = Context { by: by.to_vec(), again: again.to_vec() };
        }
    }
}

/// Reuses that miss a small first-level cache.
pub const FAR_BYTES: u64 = 32 << 10;

/// The call stack of a site, innermost first.
fn stack(image: &Image, summary: &Summary, site: u32, names: &mut Names) -> Vec<Frame> {
    let Some(site) = summary.sites.get(site as usize) else { return Vec::new() };
    let mut frames = names.frames(image, site.instruction).to_vec();
    let mut context = site.context;
    while let Some(node) =
        summary.contexts.get(context as usize).filter(|_| context != 0 && frames.len() < DEPTH)
    {
        frames.extend(names.frames(image, node.call).iter().cloned());
        // Parents come first, so this ends.
        context = if node.parent < context { node.parent } else { 0 };
    }
    frames
}

/// What the reader calls the place: function, file and line, or the address where there is no line.
fn place(frames: &[Frame]) -> String {
    let Some(frame) = frames.first() else { return String::new() };
    if frame["line"].is_null() {
        format!(
            "{}|{}|{}",
            frame["function"],
            frame["module"],
            if frame["function"].is_null() { &frame["address"] } else { &frame["line"] }
        )
    } else {
        format!("{}|{}|{}", frame["function"], frame["file"], frame["line"])
    }
}
