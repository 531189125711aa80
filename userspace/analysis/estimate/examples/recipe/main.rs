//! How well a recipe of sampling and an estimator find the truth, on traces that are known in full.
//!
//! `recipe [KERNEL…] [recipe=NAME…] [estimator=NAME…] [samples=N] [accesses=N] [seeds=N] [draws=N]
//! [rate-error=SIGMA] [trap-ns=N] [told=false]` samples each kernel's trace by every recipe,
//! estimates with every estimator, and prints one line for each: S, Slog2 and Slong of time
//! distances at 8 bytes, S at 64, S of stack distances at both, and the mean absolute error of the
//! miss-ratio curves, and with `draws` how many of the intervals (time bins, miss ratios) hold the
//! truth. It is for tuning, and takes minutes.

mod kernels;
mod simulate;
mod trace;

use std::collections::BTreeMap;
use std::io::Write;

use locality_arbiter::Policy;
use locality_compare::curve::{self, Curve};
use locality_estimate::access_rates::Rates;
use locality_estimate::calling_context::Contexts;
use locality_estimate::estimator::Estimator;
use locality_estimate::interval_estimate::Estimate;
use locality_estimate::reuse::{Bin, Case};
use locality_model::Profile;
use locality_mrc::distances::{Bar, Distances};
use simulate::{Fill, Recipe};
use trace::{Trace, Truth};

const COLUMNS: [&str; 11] =
    ["S8", "Slog8", "Slong8", "S64", "Slog64", "stk8", "stk64", "mr8", "mr64", "cover-t", "cover-m"];
/// Columns in which a large number is bad.
const ERRORS: std::ops::Range<usize> = 7..9;

/// What to run, from words such as `samples=200`, `recipe=10k/8`, `km`, and names of kernels.
struct Setup {
    accesses: usize,
    samples: usize,
    seeds: u64,
    draws: usize,
    rate_error: f64,
    trap_ns: u64,
    told: bool,
    recipes: Vec<String>,
    estimators: Vec<Estimator>,
    kernels: Vec<String>,
}

impl Setup {
    fn read() -> Result<Self, Box<dyn std::error::Error>> {
        let mut setup = Self {
            accesses: 10_000_000,
            samples: 1_000,
            seeds: 4,
            draws: 0,
            rate_error: 0.0,
            trap_ns: 0,
            told: true,
            recipes: Vec::new(),
            estimators: Vec::new(),
            kernels: Vec::new(),
        };
        for word in std::env::args().skip(1) {
            match word.split_once('=') {
                Some(("accesses", n)) => setup.accesses = n.parse()?,
                Some(("samples", n)) => setup.samples = n.parse()?,
                Some(("seeds", n)) => setup.seeds = n.parse()?,
                Some(("draws", n)) => setup.draws = n.parse()?,
                Some(("rate-error", n)) => setup.rate_error = n.parse()?,
                Some(("trap-ns", n)) => setup.trap_ns = n.parse()?,
                Some(("told", yes)) => setup.told = yes.parse()?,
                Some(("recipe", name)) => setup.recipes.push(name.to_owned()),
                Some(("estimator", name)) => setup.estimators.push(name.parse()?),
                Some((other, _)) => return Err(format!("{other}= is nothing to set").into()),
                None => setup.kernels.push(word),
            }
        }
        if setup.estimators.is_empty() {
            setup.estimators = Estimator::ALL.to_vec();
        }
        Ok(setup)
    }

