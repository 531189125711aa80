//! A function's machine code as a graph of basic blocks. The bytes are given by the caller.
//!
//! Calls do not end blocks. Blocks begin at the function's entry, at targets of branches, after branches,
//! and where windows saw control arrive. Targets of indirect jumps are those that windows saw.
//!
//! Sources of error: code that only an unseen indirect jump reaches is left out; a jump out of the
//! function's bytes is a tail call.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction};

/// Instructions of a function that are read.
const MOST_INSTRUCTIONS: usize = 200_000;

/// How a block is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leave {
    /// To the next block, or by a direct jump.
    Goes,
    /// By a conditional branch.
    Branches,
    /// By an indirect jump.
    Jumps,
    /// By a jump to another function.
    TailCalls(Option<u64>),
    /// By a return.
    Returns,
    /// Not at all: `ud2`, `hlt`, or the end of the bytes.
    Stops,
}

/// A basic block.
#[derive(Debug, Clone)]
pub struct Block {
    /// Address of its first instruction.
    pub start: u64,
    /// Numbers of its instructions among the function's.
    pub instructions: Range<usize>,
    /// Blocks that may follow; of a conditional branch the one that it falls through to first.
    pub next: Vec<usize>,
    /// How it is left.
    pub leave: Leave,
}

/// A function.
#[derive(Debug, Clone)]
pub struct Function {
    /// Address of the entry.
    pub entry: u64,
    /// Instructions that control can reach, by address.
    pub instructions: Vec<Instruction>,
    /// Blocks by address.
    pub blocks: Vec<Block>,
    /// Number of the entry's block.
    pub first: usize,
}

impl Function {
    /// Reads a function from its bytes, which begin at `start`. `arrivals`: where windows saw indirect jumps
    /// of these addresses lead. `None` where the entry is not among the bytes.
    pub fn read(
        entry: u64,
        start: u64,
        bytes: &[u8],
        arrivals: &BTreeMap<u64, BTreeSet<u64>>,
    ) -> Option<Self> {
        let end = start.checked_add(bytes.len() as u64)?;
        let inside = |address: u64| (start..end).contains(&address);
        if !inside(entry) {
            return None;
        }
        let mut found: BTreeMap<u64, Instruction> = BTreeMap::new();
        let mut leaders = BTreeSet::from([entry]);
        let mut work = vec![entry];
        while let Some(from) = work.pop() {
            let mut decoder =
                Decoder::with_ip(64, bytes.get((from - start) as usize..)?, from, DecoderOptions::NONE);
            while decoder.can_decode() && found.len() < MOST_INSTRUCTIONS {
                let instruction = decoder.decode();
                if instruction.code() == Code::INVALID || found.contains_key(&instruction.ip()) {
                    break;
                }
                found.insert(instruction.ip(), instruction);
                let mut targets = Vec::new();
                let is_last = match instruction.flow_control() {
                    FlowControl::ConditionalBranch => {
                        targets.extend([instruction.next_ip(), instruction.near_branch_target()]);
                        true
                    }
                    FlowControl::UnconditionalBranch => {
                        targets.push(instruction.near_branch_target());
                        true
                    }
                    FlowControl::IndirectBranch => {
                        targets.extend(arrivals.get(&instruction.ip()).into_iter().flatten());
                        true
                    }
                    FlowControl::Return => true,
                    FlowControl::Exception => true,
                    _ => false,
                };
                for target in targets.into_iter().filter(|target| inside(*target)) {
                    if leaders.insert(target) {
                        work.push(target);
                    }
                }
                if is_last {
                    break;
                }
            }
        }
        let instructions: Vec<Instruction> = found.into_values().collect();
        let mut blocks: Vec<Block> = Vec::new();
        let mut previous_end = None;
        for (number, instruction) in instructions.iter().enumerate() {
            let begins = leaders.contains(&instruction.ip()) || previous_end != Some(instruction.ip());
            match blocks.last_mut().filter(|_| !begins) {
                Some(block) => block.instructions.end = number + 1,
                None => blocks.push(Block {
                    start: instruction.ip(),
                    instructions: number..number + 1,
                    next: Vec::new(),
                    leave: Leave::Goes,
                }),
            }
            previous_end = match instruction.flow_control() {
                FlowControl::Next
                | FlowControl::Call
                | FlowControl::IndirectCall
                | FlowControl::Interrupt
                | FlowControl::XbeginXabortXend => Some(instruction.next_ip()),
                _ => None,
            };
        }
        let numbers: BTreeMap<u64, usize> =
            blocks.iter().enumerate().map(|(number, block)| (block.start, number)).collect();
        for block in &mut blocks {
            let Some(last) = block.instructions.clone().next_back().and_then(|at| instructions.get(at))
            else {
                continue;
            };
            let number = |address: u64| numbers.get(&address).copied();
            match last.flow_control() {
                FlowControl::ConditionalBranch => {
                    let both = [last.next_ip(), last.near_branch_target()];
                    block.next = both.into_iter().filter_map(number).collect();
                    block.leave = Leave::Branches;
                }
                FlowControl::UnconditionalBranch => match number(last.near_branch_target()) {
                    Some(next) => block.next = vec![next],
                    None => block.leave = Leave::TailCalls(Some(last.near_branch_target())),
                },
                FlowControl::IndirectBranch => {
                    let targets = arrivals.get(&last.ip()).into_iter().flatten();
                    block.next = targets.filter_map(|target| number(*target)).collect();
                    let is_tail_call = block.next.is_empty();
                    block.leave = if is_tail_call { Leave::TailCalls(None) } else { Leave::Jumps };
                }
                FlowControl::Return => block.leave = Leave::Returns,
                FlowControl::Exception => block.leave = Leave::Stops,
                _ => match number(last.next_ip()) {
                    Some(next) => block.next = vec![next],
                    None => block.leave = Leave::Stops,
                },
            }
        }
        let first = *numbers.get(&entry)?;
        Some(Self { entry, instructions, blocks, first })
    }

    /// Instructions of a block.
    pub fn of(&self, block: usize) -> &[Instruction] {
        let range = self.blocks.get(block).map_or(0..0, |block| block.instructions.clone());
        self.instructions.get(range).unwrap_or_default()
    }

    /// The last instruction of a block.
    pub fn last(&self, block: usize) -> Option<&Instruction> {
        self.of(block).last()
    }

    /// The block that holds an address.
    pub fn block_of(&self, address: u64) -> Option<usize> {
        let behind = self.blocks.partition_point(|block| block.start <= address);
        let number = behind.checked_sub(1)?;
        self.of(number).iter().any(|instruction| instruction.ip() == address).then_some(number)
    }

    /// The block around an address that need not be an instruction's first byte, as of return addresses less
    /// one.
    pub fn block_of_byte(&self, address: u64) -> Option<usize> {
        let number = self.blocks.partition_point(|block| block.start <= address).checked_sub(1)?;
        (address < self.last(number)?.next_ip()).then_some(number)
    }

    /// The block that begins at an address.
    pub fn block_at(&self, address: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&address, |block| block.start).ok()
    }
}
