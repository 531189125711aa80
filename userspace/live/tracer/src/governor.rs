//! Keeps the cost within the budget by choosing the sampling rate.
//!
//! Cost = time stopped (until the thread runs again) + traps × trap cost + ticks × tick cost +
//! readings × reading cost, as a share of the targets' CPU time and stopped time. All of it is
//! roughly proportional to the number of samples, so the rate follows from the cost of one sample,
//! measured as we go, and from what was spent or saved so far. The tool's own CPU time may have a budget
//! beside ([`OwnBudget`]); the lower of the two rates holds. Sources of error: costs that nobody
//! sees (caches that our handlers disturb, the scheduler's work at a stop) are not in the sum; trap
//! and tick costs are medians of a calibration.

use locality_capture::{METER_CLOCKS, READINGS};

/// Rate before anything is known, in samples per second of CPU time.
pub const FIRST_RATE: f64 = 50.0;

/// Bounds of the rate.
const RATES: std::ops::RangeInclusive<f64> = 2.0..=2000.0;

/// Share of the budget that is aimed at; the rest is for what the sum does not see.
const AIM: f64 = 0.85;

/// Touches by the kernel that a watch is taken to pass over, until the first ones are known: half
/// of the most.
const PASSED: u64 = 32;

/// Seconds of CPU time over which a debt or a saving is evened out.
const HORIZON_S: f64 = 2.0;

/// Cumulative counters that determine the cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CostTotals {
    /// Time from the samples to our resuming of the stopped threads.
    pub stop_ns: u64,
    /// Stops at samples.
    pub stops: u64,
    /// Estimated time of the stops that ptrace imposed.
    pub imposed_ns: u64,
    /// Traps of watchpoints.
    pub traps: u64,
    /// Traps that were the last of their event.
    pub last_traps: u64,
    /// Traps passed over in the kernel, not among those.
    pub passed: u64,
    /// Clock ticks that met a target.
    pub ticks: u64,
    /// Readings of meters.
    pub readings: u64,
    /// What the allocation probes cost.
    pub heap_ns: u64,
    /// What slower instructions and switches lost while words were watched.
    pub string_ns: u64,
    /// Samples: ticks that met a target in user mode.
    pub samples: u64,
    /// CPU time of the targets.
    pub cpu_ns: u64,
    /// Page faults of the targets; `None` if not counted.
    pub page_faults: Option<u64>,
    /// CPU time of this tool with its helper processes.
    pub own_ns: u64,
    /// Time on the wall since the start.
    pub wall_ns: u64,
}

/// Budget of the tool's own time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnBudget {
    /// Share of the time of all processors.
    pub share: f64,
    /// Processors of the machine.
    pub processors: usize,
}

impl OwnBudget {
    /// Used share of the time of all processors.
    pub fn used(&self, spent: &CostTotals) -> f64 {
        spent.own_ns as f64 / (spent.wall_ns.max(1) as f64 * self.processors.max(1) as f64)
    }
}

/// CPU time that a sample is taken to cost the tool until the first ones are known.
const OWN_SAMPLE_NS: f64 = 4e6;
/// Seconds over which a debt or a saving of the tool's own time is evened out: reading debug information
/// takes a second at the start and nothing afterwards.
const OWN_HORIZON_S: f64 = 20.0;

/// The rate that the budget of the tool's own time allows.
#[derive(Debug, Clone)]
struct OwnLimit {
    /// Own CPU time that is allowed in a nanosecond on the wall.
    allowed: f64,
    /// Samples, and own CPU time in nanoseconds, when samples were last met.
    before: (u64, u64),
    /// Own CPU time of a sample, in nanoseconds.
    sample_ns: f64,
}

impl OwnLimit {
    fn new(budget: OwnBudget) -> Self {
        let allowed = budget.share * budget.processors.max(1) as f64;
        Self { allowed, before: (0, 0), sample_ns: OWN_SAMPLE_NS }
    }

