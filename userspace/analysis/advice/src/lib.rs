//! From numbers to a decision: loops with time and strides, possible changes, and the gain of each.
//!
//! [`Advised::of`] merges the loops of the windows ([`loops`]), looks for
//! changes of each class (`kinds`), and calculates the gain ([`gain`]).
//! Advice with a gain's lower bound below 2 % of the time is not given.
//!
//! Pure: no I/O. Not here: printing.

pub mod branches;
pub mod gain;
mod kernel_time;
mod kinds;
pub mod loops;
mod place;
mod words;

pub use branches::Branch;
pub use kernel_time::{Entry, KernelTime};
pub use loops::{Access, ChainPart, Known, Loop, Needs};

use locality_estimate::access_rates::Rates;
use locality_estimate::calling_context::Contexts;
use locality_estimate::interval_estimate::Estimate;
use locality_estimate::reuse::normal;
use locality_model::{FieldId, FrameId, ObjectId, Profile};

use gain::{Costs, Fix};

/// Least reported gain: the lower bound of the speed-up.
const LEAST: f64 = 1.02;
/// Least samples of a loop with advice.
const FEWEST: u64 = 5;
/// Share of the CPU time in loops of known speed from which the share of waiting is given.
const KNOWN: f64 = 0.5;
const SEED: u64 = 0x10CA_10C7;
/// Part of the best gain sufficient for preferring less work.
const EASY: f64 = 0.75;
/// Most advice given.
const MOST: usize = 5;

/// A class of advice, by name in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say what they are; DESIGN's outside contract lists them")]
pub enum Kind {
    Interchange,
    Tile,
    Fuse,
    Split,
    Soa,
    Reorder,
    Pad,
    Sharing,
    Prefetch,
    Batch,
    HugePages,
    Shrink,
    KeepBuffer,
    Accumulators,
    Vectorise,
    Branch,
    Parallelise,
}

impl Kind {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interchange => "interchange",
            Self::Tile => "tile",
            Self::Fuse => "fuse",
            Self::Split => "split",
            Self::Soa => "soa",
            Self::Reorder => "reorder",
            Self::Pad => "pad",
            Self::Sharing => "sharing",
            Self::Prefetch => "prefetch",
            Self::Batch => "batch",
            Self::HugePages => "huge_pages",
            Self::Shrink => "shrink",
            Self::KeepBuffer => "keep_buffer",
            Self::Accumulators => "accumulators",
            Self::Vectorise => "vectorise",
            Self::Branch => "branch",
            Self::Parallelise => "parallelise",
        }
    }
}

/// Frame and line of a loop, as far as known.
pub type Place = (Option<FrameId>, Option<u32>);

/// A change to make.
#[derive(Debug, Clone)]
pub struct Advice {
    /// Class.
    pub kind: Kind,
    /// The imperative sentence.
    pub title: String,
    /// Frame and line of the loop.
    pub place: Place,
    /// Frame and line of the second loop of two.
    pub other: Option<Place>,
    /// Object and field.
    pub object: Option<(ObjectId, Option<FieldId>)>,
    /// How much faster the program would be.
    pub speedup: Estimate,
    /// Share of the lines loaded at each cache, saved by the change; `None` of caches that hardly any line
    /// misses.
    pub misses: Option<[Option<Estimate>; 3]>,
    /// Basis of the advice.
    pub evidence: Vec<String>,
    /// Obstacles.
    pub in_the_way: Vec<String>,
    /// Samples in the loop.
    pub n: u64,
}

/// Reuses between two access instructions that watches saw beyond the reach of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FarReuse {
    /// Instruction of the use.
    pub from: u64,
    /// Instruction of the reuse.
    pub to: u64,
}

