//! Follows a window through the loops of the graph.

use std::rc::Rc;

use locality_stream::{Event, InstructionRecord, Kind};

use crate::{
    Loop, MOST_ACCESSES, Observed, Window,
    accesses::{Dependence, Seen},
    graph::{Graph, nodes},
    hash::{Map, Set},
    origin::{Facts, Origins},
};

/// A run of a loop that is under way.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: u32,
    /// Serial of the run in the window.
    serial: u64,
    iterations: u64,
    /// The window shows its entry.
    is_whole: bool,
}

/// A call that is under way.
#[derive(Debug, Clone, Default)]
struct Call {
    runs: Vec<Run>,
    /// A node of it was executed in the window before.
    has_begun: bool,
    /// Its return address; `None` for functions active at the window's begin.
    returns_to: Option<u64>,
}

/// A node that begins, and the loops around the node, outermost first.
#[derive(Debug, Clone)]
struct Node {
    start: u64,
    chain: Rc<[u32]>,
}

/// Of each instruction of a block, the node that begins there and what is needed of the instruction.
#[derive(Debug)]
struct Block(Vec<(Option<Node>, Option<Facts>)>);

/// Data gathered about one loop.
#[derive(Debug, Default)]
struct Gathered {
    of: Loop,
    /// Access instructions, loads and stores apart, and where each of them stands, by address: a loop entered
    /// by falling through begins in a block that has the code before the loop as well.
    accesses: Vec<Seen>,
    places: Map<(u64, bool), u32>,
}

/// Where the access that an instruction made last is gathered: the loop, and the place among its accesses.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Number of the loop, plus one; 0 of an instruction that has made none.
    number: u32,
    place: u32,
}

pub(crate) struct Walk<'a> {
    graph: &'a Graph,
    window: &'a Window<'a>,
    starts: &'a Set<u64>,
    /// Calls under way, the outermost first; never empty.
    calls: Vec<Call>,
    returned: usize,
    runs: u64,
    /// By number of the loop.
    gathered: Vec<Option<Box<Gathered>>>,
    /// By instruction, of loads and of stores.
    slots: Vec<[Slot; 2]>,
    lines: Set<u64>,
    pages: Set<u64>,
    origins: Origins,
    /// By number of the block.
    blocks: Vec<Option<Rc<Block>>>,
    /// The innermost loop at the node at hand, its run, and the depth of its call.
    at: Option<(u32, Run, usize)>,
    executed: usize,
    /// Number of the innermost loop of each instruction executed.
    of_instruction: Vec<Option<u32>>,
    /// Place of the next access among the window's values.
    value: usize,
}

impl<'a> Walk<'a> {
    pub fn new(graph: &'a Graph, window: &'a Window<'a>, starts: &'a Set<u64>) -> Self {
        Self {
            graph,
            window,
            starts,
            calls: vec![Call::default()],
            returned: 0,
            runs: 0,
            gathered: std::iter::repeat_with(|| None).take(graph.count()).collect(),
            slots: vec![[Slot::default(); 2]; window.code.instructions.len()],
            lines: Set::default(),
            pages: Set::default(),
            origins: Origins::default(),
            blocks: vec![None; window.code.blocks.len()],
            at: None,
            executed: 0,
            of_instruction: Vec::new(),
            value: 0,
        }
    }

    pub fn run(mut self) -> Observed {
        let mut events = self.window.events.iter().peekable();
        while let Some(event) = events.next() {
            let Some(block) =
                self.window.code.blocks.get(event.index as usize).filter(|_| event.kind == Kind::BLOCK)
            else {
                self.value += usize::from(event.kind.is_access());
                continue;
            };
            let known = self.block(event.index);
            for (index, (node, facts)) in (block.first..).zip(&known.0) {
                if self.executed as u64 >= self.window.instructions {
                    break;
                }
                if let Some(node) = node {
                    self.enter(node);
                }
                self.execute();
                let (mut loaded, mut stored) = (None, None);
                while let Some(access) = events.next_if(|next| next.kind.is_access() && next.index == index) {
                    self.access(access, facts.as_ref());
                    match access.kind.is_store() {
                        true => stored = Some(access.value),
                        false => loaded = Some(access.value),
                    }
                }
                if let Some(facts) = facts {
                    self.origins.pass(index, facts, loaded, stored);
                }
            }
        }
        self.finish()
    }

