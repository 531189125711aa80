//! Calling contexts: a tree of (parent, call instruction), and where each thread stands in it.
//!
//! Calls and returns tell the stack pointer by the address of the return address. A call first
//! drops the frames at or below its own, a return those up to its own: frames that `longjmp` or an
//! exception left are dropped with the next call or return above them. Until then, and after a
//! switch between stacks (coroutines, alternate signal stacks), a context is that of the last call
//! seen.
//!
//! Recursion is folded (as in Ammons, Ball and Larus, PLDI 1997): a call instruction that is
//! already on the path leads back to its node there. When the number of nodes is at its bound, new
//! calls stay in the caller's context and are counted as folded.

use locality_stream::{Arena, List, Plain, Range, Span};

use crate::map::Map;

/// Frames stored per thread; deeper calls keep the context of the deepest.
const DEPTH: usize = 1 << 16;

/// A node of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Node {
    pub(crate) parent: u32,
    /// Index of the call instruction; of no meaning in node 0, the root.
    pub(crate) call: u32,
}
// SAFETY: two integers.
unsafe impl Plain for Node {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Frame {
    /// Where the return address lies.
    stack: u64,
    node: u32,
    reserved: u32,
}
// SAFETY: integers without padding.
unsafe impl Plain for Frame {}

/// A thread's place.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Thread {
    frames: Span<Frame>,
    pub(crate) id: u64,
    depth: u32,
    /// Block begun and not yet counted, plus 1 (for analyses of instruction fetches).
    pub(crate) block: u32,
    /// The context in which it began.
    pub(crate) block_context: u32,
    reserved: u32,
}
// SAFETY: integers without padding.
unsafe impl Plain for Thread {}

/// The tables; lie in an arena.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Contexts {
    nodes: List<Node>,
    children: Map,
    threads: List<Thread>,
    /// The current thread; its place in `threads` is brought up to date when another takes over.
    pub(crate) now: Thread,
    /// Index of the current thread.
    thread: u32,
    /// Node of the newest frame.
    pub(crate) current: u32,
    bound: u64,
    /// Calls that found no node.
    pub(crate) folded: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Contexts {}

