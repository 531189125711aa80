//! Reuses with an imprecise distance by the clock: they trapped within a few costs of a trap.
//!
//! A trap takes the time of tens of thousands of accesses. The correction for it is wrong by a part
//! of the time, and caches left cold by the stop add to it ([`Measured`]). A distance below
//! [`RESOLUTIONS`] resolutions is therefore an interval, from the window's end to the longest
//! possible distance, with the likelihood of the measured value at each place in it. The exact
//! distances of other uses, with longer windows, and the other intervals give further evidence: the
//! nonparametric maximum likelihood by self-consistency (Turnbull 1976, J. R. Statist. Soc. B
//! 38(3), eq. 3.5–3.7; Efron 1967 for the censored), by context. Each round spreads a reuse over
//! its interval by its context's curve, and fits the curve to all of them again. The start is the
//! windows' distribution of the context, a little of the windows' distribution of all contexts, and
//! the log-uniform: as much as the windows left open beyond their ends, a trace elsewhere. The
//! log-uniform decides alone without windows.
//!
//! Sources of error: the likelihood prefers the few places where exact distances were seen to the
//! many where none was; a start that is too thin is found in [`ROUNDS`] rounds only in part; where
//! the log-uniform decides, the place is a guess, and intervals take it for one
//! ([`DistanceDistribution::guess`]); in profiles of before 2026-11-25 a touch after a reuse that
//! was too late or by another instruction was not measured, and they do not say so.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use locality_mrc::scale;

use crate::kaplan_meier::{Curves, Spell};

/// Measured distances from so many resolutions (the cost of a trap) on are taken as they are.
pub const RESOLUTIONS: f64 = 6.0;
/// Rounds of self-consistency at most; they end when no spread changes by more than [`STILL`] in all.
pub const ROUNDS: usize = 40;
const STILL: f64 = 1e-3;
/// The part left open by windows is at first spread evenly over a number of e-foldings beyond them.
const FOLDINGS: f64 = 10.0;
/// How much the start believes other contexts, and squared how much the log-uniform.
const THIN: f64 = 0.03;
/// Shares below this are left out in the end.
const SMALL: f64 = 1e-4;
/// Ends of intervals are rounded up to a multiple of bins, to limit the number of distinct
/// intervals.
const COARSE: usize = 8;
/// Bins in which measured distances between warm touches are as good as the same.
const FINE: usize = 2;

/// A reuse in an interval: `spell` is present after its entry, and reused at one of
/// `spell.entry + 1 ..= last`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntervalCensored {
    /// Group, weight and entry; its exit is not looked at.
    pub spell: Spell,
    /// Last bin that is possible.
    pub last: usize,
    /// The measured value; without one, all of the interval is equally likely.
    pub measured: Option<Measured>,
}

/// An imprecisely measured distance: two traps lie in it, less the mean cost of traps, after a stop
/// that left caches cold.
///
/// How badly was measured on walks over arrays of known length, with windows, on virtual machines
/// (docs/journal/2026-11.md has the command). From the stop on (a trap of 16 µs, 0.3 to 44 µs around):
/// four in five were longer than true by 5 % of a trap and 8 %, with a deviation of 15 % of a trap
/// and 7 %; the others by anything up to two traps. Between warm touches (a trap of 27 µs, 5 to 120
/// µs around): on average right, with a deviation of at most 3 % of a trap and 5 %, but for up to
/// three in ten. Traps of shared machines differ more from each other: a trace says by how much its
/// own readings of their cost scatter, and the deviation is no less. An error that all of them
/// share (a tenth of a trap was seen on one machine) is not in it.
///
/// Walks are of few instructions. Programs of much code come back to it cold, and traps in it are
/// later and differ more, by the lines of code that a use needs ([`Measured::code`]): how much was
/// fitted to distances of real programs against exact ones (docs/journal/2026-11.md).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Distance in accesses.
    pub at: f64,
    /// Accesses in the time that a trap costs.
    pub resolution: f64,
    /// Accesses in the time by which single traps differ from what was taken off for them, in the
    /// median; 0: not known.
    pub scatter: f64,
    /// A later interval, with warm caches (`is_measured_again` in module `censored_uses`).
    pub is_warm: bool,
    /// Lines of code for each of 32 uses of a window there, 0 to 1: .03 to .14 in kernels, .27 to
    /// .77 in real programs.
    pub code: f64,
}

/// How measured distances differ from true ones: each a share of a trap and of the distance.
struct Errors {
    late: (f64, f64),
    deviation: (f64, f64),
    /// What a line of code for each use adds to both, as a share of a trap.
    by_code: (f64, f64),
    /// Share of late ones, by anything up to [`STRAGGLE`].
    stragglers: f64,
}

const COLD: Errors =
    Errors { late: (0.05, 1.08), deviation: (0.15, 0.07), by_code: (0.6, 0.11), stragglers: 0.2 };
