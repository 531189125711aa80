//! Parallelism of exact runs: closed forms on a real process, views, windows, predictors, threads, a
//! kill, and wrong use.

use std::os::unix::process::ExitStatusExt as _;

use locality_tests::{Traced, Tracer, build, requires};
use serde_json::Value;

const TURNS: u64 = 1000;

fn run(options: &[&str], what: &[&str]) -> (Traced, Value) {
    exact(&[&["--parallelism"], options].concat(), what)
}

fn exact(options: &[&str], what: &[&str]) -> (Traced, Value) {
    exact_of("parallelism", options, what)
}

/// `tasks.c` under `--tasks`.
fn tasks(nodes: &str, options: &[&str], what: &[&str]) -> Value {
    let all = [&["--parallelism", "--window", "inf", "--tasks", nodes], options].concat();
    let (_, mut report) = exact_of("tasks", &all, what);
    report["tasks"].take()
}

fn exact_of(program: &str, options: &[&str], what: &[&str]) -> (Traced, Value) {
    let program = build(program).into_os_string();
    let command = std::iter::once(program).chain(what.iter().map(Into::into));
    Tracer::new().args(["exact", "--format", "json"]).args(options).report_of(command)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value:#}"))
}

/// Cycles by window: the calls of `chain` are two chains of multiplications, and in `apart` only the
/// counter is one, which the values do not wait for.
#[test]
fn calls_of_a_function_have_their_closed_form() {
    requires!(command("qemu-x86_64"));
    let cycles = |options: &[&str]| {
        let (done, report) = run(options, &[]);
        assert!(done.status.success(), "{}", done.stderr);
        let parallelism = &report["parallelism"];
        assert_eq!(parallelism["calls"], 2);
        let instructions = number(&parallelism["instructions"]);
        assert!((6 * TURNS..6 * TURNS + 40).contains(&instructions), "{instructions}");
        let windows = parallelism["windows"].as_array().expect("windows");
        for window in windows {
            let bins = window["by_parallelism"].as_array().expect("bins");
            let sum: u64 = bins.iter().map(|bin| number(&bin["instructions"])).sum();
            assert_eq!(sum, instructions, "all instructions are in a bin");
            let classes = bins.iter().flat_map(|bin| bin["by_class"].as_object().expect("classes").values());
            assert_eq!(classes.map(number).sum::<u64>(), instructions);
        }
        windows.iter().map(|window| number(&window["cycles"])).collect::<Vec<_>>()
    };
    let near = |cycles: u64, expected: u64| {
        assert!((expected..expected + 12).contains(&cycles), "{cycles} {expected}")
    };
    for cycles in cycles(&["--inclusive", "chain"]) {
        near(cycles, 2 * TURNS);
    }
    let apart = cycles(&["--inclusive", "apart", "--window", "1,12,inf"]);
    near(apart[0], 6 * TURNS);
    near(apart[2], 0);
    assert!(apart[1] < TURNS && apart[1] > 6 * TURNS / 12 - 12, "{apart:?}");
    let machine = cycles(&["--inclusive", "apart", "--view", "machine", "--window", "inf"]);
    near(machine[0], 2 * TURNS);
    let slow = cycles(&["--inclusive", "chain", "--latency", "machine", "--window", "inf"]);
    near(slow[0], 2 * 3 * TURNS);
}

#[test]
fn several_functions_stand_beside_the_whole() {
    requires!(command("qemu-x86_64"));
    let (_, report) = run(&["--inclusive", "chain", "--inclusive", "apart"], &[]);
    let functions = report["functions"].as_array().expect("functions");
    assert_eq!((&functions[0]["function"], &functions[1]["function"]), (&"chain".into(), &"apart".into()));
    assert!(functions.iter().all(|function| function["calls"] == 2), "{functions:?}");
    let whole = &report["parallelism"];
    assert!(whole["function"].is_null() && number(&whole["instructions"]) > 12 * TURNS);
    assert_eq!(
        (&whole["view"], &whole["latency"], &whole["predictor"]),
        (&"values".into(), &"unit".into(), &"perfect".into())
    );
    let windows = whole["windows"].as_array().expect("windows");
    let sizes: Vec<&Value> = windows.iter().map(|window| &window["window"]).collect();
    assert_eq!(sizes, [&Value::from(64), &512.into(), &"inf".into()]);
    let cycles: Vec<u64> = windows.iter().map(|window| number(&window["cycles"])).collect();
    assert!(cycles.is_sorted_by(|a, b| a >= b), "larger windows are no slower: {cycles:?}");
    assert!(
        report["reuse"].as_object().expect("reuse").is_empty() && report["empty"].is_null(),
        "{report:#}"
    );
    assert!(number(&report["mix"]["accesses"]) > 1000);
}

