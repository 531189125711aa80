//! How often a comparison raises a false alarm: profiles are cut into random halves,
//! which differ by chance alone, and the halves are compared. And how often a change is
//! found: two long profiles are cut into equally many random parts, compared one by one.
//!
//! `cargo run --release -p locality-diff --example halves -- CUTS FILE…`
//! `cargo run --release -p locality-diff --example halves -- parts N BASE NEW`
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::path::Path;

use locality_diff::{Input, Options, compare};
use locality_findings::Findings;
use locality_model::{
    Profile,
    testing::halves::{halves, part},
};
use locality_report::{
    json,
    schema::{Interval, Number, diff::Verdict},
};

fn side(profile: &Profile) -> Input {
    Input { files: vec!["half".to_owned()], reports: vec![json::report(profile, &Findings::of(profile))] }
}

/// Parts of two profiles, compared in pairs.
fn found(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let parts: usize = arguments.next().ok_or("how many parts?")?.parse()?;
    let mut random = fastrand::Rng::with_seed(2);
    let mut cut = |file: Option<String>| -> Result<Vec<Input>, Box<dyn Error>> {
        let profile = locality_profile::read(Path::new(&file.ok_or("which file?")?))?;
        let mut samples: Vec<u32> = (0..profile.samples.len() as u32).collect();
        random.shuffle(&mut samples);
        let each = samples.len() / parts.max(1);
        println!("{each} samples a part, {:.0} s", profile.run.wall_ns as f64 / 1e9 / parts as f64);
        Ok(samples
            .chunks_exact(each.max(1))
            .take(parts)
            .map(|samples| side(&part(&profile, samples)))
            .collect())
    };
    let (base, new) = (cut(arguments.next())?, cut(arguments.next())?);
    let mut failed = 0;
    for (base, new) in base.iter().zip(&new) {
        let diff = compare(base, new, &Options { margin: 0.1, ..Options::default() })?;
        failed += u32::from(diff.failed);
        for name in ["misses:L1", "misses:L2", "misses:32M"] {
            let Some(row) = diff.rows.iter().find(|row| row.part.is_none() && row.quantity == name) else {
                continue;
            };
            let shown = |value: Number, [low, high]: Interval| {
                [value, low, high].map(|value| format!("{:.1}", value.real().unwrap_or(f64::NAN))).join(" ")
            };
            let (base, new) = (shown(row.base, row.base_ci95), shown(row.new, row.new_ci95));
            println!("  {name}: {base} → {new}, p {:.4}", row.p_value.real().unwrap_or(f64::NAN));
        }
        println!("{}", diff.verdict);
    }
    println!("{failed} of {parts} pairs fail");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|word| word == "parts").is_some() {
        return found(arguments);
    }
    let cuts: usize = arguments.next().ok_or("how many cuts of each profile?")?.parse()?;
    let mut random = fastrand::Rng::with_seed(1);
    let (mut all, mut alarms, mut rows, mut certain) = (0, 0, 0, 0);
    for file in arguments {
        let profile = locality_profile::read(Path::new(&file))?;
        let mut own = 0;
        let mut least = Vec::new();
        for _ in 0..cuts {
            let [base, new] = halves(&profile, &mut random);
            let diff = compare(&side(&base), &side(&new), &Options { margin: 0.1, ..Options::default() })?;
            all += 1;
            own += u32::from(diff.failed);
            for row in diff.rows.iter().filter(|row| row.part.is_none()) {
                rows += 1;
                let is_certain = matches!(row.verdict, Verdict::Regressed | Verdict::Improved);
                certain += u32::from(is_certain);
                if is_certain {
                    println!("  {file}: {} {:?} p {:?}", row.quantity, row.verdict, row.p_value);
                }
                if row.quantity == "misses:L1" {
                    let base = row.base.real().unwrap_or(0.0);
                    least.extend(
                        row.seen.as_ref().and_then(|seen| seen.least.real()).map(|least| least / base),
                    );
                }
            }
        }
        least.sort_by(f64::total_cmp);
        let middle = least.get(least.len() / 2).copied().unwrap_or(f64::NAN);
        println!(
            "{file}: {} samples, {own} of {cuts} pairs of halves fail; changes of misses:L1 above {:.0} % would be seen",
            profile.samples.len(),
            middle * 100.0
        );
        alarms += own;
    }
    println!("{alarms} of {all} pairs fail; {certain} of {rows} rows of whole runs are called changed");
    Ok(())
}
