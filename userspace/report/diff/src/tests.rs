//! Comparisons of reports that are written here: verdicts, gates, lists, formats.

use locality_report::schema::diff::Verdict;
use serde_json::{Value as Json, json};

use super::*;

/// A report with misses per 1,000 of L1 and the last level, and lines of code as shares of the latter.
fn report(misses: [[f64; 3]; 2], lines: &[(u32, f64)]) -> Report {
    let point = |level: u8, bytes: u64, [value, low, high]: [f64; 3]| json!({ "level": level, "bytes": bytes, "ratio": value / 1000.0, "ci95": [low / 1000.0, high / 1000.0] });
    let points = [point(1, 32 << 10, misses[0]), point(3, 32 << 20, misses[1])];
    let line = |(line, share): &(u32, f64)| {
        json!({
            "function": "f", "file": "src/a,b.c", "line": line, "level": "LL", "access": "load", "lines_loaded": 1000.0,
            "traffic_share": share, "traffic_share_ci95": [share * 0.95, share * 1.05],
        })
    };
    let level = |name: &str| json!({ "level": name, "lost_share": 0.5, "lost_share_ci95": [0.45, 0.55], "lines_loaded": 5000.0 });
    let report = json!({
        "schema": "locality-report/1",
        "run": { "command": "./a", "mode": "live", "wall_s": 30.0, "samples": 100, "host": { "cpu": "x", "cpus": 2 } },
        "reuse": { "64": { "at_caches": points, "miss_ratio_curve": points, "touches": 1e6 } },
        "cache_use": { "levels": [level("L1"), level("LL")], "by_loading_line": lines.iter().map(line).collect::<Vec<_>>() },
    });
    serde_json::from_value(report).unwrap()
}

fn input(reports: Vec<Report>) -> Input {
    Input { files: (0..reports.len()).map(|n| format!("{n}.locality")).collect(), reports }
}

fn around(value: f64, half: f64) -> [f64; 3] {
    [value, value - half, value + half]
}

fn options(fail_on: &[&str]) -> Options {
    Options {
        fail_on: fail_on.iter().map(|text| text.parse().unwrap()).collect(),
        renames: Vec::new(),
        margin: 0.1,
    }
}

fn of(base: [f64; 3], new: [f64; 3], fail_on: &[&str]) -> Diff {
    let l1 = around(200.0, 2.0);
    let sides = [base, new].map(|misses| input(vec![report([l1, misses], &[(3, 0.7), (5, 0.2)])]));
    compare(&sides[0], &sides[1], &options(fail_on)).unwrap()
}

fn row<'a>(diff: &'a Diff, quantity: &str) -> &'a Row {
    diff.rows.iter().find(|row| row.part.is_none() && row.quantity == quantity).unwrap()
}

#[test]
fn changes_are_called_what_they_certainly_are() {
    let verdict = |base, new| row(&of(base, new, &[]), "misses:LLC").verdict;
    assert_eq!(verdict(around(100.0, 5.0), around(200.0, 9.0)), Verdict::Regressed);
    assert_eq!(verdict(around(200.0, 9.0), around(100.0, 5.0)), Verdict::Improved);
    assert_eq!(verdict(around(100.0, 2.0), around(101.0, 2.0)), Verdict::Unchanged);
    assert_eq!(verdict(around(100.0, 50.0), around(130.0, 60.0)), Verdict::Inconclusive);
    // Certain, but too small to speak of.
    assert_eq!(verdict(around(100.0, 0.1), around(103.0, 0.1)), Verdict::Unchanged);
}

#[test]
fn gates_follow_conditions_else_the_rows_of_the_whole_run() {
    let outcome = |diff: Diff| (diff.failed, diff.inconclusive);
    let (low, high) = (around(100.0, 5.0), around(200.0, 9.0));
    assert_eq!(outcome(of(low, high, &[])), (true, false));
    assert_eq!(outcome(of(high, low, &[])), (false, false));
    assert_eq!(outcome(of(low, around(130.0, 60.0), &[])), (false, true));
    assert_eq!(outcome(of(low, high, &["misses:LLC > +10 %"])), (true, false));
    assert_eq!(outcome(of(low, high, &["misses:LLC > +95 %"])), (false, true));
    assert_eq!(outcome(of(low, high, &["misses:LLC > +150 %"])), (false, false));
    assert_eq!(outcome(of(low, high, &["misses:L1 > +10 %", "misses:LLC > 150/1000"])), (true, false));
    // The last level goes by its number too.
    let mut caches = report([around(200.0, 2.0), low], &[]);
    caches.run.host.caches = serde_json::from_value(json!([{ "level": 3, "bytes": 32 << 20 }])).unwrap();
    let sides = [input(vec![caches]), input(vec![report([around(200.0, 2.0), high], &[])])];
    assert!(compare(&sides[0], &sides[1], &options(&["misses:L3 > +10 %"])).unwrap().failed);
    // The reported bound decides.
    let diff = of(low, high, &["misses:LLC > +85 %"]);
    let change = row(&diff, "misses:LLC").difference.clone();
    let exceeds = change.ci95[0].real().unwrap() > diff.conditions[0].threshold.real().unwrap();
    assert_eq!((exceeds, diff.failed), (true, true));
}