    fn recipes(&self) -> Vec<(&'static str, Recipe)> {
        let base = Recipe {
            samples: self.samples,
            windows: vec![],
            uses: 64,
            spread: 1000,
            fill: Fill::Nothing,
            policy: Policy::QuickReservoir,
            skip: 0,
            rate_error: Some(self.rate_error),
            trap_ns: self.trap_ns,
            told: self.told,
        };
        let with =
            |windows: &[(u64, u32)], uses: u32| Recipe { windows: windows.to_vec(), uses, ..base.clone() };
        let mix = [(1_000, 30), (10_000, 9), (100_000, 1)];
        let all = vec![
            ("floor", with(&[(1 << 40, 1)], 1)),
            ("floor/8", with(&[(1 << 40, 1)], 8)),
            ("plain-rsv", Recipe { policy: Policy::Reservoir, skip: 1000, ..base.clone() }),
            ("plain-quick", Recipe { skip: 1000, ..base.clone() }),
            ("no-skip", base.clone()),
            ("short/8", with(&[(120, 24), (1_000, 6), (10_000, 1)], 8)),
            ("1k/8", with(&[(1_000, 1)], 8)),
            ("10k/8", with(&[(10_000, 1)], 8)),
            ("10k/8/fill", Recipe { fill: Fill::Uses, ..with(&[(10_000, 1)], 8) }),
            ("mix/8", with(&mix, 8)),
            ("mix/16", with(&mix, 16)),
            ("mix/rsv", Recipe { policy: Policy::Reservoir, ..with(&mix, 8) }),
            ("mix/uses", Recipe { fill: Fill::Uses, ..with(&mix, 8) }),
            ("mix/words", Recipe { fill: Fill::Words, ..with(&mix, 8) }),
            ("mix/both", Recipe { fill: Fill::Both, ..with(&mix, 8) }),
        ];
        let wanted = |name: &str| self.recipes.is_empty() || self.recipes.iter().any(|wanted| wanted == name);
        all.into_iter().filter(|recipe| wanted(recipe.0)).collect()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let setup = Setup::read()?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "kernel recipe estimator {}", COLUMNS.join(" "))?;
    let mut table: BTreeMap<(usize, String), Vec<Vec<f64>>> = BTreeMap::new();
    let wanted = |name: &str| setup.kernels.is_empty() || setup.kernels.iter().any(|wanted| wanted == name);
    for (name, kernel) in kernels::ALL.iter().filter(|kernel| wanted(kernel.0)) {
        let trace = Trace::of(*kernel, setup.accesses);
        let truth = [trace.truth(&trace.words), trace.truth(&trace.lines)];
        for (at, (recipe_name, recipe)) in setup.recipes().iter().enumerate() {
            for &estimator in &setup.estimators {
                let row =
                    |seed| measure(&simulate::profile(&trace, recipe, seed), estimator, &truth, setup.draws);
                let rows: Vec<Vec<f64>> = (0..setup.seeds).map(row).collect();
                let mean =
                    |c: usize| rows.iter().filter_map(|row| row.get(c)).sum::<f64>() / setup.seeds as f64;
                let mean: Vec<f64> = (0..COLUMNS.len()).map(mean).collect();
                print(&mut stdout, &format!("{name} {recipe_name} {estimator}"), &mean)?;
                table.entry((at, format!("{recipe_name} {estimator}"))).or_default().push(mean);
            }
        }
    }
    for ((_, what), rows) in table {
        for (rank, word) in [(rows.len() / 2, "median"), (1, "second-worst"), (0, "worst")] {
            let column = |c: usize| {
                let mut values: Vec<f64> = rows.iter().map(|row| row[c]).filter(|v| !v.is_nan()).collect();
                values.sort_by(f64::total_cmp);
                if ERRORS.contains(&c) {
                    values.reverse();
                }
                values.get(rank.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
            };
            let values: Vec<f64> = (0..COLUMNS.len()).map(column).collect();
            print(&mut stdout, &format!("= {what} {word}"), &values)?;
        }
    }
    Ok(())
}

fn print(to: &mut impl Write, what: &str, values: &[f64]) -> std::io::Result<()> {
    let values: Vec<String> = values.iter().map(|value| format!("{value:.3}")).collect();
    writeln!(to, "{what:<44} {}", values.join(" "))
}

fn measure(profile: &Profile, estimator: Estimator, truth: &[Truth; 2], draws: usize) -> Vec<f64> {
    let contexts = Contexts::new(profile);
    let rates = Rates::of(profile);
    let mut all = Vec::new();
    let (mut inside, mut intervals) = ([0.0; 2], [0.0; 2]);
    for (truth, granule) in truth.iter().zip([8, 64]) {
        let found = Case::new(profile, &contexts, &rates, granule, None).estimate(estimator, draws);
        let miss = {
            let points =
                found.curve.iter().map(|point| (point.bytes as f64, point.ratio.value.clamp(0.0, 1.0)));
            let curves = (Curve::of(&truth.stack, u64::from(granule)), Curve::new(points.collect()));
            let (Some(a), Some(b)) = curves else { return Vec::new() };
            curve::difference(&a, &b, u64::from(granule)).map_or(f64::NAN, |found| found.mean)
        };
        for bin in &found.time {
            let share =
                |d: &Distances| (d.at_least(bin.low as f64) - d.at_least(bin.high as f64)) / d.reuses();
            inside[0] += f64::from(u8::from(covers(&bin.fraction, share(&truth.time))));
            intervals[0] += 1.0;
        }
        for point in &found.curve {
            let ratio = truth.stack.miss_ratio(point.bytes as f64 / f64::from(granule));
            inside[1] += f64::from(u8::from(covers(&point.ratio, ratio)));
            intervals[1] += 1.0;
        }
        all.push((alike(&truth.time, &found.time), alike(&truth.stack, &found.stack), miss));
    }
    let [(time8, stack8, miss8), (time64, stack64, miss64)] = all.as_slice() else { return Vec::new() };
    let covered = |at: usize| inside[at] / intervals[at];
    vec![
        time8[0],
        time8[1],
        time8[2],
        time64[0],
        time64[1],
        stack8[0],
        stack64[0],
        *miss8,
        *miss64,
        covered(0),
        covered(1),
    ]
}

/// Rounding aside.
fn covers(estimate: &Estimate, truth: f64) -> bool {
    (estimate.low - 1e-9..=estimate.high + 1e-9).contains(&truth)
}

fn alike(truth: &Distances, bins: &[Bin]) -> [f64; 3] {
    let bar = |bin: &Bin| Bar { low: bin.low, high: bin.high, weight: bin.fraction.value };
    let estimate = Distances::new(bins.iter().map(bar).collect(), 0.0).unwrap_or_default();
    locality_compare::of(truth, &estimate)
        .map_or([0.0; 3], |found| [found.s, found.s_log2, found.s_long.unwrap_or(f64::NAN)])
}
