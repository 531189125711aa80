//! Pairs of use and reuse by source place: the named pairs, with calling contexts.
//!
//! A run has up to millions of pairs of instructions in contexts, and a report shows hundreds.
//! Pairs are therefore summed by instructions first; only an image's heaviest [`NAMED`] pairs
//! of instructions are looked up in debug information, half by reuses, half by misses of
//! [`FAR_BYTES`]. Every reuse between instructions with known places counts for a pair of
//! places; the rest is counted as not named. Contexts are stored of the heaviest places only.
//!
//! Not here: the order in the report (`report`).

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use locality_reuse::{Cell, GrainSummary, Summary};

use super::{
    image::Image,
    names::{Frame, Names},
    total::Counts,
};

/// Named pairs of instructions, per image and granularity.
const NAMED: usize = 4000;
/// Pairs of places with stored contexts, per image and granularity.
const WITH_CONTEXTS: usize = 800;
/// Contexts stored of a pair of places, per image: the heaviest.
pub const CONTEXTS: usize = 4;
/// Frames of a context, at most.
const DEPTH: usize = 64;
/// Size of a small first-level cache: the cache's misses weigh as much as reuses in total.
pub const FAR_BYTES: u64 = 32 << 10;

/// Pairs at a granularity, of the run's images.
#[derive(Default)]
pub struct Pairs {
    /// By place, not ranked.
    pub named: HashMap<PlacePair, Pair>,
    /// Reuses of unnamed pairs.
    pub unnamed: u64,
    /// Unnamed pairs of instructions in contexts.
    pub unnamed_pairs: u64,
}

/// Two source places: function, file and line of the innermost frames.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlacePair {
    /// Of the use.
    pub by: Arc<str>,
    /// Of the reuse.
    pub again: Arc<str>,
}

/// The reuses of a pair of places.
#[derive(Default)]
pub struct Pair {
    /// Number and distances of reuses.
    pub counts: Counts,
    /// Pairs of instructions in contexts, summed over processes.
    pub contexts_total: u64,
    /// The heaviest contexts.
    pub contexts: HashMap<(Vec<usize>, Vec<usize>), (Counts, Context)>,
}

/// Frames of a use and of the reuse, innermost first.
#[derive(Default, Clone)]
pub struct Context {
    /// Of the use.
    pub by: Vec<Frame>,
    /// Of the reuse.
    pub again: Vec<Frame>,
}

/// How heavy a pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Weight {
    n: u64,
    far: u64,
}

impl Weight {
    fn of(cells: &[Cell], far_bin: usize) -> Self {
        let mut weight = Self::default();
        for cell in cells {
            weight.n += cell.count;
            weight.far += if usize::from(cell.stack_bin) >= far_bin { cell.count } else { 0 };
        }
        weight
    }

    fn add(&mut self, other: Self) {
        self.n += other.n;
        self.far += other.far;
    }
}

/// Brings the heaviest to the front: `most / 2` by
/// reuses, then as many by misses. Returns the number.
fn choose<K: Ord + Copy>(all: &mut [(K, Weight)], most: usize) -> usize {
    let by_reuses = (most / 2).min(all.len());
    front(all, by_reuses, |(key, weight)| (Reverse(weight.n), *key));
    let rest = all.get_mut(by_reuses..).unwrap_or_default();
    let by_misses = (most / 2).min(rest.len());
    front(rest, by_misses, |(key, weight)| (Reverse(weight.far), *key));
    by_reuses + by_misses
}

/// Brings the `count` lowest to the front, unordered.
fn front<T, K: Ord>(all: &mut [T], count: usize, key: impl FnMut(&T) -> K) {
    if count > 0 && count < all.len() {
        all.select_nth_unstable_by_key(count, key);
    }
}

fn sites(cell: &Cell) -> (u32, u32) {
    (cell.use_site, cell.reuse_site)
}

