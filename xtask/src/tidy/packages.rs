//! Permitted dependencies between packages, and their largest size.
//!
//! The table is the architecture: a dependency outside the table is a change of design,
//! and belongs into ARCHITECTURE.md first. Dependencies of tests alone are free.

use std::collections::BTreeMap;

/// Most lines of a package without its tests.
const LINES: usize = 8_000;

/// A package below `userspace/`, and the packages of this workspace that it may use, in the order in
/// which data flows.
const MAY_USE: [(&str, &[&str]); 38] = [
    ("stream", &[]),
    ("units", &[]),
    ("model", &[]),
    ("store", &["model"]),
    ("program/isa", &[]),
    ("program/symbols", &[]),
    ("program/objects", &["symbols"]),
    ("program/approximate", &["symbols"]),
    ("program/loops", &["stream"]),
    ("live/preload", &[]),
    ("live/arbiter", &[]),
    ("live/shadow", &["isa", "stream"]),
    ("live/rate", &["stream"]),
    ("live/kernel", &["common", "model", "units"]),
    ("live/heap", &["common", "kernel", "objects", "preload", "shadow", "symbols"]),
    ("live/capture", &["arbiter", "common", "heap", "isa", "kernel", "model", "rate", "shadow", "stream"]),
    (
        "live/tracer",
        &[
            "approximate",
            "arbiter",
            "capture",
            "common",
            "dataflow",
            "estimate",
            "findings",
            "heap",
            "isa",
            "kernel",
            "loops",
            "model",
            "objects",
            "profile",
            "rate",
            "shadow",
            "stream",
            "symbols",
        ],
    ),
    ("live/doctor", &["capture", "common", "kernel", "model", "runner", "shadow", "symbols"]),
    ("exact/reuse", &["stream"]),
    ("exact/cachesim", &["stream"]),
    ("exact/dataflow", &["stream"]),
    ("exact/plugin", &["cachesim", "dataflow", "reuse", "stream"]),
    (
        "exact/runner",
        &[
            "cachesim", "dataflow", "exports", "kernel", "model", "plugin", "profile", "report", "reuse",
            "stream", "symbols", "units",
        ],
    ),
    ("analysis/mrc", &[]),
    ("analysis/estimate", &["model", "mrc"]),
    ("analysis/advice", &["estimate", "model"]),
    ("analysis/execution", &["rate", "stream"]),
    ("analysis/rollup", &["estimate", "model"]),
    ("analysis/findings", &["advice", "estimate", "model", "mrc"]),
    ("report/schema", &[]),
    ("report", &["advice", "estimate", "findings", "model", "schema", "units"]),
    ("html", &["model", "report"]),
    ("report/diff", &["report", "units"]),
    ("report/exports", &["estimate", "findings", "model", "report"]),
    ("analysis/compare", &["mrc", "report"]),
    (
        "cli/service",
        &["exports", "findings", "kernel", "model", "profile", "report", "rollup", "shadow", "units"],
    ),
    ("cli/top", &["rollup", "units"]),
    (
        "cli",
        &[
            "approximate",
            "arbiter",
            "capture",
            "common",
            "compare",
            "diff",
            "doctor",
            "estimate",
            "execution",
            "exports",
            "findings",
            "heap",
            "html",
            "kernel",
            "model",
            "profile",
            "report",
            "rollup",
            "runner",
            "service",
            "shadow",
            "stream",
            "symbols",
            "top",
            "tracer",
            "units",
        ],
    ),
];

/// Packages below these folders calculate only.
const PURE: [&str; 6] = ["analysis/", "html", "model", "report", "report/", "units"];

/// Foreign packages forbidden in calculating packages: kernel interfaces and run-times.
const IMPURE: [&str; 4] = ["aya", "libc", "tokio", "memmap2"];

/// Faults of the packages, from all files by path.
pub fn check(files: &BTreeMap<String, String>) -> Vec<String> {
    let manifests = files.iter().filter_map(|(path, text)| {
        let folder = path.strip_prefix("userspace/")?.strip_suffix("/Cargo.toml")?;
        Some((folder, text.as_str()))
    });
    let mut findings = Vec::new();
    for (folder, manifest) in manifests {
        let Some((_, may_use)) = MAY_USE.iter().find(|(package, _)| *package == folder) else {
            findings.push(format!("userspace/{folder}: is not in the table of packages"));
            continue;
        };
        for used in dependencies(manifest) {
            match used.strip_prefix("locality-") {
                Some(own) if !may_use.contains(&own) => {
                    findings.push(format!("userspace/{folder}: must not use {used}"));
                }
                None if is_pure(folder) && IMPURE.contains(&used) => {
                    findings.push(format!("userspace/{folder}: calculates only, and must not use {used}"));
                }
                _ => {}
            }
        }
        let lines = lines(folder, files);
        if lines > LINES {
            findings
                .push(format!("userspace/{folder}: {lines} lines without tests, at most {LINES} allowed"));
        }
    }
    findings.extend(unmapped(files));
    findings.extend(files.iter().filter(|(path, text)| is_pure_source(path) && opens_files(text)).map(
        |(path, _)| format!("{path}: belongs to a package that calculates only, and must not use std::fs"),
    ));
    findings
}

