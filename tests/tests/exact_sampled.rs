//! Exact runs of sampled lines (`--sample-lines`) against whole runs of the same command and closed forms.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

use locality_tests::{Traced, Tracer, build, requires};
use serde_json::Value;

fn exact(options: &[&str], command: &[&str]) -> (Traced, Value) {
    Tracer::new().args(["exact", "--format", "json1"]).args(options).report_of(command)
}

fn text(program: &Path) -> &str {
    program.to_str().expect("a path in UTF-8")
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {report:#}"))
}

fn real(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Whether an interval contains a number, a rounding error apart.
fn contains(interval: &Value, truth: f64) -> bool {
    real(&interval[0]) <= truth + 1e-9 && truth - 1e-9 <= real(&interval[1])
}

#[test]
fn all_accesses_are_counted_whatever_lines_are_sampled() {
    requires!(command("qemu-x86_64"));
    let program = build("exact_parts");
    let (whole, all) = exact(&[], &[text(&program)]);
    assert!(whole.status.success(), "{}", whole.stderr);
    for one_in in ["2", "16"] {
        let (done, report) = exact(&["--sample-lines", one_in], &[text(&program)]);
        assert!(done.status.success(), "{}", done.stderr);
        for path in ["/mix/accesses", "/mix/instructions", "/reuse/64/touches", "/threads/0/accesses"] {
            // Where the dynamic linker finds its data differs from run to run.
            let (sampled, exact) = (number(&report, path), number(&all, path));
            assert!(sampled.abs_diff(exact) < 500, "{path}: {sampled} of {exact}");
        }
        let stores = |report: &Value| real(&report["mix"]["stores"]);
        assert!((stores(&report) - stores(&all)).abs() < 1e-3, "{} {}", stores(&report), stores(&all));
        assert_eq!(report["run"]["sample_lines"].to_string(), one_in);
        assert_eq!(report["run"]["sources"]["rate"], format!("every access to one of {one_in} lines"));
        for left_out in ["phases", "by_data_type", "cold"] {
            assert!(report["reuse"]["64"].get(left_out).is_none(), "{left_out} has no interval");
        }
    }
}

/// `around`: 64 lines around and around, and the line of the return address.
#[test]
fn a_loop_over_lines_is_estimated_from_half_of_them() {
    requires!(command("qemu-x86_64"));
    let program = build("exact_parts");
    let options = ["--sample-lines", "2", "--function", "around"];
    let (done, report) = exact(&options, &[text(&program)]);
    assert!(done.status.success(), "{}", done.stderr);
    let (lines, rounds) = (64, 1500);
    let touches = lines * rounds + 1;
    assert_eq!(number(&report, "/mix/accesses"), touches);
    let reuse = &report["reuse"]["64"];
    assert_eq!(number(reuse, "/touches"), touches);
    let footprint = &reuse["footprint_bytes_ci95"];
    assert!(contains(footprint, 64.0 * (lines + 1) as f64), "{footprint}");
    // Each sampled line is touched once a round.
    let sampled = number(reuse, "/sampled_lines/lines");
    assert!((16..=48).contains(&sampled), "{sampled}");
    assert!(number(reuse, "/sampled_lines/touches").abs_diff(sampled * rounds) < rounds);
    let curve = reuse["miss_ratio_curve"].as_array().expect("a curve");
    let at = |bytes: u64| curve.iter().find(|point| point["bytes"] == bytes).expect("the size");
    // 16 lines are far from the loop's length, and 512 too.
    assert!(contains(&at(16 * 64)["ci95"], 1.0), "{}", at(16 * 64));
    let cold = (lines + 1) as f64 / touches as f64;
    assert!(contains(&at(32 << 10)["ci95"], cold), "{}", at(32 << 10));
    assert!(real(&at(16 * 64)["ratio"]) > 0.5 && real(&at(32 << 10)["ratio"]) < 0.01);
    // Time distances are exact: each reuse comes after 64 accesses.
    let time = reuse["time"]["bins"].as_array().expect("bins");
    let last = time.last().expect("a bin");
    assert_eq!((&last["low"], &last["fraction"]), (&64.into(), &1.0.into()), "{time:?}");
    let pair = &report["pairs"][0];
    let frames = pair["use"]["frames"].as_array().expect("frames");
    assert_eq!((&frames[0]["function"], &frames[1]["function"]), (&"around".into(), &"main".into()));
    assert!(contains(&pair["weight_ci95"], 1.0), "{pair}");
}

/// The stated error against the true one, at the sizes of the report.
#[test]
fn intervals_contain_what_the_whole_run_counts() {
    requires!(command("qemu-x86_64"));
    let program = build("exact_kernel");
    let command = [text(&program), "100", "50", "300"];
    let (_, all) = exact(&[], &command);
    let (done, report) = exact(&["--sample-lines", "4"], &command);
    assert!(done.status.success(), "{}", done.stderr);
    let curve =
        |report: &Value| report["reuse"]["64"]["miss_ratio_curve"].as_array().expect("a curve").clone();
    let truth = curve(&all);
    let mut missed = Vec::new();
    for point in curve(&report) {
        let exact = truth.iter().find(|exact| exact["bytes"] == point["bytes"]);
        // Beyond the footprint the curve ends.
        let exact = exact.or(truth.last()).expect("a point");
        if !contains(&point["ci95"], real(&exact["ratio"])) {
            missed.push(format!("{point} {exact}"));
        }
        assert!(real(&point["ci95"][0]) <= real(&point["ratio"]), "{point}");
    }
    assert!(missed.len() <= 1, "{missed:?}");
    let footprint = &report["reuse"]["64"]["footprint_bytes_ci95"];
    let bytes = number(&all, "/reuse/64/footprint_bytes") as f64;
    assert!(contains(footprint, bytes), "{bytes} {footprint}");
}

#[test]
fn threads_forks_and_programs_are_sampled_alike() {
    requires!(command("qemu-x86_64"));
    let program = build("exact_life");
    for what in ["threads", "fork", "exec", "spawn", "signal"] {
        let (whole, all) = exact(&[], &[text(&program), what]);
        let (done, report) = exact(&["--sample-lines", "8"], &[text(&program), what]);
        assert_eq!((done.status, &done.stdout), (whole.status, &whole.stdout), "{what}: {}", done.stderr);
        let (sampled, exact) = (number(&report, "/mix/accesses"), number(&all, "/mix/accesses"));
        assert!(sampled.abs_diff(exact) < exact / 100 + 2_000, "{what}: {sampled} of {exact}");
        let listed =
            |report: &Value, list: &str| report.pointer(list).and_then(Value::as_array).map(Vec::len);
        for list in ["/threads", "/run/programs"] {
            assert_eq!(listed(&report, list), listed(&all, list), "{what} {list}");
        }
        assert_eq!(report["partial"], false, "{what}");
    }
}

/// A killed program leaves what was counted before.
#[test]
fn a_killed_program_has_its_counts() {
    requires!(command("qemu-x86_64"));
    let program = build("exact_life");
    let (_, report) = exact(&["--sample-lines", "16"], &[text(&program), "kill"]);
    assert!(number(&report, "/mix/accesses") >= 50 * 4096, "{report:#}");
    assert_eq!(report["partial"], true);
    assert!(!report["reuse"]["64"]["miss_ratio_curve"].as_array().expect("a curve").is_empty());
}

#[test]
fn the_page_says_that_it_is_an_estimate() {
    requires!(command("qemu-x86_64"));
    let program = build("exact_parts");
    let done = Tracer::new().args(["exact", "--sample-lines", "4", "--"]).args([&program]).run();
    let page = done.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["Estimated from a sample", "one of 4 cache lines", "lines sampled with", "95 % intervals"] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("every access was seen"), "{page}");
}

#[test]
fn what_needs_every_access_is_refused() {
    for (options, words) in [
        (&["--cache-use"][..], ["sets", "leave --sample-lines out"]),
        (&["--cache", "L1=32K,8,64"], ["sets", "leave --sample-lines out"]),
        (&["--objects"], ["sets", "leave --sample-lines out"]),
        (&["--parallelism"], ["values", "leave --sample-lines out"]),
        (&["--inclusive", "f"], ["--inclusive", "--function"]),
        (&["--instructions"], ["--instructions", "leave one of them out"]),
        (&["--one-order"], ["--one-order", "leave it out"]),
        (&["--sets", "64"], ["--sets", "leave --sample-lines out"]),
        (&["--optimal"], ["--optimal", "leave --sample-lines out"]),
        (&["--fine"], ["--fine", "leave --sample-lines out"]),
        (&["--granularity", "8,64"], ["64 bytes", "leave --granularity out"]),
    ] {
        let tracer = Tracer::new().args(["exact", "--sample-lines", "16"]).args(options);
        tracer.args(["--", "/bin/true"]).run().assert_refused(2, &words);
    }
    for number in ["0", "1", "12", "8192", "x"] {
        let done = Tracer::new().args(["exact", "--sample-lines", number, "--", "/bin/true"]).run();
        assert_eq!(done.status.code(), Some(2), "{number}");
        assert!(done.stderr.contains("a power of two from 2 to 4096 is needed"), "{}", done.stderr);
    }
}

/// Too few lines for the sample: no success with an empty report.
#[test]
fn a_sample_without_a_line_says_what_to_do() {
    requires!(command("qemu-x86_64"));
    let program = build("exact_parts");
    let options = ["exact", "--sample-lines", "4096", "--function", "doubles", "--"];
    let done = Tracer::new().args(options).args([&program]).run();
    assert_eq!(done.status.code(), Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("smaller --sample-lines"), "{}", done.stderr);
}
