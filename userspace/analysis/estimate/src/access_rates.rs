//! Accesses per nanosecond along a run, and counts derived from rates:
//! accesses represented by a sample, accesses between two moments.
//!
//! A sample has the rate of the window. Between samples of a process, for each
//! thread, the rate changes evenly (trapezoid over CPU time) between means over
//! neighbouring samples. Only up to [`LOCAL_NS`] after a sample, the sample's own
//! rate holds, or [`BRIEF_NS`] for a rate of the timing model alone. Beyond, the
//! means of neighbours hold: a phase of 1 ms around a sample is no evidence for the
//! 100 ms after the sample. CPU time along a run is the sum of the samples' periods.
//!
//! A sample without a rate borrows the median of the process's samples with an equal
//! stack (three at least), otherwise of the process, otherwise of the run. Without
//! rates, a nanosecond counts as one access, and [`Rates::unit`] tells the unit.
//!
//! Sources of error: the rates' own intervals, with larger errors between
//! samples than at samples; a thread running for less than a period between
//! two samples is not seen; wall time within a period is taken for CPU time.

use std::collections::BTreeMap;
use std::ops::Range;

use locality_model::{Profile, Sample};

/// Least samples of a borrowed rate, to be preferred to the process's.
const ENOUGH: usize = 3;
/// Width of a 95 % interval of the normal distribution in standard deviations.
const WIDTH: f64 = 2.0 * 1.959_964;
/// Neighbours to each side in a mean along a run, of a least number of samples. Samples
/// are tens of milliseconds apart, and programs change work within tens of milliseconds.
/// The rate halfway between two samples is no evidence for the time between.
const REACH: usize = 8;
const FEWEST_TO_SMOOTH: usize = 8;
/// CPU time after a sample with the sample's own rate: the span of the sample's readings.
const LOCAL_NS: f64 = 1.5e6;
/// CPU time after a sample with the rate of the timing model alone: the earliest first reading comes
/// then (`PERIODS_NS` of the tracer's `capture/progress_sampling.rs`). If the thread has changed work
/// by then, only the model is left.
const BRIEF_NS: f64 = 0.4e6;
/// Error of a rate without an interval, or of a borrowed rate: log standard deviation.
const UNSURE: f64 = 0.2;

/// Share of CPU time from which the report doubts every distance.
const MOSTLY: f64 = 0.5;

/// Source of rates of samples without a reading: a timing model's.
pub const MODELLED: &str = "timing model";
/// Source of modelled rates in processes without measured rates.
pub const UNSCALED: &str = "unscaled timing model";

/// Unit of distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unit {
    /// Accesses.
    Accesses,
    /// Nanoseconds of CPU time, for want of a rate.
    #[default]
    CpuNs,
}

impl Unit {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accesses => "accesses",
            Self::CpuNs => "cpu_ns",
        }
    }
}

/// The rate at a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Local {
    /// Accesses per nanosecond of CPU time.
    pub value: f64,
    /// Standard deviation of the rate's logarithm.
    pub sigma: f64,
    /// Index into [`Rates::sources`]; errors of a source are alike.
    pub source: usize,
    /// The rate comes from a timing model alone.
    pub modelled: bool,
}

/// Rates of a profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    unit: Unit,
    locals: Vec<Local>,
    sources: Vec<(String, f64)>,
    lines: BTreeMap<u32, Line>,
    pids: Vec<u32>,
    /// Each sample's index in the process's line.
    places: Vec<usize>,
}

/// A process in order of time.
#[derive(Debug, Clone, Default, PartialEq)]
struct Line {
    points: Vec<Point>,
    /// Neighbours to each side in the means along the line.
    reach: usize,
    /// The process was seen to end: no touch afterwards.
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    time_ns: u64,
    cpu_ns: f64,
    rate: f64,
    accesses: f64,
}