/// Packages without a row in the code map of ARCHITECTURE.md, and rows without a package.
fn unmapped(files: &BTreeMap<String, String>) -> Vec<String> {
    let Some(page) = files.get("ARCHITECTURE.md") else { return Vec::new() };
    let row = |line: &str| Some(line.strip_prefix("| `userspace/")?.split_once('`')?.0.to_owned());
    let rows: Vec<String> = page.lines().filter_map(row).collect();
    let is_package = |folder: &str| files.contains_key(&format!("userspace/{folder}/Cargo.toml"));
    let missing = MAY_USE.iter().map(|(package, _)| *package).filter(|package| is_package(package));
    let missing = missing.filter(|package| !rows.iter().any(|row| row == package));
    let missing = missing.map(|package| format!("userspace/{package}: has no row in ARCHITECTURE.md"));
    let stale = rows.iter().filter(|row| !row.contains('.') && !is_package(row));
    let stale = stale.map(|row| format!("ARCHITECTURE.md: userspace/{row} is no package"));
    missing.chain(stale).collect()
}

fn is_pure(folder: &str) -> bool {
    PURE.iter().any(|pure| folder == *pure || (pure.ends_with('/') && folder.starts_with(pure)))
}

fn is_pure_source(path: &str) -> bool {
    let folder = path.strip_prefix("userspace/").and_then(|path| path.split_once("/src/"));
    folder.is_some_and(|(folder, _)| is_pure(folder)) && !is_of_tests(path)
}

fn opens_files(text: &str) -> bool {
    let product = text.split("#[cfg(test)]").next().unwrap_or_default();
    product.lines().any(|line| !line.trim_start().starts_with("//") && line.contains("std::fs"))
}

/// Names in a manifest's section `[dependencies]`.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    section.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).filter(|name| !name.is_empty())
}

fn is_of_tests(path: &str) -> bool {
    ["/tests/", "/benches/", "/examples/", "/testing"].iter().any(|folder| path.contains(folder))
        || path.ends_with("/tests.rs")
}

/// Lines of a package without its tests.
fn lines(folder: &str, files: &BTreeMap<String, String>) -> usize {
    let sources = files.iter().filter(|(path, _)| {
        path.strip_prefix("userspace/")
            .and_then(|path| path.strip_prefix(folder))
            .is_some_and(|rest| rest.starts_with("/src/") && rest.ends_with(".rs") && !is_of_tests(rest))
    });
    let of = |text: &str| text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().count();
    sources.map(|(_, text)| of(text)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    fn manifest(section: &str) -> String {
        format!(
            "[package]\nname = \"a\"\n\n[dependencies]\n{section}\n\n[dev-dependencies]\nlibc = \"0.2\"\n"
        )
    }

    #[test]
    fn what_the_table_allows_passes() {
        let text = manifest("locality-model.workspace = true\nlocality-mrc = { workspace = true }");
        assert_eq!(check(&files(&[("userspace/analysis/estimate/Cargo.toml", &text)])), Vec::<String>::new());
    }

    #[test]
    fn arrows_against_the_flow_of_data_are_found() {
        for (folder, section, expected) in [
            ("model", "locality-store.workspace = true", "must not use locality-store"),
            ("analysis/mrc", "libc.workspace = true", "must not use libc"),
            ("live/new", "", "not in the table"),
        ] {
            let found = check(&files(&[(&format!("userspace/{folder}/Cargo.toml"), &manifest(section))]));
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn the_code_map_has_a_row_for_each_package() {
        let of = |page: &str| {
            check(&files(&[("userspace/model/Cargo.toml", &manifest("")), ("ARCHITECTURE.md", page)]))
                .join(" ")
        };
        assert_eq!(of("| `userspace/model` | values | kernel |\n"), "");
        assert!(of("| `userspace/mrc` | curves | |\n").contains("mrc is no package"));
        assert!(of("`userspace/model`, in a sentence").contains("model: has no row"));
    }

    #[test]
    fn lines_of_tests_do_not_count_and_files_stay_closed() {
        let long = |n: usize| "f();\n".repeat(n);
        let of = |path: &str, text: &str| {
            let found = check(&files(&[("userspace/model/Cargo.toml", &manifest("")), (path, text)]));
            found.join(" ")
        };
        assert!(of("userspace/model/src/a.rs", &long(8_001)).contains("8001 lines"));
        let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}", long(10), long(9_000));
        assert_eq!(of("userspace/model/src/a.rs", &tested), "");
        assert_eq!(of("userspace/model/src/a/tests.rs", &long(9_000)), "");
        assert!(of("userspace/model/src/a.rs", "use std::fs;\n").contains("std::fs"));
    }
}
