//! Against a brute-force reading of random windows, and by hand.

use super::*;
use locality_stream::InstructionRecord;
use proptest::prelude::*;

fn instructions() -> Vec<InstructionRecord> {
    (0..16).map(|index| InstructionRecord::new(0x1000 + index, &[0x90])).collect()
}

fn load(index: u32, address: u64, size: u16) -> Event {
    Event::access(Kind::LOAD, index, address, size)
}

#[test]
fn a_path_follows_calls_and_returns() {
    // Called once, returned twice, called again, then the use.
    let events = [
        Event::access(Kind::CALL, 1, 0x7000, 8),
        Event::access(Kind::RETURN, 2, 0x7000, 8),
        Event::access(Kind::RETURN, 3, 0x7008, 8),
        Event::access(Kind::CALL, 4, 0x7008, 8),
        load(5, 0x100, 4),
        load(6, 0x102, 1),
    ];
    let accesses: Vec<(Event, u64)> =
        events.into_iter().zip([0x2001, 0x2001, 0x3001, 0x4001, 1, 2]).collect();
    let paths = paths(&accesses, &[0, 1, 2, 4]);
    assert_eq!(paths[0], Path::default());
    assert_eq!(paths[1], Path { returned: 0, called: vec![0x2001], slots: vec![0x7000] });
    assert_eq!(paths[2], Path::default());
    assert_eq!(paths[3], Path { returned: 1, called: vec![0x4001], slots: vec![0x7008] });
}

#[test]
fn a_read_and_write_of_one_instruction_is_one_trap() {
    let events = [
        load(1, 0x100, 8),
        Event::access(Kind::STORE, 1, 0x100, 8),
        load(2, 0x100, 8),
        Event::access(Kind::STORE, 3, 0x104, 2),
    ];
    assert_eq!(
        [1, 2, 3, 4].map(|until| touches_before(events[..until].iter().copied(), 0x100)),
        [0, 0, 1, 2]
    );
}

#[test]
fn an_instruction_that_touched_the_word_before_is_told() {
    let store = |index, address, size| Event::access(Kind::STORE, index, address, size);
    let is_repeated = |earlier: &[Event], used| super::is_repeated(earlier.iter().copied(), used, 0x100);
    // A word is loaded and stored; by one instruction; its first half, then its second.
    assert!(!is_repeated(&[load(1, 0x100, 8)], store(2, 0x100, 8)));
    assert!(!is_repeated(&[load(1, 0x100, 8)], store(1, 0x100, 8)));
    let half = [load(1, 0x100, 4), store(2, 0x100, 4), load(1, 0x104, 4)];
    assert!(is_repeated(&half, store(2, 0x104, 4)));
    let half = [load(1, 0x100, 4), store(1, 0x100, 4), load(1, 0x104, 4)];
    assert!(is_repeated(&half, store(1, 0x104, 4)));
    assert!(is_repeated(&[load(1, 0x100, 4)], load(1, 0x104, 4)));
    // Another word, and no access.
    assert!(!is_repeated(&[load(1, 0xf8, 8), Event::new(Kind::BLOCK, 1, 0)], load(1, 0x100, 8)));
}

/// A walk by columns of two words: the pair after the use's is watched, whichever word was drawn.
#[test]
fn neighbours_are_those_of_the_access() {
    for word in [0x1010, 0x1018] {
        let events = [Event::access(Kind::LOAD, 1, 0x1010, 16), Event::access(Kind::STORE, 2, 0x1010, 16)];
        let [next, previous, drawn] =
            companions(events.into_iter(), 1, word, &mut fastrand::Rng::with_seed(7));
        assert_eq!((next, previous), (Some(0x1020), Some(0x1008)));
        assert!(drawn.is_some_and(|drawn| ![0x1008, 0x1010, 0x1018, 0x1020].contains(&drawn)));
    }
}

proptest! {
    #[test]
    fn uses_and_reuses_are_those_of_the_window(
        raw in proptest::collection::vec((0u32..16, 0u64..400, 1u16..40, any::<bool>()), 0..120),
        seed: u64,
    ) {
        let events: Vec<Event> = raw
            .iter()
            .flat_map(|(index, address, size, is_store)| {
                let kind = if *is_store { Kind::STORE } else { Kind::LOAD };
                let block = (index % 4 == 0).then(|| Event::new(Kind::BLOCK, 0, 0));
                block.into_iter().chain([Event::access(kind, *index, *address, *size)])
            })
            .collect();
        let (instructions, values) = (instructions(), vec![0; raw.len()]);
        let code = Code { instructions: &instructions, blocks: &[] };
        let view = View { events: &events, values: &values, code };
        let choice = Choice::draw(events.iter().copied(), raw.len(), 8, &mut fastrand::Rng::with_seed(seed));
        let Found { uses, touches, .. } = choice.finish(&view);
        prop_assert_eq!(uses.is_empty(), raw.is_empty());
        for of_use in &uses {
            let at = of_use.skip as usize;
            let (index, address, size, is_store) = raw[at];
            prop_assert!(at < raw.len().div_ceil(2));
            let kind = if is_store { AccessKind::Store } else { AccessKind::Load };
            let access = Access { ip: 0x1000 + u64::from(index), address, size: size.into(), kind };
            prop_assert_eq!(of_use.point.access, access);
            prop_assert!((address..address + u64::from(size)).contains(&of_use.address));
            for (bytes, seen) in GRANULES.iter().zip(&of_use.seen) {
                // Byte by byte: does any byte of a later access lie in the granule?
                let first = (at + 1..raw.len()).find(|&later| {
                    let (_, address, size, _) = raw[later];
                    (address..address + u64::from(size)).any(|byte| byte / bytes == of_use.address / bytes)
                });
                match (first, seen) {
                    (Some(later), Seen::Reused(distance, point)) => {
                        prop_assert_eq!(later - at, *distance as usize);
                        prop_assert_eq!(point.access.address, raw[later].1);
                    }
                    (None, Seen::Open(accesses)) => prop_assert_eq!(*accesses as usize, raw.len() - 1 - at),
                    (expected, found) => prop_assert!(false, "{expected:?}, {found:?}"),
                }
            }
        }
        let open = choice.first_open(|| events.iter().copied(), &mut fastrand::Rng::with_seed(1));
        prop_assert_eq!(open.map(|open| open.index), uses.iter().position(Chosen::is_open));
        if let Some(open) = open {
            let used = &uses[open.index];
            prop_assert_eq!(open.word, used.address / 8 * 8);
            let companions: Vec<u64> = open.companions.into_iter().flatten().collect();
            // None where the line is touched again; else words of it that nobody touched up to the
            // use, each once.
            prop_assert!(companions.is_empty() || matches!(used.seen[1], Seen::Open(_)));
            for (n, companion) in companions.iter().enumerate() {
                prop_assert!(companion / 64 == open.word / 64 && companion % 8 == 0 && !companions[..n].contains(companion));
                let touched = raw.iter().take(used.skip as usize + 1).any(|(_, address, size, _)| {
                    (*address..address + u64::from(*size)).any(|byte| byte / 8 == companion / 8)
                });
                prop_assert!(!touched);
            }
        }
        for (bytes, touched) in GRANULES.iter().zip(touches) {
            let brute: usize = raw
                .iter()
                .map(|(_, address, size, _)| {
                    let granules: std::collections::HashSet<u64> =
                        (*address..address + u64::from(*size)).map(|byte| byte / bytes).collect();
                    granules.len()
                })
                .sum();
            prop_assert_eq!(brute as u64, touched);
        }
    }
}
