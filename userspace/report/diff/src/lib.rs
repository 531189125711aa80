//! Changes between two sides of one or more profiles each: typed values in and out.
//!
//! `side` reads quantities from reports, `interval` has the statistics, `matching`
//! pairs the parts, `condition` and `environment` have the names, `print` the formats.
//!
//! A row is *improved* or *regressed* if the difference is certain: among the rows
//! called changed, one in twenty may be false (Benjamini & Hochberg; rows of the
//! whole run and rows of parts are two families). A difference found within the
//! margin by two one-sided tests is *unchanged*. Other rows are *inconclusive*.
//!
//! Sources of error: errors of the intervals. With one profile a side,
//! differences between runs are unknown, and a notice of the comparison says so.
//!
//! Not here: files, exit status.

pub mod condition;
mod environment;
pub mod interval;
pub mod matching;
pub mod print;
pub mod quantity;
pub mod side;

use std::collections::BTreeSet;

use locality_report::schema::{
    Interval, Report,
    diff::{self as schema, Change, Diff, Lone, Row, Seen, Verdict},
    run::Mode,
};

use condition::Condition;
use interval::{Difference, FALSE_DISCOVERIES, Value, Z, discoveries};
use matching::Rename;
use quantity::{Part, Quantity};
use side::Side;

/// Parts with a smaller share of the quantity on both sides have no row.
const MATTERS: f64 = 0.01;
/// Rows of parts, and of parts of one side only.
const ROWS: usize = 100;
const LONE: usize = 20;
/// One-sided 80 % of the normal distribution: the power of "would be seen".
const POWER: f64 = 0.841_621;

/// One side.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// Names of the side's files.
    pub files: Vec<String>,
    /// Reports of the files with all rows.
    pub reports: Vec<Report>,
}

/// How sides are compared.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Conditions of a regression.
    pub fail_on: Vec<Condition>,
    /// Texts of the base to replace.
    pub renames: Vec<Rename>,
    /// A change of a smaller share of the base is none to speak of.
    pub margin: f64,
}

/// Why there is no comparison, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A condition with a quantity missing on a side.
    #[error("--fail-on '{condition}': {} lack {quantity}; there is {known}", if *is_base { "the profiles of the base" } else { "the new profiles" })]
    Unknown {
        /// The condition as typed.
        condition: String,
        /// The quantity.
        quantity: String,
        /// The existing item.
        known: String,
        /// The side without it.
        is_base: bool,
    },
    /// The sides have no common quantity.
    #[error(
        "the two sides have no quantity in common: a comparison needs miss ratios, which traces without windows or without a rate \
         of accesses have not (see `report --trust`)"
    )]
    Nothing,
}