    /// Samples per second of the targets' CPU time.
    fn rate(&mut self, now: CostTotals) -> f64 {
        let (samples, own_ns) = self.before;
        if now.samples > samples {
            learn(&mut self.sample_ns, now.samples - samples, now.own_ns.saturating_sub(own_ns));
            self.before = (now.samples, now.own_ns);
        }
        let wall_ns = now.wall_ns.max(1) as f64;
        let saved = (self.allowed * wall_ns - now.own_ns as f64) / (OWN_HORIZON_S * 1e9);
        // Samples come by the targets' CPU time, of which a second on the wall has this much.
        let busy = (now.cpu_ns as f64 / wall_ns).max(1e-3);
        share(self.allowed, self.allowed, saved) * 1e9 / self.sample_ns.max(1.0) / busy
    }
}

/// Takes new samples into the mean cost of one: few of them say little.
fn learn(mean_ns: &mut f64, samples: u64, cost_ns: u64) {
    if samples > 0 {
        let weight = (samples as f64 / 32.0).min(0.5);
        *mean_ns += weight * (cost_ns as f64 / samples as f64 - *mean_ns);
    }
}

/// The share to spend of a budget that is aimed at, with what was saved so far. Savings are spent
/// carefully: at most half of the budget on top.
fn share(aim: f64, budget: f64, saved: f64) -> f64 {
    (aim + saved.clamp(-budget, 0.5 * budget)).max(0.0)
}

/// Calibrated costs of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitCosts {
    /// A trap of a watchpoint that stays armed, in the trapping thread.
    pub trap_ns: u64,
    /// The part of a trap outside of the recording program.
    pub gap_ns: u64,
    /// Extra cost of the last trap or reading of an event, after which the kernel disarms it.
    pub disarm_ns: u64,
    /// A tick of the sampling clock, in the interrupted thread.
    pub tick_ns: u64,
    /// A reading of a meter, in the interrupted thread.
    pub meter_ns: u64,
    /// From our resuming of a stopped thread until it runs.
    pub wake_ns: u64,
    /// Copies by a string instruction, a page each, in a thread without a watch and with one.
    pub copies_ns: [u64; 2],
    /// A thousand stores in a row, each across two cache lines, likewise.
    pub split_stores_ns: [u64; 2],
    /// A switch to another thread and back, likewise.
    pub switches_ns: [u64; 2],
}

impl UnitCosts {
    /// What of the time in a string instruction is lost while a watch is armed.
    pub fn string_lost(&self) -> f64 {
        let [free, armed] = self.copies_ns.map(|ns| ns.max(1) as f64);
        (1.0 - free / armed).max(0.0)
    }

    /// How many times as long it takes.
    pub fn string_factor(&self) -> f64 {
        1.0 / (1.0 - self.string_lost())
    }

    /// Time more for a store across cache lines while a watch is armed, in nanoseconds.
    pub fn split_store_ns(&self) -> f64 {
        let [free, armed] = self.split_stores_ns;
        armed.saturating_sub(free) as f64 / 1000.0
    }

    /// Time more for a switch to another thread and back while a watch is armed.
    pub fn switch_ns(&self) -> u64 {
        let [free, armed] = self.switches_ns;
        armed.saturating_sub(free)
    }

    /// How many times as long a switch takes.
    pub fn switch_factor(&self) -> f64 {
        let [free, armed] = self.switches_ns.map(|ns| ns.max(1) as f64);
        (armed / free).max(1.0)
    }

    /// How many times as long these stores take.
    pub fn split_store_factor(&self) -> f64 {
        let [free, armed] = self.split_stores_ns.map(|ns| ns.max(1) as f64);
        (armed / free).max(1.0)
    }
}

impl CostTotals {
    /// Time that the targets stood still.
    pub fn still_ns(&self, prices: UnitCosts) -> u64 {
        self.stop_ns + self.stops * prices.wake_ns + self.imposed_ns
    }

    /// What traps took.
    pub fn traps_ns(&self, prices: UnitCosts) -> u64 {
        self.traps * prices.trap_ns + self.passed * prices.gap_ns + self.last_traps * prices.disarm_ns
    }

