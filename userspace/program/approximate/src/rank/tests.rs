//! The whole way from a compiled program to shares: the paper's Figure 2, and files that are not as
//! they should be.

use std::path::PathBuf;
use std::process::Command;

use proptest::prelude::*;

use super::*;

/// Line of `one_line`'s loop.
const ONE_LINE: u32 = 22;

struct Built {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn build(program: &str, flags: &[&str]) -> Built {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(program);
    let source = format!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/{}.c"), program);
    let status = Command::new("gcc").args(["-w"]).args(flags).arg("-o").arg(&path).arg(source).status();
    assert!(status.unwrap().success());
    Built { _directory: directory, path }
}

/// An address of code of each line from `first` on, the last one that reads memory.
fn addresses(
    analyzer: &mut Analyzer,
    module: ModuleId,
    function: &str,
    lines: std::ops::Range<u32>,
) -> Vec<u64> {
    let start = analyzer.program.symbol(module, function).unwrap();
    let function = analyzer.program.function(module, start).unwrap();
    let on = |line: u32| {
        let at = (0..function.lines.len())
            .rev()
            .find(|at| {
                function.lines[*at].is_some_and(|found| found.line == line)
                    && function.flow.accesses[*at].iter().any(|access| access.reads)
            })
            .unwrap();
        function.graph.instructions[at].ip()
    };
    lines.map(on).collect()
}

fn sample(module: ModuleId, address: u64) -> Sample {
    Sample { frames: vec![Some(Frame { module, address })], weight: 1.0 }
}

fn share_of(found: &Attribution, name: &str) -> f64 {
    found.variables.iter().find(|variable| variable.name == name).map_or(0.0, |variable| variable.share)
}

#[track_caller]
fn expect(found: &Attribution, wanted: [(&str, f64); 4]) {
    assert_eq!(found.unattributed, BTreeMap::new());
    for (name, wanted) in wanted {
        let share = share_of(found, name);
        assert!((share - wanted).abs() < 5e-5, "{name}: {share} instead of {wanted}\n{found:?}");
    }
}

/// Lines 2 to 4 of the figure are lines 8 to 10 of the program.
#[test]
fn figure_2_from_machine_code() {
    let built = build("figure2", &["-g", "-O0"]);
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&built.path).unwrap();
    let at = addresses(&mut analyzer, module, "figure2", 8..11);
    let mut rank = |lines: &[u64], options: &Options| {
        analyzer.rank(lines.iter().map(|address| sample(module, *address)), options)
    };
    let raw = Options { loop_compensation: false, ..Options::default() };
    expect(&rank(&at[..1], &raw), [("x", 0.25), ("y", 0.25), ("a", 0.25), ("b", 0.25)]);
    expect(&rank(&at[1..2], &raw), [("x", 0.0), ("y", 0.5), ("a", 0.25), ("b", 0.25)]);
    expect(&rank(&at[2..], &raw), [("x", 0.5), ("y", 0.0), ("a", 0.0), ("b", 0.5)]);
    // One sample on each line: the sums of the table, b's as its column says.
    expect(&rank(&at, &raw), [("x", 0.75 / 3.0), ("y", 0.75 / 3.0), ("a", 0.5 / 3.0), ("b", 1.0 / 3.0)]);
    // Eq. 5's weights 1.4638, 1.1711, .4375 and 0, scaled to one sample.
    let whole = 1.463_815_8 + 1.171_052_6 + 0.4375;
    let compensated = Options::default();
    let wanted = [("x", 1.463_815_8 / whole), ("y", 1.171_052_6 / whole), ("a", 0.4375 / whole), ("b", 0.0)];
    expect(&rank(&at[..1], &compensated), wanted);
    expect(&rank(&at[2..], &compensated), [("x", 1.0), ("y", 0.0), ("a", 0.0), ("b", 0.0)]);
    // The skid table, with y read twice on line 3 and x not at all.
    let skid = Options { skid: Some(Gaussian::paper()), ..raw };
    expect(&rank(&at[2..], &skid), [("x", 0.142_857), ("y", 0.357_143), ("a", 0.214_286), ("b", 0.285_714)]);
}

