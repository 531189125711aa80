//! Random programs: what they do, as events and to the oracle. Calls, returns, recursion,
//! `longjmp`, signals, threads, stubs, skipped functions; who runs is known here without looking at
//! stack addresses.

use std::collections::BTreeMap;

use locality_stream::{BlockRecord, Code, Event, InstructionRecord, Kind, NO_INSTRUCTION, Placement};

use super::oracle::{Oracle, Step, Who};
use crate::{Column, SKIPPED};

/// Instructions of a function: two blocks of 4.
const EACH: u32 = 8;
/// Functions; the last but one is skipped, the last one is a stub.
pub(super) const FUNCTIONS: u32 = 7;
const SKIP: u32 = FUNCTIONS - 2;
const STUB: u32 = FUNCTIONS - 1;

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Address, size, what (0 load, 1 store, 2 both), instruction within the block.
    Access(u64, u16, u8, u32),
    Call(u32),
    Return,
    /// So many frames are left at once, before the next call or return.
    Jump(usize),
    Signal(u32),
    SignalEnd,
    Thread(u64),
    ThreadEnd,
    Block(u32),
    /// First address, bytes, object.
    Place(u64, u64, u32),
}

/// Which blocks the source tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    All,
    /// Those at which calls, threads and handlers arrive, and those behind stubs.
    Entries,
}

pub(super) struct Text {
    pub(super) instructions: Vec<InstructionRecord>,
    pub(super) blocks: Vec<BlockRecord>,
}

impl Text {
    pub(super) fn new() -> Text {
        let (mut instructions, mut blocks) = (Vec::new(), Vec::new());
        for function in 0..FUNCTIONS {
            let mark = if function == SKIP { SKIPPED } else { 0 };
            for index in 0..EACH {
                let code: &[u8] = if function == STUB {
                    &[0xff, 0x25, 0, 0, 0, 0, 0]
                } else if index == 3 {
                    &[0xf0, 0x48, 0x83, 0, 0, 0, 0] // lock: no change of Callgrind's
                } else {
                    &[0x48, 0x01, 0, 0, 0, 0, 0]
                };
                let address = 0x40_0003 + u64::from(function * EACH + index) * 7;
                instructions.push(InstructionRecord::new(address | mark, code));
            }
            let count = if function == STUB { 1 } else { EACH / 2 };
            blocks.push(BlockRecord { first: function * EACH, count });
            blocks.push(BlockRecord { first: function * EACH + EACH / 2, count });
        }
        Text { instructions, blocks }
    }

    pub(super) fn code(&self) -> Code<'_> {
        Code { instructions: &self.instructions, blocks: &self.blocks }
    }

    fn address(&self, instruction: u32) -> u64 {
        self.instructions[instruction as usize].address & !SKIPPED
    }
}

#[derive(Debug, Clone)]
struct Frame {
    stack: u64,
    path: Vec<Step>,
    function: u64,
    /// The call that pays.
    instead: Option<(u64, u32)>,
    /// The function whose code runs.
    runs: u32,
    handler: bool,
}

#[derive(Debug, Clone)]
struct Thread {
    frames: Vec<Frame>,
    /// The block begun last, and its first instruction not yet fetched.
    block: u32,
    fetched: u32,
}

/// Calls by caller, site and callee.
pub(super) type Calls = BTreeMap<(u64, u32, u64), u64>;

pub(super) struct Run<'a> {
    text: &'a Text,
    told: Told,
    fetch: bool,
    callgrind: bool,
    pub(super) events: Vec<Event>,
    pub(super) oracle: Oracle,
    pub(super) calls: Calls,
    threads: BTreeMap<u64, Thread>,
    now: u64,
}