    /// What is needed of a block's instructions.
    fn block(&mut self, number: u32) -> Rc<Block> {
        let (window, starts, graph) = (self.window, self.starts, self.graph);
        let make = || {
            let first = window.code.blocks.get(number as usize).map_or(0, |block| block.first);
            let mut parts = nodes(window, number, starts).into_iter().peekable();
            let instruction = |(index, record): (u32, &InstructionRecord)| {
                let begun = parts.next_if(|(start, _)| *start == record.address);
                let node = begun.map(|(start, _)| Node { start, chain: graph.chain(start).into() });
                (node, Facts::of(&window.code, index))
            };
            Rc::new(Block((first..).zip(window.code.block(number)).map(instruction).collect()))
        };
        match self.blocks.get_mut(number as usize) {
            Some(known) => Rc::clone(known.get_or_insert_with(make)),
            None => make(),
        }
    }

    /// A node begins.
    fn enter(&mut self, node: &Node) {
        let (graph, chain) = (self.graph, &node.chain);
        let depth = self.calls.len();
        let Some(call) = self.calls.last_mut() else { return };
        let shared =
            call.runs.iter().zip(chain.iter()).take_while(|(run, number)| run.number == **number).count();
        let mut ended = Vec::new();
        if call.runs.len() > shared {
            ended.extend(call.runs.drain(shared..).filter(|run| run.is_whole));
        }
        for number in chain.iter().skip(shared) {
            self.runs += 1;
            call.runs.push(Run {
                number: *number,
                serial: self.runs,
                iterations: 0,
                is_whole: call.has_begun || call.returns_to.is_some(),
            });
        }
        // A run continues when its header comes again; a loop entered anew begins at its header
        // too.
        let header = call.runs.iter_mut().rfind(|run| graph.header_of(run.number) == node.start);
        let counted = header.map(|run| {
            run.iterations += 1;
            run.number
        });
        call.has_begun = true;
        for run in ended {
            self.gather(run.number, depth).of.trips.push(run.iterations);
        }
        if let Some(number) = counted {
            self.gather(number, depth).of.iterations += 1;
        }
        self.locate();
    }

    /// The innermost loop that is under way.
    fn locate(&mut self) {
        let calls = self.calls.iter().enumerate().rev();
        self.at = calls
            .filter_map(|(depth, call)| call.runs.last().map(|run| (run.number, *run, depth + 1)))
            .next();
        if let Some((number, _, depth)) = self.at {
            let is_first = self.executed == 0;
            self.gather(number, depth).of.is_first |= is_first;
        }
    }

    /// Header of the loop around a loop.
    fn around(&self, depth: usize, number: u32) -> Option<u64> {
        let runs = self.calls.iter().take(depth).flat_map(|call| &call.runs);
        let around = runs.take_while(|run| run.number != number).last()?;
        Some(self.graph.header_of(around.number))
    }

    fn gather(&mut self, number: u32, depth: usize) -> &mut Gathered {
        let place = number as usize;
        if self.gathered.get(place).is_none_or(Option::is_none) {
            let called = self.calls.iter().take(depth).filter_map(|call| call.returns_to).collect();
            let (around, header) = (self.around(depth, number), self.graph.header_of(number));
            let of = Loop { header, around, called, returned: self.returned, ..Loop::default() };
            if self.gathered.len() <= place {
                self.gathered.resize_with(place + 1, || None);
            }
            self.gathered[place] = Some(Box::new(Gathered { of, ..Gathered::default() }));
        }
        self.gathered[place].get_or_insert_default()
    }

    fn execute(&mut self) {
        self.executed += 1;
        let number = self.at.map(|(number, _, _)| number);
        self.of_instruction.push(number);
        if let Some(gathered) = number.and_then(|number| self.gathered.get_mut(number as usize)?.as_mut()) {
            gathered.of.instructions += 1;
        }
    }

    fn access(&mut self, event: &Event, facts: Option<&Facts>) {
        let value = self.window.values.get(self.value).copied();
        self.value += 1;
        match event.kind {
            Kind::CALL => self.calls.push(Call { returns_to: Some(value.unwrap_or(0)), ..Call::default() }),
            Kind::RETURN => self.leave(),
            _ => self.data(event, value, facts),
        }
    }

    fn leave(&mut self) {
        let depth = self.calls.len();
        let Some(call) = self.calls.pop() else { return };
        for run in call.runs.into_iter().filter(|run| run.is_whole) {
            self.gather(run.number, depth).of.trips.push(run.iterations);
        }
        if self.calls.is_empty() {
            self.returned += 1;
            self.calls.push(Call::default());
        }
        self.locate();
    }