#[test]
fn branches_that_chance_decides_are_mispredicted() {
    requires!(command("qemu-x86_64"));
    let options = ["--inclusive", "flips", "--window", "inf", "--predict", "perfect,gshare:16,tage,none"];
    let (_, report) = run(&options, &[]);
    let windows = report["parallelism"]["windows"].as_array().expect("windows");
    let missed: Vec<u64> = windows.iter().map(|window| number(&window["mispredicted"])).collect();
    let cycles: Vec<u64> = windows.iter().map(|window| number(&window["cycles"])).collect();
    assert_eq!(missed[0], 0);
    assert!(missed[1..3].iter().all(|missed| (TURNS / 2..3 * TURNS).contains(missed)), "{missed:?}");
    assert!(missed[3] >= 4 * TURNS, "each turn has two branches: {missed:?}");
    assert!(cycles[0] <= cycles[1] && cycles[1] <= cycles[3], "{cycles:?}");
    let branch = &report["branches"][0];
    assert_eq!(branch["place"]["function"], "flips");
    assert!(branch["place"]["file"].as_str().expect("a file").ends_with("parallelism.c"));
    assert!(branch["entropy"].as_f64().expect("entropy") > 0.9, "{branch}");
}

#[test]
fn threads_are_summed_and_told_apart() {
    requires!(command("qemu-x86_64"));
    let (done, report) = run(&["--inclusive", "chain"], &["thread"]);
    assert!(done.status.success(), "{}", done.stderr);
    let parallelism = &report["parallelism"];
    assert_eq!(parallelism["calls"], TURNS + 2);
    let threads = parallelism["threads"].as_array().expect("threads");
    assert_eq!(threads.len(), 2);
    let sum: u64 = threads.iter().map(|thread| number(&thread["instructions"])).sum();
    assert_eq!(sum, number(&parallelism["instructions"]));
    let ilp = threads[0]["ilp"][0].as_f64().expect("a number");
    assert!((2.9..3.1).contains(&ilp), "{ilp}");
}

#[test]
fn a_run_that_is_killed_stands_as_far_as_it_got() {
    requires!(command("qemu-x86_64"));
    let (done, report) = run(&["--inclusive", "chain", "--inclusive", "apart"], &["kill"]);
    assert!(!done.status.success() && done.status.signal().is_none());
    assert_eq!(report["partial"], true);
    assert_eq!((&report["functions"][0]["calls"], &report["functions"][1]["calls"]), (&2.into(), &2.into()));
}

/// Calls restrict reuse, the mix and simulated caches too: a call of `chain` accesses nothing but its
/// return address.
#[test]
fn calls_restrict_the_other_counts() {
    requires!(command("qemu-x86_64"));
    for options in [&["--granularity", "8"][..], &["--cache", "L1=32K,8,64"], &["--instructions"]] {
        let (done, report) = exact(&[&["--inclusive", "chain"], options].concat(), &[]);
        assert!(done.status.success(), "{}", done.stderr);
        let mix = &report["mix"];
        let instructions = number(&mix["instructions"]);
        assert!((6 * TURNS..6 * TURNS + 40).contains(&instructions), "{options:?} {instructions}");
        let accesses = number(&mix["accesses"]);
        let fetched = if options[0] == "--instructions" { instructions } else { 2 };
        assert_eq!(accesses, fetched, "{options:?}");
    }
}

