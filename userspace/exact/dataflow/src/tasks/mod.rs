//! Task parallelism: pieces of a run in place of instructions.
//!
//! After the 2012 paper of [`crate`] (§IV.B: parallelism of basic blocks, and communication between
//! blocks for partitioning). A *node* is a place of the program: a basic block, a function or a loop. An
//! *execution* of a node is a basic block executed once, a call of a function without its callees, or an
//! iteration of a loop without inner loops. An execution with calls or inner loops in between runs in
//! *pieces*, in order.
//!
//! A piece starts when every value taken from another execution is there, takes a cycle for each
//! instruction, and has its results at the end. A piece does not start before the previous piece of the
//! same execution is done. A call or an iteration does not start before the piece with the call, or with
//! the entry of the loop, is done. Work is instructions, span the latest end, TLP = work ÷ span.
//!
//! A value belongs to the execution that computed the value. In a view that ignores copies, moves pass
//! values on: a value is taken by whoever loads it from memory or computes with it. A taken value counts
//! once an execution, unless another execution has taken a part of the register or word of 8 bytes in
//! between. A value in a general or
//! mask register has 8 bytes, a vector 16, an x87 register 10, flags 1, unless loaded with fewer.
//!
//! Steps of induction variables (`induction`) are available at once to all readers, if the register
//! forms an address, is compared, or decides the block's branch.
//!
//! Sources of error: blocks are those of the source, so code entered in the middle is part of two; the
//! first iteration of a loop counts with the code before the loop, unless a jump leads to the header; loops
//! by computed jumps are not seen; a part of a register counts as the whole register.

mod edges;
mod engine;
mod state;

use std::{fmt, str::FromStr};

pub(crate) use edges::Edges;
pub use engine::TaskEngine;
pub use state::NO_BLOCK;

use crate::setup::{BadSetup, View};

/// What the nodes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Node {
    /// Basic blocks.
    #[default]
    Blocks,
    /// Functions.
    Functions,
    /// Loops, each innermost one for itself.
    Loops,
}

impl Node {
    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Node::Blocks => "blocks",
            Node::Functions => "functions",
            Node::Loops => "loops",
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskSetup {
    /// Nodes.
    pub node: Node,
    /// Dependences that are ignored.
    pub view: View,
}

impl fmt::Display for TaskSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ignored: String = self.view.ignored().iter().filter_map(|name| name.chars().next()).collect();
        write!(f, "{ignored}/{}", self.node.name())
    }
}

impl FromStr for TaskSetup {
    type Err = BadSetup;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, BadSetup> {
        let bad = || BadSetup::of(format!("`{text}` describes no tasks"));
        let (ignored, node) = text.split_once('/').ok_or_else(bad)?;
        let has = |letter| ignored.contains(letter);
        let nodes = [Node::Blocks, Node::Functions, Node::Loops];
        Ok(TaskSetup {
            node: nodes.into_iter().find(|known| known.name() == node).ok_or_else(bad)?,
            view: View { stack: has('s'), induction: has('i'), copies: has('c'), reductions: false },
        })
    }
}

/// A node's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCount {
    /// Index of the block: of the node's only block, of the function's first, of the loop's header;
    /// [`NO_BLOCK`] for code outside loops.
    pub block: u32,
    /// Executions begun.
    pub executions: u64,
    /// Instructions executed.
    pub work: u64,
}

/// Values taken by a node from a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EdgeCount {
    /// Writer, a position in [`TaskSummary::nodes`].
    pub from: u32,
    /// Reader.
    pub to: u32,
    /// Whether the values were read from memory, not from registers.
    pub memory: bool,
    /// Bytes.
    pub bytes: u64,
    /// Values.
    pub values: u64,
}

/// Results of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSummary {
    /// The requested setup.
    pub setup: TaskSetup,
    /// Instructions executed.
    pub work: u64,
    /// Instructions on the longest path: cycles with any number of processors.
    pub span: u64,
    /// Executions of nodes.
    pub executions: u64,
    /// Loads and stores.
    pub accesses: [u64; 2],
    /// Nodes with executions.
    pub nodes: Vec<NodeCount>,
    /// Communication, in the order of writer, reader, registers before memory.
    pub edges: Vec<EdgeCount>,
    /// Events interrupted by a kill.
    pub torn: u64,
    /// Whether room ran out before the end.
    pub full: bool,
}
