//! Words of comments, by package: vague words in 100, and banned words of the glossary.
//!
//! A vague word (a pronoun without its noun, `such`, `other`, …) makes a reader look for what is meant.
//! The share is a measure of a whole package, not a fault of one line. Unit tests are not counted.

use std::collections::BTreeMap;

use super::prose::{self, Banned};

/// Most vague words in 100 words of a package's comments.
const MOST: f64 = 8.0;

/// Words that stand for another word of the text.
const VAGUE: [&str; 32] = [
    "it",
    "its",
    "itself",
    "that",
    "those",
    "these",
    "this",
    "what",
    "which",
    "whose",
    "who",
    "whom",
    "they",
    "them",
    "their",
    "there",
    "so",
    "such",
    "one",
    "ones",
    "other",
    "others",
    "some",
    "any",
    "anybody",
    "nobody",
    "nothing",
    "something",
    "all",
    "else",
    "same",
    "where",
];

/// Counts of one package.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    words: usize,
    vague: usize,
    banned: usize,
}

impl Counts {
    /// Vague words in 100.
    fn share(self) -> f64 {
        100.0 * self.vague as f64 / self.words.max(1) as f64
    }
}

/// Packages with too many vague words, or with banned words.
pub fn check(files: &BTreeMap<String, String>, banned: &[Banned]) -> Vec<String> {
    counts(files, banned).iter().flat_map(|(package, counts)| faults(package, *counts)).collect()
}

/// A line for each package, and the share of all packages.
pub fn table(files: &BTreeMap<String, String>, banned: &[Banned]) -> String {
    let counts = counts(files, banned);
    let words = counts.values().map(|one| one.words).sum();
    let sum = Counts { words, vague: counts.values().map(|one| one.vague).sum(), banned: 0 };
    let row =
        |name: &str, of: Counts| format!("{:4.1} vague words in 100 of {:>6}  {name}", of.share(), of.words);
    let rows = counts.iter().map(|(package, counts)| row(package, *counts) + "\n");
    rows.collect::<String>() + &row("all packages", sum)
}

fn faults(package: &str, counts: Counts) -> Vec<String> {
    let vague = (counts.share() > MOST).then(|| {
        format!(
            "{package}: {:.1} vague words in 100 words of comments, at most {MOST} allowed",
            counts.share()
        )
    });
    let banned = (counts.banned > 0).then(|| {
        format!("{package}: {} words of comments are in the glossary's list of banned words", counts.banned)
    });
    vague.into_iter().chain(banned).collect()
}

fn counts(files: &BTreeMap<String, String>, banned: &[Banned]) -> BTreeMap<String, Counts> {
    let mut packages: Vec<&str> = files.keys().filter_map(|path| path.strip_suffix("/Cargo.toml")).collect();
    // The innermost package that has a file comes first.
    packages.sort_by_key(|package| std::cmp::Reverse(package.len()));
    let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs") && !is_of_tests(path)) {
        let holds = |package: &&&str| path.strip_prefix(**package).is_some_and(|rest| rest.starts_with('/'));
        let Some(package) = packages.iter().find(holds) else { continue };
        let sum = counts.entry((*package).to_owned()).or_default();
        for comment in comments(text) {
            let words = prose::words(&comment);
            let is_vague = |word: &&String| {
                let word = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
                VAGUE.contains(&word.as_str())
            };
            sum.words += words.len();
            sum.vague += words.iter().filter(is_vague).count();
            sum.banned += prose::in_words(&words, banned).count();
        }
    }
    counts
}

fn is_of_tests(path: &str) -> bool {
    path.contains("/tests/it/")
        || path.contains("/src/tests/")
        || path.ends_with("/tests.rs")
        || (path.starts_with("userspace/") && path.contains("/tests/"))
}

/// Comments of a file, a paragraph each, without marks, examples and tables, up to the file's tests.
fn comments(text: &str) -> Vec<String> {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut comments = vec![String::new()];
    let mut in_example = false;
    for line in product.lines() {
        let line = line.trim_start();
        let comment = line.strip_prefix("//").map(|line| line.trim_start_matches(['/', '!']).trim());
        if comment.is_some_and(|comment| comment.starts_with("```")) {
            in_example = !in_example;
            continue;
        }
        match comment.filter(|comment| !in_example && !comment.is_empty() && !comment.starts_with('|')) {
            Some(comment) => {
                if let Some(paragraph) = comments.last_mut() {
                    paragraph.push_str(comment);
                    paragraph.push(' ');
                }
            }
            None => comments.push(String::new()),
        }
    }
    comments.retain(|comment| !comment.is_empty());
    comments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    fn told() -> Vec<Banned> {
        vec![Banned { word: "told".to_owned(), instead: "sent".to_owned(), in_prose: true, in_names: false }]
    }

    #[test]
    fn words_of_comments_are_counted_by_package() {
        let files = files(&[
            ("a/Cargo.toml", ""),
            ("a/b/Cargo.toml", ""),
            (
                "a/src/lib.rs",
                "//! What it is.\nlet it = \"told\"; // not read\n/// `it, that` was told\n/// ```\n/// it\n",
            ),
            ("a/b/src/lib.rs", "// Plain words.\n#[cfg(test)]\nmod tests {\n// it\n"),
            ("a/b/src/tests.rs", "// it\n"),
        ]);
        let counts = counts(&files, &told());
        // What, it: two of six; code in backticks is one word.
        assert_eq!(counts["a"], Counts { words: 6, vague: 2, banned: 1 });
        assert_eq!(counts["a/b"], Counts { words: 2, vague: 0, banned: 0 });
        assert!(table(&files, &told()).starts_with("33.3 vague words in 100 of      6  a\n"));
    }

    #[test]
    fn a_package_has_few_vague_words_and_no_banned_ones() {
        let of = |vague, banned| faults("a", Counts { words: 100, vague, banned });
        assert_eq!((of(8, 0).len(), of(9, 0).len(), of(8, 1).len(), of(9, 1).len()), (0, 1, 1, 2));
        assert!(of(9, 0)[0].contains("a: 9.0 vague words"));
    }
}
