//! Exports of a real trace, each opened by the intended program;
//! a comparison of two real traces of a program in two layouts.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use locality_tests::live::{Live, beside};
use locality_tests::{Target, Traced, Tracer, build, requires};
use serde_json::Value;

/// Traces of the picture program, which walks by columns or by rows.
struct Traces {
    _folder: tempfile::TempDir,
    columns: PathBuf,
    rows: PathBuf,
    /// The JSON report of the first.
    report: Value,
}

/// Traced once for all tests.
fn traces() -> &'static Traces {
    static TRACES: OnceLock<Traces> = OnceLock::new();
    TRACES.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let _beside = beside();
        let trace = |name: &str, arguments: &[&str]| {
            let file = folder.path().join(name);
            let mut program = Command::new(build("picture"));
            program.args(["100"]).args(arguments);
            let target = Target::start_command(program);
            let tracer = Tracer::attach(target.pid(), "8").args(["--overhead", "4"]);
            let live = Live::of(&tracer.args(["-o".as_ref(), file.as_os_str()]).run(), &file);
            (file, live.report)
        };
        let (rows, _) = trace("rows.locality", &["rows"]);
        let (columns, report) = trace("columns.locality", &[]);
        Traces { _folder: folder, columns, rows, report }
    })
}

fn export(file: &Path, arguments: &[&str]) -> Traced {
    Tracer::new().args(["export".as_ref(), file.as_os_str()]).args(arguments).run()
}

fn exported(file: &Path, to: &str, metric: &str) -> PathBuf {
    let out = file.with_extension(format!("{to}-{}", metric.replace(':', "-")));
    let traced = export(file, &["--to", to, "--metric", metric, "-o", out.to_str().expect("a path")]);
    assert!(traced.status.success(), "{}", traced.stderr);
    out
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn printed(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).expect("text")
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {value:#}"))
}

/// Totals in the report of the metrics common to every trace with windows.
fn totals(report: &Value) -> Vec<(&'static str, f64)> {
    let cpu_ns = number(report, "/run/cpu_s") * 1e9;
    let level = |index: usize, field: &str| number(report, &format!("/cache_use/levels/{index}/{field}"));
    vec![
        ("cpu", cpu_ns),
        ("accesses", number(report, "/windows/accesses_per_ns") * cpu_ns),
        ("misses:L1", level(0, "lines_loaded")),
        ("wasted:L1", level(0, "spatial_loss_bytes")),
    ]
}

/// Equal but for rounding of each row.
fn assert_close(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= 1.0 + 1e-6 * expected, "{what}: {found} of {expected}");
}

#[test]
fn pprof_reads_its_profile() {
    requires!(root, btf, watchpoints(4), command("go"));
    let traces = traces();
    for (metric, total) in totals(&traces.report) {
        let file = exported(&traces.columns, "pprof", metric);
        let raw = printed(Command::new("go").args(["tool", "pprof", "-raw"]).arg(&file));
        // "Samples:", a line of types, then a line each: "1 2 3: 1 2 ".
        let mut lines = raw.lines().skip_while(|line| !line.starts_with("Samples:")).skip(1);
        let types: Vec<String> =
            lines.next().expect("types").split_whitespace().map(|name| name.replace("[dflt]", "")).collect();
        let at = types.iter().position(|name| name.starts_with(&format!("{metric}/"))).expect("the metric");
        let samples = lines.take_while(|line| !line.starts_with("Locations"));
        let value = |line: &str| line.split(':').next()?.split_whitespace().nth(at)?.parse::<f64>().ok();
        assert_close(samples.filter_map(value).sum(), total, metric);
        let top = printed(Command::new("go").args(["tool", "pprof", "-top", "-nodecount=5"]).arg(&file));
        assert!(top.contains("brighten_by_columns") && top.contains(&format!("Type: {metric}")), "{top}");
    }
}

