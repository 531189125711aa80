//! A run cut into stretches by region of code and time, and the conversion of their time distances
//! to stack distances.
//!
//! Code separates work that runs together from other work (`code_phases`). A use is followed by its
//! own region's work for the length of a stay, and then by the average work around that time
//! ([`Around`]).
//!
//! `mrc::phases` puts a distance into the phase of its reuse and first touches into theirs.
//! Samples are uses: what is known is how long after the use the reuse comes. Read backwards, a use
//! is a reuse and a last touch a first one, and the granules in between are the same; so the
//! stretches are handed over in reverse order.
//!
//! Sources of error: a stretch has few samples (at least [`FEWEST`]) and shows only the average of
//! what happened in it; those of `mrc::phases`.

use std::collections::BTreeMap;

use locality_model::{GroupId, Profile, Sample, ThreadId};
use locality_mrc::distances::{Bar, Distances};
use locality_mrc::phases::{self, Around, Phase, Reach};
use locality_mrc::scale;

use crate::access_rates::{Rates, Unit};
use crate::code_phases::{Code, Regions};
use crate::estimator::WeightedHistogram;

/// Samples in a stretch, at least (but for runs with fewer).
pub const FEWEST: usize = 16;
/// Stretches of a process, at most.
pub const MOST: usize = 64;

/// Which samples of a profile are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPart {
    /// All.
    Whole,
    /// Samples of one thread.
    Thread(ThreadId),
    /// Samples of one group of processes.
    Group(GroupId),
}

impl RunPart {
    fn has(self, sample: &Sample) -> bool {
        match self {
            Self::Whole => true,
            Self::Thread(thread) => sample.thread == thread,
            Self::Group(group) => sample.group == Some(group),
        }
    }
}

/// One stretch of a process's run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    /// The process.
    pub pid: u32,
    /// Accesses of the process in it.
    pub accesses: f64,
    /// Granule touches per access.
    pub touches_per_access: f64,
    /// Accesses from its middle to the end of the trace.
    pub left: f64,
    /// Whether the process was seen to end with it.
    pub ended: bool,
    /// Region of code.
    pub region: usize,
    /// Mean accesses of a stay, least and greatest; infinite for a single region.
    pub stays: (f64, f64),
    /// Times of its first and last sample.
    pub span_ns: (u64, u64),
}

/// A run in stretches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stretches {
    /// In order of process, region and time.
    pub all: Vec<Stretch>,
    /// Stretch of each sample; `usize::MAX` for samples of other parts of the run.
    pub of_sample: Vec<usize>,
}

impl Stretches {
    /// Cuts the run, or a part of it, at one size of granule, into `most` stretches a
    /// process and one more a region at most; by time alone without `code`.
    pub fn of(
        profile: &Profile,
        rates: &Rates,
        code: Option<&Code>,
        granule: u32,
        part: RunPart,
        most: usize,
    ) -> Self {
        let mut of_process: BTreeMap<u32, Vec<(u64, usize)>> = BTreeMap::new();
        for (index, sample) in profile.samples.iter().enumerate() {
            if part.has(sample) {
                let pid = profile.threads.get(sample.thread.0 as usize).map_or(0, |thread| thread.pid);
                of_process.entry(pid).or_default().push((sample.time_ns, index));
            }
        }
        let mut per_access: Vec<Option<f64>> = vec![None; profile.samples.len()];
        for window in &profile.windows {
            let touches = window.touches.iter().find(|(bytes, _)| *bytes == granule).map(|touches| touches.1);
            if let (Some(place), Some(touches)) = (per_access.get_mut(window.sample.0 as usize), touches)
                && window.accesses > 0
            {
                *place = Some(touches as f64 / window.accesses as f64);
            }
        }
        let mut found = Self { all: Vec::new(), of_sample: vec![usize::MAX; profile.samples.len()] };
        let here = |index: usize| {
            let period = profile.samples.get(index).map_or(0, |sample| sample.period_ns);
            rates.at(index).value * period as f64
        };
        for (pid, mut samples) in of_process {
            samples.sort_unstable();
            let takes_turns = of_one_thread(profile, &samples) && rates.unit() == Unit::Accesses;
            let regions = code.filter(|_| takes_turns).map_or_else(
                || Regions::one(samples.len()),
                |code| {
                    let weighed: Vec<(usize, f64)> =
                        samples.iter().map(|(_, index)| (*index, here(*index))).collect();
                    Regions::of(code, &weighed, FEWEST)
                },
            );
            let mut of_region: BTreeMap<usize, Vec<(u64, usize)>> = BTreeMap::new();
            for (sample, region) in samples.iter().zip(&regions.of) {
                of_region.entry(*region).or_default().push(*sample);
            }
            let everything = samples.len();
            for (region, samples) in of_region {
                let stays = regions.stays.get(region).copied().unwrap_or((f64::INFINITY, f64::INFINITY));
                let most = (most * samples.len()).div_ceil(everything);
                let n = (samples.len() / FEWEST).clamp(1, most.max(1));
                let mut from_ns = None;
                for piece in 0..n {
                    let cut = |piece: usize| piece * samples.len() / n;
                    let members = samples.get(cut(piece)..cut(piece + 1)).unwrap_or_default();
                    let (mut accesses, mut touches, mut counted) = (0.0, 0.0, 0.0);
                    for &(_, index) in members {
                        let here = here(index);
                        accesses += here;
                        if let Some(Some(per_access)) = per_access.get(index) {
                            touches += here * per_access;
                            counted += here;
                        }
                        if let Some(place) = found.of_sample.get_mut(index) {
                            *place = found.all.len();
                        }
                    }
                    let (Some(first), Some(last)) = (members.first(), members.last()) else { continue };
                    // One thread's accesses are a part of its process's around them.
                    if matches!(part, RunPart::Thread(_)) {
                        accesses = rates.accesses(first.1, from_ns.unwrap_or(0), last.0).max(accesses);
                    }
                    from_ns = Some(last.0);
                    let middle = members.get(members.len() / 2).unwrap_or(first);
                    found.all.push(Stretch {
                        pid,
                        accesses,
                        touches_per_access: if counted > 0.0 { touches / counted } else { 0.0 },
                        left: rates.left(middle.1, middle.0),
                        ended: rates.ended(middle.1),
                        region,
                        stays,
                        span_ns: (first.0, last.0),
                    });
                }
            }
        }
        found
    }

