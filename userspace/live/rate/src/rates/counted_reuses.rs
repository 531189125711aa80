//! Accesses between two touches of a watched word: the registers
//! that may count the accesses, and the expectation by time × rate.

use std::collections::BTreeMap;

use super::{Kept, NEAREST, Rates};
use crate::counted_distance::{self, Advance, COLD_NS, Expected, GOOD, MOST_ROUGH};
use crate::induction::Quantity;
use crate::prior::median;
use crate::steps::difference;
use crate::types::{Estimate, Moment, Reading, SampleRate, Span};

/// CPU time after a sample with the sample's own rate; further away the mean over neighbours to
/// each side holds.
const LOCAL_NS: f64 = 1.5e6;
const AROUND: usize = 8;
/// Fewest readings of a place's samples for the thread's share of
/// time at the place, and the greatest share of time elsewhere.
const FEWEST_SEEN: u32 = 20;
const MOST_ELSEWHERE: f64 = 0.1;
/// Greatest share of time elsewhere if all of the
/// sample's own readings found the thread at the place.
const MOST_AROUND: f64 = 0.4;
/// Remembered instructions of a place's readings at different work.
const MOST_ADDRESSES: usize = 512;
/// Resolution and number of times between two readings with
/// a third in between; the shortest time with many readings.
const BRACKET_NS: u64 = 125_000;
const BRACKETS: usize = 16;
const FEWEST_BRACKETS: usize = 5;
/// Shortest time between two readings with a third in between.
const BEYOND_NS: f64 = 400_000.0;
/// Where registers count to a loop's end and from the start of the next: relative
/// error of the time of both loops and of the clock, and of agreeing numbers; and
/// the greatest standard deviation of a rate's logarithm for a known time.
const MOST_OFF: f64 = 0.1;
const MOST_DOUBT: f64 = 0.3;
/// From the stop to the last reading, in parts of the time from the first to the last
/// (`capture::metering` reads so).
const FROM_STOP: f64 = 1.5;

/// Median accesses per nanosecond at each place with rates of samples.
type ByPlace = BTreeMap<u64, f64>;

/// Counts accesses between touches.
#[derive(Debug, Clone)]
pub struct Counts<'a> {
    of: &'a Rates,
    rates: &'a [SampleRate],
    by_place: ByPlace,
}

impl Counts<'_> {
    /// Accesses between two touches, if registers count better than time × rate.
    pub fn between(&self, span: &Span) -> Option<Estimate> {
        let Counts { of, rates, by_place } = self;
        let kept = of.samples.get(span.sample)?;
        if of.blocks.place(accessing(&span.from)) != Some(kept.region) {
            return None;
        }
        of.within(kept, span, (rates, by_place)).or_else(|| of.across(kept, span, rates))
    }
}

impl Rates {
    /// For all samples so far; `rates` is [`Rates::rates`].
    pub fn counts<'a>(&'a self, rates: &'a [SampleRate]) -> Counts<'a> {
        let mut all: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (kept, rate) in self.samples.iter().zip(rates) {
            if let Some(rate) = rate.accesses_per_ns.filter(|rate| rate.value > 0.0) {
                all.entry(kept.region).or_default().push(rate.value);
            }
        }
        let by_place = all.into_iter().filter_map(|(place, rates)| Some((place, median(&rates)?.0)));
        Counts { of: self, rates, by_place: by_place.collect() }
    }

