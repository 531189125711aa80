//! Reuse at one size of granule: time distances in accesses, weight never
//! reused, stack distances, the miss-ratio curve and the footprint, each
//! with an interval, for the whole of a profile or one thread.
//!
//! Subjects (`censored_uses`) are weighed by an estimator (`estimator`), by stretches of the
//! run (`run_segments`); the conversion of `mrc::phases` turns time distances into stack
//! distances. A miss ratio is for a fully associative LRU cache (Mattson et al. 1970).
//!
//! Intervals are 95 %: the standard deviation over [`REPLICATES`] bootstrap draws, half
//! of samples (a sample's uses together) and half of blocks of successive samples, to
//! make phases count; the wider of the two. In each draw each rate is wrong by an own
//! error (half of the variance common to the source's rates), and reuses in intervals
//! lie at random places within. Taken ± Student's quantile, and not narrower than
//! Wilson's interval at the number of supporting samples (module `basis`): samples with
//! a window for distances within windows, and watches of sufficient duration beyond.
//!
//! Sources of error: the errors of the modules named; the intervals know the conversion's
//! own error only on average, and ignore lines reused through an unwatched word.

mod basis;
mod edges;

use std::collections::BTreeMap;

use locality_model::{GroupId, Profile, ThreadId};
use locality_mrc::distances::Distances;
use locality_mrc::{scale, survival::Survival};

use crate::access_rates::{Rates, Unit};
use crate::calling_context::Contexts;
use crate::censored_uses::{Followed, Subject, Subjects};
use crate::code_phases::Code;
use crate::estimator::{BootstrapReplicate, Estimator, Study, WeightedHistogram};
use crate::interval_censoring::DistanceDistributions;
use crate::interval_estimate::{Estimate, wilson};
use crate::run_segments::{MOST, RunPart, Stretches, distances};

use basis::Basis;
use edges::Edges;

/// Bootstrap draws of a report; tests may use fewer, because debug builds are slow.
pub const REPLICATES: usize = 80;
/// Stretches in a bootstrap draw: fewer, to be quick. The
/// spread between draws hardly depends on the number.
const FEW_STRETCHES: usize = 12;
/// Samples in a block, and blocks in a run at least.
const BLOCK: usize = 16;
const BLOCKS: usize = 24;
const SEED: u64 = 0x5EED_10CA;
/// Least missing uses for the scatter of draws to be believed.
const FEWEST_EVENTS: f64 = 5.0;
/// Share of the reuses near an edge between bins from which on the edge is reported.
const BLURRED: f64 = 0.05;
const Z: f64 = 1.959_964;
/// Sizes of every report, for comparisons between machines.
pub const FIXED_SIZES: [u64; 3] = [32 << 10, 1 << 20, 32 << 20];

/// Reuses with low ≤ distance < high.
#[derive(Debug, Clone, PartialEq)]
pub struct Bin {
    /// Lowest distance.
    pub low: u64,
    /// First distance beyond the bin.
    pub high: u64,
    /// Share of the reuses; n counts the reuses in the bin.
    pub fraction: Estimate,
}

/// Miss ratio at a size.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Capacity.
    pub bytes: u64,
    /// Level of the machine's caches with the point's size, if present.
    pub level: Option<u8>,
    /// Misses ÷ touches.
    pub ratio: Estimate,
    /// Ratio with the interval from sampling alone: the common error of
    /// the conversion and the draws is shared by traces of one program.
    pub sampling: Estimate,
}

