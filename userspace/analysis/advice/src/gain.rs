//! What a change to a loop brings: time of an iteration after it, and of the whole program.
//!
//! An iteration takes t cycles, of which `core` pass with all lines in the first-level cache. The
//! rest is the stall S, where t² = core² + S²: part of the stall overlaps with the core. The
//! stall is divided among the accesses of the loop by what their lines cost by level and pattern; a
//! change gives some accesses fewer or nearer lines, whose cost is then the measured one of the
//! processor. The time of the program is 1 − Σ s (1 − t′ / t) of its time before, s being the
//! loop's share. Intervals come from the draws of s, t and core, and from no overlap (t = core + S)
//! and whole overlap (t = max(core, S)) in place of the square sum.
//!
//! Sources of error: S includes every stall, those of page walks and shared lines too; lines of
//! different accesses overlap; a core that the change itself speeds up keeps its old cycles.

use locality_estimate::interval_estimate::Estimate;
use locality_estimate::reuse::normal;
use locality_model::{Dependence, Processor};

use crate::loops::{Access, DRAWS, Loop, Misses, estimate};

/// Bytes of a line.
pub(crate) const LINE: f64 = 64.0;
/// Step from which hardware does not foresee the next line.
const UNFORESEEN: i64 = 2048;
/// Least share of steps that makes a stride.
pub(crate) const REGULAR: f64 = 0.5;

/// Cycles to find the page of an address that the first-level translation buffer does not have (Fog, "The
/// microarchitecture of Intel, AMD and VIA CPUs", 2023: 7 to 9).
const PAGE: f64 = 8.0;
/// Chains to follow side by side, with state that still fits the registers.
pub(crate) const CHAINS: f64 = 8.0;
/// Multiple of a loop's core cycles from which all of its time may be stall.
const HIDES: f64 = 1.25;
/// How far the timing model and the costs of lines are off, as standard deviations of the logarithm: of loops
/// that compute, 2 to 14 % were measured (docs/journal/2026-11.md, "Advice").
const CORE_OFF: f64 = 0.15;
const LINES_OFF: f64 = 0.2;
const SEED: u64 = 0x10CA_10C6;
/// Part of the stall, in the cost of the lines, that the lines may account for.
const EXPLAINED: f64 = 2.5;

/// How lines follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// One after the other.
    Sequential,
    /// With a step that hardware foresees in part.
    Strided,
    /// At places that no load decides.
    Random,
    /// At a place decided by the load before, one of several chains followed side by side.
    Chains,
    /// At a place that the load before decides.
    Chased,
}

impl Pattern {
    /// Of an access as it is.
    pub fn of(access: &Access) -> Self {
        let regular = access.stride.filter(|_| access.stride_share >= REGULAR);
        match (regular.map(i64::saturating_abs), access.dependence) {
            (Some(step), _) if step <= LINE as i64 => Self::Sequential,
            (Some(step), _) if step < UNFORESEEN => Self::Strided,
            (_, Dependence::Chased) => Self::Chased,
            _ => Self::Random,
        }
    }
}

/// Costs of lines, in cycles, by their source: second-level cache, last-level cache, memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Costs {
    latency: Misses,
    between: Misses,
    stored: Misses,
    parallel: Misses,
}

impl Costs {
    /// Of a processor.
    pub fn of(processor: &Processor) -> Self {
        let column = |at: usize| processor.levels.map(|level| level[at]);
        let (latency, between, stored) = (column(0), column(1), column(2));
        // As many lines are under way for each level as for memory, but none comes sooner than in a row.
        let together = processor.parallel_line / latency[2].max(1.0);
        let mut parallel = latency.map(|latency| latency * together.clamp(0.02, 1.0));
        parallel.iter_mut().zip(between).for_each(|(all, between)| *all = all.max(between));
        Self { latency, between, stored, parallel }
    }

    fn line(&self, pattern: Pattern, is_store: bool, level: usize) -> f64 {
        let row = if is_store { self.stored[level] } else { self.between[level] };
        match pattern {
            Pattern::Sequential => row,
            Pattern::Strided => (row + self.parallel[level]) / 2.0,
            Pattern::Random => self.parallel[level].max(row).max(PAGE),
            Pattern::Chains => self.parallel[level].max(row).max(self.latency[level] / CHAINS),
            Pattern::Chased => self.latency[level],
        }
    }

    /// Cycles of an access's lines, of an iteration. A line that begins a run is waited for on its own.
    pub(crate) fn of_access(&self, access: &Access) -> f64 {
        let misses = lines(access);
        let run = self.of_lines(misses, Pattern::of(access), access.dirties);
        let alone = self.of_lines(misses, Pattern::Chased, access.dirties);
        run + access.restarts * alone
    }

