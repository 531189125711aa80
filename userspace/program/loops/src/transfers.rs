//! Control transfers in a window, and the operands of comparisons that decide about loops.
//!
//! A transfer is recorded where the code alone does not tell it: conditional branches (taken or not),
//! indirect jumps and calls, returns. All other executions follow from these, from the first address and
//! from the code.
//!
//! Sources of error: a comparison is read only at the end of a block, or one instruction before it;
//! its registers are those at the start of the next block.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use locality_stream::{Event, Kind};

use crate::Window;
use crate::hash::Map;

/// Transfers of a window that are listed, the most frequent ones first.
pub const MOST_EDGES: usize = 160;
/// Comparisons of a window that are read.
const MOST_READINGS: usize = 16;

/// A transfer of control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// Address of the branch, jump, call or return.
    pub from: u64,
    /// Where control went.
    pub to: u64,
    /// How often.
    pub count: u64,
}

/// The integers that a comparison compared when it was first executed in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Address of the comparison.
    pub ip: u64,
    /// First operand, sign-extended; the result of an instruction that computes.
    pub left: i64,
    /// Second operand; 0 of an instruction that computes.
    pub right: i64,
}

/// Control flow of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Address of the first instruction.
    pub first: u64,
    /// In ascending order.
    pub edges: Vec<Edge>,
    /// Transfers that are not listed.
    pub left_out: u64,
    /// Comparisons whose branch goes back or leaves a loop of `spans`, the former first.
    pub readings: Vec<Reading>,
}

/// The end of a block.
struct Ending {
    /// Address of the last instruction.
    ip: u64,
    /// The code alone does not show the target.
    is_open: bool,
    /// The deciding comparison, with its number in the block.
    compared: Option<(u32, Instruction)>,
    /// 0: backward, 1: out of a loop, 2: neither.
    rank: u8,
}

/// Follows a window. `registers`: those at each block event; `spans`: lowest and highest addresses of the
/// loops that the window shows.
pub fn transfers(window: &Window<'_>, registers: &[[u64; 16]], spans: &[(u64, u64)]) -> Transfers {
    let mut endings: Map<u32, Option<Ending>> = Map::default();
    let mut counts: Map<(u64, u64), u64> = Map::default();
    let mut readings: Map<u64, (u8, Reading)> = Map::default();
    let mut result = Transfers::default();
    let mut before: Option<u32> = None;
    // Values moved in the block at hand, by instruction.
    let mut moved: Vec<(u32, bool, u64, u16)> = Vec::new();
    let (mut blocks, mut values) = (0, window.values.iter());
    for event in window.events {
        if event.kind.is_access() {
            let value = values.next().copied().unwrap_or(0);
            moved.push((event.index, event.kind.is_store(), value, event.size));
            continue;
        }
        if event.kind != Kind::BLOCK {
            if event.kind == Kind::BLOCK_CUT {
                before = None;
            }
            continue;
        }
        let start = first(window, event);
        if let Some(block) = before
            && let Some(ending) =
                endings.entry(block).or_insert_with(|| ending(window, block, spans)).as_ref()
        {
            if ending.is_open {
                *counts.entry((ending.ip, start)).or_default() += 1;
            }
            if let Some((index, compared)) = ending.compared.as_ref().filter(|_| ending.rank < 2)
                && !readings.contains_key(&compared.ip())
                && let Some(registers) = registers.get(blocks)
                && let Some(reading) = reading(compared, registers, &moved, *index)
            {
                readings.insert(compared.ip(), (ending.rank, reading));
            }
        }
        if before.is_none() && blocks == 0 {
            result.first = start;
        }
        before = Some(event.index);
        moved.clear();
        blocks += 1;
    }
    let mut edges: Vec<Edge> =
        counts.into_iter().map(|((from, to), count)| Edge { from, to, count }).collect();
    edges.sort_unstable_by_key(|edge| (std::cmp::Reverse(edge.count), edge.from, edge.to));
    result.left_out = edges.iter().skip(MOST_EDGES).map(|edge| edge.count).sum();
    edges.truncate(MOST_EDGES);
    edges.sort_unstable();
    result.edges = edges;
    let mut readings: Vec<(u8, Reading)> = readings.into_values().collect();
    readings.sort_unstable_by_key(|(rank, reading)| (*rank, reading.ip));
    readings.truncate(MOST_READINGS);
    result.readings = readings.into_iter().map(|(_, reading)| reading).collect();
    result
}

fn first(window: &Window<'_>, event: &Event) -> u64 {
    window.code.block(event.index).first().map_or(0, |record| record.address)
}

fn decode(address: u64, code: &[u8]) -> Instruction {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode()
}