/// Reuse at one size of granule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reuse {
    /// Bytes of a granule.
    pub bytes: u32,
    /// Unit of time distances.
    pub unit: Unit,
    /// Reuses seen.
    pub n: u64,
    /// Time distances, log2 bins from 0.
    pub time: Vec<Bin>,
    /// Median time distance.
    pub median: Estimate,
    /// 90 % of the reuses come sooner.
    pub p90: Estimate,
    /// Share of touches never followed by a further touch, as far as is known.
    pub cold: Estimate,
    /// Stack distances in granules, log2 bins from 0; empty if distances are times.
    pub stack: Vec<Bin>,
    /// Miss ratios by size, ascending; empty if distances are times.
    pub curve: Vec<Point>,
    /// Distinct granules touched in the trace, in bytes: granules last touched in the trace, or
    /// granules passed by the longest stack distance, whichever are more; 0 if neither is known.
    pub footprint_bytes: Estimate,
    /// Touches of granules in the trace.
    pub touches: f64,
    /// Edges between bins of time distances with a large share of the
    /// reuses, and the share: the two bins are not distinguished.
    pub blurred: Vec<(u64, f64)>,
    /// Widest half of an interval over the bins of the time histogram, as far as more samples make
    /// it narrower.
    widest: f64,
    /// Result of another estimator.
    pub cross_check: Option<CrossCheck>,
    /// Conversion of time distances to stack distances, on average over the run.
    survival: Option<Survival>,
}

/// Time distances by two estimators. Horvitz–Thompson's needs no assumption about
/// contexts; if reported, the default is the check. The check has no interval:
/// few and heavy observations make Horvitz–Thompson vary more than the default.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossCheck {
    /// The checking estimator.
    pub estimator: Estimator,
    /// S of the two histograms over log2 bins (package `compare`).
    pub s: f64,
    /// The bin with the largest difference: bounds, and the checking share less the reported share.
    pub largest: (u64, u64, f64),
    /// Whether the checking share lies outside of the reported share's interval.
    pub outside: bool,
}

impl Reuse {
    /// Mean stack distance of a time distance, in granules.
    pub fn stack_distance(&self, time: f64) -> Option<f64> {
        self.survival.as_ref().map(|survival| survival.stack_distance(time))
    }

    /// Miss ratio at a size on the curve.
    pub fn at(&self, bytes: u64) -> Option<&Point> {
        self.curve.iter().find(|point| point.bytes == bytes)
    }

    /// Limits the miss ratios of caches of at least `smallest` bytes to
    /// the known share of touches that can miss. Stack distances stay.
    pub fn hold_misses(&mut self, smallest: u64, most: Estimate) {
        for point in self.curve.iter_mut().filter(|point| point.bytes >= smallest) {
            for ratio in [&mut point.ratio, &mut point.sampling] {
                ratio.value = ratio.value.min(most.value);
                ratio.low = ratio.low.min(ratio.value);
                ratio.high = ratio.high.min(most.high).max(ratio.value);
            }
        }
    }

    /// Widest half of an interval over the bins of the time histogram, as far as more samples make
    /// it narrower: what `--until-ci` is about.
    pub fn half_width(&self) -> Option<f64> {
        (self.n > 0).then_some(self.widest)
    }
}

/// Words are touched in lines: of what is touched in all, words are no more bytes than lines. Each
/// is estimated by itself.
pub fn agree([words, lines]: &mut [Reuse; 2]) {
    let (words, lines) = (&mut words.footprint_bytes, &mut lines.footprint_bytes);
    if words.value <= 0.0 || lines.value <= 0.0 {
        return;
    }
    if words.value > lines.value {
        let both = (words.value * lines.value).sqrt();
        (words.value, lines.value) = (both, both);
    }
    lines.low = lines.low.max(words.low).min(lines.value);
    words.high = words.high.min(lines.high).max(words.value);
    lines.high = lines.high.max(lines.value);
    words.low = words.low.min(words.value);
}

/// Results of one draw.
struct Numbers {
    /// Drawn by blocks.
    blocks: bool,
    time: Vec<f64>,
    cold: f64,
    quantiles: [f64; 2],
    stack: Vec<f64>,
    ratios: Vec<f64>,
    footprint: f64,
}

/// Input of an estimate at one granule.
pub struct Case<'a> {
    profile: &'a Profile,
    rates: &'a Rates,
    granule: u32,
    subjects: Vec<Subject>,
    fine: Stretches,
    coarse: Stretches,
    spreads: DistanceDistributions,
}

impl<'a> Case<'a> {
    /// Of the uses of one group of processes.
    pub fn of_group(
        profile: &'a Profile,
        contexts: &Contexts,
        rates: &'a Rates,
        granule: u32,
        group: GroupId,
    ) -> Self {
        Self::of_part(profile, contexts, rates, granule, RunPart::Group(group))
    }

