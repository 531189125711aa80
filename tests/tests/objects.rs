//! Data objects on real processes whose accesses to each variable are known by construction.
//!
//! Tolerance: a window draws its uses from some thousand accesses of loops that repeat every few
//! accesses, so uses are nearly independent draws from the program's mix. The share of n of them
//! differs from a true share p by more than 6·√(p(1−p)/n) in one of 500 million runs; .02 more is
//! allowed for what lies between the loops (a clock read every few hundred thousand accesses, the
//! phase that a timer prefers). No figure of time is asserted.
//!
//! `LOCALITY_OBJECTS_SAMPLES=1000 cargo test -p locality-tests --test objects
//! -- --nocapture` takes 1,000 samples of each program and prints the table of
//! docs/journal/2026-11.md: the errors of the shares, in percentage points.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::process::Command;

use locality_model::Profile;
use locality_tests::live::{Live, alone, beside};
use locality_tests::{Target, Tracer, programs, requires};
use serde_json::{Value, json};

/// Seconds of a trace.
const SECONDS: &str = "5";
/// Seconds of a trace that finds names at low priority while the program lives.
const LONGER: &str = "12";

fn trace(program: &str, arguments: &[&str]) -> Live {
    let target = Target::start(program, arguments);
    if let Some(wanted) = samples_for_the_table() {
        let enough = |live: &Live| live.profile.samples.len() >= wanted;
        return Live::trace_until(target.pid(), ["20", "40"], &["--overhead", "20"], enough);
    }
    let enough = |live: &Live| live.profile.uses.len() >= 80;
    let live = Live::trace_until(target.pid(), [SECONDS, "20"], &["--overhead", "5"], enough);
    assert!(enough(&live), "{} uses: {}", live.profile.uses.len(), live.stderr);
    live
}

fn objects(report: &Value) -> &[Value] {
    report["objects"].as_array().map_or(&[], Vec::as_slice)
}

/// The summed share of a name's rows, of every kind.
fn share_of(report: &Value, name: &str) -> f64 {
    let rows = objects(report).iter().filter(|row| row["name"] == name);
    rows.filter_map(|row| row["access_share"].as_f64()).sum()
}

fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let found = objects(report).iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no object {name}: {:#}", names(report)))
}

/// Names, kinds and shares, for messages.
fn names(report: &Value) -> Value {
    let name = |row: &Value| json!([row["name"], row["kind"], row["access_share"], row["unknown"]]);
    objects(report).iter().take(12).map(name).collect()
}

fn assert_near(what: &str, found: f64, truth: f64, n: u64, report: &Value) {
    let tolerance = 6.0 * (truth * (1.0 - truth) / n.max(1) as f64).sqrt() + 0.02;
    assert!(
        (found - truth).abs() <= tolerance,
        "{what}: {found:.3}, not {truth} ± {tolerance:.3}: {:#}",
        names(report)
    );
}

/// A number of a report; panics if missing.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

fn samples_for_the_table() -> Option<usize> {
    std::env::var("LOCALITY_OBJECTS_SAMPLES").ok()?.parse().ok()
}