    /// Candidates of one loop.
    fn within(
        &self,
        kept: &Kept,
        span: &Span,
        (rates, by_place): (&[SampleRate], &ByPlace),
    ) -> Option<Estimate> {
        let (from, to) = (accessing(&span.from), accessing(&span.to));
        let elsewhere = self.elsewhere(kept, span, by_place)?;
        let number = span.sample as u32;
        let at_reuse = self.blocks.at(to);
        let advance = |entry: &(u8, u32)| {
            let (register, index) = *entry;
            let quantity = self.quantities.get(index as usize).filter(|quantity| quantity.is_sound())?;
            let period = quantity.period();
            // A quantity that turns back now and then has no rounds.
            let turns_back = quantity.turns_back() || quantity.turns().0 > 0.0;
            if !at_reuse.contains(entry) || (period.is_none() && turns_back) {
                return None;
            }
            let [a, b] =
                [span.from, span.to].map(|moment| moment.registers.get(usize::from(register)).copied());
            let steps = difference(a?, b?, quantity.bits).wrapping_mul(quantity.sign.into()) as f64;
            let slope = quantity.regular_slope().or_else(|| self.slope(number, index, 0.0))?;
            if slope.sigma > MOST_ROUGH {
                return None;
            }
            // Two instructions of one visit, of consecutive visits, or of visits several rounds
            // apart: the word was idle for longer.
            if steps == 0.0 && from != to && span.without as f64 * slope.value <= quantity.largest as f64 {
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
            // After a reuse the thread is warm.
            cold: if span.until_ns <= span.cpu_ns { rate * COLD_NS } else { 0.0 },
            more_than: span.without as f64,
        };
        let (accesses, error) = counted_distance::accesses(&advances, expected, elsewhere)?;
        Some(Estimate::within(accesses, 2.0 * error))
    }

    /// Candidates of a first loop up to the end and of a second from
    /// the start, if both take about the time between the touches.
    fn across(&self, kept: &Kept, span: &Span, rates: &[SampleRate]) -> Option<Estimate> {
        let (from, to) = (accessing(&span.from), accessing(&span.to));
        let is_timed = span.error_ns <= MOST_OFF * span.cpu_ns;
        let place = self.blocks.place(to).filter(|place| is_timed && *place != kept.region)?;
        if self.is_one_loop(from, to, [place, kept.region]) {
            return None;
        }
        let known = |number: usize| {
            let rate = rates.get(number)?.accesses_per_ns?;
            (rate.deviation() <= MOST_DOUBT).then_some(rate.value)
        };
        let outwards = (1..self.samples.len()).flat_map(|apart| {
            [span.sample.checked_sub(apart), Some(span.sample + apart)].into_iter().flatten()
        });
        let is_there = |number: &usize| self.samples.get(*number).is_some_and(|other| other.region == place);
        let there: Vec<f64> = outwards.filter(is_there).take(NEAREST).filter_map(known).collect();
        let (first_rate, (last_rate, _)) = (known(span.sample)?, median(&there)?);
        let parts = |moment: &Moment, ip: u64, is_left: bool| -> Vec<(f64, f64)> {
            let part = |(register, index): &(u8, u32)| {
                let quantity = self.quantities.get(*index as usize).filter(|quantity| quantity.is_sound())?;
                let slope = quantity.regular_slope().filter(|slope| slope.sigma <= GOOD)?;
                let (done, left, error) =
                    quantity.position(*moment.registers.get(usize::from(*register))?)?;
                let steps = if is_left { left } else { done };
                Some((steps / slope.value, (steps * slope.sigma).hypot(error) / slope.value))
            };
            self.blocks.at(ip).iter().filter_map(part).collect()
        };
        let (lefts, dones) = (parts(&span.from, from, true), parts(&span.to, to, false));
        let off_ns = 2.0 * MOST_OFF * span.cpu_ns;
        let cold_ns = if span.until_ns <= span.cpu_ns { COLD_NS.min(off_ns) } else { 0.0 };
        let told = |left: (f64, f64), done: (f64, f64)| {
            let over_ns = span.cpu_ns - left.0 / first_rate - done.0 / last_rate;
            // Registers used for two arrays in turn have a range that is no period: the remaining
            // registers agree.
            let support = agreeing(&lefts, left) + agreeing(&dones, done);
            let accesses = left.0 + done.0;
            let is_told = (-off_ns..=off_ns + cold_ns).contains(&over_ns);
            is_told.then_some((support, over_ns.abs(), accesses, left.1.hypot(done.1) / accesses))
        };
        let all = lefts.iter().flat_map(|left| dones.iter().filter_map(|done| told(*left, *done)));
        let (_, _, accesses, error) = all.max_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)))?;
        let is_good = accesses > span.without as f64 && error <= GOOD;
        is_good.then(|| Estimate::within(accesses, 2.0 * error))
    }

    /// Whether two instructions belong to one loop whose windows begin at several
    /// places: a register of the first was followed at the place of the second.
    fn is_one_loop(&self, from: u64, to: u64, places: [u64; 2]) -> bool {
        [from, to].into_iter().zip(places).any(|(ip, other)| {
            let followed = |index: u32| self.quantities.get(index as usize).map(Quantity::places);
            self.blocks.at(ip).iter().any(|(_, index)| followed(*index).is_some_and(|at| at.contains(&other)))
        })
    }

    /// Samples of the thread around a sample, with numbers.
    fn neighbours(&self, kept: &Kept, number: usize) -> impl Iterator<Item = (usize, &Kept)> {
        let thread = kept.thread;
        let near = number.saturating_sub(AROUND)..self.samples.len().min(number + AROUND + 1);
        near.filter_map(|at| Some((at, self.samples.get(at)?))).filter(move |other| other.1.thread == thread)
    }

    /// Greatest share of accesses by a thread away from a sample's
    /// place between two touches; `None` for a possibly large share.
    fn elsewhere(&self, kept: &Kept, span: &Span, by_place: &ByPlace) -> Option<f64> {
        let seen = self.seen.get(&kept.region)?;
        // Readings tell shares of time.
        let faster = self.faster_elsewhere(kept.region, seen, by_place);
        let of_accesses = |share: f64| share * faster / (1.0 + share * (faster - 1.0));
        let share = of_accesses(seen.elsewhere());
        // The place makes the second touch too: both ends of the time since the last reading lie
        // there.
        let beyond_ns = span.until_ns - kept.stays_ns;
        let is_followed = beyond_ns <= 0.0 || (kept.steady && beyond_ns <= span.cpu_ns.min(BEYOND_NS));
        // A reading between the touches halves the likelihood of a thread elsewhere.
        let read = span.until_ns - span.cpu_ns..=span.until_ns;
        let is_read = beyond_ns <= 0.0 && read.contains(&kept.unread_ns);
        let excursions = seen
            .excursions(span.cpu_ns)
            .map(of_accesses)
            .map(|share| if is_read { share / 2.0 } else { share });
        if let Some(few) = excursions.filter(|share| is_followed && *share <= MOST_ELSEWHERE) {
            return Some(few);
        }
        let is_covered = kept.steady && beyond_ns <= 0.0;
        if is_covered && share <= MOST_ELSEWHERE {
            return Some(share);
        }
        // The sample's own few readings may have missed the excursions by chance.
        if excursions.is_some_and(|share| share > MOST_ELSEWHERE) {
            return None;
        }
        if is_covered && share <= MOST_AROUND {
            return Some(0.0);
        }
        // Longer phases than a sample's readings show.
        let (mut same, mut around) = (0, 0);
        for (_, other) in self.neighbours(kept, span.sample) {
            around += 1;
            same += u32::from(other.region == kept.region);
        }
        let is_alone = f64::from(same) >= (1.0 - MOST_ELSEWHERE) * f64::from(around);
        (seen.all >= FEWEST_SEEN && share <= MOST_ELSEWHERE && is_alone).then_some(share)
    }

    /// Ratio of accesses per nanosecond away from a place, at the instructions in readings of
    /// the place's samples, to accesses per nanosecond at the place: 1 if either is unknown.
    fn faster_elsewhere(&self, place: u64, seen: &Seen, by_place: &ByPlace) -> f64 {
        let Some(here) = by_place.get(&place) else { return 1.0 };
        let (mut accesses, mut time) = (0.0, 0.0);
        for (address, count) in &seen.elsewhere_at {
            let rate = self.blocks.place(*address).and_then(|place| by_place.get(&place));
            accesses += f64::from(*count) * rate.map_or(1.0, |rate| rate / here);
            time += f64::from(*count);
        }
        if time > 0.0 { accesses / time } else { 1.0 }
    }

    /// The rate between two touches, and the standard deviation of its logarithm.
    fn around(&self, kept: &Kept, rates: &[SampleRate], span: &Span) -> Option<(f64, f64)> {
        let estimate = |number: usize| rates.get(number)?.accesses_per_ns;
        let own = estimate(span.sample)?;
        if span.cpu_ns <= LOCAL_NS {
            return Some((own.value, own.deviation()));
        }
        let same = self.neighbours(kept, span.sample).filter(|other| other.1.region == kept.region);
        let known: Vec<Estimate> = same.filter_map(|(number, _)| estimate(number)).collect();
        let n = known.len() as f64;
        let mean = known.iter().map(|rate| rate.value).sum::<f64>() / n;
        let own_errors = known.iter().map(|rate| rate.deviation()).sum::<f64>() / n;
        let apart = known.iter().map(|rate| (rate.value / mean).ln().powi(2)).sum::<f64>() / n;
        (mean > 0.0).then(|| (mean, own_errors.hypot(apart.sqrt())))
    }
}

