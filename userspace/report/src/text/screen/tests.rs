//! What one screen looks like at each width, and what must hold for all of them.

use locality_findings::Findings;
use locality_model::{
    Accessed, LoadId, Located, Object, ObjectId, ObjectKind, Profile, UseId,
    testing::{MS, Maker, demo, loops::windowed},
};

use super::*;
use crate::json;
use crate::schema::{
    Estimate, Number,
    advice::{Advice, Gain},
    loops::{KernelEntry, KernelTime, Loop, LoopAccess, PageFaults, Trips},
    objects,
    place::Place,
};

const WIDTHS: [usize; 4] = [72, 80, 100, 140];

fn of(profile: &Profile) -> Report {
    json::report(profile, &Findings::of(profile))
}

fn at(columns: usize) -> Options {
    Options { columns: Some(columns), file: Some("trace.locality".to_owned()), ..Options::default() }
}

fn words(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn estimate(value: f64, low: f64, high: f64) -> Estimate {
    Estimate { ci95: [low.into(), high.into()], n: 20, value: value.into() }
}

fn place(function: &str, file: &str, line: u32) -> Place {
    Place {
        file: Some(file.to_owned()),
        function: Some(function.to_owned()),
        line: Some(line),
        ..Place::default()
    }
}

/// With two objects, windows and objects with names as C++ and Rust have them.
fn profile_with_objects() -> Profile {
    let mut profile = windowed();
    let object = |name: &str, of_type: &str, bytes| Object {
        kind: ObjectKind::Heap,
        name: name.to_owned(),
        type_name: Some(of_type.to_owned()),
        bytes: Some(bytes),
        ..Object::default()
    };
    profile.objects = vec![
        object("grid->cells", "struct cell", 35 << 20),
        object(
            "std::vector<std::pair<unsigned long, Order>, std::allocator<std::pair<unsigned long, Order> > >",
            "std::pair<unsigned long, Order>",
            2 << 20,
        ),
    ];
    let (uses, loads) = (profile.uses.len() as u32, profile.loads.len() as u32);
    let all =
        (0..uses).map(|id| Accessed::Use(UseId(id))).chain((0..loads).map(|id| Accessed::Load(LoadId(id))));
    let located = |(n, of): (usize, Accessed)| Located {
        of,
        object: ObjectId(u32::from(n.is_multiple_of(5))),
        offset: None,
        field: None,
    };
    profile.located = all.enumerate().map(located).collect();
    profile
}

/// Five pieces of advice, twelve loops, an interval for everything, time in the kernel, and notices.
fn full() -> Report {
    let mut report = of(&profile_with_objects());
    let advice = |n: u32, kind: &str, title: &str, speedup: Estimate| Advice {
        evidence: vec![
            format!(
                "Its {n} accesses step by 16,384 bytes, and of each line that they load 8 of 64 bytes are used."
            ),
            "The loop waits for memory in 71 % of its time.".to_owned(),
            "All lines of the matrix come back after 5.6 M accesses, when the last cache has lost them."
                .to_owned(),
            "The outer loop walks the lines in order.".to_owned(),
        ],
        field: None,
        gain: Gain {
            misses: Some(
                [("L1".to_owned(), estimate(0.61, 0.48, 0.74)), ("LLC".to_owned(), estimate(0.02, 0.0, 0.1))]
                    .into(),
            ),
            speedup,
        },
        in_the_way: vec![
            "The order of the sum changes, so the result may differ in its last digits.".to_owned(),
            "Check that the two arrays do not overlap.".to_owned(),
        ],
        kind: kind.to_owned(),
        n: 40,
        object: Some("matrix".to_owned()),
        other: None,
        place: place("smooth", "/home/user/project/src/particles.cpp", 60 + n),
        title: title.to_owned(),
    };
    let mut all = vec![
        advice(1, "interchange", "Swap the loops at particles.cpp:61", estimate(1.9, 1.6, 2.2)),
        advice(2, "fuse", "Run the passes over w.particles together", estimate(1.4, 1.2, 1.7)),
        advice(
            3,
            "split",
            "Split name, created, owner and flags from Particle, and keep the rest in an array of its own",
            estimate(1.21, 1.08, 1.34),
        ),
        advice(4, "prefetch", "Prefetch the next bucket", estimate(1.08, 1.03, 1.15)),
        advice(5, "huge_pages", "Put the table on huge pages.", estimate(1.05, 1.02, 1.09)),
    ];
    all[1].other = Some(place("energy", "particles.cpp", 51));
    report.advice = Some(all);
    let one = |n: u32| Loop {
        accesses: vec![LoopAccess {
            object: Some(format!("std::map<int, Order>::node_{n}")),
            ..LoopAccess::default()
        }],
        bound_by: [Some("deeper_misses"), Some("fp_add_chain"), Some("width"), None][n as usize % 4]
            .map(str::to_owned),
        core_cycles: (n != 3).then(|| estimate(1.1, 1.0, 1.2)),
        cycles: Some(estimate(140.0 / f64::from(n), 1.0, 200.0)),
        instructions: 9.0.into(),
        n: 12,
        place: match n % 3 {
            0 => place(
                "<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend",
                "/rustc/lib/alloc/vec/mod.rs",
                3000 + n,
            ),
            1 => place(
                "ns::Grid<double, 3, ns::Row<double> >::smooth(std::vector<double> const&, int)",
                "src/grid.hpp",
                10 * n,
            ),
            _ => place("update_all_the_cells_of_the_grid_without_halo", "step.c", n),
        },
        share: estimate(0.3 / f64::from(n), 0.2 / f64::from(n), 0.4 / f64::from(n)),
        trips: match n {
            2 => Trips { at_least: Some(4096), median: None, n: 0 },
            4 => Trips::default(),
            _ => Trips { at_least: None, median: Some(1024), n: 3 },
        },
        ..Loop::default()
    };
    report.loops = Some((1..=12).map(one).collect());
    let verdict = report.verdict.as_mut().unwrap();
    verdict.waits_share = Some(estimate(0.31, 0.2, 0.4));
    let entry = |call: &str, line: u32, share: f64| KernelEntry {
        call: call.to_owned(),
        place: Place { file: Some("/src/fill.c".to_owned()), line: Some(line), ..Place::default() },
        share: estimate(share, share / 2.0, share * 2.0),
    };
    report.kernel_time = Some(KernelTime {
        entries: vec![entry("page fault", 31, 0.2), entry("read", 50, 0.11), entry("futex", 7, 0.001)],
        page_faults: Some(PageFaults { count: 1_234_567, share: estimate(0.2, 0.1, 0.3) }),
        share: estimate(0.32, 0.28, 0.36),
    });
    report.notices = (1..=5)
        .map(|n| format!("Notice {n} of those that a reader must know, which is longer than a line of the page is wide at any width, so it loses its end on the screen."))
        .collect();
    report.run.user_only = Some(true);
    report
}

/// What must hold for any page: lines fit, none ends in a space, ASCII is ASCII, colours add nothing else.
fn check(report: &Report) {
    for columns in WIDTHS {
        let options = at(columns);
        let page = print(report, &options);
        for line in page.lines() {
            assert!(line.chars().count() <= columns, "{columns}: {line}\n{page}");
            assert_eq!(line, line.trim_end());
        }
        assert!(!page.contains("\n\n\n") && !page.contains("NaN") && !page.contains("inf"), "{page}");
        let ascii = print(report, &Options { ascii: true, ..options.clone() });
        assert!(ascii.is_ascii(), "{ascii}");
        assert_eq!(ascii.lines().count(), page.lines().count());
        let mut painted = print(report, &Options { style: Style::Ansi, ..options });
        for code in ["\x1b[1m", "\x1b[33m", "\x1b[1;31m", "\x1b[1;32m", "\x1b[0m"] {
            painted = painted.replace(code, "");
        }
        assert_eq!(painted, page);
    }
    let page = print(report, &at(100));
    assert!(page.lines().count() <= LINES, "{} lines\n{page}", page.lines().count());
}

#[test]
fn a_screen_with_everything() {
    let report = full();
    check(&report);
    let ascii = print(&report, &Options { ascii: true, ..at(72) });
    insta::assert_snapshot!("full_72_ascii", ascii);
    for columns in WIDTHS {
        insta::assert_snapshot!(format!("full_{columns}"), print(&report, &at(columns)));
    }
}

#[test]
fn a_profile_without_windows_says_what_it_lacks() {
    let report = of(&demo());
    check(&report);
    insta::assert_snapshot!("demo_100", print(&report, &at(100)));
    insta::assert_snapshot!("demo_72", print(&report, &at(72)));
    let page = words(&print(&report, &at(100)));
    assert!(page.contains("NO VERDICT Miss ratios are not known: the profile has no windows."), "{page}");
    assert!(page.contains("this profile has no loops"), "{page}");
}

#[test]
fn a_profile_with_windows_has_a_verdict_and_both_curves() {
    let report = of(&profile_with_objects());
    check(&report);
    for columns in WIDTHS {
        insta::assert_snapshot!(format!("windows_{columns}"), print(&report, &at(columns)));
    }
}

#[test]
fn an_empty_report_says_why() {
    let mut make = Maker::new();
    make.profile.run.cpu_ns = 0;
    let report = of(&make.balanced());
    check(&report);
    insta::assert_snapshot!(print(&report, &at(80)));
    check(&Report::default());
    assert!(print(&Report::default(), &Options::default()).contains("NO VERDICT"));
}

/// A partial profile in trouble: losses, threads without stops, call paths of stripped code.
#[test]
fn trouble_is_said_in_a_line_each() {
    let mut make = Maker::new();
    for n in 0..5 {
        make.reuse("?@/opt/stripped.so < main src/tree.cc:90", "?@/opt/stripped.so", 50 * MS + n);
        make.reuse("copy src/a.c:1", "copy src/a.c:1", 500 * MS);
    }
    make.profile.notices = vec!["The profile was recovered; at most its last second is missing.".to_owned()];
    make.profile.partial = true;
    make.profile.run.user_only = true;
    make.profile.threads[1].not_held = Some("no signal is free".to_owned());
    let mut profile = make.balanced();
    profile.ledger.lost = vec![("ring full".to_owned(), 12)];
    profile.ledger.seen += 12;
    profile.ledger.unreachable = vec![("indirect call".to_owned(), 40)];
    let report = of(&profile);
    check(&report);
    let page = words(&print(&report, &at(100)));
    for said in [
        "The profile is not complete; 1 of 2 threads measured without stops; 40 samples whose access is unknown; touches by the kernel",
        "12 samples lost",
        "Note The profile was recovered; at most its last second is missing.",
        "copy a.c:1 → itself",
        "Half of all reuses of words come within",
    ] {
        assert!(page.contains(said), "no `{said}` in {page}");
    }
}

#[test]
fn tables_have_the_rows_that_are_asked_for() {
    let report = full();
    let rows = |top: usize| {
        let page = print(&report, &Options { top: Some(top), ..at(100) });
        let table = page.split("Where the time is").nth(1).unwrap().split("\n\n").next().unwrap();
        let is_rest = |line: &&str| line.contains("more loop") || line.contains("outside of loops");
        table.lines().skip(1).filter(|line| !is_rest(line)).count()
    };
    assert_eq!([1, 3, 12, 50].map(rows), [1, 3, 12, 12]);
}

#[test]
fn advice_that_is_none_says_why() {
    let mut report = full();
    report.advice = Some(Vec::new());
    report.advice_none = Some("92 % of the time does not wait for memory.".to_owned());
    check(&report);
    let page = words(&print(&report, &at(100)));
    assert!(page.contains("What to do 92 % of the time does not wait for memory."), "{page}");
    report.advice_none = None;
    assert!(words(&print(&report, &at(100))).contains("What to do No change would save much."));
}

#[test]
fn verdicts_are_said_with_their_doubt() {
    let mut report = full();
    let title = |report: &Report| {
        let page = print(report, &at(100));
        page.split("\n\n").nth(1).unwrap().split("  ").next().unwrap().to_owned()
    };
    let mut say = |grade: Grade, probably: bool| {
        let verdict = report.verdict.as_mut().unwrap();
        verdict.per_mille =
            [("L1".to_owned(), estimate(30.0, 10.0, 49.0)), ("LLC".to_owned(), estimate(9.0, 3.0, 25.0))]
                .into();
        (verdict.grade, verdict.probably) = (grade, probably);
        check(&report);
        title(&report)
    };
    assert_eq!(say(Grade::Good, false), "GOOD LOCALITY");
    assert_eq!(say(Grade::Poor, true), "PROBABLY POOR LOCALITY");
    assert_eq!(say(Grade::Unsure, false), "LOCALITY UNSURE (good to poor)");
}

/// Numbers that a damaged profile may have, everywhere: no panic, and no such number on the page.
#[test]
fn numbers_that_are_none_are_left_out() {
    for bad in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        let mut report = full();
        let number = Number::Real(bad);
        let estimate = Estimate { ci95: [number; 2], n: u64::MAX, value: number };
        for one in report.loops.as_mut().unwrap() {
            (one.share, one.cycles, one.core_cycles) =
                (estimate.clone(), Some(estimate.clone()), Some(estimate.clone()));
        }
        for advice in report.advice.as_mut().unwrap() {
            advice.gain.speedup = estimate.clone();
        }
        let verdict = report.verdict.as_mut().unwrap();
        verdict.per_mille.values_mut().for_each(|of| *of = estimate.clone());
        (report.run.wall_s, report.run.cpu_s) = (number, number);
        for object in report.objects.as_mut().unwrap() {
            (object.access_share, object.cpu_share) = (number, number);
            object.miss_share = objects::ByLevel::from([("L1".to_owned(), number)]);
        }
        for reuse in report.reuse.values_mut() {
            for point in reuse.miss_ratio_curve.iter_mut().flatten() {
                (point.ratio, point.ci95) = (number, Some([number; 2]));
            }
        }
        for columns in WIDTHS {
            let page = print(&report, &at(columns));
            assert!(!page.contains("NaN") && !page.contains("inf"), "{bad}: {page}");
        }
    }
}

