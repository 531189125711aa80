//! Real numbers as short decimal text that displays like the full number.
//!
//! A number is cut to some digits; if the rest is not 0 and the last digit is 0 or 5,
//! the last digit grows by one ("round to odd" in base ten). Rounding the result to
//! fewer digits is the same as rounding the number itself: no number is rounded twice.

use std::fmt::Write as _;

use serde_json::Value;

use crate::paths::Strings;

/// Digits of the numbers of pairs; the page shows three.
pub(crate) const OF_PAIRS: usize = 4;
/// Deflate finds repetitions within 32 kB only.
const LONG: usize = 128;
/// Digits of numbers in the rest of the report.
pub(crate) const OF_REPORT: usize = 6;

/// Appends a number with the given digits; a number that is not finite is `null`.
pub(crate) fn push(out: &mut String, value: Option<f64>, digits: usize) {
    let Some(value) = value.filter(|value| value.is_finite()) else { return out.push_str("null") };
    if value == 0.0 {
        return out.push('0');
    }
    // The shortest digits that read back as the number, as in the JSON report.
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let all: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
    let mut kept: Vec<u8> = all.iter().copied().take(digits).collect();
    let is_exact = all.iter().skip(digits).all(|digit| *digit == b'0');
    if let Some(last) = kept.last_mut().filter(|last| !is_exact && matches!(**last, b'0' | b'5')) {
        *last += 1;
    }
    while kept.len() > 1 && kept.last() == Some(&b'0') {
        kept.pop();
    }
    if value < 0.0 {
        out.push('-');
    }
    out.extend(kept.iter().map(|digit| char::from(*digit)));
    let scale = exponent - (kept.len() as i32 - 1);
    if (1..=3).contains(&scale) {
        out.extend(std::iter::repeat_n('0', scale as usize));
    } else if scale != 0 {
        // Cannot fail: a string takes all text.
        let _ = write!(out, "e{scale}");
    }
}

/// Shortens all real numbers of a value; whole numbers stay unchanged. A long
/// string, possibly in many places, becomes `{"=": number of the string}`.
pub(crate) fn shorten(value: &mut Value, strings: &mut Strings) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let mut text = String::new();
            push(&mut text, number.as_f64(), OF_REPORT);
            *value = serde_json::from_str(&text).unwrap_or(Value::Null);
        }
        Value::String(text) if text.len() >= LONG => {
            let number = strings.number(Some(text));
            *value = serde_json::json!({ "=": number });
        }
        Value::Array(values) => values.iter_mut().for_each(|value| shorten(value, strings)),
        Value::Object(fields) => fields.values_mut().for_each(|value| shorten(value, strings)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: f64, digits: usize) -> String {
        let mut out = String::new();
        push(&mut out, Some(value), digits);
        out
    }

    #[test]
    fn numbers_are_short_and_read_back() {
        let texts = [0.0, 5.0, 1234.0, 12_340_000.0, 0.25, -0.5, 1e-9].map(|value| text(value, 4));
        assert_eq!(texts, ["0", "5", "1234", "1234e4", "25e-2", "-5e-1", "1e-9"]);
        assert_eq!((text(f64::NAN, 4), text(f64::INFINITY, 4)), ("null".to_owned(), "null".to_owned()));
        assert_eq!(text(123_000.0, 4), "123000");
    }

    #[test]
    fn rounding_again_is_rounding_once() {
        let mut state = 9_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Five digits: every tenth number or so is hard to round.
            let value = ((state >> 33) % 100_000) as f64 / 1e5 + 0.1;
            let short: f64 = text(value, 4).parse().unwrap();
            assert_eq!(format!("{short:.2e}"), format!("{value:.2e}"), "{value}");
        }
        let value = 0.12451;
        assert_eq!(format!("{:.2e}", text(value, 4).parse::<f64>().unwrap()), format!("{value:.2e}"));
    }
}