    fn data(&mut self, event: &Event, value: Option<u64>, facts: Option<&Facts>) {
        let line = event.value >> 6;
        let is_new = self.lines.insert(line);
        let is_new_page = is_new && self.pages.insert(event.value >> 12);
        let Some((number, run, depth)) = self.at else { return };
        let origin = facts.map(|facts| self.origins.address(facts));
        let calls = &self.calls;
        let Some(gathered) = self.gathered.get_mut(number as usize).and_then(Option::as_mut) else { return };
        gathered.of.accesses += 1;
        let is_store = event.kind.is_store();
        let slot = self.slots.get_mut(event.index as usize).map(|slots| &mut slots[usize::from(is_store)]);
        let place = match slot {
            Some(slot) if slot.number == number + 1 => slot.place,
            slot => {
                let accesses = &mut gathered.accesses;
                let record = self.window.code.instructions.get(event.index as usize);
                let address = record.map_or(0, |record| record.address);
                let place = *gathered.places.entry((address, is_store)).or_insert_with(|| {
                    let called = calls.iter().skip(depth).filter_map(|call| call.returns_to).collect();
                    accesses.push(Seen::new(event.index, address, called));
                    accesses.len() as u32 - 1
                });
                if let Some(slot) = slot {
                    *slot = Slot { number: number + 1, place };
                }
                place
            }
        };
        let Some(seen) = gathered.accesses.get_mut(place as usize) else { return };
        seen.index = event.index;
        seen.add(event, run.serial, run.is_whole);
        if is_new {
            seen.first_touch(line, is_new_page);
        }
        if let Some(value) = value.filter(|_| facts.is_some_and(|facts| facts.is_integer)) {
            seen.value(value, event.size);
        }
        if let Some(origin) = origin.filter(|origin| origin.loads().next().is_some())
            && !seen.origins.contains(&origin)
            && seen.origins.len() < MOST_ORIGINS
        {
            seen.origins.push(origin);
        }
    }

    fn finish(self) -> Observed {
        let graph = self.graph;
        let of = |(number, gathered): (u32, Box<Gathered>)| {
            let Gathered { mut of, accesses, .. } = *gathered;
            (of.span, of.latch) = graph.extent(number);
            let loads: Map<u32, u64> = accesses
                .iter()
                .filter(|seen| !seen.access.is_store)
                .map(|seen| (seen.index, seen.access.executions))
                .collect();
            let mut runs: Vec<i64> = accesses.iter().filter_map(Seen::steps_of_run).collect();
            runs.sort_unstable();
            // Accesses of one loop agree on its length, except for conditional ones.
            let run = runs.last().copied();
            if of.trips.is_empty() {
                of.trips.extend(run.map(|steps| steps as u64 + 1));
            }
            let is_chase = |seen: &&Seen| seen.origins.iter().any(|origin| origin.has(seen.index));
            let chases: Set<u32> = accesses.iter().filter(is_chase).map(|seen| seen.index).collect();
            let access = |seen: Seen| {
                let executions = seen.access.executions;
                let brings = |load: &u32| loads.get(load).is_some_and(|count| *count * 4 >= executions);
                // What a chase leads to is as late as the chase itself.
                let leads = |load: u32| load == seen.index || chases.contains(&load) && brings(&load);
                let dependence = if seen.origins.iter().any(|origin| origin.loads().any(leads)) {
                    Dependence::Chased
                } else if seen.origins.iter().any(|origin| origin.loads().any(|load| brings(&load))) {
                    Dependence::Indexed
                } else {
                    Dependence::None
                };
                let mut access = seen.finish(run);
                access.dependence = dependence;
                access
            };
            of.by_access = accesses.into_iter().map(access).collect();
            of.by_access.sort_by_key(|access| {
                (std::cmp::Reverse((access.lines, access.executions)), access.ip, access.is_store)
            });
            of.by_access.truncate(MOST_ACCESSES);
            (number, of)
        };
        let mut loops: Vec<(u32, Loop)> = (0..)
            .zip(self.gathered)
            .filter_map(|(number, gathered)| Some((number, gathered?)))
            .map(of)
            .collect();
        loops.retain(|(_, found)| found.instructions > 0);
        loops.sort_by_key(|(_, found)| (std::cmp::Reverse(found.instructions), found.header));
        let places: Map<u32, u32> = loops.iter().map(|(number, _)| *number).zip(0..).collect();
        let place = |number: Option<u32>| places.get(&number?).copied();
        Observed {
            of_instruction: self.of_instruction.into_iter().map(place).collect(),
            loops: loops.into_iter().map(|(_, found)| found).collect(),
        }
    }
}

/// Different origins of an address that are remembered.
const MOST_ORIGINS: usize = 4;
