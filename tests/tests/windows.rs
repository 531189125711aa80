//! Shadow windows on live processes: predictions come true; windows that cannot continue end with a
//! reason; the traced program always runs on, with the output of an untraced run.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{collections::HashSet, fs, thread};

use locality_estimate::interval_censoring::SIGMAS;
use locality_model::{Outcome, Profile, Seen};
use locality_tests::live::{Live, alone};
use locality_tests::{Target, Tracer, programs, requires};

const LIMIT: Duration = Duration::from_secs(90);

/// Number of windows with one of the ends `reasons`.
fn ended(profile: &Profile, reasons: &[&str]) -> usize {
    profile.windows.iter().filter(|window| reasons.contains(&window.end.as_str())).count()
}

/// Reasons of the windows' ends, with repetitions.
fn reasons(profile: &Profile) -> Vec<&str> {
    profile.windows.iter().map(|window| window.end.as_str()).collect()
}

/// Traces `shifting_ground` to the end and compares the output with an untraced run.
fn on_shifting_ground(rounds: &str, which: &str) -> Profile {
    let untraced = Target::start("shifting_ground", &[rounds, which]).finish(LIMIT);
    let target = Target::start("shifting_ground", &[rounds, which]);
    let live = Live::trace(target.pid(), "60", &["--overhead", "5"]);
    let traced = target.finish(LIMIT);
    assert_eq!((traced.status, &traced.stdout), (untraced.status, &untraced.stdout), "{which}");
    assert!(traced.status.success());
    assert_eq!(live.profile.run.ended_by, "the last traced process ended");
    assert!(live.profile.windows.len() >= 5, "{} windows: {}", live.profile.windows.len(), live.stderr);
    live.profile
}

/// At least one window of a traced `shifting_ground` ends for
/// a reason in `expected`, with the output of an untraced run.
fn some_windows_end(rounds: &str, which: &str, expected: &[&str]) {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let profile = on_shifting_ground(rounds, which);
    assert!(ended(&profile, expected) > 0, "{:?}, {:?}", reasons(&profile), profile.ledger.stops);
}

/// Sample periods add up to the CPU time, though the
/// sampling clock changes the period all the time.
#[test]
fn samples_stand_for_all_of_the_time() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("two_loops", &["60"]);
    let live = Live::trace(target.pid(), "8", &["--overhead", "2"]);
    let periods: Vec<u64> = live.profile.samples.iter().map(|sample| sample.period_ns).collect();
    let distinct: HashSet<u64> = periods.iter().copied().collect();
    assert!(distinct.len() >= 5, "{distinct:?}");
    let share = periods.iter().sum::<u64>() as f64 / live.profile.run.cpu_ns as f64;
    println!("{share:.3} of the time, {} samples", periods.len());
    assert!((0.9..1.05).contains(&share), "{share} of the time, {} samples", periods.len());
}

/// A process that lives for some fiftieths of a second is seized at the first sample, and sampled
/// again at once; the two samples count once.
#[test]
fn processes_of_milliseconds_have_windows() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let program = programs::build("two_loops");
    let script = format!("while :; do {} 0.06; done", program.display());
    let mut shell = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).spawn().unwrap();
    let live = Live::trace(shell.id(), "6", &["--overhead", "3"]);
    shell.kill().unwrap();
    shell.wait().unwrap();
    let profile = &live.profile;
    let of_children: Vec<_> = profile
        .samples
        .iter()
        .filter(|sample| profile.threads[sample.thread.0 as usize].pid != shell.id())
        .collect();
    let held = of_children.iter().filter(|sample| sample.held).count();
    println!("{held} of {} samples held, {:#}", of_children.len(), live.report["ledger"]["stops"]);
    assert!(of_children.len() >= 20 && held * 10 >= of_children.len() * 8, "{held} of {}", of_children.len());
    let stops = &live.report["ledger"]["stops"];
    assert!(stops["sampled again because the thread was not held yet"].as_u64() > Some(0), "{stops:#}");
    assert!(profile.windows.len() * 10 >= held * 8, "{} windows", profile.windows.len());
    let sum: u64 = profile.samples.iter().map(|sample| sample.period_ns).sum();
    let share = sum as f64 / profile.run.cpu_ns as f64;
    println!("{share:.3} of the time");
    assert!((0.85..1.1).contains(&share), "{sum} ns of {}", profile.run.cpu_ns);
}