/// Calls that wait for each other have no parallelism; calls that do not have all but what the caller
/// needs to start them.
#[test]
fn calls_are_tasks() {
    requires!(command("qemu-x86_64"));
    let (calls, body) = (200, 3 * TURNS);
    let in_turn = tasks("functions", &["--inclusive", "in_turn"], &[]);
    assert_eq!(number(&in_turn["executions"]), calls + 1);
    let (work, span) = (number(&in_turn["work"]), number(&in_turn["span"]));
    assert!(work > calls * body && span > calls * body && work - span < 8 * calls, "{work} {span}");
    let apart = tasks("functions", &["--inclusive", "apart"], &[]);
    let (work, span) = (number(&apart["work"]), number(&apart["span"]));
    // The caller starts 200 calls, with a few instructions each; the last call ends the run.
    assert!(work > calls * body && span < body + 8 * calls, "{work} {span}");
    let tlp = apart["tlp"].as_f64().expect("a number");
    assert!((tlp - work as f64 / span as f64).abs() < 1e-9 && tlp > 125.0, "{tlp}");
    let nodes: Vec<(&str, u64)> = apart["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| (node["place"]["function"].as_str().expect("a name"), number(&node["executions"])))
        .collect();
    assert_eq!(nodes, [("work", calls), ("apart", 1)]);
}

#[test]
fn a_producer_hands_over_every_byte_once() {
    requires!(command("qemu-x86_64"));
    let found = tasks("functions", &["--inclusive", "hand_over", "--partition", "2"], &[]);
    let rows = found["communication"].as_array().expect("rows");
    let row = |from: &str, to: &str| {
        let is = |row: &&Value| row["from"]["function"] == from && row["to"]["function"] == to;
        rows.iter().filter(|row| row["through"] == "memory").find(is)
    };
    let bytes = row("produce", "consume").expect("communication");
    assert_eq!((number(&bytes["bytes"]), number(&bytes["values"])), (8 * TURNS, TURNS));
    assert!(row("consume", "produce").is_none(), "{rows:?}");
    // Producer and consumer are the only division into about equal halves.
    let partition = &found["partitions"][0];
    let parts = partition["parts"].as_array().expect("parts");
    let first = |part: &Value| part["nodes"][0]["place"]["function"].as_str().expect("a name").to_owned();
    assert_eq!((first(&parts[0]), first(&parts[1])), ("produce".into(), "consume".into()));
    assert_eq!(partition["cut_bytes"], partition["nodes_bytes"]);
    assert_eq!((number(&partition["cut_bytes"]), &partition["acyclic"]), (8 * TURNS, &true.into()));
    let works: u64 = parts.iter().map(|part| number(&part["work"])).sum();
    assert_eq!(works, number(&found["work"]));
}

/// Calls in turn make iterations that wait for each other; calls apart make iterations that do not. A sum
/// is a chain unless reductions are ignored.
#[test]
fn loops_have_the_parallelism_of_their_iterations() {
    requires!(command("qemu-x86_64"));
    let measure = |function: &str, options: &[&str]| {
        let all = ["--parallelism", "--window", "inf", "--self-parallelism", "--inclusive", function];
        let (done, mut report) = exact_of("tasks", &[&all, options].concat(), &[]);
        assert!(done.status.success(), "{}", done.stderr);
        report["self_parallelism"].take()
    };
    let region = |found: &Value, kind: &str, function: &str| {
        let regions = found["regions"].as_array().expect("regions");
        let is = |one: &&Value| one["kind"] == kind && one["place"]["function"] == function;
        regions.iter().find(is).unwrap_or_else(|| panic!("no {kind} {function}: {found:#}")).clone()
    };
    let parallelism = |one: &Value| one["self_parallelism"].as_f64().expect("a number");
    let in_turn = region(&measure("in_turn", &[]), "loop", "in_turn");
    // The first iteration stands before the loop is known.
    assert_eq!((&in_turn["iterations"], &in_turn["instances"]), (&199.into(), &1.into()));
    assert!((1.0..1.01).contains(&parallelism(&in_turn)), "{in_turn}");
    let found = measure("apart", &["--processors", "4"]);
    let apart = region(&found, "loop", "apart");
    assert!((190.0..=199.0).contains(&parallelism(&apart)), "{apart}");
    let share = number(&apart["work"]) as f64 / number(&found["work"]) as f64;
    let expected = 1.0 / (1.0 - share + share / 4.0);
    let speed_up = apart["speed_up"].as_f64().expect("a number");
    assert!((speed_up - expected).abs() < 1e-9 && speed_up > 3.9, "{speed_up} {expected}");
    let work = region(&found, "function", "work");
    assert_eq!((number(&work["instances"]), &work["iterations"]), (200, &Value::Null));
    assert!(number(&work["span"]).abs_diff(200 * TURNS) < 200 * 4, "{work}");
    let sum = region(&measure("consume", &[]), "loop", "consume");
    assert!((1.9..2.1).contains(&parallelism(&sum)), "{sum}");
    let found = measure("consume", &["--ignore", "stack,induction,copies,reductions"]);
    assert!(parallelism(&region(&found, "loop", "consume")) > 300.0, "{found:#}");
    assert_eq!(found["ignored"], serde_json::json!(["stack", "induction", "copies", "reductions"]));
}

#[test]
fn killed_regions_stand_as_far_as_they_got() {
    requires!(command("qemu-x86_64"));
    let (done, report) = exact_of("tasks", &["--parallelism", "--self-parallelism"], &["kill"]);
    assert!(!done.status.success());
    assert_eq!(report["partial"], true);
    let regions = report["self_parallelism"]["regions"].as_array().expect("regions");
    let work = regions.iter().find(|one| one["kind"] == "function" && one["place"]["function"] == "work");
    assert!(number(&work.expect("the function")["work"]) > 390 * 3 * TURNS, "{work:?}");
}

/// The other thread reads 1000 words of the main thread, and what starts it; the main thread reads little.
#[test]
fn threads_hand_over_what_one_wrote_and_another_read() {
    requires!(command("qemu-x86_64"));
    let (done, report) = exact_of("tasks", &["--one-order"], &["share"]);
    assert!(done.status.code().is_some(), "{}", done.stderr);
    let rows = report["sharing"].as_array().expect("rows");
    let main = number(&report["run"]["pids"][0]);
    let sum = |is_main: bool| -> u64 {
        let rows = rows.iter().filter(|row| (number(&row["from"]) == main) == is_main);
        rows.map(|row| number(&row["bytes"])).sum()
    };
    assert!((8 * TURNS..8 * TURNS + 4096).contains(&sum(true)), "{rows:?}");
    assert!((8..4096).contains(&sum(false)), "{rows:?}");
    assert!(rows.iter().all(|row| row["from"] != row["to"]), "{rows:?}");
    let (_, alone) = exact_of("tasks", &[], &["share"]);
    assert!(alone["sharing"].is_null());
}

/// A line with a counter in memory chains the iterations; without the line none is chained.
#[test]
fn ignored_lines_pass_nothing_on() {
    requires!(command("qemu-x86_64"));
    let source = include_str!("../programs/tasks.c");
    let line = 1 + source.lines().position(|line| line.contains("/* stepped */")).expect("the line");
    let lines = format!("tasks.c:{line}");
    let function = ["--inclusive", "stepped"];
    let all = tasks("loops", &function, &[]);
    let without = tasks("loops", &[&function[..], &["--ignore-lines", &lines]].concat(), &[]);
    assert_eq!(all["work"], without["work"]);
    assert!(number(&all["span"]) + 20 > number(&all["work"]), "{all:#}");
    assert!(number(&without["span"]) < 50, "{without:#}");
    assert_eq!(without["ignored"], serde_json::json!(["stack", "induction", "copies", lines]));
    // Each iteration has a load and a store of the line, and of the array; the mix counts all.
    let touches = |options: &[&str]| {
        let options = [&function[..], &["--granularity", "8"], options].concat();
        let (_, report) = exact_of("tasks", &options, &[]);
        (number(&report["reuse"]["8"]["touches"]), number(&report["mix"]["instructions"]))
    };
    let (every, instructions) = touches(&[]);
    for beside in [&[][..], &["--parallelism"]] {
        let options = [&["--ignore-lines", &lines][..], beside].concat();
        assert_eq!(touches(&options), (every - 2 * TURNS, instructions), "{beside:?}");
    }
}

/// Shapes of the 2012 paper's distributions for its classes of applications, compiled as there.
#[test]
fn application_classes_have_their_shapes() {
    requires!(command("qemu-x86_64"));
    let measure = |kernel: &str, size: &str| {
        let options = ["--inclusive", kernel, "--window", "64,512,inf", "--predict", "perfect,gshare:16"];
        let (done, report) =
            exact_of("application_classes", &[&["--parallelism"], &options[..]].concat(), &[kernel, size]);
        assert!(done.status.success(), "{}", done.stderr);
        let windows = report["parallelism"]["windows"].as_array().expect("windows").clone();
        assert_eq!(windows.len(), 6);
        let instructions = number(&report["parallelism"]["instructions"]);
        let ilp: Vec<f64> = windows.iter().map(|window| window["ilp"].as_f64().expect("a number")).collect();
        assert!(
            ilp[..3].is_sorted() && ilp[3..].is_sorted(),
            "{kernel}: larger windows are no slower {ilp:?}"
        );
        assert!((0..3).all(|at| ilp[at] >= ilp[at + 3]), "{kernel}: a predictor gains nothing {ilp:?}");
        for window in &windows {
            let bins = window["by_parallelism"].as_array().expect("bins");
            let classes = bins.iter().flat_map(|bin| bin["by_class"].as_object().expect("classes").values());
            assert_eq!(classes.map(number).sum::<u64>(), instructions, "{kernel}");
            let stretches = window["over_time"].as_array().expect("stretches");
            assert!(!stretches.is_empty() || instructions < 1024, "{kernel}");
        }
        ilp[2]
    };
    for (kernel, size) in [
        ("sparse", "200"),
        ("stencil", "100"),
        ("fourier", "64"),
        ("sort", "60"),
        ("graph", "200"),
        ("bodies", "24"),
        ("bound", "20"),
    ] {
        assert!(measure(kernel, size) > 1.0, "{kernel}");
    }
    // Independent rows and columns: with n a side, the parallelism grows faster than n.
    let [small, large] = ["8", "32"].map(|size| measure("dense", size));
    assert!(large > 4.0 * small, "{small} {large}");
}

/// Lines of a library are found as those of the program: its only load is the line's.
#[test]
fn lines_of_libraries_are_ignored_too() {
    requires!(command("qemu-x86_64"));
    let source = include_str!("../programs/library_pair.c");
    let line = 1 + source.lines().position(|line| line.contains("REUSE:across_library")).expect("the line");
    let lines = format!("library_pair.c:{line}");
    let touches = |options: &[&str]| {
        let all = [&["--inclusive", "library_total", "--granularity", "8"], options].concat();
        let (done, report) = exact_of("library_pair", &all, &["0.2"]);
        assert!(done.status.success(), "{}", done.stderr);
        number(&report["reuse"]["8"]["touches"])
    };
    let (every, without) = (touches(&[]), touches(&["--ignore-lines", &lines]));
    assert!(every > 1 << 20 && without < 1000, "{every} {without}");
    // A child's lines are not known before.
    let tracer = Tracer::new().args(["exact", "--ignore-lines", &lines, "--", "/bin/sh", "-c", "true"]);
    let refused = tracer.run();
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
}

#[test]
fn killed_tasks_stand_as_far_as_they_got() {
    requires!(command("qemu-x86_64"));
    for nodes in ["blocks", "functions", "loops"] {
        let (done, report) = exact_of("tasks", &["--parallelism", "--tasks", nodes], &["kill"]);
        assert!(!done.status.success());
        assert_eq!(report["partial"], true);
        let found = &report["tasks"];
        // The kill may come within a buffer of one of the engines, which then loses the buffer.
        let (work, instructions) = (number(&found["work"]), number(&report["parallelism"]["instructions"]));
        let torn = number(&report["counted_in_part"]);
        assert!(work == instructions || torn > 0, "{nodes} {work} {instructions} {torn}");
        assert!(work.abs_diff(instructions) < 10 * 4096, "{nodes} {work} {instructions}");
        let nodes = found["nodes"].as_array().expect("nodes");
        let work = nodes.iter().find(|node| node["place"]["function"] == "work").expect("the function");
        assert!(number(&work["executions"]) >= 400 && number(&work["work"]) > 300 * 3 * TURNS, "{work}");
    }
}

#[test]
fn wrong_lines_are_one_sentence() {
    for (program, lines, words) in [
        (build("tasks"), "tasks.c:1", &["no code of tasks.c:1", "nearest"][..]),
        (build("tasks"), "other.c:1", &["no code of a file other.c", "tasks.c"]),
        (build("tasks"), "tasks.c", &["is not FILE:LINES"]),
        ("/bin/true".into(), "true.c:1", &["needs debug information", "-g"]),
    ] {
        for options in [&[][..], &["--parallelism"]] {
            let tracer = Tracer::new().args(["exact", "--ignore-lines", lines]).args(options);
            let refused = tracer.args(["--"]).args([&program]).run();
            assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
            assert!(words.iter().all(|word| refused.stderr.contains(word)), "{words:?}: {}", refused.stderr);
        }
    }
}

#[test]
fn the_text_names_the_view() {
    requires!(command("qemu-x86_64"));
    let tracer = Tracer::new().args(["exact", "--parallelism", "--predict", "gshare:16", "--"]);
    let done = tracer.args([build("parallelism")]).run();
    let page = done.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "view values",
        "stack, induction, copies",
        "one cycle an instruction",
        "gshare:16",
        "Branches that were mispredicted",
        "flips",
    ] {
        assert!(page.contains(part), "{part} in\n{}", done.stderr);
    }
    let done = Tracer::new()
        .args(["exact", "--parallelism", "--inclusive", "nothing", "--"])
        .args([build("parallelism")])
        .run();
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("No function called `nothing`"), "{}", done.stderr);
}

