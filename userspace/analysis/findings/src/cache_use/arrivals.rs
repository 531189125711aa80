//! Accesses that load a line, after accesses to more data than the cache has room for.
//!
//! A window decides if the touch before lies inside. For a first touch, the i accesses before have
//! no touch. Whether the line was idle for the T accesses that fill the cache follows from reuses,
//! read backwards: reuses arriving at one place of the code show how long lines are idle before
//! the place. Let A(i) be the weight of reuses that arrive at a place after more than i accesses,
//! in a stretch of the run with T above i. Let F(i) be the part of A(i) that spans the T accesses
//! of the stretch, and N the weight of the place's touches of lines never touched before.
//!
//! Places are separated by the kind of memory too (heap, stack, mapped, …). If two
//! places touch a line in turn, reuses arrive at the second as well. If the second
//! place touches different lines first, arrivals would be taken for lines of both.
//!
//! P(loads | not touched for i) = (F(i) + N) / (A(i) + N) if i < T; otherwise 1.
//!
//! Loads of lines are compared with far reuses of words ([`Gaps::words`]):
//! the T of the stretch decides for both. If a program just fits a cache,
//! T is a million accesses in a stretch and infinite in the next.
//!
//! N is the place's first touches beyond those explained by arrivals.
//! N over all places equals the weight never reused: in a long run as
//! many lines are met for the first time as are left for good.
//!
//! Sources of error: places with few arrivals take over the common ratio (as much as
//! [`PRIOR`] arrivals); a place with a separate phase has the ratio of the whole run.
//! A word reused late was not evicted if neighbours in the line were used again and
//! again meanwhile: the used words are then too many, and the line's loss too low.

use std::collections::BTreeMap;

use locality_mrc::scale;

use super::line_lifetimes;

/// Weight, in reuses, of the common ratio in a place's ratio.
const PRIOR: f64 = 2.0;

/// A reuse arriving at a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrival {
    /// Accesses since the touch before.
    pub distance: u64,
    /// Sample of the use, the unit of draws.
    pub sample: u32,
    /// Touches of lines represented by the reuse.
    pub weight: f64,
}

/// Arrivals at a place, by distance.
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

    /// With samples counted `times`; `fill` tells after how
    /// many accesses a sample's stretch has filled the cache.
    pub fn drawn(&self, times: impl Fn(u32) -> f64, fill: impl Fn(u32) -> u64) -> Drawn {
        let weighed = |Arrival { distance, sample, weight }: &Arrival| {
            let (fill, weight) = (fill(*sample), weight * times(*sample));
            let far = if *distance >= fill { weight } else { 0.0 };
            Weighed { distance: *distance, open: fill.min(*distance), weight, far }
        };
        Drawn::of(self.0.iter().map(weighed).collect())
    }

    /// Weight of reuses that span an eviction of the line, as [`Self::drawn`].
    pub fn far(&self, times: impl Fn(u32) -> f64, fill: impl Fn(u32) -> u64) -> f64 {
        let far = self.0.iter().filter(|arrival| arrival.distance >= fill(arrival.sample));
        far.map(|arrival| arrival.weight * times(arrival.sample)).sum()
    }
}

/// An arrival of a draw.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Weighed {
    distance: u64,
    /// Accesses with the eviction of the line undecided:
    /// until the next touch, or for the stretch's fill time.
    open: u64,
    weight: f64,
    /// Weight spanning an eviction of the line.
    far: f64,
}

/// Arrivals at a place, with weights.
#[derive(Debug, Clone)]
pub(super) struct Drawn {
    /// By accesses open.
    arrivals: Vec<Weighed>,
    /// Weight from each arrival on, and the far part.
    from: Vec<[f64; 2]>,
}

impl Drawn {
    fn of(mut arrivals: Vec<Weighed>) -> Self {
        arrivals.sort_by(|a, b| a.open.cmp(&b.open).then(a.weight.total_cmp(&b.weight)));
        let mut from = vec![[0.0; 2]; arrivals.len() + 1];
        for (at, Weighed { weight, far, .. }) in arrivals.iter().enumerate().rev() {
            from[at] = [from[at + 1][0] + weight, from[at + 1][1] + far];
        }
        Self { arrivals, from }
    }

    /// Weight of reuses undecided for more than `already` accesses, and the far part.
    fn beyond(&self, already: u64) -> [f64; 2] {
        let at = self.arrivals.partition_point(|arrival| arrival.open <= already);
        self.from.get(at).copied().unwrap_or_default()
    }

    /// First touches expected in windows.
    fn expected(&self, reach: &Reach) -> f64 {
        self.arrivals.iter().map(|arrival| arrival.weight * reach.share(arrival.distance)).sum()
    }
}