impl Rates {
    /// Reads a profile.
    pub fn of(profile: &Profile) -> Self {
        let known = known(profile);
        let global = median(known.iter().flatten().map(|(rate, ..)| *rate));
        let mut rates = Self {
            unit: if global.is_some() { Unit::Accesses } else { Unit::CpuNs },
            pids: profile.samples.iter().map(|sample| pid(profile, sample)).collect(),
            ..Self::default()
        };
        let mut of_process: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        let mut of_stack: BTreeMap<(u32, u32), Vec<f64>> = BTreeMap::new();
        for ((sample, pid), known) in profile.samples.iter().zip(&rates.pids).zip(&known) {
            if let Some((rate, ..)) = known {
                of_process.entry(*pid).or_default().push(*rate);
                of_stack.entry((*pid, sample.stack.0)).or_default().push(*rate);
            }
        }
        let middle = |rates: Option<&Vec<f64>>, least: usize| {
            rates.filter(|rates| rates.len() >= least).and_then(|rates| median(rates.iter().copied()))
        };
        let mut names: BTreeMap<String, f64> = BTreeMap::new();
        let mut named: Vec<String> = Vec::new();
        for ((sample, pid), known) in profile.samples.iter().zip(&rates.pids).zip(known) {
            let (value, sigma, name) = known.unwrap_or_else(|| {
                let stack = middle(of_stack.get(&(*pid, sample.stack.0)), ENOUGH);
                let (value, name) = match (stack, middle(of_process.get(pid), 1), global) {
                    (Some(value), ..) => (value, "same stack"),
                    (_, Some(value), _) => (value, "median of the process"),
                    (.., Some(value)) => (value, "median of all"),
                    _ => (1.0, "none"),
                };
                (value, UNSURE, name.to_owned())
            });
            *names.entry(name.clone()).or_default() += sample.period_ns as f64;
            let modelled = [MODELLED, UNSCALED].contains(&name.as_str());
            named.push(name);
            rates.locals.push(Local { value, sigma, source: 0, modelled });
        }
        let total: f64 = names.values().sum();
        for (local, name) in rates.locals.iter_mut().zip(named) {
            local.source = names.keys().position(|other| *other == name).unwrap_or(0);
        }
        rates.sources = names.into_iter().map(|(name, ns)| (name, ns / total.max(1.0))).collect();
        (rates.lines, rates.places) = lines(profile, &rates.locals, &rates.pids);
        rates
    }

    /// A single rate, the mean of the samples' rates: the choice of a tool without local rates.
    pub fn global(mut self, profile: &Profile) -> Self {
        let periods = || profile.samples.iter().map(|sample| sample.period_ns as f64);
        let cpu: f64 = periods().sum();
        let accesses: f64 = self.locals.iter().zip(periods()).map(|(local, ns)| local.value * ns).sum();
        if cpu > 0.0 {
            self.locals.iter_mut().for_each(|local| local.value = accesses / cpu);
            (self.lines, self.places) = lines(profile, &self.locals, &self.pids);
        }
        self
    }

    /// Possible factor of error of distances in accesses,
    /// up or down, if hardly a rate was measured.
    pub fn doubt(&self) -> Option<f64> {
        let modelled = self.sources.iter().position(|(source, _)| source == UNSCALED)?;
        let sigmas = self.locals.iter().filter(|local| local.source == modelled).map(|local| local.sigma);
        let sigma = median(sigmas)?;
        let share = self.sources.get(modelled).map_or(0.0, |source| source.1);
        (share > MOSTLY).then(|| (sigma * WIDTH / 2.0).exp())
    }

    /// Unit of distances.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Sources of rates, and each source's share of CPU time.
    pub fn sources(&self) -> &[(String, f64)] {
        &self.sources
    }

    /// The rate at a sample.
    pub fn at(&self, sample: usize) -> Local {
        self.locals.get(sample).copied().unwrap_or(Local {
            value: 1.0,
            sigma: UNSURE,
            source: 0,
            modelled: false,
        })
    }

    /// Accesses per CPU nanosecond of a sample's process between two moments after the sample.
    pub fn between(&self, sample: usize, from_ns: u64, until_ns: u64) -> f64 {
        self.behind(sample, from_ns, until_ns).0
    }

    /// Accesses of a sample's process between two moments
    /// after the sample, counted as by [`Rates::between`].
    pub fn accesses_behind(&self, sample: usize, from_ns: u64, until_ns: u64) -> f64 {
        let (rate, cpu_ns) = self.behind(sample, from_ns, until_ns);
        rate * cpu_ns
    }

