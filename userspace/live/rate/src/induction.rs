//! Accesses per step of a quantity, learnt from the windows so far.
//!
//! Slopes are ratios of sums over windows, since a mean of ratios of a bursty counter is biased.
//! Windows count if the sample saw the quantity move at a similar speed, to separate phases of a
//! program; windows without motion count too. A window comes before the readings. If enough samples
//! were read at the code of the sample's window, only such samples count. Otherwise windows of
//! another phase, without motion of the quantity, are pooled with the speed of the present phase,
//! and steps look too rare. Windows come at equal distances in time, so slow code has more windows
//! than the code's share of accesses: each window is weighted by the speed of the timing model.
//! Source of error: the timing model.

use crate::speed_fit::{Common, Interval, common_speed, mean_speed};
use crate::steps::{Motion, Steps, difference, relative_error, sums};

/// Windows remembered for a quantity; beyond, half are forgotten.
const MOST_RECORDS: usize = 256;
/// Windows pooled, the nearest in time.
const POOLED: usize = 48;
/// Fewest steps of a pool, if need be from more windows.
const STEPS: u32 = 150;
/// Fewest windows of a pool.
pub(crate) const FEWEST: usize = 4;
/// Fewest values at readings for a range to be believed.
const FEWEST_VALUES: u32 = 24;
/// Remembered stretches between readings, and the fewest for a common speed.
const MOST_INTERVALS: usize = 160;
const FEWEST_INTERVALS: usize = 32;
/// Fewest uneven steps per range for the range to be believed.
const FINE: u64 = 1000;
/// Greatest ln of the ratio of two samples' speeds within a phase.
const SAME_PHASE: f64 = 0.4;
/// Greatest ratio of the longest to the mean distance of steps for steps to count as regular.
const LONGEST_GAP: f64 = 2.0;
/// Greatest relative error of a window's own slope that stands for the surroundings.
const PRECISE: f64 = 0.03;
/// Greatest relative error of a loop's round that is taken
/// as known, and the share of work between two rounds.
const WELL_KNOWN: f64 = 0.05;
const BETWEEN: f64 = 0.01;
/// Standard errors within which the rounds per step are in doubt.
const DOUBT: f64 = 2.5;
/// Greatest share of unseen steps that the seen steps represent.
const MOST_UNSEEN: f64 = 0.5;

/// Permitted difference between the period in windows and the range of values at readings, as a
/// share.
const WHOLE: f64 = 0.05;

/// Share of a window.
#[derive(Debug, Clone, Copy)]
struct Record {
    sample: u32,
    /// Sum of the steps after the first and the accesses from the first to the last.
    between: (f64, f64),
    /// Sums of the steps and of the accesses while the quantity was seen.
    total: (f64, f64),
    /// Steps.
    edges: u32,
    /// The quantity was stored before the value was known: a further step, of unknown size.
    unseen: bool,
    /// Error of `between`.
    sigma: f64,
    /// Most accesses with the quantity known to be unchanged.
    still: f64,
    /// Factor applied to the sums.
    weight: f64,
    /// Speed of the quantity in the sample's readings, per nanosecond; 0 if not read.
    speed: f64,
    /// The readings were taken at the window's work.
    steady: bool,
}

impl Record {
    /// Accesses while the quantity was seen.
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
    /// Windows used.
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
    /// Largest step seen in windows.
    pub largest: u64,
    /// Start of the register's block.
    pub block: Option<u64>,
    /// Period in value, if equal in all windows.
    pub wrap: Option<u64>,
    /// Windows saw different wraps.
    pub wraps_vary: bool,
    /// Windows with the quantity moving as a counter.
    pub good: u32,
    /// Windows with the quantity moving otherwise.
    pub bad: u32,
    /// Intervals between readings with forward motion.
    pub forward: u32,
    /// Intervals with backward motion.
    pub backward: u32,
    /// Samples since the last motion that read the quantity unchanged.
    pub still: u32,
    /// Number of the last sample with the quantity in the window.
    pub last_seen: u32,
    range: Range,
    /// The value last seen in a window, and how often
    /// the value in the next window was higher, lower.
    last_value: Option<u64>,
    across: (u32, u32),
    records: Vec<Record>,
    /// By another quantity of the block: windows with as many steps here
    /// as wraps of the second quantity, at least 1, and remaining windows.
    beside: Vec<(u32, u32, u32)>,
    /// How often half of the records were forgotten.
    thinned: u32,
    /// Intervals, with the places of the samples that read the quantity.
    intervals: Vec<(u64, Interval)>,
    /// Number of intervals so far.
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
    /// Values since the range last grew by more than chance, or more often than by chance.
    since: u32,
}