#[test]
fn callgrind_annotate_reads_a_live_trace() {
    requires!(root, btf, watchpoints(4), command("callgrind_annotate"));
    let traces = traces();
    for (metric, total) in totals(&traces.report) {
        let file = exported(&traces.columns, "callgrind", metric);
        let page = printed(Command::new("callgrind_annotate").args(["--inclusive=yes"]).arg(&file));
        let line = page.lines().find(|line| line.contains("PROGRAM TOTALS")).expect("totals");
        let first = line.split_whitespace().next().expect("a number").replace(',', "");
        assert_close(first.parse().expect("a number"), total, metric);
        let main =
            page.lines().find(|line| line.contains(":main")).unwrap_or_else(|| panic!("no main in {page}"));
        let inclusive: f64 =
            main.split_whitespace().next().expect("a number").replace(',', "").parse().expect("a number");
        assert!(inclusive > 0.9 * total, "{main} of {total}");
    }
}

/// The schema in speedscope's npm package.
fn speedscope_schema() -> Option<PathBuf> {
    let root = Command::new("npm").args(["root", "-g"]).output().ok()?;
    let root = PathBuf::from(String::from_utf8(root.stdout).ok()?.trim());
    Some(root.join("speedscope/dist/release/file-format-schema.json")).filter(|schema| schema.exists())
}

#[test]
fn speedscopes_schema_holds() {
    requires!(root, btf, watchpoints(4), command("jsonschema"), command("npm"));
    let Some(schema) = speedscope_schema() else {
        return locality_tests::requires::skip(
            "needs the package speedscope of npm (npm install -g speedscope)",
        );
    };
    let traces = traces();
    for (metric, total) in totals(&traces.report) {
        let file = exported(&traces.columns, "speedscope", metric);
        run(Command::new("jsonschema").arg("-i").args([&file, &schema]));
        let page: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
        let active = &page["profiles"][page["activeProfileIndex"].as_u64().expect("a number") as usize];
        assert_close(number(active, "/endValue"), total, metric);
    }
}

#[test]
fn folded_paths_and_tables_have_the_reports_numbers() {
    requires!(root, btf, watchpoints(4), command("python3"));
    let traces = traces();
    for (metric, total) in totals(&traces.report) {
        let traced = export(&traces.columns, &["--to", "folded", "--metric", metric]);
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        let values: Option<Vec<f64>> = traced.stdout.lines().map(value).collect();
        assert_close(values.expect("numbers").iter().sum(), total, metric);
        assert!(traced.stdout.contains("main;brighten_by_columns "), "{}", traced.stdout);
    }
    let folder = traces.columns.with_extension("tables");
    let traced = export(&traces.columns, &["--to", "csv", "-o", folder.to_str().expect("a path")]);
    assert!(traced.status.success(), "{}", traced.stderr);
    let about = std::fs::metadata(&folder).expect("a folder");
    assert_eq!(about.permissions().mode() & 0o777, 0o700);
    let sum =
        "import csv, sys\nprint(sum(float(row['weight']) for row in csv.DictReader(open(sys.argv[1]))))";
    let sum = printed(Command::new("python3").args(["-c", sum]).arg(folder.join("pairs.csv")));
    let weights =
        traces.report["pairs"].as_array().expect("pairs").iter().map(|pair| number(pair, "/weight"));
    assert!((sum.trim().parse::<f64>().expect("a number") - weights.sum::<f64>()).abs() < 1e-9, "{sum}");
}

#[test]
fn firefox_has_all_cpu_time_and_the_watched_reuses() {
    requires!(root, btf, watchpoints(4));
    let traces = traces();
    let file = exported(&traces.columns, "firefox", "cpu");
    let page: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    let threads = page["threads"].as_array().expect("threads");
    let weights =
        threads.iter().flat_map(|thread| thread["samples"]["weight"].as_array().into_iter().flatten());
    let cpu_ms: f64 = weights.filter_map(Value::as_f64).sum();
    assert_close(cpu_ms, number(&traces.report, "/run/cpu_s") * 1e3, "ms");
    let markers: f64 = threads.iter().map(|thread| number(thread, "/markers/length")).sum();
    assert!(markers > 0.0 && markers <= number(&traces.report, "/ledger/watch/trapped"), "{markers}");
}

