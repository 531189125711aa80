//! Sentences of pages: how long they are, and words that pages and comments do not use.
//!
//! The list of words is a table of docs/glossary.md: page and rule cannot differ. A sentence is a
//! run of words up to a full stop, a question mark or an exclamation mark before a new sentence, or
//! up to the end of its paragraph or list item. A colon or a semicolon does not end a sentence.
//! Headings, tables, examples and definitions of links are no prose. Code in backticks is one word.

/// The page that has the table of words.
pub const GLOSSARY: &str = "docs/glossary.md";

/// Heading of the table.
const HEADING: &str = "## Words that this project does not use";

/// Words that a sentence may have.
const LONGEST: usize = 40;

/// Pages with shorter sentences, as the first that a reader sees: mean words of a sentence.
const FIRST_PAGES: ([&str; 2], f64) = (["README.md", "ARCHITECTURE.md"], 18.0);

/// Mean words of a sentence in the remaining pages.
const OTHERS: f64 = 20.0;

/// Folders whose pages are exempt: dated notes, and pages that programs write.
const EXEMPT: [&str; 2] = ["docs/journal/", "docs/reference/"];

/// A word and its replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Banned {
    /// The word, in small letters.
    pub word: String,
    /// The word or words to write.
    pub instead: String,
    /// Whether pages and comments must not use the word.
    pub in_prose: bool,
    /// Whether names of items and modules must not have the word.
    pub in_names: bool,
}

/// The table of words of the glossary: rows of word, replacement, and where the rule holds (`prose`,
/// `names` or `both`).
pub fn banned(glossary: &str) -> Vec<Banned> {
    let table = glossary.split(HEADING).nth(1).unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (word, instead, holds) = (cells.next()?, cells.next()?, cells.next()?);
        let (in_prose, in_names) = (holds != "names", holds != "prose");
        Some(Banned { word: word.to_lowercase(), instead: instead.to_owned(), in_prose, in_names })
    })
    .collect()
}

/// Whether rules for prose hold for a file.
pub fn is_page(path: &str) -> bool {
    path.ends_with(".md") && !EXEMPT.iter().any(|folder| path.starts_with(folder))
}

/// What is wrong with the sentences of a page.
pub fn check(path: &str, text: &str, banned: &[Banned]) -> Vec<String> {
    if !is_page(path) {
        return Vec::new();
    }
    let sentences = sentences(text);
    let lengths: Vec<usize> = sentences.iter().map(|(_, words)| words.len()).collect();
    let mut findings = Vec::new();
    let (first_pages, few) = FIRST_PAGES;
    let limit = if first_pages.contains(&path) { few } else { OTHERS };
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64;
    if mean > limit {
        findings.push(format!("{mean:.1} words a sentence on average, at most {limit} allowed"));
    }
    for (line, words) in &sentences {
        if words.len() > LONGEST {
            findings
                .push(format!("line {line}: a sentence of {} words, at most {LONGEST} allowed", words.len()));
        }
        findings.extend(
            in_words(words, banned)
                .map(|found| format!("line {line}: \"{}\", write: {}", found.word, found.instead)),
        );
    }
    findings
}

/// Banned words among the words of a text.
pub fn in_words<'a>(words: &'a [String], banned: &'a [Banned]) -> impl Iterator<Item = &'a Banned> {
    words.iter().filter_map(move |word| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        banned.iter().find(|banned| banned.in_prose && banned.word == word)
    })
}

/// The words of a line: code in backticks is one word, of a link only its text counts, and marks of
/// emphasis are taken off.
pub fn words(line: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut in_code = false;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '`' => {
                in_code = !in_code;
                if in_code {
                    plain.push_str(CODE);
                }
            }
            _ if in_code => {}
            ']' if rest.peek() == Some(&'(') => {
                // The address of a link ends at the bracket that closes it.
                let _ = rest.by_ref().find(|c| *c == ')');
            }
            '[' | ']' | '*' | '_' => {}
            _ => plain.push(c),
        }
    }
    let mut words: Vec<String> = Vec::new();
    for word in plain.split_whitespace() {
        if word.chars().any(char::is_alphanumeric) {
            words.push(word.to_owned());
        } else if let Some(last) = words.last_mut().filter(|_| word.ends_with(['.', '!', '?'])) {
            // A mark alone is no word, but may end the sentence: "3 %."
            last.push('.');
        }
    }
    words
}

/// What stands for code in backticks.
const CODE: &str = "code";

/// Sentences of a page, each with the line of its first word.
fn sentences(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut sentences = Vec::new();
    for (line, paragraph) in paragraphs(text) {
        let words = words(&paragraph);
        let mut sentence: Vec<String> = Vec::new();
        for (at, word) in words.iter().enumerate() {
            sentence.push(word.clone());
            if ends(word, words.get(at + 1)) {
                sentences.push((line, std::mem::take(&mut sentence)));
            }
        }
        if !sentence.is_empty() {
            sentences.push((line, sentence));
        }
    }
    sentences
}

