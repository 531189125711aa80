//! Self-parallelism: closed forms, and an oracle that runs each region's instructions alone.

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::code_asm::{registers::*, *};
use locality_stream::testing;

use super::*;
use crate::{NestEngine, NestSetup, NestSummary, OpenError, RegionCount};

const REDUCED: View = View { reductions: true, ..View::VALUES };

fn nest(program: &Program, events: &[Event], view: View, latency: Latency) -> NestSummary {
    let heap = Heap::new(1 << 30).unwrap();
    let setup = NestSetup { view, latency };
    let mut engine = NestEngine::create(&heap, setup, Marks::default()).unwrap();
    for piece in events.chunks(7) {
        engine.observe(piece, &program.code()).unwrap();
    }
    engine.observe(&[Event::new(Kind::THREAD_END, 0, 1)], &program.code()).unwrap();
    assert_eq!(engine.consumed(), events.len() as u64 + 1);
    engine.finish()
}

fn of(found: &NestSummary, block: u32, is_loop: bool) -> RegionCount {
    *found.regions.iter().find(|region| (region.block, region.is_loop) == (block, is_loop)).unwrap()
}

const N: u64 = 1000;

/// Two runs of a loop of `N` iterations, each with three multiplications in a row, and one instruction of
/// a block before. The body ends with a store.
fn twice(before: impl Fn(&mut CodeAssembler), after: impl Fn(&mut CodeAssembler)) -> (Program, Vec<Event>) {
    let mut program = Program::default();
    let start = program.block(|a| a.xor(ecx, ecx).unwrap());
    let body = program.block(|a| {
        before(a);
        (0..3).for_each(|_| a.imul_2(rax, rax).unwrap());
        after(a);
        a.mov(qword_ptr(rdi + rcx * 8), rax).unwrap();
        a.add(rcx, 1).unwrap();
        a.cmp(rcx, rdx).unwrap();
        a.jne(0x1000).unwrap();
    });
    let count = program.blocks[body as usize].count;
    let mut events = Vec::new();
    for _ in 0..2 {
        events.push(program.begin(start));
        for turn in 0..N {
            events.push(program.begin(body));
            let loads = program.records[program.first(body) as usize].code()[..2] == [0x48, 0x8b];
            if loads {
                events.push(program.access(body, 0, Kind::LOAD, 0x10_0000 + turn * 8, 8));
            }
            events.push(program.access(body, count - 4, Kind::STORE, 0x20_0000 + turn * 8, 8));
        }
    }
    (program, events)
}

fn loaded(a: &mut CodeAssembler) {
    a.mov(rax, qword_ptr(rsi + rcx * 8)).unwrap();
}

/// Iterations and self-parallelism of a loop's two runs: the first iteration of the first run stands
/// before the loop is known.
fn measured(found: &NestSummary, spans: [u64; 2]) {
    let region = of(found, 1, true);
    assert_eq!((region.instances, region.iterations), (2, 2 * N - 1));
    assert_eq!([region.parts, region.span], spans, "{region:?}");
}

#[test]
fn independent_iterations_have_the_parallelism_of_their_number() {
    let (program, events) = twice(loaded, |_| ());
    let found = nest(&program, &events, View::VALUES, Latency::Unit);
    measured(&found, [3 * (2 * N - 1), 2 * 3]);
    // With latencies: a load, three multiplications of 3 cycles.
    let steps = View { copies: false, ..View::VALUES };
    let found = nest(&program, &events, steps, Latency::Machine);
    measured(&found, [14 * (2 * N - 1), 2 * 14]);
    // The counter is a chain in the machine's view, an iteration's other work is beside.
    let found = nest(&program, &events, View::MACHINE, Latency::Unit);
    let region = of(&found, 1, true);
    assert_eq!((region.parts, region.span), (5 * (2 * N - 1), 2 * N - 1 + 2 * 4));
}

#[test]
fn a_chain_of_iterations_has_none() {
    let (program, events) = twice(|_| (), |_| ());
    for view in [View::VALUES, REDUCED] {
        let found = nest(&program, &events, view, Latency::Unit);
        measured(&found, [3 * (2 * N - 1); 2]);
    }
}

