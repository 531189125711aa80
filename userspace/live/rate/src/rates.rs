//! Rates of one process, learnt from each sample, and reported for all samples at any moment.

mod counted_reuses;

pub use counted_reuses::Counts;
use counted_reuses::Seen;

use std::collections::BTreeMap;

use crate::combine::{Candidate, combine};
use crate::core_limits::Machine;
use crate::induction::{Quantity, Slope};
use crate::memory_counters::Words;
use crate::pmu;
use crate::prior::{Prior, Scale, Shape, median, weighed_median};
use crate::register_counters::Blocks;
use crate::speed_fit::{Common, Point, Track, reckon};
use crate::string_ops;
use crate::types::{Estimate, Reading, Sample, SampleRate, Source, Wanted};
use crate::window_digest::Digester;

/// Least standard deviation of ln of the rates at a place with rates measured there.
const SAME_PLACE: f64 = 0.3;
/// Fewest rates of a place for a rate of the place.
const FEWEST_OF_REGION: usize = 3;
/// Least difference of log likelihoods for preferring a track to the rivals.
const CLEAR: f64 = 3.0;
/// Rounds of a revision of the samples.
const ROUNDS: usize = 3;
/// Number of samples at the first revision.
const FIRST_REVISION: usize = 8;
/// Relative error of accesses per step above which rounds of an inner loop give the value.
const IMPRECISE: f64 = 0.05;
/// Greatest relative error of accesses per step for a rate common to samples.
const STILL_OF_USE: f64 = 0.15;
/// Fewest readings at a place different from the window's for an evaluation.
const FEWEST_READINGS: usize = 3;
/// Samples of a place that are evaluated, the nearest in time.
const NEAREST: usize = 9;

/// Least standard deviation of ln of samples' rates around the common one: for samples without an
/// own rate, and in the search for a common rate.
const COMMON: f64 = 0.04;
const SAME_SPEED: f64 = 0.15;
/// Number of rates of a place from which the median is better.
const FEWER_THAN_COMMON: usize = 12;

/// Divisor for the share of a place's samples that must have a speed if only wrapping
/// quantities show a speed, because fits may be chance. Chance fits scatter widely,
/// so fewer suffice if a number and a share of the rates agree within a tenth.
const FEW: usize = 8;
const FEWEST_AGREEING: usize = 4;
const MOST_AGREE: f64 = 0.6;
const AGREEMENT: f64 = 0.1;

/// Samples with own rates by place, in order.
type Regions = BTreeMap<u64, Vec<Told>>;

/// Rate from a sample's own readings.
#[derive(Debug, Clone, Copy)]
struct Told {
    number: u32,
    /// Logarithm of the rate.
    ln: f64,
    /// Relative half width of the rate's interval.
    half: f64,
    /// The rate was read at the work of the window.
    steady: bool,
    /// Read at the work of the window, and precise.
    is_good: bool,
}

/// A quantity's track in a sample.
#[derive(Debug, Clone)]
struct Evidence {
    quantity: u32,
    /// Possible tracks with log likelihoods.
    tracks: Vec<(Track, f64)>,
    is_word: bool,
}

/// A rate from readings.
type Own = Option<(Estimate, Source)>;

/// Stored state of a sample.
#[derive(Debug, Clone)]
struct Kept {
    thread: u32,
    /// Address of the block begun most often in the window.
    region: u64,
    /// All readings found the thread at the window's place, still at the window's work.
    steady: bool,
    /// CPU time after the stop without a reading at other work, as far as readings go.
    stays_ns: f64,
    /// CPU time from the stop to the first reading.
    unread_ns: f64,
    shape: Shape,
    evidence: Vec<Evidence>,
    /// Accesses per nanosecond inside a repeated string instruction.
    string: Option<Track>,
    /// Accesses per nanosecond by hardware counters.
    counted: Option<Track>,
    /// Readings at places different from the window's.
    elsewhere: Vec<Kept>,
}

impl Kept {
    fn new(region: u64, shape: Shape) -> Kept {
        Kept {
            thread: 0,
            region,
            steady: true,
            stays_ns: 0.0,
            unread_ns: 0.0,
            shape,
            evidence: Vec::new(),
            string: None,
            counted: None,
            elsewhere: Vec::new(),
        }
    }
}