impl<'a> Run<'a> {
    pub(super) fn new(text: &'a Text, config: &crate::Config, told: Told) -> Run<'a> {
        let mut run = Run {
            text,
            told,
            fetch: config.instruction_fetch.is_some(),
            callgrind: config.compatible_callgrind,
            events: Vec::new(),
            oracle: Oracle::new(config),
            calls: BTreeMap::new(),
            threads: BTreeMap::new(),
            now: 1,
        };
        // Where something is known of all addresses, what comes later is not looked at early.
        run.step(&Op::Place(0, u64::MAX, 1));
        run.thread(1);
        run
    }

    fn thread_mut(&mut self) -> &mut Thread {
        self.threads.get_mut(&self.now).unwrap()
    }

    fn top(&self) -> &Frame {
        self.threads[&self.now].frames.last().unwrap()
    }

    fn who(&self, instruction: u32) -> Who {
        let top = self.top();
        let (function, instruction) = top.instead.unwrap_or((top.function, instruction));
        Who { path: top.path.clone(), function, instruction }
    }

    fn thread(&mut self, id: u64) {
        self.events.push(Event::new(Kind::THREAD, NO_INSTRUCTION, id));
        self.now = id;
        if !self.threads.contains_key(&id) {
            let runs = (id % 3) as u32;
            let function = self.text.address(runs * EACH);
            let root = Frame {
                stack: 0,
                path: vec![Step::Root { function, signal: None }],
                function,
                instead: None,
                runs,
                handler: false,
            };
            self.threads.insert(id, Thread { frames: vec![root], block: 0, fetched: u32::MAX });
            self.begin_block(runs * 2, true);
        }
    }

    fn begin_block(&mut self, block: u32, is_entry: bool) {
        self.fetch_to(u32::MAX - 1);
        if self.told == Told::All || is_entry {
            self.events.push(Event::new(Kind::BLOCK, block, 0));
        }
        let first = self.text.blocks[block as usize].first;
        let thread = self.thread_mut();
        (thread.block, thread.fetched) = (block, first);
        if self.fetch {
            for index in 0..self.text.blocks[block as usize].count {
                let who = self.who(first + index);
                self.oracle.sums.add(&who, Column::Ir, 1);
            }
            self.fetch_to(first);
        }
    }

    /// Fetches all up to an instruction, each with those behind it that share its line.
    fn fetch_to(&mut self, instruction: u32) {
        let block = self.text.blocks[self.threads[&self.now].block as usize];
        // First instruction, line, first and last byte, count.
        let mut groups: Vec<(u32, u64, u64, u64, u64)> = Vec::new();
        for index in block.first..block.first + block.count {
            let start = self.text.address(index);
            let bytes = start..start + 7;
            for line in start / 64..=(bytes.end - 1) / 64 {
                let first = start.max(line * 64) % 64;
                let last = (bytes.end - 1).min(line * 64 + 63) % 64;
                match groups.last_mut().filter(|group| group.1 == line) {
                    Some(group) => (group.3, group.4) = (last, group.4 + 1),
                    None => groups.push((index, line, first, last, 1)),
                }
            }
        }
        for together in groups.chunk_by(|a, b| a.0 == b.0) {
            let first = together[0].0;
            if self.fetch && first >= self.threads[&self.now].fetched && first <= instruction {
                let lines: Vec<_> =
                    together.iter().map(|group| (group.1, group.2, group.3, group.4)).collect();
                let who = self.who(first);
                self.oracle.fetch(self.now, &lines, &who);
                self.thread_mut().fetched = first + 1;
            }
        }
    }

    /// An instruction of the current block.
    fn instruction(&self, index: u32) -> u32 {
        let block = self.text.blocks[self.threads[&self.now].block as usize];
        block.first + index % block.count
    }

    fn access(&mut self, kind: Kind, instruction: u32, address: u64, size: u16) {
        self.fetch_to(instruction);
        self.events.push(Event::access(kind, instruction, address, size));
        let who = self.who(instruction);
        self.oracle.access(self.now, address, size.into(), kind.is_store(), instruction, &who);
    }

    fn stack(&self) -> u64 {
        // Each thread has a stack; frames are 64 bytes.
        let base = 0x7000_0000 + self.now * 0x10_0000;
        let depth = self.threads[&self.now].frames.len() as u64;
        base - depth * 64
    }

    /// A new frame of the function `callee`, called at `site`.
    fn push(&mut self, site: u32, callee: u32, stack: u64) {
        let entry = self.text.address(callee * EACH);
        let top = self.top().clone();
        let (caller, site) = top.instead.unwrap_or((top.function, site));
        let frame = if callee == SKIP {
            Frame { stack, instead: Some((caller, site)), runs: callee, handler: false, ..top }
        } else {
            let mut path = top.path;
            path.push(Step::Call { caller, site, callee: entry });
            *self.calls.entry((caller, site, entry)).or_default() += 1;
            Frame { stack, path, function: entry, instead: None, runs: callee, handler: false }
        };
        self.thread_mut().frames.push(frame);
    }

    pub(super) fn step(&mut self, op: &Op) {
        match *op {
            Op::Access(address, size, what, index) => {
                let instruction = self.instruction(index);
                // 3 has a lock.
                let joins = self.callgrind && instruction % EACH != 3;
                let load = Event::access(Kind::LOAD, instruction, address, size);
                if joins && what == 1 && self.events.last() == Some(&load) {
                    // Not the other half of that execution, so a block begins in between.
                    let block = self.threads[&self.now].block;
                    self.begin_block(block, false);
                }
                if what != 1 && !(what == 2 && joins) {
                    self.access(Kind::LOAD, instruction, address, size);
                } else if what == 2 {
                    self.fetch_to(instruction);
                    self.events.push(load);
                }
                if what != 0 {
                    self.access(Kind::STORE, instruction, address, size);
                }
            }
            Op::Place(start, bytes, object) => {
                self.oracle.placed.push(Placement { start, end: start + bytes, object, reserved: 0 });
                let count = self.oracle.placed.len() as u64;
                self.events.push(Event::new(Kind::PLACED, NO_INSTRUCTION, count));
            }
            Op::Call(callee) => self.call(callee % FUNCTIONS),
            Op::Return => {
                let top = self.top().clone();
                let at = self.instruction(3);
                self.access(Kind::RETURN, at, top.stack, 8);
                if top.handler {
                    return self.step(&Op::SignalEnd);
                }
                if self.threads[&self.now].frames.len() == 1 {
                    // Into whoever called this thread's first function.
                    let frame = self.thread_mut().frames.first_mut().unwrap();
                    frame.path = vec![Step::Root { function: 0, signal: None }];
                    (frame.function, frame.instead) = (0, None);
                } else {
                    self.thread_mut().frames.pop();
                }
                let runs = self.top().runs;
                self.begin_block(runs * 2 + 1, false);
            }
            Op::Jump(frames) => {
                let own =
                    self.threads[&self.now].frames.iter().rev().take_while(|frame| !frame.handler).count();
                let left = frames.min(own.saturating_sub(2));
                // The return of the frame jumped to tells; until then its callee seems to run. So
                // it returns at once.
                let length = self.threads[&self.now].frames.len();
                if left > 0 {
                    let stack = self.threads[&self.now].frames[length - 1 - left].stack;
                    let at = self.instruction(3);
                    self.access(Kind::RETURN, at, stack, 8);
                    self.thread_mut().frames.truncate(length - 1 - left);
                    let runs = self.top().runs;
                    self.begin_block(runs * 2 + 1, false);
                }
            }
            Op::Signal(number) => {
                self.fetch_to(u32::MAX - 1);
                self.events.push(Event::new(Kind::SIGNAL, NO_INSTRUCTION, number.into()));
                let runs = number % 3;
                let function = self.text.address(runs * EACH);
                let stack = self.stack();
                let frame = Frame {
                    stack,
                    path: vec![Step::Root { function, signal: Some(number) }],
                    function,
                    instead: None,
                    runs,
                    handler: true,
                };
                // The interrupted block is fetched; the handler's begins.
                self.thread_mut().fetched = u32::MAX;
                self.thread_mut().frames.push(frame);
                self.begin_block(runs * 2, true);
            }
            Op::SignalEnd => {
                let handler = self.threads[&self.now].frames.iter().rposition(|frame| frame.handler);
                if let Some(handler) = handler {
                    self.fetch_to(u32::MAX - 1);
                    self.events.push(Event::new(Kind::SIGNAL_END, NO_INSTRUCTION, 0));
                    self.thread_mut().frames.truncate(handler);
                    self.thread_mut().fetched = u32::MAX;
                    let runs = self.top().runs;
                    self.begin_block(runs * 2 + 1, false);
                }
            }
            Op::Thread(id) => self.thread(id),
            Op::ThreadEnd => {
                self.fetch_to(u32::MAX - 1);
                self.events.push(Event::new(Kind::THREAD_END, NO_INSTRUCTION, self.now));
                self.oracle.end_of(self.now);
                let now = self.now;
                self.threads.remove(&now);
                // Another one goes on; the same number may come again.
                let other = self.threads.keys().next().copied().unwrap_or(now + 7);
                self.thread(other);
            }
            Op::Block(second) => {
                let runs = self.top().runs;
                self.begin_block(runs * 2 + second % 2, false);
            }
        }
    }

    fn call(&mut self, callee: u32) {
        let stack = self.stack();
        let site = self.instruction(3);
        self.access(Kind::CALL, site, stack, 8);
        let callee = if callee == STUB {
            // It costs its caller, and jumps to function 1.
            let top = self.top().clone();
            let pays = top.instead.unwrap_or((top.function, site));
            let frame = Frame { stack, instead: Some(pays), runs: STUB, handler: false, ..top };
            self.thread_mut().frames.push(frame);
            self.begin_block(STUB * 2, true);
            let at = self.instruction(0);
            self.access(Kind::LOAD, at, 0x6000_0000, 8);
            self.fetch_to(u32::MAX - 1);
            self.thread_mut().frames.pop();
            1
        } else {
            callee
        };
        self.fetch_to(u32::MAX - 1);
        self.push(site, callee, stack);
        self.thread_mut().fetched = u32::MAX;
        self.begin_block(callee * 2, true);
    }

    pub(super) fn finish(mut self) -> (Vec<Event>, Oracle, Calls) {
        for id in self.threads.keys().copied().collect::<Vec<_>>() {
            self.now = id;
            // As it stands in the stream: only the current thread's block goes on to its end.
            self.thread(id);
            self.fetch_to(u32::MAX - 1);
            self.events.push(Event::new(Kind::SYSTEM_CALL, NO_INSTRUCTION, 0));
            self.begin_block(self.top().runs * 2, false);
        }
        self.fetch_to(u32::MAX - 1);
        (self.events, self.oracle, self.calls)
    }
}
