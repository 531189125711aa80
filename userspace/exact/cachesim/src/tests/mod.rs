//! The engine against the oracle, on random programs and caches; what survives a kill; bad states.

mod kills;
mod oracle;
mod program;

use std::collections::BTreeMap;

use locality_stream::{Analysis as _, Heap};
use oracle::Sums;
use program::{Calls, FUNCTIONS, Op, Run, Text, Told};
use proptest::prelude::*;

use crate::{CacheSim, Column, Config, Level, ObjectUse, Prefetch, Totals};

fn level(sets: u64, ways: u64) -> Level {
    Level::new("L", sets * ways * 64, ways, 64)
}

/// Small caches, so that everything happens: sets as powers of two, ways.
fn configs() -> impl Strategy<Value = Config> {
    let sizes = proptest::collection::vec((0..3_u32, 1..4_u64), 1..4);
    let prefetch = prop_oneof![Just(Prefetch::None), Just(Prefetch::NextLine), Just(Prefetch::Stride)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (sizes, prefetch, flags).prop_map(|(sizes, prefetch, (fetch, callgrind, objects))| {
        let mut levels: Vec<Level> = sizes.iter().map(|(sets, ways)| level(1 << sets, *ways)).collect();
        levels.sort_by_key(|level| level.bytes);
        let mut config = Config::new(levels);
        config.instruction_fetch = fetch.then(|| level(2, 2));
        (config.prefetch, config.objects) = (prefetch, objects);
        if callgrind {
            config.levels = vec![level(2, 2), level(4, 3)];
            config.instruction_fetch = Some(level(2, 1));
            config.prefetch = Prefetch::None;
            config.compatible_callgrind = true;
        }
        config
    })
}

/// At most so many operations.
fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    let address =
        prop_oneof![(0..30_u64).prop_map(|n| 0x1000 + n * 24), (0..5000_u64).prop_map(|n| 0x8000 + n)];
    let access =
        (address, prop_oneof![Just(1_u16), Just(4), Just(8), Just(32), Just(100)], 0..3_u8, 0..4_u32)
            .prop_map(|(address, size, what, index)| Op::Access(address, size, what, index));
    let op = prop_oneof![
        12 => access,
        4 => (0..FUNCTIONS).prop_map(Op::Call),
        3 => Just(Op::Return),
        1 => (1..4_usize).prop_map(Op::Jump),
        1 => (1..4_u32).prop_map(Op::Signal),
        1 => Just(Op::SignalEnd),
        1 => (1..4_u64).prop_map(Op::Thread),
        1 => Just(Op::ThreadEnd),
        2 => (0..2_u32).prop_map(Op::Block),
        2 => (0..0x9500_u64, 1..900_u64, 0..5_u32).prop_map(|(start, bytes, object)| Op::Place(start, bytes, object)),
    ];
    proptest::collection::vec(op, 0..most)
}

/// Totals as the oracle has them, and calls by arc.
fn sums(totals: &Totals) -> (Sums, Calls) {
    let mut sums = Sums::default();
    let mut calls = BTreeMap::new();
    let entry = |number: u32| totals.functions[number as usize].entry;
    for cost in &totals.self_costs {
        let old = sums.own.insert((entry(cost.function), cost.instruction), cost.costs);
        assert_eq!(old, None);
    }
    for function in totals.functions.iter().filter(|function| !function.inclusive.is_zero()) {
        assert_eq!(sums.functions.insert(function.entry, function.inclusive), None);
    }
    for arc in &totals.arcs {
        let key = (entry(arc.caller), arc.instruction, entry(arc.callee));
        assert_eq!(calls.insert(key, arc.calls), None);
        if !arc.inclusive.is_zero() {
            sums.arcs.insert(key, arc.inclusive);
        }
    }
    for root in &totals.roots {
        sums.roots.insert((entry(root.function), root.signal), root.inclusive);
    }
    (sums, calls)
}

