//! The engine of tasks: events in, pieces and communication out.
//!
//! Instructions are executed in program order, as by the engine of instructions; a location has the piece
//! that computed its value in place of a time. Pieces without a value left are dropped from time to time.

mod nodes;

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Analysis, Arena, ArenaFull, Code, Event, Flow, Kind, Offset, Span};

use super::state::{CELL, Cell, MAGIC, NO_BLOCK, State};
use super::{EdgeCount, Node, NodeCount, TaskSetup, TaskSummary};
use crate::OpenError;
use crate::ops::{Block, Compiled, EARLY, IGNORED, MEMORY, Marks, Op, SPECIAL, STRING, Special};
use crate::setup::{Lane, Latency, Setup, View};
use crate::shadow::Shadow;
use crate::state::NONE;

/// A value from before the run, or a constant.
const NOTHING: Cell = [0; CELL];
/// All bytes of a register.
const ALL: u8 = 0xff;
/// Classes of [`crate::CLASSES`].
const STACK: u8 = 3;
const CALL: u8 = 13;
const RETURN: u8 = 14;
/// Instructions at most of a stub that only leads to a function.
const STUB: u32 = 3;
/// The instruction `leave`.
const LEAVE: &[u8] = &[0xc9];
/// A call, or a return, in [`State::flow`].
const CALLED: u64 = 1;
const RETURNED: u64 = 2;

/// The engine of tasks: one thread's events in, with blocks; counts in an arena.
pub struct TaskEngine<'a, A: Arena + ?Sized> {
    arena: &'a A,
    state: NonNull<State>,
    offset: Offset,
    setup: TaskSetup,
    /// As `setup`, for blocks.
    plan: Setup,
    marks: Marks,
    compiled: Compiled,
    blocks: Vec<Block>,
    current: Block,
    shadow: Shadow<'a, CELL, A>,
    /// Steps that decide the branch at the block's end, by the number of the special instruction.
    deciding: HashSet<u32>,
}

// SAFETY: the state belongs to the engine alone.
unsafe impl<A: Arena + Sync + ?Sized> Send for TaskEngine<'_, A> {}

impl<'a, A: Arena + ?Sized> TaskEngine<'a, A> {
    /// An engine with an empty state.
    ///
    /// # Errors
    /// An arena without room for it.
    pub fn create(arena: &'a A, setup: TaskSetup, marks: Marks) -> Result<Self, ArenaFull> {
        let span: Span<State> = Span::allocate(arena, 1).ok_or(ArenaFull)?;
        let state = span.get(arena).ok_or(ArenaFull)?;
        // SAFETY: fresh, zeroed room, a valid value without further references.
        let values = unsafe { &mut *state.as_ptr() };
        values.begin(arena, setup).ok_or(ArenaFull)?;
        compiler_fence(Ordering::SeqCst);
        values.magic = MAGIC;
        Ok(Self::of(arena, state, span.offset(), setup, marks))
    }

    /// Takes up the state at `offset`, after any end of its process. The process must not run any
    /// more.
    ///
    /// # Errors
    /// A place without a state, or a damaged one.
    pub fn open(arena: &'a A, offset: Offset, marks: Marks) -> Result<Self, OpenError> {
        let span = Span::<State>::from_parts(offset, 1);
        let state = span.get(arena).ok_or(OpenError::NoState)?;
        // SAFETY: within the arena; the writer is gone.
        let values = unsafe { &mut *state.as_ptr() };
        if values.magic != MAGIC {
            return Err(OpenError::NoState);
        }
        let setup = values.repair(arena, span.range()).ok_or(OpenError::Damaged)?;
        let mut engine = Self::of(arena, state, offset, setup, marks);
        if values.collecting != 0 {
            engine.forget();
        }
        Ok(engine)
    }

    fn of(arena: &'a A, state: NonNull<State>, offset: Offset, setup: TaskSetup, marks: Marks) -> Self {
        let plan = Setup { view: setup.view, latency: Latency::Unit, lanes: vec![Lane::default()] };
        Self {
            arena,
            state,
            offset,
            setup,
            plan,
            marks,
            compiled: Compiled::default(),
            blocks: Vec::new(),
            current: Block::UNKNOWN,
            shadow: Shadow::new(arena),
            deciding: HashSet::new(),
        }
    }

    /// Where the state lies, for [`TaskEngine::open`].
    pub fn state(&self) -> Offset {
        self.offset
    }

    /// Events taken so far. After a kill the source goes on with the event of this number.
    pub fn consumed(&self) -> u64 {
        // SAFETY: the state belongs to the engine alone.
        unsafe { self.state.as_ref() }.consumed
    }