/// At instructions each read stands alone, and a skid of one instruction finds the one before.
#[test]
fn skid_of_instructions() {
    let built = build("figure2", &["-g", "-O1"]);
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&built.path).unwrap();
    let address = addresses(&mut analyzer, module, "one_line", ONE_LINE..ONE_LINE + 1)[0];
    let exact = Options { level: Level::Instruction, loop_compensation: false, ..Options::default() };
    let without = analyzer.rank([sample(module, address)], &exact);
    assert_eq!(without.variables.len(), 1, "{without:?}");
    let function = analyzer.program.function(module, address).unwrap();
    let at = function.graph.instruction_at(address).unwrap();
    let after = function.graph.instructions[at].next_ip();
    let skid = Gaussian { mean: 1.0, variance: 0.0, reach: None };
    let with = analyzer.rank([sample(module, after)], &Options { skid: Some(skid), ..exact });
    assert_eq!(with.variables, without.variables);
    // Before the loop's first instruction runs most often its last one: that of the instruction
    // before it is the loop's.
    let around = function.graph.blocks[function.graph.block_of(at).unwrap()].innermost.unwrap();
    let head = &function.graph.blocks[function.graph.loops[around].head];
    let before = before(&function, head.instructions.start, Level::Instruction, &skid);
    assert_eq!(before.len(), 2);
    let again = before.values().fold(0.0_f64, |most, chance| most.max(*chance));
    assert!((again - 0.88).abs() < 1e-9, "{before:?}");
}

/// One line is the whole loop: eq. 1 gives all reads weight 0, and the raw assignment stays.
#[test]
fn a_loop_on_one_line() {
    let built = build("figure2", &["-g", "-O1"]);
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&built.path).unwrap();
    let address = addresses(&mut analyzer, module, "one_line", ONE_LINE..ONE_LINE + 1)[0];
    let found = analyzer.rank([sample(module, address)], &Options::default());
    expect(&found, [("x", 0.5), ("y", 0.5), ("a", 0.0), ("b", 0.0)]);
}

#[test]
fn ignored_lines() {
    let built = build("figure2", &["-g", "-O0"]);
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&built.path).unwrap();
    let at = addresses(&mut analyzer, module, "figure2", 8..11);
    let mut options = Options { loop_compensation: false, ..Options::default() };
    options.ignore = vec!["figure2.c:5-6".parse().unwrap()];
    let found = analyzer.rank([sample(module, at[0])], &options);
    expect(&found, [("x", 0.5), ("y", 0.5), ("a", 0.0), ("b", 0.0)]);
    options.ignore.push("figure2.c:1-5".parse().unwrap());
    let found = analyzer.rank([sample(module, at[0])], &options);
    assert_eq!(found.unattributed, BTreeMap::from([(Reason::Ignored, 1.0)]));
}

#[test]
fn reasons() {
    let one = |flags: &[&str], address: &dyn Fn(&mut Analyzer, ModuleId) -> u64| {
        let built = build("figure2", flags);
        let mut analyzer = Analyzer::new();
        let module = analyzer.open(&built.path).unwrap();
        let address = address(&mut analyzer, module);
        let found = analyzer.rank([sample(module, address)], &Options::default());
        assert_eq!(found.variables, []);
        *found.unattributed.keys().next().unwrap()
    };
    let function = |analyzer: &mut Analyzer, module| analyzer.program.symbol(module, "figure2").unwrap();
    assert_eq!(one(&["-O1"], &function), Reason::NoDebugInfo);
    assert_eq!(one(&["-O1", "-s"], &|_, _| 0x1150), Reason::NoDebugInfo);
    assert_eq!(one(&["-O1", "-g"], &|_, _| 0x10), Reason::NotCovered);
    assert_eq!(one(&["-O1", "-g"], &|_, _| u64::MAX), Reason::NotCovered);
    let start = |analyzer: &mut Analyzer, module| analyzer.program.symbol(module, "_start").unwrap();
    assert_eq!(one(&["-O1", "-g"], &start), Reason::NotCovered);
}

/// Read where the `.dwo` file is, and said where it is not.
#[test]
fn split_debug_info() {
    let built = build("figure2", &["-g", "-O0", "-gsplit-dwarf"]);
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&built.path).unwrap();
    let at = addresses(&mut analyzer, module, "figure2", 8..9);
    let found = analyzer.rank([sample(module, at[0])], &Options::default());
    assert!(share_of(&found, "x") > 0.4, "{found:?}");
    let files = std::fs::read_dir(built._directory.path()).unwrap().map(|file| file.unwrap().path());
    let parts = files.filter(|file| file.extension().is_some_and(|extension| extension == "dwo"));
    assert_eq!(parts.map(std::fs::remove_file).filter(Result::is_ok).count(), 1);
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&built.path).unwrap();
    let found = analyzer.rank([sample(module, at[0])], &Options::default());
    assert_eq!(found.unattributed, BTreeMap::from([(Reason::SplitDebugInfo, 1.0)]));
}

#[test]
fn compressed_sections() {
    let built = build("figure2", &["-g", "-O0", "-gz=zlib"]);
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&built.path).unwrap();
    let at = addresses(&mut analyzer, module, "figure2", 8..9);
    let found = analyzer.rank([sample(module, at[0])], &Options::default());
    assert!(share_of(&found, "x") > 0.4, "{found:?}");
}

