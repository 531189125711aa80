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
};

/// The events. Dropping them ends the sampling.
#[derive(Debug)]
pub struct Clock {
    events: Vec<Opened>,
    period_ns: u64,
    changed_ns: u64,
    periods: Periods,
    speed: Speed,
}

/// Which period the clock had when, for those who weigh samples: with each tick of a software clock the kernel tells the period
/// that it was opened with, however it was changed since (`last_period`, which `perf_swevent_hrtimer` in kernel/events/core.c
/// tells, is brought up to date for counters only).
#[derive(Debug, Clone)]
pub struct Periods(Arc<Mutex<VecDeque<(u64, u64)>>>);

/// Latest changes that are kept; no sample waits to be weighed for as long as so many take.
const CHANGES: usize = 4096;

impl Periods {
    /// Of a clock that begins with this one.
    pub fn new(period_ns: u64) -> Self {
        Self(Arc::new(Mutex::new(VecDeque::from([(0, period_ns)]))))
    }

    fn change(&self, now_ns: u64, period_ns: u64) {
        let mut changes = lock(&self.0);
        changes.truncate(CHANGES - 1);
        changes.push_front((now_ns, period_ns));
    }

    /// The period of a tick at this time.
    pub fn at(&self, time_ns: u64) -> u64 {
        let changes = lock(&self.0);
        let before = changes.iter().find(|(since_ns, _)| *since_ns <= time_ns);
        before.or(changes.back()).map_or(0, |(_, period_ns)| *period_ns)
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
        Ok(Self { events, period_ns, changed_ns: 0, periods: Periods::new(period_ns), speed })
    }

    /// Its periods, now and later.
    pub fn periods(&self) -> Periods {
        self.periods.clone()
    }

    /// Starts sampling.
    pub fn start(&self) -> Result<()> {
        for event in &self.events {
            event.enable().context("cannot start sampling")?;
        }
        Ok(())
    }

    /// Stops sampling.
    pub fn stop(&self) {
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
        self.periods.change(now_ns, period_ns);
        for event in &self.events {
            if let Err(error) = event.set_period(self.speed.period(&event.source, period_ns)) {
                tracing::debug!("period not set: {error}");
            }
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
    fn a_tick_has_the_period_of_its_time() {
        let periods = Periods::new(70);
        periods.change(1_000, 80);
        periods.change(2_000, 90);
        assert_eq!([0, 999, 1_000, 1_999, 2_000, u64::MAX].map(|at| periods.at(at)), [70, 70, 80, 80, 90, 90]);
        (0..CHANGES as u64).for_each(|n| periods.change(3_000 + n, n));
        assert_eq!((periods.at(0), periods.at(u64::MAX)), (0, CHANGES as u64 - 1), "the oldest that is kept");
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
