//! Knowledge of one quantity from all windows so far: accesses per step.
//!
//! Slopes are ratios of sums over windows, since a mean of ratios of a bursty counter is biased.
//! Windows count if their sample saw the quantity move at a similar speed, to separate phases of a
//! program; windows without motion count too. A window comes before the readings. If enough samples
//! were read at the code of their windows, only these count. Otherwise windows of another phase,
//! without motion of the quantity, are pooled with the speed of this one, and steps look too rare.
//! Windows come at equal distances in time, so slow code has more of them than its share of
//! accesses: each window is weighted by the speed of the timing model. Source of error: that model.

use crate::speed_fit::{Common, Interval, common_speed, mean_speed};
use crate::steps::{Motion, Steps, difference, relative_error, sums};

/// Windows remembered for a quantity; beyond, half of them are forgotten.
const MOST_RECORDS: usize = 256;
/// Windows that are pooled, the nearest in time.
const POOLED: usize = 48;
/// Steps that a pool should have, if need be from more windows.
const STEPS: u32 = 150;
/// Fewest windows of a pool.
pub(crate) const FEWEST: usize = 4;
/// Values at readings from which a range is believed.
const FEWEST_VALUES: u32 = 24;
/// Stretches between readings that are remembered, and from how many a common speed follows.
const MOST_INTERVALS: usize = 160;
const FEWEST_INTERVALS: usize = 32;
/// Parts of its range that uneven steps may be at most for the range to be believed.
const FINE: u64 = 1000;
/// ln of the ratio of speeds up to which two samples are of the same phase.
const SAME_PHASE: f64 = 0.4;
/// Times the mean distance of steps that the longest distance may be for steps to count as regular.
const LONGEST_GAP: f64 = 2.0;
/// Relative error up to which a window's own slope stands for its surroundings.
const PRECISE: f64 = 0.03;
/// Relative error up to which a loop's round is taken to be known, and how much may lie between two.
const WELL_KNOWN: f64 = 0.05;
const BETWEEN: f64 = 0.01;
/// Standard errors within which there is doubt how many rounds a step takes.
const DOUBT: f64 = 2.5;
/// Share of unseen steps beyond which the seen ones do not represent them.
const MOST_UNSEEN: f64 = 0.5;

/// Permitted difference between the period in windows and the range of values at readings, as a
/// share.
const WHOLE: f64 = 0.05;

/// One window's share.
#[derive(Debug, Clone, Copy)]
struct Record {
    sample: u32,
    /// Sum of the steps after the first and the accesses from the first to the last.
    between: (f64, f64),
    /// Sum of all steps and of all accesses while the quantity was seen.
    total: (f64, f64),
    /// Steps.
    edges: u32,
    /// The quantity was stored before its value was known: one more step, of unknown size.
    unseen: bool,
    /// Error of `between`.
    sigma: f64,
    /// Most accesses with the quantity known to be unchanged.
    still: f64,
    /// What the sums have been multiplied by.
    weight: f64,
    /// Speed of the quantity in the sample's readings, per nanosecond; 0 if not read.
    speed: f64,
    /// The readings were taken at the work that the window shows.
    steady: bool,
}

impl Record {
    /// Accesses during which the quantity was seen.
    fn accesses(&self) -> f64 {
        self.total.1 / self.weight
    }
}

/// Advance per access.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slope {
    /// Per access, positive.
    pub value: f64,
    /// Relative standard error.
    pub sigma: f64,
    /// Windows that the knowledge rests on.
    pub windows: u32,
}