/// Compares two sides.
///
/// # Errors
/// Sides without anything in common, or without a quantity of a condition.
pub fn compare(base: &Input, new: &Input, options: &Options) -> Result<Diff, Unfit> {
    // Reports of earlier versions have only the whole weight of pairs with far reuses.
    let pairs = base.reports.iter().chain(&new.reports).flat_map(|report| &report.pairs);
    let has_far_weights = pairs.filter(|pair| pair.far == Some(true)).all(|pair| pair.far_weight.is_some());
    let read = |input: &Input| -> Vec<Side> {
        input.reports.iter().map(|report| Side::of(report, has_far_weights)).collect()
    };
    let new_sides = read(new);
    let merged = new_sides.iter().fold(Side::default(), |mut all, side| {
        all.parts.extend(side.parts.clone());
        all
    });
    let base_sides: Vec<Side> = read(base)
        .into_iter()
        .map(|side| matching::follow(matching::rename(side, &options.renames), &merged))
        .collect();
    let seconds = |input: &Input| {
        let all = input.reports.iter().filter_map(|report| report.run.wall_s.finite());
        all.fold(0.0, |sum, seconds| sum + seconds)
    };
    let length = seconds(base).min(seconds(new));
    let known = |sides: &[Side]| -> BTreeSet<Quantity> {
        sides.iter().flat_map(|side| side.run.keys().cloned()).collect()
    };
    let (in_base, in_new) = (known(&base_sides), known(&new_sides));
    let mut run: Vec<Pending> = Vec::new();
    for quantity in in_base.intersection(&in_new) {
        let of = |sides: &[Side]| mean(sides.iter().filter_map(|side| side.run.get(quantity).copied()));
        if let (Some(base), Some(new)) = (of(&base_sides), of(&new_sides)) {
            run.push(Pending { part: None, quantity: quantity.clone(), base, new });
        }
    }
    if run.is_empty() {
        return Err(Unfit::Nothing);
    }
    let last = base.reports.iter().flat_map(|report| &report.run.host.caches).map(|cache| cache.level).max();
    let conditions = conditions(&run, &options.fail_on, last, [&in_base, &in_new])?;
    let (parts, only_in_base, only_in_new) = parts(&base_sides, &new_sides, &run);
    run.sort_by_key(|row| row.quantity.rank());
    let mut rows = judged(run, options.margin, length);
    let gates = |row: &&Row, also: &str| is_gate(&row.quantity) || row.quantity.starts_with(also);
    let whole_failed =
        rows.iter().filter(|row| gates(row, "wasted:")).any(|row| row.verdict == Verdict::Regressed);
    let whole_unsure =
        rows.iter().filter(|row| is_gate(&row.quantity)).any(|row| row.verdict == Verdict::Inconclusive);
    let mut of_parts = judged(parts, options.margin, length);
    of_parts.iter_mut().for_each(|row| row.seen = None);
    of_parts.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    of_parts.truncate(ROWS);
    rows.extend(of_parts);
    let failed = if conditions.is_empty() { whole_failed } else { conditions.iter().any(|c| c.failed) };
    let unsure = if conditions.is_empty() { whole_unsure } else { conditions.iter().any(|c| c.inconclusive) };
    let mut diff = Diff {
        base: about(base),
        conditions,
        environment: environment::differences(&base.reports, &new.reports),
        failed,
        inconclusive: unsure && !failed,
        margin_percent: (options.margin * 100.0).into(),
        new: about(new),
        notices: notices(base, new),
        only_in_base,
        only_in_new,
        rows,
        schema: schema::SCHEMA.to_owned(),
        verdict: String::new(),
    };
    diff.notices.extend(power(&diff));
    diff.verdict = verdict(&diff);
    Ok(diff)
}

/// Misses at a cache of the machine: the rows that decide if no condition is given.
fn is_gate(quantity: &str) -> bool {
    quantity.starts_with("misses:L")
}

/// A row without a verdict yet.
struct Pending {
    part: Option<Part>,
    quantity: Quantity,
    base: Value,
    new: Value,
}

fn mean(values: impl Iterator<Item = Value>) -> Option<Value> {
    Value::mean(&values.collect::<Vec<_>>())
}

fn about(input: &Input) -> schema::Side {
    let mut commands: Vec<&str> = input.reports.iter().map(|report| report.run.command.as_str()).collect();
    commands.dedup();
    let seconds = input.reports.iter().filter_map(|report| report.run.wall_s.finite()).sum::<f64>();
    schema::Side {
        command: commands.join(" | "),
        files: input.files.clone(),
        samples: input.reports.iter().map(|report| report.run.samples).sum(),
        wall_s: seconds.into(),
    }
}

fn conditions(
    run: &[Pending],
    asked: &[Condition],
    last: Option<u8>,
    [in_base, in_new]: [&BTreeSet<Quantity>; 2],
) -> Result<Vec<schema::Condition>, Unfit> {
    let of = |condition: &Condition| {
        let quantity = &condition.quantity.last_as_named(last);
        let found = run.iter().find(|row| row.quantity == *quantity);
        let Some(row) = found else {
            let is_base = !in_base.contains(quantity);
            let known = if is_base { in_base } else { in_new };
            let known: Vec<String> = known.iter().map(ToString::to_string).collect();
            let (condition, quantity) = (condition.to_string(), quantity.to_string());
            return Err(Unfit::Unknown { condition, quantity, known: known.join(", "), is_base });
        };
        let met = condition.check(row.base, row.new);
        Ok(schema::Condition {
            condition: condition.to_string(),
            failed: met.failed,
            inconclusive: met.inconclusive,
            threshold: met.threshold.into(),
        })
    };
    asked.iter().map(of).collect()
}

