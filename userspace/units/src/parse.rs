//! Durations, percentages and sizes as people type them: `10` (seconds), `500ms`, `10s`, `2m`; `1`,
//! `1.5`, `1%`; `32K`, `4096`.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Contradictory input that the parser of options could not
/// reject: exit status 2, as for input that the parser rejects.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUse(pub String);

/// Parses a duration; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')) {
        return Err("a duration must be longer than 0".to_owned());
    }
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let seconds_each = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit \"{unit}\": use us, ms, s, m or h, as in 500ms or 10s")),
    };
    let number: f64 =
        number.parse().map_err(|_| "no number: write a duration as 500ms, 10s or 2m".to_owned())?;
    match Duration::try_from_secs_f64(number * seconds_each) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("a duration must be longer than 0".to_owned()),
        Err(_) => Err("the duration is too long".to_owned()),
    }
}

/// Parses a process id.
pub fn pid(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid) if (1..=i32::MAX as u32).contains(&pid) => Ok(pid),
        _ => Err("no process id: write its number, as in -p 1234 (`pgrep NAME` finds it)".to_owned()),
    }
}

/// Parses how many rows to print, at least one.
pub fn rows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rows) if rows > 0 => Ok(rows),
        _ => Err("write how many rows to print, 1 or more, as in 20".to_owned()),
    }
}

/// A parser of whole numbers from `least` to `most`.
pub fn whole<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Copy,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("write a whole number from {least} to {most}"))
    }
}

/// Parses a percentage above 0 and up to 100 and returns it as typed.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("write a percentage above 0 and up to 100, as in 1 or 0.5%".to_owned()),
    }
}

/// Parses a share above 0 and below 1, also as a percentage, and returns it as a share.
pub fn share(text: &str) -> Result<f64, String> {
    let parsed = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().map(|percent: f64| percent / 100.0),
        None => text.parse(),
    };
    match parsed {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("write a share above 0 and below 1, as in 0.05 or 5%".to_owned()),
    }
}

/// The largest size.
const LARGEST: u64 = 1 << 32;

/// Parses a size in bytes: "32K", "1M", "4096".
pub fn size(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let shift = match unit.trim() {
        "" | "B" => Some(0),
        "K" | "k" | "KiB" => Some(10),
        "M" | "m" | "MiB" => Some(20),
        "G" | "g" | "GiB" => Some(30),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let bytes = number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes <= LARGEST)
        .ok_or_else(|| format!("`{text}` is no size up to 4G: write bytes, or 32K, 1M"))
}

/// Parses a size above 0.
pub fn size_above_0(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("a size must be above 0: write 1, 16 or 1K".to_owned()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!((size("16"), size("1K"), size("0")), (Ok(16), Ok(1024), Ok(0)));
        assert_eq!((size_above_0("1"), size_above_0("4G")), (Ok(1), Ok(1 << 32)));
        for wrong in ["", "K", "1.5K", "-1", "5G"] {
            assert!(size(wrong).is_err() && size_above_0(wrong).is_err(), "{wrong}");
        }
        assert!(size_above_0("0").is_err());
    }

    #[test]
    fn process_ids() {
        assert_eq!((pid("1"), pid("4194304")), (Ok(1), Ok(4_194_304)));
        for wrong in ["", "0", "-1", "abc", "1.5", "2147483648"] {
            assert!(pid(wrong).is_err(), "{wrong}");
        }
        assert_eq!(rows("1"), Ok(1));
        assert!(rows("0").is_err() && rows("-1").is_err() && rows("99999999999999999999").is_err());
    }

    #[test]
    fn whole_numbers() {
        let registers = whole(1_u8, 4);
        assert_eq!((registers("1"), registers("4")), (Ok(1), Ok(4)));
        for wrong in ["", "0", "5", "nan", "1e9", "2.5", "300"] {
            assert_eq!(registers(wrong), Err("write a whole number from 1 to 4".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn durations_of_the_contract() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("-5m"), duration("0"));
        for bad in ["", "s", "-1", "0", "1d", "1e400", "nan", "inf", "99999999999999999999999h", "1.2.3"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(share("0.05"), Ok(0.05));
        assert_eq!(share("5%"), Ok(0.05));
        for bad in ["0", "1", "-0.1", "100%", "x", "", "NaN"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn percentages() {
        assert_eq!(percent("1"), Ok(1.0));
        assert_eq!(percent("0.5%"), Ok(0.5));
        for bad in ["0", "-1", "101", "x", "", "NaN"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
