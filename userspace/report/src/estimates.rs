//! An estimate with its 95 % interval, for people and for programs.

use locality_estimate::interval_estimate::Estimate;
use locality_units::print::percent;

use super::schema::{self, Interval, Number, reuse::Distance};

/// "63.1 % [61–65]": the value and its 95 % interval, in 16 columns or fewer; without an interval that
/// rounds to the value. Intervals of small shares are lopsided, so "±" would lie.
pub(super) fn share(estimate: &Estimate) -> String {
    let (low, high) = (estimate.low * 100.0, estimate.high * 100.0);
    // Whole percents are enough for a wide interval, and for a large share.
    let digits = usize::from(high - low < 2.0 && high < 9.95);
    let [middle, low, high] =
        [estimate.value * 100.0, low, high].map(|percent| format!("{:.digits$}", percent + 0.0));
    match low == high && low == middle {
        true => percent(estimate.value),
        false => format!("{} [{low}–{high}]", percent(estimate.value)),
    }
}

/// An estimate for programs: value, interval and what was seen.
pub(super) fn estimate(of: &Estimate) -> schema::Estimate {
    schema::Estimate { ci95: ci95(of), n: of.n, value: of.value.into() }
}

/// The interval for programs.
pub(super) fn ci95(estimate: &Estimate) -> Interval {
    [estimate.low.into(), estimate.high.into()]
}

/// A distance for programs.
pub(super) fn distance(of: &Estimate, unit: &str) -> Distance {
    Distance {
        ci95: Some(ci95(of)),
        n: Some(of.n),
        unit: unit.to_owned(),
        value: of.value.into(),
        ..Distance::default()
    }
}

/// A number that may not be known.
pub(super) fn known(of: Option<f64>) -> Number {
    of.map_or_else(Number::default, Number::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_carry_their_interval() {
        let estimate = Estimate { value: 0.631, low: 0.611, high: 0.641, n: 3 };
        assert_eq!(share(&estimate), "63.1 % [61–64]");
        assert_eq!(share(&Estimate { low: 0.626, high: 0.636, ..estimate }), "63.1 % [63–64]");
        assert_eq!(share(&Estimate { low: 0.629, high: 0.633, ..estimate }), "63.1 %");
        assert_eq!(share(&Estimate { value: 1.0, low: 1.0, high: 1.0, n: 3 }), "100.0 %");
        assert_eq!(share(&Estimate { value: 0.0, low: -0.0, high: 0.004, n: 3 }), "0.0 % [0.0–0.4]");
        assert_eq!(share(&Estimate::default()), "0.0 %");
    }
}
