//! What starts samples: on each CPU a software clock or the events that sample accesses, all with the same period.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, anyhow};

use super::lock;
use crate::kernel::{
    object::Object,
    sources::{
        Source,
        open::{Opened, explain, open},
        select::Selected,
    },
    sys,
};

/// The events. Dropping them ends the sampling.
#[derive(Debug)]
pub struct Clock {
    events: Vec<Opened>,
    period_ns: u64,
    changed_ns: u64,
    periods: Periods,
    /// Since when it stands still.
    stopped_ns: Option<u64>,
    speed: Speed,
}

/// What the ticks of a software clock stand for: with each the kernel tells the period that the clock was opened with, however it was
/// changed since (`last_period`, which `perf_swevent_hrtimer` in kernel/events/core.c tells, is brought up to date for counters only).
///
/// A change begins the running period anew, so that the first tick behind it stands for what had run, too.
#[derive(Debug, Clone)]
pub struct Periods(Arc<Mutex<VecDeque<Change>>>);

/// From a moment on.
#[derive(Debug, Clone, Copy)]
struct Change {
    since_ns: u64,
    period_ns: u64,
    /// What had run of the period before.
    carried_ns: u64,
}

impl Change {
    /// What had run of a period at this time, and what the next tick would have stood for besides.
    fn begun(&self, now_ns: u64) -> (u64, u64) {
        let ns = now_ns.saturating_sub(self.since_ns);
        let before_ns = if ns < self.period_ns { self.carried_ns } else { 0 };
        (ns.checked_rem(self.period_ns).unwrap_or(0), before_ns)
    }

    fn of_tick(&self, time_ns: u64) -> u64 {
        let is_first = time_ns.saturating_sub(self.since_ns) < self.period_ns + self.period_ns / 2;
        self.period_ns + if is_first { self.carried_ns } else { 0 }
    }
}

/// Latest changes that are kept: of many minutes. A sample that waits to be weighed for longer has the oldest period.
const CHANGES: usize = 4096;

impl Periods {
    /// Of a clock that begins with this one.
    pub fn new(period_ns: u64) -> Self {
        let first = Change { since_ns: 0, period_ns, carried_ns: 0 };
        Self(Arc::new(Mutex::new(VecDeque::from([first]))))
    }

    /// Another period, or the same one once more, begins now.
    fn change(&self, now_ns: u64, period_ns: u64) {
        let mut changes = lock(&self.0);
        // Nobody knows when the first of all began.
        let before = changes.front().filter(|before| before.since_ns > 0);
        let (ran_ns, before_ns) = before.map_or((0, 0), |before| before.begun(now_ns));
        changes.truncate(CHANGES - 1);
        changes.push_front(Change { since_ns: now_ns, period_ns, carried_ns: ran_ns + before_ns });
    }

    /// It stood still for so long until now, and goes on where it was.
    fn pause(&self, now_ns: u64, paused_ns: u64) {
        let mut changes = lock(&self.0);
        let Some(before) = changes.front().copied() else { return };
        let (ran_ns, carried_ns) = before.begun(now_ns.saturating_sub(paused_ns));
        changes.truncate(CHANGES - 1);
        changes.push_front(Change { since_ns: now_ns - ran_ns.min(now_ns), carried_ns, ..before });
    }

    /// CPU time that a tick at this time stands for.
    pub fn at(&self, time_ns: u64) -> u64 {
        let changes = lock(&self.0);
        let oldest = || changes.back().map_or(0, |oldest| oldest.period_ns);
        let before = changes.iter().find(|change| change.since_ns <= time_ns);
        before.map_or_else(oldest, |change| change.of_tick(time_ns))
    }
}

/// Periods that pass before the next change, unless the clock must go much faster at once.
const PERIODS_AT_LEAST: u64 = 3;

impl Clock {
    /// Opens a clock on each online CPU, disabled, running the `sample` program.
    pub fn open(object: &Object, period_ns: u64) -> Result<Self> {
        Self::open_with(object, &Selected::default(), period_ns)
    }

    /// The same with what was selected for each CPU.
    pub fn open_with(object: &Object, selected: &Selected, period_ns: u64) -> Result<Self> {
        let cpus = aya::util::online_cpus().map_err(|(_, error)| error).context("cannot list the CPUs")?;
        let program = object.program_fd("sample")?;
        let speed = Speed::default();
        let mut events = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            for source in selected.on(cpu) {
                let opened = open(&source, -1, cpu as i32, speed.period(&source, period_ns)).map_err(|error| {
                    anyhow!(
                        "cannot sample with {} on CPU {cpu}: {}; `locality-bpf doctor` tells what is missing",
                        source.kind,
                        explain(&error)
                    )
                })?;
                opened
                    .event
                    .set_program(program)
                    .with_context(|| format!("cannot attach the eBPF program to {}", source.kind))?;
                events.push(opened);
            }
        }
        Ok(Self {
            events,
            period_ns,
            changed_ns: 0,
            periods: Periods::new(period_ns),
            stopped_ns: None,
            speed,
        })
    }

    /// Its periods, now and later.
    pub fn periods(&self) -> Periods {
        self.periods.clone()
    }

    /// Starts sampling.
    pub fn start(&mut self) -> Result<()> {
        for event in &self.events {
            event.enable().context("cannot start sampling")?;
        }
        let now_ns = sys::monotonic_ns();
        match self.stopped_ns.take() {
            Some(since_ns) => {
                let paused_ns = now_ns.saturating_sub(since_ns);
                self.changed_ns += paused_ns;
                self.periods.pause(now_ns, paused_ns);
            }
            None => self.periods.change(now_ns, self.period_ns),
        }
        Ok(())
    }

    /// Stops sampling.
    pub fn stop(&mut self) {
        self.stopped_ns = Some(sys::monotonic_ns());
        for event in &self.events {
            if let Err(error) = event.disable() {
                tracing::debug!("clock not stopped: {error}");
            }
        }
    }

    /// Changes the period on all CPUs, if it is time to: each change starts the running period anew, so that changes
    /// in quick succession would keep the clock from ever firing. `spent`: what [`Speed::learn`] wants.
    pub fn steer(&mut self, period_ns: u64, now_ns: u64, spent: (u64, u64)) {
        let ran_ns = now_ns.saturating_sub(self.changed_ns);
        if ran_ns < PERIODS_AT_LEAST * self.period_ns && period_ns > self.period_ns / 2 {
            return;
        }
        self.speed.learn(spent);
        (self.period_ns, self.changed_ns) = (period_ns, now_ns);
        let mut changed = false;
        for event in &self.events {
            match event.set_period(self.speed.period(&event.source, period_ns)) {
                Ok(()) => changed = true,
                Err(error) => tracing::debug!("period not set: {error}"),
            }
        }
        if changed {
            self.periods.change(sys::monotonic_ns(), period_ns);
        }
    }

    /// Accesses that a hardware sample now stands for.
    pub fn period_accesses(&self) -> u64 {
        self.speed.accesses(self.period_ns)
    }
}

