//! The execution model of real traces: trip counts of a program with known loops, effects of new
//! inputs and edits, machines, an exact run of the program, and refusals; gzip, a program without symbols.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use locality_tests::live::beside;
use locality_tests::{Traced, Tracer, build, requires};
use serde_json::Value;

const N: f64 = 300.0;

/// A trace of the known program, and a copy of the program that tests may replace.
struct Trace {
    folder: tempfile::TempDir,
    profile: PathBuf,
    program: PathBuf,
}

fn trace() -> &'static Trace {
    static TRACE: OnceLock<Trace> = OnceLock::new();
    TRACE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("execution_model");
        std::fs::copy(build("execution_model"), &program).expect("a copy");
        let profile = folder.path().join("t.locality");
        let _beside = beside();
        let traced = launched(&profile, &[program.to_str().expect("a path"), "300", "9"]);
        assert!(traced.status.success(), "{}", traced.stderr);
        Trace { folder, profile, program }
    })
}

fn launched(profile: &Path, command: &[&str]) -> Traced {
    Tracer::new()
        .args(["--overhead", "4", "-o"])
        .args([profile.as_os_str()])
        .args(["--report", "/dev/null", "--"])
        .args(command)
        .run()
}

fn model(profile: &Path, arguments: &[&str]) -> Traced {
    Tracer::new().args(["model".as_ref(), profile.as_os_str()]).args(arguments).run()
}

fn json(profile: &Path, arguments: &[&str]) -> Value {
    let traced = model(profile, &[&["--format", "json"], arguments].concat());
    assert!(traced.status.success(), "{}", traced.stderr);
    serde_json::from_str(&traced.stdout).expect("JSON")
}

/// Loops of a function on the hot path, outer ones first: bound and iterations.
fn loops(path: &Value, function: &str, inside: bool, found: &mut Vec<(String, f64)>) {
    for node in path.as_array().into_iter().flatten() {
        let name = node["function"].as_str();
        let inside = name.map_or(inside, |name| name == function);
        if inside && let Some(bound) = node["bound"].as_str() {
            let one = (bound.to_owned(), node["iterations"].as_f64().unwrap_or(f64::NAN));
            if !found.contains(&one) {
                found.push(one);
            }
        }
        loops(&node["below"], function, inside, found);
    }
}

fn executions_ratio(model: &Value, function: &str) -> f64 {
    let spots = model["spots"].as_array().expect("spots");
    // The heaviest spot of a function is its innermost loop.
    let spot = spots.iter().find(|spot| spot["place"]["function"] == function);
    spot.and_then(|spot| spot["executions_ratio"].as_f64())
        .unwrap_or_else(|| panic!("no {function} in {model:#}"))
}

fn near(found: f64, expected: f64, relative: f64) -> bool {
    (found / expected - 1.0).abs() <= relative
}

#[test]
fn trip_counts_are_expressions_that_live_values_evaluate() {
    requires!(root, btf);
    let model = json(&trace().profile, &[]);
    assert_eq!(model["schema"], "locality-model/1");
    let of = |function: &str| {
        let mut found = Vec::new();
        loops(&model["path"], function, false, &mut found);
        found
    };
    let stencil = of("stencil");
    assert!(
        stencil.len() == 2 || stencil == [("arg0 - 2".to_owned(), N - 2.0)],
        "both loops have one expression: {stencil:?} in {model:#}"
    );
    assert!(stencil.iter().all(|(bound, trips)| bound == "arg0 - 2" && *trips == N - 2.0), "{stencil:?}");
    let fixed = of("fixed");
    assert!(fixed.iter().all(|(bound, trips)| bound == "30000" && *trips == 30_000.0), "{fixed:?}");
    assert!(!fixed.is_empty(), "{model:#}");
    // The paths of a tree with one root sum to all of the time.
    let all: f64 =
        model["path"].as_array().expect("a path").iter().filter_map(|node| node["share"].as_f64()).sum();
    assert!((0.9..=1.000_001).contains(&all), "{all}");
    let selected = model["coverage"]["value"].as_f64().expect("a number");
    let leanness = model["leanness"]["value"].as_f64().expect("a number");
    assert!(selected > 0.0 && leanness <= 0.1, "{selected} {leanness}");
}

