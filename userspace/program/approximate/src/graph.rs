//! The control flow of one function: instructions, basic blocks, dominators, natural loops.
//!
//! A natural loop is a back edge's head with every block that reaches the edge
//! without passing the head; loops with one head are one loop (Aho, Sethi,
//! Ullman 1986, §10.4). Dominators by Cooper, Harvey and Kennedy's iteration.
//!
//! Sources of error: a jump through a table is taken to lead to all blocks without another
//! predecessor; code that jumps into the middle of a loop has no natural loop.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use crate::module::Module;
use crate::reason::Reason;

/// Most bytes of a function that are followed.
const MOST_BYTES: u64 = 256 << 10;

/// Most edges that jumps through tables may make.
const MOST_TABLE_EDGES: usize = 1 << 20;

/// Index of a block.
pub(crate) type BlockAt = usize;
/// Index of a loop.
pub(crate) type LoopAt = usize;

#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Indices of its instructions.
    pub(crate) instructions: Range<usize>,
    pub(crate) successors: Vec<BlockAt>,
    pub(crate) predecessors: Vec<BlockAt>,
    /// The innermost loop around the block.
    pub(crate) innermost: Option<LoopAt>,
}

#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) head: BlockAt,
    pub(crate) blocks: BTreeSet<BlockAt>,
}

#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// By address.
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) loops: Vec<Loop>,
    /// Blocks in reverse postorder from the entry; unreachable ones last.
    pub(crate) order: Vec<BlockAt>,
    /// Index of the first block of the function.
    pub(crate) entry: BlockAt,
}

impl Graph {
    /// Decodes a function. `code` holds its ranges, the entry first.
    pub(crate) fn of(module: &Module, code: &[Range<u64>]) -> Result<Self, Reason> {
        let bytes: u64 =
            code.iter().map(|range| range.end.saturating_sub(range.start)).fold(0, u64::saturating_add);
        if bytes > MOST_BYTES {
            return Err(Reason::TooLarge);
        }
        let mut instructions = Vec::new();
        for range in code {
            let mut decoder = Decoder::with_ip(64, module.code(range), range.start, DecoderOptions::NONE);
            while decoder.can_decode() {
                let instruction = decoder.decode();
                if instruction.is_invalid() {
                    break;
                }
                instructions.push(instruction);
            }
        }
        let entry = code.first().map_or(0, |range| range.start);
        Self::build(instructions, entry).ok_or(Reason::NotCode)
    }

    /// `None` without an instruction at the entry.
    fn build(mut instructions: Vec<Instruction>, entry: u64) -> Option<Self> {
        instructions.sort_by_key(Instruction::ip);
        instructions.dedup_by_key(|instruction| instruction.ip());
        let starts = leaders(&instructions, entry);
        let mut blocks: Vec<Block> = Vec::new();
        let mut block_at: HashMap<u64, BlockAt> = HashMap::new();
        for (index, instruction) in instructions.iter().enumerate() {
            if starts.contains(&instruction.ip()) || blocks.is_empty() {
                block_at.insert(instruction.ip(), blocks.len());
                blocks.push(Block { instructions: index..index, ..Block::default() });
            }
            if let Some(block) = blocks.last_mut() {
                block.instructions.end = index + 1;
            }
        }
        let entry = *block_at.get(&entry)?;
        let mut this = Graph { instructions, blocks, loops: Vec::new(), order: Vec::new(), entry };
        this.connect(&block_at);
        this.order_blocks();
        this.find_loops();
        Some(this)
    }

    fn connect(&mut self, block_at: &HashMap<u64, BlockAt>) {
        let mut edges: BTreeSet<(BlockAt, BlockAt)> = BTreeSet::new();
        let mut through_table = Vec::new();
        for (at, block) in self.blocks.iter().enumerate() {
            let Some(last) =
                block.instructions.end.checked_sub(1).and_then(|last| self.instructions.get(last))
            else {
                continue;
            };
            let mut to = |address: u64| edges.extend(block_at.get(&address).map(|target| (at, *target)));
            match last.flow_control() {
                FlowControl::UnconditionalBranch => to(last.near_branch_target()),
                FlowControl::ConditionalBranch => {
                    to(last.near_branch_target());
                    to(last.next_ip());
                }
                FlowControl::IndirectBranch => through_table.push(at),
                FlowControl::Return | FlowControl::Exception => {}
                _ => to(last.next_ip()),
            }
        }
        let led_to: BTreeSet<BlockAt> = edges.iter().map(|(_, to)| *to).collect();
        // Bytes that are no code may look like a series of jumps.
        let too_many = through_table.len().saturating_mul(self.blocks.len()) > MOST_TABLE_EDGES;
        for from in through_table.into_iter().filter(|_| !too_many) {
            edges.extend(
                (0..self.blocks.len())
                    .filter(|to| *to != self.entry && !led_to.contains(to))
                    .map(|to| (from, to)),
            );
        }
        for (from, to) in edges {
            if let Some(block) = self.blocks.get_mut(from) {
                block.successors.push(to);
            }
            if let Some(block) = self.blocks.get_mut(to) {
                block.predecessors.push(from);
            }
        }
    }