#[test]
fn what_windows_foretell_happens() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("two_loops", &["60"]);
    let gauges = |live: &Live| live.report["ledger"]["stops"]["told what a trap costs"].as_u64();
    let enough = |live: &Live| live.profile.windows.len() >= 40 && gauges(live) > Some(0);
    let live = Live::trace_until(target.pid(), ["4", "16"], &["--overhead", "3"], enough);
    let profile = &live.profile;
    assert!(enough(&live), "{} windows, {:?} gauges", profile.windows.len(), gauges(&live));
    let good = ended(profile, &["whole", "system call", "time limit", "page limit"]);
    assert!(good * 100 >= profile.windows.len() * 95, "{:#}", live.report["ledger"]);
    // Most uses left open by a window are trapped at the very instruction that the window named.
    let of_uses = profile.watches.iter().filter(|watch| watch.of_use.is_some());
    let reused: Vec<_> = of_uses.filter(|watch| matches!(watch.outcome, Outcome::Reused { .. })).collect();
    let confirmed = reused.iter().filter(|watch| watch.use_confirmed).count();
    assert!(reused.len() >= 20 && confirmed * 100 >= reused.len() * 95, "{confirmed} of {}", reused.len());
    // Each use is followed at both granules, and a word's reuse is a reuse of the line too.
    for of_use in &profile.uses {
        let [(8, word), (64, line)] = of_use.seen[..] else { panic!("{:?}", of_use.seen) };
        let (Seen::Reused { distance: line, .. } | Seen::Open { accesses: line }) = line;
        let (Seen::Reused { distance: word, .. } | Seen::Open { accesses: word }) = word;
        assert!(line <= word, "{of_use:?}");
    }
    // This loop has one speed, which most samples show.
    let mut rates: Vec<f64> =
        profile.windows.iter().filter_map(|window| Some(window.rate.as_ref()?.value)).collect();
    rates.sort_by(f64::total_cmp);
    assert!(rates.len() * 2 >= profile.windows.len(), "{} of {}", rates.len(), profile.windows.len());
    let [low, median, high] = [1, 2, 3].map(|quarter| rates[rates.len() * quarter / 4]);
    assert!(low * 1.5 > median && high < median * 1.5, "{low} {median} {high}");
    let source = live.report["run"]["sources"]["rate"].as_str();
    assert!(source.is_some_and(|source| source.contains('%')), "{source:?}");
}

#[test]
fn without_windows_there_are_none() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("two_loops", &["60"]);
    let profile = Live::trace(target.pid(), "1", &["--no-window", "--overhead", "3"]).profile;
    assert!(profile.windows.is_empty() && profile.uses.is_empty());
    assert!(profile.watches.iter().all(|watch| watch.of_use.is_none()) && !profile.watches.is_empty());
}

#[test]
fn code_that_is_rewritten_ends_the_window() {
    some_windows_end("3000", "rewrites", &["code was written"]);
}

#[test]
fn pages_that_come_and_go_harm_nobody() {
    some_windows_end("60000", "unmaps", &["whole", "time limit"]);
}

/// A stopped thread's next page may be gone for as long as another thread likes.
/// A window meets a missing page only if a second thread takes the page between the stop and the
/// end of the window, which is rare: the package of windows tests this end.
#[test]
fn pages_that_are_taken_away_harm_nobody() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    on_shifting_ground("1500000", "pulls");
}

#[test]
fn code_for_32_bits_has_no_window() {
    some_windows_end("100000", "narrow", &["32-bit code"]);
}

#[test]
fn an_instruction_that_may_not_be_run_ends_the_window() {
    some_windows_end("400000", "rare", &["unsupported instruction"]);
}

