//! Accesses between two touches of a word, counted by registers of the loop that makes them, where
//! time × rate says about how many.
//!
//! A register that only ever grows says it at once. One that comes round says it up to whole
//! rounds, and the time says which, if rounds are long beside what the time may be wrong by: the
//! touches of a word in a sweep are a round apart, whatever the clock and the rate say. Of several
//! registers the most exact speaks first, and none may contradict it. What the rate does not know
//! makes times wrong by factors; what caches that a stop left cold cost is added to them (.03 to .2
//! ms in spans of a sparse matrix' product that registers count).
//!
//! Sources of error: work outside of the loop from one of its rounds to the next is not in its
//! registers: only loops speak in which the readings found the thread all the while, or nearly
//! always (`rates::counted_reuses`); the accesses per step. (What is read elsewhere is not added to rounds:
//! most of it is done between many rounds and the next many, not between each and the next.)

use crate::induction::Slope;

/// Least relative standard deviation of time × rate: the rate is the sample's or its place's, and
/// shared machines change their speed by a third from one second to the next.
const CLOCK: f64 = 0.25;
/// Difference of log likelihoods from which one number of rounds is preferred to the next best.
const CLEAR: f64 = 3.0;
/// The least likely that is believed: time and registers three standard deviations apart.
const LEAST: f64 = 4.5;
/// Relative standard deviation of a rate beyond which time does not separate one round from three.
/// More than one round is unlikely for a loop at its former position.
const MOST_UNSURE: f64 = 0.48;
/// Relative standard deviation of accesses per step beyond which a register says nothing.
pub(crate) const MOST_ROUGH: f64 = 0.4;
/// Relative standard deviation of the difference of registers that agree.
const ROUGH: f64 = 0.03;
/// Relative error from which counting is no better than time.
pub(crate) const GOOD: f64 = 0.05;
/// Penalty, as a log likelihood, of more than one round for registers nearly equal at both touches:
/// a repeating loop touches the word in each round, except if two arrays take turns.
const SECOND_ROUND: f64 = 4.0;
/// In parts of a round.
const NEARLY: f64 = 0.01;
/// CPU time by which a thread may come later because the stop left its caches cold: standard deviation.
pub(crate) const COLD_NS: f64 = 60_000.0;
/// Numbers of rounds tried to each side of what the time says.
const ROUNDS: i32 = 2;

/// What is known without registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    /// Accesses by time × rate.
    pub accesses: f64,
    /// Standard deviation, relative, of the rate.
    pub sigma: f64,
    /// Accesses in the time by which the clock may be wrong.
    pub clock: f64,
    /// Those in [`COLD_NS`].
    pub cold: f64,
    /// More candidates than the limit.
    pub more_than: f64,
}

impl Expected {
    /// How many standard deviations from what is expected a number of accesses is, whose own
    /// relative error is known.
    fn off(&self, accesses: f64, error: f64) -> f64 {
        let Self { accesses: told, sigma, clock, cold, .. } = *self;
        if accesses > told && told > clock {
            return (accesses / told).ln() / sigma.hypot(error).hypot(clock / told);
        }
        let late = if accesses < told { cold } else { 0.0 };
        (accesses - told) / (accesses * sigma.hypot(error)).hypot(clock).hypot(late)
    }
}

/// Advance of a register from one touch to the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Advance {
    /// Signed, in its own direction.
    pub steps: f64,
    /// Steps per period, with the relative error; `None` for a register that never wraps.
    pub period: Option<(f64, f64)>,
    pub slope: Slope,
    /// Possible deficit of `steps`: a touch lies anywhere within a step.
    pub slack: f64,
}

impl Advance {
    /// Accesses between the touches after this number of periods, with the relative error.
    fn after(&self, rounds: f64, elsewhere: f64) -> Option<(f64, f64)> {
        let (period, error) = self.period.unwrap_or_default();
        let steps = self.steps + rounds * period;
        let ends = (rounds * period * error).hypot(self.slack);
        // What is done elsewhere is done between rounds.
        let elsewhere = if rounds > 0.0 || self.period.is_none() { elsewhere / 2.0 } else { 0.0 };
        let error = self.slope.sigma.hypot(ends / steps).hypot(elsewhere);
        (steps > 0.0 && rounds >= 0.0).then_some((steps / self.slope.value, error))
    }

    /// Whether a loop is nearly at its former position after a period.
    fn is_back(&self) -> bool {
        self.steps == 0.0 || self.period.is_some_and(|(period, _)| self.steps.abs() <= NEARLY * period)
    }

