//! One self-contained page without scripts: tables of the rows.
//!
//! Names come from the traced programs: each is escaped,
//! and the page's policy allows only the page's style.

use std::fmt::Write as _;

use locality_report::schema::diff::{Diff, Lone, Row, Side};

use super::{change, label, markup, number, parts, real, whole, word};

/// Light and dark, at any width, on paper.
const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;width:100%;margin:1rem 0}th,td{padding:.35rem .6rem;text-align:left;\
border-bottom:1px solid #8886;overflow-wrap:anywhere}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
.v{font-weight:600;white-space:nowrap}.bad::before{content:\"\\2191 \"}.good::before{content:\"\\2193 \"}\
.verdict{font-size:1.15rem;border-left:.4rem solid #8888;padding:.4rem 1rem}.failed{border-color:#c33}\
.fine{border-color:#393}";

/// The page.
pub fn html(diff: &Diff) -> String {
    let mut page = String::new();
    // Cannot fail: a string takes all text.
    let _ = write(diff, &mut page);
    page
}

fn write(diff: &Diff, page: &mut String) -> std::fmt::Result {
    let state = match (diff.failed, diff.inconclusive) {
        (true, _) => "failed",
        (false, true) => "unsure",
        _ => "fine",
    };
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Data locality: base and new</title><style>{STYLE}</style></head><body>\n<h1>Data locality: base and new</h1>\n\
         <p class=\"verdict {state}\">{}</p>\n",
        escaped(&diff.verdict)
    )?;
    writeln!(
        page,
        "<table><thead><tr><th>Side</th><th>Files</th><th>Command</th><th class=\"n\">Seconds</th><th class=\"n\">Samples</th></tr></thead><tbody>"
    )?;
    for (name, side) in [("base", &diff.base), ("new", &diff.new)] {
        let Side { command, files, samples, wall_s } = side;
        writeln!(
            page,
            "<tr><th>{name}</th><td>{}</td><td>{}</td><td class=\"n\">{:.1}</td><td class=\"n\">{}</td></tr>",
            escaped(&files.join(", ")),
            escaped(command),
            real(*wall_s),
            samples.map_or_else(|| "all accesses".to_owned(), |samples| samples.to_string())
        )?;
    }
    writeln!(page, "</tbody></table>")?;
    for row in &diff.environment {
        let (what, base, new) = (escaped(&row.what), escaped(&row.base), escaped(&row.new));
        writeln!(page, "<p><strong>Differs:</strong> {what}: {base} → {new}</p>")?;
    }
    writeln!(page, "<h2>The whole run</h2>")?;
    table(page, whole(diff).map(|row| (label(row), row)))?;
    let parts = parts(diff);
    if !parts.is_empty() {
        writeln!(page, "<h2>Parts of the run</h2>")?;
        let named = parts
            .into_iter()
            .map(|(part, row)| (format!("{} {}: {}", part.kind, part.name, label(row)), row));
        table(page, named)?;
    }
    for (title, rows) in
        [("Only in the base", &diff.only_in_base), ("Only in the new side", &diff.only_in_new)]
    {
        lone(page, title, rows)?;
    }
    for notice in &diff.notices {
        writeln!(page, "<p>{}</p>", escaped(notice))?;
    }
    writeln!(page, "</body></html>")
}

fn table<'a>(page: &mut String, rows: impl Iterator<Item = (String, &'a Row)>) -> std::fmt::Result {
    writeln!(
        page,
        "<table><thead><tr><th>Quantity</th><th class=\"n\">Base</th><th class=\"n\">New</th><th>Difference (95 %)</th><th>Verdict</th></tr></thead><tbody>"
    )?;
    for (name, row) in rows {
        let arrow = match word(row.verdict) {
            "regressed" => " bad",
            "improved" => " good",
            _ => "",
        };
        writeln!(
            page,
            "<tr><th>{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"v{arrow}\">{}</td></tr>",
            escaped(&name),
            number(real(row.base), row),
            number(real(row.new), row),
            change(row),
            word(row.verdict)
        )?;
    }
    writeln!(page, "</tbody></table>")
}

fn lone(page: &mut String, title: &str, rows: &[Lone]) -> std::fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>{title}</h2><ul>")?;
    for row in rows {
        let name = escaped(&row.part.name);
        writeln!(page, "<li>{} {name}: {} {:.1}</li>", row.part.kind, row.quantity, real(row.value))?;
    }
    writeln!(page, "</ul>")
}

fn escaped(text: &str) -> String {
    markup(text, |c| match c {
        '\'' => Some("&#39;"),
        c if c.is_control() => Some("?"),
        _ => None,
    })
}