/// How far back windows show the places of drawn first touches.
#[derive(Debug, Clone, Default)]
pub(super) struct Reach {
    /// Share of the places with less than a bin's distance before.
    shares: Vec<f64>,
}

impl Reach {
    /// Of windows by length in accesses and weight; first
    /// touches are drawn in the second quarter of each.
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

/// Gives arrivals to the place with the line's first touch. A reuse of a line is observed
/// at watched words. If unwatched words are touched just before, the reuse arrives at the
/// wrong line of code. Windows see every word. If windows show fewer first touches than
/// arrivals explain, the rest goes to places of the function (`groups`) with more. In
/// total, as much stays unexplained as is `never` reused, for [`new_data`].
pub(super) fn rearrange(places: &mut [Drawn], shown: &[f64], groups: &[usize], reach: &Reach, never: f64) {
    let expected: Vec<f64> = places.iter().map(|place| place.expected(reach)).collect();
    // By function, missing and surplus first touches.
    let mut sums: BTreeMap<usize, [f64; 2]> = BTreeMap::new();
    for ((shown, expected), group) in shown.iter().zip(&expected).zip(groups) {
        let [missing, more] = sums.entry(*group).or_default();
        *missing += (expected - shown).max(0.0);
        *more += (shown - expected).max(0.0);
    }
    let moved = |[missing, more]: [f64; 2]| missing.min(more);
    let (all, unexplained) =
        sums.values().fold((0.0, 0.0), |sum, group| (sum.0 + moved(*group), sum.1 + group[1]));
    if all <= 0.0 {
        return;
    }
    let part = ((unexplained - never) / all).clamp(0.0, 1.0);
    let mut pools: BTreeMap<usize, BTreeMap<usize, Pool>> = BTreeMap::new();
    for (((place, shown), expected), group) in places.iter_mut().zip(shown).zip(&expected).zip(groups) {
        let (missing, sums) = (expected - shown, sums[group]);
        let leaves = part * moved(sums) / sums[0] * missing / expected;
        if missing <= 0.0 || leaves.is_nan() || leaves <= 0.0 {
            continue;
        }
        let pool = pools.entry(*group).or_default();
        for arrival in &mut place.arrivals {
            // Sooner arrivals follow a touch in the window, hence are no first touches.
            if reach.share(arrival.distance) > 0.0 {
                pool.entry(line_lifetimes::bin(arrival.distance)).or_default().add(arrival, leaves);
                arrival.weight *= 1.0 - leaves;
                arrival.far *= 1.0 - leaves;
            }
        }
        *place = Drawn::of(std::mem::take(&mut place.arrivals));
    }
    for (((place, shown), expected), group) in places.iter_mut().zip(shown).zip(&expected).zip(groups) {
        let Some(pool) = pools.get(group).filter(|_| shown > expected) else { continue };
        let share = (shown - expected) / sums[group][1];
        let mut arrivals = std::mem::take(&mut place.arrivals);
        arrivals.extend(pool.values().filter(|pool| pool.weight > 0.0).map(|pool| pool.arrival(share)));
        *place = Drawn::of(arrivals);
    }
}

/// Arrivals of similar distance, moved between places.
#[derive(Debug, Clone, Copy, Default)]
struct Pool {
    weight: f64,
    far: f64,
    /// Sums with the weight.
    distance: f64,
    open: f64,
}

impl Pool {
    fn add(&mut self, arrival: &Weighed, part: f64) {
        let weight = arrival.weight * part;
        self.weight += weight;
        self.far += arrival.far * part;
        self.distance += weight * arrival.distance as f64;
        self.open += weight * arrival.open as f64;
    }

    /// A share of the pool as one arrival.
    fn arrival(&self, share: f64) -> Weighed {
        let mean = |sum: f64| (sum / self.weight).round() as u64;
        let (distance, open) = (mean(self.distance), mean(self.open));
        Weighed { distance, open, weight: self.weight * share, far: self.far * share }
    }
}

/// Weight of first touches of new data by place: touches shown by
/// windows and unexplained by arrivals, in total at most `never`.
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
pub(super) struct Gaps<'a> {
    places: Vec<Drawn>,
    /// Weight without an end, by place.
    endless: Vec<f64>,
    all: &'a Drawn,
    all_endless: f64,
    prior: f64,
}

impl<'a> Gaps<'a> {
    pub fn new(places: Vec<Drawn>, endless: Vec<f64>, all: &'a Drawn) -> Self {
        let mean = all.from[0][0] / all.arrivals.len().max(1) as f64;
        let all_endless = endless.iter().sum();
        Self { places, endless, all, all_endless, prior: PRIOR * mean }
    }