/// Shares of accesses by name, and the same order of the rows by accesses.
fn assert_shares(live: &Live, truth: &[(&str, f64)]) {
    let report = &live.report;
    if samples_for_the_table().is_some() {
        let off = truth.iter().map(|(name, share)| (share_of(report, name) - share).abs() * 100.0);
        let names: Vec<&str> = truth.iter().map(|(name, _)| *name).collect();
        eprintln!(
            "| {} | {} | {} | {:.1} |",
            report["run"]["command"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default(),
            live.profile.samples.len(),
            names.join(", "),
            off.fold(0.0, f64::max),
        );
    }
    let n = whole(&report["objects_summary"]["n"]);
    // Samples without a window count with the sample's access.
    assert!(n as usize >= live.profile.uses.len(), "{n} of {}", live.profile.uses.len());
    for (name, share) in truth {
        assert_near(name, share_of(report, name), *share, n, report);
    }
    let mut rows: Vec<(f64, &str)> = objects(report)
        .iter()
        .map(|row| (number(&row["access_share"]), row["name"].as_str().unwrap_or_default()))
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let distinct = truth.windows(2).all(|pair| pair[0].1 > pair[1].1 + 0.05);
    if distinct {
        let order: Vec<&str> = rows.iter().take(truth.len()).map(|row| row.1).collect();
        let expected: Vec<&str> = truth.iter().map(|row| row.0).collect();
        assert_eq!(order, expected, "{:#}", names(report));
    }
}

/// Shares of the fields of one object.
fn assert_fields(report: &Value, name: &str, truth: &[(&str, f64)]) {
    let row = row(report, name);
    let n = whole(&row["n"]);
    for (path, share) in truth {
        let fields = row["fields"].as_array().map_or(&[][..], Vec::as_slice);
        let found: f64 = fields
            .iter()
            .filter(|field| field["path"] == *path)
            .filter_map(|field| field["access_share"].as_f64())
            .sum();
        assert_near(&format!("{name}{path}"), found, *share, n, &json!({ "objects": fields }));
    }
}

#[test]
fn globals() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["globals", "60"]);
    assert_shares(&live, &[("hot_table", 0.6), ("warm_table", 0.3), ("cold_table", 0.1)]);
    let hot = row(&live.report, "hot_table");
    assert_eq!((hot["kind"].as_str(), hot["inferred"].as_bool()), (Some("static"), Some(false)));
    assert!(hot["declared"]["file"].as_str().unwrap().ends_with("objects.c"), "{hot:#}");
    assert_eq!(hot["bytes"], 8 << 16);
    let cold = row(&live.report, "cold_table");
    assert_eq!((hot["loads"].as_f64(), cold["stores"].as_f64()), (Some(1.0), Some(1.0)));
    // Each line of code touches one array only.
    for line in hot["lines"].as_array().unwrap() {
        assert_eq!(line["kind"], "load", "{line:#}");
    }
}

#[test]
fn fields_of_nested_structures() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["nested", "60"]);
    assert_shares(&live, &[("world", 1.0)]);
    let truth = [(".bodies[].pos.x", 0.5), (".bodies[].vel.y", 0.25), (".bodies[].id", 0.25)];
    assert_fields(&live.report, "world", &truth);
    let layout = &row(&live.report, "world")["layout"][0];
    assert_eq!(
        (layout["bytes"].as_u64(), layout["padding_bytes"].as_u64()),
        (Some(96), Some(4)),
        "{layout:#}"
    );
    let hot: Vec<&str> =
        layout["hot"].as_array().unwrap().iter().filter_map(|member| member["path"].as_str()).collect();
    assert_eq!(hot, ["pos.x", "vel.y", "id"]);
    let members = layout["members"].as_array().unwrap();
    let first = &members[0];
    assert_eq!(
        (&first["path"], &first["type"], &first["offset"]),
        (&json!("pos.x"), &json!("double"), &json!(0))
    );
    assert!((number(&first["access_share"]) - 0.5).abs() < 0.2, "{layout:#}");
    let hole = members.iter().find(|member| member["hole"] == true);
    assert_eq!(hole.map(|hole| (&hole["offset"], &hole["bytes"])), Some((&json!(92), &json!(4))));
    // 8 + 8 + 4 bytes of 96: three bodies in a line in place of one and a half lines a body.
    assert_eq!(layout["split"]["bytes"], json!([96, 24]));
}

/// One array under four names in the source is one object.
#[test]
fn aliases_of_an_array() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["aliases", "60"]);
    assert_shares(&live, &[("field", 4.0 / 7.0)]);
    let n = whole(&live.report["objects_summary"]["n"]);
    assert_near("other_field", share_of(&live.report, "other_field"), 1.0 / 7.0, n, &live.report);
}

