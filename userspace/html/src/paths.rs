//! Strings, frames, places and call paths of a page, each once. Call paths are a tree
//! from the outermost frame inwards: a path is the number of the innermost node.

use std::collections::HashMap;

/// Number of an absent string, and of the root of the tree.
pub(crate) const NONE: u32 = 0;

/// Values by number, from 1; [`NONE`] is an absent value.
#[derive(Debug)]
pub(crate) struct Table<T> {
    pub rows: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Table<T> {
    pub fn number(&mut self, row: T) -> u32 {
        if let Some(number) = self.numbers.get(&row) {
            return *number;
        }
        self.rows.push(row.clone());
        let number = self.rows.len() as u32;
        self.numbers.insert(row, number);
        number
    }
}

/// Strings.
#[derive(Debug, Default)]
pub(crate) struct Strings(pub Table<std::sync::Arc<str>>);

impl Strings {
    /// The number of a string; [`NONE`] of an absent string.
    pub fn number(&mut self, text: Option<&str>) -> u32 {
        let Some(text) = text else { return NONE };
        match self.0.numbers.get(text) {
            Some(number) => *number,
            None => self.0.number(text.into()),
        }
    }
}

/// A frame: strings by number, line 0 if unknown.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub function: u32,
    pub file: u32,
    pub line: u32,
    pub module: u32,
    pub inlined: bool,
    pub unknown: u32,
}

/// A place in source: strings by number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub function: u32,
    pub file: u32,
    pub line: u32,
    pub via: u32,
}

/// All tables of call paths.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    pub strings: Strings,
    pub frames: Table<Frame>,
    pub places: Table<Place>,
    /// The node around, and the frame.
    pub nodes: Table<(u32, u32)>,
}

impl Paths {
    /// The node of a path of frames, innermost first.
    pub fn node(&mut self, frames: impl DoubleEndedIterator<Item = u32>) -> u32 {
        frames.rev().fold(NONE, |around, frame| self.nodes.number((around, frame)))
    }
}

/// The name of a frame without a symbol: file and address.
pub(crate) fn unnamed(module: Option<&str>, address: Option<u64>) -> String {
    let base = module.map(|module| module.rsplit('/').next().unwrap_or(module));
    match (base, address) {
        (Some(base), Some(address)) => format!("{base}+{address:#x}"),
        (Some(base), None) => base.to_owned(),
        (None, Some(address)) => format!("{address:#x}"),
        (None, None) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_share_their_outer_frames() {
        let mut paths = Paths::default();
        let a = paths.node([3, 2, 1].into_iter());
        let b = paths.node([4, 2, 1].into_iter());
        assert_eq!((a, b, paths.node([3, 2, 1].into_iter())), (3, 4, 3));
        assert_eq!(paths.nodes.rows, [(0, 1), (1, 2), (2, 3), (2, 4)]);
        assert_eq!(paths.node(std::iter::empty()), NONE);
    }

    #[test]
    fn absent_strings_have_no_number() {
        let mut strings = Strings::default();
        assert_eq!([None, Some("a"), Some("b"), Some("a")].map(|text| strings.number(text)), [0, 1, 2, 1]);
    }

    #[test]
    fn frames_without_a_symbol_have_a_name() {
        assert_eq!(unnamed(Some("/lib/libz.so"), Some(16)), "libz.so+0x10");
        assert_eq!(unnamed(None, None), "unknown");
    }
}
