//! Position of each thread: frames, from the stream's calls, returns, signals and switches.
//!
//! Calls and returns show the stack pointer by the address of the return address. A call first
//! drops the frames at or below the own frame, a return the frames up to the own frame: frames left
//! by `longjmp` or an exception are dropped with the next call or return above. A signal's handler
//! has a separate root; the interrupted code continues at the handler's end. A handler left by
//! `longjmp` ends with the second return without a matching call (the first is the handler's).
//!
//! Limits: a switch between stacks (coroutines) looks like
//! calls or returns until the next real call or return.

use locality_stream::{Arena, Kind};

use crate::sim::Sim;
use crate::state::{Frame, Thread, UNKNOWN_NODE, kind};
use crate::totals::UNKNOWN_CALLER;

/// The newest frame is from a call, still in a stub: the next block tells the function.
pub(crate) const PENDING_BEHIND: u32 = 4;
/// The newest frame is from a call.
pub(crate) const PENDING_CALL: u32 = 1;
/// The newest frame is a thread's first.
pub(crate) const PENDING_ROOT: u32 = 2;
/// The newest frame is a signal handler's, of signal [`Thread::pending_site`].
pub(crate) const PENDING_SIGNAL: u32 = 3;

/// A frame of unknown code.
const UNKNOWN_FRAME: Frame =
    Frame { stack: 0, node: UNKNOWN_NODE, function: UNKNOWN_CALLER, instead: 0, kind: kind::ROOT };

impl Thread {
    /// Makes the frames of a beginning thread.
    pub(crate) fn begin<A: Arena + ?Sized>(&mut self, arena: &A) {
        self.depth = 0;
        self.push(arena, UNKNOWN_FRAME);
        (self.pending, self.ended, self.block) = (PENDING_ROOT, 0, 0);
        if let Some(first) = self.strides.get(arena) {
            // SAFETY: the span's own range; zeros are empty entries.
            unsafe { first.write_bytes(0, self.strides.count()) };
        }
    }

    /// The newest frame.
    #[inline(always)]
    fn top<A: Arena + ?Sized>(&self, arena: &A) -> Frame {
        match self.depth.checked_sub(1) {
            // SAFETY: below the depth; a copy is taken.
            Some(top) => unsafe { *self.frame(arena, top) },
            None => UNKNOWN_FRAME,
        }
    }

    /// Drops the calls with a return address at or below `stack`; returns whether a call existed.
    #[inline(always)]
    fn drop_to<A: Arena + ?Sized>(&mut self, arena: &A, stack: u64) -> bool {
        let before = self.depth;
        while self.depth > 0 {
            let top = self.top(arena);
            if top.kind != kind::CALL || top.stack > stack {
                break;
            }
            self.depth -= 1;
        }
        if self.depth < before {
            self.pending = 0;
        }
        self.depth < before
    }
}

