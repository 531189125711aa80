//! Errors of stack distances and miss ratios converted
//! from exact time distances, against the exact ones.
//!
//! `conversions FILE…`: each FILE is the report of a program by
//! `locality-bpf exact --fine`; the file's name becomes the program's.
//! `cargo xtask bench conversions` makes the files. Prints one line per program, granule
//! and method, then for each method the medians and the worst over the programs.

mod read;

use std::{collections::BTreeMap, io::Write, path::Path};

use locality_compare::{Similarity, curve};
use locality_mrc::{
    distances::Distances,
    hotl::Footprint,
    mean,
    phases::{self, Phase, Reach},
    shen,
};

/// A method, applied to a thread's phases.
type Method = (&'static str, fn(&[Phase]) -> Distances);

const METHODS: [Method; 5] = [
    ("phases, all that a reuse spans", |phases| phases::stack_distances(phases, &[], Reach::All)),
    ("phases, own only", |phases| phases::stack_distances(phases, &[], Reach::Own)),
    ("StatStack/AET", |phases| mean::stack_distances(&whole(phases).time, tau(phases))),
    ("HOTL", hotl),
    ("Shen (RDX)", |phases| {
        let whole = whole(phases);
        shen::stack_distances(&whole.time, tau(phases), whole.time.cold())
    }),
];

/// Result of a conversion of a program.
struct Score {
    program: String,
    alike: Similarity,
    error: curve::Difference,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut to = std::io::stdout().lock();
    let mut scores: BTreeMap<(u64, usize), Vec<Score>> = BTreeMap::new();
    writeln!(to, "program | bytes | touches | method | S | Ŝ | Slog2 | Slong | miss-ratio error | worst")?;
    for file in std::env::args().skip(1) {
        let program = Path::new(&file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let report = serde_json::from_slice(&std::fs::read(&file)?)?;
        for (bytes, run) in read::runs(&report).map_err(|why| format!("{file}: {why}"))? {
            for (index, (name, convert)) in METHODS.iter().enumerate() {
                let parts: Vec<Distances> = run.streams.iter().map(|phases| convert(phases)).collect();
                let stack = Distances::union(&parts.iter().collect::<Vec<_>>());
                let Some((alike, error)) = compare(&run.stack, &stack, bytes) else { continue };
                let long = alike.s_long.map_or("-".to_owned(), |s| format!("{s:.4}"));
                writeln!(
                    to,
                    "{program} | {bytes} | {} | {name} | {:.4} | {:.4} | {:.4} | {long} | {:.4} | {:.4}",
                    run.touches, alike.s, alike.s_hat, alike.s_log2, error.mean, error.worst.0
                )?;
                let score = Score { program: program.clone(), alike, error };
                scores.entry((bytes, index)).or_default().push(score);
            }
        }
    }
    summarise(&mut to, &scores)?;
    Ok(())
}

/// All phases as one.
fn whole(phases: &[Phase]) -> Phase {
    Phase {
        time: Distances::union(&phases.iter().map(|phase| &phase.time).collect::<Vec<_>>()),
        accesses: phases.iter().map(|phase| phase.accesses).sum(),
    }
}

fn tau(phases: &[Phase]) -> f64 {
    let whole = whole(phases);
    whole.time.touches() / whole.accesses
}

/// Positions of first and last touches are not known, only their sum.
fn hotl(phases: &[Phase]) -> Distances {
    let whole = whole(phases);
    Footprint::of(&whole.time, whole.accesses, None).map_or_else(Distances::default, |f| f.stack_distances())
}

fn compare(exact: &Distances, found: &Distances, bytes: u64) -> Option<(Similarity, curve::Difference)> {
    let alike = locality_compare::of(exact, found)?;
    let curves = (curve::Curve::of(exact, bytes)?, curve::Curve::of(found, bytes)?);
    Some((alike, curve::difference(&curves.0, &curves.1, bytes)?))
}

/// A score of all programs, ascending, with the programs' names.
struct Ranked<'a>(Vec<(f64, &'a str)>);

impl<'a> Ranked<'a> {
    fn of(scores: &'a [Score], value: impl Fn(&Score) -> Option<f64>) -> Self {
        let named = |score: &'a Score| Some((value(score)?, score.program.as_str()));
        let mut all: Vec<(f64, &str)> = scores.iter().filter_map(named).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self(all)
    }

    fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        match (self.0.get(middle.saturating_sub(1)), self.0.get(middle)) {
            (Some(a), Some(b)) if self.0.len().is_multiple_of(2) => (a.0 + b.0) / 2.0,
            (_, Some(b)) => b.0,
            _ => f64::NAN,
        }
    }

    fn low(&self, place: usize) -> String {
        self.0.get(place).map_or("-".to_owned(), |(value, program)| format!("{value:.4} ({program})"))
    }

    fn high(&self, place: usize) -> String {
        let found = self.0.iter().rev().nth(place);
        found.map_or("-".to_owned(), |(value, program)| format!("{value:.4} ({program})"))
    }
}

fn summarise(to: &mut impl Write, scores: &BTreeMap<(u64, usize), Vec<Score>>) -> std::io::Result<()> {
    writeln!(
        to,
        "\n| bytes, method | programs | S median / second worst / worst | Slog2 median / worst | Slong median / worst | \
         miss-ratio error median / second worst / worst |"
    )?;
    for ((bytes, method), scores) in scores {
        let name = METHODS.get(*method).map_or("", |method| method.0);
        let s = Ranked::of(scores, |score| Some(score.alike.s));
        let log2 = Ranked::of(scores, |score| Some(score.alike.s_log2));
        let long = Ranked::of(scores, |score| score.alike.s_long);
        let error = Ranked::of(scores, |score| Some(score.error.mean));
        write!(
            to,
            "| {bytes}, {name} | {} | {:.4} / {} / {} ",
            scores.len(),
            s.median(),
            s.low(1),
            s.low(0)
        )?;
        write!(to, "| {:.4} / {} | {:.4} / {} ", log2.median(), log2.low(0), long.median(), long.low(0))?;
        writeln!(to, "| {:.4} / {} / {} |", error.median(), error.high(1), error.high(0))?;
    }
    Ok(())
}