#[test]
fn arrays_of_a_frame() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["stack", "60"]);
    assert_shares(&live, &[("ring", 0.75), ("sums", 0.25)]);
    let ring = row(&live.report, "ring");
    assert_eq!((ring["kind"].as_str(), ring["function"].as_str()), (Some("stack"), Some("stack")));
}

/// Without records of allocations, blocks bear the name of
/// the pointer to the block's base, marked as inferred.
#[test]
fn heap_arrays_by_the_pointers_that_hold_them() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["heap", "60"]);
    assert_shares(&live, &[("alpha", 0.5), ("beta", 0.3), ("gamma_block", 0.2)]);
    for name in ["alpha", "beta", "gamma_block"] {
        let row = row(&live.report, name);
        assert_eq!((row["kind"].as_str(), row["inferred"].as_bool()), (Some("heap"), Some(true)), "{row:#}");
    }
    assert_eq!(live.profile.heap, None);
}

/// With records, blocks have the allocation's call path, and are known.
#[test]
fn heap_arrays_by_their_allocation() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let live = launch(&programs::build("objects"), &["heap", LONGER], &[]);
    assert_shares(&live, &[("alpha", 0.5), ("beta", 0.3), ("gamma_block", 0.2)]);
    for name in ["alpha", "beta", "gamma_block"] {
        let row = row(&live.report, name);
        assert_eq!((row["kind"].as_str(), row["inferred"].as_bool()), (Some("heap"), Some(false)), "{row:#}");
        assert_eq!(row["name_inferred"], true, "{row:#}");
        assert_eq!(row["site"]["place"]["function"], "make_heap", "{row:#}");
    }
    let heap = live.profile.heap.unwrap();
    assert!(heap.seen >= 3 && heap.made >= heap.seen && heap.sites.len() >= 3, "{heap:?}");
}

/// Launches a program, with recorded allocations unless `more` says otherwise.
fn launch(program: &Path, arguments: &[&str], more: &[&str]) -> Live {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.locality");
    let report = directory.path().join("r.json");
    let traced = Tracer::new()
        .args(["--overhead", "5", "--format", "json1", "--report"])
        .args([report.as_os_str(), "-o".as_ref(), file.as_os_str()])
        .args(more)
        .args(["--".as_ref(), program.as_os_str()])
        .args(arguments)
        .run();
    assert!(traced.status.success(), "{}", traced.stderr);
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let profile = locality_profile::read(&file).unwrap();
    Live { report, profile, stderr: traced.stderr }
}

/// Blocks smaller than the default least size, with
/// `--heap-min`; and the report about them without the option.
#[test]
fn small_blocks_by_their_allocation() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let live = launch(&programs::build("objects"), &["nodes", SECONDS], &["--heap-min", "16"]);
    let report = &live.report;
    let n = whole(&report["objects_summary"]["n"]);
    let made = |row: &&Value| row["site"]["place"]["function"] == "make_node" && row["inferred"] == false;
    let rows: Vec<&Value> = objects(report).iter().filter(made).collect();
    let [row] = rows[..] else { panic!("{} rows: {:#}", rows.len(), names(report)) };
    assert_eq!((row["kind"].as_str(), row["bytes"].as_u64()), (Some("heap"), Some(64)), "{row:#}");
    // All accesses but clock reads while the program makes the list.
    assert!(number(&row["access_share"]) > 0.5, "{:#}", names(report));
    let heap = objects(report).iter().filter(|row| row["kind"] == "heap");
    let heap: f64 = heap.filter_map(|row| row["access_share"].as_f64()).sum();
    assert_near("nodes of all blocks", number(&row["access_share"]) / heap, 1.0, n, report);
    let heap = &report["objects_summary"]["heap"];
    assert_eq!(
        (heap["min_bytes"].as_u64(), heap["min_bytes_at_end"].as_u64()),
        (Some(16), Some(16)),
        "{heap:#}"
    );
    assert!(whole(&heap["allocations_seen"]) >= 2048, "{heap:#}");
    // The same program with the default: small blocks are counted, and have names from pointers.
    let live = launch(&programs::build("objects"), &["nodes", SECONDS], &[]);
    let heap = &live.report["objects_summary"]["heap"];
    assert_eq!(heap["min_bytes"], 1024, "{heap:#}");
    assert!(whole(&heap["not_recorded"]["smaller"]) >= 2048, "{heap:#}");
    assert!(objects(&live.report).iter().all(|row| !made(&row)), "{:#}", names(&live.report));
}

