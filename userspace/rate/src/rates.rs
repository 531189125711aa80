//! The rates of one process: learns from each sample, and at any moment says what all samples' rates are.

use std::collections::BTreeMap;

use crate::blocks::Blocks;
use crate::combine::{Candidate, combine};
use crate::digest::Digest;
use crate::quantity::{Quantity, Slope};
use crate::track::{Point, Track, reckon};
use crate::types::{Estimate, Reading, Sample, SampleRate, Source, Wanted};
use crate::words::Words;

/// Bytes of code that count as one place, as a shift.
const REGION: u32 = 8;
/// Standard deviation of ln(rate ÷ model), for a process without rates of its own.
const UNSCALED: f64 = 1.1;
/// The same, at least, where the model is scaled.
const SCALED: f64 = 0.5;
/// The same, at least, for a place that has rates of its own.
const SAME_PLACE: f64 = 0.3;
/// Rates of a place from which it is believed.
const FEWEST_OF_REGION: usize = 3;
/// Standard deviations from the prior beyond which a track is an alias.
const WIDTH: f64 = 2.3;
/// Difference of log likelihoods from which a track is preferred to its rivals.
const CLEAR: f64 = 3.0;
/// Factor of uncertainty of the scaled model (METHOD.md §2).
const MODEL: f64 = 0.4;
/// Samples with rates of their own from which the model's scale is believed.
const FEWEST_SCALES: usize = 3;
/// Samples of a place that are asked, the nearest in time.
const NEAREST: usize = 9;

/// Samples with rates of their own by place, in order.
type Regions = BTreeMap<u64, Vec<(u32, f64)>>;

/// A quantity's track in a sample.
#[derive(Debug, Clone)]
struct Evidence {
    quantity: u32,
    /// Possible tracks with their log likelihoods.
    tracks: Vec<(Track, f64)>,
    is_word: bool,
}

/// What is known of a sample's rate beforehand: ln of it, and the standard deviation of that.
#[derive(Debug, Clone, Copy)]
struct Prior {
    centre: f64,
    sigma: f64,
}

impl Prior {
    /// Outside is what a sample's own evidence is not believed.
    fn bracket(self) -> (f64, f64) {
        ((self.centre - WIDTH * self.sigma).exp(), (self.centre + WIDTH * self.sigma).exp())
    }

