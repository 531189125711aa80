//! The mean along the phases spanned by a reuse: the default for runs cut into phases.
//!
//! The plain recipe cuts a run into time segments and converts each with the segment's
//! SD(r) = τ · Σ_{j<r} P(T > j): [`Reach::Own`]. A reuse longer than the phase reaches into
//! earlier phases of other code; [`Reach::All`] adds the contribution of each phase. A touch
//! at offset j in the window is new to the window if the touch's time distance exceeds j, so
//! the phase over offsets a to b contributes the phase's τ · Σ_{a≤j<b} P(T > j).
//!
//! Time distances belong to the phase in which the reuse happens, first touches to the phase of the touch.
//!
//! Sources of error: the position of a reuse in the phase is unknown
//! (a few places are tried); alternating work within a phase.

use super::distances::Distances;
use super::mean::parts;
use super::scale::{self, Sums};
use super::survival::Survival;

/// A stretch of a run, of arbitrary length.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Phase {
    /// Time distances of the phase's reuses, in accesses; cold are the phase's first touches.
    pub time: Distances,
    /// Accesses of the phase; τ is touches over accesses.
    pub accesses: f64,
}

/// How far back a reuse looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The whole window counts as the last phase: the plain recipe.
    Own,
    /// Each phase overlapped by the window counts for the overlap.
    All,
}

/// Places of a reuse tried within a phase.
const PLACES: u32 = 4;

/// Stack distances of a run cut into `phases`, in order of time; for
/// one of several kinds of work, with the work around each phase.
pub fn stack_distances(phases: &[Phase], around: &[Around], reach: Reach) -> Distances {
    let mut sums = Sums::default();
    let timeline = Timeline::of(phases);
    for (index, phase) in phases.iter().enumerate() {
        let around = around.get(index);
        let length = around.map_or(phase.accesses, |around| around.stays.0.min(phase.accesses));
        for part in parts(&phase.time) {
            // One place suffices for a window much shorter than the phase.
            let places = if reach == Reach::Own || part.last * 16.0 < length { 1 } else { PLACES };
            let weight = part.weight / f64::from(places);
            for place in 0..places {
                let at = (f64::from(place) + 0.5) / f64::from(places);
                let distance = |window| match reach {
                    Reach::Own => timeline.own(index, window),
                    Reach::All => timeline.all(index, at, window, around),
                };
                sums.spread(distance(part.low), distance(part.last), weight);
            }
        }
    }
    sums.finish(phases.iter().map(|phase| phase.time.cold()).sum())
}

/// For each phase and each place tried, the time distance, as a bin of the fine scale, from
/// which on a reuse has `granules` other granules in between; the shortest, except right
/// after the end of a stay. `usize::MAX` if no window reaches so far. As [`Reach::All`].
pub fn fill_times(phases: &[Phase], around: &[Around], granules: f64) -> Vec<Vec<usize>> {
    let timeline = Timeline::of(phases);
    let all: f64 = phases.iter().map(|phase| phase.accesses).sum();
    let run = around.first().map_or(all, |around| around.run);
    let last = scale::index(run.min(9e18) as u64) + 1;
    let fill = |index: usize, place: u32| {
        let at = (f64::from(place) + 0.5) / f64::from(PLACES);
        let fills =
            |bin: usize| timeline.all(index, at, scale::low(bin) as f64, around.get(index)) >= granules;
        let (mut low, mut high) = (0, last);
        while low < high {
            let middle = low.midpoint(high);
            if fills(middle) { high = middle } else { low = middle + 1 }
        }
        if low < last || fills(last) { low } else { usize::MAX }
    };
    (0..phases.len()).map(|index| (0..PLACES).map(|place| fill(index, place)).collect()).collect()
}

/// The program's work around a phase, for programs that
/// return to the phase's kind of work again and again.
#[derive(Debug, Clone, PartialEq)]
pub struct Around {
    mean: Option<Survival>,
    stays: (f64, f64),
    run: f64,
}

impl Around {
    /// From the mix of every kind of work, in a run of `run` accesses,
    /// with mean stays from `stays.0` to `stays.1` accesses.
    pub fn of(all: &Phase, stays: (f64, f64), run: f64) -> Self {
        let touches_per_access = all.time.touches() / all.accesses;
        let mean = (all.accesses > 0.0).then(|| Survival::of(&all.time, touches_per_access)).flatten();
        Self { mean, stays, run }
    }

    /// Accesses until a share of stays is over: stays are exponential, with a mean
    /// of unknown order of magnitude; the longest stays have the longest mean.
    fn stays_until(&self, share: f64) -> f64 {
        let (low, high) = self.stays;
        -(1.0 - share).ln() * low.powf(1.0 - share) * high.powf(share)
    }
}

struct Timeline {
    /// Position of each phase's first access, the end, and the distribution.
    spans: Vec<(f64, f64, Option<Survival>)>,
}

impl Timeline {
    fn of(phases: &[Phase]) -> Self {
        let mut start = 0.0;
        let span = |phase: &Phase| {
            let from = start;
            start += phase.accesses;
            let survival = (phase.accesses > 0.0)
                .then(|| Survival::of(&phase.time, phase.time.touches() / phase.accesses))
                .flatten();
            (from, start, survival)
        };
        Self { spans: phases.iter().map(span).collect() }
    }

    fn own(&self, index: usize, window: f64) -> f64 {
        match self.spans.get(index) {
            Some((_, _, Some(survival))) => survival.stack_distance(window),
            _ => 0.0,
        }
    }

    /// Distinct granules between a use and the reuse; `at`, from 0 to 1,
    /// is the place of the reuse among the possible places in the phase.
    /// If the run turns to other work in between, stays are exponential.
    fn all(&self, index: usize, at: f64, window: f64, around: Option<&Around>) -> f64 {
        let turns = around.and_then(|around| Some((around.mean.as_ref()?, around.stays_until(at))));
        let granules = match turns.filter(|(_, stays)| *stays < window) {
            None => {
                let (granules, first) = self.stay(index, at, window, 0.0);
                granules + first.map_or(0.0, |survival| survival.itself(window))
            }
            Some((mean, stays)) => {
                let others = window - stays;
                mean.footprint(others) + self.stay(index, at, stays, others).0 + mean.itself(window)
            }
        };
        (granules - 1.0).max(0.0)
    }

    /// Granules first touched in the last `length` accesses of a window, after `before`
    /// further accesses; and the distribution of the first phase in the last `length`.
    fn stay(&self, index: usize, at: f64, length: f64, before: f64) -> (f64, Option<&Survival>) {
        let Some((from, until, _)) = self.spans.get(index) else { return (0.0, None) };
        // A window cannot begin before the run does.
        let earliest = from.max(length).min(*until);
        let end = earliest + at * (until - earliest);
        let start = (end - length).max(0.0);
        let first = self.spans.partition_point(|span| span.1 <= start);
        let spans = self.spans.get(first..=index).unwrap_or_default();
        let part = |(from, until, survival): &(f64, f64, Option<Survival>)| {
            let Some(survival) = survival else { return 0.0 };
            let (a, b) = ((from - start).max(0.0), until.min(end) - start);
            survival.footprint(before + b) - survival.footprint(before + a)
        };
        (spans.iter().map(part).sum(), spans.first().and_then(|span| span.2.as_ref()))
    }
}
