//! The engine against a brute-force oracle, to the last count: lists of touches, searched from the end.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use locality_reuse::{Config, Engine, Phase, Summary, fine_bin, log2_bin};
use locality_stream::{Analysis as _, BlockRecord, Code, Event, Heap, InstructionRecord, Kind};
use proptest::prelude::*;

/// A place in the code: the path of call instructions and the instruction.
type Place = (Vec<u32>, u32);
/// Use (none for a first touch), reuse, log2 bins of time and stack distance.
type Pair = (Option<Place>, Place, usize, usize);

/// Counts by fine bin, empty ones left out.
type Bins = BTreeMap<usize, u64>;
/// Counts and sums of distances by fine bin.
type Sums = BTreeMap<usize, (u64, u64)>;

#[derive(Default, Debug, PartialEq)]
struct Expected {
    touches: u64,
    cold: u64,
    time: Sums,
    stack: Bins,
    pairs: BTreeMap<Pair, u64>,
    /// By phase: cold, time, stack.
    phases: BTreeMap<u64, (u64, Sums, Bins)>,
}

/// Where each access stands, by a stack of frames that is searched in full.
#[derive(Default)]
struct Calls {
    frames: HashMap<u64, Vec<(u64, Vec<u32>)>>,
    thread: u64,
}

impl Calls {
    fn path(&self) -> Vec<u32> {
        self.frames.get(&self.thread).and_then(|frames| frames.last()).map_or(Vec::new(), |top| top.1.clone())
    }
    fn see(&mut self, event: &Event) {
        if event.kind == Kind::THREAD {
            self.thread = event.value;
        }
        if !event.kind.is_flow() {
            return;
        }
        let frames = self.frames.entry(self.thread).or_default();
        while frames.last().is_some_and(|top| top.0 <= event.value) {
            frames.pop();
        }
        if event.kind == Kind::CALL {
            let mut path = self.path();
            match path.iter().position(|call| *call == event.index) {
                Some(at) => path.truncate(at + 1),
                None => path.push(event.index),
            }
            self.frames.get_mut(&self.thread).unwrap().push((event.value, path));
        }
    }
}

fn oracle(events: &[Event], bytes: u64, phase: u64) -> Expected {
    let mut expected = Expected::default();
    let mut calls = Calls::default();
    // (granule, time, place), oldest first.
    let mut touches: Vec<(u64, u64, Place)> = Vec::new();
    let mut time = 0;
    for event in events {
        if event.kind.is_access() {
            time += 1;
            let place = (calls.path(), event.index);
            for granule in event.value / bytes..=(event.value + u64::from(event.size) - 1) / bytes {
                expected.touches += 1;
                let in_phase = expected.phases.entry((time - 1) / phase).or_default();
                let last = touches.iter().rposition(|touch| touch.0 == granule);
                let pair = if let Some(last) = last {
                    let distance = time - touches[last].1;
                    let stack =
                        touches[last + 1..].iter().map(|touch| touch.0).collect::<BTreeSet<_>>().len() as u64;
                    for sums in [&mut expected.time, &mut in_phase.1] {
                        let (count, sum) = sums.entry(fine_bin(distance)).or_default();
                        (*count, *sum) = (*count + 1, *sum + distance);
                    }
                    *expected.stack.entry(fine_bin(stack)).or_default() += 1;
                    *in_phase.2.entry(fine_bin(stack)).or_default() += 1;
                    (Some(touches[last].2.clone()), place.clone(), log2_bin(distance), log2_bin(stack))
                } else {
                    expected.cold += 1;
                    in_phase.0 += 1;
                    (None, place.clone(), 0, 0)
                };
                *expected.pairs.entry(pair).or_default() += 1;
                touches.push((granule, time, place.clone()));
            }
        }
        calls.see(event);
    }
    expected
}

fn sparse(bins: &[u64]) -> Bins {
    bins.iter().enumerate().filter(|(_, n)| **n > 0).map(|(bin, n)| (bin, *n)).collect()
}

fn with_sums(bins: &[u64], sums: &[u64]) -> Sums {
    let filled = bins.iter().zip(sums).enumerate().filter(|(_, (n, _))| **n > 0);
    filled.map(|(bin, (n, sum))| (bin, (*n, *sum))).collect()
}

fn path(summary: &Summary, mut context: u32) -> Vec<u32> {
    let mut path = Vec::new();
    while context != 0 {
        path.push(summary.contexts[context as usize].call);
        context = summary.contexts[context as usize].parent;
    }
    path.reverse();
    path
}