#[test]
fn wrong_use_is_one_sentence() {
    for (options, words) in [
        (&["--window", "0"][..], &["`0` is no window", "inf"][..]),
        (&["--view", "machine", "--ignore", "stack"], &["--view", "--ignore"]),
        (&["--view", "values", "--latency", "machine"], &["--latency machine", "copies"]),
        (&["--predict", "gshare"], &["`gshare` is no predictor"]),
        (&["--partition", "4"], &["--tasks"]),
        (&["--tasks", "loops", "--partition", "1"], &["from 2 to 1024"]),
        (&["--tasks", "loops", "--ignore", "reductions"], &["--tasks", "--ignore reductions"]),
        (&["--processors", "4"], &["--self-parallelism"]),
        (&["--tasks", "threads"], &["blocks, functions, loops"]),
        (&["--ignore-lines", "a.c:1", "--cache-use"], &["--ignore-lines", "simulated caches"]),
        (&["--function", "chain"], &["--inclusive"]),
        (&["--one-order"], &["--one-order"]),
        (&["--window", "1,2,3,4,5", "--predict", "perfect,none"], &["10 machines", "8 at most"]),
    ] {
        let tracer = Tracer::new().args(["exact", "--parallelism"]).args(options);
        let refused = tracer.args(["--", "/bin/true"]).run();
        // The command line's own sentences end with the usage.
        assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
        assert!(words.iter().all(|word| refused.stderr.contains(word)), "{words:?}: {}", refused.stderr);
    }
    let alone = Tracer::new().args(["exact", "--window", "64", "--", "/bin/true"]).run();
    assert_eq!(alone.status.code(), Some(2), "{}", alone.stderr);
    assert!(alone.stderr.contains("--parallelism"), "{}", alone.stderr);
}

