//! What the window process costs beyond the window: `cargo bench -p locality-shadow --bench helper`. As root.
//!
//! The start; a turn without a window, with the two processes on one processor or where the
//! scheduler puts them, at ordinary and at real-time priority; a window of one instruction and one
//! of 10,000 in this process and in the other; a page read. A pause before each turn lets the
//! processors fall asleep, as they do between stops.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and ends when it cannot run"
)]

#[expect(dead_code, reason = "shared with the tests")]
#[path = "../tests/helper/target.rs"]
mod target;

use std::time::{Duration, Instant};

use locality_shadow::helper::{Helper, Kept, ProcessMemory, Settings};
use locality_shadow::{End, Limits, Memory as _, PAGE};
use target::Target;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        // Built and run by `cargo test`.
        return;
    }
    let settings = Settings { program: env!("CARGO_BIN_EXE_locality-window").into(), ..Settings::default() };
    starts(&settings);
    let target = Target::busy();
    for (real_time, name) in [(false, "ordinary"), (true, "real-time")] {
        // The tracer's thread above the window process.
        set_priority(if real_time { 2 } else { 0 });
        for follow in [false, true] {
            let priority = real_time.then_some(1);
            let settings = Settings { follow, real_time: priority, ..settings.clone() };
            let place = if follow { "same processor" } else { "any processor" };
            turns(&settings, &format!("{name} priority, {place}"), &target);
        }
    }
    set_priority(0);
    pages();
}

fn set_priority(priority: i32) {
    let parameters = libc::sched_param { sched_priority: priority };
    let policy = if priority > 0 { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    // SAFETY: the parameters are live.
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    assert_eq!(done, 0, "needs root");
}

/// Median and the two ends that a tenth lies beyond, in µs.
fn show(what: &str, mut times: Vec<f64>) {
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{what:<62} {:>9.1} µs  [{:.1}, {:.1}]", at(0.5), at(0.1), at(0.9));
}

fn measure(mut once: impl FnMut()) -> f64 {
    let begin = Instant::now();
    once();
    begin.elapsed().as_nanos() as f64 / 1000.0
}

fn starts(settings: &Settings) {
    let mut helpers = Vec::new();
    let times = (0..20).map(|_| measure(|| helpers.push(Helper::start(settings.clone()).unwrap()))).collect();
    show("start until confined and ready", times);
    let cpu_ns = helpers.iter().map(Helper::cpu_ns).sum::<u64>() / 20;
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", helpers[0].pid())).unwrap();
    let resident: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    println!("{:<62} {:>9.1} µs", "  CPU time of that in the window process", cpu_ns as f64 / 1000.0);
    println!(
        "{:<62} {:>9.1} MiB",
        "  memory resident after it",
        resident as f64 * PAGE as f64 / (1 << 20) as f64
    );
}

fn turns(settings: &Settings, name: &str, target: &Target) {
    let mut helper = Helper::start(settings.clone()).unwrap();
    let pause = || std::thread::sleep(Duration::from_millis(1));
    let turn = |_| {
        pause();
        helper.round_trip().unwrap().as_nanos() as f64 / 1000.0
    };
    show(&format!("{name}: turn without a window"), (0..1000).map(turn).collect());
    let maps = target.ranges();
    let take = |_| measure(|| helper.add_process(1, target.pid, &maps).unwrap());
    show("  a target taken", (0..20).map(take).collect());
    let (mut one, mut many, mut own) = (Vec::new(), Vec::new(), Vec::new());
    let (mut copies, mut looks) = (Vec::new(), Vec::new());
    let mut kept = Kept::default();
    for _ in 0..200 {
        let state = target.stop();
        let limits = |instructions| Limits { instructions, pages: 1000, time_ns: 20_000_000 };
        let mut end = End::Instructions;
        one.push(measure(|| end = helper.run(1, &state, &limits(1)).end));
        assert_eq!(end, End::Instructions);
        many.push(measure(|| end = helper.run(1, &state, &limits(10_000)).end));
        assert_eq!(end, End::Instructions);
        let window = helper.run(1, &state, &limits(10_000));
        own.push(window.counts.time_ns as f64 / 1000.0);
        looks.push(measure(|| assert!(window.events().all(|event| event.flags == 0))));
        copies.push(measure(|| window.copy(&mut kept)));
        target.resume();
        pause();
    }
    show(&format!("{name}: window of 1 instruction"), one);
    show(&format!("{name}: window of 10,000"), many);
    show("  of that again, the executor's own time", own);
    show("  its events looked at by value", looks);
    show("  its log copied", copies);
    assert_eq!(helper.deaths(), 0);
}

/// Pages of a process that holds 64 MiB.
fn pages() {
    const COUNT: usize = 256;
    let script = "a=x; i=0; while [ $i -lt 26 ]; do a=$a$a; i=$((i+1)); done; echo; while :; do :; done";
    let target = Target::shell(script);
    std::thread::sleep(Duration::from_secs(1));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid)).unwrap();
    let bounds = |line: &str| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split(' ').next().unwrap();
        [start, end].map(|address| u64::from_str_radix(address, 16).unwrap_or(0))
    };
    let largest = maps.lines().map(bounds).max_by_key(|[start, end]| end.wrapping_sub(*start)).unwrap();
    let mut memory = ProcessMemory::open(target.pid, &[]).unwrap();
    let mut into = vec![[0; PAGE as usize]; COUNT];
    let mut found = vec![false; COUNT];
    let mut read = |what: &str, pages: &[u64]| {
        let turn = |_| {
            let time = measure(|| memory.read(pages, &mut into[..pages.len()], &mut found[..pages.len()]));
            assert!(found[..pages.len()].iter().all(|found| *found), "{what}");
            time / pages.len() as f64
        };
        show(&format!("a page, {what}"), (0..300).map(turn).collect());
    };
    let [start, _] = largest;
    let together: Vec<u64> = (0..COUNT as u64).map(|n| start + n * PAGE).collect();
    let apart: Vec<u64> = (0..COUNT as u64).map(|n| start + n * 7 * PAGE).collect();
    let mixed: Vec<u64> = (0..COUNT as u64).map(|n| start + (n * 37 % COUNT as u64) * PAGE).collect();
    read("of 256 that follow one another", &together);
    read("of 256 that follow one another, asked for in disorder", &mixed);
    read("of 256 each apart from the others", &apart);
    read("alone", &together[..1]);
}
