//! docs/reference/json.md, written from the types: whatever a field's comment says is the reference.
//!
//! `cargo xtask reference` writes the page anew; the test fails where page and types differ.

use std::{collections::VecDeque, fmt::Write as _, path::Path};

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value};

use crate::{Report, SCHEMA, comparison::Comparison, diff::Diff, object_list::ObjectList};

/// The page, from this package's folder.
const PAGE: &str = "../../../docs/reference/json.md";
/// Set to write the page.
const WRITE: &str = "LOCALITY_WRITE_REFERENCE";

const HEAD: &str = "\
# The JSON reports

<!-- Written by `cargo xtask reference` from userspace/report/schema. -->

Fields are added, never changed in meaning; what is not known is absent or `null`, never made up. An
estimate is an object `{value, ci95, n}`, or a number with its interval beside it, in a field whose
name ends in `ci95`: the interval covers 95 %, `n` is what was seen. \"Live\" and \"Exact\" mark fields
that only reports of that `run.mode` have. `T?` may be `null` or absent; `{T}` is an object with a `T`
under each key; `[T]` is a list.
";

const DOCTOR: &str = "
## `locality-bpf doctor --json`: `locality-doctor/1`

`possible` says whether a trace can be made. `machine` and, with `-p`, `target.checks` are lists of
`{id, name, state, found, consequence?, mend?}` with `state` one of `ok`, `degraded`, `missing`,
`unknown`; `mend` is a command. `target` also has `pid`, `command`, and `notes`: what a trace of the
process makes visible.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    let report = "`locality-bpf … --format json`";
    let seen = &mut Vec::new();
    page += &section::<Report>(seen, &format!("{report}: `{}`", SCHEMA));
    page += &section::<ObjectList>(seen, "`locality-bpf objects FILE --format json`: `locality-objects/1`");
    page += &section::<Comparison>(seen, "`locality-bpf compare A B --format json`: `locality-compare/1`");
    page += &section::<Diff>(seen, "`locality-bpf diff BASE NEW --format json`: `locality-diff/1`");
    page + DOCTOR
}

/// A heading, the type's fields, and those of the types in it, each once.
fn section<T: JsonSchema>(seen: &mut Vec<String>, title: &str) -> String {
    let root = SchemaGenerator::new(SchemaSettings::draft2020_12()).into_root_schema_for::<T>();
    let root = root.as_value();
    let nothing = Map::new();
    let types = root["$defs"].as_object().unwrap_or(&nothing);
    let mut text = format!("\n## {title}\n");
    let mut queue = VecDeque::from([(String::new(), root)]);
    while let Some((name, schema)) = queue.pop_front() {
        if !name.is_empty() {
            let _ = write!(text, "\n### {name}\n");
        }
        text += &wrapped(&described(schema));
        let fields = schema["properties"].as_object();
        if fields.is_some() {
            text += "\n| Field | Type | Meaning |\n|---|---|---|\n";
        }
        for (field, of) in fields.into_iter().flatten() {
            let _ = writeln!(text, "| `{field}` | {} | {} |", type_of(of), described(of).replace('|', "\\|"));
        }
        text += if choices(schema).next().is_some() { "\n" } else { "" };
        for choice in choices(schema) {
            let what = choice["const"].as_str().map_or_else(|| type_of(choice), |name| format!("`{name}`"));
            let _ = writeln!(text, "- {what}: {}", described(choice));
        }
        for name in references(schema) {
            if let Some(found) = types.get(&name).filter(|_| !seen.contains(&name)) {
                seen.push(name.clone());
                queue.push_back((name, found));
            }
        }
    }
    text
}

/// A paragraph after an empty line.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        let starts = column == 0 || column + 1 + width > 100;
        lines += if starts { "\n" } else { " " };
        lines += word;
        column = if starts { width } else { column + 1 + width };
    }
    format!("\n{}\n", lines.trim_start_matches('\n'))
}

/// Its comment in one line.
fn described(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    let text = text.replace("[`", "`").replace("`]", "`");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn choices(schema: &Value) -> impl Iterator<Item = &Value> {
    ["oneOf", "anyOf"].into_iter().flat_map(|key| schema[key].as_array().into_iter().flatten())
}

fn type_of(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    let names: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => {
            let of: Vec<String> = choices(schema).map(type_of).collect();
            let known: Vec<&str> = of.iter().map(String::as_str).filter(|name| *name != "null").collect();
            return known.join(" or ") + if known.len() < of.len() { "?" } else { "" };
        }
    };
    let nullable = if names.len() > 1 && names.contains(&"null") { "?" } else { "" };
    let name = match names.iter().find(|name| names.len() == 1 || **name != "null") {
        Some(&"array") => match (schema["items"].is_object(), &schema["prefixItems"][0]) {
            (_, first @ Value::Object(_)) => format!("[{0}, {0}]", type_of(first)),
            (true, _) if schema["maxItems"] == 2 => format!("[{0}, {0}]", type_of(&schema["items"])),
            _ => format!("[{}]", type_of(&schema["items"])),
        },
        Some(&"object") => format!("{{{}}}", type_of(&schema["additionalProperties"])),
        Some(name) => (*name).to_owned(),
        None => String::new(),
    };
    name + nullable
}

/// Names of the types in it.
fn references(schema: &Value) -> Vec<String> {
    match schema {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
            let inner =
                fields.iter().filter(|(key, _)| *key != "$defs").flat_map(|(_, value)| references(value));
            own.map(str::to_owned).into_iter().chain(inner).collect()
        }
        Value::Array(values) => values.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_page_says_what_the_types_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = page();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = written.lines().zip(page.lines()).find(|(written, types)| written != types);
    assert!(written == page, "docs/reference/json.md differs: run `cargo xtask reference` ({differs:?})");
}

/// A field without a comment is a field without a reference.
#[test]
fn every_field_says_what_it_means() {
    let page = page();
    let silent: Vec<&str> =
        page.lines().filter(|line| line.ends_with("|  |") || line.ends_with("| |")).collect();
    assert!(
        silent.is_empty() && page.lines().filter(|line| line.starts_with("| `")).count() > 300,
        "{silent:?}"
    );
}
