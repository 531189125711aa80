//! Tasks: closed forms, and an oracle that shares nothing with the engine but the decoder.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use iced_x86::code_asm::{registers::*, *};
use locality_stream::{Dependences, Locations};

use super::nest::{Label, random_nest};
use super::*;
use crate::{EdgeCount, Node, OpenError, TaskEngine, TaskSetup, TaskSummary};

pub(super) fn tasks(program: &Program, events: &[Event], node: Node, view: View) -> TaskSummary {
    let heap = Heap::new(1 << 30).unwrap();
    let mut engine = TaskEngine::create(&heap, TaskSetup { node, view }, Marks::default()).unwrap();
    for piece in events.chunks(7) {
        engine.observe(piece, &program.code()).unwrap();
    }
    engine.observe(&[Event::new(Kind::THREAD_END, 0, 1)], &program.code()).unwrap();
    assert_eq!(engine.consumed(), events.len() as u64 + 1);
    let found = engine.finish();
    assert_eq!(found.nodes.iter().map(|node| node.work).sum::<u64>(), found.work);
    assert_eq!(found.nodes.iter().map(|node| node.executions).sum::<u64>(), found.executions);
    found
}

/// A caller with a loop of calls: blocks `head` (to the call), `function` (to the return), `tail` (the
/// loop's end). With `chained`, a call takes what the last call returned.
fn calls(turns: u64, chained: bool, length: usize) -> (Program, Vec<Event>) {
    let mut program = Program::default();
    let head = program.block(|a| {
        if chained {
            a.mov(rdi, rax).unwrap();
        } else {
            a.mov(rdi, rbx).unwrap();
        }
        a.call(0x9000).unwrap();
    });
    let function = program.block(|a| {
        a.mov(rax, rdi).unwrap();
        (0..length).for_each(|_| a.imul_2(rax, rax).unwrap());
        a.ret().unwrap();
    });
    let tail = program.block(|a| {
        if !chained {
            a.mov(qword_ptr(rsi + rcx * 8), rax).unwrap();
        }
        a.add(rcx, 1).unwrap();
        a.cmp(rcx, rdx).unwrap();
        a.jne(0x1000).unwrap();
    });
    let mut events = Vec::new();
    for turn in 0..turns {
        events.push(program.begin(head));
        events.push(program.access(head, 1, Kind::CALL, 0x7ff0, 8));
        events.push(program.begin(function));
        events.push(program.access(function, length as u32 + 1, Kind::RETURN, 0x7ff0, 8));
        events.push(program.begin(tail));
        if !chained {
            events.push(program.access(tail, 0, Kind::STORE, 0x10_0000 + turn * 8, 8));
        }
    }
    (program, events)
}

#[test]
fn chained_calls_have_no_parallelism_and_others_have_all() {
    let (turns, length) = (100, 500);
    let (program, events) = calls(turns, true, length);
    for node in [Node::Functions, Node::Blocks] {
        let found = tasks(&program, &events, node, View::VALUES);
        let body = length as u64 + 2;
        assert_eq!(found.work, turns * (body + 5));
        // A call waits for the last call; the caller's steps run beside.
        let least = turns * body;
        assert!(found.span >= least && found.span <= found.work, "{node:?} {found:?}");
        assert!(found.work as f64 / (found.span as f64) < 1.011, "{node:?}");
    }
    let (program, events) = calls(turns, false, length);
    let found = tasks(&program, &events, Node::Functions, View::VALUES);
    // The caller starts calls one after another, 2 + 4 instructions each; the last call ends the run.
    assert_eq!((found.work, found.span), (turns * (length as u64 + 8), turns * 6 - 4 + length as u64 + 2));
    assert_eq!(found.executions, turns + 1);
    // The caller takes nothing: what a call returns is only moved on.
    assert_eq!(found.edges, []);
    let found = tasks(&program, &events, Node::Blocks, View::VALUES);
    assert_eq!(found.span, length as u64 + 2, "blocks need not be started by anybody");
    // All dependences of the machine code, the stack pointer among them, make one chain.
    let found = tasks(&program, &events, Node::Functions, View::MACHINE);
    assert_eq!(found.work, found.span);
}

