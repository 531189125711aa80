//! The engine of tasks: events in, pieces and communication out.
//!
//! Instructions are executed in program order, as by the engine of instructions; a location has the piece
//! that computed its value in place of a time. Pieces without a value left are dropped from time to time.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Analysis, Arena, ArenaFull, Code, Event, Flow, Kind, Offset, Span};

use super::state::{CELL, Cell, Frame, MAGIC, NO_BLOCK, Piece, State};
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
                    Kind::SYSTEM_CALL | Kind::THREAD_END | Kind::SIGNAL | Kind::SIGNAL_END => {
                        self.end_block(u32::MAX)?;
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

    /// A block begins: a function may have been called or left before.
    fn function(&mut self, index: u32, block: &Block) -> Option<()> {
        let s = self.values();
        let [what, slot] = s.flow;
        // A stub belongs to the caller.
        if what == CALLED && block.count <= STUB && block.flow == Flow::IndirectJump && s.running != 0 {
            return Some(());
        }
        s.flow = [0; 2];
        let is_entry = s.running == 0 || (block.begins && s.depth == 0);
        if what == CALLED {
            let left = self.unwind(slot.wrapping_add(1), false);
            if let Some(frame) = left {
                self.begin(frame.node, Some(frame.execution), frame.last)?;
            }
            let caller = Frame { slot, header: 0, ..self.here() };
            if self.push(caller) || is_entry {
                return self.begin(index + 1, None, caller.last);
            }
        } else if what == RETURNED && !is_entry {
            let left = self.unwind(slot, true);
            if let Some(frame) = left {
                return self.begin(frame.node, Some(frame.execution), frame.last);
            }
        }
        if is_entry { self.begin(index + 1, None, 0) } else { Some(()) }
    }

    /// A block begins: a loop may begin, go on, or end.
    fn follow_loop(&mut self, index: u32, before: &Block, block: &Block) -> Option<()> {
        let s = self.values();
        let [what, slot] = std::mem::take(&mut s.flow);
        if s.running == 0 {
            self.begin(0, None, 0)?;
        }
        if what == CALLED {
            if let Some(frame) = self.unwind(slot.wrapping_add(1), false) {
                self.resume(&frame)?;
            }
            let caller = Frame { slot, header: 0, ..self.here() };
            self.push(caller);
        } else if what == RETURNED
            && let Some(frame) = self.unwind(slot, true)
        {
            self.resume(&frame)?;
        }
        // Loops left by this block.
        while let Some(frame) = self.top().filter(|frame| frame.header != 0) {
            let end = s.nodes.get_mut(self.arena, frame.own as u32).map_or(0, |counts| counts.end);
            if (frame.header..end).contains(&block.address) {
                break;
            }
            s.depth -= 1;
            self.resume(&frame)?;
        }
        let is_back = what == 0
            && matches!(before.flow, Flow::Conditional | Flow::Jump)
            && block.address < before.end
            && before.count != 0;
        let node = index + 1;
        if is_back {
            self.know(node)?;
            let counts = s.nodes.get_mut(self.arena, node)?;
            counts.end = counts.end.max(before.end);
        }
        let is_header =
            is_back || s.nodes.get_mut(self.arena, node).is_some_and(|counts| counts.end != 0);
        if !is_header {
            return Some(());
        }
        // The header of a loop under way, perhaps with inner loops left.
        let mut depth = s.depth;
        while let Some(frame) = self.frame(depth).filter(|frame| frame.header != 0) {
            if frame.header == block.address {
                s.depth = depth;
                return self.begin(frame.own as u32, None, frame.last);
            }
            depth -= 1;
        }
        let around = Frame { header: block.address, own: node.into(), ..self.here() };
        if self.push(around) { self.begin(node, None, around.last) } else { Some(()) }
    }

    /// Goes on with the execution around a call or a loop.
    fn resume(&mut self, frame: &Frame) -> Option<()> {
        if self.values().execution == frame.execution {
            return Some(());
        }
        self.begin(frame.node, Some(frame.execution), frame.last)
    }

    /// The running piece, as what is around something to begin.
    fn here(&mut self) -> Frame {
        let s = self.values();
        Frame { slot: 0, header: 0, execution: s.execution, node: s.node, last: s.running, own: 0 }
    }

    fn frame(&mut self, depth: u64) -> Option<Frame> {
        let s = self.values();
        let at = usize::try_from(depth).ok()?.checked_sub(1).filter(|at| *at < s.frames.count())?;
        // SAFETY: below the count of the table.
        Some(unsafe { s.frames.get(self.arena)?.as_ptr().add(at).read() })
    }

    fn top(&mut self) -> Option<Frame> {
        let depth = self.values().depth;
        self.frame(depth)
    }

    /// False at the greatest depth.
    fn push(&mut self, frame: Frame) -> bool {
        let s = self.values();
        let Some(first) = s.frames.get(self.arena).filter(|_| (s.depth as usize) < s.frames.count()) else {
            return false;
        };
        // SAFETY: below the count of the table.
        unsafe { first.as_ptr().add(s.depth as usize).write(frame) };
        s.depth += 1;
        true
    }

    /// Drops calls with a return address below `slot`, with the loops inside, and one at `slot` if
    /// `returns`. The outermost dropped frame of a call.
    fn unwind(&mut self, slot: u64, returns: bool) -> Option<Frame> {
        let mut left = None;
        let mut depth = self.values().depth;
        while let Some(frame) = self.frame(depth) {
            // Loops lie within the call below.
            if frame.header == 0 {
                let ends = frame.slot < slot || (returns && frame.slot == slot);
                if !ends {
                    break;
                }
                left = Some(frame);
                self.values().depth = depth - 1;
                if frame.slot == slot {
                    break;
                }
            }
            depth -= 1;
        }
        left
    }

    /// Room for a node's counts.
    fn know(&mut self, node: u32) -> Option<()> {
        let s = self.values();
        match s.nodes.len() <= node as usize {
            true => s.nodes.extend(self.arena, node as usize + 1),
            false => Some(()),
        }
    }

    fn piece(&mut self, number: u32) -> Option<&'a mut Piece> {
        let s = self.values();
        let at = (number as usize).checked_sub(1).filter(|at| *at < s.piece_count as usize)?;
        // SAFETY: below the count of the table, without other references.
        Some(unsafe { &mut *s.pieces.get(self.arena)?.as_ptr().add(at) })
    }

    /// Begins a piece: of a new execution, or of one under way; not before the end of `last`.
    fn begin(&mut self, node: u32, execution: Option<u64>, last: u32) -> Option<()> {
        self.end_piece()?;
        let start = self.piece(last).map_or(0, |piece| piece.end);
        let s = self.values();
        self.know(node)?;
        if execution.is_none() {
            s.executions += 1;
            s.nodes.get_mut(self.arena, node)?.executions += 1;
        }
        s.execution = execution.unwrap_or(s.executions);
        (s.node, s.start, s.work) = (node, start, 0);
        if s.piece_count >= s.limit {
            self.collect()?;
        }
        let piece = Piece { end: 0, execution: s.execution, node: node.into() };
        // SAFETY: the limit is at most the count of the table.
        unsafe { s.pieces.get(self.arena)?.as_ptr().add(s.piece_count as usize).write(piece) };
        s.piece_count += 1;
        s.running = s.piece_count as u32;
        Some(())
    }

    /// Ends the running piece.
    #[inline]
    fn end_piece(&mut self) -> Option<()> {
        let s = self.values();
        let end = s.start + s.work;
        if let Some(piece) = self.piece(s.running) {
            piece.end = end;
            s.nodes.get_mut(self.arena, s.node)?.work += s.work;
            s.instructions += s.work;
            s.span = s.span.max(end);
        }
        // Counted; the piece may be taken up by nobody.
        (s.start, s.work, s.running) = (end, 0, 0);
        Some(())
    }

    /// Drops pieces without values, and numbers the others anew.
    #[cold]
    fn collect(&mut self) -> Option<()> {
        let s = self.values();
        let count = s.piece_count as usize;
        let mut numbers = vec![0_u32; count + 1];
        let mut mark = |number: u32| {
            if let Some(number) = numbers.get_mut(number as usize) {
                *number = 1;
            }
        };
        self.shadow.each(&s.pages, |cell| mark(cell[0]));
        s.registers.iter().chain([&s.value]).for_each(|cell| mark(cell[0]));
        // SAFETY: the owner alone writes.
        let frames = unsafe { std::slice::from_raw_parts_mut(s.frames.get(self.arena)?.as_ptr(), s.depth as usize) };
        frames.iter().for_each(|frame| mark(frame.last));
        s.collecting = 1;
        compiler_fence(Ordering::SeqCst);
        let first = s.pieces.get(self.arena)?.as_ptr();
        let mut left = 0_u32;
        for at in 1..=count {
            let Some(number) = numbers.get_mut(at).filter(|number| **number != 0) else { continue };
            left += 1;
            *number = left;
            // SAFETY: both below the count; the new place is not behind the old.
            unsafe { *first.add(left as usize - 1) = *first.add(at - 1) };
        }
        if let Some(none) = numbers.first_mut() {
            *none = 0;
        }
        let renumber = |number: &mut u32| *number = numbers.get(*number as usize).copied().unwrap_or(0);
        self.shadow.each(&s.pages, |cell| renumber(&mut cell[0]));
        s.registers.iter_mut().chain([&mut s.value]).for_each(|cell| renumber(&mut cell[0]));
        frames.iter_mut().for_each(|frame| renumber(&mut frame.last));
        s.piece_count = left.into();
        if left as usize * 2 > s.pieces.count() {
            let larger: Span<Piece> = Span::allocate(self.arena, s.pieces.count() * 4)?;
            // SAFETY: two tables, the new one larger.
            unsafe { larger.get(self.arena)?.as_ptr().copy_from_nonoverlapping(first, left as usize) };
            std::mem::replace(&mut s.pieces, larger).release(self.arena);
        }
        s.limit = s.pieces.count() as u64;
        compiler_fence(Ordering::SeqCst);
        s.collecting = 0;
        Some(())
    }

    /// Forgets who computed what, after a kill while pieces were renumbered.
    #[cold]
    fn forget(&mut self) {
        let s = self.values();
        self.shadow.each(&s.pages, |cell| *cell = NOTHING);
        (s.registers, s.value) = ([NOTHING; _], NOTHING);
        (s.piece_count, s.running, s.depth, s.collecting) = (0, 0, 0, 0);
        s.limit = s.pieces.count() as u64;
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
            Special::Exchange(_) => {}
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
