//! What is known of a sample's rate before its own readings are looked at: by a timing model of its window, scaled to
//! samples of the process that have rates of their own. Not here: what the readings say (`combine`).
//!
//! Limits: how far the model holds within one process is learnt from few samples.

/// Standard deviation of ln(rate ÷ model), for a process without rates of its own, and its centre: latencies of memory that
/// the model does not know make programs slower than it says, and prefetching, which it does not know either, makes a walk over
/// many lines up to nine times faster (a naive matrix product, measured).
const UNSCALED: (f64, f64) = (-0.3, 1.1);
/// The same, at least, where the model is scaled.
const SCALED: f64 = 0.5;
/// Samples with rates of their own from which the scale is believed.
const FEWEST_SCALES: usize = 3;
/// Those from which it is learnt how much of the model's differences is real.
const FEWEST_FOR_SHARE: usize = 12;
/// How much of them is, before: ln of rates vary by that share of the model's. Little, since a window is microseconds and
/// readings span milliseconds (measured: perl .07, python .02, awk .09, xz .29).
const SHARE: f64 = 0.2;
/// Shares that are tried.
const SHARES: [f64; 6] = [0.0, SHARE, 0.4, 0.6, 0.8, 1.0];
/// How much of them is where the model says something quite else than at all samples with rates of their own: another phase,
/// not the noise of windows.
const SHARE_BEYOND: f64 = 0.7;
/// Less than this beyond those samples is the same phase: a difference of logarithms.
const SAME_PHASE: f64 = 0.4;
/// Standard deviations beyond which a track is an alias.
const WIDTH: f64 = 2.3;
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

    /// ln of the model's instructions per nanosecond.
    fn pace(self) -> Option<f64> {
        (self.model > 0.0 && self.instructions > 0.0).then(|| (self.model * self.instructions).ln())
    }
}

/// What is known of a sample's rate beforehand: ln of it, and the standard deviation of that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prior {
    pub centre: f64,
    pub sigma: f64,
}

impl Prior {
    /// Outside is what a sample's own evidence is not believed.
    pub fn bracket(self) -> (f64, f64) {
        ((self.centre - WIDTH * self.sigma).exp(), (self.centre + WIDTH * self.sigma).exp())
    }

    pub fn penalty(self, rate: f64) -> f64 {
        ((rate.ln() - self.centre) / self.sigma).powi(2) / 2.0
    }
}

/// The model's scale in one process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scale {
    /// ln of instructions per nanosecond: the model's, the sample's own.
    pairs: Vec<(f64, f64)>,
    /// The same of samples whose rate was read at other work than their window shows.
    doubtful: Vec<(f64, f64)>,
    fit: Option<Fit>,
}

#[derive(Debug, Clone, Copy)]
struct Fit {
    model: f64,
    own: f64,
    share: f64,
    scatter: f64,
    /// Highest own.
    most: f64,
    /// Lowest and highest of the model's.
    range: (f64, f64),
}

impl Scale {
    /// Takes the rate that a sample's own readings gave.
    pub fn learn(&mut self, shape: Shape, rate: f64, steady: bool) {
        if let Some(pace) = shape.pace() {
            let pairs = if steady { &mut self.pairs } else { &mut self.doubtful };
            pairs.push((pace, (rate * shape.instructions).ln()));
            self.fit = None;
        }
    }

    /// Makes it ready after all is learnt.
    pub fn fit(&mut self) {
        if self.pairs.len() < FEWEST_SCALES {
            self.pairs.append(&mut self.doubtful);
        }
        let of =
            |select: fn(&(f64, f64)) -> f64| median(&self.pairs.iter().map(select).collect::<Vec<f64>>());
        let Some(((model, _), (own, _))) = of(|pair| pair.0).zip(of(|pair| pair.1)) else { return };
        let scatter = |share: f64| {
            let rest = |pair: &(f64, f64)| (pair.1 - own - share * (pair.0 - model)).abs();
            let rests: Vec<f64> = self.pairs.iter().map(rest).collect();
            median(&rests).map_or(0.0, |(middle, _)| middle * 1.4826)
        };
        let tried = if self.pairs.len() < FEWEST_FOR_SHARE { &[SHARE] } else { SHARES.as_slice() };
        let most = self.pairs.iter().map(|pair| pair.1).fold(own, f64::max);
        let ends = |(low, high): (f64, f64), pair: &(f64, f64)| (low.min(pair.0), high.max(pair.0));
        let range = self.pairs.iter().fold((model, model), ends);
        let fits = tried.iter().map(|share| Fit {
            model,
            own,
            share: *share,
            scatter: scatter(*share),
            most,
            range,
        });
        self.fit = fits.min_by(|a, b| a.scatter.total_cmp(&b.scatter));
    }

