//! Correspondence of parts between base and new side: renamed texts, lines moved within a function.
//!
//! A line of one side only is taken as the moved line of the same rank in the
//! function, if both sides have equally many such lines. Other lines stay apart.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use crate::quantity::{At, Part};
use crate::side::Side;

/// `s/old/new/`: replaces a text in names of functions, files and objects of the base. The first character
/// after the `s` separates; texts are plain, without patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    old: String,
    new: String,
}

impl FromStr for Rename {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give s/OLD/NEW/, with plain texts; any character may stand in place of /".to_owned();
        let rest = text.strip_prefix('s').ok_or_else(wrong)?;
        let separator = rest.chars().next().filter(|c| !c.is_alphanumeric()).ok_or_else(wrong)?;
        let parts: Vec<&str> = rest.split(separator).collect();
        match parts.as_slice() {
            ["", old, new, "" | "g"] if !old.is_empty() => {
                Ok(Self { old: (*old).to_owned(), new: (*new).to_owned() })
            }
            _ => Err(wrong()),
        }
    }
}

/// Renames the parts of a base.
pub fn rename(side: Side, renames: &[Rename]) -> Side {
    if renames.is_empty() {
        return side;
    }
    let text = |text: &str| {
        renames.iter().fold(text.to_owned(), |text, Rename { old, new }| text.replace(old.as_str(), new))
    };
    moved(side, &|part| part.renamed(&text, &|at| at.line))
}

/// Moves lines of a base to their place on the new side.
pub fn follow(base: Side, new: &Side) -> Side {
    let lines = |side: &Side| -> BTreeMap<(String, String), BTreeSet<u32>> {
        let mut lines: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
        for at in side.parts.keys().flat_map(Part::places) {
            lines.entry((at.file.clone(), at.function.clone())).or_default().insert(at.line);
        }
        lines
    };
    let (ours, theirs) = (lines(&base), lines(new));
    let mut moves: BTreeMap<At, u32> = BTreeMap::new();
    for ((file, function), ours) in &ours {
        let Some(theirs) = theirs.get(&(file.clone(), function.clone())) else { continue };
        let alone: Vec<u32> = ours.difference(theirs).copied().collect();
        let unmatched: Vec<u32> = theirs.difference(ours).copied().collect();
        if alone.len() == unmatched.len() {
            for (from, to) in alone.into_iter().zip(unmatched) {
                moves.insert(At { file: file.clone(), function: function.clone(), line: from }, to);
            }
        }
    }
    if moves.is_empty() {
        return base;
    }
    let line = |at: &At| moves.get(at).copied().unwrap_or(at.line);
    moved(base, &|part| part.renamed(&str::to_owned, &line))
}

/// Merged parts are added up.
fn moved(side: Side, of: &dyn Fn(&Part) -> Part) -> Side {
    let mut parts: BTreeMap<Part, crate::side::Values> = BTreeMap::new();
    for (part, values) in side.parts {
        let sums = parts.entry(of(&part)).or_default();
        for (quantity, value) in values {
            let sum = sums.get(&quantity).map_or(value, |before| before.plus(value));
            sums.insert(quantity, sum);
        }
    }
    Side { run: side.run, parts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::Value;
    use crate::quantity::Quantity;

    fn side(lines: &[(&str, u32)]) -> Side {
        let mut side = Side::default();
        for (function, line) in lines {
            let at = At { file: "src/old/a.c".into(), function: (*function).to_owned(), line: *line };
            let values = [(Quantity::Misses("L1".into()), Value::exact(f64::from(*line)))];
            side.parts.insert(Part::Line(at), values.into());
        }
        side
    }

    fn lines(side: &Side) -> Vec<u32> {
        side.parts.keys().filter_map(|part| Some(part.at()?.line)).collect()
    }

    #[test]
    fn lines_move_with_their_function_where_both_sides_have_as_many() {
        let new = side(&[("f", 12), ("f", 15), ("g", 40), ("h", 7)]);
        let base = follow(side(&[("f", 10), ("f", 13), ("g", 40), ("h", 7), ("h", 8)]), &new);
        assert_eq!(lines(&base), [12, 15, 40, 7, 8]);
    }

    #[test]
    fn texts_are_replaced_in_the_base() {
        let of = |text: &str| rename(side(&[("f", 1)]), &[text.parse().unwrap()]);
        let file = |side: &Side| side.parts.keys().next().unwrap().at().unwrap().file.clone();
        assert_eq!(file(&of("s/old/new/")), "src/new/a.c");
        assert_eq!(file(&of("s|src/old|lib|g")), "lib/a.c");
        for wrong in ["", "x/a/b/", "s/a/b", "s//b/", "sab", "s/a/b/i"] {
            assert!(wrong.parse::<Rename>().is_err(), "{wrong}");
        }
    }
}
