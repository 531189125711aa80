//! The kernel side of touches in our own thread, and tests of a PMU,
//! on machines with and without one: counting a thread's accesses
//! through the kernel, and the refusal of a missing source of samples.
//!
//! The first needs no PMU: software events of the thread, page faults, replace the counters of
//! loads and stores, and take the same way, a group of the thread in the map that the eBPF program
//! reads. In this test only; a trace opens the counters of the hardware or none.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::os::fd::AsFd as _;
use std::{fs, hint, thread, time::Duration};

use locality_common::{
    record::{NOT_COUNTED, TouchRecord, WatchKey, WatchState, touch},
    rules::{NEAR_NS, NEAR_PAIR_NS, phase},
};
use locality_kernel::{
    btf,
    object::{Filter, Object, Ring},
    perf::Event,
    records::{Record, decode},
    sources::counters::{Counting, Encoding, Unit},
};
use locality_tests::live::alone;
use locality_tests::{Target, Tracer, requires};
use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_PAGE_FAULTS, PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_TYPE_SOFTWARE,
};

/// Counts each minor page fault twice, as a load and as a store.
const FAULTS: Counting = Counting {
    encoding: Encoding {
        name: "page faults",
        loads: PERF_COUNT_SW_PAGE_FAULTS as u64,
        stores: PERF_COUNT_SW_PAGE_FAULTS_MIN as u64,
        unit: Unit::Instructions,
        address: false,
    },
    type_: PERF_TYPE_SOFTWARE,
};

const PAGE: usize = 4096;

/// Takes `pages` pages from the kernel, each of which faults once.
fn fault(pages: usize) {
    // SAFETY: a new mapping of our own, written inside the
    // mapping's length and given back. Small pages, so each faults.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start =
            libc::mmap(std::ptr::null_mut(), pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::madvise(start, pages * PAGE, libc::MADV_NOHUGEPAGE), 0);
        for page in 0..pages {
            start.cast::<u8>().add(page * PAGE).write_volatile(1);
        }
        libc::munmap(start, pages * PAGE);
    }
}

fn touches(ring: &mut Ring) -> Vec<TouchRecord> {
    let mut found = Vec::new();
    while let Some(item) = ring.next() {
        if let Record::Touch(record, _) = decode(&item) {
            found.push(*record);
        }
    }
    found
}

/// A watched word; reads of it by two instructions.
struct Word(Box<u64>);

impl Word {
    #[inline(never)]
    fn read(&self) {
        // SAFETY: our own live word.
        hint::black_box(unsafe { (&raw const *self.0).read_volatile() });
    }

    #[inline(never)]
    fn read_elsewhere(&self) {
        let value: u64;
        // SAFETY: as above; nothing but a register is changed.
        unsafe {
            std::arch::asm!("mov {value}, [{at}]", value = out(reg) value, at = in(reg) &raw const *self.0)
        };
        hint::black_box(value);
    }

    /// The kernel writes the word.
    fn refill(&self) {
        let at = (&raw const *self.0).cast_mut();
        // SAFETY: our own live word, of eight bytes, which is read volatile only.
        assert_eq!(unsafe { libc::syscall(libc::SYS_getrandom, at, 8_usize, 0) }, 8);
    }
}

/// Watches a word while `run` touches the word; the touch records of the kernel side.
fn watched(object: &mut Object, ring: &mut Ring, run: impl FnOnce(&Word)) -> Vec<TouchRecord> {
    watched_as(WatchState::default(), object, ring, run)
}

/// Watches with the initial phase `state`.
fn watched_as(
    state: WatchState,
    object: &mut Object,
    ring: &mut Ring,
    run: impl FnOnce(&Word),
) -> Vec<TouchRecord> {
    let word = Word(Box::new(0));
    let address = &raw const *word.0 as u64;
    // SAFETY: a system call without arguments.
    let (tgid, tid) = (std::process::id(), unsafe { libc::gettid() } as u32);
    let key = WatchKey { address, tgid, reserved: 0 };
    object.add_watch(key, WatchState { watch: 1, owner_tid: tid, ..state }).unwrap();
    let event = Event::watchpoint(tid, address, 8, None).unwrap();
    event.set_program(object.program_fd("touch").unwrap().as_fd()).unwrap();
    event.enable_for(2).unwrap();
    run(&word);
    drop(event);
    object.remove_watch(&key);
    touches(ring)
}