/// Library data touched by a process that ends within the searchers' head start, and data touched
/// before an exec.
#[test]
fn library_tables_of_short_lived_processes() {
    requires!(root, btf, watchpoints(4));
    // Processes of milliseconds are looked at at once, or never.
    let _alone = alone();
    let live = launch(&programs::build("short_lived"), &["0.6"], &["--heap=off"]);
    let report = &live.report;
    let n = whole(&report["objects_summary"]["n"]);
    assert!(n >= 40, "{n} accesses: {}", live.stderr);
    assert_near("first_library_table", share_of(report, "first_library_table"), 0.5, n, report);
    assert_near("second_library_table", share_of(report, "second_library_table"), 0.5, n, report);
}

/// A pointer names the block at the pointer's target, not a former block at the address.
#[test]
fn a_block_is_not_named_after_another_one_at_its_place() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let live = launch(&programs::build("objects"), &["taken", "12"], &[]);
    let of = |function: &str| {
        let made_by = |row: &&Value| row["site"]["place"]["function"] == function;
        let rows: Vec<&Value> = objects(&live.report).iter().filter(made_by).collect();
        let [row] = rows[..] else { panic!("{} rows of {function}: {:#}", rows.len(), names(&live.report)) };
        assert_eq!((row["kind"].as_str(), row["inferred"].as_bool()), (Some("heap"), Some(false)), "{row:#}");
        (row["name"].as_str().unwrap().to_owned(), row["name_inferred"] == true)
    };
    let (short, long) = (of("make_short"), of("make_long"));
    // The sweeping frame's variable, or the place of the allocation.
    let by_place = |(name, inferred): &(String, bool)| name.starts_with("malloc at objects.c:") && !inferred;
    assert!(short == ("block".to_owned(), true) || by_place(&short), "{short:?}");
    // The pointer is set most of the time, but not surely at every look.
    assert!(long == ("kept".to_owned(), true) || long.0.starts_with("malloc at objects.c:"), "{long:?}");
}

/// Inherited blocks of a child have the parent's allocation sites: all accesses are the child's.
#[test]
fn heap_arrays_of_a_child() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let live = launch(&programs::build("objects"), &["forked", SECONDS], &[]);
    assert_shares(&live, &[("alpha", 0.5), ("beta", 0.3), ("gamma_block", 0.2)]);
    for name in ["alpha", "beta", "gamma_block"] {
        // Beside the blocks, a sample may show the static pointer with the same name.
        let rows = objects(&live.report).iter().filter(|row| row["name"] == name && row["kind"] == "heap");
        assert_eq!(rows.count(), 1, "{:#}", names(&live.report));
        let row = row(&live.report, name);
        assert_eq!((row["kind"].as_str(), row["inferred"].as_bool()), (Some("heap"), Some(false)), "{row:#}");
        assert_eq!(row["site"]["place"]["function"], "make_heap", "{row:#}");
    }
}