/// Places at which the readings of a place's samples found the thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// At the place.
    here: u32,
    all: u32,
    /// Instructions of the readings elsewhere, and how often.
    elsewhere_at: BTreeMap<u64, u32>,
    /// Readings between an earlier and a later reading at the place,
    /// by the time between the two: at different work, and all.
    between: [(u32, u32); BRACKETS],
}

impl Seen {
    /// Takes a sample's readings: whether each found it at the place.
    pub fn add(&mut self, readings: &[Reading], here: &[bool]) {
        self.here += here.iter().filter(|here| **here).count() as u32;
        self.all += here.len() as u32;
        for (reading, _) in readings.iter().zip(here).filter(|(_, here)| !**here) {
            if self.elsewhere_at.len() < MOST_ADDRESSES || self.elsewhere_at.contains_key(&reading.ip) {
                *self.elsewhere_at.entry(reading.ip).or_default() += 1;
            }
        }
        for (readings, here) in readings.windows(3).zip(here.windows(3)) {
            let ([from, _, to], [true, middle, true]) = (readings, here) else { continue };
            let bracket = to.time_ns.saturating_sub(from.time_ns) / BRACKET_NS;
            if let Some((left, all)) =
                self.between.get_mut(bracket as usize).filter(|_| from.switches == to.switches)
            {
                *left += u32::from(!middle);
                *all += 1;
            }
        }
    }

