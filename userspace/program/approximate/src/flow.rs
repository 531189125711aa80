//! Forward data flow through one function: what each memory operand points into, in terms of the
//! function's own objects (see `value`). Names come later (`names`).
//!
//! A pointer is followed through moves, arithmetic and loads; its sources are stored at joins of
//! paths. At the end of the known part, the debug information may name a variable in the register,
//! and the variable's name takes over.
//!
//! Sources of error: stores through unknown pointers are taken not to hit the frame; 32-bit
//! arithmetic is taken not to wrap; vector registers carry no pointers; of a load, that nobody
//! stored there in between.

use std::collections::{BTreeSet, HashMap};

use iced_x86::Instruction;

use crate::graph::Graph;
use crate::module::Module;
use crate::state::{RSP, State};
use crate::transfer::Transfer;
use crate::unit::{Function, Spot};
use crate::value::{BaseAt, Bases, Value};

/// Most visits of a block; an unstable state then stays as it is.
const MOST_VISITS: u32 = 200;

/// One data access of an instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) address: Value,
    /// False for an access that only writes.
    pub(crate) reads: bool,
}

/// A place in memory: base, offset, modulus.
pub(crate) type Where = (BaseAt, i64, u64);

/// How a pointer got a name: by being in a register that is a variable, or by being stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    Variable(usize),
    Memory(Where),
}

/// What is passed at a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Passed {
    /// Target of a direct call.
    pub(crate) target: Option<u64>,
    /// Whether the call is a jump, without a frame.
    pub(crate) jumps: bool,
    /// Pointers in registers, by number.
    pub(crate) registers: HashMap<u8, Value>,
    /// Pointers on the stack, by offset from the callee's canonical frame address.
    pub(crate) stack: HashMap<i64, Value>,
}

/// What is known of a function's pointers.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) bases: Bases,
    /// Data accesses of each instruction, by index.
    pub(crate) accesses: Vec<Vec<Access>>,
    /// Calls and jumps to other functions, by address.
    pub(crate) calls: HashMap<u64, Passed>,
    /// Former owner of a pointer: whether it pointed beyond the start, the address of the code, the
    /// owner.
    pub(crate) holders: HashMap<BaseAt, BTreeSet<(bool, u64, Holder)>>,
    /// Pointers stored at a place. `None` stands for an unknown value.
    pub(crate) stored: HashMap<Where, BTreeSet<Option<BaseAt>>>,
    /// What the function returns.
    pub(crate) returned: Vec<Value>,
    /// Offsets of rsp and rbp from the canonical frame address in the function's body.
    pub(crate) body: [Option<i64>; 2],
}

/// A register that is a variable over a range of code: the
/// register's value is the variable's plus `offset`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) register: u8,
    pub(crate) variable: usize,
    pub(crate) offset: i64,
}

impl Flow {
    /// Follows all pointers of a function. `is_pointer` tells of which variables the value is one;
    /// `size` how many bytes a variable has.
    pub(crate) fn of(
        module: &Module,
        graph: &Graph,
        function: &Function,
        is_pointer: &dyn Fn(usize) -> bool,
        size: &dyn Fn(usize) -> Option<u64>,
    ) -> Self {
        let mut transfer =
            Transfer::new(module, graph, bindings(graph, function, is_pointer), extents(function, size));
        let mut entries: Vec<Option<State>> = graph.blocks.iter().map(|_| None).collect();
        let first = State::entry(&mut transfer.flow.bases);
        if let Some(entry) = entries.get_mut(graph.entry) {
            *entry = Some(first);
        }
        let rank: HashMap<usize, usize> =
            graph.order.iter().enumerate().map(|(rank, at)| (*at, rank)).collect();
        let mut open: BTreeSet<(usize, usize)> = BTreeSet::from([(0, graph.entry)]);
        let mut visits = vec![0_u32; graph.blocks.len()];
        while let Some((_, at)) = open.pop_first() {
            let Some(block) = graph.blocks.get(at) else { continue };
            let Some(mut state) = entries.get(at).cloned().flatten() else { continue };
            transfer.block(graph, at, &mut state, false);
            for to in &block.successors {
                let (Some(entry), Some(visits)) = (entries.get_mut(*to), visits.get_mut(*to)) else {
                    continue;
                };
                *visits += 1;
                let changed = match entry {
                    None => {
                        *entry = Some(state.clone());
                        true
                    }
                    Some(_) if *visits > MOST_VISITS => false,
                    Some(entry) => entry.merge(&state, block_address(graph, *to), &mut transfer.flow.bases),
                };
                if changed {
                    open.insert((rank.get(to).copied().unwrap_or(usize::MAX), *to));
                }
            }
        }
        transfer.flow.accesses = vec![Vec::new(); graph.instructions.len()];
        for at in 0..graph.blocks.len() {
            let state = entries.get_mut(at).and_then(Option::take);
            let mut state = state.unwrap_or_else(|| State::unknown(block_address(graph, at)));
            transfer.block(graph, at, &mut state, true);
        }
        transfer.flow
    }
}

/// Address of a block's first instruction.
pub(crate) fn block_address(graph: &Graph, at: usize) -> u64 {
    let block = graph.blocks.get(at);
    block.and_then(|block| graph.instructions.get(block.instructions.start)).map_or(0, Instruction::ip)
}

/// Register number in machine code of a DWARF register number (System V ABI, AMD64 supplement, figure 3.36).
pub(crate) fn register_number(dwarf: u16) -> Option<u8> {
    [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15].get(usize::from(dwarf)).copied()
}

fn bindings(graph: &Graph, function: &Function, is_pointer: &dyn Fn(usize) -> bool) -> Vec<Binding> {
    let whole = 0..graph.instructions.last().map_or(0, Instruction::next_ip);
    let mut bindings = Vec::new();
    for (variable, known) in function.variables.iter().enumerate().filter(|(at, _)| is_pointer(*at)) {
        for place in &known.places {
            let (register, offset) = match place.spot {
                Spot::Register(register) => (register, 0),
                // The variable is the register plus this.
                Spot::Value(register, offset) => (register, offset.wrapping_neg()),
                _ => continue,
            };
            let Some(register) = register_number(register).filter(|number| usize::from(*number) != RSP)
            else {
                continue;
            };
            let code = place.code.clone().unwrap_or(whole.clone());
            bindings.push(Binding { start: code.start, end: code.end, register, variable, offset });
        }
    }
    bindings.sort_by_key(|binding| binding.start);
    bindings
}

/// Starts and sizes of the variables in the frame, if counted from the canonical frame address.
fn extents(function: &Function, size: &dyn Fn(usize) -> Option<u64>) -> Vec<(i64, i64)> {
    let mut extents = Vec::new();
    if function.frame_base == crate::unit::FrameBase::Cfa {
        for (at, variable) in function.variables.iter().enumerate() {
            for place in &variable.places {
                if let (Spot::Frame(offset), Some(Ok(size))) = (place.spot, size(at).map(i64::try_from)) {
                    extents.push((offset, size));
                }
            }
        }
    }
    extents
}
