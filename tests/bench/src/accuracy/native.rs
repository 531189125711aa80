//! CPU time of a repetition: in native runs around a trace, and of the traced program itself.
//!
//! The native time is the difference of two runs, without start-up. The traced program's time
//! follows from the output meanwhile, the better figure: caches and clock frequency are as in
//! the trace. The traced time is taken from programs that print often enough. Sources of
//! error: the trace's own cost is included (a hundredth); output in buffers at either end.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    corpus::{Entry, Ready, Repeat},
    process::{self, Progress, Run},
    score,
};

/// CPU time of native runs that a repetition's is taken from, at least, in seconds.
const NATIVE_S: f64 = 0.6;
/// Least number of reads of a program's output for the progress to 3 %.
const ENOUGH_STEPS: f64 = 30.0;

/// Measurements of a run to plan further runs, or repetitions for a run that seems to take no time.
const ATTEMPTS: u32 = 3;

/// Native runs that are long enough to measure.
pub struct Runs {
    again_and_again: bool,
    repetitions: u32,
}

impl Runs {
    /// Finds the number of repetitions for runs of that length.
    ///
    /// # Errors
    /// A program that fails.
    pub fn new(entry: &Entry, ready: impl Fn(u32) -> Result<Ready>) -> Result<Self> {
        let mut runs = Self { again_and_again: entry.repeat == Repeat::Process, repetitions: 4 };
        // The difference of two short runs is noise on a
        // busy host, and the next runs could take minutes.
        let rough = (0..ATTEMPTS).map(|_| Ok(runs.once(&ready)?.cpu_s)).collect::<Result<Vec<f64>>>()?;
        let rough = score::median(&rough).unwrap_or(0.0).max(1e-4);
        runs.repetitions = (NATIVE_S / rough).ceil().clamp(2.0, 1000.0) as u32;
        Ok(runs)
    }

    /// A repetition: the mean of whole runs, or the difference of two.
    fn once(&self, ready: impl Fn(u32) -> Result<Ready>) -> Result<Run> {
        let n = f64::from(self.repetitions);
        if self.again_and_again {
            let runs = (0..self.repetitions).map(|_| process::run(&ready(1)?)).collect::<Result<Vec<_>>>()?;
            let sum = |of: fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / n;
            return Ok(Run { cpu_s: sum(|run| run.cpu_s), bytes: sum(|run| run.bytes) });
        }
        let (one, many) = (process::run(&ready(1)?)?, process::run(&ready(1 + self.repetitions)?)?);
        Ok(Run { cpu_s: (many.cpu_s - one.cpu_s) / n, bytes: (many.bytes - one.bytes) / n })
    }
}

/// Speeds that go with a trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Native {
    /// CPU seconds a repetition, natively.
    measured: Vec<f64>,
    /// Bytes that a repetition prints.
    bytes: f64,
    /// What the traced program did.
    pub traced: Option<Progress>,
}

impl Native {
    /// Measures twice.
    ///
    /// # Errors
    /// A program that fails, or takes no time.
    pub fn add(&mut self, runs: &Runs, ready: impl Fn(u32) -> Result<Ready>) -> Result<()> {
        for _ in 0..2 {
            // The difference of two runs on a busy host may come out below nothing.
            let mut attempts = (0..ATTEMPTS).map(|_| runs.once(&ready));
            let once = attempts.find(|once| once.as_ref().map_or(true, |run| run.cpu_s > 0.0));
            let once = once.context("a repetition takes no CPU time that could be measured")??;
            self.measured.push(once.cpu_s);
            self.bytes = once.bytes;
        }
        Ok(())
    }

    /// Median of the native runs, in seconds.
    pub fn once(&self) -> f64 {
        score::median(&self.measured).unwrap_or(f64::NAN)
    }

    /// Largest minus smallest, as a share of the median.
    pub fn spread(&self) -> f64 {
        let most = self.measured.iter().copied().fold(f64::MIN, f64::max);
        let least = self.measured.iter().copied().fold(f64::MAX, f64::min);
        (most - least) / self.once()
    }

    /// CPU seconds a repetition of the traced program, if its output tells.
    pub fn traced_once(&self) -> Option<f64> {
        let traced = self.traced.filter(|traced| traced.steps >= ENOUGH_STEPS)?;
        let once = traced.cpu_s * self.bytes / traced.bytes;
        (once.is_finite() && once > 0.0).then_some(once)
    }

    /// To be stored, with the hash of the work.
    pub fn json(&self, work: &str) -> Value {
        let traced = self.traced.map(|traced| [traced.cpu_s, traced.bytes, traced.steps]);
        json!({ "work": work, "seconds": self.measured, "bytes": self.bytes, "traced": traced })
    }

    /// The stored value; `None` for other work.
    pub fn of_json(kept: &Value, work: &str) -> Option<Self> {
        let same = kept.get("work")?.as_str()? == work;
        let number = |at: usize| kept.get("traced")?.get(at)?.as_f64();
        let traced = number(0).zip(number(1)).zip(number(2));
        let native = Self {
            measured: kept.get("seconds")?.as_array()?.iter().filter_map(Value::as_f64).collect(),
            bytes: kept.get("bytes").and_then(Value::as_f64).unwrap_or(0.0),
            traced: traced.map(|((cpu_s, bytes), steps)| Progress { cpu_s, bytes, steps }),
        };
        same.then_some(native)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(traced: Option<Progress>) -> Native {
        Native { measured: vec![0.02, 0.03, 0.022], bytes: 17.0, traced }
    }

    #[test]
    fn output_tells_how_often_the_work_was_done() {
        // 1,000 repetitions in 25 s.
        let traced = native(Some(Progress { cpu_s: 25.0, bytes: 17_000.0, steps: 1000.0 }));
        assert!((traced.traced_once().unwrap() - 0.025).abs() < 1e-12);
        assert!((traced.once() - 0.022).abs() < 1e-12);
        assert!((traced.spread() - 0.01 / 0.022).abs() < 1e-9);
        // Too few writes, and none at all.
        assert_eq!(native(Some(Progress { cpu_s: 25.0, bytes: 17_000.0, steps: 4.0 })).traced_once(), None);
        assert_eq!(native(Some(Progress { cpu_s: 25.0, bytes: 0.0, steps: 40.0 })).traced_once(), None);
        assert_eq!(native(None).traced_once(), None);
    }

    #[test]
    fn what_is_kept_is_read_again_for_the_same_work_only() {
        for traced in [None, Some(Progress { cpu_s: 1.0, bytes: 2.0, steps: 3.0 })] {
            let kept = native(traced).json("a");
            assert_eq!(Native::of_json(&kept, "a"), Some(native(traced)));
            assert_eq!(Native::of_json(&kept, "b"), None);
        }
    }
}