    /// The rate between two moments, and CPU time.
    fn behind(&self, sample: usize, from_ns: u64, until_ns: u64) -> (f64, f64) {
        let here = self.at(sample);
        let Some((line, place)) = self.line(sample).zip(self.places.get(sample).copied()) else {
            return (here.value, 0.0);
        };
        let ((cpu_a, a), (cpu_b, b)) = (line.position(from_ns), line.position(until_ns));
        let cpu_ns = cpu_b - cpu_a;
        if cpu_ns <= 0.0 {
            return (here.value, 0.0);
        }
        let along = (b - a) / cpu_ns;
        if line.reach == 0 {
            return (along, cpu_ns);
        }
        let own = line.own_ns(place, from_ns, until_ns) / cpu_ns;
        let others = (along - own * here.value) / (1.0 - own);
        let local_ns = if here.modelled { BRIEF_NS } else { LOCAL_NS };
        let since_ns = line.points.get(place).map_or(0, |point| from_ns.saturating_sub(point.time_ns));
        let near = ((local_ns - since_ns as f64) / cpu_ns).clamp(0.0, 1.0);
        (near * here.value + (1.0 - near) * others, cpu_ns)
    }

    /// Accesses of a sample's process between two moments.
    pub fn accesses(&self, sample: usize, from_ns: u64, until_ns: u64) -> f64 {
        let Some(line) = self.line(sample) else { return 0.0 };
        (line.position(until_ns).1 - line.position(from_ns).1).max(0.0)
    }

    /// Accesses of a sample's process from a moment on to the end of the trace.
    pub fn left(&self, sample: usize, time_ns: u64) -> f64 {
        self.line(sample).map_or(0.0, |line| (line.end() - line.position(time_ns).1).max(0.0))
    }

    /// Whether a sample's process was seen to end: no touch afterwards.
    pub fn ended(&self, sample: usize) -> bool {
        self.line(sample).is_some_and(|line| line.ended)
    }

    /// Accesses per CPU nanosecond of the whole run.
    pub fn mean(&self) -> f64 {
        let ends = || self.lines.values().filter_map(|line| line.points.last());
        let cpu: f64 = ends().map(|point| point.cpu_ns).sum();
        if cpu > 0.0 { ends().map(|point| point.accesses).sum::<f64>() / cpu } else { 1.0 }
    }

    fn line(&self, sample: usize) -> Option<&Line> {
        self.pids.get(sample).and_then(|pid| self.lines.get(pid))
    }
}

impl Line {
    /// Takes means over neighbours as rates, if enough are present, and sums accesses up.
    fn smooth(&mut self) {
        let Some(first) = self.points.first().copied() else { return };
        self.reach = (self.points.len() / FEWEST_TO_SMOOTH).min(REACH);
        let rates: Vec<f64> = self.points.iter().map(|point| point.rate).collect();
        let mut before = Point { cpu_ns: 0.0, accesses: 0.0, ..first };
        for index in 0..rates.len() {
            let around = rates.get(self.around(index)).unwrap_or_default();
            let Some(point) = self.points.get_mut(index) else { break };
            point.rate = around.iter().sum::<f64>() / around.len().max(1) as f64;
            let last = if index == 0 { point.rate } else { before.rate };
            point.accesses = before.accesses + (point.cpu_ns - before.cpu_ns) * (last + point.rate) / 2.0;
            before = *point;
        }
    }

    /// The points in the mean rate at a point.
    fn around(&self, point: usize) -> Range<usize> {
        point.saturating_sub(self.reach)..self.points.len().min(point + self.reach + 1)
    }

    /// CPU time between two moments with a point's own rate,
    /// as a part of the means; at most half of the time.
    fn own_ns(&self, place: usize, from_ns: u64, until_ns: u64) -> f64 {
        let own = |point: usize| match self.around(point) {
            around if around.contains(&place) => 1.0 / around.len() as f64,
            _ => 0.0,
        };
        let time = |point: usize| self.points.get(point).map_or(0, |point| point.time_ns);
        let cpu = |time_ns: u64| self.position(time_ns).0;
        let Range { start, end } = self.around(place);
        let last = self.points.len().saturating_sub(1);
        let mut sum = 0.0;
        // From the point before the first mean affected to the point after the last.
        for point in start.saturating_sub(1)..end.min(last) {
            let (first, next) = (time(point), time(point + 1));
            let (from, until) = (from_ns.max(first), until_ns.min(next));
            if from < until {
                let part = |at: u64| (at - first) as f64 / (next - first) as f64;
                let middle = (part(from) + part(until)) / 2.0;
                sum += (cpu(until) - cpu(from)) * (own(point) * (1.0 - middle) + own(point + 1) * middle);
            }
        }
        // The means of the first and the last point extend outwards.
        let (before, behind) = (until_ns.min(time(0)), from_ns.max(time(last)));
        sum += (cpu(before) - cpu(from_ns.min(before))) * own(0);
        sum + (cpu(until_ns.max(behind)) - cpu(behind)) * own(last)
    }

