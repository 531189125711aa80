//! Machine code and records about code: decoding, streams, records of the kernel, shadow windows.

use std::fs;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use locality_isa::{Code, Registers, Trap, Watched};
use locality_kernel::records;
use locality_shadow::{
    Counts, Executor, Limits, Log, Memory, PAGE, Page, TableCounts, Tables, ThreadState, Trust,
};
use locality_stream::{
    Analysis as _, BlockCounts, BlockRecord, Checker, Code as Blocks, Event, Instruction, InstructionRecord,
    Kind, Mix,
};

use super::Target;
use crate::random::{self, Input};

/// Address of the code of inputs.
const CODE: u64 = 0x5000_0000;

/// Code of a real program: the fuzz driver.
struct Text(Vec<u8>);

impl Text {
    fn open() -> Result<Text> {
        Ok(Text(fs::read("/proc/self/exe").context("cannot read this program")?))
    }

    /// Real code, mutated or not, or random bytes.
    fn piece(&self, random: &mut Rng, most: usize) -> Vec<u8> {
        let len = 1 + random.usize(..most);
        if random.u8(..4) == 0 {
            return random::bytes(random, len);
        }
        // Code lies in the middle of the file rather than at the ends.
        let at = self.0.len() / 8 + random.usize(..self.0.len() / 2);
        let mut piece = self.0.get(at..at + len).unwrap_or_default().to_vec();
        if random.bool() {
            random::mutate(&mut piece, random);
        }
        piece
    }
}

/// Registers as bytes: 16 general registers, the place of rip in the code, flags, two bases.
fn push_registers(input: &mut Vec<u8>, random: &mut Rng) {
    for _ in 0..20 {
        let value = match random.u8(..3) {
            0 => CODE + random.u64(..8192),
            _ => random::number(random),
        };
        input.extend(value.to_le_bytes());
    }
}

fn registers(input: &mut Input<'_>) -> Registers {
    let mut general = [0; 16];
    general.fill_with(|| input.u64());
    let [rip, rflags, fs_base, gs_base] = [input.u64(), input.u64(), input.u64(), input.u64()];
    let near = CODE.wrapping_add(rip % 64);
    let rip = if rip % 3 == 0 { rip } else { near };
    Registers { rip, rflags, fs_base, gs_base, ..Registers::of_general(general) }
}

/// The next access, and the instruction of an access.
pub struct Isa(Text);

impl Isa {
    pub fn open() -> Result<Isa> {
        Ok(Isa(Text::open()?))
    }
}

impl Target for Isa {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let mut input = Vec::new();
        push_registers(&mut input, random);
        input.extend(random::bytes(random, 5));
        input.extend(self.0.piece(random, 96));
        input
    }

    fn run(&mut self, input: &[u8]) {
        let mut input = Input(input);
        let registers = registers(&mut input);
        let [width, start, flags, top, watched] = [(); 5].map(|()| input.u8());
        let code = Code { address: if flags & 1 == 0 { CODE } else { u64::MAX - 20 }, bytes: input.0 };
        let _ = std::hint::black_box(locality_isa::first_access(&code, &registers));
        let general = registers.general();
        let trap = Trap {
            registers,
            watched: Watched {
                address: general[usize::from(watched) % 16].wrapping_sub(u64::from(watched / 16)),
                bytes: 1 << (width % 4),
            },
            function_start: (flags & 2 == 0).then(|| CODE.wrapping_add(u64::from(start))),
            top_of_stack: (flags & 4 == 0).then(|| CODE.wrapping_add(u64::from(top))),
            call_site: (flags & 8 == 0).then_some(code),
        };
        if let Ok(found) = locality_isa::accessing_instruction(&code, &trap) {
            std::hint::black_box(found);
        }
    }
}

/// Facts of recorded instructions.
pub struct Classify(Text);

impl Classify {
    pub fn open() -> Result<Classify> {
        Ok(Classify(Text::open()?))
    }
}

