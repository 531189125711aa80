//! How wide comments and prose may be. Code is rustfmt's; tables, links, examples and single long
//! words are exempt.

/// Columns that a line of a comment or of a page may have.
const COLUMNS: usize = 110;

/// Lines of a file beyond the width, one finding for all.
pub fn check(path: &str, text: &str) -> Vec<String> {
    let wide: Vec<usize> = match path.rsplit_once('.').map(|(_, kind)| kind) {
        Some("rs") => {
            let is_comment = |line: &str| line.trim_start().starts_with("//");
            numbers(text, |line, in_example| is_comment(line) && !in_example)
        }
        Some("md") => numbers(text, |_, in_example| !in_example),
        _ => return Vec::new(),
    };
    match wide.first() {
        Some(first) => vec![format!(
            "{} lines of comments or prose are wider than {COLUMNS} columns, the first is line {first}",
            wide.len()
        )],
        None => Vec::new(),
    }
}

/// Numbers of the wide lines that count. `counts` gets a line without a comment's mark, and whether
/// the line belongs to an example.
fn numbers(text: &str, counts: impl Fn(&str, bool) -> bool) -> Vec<usize> {
    let mut in_example = false;
    let mut wide = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let words = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        in_example ^= words.starts_with("```");
        let is_table = words.starts_with('|');
        let widest = words.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
        let breakable = !is_table && !is_link(words) && widest <= COLUMNS / 2;
        if line.chars().count() > COLUMNS && breakable && counts(line, in_example) {
            wide.push(number);
        }
    }
    wide
}

/// A line that only defines a link's address.
fn is_link(words: &str) -> bool {
    words.starts_with('[') && words.contains("]: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_comments_and_prose_are_found() {
        let words = "word ".repeat(23);
        let finding = |path: &str, text: &str| check(path, text).len();
        assert_eq!(finding("a/src/lib.rs", &format!("    /// {words}")), 1);
        assert_eq!(finding("README.md", &words), 1);
        assert_eq!(finding("README.md", &format!("- fits\n\n{words}\n")), 1);
    }

    #[test]
    fn code_tables_links_and_examples_are_exempt() {
        let words = "word ".repeat(23);
        let link = format!("<https://example.org/{}>", "a".repeat(110));
        for (path, text) in [
            ("a/src/lib.rs", format!("let text = \"{words}\";")),
            ("a/src/lib.rs", format!("/// {link}")),
            ("a/src/lib.rs", format!("/// | {words} |")),
            ("a/src/lib.rs", format!("/// ```text\n/// {words}\n/// ```")),
            ("README.md", format!("```console\n{words}\n```\n")),
            ("README.md", format!("[a]: {words}")),
            ("a.toml", words.clone()),
        ] {
            assert_eq!(check(path, &text), Vec::<String>::new(), "{path}: {text}");
        }
    }
}