    /// Cycles of an iteration if each line of the chased accesses, from the cache that reuses show, were
    /// waited for alone.
    pub(crate) fn one_by_one(&self, of: &Loop) -> f64 {
        let chased = of.accesses.iter().filter(|access| Pattern::of(access) == Pattern::Chased);
        let cost = |access: &Access| {
            let seen = access.seen_misses.map(|share| access.per_iteration * access.lines * share);
            self.of_lines(seen, Pattern::Chased, access.dirties)
        };
        chased.map(cost).sum()
    }

    /// Cycles of lines by how many miss each cache.
    pub(crate) fn of_lines(&self, misses: Misses, pattern: Pattern, is_store: bool) -> f64 {
        let [first, second, last] = misses;
        let from = [first - second, second - last, last];
        from.iter()
            .enumerate()
            .map(|(level, lines)| lines.max(0.0) * self.line(pattern, is_store, level))
            .sum()
    }
}

/// Lines of an access that miss each cache, by iteration.
pub(crate) fn lines(access: &Access) -> Misses {
    access.misses.0.map(|share| access.per_iteration * access.lines * share)
}

/// Lines of one access after a change.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    /// Number of the access among those of the loop.
    pub access: usize,
    /// Lines of an iteration that miss each cache afterwards.
    pub misses: Misses,
    /// Their pattern afterwards.
    pub pattern: Pattern,
}

/// What becomes of the waiting of a loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Waiting {
    /// Lines that the change does not name are waited for as now.
    Stays,
    /// Only the named lines are waited for, and this part of the present waiting beyond them.
    Named(f64),
    /// The loop computes: all time beyond its lines shrinks with the core.
    Computes,
}

/// A change to one loop.
#[derive(Debug, Clone)]
pub struct Fix {
    /// Number of the loop.
    pub of: usize,
    /// Accesses with changed lines; unnamed ones stay.
    pub changes: Vec<Change>,
    /// Least and greatest part of the core that is left.
    pub core: (f64, f64),
    /// What becomes of the waiting.
    pub waiting: Waiting,
    /// Times their cost by the model that lines may account for of the stall.
    pub explains: f64,
}

impl Fix {
    /// A change of some lines.
    pub fn lines(of: usize, changes: Vec<Change>) -> Self {
        Self { of, changes, core: (1.0, 1.0), waiting: Waiting::Stays, explains: EXPLAINED }
    }

    /// A change after which the loop waits only for these lines, and for a part of the present
    /// stall beyond them.
    pub fn only(of: usize, changes: Vec<Change>, beyond: f64) -> Self {
        Self { waiting: Waiting::Named(beyond), ..Self::lines(of, changes) }
    }

    /// A change of what is computed.
    pub fn core(of: usize, core: (f64, f64)) -> Self {
        Self { core, waiting: Waiting::Computes, ..Self::lines(of, Vec::new()) }
    }
}

/// What a change leaves of the stall.
#[derive(Debug, Clone, Copy)]
struct Rest {
    /// Part of the stall that no change concerns.
    left: f64,
    /// Cycles of the changed lines.
    added: f64,
    /// Cycles of all lines now, by the model.
    lines: f64,
}

/// How core and stall come together.
#[derive(Debug, Clone, Copy)]
enum Overlap {
    None,
    Square,
    Whole,
}

/// Cycles of an iteration afterwards; `core_left`: part of the core that is left.
fn after(
    overlap: Overlap,
    (cycles, core): (f64, f64),
    (waiting, core_left): (Waiting, f64),
    rest: Rest,
) -> f64 {
    let Rest { left, added, lines } = rest;
    let stall = match overlap {
        Overlap::None => (cycles - core).max(0.0),
        Overlap::Square => (cycles * cycles - core * core).max(0.0).sqrt(),
        // Of a loop that takes hardly longer than its core, the stall is hidden and not known.
        Overlap::Whole => {
            if cycles > core * HIDES {
                cycles
            } else {
                cycles.min(lines)
            }
        }
    };
    let (core, stall) = match waiting {
        Waiting::Stays => (core, (stall * left + added).min(stall)),
        Waiting::Named(beyond) => (core, (added + beyond * (stall - added).max(0.0)).min(stall)),
        Waiting::Computes => {
            let waits = stall.min(lines);
            ((cycles * cycles - waits * waits).max(core * core).sqrt(), waits)
        }
    };
    let core = core * core_left;
    match overlap {
        Overlap::None => core + stall,
        Overlap::Square => core.hypot(stall),
        Overlap::Whole => core.max(stall),
    }
    .min(cycles)
}

