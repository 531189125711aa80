//! Accesses, predicted misses and CPU time by data object: direct data-centric
//! attribution ("The direct method": Cache Scope and HPCToolkit as described
//! by Liu & Mellor-Crummey et al., `approximate-data-centric-2011`, §II).
//!
//! Each sampled use has the address's object and three weights: the accesses represented, the
//! cache-line misses predicted at each cache level, and (of a sample's own access) CPU time.
//! A use misses at a level if the line's stack distance to the next touch is as many lines as
//! the level has, or more (Mattson et al. 1970): the following reuse finds the line gone.
//! Hence a miss is charged to the object of the line, whichever of the two touches is called
//! the miss; at lines of 64 bytes. For uses without a seen reuse, Kaplan–Meier curves (module
//! `kaplan_meier`) come from the uses of the object at the line of code; `estimator::beyond`
//! gives each use expected misses, which add up to the miss ratio of the whole.
//!
//! A miss belongs to the line of code with the next touch, as far as reuses were seen.
//! An object's misses are divided among the lines of the object's missing reuses, by
//! weight (`Study::weights`); without missing reuses, among the lines of the uses.
//!
//! An object at a line of code has no more misses than
//! lines shown by windows (module `first_touches`).
//!
//! Objects with equal name, declaration and allocation context share a row. Parts: `rows`, `uses`
//! (observations), `first_touches`, `shares` (the analysis, which merges), `conflicts`, `layout`.
//!
//! Intervals are 95 %: linearised variance over samples (`shares`),
//! for misses the deviation over [`DRAWS`] bootstrap draws if greater.
//!
//! Sources of error: an access has the object of the first byte; an address has the
//! object found by a lookup a moment after the access; the conversion's and the
//! rates' errors (module `reuse`); a sample's CPU time is charged to the access at
//! or after the interrupted instruction, though an earlier slow access may have
//! taken the time; caches are taken as fully associative, private and LRU.

mod conflicts;
pub mod first_touches;
mod layout;
mod rows;
mod shares;
mod uses;

use locality_estimate::access_rates::{Rates, Unit};
use locality_estimate::calling_context::{ContextId, Contexts, PlaceId};
use locality_estimate::estimator::{BootstrapReplicate, Estimator, Study};
use locality_estimate::interval_estimate::Estimate;
use locality_estimate::kaplan_meier::bin;
use locality_estimate::reuse::{Case, FIXED_SIZES};
use locality_model::{AccessKind, FieldId, ObjectId, Profile, RecordId, StackId};

use crate::analysis_trait::Analysis;

use first_touches::FirstTouches;

pub use conflicts::{Conflict, NEAREST};
pub use layout::{Change, HOT_SHARE, Layout, Piece};
pub use rows::Rows;
pub use shares::Shares;
pub(crate) use uses::reuse_kind;
pub use uses::{DataUse, LEVELS, Locations};

/// Bootstrap draws for the intervals of misses.
pub const DRAWS: usize = 40;
/// Fewer draws tell little about the deviation.
const FEWEST_DRAWS: usize = 16;
/// Uses in the draws together; fewer draws keep the report of a long trace quick.
const DRAWN_USES: usize = 2_000_000;
const SEED: u64 = 0x0B1E_C75D;
/// Bytes of a cache line.
pub const LINE: u64 = 64;

/// A cache level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// 1, 2, 3.
    pub level: u8,
    /// Capacity.
    pub bytes: u64,
    /// Predicted misses ÷ touches of lines.
    pub miss_ratio: f64,
}

/// Objects by weight.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Objects {
    /// Cache levels with predicted misses, smallest first; empty if distances are times.
    pub levels: Vec<Level>,
    /// Index into [`Objects::levels`] of the level for
    /// ordering the rows: the last level with enough misses.
    pub ranked_by: Option<usize>,
    /// Rows, heaviest first: by misses at the level, otherwise by accesses.
    pub rows: Vec<Row>,
    /// Share of the accesses with an object not looked for or unknown.
    pub unknown: Estimate,
    /// Displacements between objects, heaviest first.
    pub conflicts: Vec<Conflict>,
    /// Weights by calling context, whatever the objects: input of attribution without addresses.
    pub stacks: Vec<StackWeight>,
    /// Uses, as basis of the numbers.
    pub n: u64,
}

/// Weights of a calling context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StackWeight {
    /// The context.
    pub stack: StackId,
    /// Accesses.
    pub accesses: f64,
    /// Predicted misses by level.
    pub misses: [f64; LEVELS],
}