/// Not every mapping is a block: a file is a file, a
/// stack a stack, and the store of small blocks no block.
#[test]
fn files_stacks_and_stores_are_no_blocks() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    // Not the temporary folder, which may lie in memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mapped = directory.path().join("mapped.data");
    let mapped = mapped.to_str().unwrap();
    let live = launch(&programs::build("objects"), &["mapped", SECONDS, mapped], &[]);
    let report = &live.report;
    let n = whole(&report["objects_summary"]["n"]);
    assert_eq!(row(report, mapped)["kind"], "file");
    let of = |what: &dyn Fn(&&Value) -> bool| {
        objects(report).iter().filter(what).filter_map(|row| row["access_share"].as_f64()).sum::<f64>()
    };
    let stacks = of(&|row| row["kind"] == "stack" && row["unknown"] == "on another thread's stack");
    // By pointers to the nodes, or, where the C library has debug information, by the library's
    // pointer to the store; never as a known block.
    let nodes = of(&|row| (row["kind"] == "heap" || row["kind"] == "mapped") && row["inferred"] == true);
    let third = (1.0 - share_of(report, "pool_table")) / 3.0;
    assert_near("file", share_of(report, mapped), third, n, report);
    assert_near("another thread's stack", stacks, third, n, report);
    assert_near("small blocks", nodes, third, n, report);
    let recorded = objects(report).iter().filter(|row| row["kind"] == "heap" && row["inferred"] == false);
    assert!(recorded.clone().all(|row| row["bytes"].as_u64() < Some(1 << 20)), "{:#}", names(report));
}

/// Statements of a trace's report about the objects of `objects mixed`, but for figures.
fn words_of_mixed(program: &Path) -> Value {
    let mut command = Command::new(program);
    command.args(["mixed", "60"]);
    let target = Target::start_command(command);
    let live = Live::trace(target.pid(), SECONDS, &["--overhead", "5", "--heap"]);
    let truth = [(".bodies[].pos.x", 0.5), (".bodies[].vel.y", 0.25), (".bodies[].id", 0.25)];
    assert_fields(&live.report, "world", &truth);
    let words = ["world", "ring", "sums", "alpha", "beta", "gamma_block"].map(|name| {
        let row = row(&live.report, name);
        let of = ["name", "kind", "declared", "type", "bytes", "function", "inferred", "unknown"];
        of.map(|of| row[of].clone()).into_iter().collect::<Value>()
    });
    words.into_iter().collect()
}

/// A whole trace says the same, wherever the debug information lies.
#[test]
fn debug_information_in_other_places() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let truth = words_of_mixed(&programs::build("objects"));
    let declared = |name: &str| {
        let text = std::fs::read_to_string(programs::source("objects")).unwrap();
        text.lines().position(|line| line.contains(name)).unwrap() + 1
    };
    for (at, name) in [(0, "} world;"), (1, "word ring["), (3, "word *alpha")] {
        assert_eq!(truth[at][2]["line"], declared(name), "{truth:#}");
    }
    // binutils' tool for packages knows DWARF 4 only; llvm's (14) never ends on this program.
    for (flags, tool) in [("-gdwarf-5 -gsplit-dwarf", None), ("-gdwarf-4 -gsplit-dwarf", Some("dwp"))] {
        if let Some(Err(reason)) = tool.map(requires::command) {
            requires::skip(&reason);
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let program = programs::build_in(directory.path(), "objects", flags);
        let files: Vec<PathBuf> =
            std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap().path()).collect();
        let split = files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "dwo"));
        assert_eq!(split.clone().count(), 1, "{files:?}");
        if let Some(tool) = tool {
            let package = program.with_extension("dwp");
            let made = Command::new(tool).arg("-e").arg(&program).arg("-o").arg(&package).status();
            assert!(made.unwrap().success(), "{tool}");
            split.for_each(|file| std::fs::remove_file(file).unwrap());
        }
        assert_eq!(words_of_mixed(&program), truth, "{flags} {tool:?}");
    }
}

/// The clock finds a waiting load one instruction later, at an access to a different array: the
/// time belongs to the array that the load misses.
#[test]
fn cpu_time_is_that_of_the_array_whose_load_waits() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    for (program, waits, beside) in [("column", "matrix", "vector"), ("gather", "table", "running")] {
        let live = trace("stalls", &[program, "60"]);
        let share = |name: &str| row(&live.report, name)["cpu_share"].as_f64().unwrap();
        // In an untraced run either array's misses take well over half of the time.
        assert!(share(waits) > 0.5, "{program}: {} and {}", share(waits), share(beside));
        assert!(share(beside) < 0.5, "{program}: {} and {}", share(waits), share(beside));
    }
}

