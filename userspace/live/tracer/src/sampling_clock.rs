//! What starts samples: on each CPU a software clock or the events that sample accesses.
//!
//! Each CPU has its own, randomly changing periods, because threads stopped at once wait for each
//! other: clocks with a common start and equal periods tick together for ever.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, anyhow};

use locality_kernel::lock::lock;
use locality_kernel::{
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
    cpus: Vec<Cpu>,
    /// When accesses were last looked at.
    learnt_ns: u64,
    periods: Periods,
    /// Since when it stands still.
    stopped_ns: Option<u64>,
    speed: Speed,
}

/// The clock of one CPU.
#[derive(Debug)]
struct Cpu {
    number: u32,
    events: Vec<Opened>,
    period_ns: u64,
    changed_ns: u64,
}

/// What the ticks of a software clock stand for: with each the kernel tells the period that the
/// clock was opened with, however it was changed since (`last_period`, which `perf_swevent_hrtimer`
/// in kernel/events/core.c tells, is brought up to date for counters only).
///
/// A change restarts the running period, so the next tick represents the elapsed part too.
#[derive(Debug, Clone)]
pub struct Periods(Arc<Mutex<HashMap<u32, VecDeque<Change>>>>);

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

/// Latest changes that are stored of a CPU: of many minutes. A sample that waits to be weighed for
/// longer has the oldest period.
const CHANGES: usize = 1024;

impl Periods {
    /// Periods of clocks that begin with these, by CPU.
    pub fn new(first: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let change = |period_ns| Change { since_ns: 0, period_ns, carried_ns: 0 };
        let first = first.into_iter().map(|(cpu, period_ns)| (cpu, VecDeque::from([change(period_ns)])));
        Self(Arc::new(Mutex::new(first.collect())))
    }

    /// A new period, or the same one again, begins now.
    fn change(&self, cpu: u32, now_ns: u64, period_ns: u64) {
        let mut all = lock(&self.0);
        let changes = all.entry(cpu).or_default();
        // The start of the first period is unknown.
        let before = changes.front().filter(|before| before.since_ns > 0);
        let (ran_ns, before_ns) = before.map_or((0, 0), |before| before.begun(now_ns));
        changes.truncate(CHANGES - 1);
        changes.push_front(Change { since_ns: now_ns, period_ns, carried_ns: ran_ns + before_ns });
    }

    /// All clocks stood still for this long, and continue.
    fn pause(&self, now_ns: u64, paused_ns: u64) {
        for changes in lock(&self.0).values_mut() {
            let Some(before) = changes.front().copied() else { continue };
            let (ran_ns, carried_ns) = before.begun(now_ns.saturating_sub(paused_ns));
            changes.truncate(CHANGES - 1);
            changes.push_front(Change { since_ns: now_ns - ran_ns.min(now_ns), carried_ns, ..before });
        }
    }

    /// CPU time that a tick of a CPU at this time stands for.
    pub fn at(&self, cpu: u32, time_ns: u64) -> u64 {
        let all = lock(&self.0);
        let Some(changes) = all.get(&cpu) else { return 0 };
        let oldest = || changes.back().map_or(0, |oldest| oldest.period_ns);
        let before = changes.iter().find(|change| change.since_ns <= time_ns);
        before.map_or_else(oldest, |change| change.of_tick(time_ns))
    }
}

/// Periods that pass before the next change, unless the clock must go much faster at once.
const PERIODS_AT_LEAST: u64 = 3;

impl Clock {
    /// Opens a clock on each online CPU, disabled, running the `sample` program, all with the same period.
    pub fn open(object: &Object, period_ns: u64) -> Result<Self> {
        Self::open_with(object, &Selected::default(), |_| period_ns)
    }