#[test]
fn a_sum_is_a_chain_unless_reductions_are_ignored() {
    let (program, events) = twice(loaded, |a| a.add(rbx, rax).unwrap());
    let found = nest(&program, &events, View::VALUES, Latency::Unit);
    // Three multiplications, and the additions one by one.
    measured(&found, [4 * (2 * N - 1), 2 * N - 1 + 2 * 3]);
    let found = nest(&program, &events, REDUCED, Latency::Unit);
    measured(&found, [4 * (2 * N - 1), 2 * 4]);
    // A partial sum that each iteration uses is no reduction.
    let (program, events) = twice(loaded, |a| {
        a.add(rbx, rax).unwrap();
        a.mov(rax, rbx).unwrap();
    });
    let found = nest(&program, &events, REDUCED, Latency::Unit);
    measured(&found, [4 * (2 * N - 1), 2 * N - 1 + 2 * 3]);
}

/// Reductions to the cycle, in the engine of instructions.
#[test]
fn accumulators_of_all_kinds_are_reductions() {
    let n = 100;
    let cycles = |write: &dyn Fn(&mut CodeAssembler)| {
        let mut program = Program::default();
        let block = program.block(|a| write(a));
        let events: Vec<Event> = (0..n).map(|_| program.begin(block)).collect();
        span(&program, &events, REDUCED, Latency::Unit)
    };
    for is_one in [
        cycles(&|a| a.add(rax, rbx).unwrap()),
        cycles(&|a| a.sub(rax, rbx).unwrap()),
        cycles(&|a| a.imul_2(rax, rbx).unwrap()),
        cycles(&|a| a.xor(rax, rbx).unwrap()),
        cycles(&|a| a.addsd(xmm0, xmm1).unwrap()),
        cycles(&|a| a.vaddpd(ymm0, ymm1, ymm0).unwrap()),
        cycles(&|a| a.vsubpd(ymm0, ymm0, ymm1).unwrap()),
        cycles(&|a| a.vfmadd231pd(ymm0, ymm1, ymm2).unwrap()),
        cycles(&|a| a.vpmaxsd(xmm0, xmm0, xmm1).unwrap()),
        cycles(&|a| a.paddq(xmm0, xmm1).unwrap()),
    ] {
        assert_eq!(is_one, 1);
    }
    for is_chain in [
        cycles(&|a| a.imul_2(rax, rax).unwrap()),
        cycles(&|a| a.vsubpd(ymm0, ymm1, ymm0).unwrap()),
        cycles(&|a| a.vfmadd213pd(ymm0, ymm1, ymm2).unwrap()),
        cycles(&|a| a.vdivpd(ymm0, ymm0, ymm1).unwrap()),
        cycles(&|a| a.shl(rax, cl).unwrap()),
    ] {
        assert_eq!(is_chain, n);
    }
    // A compiler may move the sum around; who uses the moved sum uses the sum.
    let moved = |is_used: bool| {
        cycles(&move |a: &mut CodeAssembler| {
            a.mov(rdx, rcx).unwrap();
            a.add(rdx, rbx).unwrap();
            a.mov(rcx, rdx).unwrap();
            if is_used {
                a.imul_2(r8, rcx).unwrap();
            }
        })
    };
    assert_eq!([moved(false), moved(true)], [1, n + 1]);
    // The whole register after parts of it.
    assert_eq!(
        cycles(&|a| {
            a.add(rax, rbx).unwrap();
            a.imul_3(rcx, rax, 3).unwrap();
            a.add(rdx, rcx).unwrap();
        }),
        n + 2
    );
}

