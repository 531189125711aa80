//! The whole run: images summed.
//!
//! Distances are within each thread (or within the process, in a run
//! in one order); sums over threads and processes add counts and
//! never mix orders. Not here: the choice of named pairs (`pairs`).

use std::collections::{BTreeMap, BTreeSet};

use locality_cachesim::Column;
use locality_dataflow::Shared;
use locality_reuse::{Cell, GrainSummary, LOG2_BINS, PAIR_GROUPS, Summary};
use locality_stream::{DataType, Mix};

use super::{
    cache::Simulated,
    executions::Executions,
    extra::Extra,
    image::{Image, Sampled, Thread},
    names::Names,
    pairs::Pairs,
    parallelism::Parallelism,
    regions::Regions,
    tasks::Tasks,
};

/// The reported results.
#[derive(Default)]
pub struct Total {
    /// Accesses.
    pub accesses: u64,
    /// Stores among the accesses.
    pub stores: u64,
    /// Executed instructions.
    pub mix: Mix,
    /// Executions of each instruction of files.
    pub executions: Executions,
    /// By granularity in bytes.
    pub grains: BTreeMap<u64, Grain>,
    /// Threads with process id.
    pub threads: Vec<(u32, Thread)>,
    /// Mapped files.
    pub files: BTreeSet<String>,
    /// Programs run: process, file.
    pub programs: Vec<(u32, String)>,
    /// Sentences for the reader.
    pub notices: Vec<String>,
    /// Whether results are missing.
    pub partial: bool,
    /// Buffers out of the promised order.
    pub out_of_turn: u64,
    /// Accesses counted in part, or lost.
    pub torn: u64,
    /// Accesses without calling context.
    pub folded: u64,
    /// A bit for each requested function found.
    pub functions_found: u64,
    /// Sets and optimal replacement.
    pub extra: Extra,
    /// Simulated caches.
    pub simulated: Simulated,
    /// A bit for each function to skip found.
    pub skipped_found: u64,
    /// Parallelism.
    pub parallelism: Parallelism,
    /// Bytes between threads, with process id; `None` if not counted.
    pub sharing: Option<Vec<(u32, Shared)>>,
    /// Counts of all accesses, if only some lines are sampled.
    pub sampled: Option<Sampled>,
    /// Task parallelism.
    pub tasks: Tasks,
    /// Self-parallelism.
    pub regions: Regions,
    /// A bit for each function found, of the functions with whole calls reported.
    pub inclusive_found: u64,
    /// By process: the instruction translated last, if QEMU lacks the instruction.
    pub lacking: BTreeMap<u32, String>,
}

/// Results at a granularity.
#[derive(Default)]
pub struct Grain {
    /// Distances and counts; no pairs.
    pub sum: Option<GrainSummary>,
    /// Touches, first touches and distances by type of data.
    pub types: BTreeMap<DataType, Typed>,
    /// Pairs of source places.
    pub pairs: Pairs,
}

/// Touches by instructions with data of one type.
#[derive(Default)]
pub struct Typed {
    /// First touches.
    pub cold: u64,
    /// Reuses, with distances in accesses of every type.
    pub reuses: Counts,
}

/// Reuses with distances in log2 bins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// How many.
    pub n: u64,
    /// By time distance.
    pub time: [u64; LOG2_BINS],
    /// By stack distance.
    pub stack: [u64; LOG2_BINS],
    /// By bin of stack distances and group of sampled lines. Without group 0, which has the rest.
    groups: BTreeMap<(u8, u8), u64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self { n: 0, time: [0; LOG2_BINS], stack: [0; LOG2_BINS], groups: BTreeMap::new() }
    }
}

impl Counts {
    /// Adds a bin's reuses.
    pub fn add(&mut self, cell: &Cell) {
        self.n += cell.count;
        for (bins, bin) in [(&mut self.time, cell.time_bin), (&mut self.stack, cell.stack_bin)] {
            if let Some(count) = bins.get_mut(usize::from(bin)) {
                *count += cell.count;
            }
        }
        if cell.group > 0 {
            *self.groups.entry((cell.stack_bin, cell.group)).or_default() += cell.count;
        }
    }

    /// Reuses by group of sampled lines, in a bin of stack distances and above.
    pub fn by_group(&self, bin: usize) -> Vec<u64> {
        let mut groups = vec![0; PAIR_GROUPS];
        for ((at, group), count) in &self.groups {
            if usize::from(*at) >= bin
                && let Some(sum) = groups.get_mut(usize::from(*group))
            {
                *sum += count;
            }
        }
        let all: u64 = self.stack.iter().skip(bin).sum();
        let others: u64 = groups.iter().sum();
        if let Some(first) = groups.first_mut() {
            *first = all.saturating_sub(others);
        }
        groups
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        self.n += other.n;
        for (ours, theirs) in [(&mut self.time, &other.time), (&mut self.stack, &other.stack)] {
            ours.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
        }
        for (key, count) in &other.groups {
            *self.groups.entry(*key).or_default() += count;
        }
    }

    /// Reuses with a miss in a fully associative LRU cache of
    /// `granules` granules: a power of two, hence bins are exact.
    pub fn misses(&self, granules: u64) -> u64 {
        self.stack.iter().skip(locality_reuse::log2_bin(granules)).sum()
    }
}