/// Whether a sentence ends with a word, by the word that follows.
fn ends(word: &str, next: Option<&String>) -> bool {
    const SHORT: [&str; 8] = ["e.g.", "i.e.", "eq.", "al.", "vs.", "cf.", "vol.", "no."];
    let word = word.trim_end_matches([')', '"', '\'']);
    let is_end = word.ends_with(['.', '!', '?']) && !SHORT.contains(&word.to_lowercase().as_str());
    // A small letter goes on with the sentence, code may begin one.
    let begins = |next: &String| next == CODE || !next.starts_with(char::is_lowercase);
    is_end && next.is_none_or(begins)
}

/// Paragraphs and list items of a page as one line each, with the line where each begins.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let (mut in_example, mut in_paragraph) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.starts_with("```") {
            in_example = !in_example;
            in_paragraph = false;
            continue;
        }
        let is_link = line.starts_with('[') && line.contains("]: ");
        let is_other = line.is_empty() || line.starts_with(['#', '|', '<', '!']) || is_link;
        if in_example || is_other {
            in_paragraph = false;
            continue;
        }
        match paragraphs.last_mut().filter(|_| in_paragraph && !is_item(line)) {
            Some((_, paragraph)) => {
                paragraph.push(' ');
                paragraph.push_str(line);
            }
            None => paragraphs.push((number, item(line).to_owned())),
        }
        in_paragraph = true;
    }
    paragraphs
}

/// Whether a line begins an item of a list.
fn is_item(line: &str) -> bool {
    item(line).len() < line.len()
}

/// A line without the mark of a list's item.
fn item(line: &str) -> &str {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = (digits.len() < line.len()).then(|| digits.strip_prefix(". ")).flatten();
    ["- ", "* ", "+ ", "> "].iter().find_map(|mark| line.strip_prefix(mark)).or(numbered).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Glossary\n\n**Use**: told of.\n\n## Words that this project does not use\n\n\
                         | word | write | where |\n|---|---|---|\n| told | reported | prose |\n\
                         | gauge | trap cost | both |\n| wish | request | names |\n";

    #[test]
    fn the_table_of_words_is_read() {
        let banned = banned(TABLE);
        let words: Vec<_> = banned.iter().map(|b| (b.word.as_str(), b.in_prose, b.in_names)).collect();
        assert_eq!(words, [("told", true, false), ("gauge", true, true), ("wish", false, true)]);
        assert_eq!(banned[0].instead, "reported");
    }

    #[test]
    fn sentences_end_where_a_reader_ends_them() {
        let of = |text: &str| sentences(text).iter().map(|(_, words)| words.len()).collect::<Vec<_>>();
        assert_eq!(of("One two. Three\nfour five! `six seven` eight?\n"), [2, 3, 2]);
        // Numbers, short forms, file names and code do not end a sentence.
        assert_eq!(of("RDX eq. 1 gives .98 and 1.5 of `a.b. c` in a.md. The end.\n"), [11, 2]);
        assert_eq!(of("# Not a sentence here\n\n| nor | here |\n\n```text\nnor here.\n```\n"), [0; 0]);
        assert_eq!(of("Before:\n- one two\n  three\n- [four](five.md) six\n1. seven\n"), [1, 3, 2, 1]);
        assert_eq!(of("It took 3 %. The rest 4 % – or more.\n"), [3, 5]);
        assert_eq!(of("(One two.) Three **four**. \"Five.\" Six\n"), [2, 2, 1, 1]);
    }

    #[test]
    fn long_sentences_and_banned_words_are_found() {
        let banned = banned(TABLE);
        let sentence = |n: usize| format!("{} end.\n", "word ".repeat(n - 1));
        let findings = |path: &str, text: &str| check(path, text, &banned).join("; ");
        assert_eq!(findings("docs/a.md", &sentence(20)), "");
        assert!(
            findings("docs/a.md", &sentence(21)).contains("21.0 words a sentence on average, at most 20")
        );
        assert!(findings("README.md", &sentence(19)).contains("at most 18"));
        let uneven = format!("{}\n{}", sentence(41), "Short.\n\n".repeat(9));
        assert_eq!(findings("docs/a.md", &uneven), "line 1: a sentence of 41 words, at most 40 allowed");
        assert!(findings("docs/a.md", "A\nb. C was told.\n").contains("\"told\", write: reported"));
        assert_eq!(findings("docs/a.md", "The word `told`, a wish.\n\n| told |\n"), "");
        assert_eq!(findings("docs/journal/a.md", "It was told.\n"), "");
        assert_eq!(findings("docs/reference/a.md", &sentence(50)), "");
    }
}
