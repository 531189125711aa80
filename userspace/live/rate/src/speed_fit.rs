//! How fast one quantity moved over the readings of a sample.
//!
//! Three ways. The progress of a quantity that never falls is the sum of its advances. A quantity
//! with a known period is unwrapped by the number of periods that makes all intervals agree. Of a
//! quantity without a known period only intervals of different lengths count that agree with one
//! another. Ambiguous cases give nothing: all samples of a place together may have a common speed,
//! or a mean if the speed changes all the time.

use crate::induction::Quantity;
use crate::steps::{difference, relative_error, sums};

/// Agreeing intervals required against aliasing.
const AGREEING: usize = 3;
/// Relative tolerance of agreement.
const AGREEMENT: f64 = 0.06;
/// How much the speed varies from interval to interval, as a relative standard deviation.
const VARIATION: f64 = 0.03;
/// Share of intervals without a fit.
const ASTRAY: f64 = 0.15;
/// Numbers of periods tried for an interval.
const MOST_PERIODS: u32 = 24;
/// Periods up to which an interval is short.
const SHORT_PERIODS: f64 = 1.5;
/// Log likelihood ratio below which a speed is no better than none.
const EVIDENCE: f64 = 5.0;
/// Remembered speeds, if several are possible.
const RIVALS: usize = 4;
/// Times the advance that is expected of an interval that the values of a quantity that turns back must span.
const TURNS_WITHIN: f64 = 2.0;
/// Last intervals, one of which must agree.
const LATE: usize = 2;
/// Shortest interval.
const SHORTEST_NS: f64 = 20_000.0;
/// How much the speed varies from sample to sample of a place: shares, and the relative standard
/// deviation of each. Shared machines keep their speed for most of the time, and change it by a
/// fifth and more now and then: one deviation for all explains neither.
const FROM_SAMPLE_TO_SAMPLE: [(f64, f64); 3] = [(0.4, 0.03), (0.3, 0.08), (0.3, 0.16)];
/// Share of unfit intervals of many samples, from other work.
const MANY_ASTRAY: f64 = 0.2;
/// Distance of speeds that are tried, and of speeds that are rivals, in logarithms.
const FINE: f64 = 0.02;
const APART: f64 = 0.15;
/// Difference of log likelihoods from which one speed of many samples is believed: of 2,000 random
/// sets of remainders one had 8.6.
const DECISIVE: f64 = 10.0;
/// Chance that a random remainder fits a possible speed: intervals with a higher chance are left
/// out, and the chance is taken no lower.
const BY_CHANCE: (f64, f64) = (0.02, 0.5);
/// Intervals from which a mean speed follows.
const FEWEST_OF_MEAN: usize = 12;

/// The quantity at one reading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// Number of the reading within the sample.
    pub at: usize,
    pub time_ns: u64,
    pub switches: u64,
    pub value: u64,
}

/// Speed of a quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Track {
    /// Steps' sum per nanosecond of CPU time, positive.
    pub speed: f64,
    /// Relative standard error.
    pub sigma: f64,
    /// Intervals that agree.
    pub intervals: u32,
}

impl Track {
    /// From steps and the time that they took, interval by interval; `None` without time.
    pub(crate) fn pooled(pieces: &[(f64, f64)]) -> Option<Self> {
        let (steps, ns) = sums(pieces);
        let sigma = if pieces.len() < 2 { 0.05 } else { relative_error(pieces) };
        (ns > 0.0).then(|| Self { speed: steps / ns, sigma, intervals: pieces.len() as u32 })
    }
}

/// What the readings of a quantity say.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Reckoned {
    /// Possible speeds, with log likelihoods; one if without doubt.
    pub tracks: Vec<(Track, f64)>,
    pub forward: u32,
    pub backward: u32,
    /// Stretches between readings.
    pub intervals: Vec<Interval>,
}

/// From one reading to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    /// In the quantity's own direction.
    pub step: i64,
    pub ns: f64,
}

