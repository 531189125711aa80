//! Encoding of protocol buffers: <https://protobuf.dev/programming-guides/encoding>.

use std::collections::HashMap;
use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};

/// Base-128 varint, least significant group first.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of an integer; 0 is the default and is left out.
pub(crate) fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        varint(out, field << 3);
        varint(out, value);
    }
}

/// A field of bytes: a string or a message. An empty one counts among repeated ones.
pub(crate) fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Repeated integers in one field.
pub(crate) fn packed(out: &mut Vec<u8>, field: u64, values: impl Iterator<Item = u64>) {
    let mut all = Vec::new();
    values.for_each(|value| varint(&mut all, value));
    bytes(out, field, &all);
}

/// A field of eight bytes; 0 is the default and is left out.
pub(crate) fn fixed64(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        varint(out, field << 3 | 1);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// An encoded message, gzipped.
pub(crate) fn gzipped(message: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    // Cannot fail: memory takes all bytes.
    let _ = packed.write_all(message);
    packed.finish().unwrap_or_default()
}

/// Encoded values by number, none twice; the empty value is 0.
#[derive(Debug)]
pub(crate) struct Numbered {
    numbers: HashMap<Vec<u8>, u64>,
    all: Vec<Vec<u8>>,
}

impl Default for Numbered {
    fn default() -> Self {
        Self { numbers: HashMap::from([(Vec::new(), 0)]), all: vec![Vec::new()] }
    }
}

impl Numbered {
    /// The number of a value.
    pub(crate) fn number(&mut self, value: impl AsRef<[u8]>) -> u64 {
        let value = value.as_ref();
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.all.len() as u64;
        self.numbers.insert(value.to_owned(), number);
        self.all.push(value.to_owned());
        number
    }

    /// Writes all values, as repeated fields.
    pub(crate) fn write(&self, out: &mut Vec<u8>, field: u64) {
        for value in &self.all {
            bytes(out, field, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_varints_and_zeros_are_left_out() {
        let mut out = Vec::new();
        number(&mut out, 1, 150);
        assert_eq!(out, [0x08, 0x96, 0x01]);
        number(&mut out, 2, 0);
        assert_eq!(out.len(), 3);
        packed(&mut out, 4, [3, 270, 86942].into_iter());
        // The example of packed fields in the description of the encoding.
        assert_eq!(&out[3..], [0x22, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05]);
    }
}
