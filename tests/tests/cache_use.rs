//! Cache use of a running program: the transposition of the
//! 2016 paper, which uses 8 of 64 bytes of each loaded line.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::process::Command;

use locality_tests::live::{Live, alone};
use locality_tests::programs::source;
use locality_tests::{Target, Tracer, build, requires};
use serde_json::Value;

fn rows<'a>(report: &'a Value, table: &str, level: &str) -> Vec<&'a Value> {
    let all = report["cache_use"][table].as_array().unwrap_or_else(|| panic!("no {table} in {report:#}"));
    all.iter().filter(|row| row["level"] == level).collect()
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {value:#}"))
}

/// Lines of the source that load 8 bytes of 64.
fn marked() -> Vec<u64> {
    let text = std::fs::read_to_string(source("transposition")).expect("the source");
    (1..).zip(text.lines()).filter(|(_, line)| line.contains("LOSS:8 */")).map(|(number, _)| number).collect()
}

#[test]
fn the_transpositions_loads_are_found_in_the_running_program() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    // Alone, so that each call path leads to `main`.
    let mut program = Command::new(build("transposition"));
    program.env("OMP_NUM_THREADS", "1");
    let target = Target::start_command(program);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("t.locality");
    let tracer = Tracer::attach(target.pid(), "6").args(["--overhead", "5"]);
    let live = Live::of(&tracer.args(["-o".as_ref(), file.as_os_str()]).run(), &file);
    let report = &live.report;
    let marked = marked();
    let loads = rows(report, "by_loading_line", "L1").into_iter().filter(|row| row["access"] == "load");
    let first: Vec<&Value> = loads.take(4).collect();
    let found = |line: &u64| first.iter().copied().find(|row| row["line"] == *line);
    let top: Vec<&Value> = marked.iter().filter_map(found).collect();
    assert_eq!((top.len(), marked.len()), (4, 4), "{first:#?}");
    let mut lost = 0.0;
    for row in &top {
        let used = number(row, "/used_bytes_per_line");
        assert!((7.0..20.0).contains(&used), "{row:#}");
        assert!((0.1..0.4).contains(&number(row, "/share")), "{row:#}");
        assert!((1.0..3.0).contains(&number(row, "/access_count")), "{row:#}");
        assert_eq!(row["object"], "old", "{row:#}");
        lost += number(row, "/spatial_loss_bytes");
    }
    for row in &top {
        let frames = row["callers"].as_array().expect("frames").iter();
        let callers: Vec<&str> = frames.filter_map(|frame| frame["function"].as_str()).take(4).collect();
        assert_eq!(callers, ["GOMP_parallel", "gather", "sweep", "main"], "{row:#}");
    }
    let level = &report["cache_use"]["levels"][0];
    assert!(lost > 0.9 * number(level, "/spatial_loss_bytes"), "{level:#}");
    let gather = rows(report, "by_function", "L1").into_iter().find(|row| row["function"] == "gather");
    let share = number(gather.expect("gather"), "/share");
    assert!(share > 0.9, "{share}");

    // The page says the same.
    let page = Tracer::new().args(["report".as_ref(), "--code".as_ref(), file.as_os_str()]).run().stdout;
    assert!(page.contains("of 64 bytes per line used at transposition.c:"), "{page}");
}