/// Touches a watched word, lets `between` run, touches it again; the counts at the use and at the reuse.
fn use_and_reuse(object: &mut Object, ring: &mut Ring, between: impl FnOnce()) -> [u64; 2] {
    let found = watched(object, ring, |word| {
        word.read();
        between();
        word.read_elsewhere();
    });
    assert!(
        matches!(roles(&found)[..], [touch::USE, touch::REUSE | touch::NEAR_REUSE]),
        "{:?}",
        roles(&found)
    );
    [found[0].accesses, found[1].accesses]
}

fn roles(found: &[TouchRecord]) -> Vec<u32> {
    found.iter().map(|record| record.role).collect()
}

#[test]
fn behind_a_near_reuse_by_the_same_instruction_the_next_touch_is_told_too() {
    requires!(root, btf, watchpoints(1));
    let _alone = alone();
    let (mut object, mut ring) = Object::load(&Filter::Processes, &btf::kernel_offsets().unwrap()).unwrap();
    let reads = |times: u64, pause: Duration| {
        move |word: &Word| {
            for _ in 0..times {
                word.read();
                let until = std::time::Instant::now() + pause;
                while std::time::Instant::now() < until {}
            }
        }
    };
    // The fourth and fifth touch trap no more.
    let near = watched(&mut object, &mut ring, reads(5, Duration::ZERO));
    assert_eq!(roles(&near), [touch::USE, touch::NEAR_REUSE, touch::AGAIN]);
    assert!(near.iter().all(|record| record.trap_ip == near[0].trap_ip));
    assert!(near.windows(2).all(|pair| pair[0].enabled_ns < pair[1].enabled_ns));
    // The thread spins for longer than a near distance.
    let far = watched(&mut object, &mut ring, reads(5, Duration::from_nanos(2 * NEAR_NS)));
    assert_eq!(roles(&far), [touch::USE, touch::REUSE]);
}

#[test]
fn two_instructions_that_take_turns_are_told_until_the_second_pair() {
    requires!(root, btf, watchpoints(1));
    let _alone = alone();
    let (mut object, mut ring) = Object::load(&Filter::Processes, &btf::kernel_offsets().unwrap()).unwrap();
    let turns = |pause: Duration| {
        move |word: &Word| {
            for _ in 0..4 {
                word.read();
                let until = std::time::Instant::now() + pause;
                while std::time::Instant::now() < until {}
                word.read_elsewhere();
            }
        }
    };
    // Touches after the second pair trap no more.
    let near = watched(&mut object, &mut ring, turns(Duration::ZERO));
    assert_eq!(roles(&near), [touch::USE, touch::NEAR_REUSE, touch::USE_AGAIN, touch::AGAIN]);
    let [used, reused, used_again, again] = [0, 1, 2, 3].map(|at| &near[at]);
    assert_eq!((used.trap_ip, reused.trap_ip), (used_again.trap_ip, again.trap_ip));
    assert!(near.windows(2).all(|pair| pair[0].enabled_ns < pair[1].since_ns));
    // The use does not come again: the third touch is recorded and ends the watch.
    let without = watched(&mut object, &mut ring, |word| {
        word.read();
        word.read_elsewhere();
        word.read_elsewhere();
        word.read();
    });
    assert_eq!(roles(&without), [touch::USE, touch::NEAR_REUSE, touch::AGAIN]);
    // Nor does it soon enough; then another instruction comes in place of the reuse's.
    let late = watched(&mut object, &mut ring, |word| {
        word.read();
        word.read_elsewhere();
        let until = std::time::Instant::now() + Duration::from_nanos(2 * NEAR_PAIR_NS);
        while std::time::Instant::now() < until {}
        word.read();
    });
    assert_eq!(roles(&late), [touch::USE, touch::NEAR_REUSE, touch::AGAIN]);
    let other = watched(&mut object, &mut ring, |word| {
        word.read();
        word.read_elsewhere();
        word.read();
        word.read();
    });
    assert_eq!(roles(&other), [touch::USE, touch::NEAR_REUSE, touch::USE_AGAIN, touch::AGAIN]);
    assert_ne!(other[1].trap_ip, other[3].trap_ip);
    let far = watched(&mut object, &mut ring, turns(Duration::from_nanos(2 * NEAR_PAIR_NS)));
    assert_eq!(roles(&far), [touch::USE, touch::REUSE]);
}