    /// Of all threads, or of one thread's uses.
    pub fn new(
        profile: &'a Profile,
        contexts: &Contexts,
        rates: &'a Rates,
        granule: u32,
        thread: Option<ThreadId>,
    ) -> Self {
        Self::of_part(profile, contexts, rates, granule, thread.map_or(RunPart::Whole, RunPart::Thread))
    }

    fn of_part(
        profile: &'a Profile,
        contexts: &Contexts,
        rates: &'a Rates,
        granule: u32,
        part: RunPart,
    ) -> Self {
        // One thread's accesses are a part of its process's around them.
        let code = (!matches!(part, RunPart::Thread(_))).then(|| Code::of(profile));
        let stretches = |most| Stretches::of(profile, rates, code.as_ref(), granule, part, most);
        let (fine, coarse) = (stretches(MOST), stretches(FEW_STRETCHES));
        let is_of_part = |sample: u32| fine.of_sample.get(sample as usize).is_some_and(|s| *s != usize::MAX);
        let subjects = Subjects::of_samples(profile, contexts, rates, granule, is_of_part).all;
        let mut case = Self {
            profile,
            rates,
            granule,
            subjects,
            fine,
            coarse,
            spreads: DistanceDistributions::default(),
        };
        case.spreads = case.study(&case.fine, case.fine.ends()).spreads();
        case.settle();
        case
    }

    /// Assigns distances to interval-censored reuses: reuses between equal contexts get evenly
    /// spaced quantiles of their distributions, to follow these together. The interval becomes the
    /// middle 95 % of the distribution.
    fn settle(&mut self) {
        let mut alike: BTreeMap<_, Vec<(usize, &mut Followed)>> = BTreeMap::new();
        for (index, subject) in self.subjects.iter_mut().enumerate() {
            let key = (subject.context, subject.reuse_context);
            if let Some(followed) = subject.followed.as_mut().filter(|followed| followed.within.is_some()) {
                alike.entry(key).or_default().push((index, followed));
            }
        }
        for members in alike.into_values() {
            let n = members.len() as f64;
            for (rank, (index, followed)) in members.into_iter().enumerate() {
                let Some(spread) = self.spreads.get(index) else { continue };
                let at = |q: f64| scale::low(spread.quantile(q));
                followed.exit.at = at((rank as f64 + 0.5) / n);
                followed.within = Some((at(0.025), at(0.975)));
            }
        }
    }

    /// The subjects.
    pub fn subjects(&self) -> &[Subject] {
        &self.subjects
    }

    /// The run in stretches.
    pub fn stretches(&self) -> &Stretches {
        &self.fine
    }

    /// The run in few stretches, for draws, and what is known of them.
    pub fn few_stretches(&self) -> (&Stretches, Study<'_>) {
        (&self.coarse, self.study(&self.coarse, self.coarse.ends()))
    }

    /// Weight by time distance for each stretch.
    pub fn masses(&self, estimator: Estimator) -> Vec<WeightedHistogram> {
        self.study(&self.fine, self.fine.ends()).estimate(estimator, BootstrapReplicate::SEEN)
    }

