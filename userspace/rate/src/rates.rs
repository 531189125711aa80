//! The rates of one process: learns from each sample, and at any moment says what all samples' rates are.

use std::collections::BTreeMap;

use crate::blocks::Blocks;
use crate::combine::{Candidate, combine};
use crate::digest::Digest;
use crate::quantity::Quantity;
use crate::track::{Point, Track, reckon};
use crate::types::{Estimate, Reading, Sample, SampleRate, Source, Wanted};
use crate::words::Words;

/// Bytes of code that count as one place, as a shift.
const REGION: u32 = 8;
/// A rate may differ by this factor from what the model and the place say before it is taken for an alias.
const BRACKET: f64 = 6.0;
/// The same where the process has rates of its own by which the model is scaled.
const SCALED_BRACKET: f64 = 4.0;
/// Factor of uncertainty of the scaled model (METHOD.md §2).
const MODEL: f64 = 0.4;
/// Samples with rates of their own from which the model's scale is believed.
const FEWEST_SCALES: usize = 3;
/// Rates kept of a place for those that are told at once.
const MOST_OF_REGION: usize = 33;

/// A quantity's track in a sample.
#[derive(Debug, Clone, Copy)]
struct Evidence {
    quantity: u32,
    track: Track,
    is_word: bool,
}

/// What is kept of a sample.
#[derive(Debug, Clone)]
struct Kept {
    region: u64,
    /// Model's accesses per nanosecond, unscaled; 0 without a window.
    model: f64,
    /// Instructions per access in the window; 0 without.
    instructions: f64,
    evidence: Vec<Evidence>,
}

/// The rates of one process.
#[derive(Debug, Clone)]
pub struct Rates {
    tick_ns: f64,
    blocks: Blocks,
    words: Words,
    quantities: Vec<Quantity>,
    samples: Vec<Kept>,
    /// ln of rate ÷ model of samples with a source of their own.
    scales: Vec<f64>,
    /// Rates as they were first known, by place.
    regions: BTreeMap<u64, Vec<f64>>,
}

impl Rates {
    /// `tick_cost_ns`: CPU time that one reading costs the thread, which is not its own progress.
    pub fn new(tick_cost_ns: f64) -> Rates {
        Rates {
            tick_ns: tick_cost_ns,
            blocks: Blocks::default(),
            words: Words::default(),
            quantities: Vec::new(),
            samples: Vec::new(),
            scales: Vec::new(),
            regions: BTreeMap::new(),
        }
    }

    /// What the kernel side shall read from now on.
    pub fn words(&self) -> Wanted {
        self.words.wanted()
    }

    /// Samples observed so far.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// True before the first sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Takes the next sample, and says what is known of its rate by now.
    pub fn observe(&mut self, sample: &Sample<'_>) -> SampleRate {
        let number = self.samples.len() as u32;
        let digest = sample.window.as_ref().map(Digest::new);
        if let Some(digest) = &digest {
            self.blocks.learn(number, digest, &mut self.quantities);
            self.words.learn(number, sample.thread, digest, &mut self.quantities);
        }
        let mut kept = Kept {
            region: sample.readings.last().map_or(0, |reading| reading.ip >> REGION),
            model: 0.0,
            instructions: 0.0,
            evidence: Vec::new(),
        };
        if let Some(digest) = digest.as_ref().filter(|digest| digest.accesses > 0.0) {
            kept.model = 1.0 / digest.model;
            kept.instructions = digest.instructions / digest.accesses;
        }
        let bracket = self.bracket(&kept);
        self.read_words(number, sample.readings, bracket, &mut kept.evidence);
        self.read_registers(number, sample.readings, bracket, &mut kept.evidence);
        self.words.choose(&self.quantities);
        let own = self.own(number, &kept);
        if let Some((rate, _)) = own {
            if kept.model > 0.0 {
                self.scales.push((rate.value / kept.model).ln());
            }
            let of_region = self.regions.entry(kept.region).or_default();
            if of_region.len() < MOST_OF_REGION {
                of_region.push(rate.value);
            }
        }
        let rate = self.settle(&kept, own, &self.regions);
        self.samples.push(kept);
        rate
    }

    /// The rates of all samples so far, in the order in which they were observed, with all that is known by now.
    pub fn rates(&self) -> Vec<SampleRate> {
        let own: Vec<Option<(Estimate, Source)>> =
            self.samples.iter().zip(0..).map(|(kept, number)| self.own(number, kept)).collect();
        let mut regions: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (kept, own) in self.samples.iter().zip(&own) {
            if let Some((rate, _)) = own {
                regions.entry(kept.region).or_default().push(rate.value);
            }
        }
        self.samples.iter().zip(own).map(|(kept, own)| self.settle(kept, own, &regions)).collect()
    }

    /// Median and scatter of the model's scale, in logarithms.
    fn scale(&self) -> Option<(f64, f64)> {
        (self.scales.len() >= FEWEST_SCALES).then(|| median(&self.scales)).flatten()
    }

