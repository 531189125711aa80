//! SARIF 2.1.0 (OASIS, 2020): a result for each regressed row, with the line of source if known.

use locality_report::schema::diff::{Diff, Row, Verdict};
use serde::Serialize;

use super::{regressions, sentence};

#[derive(Serialize)]
struct Log {
    #[serde(rename = "$schema")]
    schema: &'static str,
    version: &'static str,
    runs: [Run; 1],
}

#[derive(Serialize)]
struct Run {
    tool: Tool,
    invocations: [Invocation; 1],
    results: Vec<SarifResult>,
}

#[derive(Serialize)]
struct Tool {
    driver: Driver,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Driver {
    name: &'static str,
    semantic_version: &'static str,
    rules: Vec<Rule>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    id: &'static str,
    short_description: Message,
}

#[derive(Serialize)]
struct Message {
    text: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Invocation {
    execution_successful: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SarifResult {
    rule_id: &'static str,
    level: &'static str,
    message: Message,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    locations: Vec<Location>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    physical_location: Physical,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Physical {
    artifact_location: Artifact,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<Region>,
}

#[derive(Serialize)]
struct Artifact {
    uri: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Region {
    start_line: u32,
}

/// A file as a reference of a URI: characters other
/// than RFC 3986's unreserved ones and `/` are escaped.
fn uri(file: &str) -> String {
    let mut out = if file.starts_with('/') { "file://".to_owned() } else { String::new() };
    for byte in file.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' => {
                out.push(byte as char)
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

const RULES: [(&str, &str); 2] = [
    ("locality/regression", "A quantity of the whole run is certainly worse than before."),
    ("locality/part", "A part of the run is certainly worse than before."),
];

/// The log.
pub fn sarif(diff: &Diff) -> String {
    let result = |row: &Row| {
        let part = row.part.as_ref();
        let place = part.and_then(|part| part.place.as_ref());
        let location = place.and_then(|place| {
            let uri = uri(place.file.as_ref()?);
            let region = place.line.map(|start_line| Region { start_line });
            let artifact_location = Artifact { uri };
            Some(Location { physical_location: Physical { artifact_location, region } })
        });
        SarifResult {
            rule_id: RULES[usize::from(part.is_some())].0,
            level: if part.is_none() && diff.failed { "error" } else { "warning" },
            message: Message { text: sentence(row) },
            locations: location.into_iter().collect(),
        }
    };
    let mut results: Vec<SarifResult> = regressions(diff).map(result).collect();
    let is_said = diff.rows.iter().any(|row| row.part.is_none() && row.verdict == Verdict::Regressed);
    if diff.failed && !is_said {
        results.push(SarifResult {
            rule_id: RULES[0].0,
            level: "error",
            message: Message { text: diff.verdict.clone() },
            locations: Vec::new(),
        });
    }
    let rules = RULES.map(|(id, text)| Rule { id, short_description: Message { text: text.to_owned() } });
    let driver =
        Driver { name: "locality-bpf", semantic_version: env!("CARGO_PKG_VERSION"), rules: rules.into() };
    locality_report::json::page(&Log {
        schema: "https://json.schemastore.org/sarif-2.1.0.json",
        version: "2.1.0",
        runs: [Run {
            tool: Tool { driver },
            invocations: [Invocation { execution_successful: true }],
            results,
        }],
    })
}