#[test]
fn a_stack_that_cannot_be_read_ends_the_window() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let rounds = "200000";
    if Target::start("shifting_ground", &["1", "secret"])
        .finish(LIMIT)
        .stdout
        .iter()
        .any(|line| line == "absent")
    {
        // Without secret memory the program runs on an ordinary stack.
        on_shifting_ground(rounds, "secret");
        return;
    }
    let profile = on_shifting_ground(rounds, "secret");
    assert!(ended(&profile, &["unreadable data"]) > 0, "{:?}", profile.ledger.stops);
}

#[test]
fn a_process_that_may_do_nothing_is_windowed_as_any() {
    some_windows_end("60000", "confined", &["whole", "time limit"]);
}

/// Traces a `shifting_ground` that reads clocks: nearly all windows have full length.
fn windows_go_through(rounds: &str, which: &str) -> Profile {
    let profile = on_shifting_ground(rounds, which);
    let good = ended(&profile, &["whole", "time limit"]);
    assert!(good * 10 >= profile.windows.len() * 9, "{:?}", reasons(&profile));
    // Instructions after a clock read are predicted as well as the rest.
    let of_uses = profile.watches.iter().filter(|watch| watch.of_use.is_some());
    let reused: Vec<_> = of_uses.filter(|watch| matches!(watch.outcome, Outcome::Reused { .. })).collect();
    let confirmed = reused.iter().filter(|watch| watch.use_confirmed).count();
    assert!(reused.len() >= 10 && confirmed * 10 >= reused.len() * 9, "{confirmed} of {}", reused.len());
    profile
}

#[test]
fn windows_go_through_readings_of_the_processors_clock() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    windows_go_through("400000", "clocks");
}

#[test]
fn windows_go_through_readings_of_the_kernels_clocks() {
    requires!(root, btf, watchpoints(4));
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    // The remaining clock sources are read by system calls.
    let is_mapped =
        source.is_ok_and(|source| ["tsc", "kvm-clock", "hyperv"].iter().any(|name| source.starts_with(name)));
    let _alone = alone();
    if is_mapped {
        windows_go_through("1200000", "times");
    } else {
        on_shifting_ground("1200000", "times");
    }
}

/// The clock page of the window process tells other times than the program's: the page is not used.
#[test]
fn the_clock_of_another_time_namespace_ends_the_window() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let untraced = Target::start("shifting_ground", &["1", "elsewhere"]).finish(LIMIT);
    let expected = match untraced.stdout.iter().any(|line| line == "absent") {
        // The program reads the clocks of the whole system, without a separate namespace.
        true => "whole",
        false => "clock of another time namespace",
    };
    let profile = on_shifting_ground("1200000", "elsewhere");
    assert!(ended(&profile, &[expected]) > 0, "{:?}", reasons(&profile));
    assert_eq!(ended(&profile, &["unreadable data"]), 0, "{:?}", reasons(&profile));
}

/// The window process of a tracer: the child with `window` in the name.
fn window_process(tracer: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children")).ok()?;
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.contains("window")
    })
}