/// Blocks of one list are one kind of node, for every pointer to a block.
#[test]
fn nodes_of_a_list() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["list", "60"]);
    let heap: Vec<&Value> = objects(&live.report).iter().filter(|row| row["kind"] == "heap").collect();
    let share: f64 = heap.iter().filter_map(|row| row["access_share"].as_f64()).sum();
    let n = live.report["objects_summary"]["n"].as_u64().unwrap();
    assert_near("heap", share, 1.0, n, &live.report);
    assert!(heap.iter().all(|row| row["inferred"] == true), "{:#}", names(&live.report));
}

#[test]
fn a_hash_table() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["hash", "60"]);
    let n = live.report["objects_summary"]["n"].as_u64().unwrap();
    assert_near("slots", share_of(&live.report, "slots"), 0.25, n, &live.report);
    let heap = objects(&live.report).iter().filter(|row| row["kind"] == "heap");
    let heap: f64 = heap.filter_map(|row| row["access_share"].as_f64()).sum();
    assert_near("entries", heap, 0.75, n, &live.report);
}

/// No record and no pointer leads to the blocks, which
/// were allocated before: accesses reveal the types.
#[test]
fn blocks_by_the_type_that_accesses_reveal() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["hidden", "60"]);
    let report = &live.report;
    let n = whole(&report["objects_summary"]["n"]);
    assert_near("hidden_slots", share_of(report, "hidden_slots"), 0.2, n, report);
    for (of, bytes, fields) in [("node", 72, [".payload", ".next"]), ("entry", 24, [".key", ".value"])] {
        let rows: Vec<&Value> = objects(report).iter().filter(|row| row["type"] == of).collect();
        let [row] = rows[..] else { panic!("{} rows of {of}: {:#}", rows.len(), names(report)) };
        let name = row["name"].as_str().unwrap();
        assert!(name.starts_with(&format!("{of} in {bytes}-byte blocks (objects.c:")), "{name}");
        assert!(
            row["unknown"].as_str().unwrap().contains("inferred from the access at objects.c:"),
            "{row:#}"
        );
        assert_eq!((row["kind"].as_str(), row["inferred"].as_bool()), (Some("heap"), Some(true)), "{row:#}");
        assert_near(of, number(&row["access_share"]), 0.4, n, report);
        assert_fields(report, name, &fields.map(|field| (field, 0.5)));
    }
}

/// The arrays' only names are the hot function's arguments, and one line of a wrapper makes every
/// array: attached, where no allocation was recorded, and launched.
#[test]
fn arrays_that_only_arguments_name() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let check = |live: &Live| {
        let report = &live.report;
        // Five accesses a round of the inner loop, GCC's order of loads and stores aside: the image and
        // the sums are read and written, the weights read.
        for (name, ty, least) in
            [("image", "double [500]", 0.25), ("weights", "float", 0.1), ("sums", "double", 0.25)]
        {
            let row = row(report, name);
            assert_eq!((row["type"].as_str(), row["kind"].as_str()), (Some(ty), Some("heap")), "{row:#}");
            assert!(share_of(report, name) >= least, "{name}: {:#}", names(report));
        }
        let named: f64 = ["image", "weights", "sums"].iter().map(|name| share_of(report, name)).sum();
        assert!(named >= 0.95, "{named}: {:#}", names(report));
    };
    check(&trace("arguments_only", &["60"]));
    check(&launch(&programs::build("arguments_only"), &[LONGER], &["--heap-min", "16"]));
}

#[test]
fn two_threads_and_their_own_variables() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects", &["threads", "60"]);
    let report = &live.report;
    let n = whole(&report["objects_summary"]["n"]);
    assert_near("shared_table", share_of(report, "shared_table"), 0.5, n, report);
    assert_near("own_counts", share_of(report, "own_counts"), 0.25, n, report);
    assert_eq!(row(report, "own_counts")["thread_local"], true);
    let own = share_of(report, "first_table") + share_of(report, "second_table");
    assert_near("tables", own, 0.25, n, report);
    assert!(share_of(report, "first_table") > 0.0 && share_of(report, "second_table") > 0.0);
}

