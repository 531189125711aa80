//! A comparison for people and for programs. Not here: choice and place of the reports.

use locality_report::schema::comparison::{
    self as schema, GranuleComparison, MissRatios, Part as PartPage, Worst,
};

use super::Similarity;
use super::reports::{Comparison, Part, Row};

/// The comparison as text, with a line to explain the numbers. Lines end in newlines.
pub fn text(comparison: &Comparison, a: &str, b: &str) -> String {
    let mut page = format!("A: {a}\nB: {b}\n\n");
    page += &format!("{:<18} {:>7} {:>7} {:>7} {:>7}\n", "", "S", "Ŝ", "Slog2", "Slong");
    for row in &comparison.rows {
        page += &histogram(row.bytes, "time", &row.time);
        page += &histogram(row.bytes, "stack", &row.stack);
        page += &misses(row);
    }
    if !comparison.unmatched.is_empty() {
        let bytes: Vec<String> = comparison.unmatched.iter().map(u64::to_string).collect();
        page += &format!("\nIn one report only, not compared: granularity of {} bytes.\n", bytes.join(", "));
    }
    let is_off_by_one = |part: &Part<(Similarity, String)>| {
        part.as_ref().is_ok_and(|(alike, _)| alike.s < 0.8 && alike.s_hat > alike.s + 0.2)
    };
    if comparison.rows.iter().any(|row| is_off_by_one(&row.time) || is_off_by_one(&row.stack)) {
        page += "\nWhere Ŝ is far above S, reuses lie in neighbouring bins: distances near a bin's edge, a percent apart perhaps.\n";
    }
    page + "\n1 is equal, 0 has nothing in common. S: bins from 4 K up, all shorter distances in one; Ŝ: the same, mild to\n\
            reuses one bin off; Slog2: log2 bins from 0; Slong: distances of 4 K and more alone.\n"
}

fn histogram(bytes: u64, name: &str, part: &Part<(Similarity, String)>) -> String {
    let head = format!("{:<18}", format!("{bytes}-byte {name}"));
    match part {
        Ok((alike, unit)) => {
            let long = alike.s_long.map_or("-".to_owned(), |s| format!("{s:.4}"));
            let note = match alike.dropped_edges {
                0 => String::new(),
                1 => "  (one bin edge unknown to one of them)".to_owned(),
                n => format!("  ({n} bin edges unknown to one of them)"),
            };
            let (s, s_hat, s_log2) = (alike.s, alike.s_hat, alike.s_log2);
            format!("{head} {s:>7.4} {s_hat:>7.4} {s_log2:>7.4} {long:>7}  {unit}{note}\n")
        }
        Err(why) => format!("{head} not compared: {why}\n"),
    }
}

fn misses(row: &Row) -> String {
    let head = format!("{:<18}", format!("{}-byte misses", row.bytes));
    match &row.misses {
        Ok(found) => format!(
            "{head} miss ratios differ by {:.4} on average over {} cache sizes, by {:.4} at most, at {}\n",
            found.mean,
            found.sizes,
            found.worst.0,
            size(found.worst.1)
        ),
        Err(why) => format!("{head} not compared: {why}\n"),
    }
}

fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

/// The comparison for programs, `"schema": "locality-compare/1"`.
pub fn value(comparison: &Comparison, a: &str, b: &str) -> schema::Comparison {
    let granule = |row: &Row| {
        let found = GranuleComparison {
            miss_ratio: part(&row.misses, miss_ratios),
            stack: part(&row.stack, similarity),
            time: part(&row.time, similarity),
        };
        (row.bytes.to_string(), found)
    };
    schema::Comparison {
        a: a.to_owned(),
        b: b.to_owned(),
        granularity: comparison.rows.iter().map(granule).collect(),
        schema: "locality-compare/1".to_owned(),
        unmatched_granularity: comparison.unmatched.clone(),
    }
}

fn part<T, U>(part: &Part<T>, print: impl Fn(&T) -> U) -> PartPage<U> {
    match part {
        Ok(found) => PartPage::Compared(print(found)),
        Err(why) => PartPage::NotCompared { not_compared: why.clone() },
    }
}

fn miss_ratios(found: &super::curve::Difference) -> MissRatios {
    MissRatios {
        mean_absolute_error: found.mean.into(),
        sizes: found.sizes as u64,
        worst: Worst { bytes: found.worst.1, error: found.worst.0.into() },
    }
}

fn similarity((alike, unit): &(Similarity, String)) -> schema::Similarity {
    schema::Similarity {
        dropped_edges: alike.dropped_edges as u64,
        s: alike.s.into(),
        s_hat: alike.s_hat.into(),
        s_log2: alike.s_log2.into(),
        s_long: alike.s_long.map(Into::into),
        unit: unit.clone(),
    }
}