#[test]
fn another_size_changes_each_spot_as_its_loops_say() {
    requires!(root, btf);
    let profile = &trace().profile;
    let plain = json(profile, &[]);
    let inputs = plain["inputs"].as_array().expect("inputs");
    let size = inputs
        .iter()
        .find(|input| {
            input["value"] == N && input["name"].as_str().is_some_and(|name| name.starts_with("main."))
        })
        .unwrap_or_else(|| panic!("the size is an input of main: {inputs:#?}"));
    let name = size["name"].as_str().expect("a name");
    let half = json(profile, &["--set", &format!("{name}=150")]);
    let m = N / 2.0;
    let stencil = ((m - 2.0) / (N - 2.0)).powi(2);
    assert!(near(executions_ratio(&half, "stencil"), stencil, 0.01), "{stencil} in {half:#}");
    let triangle = m * (m - 1.0) / (N * (N - 1.0));
    let found = half["spots"].as_array().expect("spots");
    if found.iter().any(|spot| spot["place"]["function"] == "triangle") {
        assert!(near(executions_ratio(&half, "triangle"), triangle, 0.01), "{triangle} in {half:#}");
    }
    assert!(near(executions_ratio(&half, "fixed"), 1.0, 1e-6), "{half:#}");
    assert!(half["time_ratio"].as_f64().expect("a number") < 1.0);
}

#[test]
fn a_skeleton_comes_back_as_it_was_and_edits_take_work_away() {
    requires!(root, btf);
    let Trace { folder, profile, .. } = trace();
    let file = folder.path().join("edited.skel");
    let path = file.to_str().expect("a path");
    let printed = model(profile, &["--format", "skeleton", "-o", path]);
    assert!(printed.status.success(), "{}", printed.stderr);
    let same = json(profile, &["--skeleton", path]);
    assert_eq!(same["instructions_ratio"], 1.0);
    let again = model(profile, &["--skeleton", path, "--format", "skeleton"]);
    let text = std::fs::read_to_string(&file).expect("the skeleton");
    for (again, first) in again.stdout.lines().zip(text.lines()) {
        assert_eq!(again, first);
    }
    assert_eq!(again.stdout.lines().count(), text.lines().count());
    // The loop of `fixed` is left out.
    assert_eq!(text.matches("bound `30000`").count(), 1, "{text}");
    let line = text.lines().find(|line| line.contains("bound `30000`")).expect("the loop");
    let edited = text.replace(line, &line.replace(" exits 1", " exits 1 remove"));
    std::fs::write(&file, &edited).expect("written");
    let without = json(profile, &["--skeleton", path]);
    assert_eq!(executions_ratio(&without, "fixed"), 0.0);
    assert!(near(executions_ratio(&without, "stencil"), 1.0, 1e-9));
    // Four lanes a step.
    std::fs::write(&file, text.replace(line, &line.replace(" exits 1", " exits 1 vector 4")))
        .expect("written");
    let vector = json(profile, &["--skeleton", path]);
    assert!(near(executions_ratio(&vector, "fixed"), 0.25, 1e-3), "{vector:#}");
    // Four cores take a quarter of the time for as many instructions.
    std::fs::write(&file, text.replace(line, &line.replace(" exits 1", " exits 1 parallel 4")))
        .expect("written");
    let parallel = json(profile, &["--skeleton", path]);
    assert!(near(executions_ratio(&parallel, "fixed"), 1.0, 1e-9), "{parallel:#}");
    assert!(parallel["time_ratio"].as_f64().expect("a number") < 0.95, "{parallel:#}");
    let dot = model(profile, &["--format", "dot"]);
    assert!(dot.stdout.starts_with("digraph model {") && dot.stdout.contains("stencil"), "{}", dot.stdout);
    let fdata = model(profile, &["--format", "fdata"]);
    let is_line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        words.len() == 8
            && words[0] == "1"
            && words[3] == "1"
            && words[7].parse::<u64>().is_ok_and(|count| count > 0)
    };
    assert!(fdata.stdout.lines().count() >= 3 && fdata.stdout.lines().all(is_line), "{}", fdata.stdout);
}