/// An object's row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// An object of the row.
    pub object: Option<ObjectId>,
    /// Size of the largest.
    pub bytes: Option<u64>,
    /// Accesses in the trace; `None` if the rate is unknown.
    pub accesses: Option<f64>,
    /// Share of all accesses.
    pub access_share: Estimate,
    /// Share of CPU time.
    pub cpu_share: Estimate,
    /// Share of all predicted misses, by level.
    pub miss_share: Vec<Estimate>,
    /// Predicted misses ÷ touches of its lines, by level.
    pub miss_ratio: Vec<f64>,
    /// Shares of loads and of stores in its accesses.
    pub loads: f64,
    /// …
    pub stores: f64,
    /// By line of code, the most misses first.
    pub lines: Vec<Line>,
    /// By part, the most accesses first.
    pub fields: Vec<FieldUse>,
    /// How its structures lie in cache lines.
    pub layouts: Vec<Layout>,
}

/// An object at a line of code.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Line of code.
    pub place: PlaceId,
    /// The most frequent kind of access.
    pub kind: AccessKind,
    /// Share of all accesses of the trace.
    pub access_share: Estimate,
    /// Share of all CPU time of the trace.
    pub cpu_share: Estimate,
    /// Share of all predicted misses of the trace, by level.
    pub miss_share: Vec<Estimate>,
}

/// A part of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldUse {
    /// A field of the row.
    pub field: FieldId,
    /// The structure with relevant layout.
    pub record: Option<RecordId>,
    /// Share of the object's accesses.
    pub access_share: Estimate,
    /// Share of the object's predicted misses, by level.
    pub miss_share: Vec<Estimate>,
    /// Among the fields that together take [`HOT_SHARE`] of the object's accesses.
    pub hot: bool,
}

impl Objects {
    /// Attributes a profile's uses, all at the size of lines in `case`; `None` where no access has an object.
    pub fn of(
        profile: &Profile,
        contexts: &Contexts,
        rates: &Rates,
        case: &Case<'_>,
        estimator: Estimator,
    ) -> Option<Self> {
        if profile.located.is_empty() {
            return None;
        }
        let rows = Rows::of(profile, contexts);
        let locations = Locations::of(profile, &rows);
        let levels = if rates.unit() == Unit::Accesses { levels(profile) } else { Vec::new() };
        let masses = case.masses(estimator);
        let limits: Vec<Vec<Vec<usize>>> = levels
            .iter()
            .map(|(_, bytes)| case.stretches().fill_times(&masses, (*bytes / LINE) as f64))
            .collect();
        let study = ByObject::of(contexts, case, &locations);
        let ends = case.stretches().ends();
        let prepared = Study::new(&study.subjects, study.stretch_of.clone(), ends);
        let spreads = prepared.spreads();
        let prepared = prepared.spread(&spreads);
        let misses = prepared.beyond(BootstrapReplicate::SEEN, &limits);

        let weights = prepared.weights(Estimator::KaplanMeier);
        let missed = study.missed(&weights, &limits);
        let predicted = uses::Predicted { misses: &misses, missed: &missed, levels: levels.len() };
        let uses = uses::all(profile, contexts, rates, &study.subjects, &locations, &predicted);
        let first_touches = FirstTouches::of(profile, contexts, rates, &locations, &uses);
        let mut analysis = Shares::new(profile, &rows, &levels, rates.unit() == Unit::Accesses);
        uses.into_iter().for_each(|one| analysis.observe(one));
        let mut found = analysis.finish();
        let draws = (DRAWN_USES / study.subjects.len().max(1)).clamp(FEWEST_DRAWS, DRAWS);
        study.widen(&mut found, (case, &prepared, &limits), &locations, draws);
        first_touches.hold(&mut found, |row| locations.row_of_object(row.object?));
        Some(found)
    }

    /// Rows, and the lines of code of each, heaviest first: by misses at the level that ranks them.
    fn sort(&mut self) {
        let weight = |misses: &[Estimate], accesses: f64| match self.ranked_by.and_then(|n| misses.get(n)) {
            Some(misses) => (misses.value, accesses),
            None => (accesses, accesses),
        };
        let heavier = |a: (f64, f64), b: (f64, f64)| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1));
        let of_line = |line: &Line| weight(&line.miss_share, line.access_share.value);
        let of_row = |row: &Row| weight(&row.miss_share, row.access_share.value);
        self.rows.iter_mut().for_each(|row| row.lines.sort_by(|a, b| heavier(of_line(a), of_line(b))));
        self.rows.sort_by(|a, b| heavier(of_row(a), of_row(b)));
    }
}

/// The machine's caches, otherwise the fixed sizes.
pub(crate) fn levels(profile: &Profile) -> Vec<(u8, u64)> {
    let caches = &profile.run.host.caches;
    let mut levels: Vec<(u8, u64)> =
        caches.iter().filter(|cache| cache.bytes >= LINE).map(|cache| (cache.level, cache.bytes)).collect();
    if levels.is_empty() {
        levels = (1..).zip(FIXED_SIZES).collect();
    }
    levels.sort_by_key(|(_, bytes)| *bytes);
    levels.truncate(LEVELS);
    levels
}