/// How much faster the program is with some changes; `user`: share of the CPU time that loops have a part in.
/// `None` where the time or the core of a loop is not known.
pub fn speedup(loops: &[Loop], fixes: &[Fix], costs: &Costs, user: f64) -> Option<Estimate> {
    let mut n = u64::MAX;
    let mut parts = Vec::new();
    for fix in fixes {
        let of = loops.get(fix.of)?;
        let (_, cycles) = of.speed?;
        let core = of.core.map_or(0.0, |core| core.value).min(cycles.value);
        let cost = |access: &Access| costs.of_access(access);
        let whole: f64 = of.accesses.iter().map(cost).sum();
        let changed: f64 =
            fix.changes.iter().filter_map(|change| of.accesses.get(change.access)).map(cost).sum();
        let added = fix.changes.iter().filter_map(|change| {
            let access = of.accesses.get(change.access)?;
            Some(costs.of_lines(change.misses, change.pattern, access.dirties))
        });
        let left = if whole > 0.0 { 1.0 - changed / whole } else { 1.0 };
        let stall = (cycles.value.powi(2) - core.powi(2)).max(0.0).sqrt();
        let added = added.sum::<f64>();
        // Lines do not account for a stall far above their cost, so a change of lines leaves the rest.
        let explained = if stall > 0.0 { (fix.explains * whole / stall).min(1.0) } else { 1.0 };
        let left = 1.0 - explained * (1.0 - left);
        n = n.min(of.samples);
        parts.push((of, fix, (cycles.value, core), Rest { left, added, lines: whole }));
    }
    // By draw, how far the model is off, for all loops alike.
    let mut random = fastrand::Rng::with_seed(SEED);
    let off = |random: &mut fastrand::Rng, scatter: f64| (scatter * normal(random)).exp();
    let offs: Vec<(f64, f64)> =
        (0..DRAWS).map(|_| (off(&mut random, CORE_OFF), off(&mut random, LINES_OFF))).collect();
    let saved = |overlap: Overlap, draw: Option<usize>| {
        let of = |(of, fix, times, rest): &(&Loop, &Fix, (f64, f64), Rest)| {
            let (share, times) = match draw.and_then(|draw| of.draws.get(draw)) {
                Some([share, cycles, core]) if cycles.is_finite() && *cycles > 0.0 => {
                    let core = if core.is_finite() && of.core.is_some() { core.min(*cycles) } else { 0.0 };
                    (*share, (*cycles, core))
                }
                _ => (of.share.value, *times),
            };
            let (least, most) = fix.core;
            // The middle by ratio, and all possible values in turn.
            let at = draw.map_or(0.5, |draw| (draw / 3 % 11) as f64 / 10.0);
            let core_left = least.powf(1.0 - at) * most.powf(at);
            let mut rest = *rest;
            let mut times = times;
            if let Some(draw) = draw {
                let (core_off, lines_off) = offs.get(draw).copied().unwrap_or((1.0, 1.0));
                times.1 = (times.1 * core_off).min(times.0);
                rest.added *= lines_off;
            }
            share * (1.0 - after(overlap, times, (fix.waiting, core_left), rest) / times.0)
        };
        parts.iter().map(of).sum::<f64>()
    };
    let whole = |saved: f64| 1.0 / (1.0 - (saved * user).clamp(0.0, 0.99));
    let draws = loops.first().map_or(0, |of| of.draws.len());
    let overlap = |draw: usize| [Overlap::None, Overlap::Square, Overlap::Whole][draw % 3];
    let mut drawn: Vec<f64> = (0..draws).map(|draw| whole(saved(overlap(draw), Some(draw)))).collect();
    Some(estimate(whole(saved(Overlap::Square, None)), &mut drawn, n))
}

/// Share of all loaded lines saved by changes, at each cache; `None` of a cache that hardly any line misses.
///
/// Lines before a change are those that reuses show ([`Access::seen_misses`]), with the error of a share of
/// as many draws as first touches or windows were seen (Agresti and Coull 1998, eq. 2).
pub fn misses_saved(loops: &[Loop], fixes: &[Fix]) -> [Option<Estimate>; 3] {
    /// Least part of the lines that miss the first cache.
    const HARDLY_ANY: f64 = 0.01;
    let draws = loops.iter().map(|of| of.draws.len()).max().unwrap_or(0);
    let (value, whole) = saved_in(loops, fixes, None);
    let drawn: Vec<Misses> = (0..draws).map(|draw| saved_in(loops, fixes, Some(draw)).0).collect();
    let n = fixes.iter().filter_map(|fix| Some(loops.get(fix.of)?.samples)).min().unwrap_or(0);
    [0, 1, 2].map(|at| {
        let mut column: Vec<f64> = drawn.iter().map(|draw| draw[at]).collect();
        (whole[at] > HARDLY_ANY * whole[0]).then(|| estimate(value[at], &mut column, n))
    })
}