#[test]
fn a_share_saved_is_of_a_cache_that_loads_lines() {
    let mut report = full();
    let levels = |last: f64| {
        let level = |name: &str, bytes: f64| LevelUse {
            level: name.to_owned(),
            bytes_loaded: bytes.into(),
            ..LevelUse::default()
        };
        vec![level("L1", 1e11), level("LL", last)]
    };
    let mut saved = |last: f64| {
        report.cache_use =
            Some(crate::schema::cache_use::CacheUse { levels: levels(last), ..Default::default() });
        let advice = report.advice.as_mut().unwrap();
        advice.truncate(1);
        advice[0].evidence.clear();
        advice[0].gain.misses = Some(
            [("L1", 0.61), ("LLC", 0.75)].map(|(name, of)| (name.to_owned(), estimate(of, of, of))).into(),
        );
        words(&print(&report, &at(100)))
    };
    assert!(saved(1e10).contains("Saves 75 % of the lines loaded into LLC."));
    assert!(saved(0.0).contains("Saves 61 % of the lines loaded into L1."));
}

#[test]
fn costs_beyond_the_budget_name_the_largest() {
    let mut report = full();
    let overhead = report.overhead.as_mut().unwrap();
    (overhead.measured_percent, overhead.budget_percent) = (2.18.into(), 1.0.into());
    (overhead.by_cause.stop, overhead.by_cause.trap) = (0.6.into(), 1.5.into());
    let page = words(&print(&report, &at(100)));
    assert!(page.contains("Cost 2.18 % of the program's CPU time (budget 1 %; traps cost 1.50 %)"), "{page}");
}