/// A caller with a loop of calls: children of the caller are the loop, of an iteration the call.
fn calls(turns: u64, chained: bool) -> (Program, Vec<Event>) {
    let mut program = Program::default();
    let head = program.block(|a| {
        a.mov(rdi, if chained { rax } else { rbx }).unwrap();
        a.call(0x9000).unwrap();
    });
    let tail = program.block(|a| {
        a.add(rcx, 1).unwrap();
        a.cmp(rcx, rdx).unwrap();
        a.jne(0x1000).unwrap();
    });
    let function = program.block(|a| {
        a.mov(rax, rdi).unwrap();
        (0..50).for_each(|_| a.imul_2(rax, rax).unwrap());
        a.ret().unwrap();
    });
    let mut events = Vec::new();
    for _ in 0..turns {
        events.push(program.begin(head));
        events.push(program.access(head, 1, Kind::CALL, 0x7ff0, 8));
        events.push(program.begin(function));
        events.push(program.access(function, 51, Kind::RETURN, 0x7ff0, 8));
        events.push(program.begin(tail));
    }
    (program, events)
}

#[test]
fn calls_are_children_of_their_callers() {
    let turns = 100;
    for chained in [true, false] {
        let (program, events) = calls(turns, chained);
        let found = nest(&program, &events, View::VALUES, Latency::Unit);
        let (caller, turned, called) = (of(&found, 0, false), of(&found, 0, true), of(&found, 2, false));
        assert_eq!((called.instances, called.span, called.work), (turns, 50 * turns, 52 * turns));
        // A multiplication waits for the one before; the return is beside.
        assert_eq!(called.parts, 51 * turns);
        assert_eq!((turned.instances, turned.iterations), (1, turns - 1));
        assert_eq!(turned.parts, 50 * (turns - 1));
        assert_eq!(turned.span, if chained { 50 * (turns - 1) } else { 50 });
        // Of the caller: the first call, the loop, and in the first iteration the call instruction, the
        // addition, the comparison and the branch.
        assert_eq!(
            (caller.parts, caller.span),
            (50 + turned.span + 4, if chained { 50 * turns } else { 50 })
        );
        assert_eq!((found.work, caller.work), (57 * turns, 57 * turns));
        assert_eq!(found.regions.iter().map(|region| region.unmeasured).sum::<u64>(), 0);
    }
}

/// A function that calls itself: work counts once, and calls beyond the levels are not measured.
#[test]
fn recursion_counts_work_once() {
    let mut program = Program::default();
    let down = program.block(|a| {
        a.imul_2(rax, rax).unwrap();
        a.call(0x1000).unwrap();
    });
    let up = program.block(|a| a.ret().unwrap());
    let depth = 40_u64;
    let mut events = Vec::new();
    for level in 0..depth {
        events.push(program.begin(down));
        events.push(program.access(down, 1, Kind::CALL, 0x9000 - 8 * level, 8));
    }
    for level in (0..depth).rev() {
        events.push(program.begin(up));
        events.push(program.access(up, 0, Kind::RETURN, 0x9000 - 8 * level, 8));
    }
    events.push(program.begin(up));
    let found = nest(&program, &events, View::VALUES, Latency::Unit);
    let [recursive, last] = [of(&found, down, false), of(&found, up, false)];
    assert_eq!((recursive.work, found.work), (3 * depth + 1, 3 * depth + 1));
    assert_eq!((recursive.instances, recursive.unmeasured), (16, depth - 16));
    assert_eq!((last.instances, last.unmeasured), (0, 1), "{found:?}");
}

/// Blocks of [`random_nest`]: a loop around a loop with an inner loop and a call.
const OUTER: u32 = 0;
const MIDDLE: u32 = 1;
const INNER: u32 = 2;
const END: u32 = 3;
const CALLING: u32 = 4;
const AFTER: u32 = 5;
const CALLED: u32 = 6;

/// What a block is executed for: an iteration, or the code outside of loops.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Label {
    /// Number of the execution, and of the one with the entry of the loop.
    pub execution: usize,
    pub around: usize,
    /// Header's block; [`crate::NO_BLOCK`] outside.
    pub node: u32,
}

/// A region: header or entry, and whether a loop; range of events; beginnings of iterations.
type Region = ((u32, bool), Range<usize>, Vec<usize>);

/// Regions of a run by construction: runs of a loop with the beginnings of iterations, and calls.
#[derive(Default)]
pub(super) struct Truth {
    /// By executed block.
    pub labels: Vec<Label>,
    regions: Vec<Region>,
}

