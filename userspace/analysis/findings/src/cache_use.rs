//! Cache use of a running program: code loading lines of little use, from windows and watchpoints.
//!
//! The metrics are from Weidendorfer and Breitbart, "Inclusive Cost Attribution for
//! Cache Use Profiling" (ICCS 2016, Procedia Computer Science 80, sections 1 to 3): when
//! a line is evicted, the line's bytes never used (spatial loss) and the reciprocal of
//! the access count, charged to the loading access and to the functions calling at the
//! time. The paper's simulator sees every access; here both metrics are estimated:
//!
//! 1. Windows show first touches of lines; `arrivals`
//!    gives a first touch's chance to load the line.
//! 2. Uses of the line until eviction: windows show uses for small caches
//!    (`line_lifetimes`); for large caches, reuses of words, mostly seen by
//!    watchpoints, give a line's number of used words (`Study::shares_used_later`).
//! 3. Costs per loading instruction and, because each first touch has a
//!    call path, inclusive costs without a back-dating tree. For a cut
//!    call path, an unknown caller stands for the missing functions.
//!
//! A cache is fully associative with LRU, and is full after touches of as many distinct lines as
//! the cache has, by stretch of the run (`Stretches::fill_times`); each level sees every access.
//!
//! Intervals (`access_spread`): from bootstrap draws of samples, rates and fill times
//! (`fills`); of shares, with the model's own error on average, and Wilson's at
//! Kish's effective number at least; of means, with one more first touch at least.
//!
//! Sources of error: errors of the two modules; sets, prefetching and the kernel's
//! touches are not modelled; threads share a cache's fill only on average.

mod access_spread;
mod arrivals;
mod fills;
mod line_lifetimes;
mod study;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use locality_estimate::access_rates::{Rates, Unit};
use locality_estimate::calling_context::{ContextId, Contexts};
use locality_estimate::estimator::{Estimator, WeightedHistogram};
use locality_estimate::interval_estimate::Estimate;
use locality_estimate::reuse::{Case, Reuse, normal};
use locality_model::{AccessKind, FieldId, FrameId, ObjectId, Profile};

use crate::objects;

use access_spread::Spread;
use fills::Fills;
use study::{Cost, Study, Sums};

/// Rows of each table, a level, and call paths reported of a line.
pub const ROWS: usize = 100;
const CONTEXTS: usize = 4;
/// Rows loading less than a line are left out.
const FEWEST: f64 = 1.0;
/// Bootstrap draws.
const DRAWS: usize = 60;
/// Fewer tell little of how much they differ.
const FEWEST_DRAWS: usize = 16;
/// First touches and uses in all draws together; fewer draws keep the report of a long trace quick.
const DRAWN: usize = 400_000;
const SEED: u64 = 0x10CA_CACE;

/// Cache use at each level, smallest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CacheUse {
    /// An entry per level.
    pub levels: Vec<LevelUse>,
    /// Touches of lines in the trace.
    pub touches: f64,
    /// First touches of lines as basis of the numbers.
    pub n: u64,
    /// First touches without a possible weight or course in the file, in addition.
    pub left_out: u64,
}

/// Cache use at a level. Weights are for the whole trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LevelUse {
    /// "L1", "L2", "LL" for the last of several.
    pub name: String,
    /// Capacity.
    pub bytes: u64,
    /// Lines loaded, and bytes unused until eviction.
    pub costs: Costs,
    /// Lost share of the bytes loaded.
    pub lost_share: Estimate,
    /// By loading instruction, the most bytes lost first.
    pub by_line: Vec<LoadingLine>,
    /// By function, the most bytes lost inclusively first.
    pub by_function: Vec<FunctionLoss>,
    /// By data object, the most bytes lost first; empty if objects were not looked for.
    pub by_object: Vec<ObjectLoss>,
    /// By call path and data object, loads and stores apart; paths without a load of a line are left out.
    pub by_path: Vec<PathLoss>,
    /// By address of the instruction, and whether a store: lines loaded,
    /// first touches of lines, and the number of first touches seen.
    pub by_instruction: BTreeMap<(u64, bool), (f64, f64, u64)>,
    /// Rows beyond [`ROWS`] of the tables.
    pub rows_left_out: usize,
    /// Bytes lost below unknown callers of cut call paths; functions further out lack the bytes.
    pub unknown_caller: Estimate,
    /// Whether own costs, and costs below the outermost functions, sum to the whole.
    pub balanced: bool,
}