/// Windows of a live process have the parallelism and the mix of the exact run, within a tenth.
#[test]
fn a_trace_has_the_parallelism_of_the_exact_run() {
    requires!(root, btf, command("qemu-x86_64"));
    let folder = tempfile::tempdir().expect("a folder");
    let read = |tracer: Tracer, seconds: &str| {
        let command = [build("two_loops").into_os_string(), seconds.into()];
        tracer.args(["--format", "json"]).report_of(command).1
    };
    let profile = folder.path().join("t.locality");
    let _alone = locality_tests::live::alone();
    let live = |options: &[&str]| {
        read(Tracer::new().args(["-q", "--overhead", "4", "-o"]).args([&profile]).args(options), "5")
    };
    let (found, truth) =
        (live(&[]), read(Tracer::new().args(["exact", "--parallelism", "--window", "64,256"]), "0.2"));
    let ilp = |report: &Value, size: u64| {
        let windows = report["parallelism"]["windows"].as_array().expect("windows");
        windows.iter().find(|window| window["window"] == size).expect("the size").clone()
    };
    for size in [64, 256] {
        let (found, truth) = (ilp(&found, size), ilp(&truth, size)["ilp"].as_f64().expect("a number"));
        let [low, value, high] =
            [&found["ci95"][0], &found["ilp"], &found["ci95"][1]].map(|it| it.as_f64().expect("a number"));
        assert!((0.9..1.1).contains(&(value / truth)), "{found:#} {truth}");
        assert!(low <= value && value <= high && number(&found["n"]) >= 5, "{found:#}");
    }
    for part in ["loads", "stores", "branches"] {
        let [found, truth] =
            [&found, &truth].map(|report| report["mix"][part].as_f64().expect("a number of the mix"));
        assert!((found - truth).abs() < 0.02, "{part} {found} {truth}");
    }
    let without = live(&["--no-parallelism"]);
    assert!(without.get("parallelism").is_none() && without.get("mix").is_none());
}

