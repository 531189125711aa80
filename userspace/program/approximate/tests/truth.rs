//! Programs of known truth: each read, seen by stepping through the program, against what the
//! analysis says of its instruction and path.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what fails here fails the test")]

mod oracle;

use std::collections::BTreeMap;
use std::path::Path;

use locality_approximate::{Accesses, Analyzer, Attribution, Frame, Level, Options, Sample};
use oracle::{Trace, build, run};

/// Reads by call path, with their objects.
type Reads = BTreeMap<Vec<u64>, BTreeMap<String, u64>>;

fn reads(trace: &Trace) -> Reads {
    let mut reads = Reads::new();
    for step in &trace.steps {
        for owner in step.reads.iter().filter_map(|address| trace.owner(*address)) {
            *reads.entry(step.path.clone()).or_default().entry(owner.to_owned()).or_default() += 1;
        }
    }
    reads
}

/// Runs the analysis on one path.
fn attribute(analyzer: &mut Analyzer, program: &Path, path: &[u64], options: &Options) -> Attribution {
    let module = analyzer.open(program).unwrap();
    let frames = path.iter().map(|address| Some(Frame { module, address: *address })).collect();
    analyzer.rank([Sample { frames, weight: 1.0 }], options)
}

fn shares(found: &Attribution) -> BTreeMap<String, f64> {
    found
        .variables
        .iter()
        .map(|variable| (format!("{} {}", variable.kind, variable.name), variable.share))
        .collect()
}

/// The part of all reads whose object is the one that the analysis says, instruction by
/// instruction; and what is wrong.
fn agreement(program: &Path, truth: &Reads) -> (f64, Vec<String>) {
    let mut analyzer = Analyzer::new();
    let options = Options {
        level: Level::Instruction,
        loop_compensation: false,
        accesses: Accesses::Reads,
        ..Options::default()
    };
    let (mut right, mut all, mut wrong) = (0.0, 0.0, Vec::new());
    for (path, objects) in truth {
        let found = attribute(&mut analyzer, program, path, &options);
        let shares = shares(&found);
        let weight: u64 = objects.values().sum();
        let common: f64 = objects
            .iter()
            .map(|(name, count)| {
                (*count as f64 / weight as f64).min(shares.get(name).copied().unwrap_or(0.0))
            })
            .sum();
        right += common * weight as f64;
        all += weight as f64;
        if common < 0.99 {
            wrong.push(format!("{path:x?}: {objects:?}, but found {shares:?} {:?}", found.unattributed));
        }
    }
    (right / all, wrong)
}

#[track_caller]
fn check(program: &str, flags: &[&str], least: f64) {
    let directory = tempfile::tempdir().unwrap();
    let path = build(directory.path(), program, flags);
    let truth = reads(&run(&path));
    assert!(truth.len() > 3, "{truth:?}");
    let (right, wrong) = agreement(&path, &truth);
    assert!(
        right >= least,
        "{program} {flags:?}: {right}\n{}",
        wrong.iter().take(8).cloned().collect::<Vec<_>>().join("\n")
    );
}

macro_rules! programs {
    ($($name:ident: $program:literal, $flags:expr, $least:literal;)*) => {$(
        #[test]
        fn $name() {
            check($program, &$flags, $least);
        }
    )*};
}

programs! {
    arrays_o0: "arrays", ["-O0"], 1.0;
    arrays_o1: "arrays", ["-O1"], 1.0;
    arrays_o2: "arrays", ["-O2"], 1.0;
    arrays_fixed: "arrays", ["-O2", "-no-pie", "-fno-pie"], 1.0;
    aliases_o0: "aliases", ["-O0"], 1.0;
    aliases_o1: "aliases", ["-O1"], 1.0;
    aliases_o2: "aliases", ["-O2"], 1.0;
    structs_o0: "structs", ["-O0"], 1.0;
    structs_o1: "structs", ["-O1"], 1.0;
    structs_o2: "structs", ["-O2"], 1.0;
    calls_o0: "calls", ["-O0"], 1.0;
    calls_o1: "calls", ["-O1"], 1.0;
    calls_o2: "calls", ["-O2"], 1.0;
    calls_o3: "calls", ["-O3", "-mavx2"], 1.0;
    arrays_o3: "arrays", ["-O3"], 1.0;
    // An iterator that a call has returned is named by itself.
    classes_o0: "classes", ["-O0"], 0.8;
    classes_o2: "classes", ["-O2"], 1.0;
    deep_o0: "deep", ["-O0"], 1.0;
    deep_o1: "deep", ["-O1"], 1.0;
    deep_o2: "deep", ["-O2"], 1.0;
    deep_o2_frames: "deep", ["-O2", "-fno-omit-frame-pointer", "-fno-ipa-ra"], 1.0;
}