fn room() -> Heap {
    Heap::new(1 << 28).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn costs_are_those_of_whole_stacks_kept_for_each_line(
        config in configs(),
        ops in ops(250),
        all in any::<bool>(),
        batch in 1..40_usize,
        prune in any::<bool>(),
    ) {
        let told = if all || config.instruction_fetch.is_some() { Told::All } else { Told::Entries };
        let (text, with_objects) = (Text::new(), config.objects);
        let mut run = Run::new(&text, &config, told);
        ops.iter().for_each(|op| run.step(op));
        let (events, oracle, calls) = run.finish();
        let (heap, placed) = (room(), oracle.placed.clone());
        let mut sim = CacheSim::create(&heap, &config).unwrap();
        sim.show(&placed);
        for events in events.chunks(batch) {
            sim.observe(events, &text.code()).unwrap();
            if prune {
                sim.values().prune(&heap, &mut sim.facts);
            }
        }
        prop_assert_eq!(sim.consumed(), events.len() as u64);
        // As the parent does: what lies in the arena is all there is.
        let totals = if batch % 2 == 0 {
            sim.finish(&text.code())
        } else {
            let offset = sim.state();
            drop(sim);
            let mut sim = CacheSim::open(&heap, offset).unwrap();
            sim.show(&placed);
            sim.finish(&text.code())
        };
        prop_assert!(totals.balances());
        prop_assert_eq!(totals.torn, 0);
        prop_assert_eq!(totals.tree.calls_folded, 0);
        let (seen, seen_calls) = sums(&totals);
        let expected = oracle.finish();
        prop_assert_eq!(&seen.own, &expected.own);
        prop_assert_eq!(&seen.roots, &expected.roots);
        prop_assert_eq!(&seen.functions, &expected.functions);
        prop_assert_eq!(&seen.arcs, &expected.arcs);
        prop_assert_eq!(seen_calls, calls);
        // Without callers the sums are the same, for other functions.
        let mut alone = CacheSim::create(&heap, &Config { inclusive: false, ..config.clone() }).unwrap();
        alone.observe(&events, &text.code()).unwrap();
        let alone = alone.finish(&text.code());
        prop_assert!(alone.balances() && alone.arcs.is_empty());
        prop_assert_eq!(alone.sum, totals.sum);
        let objects: BTreeMap<u32, ObjectUse> = (0..).zip(totals.objects.iter().copied()).collect();
        if objects.is_empty() {
            prop_assert!(!with_objects);
        } else {
            for number in 0..5 {
                let of = |objects: &BTreeMap<u32, ObjectUse>| objects.get(&number).copied().unwrap_or_default();
                prop_assert_eq!(of(&objects), of(&expected.objects), "object {}", number);
            }
        }
        // In Callgrind's model lines are counted and not listed.
        let lines = [Column::Lines1, Column::Lines2, Column::LinesL];
        let listed = |column: &Column| {
            totals.columns.contains(column) || (lines.contains(column) && config.compatible_callgrind)
        };
        prop_assert!(Column::ALL.iter().all(|column| listed(column) || totals.sum[*column] == 0));
        // No more is lost than was loaded, by the whole run and by each instruction, whatever is prefetched.
        let losses = [Column::SpLoss1, Column::SpLoss2, Column::SpLossL];
        for costs in totals.self_costs.iter().map(|cost| &cost.costs).chain([&totals.sum]) {
            for (lines, lost) in lines.iter().zip(losses) {
                prop_assert!(costs[lost] <= costs[*lines] * 64, "{:?}", lost);
            }
        }
        // Misses load a line each at least, and what the prefetcher brings comes on top.
        let sum = |columns: &[Column]| columns.iter().map(|column| totals.sum[*column]).sum::<u64>();
        let first = [Column::I1mr, Column::D1mr, Column::D1mw, Column::Pf1];
        prop_assert!(sum(&first) <= sum(&lines[..1]));
        prop_assert!(sum(&[Column::D2mr, Column::D2mw]) <= sum(&lines[1..2]));
        prop_assert!(sum(&[Column::ILmr, Column::DLmr, Column::DLmw]) <= sum(&lines[2..]));
    }
}