    /// Reverse postorder without recursion: functions may be deep.
    fn order_blocks(&mut self) {
        let mut seen = vec![false; self.blocks.len()];
        let mut postorder = Vec::new();
        let mut stack = vec![(self.entry, 0)];
        if let Some(seen) = seen.get_mut(self.entry) {
            *seen = true;
        }
        while let Some((at, next)) = stack.pop() {
            match self.blocks.get(at).and_then(|block| block.successors.get(next)) {
                Some(to) => {
                    stack.push((at, next + 1));
                    if let Some(seen) = seen.get_mut(*to).filter(|seen| !**seen) {
                        *seen = true;
                        stack.push((*to, 0));
                    }
                }
                None => postorder.push(at),
            }
        }
        postorder.reverse();
        // Landing pads of exceptions are reached by no edge.
        postorder.extend(seen.iter().enumerate().filter(|(_, seen)| !**seen).map(|(at, _)| at));
        self.order = postorder;
    }

    fn find_loops(&mut self) {
        let rank: HashMap<BlockAt, usize> =
            self.order.iter().enumerate().map(|(rank, at)| (*at, rank)).collect();
        let dominator = self.dominators(&rank);
        let dominates = |above: BlockAt, mut at: BlockAt| loop {
            if at == above {
                return true;
            }
            match dominator.get(&at) {
                Some(next) if *next != at => at = *next,
                _ => return false,
            }
        };
        let mut bodies: std::collections::BTreeMap<BlockAt, BTreeSet<BlockAt>> =
            std::collections::BTreeMap::new();
        for (from, block) in self.blocks.iter().enumerate() {
            for head in block.successors.iter().filter(|head| dominates(**head, from)) {
                let body = bodies.entry(*head).or_insert_with(|| BTreeSet::from([*head]));
                let mut open = vec![from];
                while let Some(at) = open.pop() {
                    if body.insert(at) {
                        open.extend(self.blocks.get(at).into_iter().flat_map(|block| &block.predecessors));
                    }
                }
            }
        }
        self.loops = bodies.into_iter().map(|(head, blocks)| Loop { head, blocks }).collect();
        // Of the loops around a block the innermost has the fewest blocks.
        let mut by_size: Vec<LoopAt> = (0..self.loops.len()).collect();
        by_size
            .sort_by_key(|at| std::cmp::Reverse(self.loops.get(*at).map_or(0, |found| found.blocks.len())));
        for at in by_size {
            for block in self.loops.get(at).into_iter().flat_map(|found| &found.blocks) {
                if let Some(block) = self.blocks.get_mut(*block) {
                    block.innermost = Some(at);
                }
            }
        }
    }

    /// Immediate dominators of the blocks that the entry reaches.
    fn dominators(&self, rank: &HashMap<BlockAt, usize>) -> HashMap<BlockAt, BlockAt> {
        let mut dominator: HashMap<BlockAt, BlockAt> = HashMap::from([(self.entry, self.entry)]);
        let mut changed = true;
        while changed {
            changed = false;
            for at in self.order.iter().filter(|at| **at != self.entry) {
                let Some(block) = self.blocks.get(*at) else { continue };
                let known = block.predecessors.iter().copied().filter(|from| dominator.contains_key(from));
                let Some(common) = known.reduce(|a, b| common(a, b, &dominator, rank)) else { continue };
                changed |= dominator.insert(*at, common) != Some(common);
            }
        }
        dominator
    }

    /// Index of the instruction at or around the address.
    pub(crate) fn instruction_at(&self, address: u64) -> Option<usize> {
        let behind = self.instructions.partition_point(|instruction| instruction.ip() <= address);
        let at = behind.checked_sub(1)?;
        (address < self.instructions.get(at)?.next_ip()).then_some(at)
    }

    /// The block of an instruction.
    pub(crate) fn block_of(&self, instruction: usize) -> Option<BlockAt> {
        let behind = self.blocks.partition_point(|block| block.instructions.start <= instruction);
        behind.checked_sub(1)
    }
}

fn leaders(instructions: &[Instruction], entry: u64) -> BTreeSet<u64> {
    let mut starts = BTreeSet::from([entry]);
    let mut expected = None;
    for instruction in instructions {
        // A gap begins another piece of code.
        if expected.is_some_and(|expected| expected != instruction.ip()) {
            starts.insert(instruction.ip());
        }
        expected = Some(instruction.next_ip());
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                starts.insert(instruction.near_branch_target());
                starts.insert(instruction.next_ip());
            }
            FlowControl::IndirectBranch | FlowControl::Return | FlowControl::Exception => {
                starts.insert(instruction.next_ip());
            }
            _ => {}
        }
    }
    starts
}

fn common(
    mut a: BlockAt,
    mut b: BlockAt,
    dominator: &HashMap<BlockAt, BlockAt>,
    rank: &HashMap<BlockAt, usize>,
) -> BlockAt {
    let rank = |at: BlockAt| rank.get(&at).copied().unwrap_or(0);
    let up = |at: BlockAt| dominator.get(&at).copied().unwrap_or(at);
    while a != b {
        let before = (a, b);
        if rank(a) > rank(b) {
            a = up(a);
        } else {
            b = up(b);
        }
        if before == (a, b) {
            break;
        }
    }
    a
}
