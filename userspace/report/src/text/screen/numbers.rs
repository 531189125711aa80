//! Numbers on one screen: two or three digits, with their interval, or on a narrow screen with half of its
//! width where both sides are as wide.

use crate::schema::{Estimate, Interval, number::Number};

/// Columns of a share with its interval.
pub const SHARE: usize = "1.4 % [0.4–2.2]".len() - "–".len() + 1;
/// The same on a narrow screen, without digits after the point.
pub const NARROW_SHARE: usize = "100 % [99–100]".len() - "–".len() + 1;

/// A value with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Between {
    /// The value.
    pub value: f64,
    /// The interval; `None` if unknown.
    pub interval: Option<(f64, f64)>,
}

impl Between {
    /// `None` where the value is not known.
    pub fn of(value: Number, ci95: Option<Interval>) -> Option<Self> {
        let value = value.real().filter(|value| value.is_finite())?;
        let interval = ci95.and_then(|[low, high]| Some((low.real()?, high.real()?)));
        let interval = interval.filter(|(low, high)| low.is_finite() && high.is_finite());
        Some(Self { value, interval })
    }

    /// Of an estimate.
    pub fn estimate(of: &Estimate) -> Option<Self> {
        Self::of(of.value, Some(of.ci95))
    }

    /// "82 % [63–99]" in [`SHARE`] columns or fewer, on a narrow screen in [`NARROW_SHARE`], there also
    /// "47 % ±11"; without an interval that rounds to the value.
    pub fn share(self, narrow: bool) -> String {
        let percents = self.interval.map(|(low, high)| (low * 100.0, high * 100.0));
        let is_fine = |(low, high): (f64, f64)| high - low < 2.0 && high > 0.05 && high < 9.95;
        let digits = usize::from(!narrow && percents.is_some_and(is_fine));
        let rounded = |percent: f64| format!("{:.digits$}", percent + 0.0);
        let middle = rounded(self.value * 100.0);
        let differs = percents.filter(|(low, high)| rounded(*low) != middle || rounded(*high) != middle);
        format!("{}{}", percent(self.value), brackets(self.value * 100.0, differs, digits, narrow))
    }

    /// "127 [2–265]", or on a narrow screen "127 ±32", of a thousand.
    pub fn per_mille(self, narrow: bool) -> String {
        let digits = self.interval.map_or(0, |(low, high)| usize::from(high - low < 2.0 && high > 0.05));
        format!("{}{}", short(self.value), brackets(self.value, self.interval, digits, narrow))
    }

    /// "1.9 [1.6–2.2]", or on a narrow screen "1.9 ±0.3": a factor.
    pub fn factor(self, narrow: bool) -> String {
        let is_near_one = self.interval.map_or(self.value, |(_, high)| high) < 1.45;
        let digits = if is_near_one { 2 } else { 1 };
        format!("{:.digits$}{}", self.value, brackets(self.value, self.interval, digits, narrow))
    }
}

/// The interval of a value, as " ±3" only where both sides are as wide when printed.
fn brackets(value: f64, interval: Option<(f64, f64)>, digits: usize, narrow: bool) -> String {
    let rounded = |number: f64| format!("{number:.digits$}");
    let is_even = |low: f64, high: f64| rounded(value - low) == rounded(high - value);
    match interval {
        None => String::new(),
        Some((low, high)) if narrow && is_even(low, high) => format!(" ±{}", rounded(high - value)),
        Some((low, high)) => {
            // No "-0".
            let (low, high) = (low + 0.0, high + 0.0);
            format!(" [{low:.digits$}–{high:.digits$}]")
        }
    }
}

/// "82 %", "1.4 %", "0 %".
pub fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    match percent {
        _ if percent < 0.05 => "0 %".to_owned(),
        _ if percent < 1.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// "0", "0.4", "3.1", "127".
pub fn short(value: f64) -> String {
    match value {
        _ if value < 0.05 => "0".to_owned(),
        _ if value < 9.95 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.0}"),
    }
}