    fn study(&self, stretches: &Stretches, ends: Vec<Option<f64>>) -> Study<'_> {
        let of = |s: &Subject| stretches.of_sample.get(s.sample as usize).copied().unwrap_or(usize::MAX);
        Study::new(&self.subjects, self.subjects.iter().map(of).collect(), ends).spread(&self.spreads)
    }

    /// Weight of each subject's reuse by the estimator.
    pub fn weights(&self, estimator: Estimator) -> Vec<f64> {
        self.study(&self.fine, self.fine.ends()).weights(estimator)
    }

    /// The estimate with intervals from so many draws.
    pub fn estimate(&self, estimator: Estimator, replicates: usize) -> Reuse {
        let study = self.study(&self.fine, self.fine.ends());
        let masses = study.estimate(estimator, BootstrapReplicate::SEEN);
        let whole = sum(&masses);
        let time = distances(&whole, 1.0);
        let in_accesses = self.rates.unit() == Unit::Accesses;
        let stack = if in_accesses { self.fine.stack_distances(&masses) } else { Distances::default() };
        let sizes = if stack.touches() > 0.0 { self.sizes(&stack) } else { Vec::new() };
        let within =
            self.study(&self.fine, self.fine.trace_ends()).estimate(estimator, BootstrapReplicate::SEEN);
        let numbers = self.numbers(&whole, &stack, &sum(&within), &sizes);
        let draws = self.draws(estimator, replicates, &sizes);
        self.finish((&whole, &time, &stack), &numbers, &draws, &sizes)
    }

    /// The time distances of an estimate by another estimator, a point estimate: no draws. `None`
    /// where either has no reuses.
    pub fn cross_check(&self, estimator: Estimator, reported: &Reuse) -> Option<CrossCheck> {
        let other = match estimator {
            Estimator::HorvitzThompson => Estimator::default(),
            _ => Estimator::HorvitzThompson,
        };
        let whole = sum(&self.masses(other));
        let total: f64 = whole.reused.iter().sum();
        if total <= 0.0 || reported.n == 0 {
            return None;
        }
        let checks = by_log2(&whole);
        let none = Estimate::default();
        let bin = |index: usize| {
            let seen = reported.time.get(index).map_or(none, |bin| bin.fraction);
            let checks = checks.get(index).copied().unwrap_or(0.0);
            (index, checks - seen.value, !(seen.low..=seen.high).contains(&checks))
        };
        let bins = (0..checks.len().max(reported.time.len())).map(bin);
        let s = 1.0 - bins.clone().map(|(_, difference, _)| difference.abs()).sum::<f64>() / 2.0;
        let (index, difference, outside) = bins.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
        let (low, high) = bounds(index);
        Some(CrossCheck { estimator: other, s: s.clamp(0.0, 1.0), largest: (low, high, difference), outside })
    }

    fn draws(&self, estimator: Estimator, replicates: usize, sizes: &[(u64, Option<u8>)]) -> Vec<Numbers> {
        let (coarse, study) = self.few_stretches();
        let same = coarse.ends().iter().all(Option::is_some);
        let within = self.study(&self.coarse, self.coarse.trace_ends());
        let samples = self.samples();
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut drawn = Vec::with_capacity(replicates);
        let (mut weights, mut clocks) = (Vec::new(), Vec::new());
        for number in 0..if samples.is_empty() { 0 } else { replicates } {
            let blocks = number % 2 == 1;
            self.draw(&mut random, &samples, blocks, &mut weights, &mut clocks);
            let picks: Vec<f64> = weights.iter().map(|_| random.f64()).collect();
            let draw =
                BootstrapReplicate { weights: &weights, clocks: &clocks, picks: &picks, guess: random.f64() };
            let masses = study.estimate(estimator, draw);
            let whole = sum(&masses);
            let stack =
                if sizes.is_empty() { Distances::default() } else { self.coarse.stack_distances(&masses) };
            let footprint = if same { whole.clone() } else { sum(&within.estimate(estimator, draw)) };
            drawn.push(Numbers { blocks, ..self.numbers(&whole, &stack, &footprint, sizes) });
        }
        drawn
    }

    /// Samples of the case, as indices into the profile's.
    pub fn samples(&self) -> Vec<usize> {
        let of = |sample: &usize| self.fine.of_sample.get(*sample).is_some_and(|s| *s != usize::MAX);
        (0..self.profile.samples.len()).filter(of).collect()
    }

    /// Samples with replacement, single or in blocks of neighbours, and errors of their rates.
    pub fn draw(
        &self,
        random: &mut fastrand::Rng,
        samples: &[usize],
        blocks: bool,
        weights: &mut Vec<f64>,
        clocks: &mut Vec<f64>,
    ) {
        self.resample(random, samples, blocks, weights);
        self.misread(random, weights, clocks);
    }

    /// How often each sample is drawn.
    fn resample(&self, random: &mut fastrand::Rng, samples: &[usize], blocks: bool, weights: &mut Vec<f64>) {
        let n = self.profile.samples.len();
        let block = if blocks { (samples.len() / BLOCKS).clamp(1, BLOCK) } else { 1 };
        weights.clear();
        weights.resize(n, 0.0);
        for _ in 0..samples.len().div_ceil(block) {
            let first = random.usize(..samples.len());
            for sample in samples.iter().cycle().skip(first).take(block) {
                if let Some(times) = weights.get_mut(*sample) {
                    *times += 1.0;
                }
            }
        }
    }

    /// Errors of rates: in what each sample stands for, and in distances that rest on the clock.
    fn misread(&self, random: &mut fastrand::Rng, weights: &mut [f64], clocks: &mut Vec<f64>) {
        clocks.clear();
        let common: Vec<f64> = self.rates.sources().iter().map(|_| normal(random)).collect();
        for (sample, weight) in weights.iter_mut().enumerate() {
            let local = self.rates.at(sample);
            let own = normal(random);
            let common = common.get(local.source).copied().unwrap_or(0.0);
            *weight *= (local.sigma * (own + common) * std::f64::consts::FRAC_1_SQRT_2).exp();
            // Between use and trap lie other samples, whose own errors average out.
            clocks.push((local.sigma * (0.5 * own + common) * std::f64::consts::FRAC_1_SQRT_2).exp());
        }
    }

    /// Accesses per nanosecond of CPU time over the whole, `None` without rates. The interval comes
    /// from draws as for distances: samples single and in blocks, and each rate with its own error,
    /// half of its variance common to its source. The deviation is that of the logarithm, a factor.
    /// With hardly any measured rate, the interval is at least the factor of doubt.
    pub fn rate(&self) -> Option<Estimate> {
        let samples = self.samples();
        let mean = self.rates.mean();
        if self.rates.unit() != Unit::Accesses || samples.is_empty() {
            return None;
        }
        let period =
            |sample: usize| self.profile.samples.get(sample).map_or(0.0, |sample| sample.period_ns as f64);
        let sum = |weights: &[f64], of: &dyn Fn(usize) -> f64| -> f64 {
            weights.iter().enumerate().map(|(sample, weight)| weight * period(sample) * of(sample)).sum()
        };
        let accesses = |weights: &[f64]| sum(weights, &|sample| self.rates.at(sample).value);
        let time = |weights: &[f64]| sum(weights, &|_| 1.0);
        let mut weights = vec![0.0; self.profile.samples.len()];
        samples.iter().for_each(|sample| weights[*sample] = 1.0);
        let seen = (accesses(&weights) / time(&weights)).ln();
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut clocks = Vec::new();
        let draw = |number: usize| {
            let blocks = number % 2 == 1;
            self.resample(&mut random, &samples, blocks, &mut weights);
            let time = time(&weights);
            self.misread(&mut random, &mut weights, &mut clocks);
            (blocks, (accesses(&weights) / time).ln())
        };
        let drawn: Vec<(bool, f64)> = (0..REPLICATES).map(draw).collect();
        let factor = (Basis::of(&self.subjects).deviations(0.0) * widest(seen, drawn.iter().copied())).exp();
        let factor = factor.max(self.rates.doubt().unwrap_or(1.0));
        Some(Estimate { value: mean, low: mean / factor, high: mean * factor, n: samples.len() as u64 })
    }

    fn numbers(
        &self,
        whole: &WeightedHistogram,
        stack: &Distances,
        within: &WeightedHistogram,
        sizes: &[(u64, Option<u8>)],
    ) -> Numbers {
        let total = whole.total();
        let mut far = Vec::new();
        for bar in stack.bars() {
            add(&mut far, log2(bar.low), bar.weight / stack.reuses());
        }
        let granule = f64::from(self.granule);
        Numbers {
            blocks: false,
            time: by_log2(whole),
            cold: if total > 0.0 { whole.beyond / total } else { 0.0 },
            quantiles: [0.5, 0.9].map(|q| quantile(&whole.reused, q)),
            stack: far,
            ratios: sizes.iter().map(|(bytes, _)| stack.miss_ratio(*bytes as f64 / granule)).collect(),
            footprint: within.beyond.max(reach(stack)).max(self.lived(whole)) * granule,
        }
    }

    /// Mean number of granules in use at a moment of the run, between their first and last touch:
    /// each access of such a granule represents the time until its next one. As many as all touched
    /// granules if all are used throughout, never more; few if far reuses are rare.
    fn lived(&self, whole: &WeightedHistogram) -> f64 {
        let accesses = self.fine.all.iter().map(|stretch| stretch.accesses).sum::<f64>();
        let middle = |at: usize| (scale::low(at) as f64 + scale::low(at + 1) as f64 - 1.0) / 2.0;
        let spans = whole.reused.iter().enumerate().map(|(at, weight)| weight * middle(at)).sum::<f64>();
        if accesses > 0.0 { spans / accesses } else { 0.0 }
    }

    fn finish(
        &self,
        (whole, time, far): (&WeightedHistogram, &Distances, &Distances),
        seen: &Numbers,
        draws: &[Numbers],
        sizes: &[(u64, Option<u8>)],
    ) -> Reuse {
        let n = self.subjects.iter().filter(|subject| subject.reused()).count() as u64;
        let basis = Basis::of(&self.subjects);
        let touches = time.touches();
        let mean_touches = self.fine.all.iter().map(|stretch| stretch.accesses).sum::<f64>();
        let in_accesses = self.rates.unit() == Unit::Accesses;
        let survival = in_accesses.then(|| Survival::of(time, touches / mean_touches.max(1.0))).flatten();
        // The time distance of a stack distance.
        let when = |granules: f64| survival.as_ref().map_or(0.0, |survival| survival.fill_time(granules));
        // Interval of a share at a distance, with an additional deviation.
        let wide = |value: f64, at: f64, n: u64, of: &dyn Fn(&Numbers) -> f64, more: fn(f64) -> f64| {
            let value = if value.is_finite() { value } else { 0.0 };
            let half = basis.deviations(at) * more(deviation(value, draws, of));
            let (low, high) = basis.interval(value, at);
            Estimate {
                value,
                low: (value - half).min(low).clamp(0.0, value.max(0.0)),
                high: (value + half).max(high).clamp(value, 1.0_f64.max(value)),
                n,
            }
        };
        let share =
            |value: f64, at: f64, n: u64, of: &dyn Fn(&Numbers) -> f64| wide(value, at, n, of, |same| same);
        let free = |value: f64, of: &dyn Fn(&Numbers) -> f64| {
            let half = basis.deviations(f64::INFINITY) * deviation(value, draws, of);
            Estimate { value, low: (value - half).max(0.0), high: value + half, n }
        };
        let reused = whole.reused.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let timed_shares =
            whole.reused.iter().enumerate().map(|(at, weight)| (scale::low(at), weight / reused));
        let time_edges = Edges::of(timed_shares, |edge| basis.is_shown(edge as f64));
        let stack_shares = far.bars().iter().map(|bar| (bar.low, bar.weight / far.reuses()));
        let stack_edges = Edges::of(stack_shares, |edge| basis.is_shown(when(edge as f64)));
        let moved = |mut bins: Vec<Bin>, edges: &Edges| -> Vec<Bin> {
            for index in bins.len()..edges.end() {
                let (low, high) = bounds(index);
                bins.push(Bin { low, high, fraction: Estimate::default() });
            }
            let move_some = |(index, bin): (usize, Bin)| {
                let ([leave, enter], Estimate { value, low, high, n }) = (edges.moves(index), bin.fraction);
                let (low, high) = (low.min(value - leave).max(0.0), high.max((value + enter).min(1.0)));
                Bin { fraction: Estimate { value, low, high, n }, ..bin }
            };
            bins.into_iter().enumerate().map(move_some).collect()
        };
        let bins =
            |values: &[f64], what: fn(&Numbers) -> &Vec<f64>, counts: &[u64], timed: bool| -> Vec<Bin> {
                let bin = |(index, value): (usize, &f64)| {
                    let (low, high) = bounds(index);
                    let at = if timed { high as f64 } else { when(low as f64) };
                    let n = counts.get(index).copied().unwrap_or(0);
                    let of = |numbers: &Numbers| what(numbers).get(index).copied().unwrap_or(0.0);
                    let more = if timed { |same| same } else { basis::between_conversions };
                    Bin { low, high, fraction: wide(*value, at, n, &of, more) }
                };
                values.iter().enumerate().map(bin).collect()
            };
        let mut counts = Vec::new();
        for subject in self.subjects.iter().filter(|subject| subject.reused()) {
            add(&mut counts, log2(subject.distance()), 1);
        }
        let time_bins = bins(&seen.time, |numbers| &numbers.time, &counts, true);
        let half = |bin: &Bin| (bin.fraction.high - bin.fraction.low) / 2.0;
        Reuse {
            bytes: self.granule,
            unit: self.rates.unit(),
            n,
            widest: time_bins.iter().map(half).fold(0.0, f64::max),
            time: moved(time_bins, &time_edges),
            blurred: time_edges.blurred(BLURRED),
            median: free(seen.quantiles[0], &|numbers| numbers.quantiles[0]),
            p90: free(seen.quantiles[1], &|numbers| numbers.quantiles[1]),
            cold: share(seen.cold, f64::INFINITY, self.subjects.len() as u64, &|numbers| numbers.cold),
            stack: moved(bins(&seen.stack, |numbers| &numbers.stack, &[], false), &stack_edges),
            curve: (sizes.iter().zip(&seen.ratios).enumerate())
                .map(|(index, ((bytes, level), ratio))| {
                    let at = when(*bytes as f64 / f64::from(self.granule));
                    let of = |numbers: &Numbers| numbers.ratios.get(index).copied().unwrap_or(*ratio);
                    Point {
                        bytes: *bytes,
                        level: *level,
                        ratio: wide(*ratio, at, n, &of, basis::with_conversion),
                        sampling: self.sampled(share(*ratio, at, n, &of), draws, basis.deviations(at), &of),
                    }
                })
                .collect(),
            footprint_bytes: free(seen.footprint, &|numbers| numbers.footprint),
            touches,
            cross_check: None,
            survival,
        }
    }

    /// A share with the interval that its draws show, for differences between traces: Wilson's at the number
    /// of independent uses that would scatter as the draws do (Korn & Graubard 1998, Survey Methodology 24,
    /// section 3), the uses seen at most. What all draws of a trace have in common is left out, for it is
    /// common to traces of one program. Of few events, or without any scatter, the interval stays as it is.
    fn sampled(
        &self,
        of_share: Estimate,
        draws: &[Numbers],
        deviations: f64,
        of: &dyn Fn(&Numbers) -> f64,
    ) -> Estimate {
        let Estimate { value, .. } = of_share;
        let deviation = scatter(draws, of) * deviations / Z;
        let uses = self.subjects.len() as f64;
        if !(value * uses >= FEWEST_EVENTS && value < 1.0 && deviation > 0.0) {
            return of_share;
        }
        let independent = (value * (1.0 - value) / (deviation * deviation)).min(uses);
        let (low, high) = wilson(value, independent);
        Estimate { low, high, ..of_share }
    }

    /// Powers of two from one granule to the first with cold misses only, this machine's caches,
    /// and the fixed sizes.
    fn sizes(&self, stack: &Distances) -> Vec<(u64, Option<u8>)> {
        let granule = u64::from(self.granule);
        let powers =
            stack.miss_ratio_curve().into_iter().map(|(granules, _)| granules.saturating_mul(granule));
        let caches = &self.profile.run.host.caches;
        let own = caches.iter().map(|cache| cache.bytes).filter(|bytes| *bytes >= granule);
        let mut sizes: Vec<u64> = powers.chain(own).chain(FIXED_SIZES).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let level = |bytes: &u64| caches.iter().find(|cache| cache.bytes == *bytes).map(|cache| cache.level);
        sizes.iter().map(|bytes| (*bytes, level(bytes))).collect()
    }
}

