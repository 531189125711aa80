//! Windows of real processes.

use locality_shadow::helper::{Kept, What};
use locality_shadow::{Counts, Executor, Log, TableCounts, Tables};
use locality_stream::{BlockRecord, Event, InstructionRecord, Kind};

use super::target::Plainly;
use super::*;

/// An executor in this process, with room for its windows.
struct Here {
    executor: Executor,
    counts: &'static TableCounts,
    kept: Kept,
}

impl Here {
    fn new() -> Here {
        let instruction = InstructionRecord::new(0, &[]);
        let counts: &'static TableCounts = Box::leak(Box::default());
        let tables = Tables {
            instructions: vec![instruction; 1 << 16].leak(),
            blocks: vec![BlockRecord { first: 0, count: 0 }; 1 << 16].leak(),
            counts,
        };
        Here { executor: Executor::new(tables).unwrap(), counts, kept: Kept::default() }
    }

    fn run(&mut self, target: &Target, state: &ThreadState, limits: &Limits) -> ThreadState {
        let mut events = vec![Event::new(Kind::LOST, 0, 0); 100_000];
        let (mut values, mut registers) = (vec![0; 100_000], vec![[0; 16]; 50_000]);
        let mut log = Log {
            events: &mut events,
            values: &mut values,
            registers: &mut registers,
            counts: Counts::default(),
        };
        let after = self.executor.run(KEY, state, &mut Plainly::new(target), limits, &mut log);
        let counts = log.counts;
        events.truncate(counts.events as usize);
        values.truncate(counts.accesses as usize);
        registers.truncate(counts.blocks as usize);
        self.kept = Kept { counts, events, values, registers, generation: 0 };
        after
    }
}

#[test]
fn a_window_is_the_same_as_in_this_process() {
    needs_root!();
    let target = Target::busy();
    let mut helper = helper();
    add(&mut helper, &target);
    let mut here = Here::new();
    let mut instructions = 0;
    for turn in 0..8 {
        let state = target.stop();
        let limits = limits(10_u64.pow(1 + turn % 4));
        let expected = here.run(&target, &state, &limits);
        let mut there = Kept::default();
        let mut window = helper.run(KEY, &state, &limits);
        window.copy(&mut there);
        let mut counts = there.counts;
        counts.time_ns = here.kept.counts.time_ns;
        assert_eq!(counts, here.kept.counts);
        assert!(!window.gone);
        assert_eq!(window.events().collect::<Vec<_>>(), here.kept.events);
        assert_eq!((&there.events, &there.values), (&here.kept.events, &here.kept.values));
        assert_eq!(there.registers, here.kept.registers);
        assert_eq!(window.state(), expected);
        let known = here.counts.instructions.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(window.code().instructions.len(), known as usize);
        assert_eq!(
            window.code().instruction(there.events[0].index).map(|record| record.length > 0),
            Some(true)
        );
        instructions += counts.instructions;
        target.resume();
        std::thread::sleep(Duration::from_millis(3));
    }
    assert!(instructions > 1000, "{instructions}");
    assert!(helper.cpu_ns() > 0 && helper.deaths() == 0);
}

#[test]
fn a_target_of_another_user_that_may_not_be_dumped_is_read() {
    needs_root!();
    extern "C" fn spin() -> ! {
        let mut numbers = [1_u64; 64];
        loop {
            for n in 1..64 {
                numbers[n] = std::hint::black_box(numbers[n - 1].wrapping_mul(3) ^ numbers[n]);
            }
        }
    }
    let target = Target::secret(spin);
    let mut helper = helper();
    add(&mut helper, &target);
    let state = target.stop();
    let window = helper.run(KEY, &state, &limits(5000));
    assert_eq!((window.end, window.counts.instructions), (End::Instructions, 5000));
    assert!(window.counts.accesses > 100);
}