/// A compiler may turn a condition round: a share taken is that of the branch, or the rest to 1.
#[test]
fn branches_of_a_trace_have_the_shares_and_the_entropy_of_the_program() {
    requires!(root, btf);
    let _alone = locality_tests::live::alone();
    let tracer = Tracer::new().args(["-q", "--overhead", "4", "--format", "json"]);
    let (_, report) = tracer.report_of([build("branches").as_os_str(), "5".as_ref()]);
    let branches = report["branches"].as_array().expect("branches");
    let share = |branch: &Value, key: &str| branch[key]["value"].as_f64().expect("a share");
    let with = |taken: f64| {
        let is = |share: f64| (share - taken).abs() < 0.04 || (1.0 - share - taken).abs() < 0.04;
        let found = branches.iter().find(|branch| is(share(branch, "taken_share")));
        found.unwrap_or_else(|| panic!("no branch is taken in {taken} of the executions: {branches:#?}"))
    };
    let entropy = |chance: f64| -chance * chance.log2() - (1.0 - chance) * (1.0 - chance).log2();
    for (taken, missed) in [(0.5, 0.4..0.6), (0.1, 0.08..0.25), (1.0 / 3.0, 0.0..0.03)] {
        let branch = with(taken);
        assert_eq!(branch["place"]["function"], "count", "{branch:#}");
        assert!((branch["entropy"].as_f64().expect("bits") - entropy(taken)).abs() < 0.1, "{branch:#}");
        assert!(missed.contains(&share(branch, "mispredicted_at_most")), "{branch:#}");
        assert!(number(&branch["taken"]) <= number(&branch["executed"]), "{branch:#}");
    }
}