/// Loops and advice of a profile.
#[derive(Debug, Clone, Default)]
pub struct Advised {
    /// Loops, heaviest first.
    pub loops: Vec<Loop>,
    /// Branches of the loops, the most mispredicted first.
    pub branches: Vec<Branch>,
    /// Changes, by predicted time saved.
    pub advice: Vec<Advice>,
    /// Why there is none.
    pub none: Option<String>,
    /// Time in the kernel.
    pub kernel: Option<KernelTime>,
    /// Share of the CPU time that waits for data beyond the first-level cache.
    pub waits: Option<Estimate>,
}

/// Input of all classes.
pub(crate) struct View<'a> {
    pub profile: &'a Profile,
    pub loops: &'a [Loop],
    pub costs: Costs,
    /// Caches in bytes, smallest first; the last one is one program's share.
    pub caches: [f64; 3],
    /// Sets and ways of the first-level and the second-level cache.
    pub sets: [(u64, u64); 2],
    /// Share of the CPU time in user mode.
    pub user: f64,
    pub far: &'a [FarReuse],
}

/// A change proposed by a class.
pub(crate) struct Candidate {
    pub kind: Kind,
    pub fixes: Vec<Fix>,
    pub title: String,
    pub of: usize,
    pub other: Option<usize>,
    pub object: Option<(ObjectId, Option<FieldId>)>,
    pub evidence: Vec<String>,
    pub in_the_way: Vec<String>,
}

impl Advised {
    /// Of a profile; `None` without loops.
    pub fn of(
        profile: &Profile,
        contexts: &Contexts,
        rates: &Rates,
        known: &Known,
        far: &[FarReuse],
    ) -> Option<Self> {
        if profile.loops.is_empty() {
            return None;
        }
        let mut loops = loops::of(profile, contexts, rates, known);
        kernel_time::of_loops(profile, &mut loops);
        let branches = branches::of(profile, contexts, rates);
        let kernel = KernelTime::of(profile, contexts);
        let user = 1.0 - kernel.as_ref().map_or(0.0, |kernel| kernel.share.value);
        let Some(processor) = profile.run.processor else {
            let none = Some("The processor was not measured, so no gain can be told.".to_owned());
            return Some(Self { loops, branches, none, kernel, ..Self::default() });
        };
        let mut caches = [32e3, 1e6, 32e6];
        for (bytes, level) in caches.iter_mut().zip(1..) {
            let cache = profile.run.host.caches.iter().find(|cache| cache.level == level);
            *bytes = cache.map_or(*bytes, |cache| cache.bytes as f64);
        }
        let mut sets = [(64, 8), (1024, 16)];
        for (sets, level) in sets.iter_mut().zip(1..) {
            let cache = profile.run.host.caches.iter().find(|cache| cache.level == level && cache.ways > 0);
            let of = |cache: &locality_model::CacheLevel| {
                (cache.bytes / u64::from(cache.line.max(1)) / u64::from(cache.ways), cache.ways.into())
            };
            *sets = cache.map(of).filter(|(sets, _)| *sets > 0).unwrap_or(*sets);
        }
        let costs = Costs::of(&processor);
        gain::correct(&mut loops, &costs);
        let view = View { profile, loops: &loops, costs, caches, sets, user, far };
        let mut advice: Vec<Advice> = kinds::all(&view)
            .into_iter()
            .filter(|candidate| loops.get(candidate.of).is_some_and(|of| of.samples >= FEWEST))
            .filter_map(|candidate| view.advice(candidate))
            .chain(kernel.as_ref().and_then(|kernel| kernel.advice(&view)))
            .filter(|advice| advice.speedup.low >= LEAST && advice.speedup.value.is_finite())
            .collect();
        advice.sort_by(|a, b| b.speedup.value.total_cmp(&a.speedup.value).then(a.kind.cmp(&b.kind)));
        // One change a loop: the best change, or padding if
        // nearly as good, because padding is the least work.
        let best: Vec<(Place, f64)> =
            advice.iter().map(|advice| (advice.place, advice.speedup.value)).collect();
        let is_easy = |advice: &Advice| {
            let best = best.iter().filter(|(place, _)| *place == advice.place).map(|(_, speedup)| *speedup);
            advice.kind == Kind::Pad && advice.speedup.value >= EASY * best.fold(1.0, f64::max)
        };
        advice.sort_by_key(|advice| !is_easy(advice));
        let mut places = std::collections::HashSet::new();
        advice.retain(|advice| places.insert((advice.place, advice.kind == Kind::KeepBuffer)));
        advice.sort_by(|a, b| b.speedup.value.total_cmp(&a.speedup.value).then(a.kind.cmp(&b.kind)));
        advice.truncate(MOST);
        gain::name_limits(&mut loops, &costs);
        let waits = waits(&loops, user);
        let none = advice.is_empty().then(|| words::nothing(waits.as_ref(), &loops, kernel.as_ref()));
        Some(Self { loops, branches, advice, none, kernel, waits })
    }
}