    /// What ticks and readings took.
    pub fn interrupts_ns(&self, prices: UnitCosts) -> u64 {
        self.ticks * prices.tick_ns
            + self.readings * prices.meter_ns
            + last_readings(self.readings) * prices.disarm_ns
    }

    /// What the targets paid.
    pub fn cost_ns(&self, prices: UnitCosts) -> u64 {
        self.still_ns(prices)
            + self.traps_ns(prices)
            + self.interrupts_ns(prices)
            + self.heap_ns
            + self.string_ns
    }

    /// The cost as a share of CPU time and stopped time.
    pub fn share(&self, prices: UnitCosts) -> f64 {
        let base_ns = self.cpu_ns + self.still_ns(prices);
        if base_ns == 0 { 0.0 } else { self.cost_ns(prices) as f64 / base_ns as f64 }
    }
}

/// How many of so many readings were the last of their clock.
fn last_readings(readings: u64) -> u64 {
    readings * METER_CLOCKS as u64 / u64::from(READINGS)
}

/// Chooses the sampling rate.
#[derive(Debug, Clone)]
pub struct Governor {
    budget: f64,
    prices: UnitCosts,
    before: CostTotals,
    sample_cost_ns: f64,
    own: Option<OwnLimit>,
    rate: f64,
}

impl Governor {
    /// With a budget as a share (0.01 is 1 %). `user_only`: what the kernel touches is passed over.
    pub fn new(budget: f64, own: Option<OwnBudget>, prices: UnitCosts, user_only: bool) -> Self {
        // A sample is a tick, a stop with a window, two traps and the readings; the stop is a guess
        // until the first ones are measured.
        let one = CostTotals {
            stop_ns: 300_000,
            stops: 1,
            traps: 2,
            last_traps: 1,
            ticks: 1,
            readings: READINGS.into(),
            passed: if user_only { PASSED } else { 0 },
            ..CostTotals::default()
        };
        let guess = one.cost_ns(prices);
        let rate = FIRST_RATE.min(AIM * budget * 1e9 / guess as f64).max(*RATES.start());
        let own = own.map(OwnLimit::new);
        Self { budget, prices, before: CostTotals::default(), sample_cost_ns: guess as f64, own, rate }
    }

    /// The rate in force, in samples per second of CPU time.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Chooses the rate for the next while from what was spent up to `now`.
    pub fn steer(&mut self, now: CostTotals) -> f64 {
        let samples = now.samples.saturating_sub(self.before.samples);
        let cost_ns = now.cost_ns(self.prices).saturating_sub(self.before.cost_ns(self.prices));
        learn(&mut self.sample_cost_ns, samples, cost_ns);
        self.before = now;
        let allowed_ns = AIM * self.budget * now.cpu_ns as f64;
        let saved = (allowed_ns - now.cost_ns(self.prices) as f64) / (HORIZON_S * 1e9);
        let allowed = share(AIM * self.budget, self.budget, saved) * 1e9 / self.sample_cost_ns;
        let own = self.own.as_mut().map_or(f64::INFINITY, |own| own.rate(now));
        self.rate = allowed.min(own).clamp(*RATES.start(), *RATES.end());
        self.rate
    }
}

/// A period for `rate`, off by up to a tenth at random, so that the samples fall into step with nothing.
pub fn period_ns(rate: f64, entropy: u64) -> u64 {
    (1e9 / rate * (0.9 + 0.2 * unit(entropy))) as u64
}

/// The first period: off by up to half, to keep clocks with a common start out of step.
pub fn first_period_ns(rate: f64, entropy: u64) -> u64 {
    (1e9 / rate * (0.5 + unit(entropy))) as u64
}