/// A loop writes `n` words, another adds them.
fn pair(n: u64) -> (Program, Vec<Event>, [u32; 2]) {
    let mut program = Program::default();
    let write = program.block(|a| {
        a.lea(rax, qword_ptr(rcx + rcx * 2)).unwrap();
        a.mov(qword_ptr(rdi + rcx * 8), rax).unwrap();
        a.add(rcx, 1).unwrap();
        a.cmp(rcx, rdx).unwrap();
        a.jne(0x1000).unwrap();
    });
    let start = program.records[program.first(write) as usize].address;
    let add = program.block(|a| {
        a.add(rbx, qword_ptr(rdi + r8 * 8)).unwrap();
        a.add(r8, 1).unwrap();
        a.cmp(r8, rdx).unwrap();
        a.jne(0x1014).unwrap();
    });
    assert_eq!(start, 0x1000);
    let mut events = Vec::new();
    for turn in 0..n {
        events.push(program.begin(write));
        events.push(program.access(write, 1, Kind::STORE, 0x10_0000 + turn * 8, 8));
    }
    for turn in 0..n {
        events.push(program.begin(add));
        events.push(program.access(add, 0, Kind::LOAD, 0x10_0000 + turn * 8, 8));
    }
    (program, events, [write, add])
}

#[test]
fn a_producer_hands_over_all_that_it_writes() {
    let n = 1000;
    let (program, events, [write, add]) = pair(n);
    for node in [Node::Blocks, Node::Loops] {
        let found = tasks(&program, &events, node, View::VALUES);
        let at = |block: u32| found.nodes.iter().position(|node| node.block == block).unwrap() as u32;
        let (from, to) = (at(write), at(add));
        // The first turn of a loop belongs to what surrounds it.
        let turns = if node == Node::Loops { n - 1 } else { n };
        let memory: Vec<_> = found.edges.iter().filter(|edge| edge.memory && edge.from == from).collect();
        let bytes: u64 = memory.iter().map(|edge| edge.bytes).sum();
        assert_eq!((bytes, memory.iter().map(|edge| edge.values).sum()), (turns * 8, turns), "{node:?}");
        let sums = |from, to| found.edges.iter().find(|edge| (edge.from, edge.to) == (from, to));
        let sum = sums(to, to).unwrap();
        // An iteration takes the sum of the one before; the step and its end are known to all.
        assert_eq!((sum.memory, sum.bytes, sum.values), (false, (turns - 1) * 8, turns - 1), "{node:?}");
        // The writes wait for nothing, the additions for each other.
        assert_eq!(
            (found.work, found.span),
            if node == Node::Blocks { (9 * n, 5 + 4 * n) } else { (9 * n, found.span) }
        );
        assert!(found.span >= 4 * n && found.span <= 4 * n + 20, "{}", found.span);
    }
}

#[test]
fn iterations_without_a_common_value_run_at_once() {
    let n = 1000;
    let (program, events, _) = pair(n);
    // The writer's loop alone.
    let events: Vec<Event> = events.into_iter().take(2 * n as usize).collect();
    let found = tasks(&program, &events, Node::Loops, View::VALUES);
    // The first iteration stands before the loop is known; all others start after it.
    assert_eq!((found.work, found.span, found.executions), (5 * n, 10, n));
    let found = tasks(&program, &events, Node::Loops, View::MACHINE);
    assert_eq!(found.span, 5 * n, "steps are followed in this view");
}