/// Cells of equal sites are adjacent in a summary; first touches, at the start, are no pairs.
fn groups(grain: &GrainSummary) -> impl Iterator<Item = &[Cell]> {
    let start = grain.cells.partition_point(|cell| cell.use_site == 0);
    let reuses = grain.cells.get(start..).unwrap_or_default();
    reuses.chunk_by(|a, b| sites(a) == sites(b))
}

/// A pair of instructions in contexts, within a pair of places.
struct InContext<'a> {
    n: u64,
    cells: &'a [Cell],
}

impl Pairs {
    /// Adds the pairs of an image.
    pub fn add(&mut self, image: &Image, summary: &Summary, grain: &GrainSummary, names: &mut Names) {
        // Distances among sampled lines are smaller by their share.
        let one_in = image.sampled.as_ref().map_or(1, |sampled| u64::from(sampled.one_in));
        let far_bin = locality_reuse::log2_bin((FAR_BYTES / grain.bytes / one_in).max(1));
        let instruction =
            |site: u32| summary.sites.get(site as usize).map_or(u32::MAX, |site| site.instruction);
        let instructions = |cells: &[Cell]| {
            let first = cells.first().map(sites).unwrap_or_default();
            (instruction(first.0), instruction(first.1))
        };
        let mut weights: HashMap<(u32, u32), Weight> = HashMap::new();
        for cells in groups(grain) {
            weights.entry(instructions(cells)).or_default().add(Weight::of(cells, far_bin));
        }
        let mut ranked: Vec<((u32, u32), Weight)> = weights.into_iter().collect();
        let chosen = choose(&mut ranked, NAMED);
        names.ahead(image, ranked.iter().take(chosen).flat_map(|((by, again), _)| [*by, *again]));
        // Places by instruction; pairs of places by number.
        let mut places: HashMap<u32, u32> = HashMap::new();
        let mut texts: Vec<Arc<str>> = Vec::new();
        let mut numbers: HashMap<Arc<str>, u32> = HashMap::new();
        let mut wanted: HashSet<(u32, u32)> = HashSet::new();
        for ((by, again), _) in ranked.iter().take(chosen) {
            let mut place_of = |instruction: u32| {
                *places.entry(instruction).or_insert_with(|| {
                    let text = place(&names.frames(image, instruction));
                    *numbers.entry(text).or_insert_with_key(|text| {
                        texts.push(Arc::clone(text));
                        texts.len() as u32 - 1
                    })
                })
            };
            wanted.insert((place_of(*by), place_of(*again)));
        }
        let mut found: HashMap<(u32, u32), Vec<InContext<'_>>> = HashMap::new();
        for cells in groups(grain) {
            let n = cells.iter().map(|cell| cell.count).sum();
            let (by, again) = instructions(cells);
            let key = places.get(&by).zip(places.get(&again)).map(|(by, again)| (*by, *again));
            match key.filter(|key| wanted.contains(key)) {
                Some(key) => found.entry(key).or_default().push(InContext { n, cells }),
                None => {
                    self.unnamed_pairs += 1;
                    self.unnamed += n;
                }
            }
        }
        let mut ranked: Vec<((u32, u32), Weight)> = Vec::new();
        for (key, all) in &found {
            let mut weight = Weight::default();
            all.iter().for_each(|each| weight.add(Weight::of(each.cells, far_bin)));
            ranked.push((*key, weight));
        }
        let chosen = choose(&mut ranked, WITH_CONTEXTS);
        let mut stacks: HashMap<u32, Arc<[Frame]>> = HashMap::new();
        for (at, (key, _)) in ranked.iter().enumerate() {
            let text = |place: u32| texts.get(place as usize).cloned().unwrap_or_default();
            let pair = self.named.entry(PlacePair { by: text(key.0), again: text(key.1) }).or_default();
            let Some(all) = found.get_mut(key) else { continue };
            pair.contexts_total += all.len() as u64;
            all.iter().flat_map(|each| each.cells).for_each(|cell| pair.counts.add(cell));
            if at >= chosen {
                continue;
            }
            front(all, CONTEXTS, |each| (Reverse(each.n), each.cells.first().map(sites)));
            for each in all.iter().take(CONTEXTS) {
                let (by, again) = each.cells.first().map(sites).unwrap_or_default();
                let mut frames = |site: u32| {
                    let stack = stacks.entry(site);
                    Arc::clone(stack.or_insert_with(|| stack_of(image, summary, site, names).into()))
                };
                pair.add_context(&frames(by), &frames(again), each.cells);
            }
        }
    }
}

