//! Skid negation (Rutar and Hollingsworth 2011, §3.3.3, eq. 6 to 8): a sample that landed on one
//! place is spread over the places where its event may have been.
//!
//! Distances are in the places of the level, along the control flow backwards: changes of the
//! source line, or instructions. Not here: which places those are (`places`).

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Most places that are looked at on one side of the mean.
const MOST: i32 = 64;

/// Distribution of the skid: how many places before the sample's own the event happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gaussian {
    /// Mean number of places back, 0 or more.
    pub mean: f64,
    /// Variance, in places². Zero puts all on the mean.
    pub variance: f64,
    /// Places on either side of the mean that take part; `None` for three standard deviations.
    pub reach: Option<u32>,
}

impl Gaussian {
    /// The paper's own: .5 on the line before the sample's, .25 on the lines around that one. The
    /// variance is the one that halves the density at a distance of one, 1 ÷ (2 ln 2).
    pub fn paper() -> Self {
        Gaussian { mean: 1.0, variance: 1.0 / (2.0 * std::f64::consts::LN_2), reach: Some(1) }
    }

    /// The distribution that a measured histogram of distances (places from the true one to the
    /// sample's, and how often) amounts to: its mean and variance. `None` without samples.
    pub fn of_histogram(counts: impl IntoIterator<Item = (u32, u64)>) -> Option<Self> {
        let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for (distance, count) in counts {
            let (distance, count) = (f64::from(distance), count as f64);
            n += count;
            sum += count * distance;
            squares += count * distance * distance;
        }
        let mean = sum / n;
        (n > 0.0).then(|| Gaussian { mean, variance: (squares / n - mean * mean).max(0.0), reach: None })
    }

    /// Probability of each number of places back, most likely distances only, summing to 1. An
    /// event after its sample does not exist: what would lie there is left out.
    pub fn probabilities(&self) -> BTreeMap<u32, f64> {
        let mean = if self.mean.is_finite() { self.mean.clamp(0.0, 1e6) } else { 0.0 };
        let variance = if self.variance.is_finite() { self.variance.max(0.0) } else { 0.0 };
        let center = mean.round() as i32;
        let reach =
            self.reach.map_or((3.0 * variance.sqrt()).ceil() as i32, |reach| reach.min(MOST as u32) as i32);
        let density = |distance: i32| {
            let away = f64::from(distance) - mean;
            if variance > 0.0 {
                (-away * away / (2.0 * variance)).exp()
            } else {
                f64::from(distance == center)
            }
        };
        let reach = reach.clamp(0, MOST);
        let found: BTreeMap<u32, f64> = (center - reach..=center + reach)
            .filter_map(|distance| Some((u32::try_from(distance).ok()?, density(distance))))
            .filter(|(_, density)| *density > 0.0)
            .collect();
        let sum: f64 = found.values().sum();
        found.into_iter().map(|(distance, density)| (distance, density / sum)).collect()
    }
}

/// What is wrong with a skid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not MEAN,VARIANCE of how far samples land behind their events, as in 1.2,0.7, nor the word paper"
)]
pub struct BadSkid(pub String);

impl FromStr for Gaussian {
    type Err = BadSkid;

    fn from_str(text: &str) -> Result<Self, BadSkid> {
        if text == "paper" {
            return Ok(Self::paper());
        }
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| (0.0..=1e6).contains(number));
        let numbers =
            text.split_once(',').and_then(|(mean, variance)| Some((number(mean)?, number(variance)?)));
        let (mean, variance) = numbers.ok_or_else(|| BadSkid(text.to_owned()))?;
        Ok(Gaussian { mean, variance, reach: None })
    }
}

/// Eq. 6 to 8: each read at a place of probability p gets p, and all are scaled to sum to one. Note
/// that a place with more reads thereby gets more. Empty if nothing is read at any of the places.
pub fn negate<'a, P: Ord + Copy, V: Ord + Clone + 'a>(
    probabilities: &BTreeMap<P, f64>,
    reads: impl Fn(P) -> Option<&'a BTreeSet<V>>,
) -> BTreeMap<(P, V), f64> {
    let mut values = BTreeMap::new();
    for (place, probability) in probabilities {
        for read in reads(*place).into_iter().flatten() {
            values.insert((*place, read.clone()), *probability);
        }
    }
    let sum: f64 = values.values().sum();
    if sum <= 0.0 {
        return BTreeMap::new();
    }
    values.values_mut().for_each(|value| *value /= sum);
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_papers_distribution() {
        let found: Vec<(u32, f64)> = Gaussian::paper().probabilities().into_iter().collect();
        for ((distance, probability), wanted) in found.iter().zip([(0, 0.25), (1, 0.5), (2, 0.25)]) {
            assert_eq!(*distance, wanted.0);
            assert!((probability - wanted.1).abs() < 1e-12, "{found:?}");
        }
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn histograms() {
        assert_eq!(Gaussian::of_histogram([]), None);
        assert_eq!(Gaussian::of_histogram([(3, 0)]), None);
        let found = Gaussian::of_histogram([(0, 1), (1, 2), (2, 1)]).unwrap();
        assert_eq!((found.mean, found.variance), (1.0, 0.5));
    }

    #[test]
    fn as_typed() {
        assert_eq!("paper".parse(), Ok(Gaussian::paper()));
        assert_eq!("1.5,0".parse(), Ok(Gaussian { mean: 1.5, variance: 0.0, reach: None }));
        for bad in ["", "1", "1,", "-1,2", "1,NaN", "inf,1", "1,2,3", "Paper"] {
            assert_eq!(bad.parse::<Gaussian>(), Err(BadSkid(bad.to_owned())));
        }
    }

    #[test]
    fn no_variance_is_one_place() {
        let found = Gaussian { mean: 2.0, variance: 0.0, reach: None }.probabilities();
        assert_eq!(found, BTreeMap::from([(2, 1.0)]));
    }

    proptest! {
        /// Numbers of any kind: probabilities sum to one, and mean and variance come back where
        /// zero is far away.
        #[test]
        fn sums(mean in -1e9..1e9_f64, variance in -10.0..1e12_f64, reach in prop::option::of(0..500_u32)) {
            let found = Gaussian { mean, variance, reach }.probabilities();
            prop_assert!((found.values().sum::<f64>() - 1.0).abs() < 1e-9);
        }

        #[test]
        fn moments(mean in 20.0..40.0_f64, variance in 1.0..30.0_f64) {
            let found = Gaussian { mean, variance, reach: None }.probabilities();
            let moment = |of: &dyn Fn(f64) -> f64| found.iter().map(|(at, p)| of(f64::from(*at)) * p).sum::<f64>();
            let seen = moment(&|at| at);
            prop_assert!((seen - mean).abs() < 0.05, "{} {}", seen, mean);
            let spread = moment(&|at| (at - seen).powi(2));
            // Cutting at three standard deviations loses 2.7 % of the variance.
            prop_assert!((spread / variance - 1.0).abs() < 0.06, "{} {}", spread, variance);
        }
    }
}