const WARM: Errors =
    Errors { late: (0.0, 1.0), deviation: (0.03, 0.05), by_code: (0.0, 0.23), stragglers: 0.3 };
/// Traps.
const STRAGGLE: f64 = 2.0;
/// Deviations of a normal distribution in the median of what it differs by.
pub const SIGMAS: f64 = 1.4826;

impl Measured {
    /// Longest distance compatible with the measurement.
    pub fn longest(self) -> f64 {
        (self.at + self.resolution) * 1.25
    }

    /// Density of what was measured, at a true distance.
    fn likelihood(self, distance: f64) -> f64 {
        let Errors { late, deviation, by_code, stragglers } = if self.is_warm { WARM } else { COLD };
        let resolution = self.resolution.max(1.0);
        let deviation_0 = (deviation.0 + by_code.1 * self.code) * resolution;
        let sigma = deviation_0.max(SIGMAS * self.scatter) + deviation.1 * distance;
        let late_0 = (late.0 + by_code.0 * self.code) * resolution;
        let off = (self.at - late_0 - late.1 * distance) / sigma;
        let core = (-off * off / 2.0).exp() / (sigma * std::f64::consts::TAU.sqrt());
        let straggles = self.at >= distance && self.at <= distance + STRAGGLE * resolution;
        let tail = if straggles { 1.0 / (STRAGGLE * resolution) } else { 0.0 };
        (1.0 - stragglers) * core + stragglers * tail
    }

    /// Class of equivalent measurements.
    fn class(self) -> Class {
        let coarse = if self.is_warm { FINE } else { COARSE };
        let resolution = (self.resolution.max(1.0).log2() * 4.0) as i32;
        (scale::index(self.at as u64) / coarse, resolution, (self.code * 16.0) as i32, self.is_warm)
    }
}

/// Place on the scale, resolution, code, whether warm.
type Class = (usize, i32, i32, bool);

/// Possible positions of a reuse, with their shares.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DistanceDistribution {
    /// Bins and shares, ascending; shares sum to 1.
    pub shares: Vec<(usize, f64)>,
    /// Most of the distribution lies without observations.
    pub guess: bool,
}

impl DistanceDistribution {
    fn is_near(&self, other: &Self) -> bool {
        let change = |(a, b): (&(usize, f64), &(usize, f64))| (a.1 - b.1).abs();
        let changed: f64 = self.shares.iter().zip(&other.shares).map(change).sum();
        self.shares.len() == other.shares.len() && changed < STILL
    }

    /// The bin that a share q does not exceed.
    pub fn quantile(&self, q: f64) -> usize {
        let mut below = 0.0;
        for (bin, share) in &self.shares {
            below += share;
            if below >= q {
                return *bin;
            }
        }
        self.shares.last().map_or(0, |last| last.0)
    }
}

/// Spreads of reuses, many of which are alike.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DistanceDistributions {
    spreads: Vec<DistanceDistribution>,
    of: BTreeMap<usize, usize>,
}

impl DistanceDistributions {
    /// Finds the distributions of reuses, each with its key, from spells that windows `shown` and
    /// those `followed` to a known end.
    pub fn find(
        shown: &[Spell],
        followed: &[Spell],
        unsure: &[(usize, IntervalCensored)],
        groups: usize,
    ) -> Self {
        // By group, entry and end: weight, and who.
        type Key = (usize, Option<usize>, usize, Option<Class>);
        let mut classes: BTreeMap<Key, (f64, Option<Measured>, Vec<usize>)> = BTreeMap::new();
        for (key, one) in unsure {
            let first = one.spell.entry.map_or(1, |entry| entry + 1);
            let last = one.last.max(first).next_multiple_of(COARSE);
            let alike = (one.spell.group, one.spell.entry, last, one.measured.map(Measured::class));
            let class = classes.entry(alike).or_insert_with(|| (0.0, one.measured, Vec::new()));
            class.0 += one.spell.weight;
            class.2.push(*key);
        }
        let alike: Vec<IntervalCensored> = classes
            .iter()
            .map(|(&(group, entry, last, _), &(weight, measured, _))| IntervalCensored {
                spell: Spell { group, weight, entry, exit: last, reused: true },
                last,
                measured,
            })
            .collect();
        let of = (0..)
            .zip(classes.values())
            .flat_map(|(class, (.., keys))| keys.iter().map(move |key| (*key, class)));
        Self { of: of.collect(), spreads: consistent(shown, followed, &alike, groups) }
    }

    /// The spread of a reuse.
    pub fn get(&self, key: usize) -> Option<&DistanceDistribution> {
        self.of.get(&key).and_then(|class| self.spreads.get(*class))
    }
}