/// The same by the point estimates, or in one draw; and lines that miss each cache, in an arbitrary unit.
fn saved_in(loops: &[Loop], fixes: &[Fix], draw: Option<usize>) -> (Misses, Misses) {
    // Iterations by share of time and cycles of one.
    let often = |of: &Loop| match draw.and_then(|draw| of.draws.get(draw)) {
        Some([share, cycles, _]) if *cycles > 0.0 => share / cycles,
        _ => of.speed.map_or(0.0, |(_, cycles)| of.share.value / cycles.value.max(f64::MIN_POSITIVE)),
    };
    let before = |of: &Loop, access: &Access| {
        let shares = match draw {
            Some(draw) => {
                let mut random = fastrand::Rng::with_seed(SEED ^ access.ip ^ ((draw as u64) << 48));
                let off = normal(&mut random);
                let n = access.misses.1.min(of.windows) as f64;
                access.seen_misses.map(|share| {
                    let middle = (share * n + 2.0) / (n + 4.0);
                    (middle + off * (middle * (1.0 - middle) / (n + 4.0)).sqrt()).clamp(0.0, 1.0)
                })
            }
            None => access.seen_misses,
        };
        shares.map(|share| access.per_iteration * access.lines * share)
    };
    let plus = |sum: Misses, more: Misses, often: f64| [0, 1, 2].map(|at| sum[at] + more[at] * often);
    let mut whole = [0.0; 3];
    for of in loops {
        whole = of.accesses.iter().fold(whole, |sum, access| plus(sum, before(of, access), often(of)));
    }
    let mut saved = [0.0; 3];
    for (fix, of) in fixes.iter().filter_map(|fix| Some((fix, loops.get(fix.of)?))) {
        for change in &fix.changes {
            let Some(access) = of.accesses.get(change.access) else { continue };
            // Other patterns of the same lines save none.
            if change.misses == lines(access) {
                continue;
            }
            let before = before(of, access);
            saved = plus(saved, [0, 1, 2].map(|at| (before[at] - change.misses[at]).max(0.0)), often(of));
        }
    }
    ([0, 1, 2].map(|at| if whole[at] > 0.0 { (saved[at] / whole[at]).min(1.0) } else { 0.0 }), whole)
}

/// Corrects the origin of lines in loops whose time contradicts the model: where lines at random
/// places cost far less by the model than the loop waits, they come from a farther cache.
///
/// Reuses of data seen once in a trace do not show the missed cache; the time does.
pub(crate) fn correct(loops: &mut [Loop], costs: &Costs) {
    /// New lines of an execution that make an access one of far places.
    const NEW: f64 = 0.25;
    for of in loops {
        let (Some((_, cycles)), Some(core)) = (of.speed, of.core) else { continue };
        let stall = (cycles.value.powi(2) - core.value.powi(2)).max(0.0).sqrt();
        let cost =
            |accesses: &[Access]| -> f64 { accesses.iter().map(|access| costs.of_access(access)).sum() };
        if stall <= EXPLAINED * cost(&of.accesses) {
            continue;
        }
        let is_far = |access: &Access| access.lines >= NEW;
        let from = |misses: Misses| {
            let mut accesses = of.accesses.clone();
            accesses.iter_mut().filter(|access| is_far(access)).for_each(|access| access.misses.0 = misses);
            accesses
        };
        let levels = [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0; 3]].map(from);
        let off = |accesses: &Vec<Access>| (cost(accesses).max(1e-9) / stall.max(1e-9)).ln().abs();
        let nearest = levels.into_iter().min_by(|a, b| off(a).total_cmp(&off(b)));
        of.accesses =
            nearest.filter(|accesses| off(accesses) < off(&of.accesses)).unwrap_or(of.accesses.clone());
    }
}

/// Causes of waiting in loops certainly longer than their core: the most expensive lines.
pub(crate) fn name_limits(loops: &mut [Loop], costs: &Costs) {
    for of in loops {
        let (Some((_, cycles)), Some(core)) = (of.speed, of.core) else { continue };
        if cycles.low <= HIDES * core.value {
            continue;
        }
        let mut by_limit = [("l1_misses", 0.0), ("deeper_misses", 0.0), ("pointer_chase", 0.0)];
        for access in &of.accesses {
            let pattern = Pattern::of(access);
            let [first, second, last] = lines(access);
            let near = costs.of_lines([first - second, 0.0, 0.0], pattern, access.dirties);
            let deep = costs.of_lines([second, second, last], pattern, access.dirties);
            if pattern == Pattern::Chased {
                by_limit[2].1 += near + deep;
            } else {
                by_limit[0].1 += near;
                by_limit[1].1 += deep;
            }
        }
        let most = by_limit.into_iter().filter(|(_, cost)| *cost > 0.0).max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((name, _)) = most {
            of.bound_by = Some((name.to_owned(), 1.0));
        }
    }
}