impl<A: Arena + ?Sized> Sim<'_, A> {
    /// The current node and function belong to the newest frame.
    #[inline(always)]
    pub(crate) fn stand(&mut self) {
        let top = self.s.now.top(self.arena);
        if top.node != self.s.node {
            self.s.settle(self.arena);
            self.s.node = top.node;
        }
        (self.s.function, self.s.instead) = (top.function, top.instead);
    }

    /// The cell of a call charged for callees.
    pub(crate) fn instead(&mut self, caller: &Frame, site: u32) -> u32 {
        if caller.instead != 0 { caller.instead } else { self.cell(caller.function, site) }
    }

    /// A call stored the return address at `stack`.
    #[inline(always)]
    pub(crate) fn call(&mut self, stack: u64, site: u32) {
        if self.s.now.drop_to(self.arena, stack) {
            self.stand();
        }
        let above = self.s.now.top(self.arena);
        if self.s.now.push(self.arena, Frame { stack, kind: kind::CALL, ..above }) {
            (self.s.now.pending, self.s.now.pending_site) = (PENDING_CALL, site);
        } else {
            self.s.calls_folded += 1;
        }
    }

    /// A return loaded the return address from `stack`.
    #[inline(always)]
    pub(crate) fn r#return(&mut self, stack: u64) {
        if !self.s.now.drop_to(self.arena, stack) {
            self.return_from_base(stack);
        }
        self.stand();
    }

    #[inline(never)]
    fn return_from_base(&mut self, stack: u64) {
        let Some(top) = self.s.now.depth.checked_sub(1) else { return };
        // SAFETY: below the depth, and no second reference.
        let frame = unsafe { self.s.now.frame(self.arena, top) };
        match frame.kind {
            // To the kernel's trampoline, to end the handler by a system call.
            kind::SIGNAL if frame.stack == 0 => frame.stack = stack.max(1),
            kind::SIGNAL => {
                self.s.now.depth = top;
                self.s.now.drop_to(self.arena, stack);
            }
            kind::ROOT => *frame = UNKNOWN_FRAME,
            // To a pushed address, not a call's.
            _ => {}
        }
    }

    /// The block of arrival of a call (a thread, a handler).
    #[inline(always)]
    pub(crate) fn arrive(&mut self, block: u32) {
        let Some(record) = self.code.blocks.get(block as usize) else { return };
        if matches!(self.s.now.pending, PENDING_CALL | PENDING_BEHIND) && self.facts.is_stub(self.code, block)
        {
            return self.pass_through(block);
        }
        self.enter(block, record.first);
    }

    /// A stub is charged to the caller; the target is still open.
    #[cold]
    fn pass_through(&mut self, block: u32) {
        let Some(top) = self.s.now.depth.checked_sub(1).filter(|top| *top > 0) else { return };
        // SAFETY: below the depth; a copy is taken.
        let above = unsafe { *self.s.now.frame(self.arena, top - 1) };
        let site = self.s.now.pending_site;
        let instead = self.instead(&above, site);
        if above.instead == 0 {
            self.facts.children.set(above.node, site, block, [0, instead, 0]);
        }
        // SAFETY: as above, and no second reference.
        unsafe { self.s.now.frame(self.arena, top).instead = instead };
        self.s.now.pending = PENDING_BEHIND;
        self.stand();
    }

    /// A signal handler begins.
    pub(crate) fn signal(&mut self, number: u64) {
        if self.s.now.push(self.arena, Frame { kind: kind::SIGNAL, ..UNKNOWN_FRAME }) {
            let signal = u32::try_from(number).unwrap_or(0);
            (self.s.now.pending, self.s.now.pending_site) = (PENDING_SIGNAL, signal);
            self.stand();
        } else {
            self.s.calls_folded += 1;
        }
    }

    /// A signal handler has ended.
    pub(crate) fn signal_end(&mut self) {
        let is_handler = |depth: &u32| {
            // SAFETY: below the depth.
            unsafe { self.s.now.frame(self.arena, *depth).kind == kind::SIGNAL }
        };
        if let Some(depth) = (0..self.s.now.depth).rev().find(is_handler) {
            (self.s.now.depth, self.s.now.pending) = (depth, 0);
            self.stand();
        }
    }

    /// The following events are of thread `id`.
    pub(crate) fn switch(&mut self, id: u64) {
        let (arena, s) = (self.arena, &mut *self.s);
        s.settle(arena);
        if s.threads.len() == 1 && s.now.id == 0 && s.now.pending == PENDING_ROOT && s.counts == [0; 3] {
            // The first thread named takes the place made before the name was known.
            s.now.id = id;
        }
        let current = s.thread;
        if let Some(thread) = s.threads.get_mut(arena, current) {
            *thread = s.now;
        }
        let known = s.threads.values(arena).iter().position(|thread| thread.id == id);
        let index = match known {
            Some(index) => Some(index as u32),
            None => {
                // In Callgrind's model the threads share the caches.
                let first = s.threads.values(arena).first().filter(|_| s.model.callgrind == 1);
                let thread = match first {
                    Some(first) => Thread::with_caches(arena, id, &s.model, first.caches),
                    None => Thread::new(arena, id, &s.model),
                };
                thread.and_then(|mut thread| {
                    thread.begin(arena);
                    s.threads.push(arena, thread)
                })
            }
        };
        let Some(index) = self.or_full(index) else { return };
        let s = &mut *self.s;
        if let Some(thread) = s.threads.values(arena).get(index as usize) {
            (s.now, s.thread) = (*thread, index);
        }
        if s.now.ended == 1 {
            s.now.begin(arena);
        }
        self.stand();
    }

    /// Thread `id` has ended; lines of the thread's own caches are given up.
    pub(crate) fn thread_end(&mut self, id: u64) {
        if id != self.s.now.id {
            return;
        }
        self.s.settle(self.arena);
        if self.s.model.callgrind == 0 {
            let thread = self.s.now;
            self.give_up(&thread);
        }
        self.s.now.begin(self.arena);
        self.s.now.ended = 1;
        self.stand();
    }

    /// An event other than access or block.
    #[inline(never)]
    pub(crate) fn other(&mut self, kind: Kind, value: u64) {
        match kind {
            Kind::THREAD => self.switch(value),
            Kind::THREAD_END => {
                self.fetch_rest();
                self.thread_end(value);
            }
            Kind::SIGNAL => {
                self.fetch_rest();
                self.signal(value);
            }
            Kind::SIGNAL_END => {
                self.fetch_rest();
                self.signal_end();
            }
            Kind::BLOCK_CUT => self.cut(value),
            Kind::PLACED => {
                self.s.placed = self.s.placed.max(value);
                self.objects.follow(self.placed, value as usize);
            }
            Kind::LOST => self.s.torn = self.s.torn.saturating_add(value),
            _ => {}
        }
    }
}