#[test]
fn turns_are_not_told_where_none_are_wanted() {
    requires!(root, btf, watchpoints(1));
    let _alone = alone();
    let (mut object, mut ring) = Object::load(&Filter::Processes, &btf::kernel_offsets().unwrap()).unwrap();
    let only = WatchState { no_turns: 1, ..WatchState::default() };
    let by_one = watched_as(only, &mut object, &mut ring, |word| (0..4).for_each(|_| word.read()));
    assert_eq!(roles(&by_one), [touch::USE, touch::NEAR_REUSE, touch::AGAIN]);
    let by_two = watched_as(only, &mut object, &mut ring, |word| {
        word.read();
        word.read_elsewhere();
        word.read();
    });
    assert_eq!(roles(&by_two), [touch::USE, touch::REUSE]);
}

#[test]
fn so_many_touches_by_the_kernel_are_passed_over_as_is_wanted() {
    requires!(root, btf, watchpoints(1));
    let _alone = alone();
    let (mut object, mut ring) = Object::load(&Filter::Processes, &btf::kernel_offsets().unwrap()).unwrap();
    let mut passing = |passes| {
        let state = WatchState { passes, ..WatchState::default() };
        watched_as(state, &mut object, &mut ring, |word| {
            word.refill();
            word.read();
            word.refill();
            thread::sleep(Duration::from_millis(1));
            word.refill();
            word.read_elsewhere();
        })
    };
    let all = passing(1000);
    let (passed, told): (Vec<&TouchRecord>, Vec<&TouchRecord>) =
        all.iter().partition(|record| record.role == touch::PASSED);
    assert!(passed.len() >= 3 && passed.iter().all(|record| record.kernel == 1), "{:?}", roles(&all));
    assert!(
        matches!(told[..], [used, reused] if used.role == touch::USE && [used, reused].iter().all(|t| t.kernel == 0))
    );
    assert!(all.windows(2).all(|pair| pair[0].enabled_ns < pair[1].enabled_ns));
    // Each refill traps as often.
    let each = (passed.len() / 3) as u64;
    let less = passing(each);
    assert_eq!(less.iter().filter(|record| record.role == touch::PASSED).count() as u64, each);
    let reused = less.last().unwrap();
    assert!(reused.kernel == 1 && reused.role != touch::PASSED, "{:?}", roles(&less));
    let none = passing(0);
    assert!(
        none.iter().all(|record| record.role != touch::PASSED) && none[0].kernel == 1,
        "{:?}",
        roles(&none)
    );
}

#[test]
fn behind_a_use_another_word_tells_since_when() {
    requires!(root, btf, watchpoints(2));
    let _alone = alone();
    let (mut object, mut ring) = Object::load(&Filter::Processes, &btf::kernel_offsets().unwrap()).unwrap();
    // SAFETY: a system call without arguments.
    let (tgid, tid) = (std::process::id(), unsafe { libc::gettid() } as u32);
    let words = [Word(Box::new(0)), Word(Box::new(0))];
    let [used, behind] = words.each_ref().map(|word| &raw const *word.0 as u64);
    // The second waits for a touch after the first one's use.
    let keys = [used, behind].map(|address| WatchKey { address, tgid, reserved: 0 });
    let mut since_the_use = |touched_again: bool| {
        let state = |watch, phase, follows| WatchState {
            watch,
            phase,
            owner_tid: tid,
            follows,
            ..WatchState::default()
        };
        object.add_watch(keys[0], state(1, phase::ARMED, 0)).unwrap();
        object.add_watch(keys[1], state(2, phase::USED, used)).unwrap();
        let starter = Event::starter(tid).unwrap();
        let events = keys.map(|key| {
            let event = Event::watchpoint(tid, key.address, 8, Some(&starter)).unwrap();
            event.set_program(object.program_fd("touch").unwrap().as_fd()).unwrap();
            event.enable_for(3).unwrap();
            event
        });
        drop(starter);
        // Watchpoints are armed when the thread is scheduled in.
        thread::sleep(Duration::from_millis(1));
        words[0].read();
        if touched_again {
            words[0].read_elsewhere();
        }
        words[1].read();
        drop(events);
        keys.iter().for_each(|key| object.remove_watch(key));
        let found = touches(&mut ring);
        let last = found.last().unwrap();
        assert_eq!((last.watch, last.role), (2, touch::REUSE));
        (found[0].enabled_ns, last.since_ns, last.enabled_ns)
    };
    let (used_ns, since_ns, behind_ns) = since_the_use(false);
    assert!(used_ns < since_ns && since_ns < behind_ns, "{used_ns} {since_ns} {behind_ns}");
    // Then the use was not the last touch of its word.
    assert_eq!(since_the_use(true).1, 0);
}