/// Cost of loading lines.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Costs {
    /// Lines loaded.
    pub lines: Estimate,
    /// Bytes unused until eviction: the spatial loss.
    pub lost: Estimate,
    /// Sum of the reciprocals of the lines' accesses.
    pub access_cost: Estimate,
}

/// Loaded lines and the use of bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loaded {
    /// Cost of the lines; n counts the first touches.
    pub costs: Costs,
    /// Share of the lines loaded at the level.
    pub traffic: Estimate,
    /// Share of the bytes lost at the level.
    pub share: Estimate,
    /// Bytes used of each line, on average.
    pub used: Estimate,
    /// Accesses to each line, harmonic mean.
    pub accesses: Estimate,
}

/// A line of code loading cache lines.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadingLine {
    /// Innermost frame; equal frames of several call paths count as one.
    pub frame: Option<FrameId>,
    /// Load or store; a line of code doing both has two rows.
    pub kind: AccessKind,
    /// Loaded lines.
    pub loaded: Loaded,
    /// The call paths with the largest losses, and the number
    /// of paths; `None` for paths missing in the profile.
    pub contexts: Vec<(Option<ContextId>, Loaded)>,
    /// Number of call paths.
    pub contexts_total: usize,
    /// Data touched by the loads, with the share of the bytes lost, heaviest first.
    pub objects: Vec<(ObjectId, Option<FieldId>, f64)>,
}

/// Loss in a function and in the functions below.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionLoss {
    /// A frame of the function; `None` for the function standing for missing callers of cut paths.
    pub frame: Option<FrameId>,
    /// Of lines loaded by the function's own code.
    pub own: Costs,
    /// Of lines loaded while the function is on the stack.
    pub inclusive: Costs,
    /// Share of the bytes lost inclusively in the bytes lost at the level.
    pub share: Estimate,
    /// Share in the bytes loaded.
    pub of_traffic: Estimate,
}

/// Lines loaded of a data object by a call path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathLoss {
    /// The call path; `None` if the profile lacks the path.
    pub context: Option<ContextId>,
    /// The object that represents its row; `None` for an unknown object.
    pub object: Option<ObjectId>,
    /// Lines loaded.
    pub lines: f64,
    /// Bytes unused until eviction.
    pub lost: f64,
}

/// Lines loaded of a data object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectLoss {
    /// The row's representative object; `None` for an unknown object.
    pub object: Option<ObjectId>,
    /// Lines and use.
    pub loaded: Loaded,
}

impl LoadingLine {
    /// The call path with the greatest loss.
    pub fn context(&self) -> Option<ContextId> {
        self.contexts.first().and_then(|(context, _)| *context)
    }
}

