//! Cache use of a running program: which code loads lines of which little is used, from windows and watchpoints.
//!
//! The metrics are those of Weidendorfer and Breitbart, "Inclusive Cost Attribution for Cache Use Profiling" (ICCS 2016, Procedia
//! Computer Science 80, sections 1 to 3): when a line is evicted, the bytes of it that were never used (spatial loss) and the
//! reciprocal of its accesses, charged to the access that loaded it and to all functions that called it then. There
//! a simulator sees every access; here they are estimated:
//!
//! 1. Windows show first touches of lines; the chance that one loads its line (`arrivals`).
//! 2. What the line is used for until it is evicted: windows see that for small caches (`fates`); for large ones reuses of words, most of
//!    them seen by watchpoints, tell how many are used of a line (`Study::shares_used_later`).
//! 3. Costs per loading instruction and, because each first touch comes with its call path, inclusive ones without a back-dating tree. Where the
//!    call path is cut, an unknown caller stands for the functions that are missing.
//!
//! A cache is fully associative with LRU, and is filled after as many accesses as touch as many distinct lines as it has, by stretch of
//! the run (`Stretches::fill_times`); each level sees all accesses.
//!
//! Intervals (`spread`): what bootstrap draws of samples and rates show; of shares, with the model's own error on average, and Wilson's at
//! Kish's effective number at least.
//!
//! Sources of error: those of the two modules; sets, prefetching and what the kernel touches are not modelled; threads share what
//! fills a cache only on average.

mod arrivals;
mod fates;
mod spread;
mod study;

use std::collections::BTreeMap;

use crate::context::{ContextId, Contexts};
use crate::convert::scale;
use crate::estimate::Estimate;
use crate::estimator::{Estimator, Mass};
use crate::model::{AccessKind, FieldId, FrameId, ObjectId, Profile};
use crate::objects;
use crate::rates::{Rates, Unit};
use crate::reuse::Case;

use fates::LINE;
use spread::{Spread, effective};
use study::{Cost, First, Study, Sums};

/// Rows that load less than a line are left out.
const FEWEST: f64 = 1.0;
/// Bootstrap draws.
const DRAWS: usize = if cfg!(test) { 10 } else { 60 };
/// Draws are made for so many first touches in all at most, so that a long trace is reported quickly.
const DRAWN: usize = 400_000;
const SEED: u64 = 0x10CA_CACE;

/// Cache use at all levels, smallest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CacheUse {
    /// One entry a level.
    pub levels: Vec<LevelUse>,
    /// Touches of lines in the trace.
    pub touches: f64,
    /// First touches of lines behind it.
    pub n: u64,
    /// First touches that the file gives no possible weight or course, beside them.
    pub left_out: u64,
}

/// Cache use at one level. Weights are those of the whole trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LevelUse {
    /// "L1", "L2", "LL" for the last of several.
    pub name: String,
    /// Capacity.
    pub bytes: u64,
    /// Lines loaded.
    pub lines: Estimate,
    /// Bytes of them that were not used until their eviction.
    pub lost: Estimate,
    /// By loading instruction, the most bytes lost first.
    pub by_line: Vec<LoadingLine>,
    /// By function, the most bytes lost below it first.
    pub by_function: Vec<FunctionLoss>,
    /// Bytes lost below callers that are not known, because the call path is cut; functions further out lack them.
    pub unknown_caller: Estimate,
    /// Whether own costs, and those below the outermost functions, come to the whole.
    pub balanced: bool,
}

/// A line of code that loads lines of cache.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadingLine {
    /// Its innermost frame; equal frames of all call paths are one.
    pub frame: Option<FrameId>,
    /// The call path that loses most; `None` where the profile lacks it.
    pub context: Option<ContextId>,
    /// Whether it loads or stores; a line of code that does both is two rows.
    pub kind: AccessKind,
    /// Lines loaded.
    pub lines: f64,
    /// Share of all bytes lost at the level.
    pub share: Estimate,
    /// Bytes lost.
    pub lost: Estimate,
    /// Bytes used of each line, on average.
    pub used: Estimate,
    /// Accesses to each line, harmonic mean.
    pub accesses: f64,
    /// What the loads touch, with the share of the bytes lost there, heaviest first.
    pub objects: Vec<(ObjectId, Option<FieldId>, f64)>,
    /// First touches behind it.
    pub n: u64,
}

/// What is lost in a function and in all that it calls.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionLoss {
    /// One of its frames; `None` for the one that stands for the callers that cut call paths lack.
    pub frame: Option<FrameId>,
    /// Bytes lost of lines that it loads itself.
    pub own: f64,
    /// Bytes lost of lines that are loaded while it is on the stack.
    pub inclusive: f64,
    /// Share of that in all bytes lost at the level.
    pub share: Estimate,
    /// Lines loaded while it is on the stack.
    pub lines: f64,
}

