//! Costs of the parallelism of a whole run: programs under `locality-bpf exact`, and
//! under `exact --parallelism` with one window and without a window, in the same run.
//!
//! Wall time, the best of `--rounds`; less QEMU's time with an empty
//! callback for the share of the engine. Sources of error: as of `exact`.

use std::path::Path;

use anyhow::{Context as _, Result};
use locality_shell as shell;

use crate::exact;

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Rounds; the best counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Windows
    #[arg(long, default_value = "64,inf")]
    window: String,
    /// View of dependences
    #[arg(long, default_value = "values")]
    view: String,
}

/// Measures and prints a table.
pub fn run(options: &Options) -> Result<()> {
    exact::with_inputs("parallelism", |folder, cc1| table(options, folder, cc1))
}

fn table(options: &Options, folder: &Path, cc1: &Path) -> Result<()> {
    crate::say(
        "| program | M instructions | exact s | parallelism s | M instructions/s | parallelism ÷ exact \
         | ILP by window |",
    );
    crate::say("|---|---|---|---|---|---|---|");
    let tool = shell::target_dir().join("release/locality-bpf");
    let report = folder.join("report");
    let exact = format!("exec {} exact -q --report /dev/null -- ", tool.display());
    let parallelism = format!(
        "exec {} exact -q --parallelism --window {} --view {} --format json --report {} -- ",
        tool.display(),
        options.window,
        options.view,
        report.display()
    );
    for (name, command) in exact::PROGRAMS {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        let command = exact::command(command, folder, cc1)?;
        let mut best = [f64::INFINITY; 2];
        for _ in 0..options.rounds {
            for (best, tool) in best.iter_mut().zip([&exact, &parallelism]) {
                *best = best.min(exact::seconds(&format!("{tool}{command}"))?);
            }
        }
        let [alone, with] = best;
        let text = std::fs::read_to_string(&report).context("no report")?;
        let told: serde_json::Value = serde_json::from_str(&text)?;
        let instructions = told["parallelism"]["instructions"].as_f64().unwrap_or(0.0) / 1e6;
        let windows = told["parallelism"]["windows"].as_array();
        let ilp: Vec<String> = windows
            .into_iter()
            .flatten()
            .map(|window| format!("{:.2}", window["ilp"].as_f64().unwrap_or(f64::NAN)))
            .collect();
        crate::say(&format!(
            "| {name} | {instructions:.0} | {alone:.2} | {with:.2} | {:.0} | {:.2} | {} |",
            instructions / with,
            with / alone,
            ilp.join(", ")
        ));
    }
    Ok(())
}
