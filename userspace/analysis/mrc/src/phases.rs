//! The mean along the phases that a reuse spans: the default where a run is cut into phases.
//!
//! The plain recipe cuts a run into time segments and converts each with its own SD(r) = τ · Σ_{j<r}
//! P(T > j). That is [`Reach::Own`]. A reuse that is longer than its phase reaches into earlier
//! ones, where other code ran; [`Reach::All`] adds up what each of them contributed. A touch at
//! offset j in the window is new to it if its own time distance exceeds j, so the phase that covers
//! offsets a to b contributes τ · Σ_{a≤j<b} P(T > j) of that phase.
//!
//! Time distances belong to the phase in which the reuse happens, first touches to the phase of the touch.
//!
//! Sources of error: where in its phase a reuse lies is unknown (a few places are tried); what
//! alternates within a phase.

use super::distances::Distances;
use super::mean::parts;
use super::scale::{self, Sums};
use super::survival::Survival;

/// One stretch of a run, of any length.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Phase {
    /// Time distances of the reuses in it, in accesses; cold are the first touches in it.
    pub time: Distances,
    /// Accesses in it. Touches over accesses is its τ.
    pub accesses: f64,
}

/// How far back a reuse looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The whole window counts as the phase of its end: the plain recipe.
    Own,
    /// Each phase overlapped by the window counts for its part.
    All,
}

/// Places within a phase at which a reuse is tried.
const PLACES: u32 = 4;

/// Stack distances of a run cut into `phases`, in order of time; of one of several kinds of work,
/// with what lies around each of them.
pub fn stack_distances(phases: &[Phase], around: &[Around], reach: Reach) -> Distances {
    let mut sums = Sums::default();
    let timeline = Timeline::of(phases);
    for (index, phase) in phases.iter().enumerate() {
        let around = around.get(index);
        let length = around.map_or(phase.accesses, |around| around.stays.0.min(phase.accesses));
        for part in parts(&phase.time) {
            // A window that begins in the phase at any place need not be tried at several.
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

/// For each phase, as bins of the fine scale, a time distance from which on a reuse in it has that
/// many other granules between, the shortest but where stays are over just before: one for each
/// place within the phase that is tried; `usize::MAX` where no window reaches so far. As
/// [`Reach::All`].
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

/// What a program does around a phase, where it turns to the phase's kind of work again and again.
#[derive(Debug, Clone, PartialEq)]
pub struct Around {
    mean: Option<Survival>,
    stays: (f64, f64),
    run: f64,
}

impl Around {
    /// From all kinds of work in their proportion, of a run with this number of accesses, and mean
    /// stays of `stays` accesses, least and greatest.
    pub fn of(all: &Phase, stays: (f64, f64), run: f64) -> Self {
        let touches_per_access = all.time.touches() / all.accesses;
        let mean = (all.accesses > 0.0).then(|| Survival::of(&all.time, touches_per_access)).flatten();
        Self { mean, stays, run }
    }

    /// Accesses by which this share of stays is over: stays are exponential, their mean of any
    /// order of magnitude, and the longest have the longest mean.
    fn stays_until(&self, share: f64) -> f64 {
        let (low, high) = self.stays;
        -(1.0 - share).ln() * low.powf(1.0 - share) * high.powf(share)
    }
}

struct Timeline {
    /// Position of each phase's first access, its end, and its distribution.
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

    /// Distinct granules between a use and its reuse, which lies at `at`, from 0 to 1, among its
    /// possible places in the phase. If the run turns to other work in between, stays are
    /// exponential.
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

    /// Granules with their first touch in the last `length` accesses of a window, with this many
    /// others `before`; and the distribution of the first phase there.
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