impl CacheUse {
    /// From all reuses of words and of lines, in this order. `None` where the profile has no first touches, or no rate is known that
    /// would tell what fills a cache.
    pub fn of(
        profile: &Profile,
        contexts: &Contexts,
        rates: &Rates,
        cases: [&Case<'_>; 2],
        estimator: Estimator,
    ) -> Option<Self> {
        if profile.loads.is_empty() || rates.unit() != Unit::Accesses {
            return None;
        }
        let [_, lines] = cases;
        let masses = lines.masses(estimator);
        let study = Study::of(profile, contexts, rates, cases, estimator);
        let levels = objects::levels(profile);
        let of_level = |(index, (_, bytes)): (usize, &(u8, u64))| {
            let fills = lines.stretches().fill_times(&masses, *bytes as f64 / LINE);
            let fills: Vec<u64> = fills.into_iter().map(middle).collect();
            let last = index > 0 && index + 1 == levels.len();
            let name = if last { "LL".to_owned() } else { format!("L{}", index + 1) };
            study.level(lines, &fills, LevelUse { name, bytes: *bytes, ..LevelUse::default() })
        };
        let n = study.firsts.len() as u64;
        let touches = study.missed * masses.iter().map(Mass::total).sum::<f64>();
        let left_out = study.left_out;
        Some(Self { levels: levels.iter().enumerate().map(of_level).collect(), touches, n, left_out })
    }
}

/// The distance in the middle of equally likely bins; the largest where there is none.
fn middle(mut bins: Vec<usize>) -> u64 {
    bins.sort_unstable();
    bins.get(bins.len() / 2).map_or(u64::MAX, |bin| scale::low(*bin))
}

impl<'a> Study<'a> {
    fn level(&'a self, case: &Case<'_>, fills: &[u64], level: LevelUse) -> LevelUse {
        let costs = self.costs(fills, &|_| 1.0);
        let sums = self.sums(&costs);
        let draws = self.draws(case, fills);
        let spread = Spread { draws: &draws, seen: &sums, effective: effective(&costs) };
        let n = self.firsts.len() as u64;
        let mut by_line: Vec<LoadingLine> =
            self.members(&costs).into_iter().map(|(place, own)| self.line(place, &own, &spread)).collect();
        by_line.retain(|line| line.lines >= FEWEST);
        by_line.sort_by(|a, b| b.lost.value.total_cmp(&a.lost.value).then(b.lines.total_cmp(&a.lines)));
        let mut own = vec![0.0; self.functions.len()];
        for (first, cost) in self.firsts.iter().zip(&costs) {
            if let Some(own) = first.functions.first().and_then(|number| own.get_mut(*number)) {
                *own += cost.lost;
            }
        }
        let function = |(number, frame): (usize, &Option<FrameId>)| FunctionLoss {
            frame: *frame,
            own: own[number],
            inclusive: sums.functions[number].lost,
            share: spread.share(n, |sums| sums.functions[number]),
            lines: sums.functions[number].lines,
        };
        let mut by_function: Vec<FunctionLoss> = self.functions.iter().enumerate().map(function).collect();
        by_function.retain(|function| function.lines >= FEWEST);
        by_function.sort_by(|a, b| {
            b.inclusive.total_cmp(&a.inclusive).then(b.own.total_cmp(&a.own)).then(a.frame.cmp(&b.frame))
        });
        let unknown = self.functions.iter().position(Option::is_none);
        LevelUse {
            lines: spread.lines(n, |sums| sums.whole),
            lost: spread.lost(n, |sums| sums.whole),
            unknown_caller: spread
                .lost(n, |sums| unknown.map_or_else(Cost::default, |unknown| sums.functions[unknown])),
            balanced: self.balances(&costs, &sums),
            by_line,
            by_function,
            ..level
        }
    }

    /// What other samples and other rates would have given.
    fn draws(&'a self, case: &Case<'_>, fills: &[u64]) -> Vec<Sums> {
        let samples = case.samples();
        if samples.is_empty() {
            return Vec::new();
        }
        let mut random = fastrand::Rng::with_seed(SEED);
        let (mut weights, mut clocks) = (Vec::new(), Vec::new());
        let draw = |number| {
            case.draw(&mut random, &samples, number % 2 == 1, &mut weights, &mut clocks);
            self.sums(&self.costs(fills, &|sample| weights.get(sample as usize).copied().unwrap_or(0.0)))
        };
        (0..DRAWS.min(DRAWN / self.firsts.len().max(1)).max(2)).map(draw).collect()
    }

    /// First touches of each place with their costs.
    fn members(&self, costs: &[Cost]) -> BTreeMap<usize, Vec<(&First<'a>, Cost)>> {
        let mut members: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for (first, cost) in self.firsts.iter().zip(costs).filter(|(_, cost)| cost.lines > 0.0) {
            members.entry(first.place).or_default().push((first, *cost));
        }
        members
    }

    fn line(&self, place: usize, own: &[(&First<'_>, Cost)], spread: &Spread<'_>) -> LoadingLine {
        let n = own.len() as u64;
        let whole = spread.seen.places[place];
        let mut contexts: BTreeMap<Option<ContextId>, f64> = BTreeMap::new();
        let mut objects: BTreeMap<(ObjectId, Option<FieldId>), f64> = BTreeMap::new();
        for (first, cost) in own {
            *contexts.entry(first.context).or_default() += cost.lost;
            if let Some(object) = self.located.get(&first.id) {
                *objects.entry(*object).or_default() += cost.lost / whole.lost.max(f64::MIN_POSITIVE);
            }
        }
        let mut objects: Vec<_> =
            objects.into_iter().map(|((object, field), share)| (object, field, share)).collect();
        objects.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
        let heaviest = contexts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let (frame, stores) = self.places.get(place).copied().unwrap_or_default();
        LoadingLine {
            frame,
            context: heaviest.and_then(|(context, _)| context),
            kind: if stores { AccessKind::Store } else { AccessKind::Load },
            lines: whole.lines,
            share: spread.share(n, |sums| sums.places[place]),
            lost: spread.lost(n, |sums| sums.places[place]),
            used: spread.used(n, |sums| sums.places[place]),
            accesses: whole.lines / whole.reciprocal,
            objects,
            n,
        }
    }
}

#[cfg(test)]
mod tests;