    /// Share of the time after the place's samples that the thread spends elsewhere.
    fn elsewhere(&self) -> f64 {
        1.0 - f64::from(self.here) / f64::from(self.all.max(1))
    }

    /// Share of the time elsewhere between two moments at the place, up
    /// to a distance: for the longest well-known times. A loop with calls
    /// has excursions; a loop left for good after a while has none.
    fn excursions(&self, apart_ns: f64) -> Option<f64> {
        let brackets = ((apart_ns / BRACKET_NS as f64) as usize).max(FEWEST_BRACKETS);
        let (mut left, mut all) = (0, 0);
        for of in self.between.iter().take(brackets).rev() {
            (left, all) = (left + of.0, all + of.1);
            if all >= FEWEST_SEEN {
                return Some(f64::from(left) / f64::from(all));
            }
        }
        None
    }
}

/// CPU time from the stop to the first reading.
pub(super) fn unread_ns(readings: &[Reading]) -> f64 {
    let [first, .., last] = readings else { return 0.0 };
    (FROM_STOP - 1.0) * last.time_ns.saturating_sub(first.time_ns) as f64
}

/// CPU time from the stop to the first reading at different work, or
/// to the last reading; 0 for a thread that did not keep its CPU.
pub(super) fn stays_ns(readings: &[Reading], here: &[bool]) -> f64 {
    let [first, .., last] = readings else { return 0.0 };
    if first.switches != last.switches {
        return 0.0;
    }
    let until = readings.iter().zip(here).find(|(_, here)| !**here).map_or(last, |(reading, _)| reading);
    unread_ns(readings) + until.time_ns.saturating_sub(first.time_ns) as f64
}

/// How many say about as much.
fn agreeing(all: &[(f64, f64)], (one, _): (f64, f64)) -> usize {
    all.iter().filter(|(other, _)| (other - one).abs() <= MOST_OFF * one).count()
}

/// An address within the touching instruction: a trap comes after it.
fn accessing(moment: &Moment) -> u64 {
    moment.ip.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WORDS;

    /// After five, seven, ten, fourteen and fifteen fifths of a millisecond, as a meter reads.
    fn readings() -> Vec<Reading> {
        let reading = |fifths: u64| Reading {
            time_ns: 1_000_000 + fifths * 200_000,
            switches: 3,
            accesses: None,
            ip: 0,
            registers: [0; 16],
            words: [0; WORDS],
            read: 0,
            wanted: 0,
        };
        [5, 7, 10, 14, 15].map(reading).into()
    }

    #[test]
    fn a_thread_stays_until_it_is_read_elsewhere() {
        let mut readings = readings();
        assert_eq!(stays_ns(&readings, &[true; 5]), 3e6);
        assert_eq!(stays_ns(&readings, &[true, true, false, true, false]), 2e6);
        assert_eq!(stays_ns(&readings, &[false; 5]), 1e6);
        readings[4].switches = 4;
        assert_eq!(stays_ns(&readings, &[true; 5]), 0.0);
        assert_eq!((stays_ns(&[], &[]), unread_ns(&[])), (0.0, 0.0));
        assert_eq!(unread_ns(&readings), 1e6);
    }

    /// Half of the time is spent elsewhere in both programs; only in one does the loop come and go.
    #[test]
    fn a_loop_that_is_left_for_good_has_no_excursions() {
        let (mut leaves, mut calls) = (Seen::default(), Seen::default());
        for number in 0..40 {
            leaves.add(&readings(), &[true, true, number % 2 == 0, false, false]);
            calls.add(&readings(), &[true, number % 2 == 0, true, false, false]);
        }
        assert_eq!((leaves.excursions(2e6), leaves.elsewhere()), (Some(0.0), 0.5));
        assert_eq!((calls.excursions(2e6), calls.elsewhere()), (Some(0.5), 0.5));
        // They are longer than what is asked for, or never were in between.
        assert_eq!(calls.excursions(0.5e6), None);
        assert_eq!(Seen::default().excursions(2e6), None);
    }
}
