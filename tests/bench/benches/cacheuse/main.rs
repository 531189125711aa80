//! Our cache use against Callgrind's: `cargo xtask bench cacheuse`. Counts by function and as a
//! whole, and time.
//!
//! Each program runs once under Callgrind (`--cache-sim=yes --cacheuse=yes`) and once
//! under `exact --compatible callgrind`, with equal caches; both write files in
//! Callgrind's format, which are compared event by event. Functions of the program's own
//! code (file and libraries, without the C library) with at least a thousandth of an event
//! are printed if differing by more than 0.5 %, the largest share of an event first, and
//! wholes by more than 1 %. Code without symbols is one row a file. Time is wall time, the
//! median of `--rounds`, beside QEMU with an empty memory callback. Sources of error: the
//! two processors differ in features, and the C library takes different variants;
//! addresses of stack, heap and libraries differ; for times, further work on the machine.
//!
//! Arguments: `--rounds N` (default 3; 0: no times),
//! `--only NAME[,NAME…]`, `--keep FOLDER` (leaves the files in FOLDER).
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints its table and ends with the first thing that is wrong"
)]

mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use locality_tests::callgrind::{Costs, Difference, differences};
use programs::{PROGRAMS, Program};

/// Compared events.
const EVENTS: [&str; 10] =
    ["Dr", "Dw", "D1mr", "D1mw", "DLmr", "DLmw", "AcCost1", "SpLoss1", "AcCost2", "SpLoss2"];
/// Allowed relative difference of a function's costs,
const FUNCTION: f64 = 0.005;
/// and of a whole program's costs.
const WHOLE: f64 = 0.01;
/// Functions below this share of an event are counted, not printed.
const SMALL: f64 = 0.001;
/// Number of printed differences of a program.
const MOST: usize = 20;
/// Size, ways and line, for both.
const CACHES: [(&str, u64, u32, u32); 3] =
    [("I1", 32 << 10, 8, 64), ("L1", 32 << 10, 8, 64), ("LL", 1 << 20, 16, 64)];

struct Options {
    rounds: u32,
    only: Vec<String>,
    keep: Option<PathBuf>,
}

fn main() {
    let options = options();
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = options.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder).expect("a folder");
    let folder = folder.canonicalize().expect("a folder");
    programs::prepare(&folder);
    let chosen: Vec<&Program> = PROGRAMS
        .iter()
        .filter(|program| options.only.is_empty() || options.only.iter().any(|n| n == program.name))
        .collect();
    println!(
        "Difference of the whole run, in percent of Callgrind's count (ours minus its), then of the program's own code:\n"
    );
    println!("| program | {} | functions | beyond 0.5 % |", EVENTS.join(" | "));
    println!("|---|{}---|---|", "---|".repeat(EVENTS.len()));
    let mut remarks = Vec::new();
    for program in &chosen {
        let (ours, theirs) = files(program, &folder);
        compare(program, &ours, &theirs, &mut remarks);
    }
    println!("\nLarger differences (ours, Callgrind's):\n");
    for remark in &remarks {
        println!("- {remark}");
    }
    if options.rounds > 0 {
        times(&chosen, &folder, options.rounds);
    }
}

fn options() -> Options {
    let mut options = Options { rounds: 3, only: Vec::new(), keep: None };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().expect("a value behind each option");
        match word.as_str() {
            "--rounds" => options.rounds = value.parse().expect("a number of rounds"),
            "--only" => options.only = value.split(',').map(str::to_owned).collect(),
            "--keep" => options.keep = Some(value.into()),
            _ => panic!("unknown option {word}: --rounds N, --only NAME,…, --keep FOLDER"),
        }
    }
    options
}

