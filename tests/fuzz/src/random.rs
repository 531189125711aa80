//! Mutations of bytes, and the reading of inputs as values.

use fastrand::Rng;

/// Numbers at which programs err.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    1 << 60,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// A number, often at an edge or near one.
pub fn number(random: &mut Rng) -> u64 {
    let edge = EDGES[random.usize(..EDGES.len())];
    match random.u8(..4) {
        0 => edge,
        1 => edge.wrapping_add(random.u64(..17)).wrapping_sub(8),
        2 => random.u64(..) >> random.u32(..64),
        _ => random.u64(..64),
    }
}

/// Changes the bytes in one to eight places.
pub fn mutate(bytes: &mut Vec<u8>, random: &mut Rng) {
    for _ in 0..1 << random.u32(..4) {
        let at = random.usize(..bytes.len() + 1);
        let behind = bytes.len() - at;
        match random.u8(..9) {
            0 => bytes.truncate(if random.u8(..8) == 0 { at } else { bytes.len() }),
            1 | 2 => set(bytes, at, &[random.u8(..)]),
            3 => set(bytes, at, &number(random).to_le_bytes()[..1 << random.u32(..4)]),
            4 if behind > 0 => bytes[at] ^= 1 << random.u8(..8),
            5 => {
                bytes.insert(at, random.u8(..));
            }
            6 if behind > 0 => {
                let some = random.usize(..behind.min(16) + 1);
                bytes.drain(at..at + some);
            }
            7 => {
                let some = bytes[at..at + random.usize(..behind.min(64) + 1)].to_vec();
                let to = random.usize(..bytes.len() + 1);
                bytes.splice(to..to, some);
            }
            _ => {
                let some = random.usize(..behind.min(64) + 1);
                let from = random.usize(..bytes.len() - some + 1);
                let piece = bytes[from..from + some].to_vec();
                set(bytes, at, &piece);
            }
        }
    }
}

/// Overwrites bytes, as far as present.
pub fn set(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(with) {
        *to = *from;
    }
}

/// Random bytes, `len` in number.
pub fn bytes(random: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.u8(..)).collect()
}

/// An input read from front to back; missing bytes are 0.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next 8 bytes.
    pub fn u64(&mut self) -> u64 {
        let mut word = [0; 8];
        set(&mut word, 0, self.take(8));
        u64::from_le_bytes(word)
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }
}