    #[inline(always)]
    fn values(&mut self) -> &'a mut State {
        // SAFETY: the state belongs to the engine alone, borrowed for writing.
        unsafe { &mut *self.state.as_ptr() }
    }

    fn take(&mut self, events: &[Event], code: &Code<'_>) -> Option<()> {
        for event in events {
            if event.kind.is_access() {
                self.access(event)?;
            } else {
                match event.kind {
                    Kind::BLOCK => self.begin_block(event.index, code)?,
                    Kind::BLOCK_CUT => self.end_block(u32::try_from(event.value).unwrap_or(u32::MAX))?,
                    Kind::SYSTEM_CALL | Kind::THREAD_END => self.end_block(u32::MAX)?,
                    Kind::SIGNAL | Kind::SIGNAL_END => {
                        self.end_block(u32::MAX)?;
                        // A handler is no successor of the interrupted block.
                        self.current = Block::UNKNOWN;
                        self.values().flow = [0; 2];
                    }
                    _ => {}
                }
            }
        }
        Some(())
    }

    #[inline(always)]
    fn begin_block(&mut self, index: u32, code: &Code<'_>) -> Option<()> {
        let block = match self.blocks.get(index as usize) {
            Some(block) if block.count != 0 => *block,
            _ => self.compile(index, code),
        };
        self.end_block(u32::MAX)?;
        let before = std::mem::replace(&mut self.current, block);
        let s = self.values();
        if block.count == 0 {
            s.block = NONE;
            return Some(());
        }
        match self.setup.node {
            Node::Blocks => self.begin(index + 1, None, 0)?,
            Node::Functions => self.function(index, &block)?,
            Node::Loops => self.follow_loop(index, &before, &block)?,
        }
        s.sequence = s.sequence.wrapping_add(1);
        if self.setup.view.induction {
            for register in 0..16 {
                if block.written >> register & 1 != 0 {
                    s.written[register] = s.sequence;
                }
                if block.addressed >> register & 1 != 0 {
                    s.addressed[register] = s.sequence;
                }
            }
        }
        (s.block, s.position, s.open, s.loads_seen) = (index, 0, NONE, 0);
        Some(())
    }

    #[cold]
    fn compile(&mut self, index: u32, code: &Code<'_>) -> Block {
        let records = code.block(index);
        let Some(record) = code.blocks.get(index as usize).filter(|_| !records.is_empty()) else {
            return Block::UNKNOWN;
        };
        let block = self.compiled.add(&self.plan, self.marks, record.first, records);
        let ops = self.compiled.ops.get_mut(block.ops as usize..).unwrap_or_default();
        for (op, record) in ops.iter_mut().zip(records) {
            // The frame pointer comes back from the stack, as by a pop.
            if self.setup.view == View::VALUES && record.code() == LEAVE {
                op.latency = 0;
            }
        }
        // The last writer of flags of a block that ends with a condition.
        for op in ops.iter().filter(|op| block.flow == Flow::Conditional && op.flags & SPECIAL != 0) {
            if let Some(Special::Step { flags: true, .. }) = self.compiled.specials.get(op.special as usize) {
                self.deciding.insert(op.special);
            }
        }
        if self.blocks.len() <= index as usize {
            self.blocks.resize(index as usize + 1, Block::UNKNOWN);
        }
        if let Some(slot) = self.blocks.get_mut(index as usize) {
            *slot = block;
        }
        block
    }

    /// Executes the current block up to its end, or up to so many instructions if left early.
    #[inline(always)]
    fn end_block(&mut self, executed: u32) -> Option<()> {
        let s = self.values();
        if s.block == NONE {
            return Some(());
        }
        self.close();
        self.run(self.current.count.min(executed))?;
        s.block = NONE;
        Some(())
    }

    /// Executes instructions up to a place in the block, without accesses to memory.
    #[inline(always)]
    fn run(&mut self, end: u32) -> Option<()> {
        let s = self.values();
        let ops = self.current.ops as usize;
        while s.position < end {
            let op = *self.compiled.ops.get(ops + s.position as usize)?;
            s.position += 1;
            if op.flags & STRING != 0 && op.flags & MEMORY != 0 {
                // The test ending the repetition is no execution.
                let address = self.address_of(s.position - 1);
                if s.string == [address, s.instructions + s.work] {
                    continue;
                }
            }
            self.read(&op)?;
            self.write(&op);
        }
        Some(())
    }

    /// As in the engine of instructions: stands for the address of an instruction.
    fn address_of(&self, position: u32) -> u64 {
        if position + 1 == self.current.count {
            self.current.end
        } else {
            self.current.address ^ u64::from(position) << 48
        }
    }

    #[inline(always)]
    fn access(&mut self, event: &Event) -> Option<()> {
        let s = self.values();
        if s.block == NONE {
            return Some(());
        }
        let place = event.index.wrapping_sub(self.current.first);
        if place >= self.current.count {
            // Of another block: the source is not in order.
            return Some(());
        }
        let op = *self.compiled.ops.get((self.current.ops + place) as usize)?;
        let is_store = event.kind.is_store();
        let is_new =
            s.open != place || (op.flags & STRING != 0 && is_next_iteration(s, is_store, op.addresses >= 2));
        if is_new {
            if s.open == NONE && place < s.position {
                return Some(());
            }
            self.close();
            self.run(place)?;
            self.read(&op)?;
            (s.open, s.position) = (place, place + 1);
            (s.loads_seen, s.stores_seen) = (0, 0);
        }
        if self.setup.node != Node::Blocks && event.kind.is_flow() {
            let what = if event.kind == Kind::CALL { CALLED } else { RETURNED };
            s.flow = [what, event.value];
        }
        // Return addresses belong to the stack.
        let is_ignored = self.setup.view.stack && event.kind.is_flow();
        if is_store {
            s.stores_seen += 1;
            s.stored += 1;
            let cell = if is_ignored { NOTHING } else { self.result(&op) };
            let cell = [cell[0], 0, 0, 0];
            self.shadow.store(&mut s.pages, event.value, event.size, &cell)
        } else {
            s.loads_seen += 1;
            s.loads += 1;
            if is_ignored { Some(()) } else { self.load(&op, event) }
        }
    }

    /// Takes values from memory.
    #[inline(always)]
    fn load(&mut self, op: &Op, event: &Event) -> Option<()> {
        let s = self.values();
        let passes = is_copy(op) && op.class == STACK;
        let (reader, running, execution) = (s.execution as u32, s.running, s.execution);
        let first = s.pieces.get(self.arena)?.as_ptr();
        let count = s.piece_count as u32;
        let (mut value, mut latest, mut start) = (NOTHING, 0, s.start);
        // Bytes taken by writer: several in a word written in pieces only.
        let mut taken = [(0_u32, 0_u64); 8];
        let mut several = 0;
        let mut full = None;
        let mut edges = s.edges;
        let node = s.node;
        let arena = self.arena;
        self.shadow.visit(&s.pages, event.value, event.size, |cell, bytes| {
            let from = cell[0];
            if from == 0 || from > count {
                return;
            }
            // SAFETY: below the count of the table.
            let piece = unsafe { &*first.add(from as usize - 1) };
            let end = if from == running { u64::MAX } else { piece.end };
            if end >= latest {
                (value, latest) = (*cell, end);
            }
            if from == running || piece.execution == execution || passes {
                return;
            }
            start = start.max(piece.end);
            if cell[1] != reader {
                (cell[1], cell[2]) = (reader, 0);
            }
            let new = u32::from(bytes) & !cell[2];
            if new == 0 {
                return;
            }
            cell[2] |= new;
            let new = u64::from(new.count_ones());
            let writer = piece.node as u32;
            if let Some(known) = taken[..several].iter_mut().find(|known| known.0 == writer) {
                known.1 += new;
            } else if several < taken.len() {
                taken[several] = (writer, new);
                several += 1;
            } else if edges.add(arena, [writer, node], true, new).is_none() {
                full = Some(());
            }
        });
        s.edges = edges;
        s.start = start;
        for (writer, bytes) in taken.iter().take(several) {
            s.edges.add(self.arena, [*writer, s.node], true, *bytes)?;
        }
        // Of several parts of one operand, the latest stands for the value.
        if s.loads_seen == 1 || value[0] != 0 {
            let size = u32::from(event.size.min(255));
            let mark = if passes { [value[1], value[2]] } else { [reader, ALL.into()] };
            s.value = [value[0], mark[0], mark[1], size];
        }
        if full.is_some() { None } else { Some(()) }
    }

    /// Finishes the open instruction.
    #[inline(always)]
    fn close(&mut self) {
        let s = self.values();
        if s.open == NONE {
            return;
        }
        let place = s.open;
        s.open = NONE;
        let Some(op) = self.compiled.ops.get(self.current.ops.wrapping_add(place) as usize).copied() else {
            return;
        };
        self.write(&op);
        if op.flags & STRING != 0 {
            s.string = [self.address_of(place), s.instructions + s.work];
        }
    }

    /// A register's value is taken.
    #[inline(always)]
    fn take_register(&mut self, place: usize) -> Option<()> {
        let s = self.values();
        let place = register(place);
        let cell = &mut s.registers[place];
        let from = cell[0];
        if from == 0 || from == s.running {
            return Some(());
        }
        let count = s.piece_count as u32;
        if from > count {
            return Some(());
        }
        // SAFETY: below the count of the table.
        let piece = unsafe { &*s.pieces.get(self.arena)?.as_ptr().add(from as usize - 1) };
        if piece.execution == s.execution {
            return Some(());
        }
        s.start = s.start.max(piece.end);
        if cell[1] != s.execution as u32 || cell[2] == 0 {
            (cell[1], cell[2]) = (s.execution as u32, ALL.into());
            let bytes = if cell[3] == 0 { bytes_of(place) } else { u64::from(cell[3]).min(bytes_of(place)) };
            s.edges.add(self.arena, [piece.node as u32, s.node], false, bytes)?;
        }
        Some(())
    }

    /// An instruction reads its registers.
    #[inline(always)]
    fn read(&mut self, op: &Op) -> Option<()> {
        let s = self.values();
        s.value = NOTHING;
        s.work += 1;
        let from = op.places as usize;
        let data = from + usize::from(op.addresses);
        let copies = is_copy(op);
        let end = if copies { data } else { data + usize::from(op.data) };
        for at in from..end {
            let place = *self.compiled.places.get(at)?;
            self.take_register(usize::from(place))?;
        }
        if op.flags & SPECIAL == 0 {
            return Some(());
        }
        match self.compiled.specials.get_mut(op.special as usize)? {
            Special::Step { register: own, by, last, .. } => {
                let (own, by) = (usize::from(*own & 15), by.map(|by| usize::from(by & 15)));
                let before = std::mem::replace(last, s.sequence);
                let decides = self.deciding.contains(&op.special);
                let is_step = (decides || s.addressed[own] > before)
                    && by.is_none_or(|by| before != 0 && s.written[by] <= before);
                if is_step {
                    // As a copy of the register, or of what is added.
                    s.value = match by {
                        Some(by) => self.later(s.registers[own], s.registers[by]),
                        None => s.registers[own],
                    };
                } else {
                    self.take_register(own)?;
                    by.map_or(Some(()), |by| self.take_register(by))?;
                    s.value = [s.running, 0, 0, 0];
                }
            }
            Special::X87 { data, top, .. } => {
                let (data, top) = (*data, *top);
                let before = top.step(&mut (s.top as u8));
                let data = data.at_top(before);
                if copies {
                    if let Some(one) = data.iter().next() {
                        s.value = s.registers[register(one)];
                    }
                } else {
                    for place in data.iter() {
                        self.take_register(place)?;
                    }
                }
            }
            Special::Exchange(_) | Special::Reduction { .. } => {}
        }
        Some(())
    }

    /// The value that is there later.
    fn later(&mut self, one: Cell, other: Cell) -> Cell {
        let running = self.values().running;
        let mut end = |cell: Cell| match cell[0] == running && running != 0 {
            true => u64::MAX,
            false => self.piece(cell[0]).map_or(0, |piece| piece.end),
        };
        if end(other) > end(one) { other } else { one }
    }

    /// What an instruction stores or writes.
    #[inline(always)]
    fn result(&mut self, op: &Op) -> Cell {
        let s = self.values();
        if op.flags & IGNORED != 0 {
            return NOTHING;
        }
        if !is_copy(op) {
            // A constant, in a view of values.
            let is_constant = self.setup.view.copies
                && op.addresses == 0
                && op.data == 0
                && op.flags & (SPECIAL | MEMORY) == 0;
            return if is_constant { NOTHING } else { [s.running, 0, 0, 0] };
        }
        if s.loads_seen > 0 {
            return s.value;
        }
        let from = op.places as usize + usize::from(op.addresses);
        let places = self.compiled.places.get(from..from + usize::from(op.data)).unwrap_or_default();
        let mut cells = places.iter().map(|place| s.registers[register(usize::from(*place))]);
        match (cells.next(), cells.next()) {
            (None, _) => s.value,
            (Some(one), None) => one,
            (Some(one), Some(other)) => self.later(one, other),
        }
    }

    /// An instruction writes its registers.
    #[inline(always)]
    fn write(&mut self, op: &Op) {
        let s = self.values();
        let cell = self.result(op);
        let from = op.places as usize + usize::from(op.addresses) + usize::from(op.data);
        let end = from + usize::from(op.writes) + usize::from(op.merges);
        for place in self.compiled.places.get(from..end).unwrap_or_default() {
            s.registers[register(usize::from(*place))] = cell;
        }
        s.loads_seen = 0;
        if op.flags & SPECIAL != 0 {
            self.write_special(op, cell);
        }
    }

    #[inline(never)]
    fn write_special(&mut self, op: &Op, cell: Cell) {
        let s = self.values();
        let Some(special) = self.compiled.specials.get(op.special as usize) else { return };
        match *special {
            Special::Step { register: own, carry, flags, .. } => {
                let value = if op.flags & IGNORED != 0 { NOTHING } else { s.value };
                s.registers[usize::from(own & 15)] = value;
                for (place, is_written) in [(16, carry), (17, flags)] {
                    if is_written {
                        s.registers[place] = value;
                    }
                }
            }
            Special::X87 { data, whole, merged, top, is_exchange } => {
                let mut now = s.top as u8;
                let before = top.step(&mut now);
                s.top = now.into();
                if is_exchange {
                    let mut both = data.at_top(before).iter();
                    if let (Some(one), Some(other)) = (both.next(), both.next()) {
                        s.registers.swap(register(one), register(other));
                    }
                } else {
                    whole.with(merged).at_top(before).each(|place| s.registers[register(place)] = cell);
                }
            }
            // Not in the views of tasks.
            Special::Reduction { .. } => {}
            Special::Exchange([one, other]) => {
                s.registers.swap(register(one.into()), register(other.into()));
            }
        }
    }

    /// Its result.
    pub fn finish(&mut self) -> TaskSummary {
        self.close();
        let s = self.values();
        // The rest of the last piece counts as executed up to here.
        let (work, span) = (s.instructions + s.work, s.span.max(s.start + s.work));
        let mut positions = std::collections::HashMap::new();
        let mut nodes = Vec::new();
        for (node, counts) in s.nodes.values(self.arena).iter().enumerate() {
            let own = if node == s.node as usize && s.running != 0 { s.work } else { 0 };
            if counts.executions > 0 {
                positions.insert(node as u32, nodes.len() as u32);
                let block = (node as u32).checked_sub(1).unwrap_or(NO_BLOCK);
                nodes.push(NodeCount { block, executions: counts.executions, work: counts.work + own });
            }
        }
        let edge = |([from, to], memory, bytes, values): ([u32; 2], bool, u64, u64)| {
            let (from, to) = (*positions.get(&from)?, *positions.get(&to)?);
            Some(EdgeCount { from, to, memory, bytes, values })
        };
        let mut edges: Vec<EdgeCount> = s.edges.all(self.arena).into_iter().filter_map(edge).collect();
        edges.sort_unstable();
        TaskSummary {
            setup: self.setup,
            work,
            span,
            executions: s.executions,
            accesses: [s.loads, s.stored],
            nodes,
            edges,
            torn: s.torn,
            full: s.full != 0,
        }
    }
}

