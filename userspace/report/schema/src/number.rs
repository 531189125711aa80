//! Numbers of a report, counted exactly or estimated, and their intervals.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number counted in some reports and estimated in others, so JSON has it with or without
/// a fraction. A number that is not finite prints as `null`, and `null` reads as NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Counted.
    Whole(u64),
    /// Estimated or calculated.
    Real(f64),
}

/// Lower and upper end of a 95 % interval.
pub type Interval = [Number; 2];

impl Number {
    /// The value; `None` if unknown.
    pub fn real(self) -> Option<f64> {
        match self {
            Self::Whole(n) => Some(n as f64),
            Self::Real(n) => Some(n).filter(|n| !n.is_nan()),
        }
    }

    /// The value; `None` if unknown or infinite.
    pub fn finite(self) -> Option<f64> {
        self.real().filter(|value| value.is_finite())
    }

    /// The value without its fraction; `None` if negative or unknown.
    /// Some writers print whole numbers beyond 2^53 as floating point.
    pub fn whole(self) -> Option<u64> {
        match self {
            Self::Whole(n) => Some(n),
            Self::Real(n) => Some(n).filter(|n| *n >= 0.0 && n.is_finite()).map(|n| n as u64),
        }
    }
}

impl Default for Number {
    fn default() -> Self {
        Self::Real(f64::NAN)
    }
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Self::Whole(n)
    }
}

impl From<f64> for Number {
    fn from(n: f64) -> Self {
        Self::Real(n)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Whole(n) => serializer.serialize_u64(n),
            Self::Real(n) => serializer.serialize_f64(n),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or null")
            }

            fn visit_u64<E>(self, n: u64) -> Result<Number, E> {
                Ok(Number::Whole(n))
            }

            fn visit_i64<E>(self, n: i64) -> Result<Number, E> {
                Ok(u64::try_from(n).map_or(Number::Real(n as f64), Number::Whole))
            }

            fn visit_f64<E>(self, n: f64) -> Result<Number, E> {
                Ok(Number::Real(n))
            }

            fn visit_unit<E>(self) -> Result<Number, E> {
                Ok(Number::default())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Number {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Number".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "number" })
    }
}

/// Reads a field absent in some reports and `null` in others: absent is the default, `None`.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_they_were_read() {
        for text in ["[0,18446744073709551615]", "[0.0,-1.5]", "[5.0,null]", "[1e+300,0.25]"] {
            let read: Interval = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        let [low, high]: Interval = serde_json::from_str("[null,-3]").unwrap();
        assert_eq!((low.real(), low.whole(), high.real(), high.whole()), (None, None, Some(-3.0), None));
        let wholes = [f64::INFINITY, 1e19, 7.9].map(|n| Number::Real(n).whole());
        assert_eq!(wholes, [None, Some(10_000_000_000_000_000_000), Some(7)]);
        assert!(serde_json::from_str::<Number>("\"1\"").is_err());
    }
}
