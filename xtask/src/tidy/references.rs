//! Pages that a page or a comment names must exist.

use std::collections::BTreeMap;

/// Names of pages that are no files of ours: an example's, or of another project.
const EXEMPT: [&str; 1] = ["xtask/src/tidy/references.rs"];

/// Lines that name a page which is not in the repository.
pub fn check(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let is_read = path.ends_with(".rs") || path.ends_with(".md");
        if !is_read || EXEMPT.contains(&path.as_str()) {
            continue;
        }
        for (line, number) in text.lines().zip(1..) {
            if path.ends_with(".rs") && !line.trim_start().starts_with("//") {
                continue;
            }
            for page in pages(line).filter(|page| !exists(page, path, files)) {
                findings.push(format!("{path}: line {number} names {page}, which does not exist"));
            }
        }
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

/// In the root, or beside the file that names the page. Addresses of other sites are taken as they are.
fn exists(page: &str, path: &str, files: &BTreeMap<String, String>) -> bool {
    let beside = path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let page = page.trim_start_matches("./");
    files.contains_key(page)
        || files.contains_key(&format!("{beside}{page}"))
        || page.strip_prefix("../").is_some_and(|page| {
            let above = beside.trim_end_matches('/').rsplit_once('/').map_or("", |(above, _)| above);
            files.contains_key(page) || files.contains_key(&format!("{above}/{page}"))
        })
        || page.starts_with("github.com")
        || page.contains("/blob/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_missing_are_found() {
        let files = |text: &str| {
            [("README.md", ""), ("docs/a.md", ""), ("docs/b.md", text), ("a/src/lib.rs", text)]
                .map(|(path, text)| (path.to_owned(), text.to_owned()))
                .into()
        };
        assert_eq!(check(&files("/// See docs/a.md, a.md? no: docs/a.md. And ../README.md")).len(), 1);
        assert_eq!(check(&files("// As METHOD.md says")).len(), 2);
        assert_eq!(
            check(&files("//! docs/a.md and https://github.com/x/y/blob/v1/Z.md")),
            Vec::<String>::new()
        );
    }
}
