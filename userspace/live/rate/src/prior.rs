//! Prior knowledge of a sample's rate: a timing model of its window, scaled to samples of the
//! process with own rates. Not here: the sample's readings (`combine`).
//!
//! Limits: how far the model holds within one process is learnt from few samples.

use crate::types::Estimate;

/// ln(rate ÷ model) in a process without rates of its own: what the model leaves out makes programs
/// slower. Fitted to windows of the accuracy benchmark's programs on one machine.
const LEFT_OUT: f64 = -0.14;
/// Standard deviation of that, within a program too.
const UNSCALED: f64 = 0.45;
/// Added, in squares, for code that always waits for memory, near or far.
const WAITING: f64 = 0.8;
/// The same from window to window, at least, where the model is scaled.
const SCALED: f64 = 0.3;
/// Difference of [`Shape::waiting`] at which other windows say little of one window (a standard
/// deviation). The model's error in code that waits for memory is not its error in the program's
/// other code.
const ALIKE: f64 = 0.25;
/// Shares of waiting for which the scale is found, evenly from 0 to 1.
const SCALES: usize = 5;
/// Samples with own rates that weigh as much as the model alone: a number, and a share of all
/// samples, because a few may be wrong, or all from one place.
const MODEL_WEIGHS: (f64, f64) = (4.0, 0.1);
/// Learnt share of a scale below which the model alone decides: four samples of a thousand.
const LEARNT: f64 = 0.04;
/// Standard deviations beyond which a track is an alias.
const WIDTH: f64 = 2.3;
/// How much slower than the model code may be, and how much faster, as differences of logarithms:
/// page faults, system calls and memory that is far away make it slow, and nothing makes it fast.
const SLOWER: f64 = 2.3;
const FASTER: f64 = 1.2;
/// Instructions per nanosecond that no processor exceeds: eight a cycle at 6 GHz.
const MOST_INSTRUCTIONS: f64 = 48.0;
/// Accesses per nanosecond that none exceeds: three loads and two stores a cycle at 6 GHz.
const MOST_ACCESSES: f64 = 30.0;

/// What a window says of the pace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    /// Model's accesses per nanosecond, unscaled; 0 without a window.
    pub model: f64,
    /// Instructions per access; 0 without.
    pub instructions: f64,
    /// Share of the time of possible waits for memory.
    pub waiting: f64,
}

impl Shape {
    /// Accesses per nanosecond that are possible at most.
    pub fn most(self) -> f64 {
        if self.instructions > 0.0 {
            MOST_ACCESSES.min(MOST_INSTRUCTIONS / self.instructions)
        } else {
            MOST_ACCESSES
        }
    }
}

/// Prior knowledge of a sample's rate: ln of the rate, and its standard deviation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prior {
    pub centre: f64,
    pub sigma: f64,
}

impl Prior {
    /// Outside of these bounds no speed of a wrapping quantity is believed; `most`: the highest of
    /// all.
    pub fn bracket(self, most: f64) -> (f64, f64) {
        self.around(WIDTH * self.sigma, WIDTH * self.sigma, most)
    }

    /// Outside is nothing believed, whatever counts.
    pub fn wide_bracket(self, most: f64) -> (f64, f64) {
        self.around(SLOWER.max(WIDTH * self.sigma), FASTER.max(WIDTH * self.sigma), most)
    }

    fn around(self, slower: f64, faster: f64, most: f64) -> (f64, f64) {
        let low = (self.centre - slower).exp();
        (low, (self.centre + faster).exp().min(most).max(low))
    }

    /// A measured rate and this prior. `doubt`: possible deviation of the rate by other work than
    /// the window's (standard deviation of ln).
    pub fn refine(self, rate: Estimate, doubt: f64) -> Estimate {
        let sigma = rate.deviation().max(1e-3).hypot(doubt);
        let (own, other) = (sigma.powi(-2), self.sigma.powi(-2));
        let ln = (rate.value.ln() * own + self.centre * other) / (own + other);
        Estimate::within(ln.exp(), (2.0 / (own + other).sqrt()).exp_m1())
    }

    /// Two standard deviations to each side.
    pub fn estimate(self) -> Estimate {
        Estimate::within(self.centre.exp(), (2.0 * self.sigma).exp_m1())
    }

    pub fn penalty(self, rate: f64) -> f64 {
        ((rate.ln() - self.centre) / self.sigma).powi(2) / 2.0
    }
}

/// The model's scale in one process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scale {
    /// ln(rate ÷ model) of samples with an own rate, and their shares of waiting.
    ratios: Vec<(f64, f64)>,
    /// Rate and model of samples whose rate was read at other work than the window's.
    doubtful: Vec<(f64, f64)>,
    /// ln of the model for all samples with an own rate.
    models: Vec<f64>,
    /// Samples with a model, by the nearest of [`SCALES`].
    samples: [u32; SCALES],
    /// For each of [`SCALES`].
    fits: [Fit; SCALES],
    /// How different the work of the program is, as the model sees it.
    spread: f64,
}

