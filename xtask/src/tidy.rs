//! The house's conventions that no compiler checks, as failing checks.
//!
//! Rules see a path and a text, hence each can be tested;
//! files come from git (tracked, or new and not ignored).

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

mod comments;
mod names;
mod packages;
mod prose;
mod references;
mod width;

/// Checks every file and fails with the list of findings.
pub fn run() -> Result<()> {
    let files = files()?;
    let banned = files.get(prose::GLOSSARY).map(|page| prose::banned(page)).unwrap_or_default();
    let mut findings = Vec::new();
    if banned.is_empty() {
        findings.push(format!("{}: has no table of banned words", prose::GLOSSARY));
    }
    for (path, text) in &files {
        let of = |found: Vec<String>| found.into_iter().map(move |finding| format!("{path}: {finding}"));
        findings.extend(of(check(path, text)));
        findings.extend(of(names::check(path, text, &banned)));
        findings.extend(of(prose::check(path, text, &banned)));
        findings.extend(of(references::check(path, text, &files)));
    }
    findings.extend(packages::check(&files));
    findings.extend(comments::check(&files, &banned));
    if !findings.is_empty() {
        bail!("tidy:\n  {}", findings.join("\n  "));
    }
    Ok(())
}

/// Prints the share of vague words in the comments of each package.
pub fn print_words() -> Result<()> {
    let files = files()?;
    let banned = files.get(prose::GLOSSARY).map(|page| prose::banned(page)).unwrap_or_default();
    crate::say(&comments::table(&files, &banned));
    Ok(())
}

/// Every text file by its path.
fn files() -> Result<BTreeMap<String, String>> {
    let root = shell::root();
    let list = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .context("cannot list the files with git")?;
    let mut files = BTreeMap::new();
    for path in String::from_utf8_lossy(&list.stdout).split('\0').filter(|path| !path.is_empty()) {
        // A file that git knows may have been deleted meanwhile.
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        files.insert(path.to_owned(), String::from_utf8_lossy(&bytes).into_owned());
    }
    Ok(files)
}

/// Faults of one file.
fn check(path: &str, text: &str) -> Vec<String> {
    let mut findings = width::check(path, text);
    let lines = text.lines().count();
    let mut at_most = |limit: usize, what: &str, number: usize| {
        if number > limit {
            findings.push(format!("{number} {what}, at most {limit} allowed"));
        }
    };
    if path == "ARCHITECTURE.md" {
        at_most(1_500, "words", text.split_whitespace().count());
    }
    if path.ends_with(".rs") {
        if path.starts_with("ebpf/") {
            at_most(250, "lines", lines);
        } else if !path.starts_with("tests/") {
            at_most(800, "lines", lines);
        }
        if !text.starts_with("//!") {
            findings.push("does not open with `//!`".to_owned());
        }
        for word in UNFINISHED {
            if text.contains(word) {
                findings.push(format!("contains `{word}`"));
            }
        }
    }
    for place in OWN_PLACES {
        if text.contains(place) {
            findings.push(format!("names the path {place} of one machine"));
        }
    }
    findings
}

/// Marks of unfinished work; taken apart here, as this file is checked too.
const UNFINISHED: [&str; 4] =
    [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("FIX", "ME"), concat!("X", "XX")];
/// Paths that exist on one developer's machine only.
const OWN_PLACES: [&str; 3] =
    [concat!("/work", "/main"), concat!("/work", "/shared"), concat!("/root", "/.")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_file_passes() {
        assert_eq!(check("userspace/a/src/lib.rs", "//! What it is.\nfn f() {}\n"), Vec::<String>::new());
    }

    #[test]
    fn each_rule_finds_its_fault() {
        let long = |n: usize| format!("//! Long.\n{}", "f();\n".repeat(n));
        let faults = [
            ("a/src/lib.rs", "fn f() {}\n".to_owned(), "does not open"),
            ("a/src/lib.rs", long(800), "801 lines, at most 800"),
            ("ebpf/src/main.rs", long(250), "251 lines, at most 250"),
            ("ARCHITECTURE.md", "word\n".repeat(1501), "1501 words, at most 1500"),
            ("a/src/lib.rs", format!("//! A.\n{}\n", UNFINISHED[0]), "contains"),
            ("README.md", format!("see {}/x\n", OWN_PLACES[0]), "of one machine"),
        ];
        for (path, text, expected) in faults {
            let findings = check(path, &text);
            assert!(findings.len() == 1 && findings[0].contains(expected), "{path}: {findings:?}");
        }
    }

    #[test]
    fn long_tests_are_allowed() {
        assert!(check("tests/tests/a.rs", &format!("//! T.\n{}", "f();\n".repeat(900))).is_empty());
    }
}