/// The last of n values, uniform within a range, lies beyond the previous values with a chance
/// of 2 / n, by a mean of 1 / n of the range. Growth up to `CHANCE_PARTS` / n of the range, at
/// most `CHANCE_PART`, and up to `CHANCE_TIMES` ln n increases, still count as chance.
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

    /// Records the values at the beginning and at the end of a window. Windows are far apart,
    /// so the values separate counters from quantities that begin anew in each window.
    pub fn note_ends(&mut self, first: u64, last: u64) {
        if let Some(before) = self.last_value.replace(last) {
            let step = difference(before, first, self.bits).wrapping_mul(self.sign.into());
            self.across.0 += u32::from(step > 0);
            self.across.1 += u32::from(step < 0);
        }
        self.note_value(first);
    }

    /// Share of the comparisons, between readings and between
    /// windows, with backward motion, and the number of comparisons.
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

    /// Steps per period, and the relative error: from windows
    /// with a wrap, otherwise from the range of many readings.
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
                // The largest of n uniform values is short of the end by 1 / (n + 1).
                (period * (1.0 + 1.0 / f64::from(range.seen)), 1.0 / f64::from(range.seen))
            })
    }

    /// Distance from the period's start, distance to the period's end,
    /// and the error of both; `None` if unknown, or outside of the
    /// period. A range that contains all readings is taken as the period.
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

    /// Greatest size of a step.
    pub fn step(&self) -> f64 {
        self.stride.unwrap_or(self.largest) as f64
    }

    /// Notes the quantity's advances between readings.
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

    /// Places with enough readings of the quantity for a common speed.
    pub fn places(&self) -> Vec<u64> {
        let mut places: Vec<u64> = self.intervals.iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        let is_often = |same: &&[u64]| same.len() >= FEWEST_INTERVALS;
        places.chunk_by(u64::eq).filter(is_often).filter_map(|same| same.first().copied()).collect()
    }

    /// The common speed of a place's samples, within bounds, for a quantity
    /// that wraps too often for most samples to fit only a single speed.
    pub fn common_speed(&self, place: u64, bounds: (f64, f64)) -> Option<Common> {
        let intervals = self.intervals_at(&[place]);
        let common = common_speed(&intervals, self.period()?, self.step(), bounds);
        // A loop with changing speed has a most frequent speed too, different from the mean.
        let mean = self.mean_speed(&[place], bounds);
        common.into_iter().chain(mean).max_by(|a, b| a.score.total_cmp(&b.score))
    }

    /// The mean speed over the samples of places, within bounds, if
    /// most readings leave no doubt how often the quantity wrapped.
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

    /// True while the quantity may be used: a counter in nearly all windows.
    pub fn is_sound(&self) -> bool {
        self.good > 0 && self.bad * 8 <= self.good
    }

    /// True for a quantity known to turn back at times without a single period seen in windows.
    pub fn turns_back(&self) -> bool {
        self.wraps_vary || (self.wrap.is_none() && self.backward > 0)
    }

    /// Takes a window's view. `seen`: range of access indexes that saw the quantity: all accesses
    /// for a word, accesses from the first to the last visit of the block for a register. `weight`:
    /// speed of the code, in an arbitrary unit: windows come at equal distances in time, so fast
    /// code has fewer windows than the code's share of accesses.
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
            // Neighbours may belong to different phases, so records are not merged; every
            // second record might belong to the same phase, so records are dropped at random.
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

    /// Accesses per step around a sample with the quantity's `speed` (0: unknown).
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
            // Windows last a few microseconds: with irregular
            // steps, no single window stands for milliseconds.
            let all = total(&near);
            let longest = near.iter().map(|record| record.accesses()).fold(0.0, f64::max);
            near.retain(|record| 2.0 * record.accesses() >= longest);
            // An outer loop steps in nearly each window of nearly a
            // round's length, and now and then in shorter windows.
            let of_long = total(&near)
                .map(|slope| Slope { sigma: slope.sigma.hypot(1.0 / f64::from(slope.windows)), ..slope });
            [all, of_long].into_iter().flatten().min_by(|a, b| a.sigma.total_cmp(&b.sigma))
        }
        .filter(|slope| slope.value > 0.0 && slope.value.is_finite())
    }

    /// Accesses per step for steps at equal distances, from all windows for greater precision.
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

    /// The slope, if the steps come from the loop around the loop of the rounds. Windows are too
    /// short for many steps, so rounds per step are rounded to a whole number, if beyond doubt.
    pub fn slope_by_rounds(&self, told: Slope, (accesses, sigma): (f64, f64)) -> Option<Slope> {
        let stride = self.stride? as f64;
        let times = stride / (told.value * accesses);
        let whole = times.round().max(1.0);
        let is_clear = DOUBT * told.sigma * whole < 1.0 && (times / whole).ln().abs() < DOUBT * told.sigma;
        // Work of the outer loop between two rounds belongs to neither round.
        is_clear.then(|| Slope { value: stride / (whole * accesses), sigma: sigma.hypot(BETWEEN), ..told })
    }

    /// Notes whether a window showed as many steps of the quantity as wraps of another quantity.
    pub fn note_beside(&mut self, other: u32, agrees: bool) {
        let at = self.beside.iter().position(|(known, ..)| *known == other).unwrap_or_else(|| {
            self.beside.push((other, 0, 0));
            self.beside.len() - 1
        });
        if let Some((_, together, apart)) = self.beside.get_mut(at) {
            *if agrees { together } else { apart } += 1;
        }
    }

    /// The slope, if all windows show one step for each round of another quantity: an outer
    /// loop's register, and an inner loop's register with rounds longer than the windows.
    pub fn slope_by_wraps(&self, other: u32, (accesses, sigma): (f64, f64)) -> Option<Slope> {
        let (_, together, apart) = self.beside.iter().find(|(known, ..)| *known == other)?;
        let stride = self.stride.filter(|_| *together >= 1 && *apart == 0)? as f64;
        Some(Slope { value: stride / accesses, sigma: sigma.hypot(BETWEEN), windows: *together })
    }

    /// Total steps and windows.
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

