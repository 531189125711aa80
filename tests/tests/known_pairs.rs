//! Traces programs with a known answer, live: the heaviest pair of the
//! report is the known pair, with both lines, and each use was
//! confirmed by the trap of the very instruction predicted at the stop.

use std::os::unix::process::ExitStatusExt as _;

use locality_tests::live::{Live, beside};
use locality_tests::{Target, known, markers, requires};

/// Enough budget for some thirty samples a second with
/// windows: six seconds tell pairs of 25 % and 10 % apart.
const BUDGET: [&str; 2] = ["--overhead", "3"];

/// Seconds of a trace, and of the second trace if the first was too short.
const SECONDS: [&str; 2] = ["6", "24"];

/// Least number of watches for shares of pairs.
const WATCHES: usize = 50;

/// Traces `program`, running with `arguments`, until the program's pair `name` is on top.
fn top_pair(program: &str, arguments: &[&str], name: &str) -> Live {
    top_pair_with(&BUDGET, program, arguments, name)
}

/// Traces with `options` of the tracer.
fn top_pair_with(options: &[&str], program: &str, arguments: &[&str], name: &str) -> Live {
    let _beside = beside();
    let target = Target::start(program, arguments);
    let on_top = |live: &Live| known::top_is(&live.report, &markers(program)[name]).is_ok();
    let live = Live::trace_until(target.pid(), SECONDS, options, |live| has_enough(live) && on_top(live));
    known::assert_top(&live.report, program, name);
    sound(&live);
    unharmed(target);
    live
}

fn has_enough(live: &Live) -> bool {
    live.profile.watches.len() >= WATCHES
}

/// Common properties of the programs: simple code that runs all the time.
fn sound(live: &Live) {
    // A machine that keeps the tracer waiting for 50 ms gets a sample now and then without a stop.
    let source = live.report["run"]["sources"]["address"].as_str().unwrap_or_default();
    assert!(source.starts_with("zero-skid stop"), "{source}");
    assert!(live.held() >= 0.95, "only {} of the samples were stopped at", live.held());
    assert_eq!(live.report["threads"]["not_held"], 0);
    assert!(has_enough(live), "only {} watches", live.profile.watches.len());
    live.assert_confirmed(0.99);
    assert!(live.whole_stacks() >= 0.99, "only {} of the stacks are whole", live.whole_stacks());
    // The event disarms itself in the kernel after the reuse: else each touch until user space
    // reads on would trap.
    let late = live.report["ledger"]["filtered_by"]["touched after the reuse"].as_u64().unwrap_or(0);
    assert!(late <= 2 * live.profile.watches.len() as u64, "{late} traps after the reuse");
}

/// Still running, and ended by the test's signal alone.
fn unharmed(target: Target) {
    target.signal(libc::SIGTERM);
    let finished = target.finish(std::time::Duration::from_secs(20));
    assert_eq!(finished.status.signal(), Some(libc::SIGTERM), "{finished:?}");
}

fn top(live: &Live) -> &serde_json::Value {
    &live.report["pairs"][0]
}

/// Median time of the top pair, in milliseconds of the process's CPU time.
fn median_ms(live: &Live) -> f64 {
    top(live)["time_median"]["value"].as_f64().unwrap_or_default() / 1e6
}

#[test]
fn two_loops_over_one_array() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("two_loops", &[], "written_read");
    // One pass over the array lies between use and reuse: a million steps.
    assert!(top(&live)["far"] == true && median_ms(&live) > 0.5, "{} ms", median_ms(&live));
    assert_eq!(top(&live)["cross_thread_share"]["value"], 0.0);
    assert_eq!(top(&live)["kernel_share"]["value"], 0.0);
    assert_eq!(top(&live)["common_ancestor"]["function"], "main");
}

#[test]
fn written_by_the_program_and_read_by_a_library() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("library_pair", &[], "across_library");
    let module = |end: &str| top(&live)[end]["frames"][0]["module"].as_str().unwrap_or_default().to_owned();
    assert!(module("use").ends_with("/library_pair"), "{}", module("use"));
    assert!(module("reuse").ends_with("/liblibrary_pair.so"), "{}", module("reuse"));
}

