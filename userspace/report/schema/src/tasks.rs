//! `tasks`: parallelism of blocks, functions or loops of an exact run, and what they hand over.

use serde::{Deserialize, Serialize};

use super::{number::Number, place::Place};

/// Task parallelism: work divided by span, if each execution of a node starts when all values taken
/// from other executions are there. Sums over threads, each with a time of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Tasks {
    /// Values taken by a node from a node, most bytes first, 200 rows at most. Of a node with itself:
    /// by an execution from an earlier execution.
    pub communication: Vec<Communication>,
    /// Executions: of blocks, calls of functions, iterations of loops.
    pub executions: u64,
    /// Dependences not followed: `stack`, `induction`, `copies`, and lines of `--ignore-lines`.
    pub ignored: Vec<String>,
    /// Rows left out of `communication`.
    pub left_out: LeftOut,
    /// `blocks`, `functions` or `loops`.
    pub node: String,
    /// Nodes, most work first, 200 at most.
    pub nodes: Vec<TaskNode>,
    /// Number of nodes with executions.
    pub nodes_total: u64,
    /// Partitions asked for by `--partition`.
    pub partitions: Vec<Partition>,
    /// Instructions on the longest path: cycles with any number of processors.
    pub span: u64,
    /// `work` divided by `span`.
    pub tlp: Number,
    /// The view, as in `parallelism`.
    pub view: String,
    /// Instructions executed.
    pub work: u64,
}

/// Values taken by a node from a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Communication {
    /// Bytes.
    pub bytes: u64,
    /// The writer; `address` is the node's. Code outside loops is `[outside loops]`.
    pub from: Place,
    /// Where the values were read: `registers` or `memory`.
    pub through: String,
    /// The reader.
    pub to: Place,
    /// Values: registers or operands in memory.
    pub values: u64,
}

/// Rows left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LeftOut {
    /// Their bytes.
    pub bytes: u64,
    /// How many.
    pub rows: u64,
    /// Their values.
    pub values: u64,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TaskNode {
    /// Executions.
    pub executions: u64,
    /// Place of the first instruction: of the block, of the function, of the loop's header.
    pub place: Place,
    /// Instructions executed, without those of called functions or inner loops.
    pub work: u64,
}

/// A partition of the nodes, by a heuristic: another partition may have a smaller cut.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Partition {
    /// Whether values pass in one direction between parts only, so that the parts can form a pipeline.
    pub acyclic: bool,
    /// Work of the largest part divided by an equal share; 1 is best.
    pub balance: Number,
    /// Work of all divided by the work of the largest part: no schedule of the parts gains more.
    pub bound: Number,
    /// Bytes between different parts.
    pub cut_bytes: u64,
    /// Bytes between different nodes.
    pub nodes_bytes: u64,
    /// The parts, most work first.
    pub parts: Vec<Part>,
}

/// A part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Part {
    /// Its nodes, most work first, 20 at most.
    pub nodes: Vec<TaskNode>,
    /// Number of nodes.
    pub nodes_total: u64,
    /// Instructions executed.
    pub work: u64,
}