#[test]
fn nested_loops_and_calls_in_loops_are_told_apart() {
    let mut program = Program::default();
    let outer = program.block(|a| {
        a.xor(eax, eax).unwrap();
        a.jmp(0x1000).unwrap();
    });
    let inner = program.block(|a| {
        a.add(rbx, rax).unwrap();
        a.inc(rax).unwrap();
        a.jne(0x1000).unwrap();
    });
    let tail = program.block(|a| {
        a.dec(rcx).unwrap();
        a.jne(0x1000).unwrap();
    });
    let mut events = Vec::new();
    for _ in 0..10 {
        events.push(program.begin(outer));
        (0..5).for_each(|_| events.push(program.begin(inner)));
        events.push(program.begin(tail));
    }
    let found = tasks(&program, &events, Node::Loops, View::MACHINE);
    let of = |block: u32| found.nodes.iter().find(|node| node.block == block).unwrap();
    // Of the first inner loop the first iteration, and the first outer iteration, are outside.
    assert_eq!((of(outer).executions, of(inner).executions), (9, 9 * 5 + 4));
    assert_eq!(of(crate::NO_BLOCK).work, 2 + 3 + 2);
    assert_eq!(of(inner).work, (9 * 5 + 4) * 3);
}

/// Numbers of an execution in the oracle.
struct Piece {
    node: u64,
    execution: usize,
    end: u64,
}

type Values = HashMap<usize, (usize, BTreeMap<usize, BTreeSet<usize>>)>;