/// Granules required by the longest reuses: those between and their own. The median of reuses
/// within a factor of two of the longest, whose own distance errs most. Traces of weight from
/// rounding do not count.
fn reach(stack: &Distances) -> f64 {
    let least = 1e-6 * stack.touches();
    let bars = stack.bars();
    let Some(longest) = bars.iter().rev().find(|bar| bar.weight > least) else { return 0.0 };
    let long: Vec<_> = bars.iter().filter(|bar| (longest.low / 2..=longest.low).contains(&bar.low)).collect();
    let half = long.iter().map(|bar| bar.weight).sum::<f64>() / 2.0;
    let mut below = 0.0;
    let median = long.iter().find(|bar| {
        below += bar.weight;
        below >= half
    });
    median.map_or(longest.low, |bar| bar.low) as f64 + 1.0
}

fn sum(masses: &[WeightedHistogram]) -> WeightedHistogram {
    let mut whole = WeightedHistogram::default();
    masses.iter().for_each(|mass| whole.add(mass));
    whole
}

fn add<T: Default + Clone + std::ops::AddAssign>(sums: &mut Vec<T>, index: usize, by: T) {
    if sums.len() <= index {
        sums.resize(index + 1, T::default());
    }
    if let Some(sum) = sums.get_mut(index) {
        *sum += by;
    }
}

