//! The tracer's side against a window process that answers whatever it likes: nothing panics,
//! nothing is read out of bounds, and numbers that cannot be end it.

use std::os::fd::AsFd as _;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use locality_stream::Event;
use proptest::prelude::*;

use super::layout::Layout;
use super::shared::Shared;
use super::*;
use crate::window::Counts;

const ROOM: Room = Room { events: 48, values: 40, registers: 24, instructions: 32, blocks: 16 };
const KEY: u64 = 7;

/// A tracer's side, and the memory as the other side has it. The process behind it only has to exist.
fn pair(child: &std::process::Child) -> (Helper, Shared) {
    let memory = sys::sealed_memory(Layout::new(&ROOM).bytes).unwrap();
    let map = || Shared::map(memory.as_fd(), &ROOM).unwrap();
    let (socket, _) = sys::socket_pair().unwrap();
    let process = Process::new(child.id(), sys::pidfd(child.id()).unwrap(), socket, map(), 10);
    // Long: a busy machine must not make an answer late.
    let longest = Duration::from_secs(60);
    let settings = Settings { room: ROOM, follow: false, longest, ..Settings::default() };
    let mut helper = Helper::without_process(settings);
    helper.process = Some(process);
    let memory = File::open("/proc/self/mem").unwrap();
    helper.known.insert(KEY, Known { pid: child.id(), memory, ranges: Vec::new() });
    (helper, map())
}

fn sleeper() -> std::process::Child {
    std::process::Command::new("sleep").arg("100").spawn().unwrap()
}

/// Numbers that fit mostly, and otherwise do not.
fn number(most: u32) -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..=most, 1 => most..most + 3, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

prop_compose! {
    fn answer()(
        events in number(ROOM.events), accesses in number(ROOM.values), blocks in number(ROOM.registers),
        accesses_high in prop_oneof![9 => Just(0), 1 => any::<u32>()],
        end in number(16), extended in number(MOST_EXTENDED as u32), instructions in number(ROOM.instructions),
        code_blocks in number(ROOM.blocks), error in prop_oneof![6 => Just(0), 1 => any::<u32>()],
        epoch in 0_u64..2, gone in any::<u32>(), rest in any::<[u64; 20]>(), detail in any::<u64>(),
    ) -> Answer {
        let accesses = u64::from(accesses) | u64::from(accesses_high) << 32;
        let counts = Counts { accesses, events, blocks, end, detail, ..Counts::default() };
        Answer { counts, registers: rest, epoch, extended, gone, instructions, blocks: code_blocks, error, unused: 0 }
    }
}

/// Writes a pattern over everything that the tracer reads.
fn scribble(shared: &Shared, seed: u64) {
    let layout = &shared.layout;
    let mut word = seed;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word ^ word >> 29
    };
    for index in 0..ROOM.events as usize {
        shared.store(&layout.events, index, &[Event::from_words(next(), next())]);
    }
    for index in 0..ROOM.instructions as usize {
        let bytes: [u8; 15] = std::array::from_fn(|_| next() as u8);
        let record = InstructionRecord { address: next(), bytes, length: next() as u8 };
        shared.store(&layout.instructions, index, &[record]);
    }
    for index in 0..ROOM.blocks as usize {
        shared.store(&layout.blocks, index, &[BlockRecord { first: next() as u32, count: next() as u32 }]);
    }
    shared.store_bytes(&layout.answer_extended, &[next() as u8; MOST_EXTENDED]);
    shared.store_bytes(&layout.note, &[next() as u8 | 1; 8192]);
}