impl Interval {
    /// Advance beyond whole periods, and its time.
    fn rest(&self, period: f64) -> (f64, f64) {
        ((self.step as f64).rem_euclid(period), self.ns)
    }
}

/// `bracket`: bounds of the quantity's speed (see [`Track::speed`]), if known.
pub(crate) fn reckon(
    points: &[Point],
    quantity: &Quantity,
    tick_ns: f64,
    bracket: Option<(f64, f64)>,
) -> Reckoned {
    let slack = quantity.stride.unwrap_or(0) as i64;
    let mut intervals: Vec<Interval> = Vec::new();
    let mut last: Option<&Point> = None;
    for point in points {
        let Some(a) = last else {
            last = Some(point);
            continue;
        };
        let ns = point.time_ns.saturating_sub(a.time_ns) as f64 - tick_ns * (point.at - a.at) as f64;
        if point.switches == a.switches && ns < SHORTEST_NS {
            continue;
        }
        if point.switches == a.switches {
            let step = difference(a.value, point.value, quantity.bits).wrapping_mul(quantity.sign.into());
            // The instruction pointer may stand before or after the step within the block.
            let step = if step < 0 && step >= -slack { 0 } else { step };
            intervals.push(Interval { step, ns });
        }
        last = Some(point);
    }
    let forward = intervals.iter().filter(|interval| interval.step > 0).count() as u32;
    let backward = intervals.iter().filter(|interval| interval.step < 0).count() as u32;
    let tracks = if forward + backward == 0 {
        Vec::new()
    } else if let Some(period) = quantity.period() {
        bracket.map_or_else(Vec::new, |bracket| unwrap(&intervals, period, quantity.step(), bracket))
    } else if backward == 0 && !quantity.turns_back() {
        straight(&intervals, slack as f64).map(|track| (track, 0.0)).into_iter().collect()
    } else {
        // Over what turns back sooner than an interval lasts, some intervals agree by chance, on
        // too low a speed.
        let expected = bracket.map_or(0.0, |(low, high)| (low * high).sqrt());
        let is_short = |interval: &&Interval| TURNS_WITHIN * expected * interval.ns <= quantity.span();
        let short: Vec<Interval> = intervals.iter().filter(is_short).copied().collect();
        agreeing(&short, slack as f64).map(|track| (track, 0.0)).into_iter().collect()
    };
    Reckoned { tracks, forward, backward, intervals }
}

/// Relative error from not knowing where within a step a reading lies.
fn graininess(step: f64, sum: f64) -> f64 {
    0.6 * step / sum.max(1e-9)
}

fn straight(intervals: &[Interval], stride: f64) -> Option<Track> {
    let pieces: Vec<(f64, f64)> =
        intervals.iter().map(|interval| (interval.step as f64, interval.ns)).collect();
    let (sum, ns) = sums(&pieces);
    let sigma = if pieces.len() < 2 { 0.1 } else { relative_error(&pieces) };
    let sigma = sigma.hypot(graininess(stride, sum));
    (sigma < 0.5).then_some(Track { speed: sum / ns, sigma, intervals: pieces.len() as u32 })
}

fn agreeing(intervals: &[Interval], stride: f64) -> Option<Track> {
    let speeds: Vec<&Interval> = intervals.iter().filter(|interval| interval.step > 0).collect();
    let agree = |speed: f64| -> Vec<&Interval> {
        speeds
            .iter()
            .filter(|other| {
                (other.step as f64 - speed * other.ns).abs() <= AGREEMENT * speed * other.ns + 2.0 * stride
            })
            .copied()
            .collect()
    };
    let best = speeds.iter().map(|i| agree(i.step as f64 / i.ns)).max_by_key(Vec::len)?;
    let late = intervals.len().saturating_sub(LATE);
    let is_late = intervals.iter().skip(late).any(|i| best.iter().any(|other| std::ptr::eq(*other, i)));
    if best.len() < AGREEING
        || best.len() * 2 <= intervals.len()
        || !are_of_two_lengths(best.iter().map(|i| i.ns))
        || !is_late
    {
        return None;
    }
    Some(sum_of(best.iter().map(|i| (i.step as f64, i.ns)), stride, 0.0))
}