/// A quantity.
#[derive(Debug, Clone)]
pub(crate) struct Quantity {
    /// +1 for a growing quantity.
    pub sign: i8,
    /// Width.
    pub bits: u32,
    /// Constant size of steps, as far as windows saw.
    pub stride: Option<u64>,
    /// Largest step that windows saw.
    pub largest: u64,
    /// Start of the register's block.
    pub block: Option<u64>,
    /// Period in value, if all windows saw the same.
    pub wrap: Option<u64>,
    /// Wraps of other kinds were seen.
    pub wraps_vary: bool,
    /// Windows in which the quantity moved as a counter.
    pub good: u32,
    /// Windows in which the quantity did not.
    pub bad: u32,
    /// Intervals between readings with forward motion.
    pub forward: u32,
    /// Intervals with backward motion.
    pub backward: u32,
    /// Samples that read the quantity unchanged, since its last motion.
    pub still: u32,
    /// Number of the last sample whose window had the quantity.
    pub last_seen: u32,
    range: Range,
    /// The value when it was seen last in a window, and how often the next window's was higher, lower.
    last_value: Option<u64>,
    across: (u32, u32),
    records: Vec<Record>,
    /// By other quantity of the block: windows with as many steps here as wraps there, one at
    /// least, and other windows.
    beside: Vec<(u32, u32, u32)>,
    /// How often half of them were forgotten.
    thinned: u32,
    /// With the places of the samples whose readings followed the quantity.
    intervals: Vec<(u64, Interval)>,
    /// How many there were.
    noted: u32,
    /// Samples refer to the quantity, so its index cannot stand for another one.
    pub is_cited: bool,
}

/// Values seen at readings.
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    low: u64,
    high: u64,
    seen: u32,
    /// Number of increases.
    grown: u32,
    /// Values since it grew last by more than chance, or too often for that.
    since: u32,
}

/// The n-th of n values from anywhere within a range lies beyond the others with a chance of 2 / n,
/// by one part in n in the mean: so many parts, but no tenth, and so many times the logarithm of n,
/// are still chance.
const CHANCE_PARTS: f64 = 8.0;
const CHANCE_PART: f64 = 0.1;
const CHANCE_TIMES: f64 = 3.0;

impl Range {
    fn note(&mut self, value: u64) {
        let before = (self.high - self.low) as f64;
        let is_new = self.seen == 0 || value < self.low || value > self.high;
        self.seen = self.seen.saturating_add(1);
        let seen = f64::from(self.seen);
        if is_new {
            self.low = if self.seen == 1 { value } else { self.low.min(value) };
            self.high = self.high.max(value);
            self.grown = self.grown.saturating_add(1);
        }
        let by = (self.high - self.low) as f64 - before;
        let is_little = by <= (CHANCE_PARTS / seen).min(CHANCE_PART) * before;
        let is_chance = is_little && f64::from(self.grown) <= CHANCE_TIMES * seen.ln();
        self.since = if is_new && !is_chance { 0 } else { self.since.saturating_add(1) };
    }
}

impl Quantity {
    pub fn new(steps: &Steps, bits: u32) -> Quantity {
        Quantity {
            sign: steps.sign,
            bits,
            stride: steps.stride,
            largest: steps.largest,
            block: None,
            wrap: None,
            wraps_vary: false,
            good: 0,
            bad: 0,
            forward: 0,
            backward: 0,
            still: 0,
            last_seen: 0,
            range: Range::default(),
            last_value: None,
            across: (0, 0),
            records: Vec::new(),
            beside: Vec::new(),
            thinned: 0,
            intervals: Vec::new(),
            noted: 0,
            is_cited: false,
        }
    }

    /// Records the values at the beginning and at the end of a window. Windows are far apart, so
    /// the values separate counters from quantities that begin anew each time.
    pub fn note_ends(&mut self, first: u64, last: u64) {
        if let Some(before) = self.last_value.replace(last) {
            let step = difference(before, first, self.bits).wrapping_mul(self.sign.into());
            self.across.0 += u32::from(step > 0);
            self.across.1 += u32::from(step < 0);
        }
        self.note_value(first);
    }

    /// Share of the comparisons, between readings and between windows, with backward motion, and
    /// their number.
    pub fn turns(&self) -> (f64, u32) {
        let back = self.backward + self.across.1;
        let all = back + self.forward + self.across.0;
        (f64::from(back) / f64::from(all.max(1)), all)
    }

