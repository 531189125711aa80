//! Which accesses load their line: those that come after more of other data than the cache holds.
//!
//! A window tells it where it shows the touch before. Of a first touch it shows that the line was not touched in the i accesses
//! before. That it was not touched in the T accesses either that fill the cache is known from reuses, read backwards: those that arrive at the same place of the code
//! say how long lines were left alone before it. With A(d), the weight of reuses that arrive at a place after more than d
//! accesses, and N, that of its touches of lines never touched before,
//!
//! P(loads | not touched for i) = (A(T) + N) / (A(i) + N) where i < T, else 1.
//!
//! N is what the place has more of first touches than its arrivals explain; all places together have as much as is never
//! reused, because each line that is left for good was met for the first time, in a long run as many here as there.
//!
//! Sources of error: places with few arrivals take over the ratio of all ([`PRIOR`] arrivals' worth); in a phase of its own a place
//! has the ratio of the whole run.

use crate::convert::scale;

/// Reuses' worth of the common ratio in that of a place.
const PRIOR: f64 = 2.0;

/// A reuse that arrives at a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrival {
    /// Accesses since the touch before.
    pub distance: u64,
    /// Sample of the use, by which it is drawn.
    pub sample: u32,
    /// Touches of lines that it stands for.
    pub weight: f64,
}

/// Arrivals at one place, by distance.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrivals(Vec<Arrival>);

impl Arrivals {
    pub fn push(&mut self, arrival: Arrival) {
        if arrival.weight > 0.0 {
            self.0.push(arrival);
        }
    }

    pub fn sort(&mut self) {
        self.0.sort_by(|a, b| {
            (a.distance, a.sample).cmp(&(b.distance, b.sample)).then(a.weight.total_cmp(&b.weight))
        });
    }

    /// With samples counted that often.
    pub fn drawn(&self, times: impl Fn(u32) -> f64) -> Drawn<'_> {
        let mut from = vec![0.0; self.0.len() + 1];
        for (at, arrival) in self.0.iter().enumerate().rev() {
            from[at] = from[at + 1] + arrival.weight * times(arrival.sample);
        }
        Drawn { arrivals: &self.0, from }
    }
}

/// Arrivals at one place, with weights.
#[derive(Debug, Clone)]
pub(super) struct Drawn<'a> {
    arrivals: &'a [Arrival],
    /// Weight from each arrival on.
    from: Vec<f64>,
}

impl Drawn<'_> {
    /// Weight of those after more than so many accesses.
    pub fn beyond(&self, distance: u64) -> f64 {
        let at = self.arrivals.partition_point(|arrival| arrival.distance <= distance);
        self.from.get(at).copied().unwrap_or(0.0)
    }

    /// What windows should have shown of them as first touches.
    fn expected(&self, reach: &Reach) -> f64 {
        let own = self.arrivals.iter().zip(self.from.windows(2));
        own.map(|(arrival, from)| (from[0] - from[1]) * reach.share(arrival.distance)).sum()
    }
}

/// How far back windows show the places of which first touches are drawn.
#[derive(Debug, Clone, Default)]
pub(super) struct Reach {
    /// Share of the places that have less than a bin's distance before them.
    shares: Vec<f64>,
}

impl Reach {
    /// Of windows of so many accesses, weighed; first touches are drawn in the second quarter of each.
    pub fn of(windows: &[(u64, f64)]) -> Self {
        let longest = windows.iter().map(|(accesses, _)| accesses / 2).max().unwrap_or(0);
        let total: f64 = windows.iter().map(|(_, weight)| weight).sum();
        let share = |bin: usize| {
            let distance = scale::low(bin) as f64;
            let below = |(accesses, weight): &(u64, f64)| {
                let quarter = (*accesses as f64 / 4.0).max(1.0);
                weight * ((distance - quarter) / quarter).clamp(0.0, 1.0)
            };
            windows.iter().map(below).sum::<f64>() / total.max(f64::MIN_POSITIVE)
        };
        Self { shares: (0..=scale::index(longest)).map(share).collect() }
    }

    fn share(&self, distance: u64) -> f64 {
        self.shares.get(scale::index(distance)).copied().unwrap_or(1.0)
    }
}

/// Weight of first touches of new data by place: what windows showed and arrivals do not explain, in all at most what is `never`
/// reused.
pub(super) fn new_data(places: &[Drawn<'_>], shown: &[f64], reach: &Reach, never: f64) -> Vec<f64> {
    let excess = |(place, shown): (&Drawn<'_>, &f64)| (shown - place.expected(reach)).max(0.0);
    let mut new: Vec<f64> = places.iter().zip(shown).map(excess).collect();
    let sum: f64 = new.iter().sum();
    let factor = if sum > never { never / sum } else { 1.0 };
    new.iter_mut().for_each(|new| *new *= factor);
    new
}

/// How long lines are left alone, by place.
#[derive(Debug, Clone)]
pub(super) struct Gaps<'a> {
    places: Vec<Drawn<'a>>,
    /// Weight that ends at no distance, by place.
    endless: Vec<f64>,
    all: Drawn<'a>,
    all_endless: f64,
    prior: f64,
}

impl<'a> Gaps<'a> {
    pub fn new(places: Vec<Drawn<'a>>, endless: Vec<f64>, all: Drawn<'a>) -> Self {
        let mean = all.beyond(0) / all.arrivals.len().max(1) as f64;
        let all_endless = endless.iter().sum();
        Self { places, endless, all, all_endless, prior: PRIOR * mean }
    }

    /// Chance that a gap at a place which is longer than so many accesses is as long as `fill` at least.
    pub fn lasts(&self, place: usize, already: u64, fill: u64) -> f64 {
        if already >= fill {
            return 1.0;
        }
        let (Some(own), Some(endless)) = (self.places.get(place), self.endless.get(place)) else {
            return 0.0;
        };
        let ratio = |beyond: f64, before: f64| if before > 0.0 { (beyond / before).min(1.0) } else { 1.0 };
        let (fill, all) = (fill.saturating_sub(1), &self.all);
        let common = ratio(all.beyond(fill) + self.all_endless, all.beyond(already) + self.all_endless);
        let own = |distance| own.beyond(distance) + endless;
        ratio(own(fill) + self.prior * common, own(already) + self.prior)
    }

    /// Words used of a line, by place: far reuses of words for each load of a line, of which `loads` are known; `never` is the
    /// weight of words that are not reused, which is where new lines are.
    pub fn words(&self, words: &[Drawn<'_>], loads: &[f64], never: f64, fill: u64) -> Vec<f64> {
        let fill = fill.saturating_sub(1);
        let per_new = if self.all_endless > 0.0 { never / self.all_endless } else { 0.0 };
        let far = |(words, endless): (&Drawn<'_>, &f64)| words.beyond(fill) + endless * per_new;
        let words: Vec<f64> = words.iter().zip(&self.endless).map(far).collect();
        let common = words.iter().sum::<f64>() / loads.iter().sum::<f64>();
        words
            .iter()
            .zip(loads)
            .map(|(words, loads)| (words + self.prior * common) / (loads + self.prior))
            .collect()
    }
}
