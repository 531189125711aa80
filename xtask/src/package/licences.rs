//! Licences of the libraries that are linked into the program and into the embedded plugin.
//!
//! Most licences ask for their text in each copy. The texts come from the libraries' sources; equal
//! texts stand once. Macros, which run at build time only, are listed too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Packages whose dependencies are linked.
const ROOTS: [&str; 2] = ["locality-bpf", "locality-plugin"];
/// Beginnings of files' names, in capital letters.
const FILES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// One text with all of them, from the metadata that `cargo metadata` prints.
///
/// # Errors
/// The metadata name a package without a manifest, or a text cannot be read.
pub fn of_libraries(metadata: &Value) -> Result<String> {
    let linked = linked(metadata);
    let (mut names, mut texts) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    for package in entries(&metadata["packages"]) {
        // Packages of this workspace have no source.
        if package["source"].is_null() || !package["id"].as_str().is_some_and(|id| linked.contains(id)) {
            continue;
        }
        let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        let manifest = Path::new(text(&package["manifest_path"]));
        let folder = manifest.parent().with_context(|| format!("{name} has no manifest"))?;
        for found in in_folder(folder)? {
            texts.entry(found).or_default().push(name.clone());
        }
        names.push(format!("{name}: {}", package["license"].as_str().unwrap_or("see the text below")));
    }
    names.sort();
    let mut whole = format!(
        "Libraries in locality-bpf, their licences, and the texts that come with them.\n\
         SQLite, in libsqlite3-sys, and parts of musl, in libm, are included.\n\n{}\n",
        names.join("\n")
    );
    for (found, of) in texts {
        whole.push_str(&format!("\n{}\n{}\n\n{found}\n", "=".repeat(78), of.join(", ")));
    }
    Ok(whole)
}

fn entries(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Ids of the packages that the roots need, except for builds and tests.
fn linked(metadata: &Value) -> BTreeSet<&str> {
    let nodes: BTreeMap<&str, &Value> =
        entries(&metadata["resolve"]["nodes"]).map(|node| (text(&node["id"]), node)).collect();
    let roots = entries(&metadata["packages"]).filter(|package| ROOTS.contains(&text(&package["name"])));
    let mut open: Vec<&str> = roots.map(|package| text(&package["id"])).collect();
    let mut linked = BTreeSet::new();
    while let Some(id) = open.pop() {
        let Some(node) = nodes.get(id).filter(|_| linked.insert(id)) else { continue };
        let normal =
            |dependency: &&Value| entries(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
        open.extend(entries(&node["deps"]).filter(normal).map(|dependency| text(&dependency["pkg"])));
    }
    linked
}

/// The texts of licences in a folder, without spaces at ends of lines.
fn in_folder(folder: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if FILES.iter().any(|beginning| name.starts_with(beginning)) && !name.ends_with(".RS") {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.trim_matches(['\n', '\r']).lines().map(str::trim_end).collect();
            found.insert(lines.join("\n"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dependencies_of_builds_and_tests_are_not_linked() {
        let kind = |kind: Value| json!([{ "kind": kind }]);
        let metadata = json!({
            "packages": [{ "name": "locality-bpf", "id": "root" }, { "name": "other", "id": "other" }],
            "resolve": { "nodes": [
                { "id": "root", "deps": [
                    { "pkg": "a", "dep_kinds": kind(Value::Null) },
                    { "pkg": "tool", "dep_kinds": kind("build".into()) },
                    { "pkg": "test", "dep_kinds": kind("dev".into()) },
                ] },
                { "id": "a", "deps": [{ "pkg": "b", "dep_kinds": kind(Value::Null) }] },
                { "id": "b", "deps": [{ "pkg": "a", "dep_kinds": kind(Value::Null) }] },
                { "id": "tool", "deps": [] }, { "id": "test", "deps": [] }, { "id": "other", "deps": [] },
            ] }
        });
        assert_eq!(linked(&metadata), BTreeSet::from(["root", "a", "b"]));
    }
}
