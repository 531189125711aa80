//! `--check EXACT`: the model beside an exact run of the same program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use locality_execution::build::Built;
use locality_execution::check::{self, Check, Exact};
use locality_execution::tree::Expected;
use locality_kernel::writing::say;
use locality_model::Profile;
use locality_report::schema::{Report, executions::FileExecutions};
use locality_runner as exact;
use locality_units::print as units;
use serde_json::{Value, json};

use super::Model;
use super::page::{Names, ROWS, digits, digits_of, shortened};
use super::project::Costs;

/// A comparison.
pub(crate) struct Checked {
    found: Check,
    /// Selection quality against the stops, for 1 … 10 spots: of a model of costs, with exact counts or
    /// with those of windows.
    quality: Vec<(&'static str, &'static str, Vec<f64>)>,
}

/// Reads the exact run.
///
/// # Errors
/// No exact report, one without executions, or one of another program: a sentence.
pub(super) fn read(path: &Path, profile: &Profile) -> Result<Exact> {
    let name = path.display();
    std::fs::metadata(path).with_context(|| format!("cannot read {name}"))?;
    let Some(report) = exact::stored(path)? else {
        bail!("{name} is no report of an exact run: `locality-bpf exact -o FILE -- COMMAND` writes one");
    };
    let Some(files) = &report.executions else {
        bail!(
            "{name} has no executions of instructions: run `locality-bpf exact -o FILE -- COMMAND` with this \
             version, without --function, --inclusive and --data-type"
        );
    };
    let number = |file: &FileExecutions| {
        profile.modules.iter().position(|module| match file.build_id.is_empty() {
            true => module.build_id.is_empty() && module.path == file.file,
            false => module.build_id == file.build_id,
        })
    };
    refuse_another(&report, files, profile, &number, &name.to_string())?;
    let mut found = Exact::default();
    for file in files {
        let number = number(file);
        for (first, end, count, instructions) in &file.runs {
            if end <= first || *instructions == 0 {
                bail!("{name} has impossible executions of instructions: run `locality-bpf exact` again");
            }
            found.instructions += *count as f64 * *instructions as f64;
            if let Some(number) = number {
                // Copies of a file have one build id; runs of copies rarely have other ends.
                let run = found.runs.entry((number, *first)).or_insert((*end, 0.0));
                *run = (run.0.max(*end), run.1 + *count as f64);
            }
        }
    }
    if report.partial {
        say(&format!("the exact run of {name} is not complete: shares are those of its beginning"));
    }
    Ok(found)
}

/// Refuses a run of none of the profile's programs.
fn refuse_another(
    report: &Report,
    files: &[FileExecutions],
    profile: &Profile,
    number: &dyn Fn(&FileExecutions) -> Option<usize>,
    name: &str,
) -> Result<()> {
    // Programs are named as they were called, executed files by their whole path.
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let programs = report.run.programs.as_deref().unwrap_or_default();
    let is_own = |file: &&FileExecutions| {
        programs.iter().any(|program| base(&program.file) == base(&file.file))
            || !base(&file.file).contains(".so")
    };
    let own: Vec<&FileExecutions> = files.iter().filter(is_own).collect();
    if own.iter().any(|file| number(file).is_some()) {
        return Ok(());
    }
    let id =
        |id: &str| if id.is_empty() { "without a build id".to_owned() } else { format!("build id {id}") };
    let first = own.first();
    let what = first
        .map_or_else(|| report.run.command.clone(), |file| format!("{} ({})", file.file, id(&file.build_id)));
    let twin =
        first.and_then(|file| profile.modules.iter().find(|module| base(&module.path) == base(&file.file)));
    let traced = twin.map_or_else(
        || shortened(&profile.run.command, 60),
        |module| format!("{} ({})", module.path, id(&module.build_id)),
    );
    bail!(
        "{name} is the exact run of another program, {what}, not of the traced {traced}: run `locality-bpf exact` on \
         that one"
    )
}

