//! Keeps the cost of the allocation probes within a share of the targets' CPU time: first by
//! following fewer allocations (a larger least size), then by taking the probes away for a while.
//!
//! Pure: counters and clocks in, decisions out. The cost is calls × calibrated price. A
//! program that allocates a million times a second is watched in bursts: standing probes slow
//! the program, and a burst is cut as soon as the next few milliseconds would exceed the
//! savings. Source of error: between two looks the program may call more often than before.

use std::time::Duration;

/// What was counted, cumulative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Calls at emulated instructions.
    pub calls: u64,
    /// Calls at stepped instructions.
    pub stepped: u64,
    /// Calls followed to their return.
    pub followed: u64,
    /// Stacks that were copied.
    pub sites: u64,
}

/// Calibrated cost of one call in the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// A call at an emulated instruction.
    pub call_ns: u64,
    /// A call at an instruction that is stepped over.
    pub stepped_ns: u64,
    /// Extra cost of following the call to the return and recording the call.
    pub follow_ns: u64,
    /// To copy a stack, on top.
    pub site_ns: u64,
}

impl Counted {
    /// Cost so far.
    pub fn cost_ns(&self, prices: &Prices) -> u64 {
        self.calls * prices.call_ns
            + self.stepped * prices.stepped_ns
            + self.followed * prices.follow_ns
            + self.sites * prices.site_ns
    }

    /// Part of the cost that a larger least size would save.
    fn followed_ns(&self, prices: &Prices) -> u64 {
        self.followed * prices.follow_ns + self.sites * prices.site_ns
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing changes.
    Keep,
    /// Follow only allocations of so many bytes and more.
    Raise(u64),
    /// Take the probes away.
    Pause,
    /// Put them back.
    Resume,
}

/// Initial allowance, before the targets have used CPU time, to see allocations at a program's
/// start.
const CREDIT_NS: u64 = 5_000_000;

/// What must be saved up for a burst to pay.
const BURST_NS: u64 = 4_000_000;

/// Removed probes stay away for this long, because insertion takes a few milliseconds.
const PAUSE_MIN_NS: u64 = 200_000_000;

/// Largest least size.
const MIN_BYTES_MAX: u64 = 64 << 10;

/// Least time of a call of an allocation function without probes.
const CALL_LEAST_NS: f64 = 5.0;

/// Looks are so far apart, at least and at most. Each wakes us, often on the traced program's own CPU.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(25));

/// The decider.
#[derive(Debug, Clone)]
pub struct Duty {
    share: f64,
    prices: Prices,
    min_bytes: u64,
    paused_since_ns: Option<u64>,
    before: (u64, Counted, u64),
    /// Cost for each nanosecond of wall time, as of late.
    burning: f64,
    /// CPU time, less our cost, with and without probes.
    watched_ns: f64,
    unwatched_ns: f64,
}

impl Duty {
    /// With a share of CPU time (0.004 is 0.4 %) and the least size to begin with.
    pub fn new(share: f64, prices: Prices, min_bytes: u64) -> Self {
        Self {
            share,
            prices,
            min_bytes,
            paused_since_ns: None,
            before: (0, Counted::default(), 0),
            // As dear as can be, until it is known.
            burning: 1.0,
            watched_ns: 0.0,
            unwatched_ns: 0.0,
        }
    }

    /// The least size in force.
    pub fn min_bytes(&self) -> u64 {
        self.min_bytes
    }

    /// Whether the probes are away.
    pub fn is_paused(&self) -> bool {
        self.paused_since_ns.is_some()
    }

    /// Share of the targets' own CPU time with probes in place; 1 at the start.
    pub fn watched(&self) -> f64 {
        let all = self.watched_ns + self.unwatched_ns;
        if all > 0.0 { self.watched_ns / all } else { 1.0 }
    }

    fn allowed_ns(&self, cpu_ns: u64) -> f64 {
        CREDIT_NS as f64 + self.share * cpu_ns as f64
    }