/// Shares of all reuses by log2 bin of their time distance.
fn by_log2(mass: &WeightedHistogram) -> Vec<f64> {
    let reused: f64 = mass.reused.iter().sum();
    let mut bins = Vec::new();
    for (at, weight) in mass.reused.iter().enumerate() {
        add(&mut bins, log2(scale::low(at)), weight / reused.max(f64::MIN_POSITIVE));
    }
    bins
}

/// 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, …
fn log2(distance: u64) -> usize {
    (u64::BITS - distance.leading_zeros()) as usize
}

fn bounds(index: usize) -> (u64, u64) {
    match index {
        0 => (0, 1),
        64.. => (1 << 63, u64::MAX),
        _ => (1 << (index - 1), 1 << index),
    }
}

/// The distance that a share q of the weight does not exceed.
fn quantile(reused: &[f64], q: f64) -> f64 {
    let total: f64 = reused.iter().sum();
    let mut below = 0.0;
    for (bin, weight) in reused.iter().enumerate() {
        if *weight > 0.0 && below + weight >= q * total {
            let (low, high) = (scale::low(bin), scale::low(bin + 1));
            let part = ((q * total - below) / weight).clamp(0.0, 1.0);
            return low as f64 + part * (high - 1 - low) as f64;
        }
        below += weight;
    }
    0.0
}