/// Costs written by our run and by Callgrind.
fn files(program: &Program, folder: &Path) -> (Costs, Costs) {
    let path = |kind: &str| folder.join(format!("{}.{kind}.out", program.name));
    let (ours, theirs) = (path("ours"), path("callgrind"));
    run(&callgrind(program, folder, &theirs), None);
    let theirs = Costs::read(&theirs);
    // Valgrind has the dynamic linker load a library of its own: our
    // run then loads the library too, for equal work of the linker.
    let preloaded =
        theirs.functions.keys().map(|(object, _)| object).find(|object| object.contains("vgpreload_"));
    run(&exact(program, folder, &ours, true), preloaded.map(String::as_str));
    (Costs::read(&ours), theirs)
}

fn exact(program: &Program, folder: &Path, out: &Path, compatible: bool) -> Vec<String> {
    let mut words = vec![binary().display().to_string(), "exact".into(), "-q".into()];
    if compatible {
        words.extend(["--compatible".into(), "callgrind".into()]);
    }
    for (name, bytes, ways, line) in CACHES.iter().skip(usize::from(!compatible)) {
        words.extend(["--cache".into(), format!("{name}={bytes},{ways},{line}")]);
    }
    words.extend(["--format".into(), "callgrind".into(), "--report".into(), out.display().to_string()]);
    words.push("--".into());
    words.extend(program.words(folder));
    words
}

fn callgrind(program: &Program, folder: &Path, out: &Path) -> Vec<String> {
    let mut words: Vec<String> = ["valgrind", "-q", "--tool=callgrind", "--cache-sim=yes", "--cacheuse=yes"]
        .map(str::to_owned)
        .to_vec();
    for (name, bytes, ways, line) in CACHES {
        let name = if name == "L1" { "D1" } else { name };
        words.push(format!("--{name}={bytes},{ways},{line}"));
    }
    words.push(format!("--callgrind-out-file={}", out.display()));
    words.extend(program.words(folder));
    words
}

/// QEMU with the plugin alone, without a report.
fn plugin(program: &Program, folder: &Path, words_of_plugin: &str) -> Vec<String> {
    let plugin = locality_shell::plugin();
    let mut words: Vec<String> = ["qemu-x86_64", "-cpu", "max", "-plugin"].map(str::to_owned).to_vec();
    let runs = folder.join("runs");
    let command = program.words(folder);
    let files = format!("folder={},program={}", runs.display(), command[0]);
    words.push(format!("file={},{files},{words_of_plugin}", plugin.display()));
    words.extend(command);
    words
}

/// The data caches for the plugin.
fn data_caches() -> String {
    let levels =
        CACHES.iter().skip(1).map(|(name, bytes, ways, line)| format!("{name}:{bytes}/{ways}/{line}"));
    format!("reuse=0,cache={}", levels.collect::<Vec<_>>().join("+"))
}

