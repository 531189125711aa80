//! `--fail-on 'misses:LLC > +10 %'`: a threshold of one quantity of the whole run.
//!
//! `+10 %` and `+5/1000` are thresholds of the difference, in percent of the base
//! or in the quantity's unit; `20/1000` and `2 B` without a sign are thresholds
//! of the new side. A condition fails if the bound nearer to no change exceeds
//! the threshold, and is inconclusive if only the other bound does.

use std::fmt;
use std::str::FromStr;

use locality_units::parse;

use crate::interval::{Difference, Value};
use crate::quantity::Quantity;

/// Operand of the comparison with a bound.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Threshold {
    /// A share of the base.
    Share(f64),
    /// A difference.
    Difference(f64),
    /// A value of the new side.
    Absolute(f64),
}

/// A condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The quantity.
    pub quantity: Quantity,
    threshold: Threshold,
    typed: String,
}

/// Outcome of a condition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Met {
    /// The bound nearer to no change exceeds the threshold.
    pub failed: bool,
    /// Only the other bound does.
    pub inconclusive: bool,
    /// The threshold in the quantity's unit.
    pub threshold: f64,
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

impl Condition {
    /// Compares bounds with the threshold.
    pub fn check(&self, base: Value, new: Value) -> Met {
        let difference = Difference::of(base, new);
        let (threshold, low, high) = match self.threshold {
            Threshold::Share(share) => (share * base.value, difference.low, difference.high),
            Threshold::Difference(least) => (least, difference.low, difference.high),
            Threshold::Absolute(least) => (least, new.low, new.high),
        };
        let failed = low > threshold;
        Met { failed, inconclusive: !failed && high > threshold, threshold }
    }
}

const HOW: &str = "give QUANTITY > THRESHOLD, as in 'misses:LLC > +10 %', 'misses:L1 > 20/1000', 'wasted:L2 > +4 B' or \
                   'footprint > +10 %'; quantities are misses:LEVEL or misses:SIZE, wasted:LEVEL, memory and footprint";

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (quantity, threshold) = text.split_once('>').ok_or(HOW)?;
        let quantity = self::quantity(quantity.trim()).ok_or(HOW)?;
        let is_bytes = matches!(quantity, Quantity::Wasted(_) | Quantity::Memory);
        let number = threshold.trim().trim_start_matches('+');
        if is_bytes && finite(number).is_some() {
            return Err(format!(
                "{number} has no unit: write {number} B of bytes, or {number} % of the base"
            ));
        }
        let threshold = self::threshold(threshold.trim(), &quantity).ok_or(HOW)?;
        Ok(Self { quantity, threshold, typed: text.split_whitespace().collect::<Vec<_>>().join(" ") })
    }
}

fn quantity(text: &str) -> Option<Quantity> {
    let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
    let level = level.map(|level| match level.to_uppercase() {
        level if level == "LL" => "LLC".to_owned(),
        level => level.trim_end_matches("IB").trim_end_matches('B').to_owned(),
    });
    match (name, level) {
        ("misses", Some(level)) if !level.is_empty() => Some(Quantity::Misses(level)),
        ("wasted", Some(level)) if !level.is_empty() => Some(Quantity::Wasted(level)),
        ("memory", None) => Some(Quantity::Memory),
        ("footprint", None) => Some(Quantity::Footprint),
        _ => None,
    }
}

fn threshold(text: &str, quantity: &Quantity) -> Option<Threshold> {
    let (is_difference, text) = match text.strip_prefix('+') {
        Some(rest) => (true, rest.trim()),
        None => (false, text),
    };
    if let Some(percent) = text.strip_suffix('%') {
        // A share of the base is a share of a difference, with or without a sign.
        return finite(percent).map(|percent| Threshold::Share(percent / 100.0));
    }
    let value = match quantity {
        Quantity::Misses(_) => {
            let (count, of) = text.split_once('/')?;
            finite(count)? / finite(of).filter(|of| *of > 0.0)? * 1000.0
        }
        Quantity::Footprint => parse::size(text).ok()? as f64,
        _ => finite(text.strip_suffix('B')?)?,
    };
    Some(if is_difference { Threshold::Difference(value) } else { Threshold::Absolute(value) })
}

fn finite(text: &str) -> Option<f64> {
    text.trim().replace(',', ".").parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: f64, half: f64) -> Value {
        Value { value, low: value - half, high: value + half, n: Some(5) }
    }

    #[test]
    fn the_nearer_bound_decides() {
        let check = |text: &str, base, new| {
            let met = text.parse::<Condition>().unwrap().check(base, new);
            (met.failed, met.inconclusive)
        };
        let relative = "misses:LLC > +10 %";
        assert_eq!(check(relative, of(100.0, 3.0), of(130.0, 4.0)), (true, false));
        assert_eq!(check(relative, of(100.0, 30.0), of(130.0, 40.0)), (false, true));
        assert_eq!(check(relative, of(100.0, 3.0), of(104.0, 4.0)), (false, false));
        assert_eq!(check("misses:L1>20/1000", of(90.0, 1.0), of(21.0, 0.5)), (true, false));
        assert_eq!(check("misses:L1 > +5/1000", of(20.0, 1.0), of(24.0, 1.0)), (false, true));
        assert_eq!(check("wasted:L2 > +4 B", of(10.0, 0.1), of(15.0, 0.1)), (true, false));
        assert_eq!(check("footprint > 1M", of(9e5, 1.0), of(2e6, 1.0)), (true, false));
        // From nothing, any share is exceeded.
        assert_eq!(check(relative, Value::exact(0.0), Value::exact(1.0)), (true, false));
    }

    #[test]
    fn quantities_and_thresholds_are_read_and_nonsense_is_refused() {
        let quantity = |text: &str| text.parse::<Condition>().unwrap().quantity.to_string();
        assert_eq!(quantity("misses:ll > 5%"), "misses:LLC");
        assert_eq!(quantity("misses:32KiB > +5 %"), "misses:32K");
        assert_eq!(quantity("memory > 0.5 B"), "memory");
        for wrong in [
            "",
            "misses:LLC",
            "misses > 5 %",
            "misses:LLC > ",
            "misses:LLC > x",
            "misses:L1 > 20",
            "cpu > 5 %",
            "misses:L1 > -5 %",
            "misses:L1 > 5/0",
            "misses:L1 < 5 %",
            "wasted:L1 > nan",
            "wasted:L1 > nan B",
            "memory > 4 BB",
        ] {
            assert!(wrong.parse::<Condition>().is_err(), "{wrong}");
        }
        for without in ["memory > 4", "wasted:L2 > +4"] {
            let why = without.parse::<Condition>().unwrap_err();
            assert!(why.contains("4 has no unit: write 4 B of bytes, or 4 % of the base"), "{why}");
        }
    }
}
