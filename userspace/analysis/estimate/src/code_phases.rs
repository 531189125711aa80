//! Regions of code: code running together in the program's windows, and the length of stays.
//!
//! A program with several kinds of work in turns of milliseconds is on average unlike each kind:
//! data may fill a cache in one kind and never in the next. Samples are further apart: time does
//! not separate the kinds. The code in windows does, as Sherwood et al. separate phases of a
//! simulation by basic blocks (2002, ASPLOS, "Automatically characterizing large scale program
//! behavior", §4). A region grows from the most used code without a region: first the windows
//! showing the code, then code used mostly in the windows, then windows showing mostly the added
//! code, in alternation. Code of a place in different call paths is distinguished.
//!
//! The length of stays follows from windows showing two regions, hence a departure. With n
//! departures in `shown` accesses of windows, the geometric mean of a possible stay is shown
//! / exp(ψ(n)), if orders of magnitude were equally likely before. Without a departure a
//! stay is at least as long as the shown accesses, and at most as long as represented by the
//! samples of a region between interruptions. The orders of magnitude between are tried.
//!
//! Sources of error: loops alternating within a window form a region only if windows are long
//! enough to show both; stays are taken as exponential, equal within a region. Simultaneous
//! threads do not take turns: regions are found in processes of one thread only.

use std::collections::{BTreeMap, HashMap};

use locality_model::{FrameId, Profile};

/// Frames of a call path, innermost first, to distinguish code.
const FRAMES: usize = 3;
/// Most regions of a process beside the rest: by most used code.
const MOST: usize = 16;
/// Alternations of gathering code and windows into a region.
const ROUNDS: usize = 4;

/// Code shown by each sample's window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Code {
    /// By sample: shares of the uses by number of the code.
    shares: Vec<Vec<(usize, f64)>>,
    /// By sample: accesses of the window.
    accesses: Vec<f64>,
    numbers: usize,
}

impl Code {
    /// Of the profile's windows.
    pub fn of(profile: &Profile) -> Self {
        let mut uses = vec![BTreeMap::<&[FrameId], u32>::new(); profile.samples.len()];
        for used in &profile.uses {
            let frames = profile.stacks.get(used.stack.0 as usize).map_or(&[][..], |stack| &stack.frames);
            if let Some(uses) = uses.get_mut(used.sample.0 as usize) {
                *uses.entry(frames.get(..FRAMES).unwrap_or(frames)).or_default() += 1;
            }
        }
        // By samples, for independence of the order of uses.
        let mut numbers: HashMap<&[FrameId], usize> = HashMap::new();
        let mut shares = Vec::with_capacity(uses.len());
        for uses in uses {
            let all = f64::from(uses.values().sum::<u32>());
            let mut of_window = Vec::with_capacity(uses.len());
            for (frames, n) in uses {
                let next = numbers.len();
                of_window.push((*numbers.entry(frames).or_insert(next), f64::from(n) / all));
            }
            shares.push(of_window);
        }
        let mut accesses = vec![0.0; profile.samples.len()];
        for window in &profile.windows {
            if let Some(accesses) = accesses.get_mut(window.sample.0 as usize) {
                *accesses = window.accesses as f64;
            }
        }
        Self { shares, accesses, numbers: numbers.len() }
    }

    fn shares(&self, sample: usize) -> &[(usize, f64)] {
        self.shares.get(sample).map_or(&[], Vec::as_slice)
    }
}

/// Regions of samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Regions {
    /// Region of each sample, in the samples' order.
    pub of: Vec<usize>,
    /// By region, mean accesses of a stay, least and greatest; 0 for samples outside of regions of
    /// `fewest`, infinite for a single region.
    pub stays: Vec<(f64, f64)>,
}

impl Regions {
    /// A program with a single kind of work, of a number of samples.
    pub fn one(samples: usize) -> Self {
        Self { of: vec![0; samples], stays: vec![(f64::INFINITY, f64::INFINITY)] }
    }

