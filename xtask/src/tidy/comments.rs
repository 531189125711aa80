//! Words of comments, by package: vague words in 100, and banned words of the glossary.
//!
//! A vague word (a pronoun without its noun, `such`, `other`, …) makes a reader look for what is meant.
//! The share is a measure of a whole package, not a fault of one line. Packages above the aim have a limit
//! in the tables below, and both tables may only shrink. Tests are not counted.

use std::collections::BTreeMap;

use super::prose::{self, Banned};

/// Vague words in 100 words of comments that a package without a limit of its own may have.
const AIM: f64 = 8.0;

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

/// Packages above the aim: vague words in 100, and banned words.
const LIMITS: &[(&str, f64, usize)] = &[
    ("common", 10.0, 0),
    ("ebpf", 10.5, 0),
    ("tests", 11.5, 0),
    ("tests/bench", 10.0, 0),
    ("tests/fuzz", 10.0, 0),
    ("userspace/analysis/advice", 10.0, 0),
    ("userspace/analysis/compare", 9.5, 0),
    ("userspace/analysis/estimate", 9.5, 0),
    ("userspace/analysis/execution", 13.0, 0),
    ("userspace/analysis/findings", 10.0, 0),
    ("userspace/analysis/mrc", 9.5, 0),
    ("userspace/analysis/rollup", 12.5, 0),
    ("userspace/cli", 11.5, 6),
    ("userspace/cli/service", 14.0, 0),
    ("userspace/exact/cachesim", 9.5, 0),
    ("userspace/exact/dataflow", 9.5, 0),
    ("userspace/exact/plugin", 10.0, 0),
    ("userspace/exact/reuse", 9.5, 0),
    ("userspace/exact/runner", 9.5, 0),
    ("userspace/html", 9.5, 0),
    ("userspace/live/arbiter", 10.0, 0),
    ("userspace/live/capture", 9.5, 0),
    ("userspace/live/doctor", 9.5, 0),
    ("userspace/live/heap", 10.0, 0),
    ("userspace/live/kernel", 10.0, 0),
    ("userspace/live/preload", 9.0, 0),
    ("userspace/live/rate", 10.0, 0),
    ("userspace/live/shadow", 10.0, 0),
    ("userspace/live/tracer", 10.0, 0),
    ("userspace/model", 12.0, 4),
    ("userspace/program/approximate", 10.0, 0),
    ("userspace/program/isa", 9.5, 0),
    ("userspace/program/loops", 10.0, 0),
    ("userspace/program/objects", 9.5, 0),
    ("userspace/program/symbols", 10.0, 0),
    ("userspace/report/diff", 9.0, 0),
    ("userspace/report/exports", 8.5, 0),
    ("userspace/report/schema", 12.5, 1),
    ("userspace/store", 9.5, 0),
    ("userspace/stream", 9.0, 0),
    ("xtask", 10.0, 0),
    ("xtask/prebuilt", 10.0, 0),
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

/// Packages beyond their limits.
pub fn check(files: &BTreeMap<String, String>, banned: &[Banned]) -> Vec<String> {
    against(&counts(files, banned), LIMITS)
}

/// The table of limits as it would be now, up to the next half, and the share of all packages.
pub fn table(files: &BTreeMap<String, String>, banned: &[Banned]) -> String {
    let counts = counts(files, banned);
    let sum = counts.values().fold(Counts::default(), |sum, one| Counts {
        words: sum.words + one.words,
        vague: sum.vague + one.vague,
        banned: sum.banned + one.banned,
    });
    let rows = counts.iter().filter(|(_, counts)| counts.share() > AIM || counts.banned > 0);
    let rows = rows.map(|(package, counts)| {
        format!("    (\"{package}\", {:.1}, {}),\n", (counts.share() * 2.0).ceil() / 2.0, counts.banned)
    });
    format!(
        "{}all packages: {:.1} vague words in 100 of {}, {} banned words",
        rows.collect::<String>(),
        sum.share(),
        sum.words,
        sum.banned
    )
}

fn against(counts: &BTreeMap<String, Counts>, limits: &[(&str, f64, usize)]) -> Vec<String> {
    let mut findings = Vec::new();
    for (package, counts) in counts {
        let limit = limits.iter().find(|(name, ..)| name == package);
        let (_, share, banned) = *limit.unwrap_or(&("", AIM, 0));
        if counts.share() > share {
            findings.push(format!(
                "{package}: {:.1} vague words in 100 words of comments, at most {share} allowed",
                counts.share()
            ));
        }
        if counts.banned > banned {
            findings.push(format!(
                "{package}: {} words of comments are in the glossary's list of banned words, at most \
                 {banned} allowed",
                counts.banned
            ));
        }
    }
    findings
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
        assert!(table(&files, &told()).contains("(\"a\", 33.5, 1),"));
    }

    #[test]
    fn a_package_stays_below_its_limit() {
        let of = |vague, banned| {
            let counts = [("a".to_owned(), Counts { words: 100, vague, banned })].into();
            against(&counts, &[("a", 9.0, 2)]).len()
        };
        assert_eq!((of(9, 2), of(10, 2), of(9, 3), of(10, 3)), (0, 1, 1, 2));
        let other = [("b".to_owned(), Counts { words: 100, vague: 9, banned: 0 })].into();
        assert!(against(&other, &[("a", 9.0, 2)])[0].contains("b: 9.0 vague words"));
    }
}