/// Maximum likelihood of the speed: each interval's remainder is that of speed × time up to a few
/// percent, or, now and then, anything. The best speeds come with their log likelihoods over that
/// of all remainders being anything.
fn unwrap(
    intervals: &[Interval],
    (period, error): (f64, f64),
    stride: f64,
    (low, high): (f64, f64),
) -> Vec<(Track, f64)> {
    let rests: Vec<(f64, f64)> = intervals.iter().map(|interval| interval.rest(period)).collect();
    let fit = Fit { period, stride, error, variations: &[(1.0, VARIATION)], astray: ASTRAY };
    let score = |speed: f64| fit.score(&rests, speed);
    let mut found: Vec<(f64, f64)> = Vec::new();
    for &(rest, ns) in &rests {
        let first = ((low * ns - rest) / period).ceil().max(0.0);
        for n in 0..MOST_PERIODS {
            let speed = (rest + (first + f64::from(n)) * period) / ns;
            if speed > high {
                break;
            }
            if speed >= low && speed > 0.0 {
                found.push((speed, score(speed)));
            }
        }
    }
    found.sort_unstable_by(|a, b| b.1.total_cmp(&a.1));
    let mut best: Vec<(f64, f64)> = Vec::new();
    for (speed, score) in found {
        if best.iter().all(|other| (other.0 / speed).ln().abs() > 3.0 * VARIATION) {
            best.push((speed, score));
        }
        if best.len() == RIVALS {
            break;
        }
    }
    let agrees = |speed: f64, &(rest, ns): &(f64, f64)| {
        let sigma = fit.sigma(VARIATION, speed, ns);
        let advance = fit.advance(speed, (rest, ns));
        (sigma <= period / 4.0 && (advance - speed * ns).abs() <= 2.5 * sigma).then_some((advance, ns))
    };
    let late = rests.len().saturating_sub(LATE);
    let track = |(speed, score): (f64, f64)| {
        let agreeing: Vec<(f64, f64)> = rests.iter().filter_map(|rest| agrees(speed, rest)).collect();
        // Of another phase than the stop, if only older ones agree.
        let is_late = rests.iter().skip(late).any(|rest| agrees(speed, rest).is_some());
        // Intervals of many periods fit many speeds: some must be short.
        let short = agreeing.iter().filter(|(advance, _)| *advance < SHORT_PERIODS * period).count();
        (is_late
            && are_of_two_lengths(agreeing.iter().map(|piece| piece.1))
            && agreeing.len() >= AGREEING
            && short >= 2
            && score >= EVIDENCE)
            .then(|| (sum_of(agreeing.into_iter(), stride, error), score))
    };
    best.into_iter().filter_map(track).collect()
}

/// How remainders of what comes round are explained by a speed.
struct Fit<'a> {
    period: f64,
    stride: f64,
    /// Relative error of the period.
    error: f64,
    /// Shares, and the relative standard deviation of their advance.
    variations: &'a [(f64, f64)],
    /// Share of intervals that may be anything.
    astray: f64,
}

impl Fit<'_> {
    fn sigma(&self, variation: f64, speed: f64, ns: f64) -> f64 {
        (variation + self.error) * speed * ns + self.stride
    }

    /// What the quantity went, whole periods included, if about as much as that speed says.
    fn advance(&self, speed: f64, (rest, ns): (f64, f64)) -> f64 {
        rest + ((speed * ns - rest) / self.period).round().max(0.0) * self.period
    }

    /// Densities of a remainder at the speed: informative, and uniform over a whole period.
    fn densities(&self, (rest, ns): (f64, f64), speed: f64) -> (f64, f64) {
        let off = self.advance(speed, (rest, ns)) - speed * ns;
        let (mut told, mut spread) = (0.0, 0.0);
        for (share, variation) in self.variations {
            let sigma = self.sigma(*variation, speed, ns);
            if sigma > self.period / 4.0 {
                spread += share;
                continue;
            }
            let normal = (-(off / sigma).powi(2) / 2.0).exp() / (sigma * std::f64::consts::TAU.sqrt());
            told += share * normal * self.period;
        }
        (told, spread)
    }

    /// Log likelihood over that of uniform remainders.
    fn score(&self, rests: &[(f64, f64)], speed: f64) -> f64 {
        let one = |rest: &(f64, f64)| {
            let (told, spread) = self.densities(*rest, speed);
            ((1.0 - self.astray) * (told + spread) + self.astray).ln()
        };
        rests.iter().map(one).sum()
    }

    /// Probability that a remainder belongs to this speed, and is informative.
    fn explained(&self, rest: (f64, f64), speed: f64) -> f64 {
        let (told, spread) = self.densities(rest, speed);
        let told = (1.0 - self.astray) * told;
        told / (told + (1.0 - self.astray) * spread + self.astray)
    }
}

