//! Reports as input from outside.

use serde::Deserialize;

use super::{Report, SCHEMA, SCHEMA_1, tables};

/// Why bytes are no report.
#[derive(Debug)]
pub enum Unreadable {
    /// No JSON, or truncated JSON.
    NotJson(serde_json::Error),
    /// JSON, but no report of a known schema; the schema named in the JSON.
    Schema(Option<String>),
    /// A part does not match the schema.
    Damaged {
        /// "line 3 column 7".
        at: String,
        /// "invalid type: …".
        what: String,
    },
}

/// Reads a report of either schema, with the frames of each call path beside it.
///
/// # Errors
/// A defect of the input.
pub fn read(bytes: &[u8]) -> Result<Report, Unreadable> {
    /// As much as every JSON object has.
    #[derive(Deserialize)]
    struct Head {
        schema: Option<serde_json::Value>,
    }
    let known = |schema: &str| [SCHEMA, SCHEMA_1].contains(&schema);
    match serde_json::from_slice::<Report>(bytes) {
        Ok(mut report) if report.schema == SCHEMA => match tables::unfold(&mut report) {
            Ok(()) => Ok(report),
            Err(table) => {
                let what = "a call path leads nowhere".to_owned();
                Err(Unreadable::Damaged { at: table.to_owned(), what })
            }
        },
        Ok(report) if known(&report.schema) => Ok(report),
        Err(error) if !error.is_data() => Err(Unreadable::NotJson(error)),
        result => {
            // A list reads as an object's values in order.
            let is_object = bytes.trim_ascii_start().starts_with(b"{");
            let head = is_object.then(|| serde_json::from_slice::<Head>(bytes).ok()).flatten();
            let schema = head.and_then(|head| head.schema);
            let schema = schema.map(|schema| schema.as_str().unwrap_or_default().to_owned());
            match (schema, result) {
                (Some(schema), Err(error)) if known(&schema) => Err(damaged(&error)),
                (schema, _) => Err(Unreadable::Schema(schema)),
            }
        }
    }
}

fn damaged(error: &serde_json::Error) -> Unreadable {
    let at = format!("line {} column {}", error.line(), error.column());
    let what = error.to_string();
    let what = what.strip_suffix(&format!(" at {at}")).unwrap_or(&what).to_owned();
    Unreadable::Damaged { at, what }
}
