//! Types of data by name: `i32`, `f64`, `integer_vector_128`, `float_vector_256`, `other_0`,
//! `none`; widths in bits.

use std::{fmt, str::FromStr};

use super::DataType;

/// A kind of type by its width in bytes.
type Make = fn(u16) -> DataType;

/// What names begin with.
const KINDS: [(&str, Make); 5] = [
    ("integer_vector_", DataType::IntegerVector),
    ("float_vector_", DataType::FloatVector),
    ("other_", DataType::Other),
    ("i", DataType::Integer),
    ("f", DataType::Float),
];

/// Not a type's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a type of data is i8 to i64, f32, f64 or f80, integer_vector_128 (or 64, 256), float_vector_128 (or 64, 256)"
)]
pub struct NoDataType;

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes) = match self {
            Self::None => return f.write_str("none"),
            Self::Integer(bytes) => ("i", bytes),
            Self::Float(bytes) => ("f", bytes),
            Self::IntegerVector(bytes) => ("integer_vector_", bytes),
            Self::FloatVector(bytes) => ("float_vector_", bytes),
            Self::Other(bytes) => ("other_", bytes),
        };
        write!(f, "{name}{}", u32::from(*bytes) * 8)
    }
}

impl FromStr for DataType {
    type Err = NoDataType;

    fn from_str(name: &str) -> Result<Self, NoDataType> {
        let of_kind = |(kind, make): &(&str, Make)| {
            // Reports print spaces.
            let bits: u16 = name.replace(' ', "_").strip_prefix(kind)?.parse().ok()?;
            bits.is_multiple_of(8).then(|| make(bits / 8))
        };
        KINDS.iter().find_map(of_kind).ok_or(NoDataType)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let types = [
            DataType::Integer(4),
            DataType::Float(10),
            DataType::IntegerVector(16),
            DataType::FloatVector(32),
        ];
        for (data, name) in types.iter().zip(["i32", "f80", "integer_vector_128", "float_vector_256"]) {
            assert_eq!((data.to_string().as_str(), name.parse()), (name, Ok(*data)));
            assert_eq!(name.replace('_', " ").parse(), Ok(*data));
        }
        assert_eq!(
            (DataType::None.to_string(), DataType::Other(0).to_string()),
            ("none".into(), "other_0".into())
        );
        for name in ["", "i", "i33", "float", "f64 ", "x64", "none"] {
            assert_eq!(name.parse::<DataType>(), Err(NoDataType), "{name}");
        }
    }
}