    /// Notes the value at a reading.
    pub fn note_value(&mut self, value: u64) {
        self.range.note(value);
    }

    /// Difference between the highest and the lowest value at readings.
    pub fn span(&self) -> f64 {
        (self.range.high - self.range.low) as f64
    }

    /// Steps per period, and the relative error: from windows with a wrap, else from the range of
    /// many readings.
    pub fn period(&self) -> Option<(f64, f64)> {
        if self.wraps_vary {
            return None;
        }
        if let Some(wrap) = self.wrap {
            return Some((wrap as f64, 0.0));
        }
        let (step, range) = (self.stride.unwrap_or(self.largest), self.range);
        (self.backward + self.across.1 >= 2
            && (self.stride.is_some() || step * FINE < range.high - range.low)
            && range.seen >= FEWEST_VALUES
            && range.since >= FEWEST_VALUES / 2)
            .then(|| {
                let period = (range.high - range.low).saturating_add(step) as f64;
                // The largest of n uniform values is short of the end by one part in n + 1.
                (period * (1.0 + 1.0 / f64::from(range.seen)), 1.0 / f64::from(range.seen))
            })
    }

    /// Distance from the start of the period, distance to its end, and the error of both; `None` if
    /// unknown, or outside of the period. A range that readings do not leave is taken as the
    /// period.
    pub fn position(&self, value: u64) -> Option<(f64, f64, f64)> {
        let (period, error) = self.period()?;
        let Range { low, high, .. } = self.range;
        let is_whole = (period - self.span()).abs() <= WHOLE * period + self.step();
        let is_known = self.wrap.is_none() || is_whole;
        if self.stride.is_none() || !is_known || value < low || value > high {
            return None;
        }
        let (below, above) = ((value - low) as f64, (high - value) as f64);
        let (done, left) = if self.sign > 0 { (below, above) } else { (above, below) };
        Some((done, left, period * error))
    }

    /// The size of its steps, at most.
    pub fn step(&self) -> f64 {
        self.stride.unwrap_or(self.largest) as f64
    }

    /// Notes how far it went between readings.
    pub fn note_intervals(&mut self, place: u64, intervals: &[Interval]) {
        for interval in intervals {
            let interval = (place, *interval);
            self.noted += 1;
            if self.intervals.len() < MOST_INTERVALS {
                self.intervals.push(interval);
            } else if let Some(old) = self.intervals.get_mut(mixed(self.noted, 0) as usize % MOST_INTERVALS) {
                *old = interval;
            }
        }
    }

    /// The places whose samples' readings followed it often enough to agree on a speed.
    pub fn places(&self) -> Vec<u64> {
        let mut places: Vec<u64> = self.intervals.iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        let is_often = |same: &&[u64]| same.len() >= FEWEST_INTERVALS;
        places.chunk_by(u64::eq).filter(is_often).filter_map(|same| same.first().copied()).collect()
    }

    /// The speed on which the samples of a place agree, within bounds, if the quantity wraps so
    /// often that most samples fit several speeds.
    pub fn common_speed(&self, place: u64, bounds: (f64, f64)) -> Option<Common> {
        let intervals = self.intervals_at(&[place]);
        let common = common_speed(&intervals, self.period()?, self.step(), bounds);
        // A loop with changing speed has a most frequent speed too, which is not its mean.
        let mean = self.mean_speed(&[place], bounds);
        common.into_iter().chain(mean).max_by(|a, b| a.score.total_cmp(&b.score))
    }

    /// The mean speed over the samples of places, within bounds, where most readings leave no doubt
    /// how often it came round.
    pub fn mean_speed(&self, places: &[u64], bounds: (f64, f64)) -> Option<Common> {
        mean_speed(&self.intervals_at(places), self.period()?.0, bounds)
    }

    fn intervals_at(&self, places: &[u64]) -> Vec<Interval> {
        let there = self.intervals.iter().filter(|(place, _)| places.contains(place));
        there.map(|(_, interval)| *interval).collect()
    }