/// A sum in one chain: the chain is the addition of the loop, with the chain's cycles.
#[test]
fn a_loop_names_the_instructions_of_its_chain() {
    requires!(root, btf);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("advice")).expect("a folder");
    let program = locality_tests::programs::build_in(folder.path(), "advice/compute", "");
    let profile = folder.path().join("t.locality");
    let _alone = locality_tests::live::alone();
    let tracer = Tracer::new().args(["-q", "-d", "5", "--overhead", "4", "--format", "json", "-o"]);
    let command = std::iter::once(program.as_os_str());
    let (_, report) =
        tracer.args([&profile]).report_of(command.chain(["chained_sum", "flawed", "6"].map(AsRef::as_ref)));
    let loops = report["loops"].as_array().expect("loops");
    let sum = loops.iter().find(|one| one["place"]["function"] == "sum_in_one_chain").expect("the loop");
    let path = sum["chain"]["path"].as_array().expect("a path");
    let source = include_str!("../programs/advice/compute.c");
    let line = 1 + source.lines().position(|line| line.contains("sum += from[i];")).expect("the line");
    assert_eq!((&path[0]["class"], &path[0]["place"]["line"]), (&"fp_add".into(), &line.into()), "{sum:#}");
    let part = |value: &Value| value.as_f64().expect("a number");
    assert!(part(&path[0]["share"]) > 0.9, "{path:#?}");
    let [step, chain] = [&path[0], &sum["chain"]].map(|of| part(&of["cycles"]["value"]));
    assert!((0.8..1.2).contains(&(step / chain)), "{step} {chain}");
    let page = Tracer::new().args(["report"]).args([&profile]).args(["--code"]).run();
    assert!(page.stdout.contains(&format!("chain: addition :{line}")), "{}", page.stdout);
}
