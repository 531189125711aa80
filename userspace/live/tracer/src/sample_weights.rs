//! The CPU time that samples stand for.
//!
//! All analyses weigh a sample by it, times the rate at it where they count accesses. Of a tick of
//! the clock, the clock knows it. A hardware sample stands for a number of accesses; at the end,
//! when rates are known, that is turned into the CPU time which gives those accesses back. Until
//! then a nanosecond is taken for each access.
//!
//! Source of error: a sample whose own rate is not known gets the mean of the others, while
//! analyses borrow a rate from its like.

use std::collections::HashMap;

use locality_common::record::SampleRecord;
use locality_model::{Sample, SampleId, Window};

use super::sampling_clock::Periods;

/// The clock's periods, and the samples whose period is in accesses.
#[derive(Debug)]
pub struct Paced {
    clock: Periods,
    by_accesses: Vec<(SampleId, Sample)>,
}

impl Paced {
    /// With the periods of the clock.
    pub fn new(clock: Periods) -> Self {
        Self { clock, by_accesses: Vec::new() }
    }

    /// Weight of a sample: nanoseconds of CPU time, or accesses for a sample started by them.
    pub fn period(&self, record: &SampleRecord) -> u64 {
        match record.address {
            0 => self.clock.at(record.header.cpu, record.header.time_ns),
            _ => record.period,
        }
    }

    /// Adds a sample; its `period_ns` is the number of accesses.
    pub fn add(&mut self, id: SampleId, sample: &Sample) {
        self.by_accesses.push((id, sample.clone()));
    }

    /// The samples with their CPU time.
    pub fn finish<'a>(self, windows: impl Iterator<Item = &'a Window>) -> Vec<(SampleId, Sample)> {
        let rates = windows.filter_map(|window| Some((window.sample.0, window.rate.as_ref()?.value)));
        let rates: HashMap<u32, f64> = rates.filter(|(_, rate)| *rate > 0.0).collect();
        let (mut accesses, mut ns) = (0.0, 0.0);
        for (id, sample) in &self.by_accesses {
            if let Some(rate) = rates.get(&id.0) {
                accesses += sample.period_ns as f64;
                ns += sample.period_ns as f64 / rate;
            }
        }
        let mean = if ns > 0.0 { accesses / ns } else { 1.0 };
        let with_time = |(id, sample): (SampleId, Sample)| {
            let rate = rates.get(&id.0).unwrap_or(&mean);
            (id, Sample { period_ns: (sample.period_ns as f64 / rate).round() as u64, ..sample })
        };
        self.by_accesses.into_iter().map(with_time).collect()
    }
}

#[cfg(test)]
mod tests {
    use locality_model::{Rate, StackId, ThreadId};

    use super::*;

    fn paced(n: u32) -> Paced {
        let mut paced = Paced::new(Periods::new([]));
        for id in 0..n {
            let access = Err(String::new());
            let (thread, stack) = (ThreadId(0), StackId(0));
            let sample =
                Sample { time_ns: 0, thread, stack, period_ns: 1_000, held: true, access, group: None };
            paced.add(SampleId(id), &sample);
        }
        paced
    }

    fn window(sample: u32, value: f64, source: &str) -> Window {
        let rate = Some(Rate { value, low: value, high: value, source: source.to_owned() });
        let (instructions, accesses, end, touches) = (0, 0, String::new(), Vec::new());
        Window { sample: SampleId(sample), instructions, accesses, end, touches, rate }
    }

    fn periods(windows: &[Window]) -> Vec<u64> {
        paced(3).finish(windows.iter()).into_iter().map(|(_, sample)| sample.period_ns).collect()
    }

    /// Of the clock the kernel's period is not believed; what hardware counts is.
    #[test]
    fn a_tick_and_a_hardware_sample_have_periods_of_their_own() {
        let paced = Paced::new(Periods::new([(0, 70)]));
        // SAFETY: a record of plain numbers.
        let mut record: SampleRecord = unsafe { std::mem::zeroed() };
        record.period = 1_000;
        assert_eq!(paced.period(&record), 70);
        record.address = 0x7000;
        assert_eq!(paced.period(&record), 1_000);
    }

    #[test]
    fn equal_numbers_of_accesses_take_the_time_that_rates_say() {
        // 1,000 accesses at 4 and at 1 a nanosecond; the mean is that of both together.
        assert_eq!(periods(&[window(0, 4.0, "registers"), window(1, 1.0, "registers")]), [250, 1_000, 625]);
        assert_eq!(periods(&[window(1, 2.0, "timing model")]), [500, 500, 500]);
        assert_eq!(periods(&[]), [1_000; 3]);
    }
}