#[test]
fn a_killed_window_process_is_replaced_and_the_trace_goes_on() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("two_loops", &["60"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.locality");
    let tracer = Tracer::attach(target.pid(), "5").args(["--overhead", "3", "-o"]).args([&file]).start();
    let deadline = Instant::now() + Duration::from_secs(20);
    let helper = loop {
        match window_process(tracer.pid()) {
            Some(pid) => break pid,
            None => assert!(Instant::now() < deadline, "no window process"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    thread::sleep(Duration::from_millis(1_500));
    // SAFETY: a system call with plain arguments.
    unsafe { libc::kill(helper as i32, libc::SIGKILL) };
    let finished = tracer.finish(LIMIT);
    assert!(finished.status.success(), "{}", finished.stderr);
    let profile = locality_profile::read(&file).unwrap();
    assert!(ended(&profile, &["window process did not answer"]) > 0, "{:?}", profile.ledger.stops);
    // New window processes follow: the last windows are whole again.
    let last = &profile.windows[profile.windows.len() - 10..];
    assert!(last.iter().any(|window| window.end == "whole"), "{last:?}");
}

#[test]
fn a_trace_ends_at_the_asked_precision() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    // Not a program with all reuses at one distance: at the edge of
    // a bin, the error of the rate would move all reuses across.
    let target = Target::start("column_walk", &["90"]);
    let live = Live::trace(target.pid(), "50", &["--overhead", "5", "--until-ci", "25%"]);
    assert_eq!(live.profile.run.ended_by, "the asked precision");
    assert!(live.profile.run.wall_ns < 40_000_000_000, "{} ns", live.profile.run.wall_ns);
    let bins = live.report["reuse"]["8"]["time"]["bins"].as_array().unwrap();
    let half =
        |bin: &serde_json::Value| (bin["ci95"][1].as_f64().unwrap() - bin["ci95"][0].as_f64().unwrap()) / 2.0;
    // The report draws more often than the check that ended the trace.
    assert!(bins.iter().map(half).fold(0.0, f64::max) < 0.3, "{bins:?}");
    assert_eq!(live.report["reuse"]["8"]["time"]["unit"], "accesses");
}

#[test]
fn each_estimator_reports_from_the_same_profile() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let target = Target::start("two_loops", &["60"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.locality");
    let traced = Tracer::attach(target.pid(), "3").args(["--overhead", "5", "-o"]).args([&file]).run();
    assert!(traced.status.success(), "{}", traced.stderr);
    for estimator in ["kaplan-meier", "horvitz-thompson", "proportional"] {
        let report = Tracer::new()
            .args(["report", "--estimator", estimator, "--format", "json"])
            .args([&file])
            .report();
        assert_eq!(report["run"]["estimator"], estimator);
        let sum: f64 = report["reuse"]["64"]["time"]["bins"]
            .as_array()
            .unwrap()
            .iter()
            .map(|bin| bin["fraction"].as_f64().unwrap())
            .sum();
        assert!((sum - 1.0).abs() < 1e-6, "{estimator}: {sum}");
    }
    let refused = Tracer::new().args(["report", "--estimator", "best"]).args([&file]).run();
    assert_eq!(refused.status.code(), Some(2));
}

/// The index of a loop is the same at both touches of a word:
/// whole rounds lie in between, at every reading of the clock.
#[test]
fn the_accesses_of_a_round_are_counted() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    for words in [400_000.0, 3_000_000.0] {
        let target = Target::start("rounds", &["12", &words.to_string(), "0"]);
        let live = Live::trace(target.pid(), "10", &["--overhead", "5"]);
        target.finish(LIMIT);
        let reused = live.profile.watches.iter().filter_map(|watch| match watch.outcome {
            Outcome::Reused { accesses, .. } => Some(accesses),
            _ => None,
        });
        let all: Vec<Option<u64>> = reused.collect();
        let mut rounds: Vec<f64> = all.iter().flatten().map(|accesses| *accesses as f64 / words).collect();
        rounds.sort_unstable_by(f64::total_cmp);
        println!("{words} words: {} of {} counted, {rounds:.3?}", rounds.len(), all.len());
        assert!(rounds.len() >= 10 && rounds.len() * 2 >= all.len(), "{} of {}", rounds.len(), all.len());
        assert!(rounds.iter().all(|rounds| (rounds - 1.0).abs() < 0.03), "{rounds:?}");
    }
}

/// A word touched once a round is reported as touched again after a round:
/// between touches by one instruction, or by two in turn, to a few
/// percent. With --nocapture the test prints the errors of measured times.
#[test]
fn the_time_of_a_round_is_measured() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    // Rounds of 5, 12 and 38 us, and of 3 us and more, at 3.8 GHz.
    let rounds =
        [["1500", "1"], ["4000", "1"], ["12000", "1"], ["12000", "0"], ["1500", "2"], ["12000", "2"]];
    for [words, how] in rounds {
        let arguments = ["6", words, how];
        let target = Target::start("rounds", &arguments);
        let live = Live::trace(target.pid(), "4", &["--overhead", "8"]);
        let finished = target.finish(LIMIT);
        let told = finished.stdout.iter().find_map(|line| line.strip_prefix("ns a round "));
        let round_ns: f64 = told.unwrap_or_else(|| panic!("{finished:?}")).parse().unwrap();
        let mut measured: Vec<f64> = live
            .profile
            .watches
            .iter()
            .filter_map(|watch| match watch.outcome {
                // Touched again after the reuse: by one instruction, or by two.
                Outcome::Reused { touch, distance_ns, .. } if watch.ended_ns > touch.time_ns => {
                    assert_eq!(how == "2", watch.use_touch.is_some_and(|used| used.kind != touch.kind));
                    Some(distance_ns as f64 / round_ns)
                }
                _ => None,
            })
            .collect();
        measured.sort_unstable_by(f64::total_cmp);
        assert!(measured.len() >= 20, "{arguments:?}: {} of {}", measured.len(), live.profile.watches.len());
        let quantile = |share: usize| measured[(measured.len() - 1) * share / 100];
        println!(
            "{arguments:?}: round of {:.2} us, a trap {:.1} us, {} measured; quantiles .05 {:.2}, .25 {:.2}, .5 {:.3}, .75 {:.2}, .95 {:.2}",
            round_ns / 1e3,
            live.profile.run.distance_resolution_ns as f64 / 1e3,
            measured.len(),
            quantile(5),
            quantile(25),
            quantile(50),
            quantile(75),
            quantile(95),
        );
        let run = &live.profile.run;
        let (trap_ns, scatter_ns) = (run.distance_resolution_ns as f64, run.distance_scatter_ns);
        let off_ns = (quantile(50) - 1.0) * round_ns;
        // The time of a trap is known to 3 %, or to the scatter stated
        // by the trace, on shared machines to an eighth at worst.
        let believed_ns = scatter_ns.map_or(0.0, |scatter_ns| SIGMAS * scatter_ns as f64);
        let allowed_ns = (2.0 * believed_ns.max(0.03 * trap_ns)).min(trap_ns / 8.0);
        println!("off by {off_ns:.0} ns of a trap's {trap_ns:.0}, told to scatter by {scatter_ns:?}");
        assert!(
            (0.75..1.3).contains(&quantile(50)) || off_ns.abs() < allowed_ns,
            "{arguments:?}: {} rounds, {off_ns} ns of a trap's {trap_ns}, told to scatter by {scatter_ns:?}",
            quantile(50)
        );
    }
}

/// Two halves of a word are loaded and stored in sequence, or loaded only, and only the last
/// touch's reuse is a round away: no later touch by the same instruction stands for the reuse.
#[test]
fn the_time_of_a_round_is_measured_where_elements_are_smaller_than_a_word() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    // Rounds of one instruction have to be far longer than two traps.
    for (words, how) in [("20000", "3"), ("24000", "4")] {
        let target = Target::start("rounds", &["6", words, how]);
        let live = Live::trace(target.pid(), "4", &["--overhead", "8"]);
        let finished = target.finish(LIMIT);
        let told = finished.stdout.iter().find_map(|line| line.strip_prefix("ns a round "));
        let round_ns: f64 = told.unwrap_or_else(|| panic!("{finished:?}")).parse().unwrap();
        let reused = live.profile.watches.iter().filter_map(|watch| match watch.outcome {
            Outcome::Reused { distance_ns, .. } => Some(distance_ns as f64 / round_ns),
            _ => None,
        });
        let mut measured: Vec<f64> = reused.collect();
        measured.sort_unstable_by(f64::total_cmp);
        let short = measured.iter().filter(|rounds| **rounds < 0.5).count();
        println!("{how}: round of {:.1} us; {short} short of {measured:.2?}", round_ns / 1e3);
        assert!(measured.len() >= 20 && short * 10 <= measured.len(), "{how}: {short} of {}", measured.len());
        assert!((0.8..1.8).contains(&measured[measured.len() / 2]), "{how}: {measured:.2?}");
    }
}
