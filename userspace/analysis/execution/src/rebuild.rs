//! Windows made again from transfers and code, for replay by the timing model.
//!
//! The profile has each window's transfers with counts, without the order. A walk
//! begins at the window's first address and takes each transfer as often as the window
//! did. Branches that continue or end a loop are decided evenly, for runs of equal
//! length; the rest are decided by chance. Addresses come from [`crate::addresses`].
//!
//! Sources of error: dependent branches are decided apart, so the
//! predictor foresees fewer; loops with runs of different length end
//! more regularly than in the program; unreadable code is jumped over.

use std::collections::{BTreeMap, HashMap};

use iced_x86::{FlowControl, InstructionInfoFactory};
use locality_stream::{BlockRecord, Event, InstructionRecord, Kind};

use crate::addresses::{AccessSeen, Addresses, Known};
use crate::build::{Built, Index};
use crate::code::Leave;
use crate::observed::{At, WindowSeen};

/// Instructions of a window of unknown length.
const USUAL: u64 = 5_000;
/// Distance between the addresses of two files, as a power of two.
const FILE_BITS: u32 = 44;
/// Bytes of a stub of the linkage table.
const STUB: u64 = 16;

/// Code up to a call or to a block's end.
#[derive(Debug, Clone)]
struct Piece {
    /// Number among the block records.
    record: u32,
    /// Instructions, as indices of the table.
    instructions: std::ops::Range<u32>,
    next: Next,
}

/// Transfer of control after a piece.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// An address of the function.
    At(u64),
    /// As in the window: address of the branch, and whether the branch decides about a loop.
    Seen { ip: u64, decides_loop: bool },
    /// A call; the target is `None` for an indirect call.
    Call { ip: u64, target: Option<u64>, back: u64 },
    /// A jump to another function.
    Jump(Option<u64>, u64),
    /// A return.
    Return(u64),
    /// Nowhere.
    Ends,
}

/// A window made again.
#[derive(Debug, Clone, Default)]
pub struct Walk {
    /// Number of the window.
    pub window: usize,
    /// Accesses and blocks in order.
    pub events: Vec<Event>,
    /// Instructions executed.
    pub instructions: u64,
}

/// Makes windows again; pieces of code are read once for all windows.
pub struct Rebuilder<'a> {
    built: &'a Built,
    index: Index,
    factory: InstructionInfoFactory,
    pieces: Vec<Piece>,
    of_address: HashMap<(usize, u64), Option<usize>>,
    known: Vec<Known>,
    /// Accesses in windows, by instruction.
    pub accesses: BTreeMap<At, AccessSeen>,
    /// Code of the events: instructions.
    pub instructions: Vec<InstructionRecord>,
    /// … as blocks.
    pub blocks: Vec<BlockRecord>,
    /// File, address, function and block label of each instruction.
    pub places: Vec<(At, usize, u64)>,
}

/// Transfers left of a window.
struct Left {
    from: HashMap<At, Vec<(At, f64, f64)>>,
    random: u64,
}

impl Left {
    fn of(window: &WindowSeen, seed: u64) -> Self {
        let mut from: HashMap<At, Vec<(At, f64, f64)>> = HashMap::new();
        for (source, to, count) in &window.edges {
            from.entry(*source).or_default().push((*to, *count, *count));
        }
        Self { from, random: seed | 1 }
    }