/// From 0 to 1: Fibonacci hashing spreads the low bits of a clock value.
fn unit(entropy: u64) -> f64 {
    (entropy.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: UnitCosts = UnitCosts {
        trap_ns: 9_000,
        gap_ns: 8_000,
        disarm_ns: 10_000,
        tick_ns: 15_000,
        meter_ns: 6_000,
        wake_ns: 20_000,
        copies_ns: [500, 500],
        split_stores_ns: [600, 600],
        switches_ns: [2_000, 2_000],
    };

    /// A target that runs all the time and pays `stop_ns` for each sample.
    fn simulate(budget: f64, stop_ns: u64, seconds: u64) -> (f64, f64) {
        let mut governor = Governor::new(budget, None, PRICES, false);
        let mut spent = CostTotals::default();
        let mut owed = 0.0;
        for _ in 0..seconds * 10 {
            owed += governor.rate() * 0.1;
            let samples = owed as u64;
            owed -= samples as f64;
            spent.samples += samples;
            spent.ticks += samples;
            spent.traps += 2 * samples;
            spent.stops += samples;
            spent.stop_ns += stop_ns * samples;
            spent.cpu_ns += 100_000_000;
            governor.steer(spent);
        }
        (spent.share(PRICES), governor.rate())
    }

    #[test]
    fn the_budget_is_used_and_kept_whatever_a_stop_costs() {
        for (budget, stop_ns) in [(0.01, 50_000), (0.01, 400_000), (0.05, 80_000), (0.002, 80_000)] {
            let (share, rate) = simulate(budget, stop_ns, 30);
            assert!(
                share <= budget * 0.95 && share >= budget * 0.6,
                "{budget} {stop_ns}: {share} at {rate} Hz"
            );
        }
    }

    /// Two targets on four processors, whose samples cost the tool `sample_ns` each, and a start of
    /// half a second; returns the share of all processors that the tool used, and the samples.
    fn simulate_own(own: Option<OwnBudget>, sample_ns: u64) -> (f64, u64) {
        let mut governor = Governor::new(0.01, own, PRICES, false);
        let mut spent = CostTotals { own_ns: 500_000_000, ..CostTotals::default() };
        let mut owed = 0.0;
        for _ in 0..600 * 10 {
            owed += governor.rate() * 0.2;
            let samples = owed as u64;
            owed -= samples as f64;
            spent.samples += samples;
            spent.stops += samples;
            spent.stop_ns += 100_000 * samples;
            spent.own_ns += sample_ns * samples;
            spent.cpu_ns += 200_000_000;
            spent.wall_ns += 100_000_000;
            governor.steer(spent);
        }
        (OwnBudget { share: 0.0, processors: 4 }.used(&spent), spent.samples)
    }

    #[test]
    fn the_lower_of_two_budgets_holds() {
        let (free, all) = simulate_own(None, 5_000_000);
        assert!(free > 0.05, "{free}");
        for (share, sample_ns) in [(0.01, 5_000_000), (0.01, 2_000_000), (0.03, 5_000_000)] {
            let (used, samples) = simulate_own(Some(OwnBudget { share, processors: 4 }), sample_ns);
            assert!(used <= share * 1.05 && used >= share * 0.85, "{share} {sample_ns}: {used}");
            assert!(samples < all);
        }
        // More than enough changes nothing.
        assert_eq!(simulate_own(Some(OwnBudget { share: 0.5, processors: 4 }), 5_000_000).1, all);
    }

    #[test]
    fn a_costly_start_is_paid_back() {
        let mut governor = Governor::new(0.01, None, PRICES, false);
        assert!(
            Governor::new(0.01, None, PRICES, true).rate() < 0.8 * governor.rate(),
            "passed traps are paid for"
        );
        let before = governor.rate();
        let dear = CostTotals {
            stop_ns: 40_000_000,
            samples: 10,
            ticks: 10,
            cpu_ns: 100_000_000,
            ..CostTotals::default()
        };
        assert!(governor.steer(dear) < before / 5.0);
    }

    #[test]
    fn periods_stay_within_a_tenth() {
        let periods: Vec<u64> = (0..1000).map(|entropy| period_ns(100.0, entropy * 7919)).collect();
        assert!(periods.iter().all(|period| (9_000_000..=11_000_000).contains(period)));
        let distinct: std::collections::HashSet<_> = periods.iter().collect();
        assert!(distinct.len() > 900);
    }
}
