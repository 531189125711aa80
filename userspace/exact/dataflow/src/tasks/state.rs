//! State of a thread's tasks in an arena, for another process to continue.

use locality_stream::{Arena, List, Locations, Plain, Range, Span, are_apart};

use super::edges::Edges;
use super::{Node, TaskSetup};
use crate::setup::View;
use crate::shadow::Pages;
use crate::state::NONE;

/// Marks a complete state of the current version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"tasks\0\0\x01");
/// Numbers of a value: the piece that computed it (0: none), the execution that took it last, the bytes
/// taken, the number of bytes (0: a whole register).
pub(super) type Cell = [u32; 4];
/// Numbers of a [`Cell`].
pub(super) const CELL: usize = 4;
/// Stands for code outside loops.
pub const NO_BLOCK: u32 = u32::MAX;
/// Calls and loops at most on a thread's stack; deeper ones are part of the last.
const DEPTH: usize = 1 << 16;
/// Pieces at first before those without values are dropped.
const PIECES: usize = if cfg!(test) { 32 } else { 1 << 16 };

/// A piece of an execution.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Piece {
    /// The cycle of its end; 0 while running.
    pub end: u64,
    /// Number of the execution.
    pub execution: u64,
    /// Number of the node: the block's index plus 1, 0 outside loops.
    pub node: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Piece {}

/// A call or a loop under way.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Frame {
    /// Place of the return address; 0 for a loop.
    pub slot: u64,
    /// Address of the loop's header; 0 for a call.
    pub header: u64,
    /// Execution around the call or the loop.
    pub execution: u64,
    /// Its node.
    pub node: u32,
    /// Its last piece.
    pub last: u32,
    /// Node of the loop.
    pub own: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Frame {}

/// Counts of a node.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Counts {
    pub executions: u64,
    pub work: u64,
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
    /// Kind of nodes and view.
    plan: u64,
    /// Events taken.
    pub consumed: u64,
    /// Events under way; 0 between calls.
    pub busy: u64,
    /// Events interrupted by a kill.
    pub torn: u64,
    /// 1 when the arena ran full.
    pub full: u64,
    /// Not 0 while pieces are renumbered.
    pub collecting: u64,
    pub instructions: u64,
    pub span: u64,
    pub loads: u64,
    pub stored: u64,
    /// Executions begun.
    pub executions: u64,
    /// The execution under way, and of the running piece: start, instructions.
    pub execution: u64,
    pub start: u64,
    pub work: u64,
    /// The running piece (position plus 1), 0 for none, and its node.
    pub running: u32,
    pub node: u32,
    pub pieces: Span<Piece>,
    pub piece_count: u64,
    /// Pieces at which those without values are dropped.
    pub limit: u64,
    pub nodes: List<Counts>,
    pub edges: Edges,
    pub pages: Pages,
    pub frames: Span<Frame>,
    pub depth: u64,
    /// The place of a return address just stored or loaded, and which: 1 a call, 2 a return.
    pub flow: [u64; 2],
    pub registers: [Cell; Locations::PLACES],
    /// The value loaded by the instruction under way.
    pub value: Cell,
    pub written: [u32; 16],
    pub addressed: [u32; 16],
    pub sequence: u32,
    /// The block under way; [`NONE`].
    pub block: u32,
    /// Instructions executed or under way in the block.
    pub position: u32,
    /// The instruction under way, by place in the block; [`NONE`].
    pub open: u32,
    pub loads_seen: u32,
    pub stores_seen: u32,
    pub top: u32,
    pub reserved: u32,
    /// The string instruction executed last: address, and the number of the next instruction.
    pub string: [u64; 2],
}
// SAFETY: integers without padding: the parts are multiples of 8 bytes or come in pairs.
unsafe impl Plain for State {}

const _: () = assert!(size_of::<State>().is_multiple_of(8));

impl State {
    /// Fills a state of zeros.
    pub fn begin<A: Arena + ?Sized>(&mut self, arena: &A, setup: TaskSetup) -> Option<()> {
        let node = match setup.node {
            Node::Blocks => 0,
            Node::Functions => 1,
            Node::Loops => 2,
        };
        let TaskSetup { view, .. } = setup;
        self.plan =
            node | u64::from(view.stack) << 8 | u64::from(view.induction) << 9 | u64::from(view.copies) << 10;
        self.pieces = Span::allocate(arena, PIECES)?;
        self.limit = PIECES as u64;
        self.nodes = List::new(arena, 1 << 10)?;
        self.edges = Edges::new(arena)?;
        self.pages = Pages::new(arena)?;
        self.frames = Span::allocate(arena, DEPTH)?;
        (self.block, self.open) = (NONE, NONE);
        Some(())
    }

    /// What was asked for; `None` for invalid numbers.
    pub fn setup(&self) -> Option<TaskSetup> {
        let node = match self.plan & 0xff {
            0 => Node::Blocks,
            1 => Node::Functions,
            2 => Node::Loops,
            _ => return None,
        };
        let has = |bit: u32| self.plan & 1 << bit != 0;
        Some(TaskSetup {
            node,
            view: View { stack: has(8), induction: has(9), copies: has(10), reductions: false },
        })
    }

    /// Checks a state from another process, and repairs damage by a kill.
    pub fn repair<A: Arena + ?Sized>(&mut self, arena: &A, own: Range) -> Option<TaskSetup> {
        let setup = self.setup()?;
        let sound = self.pieces.count() > 0
            && self.pieces.get(arena).is_some()
            && self.piece_count as usize <= self.pieces.count()
            && self.limit as usize <= self.pieces.count()
            && self.nodes.is_whole(arena)
            && self.edges.is_whole(arena)
            && self.frames.get(arena).is_some()
            && self.frames.count() == DEPTH
            && self.depth as usize <= DEPTH;
        if !sound {
            return None;
        }
        let mut ranges =
            vec![own, self.pieces.range(), self.nodes.range(), self.edges.range(), self.frames.range()];
        ranges.extend(self.pages.ranges::<CELL, A>(arena)?);
        if !are_apart(arena, ranges) {
            return None;
        }
        self.pages.forget_room();
        if self.busy != 0 {
            self.consumed = self.consumed.saturating_add(self.busy);
            self.torn = self.torn.saturating_add(self.busy);
            self.busy = 0;
            (self.block, self.open, self.flow) = (NONE, NONE, [0; 2]);
        }
        Some(setup)
    }
}
