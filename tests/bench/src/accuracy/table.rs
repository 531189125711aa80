//! The tables for docs/journal/2026-11.md: one per quantity, a row per program, then median, second-worst
//! and worst of each group.

use super::{
    corpus::Group,
    score::{Better, Figures, summary},
};

/// A program's figures, of all recipes, each name starting with the recipe's: `rdx/time.s.8`.
pub struct Row {
    /// The program.
    pub name: &'static str,
    /// Origin of the code.
    pub group: Group,
    /// Figures.
    pub figures: Figures,
}

/// A column: heading, figure, and the better direction;
/// `None` for a mere fact, which has no summary.
struct Column {
    head: String,
    figure: String,
    better: Option<Better>,
    digits: usize,
}

/// A table: title and columns.
struct Table {
    title: String,
    columns: Vec<Column>,
}

/// All tables with figures, as markdown.
pub fn markdown(rows: &[Row], recipes: &[&str]) -> String {
    let mut page = String::new();
    for table in tables(recipes) {
        let columns: Vec<&Column> =
            table.columns.iter().filter(|column| !values(rows, column, None).is_empty()).collect();
        if columns.is_empty() {
            continue;
        }
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let heads: Vec<String> = std::iter::once("program".to_owned())
            .chain(columns.iter().map(|column| column.head.clone()))
            .collect();
        page += &format!("\n{}\n\n{}|{}\n", table.title, line(&heads), "---|".repeat(heads.len()));
        for row in rows {
            let cell = |column: &&Column| {
                row.figures
                    .get(&column.figure)
                    .map_or("–".to_owned(), |value| number(*value, column.digits))
            };
            page += &line(
                &std::iter::once(row.name.to_owned()).chain(columns.iter().map(cell)).collect::<Vec<_>>(),
            );
        }
        if columns.iter().any(|column| column.better.is_some()) {
            for (group, name) in [(Group::Own, "own kernels"), (Group::Real, "real programs")] {
                if rows.iter().any(|row| row.group == group) {
                    let n = rows.iter().filter(|row| row.group == group).count();
                    let head = format!("**{name} ({n}): median / second-worst / worst**");
                    let cells = columns.iter().map(|column| summarised(rows, column, group));
                    page += &line(&std::iter::once(head).chain(cells).collect::<Vec<_>>());
                }
            }
        }
    }
    page
}

fn summarised(rows: &[Row], column: &Column, group: Group) -> String {
    let found = column.better.and_then(|better| summary(&values(rows, column, Some(group)), better));
    found.map_or(String::new(), |three| three.map(|value| number(value, column.digits)).join(" / "))
}

fn values(rows: &[Row], column: &Column, group: Option<Group>) -> Vec<f64> {
    let wanted = rows.iter().filter(|row| group.is_none_or(|group| row.group == group));
    wanted.filter_map(|row| row.figures.get(&column.figure).copied()).collect()
}

/// As a cell.
pub fn number(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    // In the form of the other tables: .97, not 0.97.
    if digits > 1 { text.strip_prefix('0').map_or(text.clone(), str::to_owned) } else { text }
}

fn tables(recipes: &[&str]) -> Vec<Table> {
    let column = |recipe: &str, head: &str, figure: &str, better, digits| Column {
        head: format!("{recipe}: {head}"),
        figure: format!("{recipe}/{figure}"),
        better,
        digits,
    };
    let mut tables = Vec::new();
    for granule in [8, 64] {
        for (name, what) in [("time", "Time distances"), ("stack", "Stack distances")] {
            let parts = [("S", "s"), ("Ŝ", "s_hat"), ("Slog2", "s_log2"), ("Slong", "s_long")];
            let columns = recipes.iter().flat_map(|recipe| {
                let part = |(head, part): (&str, &str)| {
                    column(recipe, head, &format!("{name}.{part}.{granule}"), Some(Better::High), 3)
                };
                parts.map(part)
            });
            tables.push(Table { title: format!("{what}, {granule} bytes"), columns: columns.collect() });
        }
        let sizes = ["mean", "worst", "L1", "L2", "L3", "32K", "1M", "32M"];
        let columns = recipes.iter().flat_map(|recipe| {
            let at = |size: &str| {
                let head = match size {
                    "mean" => "mean over the curve",
                    other => other,
                };
                column(recipe, head, &format!("miss.{size}.{granule}"), Some(Better::Low), 4)
            };
            sizes.map(at)
        });
        tables.push(Table {
            title: format!("Miss ratio, absolute error, {granule} bytes"),
            columns: columns.collect(),
        });
    }
    let covered = recipes.iter().flat_map(|recipe| {
        [8, 64].into_iter().flat_map(move |granule| {
            ["time", "stack", "miss"].map(|name| {
                let figure = format!("{name}.covered.{granule}");
                column(recipe, &format!("{name}, {granule} bytes"), &figure, Some(Better::High), 2)
            })
        })
    });
    tables.push(Table {
        title: "Share of 95 % intervals that hold the truth".to_owned(),
        columns: covered.collect(),
    });
    let facts = [
        ("seconds", "seconds", 1),
        ("samples", "samples", 0),
        ("windows", "windows", 0),
        ("watches", "watches", 0),
        ("traps", "traps", 0),
        ("overhead, %", "overhead", 2),
        ("longest stop, µs", "longest_stop", 0),
        ("bin edges not told apart", "time.dropped.8", 0),
    ];
    let columns = recipes
        .iter()
        .flat_map(|recipe| facts.map(|(head, figure, digits)| column(recipe, head, figure, None, digits)));
    tables.push(Table { title: "What the traces were".to_owned(), columns: columns.collect() });
    let fact =
        |head: &str, figure: String, digits| Column { head: head.to_owned(), figure, better: None, digits };
    let mut columns = vec![
        fact("accesses a repetition, millions", "accesses".to_owned(), 1),
        fact("left over by subtraction, %", "leftover".to_owned(), 2),
    ];
    columns.extend(recipes.iter().flat_map(|recipe| {
        [
            ("native CPU ms", "native_ms", 1),
            ("spread of it, %", "native_spread", 1),
            ("CPU ms while traced", "traced_ms", 1),
            ("accesses a ns", "rate", 2),
            ("told ÷ that", "told_rate", 2),
            ("of a sample's own readings", "own_rates", 2),
        ]
        .map(|(head, figure, digits)| column(recipe, head, figure, None, digits))
    }));
    tables.push(Table { title: "What was traced".to_owned(), columns });
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, group: Group, s: f64) -> Row {
        Row { name, group, figures: [("rdx/time.s.8".to_owned(), s)].into() }
    }

    #[test]
    fn groups_are_summarised_apart_and_empty_columns_left_out() {
        let rows = [
            row("a", Group::Own, 0.5),
            row("b", Group::Own, 0.75),
            row("c", Group::Own, 1.0),
            row("d", Group::Real, 0.9),
        ];
        let page = markdown(&rows, &["rdx", "live"]);
        let expected = "\nTime distances, 8 bytes\n\n| program | rdx: S |\n|---|---|\n| a | .500 |\n| b | .750 |\n| c | 1.000 |\n\
            | d | .900 |\n| **own kernels (3): median / second-worst / worst** | .750 / .750 / .500 |\n\
            | **real programs (1): median / second-worst / worst** | .900 / .900 / .900 |\n";
        assert_eq!(page, expected);
    }
}