#[test]
fn cpp_containers() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects_containers", &["60"]);
    assert_shares(&live, &[("sim::particles", 0.6), ("sim::values", 0.4)]);
    assert_fields(&live.report, "sim::particles", &[("[].x", 2.0 / 3.0), ("[].mass", 1.0 / 3.0)]);
}

#[test]
fn a_rust_vector_of_structures() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let live = trace("objects_rust", &["60"]);
    let report = &live.report;
    let n = whole(&report["objects_summary"]["n"]);
    let ends = |row: &&Value| row["name"].as_str().is_some_and(|name| name.ends_with("COUNTS"));
    let counts: f64 =
        objects(report).iter().filter(ends).filter_map(|row| row["access_share"].as_f64()).sum();
    assert_near("COUNTS", counts, 0.25, n, report);
    let heap = objects(report).iter().filter(|row| row["kind"] == "heap" || row["kind"] == "mapped");
    let heap: f64 = heap.filter_map(|row| row["access_share"].as_f64()).sum();
    assert_near("particles", heap, 0.75, n, report);
}

/// A program with its files in a separate file system, as in a container, invisible outside.
#[test]
fn a_program_in_another_root() {
    requires!(root, btf, watchpoints(4), command("unshare"), command("chroot"));
    let _beside = beside();
    let root = tempfile::tempdir().unwrap();
    let program = programs::build("objects");
    let copy = |from: &Path, to: &Path| {
        let to = root.path().join(to.strip_prefix("/").unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    };
    copy(&program, Path::new("/opt/of-the-container"));
    let libraries = Command::new("ldd").arg(&program).output().unwrap().stdout;
    let libraries = String::from_utf8(libraries).unwrap();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(library), Path::new(library));
    }
    let inside = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs none $1 && cp -a $0/. $1 && exec chroot $1 /opt/of-the-container globals 60";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).args([root.path(), inside.path()]);
    let target = Target::start_command(command);
    let live = Live::trace(target.pid(), SECONDS, &["--overhead", "5"]);
    assert_shares(&live, &[("hot_table", 0.6), ("warm_table", 0.3), ("cold_table", 0.1)]);
    let hot = row(&live.report, "hot_table");
    assert!(hot["module"].as_str().unwrap().ends_with("/opt/of-the-container"), "{hot:#}");
    assert!(std::fs::read_dir(inside.path()).unwrap().next().is_none(), "its files are seen from here");
    assert!(hot["declared"]["file"].as_str().unwrap().ends_with("objects.c"), "{hot:#}");
}

#[test]
fn a_fortran_common_block() {
    requires!(root, btf, watchpoints(4), command("gfortran"));
    let _beside = beside();
    let live = trace("objects_fortran", &["60"]);
    assert_shares(&live, &[("shared", 0.75), ("world::field", 0.25)]);
    assert_fields(&live.report, "shared", &[(".pos[]", 2.0 / 3.0), (".vel[]", 1.0 / 3.0)]);
}

/// Go's runtime handles every signal, so its threads are not stopped: objects are those of the
/// accesses at the samples, which shares of time weigh.
#[test]
fn go_package_variables() {
    requires!(root, btf, watchpoints(4), command("go"));
    let _beside = beside();
    let target = Target::start("objects_go", &["60"]);
    let live = Live::trace(target.pid(), SECONDS, &["--overhead", "5"]);
    let (table, counts) = (row(&live.report, "main.table"), row(&live.report, "main.counts"));
    assert_eq!((&table["kind"], &counts["kind"]), (&json!("static"), &json!("static")));
    assert!(number(&table["access_share"]) > number(&counts["access_share"]), "{:#}", names(&live.report));
    // Go handles the signals of stops, so windows are absent: time
    // passes at waits, and loads wait (.34) while stores hardly do.
    assert!(number(&counts["access_share"]) > 0.1, "{:#}", names(&live.report));
    let fields: Vec<&str> =
        table["fields"].as_array().unwrap().iter().filter_map(|field| field["path"].as_str()).collect();
    assert!(fields.contains(&"[].X") && fields.contains(&"[].Mass"), "{fields:?}");
}