impl Pair {
    fn add_context(&mut self, by: &[Frame], again: &[Frame], cells: &[Cell]) {
        // Names of a place share one value.
        let identity = |frames: &[Frame]| frames.iter().map(|frame| Arc::as_ptr(frame) as usize).collect();
        let context = self.contexts.entry((identity(by), identity(again)));
        let (counts, _) = context
            .or_insert_with(|| (Counts::default(), Context { by: by.to_vec(), again: again.to_vec() }));
        cells.iter().for_each(|cell| counts.add(cell));
    }
}

/// The call stack of a site, innermost first.
fn stack_of(image: &Image, summary: &Summary, site: u32, names: &mut Names) -> Vec<Frame> {
    let Some(site) = summary.sites.get(site as usize) else { return Vec::new() };
    let mut frames = names.frames(image, site.instruction).to_vec();
    let mut context = site.context;
    while let Some(node) =
        summary.contexts.get(context as usize).filter(|_| context != 0 && frames.len() < DEPTH)
    {
        frames.extend(names.frames(image, node.call).iter().cloned());
        // Parents come first, hence the loop ends.
        context = if node.parent < context { node.parent } else { 0 };
    }
    frames
}

/// The place in readers' words: function, file and line, or the address without a line.
fn place(frames: &[Frame]) -> Arc<str> {
    let Some(frame) = frames.first() else { return Arc::from("") };
    // Quoted, to separate places with a bar in the name. Cannot fail.
    let text = |name: &Option<String>| serde_json::to_string(name).unwrap_or_default();
    let (function, module) = (text(&frame.function), text(&frame.module));
    match (frame.line, &frame.function, frame.address) {
        (Some(line), ..) => format!("{function}|{}|{line}", text(&frame.file)).into(),
        (None, None, Some(address)) => format!("{function}|{module}|{address}").into(),
        (None, ..) => format!("{function}|{module}|null").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_are_chosen_by_reuses_and_half_by_misses() {
        let weight = |n, far| Weight { n, far };
        let mut all = vec![
            (0, weight(1, 0)),
            (1, weight(9, 0)),
            (2, weight(2, 2)),
            (3, weight(8, 1)),
            (4, weight(3, 1)),
        ];
        let chosen = choose(&mut all, 4);
        let mut keys: Vec<i32> = all[..chosen].iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        assert_eq!(keys, [1, 2, 3, 4]);
        assert_eq!(choose(&mut all, 100), 5);
        assert_eq!(choose::<i32>(&mut [], 100), 0);
    }

    #[test]
    fn groups_leave_first_touches_out() {
        let cell = |use_site, reuse_site, stack_bin| Cell {
            use_site,
            reuse_site,
            group: 0,
            time_bin: 3,
            stack_bin,
            count: 1,
        };
        let cells = vec![cell(0, 1, 0), cell(0, 2, 0), cell(1, 1, 2), cell(1, 1, 9), cell(1, 2, 1)];
        let none = Vec::new();
        let grain = GrainSummary {
            bytes: 64,
            touches: 5,
            cold: 2,
            time: none.clone(),
            time_sums: none.clone(),
            stack: none,
            phases: Vec::new(),
            cells,
            pairs_lost: 0,
            by_group: Vec::new(),
        };
        let found: Vec<(usize, Weight)> =
            groups(&grain).map(|cells| (cells.len(), Weight::of(cells, 5))).collect();
        assert_eq!(found, [(2, Weight { n: 2, far: 1 }), (1, Weight { n: 1, far: 0 })]);
    }
}
