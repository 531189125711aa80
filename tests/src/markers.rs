//! Known pairs, marked in a program's source: places of use and reuse.
//!
//! Syntax: `target.h`. Limits: a line may bear several marks; a mark is
//! found everywhere in a line, as the languages have different comments.

use std::collections::BTreeMap;
use std::path::Path;

use crate::programs;

/// A known pair of use and reuse.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pair {
    /// Name of the mark.
    pub name: String,
    /// Place of the use.
    pub uses: Place,
    /// Place of the reuse.
    pub reuse: Place,
}

/// One end of a pair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// File name of the source, without directories.
    pub file: String,
    /// Line of the mark, 1-based.
    pub line: u32,
    /// The function's name, if no debug information gives a line.
    pub function: Option<String>,
    /// The whole call path, innermost first, if stated
    /// in the source (`// path USE:name inner … main`).
    pub path: Vec<String>,
}

/// The known pairs of a program, by name.
pub fn markers(program: &str) -> BTreeMap<String, Pair> {
    let source = programs::source(program);
    let text = std::fs::read_to_string(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    parse(&source, &text).unwrap_or_else(|e| panic!("{}: {e}", source.display()))
}

fn parse(source: &Path, text: &str) -> Result<BTreeMap<String, Pair>, String> {
    let file = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
    for (number, line) in (1u32..).zip(text.lines()) {
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let (is_use, mark) = match (word.strip_prefix("USE:"), word.strip_prefix("REUSE:")) {
                (Some(mark), _) => (true, mark),
                (_, Some(mark)) => (false, mark),
                _ => continue,
            };
            let (name, function) =
                mark.split_once('=').map_or((mark, None), |(name, f)| (name, Some(f.to_owned())));
            let pair = pairs.entry(name.to_owned()).or_default();
            name.clone_into(&mut pair.name);
            let place = if is_use { &mut pair.uses } else { &mut pair.reuse };
            if line.trim_start().starts_with("// path ") {
                place.path = words.by_ref().map(str::to_owned).collect();
            } else if place.line != 0 {
                return Err(format!("line {number}: {word} stands twice"));
            } else {
                (place.file, place.line, place.function) = (file.clone(), number, function);
            }
        }
    }
    match pairs.values().find(|pair| pair.uses.line == 0 || pair.reuse.line == 0) {
        Some(pair) => Err(format!("{} lacks its USE or its REUSE", pair.name)),
        None => Ok(pairs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<BTreeMap<String, Pair>, String> {
        parse(Path::new("dir/a.c"), text)
    }

    #[test]
    fn marks_give_file_and_line() {
        let pairs = parsed("x\n  a[i] = 1; /* USE:p */\n  s += a[i]; // REUSE:p\n").unwrap();
        let place = |line| Place { file: "a.c".to_owned(), line, ..Place::default() };
        assert_eq!(pairs["p"], Pair { name: "p".to_owned(), uses: place(2), reuse: place(3) });
    }

    #[test]
    fn one_line_may_end_one_pair_and_begin_another() {
        let pairs = parsed("/* USE:p REUSE:q */\n/* USE:q REUSE:p */").unwrap();
        assert_eq!((pairs["p"].uses.line, pairs["p"].reuse.line), (1, 2));
        assert_eq!((pairs["q"].uses.line, pairs["q"].reuse.line), (2, 1));
    }

    #[test]
    fn functions_and_paths() {
        let pairs = parsed("// path USE:p inner outer main\n * USE:p=inner\n * REUSE:p=other\n").unwrap();
        assert_eq!(pairs["p"].uses.function.as_deref(), Some("inner"));
        assert_eq!(pairs["p"].uses.path, ["inner", "outer", "main"]);
        assert_eq!(pairs["p"].reuse.function.as_deref(), Some("other"));
    }

    #[test]
    fn half_a_pair_and_a_mark_that_stands_twice_are_errors() {
        assert!(parsed("/* USE:p */").unwrap_err().contains('p'));
        assert!(parsed("/* REUSE:p */").is_err());
        assert!(parsed("/* USE:p */\n/* USE:p REUSE:p */").unwrap_err().contains("line 2"));
    }

    #[test]
    fn every_program_that_marks_something_marks_it_well() {
        let marked = programs::all().iter().filter(|name| !markers(name).is_empty()).count();
        assert!(marked >= 10, "only {marked} programs have a known pair");
    }
}