/// "850", "12 K", "5.6 M".
pub fn large(value: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1.0, ""), (1e3, " K"), (1e6, " M"), (1e9, " G")];
    let unit = UNITS.iter().rfind(|(size, _)| value >= 0.9995 * size).unwrap_or(&UNITS[0]);
    let scaled = value / unit.0;
    let digits = usize::from(scaled < 9.95 && unit.0 > 1.0);
    format!("{scaled:.digits$}{}", unit.1)
}

/// "48 K", "1 M": bytes of a cache.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["", " K", " M", " G"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 9.95 && value.fract() > 0.05);
    format!("{value:.digits$}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits_and_their_interval() {
        let of = |value: f64, low: f64, high: f64| Between { value, interval: Some((low, high)) };
        assert_eq!(of(0.82, 0.63, 0.99).share(false), "82 % [63–99]");
        assert_eq!(of(0.82, 0.63, 0.99).share(true), "82 % [63–99]");
        assert_eq!(of(0.82, 0.65, 0.99).share(true), "82 % ±17");
        assert_eq!(of(0.004, 0.001, 0.012).share(true), "0.4 % [0–1]");
        assert_eq!(of(1.0, 0.992, 1.0).share(true).chars().count(), NARROW_SHARE);
        // Half of the width would reach below 0, or hide half of the interval.
        assert_eq!(of(0.0, 0.0, 52.0).per_mille(true), "0 [0–52]");
        assert_eq!(of(18.0, 4.0, 83.0).per_mille(true), "18 [4–83]");
        assert_eq!(of(127.0, 95.0, 159.0).per_mille(true), "127 ±32");
        assert_eq!(of(0.0, 0.0, 0.0).share(false), "0 %");
        assert_eq!(of(1.0, 0.9999, 1.0).share(false), "100 %");
        assert_eq!(of(1.0, 0.992, 1.0).share(false), "100 % [99–100]");
        assert_eq!(of(0.94, 0.937, 0.942).share(false), "94 %");
        assert_eq!(of(0.014, 0.004, 0.0222).share(false).chars().count(), SHARE);
        assert_eq!(of(0.004, 0.001, 0.012).share(false), "0.4 % [0.1–1.2]");
        assert_eq!(of(127.0, 2.0, 265.0).per_mille(false), "127 [2–265]");
        assert_eq!(of(0.4, 0.0, 1.1).per_mille(false), "0.4 [0.0–1.1]");
        assert_eq!(of(1.9, 1.6, 2.2).factor(false), "1.9 [1.6–2.2]");
        assert_eq!(of(1.08, 1.03, 1.15).factor(true), "1.08 [1.03–1.15]");
        assert_eq!(of(1.08, 1.03, 1.13).factor(true), "1.08 ±0.05");
        assert_eq!(Between { value: 0.5, interval: None }.share(false), "50 %");
    }

    #[test]
    fn what_is_not_known_is_no_number() {
        assert_eq!(Between::estimate(&Estimate::default()), None);
        let unknown = Some([Number::default(), 1.0.into()]);
        assert_eq!(Between::of(0.5.into(), unknown), Some(Between { value: 0.5, interval: None }));
        assert_eq!(Between::of(f64::INFINITY.into(), None), None);
    }

    #[test]
    fn sizes_and_large_numbers() {
        assert_eq!([48 << 10, 1 << 20, 1536 << 10, 512].map(size), ["48 K", "1 M", "1.5 M", "512"]);
        assert_eq!([8.0, 4460.0, 202e3, 5.62e6, 81.7e6].map(large), ["8", "4.5 K", "202 K", "5.6 M", "82 M"]);
        assert_eq!([0.0, 0.013, 0.6].map(percent), ["0 %", "1.3 %", "60 %"]);
    }
}