/// Common parts, and parts of one side only.
fn parts(base: &[Side], new: &[Side], run: &[Pending]) -> (Vec<Pending>, Vec<Lone>, Vec<Lone>) {
    let names = |sides: &[Side]| -> BTreeSet<Part> {
        sides.iter().flat_map(|side| side.parts.keys().cloned()).collect()
    };
    let (ours, theirs) = (names(base), names(new));
    let value = |sides: &[Side], part: &Part, quantity: &Quantity| {
        // A profile without the part has none of the quantity.
        let of = |side: &Side| side.parts.get(part).and_then(|values| values.get(quantity)).copied();
        let all: Vec<Value> = sides.iter().map(|side| of(side).unwrap_or_default()).collect();
        sides.iter().any(|side| of(side).is_some()).then(|| Value::mean(&all)).flatten()
    };
    let quantities = |part: &Part| -> BTreeSet<Quantity> {
        let all = base.iter().chain(new).filter_map(|side| side.parts.get(part));
        all.flat_map(|values| values.keys().cloned()).collect()
    };
    let whole = |quantity: &Quantity| match run.iter().find(|row| row.quantity == *quantity) {
        Some(row) => row.base.value.max(row.new.value),
        None => 1000.0,
    };
    let mut pending = Vec::new();
    let (mut only_base, mut only_new) = (Vec::new(), Vec::new());
    for part in ours.union(&theirs) {
        let mut lone: Option<(f64, Lone, bool)> = None;
        for quantity in quantities(part) {
            let sides = (value(base, part, &quantity), value(new, part, &quantity));
            let largest = sides.0.map_or(0.0, |v| v.value).max(sides.1.map_or(0.0, |v| v.value));
            let share = largest / whole(&quantity).max(f64::MIN_POSITIVE);
            if share < MATTERS {
                continue;
            }
            match sides {
                (Some(base), Some(new)) => {
                    pending.push(Pending { part: Some(part.clone()), quantity, base, new });
                }
                (one, other) if ours.contains(part) != theirs.contains(part) => {
                    let value = one.or(other).map_or(0.0, |value| value.value);
                    let is_base = one.is_some();
                    if lone.as_ref().is_none_or(|(most, ..)| share > *most) {
                        let row =
                            Lone { part: shown(part), quantity: quantity.to_string(), value: value.into() };
                        lone = Some((share, row, is_base));
                    }
                }
                // A part without a quantity on one side counts as 0.
                (one, other) => {
                    let (base, new) = (one.unwrap_or_default(), other.unwrap_or_default());
                    pending.push(Pending { part: Some(part.clone()), quantity, base, new });
                }
            }
        }
        if let Some((share, row, is_base)) = lone {
            if is_base { &mut only_base } else { &mut only_new }.push((share, row));
        }
    }
    let heaviest = |mut rows: Vec<(f64, Lone)>| -> Vec<Lone> {
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        rows.into_iter().take(LONE).map(|(_, row)| row).collect()
    };
    (pending, heaviest(only_base), heaviest(only_new))
}

fn shown(part: &Part) -> schema::Part {
    schema::Part {
        kind: part.kind().to_owned(),
        name: part.name(),
        place: part.at().map(quantity::At::place),
    }
}

/// Rows with their verdicts.
fn judged(pending: Vec<Pending>, margin: f64, length: f64) -> Vec<Row> {
    let differences: Vec<Difference> = pending.iter().map(|row| Difference::of(row.base, row.new)).collect();
    let p_values: Vec<f64> = differences.iter().map(Difference::p_value).collect();
    let certain = discoveries(&p_values, FALSE_DISCOVERIES);
    let ends = |value: &Value| -> Interval { [value.low.into(), value.high.into()] };
    let row = |((row, difference), (p_value, certain)): ((Pending, Difference), (f64, bool))| {
        let margin = (margin * row.base.value).max(row.quantity.least());
        let verdict = match (difference.is_within(margin), certain) {
            (true, _) => Verdict::Unchanged,
            (false, true) if difference.value > 0.0 => Verdict::Regressed,
            (false, true) => Verdict::Improved,
            (false, false) => Verdict::Inconclusive,
        };
        // A change of half the interval is seen in half of the
        // cases; `POWER` raises the chance to four fifths.
        let least = difference.half() * (Z + POWER) / Z;
        let seen = (least > 0.0).then(|| Seen {
            least: least.into(),
            seconds_for_margin: (row.base.value > 0.0 && length > 0.0)
                .then(|| (length * (least / margin).powi(2)).into()),
        });
        Row {
            base: row.base.value.into(),
            base_ci95: ends(&row.base),
            difference: Change {
                ci95: [difference.low.into(), difference.high.into()],
                value: difference.value.into(),
            },
            new: row.new.value.into(),
            new_ci95: ends(&row.new),
            p_value: p_value.into(),
            part: row.part.as_ref().map(shown),
            quantity: row.quantity.to_string(),
            seen,
            unit: row.quantity.unit().to_owned(),
            verdict,
        }
    };
    pending.into_iter().zip(differences).zip(p_values.into_iter().zip(certain)).map(row).collect()
}