    /// Accesses per step in the windows of several samples together.
    pub fn slope_of(&self, is_one: impl Fn(u32) -> bool) -> Option<Slope> {
        let records: Vec<&Record> = self.records.iter().filter(|record| is_one(record.sample)).collect();
        if is_regular(&records) { between(&records, FEWEST) } else { total(&records) }
            .filter(|slope| slope.value > 0.0 && slope.value.is_finite())
    }

    /// Forgets all that was observed; the quantity is not sound afterwards.
    pub fn clear(&mut self) {
        (self.good, self.bad) = (0, 0);
        (self.records, self.beside, self.intervals) = (Vec::new(), Vec::new(), Vec::new());
    }

    /// True while the quantity may be used: it counted in nearly all windows.
    pub fn is_sound(&self) -> bool {
        self.good > 0 && self.bad * 8 <= self.good
    }

    /// True when it is known to turn back at times without a period that windows saw.
    pub fn turns_back(&self) -> bool {
        self.wraps_vary || (self.wrap.is_none() && self.backward > 0)
    }

    /// Takes a window's view. `seen`: indexes of the accesses between which the quantity was seen:
    /// all accesses for a word, those from the first to the last visit of its block for a register.
    /// `weight`: speed of this code, in any unit: windows come at equal distances in time, so fast
    /// code has fewer windows than its share of accesses.
    pub fn observe(&mut self, sample: u32, motion: &Motion, seen: (u32, u32), weight: f64) {
        self.last_seen = sample;
        let accesses = f64::from(seen.1.saturating_sub(seen.0));
        let mut record = Record {
            sample,
            between: (0.0, 0.0),
            total: (0.0, accesses),
            edges: 0,
            unseen: false,
            sigma: f64::INFINITY,
            still: accesses,
            weight,
            speed: 0.0,
            steady: false,
        };
        match motion {
            Motion::Moving(steps) if steps.sign == self.sign => {
                self.good += 1;
                self.largest = self.largest.max(steps.largest);
                if self.stride != steps.stride {
                    self.stride = None;
                }
                match (self.wrap, steps.wrap) {
                    (Some(a), Some(b)) if a != b => self.wraps_vary = true,
                    (None, Some(b)) => self.wrap = Some(b),
                    _ => {}
                }
                let ends = steps.first.saturating_sub(seen.0).max(seen.1.saturating_sub(steps.last));
                record.still = f64::from(steps.longest.max(ends));
                record.total.0 = steps.total;
                record.between = (steps.advance, steps.accesses);
                record.edges = steps.edges;
                record.sigma = steps.sigma;
            }
            Motion::Constant => {}
            _ => {
                self.bad += 1;
                return;
            }
        }
        let weigh = |pair: (f64, f64)| (pair.0 * weight, pair.1 * weight);
        (record.total, record.between) = (weigh(record.total), weigh(record.between));
        if accesses > 0.0 {
            self.push(record);
        }
    }

    fn push(&mut self, record: Record) {
        if self.records.len() >= MOST_RECORDS {
            // Neighbours may belong to different phases, so they are not added up; every second one
            // might belong to the same phase.
            self.thinned += 1;
            let round = self.thinned;
            self.records.retain(|record| is_kept(record.sample, round));
        }
        self.records.push(record);
    }

    /// Records that a window began with a store to the word.
    pub fn note_unseen(&mut self, sample: u32) {
        if let Some(record) = self.last(sample) {
            record.unseen = true;
        }
    }

    /// Records the speed in a sample's readings; `steady`: read at the work of the window.
    pub fn note_speed(&mut self, sample: u32, speed: f64, steady: bool) {
        if let Some(record) = self.last(sample) {
            (record.speed, record.steady) = (speed, steady);
        }
    }

    fn last(&mut self, sample: u32) -> Option<&mut Record> {
        self.records.last_mut().filter(|record| record.sample == sample)
    }