/// The one speed within bounds that explains intervals of many samples (their mean), if each sample
/// alone fits several.
pub(crate) fn common_speed(
    intervals: &[Interval],
    (period, error): (f64, f64),
    stride: f64,
    (low, high): (f64, f64),
) -> Option<Common> {
    let rests: Vec<(f64, f64)> = intervals.iter().map(|interval| interval.rest(period)).collect();
    let fit = Fit { period, stride, error, variations: &FROM_SAMPLE_TO_SAMPLE, astray: MANY_ASTRAY };
    let speeds = ((high / low).ln() / FINE).clamp(0.0, 1000.0) as u32;
    let scored: Vec<(f64, f64)> = (0..=speeds)
        .map(|n| low * (f64::from(n) * FINE).exp())
        .map(|speed| (speed, fit.score(&rests, speed)))
        .collect();
    let best = scored.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let is_rival = |other: &&(f64, f64)| (other.0 / best.0).ln().abs() > APART;
    let next = scored.iter().filter(is_rival).map(|other| other.1).fold(0.0, f64::max);
    if best.1 - next < DECISIVE {
        return None;
    }
    // Each as far as it is explained.
    let parts = rests.iter().map(|rest| (fit.explained(*rest, best.0), fit.advance(best.0, *rest), rest.1));
    let (mut sum, mut ns, mut squares) = (0.0, 0.0, 0.0);
    for (share, advance, took) in parts.filter(|part| part.0 > 0.0) {
        sum += share * advance;
        ns += share * took;
        squares += share * took * (advance / (best.0 * took) - 1.0).powi(2);
    }
    let speed = sum / ns;
    Some(Common {
        speed,
        score: best.1,
        scatter: (squares / ns - (speed / best.0 - 1.0).powi(2)).max(0.0).sqrt(),
    })
}

/// What many samples agree on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Common {
    pub speed: f64,
    /// Log likelihood over that of uninformative remainders.
    pub score: f64,
    /// Relative standard deviation of the speed from sample to sample.
    pub scatter: f64,
}

/// The mean speed where it varies too much for [`common_speed`]. Intervals so short that only one
/// number of periods fits within the bounds must be more than chance would give. Intervals in which
/// the loop was left and entered again count as slow ones.
pub(crate) fn mean_speed(intervals: &[Interval], period: f64, (low, high): (f64, f64)) -> Option<Common> {
    let mut pieces: Vec<(f64, f64)> = Vec::new();
    let mut score = 0.0;
    for (rest, ns) in intervals.iter().map(|interval| interval.rest(period)) {
        let (least, most) = BY_CHANCE;
        let chance = ((high - low) * ns / period).max(least);
        if chance > most {
            continue;
        }
        let advance = rest + ((low * ns - rest) / period).ceil().max(0.0) * period;
        let fits = advance <= high * ns;
        score += if fits { ((1.0 - MANY_ASTRAY) / chance + MANY_ASTRAY).ln() } else { MANY_ASTRAY.ln() };
        pieces.extend(fits.then_some((advance, ns)));
    }
    let (sum, ns) = sums(&pieces);
    let (speed, n) = (sum / ns, pieces.len() as f64);
    let squares: f64 = pieces.iter().map(|(advance, ns)| (advance / (speed * ns) - 1.0).powi(2)).sum();
    (pieces.len() >= FEWEST_OF_MEAN && score >= DECISIVE).then(|| Common {
        speed,
        score,
        scatter: (squares / n).sqrt(),
    })
}

