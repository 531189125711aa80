//! How model values look in a column: enums as words, unsigned numbers in SQLite's signed 64 bits.
//!
//! Numbers above `i64::MAX` (kernel-half addresses) wrap to
//! negative numbers; `printf('%x', …)` in SQL shows the original.

use locality_model::{AccessKind, Mode, ObjectKind};

/// An unsigned number as stored by SQLite.
pub(crate) fn signed(value: u64) -> i64 {
    value.cast_signed()
}

/// Back from [`signed`].
pub(crate) fn unsigned(value: i64) -> u64 {
    value.cast_unsigned()
}

/// A narrower number; a value out of range (only in a damaged file) becomes the largest number.
pub(crate) fn narrow<T: TryFrom<i64> + Bounded>(value: i64) -> T {
    T::try_from(value).unwrap_or(T::LARGEST)
}

/// Types with a largest value.
pub(crate) trait Bounded {
    const LARGEST: Self;
}

impl Bounded for u8 {
    const LARGEST: Self = Self::MAX;
}

impl Bounded for u32 {
    const LARGEST: Self = Self::MAX;
}

pub(crate) fn kind_name(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Load => "load",
        AccessKind::Store => "store",
        AccessKind::ReadWrite => "read-write",
        AccessKind::Unknown => "unknown",
    }
}

pub(crate) fn kind_named(name: &str) -> AccessKind {
    match name {
        "load" => AccessKind::Load,
        "store" => AccessKind::Store,
        "read-write" => AccessKind::ReadWrite,
        _ => AccessKind::Unknown,
    }
}

pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Live => "live",
        Mode::Exact => "exact",
    }
}

pub(crate) fn mode_named(name: &str) -> Mode {
    if name == "exact" { Mode::Exact } else { Mode::Live }
}

/// Kinds of objects with words.
const OBJECT_KINDS: [(ObjectKind, &str); 7] = [
    (ObjectKind::Static, "static"),
    (ObjectKind::ThreadLocal, "thread-local"),
    (ObjectKind::Stack, "stack"),
    (ObjectKind::Heap, "heap"),
    (ObjectKind::Mapped, "mapped"),
    (ObjectKind::File, "file"),
    (ObjectKind::Unknown, "unknown"),
];

pub(crate) fn object_kind_name(kind: ObjectKind) -> &'static str {
    OBJECT_KINDS.iter().find(|(known, _)| *known == kind).map_or("unknown", |(_, name)| name)
}

pub(crate) fn object_kind_named(name: &str) -> ObjectKind {
    OBJECT_KINDS.iter().find(|(_, known)| *known == name).map_or(ObjectKind::Unknown, |(kind, _)| *kind)
}

/// `[1,2,3]`, readable by SQLite's `json_each`.
pub(crate) fn json_numbers(numbers: impl Iterator<Item = u32>) -> String {
    let words: Vec<String> = numbers.map(|number| number.to_string()).collect();
    format!("[{}]", words.join(","))
}

/// Back from [`json_numbers`]; `None` for other text.
pub(crate) fn numbers_json(text: &str) -> Option<Vec<u32>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    if inner.is_empty() {
        return Some(Vec::new());
    }
    inner.split(',').map(|word| word.parse().ok()).collect()
}

/// `[["a",1],["b",2]]`.
pub(crate) fn json_counts(counts: &[(String, u64)]) -> String {
    let counts: Vec<_> = counts.iter().map(|(text, n)| (text, signed(*n))).collect();
    // Cannot fail: keys are strings.
    serde_json::to_string(&counts).unwrap_or_default()
}

/// Back from [`json_counts`]; `None` for other text.
pub(crate) fn counts_json(text: &str) -> Option<Vec<(String, u64)>> {
    let counts: Vec<(String, i64)> = serde_json::from_str(text).ok()?;
    Some(counts.into_iter().map(|(text, n)| (text, unsigned(n))).collect())
}

/// Pairs as a JSON array of arrays of two.
pub(crate) fn json_pairs(pairs: &[(u32, u64)]) -> String {
    let words: Vec<String> = pairs.iter().map(|(a, b)| format!("[{a},{b}]")).collect();
    format!("[{}]", words.join(","))
}

/// Back from [`json_pairs`]; `None` for other text.
pub(crate) fn pairs_json(text: &str) -> Option<Vec<(u32, u64)>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    if inner.is_empty() {
        return Some(Vec::new());
    }
    let pair = |word: &str| {
        let (a, b) = word.split_once(',')?;
        Some((a.parse().ok()?, b.parse().ok()?))
    };
    inner.strip_prefix('[')?.strip_suffix(']')?.split("],[").map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_round_trip() {
        for kind in [AccessKind::Load, AccessKind::Store, AccessKind::ReadWrite, AccessKind::Unknown] {
            assert_eq!(kind_named(kind_name(kind)), kind);
        }
        for (kind, name) in OBJECT_KINDS {
            assert_eq!((object_kind_named(name), object_kind_name(kind)), (kind, name));
        }
        for mode in [Mode::Live, Mode::Exact] {
            assert_eq!(mode_named(mode_name(mode)), mode);
        }
        for value in [0, 1, u64::MAX, 0xffff_ffff_ff60_0000] {
            assert_eq!(unsigned(signed(value)), value);
        }
        assert_eq!(narrow::<u8>(300), 255);
        for numbers in [vec![], vec![7], vec![0, u32::MAX]] {
            assert_eq!(numbers_json(&json_numbers(numbers.iter().copied())), Some(numbers));
        }
        for pairs in [vec![], vec![(8, 1)], vec![(8, u64::MAX), (64, 0)]] {
            assert_eq!(pairs_json(&json_pairs(&pairs)), Some(pairs));
        }
        for bad in ["", "[[", "[1,2]", "[[1,2],]", "[[1]]", "[[-1,2]]"] {
            assert_eq!(pairs_json(bad), None);
        }
        for bad in ["", "[", "1,2", "[1,]", "[-1]", "[x]"] {
            assert_eq!(numbers_json(bad), None);
        }
    }
}
