//! Pages that a page or a comment names must exist.

use std::collections::BTreeMap;

/// Files that name foreign pages as examples.
const EXEMPT: [&str; 2] = ["xtask/src/tidy/references.rs", "xtask/src/tidy/prose.rs"];

/// Documents that are not in the repository, and are named without an ending.
const ELSEWHERE: [&str; 2] = ["DESIGN", "METHOD"];

/// Lines of a file that name a page missing from the repository.
pub fn check(path: &str, text: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let is_read = path.ends_with(".rs") || path.ends_with(".md");
    if !is_read || EXEMPT.contains(&path) || path.starts_with("docs/journal/") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if path.ends_with(".rs") && !line.trim_start().starts_with("//") {
            continue;
        }
        let mut missing: Vec<&str> = pages(line).filter(|page| !exists(page, path, files)).collect();
        // The text of a link is often its address.
        missing.dedup();
        let named = ELSEWHERE.into_iter().filter(|name| line.split(' ').any(|word| word == *name));
        findings.extend(
            missing
                .into_iter()
                .chain(named)
                .map(|page| format!("line {number} names {page}, which does not exist")),
        );
    }
    findings
}

/// Paths in a line that end as pages do.
fn pages(line: &str) -> impl Iterator<Item = &str> {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    line.split(move |c: char| !is_of_path(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.ends_with(".md") && word.len() > ".md".len() && !word.starts_with("//"))
}

/// Whether a page exists, from the root or from the folder of
/// the naming file. Addresses of foreign sites are not checked.
fn exists(page: &str, path: &str, files: &BTreeMap<String, String>) -> bool {
    let mut folders: Vec<&str> = path.split('/').collect();
    folders.pop();
    for part in page.split('/') {
        match part {
            "." => {}
            ".." => drop(folders.pop()),
            part => folders.push(part),
        }
    }
    files.contains_key(page)
        || files.contains_key(&folders.join("/"))
        || page.starts_with("github.com")
        || page.contains("/blob/")
}

#[cfg(test)]
mod tests {

    #[test]
    fn pages_that_are_missing_are_found() {
        let check = |path: &str, text: &str| {
            let files = ["README.md", "docs/a.md", "docs/b.md", "docs/c/d.md"]
                .map(|path| (path.to_owned(), String::new()));
            super::check(path, text, &files.into()).len()
        };
        assert_eq!(check("docs/b.md", "See docs/a.md, a.md, ./a.md, ../README.md and c/d.md."), 0);
        assert_eq!(check("docs/c/d.md", "See ../a.md and ../../README.md, not a.md or ../README.md."), 2);
        assert_eq!(check("a/src/lib.rs", "/// See docs/a.md\n/// a.md? no\nlet page = \"b.md\";"), 1);
        assert_eq!(check("a/src/lib.rs", "// As METHOD.md says, and DESIGN invariant 4"), 2);
        assert_eq!(check("docs/journal/x.md", "// As METHOD.md says"), 0);
        assert_eq!(check("a/src/lib.rs", "//! docs/a.md and https://github.com/x/y/blob/v1/Z.md"), 0);
    }
}