#[derive(Debug, Clone, Copy)]
struct Fit {
    ratio: f64,
    sigma: f64,
    /// How much of it is learnt, 0 to 1; the rest is the model by itself.
    learnt: f64,
}

impl Default for Fit {
    fn default() -> Self {
        Fit { ratio: LEFT_OUT, sigma: UNSCALED, learnt: 0.0 }
    }
}

impl Scale {
    /// Takes a sample, whether it has a rate of its own or not.
    pub fn count(&mut self, shape: Shape) {
        if shape.model > 0.0
            && let Some(samples) = self.samples.get_mut(nearest(shape.waiting))
        {
            *samples += 1;
        }
    }

    /// Takes the rate that a sample's own readings gave.
    pub fn learn(&mut self, shape: Shape, rate: Estimate, steady: bool) {
        if shape.model > 0.0 && rate.is_precise() {
            self.models.push(shape.model.ln());
            if steady {
                self.ratios.push(((rate.value / shape.model).ln(), shape.waiting));
            } else {
                self.doubtful.push((rate.value, shape.model));
            }
        }
    }

    /// Prepares the scales after all samples.
    pub fn fit(&mut self) {
        self.spread = deviation(&self.models);
        let few = self.ratios.len() * 4 < self.doubtful.len();
        // Each rate is a mean over the work of several places, so the fit is the mean of the
        // models.
        let of_doubtful = || {
            let rates: Vec<f64> = self.doubtful.iter().map(|(rate, _)| rate.ln()).collect();
            let model = self.doubtful.iter().map(|(_, model)| model).sum::<f64>() / rates.len() as f64;
            median(&rates).map(|(rate, scatter)| (rates.len() as f64, rate - model.ln(), scatter))
        };
        let doubtful = if few { of_doubtful() } else { None };
        let fits = std::array::from_fn(|number| {
            let alike = |waiting: f64| (-((waiting - share(number)) / ALIKE).powi(2) / 2.0).exp();
            let of_ratios = || {
                let weighed: Vec<(f64, f64)> =
                    self.ratios.iter().map(|(ratio, waiting)| (*ratio, alike(*waiting))).collect();
                let (middle, scatter) = weighed_median(&weighed)?;
                Some((weighed.iter().map(|(_, weight)| weight).sum(), middle, scatter))
            };
            let Some((n, middle, scatter)): Option<(f64, f64, f64)> = doubtful.or_else(of_ratios) else {
                return Fit::default();
            };
            let all = (0..).zip(self.samples);
            let samples: f64 = match few {
                true => all.map(|(_, samples)| f64::from(samples)).sum(),
                false => all.map(|(other, samples)| f64::from(samples) * alike(share(other))).sum(),
            };
            let learnt = n / (n + MODEL_WEIGHS.0 + MODEL_WEIGHS.1 * samples);
            let variance = (1.0 - learnt) * UNSCALED.powi(2) + learnt * SCALED.max(scatter).powi(2);
            Fit { ratio: middle * learnt + LEFT_OUT * (1.0 - learnt), sigma: variance.sqrt(), learnt }
        });
        self.fits = fits;
    }

    /// By how much a rate may be that of other work (standard deviation of ln), if it was read
    /// elsewhere than the window was.
    pub fn doubt(&self, steady: bool) -> f64 {
        if steady { 0.0 } else { self.spread }
    }

    /// Whether anything but the model speaks of such code.
    pub fn is_scaled(&self, shape: Shape) -> bool {
        self.fit_of(shape).learnt >= LEARNT
    }

    fn fit_of(&self, shape: Shape) -> Fit {
        self.fits.get(nearest(shape.waiting)).copied().unwrap_or_default()
    }

    /// What is known without the readings.
    pub fn prior(&self, shape: Shape) -> Option<Prior> {
        let Fit { ratio, sigma, .. } = self.fit_of(shape);
        let sigma = sigma.hypot(WAITING * shape.waiting);
        (shape.model > 0.0).then(|| Prior { centre: shape.model.ln() + ratio, sigma })
    }
}

/// Which of [`SCALES`] is nearest to a share of waiting.
fn nearest(waiting: f64) -> usize {
    (waiting.clamp(0.0, 1.0) * (SCALES - 1) as f64).round() as usize
}

/// The share of waiting of one of [`SCALES`].
fn share(number: usize) -> f64 {
    number as f64 / (SCALES - 1) as f64
}