/// A summary in the oracle's words.
fn seen(summary: &Summary, bytes: u64, phase: u64) -> Expected {
    let grain = summary.grains.iter().find(|grain| grain.bytes == bytes).unwrap();
    let place = |site: u32| {
        let site = summary.sites[site as usize];
        (path(summary, site.context), site.instruction)
    };
    let mut pairs = BTreeMap::new();
    for cell in &grain.cells {
        let use_place = (cell.use_site != 0).then(|| place(cell.use_site));
        let pair = (use_place, place(cell.reuse_site), cell.time_bin.into(), cell.stack_bin.into());
        assert!(pairs.insert(pair, cell.count).is_none(), "each pair once");
    }
    let phase_of = |p: &Phase| {
        assert_eq!(p.time.len(), p.time_sums.len());
        (p.first / phase, (p.cold, with_sums(&p.time, &p.time_sums), sparse(&p.stack)))
    };
    let phases = grain.phases.iter().map(phase_of).collect();
    Expected {
        touches: grain.touches,
        cold: grain.cold,
        time: with_sums(&grain.time, &grain.time_sums),
        stack: sparse(&grain.stack),
        pairs,
        phases,
    }
}

fn run(events: &[Event], config: &Config, pieces: usize) -> Summary {
    let heap = Heap::new(1 << 28).unwrap();
    let mut engine = Engine::create(&heap, config).unwrap();
    for piece in events.chunks(pieces) {
        engine.observe(piece, &Code::default()).unwrap();
    }
    assert_eq!(engine.consumed(), events.len() as u64);
    engine.summary(0)
}

fn config() -> Config {
    Config {
        sums: true,
        granularities: vec![1, 4, 8, 64],
        pairs: vec![1, 4, 8, 64],
        first_slots: 1,
        phase_accesses: 1 << 40,
        ..Config::default()
    }
}