    /// CPU time and accesses up to a moment.
    fn position(&self, time_ns: u64) -> (f64, f64) {
        let next = self.points.partition_point(|point| point.time_ns <= time_ns);
        let before = next.checked_sub(1).and_then(|i| self.points.get(i));
        match (before, self.points.get(next)) {
            (Some(a), Some(b)) => {
                let part = (time_ns - a.time_ns) as f64 / (b.time_ns - a.time_ns).max(1) as f64;
                let cpu = part * (b.cpu_ns - a.cpu_ns);
                (a.cpu_ns + cpu, a.accesses + cpu * (a.rate + part * (b.rate - a.rate) / 2.0))
            }
            // Outside the samples the thread is taken to run on, for a period at most.
            (Some(last), None) => {
                let ns = ((time_ns - last.time_ns) as f64).min(self.tail_ns());
                (last.cpu_ns + ns, last.accesses + ns * last.rate)
            }
            (None, Some(first)) => {
                let ns = ((first.time_ns - time_ns) as f64).min(first.cpu_ns);
                (first.cpu_ns - ns, first.accesses - ns * first.rate)
            }
            (None, None) => (0.0, 0.0),
        }
    }

    /// The run ends half a period after the last sample on average.
    fn tail_ns(&self) -> f64 {
        match self.points.as_slice() {
            [.., a, b] => b.cpu_ns - a.cpu_ns,
            [only] => only.cpu_ns,
            [] => 0.0,
        }
    }

    fn end(&self) -> f64 {
        self.points.last().map_or(0.0, |last| last.accesses + last.rate * self.tail_ns() / 2.0)
    }
}

/// The processes' lines, and each sample's place in the sample's own line.
fn lines(profile: &Profile, locals: &[Local], pids: &[u32]) -> (BTreeMap<u32, Line>, Vec<usize>) {
    let mut order: Vec<(u64, usize)> =
        profile.samples.iter().enumerate().map(|(i, sample)| (sample.time_ns, i)).collect();
    order.sort_unstable();
    let mut lines: BTreeMap<u32, Line> = BTreeMap::new();
    let mut places = vec![0; profile.samples.len()];
    for (time_ns, index) in order {
        let (Some(pid), Some(local), Some(sample)) =
            (pids.get(index), locals.get(index), profile.samples.get(index))
        else {
            continue;
        };
        let line = lines.entry(*pid).or_default();
        let cpu_ns = line.points.last().map_or(0.0, |last| last.cpu_ns) + sample.period_ns as f64;
        if let Some(place) = places.get_mut(index) {
            *place = line.points.len();
        }
        line.points.push(Point { time_ns, cpu_ns, rate: local.value, accesses: 0.0 });
    }
    for (pid, line) in &mut lines {
        line.smooth();
        let mut threads = profile.threads.iter().filter(|thread| thread.pid == *pid).peekable();
        line.ended = threads.peek().is_some() && threads.all(|thread| thread.ended_ns.is_some());
    }
    (lines, places)
}

/// Rate, error and source of each sample with a possible rate in the window.
fn known(profile: &Profile) -> Vec<Option<(f64, f64, String)>> {
    let mut known = vec![None; profile.samples.len()];
    for window in &profile.windows {
        let (Some(place), Some(rate)) = (known.get_mut(window.sample.0 as usize), &window.rate) else {
            continue;
        };
        let possible = |value: f64| value.is_finite() && value > 1e-9 && value < 1e3;
        if !possible(rate.value) {
            continue;
        }
        let sigma = if possible(rate.low) && possible(rate.high) && rate.high >= rate.low {
            ((rate.high / rate.low).ln() / WIDTH).min(2.0)
        } else {
            UNSURE
        };
        *place = Some((rate.value, sigma, rate.source.clone()));
    }
    known
}

fn pid(profile: &Profile, sample: &Sample) -> u32 {
    profile.threads.get(sample.thread.0 as usize).map_or(0, |thread| thread.pid)
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied()?;
    let even = values.len().is_multiple_of(2);
    Some(if even { (upper + values.get(middle - 1).copied().unwrap_or(upper)) / 2.0 } else { upper })
}

#[cfg(test)]
mod tests;