/// Standard deviation.
fn deviation(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// Median, and the median absolute deviation as a standard deviation.
pub(crate) fn median(values: &[f64]) -> Option<(f64, f64)> {
    weighed_median(&values.iter().map(|value| (*value, 1.0)).collect::<Vec<_>>())
}

/// The same for values with weights, of which one at least is not 0.
pub(crate) fn weighed_median(weighed: &[(f64, f64)]) -> Option<(f64, f64)> {
    let middle = |mut weighed: Vec<(f64, f64)>| {
        weighed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let half = weighed.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
        let mut below = 0.0;
        weighed.iter().find_map(|(value, weight)| {
            below += weight;
            (below > half).then_some(*value)
        })
    };
    let centre = middle(weighed.to_vec())?;
    let off = |(value, weight): &(f64, f64)| ((value - centre).abs(), *weight);
    Some((centre, middle(weighed.iter().map(off).collect())? * 1.4826))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(model: f64) -> Shape {
        Shape { model, instructions: 2.0, waiting: 0.0 }
    }

    #[test]
    fn the_model_is_scaled_by_what_was_measured_as_far_as_that_is_much() {
        let centre = |scale: &Scale| {
            scale.prior(shape(2.0)).map_or((0.0, 0.0), |prior| (prior.centre.exp(), prior.sigma))
        };
        let mut scale = Scale::default();
        scale.fit();
        assert!(
            !scale.is_scaled(shape(2.0))
                && (centre(&scale).0 / (2.0 * LEFT_OUT.exp()) - 1.0).abs() < 1e-9
                && centre(&scale).1 == UNSCALED
                && scale.prior(Shape::default()).is_none()
        );
        let mut before = 2.0;
        for n in 0..100 {
            scale.learn(shape(1.0 + f64::from(n)), Estimate::within(0.5 * (1.0 + f64::from(n)), 0.1), true);
            // Rates that are hardly known do not count.
            scale.learn(shape(1.0), Estimate::within(9.0, 0.6), true);
            scale.fit();
            let (now, sigma) = centre(&scale);
            assert!(now < before && sigma <= UNSCALED, "{n}: {now}");
            before = now;
        }
        assert!((before - 1.0).abs() < 0.05 && (centre(&scale).1 - SCALED).abs() < 0.02);
    }

    /// Two kinds of work take turns faster than readings are taken, at 4 and 1 accesses a
    /// nanosecond, the fast one for three fifths of the time: all readings tell the mean.
    #[test]
    fn readings_over_several_kinds_of_work_are_told_apart_by_the_model() {
        let mut scale = Scale::default();
        for n in 0..200 {
            scale.learn(shape(if n % 5 < 3 { 8.0 } else { 2.0 }), Estimate::within(2.8, 0.1), false);
        }
        scale.fit();
        let told = |model, steady| {
            let prior = scale.prior(shape(model)).unwrap();
            prior.refine(Estimate::within(2.8, 0.1), scale.doubt(steady)).value
        };
        let (fast, slow) = (told(8.0, false), told(2.0, false));
        assert!((3.4..4.2).contains(&fast) && (0.9..1.4).contains(&slow), "{fast} {slow}");
        // What was read where its window was is believed.
        assert!((told(8.0, true) - 2.8).abs() < 0.1 && (told(2.0, true) - 2.8).abs() < 0.1);
    }

    /// A walk that waits for memory is slower than the model says; what the program does besides is
    /// not for that.
    #[test]
    fn code_that_waits_for_memory_scales_its_like_only() {
        let shape = |waiting| Shape { waiting, ..shape(2.0) };
        let mut scale = Scale::default();
        for n in 0..100 {
            scale.count(shape(1.0));
            scale.learn(shape(0.9 + 0.001 * f64::from(n)), Estimate::within(0.8, 0.1), true);
        }
        scale.fit();
        let centre = |scale: &Scale, waiting| scale.prior(shape(waiting)).unwrap().centre.exp();
        assert!((centre(&scale, 1.0) - 0.8).abs() < 0.15 && (centre(&scale, 0.8) - 0.8).abs() < 0.15);
        let alone = 2.0 * LEFT_OUT.exp();
        assert!((centre(&scale, 0.0) / alone - 1.0).abs() < 0.02);
        assert!((0.7 * alone..alone).contains(&centre(&scale, 0.25)), "{}", centre(&scale, 0.25));
        assert!(scale.is_scaled(shape(1.0)) && !scale.is_scaled(shape(0.0)));
        for _ in 0..20 {
            scale.count(shape(0.0));
            scale.learn(shape(0.0), Estimate::within(3.0, 0.1), true);
        }
        scale.fit();
        assert!(scale.is_scaled(shape(0.0)));
        assert!((2.6..3.0).contains(&centre(&scale, 0.0)), "{}", centre(&scale, 0.0));
        assert!((centre(&scale, 1.0) - 0.8).abs() < 0.15);
    }

    #[test]
    fn medians_go_by_weight() {
        assert_eq!(weighed_median(&[(1.0, 1.0), (5.0, 0.4), (3.0, 0.5)]), Some((1.0, 0.0)));
        assert_eq!(weighed_median(&[(1.0, 0.3), (5.0, 0.4), (3.0, 0.5)]), Some((3.0, 2.0 * 1.4826)));
        assert_eq!(weighed_median(&[(1.0, 1.0), (5.0, 0.4), (3.0, 0.7)]).map(|found| found.0), Some(3.0));
        assert_eq!(weighed_median(&[]), None);
    }

    #[test]
    fn possible_rates() {
        assert!(Shape { model: 1.0, instructions: 4.0, waiting: 0.0 }.most() == 12.0);
        assert!(Shape::default().most() == 30.0 && shape(1.0).most() == 24.0);
    }
}