impl Total {
    /// Adds an image.
    pub fn add(&mut self, image: Image, names: &mut Names) {
        self.programs.push((image.pid, image.program.clone()));
        self.files.extend(image.mappings.iter().map(|file| file.path.clone()));
        self.mix.merge(&image.mix);
        self.executions.add(&image, names);
        self.out_of_turn += u64::from(image.out_of_turn);
        self.functions_found |= image.functions_found;
        self.extra.merge(&image.extra);
        self.lacking.extend(image.lacking.clone().map(|what| (image.pid, what)));
        self.torn += image.extra.torn;
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
                plural(image.children_lost.into(), "program", "programs")
            ));
        }
        self.skipped_found |= image.skipped_found;
        if let Some(totals) = &image.simulated {
            self.simulated.add(&image, totals, names);
            self.torn += totals.torn;
            self.partial |= totals.full > 0;
            if image.summary.is_none() {
                // Reuse was not counted.
                let (loads, stores) = (totals.sum[Column::Dr], totals.sum[Column::Dw]);
                self.accesses += loads + stores;
                self.stores += stores;
            }
        }
        self.inclusive_found |= image.inclusive_found;
        for found in image.parallelism.iter().filter_map(|(_, all)| all.first()) {
            self.torn += found.torn;
            self.partial |= found.full;
            if image.summary.is_none() && image.simulated.is_none() {
                self.accesses += found.loads + found.stores;
                self.stores += found.stores;
            }
        }
        self.parallelism.add(&image, names);
        self.tasks.add(&image, names);
        self.regions.add(&image, names);
        if let Some((found, is_full)) = &image.sharing {
            self.sharing.get_or_insert_default().extend(found.iter().map(|row| (image.pid, *row)));
            self.partial |= is_full;
        }
        let tasks = image.tasks.iter().map(|found| (found.torn, found.full));
        for (torn, is_full) in tasks.chain(image.nests.iter().map(|found| (found.torn, found.full))) {
            self.torn += torn;
            self.partial |= is_full;
        }
        let Some(summary) = &image.summary else { return };
        match (&image.sampled, &mut self.sampled) {
            (Some(all), sum) => {
                self.accesses += all.accesses;
                self.stores += all.stores;
                match sum {
                    Some(sum) => sum.merge(all),
                    none => *none = Some(*all),
                }
            }
            (None, _) => {
                self.accesses += summary.accesses;
                self.stores += summary.stores;
            }
        }
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

impl Total {
    /// Reports the number of processes begun as copies
    /// of another process, except the command's own.
    pub fn name_forked_processes(&mut self, command: u32) {
        let forked: BTreeSet<u32> =
            self.programs.iter().map(|program| program.0).filter(|pid| *pid != command).collect();
        if !forked.is_empty() {
            self.notices.push(format!(
                "{} by fork: counts begin at zero there, and what was inherited counts as touched for the first time.",
                plural(forked.len() as u64, "process began", "processes began")
            ));
        }
    }

    /// Reports requested functions found in no program.
    pub fn name_missing_functions(&mut self, names: &[String]) {
        self.name_missing(names, self.functions_found, "");
    }

    /// Reports functions to skip found in no program.
    pub fn name_missing_skipped(&mut self, names: &[String]) {
        self.name_missing(names, self.skipped_found, "; nothing was skipped for it");
    }

    /// Reports functions with whole calls requested but found in no program.
    pub fn name_missing_inclusive(&mut self, names: &[String]) {
        self.name_missing(names, self.inclusive_found, "");
    }

    fn name_missing(&mut self, names: &[String], found: u64, so: &str) {
        let missing: Vec<String> = (0..64)
            .zip(names)
            .filter(|(bit, _)| found & 1 << bit == 0)
            .map(|(_, name)| format!("`{name}`"))
            .collect();
        if !missing.is_empty() {
            self.notices.push(format!(
                "No function called {} in the symbol tables of the files that were mapped (stripped, inlined everywhere, \
                 or written otherwise?){so}.",
                missing.join(" or ")
            ));
        }
    }
}

fn plural(n: u64, one: &str, several: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {several}") }
}

impl Grain {
    fn add(&mut self, image: &Image, summary: &Summary, grain: &GrainSummary, names: &mut Names) {
        for (data, reuse) in grain.by_data_type(&summary.sites, &image.facts) {
            let ours = self.types.entry(data).or_default();
            ours.cold += reuse.cold;
            let reuses = Counts {
                n: reuse.touches - reuse.cold,
                time: reuse.time,
                stack: reuse.stack,
                ..Counts::default()
            };
            ours.reuses.merge(&reuses);
        }
        self.pairs.add(image, summary, grain, names);
        let bare = GrainSummary { cells: Vec::new(), ..grain.clone() };
        match &mut self.sum {
            None => self.sum = Some(bare),
            Some(sum) => {
                sum.touches += bare.touches;
                sum.cold += bare.cold;
                sum.pairs_lost += bare.pairs_lost;
                sum.time.iter_mut().zip(&bare.time).for_each(|(a, b)| *a += b);
                let sums = sum.time_sums.iter_mut().zip(&bare.time_sums);
                sums.for_each(|(a, b)| *a = a.wrapping_add(*b));
                sum.stack.iter_mut().zip(&bare.stack).for_each(|(a, b)| *a += b);
                sum.phases.extend(bare.phases);
                sum.by_group.iter_mut().zip(&bare.by_group).for_each(|(a, b)| a.merge(b));
            }
        }
    }
}