#[test]
fn exports_are_private_and_bad_use_is_one_sentence() {
    requires!(root, btf, watchpoints(4));
    let traces = traces();
    let out = traces.columns.with_extension("private");
    let mut tracer = Tracer::new().args(["export".as_ref(), traces.columns.as_os_str()]);
    tracer = tracer.args(["--to", "folded", "--metric", "cpu", "-o", out.to_str().expect("a path")]);
    tracer.command().envs([("SUDO_UID", "12345"), ("SUDO_GID", "23456")]);
    assert!(tracer.run().status.success());
    let about = std::fs::metadata(&out).expect("a file");
    assert_eq!((about.permissions().mode() & 0o777, about.uid(), about.gid()), (0o600, 12345, 23456));
    let profile = traces.columns.to_str().expect("a path");
    export(&traces.columns, &["--to", "csv"]).assert_refused(2, &["-o FOLDER"]);
    export(&traces.columns, &["--to", "folded", "-o", profile]).assert_refused(2, &["would replace"]);
    export(&traces.columns, &["--to", "folded", "--metric", "misses:L9"])
        .assert_refused(1, &["no misses:L9", "misses:L1"]);
    assert!(locality_profile::read(&traces.columns).is_ok());
}

fn diff(files: [&Path; 2], arguments: &[&str]) -> Traced {
    Tracer::new().args(["diff".as_ref(), files[0].as_os_str(), files[1].as_os_str()]).args(arguments).run()
}

#[test]
fn a_layout_that_wastes_lines_is_a_regression() {
    requires!(root, btf, watchpoints(4));
    let traces = traces();
    let (rows, columns) = (traces.rows.as_path(), traces.columns.as_path());
    let worse = diff([rows, columns], &["--format", "json"]);
    assert_eq!(worse.status.code(), Some(3), "{}\n{}", worse.stdout, worse.stderr);
    let page: Value = serde_json::from_str(&worse.stdout).expect("JSON");
    assert_eq!((&page["schema"], &page["failed"]), (&"locality-diff/1".into(), &true.into()));
    let verdict = |name: &str| {
        let all = page["rows"].as_array().expect("rows").iter();
        let mut whole = all.filter(|row| row["part"].is_null());
        whole.find(|row| row["quantity"] == name).expect("the row")["verdict"].clone()
    };
    assert_eq!(verdict("misses:L1"), "regressed", "{page:#}");
    assert_eq!(diff([columns, rows], &[]).status.code(), Some(0));
    let gate = ["--fail-on", "misses:L1 > +20 %"];
    assert_eq!(diff([rows, columns], &gate).status.code(), Some(3));
    assert_eq!(diff([columns, rows], &gate).status.code(), Some(0));
    // The functions differ: each side has separate lines.
    let lone = |side: &str| page[side].to_string();
    assert!(lone("only_in_base").contains("brighten_by_rows"), "{}", lone("only_in_base"));
    assert!(lone("only_in_new").contains("brighten_by_columns"), "{}", lone("only_in_new"));
    let mapped = diff([rows, columns], &["--map", "s/by_rows/by_columns/", "--format", "json"]);
    let mapped: Value = serde_json::from_str(&mapped.stdout).expect("JSON");
    let parts = mapped["rows"].as_array().expect("rows").iter().filter(|row| !row["part"].is_null());
    assert!(parts.into_iter().any(|row| row.to_string().contains("brighten_by_columns")), "{mapped:#}");
}

#[test]
fn a_profile_is_no_regression_of_itself_and_wrong_gates_are_refused() {
    requires!(root, btf, watchpoints(4));
    let traces = traces();
    let same = [traces.rows.as_path(), traces.rows.as_path()];
    let text = diff(same, &[]);
    assert_eq!(text.status.code(), Some(0), "{}", text.stdout);
    assert!(text.stdout.contains("same machine, options and program"), "{}", text.stdout);
    let strict = diff(same, &["--strict", "--fail-on", "misses:L1 > +0.001 %"]);
    assert_eq!(strict.status.code(), Some(4), "{}", strict.stdout);
    diff(same, &["--fail-on", "misses:L9 > +5 %"]).assert_refused(1, &["lack misses:L9", "misses:L1"]);
    let wrong = diff(same, &["--fail-on", "misses:L1 is high"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", wrong.stderr);
    for (format, begins) in [
        ("junit", "<?xml"),
        ("html", "<!doctype html>"),
        ("sarif", "{"),
        ("markdown", "### "),
        ("github", "::"),
    ] {
        let page = diff(same, &["--format", format]).stdout;
        assert!(page.starts_with(begins), "{format}: {page}");
    }
}
