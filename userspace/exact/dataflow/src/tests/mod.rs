//! The engine against an independent oracle and against closed forms.

mod kernels;
mod nest;
mod oracle;
mod random;
mod resumed;
mod tasks;

use iced_x86::code_asm::CodeAssembler;
use locality_stream::testing::{self, Damage};
use locality_stream::{Analysis as _, BlockRecord, Code, Event, Heap, InstructionRecord, Kind, Offset};

use crate::{Engine, Lane, Latency, Marks, Predict, Setup, Summary, View};

/// Overwrites one to five words of an arena, most of them among the first `words` of the state at `offset`.
pub(crate) fn damage(heap: &Heap, offset: Offset, words: usize, random: &mut fastrand::Rng) {
    let state = offset as usize / 8..offset as usize / 8 + words;
    let damage: Vec<Damage> = (0..random.usize(1..6))
        .map(|_| (random.u32(..), random.u64(..), random.u32(..64), random.u32(..3) > 0))
        .collect();
    testing::damage(heap, state, &damage);
}

/// Code in blocks.
#[derive(Default)]
pub(crate) struct Program {
    pub records: Vec<InstructionRecord>,
    pub blocks: Vec<BlockRecord>,
}

impl Program {
    /// Adds a block of assembled instructions, behind the one before. Its index.
    pub fn block(&mut self, write: impl FnOnce(&mut CodeAssembler)) -> u32 {
        let mut assembler = CodeAssembler::new(64).unwrap();
        write(&mut assembler);
        let address = self.records.last().map_or(0x1000, |last| last.address + u64::from(last.length));
        let mut at = address;
        let first = self.records.len() as u32;
        for instruction in assembler.instructions() {
            let mut one = CodeAssembler::new(64).unwrap();
            one.add_instruction(*instruction).unwrap();
            let bytes = one.assemble(at).unwrap();
            self.records.push(InstructionRecord::new(at, &bytes));
            at += bytes.len() as u64;
        }
        let count = self.records.len() as u32 - first;
        self.blocks.push(BlockRecord { first, count });
        self.blocks.len() as u32 - 1
    }

    /// A block of bytes.
    pub fn bytes(&mut self, instructions: &[&[u8]]) -> u32 {
        let mut at = self.records.last().map_or(0x1000, |last| last.address + u64::from(last.length));
        let first = self.records.len() as u32;
        for bytes in instructions {
            self.records.push(InstructionRecord::new(at, bytes));
            at += bytes.len() as u64;
        }
        self.blocks.push(BlockRecord { first, count: instructions.len() as u32 });
        self.blocks.len() as u32 - 1
    }

    pub fn code(&self) -> Code<'_> {
        Code { instructions: &self.records, blocks: &self.blocks }
    }

    pub fn first(&self, block: u32) -> u32 {
        self.blocks[block as usize].first
    }

    /// An event of a block.
    pub fn begin(&self, block: u32) -> Event {
        Event::new(Kind::BLOCK, block, 0)
    }

    /// An access by an instruction of a block.
    pub fn access(&self, block: u32, place: u32, kind: Kind, address: u64, size: u16) -> Event {
        Event::access(kind, self.first(block) + place, address, size)
    }
}

pub(crate) fn setup(view: View, latency: Latency, windows: &[Option<u32>]) -> Setup {
    let lanes = windows.iter().map(|window| Lane { window: *window, predict: Predict::Perfect }).collect();
    Setup { view, latency, lanes }
}

pub(crate) fn run(program: &Program, events: &[Event], setup: &Setup) -> Summary {
    run_marked(program, events, setup, Marks::default())
}

pub(crate) fn run_marked(program: &Program, events: &[Event], setup: &Setup, marks: Marks) -> Summary {
    let heap = Heap::new(1 << 30).unwrap();
    let mut engine = Engine::create(&heap, setup, marks).unwrap();
    for piece in events.chunks(7) {
        engine.observe(piece, &program.code()).unwrap();
    }
    engine.observe(&[Event::new(Kind::THREAD_END, 0, 1)], &program.code()).unwrap();
    assert_eq!(engine.consumed(), events.len() as u64 + 1);
    let summary = engine.finish();
    for lane in &summary.lanes {
        let histogram = &lane.histogram;
        assert_eq!(histogram.instructions.iter().sum::<u64>(), summary.instructions, "{:?}", lane.lane);
        let cycles: u64 = histogram.cycles.iter().sum();
        assert!(cycles == lane.cycles || cycles == lane.cycles + 1, "{cycles} {:?}", lane.lane);
        let by_class: u64 = histogram.classes.iter().flatten().sum();
        assert_eq!(by_class, summary.instructions);
    }
    summary
}

/// Cycles of a lane without a window.
pub(crate) fn span(program: &Program, events: &[Event], view: View, latency: Latency) -> u64 {
    run(program, events, &setup(view, latency, &[None])).lanes[0].cycles
}
