//! Parallelism and mix of a run's instructions, from windows.
//!
//! A window stands for the instructions that its thread executes in the sample's period, so windows of fast
//! code have more weight. Parallelism with W instructions in flight is the quotient of two sums over windows:
//! instructions, and cycles by dependences alone (Caparrós Cabezas, RZ 3834, 2012, work ÷ span; Wall,
//! ASPLOS 1991). The parallelism of one window is no sample of the run's: its spread is a result of its own.
//!
//! Sources of error: intervals are those of sampling; a wrong rate of accesses gives a place a wrong weight;
//! a window that ended early, for instance at a system call, shows the code before the end only.

use std::collections::{BTreeMap, BTreeSet};

use locality_estimate::access_rates::{Rates, Unit};
use locality_estimate::interval_estimate::{Counted, Estimate, quantiles, ratio};
use locality_model::{ExecutionSpan, Profile, WindowExecution};

/// Parallelism and mix.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Execution {
    /// Instructions in windows.
    pub instructions: u64,
    /// Accesses in windows.
    pub accesses: u64,
    /// By machine, few instructions in flight first.
    pub machines: Vec<Machine>,
    /// Loads, and stores, for each instruction.
    pub loads: Estimate,
    /// As `loads`.
    pub stores: Estimate,
    /// Share of instructions by class.
    pub classes: Vec<(String, Estimate)>,
}

/// Parallelism on a machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// Instructions in flight at most.
    pub in_flight: u32,
    /// Instructions counted, and their cycles.
    pub instructions: u64,
    /// As `instructions`.
    pub cycles: u64,
    /// Instructions for each cycle.
    pub ilp: Estimate,
    /// Quantiles .05, .5 and .95 of the instructions' windows by parallelism.
    pub spread: [f64; 3],
}

impl Execution {
    /// Of a profile; `None` if no window has parallelism.
    pub fn of(profile: &Profile, rates: &Rates) -> Option<Self> {
        let weighed = weighed(profile, rates);
        if weighed.is_empty() {
            return None;
        }
        let of_each = |count: &dyn Fn(&WindowExecution) -> u64| {
            let observed = weighed.iter().map(|(of, counted)| {
                let part = count(of) as f64 / of.instructions as f64;
                ((part, 1.0), *counted)
            });
            ratio(&observed.collect::<Vec<_>>())
        };
        let sum = |count: &dyn Fn(&WindowExecution) -> u64| {
            weighed.iter().fold(0_u64, |sum, (of, _)| sum.saturating_add(count(of)))
        };
        let classes: BTreeSet<&String> = weighed.iter().flat_map(|(of, _)| of.classes.keys()).collect();
        let of_class = |of: &WindowExecution, class: &str| of.classes.get(class).copied().unwrap_or(0);
        Some(Self {
            instructions: sum(&|of| of.instructions),
            accesses: sum(&|of| of.loads.saturating_add(of.stores)),
            machines: machines(&weighed),
            loads: of_each(&|of| of.loads),
            stores: of_each(&|of| of.stores),
            classes: classes
                .into_iter()
                .map(|class| (class.clone(), of_each(&|of| of_class(of, class))))
                .collect(),
        })
    }
}

/// Windows with the instructions that each stands for.
fn weighed<'a>(profile: &'a Profile, rates: &Rates) -> Vec<(&'a WindowExecution, Counted)> {
    let counted = |of: &'a WindowExecution| {
        let sample = profile.samples.get(of.sample.0 as usize)?;
        let accesses = of.loads.saturating_add(of.stores);
        // Instructions per nanosecond; unknown without accesses.
        let speed = (rates.unit() == Unit::Accesses && accesses > 0)
            .then(|| rates.at(of.sample.0 as usize).value * of.instructions as f64 / accesses as f64);
        (of.instructions > 0).then_some((of, sample.period_ns as f64, speed))
    };
    let found: Vec<_> = profile.executions.iter().filter_map(counted).collect();
    let speeds: Vec<f64> = found.iter().filter_map(|(_, _, speed)| *speed).collect();
    let mean = if speeds.is_empty() { 1.0 } else { speeds.iter().sum::<f64>() / speeds.len() as f64 };
    let weigh = |(of, period_ns, speed): (&'a WindowExecution, f64, Option<f64>)| {
        (of, Counted { weight: period_ns * speed.unwrap_or(mean), sample: of.sample.0 })
    };
    found.into_iter().map(weigh).collect()
}