fn ending(window: &Window<'_>, block: u32, spans: &[(u64, u64)]) -> Option<Ending> {
    let number = window.code.blocks.get(block as usize)?.first;
    let records = window.code.block(block);
    let (last, rest) = records.split_last()?;
    let branch = decode(last.address, last.code());
    let flow = branch.flow_control();
    let is_open = matches!(
        flow,
        FlowControl::ConditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::IndirectCall
            | FlowControl::Return
    );
    let mut ending = Ending { ip: last.address, is_open, compared: None, rank: 2 };
    if flow == FlowControl::ConditionalBranch {
        let target = branch.near_branch_target();
        let inside = spans.iter().filter(|(low, high)| (*low..=*high).contains(&last.address));
        let innermost = inside.min_by_key(|(low, high)| high - low);
        ending.rank = match innermost {
            Some(_) if target <= last.address => 0,
            Some((low, high)) if !(*low..=*high).contains(&target) => 1,
            _ => 2,
        };
        // Instructions that change no flags may stand between; they must leave the operands alone, which is
        // known of moves to vector registers and of none at all.
        let compared = rest.iter().enumerate().next_back();
        ending.compared = compared.and_then(|(at, record)| {
            let instruction = decode(record.address, record.code());
            (instruction.rflags_modified() != 0).then_some((number + at as u32, instruction))
        });
    }
    Some(ending)
}

/// Operands of a comparison; `moved`: accesses of its block.
fn reading(
    compared: &Instruction,
    registers: &[u64; 16],
    moved: &[(u32, bool, u64, u16)],
    index: u32,
) -> Option<Reading> {
    let register = |register: Register| {
        let full = register.full_register();
        let value = registers.get(full.number()).copied().filter(|_| full.is_gpr64())?;
        extended(value, register.size())
    };
    let operand = |number: u32| match compared.op_kind(number) {
        OpKind::Register => register(compared.op_register(number)),
        OpKind::Memory => {
            let (.., value, size) = moved.iter().rfind(|(of, ..)| *of == index)?;
            extended(*value, usize::from(*size))
        }
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => None,
        _ => Some(compared.immediate(number) as i64),
    };
    let ip = compared.ip();
    match compared.mnemonic() {
        Mnemonic::Cmp => Some(Reading { ip, left: operand(0)?, right: operand(1)? }),
        Mnemonic::Test if compared.op_kind(1) == OpKind::Register => {
            let is_one =
                compared.op_kind(0) == OpKind::Register && compared.op_register(0) == compared.op_register(1);
            Some(Reading { ip, left: operand(0).filter(|_| is_one)?, right: 0 })
        }
        // What is left of the first operand is the difference.
        Mnemonic::Sub => {
            let right = operand(1)?;
            Some(Reading { ip, left: operand(0)?.wrapping_add(right), right })
        }
        Mnemonic::Add | Mnemonic::Inc | Mnemonic::Dec | Mnemonic::And => {
            Some(Reading { ip, left: operand(0)?, right: 0 })
        }
        _ => None,
    }
}

/// An integer of so many bytes; bytes and words are no bounds that are followed.
fn extended(value: u64, bytes: usize) -> Option<i64> {
    match bytes {
        8 => Some(value as i64),
        4 => Some(i64::from(value as u32 as i32)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;
    use locality_stream::{BlockRecord, Code, InstructionRecord};

    use super::*;

    /// A loop of one block, `add rax, 8; cmp rax, rdx; jne`, that goes round three times and is left.
    #[test]
    fn a_loop_has_two_edges_and_the_operands_of_its_test() {
        let mut assembler = CodeAssembler::new(64).unwrap();
        let mut head = assembler.create_label();
        assembler.set_label(&mut head).unwrap();
        assembler.add(rax, 8).unwrap();
        assembler.cmp(rax, rdx).unwrap();
        assembler.jne(head).unwrap();
        assembler.ret().unwrap();
        let bytes = assembler.assemble(0x1000).unwrap();
        let mut instructions = Vec::new();
        let mut decoder = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE);
        while decoder.can_decode() {
            let one = decoder.decode();
            let at = (one.ip() - 0x1000) as usize;
            instructions.push(InstructionRecord::new(one.ip(), &bytes[at..at + one.len()]));
        }
        let blocks = [BlockRecord { first: 0, count: 3 }, BlockRecord { first: 3, count: 1 }];
        let events = [0, 0, 0, 1].map(|block| Event::new(Kind::BLOCK, block, 0));
        let code = Code { instructions: &instructions, blocks: &blocks };
        let window = Window { events: &events, values: &[], code, instructions: 10 };
        let at = |first: u64| {
            let mut registers = [0; 16];
            (registers[0], registers[2]) = (first, 0x540);
            registers
        };
        let registers = [at(0x528), at(0x530), at(0x538), at(0x540)];
        let back = instructions[2].address;
        let found = transfers(&window, &registers, &[(0x1000, back)]);
        let edge = |to, count| Edge { from: back, to, count };
        assert_eq!(found.edges, [edge(0x1000, 2), edge(instructions[3].address, 1)]);
        assert_eq!((found.first, found.left_out), (0x1000, 0));
        let ip = instructions[1].address;
        assert_eq!(found.readings, [Reading { ip, left: 0x530, right: 0x540 }]);
        assert_eq!(transfers(&window, &registers, &[]).readings, []);
    }
}