#[test]
fn handed_over_from_thread_to_thread() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("producer_consumer", &[], "handed_over");
    assert!(top(&live)["cross_thread_share"]["value"].as_f64().unwrap() > 0.95, "{}", top(&live));
    assert!(median_ms(&live) > 0.5, "{} ms", median_ms(&live));
    let everywhere = live.profile.watches.iter().filter(|watch| watch.threads_armed == watch.threads_alive);
    assert!(everywhere.count() * 20 >= live.profile.watches.len() * 19, "threads left unwatched");
}

#[test]
fn recursion_down_and_up() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("recursion", &[], "down_up");
    // Same function at both ends: the call path tells the depths apart.
    assert!(top(&live)["contexts_total"].as_u64().unwrap() > 3, "{}", top(&live)["contexts_total"]);
}

#[test]
fn generated_code_with_a_perf_map() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("jit_loop", &["0", "map"], "generated");
    // Without the kill, the program would remove the map.
    std::fs::remove_file(format!("/tmp/perf-{}.map", live.profile.run.pids[0])).unwrap();
}

#[test]
fn generated_code_without_a_map_has_a_reason_for_each_name() {
    requires!(root, btf, watchpoints(4));
    let _beside = beside();
    let target = Target::start("jit_loop", &[]);
    // With few samples, a different pair may be the first.
    let on_top = |live: &Live| top(live)["use"]["frames"][0]["function"].is_null();
    let live = Live::trace_until(target.pid(), SECONDS, &BUDGET, |live| has_enough(live) && on_top(live));
    sound(&live);
    for end in ["use", "reuse"] {
        let frames = top(&live)[end]["frames"].as_array().unwrap();
        assert!(frames[0]["function"].is_null(), "{}", frames[0]);
        assert!(frames[0]["unknown"].as_str().unwrap().contains("no perf map"), "{}", frames[0]);
        // The generated code has no frame pointer, and yet the caller is found.
        assert!(frames.iter().any(|frame| frame["function"] == "main"), "{frames:?}");
    }
}

#[test]
fn call_paths_without_frame_pointers() {
    requires!(root, btf, watchpoints(4));
    top_pair("no_frame_pointer", &[], "deep_calls");
}

#[test]
fn a_stripped_program_by_its_dynamic_symbols() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("stripped", &[], "by_dynamic_symbol");
    let reason = top(&live)["use"]["frames"][0]["unknown"].as_str().unwrap_or_default();
    assert!(reason.contains("stripped"), "{reason}");
}

#[test]
fn refilled_by_the_kernel_in_read() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("read_syscall", &[], "refilled_by_kernel");
    assert!(top(&live)["kernel_share"]["value"].as_f64().unwrap() > 0.95, "{}", top(&live));
}

#[test]
fn the_programs_own_reuse_where_the_kernels_is_passed_over() {
    requires!(root, btf, watchpoints(4));
    let options = [BUDGET[0], BUDGET[1], "--user-only"];
    let live = top_pair_with(&options, "read_syscall", &[], "next_round");
    assert_eq!(top(&live)["kernel_share"]["value"], 0.0, "{}", top(&live));
    let source = live.report["run"]["sources"]["address"].as_str().unwrap_or_default();
    assert!(source.contains("touches by the kernel passed over"), "{source}");
}

#[test]
fn templates_inlined_into_one_another() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("templates", &[], "template_members");
    let frames = top(&live)["reuse"]["frames"].as_array().unwrap();
    assert!(frames.iter().any(|frame| frame["inlined"] == true), "{frames:?}");
    let function = top(&live)["use"]["frames"][0]["function"].as_str().unwrap();
    assert!(function.starts_with("Series<unsigned long>::generate"), "{function} is not demangled");
}

#[test]
fn two_passes_by_iterators_in_rust() {
    requires!(root, btf, watchpoints(4));
    top_pair("two_passes", &[], "iterators");
}

#[test]
fn the_demo_passes_twice_over_a_long_array() {
    requires!(root, btf, watchpoints(4));
    let live = top_pair("column_walk", &[], "second_pass");
    assert!(top(&live)["far"] == true && median_ms(&live) > 2.0, "{} ms", median_ms(&live));
}