    /// For [`crate::estimator::Study::new`]: how far each stretch can be followed, because the
    /// process was over then.
    pub fn ends(&self) -> Vec<Option<f64>> {
        self.all.iter().map(|stretch| stretch.ended.then_some(stretch.left)).collect()
    }

    /// The same for weight reused within the trace.
    pub fn trace_ends(&self) -> Vec<Option<f64>> {
        self.all.iter().map(|stretch| Some(stretch.left)).collect()
    }

    /// Stack distances, from the weight by time distance of each stretch.
    pub fn stack_distances(&self, masses: &[WeightedHistogram]) -> Distances {
        let stack = |(phases, around): &(Vec<Phase>, Vec<Around>)| {
            phases::stack_distances(phases, around, Reach::All)
        };
        let parts: Vec<Distances> = self.phases(masses).iter().map(stack).collect();
        match parts.as_slice() {
            [only] => only.clone(),
            _ => Distances::union(&parts.iter().collect::<Vec<_>>()),
        }
    }

    /// For each stretch the time distances, as bins of the fine scale, from which on so many
    /// granules lie between use and reuse ([`phases::fill_times`]).
    pub fn fill_times(&self, masses: &[WeightedHistogram], granules: f64) -> Vec<Vec<usize>> {
        let of_region = |(phases, around): (Vec<Phase>, Vec<Around>)| {
            phases::fill_times(&phases, &around, granules).into_iter().rev()
        };
        self.phases(masses).into_iter().flat_map(of_region).collect()
    }

    /// The stretches of each process and region as phases, the last first, each with its
    /// surroundings; without surroundings for a single region.
    fn phases(&self, masses: &[WeightedHistogram]) -> Vec<(Vec<Phase>, Vec<Around>)> {
        let mut whole = WeightedHistogram::default();
        masses.iter().for_each(|mass| whole.add(mass));
        let all = self.all.iter().zip(masses).map(|(stretch, mass)| {
            let seen = if mass.total() > 0.0 { mass } else { &whole };
            let touches = if stretch.touches_per_access > 0.0 {
                stretch.touches_per_access * stretch.accesses
            } else {
                mass.total()
            };
            Part { stretch, seen, factor: touches / seen.total() }
        });
        let all: Vec<Part<'_>> = all.collect();
        let mut parts = Vec::new();
        for process in all.chunk_by(|a, b| a.stretch.pid == b.stretch.pid) {
            for of_region in process.chunk_by(|a, b| a.stretch.region == b.stretch.region) {
                let phases = of_region.iter().rev().map(Part::phase).collect();
                let shared = of_region.iter().filter(|part| part.stretch.stays.1.is_finite());
                let around = shared.rev().map(|part| around(part.stretch, process)).collect();
                parts.push((phases, around));
            }
        }
        parts
    }
}

/// A stretch and its weight by time distance, which counts `factor` times.
struct Part<'a> {
    stretch: &'a Stretch,
    seen: &'a WeightedHistogram,
    factor: f64,
}

impl Part<'_> {
    fn phase(&self) -> Phase {
        Phase { time: distances(self.seen, self.factor), accesses: self.stretch.accesses }
    }
}

/// The surroundings of a stretch: each phase's part within its time.
fn around(stretch: &Stretch, process: &[Part<'_>]) -> Around {
    let (from, to) = stretch.span_ns;
    let (mut mass, mut accesses) = (WeightedHistogram::default(), 0.0);
    for other in process {
        let (first, last) = other.stretch.span_ns;
        let both = last.min(to).saturating_sub(first.max(from)) as f64;
        let part = match last.saturating_sub(first) {
            0 => f64::from(u8::from(from <= first && first <= to)),
            whole => both / whole as f64,
        };
        let factor = part * other.factor;
        if part > 0.0 && factor.is_finite() {
            mass.add_part(other.seen, factor);
            accesses += part * other.stretch.accesses;
        }
    }
    let run = process.iter().map(|part| part.stretch.accesses).sum();
    Around::of(&Phase { time: distances(&mass, 1.0), accesses }, stretch.stays, run)
}

fn of_one_thread(profile: &Profile, samples: &[(u64, usize)]) -> bool {
    let threads = samples.iter().filter_map(|(_, index)| Some(profile.samples.get(*index)?.thread));
    threads.clone().min() == threads.max()
}

/// Weights as a histogram, scaled.
pub fn distances(mass: &WeightedHistogram, factor: f64) -> Distances {
    let factor = if factor.is_finite() { factor } else { 0.0 };
    let bar = |(bin, weight): (usize, &f64)| Bar {
        low: scale::low(bin),
        high: scale::low(bin + 1),
        weight: weight * factor,
    };
    let bars = mass.reused.iter().enumerate().filter(|(_, weight)| **weight > 0.0).map(bar).collect();
    // Bins of the scale do not overlap, and weights are finite sums of positive ones.
    Distances::new(bars, mass.beyond * factor).unwrap_or_default()
}