impl CacheUse {
    /// From reuses of words and of lines, in the order of the cases. `None` for a
    /// profile without first touches, or without a rate, hence without fill times.
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
        let fills = Fills::of(lines, estimator, &masses, levels.iter().map(|(_, bytes)| *bytes));
        let draws = study.draws(lines, &fills);
        let of_level = |(index, (_, bytes)): (usize, &(u8, u64))| {
            let last = index > 0 && index + 1 == levels.len();
            let name = if last { "LL".to_owned() } else { format!("L{}", index + 1) };
            let level = LevelUse { name, bytes: *bytes, ..LevelUse::default() };
            study.level(index, fills.seen(index), &draws, level)
        };
        let n = study.firsts.len() as u64;
        let touches = study.missed * masses.iter().map(WeightedHistogram::total).sum::<f64>();
        let left_out = study.left_out;
        Some(Self { levels: levels.iter().enumerate().map(of_level).collect(), touches, n, left_out })
    }

    /// Lines loaded and the miss ratio at a size are a single number, estimated twice:
    /// from windows, which show lines, and from reuses, mostly seen by watches.
    /// Without a far enough reuse, draws load no line, and an interval from 0 to 0
    /// would claim certainty; the miss ratio's interval knows how few reuses could
    /// have been far. Hence the upper end is at least the miss ratio's upper end, and
    /// the lower end at most as high. The loss of further lines is not known: per line
    /// at most as much as of the lines loaded, or every byte without a line loaded.
    pub fn agree(&mut self, lines: &Reuse) {
        for level in &mut self.levels {
            let Some(point) = lines.at(level.bytes) else { continue };
            let most = point.ratio.high * self.touches;
            let before = level.costs.lines;
            let costs = &mut level.costs;
            if !most.is_finite() || before.low <= most && most <= before.high {
                continue;
            }
            let none = before.value <= 0.0;
            costs.lines.low = before.low.min(most);
            costs.lines.high = before.high.max(most);
            let (fewer, more) = (costs.lines.low / before.low, costs.lines.high - before.high);
            let lost = if none { 1.0 } else { level.lost_share.high };
            costs.lost.high += more * objects::LINE as f64 * lost;
            costs.access_cost.high += more;
            if fewer < 1.0 {
                costs.lost.low *= fewer;
                costs.access_cost.low *= fewer;
            }
            if none {
                (level.lost_share.low, level.lost_share.high) = (0.0, 1.0);
            }
        }
    }
}

/// Misses of a cache of a size among first touches of lines in
/// windows, by instruction address and whether the instruction stores.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FirstTouchMisses {
    /// First touches in the trace, and the missing share. A further touch with the share
    /// [`FirstTouchMisses::all`] is added to each, to limit the effect of few touches.
    pub by_instruction: BTreeMap<(u64, bool), (f64, f64)>,
    /// Share of the instructions together.
    pub all: f64,
}

impl FirstTouchMisses {
    /// For caches by bytes, ascending. `None` for a profile without first
    /// touches, or without a rate in accesses, which fill times need.
    pub fn of(profile: &Profile, sizes: &[u64]) -> Option<Vec<Self>> {
        let contexts = Contexts::new(profile);
        let rates = Rates::of(profile);
        if profile.loads.is_empty() || rates.unit() != Unit::Accesses {
            return None;
        }
        let [words, lines] = [8, 64].map(|granule| Case::new(profile, &contexts, &rates, granule, None));
        let estimator = Estimator::default();
        let masses = lines.masses(estimator);
        let study = Study::of(profile, &contexts, &rates, [&words, &lines], estimator);
        let fills = Fills::of(&lines, estimator, &masses, sizes.iter().copied());
        let of_size = |index: usize| {
            let costs = study.costs(fills.seen(index), &|_| 1.0);
            let all = study.firsts.iter().zip(&costs).fold((0.0, 0.0), |(lines, touches), (first, cost)| {
                (lines + cost.lines, touches + first.weight)
            });
            let all = (all.0 / f64::max(all.1, f64::MIN_POSITIVE)).clamp(0.0, 1.0);
            let share = |(key, (lines, touches, n)): (_, (f64, f64, u64))| {
                let one = touches / n.max(1) as f64;
                let share = (lines + one * all) / f64::max(touches + one, f64::MIN_POSITIVE);
                (key, (touches, share.clamp(0.0, 1.0)))
            };
            Self { by_instruction: study.by_instruction(&costs).into_iter().map(share).collect(), all }
        };
        Some((0..sizes.len()).map(of_size).collect())
    }
}

/// Redrawn samples, rates and fill times.
struct Drawn {
    /// Times each sample was drawn.
    weights: Vec<f64>,
    /// Fill times by cache.
    fills: Vec<Vec<u64>>,
}