/// How many accesses the targets make in a nanosecond of CPU time, to turn a period of time into one of accesses. It steers the
/// number of samples only: each tells the period that it had.
#[derive(Debug, Clone, Copy)]
struct Speed {
    accesses_per_ns: f64,
    before: (u64, u64),
}

impl Default for Speed {
    fn default() -> Self {
        Self { accesses_per_ns: 1.0, before: (0, 0) }
    }
}

/// The speed changes at most by this factor at once: few samples may lie between two looks.
const STEP: f64 = 4.0;

impl Speed {
    /// Takes in the accesses that all samples so far stood for, and the targets' CPU time.
    fn learn(&mut self, spent: (u64, u64)) {
        let (accesses, cpu_ns) =
            (spent.0.saturating_sub(self.before.0), spent.1.saturating_sub(self.before.1));
        // Time without samples says as much as samples do, once some were due.
        if cpu_ns > 0 && (accesses > 0 || cpu_ns > 1_000_000_000) {
            self.before = spent;
            let seen = accesses as f64 / cpu_ns as f64;
            let (low, high) = (self.accesses_per_ns / STEP, self.accesses_per_ns * STEP);
            self.accesses_per_ns = ((self.accesses_per_ns + seen) / 2.0).clamp(low, high).clamp(1e-3, 1e2);
        }
    }

    fn accesses(&self, period_ns: u64) -> u64 {
        (period_ns as f64 * self.accesses_per_ns) as u64
    }

    /// The period of a source that samples as often as a clock of `period_ns`.
    fn period(&self, source: &Source, period_ns: u64) -> u64 {
        if source.address { self.accesses(period_ns) } else { period_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::sources::Kind;

    #[test]
    fn a_tick_stands_for_the_period_of_its_time() {
        let periods = Periods::new(70);
        periods.change(1_000, 80);
        // Ticks at 1,080 and 1,160; 40 had run when the next period began.
        periods.change(1_200, 90);
        assert_eq!(
            [0, 999, 1_080, 1_160, 1_290, 1_380, 9_000].map(|at| periods.at(at)),
            [70, 70, 80, 80, 130, 90, 90]
        );
        // It stood still from 1,500 to 1,700: 30 of the period had run, and the next tick comes 60 later.
        periods.pause(1_700, 200);
        periods.change(1_720, 100);
        assert_eq!(periods.at(1_820), 100 + 30 + 20, "what ran on both sides of the pause");
        (0..CHANGES as u64).for_each(|n| periods.change(3_000 + n, 1 + n));
        assert_eq!((periods.at(0), periods.at(u64::MAX)), (1, CHANGES as u64), "the oldest that is kept");
    }

    /// All of the time between the first change and the last tick is in the ticks, whenever changes come.
    #[test]
    fn ticks_stand_for_all_of_the_time() {
        let mut random = fastrand::Rng::with_seed(3);
        let periods = Periods::new(100);
        let (mut now, mut sum, mut last) = (1_000, 0, 1_000);
        for _ in 0..200 {
            let period = random.u64(50..150);
            periods.change(now, period);
            let until = now + random.u64(0..600);
            for tick in (now + period..=until).step_by(period as usize) {
                sum += periods.at(tick);
                last = tick;
            }
            now = until;
        }
        assert_eq!(sum, last - 1_000);
    }

    #[test]
    fn periods_in_accesses_follow_the_targets() {
        let (hardware, clock) =
            (Source { kind: Kind::IbsOp, address: true, ..Source::clock() }, Source::clock());
        let mut speed = Speed::default();
        assert_eq!(speed.period(&hardware, 10_000_000), 10_000_000);
        // A program that makes three accesses in ten nanoseconds.
        let (mut accesses, mut cpu_ns) = (0, 0);
        for _ in 0..30 {
            cpu_ns += 100_000_000;
            accesses += 30_000_000;
            speed.learn((accesses, cpu_ns));
        }
        assert!((2_990_000..3_010_000).contains(&speed.period(&hardware, 10_000_000)), "{speed:?}");
        assert_eq!(speed.period(&clock, 10_000_000), 10_000_000);
        // None comes any more: it makes fewer, and the period goes down until some do.
        for _ in 0..20 {
            cpu_ns += 1_100_000_000;
            speed.learn((accesses, cpu_ns));
        }
        assert_eq!(speed.period(&hardware, 10_000_000), 10_000);
    }
}
