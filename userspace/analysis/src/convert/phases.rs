//! The mean along the phases that a reuse spans: the default where a run is cut into phases.
//!
//! METHOD.md §3 cuts a run into time segments and converts each with its own SD(r) = τ · Σ_{j<r} P(T > j). That is
//! [`Reach::Own`]. A reuse that is longer than its phase reaches into earlier ones, where other code ran; [`Reach::All`]
//! adds up what each of them contributed. A touch at offset j in the window is new to it if its own time distance exceeds
//! j, so the phase that covers offsets a to b contributes τ · Σ_{a≤j<b} P(T > j) of that phase.
//!
//! Time distances belong to the phase in which the reuse happens, first touches to the phase of the touch.
//!
//! Sources of error: where in its phase a reuse lies is unknown (a few places are tried); what alternates within a phase.

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
    /// All of its window is taken to be like the phase in which it ends (METHOD.md §3).
    Own,
    /// Each phase that the window overlaps counts for its part.
    All,
}

/// Places within a phase at which a reuse is tried.
const PLACES: u32 = 4;

/// Stack distances of a run cut into `phases`, in order of time.
pub fn stack_distances(phases: &[Phase], reach: Reach) -> Distances {
    let mut sums = Sums::default();
    let timeline = Timeline::of(phases);
    for (index, phase) in phases.iter().enumerate() {
        for part in parts(&phase.time) {
            // A window that begins in the phase at any place need not be tried at several.
            let places = if reach == Reach::Own || part.last * 16.0 < phase.accesses { 1 } else { PLACES };
            let weight = part.weight / f64::from(places);
            for place in 0..places {
                let at = (f64::from(place) + 0.5) / f64::from(places);
                let distance = |window| match reach {
                    Reach::Own => timeline.own(index, window),
                    Reach::All => timeline.all(index, at, window),
                };
                sums.spread(distance(part.low), distance(part.last), weight);
            }
        }
    }
    sums.finish(phases.iter().map(|phase| phase.time.cold()).sum())
}

/// For each phase, as bins of the fine scale, the shortest time distance at which a reuse in it has that many other granules between:
/// one for each place within the phase that is tried; `usize::MAX` where no window reaches so far. As [`Reach::All`].
pub fn fill_times(phases: &[Phase], granules: f64) -> Vec<Vec<usize>> {
    let timeline = Timeline::of(phases);
    let run: f64 = phases.iter().map(|phase| phase.accesses).sum();
    let last = scale::index(run.min(9e18) as u64) + 1;
    let fill = |index: usize, place: u32| {
        let at = (f64::from(place) + 0.5) / f64::from(PLACES);
        let fills = |bin: usize| timeline.all(index, at, scale::low(bin) as f64) >= granules;
        let (mut low, mut high) = (0, last);
        while low < high {
            let middle = low.midpoint(high);
            if fills(middle) { high = middle } else { low = middle + 1 }
        }
        if low < last || fills(last) { low } else { usize::MAX }
    };
    (0..phases.len()).map(|index| (0..PLACES).map(|place| fill(index, place)).collect()).collect()
}

struct Timeline {
    /// Position of each phase's first access, its end, and what is known of it.
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

    /// Distinct granules between a use and its reuse, which lies at `at`, from 0 to 1, among the places that it may have in
    /// its phase.
    fn all(&self, index: usize, at: f64, window: f64) -> f64 {
        let Some((from, until, _)) = self.spans.get(index) else { return 0.0 };
        // A window cannot begin before the run does.
        let earliest = from.max(window).min(*until);
        let end = earliest + at * (until - earliest);
        let start = (end - window).max(0.0);
        let first = self.spans.partition_point(|span| span.1 <= start);
        let spans = self.spans.get(first..=index).unwrap_or_default();
        let part = |(from, until, survival): &(f64, f64, Option<Survival>)| {
            let Some(survival) = survival else { return 0.0 };
            let (a, b) = ((from - start).max(0.0), until.min(end) - start);
            survival.footprint(b) - survival.footprint(a)
        };
        let itself = spans.first().and_then(|span| span.2.as_ref()).map_or(0.0, |s| s.itself(window));
        (spans.iter().map(part).sum::<f64>() - 1.0 + itself).max(0.0)
    }
}