/// Equal intervals agree on a wrong number of periods too.
fn are_of_two_lengths(lengths: impl Iterator<Item = f64>) -> bool {
    let (shortest, longest) = lengths.fold((f64::INFINITY, 0.0_f64), |(a, b), ns| (a.min(ns), b.max(ns)));
    longest >= 1.25 * shortest
}

fn sum_of(pieces: impl Iterator<Item = (f64, f64)>, stride: f64, error: f64) -> Track {
    let pieces: Vec<(f64, f64)> = pieces.collect();
    let (sum, ns) = sums(&pieces);
    let sigma = relative_error(&pieces).min(1.0).hypot(graininess(stride, sum)).hypot(error);
    Track { speed: sum / ns, sigma, intervals: pieces.len() as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{Motion, motion};

    /// A pointer through a matrix, whose first step in each row is twice as long because the row's
    /// head has a block of its own, starts anew after each sweep of a million bytes: a range that
    /// readings do not leave is its period.
    #[test]
    fn uneven_steps_come_round_too() {
        let Motion::Moving(steps) = motion(&[(0, 0), (2, 8), (4, 16), (8, 32), (10, 40)], 64) else {
            panic!()
        };
        assert_eq!((steps.stride, steps.largest), (None, 16));
        let mut quantity = Quantity::new(&steps, 64);
        let at = |time_ns: u64| time_ns * 4 % 1_000_000 / 8 * 8;
        for n in 0..300 {
            quantity.note_value(at(n * 77_001));
        }
        assert_eq!(quantity.period(), None);
        quantity.backward = 2;
        let (period, error) = quantity.period().unwrap();
        assert!((period / 1e6 - 1.0).abs() < 2.0 * error && error < 0.02, "{period} {error}");
        let point = |(n, time_ns)| Point { at: n, time_ns, switches: 0, value: at(time_ns) };
        let points: Vec<Point> =
            [0, 300_000, 480_000, 1_100_000, 1_250_000].into_iter().enumerate().map(point).collect();
        let tracks = reckon(&points, &quantity, 0.0, Some((2.0, 8.0))).tracks;
        let best = tracks.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert!((best.0.speed - 4.0).abs() < 0.1, "{tracks:?}");
        // Steps as long as a hundredth of it tell nothing of where it turns.
        quantity.largest = 10_000;
        assert_eq!(quantity.period(), None);
    }

    /// A sweep of 150 us, read twice in each of 60 samples, .2 to 1 ms apart, at speeds that differ
    /// by some percent: each fits several speeds.
    #[test]
    fn samples_agree_on_one_speed() {
        let mut random = fastrand::Rng::with_seed(7);
        let (period, speed) = (3_200_000.0, 3_200_000.0 / 150_000.0);
        let read = |random: &mut fastrand::Rng| {
            let ns = 200_000.0 + 800_000.0 * random.f64();
            let went = speed * (0.95 + 0.1 * random.f64()) * ns;
            let from = random.f64() * period;
            Interval { step: ((from + went) % period - from) as i64, ns }
        };
        let intervals: Vec<Interval> = (0..60).map(|_| read(&mut random)).collect();
        let told = common_speed(&intervals, (period, 0.001), 8.0, (5.0, 80.0)).unwrap();
        assert!((told.speed / speed - 1.0).abs() < 0.03 && told.score > DECISIVE, "{told:?}");
        // Remainders that have nothing to do with time fit no speed.
        for _ in 0..50 {
            let anything = |i: &Interval| Interval { step: (random.f64() * period) as i64, ns: i.ns };
            let chance: Vec<Interval> = intervals.iter().map(anything).collect();
            assert_eq!(common_speed(&chance, (period, 0.001), 8.0, (5.0, 80.0)), None);
        }
    }

    /// A machine that has one speed in three tenths of the readings, and up to a third less in
    /// four, .91 of it in the mean; the others are of other work.
    #[test]
    fn samples_agree_on_the_speed_that_a_machine_has_most_of_the_time() {
        let mut random = fastrand::Rng::with_seed(11);
        let (period, speed) = (3_200_000.0, 3_200_000.0 / 120_000.0);
        let read = |random: &mut fastrand::Rng, n: usize| {
            let ns = 30_000.0 * 30.0_f64.powf(random.f64());
            let off = match n % 10 {
                0..3 => 0.98 + 0.04 * random.f64(),
                3..7 => 0.67 + 0.33 * random.f64(),
                _ => 3.0 * random.f64(),
            };
            let (went, from) = (speed * off * ns, random.f64() * period);
            Interval { step: ((from + went) % period - from) as i64, ns }
        };
        let intervals: Vec<Interval> = (0..160).map(|n| read(&mut random, n)).collect();
        let told = common_speed(&intervals, (period, 0.0), 8.0, (8.0, 66.0)).unwrap();
        assert!((told.speed / (0.91 * speed) - 1.0).abs() < 0.07 && told.score > DECISIVE, "{told:?}");
        assert!((0.04..0.2).contains(&told.scatter), "{told:?}");
    }

    /// Sweeps of 1.1 ms through memory that others use too: each interval has a speed of its own,
    /// and a tenth are of other work.
    #[test]
    fn a_speed_that_varies_has_a_mean() {
        let mut random = fastrand::Rng::with_seed(5);
        let (period, speed) = (7_360_000.0, 7_360_000.0 / 1_100_000.0);
        let mut read = |n: usize| {
            let ns = 30_000.0 * 30.0_f64.powf(random.f64());
            let off = if n.is_multiple_of(10) { 5.0 * random.f64() } else { 0.6 + 0.8 * random.f64() };
            let (went, from) = (speed * off * ns, random.f64() * period);
            Interval { step: ((from + went) % period - from) as i64, ns }
        };
        let intervals: Vec<Interval> = (0..160).map(&mut read).collect();
        let bounds = (2.0, 17.0);
        let told = mean_speed(&intervals, period, bounds).unwrap();
        assert!((told.speed / speed - 1.0).abs() < 0.1 && (0.15..0.45).contains(&told.scatter), "{told:?}");
        // The same loop with other work in between that takes any time tells none, nor do a few intervals.
        for _ in 0..50 {
            let anything = |i: &Interval| Interval { step: (random.f64() * period) as i64, ns: i.ns };
            let chance: Vec<Interval> = intervals.iter().map(anything).collect();
            assert_eq!(mean_speed(&chance, period, bounds), None);
        }
        assert_eq!(mean_speed(&intervals[..12], period, bounds), None);
        assert_eq!(mean_speed(&[], period, bounds), None);
    }

    #[test]
    fn what_turns_back_within_an_interval_is_not_believed() {
        let Motion::Moving(steps) = motion(&[(0, 0), (3, 8), (6, 16), (9, 24), (12, 40)], 64) else {
            panic!()
        };
        let mut quantity = Quantity::new(&steps, 64);
        quantity.wraps_vary = true;
        let points: Vec<Point> =
            [(0, 0), (400_000, 40_000), (560_000, 56_000), (800_000, 80_000), (1_120_000, 112_000)]
                .into_iter()
                .enumerate()
                .map(|(at, (time_ns, value))| Point { at, time_ns, switches: 0, value })
                .collect();
        points.iter().for_each(|point| quantity.note_value(point.value));
        let speed = |bracket| {
            reckon(&points, &quantity, 0.0, Some(bracket)).tracks.first().map(|(track, _)| track.speed)
        };
        assert!(speed((0.07, 0.14)).is_some_and(|speed| (speed - 0.1).abs() < 1e-3));
        // Where the model expects forty times that, the values had turned back between any two readings.
        assert_eq!(speed((2.0, 8.0)), None);
    }
}