/// Result of a sample's readings at a place.
#[derive(Debug, Clone, Copy)]
struct Telling<'a> {
    number: u32,
    kept: &'a Kept,
    /// The place differs from the window's.
    is_elsewhere: bool,
    rate: Own,
}

/// A sample's readings at one place.
#[derive(Debug, Default)]
struct Place {
    /// Numbers of the readings.
    readings: Vec<usize>,
    /// By register and quantity.
    registers: BTreeMap<(u8, u32), Vec<Point>>,
}

/// The rates of one process.
#[derive(Debug, Clone)]
pub struct Rates {
    tick_ns: f64,
    blocks: Blocks,
    words: Words,
    quantities: Vec<Quantity>,
    samples: Vec<Kept>,
    /// The latest window's at each place.
    shapes: BTreeMap<u64, Shape>,
    /// Readings of each place's samples: at the work of the sample's window, and in total.
    seen: BTreeMap<u64, Seen>,
    learnt: LearnedRates,
    /// Number of samples at the next revision.
    revise_at: usize,
    digester: Digester,
}

/// Knowledge from samples with own rates about samples without.
#[derive(Debug, Clone, Default)]
struct LearnedRates {
    scale: Scale,
    regions: Regions,
    /// Rates common to the readings of a place's samples, by place.
    common: BTreeMap<u64, Agreed>,
}

/// A rate common to the readings of a place's samples.
#[derive(Debug, Clone, Copy)]
struct Agreed {
    rate: Estimate,
    /// Standard deviation of ln of each sample's rate around the common rate.
    scatter: f64,
    /// Weight among the common rates of the place: lower with
    /// uncertainty, and with more speeds and values of accesses per step.
    weight: f64,
}

impl Agreed {
    /// `None` if the accesses per step are hardly known.
    fn new(common: Common, slope: Slope) -> Option<Self> {
        if slope.sigma > STILL_OF_USE {
            return None;
        }
        let Common { speed, score, scatter } = common;
        let half = 2.0 * scatter.max(COMMON).hypot(slope.sigma);
        let rate = Estimate::within(speed / slope.value, half);
        let speeds = scatter.max(SAME_SPEED);
        let steps = slope.sigma * f64::from(slope.windows).sqrt();
        Some(Self { rate, scatter: speeds.hypot(slope.sigma), weight: score * speeds.hypot(steps).powi(-2) })
    }
}

impl Rates {
    /// `tick_cost_ns`: CPU time of each reading, not counted
    /// as the thread's own progress. `machine`: the processor.
    pub fn new(tick_cost_ns: f64, machine: Machine) -> Rates {
        Rates {
            tick_ns: tick_cost_ns,
            blocks: Blocks::default(),
            words: Words::default(),
            quantities: Vec::new(),
            samples: Vec::new(),
            shapes: BTreeMap::new(),
            seen: BTreeMap::new(),
            learnt: LearnedRates::default(),
            revise_at: FIRST_REVISION,
            digester: Digester::new(machine),
        }
    }

    /// Latency of a line that the program touches anew, in nanoseconds, by the footprint of the
    /// windows so far.
    pub fn line_latency_ns(&self) -> f64 {
        self.digester.line_latency_ns()
    }

    /// Words for the kernel side to read from now on.
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

