//! A state that is taken up by another: whole, torn in the middle of a batch, and damaged.

use locality_stream::{Heap, Kind, testing};
use proptest::prelude::*;

use super::*;
use crate::Summary;

fn config() -> Config {
    Config {
        granularities: vec![8, 64],
        pairs: vec![8, 64],
        first_slots: 1,
        phase_accesses: 300,
        ..Config::default()
    }
}

fn events(seed: u64, len: usize) -> Vec<Event> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len)
        .map(|_| match random.u8(0..12) {
            0 => Event::access(Kind::CALL, random.u32(10..14), 4096 + 8 * random.u64(0..30), 8),
            1 => Event::access(Kind::RETURN, 9, 4096 + 8 * random.u64(0..30), 8),
            2 => Event::new(Kind::THREAD, 0, random.u64(0..3)),
            _ => Event::access(Kind::LOAD, random.u32(0..8), random.u64(0..1200) * 32, random.u16(1..70)),
        })
        .collect()
}

/// Runs `first`, changes the state, takes it up, runs `second`.
fn resumed(
    first: &[Event],
    second: &[Event],
    change: impl FnOnce(&mut State, &Heap),
) -> Result<Summary, OpenError> {
    let heap = Heap::new(1 << 27).unwrap();
    let mut engine = Engine::create(&heap, &config()).unwrap();
    engine.observe(first, &Code::default()).unwrap();
    change(engine.values(), &heap);
    let offset = engine.state();
    let mut engine = Engine::open(&heap, offset)?;
    engine.observe(second, &Code::default()).unwrap();
    Ok(engine.summary(0))
}

#[test]
fn a_whole_state_goes_on_as_if_nothing_had_happened() {
    let (first, second) = (events(1, 2000), events(2, 2000));
    let heap = Heap::new(1 << 27).unwrap();
    let mut engine = Engine::create(&heap, &config()).unwrap();
    engine.observe(&first, &Code::default()).unwrap();
    engine.observe(&second, &Code::default()).unwrap();
    assert_eq!(resumed(&first, &second, |_, _| {}), Ok(engine.summary(0)));
}

/// The order of last touches is lost; it is made anew from the times, and nothing else changes.
#[test]
fn a_torn_order_is_made_anew() {
    let (first, second) = (events(3, 3000), events(4, 2000));
    let expected = resumed(&first, &second, |_, _| {}).unwrap();
    let found = resumed(&first, &second, |state, heap| {
        state.busy = 5;
        for grain in state.grains.iter_mut().filter_map(Option64::get_mut) {
            grain.scramble(heap);
        }
    })
    .unwrap();
    assert_eq!(found.torn, 5);
    assert_eq!(Summary { torn: 0, ..found }, expected);
}

#[test]
fn no_state_is_told_apart() {
    let heap = Heap::new(1 << 20).unwrap();
    for offset in [0, 64, 8, 1, 1 << 19, 1 << 20, u64::MAX - 7] {
        assert!(matches!(Engine::open(&heap, offset), Err(OpenError::NoState)), "{offset}");
    }
}

/// Tables that do not lie in the arena are refused.
#[test]
fn a_state_with_tables_outside_is_refused() {
    let events = events(5, 800);
    let found = resumed(&events, &[], |state, _| state.functions = Span::from_parts(1 << 40, 1));
    assert_eq!(found, Err(OpenError::Damaged));
    let found = resumed(&events, &[], |state, _| state.phases = state.max_phases + 1);
    assert_eq!(found, Err(OpenError::Damaged));
    let found = resumed(&events, &[], |state, _| state.magic = 0);
    assert_eq!(found, Err(OpenError::NoState));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: testing::cases(32), ..ProptestConfig::default() })]

    /// Any words of the memory are other ones: an answer or a refusal.
    #[test]
    fn damage_is_an_answer(
        seed in any::<u64>(),
        (first, second) in (0..600_usize, 0..600_usize),
        damage in proptest::collection::vec((any::<u32>(), any::<u64>(), 0..64_u32, any::<bool>()), 1..8),
    ) {
        let heap = Heap::new(1 << 27).unwrap();
        let mut engine = Engine::create(&heap, &config()).unwrap();
        engine.observe(&events(seed, first), &Code::default()).unwrap();
        let offset = engine.state();
        drop(engine);
        // Half of it in the state itself, and few large numbers.
        let state = offset as usize / 8;
        testing::damage(&heap, state..state + size_of::<State>() / 8, &damage);
        if let Ok(mut engine) = Engine::open(&heap, offset) {
            let _full = engine.observe(&events(!seed, second), &Code::default());
            let _any_result = engine.finish(0, &Code::default());
        }
    }
}

/// What is compiled for other instruction sets counts the same.
#[test]
fn all_instruction_sets_count_alike() {
    let events = events(6, 4000);
    let run = |take: fn(&mut Engine<'_, Heap>, &[Event]) -> Result<(), ArenaFull>| {
        let heap = Heap::new(1 << 27).unwrap();
        let mut engine = Engine::create(&heap, &config()).unwrap();
        for piece in events.chunks(700) {
            take(&mut engine, piece).unwrap();
        }
        engine.summary(0)
    };
    let expected = run(|engine, events| engine.observe(events, &Code::default()));
    assert_eq!(run(|engine, events| engine.take::<Portable>(events, &Code::default())), expected);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("lzcnt") {
        // SAFETY: the processor has what the function is compiled for.
        assert_eq!(run(|engine, events| unsafe { engine.take_v3(events, &Code::default()) }), expected);
    }
}