    /// Accesses per step around a sample with this speed of the quantity (0: unknown).
    pub fn slope(&self, sample: u32, speed: f64) -> Option<Slope> {
        let distance = |record: &&Record| (record.sample.abs_diff(sample), record.sample);
        let is_similar = |record: &&Record| (record.speed / speed).ln().abs() <= SAME_PHASE;
        let mut near: Vec<&Record> =
            self.records.iter().filter(|r| speed <= 0.0 || r.speed <= 0.0 || is_similar(r)).collect();
        // Windows without a reading may belong to another phase: last.
        near.sort_by_key(|record| (speed > 0.0 && record.speed <= 0.0, distance(record)));
        let is_steady = |record: &&Record| record.speed > 0.0 && record.steady;
        if speed > 0.0 && near.iter().filter(|record| is_steady(record)).count() >= 2 * FEWEST {
            near.retain(is_steady);
        }
        let known = near.iter().filter(|record| record.speed > 0.0).count();
        let own = near
            .iter()
            .find(|record| record.sample == sample && record.sigma <= 2.0 * PRECISE && record.edges >= 6)
            .map(|own| Slope {
                value: own.between.0 / own.between.1,
                sigma: own.sigma.hypot(0.04),
                windows: 1,
            });
        if speed > 0.0 && known >= 2 * FEWEST {
            near.truncate(known);
        } else if own.is_some() {
            return own;
        }
        let mut edges = 0;
        let enough = near.iter().enumerate().position(|(n, record)| {
            edges += record.edges;
            n + 1 >= POOLED && edges >= STEPS
        });
        near.truncate(enough.map_or(near.len(), |n| n + 1));
        let own = near.iter().copied().find(|record| record.sample == sample);
        if is_regular(&near) {
            let own = own.filter(|own| own.sigma <= PRECISE).map(|own| Slope {
                value: own.between.0 / own.between.1,
                sigma: own.sigma,
                windows: 1,
            });
            own.or_else(|| between(&near, 1))
        } else {
            // A window is a few microseconds: of what comes and goes, none of them stands for milliseconds.
            let all = total(&near);
            let longest = near.iter().map(|record| record.accesses()).fold(0.0, f64::max);
            near.retain(|record| 2.0 * record.accesses() >= longest);
            // An outer loop steps in nearly each window that is nearly as long as its round, and
            // now and then in a shorter one.
            let of_long = total(&near)
                .map(|slope| Slope { sigma: slope.sigma.hypot(1.0 / f64::from(slope.windows)), ..slope });
            [all, of_long].into_iter().flatten().min_by(|a, b| a.sigma.total_cmp(&b.sigma))
        }
        .filter(|slope| slope.value > 0.0 && slope.value.is_finite())
    }

    /// Accesses per step for steps at equal distances, which all windows together show more exactly
    /// than one.
    pub fn regular_slope(&self) -> Option<Slope> {
        let all: Vec<&Record> = self.records.iter().collect();
        is_regular(&all).then(|| between(&all, FEWEST))?
    }

    /// Accesses per round of the register's loop, with the relative error, if both are well known.
    pub fn round(&self, sample: u32) -> Option<(f64, f64)> {
        let (period, error) = self.period()?;
        let slope = self.slope(sample, 0.0)?;
        let sigma = error.hypot(slope.sigma);
        (sigma <= WELL_KNOWN).then_some((period / slope.value, sigma))
    }

    /// The slope, if the loop around that of `rounds` makes the steps. Windows are too short for
    /// many such steps, so the number of rounds per step is the whole number that they show, if
    /// beyond doubt.
    pub fn slope_by_rounds(&self, told: Slope, (accesses, sigma): (f64, f64)) -> Option<Slope> {
        let stride = self.stride? as f64;
        let times = stride / (told.value * accesses);
        let whole = times.round().max(1.0);
        let is_clear = DOUBT * told.sigma * whole < 1.0 && (times / whole).ln().abs() < DOUBT * told.sigma;
        // What the outer loop does between two rounds is in neither.
        is_clear.then(|| Slope { value: stride / (whole * accesses), sigma: sigma.hypot(BETWEEN), ..told })
    }