    /// Takes the next sample, and returns the rate known by now.
    pub fn observe(&mut self, sample: &Sample<'_>) -> SampleRate {
        let number = self.samples.len() as u32;
        let place = |reading: &Reading| self.blocks.place(reading.ip).unwrap_or(reading.ip);
        let mut kept = Kept::new(sample.readings.first().map_or(0, place), Shape::default());
        kept.thread = sample.thread;
        kept.counted = pmu::track(sample.readings, self.tick_ns);
        let mut here: Vec<bool> =
            sample.readings.iter().map(|reading| place(reading) == kept.region).collect();
        if let Some(window) = &sample.window {
            let digest = self.digester.digest(window);
            self.blocks.learn(number, &digest, &mut self.quantities);
            self.words.learn(number, sample.thread, &digest, &mut self.quantities);
            // Neighbouring loops are separate places, and the window's weight is that of the
            // hottest block.
            kept.region = digest.hottest.unwrap_or(kept.region);
            let is_shown = |ip: u64| digest.visits.iter().any(|visit| (visit.start..visit.end).contains(&ip));
            let is_here = |ip: u64| self.blocks.place(ip) == Some(kept.region) || is_shown(ip);
            here = sample.readings.iter().map(|reading| is_here(reading.ip)).collect();
            kept.string = string_ops::track(sample.readings, &window.code, self.tick_ns);
            kept.steady = here.iter().all(|here| *here);
            if digest.accesses > 0.0 {
                kept.shape = Shape {
                    model: digest.weight,
                    instructions: digest.instructions / digest.accesses,
                    waiting: digest.waiting,
                };
                self.shapes.insert(kept.region, kept.shape);
            }
        }
        kept.stays_ns = counted_reuses::stays_ns(sample.readings, &here);
        kept.unread_ns = counted_reuses::unread_ns(sample.readings);
        self.seen.entry(kept.region).or_default().add(sample.readings, &here);
        self.read_words(number, sample.readings, &mut kept);
        self.read_registers(number, sample.readings, &here, &mut kept);
        self.words.choose(&self.quantities);
        let own = self.own(number, &kept, &self.learnt);
        self.learnt.scale.count(kept.shape);
        if let Some((rate, _)) = own {
            self.learnt.learn(number, &kept, rate);
            self.learnt.scale.fit();
        }
        let rate = self.learnt.settle(number, &kept, own);
        self.samples.push(kept);
        if self.samples.len() >= self.revise_at {
            // Rates reported from less knowledge may have been wrong.
            self.revise_at = self.samples.len() * 3 / 2 + 1;
            self.learnt = self.learn_again().1;
        }
        rate
    }

    /// Rates of the samples so far, in the order of observation, with the present knowledge.
    pub fn rates(&self) -> Vec<SampleRate> {
        let (own, learnt) = self.learn_again();
        let settle = |((kept, own), number)| learnt.settle(number, kept, own);
        self.samples.iter().zip(own).zip(0..).map(settle).collect()
    }

    /// Own rates of samples with the present knowledge,
    /// and the knowledge learnt about further samples.
    fn learn_again(&self) -> (Vec<Own>, LearnedRates) {
        let mut learnt = LearnedRates::default();
        let mut told: Vec<Telling<'_>> = Vec::new();
        for (kept, number) in self.samples.iter().zip(0..) {
            told.push(Telling { number, kept, is_elsewhere: false, rate: None });
            let there = kept.elsewhere.iter();
            told.extend(there.map(|kept| Telling { number, kept, is_elsewhere: true, rate: None }));
        }
        let mut common = None;
        // Clear samples help to clear the rest.
        for _ in 0..ROUNDS {
            for telling in &mut told {
                telling.rate = self.own(telling.number, telling.kept, &learnt);
            }
            self.forget_chance_fits(&mut told, &learnt.common);
            learnt = LearnedRates::default();
            self.samples.iter().for_each(|kept| learnt.scale.count(kept.shape));
            for telling in &told {
                if let Some((rate, _)) = telling.rate {
                    learnt.learn(telling.number, telling.kept, rate);
                }
            }
            learnt.scale.fit();
            learnt.common = common.get_or_insert_with(|| self.common(&learnt.scale)).clone();
        }
        let own = told.iter().filter(|telling| !telling.is_elsewhere).map(|telling| telling.rate);
        (own.collect(), learnt)
    }