impl View<'_> {
    fn advice(&self, candidate: Candidate) -> Option<Advice> {
        let Candidate { kind, fixes, title, of, other, object, evidence, in_the_way } = candidate;
        let speedup = gain::speedup(self.loops, &fixes, &self.costs, self.user)?;
        let place = |number: usize| self.loops.get(number).map_or((None, None), |of| (of.frame, of.line));
        let has_lines = fixes.iter().any(|fix| !fix.changes.is_empty());
        Some(Advice {
            kind,
            title,
            place: place(of),
            other: other.map(place),
            object,
            speedup,
            misses: has_lines.then(|| gain::misses_saved(self.loops, &fixes)),
            evidence,
            in_the_way,
            n: self.loops.get(of)?.samples,
        })
    }
}

/// Share of the CPU time that waits for data beyond the first-level cache.
///
/// A loop waits for the part of its cycles beyond the core. Loops without a known speed, and code outside
/// of loops, wait as much as the others do in the value, not at all at the interval's low end and all of the
/// time at its high end. `None` where the speed is known for less than [`KNOWN`] of the CPU time.
///
/// Source of error: where the timing model takes longer than the loop, the core may be as short as
/// [`loops::Needs::cycles`], and the draws are spread evenly over that range.
fn waits(loops: &[Loop], user: f64) -> Option<Estimate> {
    /// Error of the timing model as a standard deviation of the logarithm: 2 to 14 % were measured in loops
    /// that compute (docs/journal/2026-11.md, "Advice").
    const CORE: f64 = 0.08;
    let draws = loops.iter().map(|of| of.draws.len()).max()?;
    let known = || loops.iter().filter(|of| of.speed.is_some() && of.core.is_some());
    let share = known().map(|of| of.share.value).sum::<f64>().min(1.0);
    if share < KNOWN {
        return None;
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    // The error of one draw is common to all loops.
    let errors: Vec<(f64, f64)> =
        (0..draws).map(|_| ((CORE * normal(&mut random)).exp(), random.f64())).collect();
    let of = |draw: Option<usize>| {
        let part = |of: &Loop| {
            let ([share, cycles, core], (off, place)) =
                match draw.and_then(|at| of.draws.get(at).zip(errors.get(at))) {
                    Some((drawn, error)) => (*drawn, *error),
                    None => ([of.share.value, of.speed?.1.value, of.core?.value], (1.0, 1.0)),
                };
            let least =
                of.needs.as_ref().map_or(core * (-2.0 * CORE).exp(), |needs| needs.cycles.value).min(cycles);
            let core = if core * off < cycles { core * off } else { least + place * (cycles - least) };
            let waits = share * (1.0 - core / cycles);
            waits.is_finite().then_some(waits)
        };
        user * known().filter_map(part).sum::<f64>()
    };
    let mut drawn: Vec<f64> = (0..draws).map(|draw| of(Some(draw))).collect();
    let n = known().map(|of| of.samples).sum();
    let found = loops::estimate(of(None), &mut drawn, n);
    let unknown = user * (1.0 - share);
    let high = (found.high + unknown).min(user);
    Some(Estimate { value: (found.value / share).clamp(found.low, high), high, ..found })
}

#[cfg(test)]
mod tests;
