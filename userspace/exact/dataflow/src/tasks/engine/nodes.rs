//! Which execution runs: calls, loops, and their pieces.

use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Arena, Flow, Span};

use super::{CALLED, NOTHING, RETURNED, STUB, TaskEngine};
use crate::ops::Block;
use crate::tasks::state::{Frame, Piece};

impl<'a, A: Arena + ?Sized> TaskEngine<'a, A> {
    /// A block begins: a function may have been called or left before.
    pub(super) fn function(&mut self, index: u32, block: &Block) -> Option<()> {
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
            // Frames that a jump left may have been all: the function then begins anew.
            let is_entry = block.begins && s.depth == 0;
            if let Some(frame) = left.filter(|_| !is_entry) {
                return self.begin(frame.node, Some(frame.execution), frame.last);
            }
            if is_entry {
                return self.begin(index + 1, None, 0);
            }
        }
        if is_entry { self.begin(index + 1, None, 0) } else { Some(()) }
    }

    /// A block begins: a loop may begin, go on, or end.
    ///
    /// Loops are not those of `locality_loops`, which finds the strongly connected parts of a whole graph
    /// anew with each new edge, and then walks the windows again. Here each block is seen once, while the
    /// program runs, and its values belong to an execution at once: a loop found later could not be given
    /// what was counted before. A jump back is known at once. The two differ for loops with two entries,
    /// and for code of a loop that lies outside of the range from header to last jump back.
    pub(super) fn follow_loop(&mut self, index: u32, before: &Block, block: &Block) -> Option<()> {
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
        let is_header = is_back || s.nodes.get_mut(self.arena, node).is_some_and(|counts| counts.end != 0);
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

    pub(super) fn piece(&mut self, number: u32) -> Option<&'a mut Piece> {
        let s = self.values();
        let at = (number as usize).checked_sub(1).filter(|at| *at < s.piece_count as usize)?;
        // SAFETY: below the count of the table, without other references.
        Some(unsafe { &mut *s.pieces.get(self.arena)?.as_ptr().add(at) })
    }

    /// Begins a piece: of a new execution, or of one under way; not before the end of `last`.
    pub(super) fn begin(&mut self, node: u32, execution: Option<u64>, last: u32) -> Option<()> {
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
    pub(super) fn end_piece(&mut self) -> Option<()> {
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
        let frames =
            unsafe { std::slice::from_raw_parts_mut(s.frames.get(self.arena)?.as_ptr(), s.depth as usize) };
        frames.iter().for_each(|frame| mark(frame.last));
        s.collecting = 1;
        compiler_fence(Ordering::SeqCst);
        let first = s.pieces.get(self.arena)?.as_ptr();
        let mut left = 0_u32;
        for at in 1..=count {
            let Some(number) = numbers.get_mut(at).filter(|number| **number != 0) else { continue };
            left += 1;
            *number = left;
            // SAFETY: both below the count; the new place is not after the old.
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
    pub(super) fn forget(&mut self) {
        let s = self.values();
        self.shadow.each(&s.pages, |cell| *cell = NOTHING);
        (s.registers, s.value) = ([NOTHING; _], NOTHING);
        (s.piece_count, s.running, s.depth, s.collecting) = (0, 0, 0, 0);
        s.limit = s.pieces.count() as u64;
    }
}
