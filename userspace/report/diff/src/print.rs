//! A comparison as text, a page of HTML, Markdown, JUnit's XML, SARIF and annotations of GitHub.
//!
//! JSON is the value itself (`locality_report::json::page`). All rows of the whole
//! run are printed; of parts the certain rows, then the largest, [`PARTS`] in all.

mod html;
mod junit;
mod sarif;

use std::fmt::Write as _;

use locality_report::schema::{
    Interval, Number,
    diff::{Diff, Part, Row, Verdict},
};
use locality_units::print::bytes;

pub use html::html;
pub use junit::junit;
pub use sarif::sarif;

/// Rows of parts, and of parts of one side only.
const PARTS: usize = 15;
const LONE: usize = 5;

/// Name of a verdict.
pub fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Improved => "improved",
        Verdict::Regressed => "regressed",
        Verdict::Unchanged => "unchanged",
        Verdict::Inconclusive => "inconclusive",
    }
}

/// Text within an element, without markup. `instead`: replacement of other characters.
fn markup(text: &str, instead: impl Fn(char) -> Option<&'static str>) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let common = match c {
            '<' => Some("&lt;"),
            '>' => Some("&gt;"),
            '&' => Some("&amp;"),
            '"' => Some("&quot;"),
            _ => None,
        };
        match common.or_else(|| instead(c)) {
            Some(other) => out.push_str(other),
            None => out.push(c),
        }
    }
    out
}

/// Rows of the whole run.
fn whole(diff: &Diff) -> impl Iterator<Item = &Row> {
    diff.rows.iter().filter(|row| row.part.is_none())
}

/// Printed rows of parts.
fn parts(diff: &Diff) -> Vec<(&Part, &Row)> {
    let rows = diff.rows.iter().filter_map(|row| Some((row.part.as_ref()?, row)));
    rows.take(PARTS).collect()
}

fn real(of: Number) -> f64 {
    of.real().unwrap_or(0.0)
}

/// A number of a quantity.
fn number(value: f64, row: &Row) -> String {
    if row.unit == "bytes" {
        let text = bytes(value.abs() as u64);
        return if value < 0.0 { format!("−{text}") } else { text };
    }
    let text = match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 9.95 => format!("{small:.2}"),
        large if large < 99.5 => format!("{large:.1}"),
        large => format!("{large:.0}"),
    };
    if value < 0.0 { format!("−{text}") } else { text }
}

fn signed(value: f64, row: &Row) -> String {
    let text = number(value, row);
    if value > 0.0 { format!("+{text}") } else { text }
}

fn interval(ends: &Interval, row: &Row, sign: bool) -> String {
    let [low, high] = ends.map(real);
    if low == high {
        return String::new();
    }
    let one = |value: f64| if sign { signed(value, row) } else { number(value, row) };
    format!(" [{} to {}]", one(low), one(high))
}

/// "+12.0 [+3 to +20] (+11 %)".
fn change(row: &Row) -> String {
    let (base, value) = (real(row.base), real(row.difference.value));
    let percent =
        if base > 0.0 && value != 0.0 { format!(" ({:+.0} %)", value / base * 100.0) } else { String::new() };
    let percent = percent.replace('-', "−");
    format!("{}{}{percent}", signed(value, row), interval(&row.difference.ci95, row, true))
}

fn label(row: &Row) -> String {
    match row.unit.as_str() {
        "bytes" => row.quantity.clone(),
        unit => format!("{} {unit}", row.quantity),
    }
}