/// Root mean square distance from the value, so that a draw's bias counts too; of the draws by
/// samples or those by blocks, whichever is larger.
fn deviation(value: f64, draws: &[Numbers], of: &dyn Fn(&Numbers) -> f64) -> f64 {
    widest(value, draws.iter().map(|draw| (draw.blocks, of(draw))))
}

/// Standard deviation of the draws by samples or of those by blocks, whichever is larger.
fn scatter(draws: &[Numbers], of: &dyn Fn(&Numbers) -> f64) -> f64 {
    let kind = |blocks: bool| {
        let drawn: Vec<f64> = draws.iter().filter(|draw| draw.blocks == blocks).map(of).collect();
        let drawn: Vec<f64> = drawn.into_iter().filter(|drawn| drawn.is_finite()).collect();
        let n = drawn.len() as f64;
        let mean = drawn.iter().sum::<f64>() / n;
        let squares: f64 = drawn.iter().map(|drawn| (drawn - mean).powi(2)).sum();
        if n > 1.0 { f64::sqrt(squares / (n - 1.0)) } else { 0.0 }
    };
    kind(false).max(kind(true))
}

/// The same of numbers, each with whether it was drawn by blocks.
fn widest(value: f64, draws: impl Iterator<Item = (bool, f64)> + Clone) -> f64 {
    let kind = |blocks: bool| {
        let drawn =
            draws.clone().filter(|(by, drawn)| *by == blocks && drawn.is_finite()).map(|(_, drawn)| drawn);
        let (n, sum) = drawn.fold((0.0, 0.0), |(n, sum), drawn| (n + 1.0, sum + (drawn - value).powi(2)));
        if n > 0.0 { f64::sqrt(sum / n) } else { 0.0 }
    };
    kind(false).max(kind(true))
}

/// Normal, by Irwin & Hall: the sum of twelve uniform ones, less six.
pub fn normal(random: &mut fastrand::Rng) -> f64 {
    (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests;