pub(super) fn random_nest(random: &mut fastrand::Rng) -> (Program, Vec<Event>, Truth) {
    let mut program = Program::default();
    for block in OUTER..=CALLED {
        let count = random.u32(1..6);
        program.block(|a| {
            (0..count).for_each(|_| random::one(random, a).unwrap());
            match block {
                END | AFTER => a.jne(0x1000).unwrap(),
                CALLING => a.call(0x1000).unwrap(),
                CALLED => a.ret().unwrap(),
                _ => {}
            }
        });
    }
    let room = random.u64(8..3000);
    let (mut events, mut truth) = (Vec::new(), Truth::default());
    let mut known = [false; 3];
    let visit = |block: u32, events: &mut Vec<Event>, random: &mut fastrand::Rng| {
        events.push(program.begin(block));
        let record = program.blocks[block as usize];
        for index in record.first..record.first + record.count {
            let is_last = index + 1 == record.first + record.count;
            for (kind, size) in random::accesses(&program, index) {
                let address = 0x7f_f000 + random.u64(0..room) / 4 * 4;
                events.push(match (is_last, block) {
                    (true, CALLING) => Event::access(Kind::CALL, index, 0x9_0000, 8),
                    (true, CALLED) => Event::access(Kind::RETURN, index, 0x9_0000, 8),
                    _ => Event::access(kind, index, address, size),
                });
            }
        }
    };
    // Beginnings of the iterations that are seen: all of a known loop, the later ones of a new loop.
    let seen = |known: &mut bool, begun: Vec<usize>| {
        let skipped = usize::from(!*known);
        *known |= begun.len() > 1;
        begun.into_iter().skip(skipped).collect::<Vec<_>>()
    };
    let outside = Label { execution: 0, around: 0, node: crate::NO_BLOCK };
    let mut executions = 0;
    // An iteration is an execution, once its loop is known.
    let mut iteration = |is_known: bool, around: Label, node: u32| match is_known {
        true => {
            executions += 1;
            Label { execution: executions, around: around.execution, node }
        }
        false => around,
    };
    let mut outer = Vec::new();
    for _ in 0..random.u32(1..5) {
        let in_outer = iteration(known[0] || !outer.is_empty(), outside, OUTER);
        truth.labels.push(in_outer);
        outer.push(events.len());
        visit(OUTER, &mut events, random);
        let mut middle = Vec::new();
        for _ in 0..random.u32(1..5) {
            let in_middle = iteration(known[1] || !middle.is_empty(), in_outer, MIDDLE);
            truth.labels.push(in_middle);
            middle.push(events.len());
            visit(MIDDLE, &mut events, random);
            let mut inner = Vec::new();
            for _ in 0..random.u32(1..5) {
                let in_inner = iteration(known[2] || !inner.is_empty(), in_middle, INNER);
                truth.labels.extend([in_inner; 2]);
                inner.push(events.len());
                visit(INNER, &mut events, random);
                visit(END, &mut events, random);
            }
            let inner = seen(&mut known[2], inner);
            if let Some(first) = inner.first() {
                truth.regions.push(((INNER, true), *first..events.len(), inner));
            }
            truth.labels.extend([in_middle; 3]);
            visit(CALLING, &mut events, random);
            let call = events.len();
            visit(CALLED, &mut events, random);
            truth.regions.push(((CALLED, false), call..events.len(), Vec::new()));
            visit(AFTER, &mut events, random);
        }
        let middle = seen(&mut known[1], middle);
        if let Some(first) = middle.first() {
            truth.regions.push(((MIDDLE, true), *first..events.len(), middle));
        }
    }
    let outer = seen(&mut known[0], outer);
    if let Some(first) = outer.first() {
        truth.regions.push(((OUTER, true), *first..events.len(), outer));
    }
    truth.regions.push(((OUTER, false), 0..events.len(), Vec::new()));
    (program, events, truth)
}

