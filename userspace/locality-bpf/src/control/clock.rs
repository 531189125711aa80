//! The sampling clock: one software event on each CPU, all with the same period.

use anyhow::{Context as _, Result};

use crate::kernel::{object::Object, perf::Event};

/// The events. Dropping them ends the sampling.
#[derive(Debug)]
pub struct Clock {
    events: Vec<Event>,
    period_ns: u64,
    changed_ns: u64,
}

/// Periods that pass before the next change, unless the clock must go much faster at once.
const PERIODS_AT_LEAST: u64 = 3;

impl Clock {
    /// Opens one event on each online CPU, disabled, running the `sample` program.
    pub fn open(object: &Object, period_ns: u64) -> Result<Self> {
        let cpus = aya::util::online_cpus().map_err(|(_, error)| error).context("cannot list the CPUs")?;
        let program = object.program_fd("sample")?;
        let mut events = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            let event = Event::clock(cpu, period_ns).with_context(|| {
                format!(
                    "cannot open the sampling clock on CPU {cpu}; `locality-bpf doctor` tells what is missing"
                )
            })?;
            event.set_program(program).context("cannot attach the eBPF program to the sampling clock")?;
            events.push(event);
        }
        Ok(Self { events, period_ns, changed_ns: 0 })
    }

    /// Starts sampling.
    pub fn start(&self) -> Result<()> {
        for event in &self.events {
            event.enable().context("cannot start the sampling clock")?;
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
    /// in quick succession would keep the clock from ever firing.
    pub fn steer(&mut self, period_ns: u64, now_ns: u64) {
        let ran_ns = now_ns.saturating_sub(self.changed_ns);
        if ran_ns < PERIODS_AT_LEAST * self.period_ns && period_ns > self.period_ns / 2 {
            return;
        }
        (self.period_ns, self.changed_ns) = (period_ns, now_ns);
        for event in &self.events {
            if let Err(error) = event.set_period(period_ns) {
                tracing::debug!("period not set: {error}");
            }
        }
    }
}