/// Ends the other side, also when an assertion fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Uses all that a window offers.
fn use_up(mut window: Window<'_>) {
    let (counts, end) = (window.counts, window.end);
    assert!(counts.events <= ROOM.events && counts.accesses <= u64::from(ROOM.values));
    assert!(counts.blocks <= ROOM.registers);
    assert!(end != End::Helper || counts == Counts::default());
    assert_eq!(window.events().count(), counts.events as usize);
    assert_eq!(window.value(counts.accesses as usize), None);
    assert_eq!(window.registers(usize::MAX), None);
    let mut kept = Kept::default();
    window.copy(&mut kept);
    assert_eq!(
        (kept.events.len(), kept.values.len() as u64, kept.registers.len()),
        (counts.events as usize, counts.accesses, counts.blocks as usize)
    );
    assert!(window.state().extended.len() <= MOST_EXTENDED);
    let code = window.code();
    assert!(
        code.instructions.len() <= ROOM.instructions as usize && code.blocks.len() <= ROOM.blocks as usize
    );
    for event in &kept.events {
        code.instruction(event.index);
        code.block(event.index);
    }
    code.classify();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_it_answers_the_tracer_goes_on(answers in prop::collection::vec(answer(), 1..6), seed in any::<u64>()) {
        let mut child = sleeper();
        let (mut helper, theirs) = pair(&child);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut last, mut given) = (0, answers.iter());
                while !done.load(Relaxed) {
                    let asked = theirs.asked().load(Acquire);
                    if asked == last {
                        // Not waiting for anybody, as one that was taken over would not.
                        scribble(&theirs, seed ^ u64::from(last));
                        continue;
                    }
                    // The first question is whether it is ready.
                    let answer = if last == 0 { Some(&Answer::default()) } else { given.next() };
                    last = asked;
                    if let Some(answer) = answer {
                        theirs.store(&theirs.layout.answer, 0, &[*answer]);
                        theirs.answered().store(asked, Release);
                        sys::futex_wake(theirs.answered());
                    }
                }
            });
            let _done = Done(&done);
            assert!(helper.process.as_mut().unwrap().is_ready(sys::now_ns() + 60_000_000_000));
            let limits = Limits { instructions: 1, pages: 1, time_ns: 60_000_000_000 };
            for answer in &answers {
                let possible = helper.check(answer).is_some();
                let alive = helper.process.is_some();
                let window = helper.run(KEY, &ThreadState::default(), &limits);
                if alive && possible {
                    assert_eq!((window.counts, window.end as u32), (answer.counts, answer.counts.end));
                } else {
                    assert!(window.end == End::Helper || window.gone);
                }
                use_up(window);
            }
        });
        // Its last words are whatever it left there.
        helper.kill("test");
        assert!(helper.last_words().is_ascii());
        let _ = child.wait();
    }
}

#[test]
fn an_answer_out_of_turn_is_none() {
    let mut child = sleeper();
    let (mut helper, theirs) = pair(&child);
    // It claims to have answered what was not asked yet, and then what was asked long ago.
    for number in [2, 1_000_000, u32::MAX] {
        theirs.answered().store(number, Release);
        assert!(!helper.process.as_mut().unwrap().is_ready(sys::now_ns() + 1_000_000));
    }
    theirs.answered().store(1, Release);
    assert!(helper.process.as_mut().unwrap().is_ready(0));
    let limits = Limits { instructions: 1, pages: 1, time_ns: 1_000_000 };
    assert_eq!(helper.run(KEY, &ThreadState::default(), &limits).end, End::Helper);
    // Late, it is not asked again until it has answered.
    assert_eq!(theirs.asked().load(Acquire), 2);
    assert_eq!(helper.run(KEY, &ThreadState::default(), &limits).end, End::Helper);
    assert_eq!((theirs.asked().load(Acquire), helper.deaths()), (2, 0));
    theirs.answered().store(2, Release);
    assert_eq!(helper.run(KEY, &ThreadState::default(), &limits).end, End::Helper);
    assert_eq!(theirs.asked().load(Acquire), 3);
    assert_eq!(helper.run(8, &ThreadState::default(), &limits).end, End::UnreadableCode);
    child.kill().unwrap();
    child.wait().unwrap();
}