/// The text for people.
pub fn text(diff: &Diff) -> String {
    let mut page = String::new();
    // Cannot fail: a string takes all text.
    let _ = text_into(diff, &mut page);
    // A report in JSON comes from anywhere; a terminal obeys control characters.
    page.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

fn text_into(diff: &Diff, page: &mut String) -> std::fmt::Result {
    for (name, side) in [("base", &diff.base), ("new ", &diff.new)] {
        let samples = side.samples.map_or(String::new(), |samples| format!(", {samples} samples"));
        writeln!(
            page,
            "{name} {} · {} · {:.1} s{samples}",
            side.files.join(", "),
            side.command,
            real(side.wall_s)
        )?;
    }
    if diff.environment.is_empty() {
        writeln!(page, "     same machine, options and program")?;
    }
    for row in &diff.environment {
        writeln!(page, "     differs: {}: {} → {}", row.what, row.base, row.new)?;
    }
    writeln!(page, "\n{:<34}{:>22} {:>22}   difference (95 %)", "", "base", "new")?;
    for row in whole(diff) {
        let side = |value: Number, ends: &Interval| {
            format!("{}{}", number(real(value), row), interval(ends, row, false).replace(" to ", "–"))
        };
        writeln!(
            page,
            "{:<34}{:>22} {:>22}   {:<13} {}",
            label(row),
            side(row.base, &row.base_ci95),
            side(row.new, &row.new_ci95),
            word(row.verdict),
            change(row)
        )?;
    }
    let parts = parts(diff);
    if !parts.is_empty() {
        writeln!(page, "\nParts of the run")?;
    }
    for (part, row) in parts {
        writeln!(page, "  {} {}", part.kind, part.name)?;
        writeln!(
            page,
            "    {:<30}{:>22} {:>22}   {:<13} {}",
            label(row),
            number(real(row.base), row),
            number(real(row.new), row),
            word(row.verdict),
            change(row)
        )?;
    }
    for (title, rows) in
        [("Only in the base", &diff.only_in_base), ("Only in the new side", &diff.only_in_new)]
    {
        if !rows.is_empty() {
            writeln!(page, "\n{title}")?;
        }
        for row in rows.iter().take(LONE) {
            writeln!(page, "  {} {}: {} {:.1}", row.part.kind, row.part.name, row.quantity, real(row.value))?;
        }
        if rows.len() > LONE {
            writeln!(page, "  and {} more", rows.len() - LONE)?;
        }
    }
    writeln!(page)?;
    for notice in &diff.notices {
        writeln!(page, "{notice}")?;
    }
    writeln!(page, "{}", diff.verdict)
}

/// Text for a table of Markdown, shown literally.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '~' | '@' | '#' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A comment of a pull request.
pub fn markdown(diff: &Diff) -> String {
    let mark = match (diff.failed, diff.inconclusive) {
        (true, _) => "❌",
        (false, true) => "❔",
        _ => "✅",
    };
    let mut page = format!("### {mark} Data locality: {}\n\n", cell(&diff.verdict));
    page += "| | base | new | difference (95 %) | |\n|---|--:|--:|--:|---|\n";
    let line = |name: String, row: &Row| {
        format!(
            "| {name} | {} | {} | {} | {} |\n",
            number(real(row.base), row),
            number(real(row.new), row),
            change(row),
            word(row.verdict)
        )
    };
    for row in whole(diff) {
        page += &line(cell(&label(row)), row);
    }
    let parts = parts(diff);
    if !parts.is_empty() {
        page += "\n<details><summary>Parts of the run</summary>\n\n| | base | new | difference (95 %) | |\n|---|--:|--:|--:|---|\n";
        for (part, row) in parts {
            page += &line(cell(&format!("{} {}: {}", part.kind, part.name, label(row))), row);
        }
        page += "\n</details>\n";
    }
    for (title, rows) in
        [("Only in the base", &diff.only_in_base), ("Only in the new side", &diff.only_in_new)]
    {
        if !rows.is_empty() {
            let names: Vec<String> = rows.iter().take(LONE).map(|row| cell(&row.part.name)).collect();
            let _ = write!(page, "\n{title}: {}\n", names.join(", "));
        }
    }
    for row in &diff.environment {
        let _ = write!(page, "\n⚠️ {} differs: {} → {}\n", cell(&row.what), cell(&row.base), cell(&row.new));
    }
    for notice in &diff.notices {
        let _ = write!(page, "\n{}\n", cell(notice));
    }
    page
}

/// Rows for a review: regressed rows of the whole run, then of parts with a line of source.
fn regressions(diff: &Diff) -> impl Iterator<Item = &Row> {
    diff.rows.iter().filter(|row| row.verdict == Verdict::Regressed)
}

/// "misses:LLC per 1,000 line touches of f a.c:3: 100 → 130, +30 …".
fn sentence(row: &Row) -> String {
    let of = row.part.as_ref().map(|part| format!(" of {} {}", part.kind, part.name)).unwrap_or_default();
    let (base, new) = (number(real(row.base), row), number(real(row.new), row));
    format!("{}{of}: {base} → {new}, {}", label(row), change(row))
}

/// Annotations of a run of GitHub's: `::error file=…,line=…::text`.
///
/// Format: "Workflow commands for GitHub Actions"; `%`, line breaks, and in properties `:` and `,`
/// are escaped.
pub fn github(diff: &Diff) -> String {
    let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let level = |failed: bool| if failed { "error" } else { "warning" };
    let mut page = String::new();
    for condition in &diff.conditions {
        if condition.failed || condition.inconclusive {
            let may = if condition.failed { "holds" } else { "may hold: trace longer" };
            let text = format!("--fail-on {} {may}", condition.condition);
            let _ = writeln!(page, "::{} title=locality-bpf::{}", level(condition.failed), data(&text));
        }
    }
    for row in regressions(diff) {
        let place = row.part.as_ref().and_then(|part| part.place.as_ref());
        let file = place.and_then(|place| place.file.as_deref());
        let mut at = "title=locality-bpf".to_owned();
        if let Some(file) = file {
            let line = place.and_then(|place| place.line).unwrap_or(1);
            let _ = write!(at, ",file={},line={line}", property(file));
        }
        let failed = diff.failed && row.part.is_none() && diff.conditions.is_empty();
        let _ = writeln!(page, "::{} {at}::{}", level(failed), data(&sentence(row)));
    }
    let _ = writeln!(page, "::notice title=locality-bpf::{}", data(&diff.verdict));
    page
}