/// Random nests: span and parts equal those of each region's instructions alone, run by the oracle of
/// instructions.
#[test]
fn the_engine_equals_the_oracle() {
    for seed in 0..u64::from(testing::cases(300)) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (program, events, truth) = random_nest(&mut random);
        // Steps and reductions depend on what was executed before the region.
        let view = View { stack: random.bool(), induction: false, copies: random.bool(), reductions: false };
        let latency = if view.copies || random.bool() { Latency::Unit } else { Latency::Machine };
        let setup = setup(view, latency, &[None]);
        let code = program.code();
        let span = |range: Range<usize>| oracle::run(&code, &events[range], &setup, setup.lanes[0]).cycles;
        let mut expected: BTreeMap<(u32, bool), [u64; 4]> = BTreeMap::new();
        for (key, range, begun) in &truth.regions {
            let own = span(range.clone());
            let parts: u64 = if key.1 {
                let ends = begun.iter().skip(1).copied().chain([range.end]);
                begun.iter().zip(ends).map(|(from, to)| span(*from..to)).sum()
            } else {
                let inside = |other: &&Region| {
                    other.1 != *range && range.start <= other.1.start && other.1.end <= range.end
                };
                let all: Vec<_> = truth.regions.iter().filter(inside).collect();
                // Children only, not their children.
                let is_child = |one: &&Region| {
                    !all.iter().any(|other| {
                        other.1 != one.1 && other.1.start <= one.1.start && one.1.end <= other.1.end
                    })
                };
                let children: Vec<_> = all.iter().copied().filter(is_child).collect();
                let serial = |range: Range<usize>| oracle::serial(&code, &events[range], &setup);
                let inner: u64 = children.iter().map(|child| serial(child.1.clone())).sum();
                serial(range.clone()) - inner
                    + children.iter().map(|child| span(child.1.clone())).sum::<u64>()
            };
            let sum = expected.entry(*key).or_default();
            for (sum, one) in sum.iter_mut().zip([1, begun.len() as u64, own, parts]) {
                *sum += one;
            }
        }
        let found: BTreeMap<(u32, bool), [u64; 4]> = nest(&program, &events, view, latency)
            .regions
            .iter()
            .map(|one| ((one.block, one.is_loop), [one.instances, one.iterations, one.span, one.parts]))
            .collect();
        assert_eq!(found, expected, "seed {seed} {view:?} {latency:?}");
        assert!(found.values().all(|[_, _, span, parts]| parts >= span), "{found:?}");
    }
}

#[test]
fn a_state_is_taken_up_whole_or_torn_or_refused() {
    let (program, events) = calls(300, true);
    let setup = NestSetup { view: View::VALUES, latency: Latency::Unit };
    let expected = nest(&program, &events, setup.view, setup.latency);
    for cut in [0, 1, 2, 3, 777, events.len()] {
        let heap = Heap::new(1 << 28).unwrap();
        let mut engine = NestEngine::create(&heap, setup, Marks::default()).unwrap();
        engine.observe(&events[..cut], &program.code()).unwrap();
        let offset = engine.state();
        let mut engine = NestEngine::open(&heap, offset, Marks::default()).unwrap();
        assert_eq!(engine.consumed(), cut as u64);
        engine.observe(&events[cut..], &program.code()).unwrap();
        engine.observe(&[Event::new(Kind::THREAD_END, 0, 1)], &program.code()).unwrap();
        // The block before is not known after a change of process: one jump back may be missed.
        let found = engine.finish();
        assert_eq!((found.work, found.torn), (expected.work, 0), "{cut}");
        let all = |found: &NestSummary| of(found, 2, false);
        assert_eq!(all(&found), all(&expected), "{cut}");
    }
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..u64::from(testing::cases(50)) {
        let heap = Heap::new(1 << 28).unwrap();
        let mut engine = NestEngine::create(&heap, setup, Marks::default()).unwrap();
        engine.observe(&events[..900], &program.code()).unwrap();
        let offset = engine.state();
        drop(engine);
        crate::tests::damage(&heap, offset, 3000, &mut random);
        if let Ok(mut engine) = NestEngine::open(&heap, offset, Marks::default()) {
            let _ = engine.observe(&events[900..], &program.code());
            let _ = engine.finish();
        }
    }
    let heap = Heap::new(1 << 20).unwrap();
    assert_eq!(NestEngine::open(&heap, 4096, Marks::default()).err(), Some(OpenError::NoState));
}