fn consistent(
    shown: &[Spell],
    followed: &[Spell],
    unsure: &[IntervalCensored],
    groups: usize,
) -> Vec<DistanceDistribution> {
    if unsure.is_empty() {
        return Vec::new();
    }
    let exact = densities(&Curves::fit(shown.iter(), groups), groups);
    let known = |group: usize, bin: usize| at(&exact, group, bin) + THIN * at(&exact, 0, bin);
    let mut reach = vec![0; groups];
    for spell in shown {
        for group in [0, spell.group] {
            if let Some(reach) = reach.get_mut(group) {
                *reach = spell.exit.max(*reach);
            }
        }
    }
    let open: Vec<f64> = exact.iter().map(|density| 1.0 - density.iter().sum::<f64>()).collect();
    let beyond = |group: usize, bin: usize| match (reach.get(group), open.get(group)) {
        (Some(reach), Some(open)) if bin > *reach => open.max(0.0) * width(bin) / FOLDINGS,
        _ => 0.0,
    };
    let start = |group: usize, bin: usize| known(group, bin) + beyond(group, bin) + THIN * THIN * width(bin);
    // The same in each round.
    let heard: Vec<Vec<f64>> = unsure.iter().map(heard).collect();
    let spread_all = |density: &dyn Fn(usize, usize) -> f64| -> Vec<DistanceDistribution> {
        unsure.iter().zip(&heard).map(|(one, heard)| spread(one, heard, density)).collect()
    };
    let mut spreads = spread_all(&start);
    for _ in 0..ROUNDS {
        let parts: Vec<Spell> = unsure.iter().zip(&spreads).flat_map(parts).collect();
        let curves = Curves::fit(shown.iter().chain(followed).chain(&parts), groups);
        let found = densities(&curves, groups);
        let next = spread_all(&|group, bin| at(&found, group, bin));
        let still = next.iter().zip(&spreads).all(|(next, before)| next.is_near(before));
        spreads = next;
        if still {
            break;
        }
    }
    for (one, spread) in unsure.iter().zip(&mut spreads) {
        let seen = |share: &&(usize, f64)| known(one.spell.group, share.0) > 0.0;
        spread.guess = spread.shares.iter().filter(seen).map(|share| share.1).sum::<f64>() < 0.5;
        spread.shares.retain(|share| share.1 >= SMALL);
        let sum: f64 = spread.shares.iter().map(|share| share.1).sum();
        spread.shares.iter_mut().for_each(|share| share.1 /= sum);
    }
    spreads
}

/// A spell for each bin of a spread.
fn parts<'a>(
    (one, spread): (&'a IntervalCensored, &'a DistanceDistribution),
) -> impl Iterator<Item = Spell> + 'a {
    let part = |&(exit, share): &(usize, f64)| Spell { weight: one.spell.weight * share, exit, ..one.spell };
    spread.shares.iter().map(part)
}

/// The bins of an interval.
fn bins(one: &IntervalCensored) -> RangeInclusive<usize> {
    one.spell.entry.map_or(1, |entry| entry + 1)..=one.last
}

/// Density of what was measured, in each bin of the interval.
fn heard(one: &IntervalCensored) -> Vec<f64> {
    let of = |bin| one.measured.map_or(1.0, |measured| measured.likelihood(scale::low(bin) as f64));
    bins(one).map(of).collect()
}

/// Over the interval in proportion to a density and the likelihood; log-uniform if that is 0
/// everywhere.
fn spread(
    one: &IntervalCensored,
    heard: &[f64],
    density: &dyn Fn(usize, usize) -> f64,
) -> DistanceDistribution {
    let of = |weigh: &dyn Fn(usize, f64) -> f64| {
        let weighed = bins(one).zip(heard).map(|(bin, heard)| (bin, weigh(bin, *heard)));
        let shares: Vec<(usize, f64)> = weighed.filter(|share| share.1 > 0.0).collect();
        let sum: f64 = shares.iter().map(|share| share.1).sum();
        (sum > 0.0).then(|| shares.into_iter().map(|(bin, share)| (bin, share / sum)).collect())
    };
    let shares = of(&|bin, heard| density(one.spell.group, bin) * heard)
        .or_else(|| of(&|bin, heard| width(bin) * heard))
        .or_else(|| of(&|bin, _| width(bin)));
    DistanceDistribution { shares: shares.unwrap_or_default(), guess: false }
}

/// P(reuse in a bin) by group, from the hazards.
fn densities(curves: &Curves, groups: usize) -> Vec<Vec<f64>> {
    let density = |group| {
        let mut left = 1.0;
        let step = |hazard: &f64| {
            let here = left * hazard;
            left -= here;
            here
        };
        curves.hazards(group).iter().map(step).collect()
    };
    (0..groups).map(density).collect()
}

fn at(densities: &[Vec<f64>], group: usize, bin: usize) -> f64 {
    densities.get(group).and_then(|density| density.get(bin)).copied().unwrap_or(0.0)
}

/// Width of a bin in logarithms.
fn width(bin: usize) -> f64 {
    (scale::low(bin + 1) as f64 / scale::low(bin).max(1) as f64).ln().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests;