#[test]
fn quantities_that_a_side_lacks_are_named() {
    let sides = [(); 2].map(|()| input(vec![report([around(9.0, 1.0); 2], &[])]));
    let why = compare(&sides[0], &sides[1], &options(&["misses:L2 > +5 %"])).unwrap_err().to_string();
    assert!(why.contains("of the base lack misses:L2; there is") && why.contains("misses:L1"), "{why}");
    let empty = input(vec![Report::default()]);
    assert_eq!(compare(&empty, &sides[1], &options(&[])).unwrap_err(), Unfit::Nothing);
}

#[test]
fn lines_are_matched_and_lone_ones_listed() {
    let misses = [around(200.0, 2.0), around(100.0, 2.0)];
    let base = input(vec![report(misses, &[(3, 0.6), (5, 0.3)])]);
    // Moved by ten lines, and one more.
    let moved = compare(&base, &input(vec![report(misses, &[(13, 0.6), (15, 0.3)])]), &options(&[])).unwrap();
    assert!(moved.only_in_base.is_empty() && moved.only_in_new.is_empty());
    assert_eq!(moved.rows.iter().filter(|row| row.part.is_some()).count(), 2);
    let more =
        compare(&base, &input(vec![report(misses, &[(3, 0.5), (5, 0.3), (9, 0.1)])]), &options(&[])).unwrap();
    assert_eq!(more.only_in_new.len(), 1);
    assert_eq!(more.only_in_new[0].part.name, "f a,b.c:9");
}

#[test]
fn circumstances_and_weak_evidence_are_said() {
    let mut new = report([around(200.0, 2.0), around(130.0, 60.0)], &[]);
    new.run.host.cpu = "y".to_owned();
    new.run.wall_s = 300.0.into();
    let base = input(vec![report([around(200.0, 2.0), around(100.0, 40.0)], &[])]);
    let diff = compare(&base, &input(vec![new]), &options(&[])).unwrap();
    let what: Vec<&str> = diff.environment.iter().map(|row| row.what.as_str()).collect();
    assert_eq!(what, ["processor", "length"]);
    let says = diff.notices.join(" ");
    assert!(says.contains("from run to run") && says.contains("misses:LLC above 103"), "{says}");
    assert!(says.contains("for 10 %, trace 54 min a side"), "{says}");
}

#[test]
fn several_profiles_a_side_hold_what_differs_from_run_to_run() {
    let side = |values: &[f64]| {
        let of = |value: &f64| report([around(200.0, 2.0), around(*value, 2.0)], &[]);
        input(values.iter().map(of).collect())
    };
    let one = compare(&side(&[100.0]), &side(&[120.0]), &options(&[])).unwrap();
    assert_eq!(row(&one, "misses:LLC").verdict, Verdict::Regressed);
    // Runs that are 40 apart tell nothing of a difference of 20.
    let apart = compare(&side(&[80.0, 100.0, 120.0]), &side(&[100.0, 120.0, 140.0]), &options(&[])).unwrap();
    assert_eq!(row(&apart, "misses:LLC").verdict, Verdict::Inconclusive);
    assert_eq!(apart.base.samples, Some(300));
    assert!(!apart.notices.iter().any(|notice| notice.contains("run to run")));
}

/// Values that differ by chance alone, with intervals of that chance: few are called changed.
#[test]
fn chance_alone_is_hardly_ever_a_regression() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
    let mut alarms = 0;
    for _ in 0..400 {
        let mut drawn = |truth: f64, sd: f64| around(truth + sd * normal(), 1.96 * sd);
        let mut side = || input(vec![report([drawn(200.0, 10.0), drawn(60.0, 8.0)], &[(3, 0.5)])]);
        let (base, new) = (side(), side());
        alarms += u32::from(compare(&base, &new, &options(&[])).unwrap().failed);
    }
    // One in forty rows, one-sided, with two independent rows and corrections: some 2 %.
    assert!((1..=20).contains(&alarms), "{alarms} of 400");
}