    /// Chance of a gap at a place, longer than `already` accesses,
    /// to span an eviction: at least `fill` accesses in the stretch.
    pub fn lasts(&self, place: usize, already: u64, fill: u64) -> f64 {
        if already >= fill {
            return 1.0;
        }
        let (Some(own), Some(endless)) = (self.places.get(place), self.endless.get(place)) else {
            return 0.0;
        };
        let ratio = |far: f64, open: f64| if open > 0.0 { far / open } else { 1.0 };
        let [open, far] = self.all.beyond(already).map(|weight| weight + self.all_endless);
        let common = ratio(far, open);
        let [open, far] = own.beyond(already).map(|weight| weight + endless);
        ratio(far + self.prior * common, open + self.prior)
    }

    /// Weight of the common ratio in each place.
    pub fn prior(&self) -> f64 {
        self.prior
    }

    /// Words used by place, for a total number of loaded lines. A word
    /// reused across an eviction of the line (`far`) is used once for
    /// each load of the line. A new line has `per_new` used words.
    pub fn words(&self, far: &[f64], loads: f64, per_new: f64) -> Vec<f64> {
        // Loads are counted in windows. Far reuses of words and of lines
        // are seen by shared watches: the watches' chance cancels.
        let followed = self.all.from[0][1] + self.all_endless;
        let factor = if followed > 0.0 { loads / followed } else { 1.0 };
        far.iter().zip(&self.endless).map(|(far, endless)| (far + endless * per_new) * factor).collect()
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

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }

    #[test]
    fn an_arrival_is_far_by_its_own_stretch() {
        // 600 accesses fill the cache in the first stretch, 6,000 in the second, and it is never
        // full in the third.
        let fill = |sample: u32| [600, 6_000, u64::MAX][sample as usize];
        let of = arrivals(&[(1_000, 0, 45.0), (3_000, 1, 5.0), (7_000, 1, 15.0), (7_000, 2, 20.0)]);
        let drawn = of.drawn(|_| 2.0, fill);
        near(of.far(|_| 2.0, fill), 120.0);
        let gaps = Gaps::new(vec![drawn.clone()], vec![0.0], &drawn);
        // A first touch that was left alone for 2,000 accesses is one of the last three, for 4,000
        // one of the last two.
        for (already, expected) in
            [(0, 120.0 / 170.0), (2_000, 30.0 / 80.0), (4_000, 30.0 / 70.0), (6_000, 0.0)]
        {
            near(gaps.lasts(0, already, u64::MAX), expected);
        }
        near(gaps.lasts(0, 2_000, 600), 1.0);
    }

    #[test]
    fn arrivals_go_to_the_place_that_windows_show() {
        // About half of the windows reach back for 150 accesses.
        let reach = Reach::of(&[(400, 1.0)]);
        let whole = 4.0 * reach.share(150) + 4.0;
        assert!(5.0 < whole && whole < 7.0);
        let places = |never| {
            let drawn = |of: &[(u64, u32, f64)]| arrivals(of).drawn(|_| 1.0, |_| 5_000);
            let mut places = vec![
                drawn(&[(150, 0, 4.0), (10_000, 0, 4.0), (2, 0, 9.0)]),
                drawn(&[(2, 0, 50.0)]),
                drawn(&[(10_000, 0, 6.0)]),
            ];
            // The first place showed three too few, the second four for none, the third, of another
            // function, ten for six.
            rearrange(&mut places, &[whole - 3.0, 4.0, 10.0], &[0, 0, 1], &reach, never);
            places
        };
        let told = |places: &[Drawn], of: fn(&Drawn, &Reach) -> f64, expected: [f64; 3]| {
            places.iter().zip(expected).for_each(|(place, expected)| near(of(place, &reach), expected))
        };
        let (moved, part) = (places(0.0), 3.0 / whole);
        told(&moved, Drawn::expected, [whole - 3.0, 3.0, 6.0]);
        told(&moved, |place, _| place.from[0][1], [4.0 - 4.0 * part, 4.0 * part, 6.0]);
        told(&moved, |place, _| place.from[0][0], [17.0 - 8.0 * part, 50.0 + 8.0 * part, 6.0]);
        // Of eight that nothing explains, three would be explained so; where six and a half are
        // new, half of that.
        told(&places(6.5), Drawn::expected, [whole - 1.5, 1.5, 6.0]);
        told(&places(9.0), Drawn::expected, [whole, 0.0, 6.0]);
    }
}
