//! States of the exact engine damaged by a program's wild writes.

use fastrand::Rng;
use locality_cachesim as cachesim;
use locality_reuse as reuse;
use locality_stream::{Analysis as _, BlockRecord, Code, Event, Heap, InstructionRecord, Kind, testing};

use super::Target;
use crate::random::{self, Input};

/// A seed, two numbers of events, a setting, and the damage: 14 bytes a word.
fn make(random: &mut Rng) -> Vec<u8> {
    let mut input = random::bytes(random, 13);
    for _ in 0..random.usize(..8) {
        input.extend(random.u32(..).to_le_bytes());
        input.extend(random::number(random).to_le_bytes());
        input.extend([random.u8(..64), random.u8(..2)]);
    }
    input
}

/// The order in an input.
struct Order {
    seed: u64,
    first: usize,
    second: usize,
    setting: u8,
    damage: Vec<testing::Damage>,
}

fn order(input: &[u8]) -> Order {
    let mut input = Input(input);
    let seed = input.u64();
    let mut count = || usize::from(u16::from_le_bytes([input.u8(), input.u8()])) % 600;
    let (first, second) = (count(), count());
    let setting = input.u8();
    let mut damage = Vec::new();
    while !input.0.is_empty() {
        let mut at = [0; 4];
        random::set(&mut at, 0, input.take(4));
        damage.push((u32::from_le_bytes(at), input.u64(), u32::from(input.u8() % 64), input.u8() & 1 == 1));
    }
    Order { seed, first, second, setting, damage }
}

fn events(seed: u64, len: usize) -> Vec<Event> {
    let mut random = Rng::with_seed(seed);
    let event = |number| match if number == 0 { 2 } else { random.u8(0..14) } {
        0 => Event::access(Kind::CALL, random.u32(10..14), 4096 + 8 * random.u64(0..30), 8),
        1 => Event::access(Kind::RETURN, 9, 4096 + 8 * random.u64(0..30), 8),
        2 => Event::new(Kind::THREAD, 0, random.u64(0..3)),
        3 => Event::new(Kind::BLOCK, random.u32(0..4), 0),
        4 => Event::access(Kind::STORE, random.u32(0..8), random::number(&mut random), random.u16(1..70)),
        _ => Event::access(Kind::LOAD, random.u32(0..8), random.u64(0..1200) * 32, random.u16(1..70)),
    };
    (0..len).map(event).collect()
}

/// Sixteen instructions in four blocks: loads, stores, returns, calls.
fn program() -> (Vec<InstructionRecord>, Vec<BlockRecord>) {
    let codes: [&[u8]; 4] = [&[0x48, 0x8b, 0x00], &[0x48, 0x89, 0x00], &[0xc3], &[0xe8, 1, 0, 0, 0]];
    let records = (0..16)
        .map(|i| InstructionRecord::new(0x40_0000 + 16 * i as u64, codes.get(i / 4).unwrap_or(&codes[0])));
    (records.collect(), (0..4).map(|i| BlockRecord { first: 4 * i, count: 3 }).collect())
}

/// Bytes of an arena; the operating system gives the used bytes.
const ROOM: usize = 1 << 26;

/// The engine of reuse.
pub struct Reuse;

impl Target for Reuse {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        make(random)
    }

    fn run(&mut self, input: &[u8]) {
        let order = order(input);
        let (instructions, blocks) = program();
        let code = Code { instructions: &instructions, blocks: &blocks };
        let what = if order.setting & 1 == 0 { reuse::What::Data } else { reuse::What::Instructions };
        let config = reuse::Config {
            what,
            granularities: vec![8, 64],
            pairs: vec![8, 64],
            sums: order.setting & 2 == 0,
            first_slots: 1,
            phase_accesses: 300,
            max_contexts: 1 << 10,
            max_sites: 1 << 10,
            max_cells: 1 << 10,
            ..reuse::Config::default()
        };
        let Some(heap) = Heap::new(ROOM) else { return };
        let Ok(mut engine) = reuse::Engine::create(&heap, &config) else { return };
        let _full = engine.observe(&events(order.seed, order.first), &code);
        let offset = engine.state();
        drop(engine);
        let state = offset as usize / 8;
        testing::damage(&heap, state..state + 200, &order.damage);
        if let Ok(mut engine) = reuse::Engine::open(&heap, offset) {
            let _full = engine.observe(&events(!order.seed, order.second), &code);
            std::hint::black_box(engine.finish(0, &code));
        }
    }
}

const CACHES: [&str; 4] = [
    "L1:1024/2/64+LL:2048/2/64",
    "L1:512/1/64+L2:2048/4/64+LL:8192/8/64+next-line",
    "I1:512/2/64+L1:1024/2/64+LL:4096/4/64+callgrind",
    "L1:1024/2/64+LL:2048/2/64+stride+self",
];

/// The simulation of caches.
pub struct CacheSim;

impl Target for CacheSim {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        make(random)
    }

    fn run(&mut self, input: &[u8]) {
        let order = order(input);
        let (instructions, blocks) = program();
        let code = Code { instructions: &instructions, blocks: &blocks };
        let caches = CACHES[usize::from(order.setting) % CACHES.len()];
        let Ok(config) = cachesim::Config::parse(caches) else { panic!("{caches} are caches") };
        let Some(heap) = Heap::new(ROOM) else { return };
        let Ok(mut sim) = cachesim::CacheSim::create(&heap, &config) else { return };
        let _full = sim.observe(&events(order.seed, order.first), &code);
        let offset = sim.state();
        drop(sim);
        let state = offset as usize / 8;
        testing::damage(&heap, state..state + 250, &order.damage);
        if let Ok(mut sim) = cachesim::CacheSim::open(&heap, offset) {
            let _full = sim.observe(&events(!order.seed, order.second), &code);
            std::hint::black_box(sim.finish(&code));
        }
    }
}