#[test]
fn what_cannot_be_used_is_refused_in_a_sentence() {
    requires!(root, btf);
    let Trace { folder, profile, program } = trace();
    model(profile, &["--set", "stencl.arg9=5"])
        .assert_refused(2, &["has no input of that name", "near ones are"]);
    model(profile, &["--set", "n"]).assert_refused(2, &["--set wants NAME=VALUE"]);
    model(profile, &["--set", "n=many"]).assert_refused(2, &["a value is a number"]);
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        file.to_str().expect("a path").to_owned()
    };
    let broken = write("broken.skel", "skeleton 1\nfn \"f\" @ \"a\":10 calls 1 {\n  b10: -> b20:1\n}\n");
    model(profile, &["--skeleton", &broken])
        .assert_refused(1, &["line 3, column 11", "there is no block b20"]);
    let other = write("other.skel", "skeleton 1\nfile \"execution_model\" \"00ff\"\n");
    model(profile, &["--skeleton", &other]).assert_refused(1, &["another build of execution_model"]);
    let machine = write("bad.toml", "name = \"x\"\nisa = \"x86-64\"\nclock_ghz = 3.0\n");
    model(profile, &["--machine", &machine]).assert_refused(1, &["`clock_ghz` must be { value"]);
    model(profile, &["--machine", "/no/such/machine"]).assert_refused(1, &["cannot read /no/such/machine"]);
    let exact = write("exact.json", r#"{"schema":"locality-report/1","run":{"mode":"exact"}}"#);
    model(Path::new(&exact), &[]).assert_refused(1, &["the report of an exact run"]);
    // A program replaced since the trace is not read, and the page says this.
    let copy = folder.path().join("replaced.locality");
    let victim = folder.path().join("victim");
    std::fs::copy(program, &victim).expect("a copy");
    let traced = launched(&copy, &[victim.to_str().expect("a path"), "100", "2"]);
    assert!(traced.status.success(), "{}", traced.stderr);
    std::fs::remove_file(&victim).expect("removed");
    std::fs::copy("/bin/true", &victim).expect("replaced");
    let said = model(&copy, &[]);
    let words = format!("{}{}", said.stdout, said.stderr).replace("\n  ", " ");
    assert!(words.contains("it was replaced since the trace"), "{words}");
}

#[test]
fn a_program_without_symbols_has_spots_and_loops() {
    requires!(root, btf, command("gzip"));
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("gzip.locality");
    let input = folder.path().join("input");
    // Text with occasional repetitions.
    let text: String = (0..1_200_000_u64).map(|i| format!("{} ", i.wrapping_mul(i) % 9_973)).collect();
    std::fs::write(&input, text.repeat(4)).expect("written");
    let output = folder.path().join("out.gz");
    let _beside = beside();
    let command = format!("gzip -9 -c {} > {}", input.display(), output.display());
    let traced = launched(&profile, &["sh", "-c", &format!("exec {command}")]);
    assert!(traced.status.success(), "{}", traced.stderr);
    let model = json(&profile, &[]);
    let spots = model["spots"].as_array().expect("spots");
    let first = &spots[0];
    assert_eq!(first["place"]["module"], "gzip", "{model:#}");
    assert!(first["place"]["loop"].is_string(), "{first:#}");
    assert!(first["share_here"]["value"].as_f64().expect("a share") > 0.2, "{first:#}");
    let interval = first["share_here"]["ci95"].as_array().expect("an interval");
    assert!(interval[0].as_f64() <= first["share_here"]["value"].as_f64());
}

/// Two calibrations of one machine differ where neighbours use its shared cache: 0.66 to 1.00 was seen.
#[test]
fn a_calibration_is_a_machine_on_which_the_run_takes_as_long() {
    requires!(root, btf);
    let Trace { folder, profile, .. } = trace();
    let file = folder.path().join("here.toml");
    let path = file.to_str().expect("a path");
    let calibrated = {
        let _beside = beside();
        Tracer::new().args(["calibrate", "--format", "toml", "-o", path]).run()
    };
    assert!(calibrated.status.success(), "{}", calibrated.stderr);
    let text = std::fs::read_to_string(&file).expect("the machine");
    for line in text.lines().filter(|line| line.contains("value = ")) {
        assert!(line.contains("source = \"") && line.contains("kind = \""), "{line}");
    }
    for cost in ["schedule", "paper"] {
        let model = json(profile, &["--machine", path, "--cost", cost]);
        let ratio = model["speed_ratio"][0]["value"].as_f64().expect("a number");
        assert!((0.5..2.0).contains(&ratio), "{cost}: {ratio} with {text}");
    }
}