fn records(bytes: &[u8]) -> Vec<InstructionRecord> {
    let records = bytes.chunks(24).map(|bytes| {
        let mut input = Input(bytes);
        let address = input.u64();
        let mut code = [0; 15];
        random::set(&mut code, 0, input.take(15));
        InstructionRecord { address, bytes: code, length: input.u8() }
    });
    records.collect()
}

fn push_record(input: &mut Vec<u8>, text: &Text, random: &mut Rng) {
    input.extend(random::number(random).to_le_bytes());
    let mut code = text.piece(random, 15);
    code.resize(15, 0);
    input.extend(code);
    input.push(if random.u8(..8) == 0 { random.u8(..) } else { random.u8(..16) });
}

impl Target for Classify {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let mut input = Vec::new();
        push_record(&mut input, &self.0, random);
        input
    }

    fn run(&mut self, input: &[u8]) {
        for record in records(input) {
            let facts = Instruction::classify(&record);
            std::hint::black_box((facts.access_kind(true), facts.class.name()));
        }
    }
}

/// Events of a plugin: possible contents of another process's memory.
pub struct Stream(Text);

impl Stream {
    pub fn open() -> Result<Stream> {
        Ok(Stream(Text::open()?))
    }
}

impl Target for Stream {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let (instructions, blocks) = (random.u8(..6), random.u8(..6));
        let mut input = vec![instructions, blocks];
        for _ in 0..instructions {
            push_record(&mut input, &self.0, random);
        }
        for _ in 0..blocks {
            let sane = random.u8(..8) > 0;
            for limit in [6, 4] {
                let value = if sane { random.u64(..limit) } else { random::number(random) };
                input.extend((value as u32).to_le_bytes());
            }
        }
        for _ in 0..random.usize(..40) {
            let value = random::number(random);
            let index = if random.u8(..8) == 0 { random::number(random) as u32 } else { random.u32(..6) };
            let kind = Kind(if random.u8(..16) == 0 { random.u8(..) } else { random.u8(..14) });
            let event =
                Event { value, index, size: random.u16(..) >> random.u8(..16), kind, flags: random.u8(..2) };
            input.extend(event.value.to_le_bytes());
            input.extend(event.what().to_le_bytes());
        }
        input
    }

    fn run(&mut self, input: &[u8]) {
        let mut input = Input(input);
        let (instructions, blocks) = (usize::from(input.u8()), usize::from(input.u8()));
        let instructions = records(input.take(instructions * 24));
        let blocks: Vec<BlockRecord> = (0..blocks)
            .map(|_| input.u64())
            .map(|word| BlockRecord { first: word as u32, count: (word >> 32) as u32 })
            .collect();
        let mut events = Vec::new();
        while !input.0.is_empty() {
            let (value, what) = (input.u64(), input.u64());
            let event = Event::from_words(value, what);
            assert_eq!(event.what(), what, "an event is its two words");
            events.push(event);
        }
        let code = Blocks { instructions: &instructions, blocks: &blocks };
        let mut checker = Checker::new();
        let mut counts = BlockCounts::default();
        for piece in events.chunks(7) {
            let _ = (checker.observe(piece, &code), counts.observe(piece, &code));
        }
        let facts = code.classify();
        std::hint::black_box((checker.findings(), counts.mix(&code, &facts)));
        let many: Vec<u64> = events.iter().map(|event| event.value >> 16).collect();
        std::hint::black_box(Mix::of_counts(&code, &facts, &many));
    }
}

/// Records of the kernel's ring.
pub struct Records;

impl Target for Records {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let len = random.usize(..3000);
        let mut input = vec![0; len];
        let noise = random::bytes(random, len.min(64));
        random::set(&mut input, random.usize(..len + 1), &noise);
        random::set(&mut input, 0, &u32::from(random.u8(..9)).to_le_bytes());
        random::set(&mut input, 4, &(random::number(random) as u32).to_le_bytes());
        input
    }

    fn run(&mut self, input: &[u8]) {
        std::hint::black_box(records::decode(input));
    }
}