impl<A: Arena + ?Sized> Analysis for TaskEngine<'_, A> {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        let s = self.values();
        if s.full != 0 {
            return Err(ArenaFull);
        }
        if s.block != NONE && self.current.count == 0 {
            // The state was taken up: the block under way is known by index.
            self.current = self.compile(s.block, code);
            s.block = if self.current.count == 0 { NONE } else { s.block };
        }
        for events in events.chunks(4096) {
            s.busy = events.len() as u64;
            compiler_fence(Ordering::SeqCst);
            if self.take(events, code).is_none() {
                s.full = 1;
                s.busy = 0;
                return Err(ArenaFull);
            }
            compiler_fence(Ordering::SeqCst);
            s.consumed += events.len() as u64;
            s.busy = 0;
        }
        Ok(())
    }
}

/// Whether an access of a string instruction belongs to a new iteration, as in the engine of
/// instructions.
fn is_next_iteration(s: &State, is_store: bool, loads_twice: bool) -> bool {
    match (is_store, s.stores_seen) {
        (true, stores) => stores > 0,
        (false, 1..) => true,
        (false, 0) => s.loads_seen >= if loads_twice { 2 } else { 1 },
    }
}

/// Whether an instruction only moves a value, in a view that ignores copies. Calls and returns make
/// no value.
#[inline(always)]
fn is_copy(op: &Op) -> bool {
    op.latency == 0 && op.class != CALL && op.class != RETURN
}

/// A place of [`Op`] as a location: early values are ordinary ones here.
#[inline(always)]
fn register(place: usize) -> usize {
    (if place >= EARLY { place - EARLY } else { place }) % EARLY
}

/// Bytes of a location.
fn bytes_of(place: usize) -> u64 {
    match place {
        16..20 => 1,
        24..32 => 10,
        64.. => 16,
        _ => 8,
    }
}
