//! JSON of speedscope: <https://www.speedscope.app/file-format-schema.json>. Each metric is a
//! profile of its own.

use std::collections::HashMap;

use locality_report::schema::Report;
use serde::Serialize;

use crate::table::Table;

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: &'a str,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    shared: Shared<'a>,
    profiles: Vec<Sampled>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    line: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(line: &u32) -> bool {
    *line == 0
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<u32>>,
    weights: Vec<u64>,
}

/// The file; `chosen` is the metric that is shown first.
pub fn print(table: &Table, chosen: usize, report: &Report) -> Vec<u8> {
    let frames = table.frames.iter().map(|frame| Frame {
        name: if frame.name.is_empty() { "[unknown]" } else { &frame.name },
        file: &frame.file,
        line: frame.line,
    });
    let profile = |(index, column): (usize, &crate::table::Column)| {
        let mut weights: HashMap<&[u32], u64> = HashMap::new();
        let mut order: Vec<&[u32]> = Vec::new();
        for row in &table.rows {
            let value = row.values.get(index).copied().unwrap_or(0);
            if value > 0 {
                let sum = weights.entry(&row.path).or_insert_with(|| {
                    order.push(&row.path);
                    0
                });
                *sum += value;
            }
        }
        Sampled {
            kind: "sampled",
            name: column.metric.to_string(),
            unit: match column.unit {
                "bytes" => "bytes",
                "nanoseconds" => "nanoseconds",
                _ => "none",
            },
            start_value: 0,
            end_value: column.total,
            weights: order.iter().filter_map(|path| weights.get(path)).copied().collect(),
            samples: order.into_iter().map(<[u32]>::to_vec).collect(),
        }
    };
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: format!("locality-bpf@{}", env!("CARGO_PKG_VERSION")),
        name: &report.run.command,
        active: chosen,
        shared: Shared { frames: frames.collect() },
        profiles: table.columns.iter().enumerate().map(profile).collect(),
    };
    // Cannot fail: keys are strings.
    serde_json::to_vec(&file).unwrap_or_default()
}