#[test]
fn a_threads_own_counters_are_read_at_use_and_reuse() {
    requires!(root, btf, watchpoints(1));
    let _alone = alone();
    let (mut object, mut ring) = Object::load(&Filter::Processes, &btf::kernel_offsets().unwrap()).unwrap();
    // SAFETY: a system call without arguments.
    let tid = unsafe { libc::gettid() } as u32;
    let none = use_and_reuse(&mut object, &mut ring, || fault(10));
    assert_eq!(none, [NOT_COUNTED; 2], "no counters were opened");
    let counters = FAULTS.open(tid).unwrap();
    object.count_accesses(tid, 3, &counters).unwrap();
    // The map owns the open counters.
    drop(counters);
    for pages in [2, 100, 2_000] {
        let [used, reused] = use_and_reuse(&mut object, &mut ring, || {
            // Another thread's are not counted, and our own are while we sleep and wake up in between.
            let other = thread::spawn(|| fault(5_000));
            fault(pages / 2);
            thread::sleep(Duration::from_millis(20));
            fault(pages - pages / 2);
            other.join().unwrap();
        });
        let (counted, ours) = (reused - used, 2 * pages as u64);
        // Starting a thread faults a few times.
        assert!((ours..ours + 100).contains(&counted), "{counted} counted, {ours} made");
    }
    // A place of another thread's counters is refused to this one.
    let (at, theirs) = thread::spawn(|| {
        // SAFETY: as above.
        let tid = unsafe { libc::gettid() } as u32;
        (tid, FAULTS.open(tid).unwrap())
    })
    .join()
    .unwrap();
    assert_ne!(at, tid);
    object.count_accesses(tid, 3, &theirs).unwrap();
    assert_eq!(use_and_reuse(&mut object, &mut ring, || fault(10)), [NOT_COUNTED; 2]);
    object.uncount_accesses(tid, 3);
    assert_eq!(use_and_reuse(&mut object, &mut ring, || fault(10)), [NOT_COUNTED; 2]);
}

/// Hardware sources of samples listed by the machine.
fn listed(prefixes: &[&str]) -> bool {
    let entries = fs::read_dir("/sys/bus/event_source/devices").into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name())
        .any(|name| prefixes.iter().any(|prefix| name.to_str().is_some_and(|name| name.starts_with(prefix))))
}

#[test]
fn a_source_that_is_not_there_is_refused_and_the_clock_does_without() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("t.locality");
    let target = Target::start("two_loops", &["60"]);
    let trace = |source: &str| {
        let output = ["-o".as_ref(), profile.as_os_str()];
        Tracer::attach(target.pid(), "1").args(["--source", source]).args(output).run()
    };
    for (source, devices) in [("pebs", &["cpu"][..]), ("ibs", &["ibs_op"])] {
        if listed(devices) {
            continue;
        }
        let refused = trace(source);
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        let sentence = format!("--source {source} cannot be had here: ");
        assert!(refused.stderr.contains(&sentence), "{}", refused.stderr);
        assert!(!profile.exists(), "a refusal leaves no profile");
    }
    let traced = trace("clock");
    assert!(traced.status.success(), "{}", traced.stderr);
    let report: serde_json::Value = serde_json::from_str(&traced.stdout).unwrap();
    let sources = &report["run"]["sources"];
    assert_eq!(sources["address"], "zero-skid stop", "{sources}");
    assert!(sources["clock"].as_str().unwrap().starts_with("cpu-clock, "), "{sources}");
}