fn regressed() -> Diff {
    of(around(100.0, 5.0), around(200.0, 9.0), &["misses:LLC > +10 %", "misses:L1 > +10 %"])
}

#[test]
fn text_and_markdown_say_the_numbers_and_the_verdict() {
    let diff = regressed();
    let text = print::text(&diff);
    assert!(
        text.contains("same machine, options and program")
            && text.contains("Regression: misses:LLC > +10 % holds"),
        "{text}"
    );
    let line = text.lines().find(|line| line.starts_with("misses:LLC")).unwrap();
    for part in ["100 [95.0–105]", "200 [191–209]", "regressed", "+100 [+89.7 to +110] (+100 %)"] {
        assert!(line.contains(part), "{line}");
    }
    let page = print::markdown(&diff);
    assert!(page.starts_with("### ❌ Data locality: Regression: misses:LLC &gt; +10 % holds"), "{page}");
    assert!(page.contains("| misses:LLC per 1,000 line touches | 100 | 200 |"), "{page}");
}

#[test]
fn pages_of_html_are_inert() {
    let mut diff = regressed();
    diff.base.command = "</p><script>alert(1)</script>".to_owned();
    let page = print::html(&diff);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "{page}");
    assert!(page.contains("default-src 'none'") && page.contains("class=\"verdict failed\""), "{page}");
    assert!(page.contains("<td class=\"v bad\">regressed</td>"), "{page}");
}

#[test]
fn annotations_have_the_line_of_source() {
    let page = print::github(&regressed());
    assert!(page.contains("::error title=locality-bpf::--fail-on misses:LLC > +10 %25 holds"), "{page}");
    let line = page.lines().find(|line| line.contains("file=")).unwrap();
    assert!(
        line.starts_with("::warning title=locality-bpf,file=src/a%2Cb.c,line=3::misses:LLC per 1,000"),
        "{line}"
    );
}

#[test]
fn junit_has_a_case_for_each_condition() {
    let page = print::junit(&regressed());
    assert!(page.contains("tests=\"2\" failures=\"1\""), "{page}");
    assert!(
        page.contains("<testcase classname=\"locality\" name=\"misses:LLC &gt; +10 %\"><failure"),
        "{page}"
    );
    let rows = print::junit(&of(around(100.0, 40.0), around(110.0, 40.0), &[]));
    assert!(rows.contains("<skipped message=\"inconclusive: misses:LLC"), "{rows}");
}

#[test]
fn sarif_has_a_result_for_each_regression() {
    let log: Json = serde_json::from_str(&print::sarif(&regressed())).unwrap();
    let results = log["runs"][0]["results"].as_array().unwrap();
    assert!(results.iter().any(|result| result["level"] == "error"), "{log:#}");
    let at = results.iter().find_map(|result| result["locations"].get(0)).unwrap();
    assert_eq!(at["physicalLocation"]["artifactLocation"]["uri"], "src/a%2Cb.c");
    assert_eq!(at["physicalLocation"]["region"]["startLine"], 3);
    let none: Json =
        serde_json::from_str(&print::sarif(&of(around(100.0, 1.0), around(100.0, 1.0), &[]))).unwrap();
    assert_eq!(none["runs"][0]["results"], json!([]));
}

#[test]
fn exact_reports_are_compared_without_intervals() {
    let exact = |loaded: u64| -> Report {
        serde_json::from_value(json!({
            "schema": "locality-report/1",
            "run": { "command": "./a", "mode": "exact", "wall_s": 1.0 },
            "reuse": { "64": { "touches": 1000, "miss_ratio_curve": [{ "bytes": 32768, "ratio": 0.25 }] } },
            "cache_use": { "levels": [{ "level": "L1", "lines_loaded": loaded, "lost_share": 0.5 }] },
        }))
        .unwrap()
    };
    let diff = compare(&input(vec![exact(200)]), &input(vec![exact(300)]), &options(&[])).unwrap();
    assert_eq!(row(&diff, "misses:L1").verdict, Verdict::Regressed);
    assert_eq!(row(&diff, "misses:32K").verdict, Verdict::Unchanged);
    assert!(diff.failed && diff.notices.is_empty(), "{:?}", diff.notices);
    assert!(row(&diff, "misses:L1").seen.is_none());
}