    /// Decides at `now_ns`, the targets having used `cpu_ns`.
    pub fn turn(&mut self, now_ns: u64, cpu_ns: u64, counted: Counted) -> Decision {
        let (then_ns, before, cpu_before_ns) = std::mem::replace(&mut self.before, (now_ns, counted, cpu_ns));
        let cost_ns = counted.cost_ns(&self.prices);
        let spent_ns = cost_ns.saturating_sub(before.cost_ns(&self.prices)) as f64;
        let wall_ns = now_ns.saturating_sub(then_ns).max(1) as f64;
        // However dear the probes were, the calls themselves took something.
        let calls = (counted.calls + counted.stepped).saturating_sub(before.calls + before.stepped);
        let least_ns = calls as f64 * CALL_LEAST_NS;
        let own_ns = (cpu_ns.saturating_sub(cpu_before_ns) as f64 - spent_ns).max(least_ns);
        if then_ns != 0 {
            *(if self.is_paused() { &mut self.unwatched_ns } else { &mut self.watched_ns }) += own_ns;
        }
        let left_ns = self.allowed_ns(cpu_ns) - cost_ns as f64;
        if let Some(since_ns) = self.paused_since_ns {
            // A burst lasts two looks at least: their last cost must be available.
            let burst_ns = (BURST_NS as f64).max(2.0 * self.burning * LOOKS.0.as_nanos() as f64);
            if now_ns.saturating_sub(since_ns) < PAUSE_MIN_NS || left_ns < burst_ns {
                return Decision::Keep;
            }
            self.paused_since_ns = None;
            return Decision::Resume;
        }
        if then_ns != 0 {
            self.burning = spent_ns / wall_ns;
        }
        if left_ns > self.burning * LOOKS.0.as_nanos() as f64 {
            return Decision::Keep;
        }
        let followed_ns = counted.followed_ns(&self.prices).saturating_sub(before.followed_ns(&self.prices));
        if followed_ns as f64 > spent_ns / 2.0
            && self.min_bytes < MIN_BYTES_MAX
            && left_ns > -(BURST_NS as f64)
        {
            self.min_bytes = (self.min_bytes.max(1) * 4).min(MIN_BYTES_MAX);
            return Decision::Raise(self.min_bytes);
        }
        self.paused_since_ns = Some(now_ns);
        Decision::Pause
    }

    /// The probes stand again only now: the insertion took a while.
    pub fn stands(&mut self, now_ns: u64, cpu_ns: u64) {
        let (then_ns, counted, cpu_before_ns) = self.before;
        if then_ns != 0 {
            self.unwatched_ns += cpu_ns.saturating_sub(cpu_before_ns) as f64;
        }
        self.before = (now_ns, counted, cpu_ns);
    }

    /// When to look again.
    pub fn next_look(&self, cpu_ns: u64) -> Duration {
        if self.is_paused() || self.burning <= 0.0 {
            return LOOKS.1;
        }
        let left_ns = self.allowed_ns(cpu_ns) - self.before.1.cost_ns(&self.prices) as f64;
        // Half way to the expected end, since the program may get faster.
        Duration::from_nanos((left_ns / self.burning / 2.0).max(0.0) as u64).clamp(LOOKS.0, LOOKS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices { call_ns: 800, stepped_ns: 11_000, follow_ns: 1_500, site_ns: 15_000 };

    /// A program that would make so many calls in a second of its own time, a share of them large;
    /// returns the cost as a share of its CPU time, the share that was watched, and how often the
    /// probes were put back.
    fn simulate(share: f64, calls_a_second: f64, large: f64, seconds: u64) -> (f64, Duty, u32) {
        let mut duty = Duty::new(share, PRICES, 1024);
        let (mut now, mut cpu, mut counted, mut resumed) = (1u64, 0u64, Counted::default(), 0);
        let mut owed = 0.0;
        while now < seconds * 1_000_000_000 {
            let step = duty.next_look(cpu).as_nanos() as u64;
            now += step;
            cpu += step;
            if !duty.is_paused() {
                let large = if duty.min_bytes() > 1024 { large / 8.0 } else { large };
                let price = PRICES.call_ns as f64 + large * PRICES.follow_ns as f64;
                owed += step as f64 / (1e9 / calls_a_second + price);
                counted.calls += owed as u64;
                counted.followed += (owed * large) as u64;
                owed = owed.fract();
            }
            resumed += u32::from(duty.turn(now, cpu, counted) == Decision::Resume);
        }
        (counted.cost_ns(&PRICES) as f64 / cpu as f64, duty, resumed)
    }

    #[test]
    fn an_ordinary_program_is_watched_all_the_time() {
        let (cost, duty, resumed) = simulate(0.005, 3_000.0, 0.1, 20);
        assert_eq!((resumed, duty.watched(), duty.min_bytes()), (0, 1.0, 1024));
        assert!(cost < 0.004, "{cost}");
    }

    #[test]
    fn a_million_allocations_a_second_are_watched_in_bursts_within_the_share() {
        for (calls, large) in [(2e6, 0.0), (2e6, 0.5), (2e5, 0.02)] {
            let (cost, duty, resumed) = simulate(0.005, calls, large, 30);
            assert!(cost < 0.0056, "{calls} {large}: {cost}");
            assert!(resumed > 10, "{calls} {large}: {resumed}");
            assert!(duty.watched() > 0.0005 && duty.watched() < 0.2, "{calls} {large}: {}", duty.watched());
        }
    }

    #[test]
    fn few_small_calls_and_many_large_ones_raise_the_least_size_first() {
        let (cost, duty, resumed) = simulate(0.005, 4_000.0, 1.0, 20);
        assert!(duty.min_bytes() > 1024 && resumed == 0, "{duty:?} {resumed}");
        assert!(cost < 0.006, "{cost}");
    }
}