    /// Accesses per nanosecond by the scaled model, and the scatter of ln of it; `None` without any sample to scale it.
    pub fn scaled(&self, shape: Shape) -> Option<(f64, f64)> {
        let (fit, pace) = self.fit.zip(shape.pace())?;
        let few = 1.0 / self.pairs.len().max(1) as f64;
        let near = pace.clamp(fit.range.0 - SAME_PHASE, fit.range.1 + SAME_PHASE);
        let beyond = SHARE_BEYOND * (pace - near);
        // Nothing of the same phase is faster by the model alone than all that was measured.
        let rate = (fit.own + fit.share * (near - fit.model)).min(fit.most) + beyond;
        Some((rate.exp() / shape.instructions, fit.scatter + few + beyond.abs() / 2.0))
    }

    /// What is known without the readings.
    pub fn prior(&self, shape: Shape) -> Option<Prior> {
        let scaled = self.scaled(shape).filter(|_| self.pairs.len() >= FEWEST_SCALES);
        match scaled {
            Some((rate, scatter)) => Some(Prior { centre: rate.ln(), sigma: SCALED.max(1.3 * scatter) }),
            None => (shape.model > 0.0)
                .then(|| Prior { centre: shape.model.ln() + UNSCALED.0, sigma: UNSCALED.1 }),
        }
    }
}

/// Median, and the median absolute deviation as a standard deviation.
pub(crate) fn median(values: &[f64]) -> Option<(f64, f64)> {
    let middle = |mut values: Vec<f64>| {
        let half = values.len() / 2;
        (half < values.len()).then(|| *values.select_nth_unstable_by(half, f64::total_cmp).1)
    };
    let centre = middle(values.to_vec())?;
    let deviation = middle(values.iter().map(|value| (value - centre).abs()).collect())?;
    Some((centre, deviation * 1.4826))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(model: f64) -> Shape {
        Shape { model, instructions: 2.0 }
    }

    #[test]
    fn nothing_is_scaled_without_rates() {
        let mut scale = Scale::default();
        scale.fit();
        assert!(scale.scaled(shape(1.0)).is_none() && scale.prior(Shape::default()).is_none());
        let (low, high) = scale.prior(shape(1.0)).map(Prior::bracket).unwrap_or_default();
        assert!(low < 0.1 && high > 6.0 && high < 12.0);
    }

    #[test]
    fn the_models_differences_count_as_far_as_they_are_real() {
        // Rates that follow the model, and rates that do not; at half the model's median pace, which is the same phase.
        for (share, expected) in [(1.0, 0.27), (0.0, 0.5)] {
            let mut scale = Scale::default();
            for n in 0..40 {
                let model = f64::from(n % 5) * 0.1 + 0.8;
                scale.learn(shape(model), 0.5 * model.powf(share), true);
            }
            scale.fit();
            let (rate, scatter) = scale.scaled(shape(0.54)).unwrap_or_default();
            assert!((rate / expected - 1.0).abs() < 1e-6 && scatter < 0.03, "{rate} {scatter}");
            // Hardly faster than the fastest.
            assert!(scale.scaled(shape(1.5)).is_some_and(|(rate, _)| rate <= 0.5 * 1.2 + 1e-6));
            // Where the model says something quite else, it is another phase, and the model is believed for the most part.
            let (far, unsure) = scale.scaled(shape(8.0)).unwrap_or_default();
            assert!(far > 1.0 && far < 4.0 && unsure > 0.3, "{far} {unsure}");
        }
    }

    #[test]
    fn possible_rates() {
        assert!(Shape { model: 1.0, instructions: 4.0 }.most() == 12.0);
        assert!(Shape::default().most() == 30.0 && shape(1.0).most() == 24.0);
    }
}