    /// Bounds of accesses per nanosecond within which a track is no alias.
    fn bracket(&self, kept: &Kept) -> Option<(f64, f64)> {
        if kept.model <= 0.0 {
            return None;
        }
        let (scale, factor) = match self.scale() {
            Some((scale, scatter)) => (scale.exp(), SCALED_BRACKET.max((3.0 * scatter).exp())),
            None => (1.0, BRACKET),
        };
        Some((kept.model * scale / factor, kept.model * scale * factor))
    }

    fn read_words(
        &mut self,
        number: u32,
        readings: &[Reading],
        bracket: Option<(f64, f64)>,
        evidence: &mut Vec<Evidence>,
    ) {
        for (place, index) in self.words.in_readings(readings) {
            let points: Vec<Point> = readings
                .iter()
                .enumerate()
                .filter_map(|(at, reading)| Some(point(at, reading, self.words.value(place, reading)?)))
                .collect();
            self.read(number, index, &points, bracket, true, evidence);
        }
    }

    fn read_registers(
        &mut self,
        number: u32,
        readings: &[Reading],
        bracket: Option<(f64, f64)>,
        evidence: &mut Vec<Evidence>,
    ) {
        let mut points: BTreeMap<(u8, u32), Vec<Point>> = BTreeMap::new();
        for (at, reading) in readings.iter().enumerate() {
            for (register, index) in self.blocks.at(reading.ip) {
                if let Some(value) = reading.registers.get(usize::from(*register)) {
                    points.entry((*register, *index)).or_default().push(point(at, reading, *value));
                }
            }
        }
        for ((_, index), points) in points {
            self.read(number, index, &points, bracket, false, evidence);
        }
    }

    fn read(
        &mut self,
        number: u32,
        index: u32,
        points: &[Point],
        bracket: Option<(f64, f64)>,
        is_word: bool,
        evidence: &mut Vec<Evidence>,
    ) {
        let Some(quantity) = self.quantities.get_mut(index as usize).filter(|q| q.is_sound()) else { return };
        let slope = quantity.slope(number, 0.0).map(|slope| slope.value);
        let bounds = bracket.zip(slope).map(|((low, high), slope)| (low * slope, high * slope));
        let reckoned = reckon(points, quantity, self.tick_ns, bounds);
        quantity.forward += reckoned.forward;
        quantity.backward += reckoned.backward;
        if reckoned.forward > 0 {
            quantity.still = 0;
        } else if reckoned.was_read {
            quantity.still += 1;
        }
        if let Some(track) = reckoned.track {
            quantity.note_speed(number, track.speed);
            evidence.push(Evidence { quantity: index, track, is_word });
        }
    }

    /// The rate that the sample's own readings give, with what is known of the quantities by now.
    fn own(&self, number: u32, kept: &Kept) -> Option<(Estimate, Source)> {
        let candidates: Vec<Candidate> = kept
            .evidence
            .iter()
            .filter_map(|evidence| {
                let quantity = self.quantities.get(evidence.quantity as usize)?;
                let slope = quantity.slope(number, evidence.track.speed).filter(|_| quantity.is_sound())?;
                Some(Candidate {
                    rate: evidence.track.speed / slope.value,
                    sigma: evidence.track.sigma.hypot(slope.sigma),
                    intervals: evidence.track.intervals,
                    is_word: evidence.is_word,
                    is_affine: !evidence.is_word && quantity.stride.is_some(),
                })
            })
            .collect();
        combine(&candidates, self.bracket(kept))
    }

    fn settle(
        &self,
        kept: &Kept,
        own: Option<(Estimate, Source)>,
        regions: &BTreeMap<u64, Vec<f64>>,
    ) -> SampleRate {
        let of_region = || {
            let rates = regions.get(&kept.region).filter(|rates| rates.len() >= 2)?;
            let logs: Vec<f64> = rates.iter().map(|rate| rate.ln()).collect();
            let (middle, scatter) = median(&logs)?;
            let half = 0.03_f64.max(1.5 * scatter) + 0.05;
            Some((Estimate::within(middle.exp(), half), Source::Region))
        };
        let of_model = || {
            let (scale, scatter) = self.scale().filter(|_| kept.model > 0.0)?;
            Some((Estimate::within(kept.model * scale.exp(), MODEL.max(2.0 * scatter)), Source::Model))
        };
        let unknown = || {
            let (low, high) = self.bracket(kept)?;
            Some((Estimate { value: (low * high).sqrt(), low, high }, Source::Unknown))
        };
        match own.or_else(of_region).or_else(of_model).or_else(unknown) {
            Some((rate, source)) => SampleRate {
                accesses_per_ns: Some(rate),
                instructions_per_ns: (kept.instructions > 0.0).then(|| rate.times(kept.instructions)),
                source,
            },
            None => SampleRate::NONE,
        }
    }
}

fn point(at: usize, reading: &Reading, value: u64) -> Point {
    Point { at, time_ns: reading.time_ns, switches: reading.switches, value }
}

/// Median, and the median absolute deviation as a standard deviation.
fn median(values: &[f64]) -> Option<(f64, f64)> {
    let middle = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let centre = middle(values.to_vec())?;
    let deviation = middle(values.iter().map(|value| (value - centre).abs()).collect())?;
    Some((centre, deviation * 1.4826))
}