#[test]
fn samples_without_anything() {
    let mut analyzer = Analyzer::new();
    assert_eq!(analyzer.rank([], &Options::default()), Attribution::default());
    let nowhere = [
        Sample { frames: vec![], weight: 1.0 },
        Sample { frames: vec![None], weight: 3.0 },
        Sample { frames: vec![Some(Frame { module: ModuleId(7), address: 1 })], weight: 4.0 },
        Sample { frames: vec![], weight: f64::NAN },
        Sample { frames: vec![], weight: -1.0 },
    ];
    let found = analyzer.rank(nowhere, &Options::default());
    assert_eq!((found.samples, found.weight), (3, 8.0));
    assert_eq!(found.unattributed, BTreeMap::from([(Reason::NoModule, 1.0)]));
    assert_eq!(analyzer.open(Path::new("/")), Err(Unreadable::File("invalid input parameter".to_owned())));
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    std::fs::write(&text, "int main;").unwrap();
    assert_eq!(analyzer.open(&text), Err(Unreadable::NotElf));
    let us = std::env::current_exe().unwrap();
    let another = analyzer.open_traced(&us, "0123");
    assert!(matches!(&another, Err(Unreadable::Another { traced, .. }) if traced == "0123"), "{another:?}");
}

/// A sample in a library belongs to what was passed: `memcpy(to, from, …)` reads `from`.
#[test]
fn inside_the_library() {
    let built = build("copies", &["-g", "-O2", "-fno-builtin"]);
    let mut analyzer = Analyzer::new();
    let module = analyzer.open(&built.path).unwrap();
    let main = analyzer.program.symbol(module, "main").unwrap();
    let function = analyzer.program.function(module, main).unwrap();
    let mut calls: Vec<u64> = function.flow.calls.keys().copied().collect();
    calls.sort_unstable();
    let mut named = |callee: &str, accesses| {
        let call = *calls
            .iter()
            .find(|call| {
                let target = function.flow.calls[*call].target.unwrap();
                analyzer.program.callee(module, target).as_deref() == Some(callee)
            })
            .unwrap();
        let frames = vec![None, Some(Frame { module, address: call })];
        let found =
            analyzer.rank([Sample { frames, weight: 2.0 }], &Options { accesses, ..Options::default() });
        let names = found.variables.iter().map(|variable| (variable.name.clone(), variable.share));
        (names.collect::<BTreeMap<_, _>>(), found.unattributed)
    };
    let one = |name: &str| (BTreeMap::from([(name.to_owned(), 1.0)]), BTreeMap::new());
    let two = (BTreeMap::from([("from".to_owned(), 0.5), ("to".to_owned(), 0.5)]), BTreeMap::new());
    assert_eq!(named("memcpy", Accesses::default()), one("from"));
    assert_eq!(named("memcpy", Accesses::ReadsAndWrites), two);
    assert_eq!(named("memset", Accesses::default()), one("to"));
    assert_eq!(named("memset", Accesses::Reads).1, BTreeMap::from([(Reason::NoModule, 1.0)]));
    assert_eq!(named("strlen", Accesses::default()), one("text"));
    assert_eq!(named("malloc", Accesses::default()).1, BTreeMap::from([(Reason::NoModule, 1.0)]));
}

/// All instructions of a file, whatever is in it.
fn rank_all(path: &Path, addresses: impl Iterator<Item = u64>) {
    let mut analyzer = Analyzer::new();
    let Ok(module) = analyzer.open(path) else { return };
    let frame = |address| Some(Frame { module, address });
    let samples: Vec<Sample> = addresses
        .map(|address| Sample {
            frames: vec![frame(address), frame(address ^ 0x35), frame(0x1180)],
            weight: 1.0,
        })
        .collect();
    for level in [Level::Line, Level::Instruction] {
        let skid = Some(Gaussian::paper());
        let options = Options { level, skid, accesses: Accesses::ReadsAndWrites, ..Options::default() };
        let found = analyzer.rank(samples.iter().cloned(), &options);
        let sum: f64 = found
            .variables
            .iter()
            .map(|variable| variable.share)
            .chain(found.unattributed.into_values())
            .sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Bytes changed anywhere, files cut anywhere: no panic, and the shares sum to one.
    #[test]
    fn broken_files(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        static BYTES: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| std::fs::read(&build("structs", &["-g", "-O1"]).path).unwrap());
        let mut bytes = BYTES.clone();
        for (at, byte) in &flips {
            // Most of the changes into the headers, the tables and the debug information.
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broken");
        std::fs::write(&path, &bytes).unwrap();
        rank_all(&path, (0x1100..0x1900).step_by(7));
    }
}
