//! Rankings of a program with many objects by misses of a small cache, direct (from addresses)
//! against approximate (from instruction pointers and paths), without and with skid.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what fails here fails the test")]

mod oracle;

use std::collections::BTreeMap;
use std::path::Path;

use locality_approximate::{Analyzer, Frame, Gaussian, Level, Options, RankComparison, Sample, compare};
use oracle::{Trace, build, run};

/// Lines of 64 bytes in the cache, fully associative, least recently used goes.
const LINES: usize = 24;

/// Steps that miss on reading a named object, with its name.
fn misses(trace: &Trace) -> Vec<(usize, String)> {
    let mut cache: Vec<u64> = Vec::new();
    let mut missed = Vec::new();
    for (at, step) in trace.steps.iter().enumerate() {
        for address in &step.reads {
            let line = address / 64;
            match cache.iter().position(|other| *other == line) {
                Some(at) => drop(cache.remove(at)),
                None => missed.extend(trace.owner(*address).map(|owner| (at, owner.to_owned()))),
            }
            cache.push(line);
            if cache.len() > LINES {
                cache.remove(0);
            }
        }
    }
    missed
}

/// Both rankings; the sample of a miss at a step is taken at the step that `lands` says.
fn rank(
    program: &Path,
    trace: &Trace,
    options: &Options,
    lands: &mut dyn FnMut(usize) -> usize,
) -> RankComparison<String> {
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(program).unwrap();
    let (mut direct, mut samples): (BTreeMap<String, f64>, Vec<Sample>) = (BTreeMap::new(), Vec::new());
    for (at, owner) in misses(trace) {
        *direct.entry(owner).or_default() += 1.0;
        let seen = &trace.steps[lands(at).min(trace.steps.len() - 1)];
        let frames = seen.path.iter().map(|address| Some(Frame { module, address: *address })).collect();
        samples.push(Sample { frames, weight: 1.0 });
    }
    let whole: f64 = direct.values().sum();
    let found = analyzer.rank(samples, options);
    let worth = |entry: &(String, f64)| entry.1 >= 0.005;
    let left = direct.into_iter().map(|(name, count)| (name, count / whole)).filter(worth);
    let right = found
        .variables
        .iter()
        .map(|variable| (format!("{} {}", variable.kind, variable.name), variable.share));
    compare(left.collect::<Vec<_>>(), right.filter(worth).collect::<Vec<_>>())
}

/// A sample that lands up to two changes of the line after its event: by none in a quarter of the
/// cases, by two in a quarter, as in the paper's distribution.
fn skidding<'a>(trace: &'a Trace, program: &Path) -> impl FnMut(usize) -> usize + 'a {
    let lines = lines(program);
    let mut random = fastrand::Rng::with_seed(9);
    move |missed| {
        let mut changes = [0, 1, 1, 2][random.usize(0..4)];
        let mut at = missed;
        while changes > 0 && at + 1 < trace.steps.len() {
            changes -=
                usize::from(lines.get(&trace.steps[at].path[0]) != lines.get(&trace.steps[at + 1].path[0]));
            at += 1;
        }
        at
    }
}

/// File and line of each instruction, from objdump.
fn lines(program: &Path) -> BTreeMap<u64, String> {
    let shown =
        std::process::Command::new("objdump").args(["-dl", "--no-show-raw-insn"]).arg(program).output();
    let (mut lines, mut line) = (BTreeMap::new(), String::new());
    for row in String::from_utf8_lossy(&shown.unwrap().stdout).lines() {
        if row.contains(".c:") || row.contains(".h:") {
            line = row.split(" (").next().unwrap_or_default().to_owned();
        } else if let Some((address, _)) = row.trim().split_once(':')
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            lines.insert(address, line.clone());
        }
    }
    lines
}

/// What is demanded: how many of the first ten of the direct ranking are among the first ten, and
/// τ-b over those.
#[track_caller]
fn expect(what: &str, found: &RankComparison<String>, overlap: usize, tau: f64) {
    let seen = (found.top_overlap, found.tau_b_top.unwrap());
    assert!(
        seen.0 >= overlap && seen.1 >= tau,
        "{what}: {seen:?} of {}\n{:#?}",
        found.top_possible,
        found.rows
    );
}

fn check(flags: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path(), "many", flags);
    let trace = run(&program);
    assert!(misses(&trace).len() > 150);
    let mut at_once = |at| at;
    let lines = Options::default();
    let instructions = Options { level: Level::Instruction, ..Options::default() };
    expect("instructions", &rank(&program, &trace, &instructions, &mut at_once), 10, 1.0);
    expect("lines", &rank(&program, &trace, &lines, &mut at_once), 9, 0.7);
    let raw = rank(&program, &trace, &lines, &mut skidding(&trace, &program));
    let negated = Options { skid: Some(Gaussian::paper()), ..lines };
    let negated = rank(&program, &trace, &negated, &mut skidding(&trace, &program));
    expect("lines with skid", &negated, 8, 0.7);
    assert!(negated.tau_b > raw.tau_b && negated.tau_b_top > raw.tau_b_top, "{raw:#?}\n{negated:#?}");
    let away = Options { skid: Some(Gaussian { mean: 3.0, variance: 4.0, reach: None }), ..instructions };
    let away = rank(&program, &trace, &away, &mut skidding(&trace, &program));
    assert!(away.top_overlap >= 8 && away.tau_b >= Some(0.55), "{away:#?}");
}

/// A sample that is displaced keeps its weight; by one change of the line it leaves its line, and
/// negation finds it again.
#[test]
fn displaced_samples_leave_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path(), "many", &["-O1"]);
    let (trace, lines) = (run(&program), lines(&program));
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&program).unwrap();
    let one = Gaussian { mean: 1.0, variance: 0.0, reach: None };
    let (mut followed, mut left) = (0.0, 0.0);
    for (at, _) in misses(&trace) {
        let path = &trace.steps[at].path;
        let frames: Vec<_> = path.iter().map(|address| Some(Frame { module, address: *address })).collect();
        let sample = Sample { frames, weight: 2.0 };
        let moved = analyzer.displaced(&sample, Level::Line, &one);
        assert!((moved.iter().map(|sample| sample.weight).sum::<f64>() - 2.0).abs() < 1e-9, "{moved:?}");
        let line = |sample: &Sample| lines.get(&sample.frames[0].unwrap().address).cloned();
        for moved in moved {
            let stays = moved.frames == sample.frames;
            assert!(stays || line(&moved) != line(&sample), "{moved:?}");
            *if stays { &mut left } else { &mut followed } += moved.weight;
        }
    }
    assert!(followed > 20.0 * left, "{followed} {left}");
}

#[test]
fn rankings_o1() {
    check(&["-O1"]);
}

#[test]
fn rankings_o2() {
    check(&["-O2"]);
}
