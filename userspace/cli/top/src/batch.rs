//! The table without a terminal: text, or a line of JSON.

use locality_rollup::FEWEST;
use locality_units::print::duration;

use crate::rows::{LEAST, columns, fitting, padded, tame};
use crate::view::{SPANS, View};

/// Columns of a text.
const WIDTH: usize = 200;

/// The table as text, with a line of who traces, and an empty line at the end.
pub fn text(view: &View) -> String {
    let span = SPANS.get(view.span).map_or("", |(_, _, name)| name);
    let mut text =
        format!("{}, last {span}: {} traced", tame(&view.snapshot.state), duration(view.seconds * 1e9));
    if let Some(cost) = view.snapshot.cost {
        text.push_str(&format!(", cost {:.2} % of their CPU time", cost * 100.0));
    }
    text.push('\n');
    let shown = fitting(&columns(&view.snapshot.caches), WIDTH);
    let mut push = |cells: Vec<String>| {
        let padded =
            cells.iter().zip(&shown).map(|(cell, (column, width))| padded(cell, *width, column.is_left()));
        text.push_str(padded.collect::<Vec<_>>().join(" ").trim_end());
        text.push('\n');
    };
    push(shown.iter().map(|(column, _)| column.title()).collect());
    for row in &view.rows {
        push(shown.iter().map(|(column, _)| column.cell(row, view.seconds).text).collect());
    }
    text.push_str(&match view.has_rows() {
        true => format!("?: fewer than {FEWEST} windows; -: fewer than {LEAST}\n\n"),
        false => "no samples yet\n\n".to_owned(),
    });
    text
}

/// The table as a line of JSON, after the schema "locality-top/1": rows as in "locality-query/1".
pub fn json(view: &View) -> String {
    let mut rows = view.rows.clone();
    for row in rows.iter_mut().filter(|row| !row.is_known()) {
        (row.curve, row.footprint_bytes) = (Vec::new(), None);
    }
    let page = serde_json::json!({
        "schema": "locality-top/1",
        "unix_s": view.snapshot.now_ns as f64 / 1e9,
        "traced_s": view.seconds,
        "cost": view.snapshot.cost,
        "groups": rows,
    });
    format!("{page}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;

    #[test]
    fn a_text_has_the_table_and_its_marks() {
        let text = text(&view());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "agent 7, last 5 min: 20 s traced, cost 0.83 % of their CPU time");
        assert!(lines[1].starts_with("group ") && lines[1].contains("L3 misses"), "{text}");
        assert!(lines[2].starts_with("db ") && lines[2].contains("10.0 % [8–12]?"), "{text}");
        assert!(lines[4].starts_with("cron") && lines[5].starts_with("?: fewer than 30"), "{text}");
        assert!(self::text(&View::new("", false)).contains("no samples yet"));
    }

    #[test]
    fn json_has_no_estimate_of_few_windows() {
        let page: serde_json::Value = serde_json::from_str(&json(&view())).unwrap();
        assert_eq!(page["schema"], "locality-top/1");
        assert_eq!(page["groups"][0]["group"], "db");
        assert_eq!(page["groups"][0]["curve"], serde_json::json!([]));
        assert!(page["groups"][1]["curve"][0]["low"].as_f64().unwrap() > 0.0);
    }
}