/// The page of objects from the profile, both methods side by side.
/// The tables differ in size, so the order is the same in every run.
#[test]
fn both_methods_on_one_profile() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.locality");
    // A copy, replaced after the trace.
    let program = directory.path().join("objects");
    std::fs::copy(programs::build("objects"), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["sizes", "60"]);
    let target = Target::start_command(command);
    let file_name = file.to_str().unwrap();
    Live::of(&Tracer::attach(target.pid(), SECONDS).args(["--overhead", "5", "-o", file_name]).run(), &file);
    let page = |more: &[&str]| Tracer::new().args(["objects", file_name]).args(more).run();
    let text = page(&["--against", "approximate"]);
    assert!(text.status.success(), "{}", text.stderr);
    for words in ["large_table", "Kendall's tau-b 1.00", "3 of the first 3"] {
        assert!(text.stdout.contains(words), "`{words}` is not in: {}", text.stdout);
    }
    let json = page(&["--against", "approximate", "--level", "instruction", "--format", "json"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["schema"], "locality-objects/1");
    assert_eq!(
        (json["against"]["top_overlap"].as_u64(), json["against"]["kendall_tau_b"].as_f64()),
        (Some(3), Some(1.0))
    );
    let skid = ["--against", "approximate", "--simulate-skid", "1,0", "--skid", "1,0", "--format", "json"];
    let skid: Value = serde_json::from_str(&page(&skid).stdout).unwrap();
    assert_eq!(
        (&skid["against"]["skid"]["mean"], &skid["against"]["simulated_skid"]["variance"]),
        (&1.0.into(), &0.0.into())
    );
    let read_at = json["against"]["variables"][0]["read_at"][0]["line"].as_u64();
    assert!(read_at.is_some_and(|line| line > 0), "{json:#}");
    let source = std::fs::read_to_string(programs::source("objects")).unwrap();
    let declared = 1 + source.lines().position(|line| line.contains("large_table[N")).unwrap();
    let ignored = format!("objects.c:{declared}");
    let without = ["--against", "approximate", "--ignore-lines", &ignored, "--format", "json"];
    let without: Value = serde_json::from_str(&page(&without).stdout).unwrap();
    assert_eq!(without["against"]["ignored_lines"], json!([ignored]));
    let left = without["against"]["variables"].as_array().unwrap();
    assert!(!left.iter().any(|one| one["name"].as_str().unwrap().contains("_table")), "{left:#?}");
    // A different program at the same path has no say.
    drop(target);
    std::fs::remove_file(&program).unwrap();
    std::fs::copy(programs::build("two_loops"), &program).unwrap();
    let replaced = page(&["--against", "approximate"]);
    assert!(replaced.stdout.contains("another file than the one that ran"), "{}", replaced.stdout);
    // The report has the same objects.
    let report = Tracer::new().args(["report", "--data", file_name]).run();
    assert!(report.stdout.contains("Data objects"), "{}", report.stdout);
    let profile: Profile = locality_profile::read(&file).unwrap();
    assert!(profile.located.len() >= profile.uses.len());
}

#[test]
fn a_stripped_program_is_told_by_sections_and_how_to_mend_it() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let target = Target::start("stripped", &["60"]);
    let live = Live::trace(target.pid(), "3", &["--overhead", "5"]);
    let rows = objects(&live.report);
    assert!(!rows.is_empty());
    let told = rows.iter().any(|row| row["unknown"].as_str().is_some_and(|why| !why.is_empty()));
    assert!(told, "{:#}", names(&live.report));
}