    /// Rates of places by registers that wrap too often for
    /// a sample's few readings to fit only a single rate.
    fn common(&self, scale: &Scale) -> BTreeMap<u64, Agreed> {
        let mut agreed: BTreeMap<u64, Vec<Agreed>> = BTreeMap::new();
        for (quantity, index) in self.quantities.iter().zip(0..).filter(|(quantity, _)| quantity.is_sound()) {
            let places = quantity.places();
            let bracket = |place: u64| {
                let shape: &Shape = self.shapes.get(&place)?;
                Some(scale.prior(*shape)?.bracket(shape.most()))
            };
            let of_windows = |places: &[u64]| {
                quantity.slope_of(|sample| {
                    self.samples.get(sample as usize).is_some_and(|kept| places.contains(&kept.region))
                })
            };
            for place in &places {
                let told = || {
                    let (low, high) = bracket(*place)?;
                    // If steps depend on the work, a single window's
                    // accesses per step do not stand for the place.
                    let last = self.samples.iter().rposition(|kept| kept.region == *place)? as u32;
                    let of_last = self.slope(last, index, 0.0).filter(|slope| slope.windows > 1);
                    let slopes = of_windows(&[*place]).into_iter().chain(of_last);
                    let slope = slopes.min_by(|a, b| a.sigma.total_cmp(&b.sigma))?;
                    let bounds = (low * slope.value, high * slope.value);
                    Agreed::new(quantity.common_speed(*place, bounds)?, slope)
                };
                agreed.entry(*place).or_default().extend(told());
            }
            // Common knowledge of the quantity's places:
            // between readings a thread visits all places.
            let wider = |a: (f64, f64), b: (f64, f64)| (a.0.min(b.0), a.1.max(b.1));
            let pooled = || {
                let (low, high) = places.iter().filter_map(|place| bracket(*place)).reduce(wider)?;
                let slope = of_windows(&places)?;
                Agreed::new(quantity.mean_speed(&places, (low * slope.value, high * slope.value))?, slope)
            };
            let pooled = if places.len() > 1 { pooled() } else { None };
            for place in &places {
                let is_possible = |told: &Agreed| {
                    bracket(*place).is_some_and(|(low, high)| (low..=high).contains(&told.rate.value))
                };
                agreed.entry(*place).or_default().extend(pooled.filter(is_possible));
            }
        }
        agreed.into_iter().filter_map(|(place, agreed)| Some((place, middle(agreed)?))).collect()
    }