/// True if steps come at about equal distances in the windows: whole
/// periods can be taken, and windows without motion were too short.
fn is_regular(records: &[&Record]) -> bool {
    let (accesses, gaps) = records.iter().fold((0.0, 0.0), |sum, record| {
        (sum.0 + record.between.1 / record.weight, sum.1 + f64::from(record.edges.saturating_sub(1)))
    });
    let still = records.iter().map(|record| record.still).fold(0.0, f64::max);
    gaps >= 2.0 && still <= LONGEST_GAP * accesses / gaps
}

/// The slope between the first and last steps of at least `fewest` windows.
fn between(records: &[&Record], fewest: usize) -> Option<Slope> {
    pool(
        records.iter().filter(|record| record.between.1 > 0.0).map(|record| record.between).collect(),
        fewest,
    )
}

/// The slope of all windows; unseen steps are taken as large as the seen steps, if a minority.
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

/// The ratio of the sums of at least `fewest` pairs.
fn pool(pairs: Vec<(f64, f64)>, fewest: usize) -> Option<Slope> {
    let (x, a) = sums(&pairs);
    if pairs.len() < fewest || a <= 0.0 {
        return None;
    }
    // A few windows hardly show the scatter.
    let n = pairs.len() as f64;
    let sigma = if pairs.len() < 2 { 0.1 } else { relative_error(&pairs) * (1.0 + 2.0 / n) };
    Some(Slope { value: x / a, sigma, windows: pairs.len() as u32 })
}

#[cfg(test)]
mod tests;