fn machines(weighed: &[(&WindowExecution, Counted)]) -> Vec<Machine> {
    let mut by_machine: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for (of, counted) in weighed {
        for span in of.spans.iter().filter(|span| span.instructions > 0 && span.cycles > 0) {
            by_machine.entry(span.in_flight).or_default().push((span, *counted));
        }
    }
    let machine = |(in_flight, spans): (u32, Vec<(&ExecutionSpan, Counted)>)| {
        let sum = |of: fn(&ExecutionSpan) -> u64| {
            spans.iter().fold(0, |sum, (span, _)| u64::saturating_add(sum, of(span)))
        };
        let each = |of: fn(f64) -> f64| {
            let ilp = |span: &ExecutionSpan| span.instructions as f64 / span.cycles as f64;
            spans.iter().map(move |(span, counted)| (of(ilp(span)), *counted))
        };
        let ilps: Vec<(f64, Counted)> = each(|ilp| ilp).collect();
        let cycles: Vec<_> = each(|ilp| 1.0 / ilp).map(|(each, counted)| ((1.0, each), counted)).collect();
        Machine {
            in_flight,
            instructions: sum(|span| span.instructions),
            cycles: sum(|span| span.cycles),
            ilp: ratio(&cycles),
            spread: quantiles(&ilps, [0.05, 0.5, 0.95]),
        }
    };
    by_machine.into_iter().map(machine).collect()
}

#[cfg(test)]
mod tests {
    use locality_model::{Sample, SampleId, Window};

    use super::*;

    fn execution(sample: u32, cycles: u64) -> WindowExecution {
        WindowExecution {
            sample: SampleId(sample),
            instructions: 1000,
            loads: 200,
            stores: 50,
            classes: [("integer".to_owned(), 600), ("move".to_owned(), 400)].into(),
            spans: vec![ExecutionSpan { in_flight: 64, instructions: 800, cycles }],
        }
    }

    /// Samples of 1 ms; windows of the first half run at `fast` accesses per nanosecond, the others at 1.
    fn profile(samples: u32, fast: f64, cycles: impl Fn(u32) -> u64) -> Profile {
        let sample = Sample {
            time_ns: 0,
            thread: locality_model::ThreadId(0),
            stack: locality_model::StackId(0),
            period_ns: 1_000_000,
            held: true,
            access: Err(String::new()),
            group: None,
        };
        let rate = |sample: u32| if sample < samples / 2 { fast } else { 1.0 };
        Profile {
            samples: vec![sample; samples as usize],
            threads: vec![locality_model::Thread::default()],
            windows: (0..samples)
                .map(|at| Window {
                    sample: SampleId(at),
                    instructions: 1000,
                    accesses: 250,
                    rate: Some(locality_model::Rate {
                        value: rate(at),
                        low: rate(at),
                        high: rate(at),
                        source: "loop registers".to_owned(),
                    }),
                    end: "whole".to_owned(),
                    touches: Vec::new(),
                })
                .collect(),
            executions: (0..samples).map(|at| execution(at, cycles(at))).collect(),
            ..Profile::default()
        }
    }

    #[test]
    fn equal_windows_have_their_parallelism_without_doubt() {
        let profile = profile(40, 1.0, |_| 200);
        let found = Execution::of(&profile, &Rates::of(&profile)).unwrap();
        let machine = &found.machines[0];
        assert_eq!((machine.in_flight, machine.ilp.n), (64, 40));
        for end in [machine.ilp.value, machine.ilp.low, machine.ilp.high] {
            assert!((end - 4.0).abs() < 1e-6, "{:?}", machine.ilp);
        }
        assert!((found.loads.value - 0.2).abs() < 1e-9 && (found.stores.value - 0.05).abs() < 1e-9);
        let classes: Vec<(&str, f64)> =
            found.classes.iter().map(|(class, share)| (class.as_str(), share.value)).collect();
        assert_eq!(classes, [("integer", 0.6), ("move", 0.4)]);
        assert_eq!((found.instructions, found.accesses), (40_000, 10_000));
    }

    /// Code at three times the speed executes three times the instructions: its windows count three times.
    #[test]
    fn fast_code_has_more_instructions() {
        let samples = 200;
        let profile = profile(samples, 3.0, |at| if at < samples / 2 { 100 } else { 800 });
        let found = Execution::of(&profile, &Rates::of(&profile)).unwrap();
        let ilp = found.machines[0].ilp;
        let truth = 4.0 / (3.0 / 8.0 + 1.0);
        assert!((ilp.value / truth - 1.0).abs() < 0.02, "{ilp:?}, should be {truth}");
        assert!(ilp.low < truth && truth < ilp.high, "{ilp:?}");
        assert_eq!(found.machines[0].spread, [1.0, 8.0, 8.0]);
    }

    #[test]
    fn no_windows_have_no_parallelism() {
        let profile = Profile::default();
        assert_eq!(Execution::of(&profile, &Rates::of(&profile)), None);
    }
}