/// Brute force: one entry a byte, every piece remembered, readers as sets. Blocks and functions, without
/// stubs, string instructions and unwinding; for loops the iterations are given, block by block.
fn oracle(
    program: &Program,
    events: &[Event],
    node: Node,
    labels: &[Label],
    view: View,
    by_piece: bool,
) -> (u64, Vec<EdgeCount>) {
    assert!(!view.induction && !view.copies);
    let code = program.code();
    let dependences = Dependences::of_all(code.instructions);
    let mut pieces: Vec<Piece> = Vec::new();
    let mut registers = Values::new();
    let mut memory: HashMap<u64, (usize, Option<usize>)> = HashMap::new();
    let mut edges: BTreeMap<(u64, u64, bool), (u64, u64)> = BTreeMap::new();
    let mut stack: Vec<(u64, usize)> = Vec::new();
    let (mut executions, mut top, mut flow) = (0, 0_u8, None);
    let mut work: HashMap<usize, u64> = HashMap::new();
    let mut labels = labels.iter();
    let (mut at, mut running) = (0, usize::MAX);
    while at < events.len() {
        let event = events[at];
        at += 1;
        if event.kind != Kind::BLOCK {
            continue;
        }
        let block = code.blocks[event.index as usize];
        let mut accesses: Vec<Event> = Vec::new();
        while at < events.len() && events[at].kind.is_access() {
            accesses.push(events[at]);
            at += 1;
        }
        // Which piece runs.
        let mut least = 0;
        let fresh = match (node, flow.take()) {
            (Node::Loops, _) => {
                let Label { execution, around, node } = *labels.next().unwrap();
                let last = |of: usize| pieces.iter().rev().find(|piece| piece.execution == of);
                if std::mem::replace(&mut running, execution) == execution {
                    least = u64::MAX;
                } else {
                    // After its own last piece, or the piece with the entry of the loop.
                    let before = last(execution).or_else(|| last(around));
                    least = before.map_or(0, |piece| piece.end);
                    pieces.push(Piece { node: node.into(), execution, end: 0 });
                }
                None
            }
            (Node::Blocks, _) => Some(u64::from(event.index)),
            (_, Some((Kind::CALL, slot))) => {
                stack.retain(|(old, _)| *old > slot);
                stack.push((slot, pieces.len() - 1));
                least = pieces.last().unwrap().end;
                Some(u64::from(event.index))
            }
            (_, Some((_, slot))) => {
                let mut left = None;
                while let Some((old, last)) = stack.last().copied().filter(|(old, _)| *old <= slot) {
                    left = Some(last);
                    stack.pop();
                    if old == slot {
                        break;
                    }
                }
                if let Some(last) = left {
                    let Piece { node, execution, end } = pieces[last];
                    pieces.push(Piece { node, execution, end });
                    least = end;
                    None
                } else {
                    least = u64::MAX;
                    None
                }
            }
            _ if pieces.is_empty() => Some(u64::from(event.index)),
            _ => {
                least = u64::MAX;
                None
            }
        };
        if let Some(node) = fresh {
            executions += 1;
            pieces.push(Piece { node, execution: executions, end: 0 });
        }
        let own = pieces.len() - 1;
        // Start so far: of a piece that goes on, its end less what it has executed.
        if least != u64::MAX {
            pieces[own].end = least;
        }
        let me = pieces[own].execution;
        for index in block.first..block.first + block.count {
            let found = &dependences[index as usize];
            pieces[own].end += 1;
            let before = found.top.step(&mut top);
            let physical = |set: Locations| set.at_top(before);
            let mut read = physical(found.data).with(found.addresses()).with(found.hints);
            let mut written = physical(found.writes());
            let is_pointer = view.stack && (found.stack != 0 || found.leaves);
            if is_pointer {
                written = written.without(Locations::STACK_POINTER);
                let address = found.addresses().has(Locations::STACK_POINTER);
                if found.leaves || (found.step.is_none() && !address) {
                    read = read.without(Locations::STACK_POINTER);
                }
            }
            let mut start_after = 0;
            let node_of = pieces[own].node;
            for location in read.iter() {
                let Some((from, readers)) = registers.get_mut(&location) else { continue };
                if pieces[*from].execution == me {
                    continue;
                }
                start_after = start_after.max(pieces[*from].end);
                let last = readers.entry(0).or_default();
                if last.insert(me) {
                    // Only the last reader is remembered.
                    last.retain(|reader| *reader == me);
                    let bytes = match location {
                        16..20 => 1,
                        24..32 => 10,
                        64.. => 16,
                        _ => 8,
                    };
                    let edge = edges.entry((pieces[*from].node, node_of, false)).or_default();
                    (edge.0, edge.1) = (edge.0 + bytes, edge.1 + 1);
                }
            }
            for access in accesses.iter().filter(|access| access.index == index) {
                if view.stack && access.kind.is_flow() {
                    if access.kind.is_store() {
                        (access.value..access.value + u64::from(access.size)).for_each(|byte| {
                            memory.remove(&byte);
                        });
                    }
                } else if access.kind.is_store() {
                    for byte in access.value..access.value + u64::from(access.size) {
                        memory.insert(byte, (own, None));
                    }
                } else {
                    let mut taken: BTreeMap<(u64, u64), u64> = BTreeMap::new();
                    for byte in access.value..access.value + u64::from(access.size) {
                        let Some((from, reader)) = memory.get_mut(&byte) else { continue };
                        if pieces[*from].execution == me {
                            continue;
                        }
                        start_after = start_after.max(pieces[*from].end);
                        let reading = if by_piece { own } else { me };
                        if *reader != Some(reading) {
                            *reader = Some(reading);
                            *taken.entry((pieces[*from].node, 0)).or_default() += 1;
                        }
                    }
                    for ((from, _), bytes) in taken {
                        let edge = edges.entry((from, node_of, true)).or_default();
                        (edge.0, edge.1) = (edge.0 + bytes, edge.1 + 1);
                    }
                }
                if access.kind.is_flow() {
                    flow = Some((access.kind, access.value));
                }
            }
            let worked = work.entry(own).or_insert(0);
            *worked += 1;
            // A piece that started before this cycle starts later.
            pieces[own].end = pieces[own].end.max(start_after + *worked);
            for location in written.iter() {
                registers.insert(location, (own, BTreeMap::new()));
            }
        }
    }
    let span = pieces.iter().map(|piece| piece.end).max().unwrap_or(0);
    let edges = edges.into_iter().map(|((from, to, memory), (bytes, values))| EdgeCount {
        from: from as u32,
        to: to as u32,
        memory,
        bytes,
        values,
    });
    (span, edges.collect())
}

