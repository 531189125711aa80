//! What is known of one quantity from all windows so far: what one step is worth in accesses.
//!
//! Slopes are ratios of sums over windows, since a mean of ratios of a bursty counter is biased. Windows count whose
//! sample saw the quantity move at a similar speed, so that phases of a program do not mix; windows in which it did
//! not move count too. Source of error: windows are taken at equal distances in time, so slow code has more of them
//! than its share of accesses.

use crate::sequence::{Motion, Steps, relative_error};

/// Windows remembered for a quantity; beyond, neighbours are added up.
const MOST_RECORDS: usize = 256;
/// Windows that are pooled, the nearest in time.
const POOLED: usize = 48;
/// Fewest windows of a pool.
pub(crate) const FEWEST: usize = 4;
/// ln of the ratio of speeds up to which two samples are of the same phase.
const SAME_PHASE: f64 = 0.4;
/// Relative error up to which a window's own slope stands for its surroundings.
const PRECISE: f64 = 0.03;

/// One window's share.
#[derive(Debug, Clone, Copy)]
struct Record {
    sample: u32,
    advance: f64,
    accesses: f64,
    edges: u32,
    sigma: f64,
    /// The quantity's speed in that sample's readings, per nanosecond; 0 where it was not read.
    speed: f64,
    /// The window that discovered the quantity because it moved there: chosen, so not typical.
    is_discovery: bool,
}

/// Advance per access.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slope {
    /// Per access, positive.
    pub value: f64,
    /// Relative standard error.
    pub sigma: f64,
    /// Windows behind it.
    pub windows: u32,
}

/// A quantity.
#[derive(Debug, Clone)]
pub(crate) struct Quantity {
    /// +1 for one that grows.
    pub sign: i8,
    /// Width.
    pub bits: u32,
    /// Constant size of steps, as far as windows saw.
    pub stride: Option<u64>,
    /// Period in value, where windows saw it wrap, always alike.
    pub wrap: Option<u64>,
    /// Wraps of other kinds were seen.
    pub wraps_vary: bool,
    /// Windows in which it moved as a counter does.
    pub good: u32,
    /// Windows in which it did not.
    pub bad: u32,
    /// Intervals between readings in which it went forward.
    pub forward: u32,
    /// Those in which it went back.
    pub backward: u32,
    /// Samples that read it, without seeing it move, since it moved last.
    pub still: u32,
    /// Number of the last sample whose window had it.
    pub last_seen: u32,
    records: Vec<Record>,
}

impl Quantity {
    pub fn new(steps: &Steps, bits: u32) -> Quantity {
        Quantity {
            sign: steps.sign,
            bits,
            stride: steps.stride,
            wrap: None,
            wraps_vary: false,
            good: 0,
            bad: 0,
            forward: 0,
            backward: 0,
            still: 0,
            last_seen: 0,
            records: Vec::new(),
        }
    }

    /// True while it may be used: it counted in nearly all windows.
    pub fn is_sound(&self) -> bool {
        self.good > 0 && self.bad * 8 <= self.good
    }

    /// True when it is known to turn back at times without a period that windows saw.
    pub fn turns_back(&self) -> bool {
        self.wraps_vary || (self.wrap.is_none() && self.backward > 0)
    }

    /// Takes what a window showed. `whole`: the window's accesses, for a quantity that exists all the time (a word); a
    /// register's slope is that between its first and last step.
    pub fn observe(&mut self, sample: u32, motion: &Motion, whole: Option<f64>) {
        self.last_seen = sample;
        let is_discovery = self.records.is_empty();
        match motion {
            Motion::Erratic => self.bad += 1,
            Motion::Constant => {
                if let Some(accesses) = whole {
                    self.push(Record {
                        sample,
                        advance: 0.0,
                        accesses,
                        edges: 0,
                        sigma: f64::INFINITY,
                        speed: 0.0,
                        is_discovery: false,
                    });
                }
            }
            Motion::Moving(steps) => {
                if steps.sign != self.sign {
                    self.bad += 1;
                    return;
                }
                self.good += 1;
                if self.stride != steps.stride {
                    self.stride = None;
                }
                match (self.wrap, steps.wrap) {
                    (Some(a), Some(b)) if a != b => self.wraps_vary = true,
                    (None, Some(b)) => self.wrap = Some(b),
                    _ => {}
                }
                let (advance, accesses, edges) = match whole {
                    Some(accesses) if !is_even(steps, accesses) => (steps.total, accesses, steps.edges),
                    _ => (steps.advance, steps.accesses, steps.edges.saturating_sub(1)),
                };
                if edges >= if whole.is_some() { 1 } else { 2 } && accesses > 0.0 {
                    let sigma = if whole.is_some() && !is_even(steps, accesses) {
                        steps.sigma.hypot(0.5 / f64::from(edges.max(1)))
                    } else {
                        steps.sigma
                    };
                    self.push(Record { sample, advance, accesses, edges, sigma, speed: 0.0, is_discovery });
                }
            }
        }
    }