    fn penalty(self, rate: f64) -> f64 {
        ((rate.ln() - self.centre) / self.sigma).powi(2) / 2.0
    }
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
    regions: Regions,
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
            regions: Regions::new(),
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
        let bracket = self.prior(&kept).map(Prior::bracket);
        self.read_words(number, sample.readings, bracket, &mut kept.evidence);
        self.read_registers(number, sample.readings, bracket, &mut kept.evidence);
        self.words.choose(&self.quantities);
        let own = self.own(number, &kept, &self.regions);
        if let Some((rate, _)) = own {
            if kept.model > 0.0 {
                self.scales.push((rate.value / kept.model).ln());
            }
            self.regions.entry(kept.region).or_default().push((number, rate.value));
        }
        let rate = self.settle(number, &kept, own, &self.regions);
        self.samples.push(kept);
        rate
    }

    /// The rates of all samples so far, in the order in which they were observed, with all that is known by now.
    pub fn rates(&self) -> Vec<SampleRate> {
        let own = |regions: &Regions| -> Vec<Option<(Estimate, Source)>> {
            self.samples.iter().zip(0..).map(|(kept, number)| self.own(number, kept, regions)).collect()
        };
        let by_region = |own: &[Option<(Estimate, Source)>]| {
            let mut regions: Regions = BTreeMap::new();
            for ((kept, own), number) in self.samples.iter().zip(own).zip(0..) {
                if let Some((rate, _)) = own {
                    regions.entry(kept.region).or_default().push((number, rate.value));
                }
            }
            regions
        };
        // What is clear without its neighbours helps to clear the rest.
        let clear = by_region(&own(&Regions::new()));
        let own = own(&clear);
        let regions = by_region(&own);
        let settle = |((kept, own), number)| self.settle(number, kept, own, &regions);
        self.samples.iter().zip(own).zip(0..).map(settle).collect()
    }

    /// What each quantity said of a sample: for those who look for mistakes.
    pub fn explain(&self, number: usize) -> String {
        let Some(kept) = self.samples.get(number) else { return String::new() };
        let of = |evidence: &Evidence| {
            let quantity = self.quantities.get(evidence.quantity as usize)?;
            let one = |(track, score): &(Track, f64)| {
                let slope = quantity.slope(number as u32, 0.0)?;
                Some(format!(
                    "{:.3}±{:.0}%/{:.0}%x{}({score:.1})",
                    track.speed / slope.value,
                    track.sigma * 100.0,
                    slope.sigma * 100.0,
                    track.intervals
                ))
            };
            let tracks: Vec<String> = evidence.tracks.iter().filter_map(one).collect();
            Some(format!(
                "{}{}{}{}:{}",
                if evidence.is_word { 'w' } else { 'r' },
                evidence.quantity,
                if quantity.stride.is_some() { "a" } else { "" },
                if quantity.period().is_some() { "p" } else { "" },
                tracks.join("|")
            ))
        };
        let texts: Vec<String> = kept.evidence.iter().filter_map(of).collect();
        format!("model {:.3} {}", kept.model, texts.join(" "))
    }

    /// Median and scatter of the model's scale, in logarithms.
    fn scale(&self) -> Option<(f64, f64)> {
        (self.scales.len() >= FEWEST_SCALES).then(|| median(&self.scales)).flatten()
    }

    /// What the model says.
    fn prior(&self, kept: &Kept) -> Option<Prior> {
        (kept.model > 0.0).then(|| match self.scale() {
            Some((scale, scatter)) => {
                Prior { centre: kept.model.ln() + scale, sigma: SCALED.max(1.3 * scatter) }
            }
            None => Prior { centre: kept.model.ln(), sigma: UNSCALED },
        })
    }

    /// What other samples of the same place say, where they agree.
    fn local_prior(&self, number: u32, kept: &Kept, regions: &Regions) -> Option<Prior> {
        let logs = nearest(regions, kept.region, number, FEWEST_OF_REGION)?;
        let (centre, scatter) = median(&logs)?;
        Some(Prior { centre, sigma: SAME_PLACE.max(2.0 * scatter) })
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
        for point in points {
            quantity.note_value(point.value);
        }
        quantity.forward += reckoned.forward;
        quantity.backward += reckoned.backward;
        if reckoned.forward > 0 {
            quantity.still = 0;
        } else if reckoned.was_read {
            quantity.still += 1;
        }
        if let Some((track, _)) = reckoned.tracks.first() {
            if reckoned.tracks.len() == 1 {
                quantity.note_speed(number, track.speed);
            }
            evidence.push(Evidence { quantity: index, tracks: reckoned.tracks, is_word });
        }
    }

    /// The rate that the sample's own readings give, with what is known of the quantities by now.
    fn own(&self, number: u32, kept: &Kept, regions: &Regions) -> Option<(Estimate, Source)> {
        let prior = self.prior(kept);
        let expected = self.local_prior(number, kept, regions).or(prior);
        let candidates: Vec<Candidate> = kept
            .evidence
            .iter()
            .filter_map(|evidence| {
                let quantity = self.quantities.get(evidence.quantity as usize)?;
                let (track, slope) = clearest(number, quantity, &evidence.tracks, expected)?;
                quantity.is_sound().then(|| Candidate {
                    rate: track.speed / slope.value,
                    sigma: track.sigma.hypot(slope.sigma),
                    intervals: track.intervals,
                    is_word: evidence.is_word,
                    is_affine: !evidence.is_word && quantity.stride.is_some(),
                })
            })
            .collect();
        combine(&candidates, prior.map(Prior::bracket))
    }

    fn settle(
        &self,
        number: u32,
        kept: &Kept,
        own: Option<(Estimate, Source)>,
        regions: &Regions,
    ) -> SampleRate {
        let of_region = || {
            let logs = nearest(regions, kept.region, number, 2)?;
            let (middle, scatter) = median(&logs)?;
            // The speed of a place may change, and two or three neighbours may not have seen it.
            let half = 0.03_f64.max(2.0 * scatter) + 0.05 + 0.2 / logs.len() as f64;
            Some((Estimate::within(middle.exp(), half), Source::Region))
        };
        let of_model = || {
            let (scale, scatter) = self.scale().filter(|_| kept.model > 0.0)?;
            Some((Estimate::within(kept.model * scale.exp(), MODEL.max(2.0 * scatter)), Source::Model))
        };
        let unknown = || {
            let (low, high) = self.prior(kept)?.bracket();
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

/// The track that is likelier than its rivals, and what a step is worth at its speed.
fn clearest(
    number: u32,
    quantity: &Quantity,
    tracks: &[(Track, f64)],
    expected: Option<Prior>,
) -> Option<(Track, Slope)> {
    let mut scored: Vec<(f64, Track, Slope)> = tracks
        .iter()
        .filter_map(|(track, score)| {
            let speed = if tracks.len() == 1 { track.speed } else { 0.0 };
            let slope = quantity.slope(number, speed)?;
            let penalty = expected.map_or(0.0, |prior| prior.penalty(track.speed / slope.value));
            Some((score - penalty, *track, slope))
        })
        .collect();
    scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    match scored.as_slice() {
        [(_, track, slope)] => Some((*track, *slope)),
        [best, next, ..] if best.0 - next.0 >= CLEAR => Some((best.1, best.2)),
        _ => None,
    }
}

fn point(at: usize, reading: &Reading, value: u64) -> Point {
    Point { at, time_ns: reading.time_ns, switches: reading.switches, value }
}

/// Logarithms of the rates of a place's samples nearest in time, if there are so many.
fn nearest(regions: &Regions, region: u64, number: u32, fewest: usize) -> Option<Vec<f64>> {
    let rates = regions.get(&region)?;
    let at = rates.partition_point(|rate| rate.0 < number);
    let around = rates.get(at.saturating_sub(NEAREST)..rates.len().min(at + NEAREST))?;
    let mut around: Vec<&(u32, f64)> = around.iter().filter(|rate| rate.0 != number).collect();
    around.sort_unstable_by_key(|rate| (rate.0.abs_diff(number), rate.0));
    around.truncate(NEAREST);
    (around.len() >= fewest).then(|| around.into_iter().map(|rate| rate.1.ln()).collect())
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
