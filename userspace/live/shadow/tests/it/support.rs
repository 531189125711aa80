//! A memory of pages made up by a test, an executor with tables of its own, a log of any size.

use std::collections::BTreeMap;

use locality_shadow::window::{Counts, End, Limits, Log};
use locality_shadow::{Executor, Memory, PAGE, Page, TableCounts, Tables, ThreadState, Trust};
use locality_stream::{BlockRecord, Code, Event, InstructionRecord, Kind};

/// Pages by address.
#[derive(Debug, Clone, Default)]
pub struct Made {
    pub pages: BTreeMap<u64, Page>,
    pub text: Vec<u64>,
    /// Pages asked for, in the order of the questions.
    pub reads: Vec<Vec<u64>>,
}

impl Made {
    /// Maps the pages that the bytes cover and writes them.
    pub fn put(&mut self, address: u64, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            let at = address + n as u64;
            let page = self.pages.entry(at & !(PAGE - 1)).or_insert([0; PAGE as usize]);
            page[(at % PAGE) as usize] = *byte;
        }
    }
}

impl Memory for Made {
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]) {
        self.reads.push(pages.to_vec());
        for ((page, into), found) in pages.iter().zip(into).zip(found) {
            assert_eq!(page % PAGE, 0);
            *found = self.pages.get(page).map(|bytes| *into = *bytes).is_some();
        }
    }

    fn trust(&self, page: u64) -> Trust {
        if self.text.contains(&page) { Trust::Text } else { Trust::Nothing }
    }
}

/// An executor with its tables.
pub struct Shadow {
    pub executor: Executor,
    pub counts: &'static TableCounts,
    instructions: *const InstructionRecord,
    blocks: *const BlockRecord,
}

/// What a window left.
#[derive(Debug, Clone)]
pub struct Ran {
    pub state: ThreadState,
    pub counts: Counts,
    pub events: Vec<Event>,
    pub values: Vec<u64>,
    pub registers: Vec<[u64; 16]>,
}

impl Ran {
    pub fn end(&self) -> End {
        End::from_number(self.counts.end).unwrap()
    }

    /// Kind, address, size and value of each access.
    pub fn accesses(&self) -> Vec<(Kind, u64, u16, u64)> {
        let accesses = self.events.iter().filter(|event| event.kind.is_access());
        accesses.zip(&self.values).map(|(e, value)| (e.kind, e.value, e.size, *value)).collect()
    }
}

/// Limits that no short window meets.
pub fn limits(instructions: u64) -> Limits {
    Limits { instructions, pages: 4096, time_ns: 60_000_000_000 }
}

impl Shadow {
    pub fn new() -> Shadow {
        Shadow::with_tables(1 << 17, 1 << 16)
    }

    pub fn with_tables(instructions: usize, blocks: usize) -> Shadow {
        let counts: &'static TableCounts = Box::leak(Box::default());
        let instructions = Box::leak(vec![InstructionRecord::new(0, &[]); instructions].into_boxed_slice());
        let blocks = Box::leak(vec![BlockRecord { first: 0, count: 0 }; blocks].into_boxed_slice());
        let (i, b) = (instructions.as_ptr(), blocks.as_ptr());
        let executor = Executor::new(Tables { instructions, blocks, counts }).unwrap();
        Shadow { executor, counts, instructions: i, blocks: b }
    }

    /// The tables as far as they are filled.
    pub fn code(&self) -> Code<'_> {
        use std::sync::atomic::Ordering::Acquire;
        // SAFETY: the executor writes only records beyond the counts, and none while `self` is borrowed.
        unsafe {
            Code {
                instructions: std::slice::from_raw_parts(
                    self.instructions,
                    self.counts.instructions.load(Acquire) as usize,
                ),
                blocks: std::slice::from_raw_parts(self.blocks, self.counts.blocks.load(Acquire) as usize),
            }
        }
    }

    /// A window of process 1 with plenty of room.
    pub fn run<M: Memory>(&mut self, state: &ThreadState, memory: &mut M, limits: &Limits) -> Ran {
        let accesses = (limits.instructions.min(100_000) * 4 + 300) as usize;
        self.run_with(1, state, memory, limits, accesses, accesses)
    }

    pub fn run_with<M: Memory>(
        &mut self,
        process: u64,
        state: &ThreadState,
        memory: &mut M,
        limits: &Limits,
        events: usize,
        blocks: usize,
    ) -> Ran {
        let mut event_room = vec![Event::new(Kind::LOST, 0, 0); events];
        let mut values = vec![0; events];
        let mut registers = vec![[0; 16]; blocks];
        let mut log = Log {
            events: &mut event_room,
            values: &mut values,
            registers: &mut registers,
            counts: Counts::default(),
        };
        let state = self.executor.run(process, state, memory, limits, &mut log);
        let counts = log.counts;
        event_room.truncate(counts.events as usize);
        values.truncate(counts.accesses as usize);
        registers.truncate(counts.blocks as usize);
        Ran { state, counts, events: event_room, values, registers }
    }
}