    /// Of one thread's samples in the order of time, each with the
    /// represented accesses; at least a given number of samples each.
    pub fn of(code: &Code, samples: &[(usize, f64)], fewest: usize) -> Self {
        let one = Self::one(samples.len());
        if samples.len() < 2 * fewest {
            return one;
        }
        let regions = gather(code, samples, fewest);
        let rest = regions.iter().flatten().max().map_or(0, |last| last + 1);
        let shares = |sample: usize, of: &dyn Fn(usize) -> usize| {
            let mut shares: BTreeMap<usize, f64> = BTreeMap::new();
            for (number, share) in code.shares(sample) {
                let region = of(regions.get(*number).copied().flatten().unwrap_or(rest));
                *shares.entry(region).or_default() += share;
            }
            shares
        };
        let largest_share = |shares: &BTreeMap<usize, f64>| {
            shares.iter().max_by(|a, b| a.1.total_cmp(b.1)).map_or(rest, |(region, _)| *region)
        };
        let mut members = vec![0; rest + 1];
        for (sample, _) in samples {
            members[largest_share(&shares(*sample, &|region| region))] += 1;
        }
        let is_small = |region: usize| region == rest || members[region] < fewest;
        let of_small: usize =
            (0..=rest).filter(|region| is_small(*region)).map(|region| members[region]).sum();
        let largest = (0..rest).max_by_key(|region| members[*region]);
        let Some(largest) = largest.filter(|largest| !is_small(*largest)) else { return one };
        let of_rest = if of_small < fewest { largest } else { rest };
        let merged = |region: usize| if is_small(region) { of_rest } else { region };

        let mut stays = vec![Stay::default(); rest + 1];
        let (mut of, mut before) = (Vec::with_capacity(samples.len()), None);
        for &(sample, stands_for) in samples {
            let shares = shares(sample, &merged);
            let most = merged(largest_share(&shares));
            let accesses = code.accesses.get(sample).copied().unwrap_or(0.0);
            for (region, share) in &shares {
                let stay = &mut stays[*region];
                stay.shown += share * accesses;
                stay.left += 1.0 - 1.0 / shares.len() as f64;
            }
            let stay = &mut stays[most];
            stay.stands_for += stands_for;
            stay.runs += f64::from(u8::from(before != Some(most)));
            before = Some(most);
            of.push(most);
        }
        if of.iter().all(|region| *region == of[0]) {
            return one;
        }
        let mut stays: Vec<(f64, f64)> = stays.iter().map(Stay::range).collect();
        stays[rest] = (0.0, 0.0);
        Self { of, stays }
    }
}

/// Evidence for the length of stays in a region.
#[derive(Debug, Clone, Copy, Default)]
struct Stay {
    /// Accesses represented by the region's samples, and number of interruptions.
    stands_for: f64,
    runs: f64,
    /// Accesses of the region in windows.
    shown: f64,
    /// Windows showing a second region too, each with the mean number of departures.
    left: f64,
}

impl Stay {
    fn range(&self) -> (f64, f64) {
        if self.left == 0.0 {
            return (self.shown, (self.stands_for / self.runs.max(1.0)).max(self.shown));
        }
        // Nearly exp(ψ(left)).
        let stay = self.shown / (self.left - 0.5 + 1.0 / (16.0 * self.left));
        (stay, stay)
    }
}