/// Compares. `costs`: for the selection quality.
pub(super) fn compare(
    built: &Built,
    expected: Option<&Expected>,
    exact: &Exact,
    costs: &[&Costs<'_>],
    spots: &[locality_execution::spots::Spot],
) -> Checked {
    let executions = exact.executions(built);
    let mut quality = Vec::new();
    for costs in costs {
        let name = super::cost_name(costs.how);
        quality.extend(costs.shares(spots).map(|by| (name, "windows", by.quality)));
        quality.extend(costs.shares_with(spots, &executions).map(|by| (name, "exact", by.quality)));
    }
    Checked { found: check::check(built, expected, exact), quality }
}

/// The tables.
pub(super) fn tables(model: &Model, names: &Names, page: &mut String) {
    let Some(Checked { found, quality }) = &model.checked else { return };
    page.push_str("\nThe model against the exact run\n");
    let _ =
        writeln!(page, "Share of the time at stops that the first N spots hold, of what the best N hold, %");
    let heads: String = (1..=10).fold(String::new(), |heads, n| format!("{heads}{n:>5}"));
    let _ = writeln!(page, "  {:<34}{heads}   mean  worst", "N");
    for (cost, counts, values) in quality.iter().filter(|(.., values)| !values.is_empty()) {
        let row = values.iter().fold(String::new(), |row, value| format!("{row}{:>5.0}", 100.0 * value));
        let row = format!("{row:<50}");
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let worst = values.iter().copied().fold(f64::INFINITY, f64::min);
        let what = match *counts {
            "exact" => format!("{cost}, executions counted"),
            _ => format!("{cost}, executions of windows"),
        };
        let _ = writeln!(page, "  {what:<34}{row}  {:>5.1}  {:>5.1}", 100.0 * mean, 100.0 * worst);
    }
    let known = |variation: Option<f64>| {
        variation.map_or_else(|| "not known".to_owned(), |variation| format!("{variation:.3}"))
    };
    let _ = writeln!(
        page,
        "Executions by block, total variation (0: equal, 1: nothing in common): windows {}, tree {}; \
         {} %\n  of the exact run's instructions lie in functions that the trace never met.",
        known(found.windows),
        known(found.tree),
        digits(100.0 * found.unmet)
    );
    let branches = &found.branches;
    let _ = match branches.n {
        0 => writeln!(page, "Branches: none compared; {} left out.", units::count(branches.left_out as u64)),
        n => writeln!(
            page,
            "Branches: |p − exact| {:.4} on average over executions, {:.3} at most in 95 % of them, n = {}; {} \
             left out,\n  since instruction counts do not say where they go. Guessed branches are included.",
            branches.mean,
            branches.p95,
            units::count(n as u64),
            units::count(branches.left_out as u64)
        ),
    };
    if !found.loops.is_empty() {
        let _ = writeln!(
            page,
            "  {:<50}{:>14}{:>14}{:>10}  instructions",
            "Iterations of loops", "model", "exact", "off"
        );
    }
    for row in found.loops.iter().take(ROWS) {
        let model_trips = row.model.map_or_else(|| "not known".to_owned(), digits_of);
        let off = row
            .model
            .map_or_else(String::new, |trips| format!("{:+.1} %", 100.0 * (trips / row.exact - 1.0)));
        let _ = writeln!(
            page,
            "  {:<50}{model_trips:>14}{:>14}{off:>10}  {} %",
            shortened(&names.spot(model, row.place), 49),
            digits_of(row.exact),
            digits(100.0 * row.share)
        );
    }
    if found.loops.len() > ROWS {
        let _ = writeln!(page, "  {} more: --format json", found.loops.len() - ROWS);
    }
    if found.loops_left_out > 0 {
        let _ = writeln!(
            page,
            "  {} left out: instruction counts do not give their entries.",
            units::counted(found.loops_left_out as u64, "more loop")
        );
    }
}

/// `check` in JSON.
pub(super) fn json(model: &Model) -> Value {
    let Some(Checked { found, quality }) = &model.checked else { return Value::Null };
    let loops = found.loops.iter().map(|row| {
        json!({
            "function": Names::function(model, row.place.0),
            "loop": row.place.1.map(|label| format!("L{label:x}")),
            "iterations": row.model,
            "exact": row.exact,
            "share_instructions": row.share,
        })
    });
    let mut by_cost: BTreeMap<&str, BTreeMap<&str, &Vec<f64>>> = BTreeMap::new();
    for (cost, counts, values) in quality {
        by_cost.entry(cost).or_default().insert(counts, values);
    }
    json!({
        "selection_quality": by_cost,
        "total_variation": { "windows": found.windows, "tree": found.tree },
        "instructions_unmet": found.unmet,
        "branches": {
            "mean": (found.branches.n > 0).then_some(found.branches.mean),
            "p95": (found.branches.n > 0).then_some(found.branches.p95),
            "n": found.branches.n, "left_out": found.branches.left_out,
        },
        "loops": loops.collect::<Vec<_>>(),
        "loops_left_out": found.loops_left_out,
    })
}