/// Certain rows come first, in descending order of change.
fn weight(row: &Row) -> f64 {
    let certain = matches!(row.verdict, Verdict::Improved | Verdict::Regressed);
    let change = row.difference.value.real().unwrap_or(0.0).abs();
    let largest = row.base.real().unwrap_or(0.0).max(row.new.real().unwrap_or(0.0));
    if certain { 1e12 + change } else { largest }
}

fn notices(base: &Input, new: &Input) -> Vec<String> {
    let live = |input: &Input| input.reports.iter().any(|report| report.run.mode == Mode::Live);
    let mut notices = Vec::new();
    if live(base) && live(new) && (base.reports.len() < 2 || new.reports.len() < 2) {
        notices.push(
            "With one profile on a side, variation from run to run is unknown: give several by --base and --new."
                .to_owned(),
        );
    }
    for (side, input) in [("base", base), ("new", new)] {
        for (file, report) in input.files.iter().zip(&input.reports) {
            if report.partial {
                notices.push(format!("The profile {file} ({side}) is not complete."));
            }
        }
    }
    notices
}

/// How large a change would be seen.
fn power(diff: &Diff) -> Option<String> {
    let of = |name: &str| diff.rows.iter().find(|row| row.part.is_none() && row.quantity == name);
    // A share near 0 carries no information.
    let has_base = |row: &&Row| row.base.real().is_some_and(|base| base >= 1.0) && row.seen.is_some();
    let row = ["misses:LLC", "misses:L2", "misses:L1"].into_iter().filter_map(of).find(has_base)?;
    let seen = row.seen.as_ref()?;
    let (least, base) = (seen.least.real()?, row.base.real()?);
    let margin = diff.margin_percent.real()?;
    let mut sentence = format!(
        "Detectable here (4 of 5 cases): changes of {} above {least:.1} {} ({:.0} %)",
        row.quantity,
        row.unit,
        least / base * 100.0
    );
    if let Some(seconds) = seen.seconds_for_margin.as_ref().and_then(|seconds| seconds.finite()) {
        let smaller = least > base * margin / 100.0;
        if smaller && seconds < 86_400.0 {
            sentence += &format!("; for {margin:.0} %, trace {} a side", duration(seconds));
        }
    }
    Some(sentence + ".")
}

fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 120.0 => format!("{:.0} s", seconds.ceil()),
        _ if seconds < 7_200.0 => format!("{:.0} min", (seconds / 60.0).ceil()),
        _ => format!("{:.0} h", (seconds / 3600.0).ceil()),
    }
}

fn verdict(diff: &Diff) -> String {
    let names = |verdict: Verdict| -> Vec<&str> {
        let whole = diff.rows.iter().filter(|row| row.part.is_none() && row.verdict == verdict);
        whole.map(|row| row.quantity.as_str()).collect()
    };
    let failed: Vec<&str> =
        diff.conditions.iter().filter(|c| c.failed).map(|c| c.condition.as_str()).collect();
    let mut parts = Vec::new();
    if !failed.is_empty() {
        parts.push(format!("Regression: {} holds", failed.join(" and ")));
    } else if !diff.conditions.is_empty() {
        let unsure = diff.conditions.iter().filter(|c| c.inconclusive).count();
        parts.push(match unsure {
            0 => "No condition of --fail-on holds".to_owned(),
            n => format!("No condition of --fail-on certainly holds, {n} of {} may", diff.conditions.len()),
        });
    }
    for (verdict, words) in [
        (Verdict::Regressed, "regressed"),
        (Verdict::Improved, "improved"),
        (Verdict::Unchanged, "unchanged"),
        (Verdict::Inconclusive, "inconclusive"),
    ] {
        let names = names(verdict);
        if !names.is_empty() {
            parts.push(format!("{words}: {}", names.join(", ")));
        }
    }
    let mut sentence = parts.join("; ");
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    sentence + "."
}

#[cfg(test)]
mod tests;
