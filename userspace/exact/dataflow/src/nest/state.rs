//! State of a thread's nest of regions in an arena, for another process to continue.

use locality_stream::{Arena, List, Plain, Range, Span, are_apart};

/// Marks a complete state of the current version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"nest\0\0\0\x01");
/// Regions at most on a thread's stack; deeper ones are part of the last.
const DEPTH: usize = 1 << 16;
/// Stands for a region without times of its own.
pub(super) const UNMEASURED: u64 = u64::MAX;

/// A region under way.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Frame {
    /// Place of the return address, `u64::MAX` if not seen; 0 for a loop.
    pub slot: u64,
    /// Address of the loop's header; 0 for a call.
    pub header: u64,
    /// First address of the function, 0 if not known; for a loop, of the function around.
    pub entry: u64,
    /// Position among the nodes.
    pub node: u64,
    /// Level; [`UNMEASURED`] below the last. A loop's iterations have the next one.
    pub level: u64,
    /// The cycle of the beginning, and of the iteration's beginning.
    pub begun: u64,
    pub turn: u64,
    /// Instructions, and cycles of all instructions, before.
    pub work: u64,
    pub serial: u64,
    /// Of measured children: spans, and cycles of all instructions. Of a loop: spans of iterations.
    pub parts: u64,
    pub inside: u64,
    /// Iterations begun.
    pub turns: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Frame {}

/// Counts of a node. The node of a function is twice its first block's index, of a loop the next.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Counts {
    pub instances: u64,
    pub iterations: u64,
    pub work: u64,
    pub span: u64,
    pub parts: u64,
    pub unmeasured: u64,
    /// Instances under way.
    pub active: u64,
    /// First address after the loop's code; 0 for no loop's header.
    pub end: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Counts {}

/// The state.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct State {
    pub magic: u64,
    /// Where the state of the levels' times lies.
    pub levels: u64,
    /// Events taken.
    pub consumed: u64,
    /// Events under way; 0 between calls.
    pub busy: u64,
    /// Events interrupted by a kill.
    pub torn: u64,
    /// 1 when the arena ran full.
    pub full: u64,
    pub nodes: List<Counts>,
    pub frames: Span<Frame>,
    pub depth: u64,
    /// Levels taken.
    pub used: u64,
    /// The place of a return address just stored or loaded, and which: 1 a call, 2 a return.
    pub flow: [u64; 2],
}
// SAFETY: integers without padding.
unsafe impl Plain for State {}

const _: () = assert!(size_of::<State>().is_multiple_of(8));

impl State {
    /// Fills a state of zeros.
    pub fn begin<A: Arena + ?Sized>(&mut self, arena: &A, levels: u64) -> Option<()> {
        self.levels = levels;
        self.nodes = List::new(arena, 1 << 10)?;
        self.frames = Span::allocate(arena, DEPTH)?;
        Some(())
    }

    /// Checks a state from another process, and repairs damage by a kill.
    pub fn repair<A: Arena + ?Sized>(&mut self, arena: &A, own: Range) -> Option<()> {
        let sound = self.nodes.is_whole(arena)
            && self.frames.get(arena).is_some()
            && self.frames.count() == DEPTH
            && self.depth as usize <= DEPTH;
        if !sound || !are_apart(arena, vec![own, self.nodes.range(), self.frames.range()]) {
            return None;
        }
        if self.busy != 0 {
            self.consumed = self.consumed.saturating_add(self.busy);
            self.torn = self.torn.saturating_add(self.busy);
            (self.busy, self.flow) = (0, [0; 2]);
        }
        Some(())
    }
}