/// Room of a window's log.
const EVENTS: usize = 6000;

/// Shadow windows: mutated code, executed on a private copy.
pub struct Windows {
    text: Text,
    executor: Executor,
    windows: u64,
    events: Vec<Event>,
    values: Vec<u64>,
    registers: Vec<[u64; 16]>,
}

impl Windows {
    pub fn open() -> Result<Windows> {
        let instructions = vec![InstructionRecord { address: 0, bytes: [0; 15], length: 0 }; 1 << 14].leak();
        let blocks = vec![BlockRecord { first: 0, count: 0 }; 1 << 13].leak();
        let counts = Box::leak(Box::new(TableCounts::default()));
        Ok(Windows {
            text: Text::open()?,
            executor: Executor::new(Tables { instructions, blocks, counts })
                .context("cannot execute windows")?,
            windows: 0,
            events: vec![Event::new(Kind::LOST, 0, 0); EVENTS],
            values: vec![0; EVENTS],
            registers: vec![[0; 16]; EVENTS],
        })
    }
}

/// A process with one page of code; three quarters of the further pages are readable.
struct Pages<'a> {
    code: &'a [u8],
    trust: Trust,
}

impl Memory for Pages<'_> {
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]) {
        for ((page, into), found) in pages.iter().zip(into).zip(found) {
            *found = *page == CODE || page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 > 0;
            for (to, from) in into.iter_mut().zip(self.code.iter().cycle()) {
                *to = *from;
            }
        }
    }

    fn trust(&self, page: u64) -> Trust {
        if page == CODE { self.trust } else { Trust::Nothing }
    }
}

impl Target for Windows {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let mut input = Vec::new();
        push_registers(&mut input, random);
        input.extend(random::bytes(random, 2));
        let most = if random.u8(..4) == 0 { PAGE as usize } else { 200 };
        input.extend(self.text.piece(random, most));
        input
    }

    fn run(&mut self, input: &[u8]) {
        let mut input = Input(input);
        let registers = registers(&mut input);
        let [flags, limit] = [input.u8(), input.u8()];
        let mut extended = vec![0; if flags & 1 == 0 { 0 } else { ThreadState::extended_bytes().max(576) }];
        if flags & 1 == 1 {
            for (to, from) in extended.iter_mut().zip(input.0.iter().cycle()).skip(32).take(384) {
                *to = *from;
            }
            // MXCSR and the control word as at the start of
            // every process, and the states in use: x87 and SSE.
            random::set(&mut extended, 0, &0x37f_u16.to_le_bytes());
            random::set(&mut extended, 24, &0x1f80_u32.to_le_bytes());
            random::set(&mut extended, 512, &[3]);
        }
        let state = ThreadState { registers, extended };
        let mut memory =
            Pages { code: input.0, trust: if flags & 2 == 0 { Trust::Text } else { Trust::Nothing } };
        let limits = Limits {
            instructions: 1 + 20 * u64::from(limit),
            pages: 1 + u64::from(limit) / 4,
            time_ns: 5_000_000,
        };
        let mut log = Log {
            events: &mut self.events,
            values: &mut self.values,
            registers: &mut self.registers,
            counts: Counts::default(),
        };
        self.windows += 1;
        let process = self.windows % 200;
        self.executor.forget(process);
        self.executor.run(process, &state, &mut memory, &limits, &mut log);
        let counts = log.counts;
        assert!(counts.events as usize <= EVENTS && counts.accesses as usize <= EVENTS, "{counts:?}");
        assert!(counts.blocks as usize <= EVENTS && counts.instructions <= limits.instructions, "{counts:?}");
        assert!(locality_shadow::End::from_number(counts.end).is_some(), "{counts:?}");
    }
}