    /// Possible numbers of accesses around the expectation, likeliest first, each with its negative
    /// log likelihood.
    fn possible(&self, expected: Expected, elsewhere: f64) -> Vec<(f64, (f64, f64))> {
        let Expected { accesses: told, more_than, .. } = expected;
        let nearest =
            self.period.map_or(0.0, |(period, _)| ((told * self.slope.value - self.steps) / period).round());
        let around = if self.period.is_some() { -ROUNDS..=ROUNDS } else { 0..=0 };
        let mut rounds: Vec<f64> = around.map(|n| nearest + f64::from(n)).collect();
        // Few rounds are nearer than they seem, if the clock hardly separates them.
        if self.period.is_some() && nearest > f64::from(ROUNDS) + 1.0 {
            rounds.push(1.0);
        }
        let score = |rounds: f64| {
            let (accesses, error) = self.after(rounds, elsewhere).filter(|told| told.0 > more_than)?;
            let off = expected.off(accesses, error);
            let again = self.is_back() && rounds > 1.0;
            Some((off * off / 2.0 + if again { SECOND_ROUND } else { 0.0 }, (accesses, error)))
        };
        let mut scored: Vec<(f64, (f64, f64))> = rounds.into_iter().filter_map(score).collect();
        scored.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        scored
    }

    /// The number of accesses that agrees with the expectation, if unique.
    fn resolve(&self, known: Expected, elsewhere: f64) -> Option<(f64, f64)> {
        let scored = self.possible(known, elsewhere);
        let is_clear = match scored.as_slice() {
            [best, next, ..] => next.0 - best.0 >= CLEAR,
            [_] => true,
            [] => false,
        };
        scored.first().filter(|best| is_clear && best.0 <= LEAST).map(|best| best.1)
    }
}