/// Seconds; with a library that the dynamic linker loads besides.
fn run(words: &[String], preloaded: Option<&str>) -> f64 {
    let started = Instant::now();
    let done = Command::new(&words[0])
        .args(&words[1..])
        .envs(preloaded.map(|library| ("LD_PRELOAD", library)))
        .envs([("OMP_NUM_THREADS", "1"), ("PYTHONHASHSEED", "0"), ("PERL_HASH_SEED", "0")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .expect("a command that starts");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "`{}` failed: {}\n{stderr}", words.join(" "), done.status);
    started.elapsed().as_secs_f64()
}

fn binary() -> PathBuf {
    std::env::var_os("LOCALITY_BPF").expect("LOCALITY_BPF: run `cargo xtask bench cacheuse`").into()
}

fn compare(program: &Program, ours: &Costs, theirs: &Costs, remarks: &mut Vec<String>) {
    let cell = |a: u64, b: u64| match (a, b) {
        (0, 0) => "0".to_owned(),
        (_, 0) => "new".to_owned(),
        _ => format!("{:+.2}", (a as f64 - b as f64) / b as f64 * 100.0),
    };
    let (own, its) = (ours.own(), theirs.own());
    let sum = |costs: &Costs, table: &BTreeMap<String, Vec<u64>>, event: &str| -> u64 {
        let column = costs.column(event).unwrap_or(usize::MAX);
        table.values().filter_map(|row| row.get(column)).sum()
    };
    let cells: Vec<String> = EVENTS
        .iter()
        .map(|event| {
            let of_file = cell(sum(ours, &own, event), sum(theirs, &its, event));
            format!("{} / {of_file}", cell(ours.sum(event), theirs.sum(event)))
        })
        .collect();
    let found = differences((ours, &own), (theirs, &its), &EVENTS);
    let large: Vec<&Difference> = found.iter().filter(|one| one.share >= SMALL).collect();
    let mut beyond: Vec<&Difference> = large.iter().copied().filter(|one| one.relative > FUNCTION).collect();
    beyond.sort_by(|x, y| (y.share * y.relative).total_cmp(&(x.share * x.relative)));
    println!(
        "| {} | {} | {} | {} of {} |",
        program.name,
        cells.join(" | "),
        own.len(),
        beyond.len(),
        large.len(),
    );
    let tell = |name: &str, event: &str, a: u64, b: u64| {
        format!("{}: {name} {event}: {a}, {b} ({})", program.name, cell(a, b) + " %")
    };
    for one in beyond.iter().take(MOST) {
        remarks.push(tell(&one.name, &one.event, one.a, one.b));
    }
    if beyond.len() > MOST {
        remarks.push(format!("{}: {} more", program.name, beyond.len() - MOST));
    }
    let small = found.iter().filter(|one| one.share < SMALL && one.relative > FUNCTION).count();
    if small > 0 {
        remarks.push(format!("{}: {small} more in functions below {SMALL} of their event", program.name));
    }
    let wholes = [(ours.of_object(None), theirs.of_object(None))];
    for event in EVENTS {
        let (a, b) = (ours.sum(event), theirs.sum(event));
        if a.abs_diff(b) as f64 > WHOLE * a.max(b) as f64 {
            remarks.push(tell("the whole run", event, a, b));
            for (a, b) in &wholes {
                let all = differences((ours, a), (theirs, b), &[event]);
                let all = all.iter().filter(|one| one.share > SMALL && one.relative > FUNCTION);
                remarks.extend(all.map(|one| "  in ".to_owned() + &tell(&one.name, event, one.a, one.b)));
            }
        }
    }
}

fn times(chosen: &[&Program], folder: &Path, rounds: u32) {
    println!(
        "\nSeconds, then ratios; \"alone\": the plugin without a report, without and with inclusive costs, and with objects too:\n"
    );
    println!(
        "| program | QEMU, empty callback | compatible | own model | Callgrind | alone, self costs | alone, inclusive | alone, objects | \
         compatible ÷ floor | own ÷ floor | Callgrind ÷ compatible | Callgrind ÷ own | inclusive ÷ self | objects ÷ inclusive |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let nothing = Path::new("/dev/null");
    let (caches, runs) = (data_caches(), folder.join("runs"));
    for program in chosen {
        let commands = [
            plugin(program, folder, "mode=empty"),
            exact(program, folder, nothing, true),
            exact(program, folder, nothing, false),
            callgrind(program, folder, nothing),
            plugin(program, folder, &format!("{caches}+self")),
            plugin(program, folder, &caches),
            plugin(program, folder, &format!("{caches}+objects")),
        ];
        let mut taken = [const { Vec::new() }; 7];
        for _ in 0..rounds {
            for (taken, command) in taken.iter_mut().zip(&commands) {
                std::fs::create_dir_all(&runs).expect("a folder");
                taken.push(run(command, None));
                std::fs::remove_dir_all(&runs).expect("the plugin's files");
            }
        }
        let [floor, compatible, own, callgrind, alone, inclusive, objects] = taken.map(median);
        println!(
            "| {} | {floor:.2} | {compatible:.2} | {own:.2} | {callgrind:.2} | {alone:.2} | {inclusive:.2} | {objects:.2} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} |",
            program.name,
            compatible / floor,
            own / floor,
            callgrind / compatible,
            callgrind / own,
            inclusive / alone,
            objects / inclusive,
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
