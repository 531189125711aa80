//! A state that is taken up by another: whole, torn in the middle, and damaged.

use locality_stream::testing;

use super::*;

fn made(seed: u64) -> (Program, Vec<Event>, Setup) {
    let mut program = Program::default();
    let block = program.block(|a| {
        use iced_x86::code_asm::registers::*;
        a.mov(rax, iced_x86::code_asm::qword_ptr(rsi)).unwrap();
        a.add(rax, rbx).unwrap();
        a.mov(iced_x86::code_asm::word_ptr(rdi), ax).unwrap();
        a.dec(rcx).unwrap();
        a.jne(0x1000).unwrap();
    });
    let mut random = fastrand::Rng::with_seed(seed);
    let mut events = Vec::new();
    for _ in 0..1500 {
        events.push(program.begin(block));
        events.push(program.access(block, 0, Kind::LOAD, random.u64(0..30_000), 8));
        events.push(program.access(block, 2, Kind::STORE, random.u64(0..30_000), 2));
    }
    (program, events, setup(View::MACHINE, Latency::Unit, &[Some(64), Some(512), None]))
}

#[test]
fn a_whole_state_goes_on_as_if_nothing_had_happened() {
    let (program, events, setup) = made(1);
    let expected = run(&program, &events, &setup);
    for cut in [0, 1, 2, 3, 1000, events.len()] {
        let heap = Heap::new(1 << 28).unwrap();
        let mut engine = Engine::create(&heap, &setup, Marks::default()).unwrap();
        let (first, second) = events.split_at(cut);
        engine.observe(first, &program.code()).unwrap();
        let offset = engine.state();
        let mut engine = Engine::open(&heap, offset, Marks::default()).unwrap();
        assert_eq!(engine.consumed(), cut as u64);
        // An instruction under way goes on as well: its block is known by its index.
        engine.observe(second, &program.code()).unwrap();
        engine.observe(&[Event::new(Kind::THREAD_END, 0, 1)], &program.code()).unwrap();
        assert_eq!(engine.finish(), expected, "{cut}");
    }
}

#[test]
fn places_without_a_state_are_refused() {
    let heap = Heap::new(1 << 20).unwrap();
    for offset in [0, 64, 4096, 1 << 19, 1 << 40] {
        assert_eq!(Engine::open(&heap, offset, Marks::default()).err(), Some(crate::OpenError::NoState));
    }
}

/// Whatever a program writes over a state, nothing outside the arena is touched.
#[test]
fn damaged_states_are_refused_or_bear_it() {
    let mut random = fastrand::Rng::with_seed(3);
    for seed in 0..u64::from(testing::cases(150)) {
        let (program, events, setup) = made(seed);
        let heap = Heap::new(1 << 28).unwrap();
        let mut engine = Engine::create(&heap, &setup, Marks::default()).unwrap();
        engine.observe(&events[..2000], &program.code()).unwrap();
        let offset = engine.state();
        drop(engine);
        crate::tests::damage(&heap, offset, 3000, &mut random);
        if let Ok(mut engine) = Engine::open(&heap, offset, Marks::default()) {
            let _ = engine.observe(&events[2000..], &program.code());
            let _ = engine.finish();
        }
    }
}