    fn push(&mut self, record: Record) {
        if self.records.len() >= MOST_RECORDS {
            let merged = self.records.chunks(2).filter_map(|pair| {
                let (a, rest) = pair.split_first()?;
                Some(rest.first().map_or(*a, |b| Record {
                    sample: a.sample,
                    advance: a.advance + b.advance,
                    accesses: a.accesses + b.accesses,
                    edges: a.edges + b.edges,
                    sigma: a.sigma.min(b.sigma),
                    speed: if a.speed > 0.0 { a.speed } else { b.speed },
                    is_discovery: a.is_discovery,
                }))
            });
            self.records = merged.collect();
        }
        self.records.push(record);
    }

    /// Notes how fast it moved in a sample's readings.
    pub fn note_speed(&mut self, sample: u32, speed: f64) {
        if let Some(record) = self.records.last_mut().filter(|record| record.sample == sample) {
            record.speed = speed;
        }
    }

    /// What a step is worth around a sample in which it moved at this speed (0: unknown).
    pub fn slope(&self, sample: u32, speed: f64) -> Option<Slope> {
        let own = self.records.iter().find(|record| record.sample == sample && record.advance > 0.0);
        let is_similar = |record: &&Record| {
            speed <= 0.0 || (record.speed > 0.0 && (record.speed / speed).ln().abs() <= SAME_PHASE)
        };
        let mut near: Vec<&Record> = self.records.iter().filter(is_similar).collect();
        near.sort_by_key(|record| (record.sample.abs_diff(sample), record.sample));
        near.truncate(POOLED);
        if near.len() > 2 * FEWEST {
            near.retain(|record| !record.is_discovery);
        }
        let pooled = pool(&near);
        let own = own.map(|record| Slope {
            value: record.advance / record.accesses,
            sigma: record.sigma,
            windows: 1,
        });
        match (own, pooled) {
            (Some(own), Some(pool)) => {
                // One window is a few microseconds: where windows differ, none of them stands for milliseconds.
                let scatter = pool.sigma * f64::from(pool.windows).sqrt();
                if own.sigma <= PRECISE && scatter < 0.1 { Some(own) } else { Some(pool) }
            }
            (Some(own), None) => Some(Slope { sigma: own.sigma.hypot(0.05), ..own }),
            (None, pool) => pool,
        }
        .filter(|slope| slope.value > 0.0 && slope.value.is_finite())
    }

    /// Steps and windows in all.
    pub fn weight(&self) -> (u32, u32) {
        (self.records.iter().map(|record| record.edges).sum(), self.records.len() as u32)
    }
}

/// True where steps come at equal distances from the window's begin to its end, so that whole periods can be taken.
fn is_even(steps: &Steps, accesses: f64) -> bool {
    let gap = steps.accesses / f64::from(steps.edges.saturating_sub(1).max(1));
    steps.edges >= 4
        && steps.sigma < PRECISE
        && f64::from(steps.first) < 2.0 * gap
        && accesses - f64::from(steps.last) < 2.0 * gap
}

fn pool(records: &[&Record]) -> Option<Slope> {
    let moved = records.iter().filter(|record| record.advance > 0.0).count();
    if records.len() < FEWEST || moved < 2 {
        return None;
    }
    let pieces: Vec<(f64, f64)> = records.iter().map(|record| (record.advance, record.accesses)).collect();
    let (x, a) = pieces.iter().fold((0.0, 0.0), |sum, piece| (sum.0 + piece.0, sum.1 + piece.1));
    let edges: u32 = records.iter().map(|record| record.edges).sum();
    // Student's t for few windows, towards 1 for many.
    let n = pieces.len() as f64;
    let sigma = relative_error(&pieces) * (1.0 + 2.0 / n);
    Some(Slope {
        value: x / a,
        sigma: sigma.max(0.3 / f64::from(edges.max(1))),
        windows: pieces.len() as u32,
    })
}