/// Half of the loss is below a frame larger than the copied part of
/// the stack: an unknown caller has this half, and `main` the rest.
#[test]
fn what_is_lost_below_a_stack_that_is_cut_is_an_unknown_callers() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("deep_stack", &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("t.locality");
    let tracer = Tracer::attach(target.pid(), "5").args(["--overhead", "5"]);
    let live = Live::of(&tracer.args(["-o".as_ref(), file.as_os_str()]).run(), &file);
    let report = &live.report;
    let why = "the copied part of the stack ended";
    let functions = rows(report, "by_function", "L1");
    let share = |name: &str| {
        let row = functions.iter().find(|row| row["function"] == name);
        row.map_or(0.0, |row| number(row, "/inclusive"))
            / number(report, "/cache_use/levels/0/spatial_loss_bytes")
    };
    let (unknown, main) = (share("[unknown caller]"), share("main"));
    assert!(
        (0.25..0.75).contains(&unknown) && (unknown + main - 1.0).abs() < 0.05,
        "{unknown} {main}: {functions:#?}"
    );
    assert!((share("deep") - unknown).abs() < 0.02 && share("behind") == 0.0, "{functions:#?}");
    assert!((share("shallow") - main).abs() < 0.05 && share("by_columns") > 0.95, "{functions:#?}");
    let level = number(report, "/cache_use/levels/0/spatial_loss_bytes");
    let said = number(report, "/cache_use/unknown_caller/spatial_loss_bytes/L1");
    assert!((said / level - unknown).abs() < 1e-6, "{said} of {level}");
    assert_eq!(report["cache_use"]["balanced"], true);
    // Call paths of pairs are whole and lead to main, or are cut at the large frame and say why.
    let pairs = report["pairs"].as_array().expect("pairs").iter();
    let contexts = pairs.flat_map(|pair| pair["contexts"].as_array().expect("contexts"));
    let ends: Vec<&Value> = contexts.flat_map(|context| [&context["use"], &context["reuse"]]).collect();
    let through = |end: &Value, name: &str| {
        end["frames"].as_array().expect("frames").iter().any(|frame| frame["function"] == name)
    };
    let (cut, whole): (Vec<&Value>, Vec<&Value>) = ends.into_iter().partition(|end| through(end, "deep"));
    assert!(!cut.is_empty() && cut.iter().all(|end| end["cut"] == why && !through(end, "main")), "{cut:#?}");
    assert!(whole.iter().all(|end| end.get("cut").is_none() && through(end, "main")), "{whole:#?}");

    // The page says the same.
    let page = Tracer::new().args(["report".as_ref(), "--pairs".as_ref(), file.as_os_str()]).run().stdout;
    assert!(page.contains(&format!("… [unknown caller]: {why}")), "{page}");
}

/// Sixteen lines of code sweep over parts of an array of doubles: each
/// misses once in eight accesses, and no more by a single watch with a
/// large weight; cache use and the miss ratio of the same cache agree.
#[test]
fn no_line_of_code_misses_more_than_it_has_lines() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("sequential_stores", &["90"]);
    let enough = |live: &Live| live.profile.windows.len() >= 120;
    let live = Live::trace_until(target.pid(), ["6", "25"], &["--overhead", "5"], enough);
    assert!(enough(&live), "{} windows", live.profile.windows.len());
    let report = &live.report;
    let lines = &report["reuse"]["64"];
    let sizes = lines["at_caches"].as_array().expect("sizes");
    let of_level =
        |level: u64| sizes.iter().find(|size| size["level"] == level).expect("a size of the level");
    let objects = report["objects"].as_array().expect("objects");
    // The array is larger than the second level, and has nearly all accesses.
    let array = objects.first().expect("an object");
    assert!(number(array, "/access_share") > 0.98, "{array:#}");
    let (mut sweeps, mut whole) = (0, 0.0);
    for level in [1, 2] {
        let ratio = number(of_level(level), "/ratio");
        assert!((0.09..0.14).contains(&ratio), "{ratio} of the touches miss in level {level}");
        for row in array["lines"].as_array().expect("lines of code") {
            let accesses = number(row, "/access_share");
            let misses = number(row, &format!("/miss_share/L{level}")) * ratio;
            // Of few uses windows tell little.
            if accesses < 0.02 {
                continue;
            }
            let per_access = misses / accesses;
            println!("{} L{level}: {per_access:.3} lines an access", row["function"]);
            assert!((0.06..0.2).contains(&per_access), "{per_access} lines an access: {row:#}");
            sweeps += 1;
            whole += misses / ratio;
        }
    }
    assert!(sweeps >= 24 && whole > 1.8, "{sweeps} rows with {whole} of the misses of two levels");
    // In CPU time that was sampled, as the touches are.
    let sampled: u64 = live.profile.samples.iter().map(|sample| sample.period_ns).sum();
    let touches = number(lines, "/touches") * live.profile.run.cpu_ns as f64 / sampled as f64;
    for level in report["cache_use"]["levels"].as_array().expect("levels") {
        let size = sizes.iter().find(|size| size["bytes"] == level["bytes"]).expect("the same size");
        let loaded = [0, 1].map(|end| number(level, &format!("/lines_loaded_ci95/{end}")) / touches);
        let missed = [0, 1].map(|end| number(size, &format!("/ci95/{end}")));
        println!("{}: {loaded:.3?} lines loaded a touch, {missed:.3?} misses", level["level"]);
        assert!(missed[1] <= loaded[1] * 1.001 && loaded[0] <= missed[1] * 1.001, "{level:#} {size:#}");
        assert!(missed[1] < 0.16, "{size:#}");
    }
}
