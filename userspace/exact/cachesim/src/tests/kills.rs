//! What is left when a process is killed, or its memory is damaged: an answer, no panic, and sums
//! that balance.

use locality_stream::{Analysis as _, Heap, testing};
use proptest::prelude::*;

use super::program::{Op, Run, Text, Told};
use super::{configs, ops};
use crate::{CacheSim, Config, OpenError};

/// A simulation of these operations, and where its state lies.
fn simulate(heap: &Heap, text: &Text, config: &Config, ops: &[Op]) -> (u64, usize) {
    let mut run = Run::new(text, config, Told::All);
    ops.iter().for_each(|op| run.step(op));
    let mut sim = CacheSim::create(heap, config).unwrap();
    let (events, ..) = run.finish();
    sim.observe(&events, &text.code()).unwrap();
    (sim.state(), events.len())
}

#[test]
fn a_batch_that_was_not_finished_is_in_doubt() {
    let (text, heap) = (Text::new(), Heap::new(1 << 24).unwrap());
    let config = Config::parse("L1:1024/2/64+LL:2048/2/64").unwrap();
    let (offset, count) = simulate(&heap, &text, &config, &[Op::Call(1), Op::Access(0x1000, 8, 0, 0)]);
    {
        let mut sim = CacheSim::open(&heap, offset).unwrap();
        let state = sim.values();
        state.busy = 10;
        // A read that its node has not heard of.
        state.cells.list.get_mut(&heap, 1).unwrap().value[crate::Column::Dr] += 1;
    }
    let sim = CacheSim::open(&heap, offset).unwrap();
    assert_eq!(sim.consumed(), count as u64 + 10);
    let totals = sim.finish(&text.code());
    assert_eq!(totals.torn, 10);
    assert!(totals.balances());
    assert_eq!(totals.unknown_caller()[crate::Column::Dr], 1);
    assert_eq!(totals.unknown_caller().0.iter().sum::<u64>(), 1);
}

#[test]
fn what_is_no_state_is_refused() {
    let heap = Heap::new(1 << 24).unwrap();
    assert_eq!(CacheSim::open(&heap, u64::MAX).err(), Some(OpenError::NoState));
    assert_eq!(CacheSim::open(&heap, 64).err(), Some(OpenError::NoState));
    let small = Heap::new(1 << 16).unwrap();
    let config = Config::parse("L1:1024/2/64").unwrap();
    assert!(CacheSim::create(&small, &config).is_err());
    let wrong = Config::new(Vec::new());
    assert!(CacheSim::create(&heap, &wrong).is_err_and(|error| error.to_string().contains("0 data levels")));
}

#[test]
fn a_full_arena_stops_and_still_balances() {
    let (text, heap) = (Text::new(), Heap::new(1 << 21).unwrap());
    let config = Config::parse("L1:1024/2/64+LL:2048/2/64").unwrap();
    let mut run = Run::new(&text, &config, Told::All);
    for thread in 1..40 {
        for op in [Op::Thread(thread), Op::Call(1), Op::Call(2), Op::Access(0x1000 * thread, 8, 1, 0)] {
            run.step(&op);
        }
    }
    let (events, ..) = run.finish();
    let mut sim = CacheSim::create(&heap, &config).unwrap();
    let refused = events.chunks(7).filter(|events| sim.observe(events, &text.code()).is_err()).count();
    assert!(refused > 10, "{refused}");
    let totals = sim.finish(&text.code());
    assert!(totals.balances());
    assert_eq!(totals.full, 1);
    assert!(totals.sum[crate::Column::Dw] > 2);
}

#[test]
fn a_damaged_count_of_loads_goes_on_from_zero() {
    let (text, heap) = (Text::new(), Heap::new(1 << 24).unwrap());
    let config = Config::parse("L1:1024/2/64+LL:2048/2/64").unwrap();
    let ops = [Op::Call(1), Op::Access(0x1000, 8, 0, 0)];
    let (offset, _) = simulate(&heap, &text, &config, &ops);
    let mut sim = CacheSim::open(&heap, offset).unwrap();
    sim.values().loads = u64::MAX;
    let mut run = Run::new(&text, &config, Told::All);
    [Op::Call(2), Op::Access(0x9000, 8, 0, 0)].iter().for_each(|op| run.step(op));
    let (events, ..) = run.finish();
    sim.observe(&events, &text.code()).unwrap();
    assert!(sim.values().loads < 16, "{}", sim.values().loads);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: testing::cases(32), ..ProptestConfig::default() })]

    /// Any words of the memory are other ones.
    #[test]
    fn damage_is_an_answer(
        config in configs(),
        (ops, more) in (ops(40), ops(40)),
        damage in proptest::collection::vec((any::<u32>(), any::<u64>(), 0..64_u32, any::<bool>()), 1..8),
    ) {
        let (text, heap) = (Text::new(), Heap::new(1 << 25).unwrap());
        let (offset, _) = simulate(&heap, &text, &config, &ops);
        // Half of it in the state itself, and few large numbers.
        let state = offset as usize / 8;
        testing::damage(&heap, state..state + 250, &damage);
        if let Ok(mut sim) = CacheSim::open(&heap, offset) {
            let mut run = Run::new(&text, &config, Told::All);
            more.iter().for_each(|op| run.step(op));
            let (events, ..) = run.finish();
            let _full = sim.observe(&events, &text.code());
            let _any_result = sim.finish(&text.code());
        }
    }
}
