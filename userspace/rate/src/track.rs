//! How fast one quantity moved over the readings of a sample.
//!
//! Three ways: one that never turns back is the sum of its advances; one with a known period is unwrapped by the
//! number of periods that makes all intervals agree; of one that turns back without a known period only those intervals
//! count that agree with one another and are of different lengths. Ambiguous cases give nothing.

use crate::quantity::Quantity;
use crate::sequence::{difference, relative_error};

/// Intervals that must agree where aliasing is possible.
const AGREEING: usize = 3;
/// Relative tolerance of agreement.
const AGREEMENT: f64 = 0.06;
/// Periods within an interval beyond which its remainder says nothing.
const MOST_PERIODS: f64 = 10.0;

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

/// What the readings of a quantity say.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Reckoned {
    pub track: Option<Track>,
    pub forward: u32,
    pub backward: u32,
    /// It was read at both ends of an interval at least once.
    pub was_read: bool,
}

struct Interval {
    step: i64,
    ns: f64,
}

/// `bracket`: bounds of the quantity's speed (see [`Track::speed`]), where something is known.
pub(crate) fn reckon(
    points: &[Point],
    quantity: &Quantity,
    tick_ns: f64,
    bracket: Option<(f64, f64)>,
) -> Reckoned {
    let slack = quantity.stride.unwrap_or(0) as i64;
    let intervals: Vec<Interval> = points
        .windows(2)
        .filter_map(|pair| match pair {
            [a, b] if a.switches == b.switches => {
                let ns = b.time_ns.saturating_sub(a.time_ns) as f64 - tick_ns * (b.at - a.at) as f64;
                let step = difference(a.value, b.value, quantity.bits).wrapping_mul(quantity.sign.into());
                // The instruction pointer may stand before or behind the step within the block.
                let step = if step < 0 && step >= -slack { 0 } else { step };
                (ns > 0.0).then_some(Interval { step, ns })
            }
            _ => None,
        })
        .collect();
    let forward = intervals.iter().filter(|interval| interval.step > 0).count() as u32;
    let backward = intervals.iter().filter(|interval| interval.step < 0).count() as u32;
    let track = if forward == 0 {
        None
    } else if let Some(period) = quantity.wrap.filter(|_| !quantity.wraps_vary) {
        bracket.and_then(|bracket| unwrap(&intervals, period as f64, slack as f64, bracket))
    } else if backward == 0 && !quantity.turns_back() {
        straight(&intervals, slack as f64)
    } else {
        agreeing(&intervals, slack as f64)
    };
    Reckoned { track, forward, backward, was_read: !intervals.is_empty() }
}

/// Relative error from not knowing where within a step a reading lies.
fn graininess(step: f64, sum: f64) -> f64 {
    0.6 * step / sum.max(1e-9)
}

fn straight(intervals: &[Interval], stride: f64) -> Option<Track> {
    let pieces: Vec<(f64, f64)> =
        intervals.iter().map(|interval| (interval.step as f64, interval.ns)).collect();
    let (sum, ns) = pieces.iter().fold((0.0, 0.0), |sum, piece| (sum.0 + piece.0, sum.1 + piece.1));
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
    let shortest = best.iter().map(|i| i.ns).fold(f64::INFINITY, f64::min);
    let longest = best.iter().map(|i| i.ns).fold(0.0, f64::max);
    // Equal intervals would agree on a wrong number of periods too.
    if best.len() < AGREEING || best.len() * 2 <= intervals.len() || longest < 1.25 * shortest {
        return None;
    }
    Some(sum_of(best.iter().map(|i| (i.step as f64, i.ns)), stride))
}

fn unwrap(intervals: &[Interval], period: f64, stride: f64, (low, high): (f64, f64)) -> Option<Track> {
    let useful: Vec<(f64, f64)> = intervals
        .iter()
        .filter(|interval| (high - low) * interval.ns < MOST_PERIODS * period)
        .map(|interval| ((interval.step as f64).rem_euclid(period), interval.ns))
        .collect();
    let mut candidates: Vec<f64> = Vec::new();
    for (rest, ns) in &useful {
        let first = ((low * ns - rest) / period).ceil().max(0.0);
        let mut advance = rest + first * period;
        while advance <= high * ns {
            candidates.push(advance / ns);
            advance += period;
        }
    }
    let agree = |speed: f64| -> Vec<(f64, f64)> {
        useful
            .iter()
            .filter_map(|&(rest, ns)| {
                let tolerance = AGREEMENT * speed * ns + 2.0 * stride;
                let periods = ((speed * ns - rest) / period).round().max(0.0);
                let advance = rest + periods * period;
                (tolerance < period / 4.0 && (advance - speed * ns).abs() <= tolerance)
                    .then_some((advance, ns))
            })
            .collect()
    };
    let scored: Vec<(f64, Vec<(f64, f64)>)> =
        candidates.into_iter().map(|speed| (speed, agree(speed))).filter(|(speed, _)| *speed > 0.0).collect();
    let (speed, best) = scored.iter().max_by_key(|(_, agreeing)| agreeing.len())?;
    let rival = scored
        .iter()
        .filter(|(other, _)| (other / speed).ln().abs() > 2.0 * AGREEMENT)
        .map(|(_, agreeing)| agreeing.len())
        .max()
        .unwrap_or(0);
    if best.len() < AGREEING || best.len() * 2 <= useful.len() || rival * 3 > best.len() * 2 {
        return None;
    }
    Some(sum_of(best.iter().copied(), stride))
}

fn sum_of(pieces: impl Iterator<Item = (f64, f64)>, stride: f64) -> Track {
    let pieces: Vec<(f64, f64)> = pieces.collect();
    let (sum, ns) = pieces.iter().fold((0.0, 0.0), |sum, piece| (sum.0 + piece.0, sum.1 + piece.1));
    let sigma = relative_error(&pieces).min(1.0).hypot(graininess(stride, sum));
    Track { speed: sum / ns, sigma, intervals: pieces.len() as u32 }
}