    /// The same with what was selected for each CPU, and the first period of each.
    pub fn open_with(
        object: &Object,
        selected: &Selected,
        first_period_ns: impl Fn(u32) -> u64,
    ) -> Result<Self> {
        let cpus = aya::util::online_cpus().map_err(|(_, error)| error).context("cannot list the CPUs")?;
        let program = object.program_fd("sample")?;
        let speed = Speed::default();
        let mut all = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            let (mut events, period_ns) = (Vec::new(), first_period_ns(cpu));
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
            all.push(Cpu { number: cpu, events, period_ns, changed_ns: 0 });
        }
        let periods = Periods::new(all.iter().map(|cpu| (cpu.number, cpu.period_ns)));
        Ok(Self { cpus: all, learnt_ns: 0, periods, stopped_ns: None, speed })
    }

    /// Its periods, now and later.
    pub fn periods(&self) -> Periods {
        self.periods.clone()
    }

    /// Starts sampling.
    pub fn start(&mut self) -> Result<()> {
        for event in self.cpus.iter().flat_map(|cpu| &cpu.events) {
            event.enable().context("cannot start sampling")?;
        }
        let now_ns = sys::monotonic_ns();
        match self.stopped_ns.take() {
            Some(since_ns) => {
                let paused_ns = now_ns.saturating_sub(since_ns);
                self.cpus.iter_mut().for_each(|cpu| cpu.changed_ns += paused_ns);
                self.periods.pause(now_ns, paused_ns);
            }
            None => {
                self.cpus.iter().for_each(|cpu| self.periods.change(cpu.number, now_ns, cpu.period_ns));
            }
        }
        Ok(())
    }

    /// Stops sampling.
    pub fn stop(&mut self) {
        self.stopped_ns = Some(sys::monotonic_ns());
        for event in self.cpus.iter().flat_map(|cpu| &cpu.events) {
            if let Err(error) = event.disable() {
                tracing::debug!("clock not stopped: {error}");
            }
        }
    }

    /// Changes the period of each CPU to what it shall have, if it is time to: each change starts
    /// the running period anew, so that changes in quick succession would keep the clock from ever
    /// firing. `spent`: what [`Speed::learn`] wants.
    pub fn steer(&mut self, period_ns: impl Fn(u32) -> u64, now_ns: u64, spent: (u64, u64)) {
        let Self { cpus, learnt_ns, periods, speed, .. } = self;
        for cpu in cpus {
            let period_ns = period_ns(cpu.number);
            let is_early = |since_ns: u64| {
                let ran_ns = now_ns.saturating_sub(since_ns);
                ran_ns < PERIODS_AT_LEAST * cpu.period_ns && period_ns > cpu.period_ns / 2
            };
            if is_early(cpu.changed_ns) {
                continue;
            }
            if !is_early(*learnt_ns) {
                *learnt_ns = now_ns;
                speed.learn(spent);
            }
            (cpu.period_ns, cpu.changed_ns) = (period_ns, now_ns);
            let mut changed = false;
            for event in &cpu.events {
                match event.set_period(speed.period(&event.source, period_ns)) {
                    Ok(()) => changed = true,
                    Err(error) => tracing::debug!("period not set: {error}"),
                }
            }
            if changed {
                periods.change(cpu.number, sys::monotonic_ns(), period_ns);
            }
        }
    }

    /// Accesses that a hardware sample now stands for, in the mean of the CPUs.
    pub fn period_accesses(&self) -> u64 {
        let sum: u64 = self.cpus.iter().map(|cpu| self.speed.accesses(cpu.period_ns)).sum();
        sum / self.cpus.len().max(1) as u64
    }
}

/// How many accesses the targets make in a nanosecond of CPU time, to turn a period of time into
/// one of accesses. It steers the number of samples only: each tells the period that it had.
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
    /// Takes in the accesses represented by all samples so far, and the targets' CPU time.
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
    use locality_kernel::sources::Kind;

    #[test]
    fn a_tick_stands_for_the_period_of_its_time() {
        let periods = Periods::new([(3, 70), (4, 75)]);
        periods.change(3, 1_000, 80);
        // Ticks at 1,080 and 1,160; 40 had run when the next period began.
        periods.change(3, 1_200, 90);
        assert_eq!(
            [0, 999, 1_080, 1_160, 1_290, 1_380, 9_000].map(|at| periods.at(3, at)),
            [70, 70, 80, 80, 130, 90, 90]
        );
        assert_eq!([periods.at(4, 9_000), periods.at(5, 9_000)], [75, 0], "other CPUs");
        // It stood still from 1,500 to 1,700: 30 of the period had run, and the next tick comes 60 later.
        periods.pause(1_700, 200);
        periods.change(3, 1_720, 100);
        assert_eq!(periods.at(3, 1_820), 100 + 30 + 20, "what ran on both sides of the pause");
        (0..CHANGES as u64).for_each(|n| periods.change(3, 3_000 + n, 1 + n));
        assert_eq!(
            (periods.at(3, 0), periods.at(3, u64::MAX)),
            (1, CHANGES as u64),
            "the oldest that is kept"
        );
    }

    /// All of the time between the first change and the last tick is in the ticks, whenever changes come.
    #[test]
    fn ticks_stand_for_all_of_the_time() {
        let mut random = fastrand::Rng::with_seed(3);
        let periods = Periods::new([(0, 100)]);
        let (mut now, mut sum, mut last) = (1_000, 0, 1_000);
        for _ in 0..200 {
            let period = random.u64(50..150);
            periods.change(0, now, period);
            let until = now + random.u64(0..600);
            for tick in (now + period..=until).step_by(period as usize) {
                sum += periods.at(0, tick);
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