impl Contexts {
    /// A tree of at most `bound` nodes; 1 keeps no contexts at all.
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, bound: usize) -> Option<Contexts> {
        let mut nodes = List::new(arena, bound.clamp(1, 1024))?;
        nodes.push(arena, Node { parent: 0, call: u32::MAX })?;
        let mut threads = List::new(arena, 4)?;
        let now = Thread::new(arena, 0, bound)?;
        threads.push(arena, now)?;
        Some(Contexts {
            nodes,
            // Folded calls have keys too: more keys than nodes.
            children: Map::new(arena, 64, bound.saturating_mul(2))?,
            threads,
            now,
            thread: 0,
            current: 0,
            bound: bound as u64,
            folded: 0,
        })
    }

    /// The events that follow are of thread `id`.
    pub(crate) fn switch<A: Arena + ?Sized>(&mut self, arena: &A, id: u64) -> Option<()> {
        self.threads.set(arena, self.thread as usize, self.now);
        let known = self.threads.values(arena).iter().position(|thread| thread.id == id);
        let index = match known {
            Some(index) => index,
            // The first thread named takes the place that was made before its name was known.
            None if self.threads.len() == 1 && self.now.id == 0 && self.now.depth == 0 => {
                self.now.id = id;
                self.threads.set(arena, 0, self.now);
                0
            }
            None => {
                let thread = Thread::new(arena, id, self.bound as usize)?;
                self.threads.push(arena, thread)?;
                self.threads.len() - 1
            }
        };
        self.now = *self.threads.values(arena).get(index)?;
        self.thread = index as u32;
        self.current = self.now.top(arena).map_or(0, |frame| frame.node);
        Some(())
    }

    /// A call stored its return address at `stack`.
    #[inline(always)]
    pub(crate) fn call<A: Arena + ?Sized>(&mut self, arena: &A, stack: u64, call: u32) {
        if self.bound == 1 {
            return;
        }
        self.now.drop_to(arena, stack);
        let parent = self.now.top(arena).map_or(0, |frame| frame.node);
        self.current = parent;
        if self.now.depth as usize >= DEPTH {
            self.folded += 1;
            return;
        }
        let node = match self.children.get(arena, child_key(parent, call)) {
            Some(node) if node != 0 => node as u32,
            _ => self.new_child(arena, parent, call),
        };
        self.current = node;
        self.now.push(arena, Frame { stack, node, reserved: 0 });
    }

    /// A return loaded its return address from `stack`.
    #[inline(always)]
    pub(crate) fn r#return<A: Arena + ?Sized>(&mut self, arena: &A, stack: u64) {
        self.now.drop_to(arena, stack);
        self.current = self.now.top(arena).map_or(0, |frame| frame.node);
    }

    #[inline(never)]
    fn new_child<A: Arena + ?Sized>(&mut self, arena: &A, parent: u32, call: u32) -> u32 {
        let nodes = self.nodes.values(arena);
        let mut ancestor = parent;
        // Parents have lower numbers than their children, so that this ends.
        while ancestor != 0 {
            match nodes.get(ancestor as usize) {
                Some(node) if node.call == call => break,
                Some(node) if node.parent < ancestor => ancestor = node.parent,
                _ => ancestor = 0,
            }
        }
        let mut node = ancestor;
        if node == 0 {
            if self.nodes.len() as u64 >= self.bound
                || self.nodes.push(arena, Node { parent, call }).is_none()
            {
                self.folded += 1;
                return parent;
            }
            node = self.nodes.len() as u32 - 1;
        }
        if let Ok(child) = self.children.value(arena, child_key(parent, call)) {
            *child = u64::from(node);
        }
        node
    }

    /// All nodes; the root first.
    pub(crate) fn nodes<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [Node] {
        self.nodes.values(arena)
    }

    pub(crate) fn ranges<A: Arena + ?Sized>(&self, arena: &A) -> Vec<Range> {
        // The current thread has its frames twice.
        let threads = self.threads.values(arena).iter().chain([&self.now]);
        let mut ranges: Vec<Range> = threads.map(|thread| thread.frames.range()).collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges.extend([self.nodes.range(), self.children.range(), self.threads.range()]);
        ranges
    }

    /// Checks tables that come out of another process' hands.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        let sound = self.nodes.is_whole(arena)
            && !self.nodes.is_empty()
            && self.children.is_whole(arena)
            && self.threads.is_whole(arena)
            && (self.thread as usize) < self.threads.len()
            && self.threads.values(arena).iter().chain([&self.now]).all(|thread| {
                thread.frames.get(arena).is_some() && thread.depth as usize <= thread.frames.count()
            });
        let nodes = self.nodes.len() as u64;
        let numbers_are_below = |thread: &Thread| {
            u64::from(thread.block_context) < nodes
                && (0..thread.depth).all(|depth| u64::from(thread.frame(arena, depth).node) < nodes)
        };
        sound
            && self
                .nodes
                .values(arena)
                .iter()
                .enumerate()
                .skip(1)
                .all(|(index, node)| (node.parent as usize) < index)
            && u64::from(self.current) < nodes
            && self.children.iterate(arena).all(|child| child.value < nodes)
            && self.threads.values(arena).iter().chain([&self.now]).all(numbers_are_below)
    }
}

fn child_key(parent: u32, call: u32) -> u64 {
    (u64::from(parent) + 1) << 32 | u64::from(call)
}

impl Thread {
    fn new<A: Arena + ?Sized>(arena: &A, id: u64, bound: usize) -> Option<Thread> {
        let frames = Span::allocate(arena, if bound > 1 { DEPTH } else { 1 })?;
        Some(Thread { frames, id, depth: 0, block: 0, block_context: 0, reserved: 0 })
    }

    #[inline(always)]
    fn frame<A: Arena + ?Sized>(&self, arena: &A, depth: u32) -> Frame {
        // SAFETY: callers pass a depth below `self.depth`, which is at most the span's count.
        unsafe {
            *arena.base().as_ptr().add(self.frames.offset() as usize).cast::<Frame>().add(depth as usize)
        }
    }

    #[inline(always)]
    fn top<A: Arena + ?Sized>(&self, arena: &A) -> Option<Frame> {
        Some(self.frame(arena, self.depth.checked_sub(1)?))
    }

    /// Drops the frames whose return address lies at or below `stack`.
    #[inline(always)]
    fn drop_to<A: Arena + ?Sized>(&mut self, arena: &A, stack: u64) {
        while let Some(top) = self.top(arena)
            && top.stack <= stack
        {
            self.depth -= 1;
        }
    }

    #[inline(always)]
    fn push<A: Arena + ?Sized>(&mut self, arena: &A, frame: Frame) {
        if (self.depth as usize) < self.frames.count() {
            // SAFETY: the depth is below the span's count.
            unsafe {
                *arena
                    .base()
                    .as_ptr()
                    .add(self.frames.offset() as usize)
                    .cast::<Frame>()
                    .add(self.depth as usize) = frame;
            }
            self.depth += 1;
        }
    }
}