/// Random programs with calls, and with nested loops and calls: engine and oracle agree on span and on
/// every edge.
#[test]
fn the_engine_equals_the_oracle() {
    for seed in 0..u64::from(locality_stream::testing::cases(300)) {
        let mut random = fastrand::Rng::with_seed(seed);
        let node = [Node::Blocks, Node::Functions, Node::Loops][random.usize(0..3)];
        let (program, events, labels) = if node == Node::Loops {
            let (program, events, truth) = random_nest(&mut random);
            (program, events, truth.labels)
        } else {
            let program = random::with_calls(&mut random);
            let events = random::walk(&mut random, &program, 400);
            (program, events, Vec::new())
        };
        let view = [View::MACHINE, View { stack: true, ..View::MACHINE }][random.usize(0..2)];
        let found = tasks(&program, &events, node, view);
        let (span, fewest) = oracle(&program, &events, node, &labels, view, false);
        assert_eq!(found.span, span, "seed {seed} {node:?} {view:?}");
        let block = |position: u32| found.nodes[position as usize].block;
        let mut named: Vec<EdgeCount> = found
            .edges
            .iter()
            .map(|edge| EdgeCount { from: block(edge.from), to: block(edge.to), ..*edge })
            .collect();
        named.sort_unstable();
        // Words read in part by several calls in turn count again; blocks have no such turns.
        let (_, most) = oracle(&program, &events, node, &labels, view, true);
        assert_eq!((named.len(), named.len()), (fewest.len(), most.len()));
        for ((one, fewest), most) in named.iter().zip(&fewest).zip(&most) {
            let what = format!("seed {seed} {node:?} {view:?} {one:?} {fewest:?} {most:?}");
            assert_eq!([one.from, one.to, one.memory.into()], [fewest.from, fewest.to, fewest.memory.into()]);
            assert!((fewest.bytes..=most.bytes).contains(&one.bytes), "{what}");
            assert!((fewest.values..=most.values).contains(&one.values), "{what}");
            assert!((one.memory && node != Node::Blocks) || one == fewest, "{what}");
        }
    }
}

#[test]
fn a_state_is_taken_up_whole_or_torn_or_refused() {
    let (program, events, _) = pair(500);
    for node in [Node::Blocks, Node::Functions, Node::Loops] {
        let setup = TaskSetup { node, view: View::MACHINE };
        let expected = tasks(&program, &events, node, View::MACHINE);
        for cut in [0, 1, 2, 777, events.len()] {
            let heap = Heap::new(1 << 28).unwrap();
            let mut engine = TaskEngine::create(&heap, setup, Marks::default()).unwrap();
            engine.observe(&events[..cut], &program.code()).unwrap();
            let offset = engine.state();
            let mut engine = TaskEngine::open(&heap, offset, Marks::default()).unwrap();
            assert_eq!(engine.consumed(), cut as u64);
            engine.observe(&events[cut..], &program.code()).unwrap();
            engine.observe(&[Event::new(Kind::THREAD_END, 0, 1)], &program.code()).unwrap();
            assert_eq!(engine.finish(), expected, "{node:?} {cut}");
        }
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..u64::from(locality_stream::testing::cases(50)) {
            let heap = Heap::new(1 << 28).unwrap();
            let mut engine = TaskEngine::create(&heap, setup, Marks::default()).unwrap();
            engine.observe(&events[..900], &program.code()).unwrap();
            let offset = engine.state();
            drop(engine);
            crate::tests::damage(&heap, offset, 3000, &mut random);
            if let Ok(mut engine) = TaskEngine::open(&heap, offset, Marks::default()) {
                let _ = engine.observe(&events[900..], &program.code());
                let _ = engine.finish();
            }
        }
    }
    let heap = Heap::new(1 << 20).unwrap();
    assert_eq!(TaskEngine::open(&heap, 4096, Marks::default()).err(), Some(OpenError::NoState));
}
