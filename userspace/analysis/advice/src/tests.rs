//! Profiles of one loop each, made by hand, and the advice that they give.

use locality_model::{
    AccessKind, Dependence, Frame, FrameId, Host, KernelSample, LoopAccess, Object, ObjectId, ObjectKind,
    Processor, Rate, Run, Sample, SampleId, SeenLoop, Stack, StackId, Thread, ThreadId, Window,
};

use super::*;

/// Cycles in a nanosecond.
const CLOCK: f64 = 4.0;
/// Iterations of each window.
const ITERATIONS: u64 = 200;
/// Address of the loop around all others.
const AROUND: u64 = 0x900;

fn processor() -> Processor {
    // Latency, in a row, stored: second-level cache, last-level cache, memory.
    let levels = [[10.0, 3.0, 6.0], [100.0, 8.0, 16.0], [500.0, 10.0, 16.0]];
    Processor { clock: CLOCK, levels, parallel_line: 50.0, page_fault_ns: 1000.0, core: None }
}

/// A loop as all its windows show it.
#[derive(Clone)]
struct Shown {
    header: u64,
    around: Option<u64>,
    trips: u64,
    /// Cycles of an iteration, and with all lines in the first-level cache.
    cycles: f64,
    core: f64,
    bound: Option<(&'static str, f64)>,
    samples: u32,
    thread: u32,
    by_access: Vec<LoopAccess>,
}

impl Default for Shown {
    fn default() -> Self {
        Self {
            header: 0x1000,
            around: Some(AROUND),
            trips: 0,
            cycles: 30.0,
            core: 2.0,
            bound: None,
            samples: 60,
            thread: 0,
            by_access: Vec::new(),
        }
    }
}

/// An access that is made once an iteration; `lines`: of an execution.
fn access(ip: u64, stride: Option<i64>, lines: f64) -> LoopAccess {
    LoopAccess {
        ip,
        kind: AccessKind::Load,
        bytes: 8,
        executions: ITERATIONS,
        lines: (ITERATIONS as f64 * lines) as u64,
        pages: 0,
        stride: stride.or(Some(17)),
        stride_count: if stride.is_some() { ITERATIONS - 1 } else { 2 },
        steps: ITERATIONS - 1,
        address: 0x10_0000,
        ..LoopAccess::default()
    }
}

/// A profile of a program that spends its time in these loops.
fn profile(loops: &[Shown]) -> Profile {
    let mut profile = Profile {
        run: Run {
            wall_ns: 1_000_000_000,
            cpu_ns: 1_000_000_000,
            processor: Some(processor()),
            host: Host::default(),
            ..Run::default()
        },
        frames: vec![Frame {
            address: 0x1000,
            function: Some("work".to_owned()),
            file: Some("work.c".to_owned()),
            line: Some(7),
            ..Frame::default()
        }],
        stacks: vec![Stack { frames: vec![FrameId(0)], cut: None }],
        threads: (0..4).map(|tid| Thread { tid, name: format!("t{tid}"), ..Thread::default() }).collect(),
        objects: vec![Object { kind: ObjectKind::Heap, name: "matrix".to_owned(), ..Object::default() }],
        ..Profile::default()
    };
    for shown in loops {
        for _ in 0..shown.samples {
            let sample = SampleId(profile.samples.len() as u32);
            profile.samples.push(Sample {
                time_ns: u64::from(sample.0) * 1_000_000,
                thread: ThreadId(shown.thread),
                stack: StackId(0),
                period_ns: 1_000_000,
                held: true,
                access: Err(String::new()),
                group: None,
            });
            let accesses = ITERATIONS * shown.by_access.len() as u64;
            let rate = shown.by_access.len() as f64 / (shown.cycles / CLOCK);
            let rate = Rate {
                value: rate,
                low: rate * 0.95,
                high: rate * 1.05,
                source: "loop registers".to_owned(),
            };
            profile.windows.push(Window {
                sample,
                instructions: ITERATIONS * 5,
                accesses,
                end: String::new(),
                touches: Vec::new(),
                rate: Some(rate),
            });
            profile.loops.push(SeenLoop {
                sample,
                header: shown.header,
                span: (shown.header, shown.header + 0x40),
                around: shown.around,
                instructions: ITERATIONS * 5,
                accesses,
                iterations: ITERATIONS,
                runs: u64::from(shown.trips > 0),
                trips: shown.trips,
                core_cycles: shown.core * ITERATIONS as f64,
                bound_by: shown.bound.map(|(name, _)| name.to_owned()),
                unbound_cycles: shown.bound.map_or(0.0, |(_, without)| without * ITERATIONS as f64),
                is_first: true,
                by_access: shown.by_access.clone(),
                ..SeenLoop::default()
            });
        }
    }
    let outer = SeenLoop {
        header: AROUND,
        span: (AROUND, 0x1100),
        instructions: 10,
        iterations: 1,
        ..SeenLoop::default()
    };
    profile.loops.push(outer);
    profile
}

/// The advice of a profile in which first touches of each access miss all caches.
fn advised(profile: &Profile, far: &[FarReuse]) -> Advised {
    let known = Known { all: [1.0; 3], ..Known::default() };
    Advised::of(profile, &Contexts::new(profile), &Rates::of(profile), &known, far).unwrap()
}

fn kinds(advised: &Advised) -> Vec<Kind> {
    advised.advice.iter().map(|advice| advice.kind).collect()
}

/// Rows of 4,000 bytes, walked column by column.
fn column() -> LoopAccess {
    LoopAccess { outer_stride: Some(8), ..access(0x1008, Some(4000), 1.0) }
}

#[test]
fn a_column_walk_is_interchanged() {
    let profile = profile(&[Shown { cycles: 45.0, by_access: vec![column()], ..Shown::default() }]);
    let advised = advised(&profile, &[]);
    assert_eq!(kinds(&advised), [Kind::Interchange]);
    let advice = &advised.advice[0];
    // An eighth of a line of memory, ten cycles each, beside two cycles of core.
    let expected = 45.0 / (2.0_f64.powi(2) + 1.25_f64.powi(2)).sqrt();
    assert!((advice.speedup.value / expected - 1.0).abs() < 0.25, "{} {expected}", advice.speedup.value);
    assert!(advice.speedup.low > 5.0 && advice.speedup.high < 30.0, "{:?}", advice.speedup);
    assert!(
        advice.title.contains("work.c:7") && advice.title.contains("4000 bytes apart"),
        "{}",
        advice.title
    );
    assert!(
        advice.other.is_some()
            && advice
                .misses
                .and_then(|[.., last]| last)
                .is_some_and(|last| (last.value - 0.875).abs() < 0.01)
    );
    assert!(advised.waits.is_some_and(|waits| waits.low > 0.9) && advised.none.is_none());
}

/// A column that is longer than any window: the neighbour of a used word in its line tells who comes next.
#[test]
fn the_neighbour_in_the_line_tells_the_step_between_runs() {
    let by_access = vec![LoopAccess { outer_stride: None, ..column() }];
    let profile = profile(&[Shown { cycles: 45.0, around: None, by_access, ..Shown::default() }]);
    let kinds_with = |neighbours: (u64, u64, u64)| {
        let known = Known { all: [1.0; 3], neighbours: [(0x1008, neighbours)].into(), ..Known::default() };
        kinds(&Advised::of(&profile, &Contexts::new(&profile), &Rates::of(&profile), &known, &[]).unwrap())
    };
    assert_eq!(
        (kinds_with((3, 0, 1)), kinds_with((0, 2, 0))),
        (vec![Kind::Interchange], vec![Kind::Interchange])
    );
    assert!(
        !kinds_with((1, 0, 0)).contains(&Kind::Interchange)
            && !kinds_with((3, 0, 5)).contains(&Kind::Interchange)
    );
}

/// `i = (i + 7919) & mask`: a walk that wraps around inside the loop touches neighbours, too.
#[test]
fn a_walk_that_wraps_around_has_no_outer_loop() {
    let mut wrapped = LoopAccess { outer_stride: None, ..column() };
    wrapped.stride_count -= 1;
    let profile =
        profile(&[Shown { cycles: 45.0, around: None, by_access: vec![wrapped], ..Shown::default() }]);
    let known = Known { all: [1.0; 3], neighbours: [(0x1008, (9, 0, 1))].into(), ..Known::default() };
    let (contexts, rates) = (Contexts::new(&profile), Rates::of(&profile));
    let advised = Advised::of(&profile, &contexts, &rates, &known, &[]).unwrap();
    assert!(!kinds(&advised).contains(&Kind::Interchange), "{:?}", kinds(&advised));
    assert_eq!(advised.loops[0].accesses[0].outer_stride, None);
}

#[test]
fn a_transposition_is_tiled() {
    // What is along the line here is across lines there.
    let row = LoopAccess { outer_stride: Some(4000), ..access(0x1010, Some(8), 0.125) };
    let by_access = vec![LoopAccess { kind: AccessKind::Store, ..column() }, row.clone()];
    let unknown = vec![by_access[0].clone(), LoopAccess { outer_stride: None, ..row }];
    for by_access in [by_access, unknown] {
        let profile = profile(&[Shown { by_access, ..Shown::default() }]);
        assert_eq!(kinds(&advised(&profile, &[])), [Kind::Tile]);
    }
}

#[test]
fn rows_that_fall_on_one_set_are_padded() {
    // Thirty lines, 4,096 bytes apart, fall on one set of 64 with 8 ways; windows see few of them as new.
    let by_access = vec![LoopAccess { outer_stride: Some(4), ..access(0x1008, Some(4096), 0.05) }];
    let shown = Shown { trips: 30, cycles: 12.0, by_access, ..Shown::default() };
    assert_eq!(kinds(&advised(&profile(std::slice::from_ref(&shown)), &[])), [Kind::Pad]);
    let quick = Shown { cycles: 3.0, ..shown };
    assert!(!kinds(&advised(&profile(&[quick]), &[])).contains(&Kind::Pad));
}

#[test]
fn structures_that_are_used_in_part_are_split_and_integers_narrowed() {
    let profile_of = |access: LoopAccess| profile(&[Shown { by_access: vec![access], ..Shown::default() }]);
    assert_eq!(kinds(&advised(&profile_of(access(0x1008, Some(64), 1.0)), &[])), [Kind::Split]);
    let values = LoopAccess { values: Some((0, 199)), ..access(0x1008, Some(8), 0.125) };
    let shown = Shown { cycles: 3.0, core: 1.0, by_access: vec![values], ..Shown::default() };
    let profile = profile(&[shown]);
    let advised = advised(&profile, &[]);
    assert_eq!(kinds(&advised), [Kind::Shrink]);
    assert!(advised.advice[0].title.contains("8 unsigned bits"), "{}", advised.advice[0].title);
}

#[test]
fn pointers_are_followed_side_by_side_and_gathers_prefetched() {
    let chase = LoopAccess { dependence: Dependence::Chased, ..access(0x1008, None, 1.0) };
    let shown = Shown { cycles: 500.0, trips: 10, by_access: vec![chase], ..Shown::default() };
    let advised_chase = advised(&profile(std::slice::from_ref(&shown)), &[]);
    assert_eq!(kinds(&advised_chase), [Kind::Batch]);
    let title =
        "Follow 8 pointer chains at a time in the loop at work.c:7 of work (inside the loop at work.c:7): ";
    assert!(advised_chase.advice[0].title.starts_with(title), "{}", advised_chase.advice[0].title);
    // Without debug information, loops stand at addresses.
    let mut stripped = profile(std::slice::from_ref(&shown));
    (stripped.frames[0].file, stripped.frames[0].line) = (None, None);
    let title =
        "Follow 8 pointer chains at a time in the loop at 0x1000 of work (inside the loop at 0x900): ";
    let of_stripped = advised(&stripped, &[]).advice;
    assert!(of_stripped[0].title.starts_with(title), "{}", of_stripped[0].title);
    assert!(
        (7.0..12.0).contains(&advised_chase.advice[0].speedup.value),
        "{:?}",
        advised_chase.advice[0].speedup
    );
    let gather = LoopAccess { dependence: Dependence::Indexed, ..access(0x1008, None, 1.0) };
    let by_access = vec![gather, access(0x1010, Some(4), 0.06)];
    let shown = Shown { cycles: 200.0, by_access, ..Shown::default() };
    assert_eq!(kinds(&advised(&profile(&[shown]), &[])), [Kind::Prefetch]);
}

/// Chains that come faster than their lines one by one are under way together already. A search that stores
/// into the data that the next one follows cannot run beside it.
#[test]
fn chains_that_overlap_or_depend_on_each_other_stay() {
    let chase = LoopAccess { dependence: Dependence::Chased, ..access(0x1008, None, 1.0) };
    let kinds_at = |cycles: f64, store: Option<LoopAccess>| {
        let by_access = std::iter::once(chase.clone()).chain(store).collect();
        let mut profile = profile(&[Shown { cycles, trips: 10, by_access, ..Shown::default() }]);
        profile.frames[0].address = 0x1008;
        let known = Known {
            all: [1.0; 3],
            objects: [(0x1008, (ObjectId(0), None)), (0x1010, (ObjectId(0), None))].into(),
            ..Known::default()
        };
        kinds(&Advised::of(&profile, &Contexts::new(&profile), &Rates::of(&profile), &known, &[]).unwrap())
    };
    // A line of memory takes 500 cycles.
    assert_eq!(kinds_at(500.0, None), [Kind::Batch]);
    assert!(!kinds_at(150.0, None).contains(&Kind::Batch));
    let store = LoopAccess { kind: AccessKind::Store, ..access(0x1010, None, 0.1) };
    assert!(!kinds_at(500.0, Some(store)).contains(&Kind::Batch));
}

/// Cycles that each window's loop needs at least.
fn needing(mut profile: Profile, least: f64) -> Profile {
    for row in profile.loops.iter_mut().filter(|row| row.header != AROUND) {
        let cycles = least * row.iterations as f64;
        row.needs = Some(locality_model::LoopNeeds {
            cycles,
            unit_cycles: 1.1 * cycles,
            chain_cycles: cycles / 2.0,
            unit: "width".to_owned(),
            ..locality_model::LoopNeeds::default()
        });
    }
    profile
}

#[test]
fn a_loop_that_is_faster_than_its_core_may_still_wait() {
    let shown = Shown { cycles: 20.0, core: 32.0, by_access: vec![column()], ..Shown::default() };
    let waits = |least: f64| advised(&needing(profile(std::slice::from_ref(&shown)), least), &[]).waits;
    // Between 10 cycles, which it needs, and 20.
    let found = waits(10.0).unwrap();
    assert!(found.value == 0.0 && found.low < 0.05 && (0.4..0.55).contains(&found.high), "{found:?}");
    let advised = advised(&needing(profile(std::slice::from_ref(&shown)), 19.5), &[]);
    assert!(advised.waits.is_some_and(|waits| waits.high < 0.05), "{:?}", advised.waits);
    // A part of the least cycles is never printed as longer than the whole.
    let needs = advised.loops[0].needs.as_ref().unwrap();
    assert!(needs.throughput.value <= needs.cycles.value);
}

/// Iterations of an interpreter's loop include other loops: the time of samples in these is missing.
#[test]
fn cycles_below_the_least_are_unknown() {
    let shown = Shown { cycles: 20.0, core: 32.0, by_access: vec![column()], ..Shown::default() };
    let impossible = advised(&needing(profile(std::slice::from_ref(&shown)), 30.0), &[]);
    assert!(
        impossible.loops[0].speed.is_none() && impossible.waits.is_none() && impossible.advice.is_empty()
    );
    let why = impossible.none.unwrap();
    assert!(why.contains("known speed have 0.0 %"), "{why}");
    let few = Shown { samples: 4, ..shown };
    assert!(advised(&profile(&[few]), &[]).loops[0].speed.is_none());
}

#[test]
fn time_in_loops_of_unknown_speed_may_wait_or_not() {
    let fast = Shown { cycles: 4.0, core: 2.0, by_access: vec![column()], ..Shown::default() };
    let lone = access(0x2008, Some(8), 0.1);
    let slow = Shown {
        header: 0x2000,
        cycles: 20.0,
        core: 32.0,
        samples: 40,
        by_access: vec![lone],
        ..fast.clone()
    };
    let mut profile = needing(profile(&[fast, slow]), 1.0);
    for row in profile.loops.iter_mut().filter(|row| row.header == 0x2000) {
        row.needs.as_mut().unwrap().cycles *= 30.0;
    }
    let waits = advised(&profile, &[]).waits.unwrap();
    // Half of the time of three fifths waits; of two fifths nothing is known.
    assert!((waits.value - 0.5).abs() < 0.1 && waits.low < 0.35 && waits.high > 0.65, "{waits:?}");
}

/// The time of a loop says that its lines come from afar, their reuses that most come from the second cache.
#[test]
fn saved_lines_are_those_that_reuses_show() {
    let shown = Shown { cycles: 45.0, by_access: vec![column()], ..Shown::default() };
    let profile = profile(&[shown]);
    let known = Known { misses: [((0x1008, false), ([1.0, 0.125, 0.0], 500))].into(), ..Known::default() };
    let rates = Rates::of(&profile);
    let advised = Advised::of(&profile, &Contexts::new(&profile), &rates, &known, &[]).unwrap();
    let [first, second, last] = advised.advice[0].misses.unwrap();
    assert!(first.is_some_and(|saved| (saved.value - 0.875).abs() < 0.01 && saved.low < saved.high));
    assert!(second.is_some_and(|saved| saved.value < 0.01) && last.is_none(), "{second:?} {last:?}");
}

#[test]
fn loops_that_compute_get_the_limit_that_binds_them() {
    let by_access = vec![access(0x1008, Some(8), 0.0)];
    let shown =
        |bound| Shown { cycles: 3.1, core: 3.0, bound, by_access: by_access.clone(), ..Shown::default() };
    for (bound, kind) in
        [("fp_add_chain", Kind::Accumulators), ("mispredictions", Kind::Branch), ("width", Kind::Vectorise)]
    {
        let advised = advised(&profile(&[shown(Some((bound, 1.0)))]), &[]);
        assert_eq!(kinds(&advised), [kind]);
    }
    let advised = advised(&profile(&[shown(None)]), &[]);
    assert!(advised.advice.is_empty());
    assert!(advised.none.is_some_and(|why| why.contains("does not wait for memory")));
}

#[test]
fn passes_over_the_same_data_are_fused_in_the_order_of_the_program() {
    let pass = |header: u64| Shown {
        header,
        cycles: 5.0,
        core: 1.5,
        by_access: vec![access(header + 8, Some(8), 0.125)],
        ..Shown::default()
    };
    let profile = profile(&[pass(0x1000), pass(0x2000)]);
    let reuse = |from: u64, to: u64| FarReuse { from: from + 8, to: to + 8 };
    let far: Vec<FarReuse> = (0..10).map(|_| reuse(0x1000, 0x2000)).collect();
    let fused = advised(&profile, &far);
    assert_eq!(kinds(&fused), [Kind::Fuse]);
    // Half of the time no longer loads.
    assert!((1.2..1.7).contains(&fused.advice[0].speedup.value), "{:?}", fused.advice[0].speedup);
    assert!(kinds(&advised(&profile, &far[..2])).is_empty(), "two reuses are too few");
}

#[test]
fn lines_that_threads_take_from_each_other_are_found() {
    let word = |address: u64| LoopAccess {
        kind: AccessKind::Store,
        address,
        stride: Some(0),
        ..access(0x1008, Some(0), 0.0)
    };
    let by_thread = |words: [u64; 2]| -> Vec<Kind> {
        let shown = |thread: u32, address| Shown {
            thread,
            cycles: 40.0,
            core: 4.0,
            samples: 20,
            by_access: vec![word(address)],
            ..Shown::default()
        };
        kinds(&advised(&profile(&[shown(0, words[0]), shown(1, words[1])]), &[]))
    };
    assert_eq!(by_thread([0x10_0000, 0x10_0008]), [Kind::Sharing]);
    assert_eq!(by_thread([0x10_0000, 0x10_0000]), [Kind::Sharing]);
    assert!(by_thread([0x10_0000, 0x10_0040]).is_empty(), "lines of their own");
}

#[test]
fn page_faults_that_take_much_of_the_time_are_advice() {
    let store = LoopAccess { kind: AccessKind::Store, pages: 3, ..access(0x1008, Some(8), 0.125) };
    let mut profile =
        profile(&[Shown { cycles: 2.0, core: 2.0, by_access: vec![store], ..Shown::default() }]);
    profile.run.ticks = Some((1000, 500));
    profile.run.page_faults = Some(400_000);
    let advised = advised(&profile, &[]);
    assert_eq!(kinds(&advised), [Kind::KeepBuffer]);
    let speedup = advised.advice[0].speedup;
    assert!(speedup.low > 1.1 && speedup.value < 2.0 && advised.kernel.is_some(), "{speedup:?}");
}

#[test]
fn page_faults_are_named_where_the_samples_in_the_kernel_lie() {
    let store = LoopAccess { kind: AccessKind::Store, pages: 3, ..access(0x1008, Some(8), 0.125) };
    let shown = Shown { cycles: 2.0, core: 2.0, by_access: vec![store], ..Shown::default() };
    let mut profile = profile(&[shown]);
    profile.run.ticks = Some((1000, 500));
    profile.run.page_faults = Some(400_000);
    let place = |line: u32, function: &str| Frame {
        address: 0x5000 + u64::from(line),
        function: Some(function.to_owned()),
        file: Some("fill.c".to_owned()),
        line: Some(line),
        ..Frame::default()
    };
    profile.frames.extend([place(30, "fill"), place(31, "fill"), place(90, "other"), place(50, "read_all")]);
    profile.stacks.extend((1..5).map(|frame| Stack { frames: vec![FrameId(frame)], cut: None }));
    let calls = [(1, 6, None), (2, 3, None), (3, 4, None), (4, 12, Some("read"))];
    for (stack, n, call) in calls {
        let call = call.map(str::to_owned);
        let sample = KernelSample { stack: StackId(stack), call, ..KernelSample::default() };
        profile.kernel_samples.extend(std::iter::repeat_n(sample, n));
    }
    let advised = advised(&profile, &[]);
    assert_eq!(kinds(&advised), [Kind::KeepBuffer]);
    assert_eq!(advised.advice[0].place, (Some(FrameId(1)), Some(30)));
    assert!(advised.advice[0].evidence[1].contains("13 samples"), "{:?}", advised.advice[0].evidence);
    let entries = advised.kernel.unwrap().entries;
    let found: Vec<(Option<&str>, u64)> =
        entries.iter().map(|entry| (entry.call.as_deref(), entry.share.n)).collect();
    assert_eq!(found, [(Some("read"), 12), (None, 9), (None, 4)]);
    // 25 of 500 ticks in the kernel were recorded, so 12 stand for 240 of 1,000.
    let share = entries[0].share;
    assert!((share.value - 0.24).abs() < 1e-9 && share.low < 0.24 && share.high > 0.24, "{share:?}");
}

#[test]
fn columns_longer_than_windows_are_known_by_the_places_in_the_row() {
    let seen = |columns: &[u64], step: u64| {
        let walk = |column: &u64| LoopAccess {
            address: 0x10_0000 + 80 * 7 + column * step,
            ..access(0x1008, Some(80), 1.0)
        };
        let rows: Vec<LoopAccess> = columns.iter().map(walk).collect();
        let mut profile = profile(&[Shown { samples: 12, ..Shown::default() }]);
        for (number, row) in profile.loops.iter_mut().enumerate() {
            row.by_access = vec![rows[number % rows.len()].clone()];
        }
        let loops = advised(&profile, &[]).loops;
        (loops[0].accesses[0].outer_stride, loops[0].accesses[0].outer_windows)
    };
    assert_eq!(seen(&[0, 3, 4, 1], 8), (Some(8), 4));
    assert_eq!(seen(&[2], 8), (None, 0), "one field of a structure");
    assert_eq!(seen(&[1, 2], 8), (None, 0), "two fields, or two arrays");
    assert_eq!(seen(&[0, 1, 2, 3], 16), (None, 0), "arrays of several callers");
}

#[test]
fn short_runs_far_from_each_other_ask_for_other_dimensions() {
    let run = |outer: i64| {
        let walk = LoopAccess { outer_stride: Some(outer), ..access(0x1008, Some(8), 0.125) };
        let shown = Shown { trips: 100, cycles: 8.0, core: 1.0, by_access: vec![walk], ..Shown::default() };
        advised(&profile(&[shown]), &[])
    };
    let advised = run(1 << 20);
    assert_eq!(kinds(&advised), [Kind::Interchange]);
    assert!(advised.advice[0].title.contains("runs of 800 bytes"), "{}", advised.advice[0].title);
    assert!((advised.loops[0].accesses[0].restarts - 64.0 / 800.0).abs() < 1e-9);
    assert!(run(800).advice.is_empty(), "one run after the other");
}

#[test]
fn passes_in_a_row_are_one_change() {
    let pass = |number: u64| {
        let (ip, object) = (0x1008 + number * 0x100, (ObjectId(0), None));
        let load = access(ip, Some(8), 0.125);
        let store = LoopAccess { kind: AccessKind::Store, lines: 0, ..access(ip + 4, Some(8), 0.0) };
        let shown = Shown {
            header: 0x1000 + number * 0x100,
            cycles: 4.0,
            core: 1.0,
            by_access: vec![load, store],
            ..Shown::default()
        };
        (shown, [(ip, object), (ip + 4, object)])
    };
    let passes: Vec<_> = (0..3).map(pass).collect();
    let shown: Vec<Shown> = passes.iter().map(|(shown, _)| shown.clone()).collect();
    let known = Known {
        all: [1.0; 3],
        objects: passes.iter().flat_map(|(_, objects)| *objects).collect(),
        ..Known::default()
    };
    let far = |from: u64, to: u64| {
        std::iter::repeat_n(FarReuse { from: 0x1008 + from * 0x100 + 4, to: 0x1008 + to * 0x100 }, 5)
    };
    let far: Vec<FarReuse> = far(0, 1).chain(far(1, 2)).collect();
    let profile = profile(&shown);
    let advise = |known: &Known| {
        Advised::of(&profile, &Contexts::new(&profile), &Rates::of(&profile), known, &far).unwrap()
    };
    let fused: Vec<Advice> =
        advise(&known).advice.into_iter().filter(|advice| advice.kind == Kind::Fuse).collect();
    assert_eq!(fused.len(), 1, "{fused:?}");
    assert_eq!(fused[0].evidence.len(), 3, "two pairs, and the time: {:?}", fused[0].evidence);
    assert!(fused[0].speedup.value > 1.5, "{:?}", fused[0].speedup);
}

#[test]
fn little_or_impossible_data_gives_no_advice_and_no_panic() {
    let few = profile(&[Shown { samples: 3, by_access: vec![column()], ..Shown::default() }]);
    assert!(advised(&few, &[]).advice.is_empty());
    let mut odd = profile(&[Shown { by_access: vec![column()], ..Shown::default() }]);
    for row in &mut odd.loops {
        (row.iterations, row.core_cycles, row.stack) = (0, f64::MAX, StackId(999));
        for access in &mut row.by_access {
            (access.stride, access.outer_stride) = (Some(i64::MIN), Some(i64::MIN));
            (access.executions, access.lines, access.values) =
                (u64::MAX, u64::MAX, Some((i64::MIN, i64::MAX)));
        }
    }
    odd.run.ticks = Some((0, 0));
    drop(advised(&odd, &[FarReuse { from: 0, to: 0x1008 }]));
    let mut no_processor = profile(&[Shown { by_access: vec![column()], ..Shown::default() }]);
    no_processor.run.processor = None;
    assert!(advised(&no_processor, &[]).none.is_some());
    assert!(
        Advised::of(&Profile::default(), &Contexts::default(), &Rates::default(), &Known::default(), &[])
            .is_none()
    );
}

#[test]
fn object_names_stand_in_titles() {
    let profile = profile(&[Shown { by_access: vec![column()], ..Shown::default() }]);
    let known = Known { all: [1.0; 3], objects: [(0x1008, (ObjectId(0), None))].into(), ..Known::default() };
    let advised = Advised::of(&profile, &Contexts::new(&profile), &Rates::of(&profile), &known, &[]).unwrap();
    assert!(advised.advice[0].title.contains("`matrix`"), "{}", advised.advice[0].title);
}