/// The subjects with object × line of code in place of
/// calling contexts, to have curves by object and line.
struct ByObject {
    subjects: Vec<locality_estimate::censored_uses::Subject>,
    stretch_of: Vec<usize>,
}

impl ByObject {
    fn of(contexts: &Contexts, case: &Case<'_>, locations: &Locations) -> Self {
        let stretches = case.stretches();
        let mut ids = std::collections::BTreeMap::new();
        let subjects: Vec<_> = case
            .subjects()
            .iter()
            .map(|subject| {
                let row = locations.of_subject(subject).map(|at| at.row);
                let next = ContextId(ids.len() as u32);
                let context = *ids.entry((row, contexts.place_of(subject.context))).or_insert(next);
                locality_estimate::censored_uses::Subject { context, ..*subject }
            })
            .collect();
        let of = |sample: usize| stretches.of_sample.get(sample).copied().unwrap_or(usize::MAX);
        Self { stretch_of: subjects.iter().map(|subject| of(subject.sample as usize)).collect(), subjects }
    }

    /// By subject and level, the weight of a seen reuse with a missing distance.
    fn missed(&self, weights: &[f64], limits: &[Vec<Vec<usize>>]) -> Vec<f64> {
        let mut missed = Vec::with_capacity(weights.len() * limits.len());
        for ((subject, stretch), weight) in self.subjects.iter().zip(&self.stretch_of).zip(weights) {
            let at = bin(subject.distance());
            for limit in limits {
                let bins = limit.get(*stretch).map_or(&[][..], Vec::as_slice);
                let beyond = bins.iter().filter(|limit| at >= **limit).count();
                missed.push(weight * beyond as f64 / bins.len().max(1) as f64);
            }
        }
        missed
    }

    /// Widens the intervals of miss shares to the deviation
    /// of bootstrap draws: redrawn samples, rates and curves.
    fn widen(
        &self,
        found: &mut Objects,
        (case, study, limits): (&Case<'_>, &Study<'_>, &[Vec<Vec<usize>>]),
        locations: &Locations,
        draws: usize,
    ) {
        let levels = limits.len();
        let samples = case.samples();
        if levels == 0 || samples.is_empty() || draws < 2 {
            return;
        }
        let row_of: Vec<Option<usize>> =
            self.subjects.iter().map(|subject| locations.of_subject(subject).map(|at| at.row)).collect();
        let place = |row: &Row| row.object.and_then(|object| locations.row_of_object(object));
        let places: Vec<Option<usize>> = found.rows.iter().map(place).collect();
        let mut random = fastrand::Rng::with_seed(SEED);
        let (mut weights, mut clocks) = (Vec::new(), Vec::new());
        let mut squares = vec![0.0; found.rows.len() * levels];
        for number in 0..draws {
            case.draw(&mut random, &samples, number % 2 == 1, &mut weights, &mut clocks);
            let picks: Vec<f64> = weights.iter().map(|_| random.f64()).collect();
            let draw =
                BootstrapReplicate { weights: &weights, clocks: &clocks, picks: &picks, guess: random.f64() };
            let misses = study.beyond(draw, limits);
            let mut sums = vec![0.0; locations.rows() * levels];
            let mut totals = vec![0.0; levels];
            for (misses, row) in misses.chunks(levels).zip(&row_of) {
                for (level, misses) in misses.iter().enumerate() {
                    totals[level] += misses;
                    if let Some(sum) = row.and_then(|row| sums.get_mut(row * levels + level)) {
                        *sum += misses;
                    }
                }
            }
            for (index, (row, place)) in found.rows.iter().zip(&places).enumerate() {
                let Some(place) = place else { continue };
                for (level, seen) in row.miss_share.iter().enumerate() {
                    let sum = sums.get(place * levels + level).copied().unwrap_or(0.0);
                    let drawn = if totals[level] > 0.0 { sum / totals[level] } else { seen.value };
                    squares[index * levels + level] += (drawn - seen.value).powi(2);
                }
            }
        }
        for (index, row) in found.rows.iter_mut().enumerate() {
            for (level, seen) in row.miss_share.iter_mut().enumerate() {
                let half = 1.959_964 * (squares[index * levels + level] / draws as f64).sqrt();
                seen.low = (seen.value - half).min(seen.low).max(0.0);
                seen.high = (seen.value + half).max(seen.high).min(1.0);
            }
        }
    }
}

#[cfg(test)]
mod tests;
