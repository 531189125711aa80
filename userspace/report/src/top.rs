//! Tables of a JSON report cut to the rows that were asked for (`--top`), and how many rows were left out.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Tables, heaviest row first.
const TABLES: &[&str] = &[
    "/pairs",
    "/objects",
    "/objects_summary/conflicts",
    "/not_reused/by_line",
    "/hot/by_function",
    "/hot/by_line",
    "/cache_use/by_loading_line",
    "/cache_use/by_function",
    "/cache_use/by_object",
    "/against/rows",
    "/against/variables",
];

/// Leaves `top` rows of each table, of tables by cache level so many for each level.
/// `rows_left_out {table: rows}` counts the others.
pub fn cut(report: &mut Value, top: usize) {
    let mut left_out = BTreeMap::new();
    for table in TABLES {
        let Some(rows) = report.pointer_mut(table).and_then(Value::as_array_mut) else { continue };
        let before = rows.len();
        let mut of_level: BTreeMap<String, usize> = BTreeMap::new();
        rows.retain(|row| {
            let level =
                if table.starts_with("/cache_use") { row["level"].to_string() } else { String::new() };
            let n = of_level.entry(level).or_default();
            *n += 1;
            *n <= top
        });
        if rows.len() < before {
            left_out.insert(table.trim_start_matches('/').replace('/', "."), before - rows.len());
        }
    }
    if !left_out.is_empty() && report.is_object() {
        report["rows_left_out"] = json!(left_out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_has_the_rows_asked_for_and_counts_the_others() {
        let row = |level: &str, n: u32| json!({ "level": level, "n": n });
        let mut report = json!({
            "pairs": [1, 2, 3, 4],
            "objects": [1],
            "hot": { "by_line": [1, 2, 3] },
            "cache_use": {
                "by_function": [row("L1", 1), row("L1", 2), row("L1", 3), row("L2", 1), row("L2", 2)],
                "by_object": null,
            },
        });
        let whole = report.clone();
        cut(&mut report, 4);
        assert_eq!(report, whole);
        cut(&mut report, 2);
        assert_eq!(report["pairs"], json!([1, 2]));
        assert_eq!(report["objects"], json!([1]));
        let levels = report["cache_use"]["by_function"].as_array().unwrap();
        assert_eq!(levels.iter().map(|row| row["n"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 1, 2]);
        assert_eq!(
            report["rows_left_out"],
            json!({ "pairs": 2, "hot.by_line": 1, "cache_use.by_function": 1 })
        );
    }
}