#[test]
fn the_parts_of_a_spots_time_sum_to_all_of_it() {
    requires!(root, btf);
    let model = json(&trace().profile, &[]);
    let spots = model["spots"].as_array().expect("spots");
    let of = |function: &str| {
        let spot = spots.iter().find(|spot| spot["place"]["function"] == function);
        spot.unwrap_or_else(|| panic!("no {function} in {model:#}"))
    };
    for spot in spots.iter().filter(|spot| spot["breakdown"].is_object()) {
        let parts = &spot["breakdown"];
        let waits: f64 = parts["waits"].as_object().expect("levels").values().filter_map(Value::as_f64).sum();
        let compute = parts["compute"].as_f64().expect("a number");
        assert!(compute >= 0.0 && near(compute + waits, 1.0, 1e-6), "{spot:#}");
    }
    // A walk through half a megabyte, each load after the other, against a row of neighbours.
    let fixed = of("fixed");
    assert!(fixed["breakdown"]["compute"].as_f64().expect("a number") < 0.9, "{fixed:#}");
    assert!(fixed["cycles"].as_f64().expect("a number") >= 4.0, "{fixed:#}");
    let distance = |spot: &Value| spot["instructions_per_l1_miss"].as_f64().unwrap_or(f64::INFINITY);
    assert!(distance(fixed) < distance(of("rows_of")), "{fixed:#} {:#}", of("rows_of"));
}

#[test]
fn a_picture_has_a_row_for_each_step_of_the_path() {
    requires!(root, btf);
    let picture = model(&trace().profile, &["--format", "svg"]);
    assert!(picture.status.success(), "{}", picture.stderr);
    let page = picture.stdout;
    assert!(page.starts_with("<svg ") && page.ends_with("</svg>") && !page.contains("<script"), "{page}");
    assert!(page.contains("arg0 - 2") && page.contains("stencil</text>"), "{page}");
}

fn exactly(file: &Path, command: &[&str]) {
    let _beside = beside();
    let done = Tracer::new()
        .args(["exact".as_ref(), "-o".as_ref(), file.as_os_str()])
        .args(["--report", "/dev/null", "--"])
        .args(command)
        .run();
    assert!(done.status.success(), "{}", done.stderr);
}

/// The rounds of both runs are alike, so their number does not matter.
#[test]
fn an_exact_run_confirms_trips_branches_and_executions() {
    requires!(root, btf);
    requires!(command("qemu-x86_64"));
    let Trace { folder, profile, program } = trace();
    let file = folder.path().join("same.exact");
    exactly(&file, &[program.to_str().expect("a path"), "300", "1"]);
    let path = file.to_str().expect("a path");
    let found = json(profile, &["--check", path]);
    let check = &found["check"];
    // The inner loops of the square have an exact count.
    let loops = check["loops"].as_array().expect("loops");
    let square: Vec<&Value> = loops.iter().filter(|row| row["function"] == "stencil").collect();
    assert!(!square.is_empty(), "{check:#}");
    for row in square {
        let exact = row["exact"].as_f64().expect("a number");
        assert!(near(exact, N - 2.0, 1e-3) && row["iterations"] == N - 2.0, "{row:#}");
    }
    let number = |pointer: &str| check.pointer(pointer).and_then(Value::as_f64).expect("a number");
    assert!(number("/branches/mean") < 0.02 && number("/branches/n") > 5.0, "{check:#}");
    // 300 windows would be within 0.10; this trace has some tens.
    assert!(number("/total_variation/windows") < 0.35, "{check:#}");
    for (cost, counts) in [("schedule", "exact"), ("schedule", "windows"), ("paper", "exact")] {
        let quality = check["selection_quality"][cost][counts].as_array().expect("a row");
        let within =
            quality.iter().all(|value| value.as_f64().is_some_and(|value| (0.0..=1.0).contains(&value)));
        assert!(!quality.is_empty() && quality.len() <= 10 && within, "{quality:?}");
    }
    let text = model(profile, &["--check", path]);
    assert!(text.stdout.contains("The model against the exact run"), "{}", text.stdout);
}

#[test]
fn an_exact_run_of_another_program_is_refused() {
    requires!(root, btf);
    requires!(command("qemu-x86_64"));
    let Trace { folder, profile, .. } = trace();
    let file = folder.path().join("other.exact");
    exactly(&file, &["/bin/true"]);
    let refused = model(profile, &["--check", file.to_str().expect("a path")]);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{}", refused.stdout);
    let words = refused.stderr.trim();
    assert!(words.contains("is the exact run of another program") && words.lines().count() == 1, "{words}");
    // A profile in place of the exact run, and a picture with nothing compared.
    let swapped = model(profile, &["--check", profile.to_str().expect("a path")]);
    assert!(swapped.stderr.contains("is no report of an exact run"), "{}", swapped.stderr);
    let picture = model(profile, &["--check", file.to_str().expect("a path"), "--format", "svg"]);
    assert!(picture.stderr.contains("--format text or json"), "{}", picture.stderr);
    assert_eq!(picture.status.code(), Some(2));
}