    /// Removes rates from wrapping quantities that are too few at their place. Places different
    /// from the window's have few readings, so unfit readings of such places are not counted.
    fn forget_chance_fits(&self, told: &mut [Telling<'_>], common: &BTreeMap<u64, Agreed>) {
        let may_be_chance = |kept: &Kept| {
            let comes_round = |evidence: &Evidence| {
                let quantity = self.quantities.get(evidence.quantity as usize);
                quantity.is_some_and(|quantity| quantity.period().is_some() || quantity.turns_back())
            };
            kept.string.or(kept.counted).is_none() && kept.evidence.iter().all(comes_round)
        };
        let mut fits: BTreeMap<u64, (usize, Vec<f64>)> = BTreeMap::new();
        for telling in told.iter().filter(|telling| may_be_chance(telling.kept)) {
            let (all, rates) = fits.entry(telling.kept.region).or_default();
            *all += 1;
            rates.extend(telling.rate.map(|(rate, _)| rate.value.ln()));
        }
        fits.retain(|region, (all, rates)| {
            rates.len() * FEW < *all && !agree(rates) && !common.contains_key(region)
        });
        for telling in told.iter_mut().filter(|telling| may_be_chance(telling.kept)) {
            telling.rate = telling.rate.filter(|_| !fits.contains_key(&telling.kept.region));
        }
    }

    /// Result of each quantity of a sample, for debugging.
    pub fn explain(&self, number: usize) -> String {
        let Some(kept) = self.samples.get(number) else { return String::new() };
        let of = |evidence: &Evidence| {
            let quantity = self.quantities.get(evidence.quantity as usize)?;
            let one = |(track, score): &(Track, f64)| {
                let slope = self.slope(number as u32, evidence.quantity, 0.0)?;
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
        format!("model {:.3} {}", kept.shape.model, texts.join(" "))
    }

    fn read_words(&mut self, number: u32, readings: &[Reading], kept: &mut Kept) {
        for (place, index) in self.words.in_readings(readings) {
            let points: Vec<Point> = readings
                .iter()
                .enumerate()
                .filter_map(|(at, reading)| Some(point(at, reading, self.words.value(place, reading)?)))
                .collect();
            self.read(number, index, &points, true, kept);
        }
    }

    /// `here`: whether each reading was taken at the place shown by the window.
    fn read_registers(&mut self, number: u32, readings: &[Reading], here: &[bool], kept: &mut Kept) {
        let mut places: BTreeMap<Option<u64>, Place> = BTreeMap::new();
        for ((at, reading), here) in readings.iter().enumerate().zip(here) {
            let elsewhere = self.blocks.place(reading.ip).filter(|_| !here);
            let place = places.entry(elsewhere).or_default();
            place.readings.push(at);
            for (register, index) in self.blocks.at(reading.ip) {
                if let Some(value) = reading.registers.get(usize::from(*register)) {
                    let points = place.registers.entry((*register, *index)).or_default();
                    points.push(point(at, reading, *value));
                }
            }
        }
        for (elsewhere, place) in places {
            let Some(region) = elsewhere else {
                for ((_, index), points) in place.registers {
                    self.read(number, index, &points, false, kept);
                }
                continue;
            };
            let is_enough = place.readings.len() >= FEWEST_READINGS;
            let Some(shape) = self.shapes.get(&region).filter(|_| is_enough) else { continue };
            // Between the readings the thread may have been elsewhere.
            let steady = place.readings.windows(2).all(|pair| matches!(pair, [a, b] if a + 1 == *b));
            let mut there = Kept { steady, ..Kept::new(region, *shape) };
            for ((_, index), points) in place.registers {
                self.read(number, index, &points, false, &mut there);
            }
            if !there.evidence.is_empty() {
                kept.elsewhere.push(there);
            }
        }
    }

    fn read(&mut self, number: u32, index: u32, points: &[Point], is_word: bool, kept: &mut Kept) {
        let Some(quantity) = self.quantities.get_mut(index as usize).filter(|q| q.is_sound()) else { return };
        let slope = quantity.slope(number, 0.0).map(|slope| slope.value);
        let bracket = self.learnt.bracket(kept);
        let bounds = bracket.zip(slope).map(|((low, high), slope)| (low * slope, high * slope));
        let reckoned = reckon(points, quantity, self.tick_ns, bounds);
        for point in points {
            quantity.note_value(point.value);
        }
        quantity.forward += reckoned.forward;
        quantity.backward += reckoned.backward;
        if reckoned.forward > 0 {
            quantity.still = 0;
        } else if !reckoned.intervals.is_empty() {
            quantity.still += 1;
        }
        if !is_word {
            quantity.note_intervals(kept.region, &reckoned.intervals);
        }
        if let Some((track, _)) = reckoned.tracks.first() {
            if reckoned.tracks.len() == 1 {
                quantity.note_speed(number, track.speed, kept.steady);
            }
            quantity.is_cited = true;
            kept.evidence.push(Evidence { quantity: index, tracks: reckoned.tracks, is_word });
        }
    }

    /// Accesses per step of a quantity around a sample with `speed` of
    /// the quantity (0: unknown). For an outer loop's register, rounds
    /// of the inner loop give the value if windows alone are imprecise.
    fn slope(&self, number: u32, index: u32, speed: f64) -> Option<Slope> {
        let quantity = self.quantities.get(index as usize)?;
        let told = quantity.slope(number, speed);
        let block = quantity.block.filter(|_| told.is_none_or(|told| told.sigma > IMPRECISE));
        let beside = block.map_or(&[][..], |block| self.blocks.at(block)).iter().map(|(_, other)| *other);
        let rounds = beside.filter(|other| *other != index).filter_map(|other| {
            let round =
                self.quantities.get(other as usize).filter(|other| other.is_sound())?.round(number)?;
            Some((other, round))
        });
        let by_rounds = rounds.filter_map(|(other, round)| {
            let by_wraps = quantity.slope_by_wraps(other, round);
            by_wraps.or_else(|| quantity.slope_by_rounds(told?, round))
        });
        by_rounds.min_by(|a, b| a.sigma.total_cmp(&b.sigma)).or(told)
    }

    /// The rate from the sample's own readings, with the present knowledge of the quantities.
    fn own(&self, number: u32, kept: &Kept, learnt: &LearnedRates) -> Own {
        // A string instruction needs no window for accesses
        // per step, and fills go faster than ordinary code.
        if let Some(Track { speed: rate, sigma, intervals }) = kept.string {
            let one = Candidate { rate, sigma, intervals: intervals.max(3), is_word: false, is_affine: true };
            return combine(&[one]);
        }
        if let Some(Track { speed: rate, sigma, intervals }) = kept.counted {
            let one = Candidate { rate, sigma, intervals: intervals.max(4), is_word: true, is_affine: false };
            return combine(&[one]).map(|(rate, _)| (rate, Source::Counters));
        }
        let prior = learnt.scale.prior(kept.shape);
        let expected = learnt.local_prior(number, kept).or(prior);
        let most = kept.shape.most();
        let (narrow, wide) = match prior {
            Some(prior) => (prior.bracket(most), prior.wide_bracket(most)),
            None => ((0.0, most), (0.0, most)),
        };
        let candidates: Vec<Candidate> = kept
            .evidence
            .iter()
            .filter_map(|evidence| {
                let quantity = self.quantities.get(evidence.quantity as usize)?;
                let slope = |speed| self.slope(number, evidence.quantity, speed);
                let (track, slope) = clearest(slope, &evidence.tracks, expected)?;
                let rate = track.speed / slope.value;
                // A wrapping quantity fits several speeds,
                // and a register may wrap unseen by windows.
                let counts = evidence.is_word && quantity.period().is_none();
                let (low, high) = if counts { wide } else { narrow };
                (quantity.is_sound() && rate >= low && rate <= high).then(|| Candidate {
                    rate,
                    sigma: track.sigma.hypot(slope.sigma),
                    intervals: track.intervals,
                    is_word: evidence.is_word,
                    is_affine: !evidence.is_word && quantity.stride.is_some(),
                })
            })
            .collect();
        combine(&candidates)
    }
}

impl LearnedRates {
    /// Takes a sample's own rate.
    fn learn(&mut self, number: u32, kept: &Kept, rate: Estimate) {
        self.scale.learn(kept.shape, rate, kept.steady);
        let is_good = kept.steady && rate.is_precise();
        let (ln, half) = (rate.value.ln(), rate.high / rate.value - 1.0);
        let told = Told { number, ln, half, steady: kept.steady, is_good };
        self.regions.entry(kept.region).or_default().push(told);
    }

    /// Bounds of the rate as known without the readings.
    fn bracket(&self, kept: &Kept) -> Option<(f64, f64)> {
        Some(self.scale.prior(kept.shape)?.bracket(kept.shape.most()))
    }

    /// The common rate of a place's samples, if few have own rates.
    fn common(&self, region: u64) -> Option<Agreed> {
        let few = self.regions.get(&region).is_none_or(|told| told.len() < FEWER_THAN_COMMON);
        self.common.get(&region).filter(|_| few).copied()
    }

    /// Prior from the rates of further samples of the place, if in agreement.
    fn local_prior(&self, number: u32, kept: &Kept) -> Option<Prior> {
        if let Some(common) = self.common(kept.region) {
            return Some(Prior { centre: common.rate.value.ln(), sigma: common.scatter });
        }
        let told = nearest(&self.regions, kept.region, number, FEWEST_OF_REGION)?;
        let (centre, scatter) = median(&logs(&told))?;
        Some(Prior { centre, sigma: SAME_PLACE.max(2.0 * scatter) })
    }

    /// Whether a rate read at different work contradicts the rates read at the sample's place.
    fn is_of_elsewhere(&self, number: u32, kept: &Kept, rate: f64) -> bool {
        let here = self.regions.get(&kept.region).map_or(&[][..], Vec::as_slice);
        let told = closest(here, number, FEWEST_OF_REGION, |told| told.is_good);
        told.and_then(|told| median(&logs(&told)))
            .is_some_and(|(middle, scatter)| (rate.ln() - middle).abs() > SAME_PLACE.max(2.0 * scatter))
    }

    fn settle(&self, number: u32, kept: &Kept, own: Own) -> SampleRate {
        let own = own.filter(|(rate, _)| kept.steady || !self.is_of_elsewhere(number, kept, rate.value));
        let is_counted = kept.string.or(kept.counted).is_some();
        let prior = self.scale.prior(kept.shape);
        let refine = |rate, steady| {
            let prior = prior.filter(|_| !is_counted);
            prior.map_or(rate, |prior| prior.refine(rate, self.scale.doubt(steady)))
        };
        let own = own.map(|(rate, source)| (refine(rate, kept.steady), source));
        let of_common = || Some((refine(self.common(kept.region)?.rate, true), Source::Region));
        let of_region = || {
            let told = nearest(&self.regions, kept.region, number, 2)?;
            let (middle, scatter) = median(&logs(&told))?;
            // All rates may rest on a single quantity, so averaging does not reduce the errors.
            let (own, _) = median(&told.iter().map(|told| told.half).collect::<Vec<f64>>())?;
            // The speed of a place may change, and two or
            // three neighbours may have missed the change.
            let half = own.max(2.0 * scatter) + 0.05 + 0.2 / told.len() as f64;
            let steady = told.iter().all(|told| told.steady);
            Some((refine(Estimate::within(middle.exp(), half), steady), Source::Region))
        };
        let of_model = || {
            let source = if self.scale.is_scaled(kept.shape) { Source::Model } else { Source::Unknown };
            Some((prior?.estimate(), source))
        };
        let most = if kept.string.is_some() { f64::INFINITY } else { kept.shape.most() };
        let possible = |rate: &(Estimate, Source)| rate.0.value <= most;
        let told = own.or_else(of_common).or_else(of_region).filter(possible);
        match told.or_else(of_model) {
            Some((rate, source)) => {
                let value = rate.value.min(most);
                let rate = Estimate { value, low: rate.low.min(value), high: rate.high.min(most) };
                SampleRate {
                    accesses_per_ns: Some(rate),
                    instructions_per_ns: (kept.shape.instructions > 0.0)
                        .then(|| rate.times(kept.shape.instructions)),
                    source,
                }
            }
            None => SampleRate::NONE,
        }
    }
}

/// The weighted median of the common rates.
fn middle(agreed: Vec<Agreed>) -> Option<Agreed> {
    let weighed: Vec<(f64, f64)> = agreed.iter().map(|one| (one.rate.value.ln(), one.weight)).collect();
    let (middle, _) = weighed_median(&weighed)?;
    let off = |one: &Agreed| (one.rate.value.ln() - middle).abs();
    agreed.into_iter().min_by(|a, b| off(a).total_cmp(&off(b)))
}

/// Whether rates, given as logarithms, lie too near to each other for chance.
fn agree(rates: &[f64]) -> bool {
    let Some((middle, _)) = median(rates) else { return false };
    let near = rates.iter().filter(|rate| (*rate - middle).abs() <= AGREEMENT).count();
    near >= FEWEST_AGREEING && near as f64 >= MOST_AGREE * rates.len() as f64
}

/// The likeliest track, and the accesses per step at the track's speed.
fn clearest(
    slope: impl Fn(f64) -> Option<Slope>,
    tracks: &[(Track, f64)],
    expected: Option<Prior>,
) -> Option<(Track, Slope)> {
    let mut scored: Vec<(f64, Track, Slope)> = tracks
        .iter()
        .filter_map(|(track, score)| {
            let speed = if tracks.len() == 1 { track.speed } else { 0.0 };
            let slope = slope(speed)?;
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

/// Results of a place's nearest samples in time, if enough: only good samples, if enough.
fn nearest(regions: &Regions, region: u64, number: u32, fewest: usize) -> Option<Vec<Told>> {
    let told = regions.get(&region)?;
    closest(told, number, fewest, |told| told.is_good).or_else(|| closest(told, number, fewest, |_| true))
}

fn closest(told: &[Told], number: u32, fewest: usize, counts: fn(&Told) -> bool) -> Option<Vec<Told>> {
    let (before, after) = told.split_at(told.partition_point(|told| told.number < number));
    let counted = |told: &&Told| told.number != number && counts(told);
    let mut around: Vec<&Told> = before.iter().rev().filter(counted).take(NEAREST).collect();
    around.extend(after.iter().filter(counted).take(NEAREST));
    around.sort_unstable_by_key(|told| (told.number.abs_diff(number), told.number));
    around.truncate(NEAREST);
    (around.len() >= fewest).then(|| around.into_iter().copied().collect())
}

fn logs(told: &[Told]) -> Vec<f64> {
    told.iter().map(|told| told.ln).collect()
}

#[cfg(test)]
mod tests;