/// Accesses between the touches, with the relative error; `None` where registers say no more than
/// was expected. `elsewhere`: share of the time that the thread is not in the loop.
pub(crate) fn accesses(advances: &[Advance], expected: Expected, elsewhere: f64) -> Option<(f64, f64)> {
    if expected.sigma > MOST_UNSURE {
        return None;
    }
    let mut known = Expected { sigma: expected.sigma.max(CLOCK), ..expected };
    let mut left: Vec<&Advance> = advances.iter().collect();
    // Each register sharpens the result of the others.
    loop {
        let resolve = |(at, advance): (usize, &&Advance)| Some((at, advance.resolve(known, elsewhere)?));
        let told = left.iter().enumerate().filter_map(resolve);
        let Some((at, best)) = told.min_by(|a, b| a.1.1.total_cmp(&b.1.1)) else { break };
        if best.1 >= known.sigma.hypot(known.clock / known.accesses) {
            break;
        }
        known = Expected { accesses: best.0, sigma: best.1, clock: 0.0, cold: 0.0, ..known };
        left.swap_remove(at);
    }
    let rough = Expected { sigma: known.sigma.hypot(ROUGH), ..known };
    let agrees = |advance: &&Advance| {
        let least = if advance.is_back() { LEAST + SECOND_ROUND } else { LEAST };
        advance.possible(rough, elsewhere).first().is_some_and(|(score, _)| *score <= least)
    };
    let is_good = known.sigma <= GOOD && known.clock == 0.0;
    (is_good && left.iter().all(agrees)).then_some((known.accesses, known.sigma))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By a clock that is exact.
    fn told(advances: &[Advance], (accesses, sigma): (f64, f64), elsewhere: f64) -> Option<(f64, f64)> {
        super::accesses(
            advances,
            Expected { accesses, sigma, clock: 0.0, cold: 0.0, more_than: 0.0 },
            elsewhere,
        )
    }

    fn advance(steps: f64, period: Option<f64>, per_access: f64, sigma: f64) -> Advance {
        let slope = Slope { value: per_access, sigma, windows: 9 };
        Advance { steps, period: period.map(|period| (period, 0.001)), slope, slack: 0.5 }
    }

    /// A sweep of a million accesses, whose index comes back to the same value, in .6 to 1.4 times
    /// the time that it should take.
    #[test]
    fn a_sweep_is_a_whole_round_whatever_the_clock_says() {
        let index = [advance(0.0, Some(500_000.0), 0.5, 0.01)];
        for off in [0.6, 0.9, 1.0, 1.4] {
            let (accesses, error) = told(&index, (1e6 * off, 0.1), 0.0).unwrap();
            assert!((accesses - 1e6).abs() < 1.0 && error < 0.02, "{off}: {accesses}");
        }
        // It may be two, and six of them may be seven.
        assert_eq!(told(&index, (1.9e6, 0.3), 0.0), None);
        assert_eq!(told(&index, (2.8e6, 0.3), 0.0), None);
        for unsure in [(2e6, 0.4), (3e6, 0.4), (1e6, 0.5), (3e6, 0.9)] {
            assert_eq!(told(&index, unsure, 0.0), None);
        }
        assert_eq!(told(&index, (6e6, 0.2), 0.0), None);
    }

    /// Three nested loops of 10, 100 and 1000 rounds: the outer ones say how many rounds the inner one made.
    #[test]
    fn nested_loops_clear_each_other() {
        let truth = 3_456_780.0;
        let at = |period: f64| truth % period;
        let steps = |worth: f64, period: f64| {
            advance((at(period) / worth).floor(), Some(period / worth), 1.0 / worth, 1e-4)
        };
        let inner = steps(10.0, 1_000.0);
        let middle = steps(1_000.0, 100_000.0);
        let outer = steps(100_000.0, 1e8);
        let (accesses, error) = told(&[inner, middle, outer], (truth * 1.02, 0.02), 0.0).unwrap_or_default();
        assert!((accesses / truth - 1.0).abs() < 0.04 && error < 0.04, "{accesses} {error}");
        assert_eq!(told(&[inner], (truth * 1.1, 0.2), 0.0), None);
    }

    /// A trap's cost is uncertain by more than the rounds of a short loop take: the next one it is,
    /// if the window does not say that it is not.
    #[test]
    fn a_clock_that_hardly_tells_leaves_the_next_round() {
        let index = [advance(0.0, Some(180.0), 0.5, 0.0)];
        let expected = Expected { accesses: 8_600.0, sigma: 0.1, clock: 7_500.0, cold: 0.0, more_than: 50.0 };
        let (accesses, error) = super::accesses(&index, expected, 0.0).unwrap();
        assert!(accesses == 360.0 && error < 0.01, "{accesses} {error}");
        assert_eq!(super::accesses(&index, Expected { more_than: 700.0, ..expected }, 0.0), None);
        assert_eq!(super::accesses(&index, Expected { accesses: 40_000.0, ..expected }, 0.0), None);
    }

    #[test]
    fn work_between_the_rounds_is_doubt_and_contradictions_say_nothing() {
        let index = [advance(0.0, Some(1_000.0), 0.001, 0.01)];
        let (accesses, error) = told(&index, (1.1e6, 0.1), 0.04).unwrap();
        assert!((accesses - 1e6).abs() < 1.0 && (0.02..0.05).contains(&error), "{accesses} {error}");
        // A counter that went far less than the time says.
        assert_eq!(told(&[advance(10.0, None, 0.001, 0.01)], (1e6, 0.1), 0.0), None);
        assert_eq!(told(&[], (1e6, 0.01), 0.0), None);
        // The index says one round, an outer loop four.
        let outer = advance(4.0, None, 1e-6, 0.17);
        assert_eq!(told(&[index[0], outer], (1.1e6, 0.1), 0.0), None);
        // Backwards, and what is known badly itself.
        assert_eq!(told(&[advance(-10.0, None, 0.001, 0.01)], (1e4, 0.1), 0.0), None);
        assert_eq!(told(&[advance(10.0, None, 0.001, 0.08)], (1e4, 0.1), 0.0), None);
    }

    /// A gather's index went on by a few rows, and caches that were cold made that take six times
    /// as long as it should.
    #[test]
    fn a_thread_that_the_stop_slowed_is_counted_all_the_same() {
        let index = [advance(5_200.0, Some(720_000.0), 0.324, 1e-6)];
        let late =
            Expected { accesses: 94_000.0, sigma: 0.2, clock: 20_000.0, cold: 160_000.0, more_than: 0.0 };
        let (accesses, error) = super::accesses(&index, late, 0.0).unwrap();
        assert!((accesses - 5_200.0 / 0.324).abs() < 1.0 && error < 0.01, "{accesses} {error}");
        // Nothing makes it as much faster, and what is late by more than that may be a whole round more.
        let told = |expected: Expected| super::accesses(&index, expected, 0.0);
        assert_eq!(told(Expected { cold: 0.0, ..late }), None);
        assert_eq!(told(Expected { accesses: 2_000.0, clock: 500.0, ..late }), None);
        assert_eq!(told(Expected { accesses: 1e6, ..late }), None);
    }

    /// A sweep through columns comes back one row short of where it was.
    #[test]
    fn a_loop_that_is_nearly_where_it_was_made_one_round() {
        let index = |steps| [advance(steps, Some(8e6), 4.0, 1e-6)];
        let (accesses, _) = told(&index(-8_000.0), (2.3e6, 0.2), 0.0).unwrap();
        assert_eq!(accesses, 1_998_000.0);
        assert_eq!(told(&index(-1e6), (2.3e6, 0.2), 0.0), None);
    }

    /// The outer loop says that it was one round; the loop within is a hundredth of its own round
    /// off, after thousands of them.
    #[test]
    fn a_loop_that_is_nearly_where_it_was_contradicts_nobody() {
        let outer = advance(0.0, Some(1e6), 1.0, 1e-4);
        let within = |steps| advance(steps, Some(1_000.0), 1.0, 0.0);
        for steps in [0.0, 5.0, -5.0] {
            let (accesses, _) = told(&[outer, within(steps)], (1.1e6, 0.1), 0.0).unwrap_or_default();
            assert_eq!(accesses, 1e6, "{steps}");
        }
    }
}
