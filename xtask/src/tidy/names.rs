//! Words of a private dialect that no module and no item may have in its name: those of the glossary's
//! table ([`super::prose::GLOSSARY`]), with the term of the field beside each.
//!
//! Keys of JSON, columns of SQL and flags are text and not looked at.

use super::prose::Banned;

/// Keywords before a name.
const KINDS: [&str; 8] = ["fn ", "struct ", "enum ", "mod ", "const ", "static ", "type ", "trait "];

/// Names in a Rust file that have a banned word.
pub fn check(path: &str, text: &str, banned: &[Banned]) -> Vec<String> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let file = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    let names = text.lines().filter_map(name);
    std::iter::once(file)
        .chain(names)
        .filter_map(|name| {
            let is_in_name = |one: &&Banned| one.in_names && words(name).any(|part| part == one.word);
            let Banned { word, instead, .. } = banned.iter().find(is_in_name)?;
            Some(format!("`{name}` has the word \"{word}\": the term is \"{instead}\""))
        })
        .collect()
}

/// The name that a line declares.
fn name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with("//") {
        return None;
    }
    let declared = KINDS.iter().find_map(|kind| {
        let (before, rest) = line.split_once(kind)?;
        let is_qualifier = |word: &str| {
            matches!(word, "pub" | "unsafe" | "async" | "const" | "extern" | "in") || word.starts_with("pub(")
        };
        before.split_whitespace().all(is_qualifier).then_some(rest)
    })?;
    let end = declared.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(declared.len());
    declared.get(..end)
}

/// The words of a name in any of the language's cases, in small letters.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut before_small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before_small) {
            words.push(String::new());
        }
        before_small = c.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words.into_iter().filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        let row = |word: &str| Banned {
            word: word.to_owned(),
            instead: "another".to_owned(),
            in_prose: false,
            in_names: word != "told",
        };
        super::check(path, text, &["gauge", "lifter", "wish", "unmet", "books", "told"].map(row))
    }

    #[test]
    fn banned_words_are_found_in_any_case() {
        for text in ["pub(super) fn on_gauge(", "struct Lifter {", "const ONE_WISH_NS: u64", "mod unmet;"] {
            assert_eq!(check("a/src/lib.rs", text).len(), 1, "{text}");
        }
        assert_eq!(check("a/src/books.rs", "").len(), 1);
    }

    #[test]
    fn parts_of_words_texts_and_comments_pass() {
        for text in ["fn gauged_by()", "let text = \"fn gauge()\";", "// fn gauge()", "fn told()"] {
            assert_eq!(check("a/src/lib.rs", text), Vec::<String>::new(), "{text}");
        }
    }
}