/// Accesses among few bytes, near both ends of the address space too, with calls, returns and
/// threads between them.
fn events(len: usize) -> impl Strategy<Value = Vec<Event>> {
    let address = prop_oneof![
        6 => 0..600_u64,
        3 => (0..40_u64).prop_map(|n| (1 << 20) + n * 64),
        1 => (0..200_u64).prop_map(|n| u64::MAX - 400 - n),
        1 => (0..200_u64).prop_map(|n| n << 12),
    ];
    let size = prop_oneof![4 => Just(8_u16), 2 => Just(4), 1 => Just(1), 1 => 1..130_u16];
    let event = prop_oneof![
        12 => (address, size, 0..6_u32, any::<bool>()).prop_map(|(address, size, index, store)| {
            Event::access(if store { Kind::STORE } else { Kind::LOAD }, index, address, size)
        }),
        2 => (0..30_u64, 10..14_u32).prop_map(|(n, index)| Event::access(Kind::CALL, index, 4096 + 8 * n, 8)),
        2 => (0..30_u64).prop_map(|n| Event::access(Kind::RETURN, 9, 4096 + 8 * n, 8)),
        1 => (0..3_u64).prop_map(|thread| Event::new(Kind::THREAD, 0, thread)),
        1 => Just(Event::new(Kind::BLOCK, 3, 0)),
    ];
    proptest::collection::vec(event, 0..len)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_oracle(events in events(300), pieces in 1..400_usize) {
        let summary = run(&events, &config(), pieces);
        for bytes in [1, 4, 8, 64] {
            prop_assert_eq!(seen(&summary, bytes, 1 << 40), oracle(&events, bytes, 1 << 40));
        }
        let accesses = events.iter().filter(|event| event.kind.is_access()).count() as u64;
        let stores = events.iter().filter(|event| event.kind.is_store()).count() as u64;
        prop_assert_eq!((summary.accesses, summary.stores), (accesses, stores));
    }

    #[test]
    fn phases_equal_the_oracle(events in events(250), length in 1..9_u64, max in 1..5_usize) {
        let config = Config { phase_accesses: length, max_phases: max * 2, ..config() };
        let summary = run(&events, &config, 100);
        // The length that merging by twos comes to.
        let mut merged = length;
        while summary.accesses / merged >= config.max_phases as u64 {
            merged *= 2;
        }
        for bytes in [1, 64] {
            prop_assert_eq!(seen(&summary, bytes, merged), oracle(&events, bytes, merged));
        }
    }

    /// More granules than slots, so that slots are numbered anew with and without growth.
    #[test]
    fn renumbering_loses_nothing(seed in any::<u64>(), granules in 1..700_u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let events: Vec<Event> = (0..1300)
            .map(|_| Event::access(Kind::LOAD, random.u32(0..3), random.u64(0..granules) * 64, 8))
            .collect();
        let config = Config { granularities: vec![64], first_slots: 1, phase_accesses: 1 << 40, ..config() };
        prop_assert_eq!(seen(&run(&events, &config, 1300), 64, 1 << 40), oracle(&events, 64, 1 << 40));
    }

    #[test]
    fn merging_does_not_depend_on_the_order(a in events(80), b in events(80), c in events(80)) {
        let config = Config { phase_accesses: 16, max_phases: 4, ..config() };
        let parts = [run(&a, &config, 99), run(&b, &config, 99), run(&c, &config, 99)];
        let merge = |order: [usize; 3]| {
            let mut sum = parts[order[0]].clone();
            sum.merge(&parts[order[1]]);
            sum.merge(&parts[order[2]]);
            sum
        };
        let sum = merge([0, 1, 2]);
        prop_assert_eq!(&sum, &merge([2, 1, 0]));
        prop_assert_eq!(&sum, &merge([1, 2, 0]));
        // Counts are those of the parts, by the oracle.
        let expected = [&a, &b, &c].map(|events| oracle(events, 8, 1 << 40));
        let merged = seen(&sum, 8, 1 << 40);
        prop_assert_eq!(merged.cold, expected.iter().map(|e| e.cold).sum::<u64>());
        let mut pairs = BTreeMap::new();
        for (pair, n) in expected.iter().flat_map(|e| &e.pairs) {
            *pairs.entry(pair.clone()).or_insert(0) += n;
        }
        prop_assert_eq!(merged.pairs, pairs);
    }

    /// Misses of a fully associative LRU cache, simulated as a list.
    #[test]
    fn misses_equal_a_simulated_cache(events in events(400), size in 1..64_u64) {
        let summary = run(&events, &config(), 400);
        let mut cache: Vec<u64> = Vec::new();
        let mut misses = 0;
        for event in events.iter().filter(|event| event.kind.is_access()) {
            for line in event.value / 8..=(event.value + u64::from(event.size) - 1) / 8 {
                match cache.iter().position(|cached| *cached == line) {
                    Some(at) => drop(cache.remove(at)),
                    None => misses += 1,
                }
                cache.insert(0, line);
                cache.truncate(size as usize);
            }
        }
        let grain = summary.grains.iter().find(|grain| grain.bytes == 8).unwrap();
        prop_assert_eq!(grain.misses(size), Some(misses));
        let curve = grain.miss_curve();
        prop_assert_eq!(curve.iter().rev().find(|(bytes, _)| *bytes <= size * 8).unwrap().1, misses);
    }

    #[test]
    fn only_the_functions_asked_for_are_seen(events in events(200)) {
        let instructions: Vec<_> = (0..14).map(|n| InstructionRecord::new(0x1000 + n * 4, &[0x90])).collect();
        let code = Code { instructions: &instructions, blocks: &[] };
        let functions = vec![0x1004..0x1008, 0x100c..0x1018];
        let heap = Heap::new(1 << 28).unwrap();
        let mut engine = Engine::create(&heap, &Config { functions, ..config() }).unwrap();
        engine.observe(&events, &code).unwrap();
        // The others stay as far as they say where the program stands, which the contexts of the rest tell.
        let mut calls = Calls::default();
        let mut places = BTreeMap::new();
        let mut seen_events = Vec::new();
        for event in &events {
            if event.kind.is_access() && [1, 3, 4, 5].contains(&event.index) {
                *places.entry((calls.path(), event.index)).or_insert(0_u64) += 1;
                seen_events.push(*event);
            }
            calls.see(event);
        }
        let summary = engine.summary(0);
        let expected = oracle(&seen_events, 64, 1 << 40);
        let found = seen(&summary, 64, 1 << 40);
        prop_assert_eq!((&found.time, &found.stack, found.cold), (&expected.time, &expected.stack, expected.cold));
        let found_places: BTreeSet<Place> = found.pairs.keys().map(|pair| pair.1.clone()).collect();
        prop_assert_eq!(found_places, places.into_keys().collect::<BTreeSet<_>>());
    }

    /// Fetches are accesses to the bytes of the instructions of each block, in order.
    #[test]
    fn fetches_equal_the_oracle(blocks in proptest::collection::vec((0..4_u32, 0..8_u64, any::<bool>()), 0..120)) {
        let lengths = [1_u16, 3, 7, 15, 2, 5, 9, 4, 6, 11];
        let mut address = 0x3fc0;
        let mut instructions = Vec::new();
        for length in lengths {
            instructions.push(InstructionRecord::new(address, &vec![0x90; length.into()]));
            address += u64::from(length);
        }
        let records = [(0, 3), (2, 4), (5, 5), (0, 10)].map(|(first, count)| BlockRecord { first, count });
        let code = Code { instructions: &instructions, blocks: &records };
        let (mut events, mut fetches) = (Vec::new(), Vec::new());
        for (block, cut, is_cut) in blocks {
            let record = records[block as usize];
            events.push(Event::new(Kind::BLOCK, block, 0));
            events.push(Event::access(Kind::LOAD, record.first, 0x9000, 8));
            if is_cut {
                events.push(Event::new(Kind::BLOCK_CUT, 0, cut));
            }
            let executed = if is_cut { cut.min(record.count.into()) } else { record.count.into() } as u32;
            for index in record.first..record.first + executed {
                fetches.push(Event::access(Kind::LOAD, index, instructions[index as usize].address, lengths[index as usize]));
            }
        }
        let heap = Heap::new(1 << 28).unwrap();
        let what = locality_reuse::What::Instructions;
        let mut engine = Engine::create(&heap, &Config { what, ..config() }).unwrap();
        for piece in events.chunks(7) {
            engine.observe(piece, &code).unwrap();
        }
        let summary = engine.finish(0, &code);
        for bytes in [1, 64] {
            prop_assert_eq!(seen(&summary, bytes, 1 << 40), oracle(&fetches, bytes, 1 << 40));
        }
    }
}