#[test]
fn after_exec_the_target_is_gone_until_it_is_taken_anew() {
    needs_root!();
    let target = Target::shell("i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; exec tail -f /dev/null");
    let mut helper = helper();
    add(&mut helper, &target);
    let before = target.stop();
    assert_eq!(helper.run(KEY, &before, &limits(100)).end, End::Instructions);
    target.resume();
    let executable = || std::fs::read_link(format!("/proc/{}/exe", target.pid)).unwrap();
    while !executable().ends_with("tail") {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(20));
    let state = target.stop_anywhere();
    let window = helper.run(KEY, &state, &limits(100));
    assert!(window.gone && window.end != End::Instructions, "{:?}", window.end);
    // Even where nothing had to be read, as the code was known.
    assert!(helper.run(KEY, &before, &Limits { instructions: 1, ..limits(1) }).gone);
    add(&mut helper, &target);
    let window = helper.run(KEY, &state, &limits(100));
    assert!(!window.gone, "{:?}", window.end);
}

#[test]
fn a_target_that_was_not_taken_or_has_ended_is_gone() {
    needs_root!();
    let mut target = Target::busy();
    let mut helper = helper();
    let state = target.stop();
    assert!(helper.run(KEY, &state, &limits(100)).gone);
    add(&mut helper, &target);
    assert!(!helper.run(KEY, &state, &limits(100)).gone);
    target.kill();
    let window = helper.run(KEY, &state, &limits(100));
    assert!(window.gone && matches!(window.end, End::Unreadable | End::UnreadableCode), "{:?}", window.end);
    helper.remove_process(KEY);
    assert!(helper.run(KEY, &state, &limits(100)).gone);
    assert!(helper.add_process(KEY, 0x3fff_fff0, &[]).is_err());
    assert_eq!((helper.deaths(), helper.last_words()), (0, ""));
}

#[test]
fn a_target_that_dies_under_windows_ends_one_of_them() {
    needs_root!();
    let target = Target::busy();
    let mut helper = helper();
    add(&mut helper, &target);
    let state = target.stop();
    assert_eq!(helper.run(KEY, &state, &limits(2000)).end, End::Instructions);
    let pid = target.pid;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: a system call with plain arguments on a child that is not reaped yet.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        });
        loop {
            let window = helper.run(KEY, &state, &limits(2000));
            assert_ne!(window.end, End::Helper);
            if window.gone {
                assert!(matches!(window.end, End::Unreadable | End::UnreadableCode), "{:?}", window.end);
                break;
            }
        }
    });
    assert_eq!((helper.deaths(), helper.last_words()), (0, ""));
}

#[test]
fn closed_ranges_end_a_window() {
    needs_root!();
    let target = Target::busy();
    let mut helper = helper();
    let state = target.stop();
    let mut maps = target.ranges();
    let stack = state.registers.rsp & !4095;
    helper.add_process(KEY, target.pid, &maps).unwrap();
    assert_eq!(helper.run(KEY, &state, &limits(2000)).end, End::Instructions);
    maps.push(TextRange { start: stack, end: stack + 4096, what: What::Closed });
    helper.update_maps(KEY, &maps).unwrap();
    let window = helper.run(KEY, &state, &limits(2000));
    assert_eq!(window.end, End::Unreadable);
    assert_eq!(window.counts.detail & !4095, stack);
    maps.pop();
    helper.update_maps(KEY, &maps).unwrap();
    assert_eq!(helper.run(KEY, &state, &limits(2000)).end, End::Instructions);
}

/// Seconds and nanoseconds of the monotonic clock.
fn monotonic() -> (u64, u64) {
    // SAFETY: all-zero bytes are a valid value, and the destination is live.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
        time
    };
    (time.tv_sec as u64, time.tv_nsec as u64)
}

/// What a window stores at this address and the next word, by turns.
fn readings(kept: &Kept, address: u64) -> Vec<(u64, u64)> {
    let accesses = kept.events.iter().filter(|event| event.kind.is_access()).zip(&kept.values);
    let at = |at: u64| {
        let stores =
            accesses.clone().filter(move |(event, _)| event.kind == Kind::STORE && event.value == at);
        stores.map(|(_, value)| *value)
    };
    at(address).zip(at(address + 8)).collect()
}

