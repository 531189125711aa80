//! How far converted stack distances and miss ratios are from the truth, on traces of kernels and of real programs.
//!
//! `conversions` runs the built-in kernels; `conversions --lackey NAME` reads the output of `valgrind --tool=lackey
//! --trace-mem=yes PROGRAM` from stdin (data accesses only). `cargo xtask bench conversions` runs both. Prints one line per
//! program, granule and method: S, Ŝ, Slog2, Slong and the miss ratio's mean absolute error and worst error.

mod exact;
mod kernels;

use std::io::{BufRead, Write};

use exact::{Exact, Found};
use locality_analysis::convert::{
    distances::Distances,
    hotl::Footprint,
    mean,
    phases::{self, Reach},
    shen,
};
use locality_analysis::similarity::{self, curve};

const GRANULES: [u64; 2] = [8, 64];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut stdout = std::io::stdout().lock();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--lackey", name] => {
            let limit = 30_000_000;
            study(&mut stdout, name, &mut |out| lackey(out, limit))?;
        }
        names => {
            for (name, kernel) in kernels::ALL {
                if names.is_empty() || names.contains(name) {
                    study(&mut stdout, name, &mut |out| kernel(out))?;
                }
            }
        }
    }
    Ok(())
}

fn lackey(out: kernels::Out, limit: u64) {
    let mut n = 0;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { continue };
        let Some((kind, rest)) = line.split_at_checked(3) else { continue };
        if !matches!(kind, " L " | " S " | " M ") {
            continue;
        }
        let Some((address, size)) = rest.split_once(',') else { continue };
        let (Ok(address), Ok(size)) = (u64::from_str_radix(address, 16), size.trim().parse()) else {
            continue;
        };
        out(address, size);
        if kind == " M " {
            out(address, size);
        }
        n += 1;
        if n == limit {
            return;
        }
    }
}

fn study(to: &mut impl Write, name: &str, trace: &mut dyn FnMut(kernels::Out)) -> std::io::Result<()> {
    let mut engines = GRANULES.map(|_| Exact::new());
    trace(&mut |address, size| {
        for (engine, granule) in engines.iter_mut().zip(GRANULES) {
            (address / granule..=(address + size.max(1) - 1) / granule)
                .for_each(|granule| engine.touch(granule));
        }
    });
    for (engine, granule) in engines.iter().zip(GRANULES) {
        let found = engine.finish();
        for (method, stack) in convert(&found) {
            let alike = similarity::of(&found.stack, &stack);
            let curves = (curve::Curve::of(&found.stack, granule), curve::Curve::of(&stack, granule));
            let (Some(alike), (Some(truth), Some(curve))) = (alike, curves) else { continue };
            let Some(error) = curve::difference(&truth, &curve, granule) else { continue };
            let long = alike.s_long.map_or("-".to_owned(), |s| format!("{s:.4}"));
            writeln!(
                to,
                "{name} {granule} {method} {} {} {:.4} {:.4} {:.4} {long} {:.4} {:.4}",
                found.accesses,
                found.time.cold(),
                alike.s,
                alike.s_hat,
                alike.s_log2,
                error.mean,
                error.worst.0
            )?;
        }
    }
    Ok(())
}

fn convert(found: &Found) -> Vec<(&'static str, Distances)> {
    let hotl = Footprint::of(&found.time, found.accesses, None);
    let mut all = vec![
        ("mean", mean::stack_distances(&found.time, 1.0)),
        ("shen", shen::stack_distances(&found.time, 1.0, found.time.cold())),
        ("own", phases::stack_distances(&found.phases, Reach::Own)),
        ("all", phases::stack_distances(&found.phases, Reach::All)),
    ];
    all.extend(hotl.map(|hotl| ("hotl", hotl.stack_distances())));
    all
}