    /// Notes whether a window showed as many steps of it as wraps of another quantity.
    pub fn note_beside(&mut self, other: u32, agrees: bool) {
        let at = self.beside.iter().position(|(known, ..)| *known == other).unwrap_or_else(|| {
            self.beside.push((other, 0, 0));
            self.beside.len() - 1
        });
        if let Some((_, together, apart)) = self.beside.get_mut(at) {
            *if agrees { together } else { apart } += 1;
        }
    }

    /// Its slope, if all windows show one step for each round of another quantity: an outer loop's
    /// register, and one of the inner loop, whose rounds exceed the windows.
    pub fn slope_by_wraps(&self, other: u32, (accesses, sigma): (f64, f64)) -> Option<Slope> {
        let (_, together, apart) = self.beside.iter().find(|(known, ..)| *known == other)?;
        let stride = self.stride.filter(|_| *together >= 1 && *apart == 0)? as f64;
        Some(Slope { value: stride / accesses, sigma: sigma.hypot(BETWEEN), windows: *together })
    }

    /// Steps and windows in all.
    pub fn weight(&self) -> (u32, u32) {
        (self.records.iter().map(|record| record.edges).sum(), self.records.len() as u32)
    }
}

/// A coin for each sample and round.
fn is_kept(sample: u32, round: u32) -> bool {
    mixed(sample, round) >> 31 == 0
}

/// Fibonacci hashing, twice, to use all bits of both.
fn mixed(a: u32, b: u32) -> u32 {
    let mixed = a.wrapping_mul(0x9E37_79B9) ^ b.wrapping_mul(0x85EB_CA6B);
    (mixed ^ mixed >> 15).wrapping_mul(0x9E37_79B9)
}

/// True if steps come at about equal distances in all these windows: whole periods can be taken,
/// and windows without motion were too short.
fn is_regular(records: &[&Record]) -> bool {
    let (accesses, gaps) = records.iter().fold((0.0, 0.0), |sum, record| {
        (sum.0 + record.between.1 / record.weight, sum.1 + f64::from(record.edges.saturating_sub(1)))
    });
    let still = records.iter().map(|record| record.still).fold(0.0, f64::max);
    gaps >= 2.0 && still <= LONGEST_GAP * accesses / gaps
}

/// The slope between the first and last steps of at least so many of these windows.
fn between(records: &[&Record], fewest: usize) -> Option<Slope> {
    pool(
        records.iter().filter(|record| record.between.1 > 0.0).map(|record| record.between).collect(),
        fewest,
    )
}

/// The slope of all these windows; unseen steps are taken as large as the seen ones, if they are a
/// minority.
fn total(records: &[&Record]) -> Option<Slope> {
    let (seen, unseen) = records.iter().fold((0.0, 0.0), |sum, record| {
        (sum.0 + record.weight * f64::from(record.edges), sum.1 + record.weight * f64::from(record.unseen))
    });
    let share = if unseen > 0.0 { unseen / (seen + unseen) } else { 0.0 };
    if share > MOST_UNSEEN {
        return None;
    }
    let whole = |record: &&Record| (record.total.0 / (1.0 - share), record.total.1);
    let slope = pool(records.iter().map(whole).collect(), FEWEST)?;
    Some(Slope { sigma: slope.sigma.hypot(share / 2.0), ..slope })
}

/// The ratio of the sums of at least so many pairs.
fn pool(pairs: Vec<(f64, f64)>, fewest: usize) -> Option<Slope> {
    let (x, a) = sums(&pairs);
    if pairs.len() < fewest || a <= 0.0 {
        return None;
    }
    // Few windows do not show how much they differ.
    let n = pairs.len() as f64;
    let sigma = if pairs.len() < 2 { 0.1 } else { relative_error(&pairs) * (1.0 + 2.0 / n) };
    Some(Slope { value: x / a, sigma, windows: pairs.len() as u32 })
}

#[cfg(test)]
mod tests;
