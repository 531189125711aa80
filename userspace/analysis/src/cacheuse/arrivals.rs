//! Which accesses load their line: those that come after more of other data than the cache holds.
//!
//! A window tells it where it shows the touch before. Of a first touch it shows that the line was not touched in the i accesses
//! before. That it was not touched in the T accesses either that fill the cache is known from reuses, read backwards: those that arrive at the same place of the code
//! say how long lines were left alone before it. With A(d), the weight of reuses that arrive at a place after more than d
//! accesses, F, that of those that span the T accesses of their own stretch of the run, and N, that of its touches of lines
//! never touched before,
//!
//! P(loads | not touched for i) = (F + N) / (A(i) + N) where i < T, else 1.
//!
//! Loads of lines and far reuses of their words are held against each other (`Gaps::words`), so both are far by the T of their
//! stretch: in a program that uses just what a cache holds it is a million accesses in one and no number at all in the next.
//!
//! N is what the place has more of first touches than its arrivals explain; all places together have as much as is never
//! reused, because each line that is left for good was met for the first time, in a long run as many here as there.
//!
//! Sources of error: places with few arrivals take over the ratio of all ([`PRIOR`] arrivals' worth); in a phase of its own a place
//! has the ratio of the whole run. A word that is reused late was not evicted if others of its line were used again and
//! again meanwhile: words used of a line are too many then, and its loss too low.

use std::collections::BTreeMap;

use crate::convert::scale;

/// Reuses' worth of the common ratio in that of a place.
const PRIOR: f64 = 2.0;
/// Bins of the fine scale in one of arrivals that are moved.
const COARSE: usize = 8;

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

    /// With samples counted that often; `fill` tells after how many accesses a sample's stretch has filled the cache.
    pub fn drawn(&self, times: impl Fn(u32) -> f64, fill: impl Fn(u32) -> u64) -> Drawn {
        let weighed = |Arrival { distance, sample, weight }: &Arrival| {
            let weight = weight * times(*sample);
            let far = if *distance >= fill(*sample) { weight } else { 0.0 };
            Weighed { distance: *distance, weight, far }
        };
        Drawn::of(self.0.iter().map(weighed).collect())
    }
}

/// An arrival of a draw.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Weighed {
    distance: u64,
    weight: f64,
    /// Weight that spans an eviction of its line.
    far: f64,
}

/// Arrivals at one place, with weights.
#[derive(Debug, Clone)]
pub(super) struct Drawn {
    /// By distance.
    arrivals: Vec<Weighed>,
    /// Weight from each arrival on.
    from: Vec<f64>,
    /// Weight of those that span an eviction of their line.
    far: f64,
}

impl Drawn {
    fn of(arrivals: Vec<Weighed>) -> Self {
        let mut from = vec![0.0; arrivals.len() + 1];
        for (at, arrival) in arrivals.iter().enumerate().rev() {
            from[at] = from[at + 1] + arrival.weight;
        }
        let far = arrivals.iter().map(|arrival| arrival.far).sum();
        Self { arrivals, from, far }
    }

    /// Weight of those after more than so many accesses.
    pub fn beyond(&self, distance: u64) -> f64 {
        let at = self.arrivals.partition_point(|arrival| arrival.distance <= distance);
        self.from.get(at).copied().unwrap_or(0.0)
    }