    /// From 0 to below 1.
    fn chance(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Takes a transfer from here.
    fn take(&mut self, from: At, is_even: bool, wanted: Option<At>) -> Option<At> {
        let chance = self.chance();
        let options = self.from.get_mut(&from)?;
        let all: f64 = options.iter().map(|(.., left)| left).sum();
        if all < 0.5 {
            return None;
        }
        let has = |option: &(At, f64, f64)| option.2 > 0.5;
        let mut rest = chance * all;
        let by_chance = |option: &(At, f64, f64)| {
            rest -= option.2;
            rest < 0.0
        };
        let place = match wanted.and_then(|to| options.iter().position(|it| it.0 == to && has(it))) {
            Some(place) => place,
            None if is_even => {
                let share = |option: &(At, f64, f64)| (option.2 - 0.5) / option.1;
                let numbered = options.iter().enumerate().filter(|(_, option)| has(option));
                numbered.max_by(|a, b| share(a.1).total_cmp(&share(b.1)))?.0
            }
            None => options
                .iter()
                .position(by_chance)
                .filter(|at| options.get(*at).is_some_and(has))
                .or_else(|| options.iter().position(has))?,
        };
        let option = options.get_mut(place)?;
        option.2 -= 1.0;
        Some(option.0)
    }

    /// The transfer with the greatest count left, for a walk that cannot go on.
    fn any(&mut self) -> Option<At> {
        let most = |options: &Vec<(At, f64, f64)>| options.iter().map(|(.., left)| *left).fold(0.0, f64::max);
        let all: BTreeMap<At, f64> = self.from.iter().map(|(from, options)| (*from, most(options))).collect();
        let (from, count) = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        if count < 0.5 { None } else { self.take(from, true, None) }
    }
}

impl<'a> Rebuilder<'a> {
    /// Rebuilder for a program, with the accesses seen in windows.
    pub fn new(built: &'a Built, accesses: BTreeMap<At, AccessSeen>) -> Self {
        Self {
            built,
            index: Index::of(built),
            factory: InstructionInfoFactory::new(),
            pieces: Vec::new(),
            of_address: HashMap::new(),
            known: Vec::new(),
            accesses,
            instructions: Vec::new(),
            blocks: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Makes a window again; the number is the seed of chance.
    pub fn walk(&mut self, window: &WindowSeen, number: usize) -> Walk {
        let seed = number as u64 + 1;
        let most = if window.instructions > 0 { window.instructions } else { USUAL };
        let mut walk = Walk { window: number, ..Walk::default() };
        let mut left = Left::of(window, seed.wrapping_add(0x9e37_79b9));
        let mut addresses = Addresses::new(seed);
        let mut returns: Vec<At> = Vec::new();
        let mut at = window.first;
        while walk.instructions < most {
            let Some(here) = at.or_else(|| left.any()) else { break };
            let Some(piece) = self.piece(here).and_then(|number| self.pieces.get(number)) else {
                at = None;
                // A stub: control continues as in the window.
                if let Some(jump) = (here.1..here.1 + STUB).find(|ip| left.from.contains_key(&(here.0, *ip)))
                {
                    at = left.take((here.0, jump), false, None);
                }
                if at.is_none() {
                    at = returns.pop();
                }
                // Otherwise the code is jumped over, until no transfer is left.
                continue;
            };
            walk.events.push(Event::new(Kind::BLOCK, piece.record, 0));
            for index in piece.instructions.clone() {
                if let Some(known) = self.known.get(index as usize) {
                    addresses.step(known, index, &mut walk.events);
                }
            }
            walk.instructions += u64::from(piece.instructions.end - piece.instructions.start);
            let file = here.0;
            at = match piece.next {
                Next::At(address) => Some((file, address)),
                Next::Seen { ip, decides_loop } => left.take((file, ip), decides_loop, None),
                Next::Call { ip, target, back } => {
                    returns.push((file, back));
                    match target {
                        Some(target) => Some((file, target)),
                        None => left.take((file, ip), false, None).or_else(|| returns.pop()),
                    }
                }
                Next::Jump(Some(target), _) => Some((file, target)),
                Next::Jump(None, ip) => left.take((file, ip), false, None),
                Next::Return(ip) => {
                    let to = returns.pop();
                    left.take((file, ip), false, to).or(to)
                }
                Next::Ends => None,
            };
        }
        walk
    }

    /// The piece from an address on.
    fn piece(&mut self, at: At) -> Option<usize> {
        if let Some(found) = self.of_address.get(&at) {
            return *found;
        }
        let found = self.read(at);
        self.of_address.insert(at, found);
        found
    }

    fn read(&mut self, at: At) -> Option<usize> {
        let number = self.index.find(at)?;
        let read = self.built.functions.get(number)?;
        let block = read.code.block_of(at.1)?;
        let info = read.code.blocks.get(block)?;
        let first = self.instructions.len() as u32;
        let mut next = None;
        for instruction in read.code.of(block).iter().skip_while(|instruction| instruction.ip() < at.1) {
            let start = (instruction.ip() - read.bytes.start) as usize;
            let bytes = read.bytes.bytes.get(start..start + instruction.len())?;
            let address = instruction.ip() + ((at.0 as u64 + 1) << FILE_BITS);
            self.instructions.push(InstructionRecord::new(address, bytes));
            let seen = self.accesses.get(&(at.0, instruction.ip())).copied();
            self.known.push(Known::of(instruction, seen, &mut self.factory));
            self.places.push(((at.0, instruction.ip()), number, info.start));
            let (ip, back) = (instruction.ip(), instruction.next_ip());
            match instruction.flow_control() {
                FlowControl::Call => {
                    let target = Some(instruction.near_branch_target());
                    next = Some(Next::Call { ip, target, back });
                    break;
                }
                FlowControl::IndirectCall => {
                    next = Some(Next::Call { ip, target: None, back });
                    break;
                }
                _ => {}
            }
        }
        let last = read.code.last(block)?.ip();
        let next = next.unwrap_or_else(|| match (&info.leave, info.next.as_slice()) {
            (Leave::Goes, [to]) => read.code.blocks.get(*to).map_or(Next::Ends, |to| Next::At(to.start)),
            (Leave::Branches | Leave::Jumps, to) => {
                Next::Seen { ip: last, decides_loop: decides_loop(self.built, number, block, to) }
            }
            (Leave::TailCalls(target), _) => Next::Jump(*target, last),
            (Leave::Returns, _) => Next::Return(last),
            _ => Next::Ends,
        });
        let end = self.instructions.len() as u32;
        let record = self.blocks.len() as u32;
        self.blocks.push(BlockRecord { first, count: end - first });
        self.pieces.push(Piece { record, instructions: first..end, next });
        Some(self.pieces.len() - 1)
    }
}

/// Whether a branch returns to the loop's header or leaves the loop.
fn decides_loop(built: &Built, function: usize, block: usize, next: &[usize]) -> bool {
    let Some(read) = built.functions.get(function) else { return false };
    let innermost = read.graph.innermost.get(block).copied().flatten();
    let Some(found) = innermost.and_then(|of| read.graph.loops.get(of)) else { return false };
    next.iter().any(|to| *to == found.header || !found.has(*to))
}
