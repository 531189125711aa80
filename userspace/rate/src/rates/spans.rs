//! Accesses between two touches of a watched word: which registers may count them, and what time × rate expects.

use super::{Kept, Rates};
use crate::progress::{self, Advance, Expected};
use crate::sequence::difference;
use crate::types::{Estimate, Moment, Reading, SampleRate, Span};

/// CPU time behind a sample for which its rate holds; further away it is the mean over so many neighbours to each side.
const LOCAL_NS: f64 = 1.5e6;
const AROUND: usize = 8;
/// Readings of a place's samples from which it is known how much time the thread spends there, and how much it may spend elsewhere.
const FEWEST_SEEN: u32 = 20;
const MOST_ELSEWHERE: f64 = 0.1;
/// The same where the sample's own readings, up to the second touch and beyond, all found it there.
const MOST_AROUND: f64 = 0.4;
/// From the stop to the last reading, in parts of the time from the first to the last.
const FROM_STOP: f64 = 1.5;

impl Rates {
    /// Accesses between two touches, where registers count them better than time × rate. `rates`: [`Rates::rates`].
    pub fn between(&self, span: &Span, rates: &[SampleRate]) -> Option<Estimate> {
        let kept = self.samples.get(span.sample)?;
        let (from, to) = (accessing(&span.from), accessing(&span.to));
        if self.blocks.place(from) != Some(kept.region) {
            return None;
        }
        let elsewhere = self.elsewhere(kept, span)?;
        let number = span.sample as u32;
        let at_reuse = self.blocks.at(to);
        let advance = |entry: &(u8, u32)| {
            let (register, index) = *entry;
            let quantity = self.quantities.get(index as usize).filter(|quantity| quantity.is_sound())?;
            let period = quantity.period();
            // What turns back now and then has no rounds.
            let turns_back = quantity.turns_back() || quantity.turns().0 > 0.0;
            if !at_reuse.contains(entry) || (period.is_none() && turns_back) {
                return None;
            }
            let [a, b] =
                [span.from, span.to].map(|moment| moment.registers.get(usize::from(register)).copied());
            let steps = difference(a?, b?, quantity.bits).wrapping_mul(quantity.sign.into()) as f64;
            let slope = quantity.regular_slope().or_else(|| self.slope(number, index, 0.0))?;
            // Two instructions of one visit, or of visits that are rounds apart.
            if steps == 0.0 && from != to {
                return None;
            }
            Some(Advance { steps, period, slope, slack: quantity.largest as f64 / 2.0 })
        };
        let advances: Vec<Advance> = self.blocks.at(from).iter().filter_map(advance).collect();
        let (rate, sigma) = self.around(kept, rates, span)?;
        let expected = Expected {
            accesses: rate * span.cpu_ns,
            sigma,
            clock: rate * span.error_ns,
            more_than: span.without as f64,
        };
        let (accesses, error) = progress::accesses(&advances, expected, elsewhere)?;
        Some(Estimate::within(accesses, 2.0 * error))
    }

    /// Samples around one whose thread it shares, with their numbers.
    fn neighbours(&self, kept: &Kept, number: usize) -> impl Iterator<Item = (usize, &Kept)> {
        let thread = kept.thread;
        let near = number.saturating_sub(AROUND)..self.samples.len().min(number + AROUND + 1);
        near.filter_map(|at| Some((at, self.samples.get(at)?))).filter(move |other| other.1.thread == thread)
    }

    /// The share of time that a thread may have spent elsewhere than at a sample's place between two touches; `None` where it may be much.
    fn elsewhere(&self, kept: &Kept, span: &Span) -> Option<f64> {
        let (here, all) = *self.seen.get(&kept.region)?;
        let share = 1.0 - f64::from(here) / f64::from(all.max(1));
        // The second touch may be the one behind the reuse.
        if kept.steady && 2.0 * span.cpu_ns <= kept.reach_ns && share <= MOST_AROUND {
            return Some(if share <= MOST_ELSEWHERE { share } else { 0.0 });
        }
        // Longer phases than a sample's readings show.
        let (mut same, mut around) = (0, 0);
        for (_, other) in self.neighbours(kept, span.sample) {
            around += 1;
            same += u32::from(other.region == kept.region);
        }
        let is_alone = f64::from(same) >= (1.0 - MOST_ELSEWHERE) * f64::from(around);
        (all >= FEWEST_SEEN && share <= MOST_ELSEWHERE && is_alone).then_some(share)
    }

    /// The rate between two touches, and the standard deviation of its logarithm.
    fn around(&self, kept: &Kept, rates: &[SampleRate], span: &Span) -> Option<(f64, f64)> {
        let estimate = |number: usize| rates.get(number)?.accesses_per_ns;
        let sigma = |rate: Estimate| (rate.high / rate.value).ln() / 2.0;
        let own = estimate(span.sample)?;
        if span.cpu_ns <= LOCAL_NS {
            return Some((own.value, sigma(own)));
        }
        let same = self.neighbours(kept, span.sample).filter(|other| other.1.region == kept.region);
        let known: Vec<Estimate> = same.filter_map(|(number, _)| estimate(number)).collect();
        let n = known.len() as f64;
        let mean = known.iter().map(|rate| rate.value).sum::<f64>() / n;
        let own_errors = known.iter().map(|rate| sigma(*rate)).sum::<f64>() / n;
        let apart = known.iter().map(|rate| (rate.value / mean).ln().powi(2)).sum::<f64>() / n;
        (mean > 0.0).then(|| (mean, own_errors.hypot(apart.sqrt())))
    }
}

/// CPU time behind the stop in which a thread that kept its CPU was read.
pub(super) fn reach_ns(readings: &[Reading]) -> f64 {
    match readings {
        [first, .., last] if first.switches == last.switches => {
            FROM_STOP * last.time_ns.saturating_sub(first.time_ns) as f64
        }
        _ => 0.0,
    }
}

/// An address within the instruction that touched: a trap comes behind it.
fn accessing(moment: &Moment) -> u64 {
    moment.ip.saturating_sub(1)
}