    /// What windows should have shown of them as first touches.
    fn expected(&self, reach: &Reach) -> f64 {
        self.arrivals.iter().map(|arrival| arrival.weight * reach.share(arrival.distance)).sum()
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

/// Gives arrivals to the place that touches the line first. A reuse of a line is seen at those of its words that are watched; if others
/// of them are touched just before, it arrives at the wrong line of code. Windows see all words: where they show fewer first touches than
/// arrivals explain, what is missing goes to those places of the same function (`groups`) where they show more.
pub(super) fn rearrange(places: &mut [Drawn], shown: &[f64], groups: &[usize], reach: &Reach) {
    let expected: Vec<f64> = places.iter().map(|place| place.expected(reach)).collect();
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    groups.iter().enumerate().for_each(|(place, group)| members.entry(*group).or_default().push(place));
    for members in members.into_values().filter(|members| members.len() > 1) {
        let of = |place: usize| shown[place] - expected[place];
        let (more, fewer): (Vec<usize>, Vec<usize>) = members.into_iter().partition(|place| of(*place) > 0.0);
        let sum = |places: &[usize]| places.iter().map(|place| of(*place).abs()).sum::<f64>();
        let (given, taken) = (sum(&fewer), sum(&more));
        let moved = given.min(taken);
        if moved <= 0.0 {
            continue;
        }
        // By bin: weight, its sum with distances, and what of it is far.
        let mut pool: BTreeMap<usize, (f64, f64, f64)> = BTreeMap::new();
        for place in fewer {
            let part = (moved / given) * (-of(place) / expected[place]).max(0.0);
            for Weighed { distance, weight, far } in &mut places[place].arrivals {
                let leaves = (part * reach.share(*distance)).min(1.0);
                let sums = pool.entry(scale::index(*distance) / COARSE).or_default();
                sums.0 += leaves * *weight;
                sums.1 += leaves * *weight * *distance as f64;
                sums.2 += leaves * *far;
                *weight *= 1.0 - leaves;
                *far *= 1.0 - leaves;
            }
            places[place] = Drawn::of(std::mem::take(&mut places[place].arrivals));
        }
        for place in more {
            let part = of(place) / taken;
            let arrives = |(weight, distances, far): &(f64, f64, f64)| Weighed {
                distance: (distances / weight).round() as u64,
                weight: weight * part,
                far: far * part,
            };
            let mut arrivals = std::mem::take(&mut places[place].arrivals);
            arrivals.extend(pool.values().filter(|sums| sums.0 > 0.0).map(arrives));
            arrivals.sort_by(|a, b| a.distance.cmp(&b.distance).then(a.weight.total_cmp(&b.weight)));
            places[place] = Drawn::of(arrivals);
        }
    }
}

/// Weight of first touches of new data by place: what windows showed and arrivals do not explain, in all at most what is `never`
/// reused.
pub(super) fn new_data(places: &[Drawn], shown: &[f64], reach: &Reach, never: f64) -> Vec<f64> {
    let excess = |(place, shown): (&Drawn, &f64)| (shown - place.expected(reach)).max(0.0);
    let mut new: Vec<f64> = places.iter().zip(shown).map(excess).collect();
    let sum: f64 = new.iter().sum();
    let factor = if sum > never { never / sum } else { 1.0 };
    new.iter_mut().for_each(|new| *new *= factor);
    new
}

/// How long lines are left alone, by place.
#[derive(Debug, Clone)]
pub(super) struct Gaps {
    places: Vec<Drawn>,
    /// Weight that ends at no distance, by place.
    endless: Vec<f64>,
    all: Drawn,
    all_endless: f64,
    prior: f64,
}

impl Gaps {
    pub fn new(places: Vec<Drawn>, endless: Vec<f64>, all: Drawn) -> Self {
        let mean = all.beyond(0) / all.arrivals.len().max(1) as f64;
        let all_endless = endless.iter().sum();
        Self { places, endless, all, all_endless, prior: PRIOR * mean }
    }

    /// Chance that a gap at a place which is longer than so many accesses spans an eviction: `fill` accesses at least in its stretch.
    pub fn lasts(&self, place: usize, already: u64, fill: u64) -> f64 {
        if already >= fill {
            return 1.0;
        }
        let (Some(own), Some(endless)) = (self.places.get(place), self.endless.get(place)) else {
            return 0.0;
        };
        let ratio = |beyond: f64, before: f64| if before > 0.0 { (beyond / before).min(1.0) } else { 1.0 };
        let common = ratio(self.all.far + self.all_endless, self.all.beyond(already) + self.all_endless);
        let (far, before) = (own.far + endless, own.beyond(already) + endless);
        ratio(far + self.prior * common, before + self.prior)
    }

    /// Weight with which what is common to all places counts in each.
    pub fn prior(&self) -> f64 {
        self.prior
    }

    /// Words used by place, of so many lines loaded in all: a word that is reused across an eviction of its line is used once for
    /// each time that the line is loaded. `never` is the weight of words that are not reused, which is where new lines are.
    pub fn words(&self, words: &[Drawn], loads: f64, never: f64) -> Vec<f64> {
        let per_new = if self.all_endless > 0.0 { never / self.all_endless } else { 0.0 };
        // Loads are counted in windows. Far reuses of words and of lines are seen by the same watches, whose chance cancels.
        let followed = self.all.far + self.all_endless;
        let factor = if followed > 0.0 { loads / followed } else { 1.0 };
        let far = |(words, endless): (&Drawn, &f64)| (words.far + endless * per_new) * factor;
        words.iter().zip(&self.endless).map(far).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(of: &[(u64, u32, f64)]) -> Arrivals {
        let mut arrivals = Arrivals::default();
        of.iter().for_each(|(distance, sample, weight)| {
            arrivals.push(Arrival { distance: *distance, sample: *sample, weight: *weight })
        });
        arrivals.sort();
        arrivals
    }

    #[test]
    fn an_arrival_is_far_by_its_own_stretch() {
        let arrivals = arrivals(&[(1000, 0, 1.0), (1000, 1, 2.0), (10, 0, 4.0)]);
        // The second sample's stretch never fills the cache.
        let drawn = arrivals.drawn(|_| 2.0, |sample| if sample == 0 { 1000 } else { u64::MAX });
        assert_eq!((drawn.far, drawn.beyond(10), drawn.beyond(0)), (2.0, 6.0, 14.0));
        let gaps = Gaps::new(vec![drawn.clone()], vec![0.0], drawn);
        assert!(gaps.lasts(0, 10, 1000) < gaps.lasts(0, 10, 5));
    }

    #[test]
    fn arrivals_go_to_the_place_that_windows_show() {
        let every = Reach::of(&[(400, 1.0)]);
        let far = |arrivals: Arrivals| arrivals.drawn(|_| 1.0, |_| 5000);
        let kept = arrivals(&[(10_000, 0, 6.0)]);
        let mut places =
            vec![far(arrivals(&[(10_000, 0, 6.0), (2, 0, 9.0)])), far(arrivals(&[(2, 0, 50.0)])), far(kept)];
        // The first place showed two of its six, the second four of none, the third, of another function, ten of six.
        rearrange(&mut places, &[2.0, 4.0, 10.0], &[0, 0, 1], &every);
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        for (place, expected) in places.iter().zip([2.0, 4.0, 6.0]) {
            near(place.far, expected);
            near(place.expected(&every), expected);
            near(place.beyond(9000), expected);
        }
        near(places[0].beyond(0), 11.0);
        near(places[1].beyond(0), 54.0);
    }
}
