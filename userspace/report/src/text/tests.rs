//! What the text report looks like, in full, and what must hold for all of them.

use locality_model::testing::{MS, Maker, US, demo};
use locality_model::{Ledger, Thread};

use super::*;

fn printed(profile: &Profile) -> String {
    print(profile, &Findings::of(profile), Options::default())
}

#[test]
fn the_demo_report() {
    insta::assert_snapshot!(printed(&demo()));
}

#[test]
fn what_ends_a_reuse_is_said_as_it_was_traced() {
    let words = |profile: &Profile| printed(profile).split_whitespace().collect::<Vec<_>>().join(" ");
    let mut profile = demo();
    assert!(words(&profile).contains("by any thread or by the kernel."));
    profile.run.user_only = true;
    assert!(words(&profile).contains("by any thread; what system calls touch was passed over."));
}

#[test]
fn an_empty_report() {
    let mut make = Maker::new();
    make.profile.run.cpu_ns = 0;
    make.profile.samples.clear();
    insta::assert_snapshot!(printed(&make.balanced()));
}

/// A partial profile in trouble: books that do not balance, losses, threads without stops, notices,
/// deep recursion, stripped code, long C++ names, far pairs below the top.
#[test]
fn a_troubled_report() {
    let mut make = Maker::new();
    let deep = " < walk src/tree.cc:20".repeat(12);
    let long = "std_like::basic_hash_table<long_namespace::Key,long_namespace::Value,Allocator>::insert";
    for n in 0..5 {
        let used = format!("{long} /home/user/project/with/a/deep/path/of/directories/table.hpp:881{deep}");
        make.reuse(&used, &format!("walk src/tree.cc:22{deep}"), 2 * MS + n);
        make.reuse(
            "?@/opt/stripped.so < main src/tree.cc:90",
            "?@/opt/stripped.so < main src/tree.cc:91",
            50 * US,
        );
        make.reuse("?@/opt/stripped.so", "hash@[jit]", 60 * US).p_survive = 0.3;
    }
    make.reuse("a src/a.c:1", "b src/a.c:2", 500 * MS);
    make.profile.notices = vec!["The profile was recovered; at most its last second is missing.".to_owned()];
    make.profile.partial = true;
    let no_signal = Some("no signal is free".to_owned());
    make.profile.threads.push(Thread { not_held: no_signal.clone(), ..Thread::default() });
    make.profile.threads.push(Thread { not_held: no_signal, ..Thread::default() });
    let mut profile = make.balanced();
    profile.ledger = Ledger {
        lost: vec![("ring full".to_owned(), 12), ("too late".to_owned(), 3)],
        unreachable: vec![("indirect call".to_owned(), 40)],
        ..profile.ledger
    };
    let options = Options { top: Some(2), style: Style::Plain };
    let text = print(&profile, &Findings::of(&profile), options);
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn the_ledger_of_a_trace_that_was_cut_short_is_not_told_as_balanced() {
    let mut make = Maker::new();
    make.reuse("fill a.c:3", "sum a.c:5", 40_000);
    make.profile.partial = true;
    let text = print(&make.profile, &Findings::of(&make.profile), Options::default());
    assert!(text.contains("Ledger    not known") && !text.contains("balance"), "{text}");
}

#[test]
fn tables_have_as_many_rows_as_asked_for() {
    let mut make = Maker::new();
    for line in 1..=7 {
        make.watch(&format!("log src/log.c:{line} < main a.c:9"), locality_model::Outcome::StillArmed);
    }
    make.reuse("fill a.c:3 < main a.c:9", "sum a.c:5 < main a.c:9", 30 * MS);
    let profile = make.balanced();
    let unseen = |top: Option<usize>| {
        let text = print(&profile, &Findings::of(&profile), Options { top, ..Options::default() });
        let table = text.split("Uses without a reuse").nth(1).unwrap().split("Hot accesses").next().unwrap();
        table.matches("log.c:").count()
    };
    assert_eq!([None, Some(2), Some(6), Some(50)].map(unseen), [5, 2, 6, 7]);
}

/// Where the outermost frames are missing, the path begins with why.
#[test]
fn cut_call_paths_are_marked() {
    let cut = |used: &str, reused: &str, which: &[&str]| -> Vec<String> {
        let mut make = Maker::new();
        make.reuse(used, reused, 30 * MS);
        for stack in which {
            let stack = make.stack(stack);
            make.profile.stacks[stack.0 as usize].cut = Some("no unwind information".to_owned());
        }
        let text = printed(&make.balanced());
        let tree =
            text.lines().skip_while(|line| !line.starts_with("     ") || !line.contains(" → ")).skip(1);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        tree.take_while(|line| !line.is_empty()).map(words).collect()
    };
    let (fill, sum, run) = ("fill a.c:3 < main a.c:9", "sum a.c:5 < main a.c:9", "sum a.c:5 < run a.c:10");
    let unknown = "… [unknown caller]: no unwind information";
    assert_eq!(cut(fill, sum, &[]), ["main a.c:9", "use fill a.c:3 ← store", "reuse sum a.c:5 ← load"]);
    assert_eq!(
        cut(fill, sum, &[fill, sum]),
        [unknown, "main a.c:9", "use fill a.c:3 ← store", "reuse sum a.c:5 ← load"]
    );
    assert_eq!(cut(fill, fill, &[fill]), [unknown, "main a.c:9", "both fill a.c:3 ← store, then ← load"]);
    assert_eq!(
        cut(fill, run, &[run]),
        [
            "use main a.c:9",
            "fill a.c:3 ← store",
            &format!("reuse {unknown}"),
            "run a.c:10",
            "sum a.c:5 ← load"
        ]
    );
}

#[test]
fn lines_fit_and_colour_adds_nothing_but_escapes() {
    let profile = demo();
    let plain = printed(&profile);
    for line in plain.lines() {
        assert!(line.chars().count() <= WIDTH, "{line}");
        assert_eq!(line, line.trim_end());
    }
    let options = Options { style: Style::Ansi, ..Options::default() };
    let mut painted = print(&profile, &Findings::of(&profile), options);
    assert!(painted.contains("\x1b[1;31m"));
    for code in ["\x1b[1m", "\x1b[33m", "\x1b[1;31m", "\x1b[0m"] {
        painted = painted.replace(code, "");
    }
    assert_eq!(painted, plain);
}

#[test]
fn keys_of_the_profile_have_words_for_readers() {
    assert_eq!(ended_by("the asked duration"), "after -d");
    assert_eq!(ended_by("the asked duration; SIGTERM"), "after -d, by SIGTERM");
    assert_eq!(
        ended_by("the asked duration, before the asked precision"),
        "after -d, before the asked precision"
    );
    assert_eq!(clock("cpu-clock, 15 Hz at the end"), "cpu-clock, 15 Hz at the end");
    let merged = "cpu-clock, 48 Hz at the end; cpu-clock, 41 Hz at the end; cpu-clock, 58 Hz at the end";
    assert_eq!(clock(merged), "cpu-clock, 41–58 Hz at the ends");
    assert_eq!(clock("AMD IBS; cpu-clock, 4 Hz at the end"), "AMD IBS; cpu-clock, 4 Hz at the end");
    let stops = [("asked for".to_owned(), 238), ("told what a trap costs".to_owned(), 3)];
    assert_eq!(causes(&worded(&stops)), "requested 238, trap cost measured 3");
    assert_eq!(
        reuses_within("", "1.00 M accesses", "1.00 M accesses"),
        "90 % of all reuses come within 1.00 M accesses"
    );
}

/// Without lines of source, the table of lines would repeat the functions.
#[test]
fn code_without_lines_has_one_table() {
    let tables = |stack: &str| {
        let mut make = Maker::new();
        make.reuse(stack, stack, 30 * MS);
        printed(&make.balanced()).matches("Hot accesses by").count()
    };
    assert_eq!([tables("?@/opt/stripped.so"), tables("fill a.c:3")], [1, 2]);
}