/// The region of each number of code.
fn gather(code: &Code, samples: &[(usize, f64)], fewest: usize) -> Vec<Option<usize>> {
    let mut weights = vec![0.0; code.numbers];
    let mut windows: Vec<Vec<usize>> = vec![Vec::new(); code.numbers];
    for (window, (sample, _)) in samples.iter().enumerate() {
        for (number, share) in code.shares(*sample) {
            weights[*number] += share;
            windows[*number].push(window);
        }
    }
    let mut order: Vec<usize> = (0..code.numbers).filter(|number| windows[*number].len() >= fewest).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
    let mut of_code: Vec<Option<usize>> = vec![None; code.numbers];
    let mut is_taken = vec![false; samples.len()];
    let mut regions = 0;
    for first in order {
        let free = || windows[first].iter().filter(|window| !is_taken[**window]);
        if of_code[first].is_some() || free().count() < fewest {
            continue;
        }
        if regions == MOST {
            break;
        }
        let mut members: Vec<usize> = free().copied().collect();
        members.iter().for_each(|window| is_taken[*window] = true);
        of_code[first] = Some(regions);
        for _ in 0..ROUNDS {
            let (mut is_new, before) = (false, members.len());
            let mut inside: BTreeMap<usize, f64> = BTreeMap::new();
            for window in &members {
                for (number, share) in code.shares(samples[*window].0) {
                    *inside.entry(*number).or_default() += share;
                }
            }
            for (number, inside) in inside {
                if of_code[number].is_none() && inside >= weights[number] / 2.0 {
                    (of_code[number], is_new) = (Some(regions), true);
                }
            }
            // Equal code would find equal windows.
            if !is_new {
                break;
            }
            for (window, (sample, _)) in samples.iter().enumerate().filter(|(window, _)| !is_taken[*window]) {
                let own = code.shares(*sample).iter().filter(|(number, _)| of_code[*number] == Some(regions));
                if own.map(|(_, share)| share).sum::<f64>() >= 0.5 {
                    members.push(window);
                }
            }
            members[before..].iter().for_each(|window| is_taken[*window] = true);
        }
        regions += 1;
    }
    of_code
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEWEST: usize = 16;

    /// A program that takes turns between loops of ten pieces of code each, as `loops` tell for
    /// each sample: shares of the loops in its window.
    fn code(loops: &[Vec<(usize, f64)>], accesses: f64) -> (Code, Vec<(usize, f64)>) {
        let of_window = |loops: &Vec<(usize, f64)>| {
            let of_loop = |(number, share): &(usize, f64)| {
                (0..10).map(|code| (number * 10 + code, share / 10.0)).collect::<Vec<_>>()
            };
            loops.iter().flat_map(of_loop).collect()
        };
        let numbers = loops.iter().flatten().map(|(number, _)| (number + 1) * 10).max().unwrap_or(0);
        let shares = loops.iter().map(of_window).collect();
        let samples = (0..loops.len()).map(|sample| (sample, 1e6)).collect();
        (Code { shares, accesses: vec![accesses; loops.len()], numbers }, samples)
    }

    /// 2,000 windows of 1,000 accesses, 10,000,000 apart, of a program that stays so long with each
    /// of two loops on average.
    fn turns(stay: f64) -> Regions {
        let mut random = fastrand::Rng::with_seed(3);
        let window = |_| {
            let (first, left) = (random.usize(..2), -stay * (1.0 - random.f64()).ln() / 1_000.0);
            match left < 1.0 {
                false => vec![(first, 1.0)],
                // As it is left at random, it may be come back to.
                true if -stay * (1.0 - random.f64()).ln() / 1_000.0 < 1.0 - left => vec![(0, 0.5), (1, 0.5)],
                true => vec![(first, left), (1 - first, 1.0 - left)],
            }
        };
        let windows: Vec<_> = (0..2_000).map(window).collect();
        let (code, samples) = code(&windows, 1_000.0);
        Regions::of(&code, &samples, FEWEST)
    }

    #[test]
    fn loops_that_take_turns_are_regions_and_how_long_is_known() {
        for stay in [20_000.0, 100_000.0] {
            let found = turns(stay);
            assert_eq!(found.of.iter().max(), Some(&1), "{stay}");
            for (low, high) in &found.stays[..2] {
                assert!(low == high && (stay * 0.6..stay * 1.6).contains(low), "{stay}: {low}");
            }
        }
        // Longer than all windows together, and as long as the samples allow.
        for (low, high) in &turns(1e9).stays[..2] {
            assert!((0.9e6..1.1e6).contains(low) && (1.5e6..1e7).contains(high), "{low} {high}");
        }
    }

    #[test]
    fn a_program_of_one_loop_has_one_region() {
        let alone = |found: &Regions| found.stays == [(f64::INFINITY, f64::INFINITY)];
        let windows = |n: usize, of: &dyn Fn(usize) -> Vec<(usize, f64)>| {
            let (code, samples) = code(&(0..n).map(of).collect::<Vec<_>>(), 1_000.0);
            Regions::of(&code, &samples, FEWEST)
        };
        assert!(alone(&windows(100, &|_| vec![(0, 1.0)])));
        // Two that each window shows; a second one of few windows, which belong to the first then;
        // few windows in all; none.
        assert!(alone(&windows(100, &|_| vec![(0, 0.7), (1, 0.3)])));
        assert!(alone(&windows(100, &|n| vec![(usize::from(n % 10 == 0), 1.0)])));
        assert!(alone(&windows(31, &|n| vec![(n % 2, 1.0)])));
        assert!(alone(&windows(0, &|_| Vec::new())));
        // Code that is always another one is a region together, in which nothing stays.
        let found = windows(100, &|n| vec![(if n % 2 == 0 { 0 } else { n }, 1.0)]);
        assert_eq!((found.of[0], found.of[1], found.stays[found.of[1]]), (0, 1, (0.0, 0.0)));
    }

    #[test]
    fn code_between_two_loops_is_none_of_its_own() {
        // Each tenth window shows the way from the one to the other.
        let window = |n: usize| match n % 10 {
            0 => vec![(0, 0.45), (2, 0.1), (1, 0.45)],
            n => vec![(n % 2, 1.0)],
        };
        let (code, samples) = code(&(0..400).map(window).collect::<Vec<_>>(), 1_000.0);
        let found = Regions::of(&code, &samples, FEWEST);
        assert_eq!(found.of.iter().max(), Some(&1));
        assert!(
            found
                .of
                .iter()
                .enumerate()
                .all(|(n, region)| n % 10 == 0 || (*region == found.of[2]) == (n % 2 == 0))
        );
        // 40 times in 200,000 accesses one of them.
        assert!((8_000.0..12_500.0).contains(&found.stays[0].0), "{:?}", found.stays);
    }
}