#[test]
fn a_window_reads_the_kernels_clock_and_sees_plausible_times() {
    needs_root!();
    let (target, address) = Target::with_a_clock(0).unwrap();
    let mut helper = helper();
    add(&mut helper, &target);
    let mut all = 0;
    for _ in 0..5 {
        let state = target.stop();
        let before = monotonic();
        let mut kept = Kept::default();
        let window = helper.run(KEY, &state, &limits(20_000));
        window.copy(&mut kept);
        let end = window.end;
        if end == End::SystemCall {
            return skip("a clock that is read without system calls");
        }
        let after = monotonic();
        assert_eq!((end, kept.counts.instructions), (End::Instructions, 20_000));
        let times = readings(&kept, address);
        assert!(times.len() >= 50 && times.is_sorted(), "{} {:?}", times.len(), times.first());
        // The first may have been begun before the stop.
        let later = times.get(1..).unwrap_or_default();
        assert!(later.iter().all(|time| (before..after).contains(time)), "{before:?} {later:?} {after:?}");
        all += times.len();
        target.resume();
        std::thread::sleep(Duration::from_millis(3));
    }
    assert!(all > 500 && helper.deaths() == 0, "{all}");
}

#[test]
fn the_clock_of_another_time_namespace_ends_a_window() {
    needs_root!();
    let Some((target, _)) = Target::with_a_clock(1_000_000) else { return skip("time namespaces") };
    let mut helper = helper();
    add(&mut helper, &target);
    let mut ends = Vec::new();
    for _ in 0..5 {
        let state = target.stop();
        let window = helper.run(KEY, &state, &limits(20_000));
        ends.push(window.end);
        if window.end == End::OtherTime {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid)).unwrap();
            let line = maps.lines().find(|line| line.ends_with("[vvar]")).unwrap();
            let (start, rest) = line.split_once('-').unwrap();
            let [start, end] =
                [start, rest.split(' ').next().unwrap()].map(|n| u64::from_str_radix(n, 16).unwrap());
            assert!((start..end).contains(&window.counts.detail));
        }
        target.resume();
        std::thread::sleep(Duration::from_millis(3));
        // The same, told anew.
        helper.update_maps(KEY, &target.ranges()).unwrap();
    }
    assert!(ends.iter().all(|end| matches!(end, End::OtherTime | End::SystemCall)), "{ends:?}");
    assert!(ends.contains(&End::OtherTime) || ends.iter().all(|end| *end == End::SystemCall), "{ends:?}");
}

#[test]
fn a_page_that_its_reader_would_wait_for_is_unreadable() {
    needs_root!();
    let Some((target, address)) = Target::with_a_page_that_blocks() else { return skip("userfaultfd") };
    let mut helper = helper();
    add(&mut helper, &target);
    let mut state = ThreadState::default();
    state.registers.rip = address;
    let window = helper.run(KEY, &state, &limits(100));
    assert_eq!((window.end, window.counts.detail, window.gone), (End::UnreadableCode, address, false));
}

#[test]
fn a_fault_ends_the_window_and_not_the_process() {
    needs_root!();
    let target = Target::busy();
    let mut state = target.stop();
    let mut helper = helper();
    add(&mut helper, &target);
    // `div ecx`, by zero: caught there by a signal handler, which returns by a system call.
    super::target::poke(target.pid, state.registers.rip, 0xf1f7);
    state.registers.rcx = 0;
    for _ in 0..3 {
        let window = helper.run(KEY, &state, &limits(100));
        assert_eq!((window.end, window.counts.detail), (End::Fault, state.registers.rip));
    }
    state.registers.rcx = 1;
    state.registers.rdx = 0;
    let window = helper.run(KEY, &state, &limits(1));
    assert_eq!((window.end, window.counts.instructions), (End::Instructions, 1));
    assert_eq!(window.state().registers.rax, state.registers.rax & 0xffff_ffff);
    assert_eq!(helper.deaths(), 0);
}

#[test]
fn many_targets_are_taken() {
    needs_root!();
    let target = Target::busy();
    let state = target.stop();
    let mut helper = helper();
    let maps = target.ranges();
    for key in 0..300 {
        helper.add_process(key, target.pid, &maps).unwrap();
    }
    for key in 0..300 {
        assert_eq!(helper.run(key, &state, &limits(50)).end, End::Instructions);
    }
}