impl Study<'_> {
    fn level(&self, index: usize, fills: &[u64], draws: &[Drawn], level: LevelUse) -> LevelUse {
        let costs = self.costs(fills, &|_| 1.0);
        let sums = self.sums(&costs);
        let drawn = |Drawn { weights, fills }: &Drawn| {
            let fills = fills.get(index).map_or(&[][..], Vec::as_slice);
            self.sums(&self.costs(fills, &|sample| weights.get(sample as usize).copied().unwrap_or(0.0)))
        };
        let draws: Vec<Sums> = draws.iter().map(drawn).collect();
        let spread = Spread::new(index == 0, &draws, &sums, self.by_sample(&costs));
        let whole = |sums: &Sums| sums.whole;
        let lines = Ranked::of(&sums.places, |_, _| Ordering::Equal);
        let functions = Ranked::of(&sums.functions, |a, b| {
            let own = |row: usize| sums.own[row].lost;
            own(b).total_cmp(&own(a)).then(self.functions[a].cmp(&self.functions[b]))
        });
        let objects = Ranked::of(&sums.objects, |_, _| Ordering::Equal);
        let objects = if self.located.is_empty() { Ranked::default() } else { objects };
        let parts = self.parts(&costs, &sums, &lines.rows);
        let unknown = self.functions.iter().position(Option::is_none);
        LevelUse {
            costs: spread.costs(&whole),
            lost_share: spread.of_traffic(&whole),
            by_line: lines
                .rows
                .iter()
                .zip(parts)
                .map(|(place, parts)| self.line(*place, parts, &spread))
                .collect(),
            by_function: functions.rows.iter().map(|number| self.function(*number, &spread)).collect(),
            by_object: objects
                .rows
                .iter()
                .map(|row| ObjectLoss {
                    object: self.objects[*row],
                    loaded: spread.loaded(&|sums| sums.objects[*row]),
                })
                .collect(),
            by_path: self.by_path(&costs),
            by_instruction: self.by_instruction(&costs),
            rows_left_out: lines.left_out + functions.left_out + objects.left_out,
            unknown_caller: spread
                .lost(&|sums| unknown.map_or_else(Cost::default, |unknown| sums.functions[unknown])),
            balanced: self.balances(&costs, &sums),
            ..level
        }
    }

    /// See [`LevelUse::by_path`].
    fn by_path(&self, costs: &[Cost]) -> Vec<PathLoss> {
        let mut sums: BTreeMap<(usize, usize), (f64, f64)> = BTreeMap::new();
        for (first, cost) in self.firsts.iter().zip(costs).filter(|(_, cost)| cost.lines > 0.0) {
            let (lines, lost) = sums.entry((first.path, first.object)).or_default();
            (*lines, *lost) = (*lines + cost.lines, *lost + cost.lost);
        }
        let row = |((path, object), (lines, lost)): ((usize, usize), (f64, f64))| PathLoss {
            context: self.paths.get(path).and_then(|path| path.context),
            object: self.objects.get(object).copied().flatten(),
            lines,
            lost,
        };
        sums.into_iter().map(row).collect()
    }

    /// See [`LevelUse::by_instruction`].
    fn by_instruction(&self, costs: &[Cost]) -> BTreeMap<(u64, bool), (f64, f64, u64)> {
        let mut by_instruction: BTreeMap<(u64, bool), (f64, f64, u64)> = BTreeMap::new();
        for (first, cost) in self.firsts.iter().zip(costs) {
            let access = &first.load.access;
            let key = (access.ip, access.kind == AccessKind::Store);
            let (lines, firsts, n) = by_instruction.entry(key).or_default();
            (*lines, *firsts, *n) = (*lines + cost.lines, *firsts + first.weight, *n + 1);
        }
        by_instruction
    }

    fn draws(&self, case: &Case<'_>, fills: &Fills<'_>) -> Vec<Drawn> {
        let samples = case.samples();
        if samples.is_empty() {
            return Vec::new();
        }
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut clocks = Vec::new();
        let draw = |number| {
            let mut weights = Vec::new();
            case.draw(&mut random, &samples, number % 2 == 1, &mut weights, &mut clocks);
            let fills = fills.drawn(&weights, normal(&mut random));
            Drawn { weights, fills }
        };
        let each = self.firsts.len() + case.subjects().len();
        (0..(DRAWN / each.max(1)).clamp(FEWEST_DRAWS, DRAWS)).map(draw).collect()
    }

    /// Call paths and bytes lost by object of given places.
    fn parts(&self, costs: &[Cost], sums: &Sums, places: &[usize]) -> Vec<Parts> {
        let mut row_of = vec![None; self.places.len()];
        for (row, place) in places.iter().enumerate() {
            row_of[*place] = Some(row);
        }
        let mut parts = vec![Parts::default(); places.len()];
        for (number, (path, cost)) in self.paths.iter().zip(&sums.paths).enumerate() {
            if let Some(row) = row_of[path.place].filter(|_| cost.lines > 0.0) {
                parts[row].paths.push(number);
            }
        }
        for (first, cost) in self.firsts.iter().zip(costs).filter(|(_, cost)| cost.lines > 0.0) {
            if let (Some(row), Some(object)) = (row_of[first.place], self.located.get(&first.id)) {
                *parts[row].objects.entry(*object).or_default() += cost.lost;
            }
        }
        for part in &mut parts {
            let cost = |path: &usize| sums.paths[*path];
            part.paths.sort_by(|a, b| {
                let (one, other) = (cost(a), cost(b));
                other.lost.total_cmp(&one.lost).then(other.lines.total_cmp(&one.lines)).then(a.cmp(b))
            });
        }
        parts
    }

    fn line(&self, place: usize, parts: Parts, spread: &Spread<'_>) -> LoadingLine {
        let loaded = spread.loaded(&|sums| sums.places[place]);
        let whole = loaded.costs.lost.value.max(f64::MIN_POSITIVE);
        let objects = parts.objects.into_iter();
        let mut objects: Vec<_> =
            objects.map(|((object, field), lost)| (object, field, lost / whole)).collect();
        objects.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
        let context = |path: &usize| (self.paths[*path].context, spread.loaded(&|sums| sums.paths[*path]));
        let (frame, stores) = self.places[place];
        LoadingLine {
            frame,
            kind: if stores { AccessKind::Store } else { AccessKind::Load },
            loaded,
            contexts: parts.paths.iter().take(CONTEXTS).map(context).collect(),
            contexts_total: parts.paths.len(),
            objects,
        }
    }

    fn function(&self, number: usize, spread: &Spread<'_>) -> FunctionLoss {
        let inclusive = |sums: &Sums| sums.functions[number];
        FunctionLoss {
            frame: self.functions[number],
            own: spread.costs(&|sums| sums.own[number]),
            inclusive: spread.costs(&inclusive),
            share: spread.share_of_loss(&inclusive),
            of_traffic: spread.of_traffic(&inclusive),
        }
    }
}

/// Lines loaded by a line of code: call paths, the most bytes lost first, and bytes lost by object.
#[derive(Clone, Default)]
struct Parts {
    paths: Vec<usize>,
    objects: BTreeMap<(ObjectId, Option<FieldId>), f64>,
}

/// The reported rows of a table, the most bytes lost first, and the number of further rows.
#[derive(Default)]
struct Ranked {
    rows: Vec<usize>,
    left_out: usize,
}

impl Ranked {
    /// Equal rows by number of lines, then by `tie`.
    fn of(costs: &[Cost], tie: impl Fn(usize, usize) -> Ordering) -> Self {
        let mut rows: Vec<usize> = (0..costs.len()).filter(|row| costs[*row].lines >= FEWEST).collect();
        rows.sort_by(|a, b| {
            let (one, other) = (costs[*a], costs[*b]);
            other.lost.total_cmp(&one.lost).then(other.lines.total_cmp(&one.lines)).then_with(|| tie(*a, *b))
        });
        let left_out = rows.len().saturating_sub(ROWS);
        rows.truncate(ROWS);
        Self { rows, left_out }
    }
}

#[cfg(test)]
mod tests;