/// Few samples: loops of no time are no rows, and the lines of code stand there.
#[test]
fn a_table_without_rows_has_no_heading() {
    let mut report = full();
    for one in report.loops.as_mut().unwrap() {
        one.share = estimate(0.0, 0.0, 0.9);
    }
    let page = print(&report, &at(100));
    assert!(
        !page.contains("Where the time is: loops") && page.contains("Where the time is: lines"),
        "{page}"
    );
}

#[test]
fn rows_of_whole_shares_fit() {
    let mut report = full();
    let whole = estimate(1.0, 0.9999, 1.0);
    for one in report.loops.as_mut().unwrap() {
        one.share = whole.clone();
        one.bound_by = Some("deeper_misses".to_owned());
        one.trips = Trips { at_least: Some(12_345_678), median: None, n: 3 };
    }
    for columns in WIDTHS {
        let page = print(&report, &at(columns));
        let row = page.lines().find(|line| line.contains("misses beyond L2")).unwrap();
        assert!(!row.ends_with('…') && row.contains("100 %"), "{row}");
        assert!(columns < 88 || row.contains("12 M+"), "{row}");
    }
}

#[test]
fn advice_for_segments_is_of_the_agent() {
    let page = |file: &str, wall_s: f64| {
        let mut report = full();
        report.run.wall_s = wall_s.into();
        let options = Options { file: Some(file.to_owned()), ..at(140) };
        words(&print(&report, &options))
    };
    assert!(page("trace.locality", 10.0).contains("(-d 40"));
    let segment = "/var/lib/locality-bpf/segments/segment-1764200000000.locality";
    let minutes = page(segment, 300.0);
    assert!(minutes.contains("(agent --window 1200s") && !minutes.contains("-d "), "{minutes}");
    let hour = page(segment, 3600.0);
    assert!(hour.contains("(locality-bpf merge") && !hour.contains("--window"), "{hour}");
}
