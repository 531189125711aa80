//! The control flow that windows have shown, and the flow's loops.

use std::collections::{BTreeMap, BTreeSet};

use locality_stream::Kind;

use crate::{
    Observed, Window,
    hash::{Map, Set},
    walk::Walk,
};

/// Nodes that are remembered; beyond, the graph starts anew.
const MOST_NODES: usize = 1 << 16;
/// Nested loops that are distinguished.
const DEEPEST: usize = 24;

/// Lowest and highest address of an instruction of a loop, and the last jump back to its header.
type Extent = ((u64, u64), u64);

/// A loop of the graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Node at which the loop is entered.
    pub header: u64,
    /// Number of the surrounding loop in the function.
    pub parent: Option<u32>,
}

/// The control flow of one program between starts of blocks.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// From the start of a node to the starts of the nodes executed next in the call.
    next: BTreeMap<u64, BTreeSet<u64>>,
    /// First nodes of calls.
    entries: Set<u64>,
    /// Address of the last instruction of each node.
    ends: Map<u64, u64>,
    /// Loops of the edges so far.
    loops: Vec<Found>,
    /// Innermost loop of each node.
    innermost: Map<u64, u32>,
    /// Of each loop.
    extents: Map<u32, Extent>,
    /// Edges were added since the loops were found.
    is_stale: bool,
    /// Addresses at which blocks of windows began.
    starts: Set<u64>,
}

impl Graph {
    /// Adds the control flow of a window, and returns the loops of the window.
    pub fn observe(&mut self, window: &Window<'_>) -> Observed {
        if self.next.len() > MOST_NODES {
            *self = Self::default();
        }
        // Nodes begin where blocks of this window and of windows before begin.
        let mut starts = std::mem::take(&mut self.starts);
        let blocks = window.events.iter().filter(|event| event.kind == Kind::BLOCK);
        starts.extend(blocks.filter_map(|event| Some(window.code.block(event.index).first()?.address)));
        self.learn(window, &starts);
        if std::mem::take(&mut self.is_stale) {
            self.find();
            self.measure();
        }
        let observed = Walk::new(self, window, &starts).run();
        self.starts = starts;
        observed
    }

    fn learn(&mut self, window: &Window<'_>, starts: &Set<u64>) {
        let mut calls = Calls::default();
        let mut blocks: Map<u32, Vec<(u64, u64)>> = Map::default();
        // Most edges come again and again in one window.
        let mut met: Set<(u64, u64)> = Set::default();
        for event in window.events {
            match event.kind {
                Kind::BLOCK => {
                    let nodes =
                        blocks.entry(event.index).or_insert_with(|| nodes(window, event.index, starts));
                    for (start, end) in nodes.iter() {
                        let from = calls.current().replace(*start);
                        let is_met = from.is_some_and(|from| !met.insert((from, *start)));
                        if !is_met || calls.is_entry {
                            self.edge(from, *start, *end, calls.is_entry);
                        }
                        calls.is_entry = false;
                    }
                }
                Kind::CALL => calls.call(),
                Kind::RETURN => calls.leave(),
                _ => {}
            }
        }
    }

    fn edge(&mut self, from: Option<u64>, to: u64, end: u64, is_entry: bool) {
        self.ends.insert(to, end);
        if is_entry {
            self.is_stale |= self.entries.insert(to);
        }
        self.next.entry(to).or_default();
        if let Some(from) = from {
            self.is_stale |= self.next.entry(from).or_default().insert(to);
        }
    }

    /// Number of loops.
    pub(crate) fn count(&self) -> usize {
        self.loops.len()
    }

    /// Finds the loops anew.
    fn find(&mut self) {
        self.loops.clear();
        self.innermost.clear();
        let mut before: Map<u64, Vec<u64>> = Map::default();
        for (from, next) in &self.next {
            next.iter().for_each(|to| before.entry(*to).or_default().push(*from));
        }
        let all: BTreeSet<u64> = self.next.keys().copied().collect();
        let mut work = vec![(all, None::<u32>, 0)];
        while let Some((nodes, parent, depth)) = work.pop() {
            let barred = parent.and_then(|number| Some(self.loops.get(number as usize)?.header));
            for part in self.cycles(&nodes, barred) {
                let header = self.header(&part, &before);
                let number = self.loops.len() as u32;
                self.loops.push(Found { header, parent });
                self.innermost.extend(part.iter().map(|node| (*node, number)));
                if depth < DEEPEST {
                    work.push((part, Some(number), depth + 1));
                }
            }
        }
    }

    /// The strongly connected parts of some nodes that hold a cycle, without edges to `barred` (Tarjan,
    /// "Depth-first search and linear graph algorithms", 1972, without recursion).
    fn cycles(&self, nodes: &BTreeSet<u64>, barred: Option<u64>) -> Vec<BTreeSet<u64>> {
        let successors = |node: u64| {
            let next = self.next.get(&node).into_iter().flatten().copied();
            next.filter(|next| nodes.contains(next) && Some(*next) != barred).collect::<Vec<u64>>()
        };
        let (mut parts, mut order) = (Vec::new(), Map::<u64, (usize, usize)>::default());
        let (mut stack, mut on_stack) = (Vec::new(), Set::default());
        for root in nodes {
            if order.contains_key(root) {
                continue;
            }
            let mut path = vec![(*root, successors(*root))];
            order.insert(*root, (order.len(), order.len()));
            stack.push(*root);
            on_stack.insert(*root);
            while let Some((node, rest)) = path.last_mut() {
                let node = *node;
                if let Some(next) = rest.pop() {
                    if !order.contains_key(&next) {
                        order.insert(next, (order.len(), order.len()));
                        stack.push(next);
                        on_stack.insert(next);
                        let more = successors(next);
                        path.push((next, more));
                    } else if on_stack.contains(&next) {
                        let reached = order.get(&next).map_or(0, |(index, _)| *index);
                        lower(&mut order, node, reached);
                    }
                    continue;
                }
                path.pop();
                let (index, low) = order.get(&node).copied().unwrap_or_default();
                if let Some((above, _)) = path.last() {
                    lower(&mut order, *above, low);
                }
                if index == low {
                    let at = stack.iter().rposition(|on| *on == node).unwrap_or(0);
                    let part: BTreeSet<u64> = stack.drain(at..).collect();
                    on_stack.retain(|node| !part.contains(node));
                    let is_own = |node: &u64| {
                        Some(*node) != barred && self.next.get(node).is_some_and(|next| next.contains(node))
                    };
                    if part.len() > 1 || part.iter().any(is_own) {
                        parts.push(part);
                    }
                }
            }
        }
        parts
    }

    /// Entry of a cycle: the node with an edge from outside. For several or no
    /// known entries, the node with the lowest address to which a jump leads back.
    fn header(&self, part: &BTreeSet<u64>, before: &Map<u64, Vec<u64>>) -> u64 {
        let sources = |node: &u64| before.get(node).map_or(&[][..], Vec::as_slice);
        let is_entered =
            |node: &u64| self.entries.contains(node) || sources(node).iter().any(|from| !part.contains(from));
        let is_back = |node: &u64| sources(node).iter().any(|from| from >= node && part.contains(from));
        let entered: Vec<u64> = part.iter().copied().filter(is_entered).collect();
        let all = || part.iter().copied();
        let back = match entered.is_empty() {
            true => all().find(is_back).or_else(|| all().next()),
            false => entered.iter().copied().find(is_back).or_else(|| entered.first().copied()),
        };
        back.unwrap_or_default()
    }

    /// Numbers of the loops around a node, outermost first.
    pub(crate) fn chain(&self, node: u64) -> Vec<u32> {
        let mut chain = Vec::new();
        let mut number = self.innermost.get(&node).copied();
        while let Some(at) = number.filter(|_| chain.len() <= DEEPEST) {
            chain.push(at);
            number = self.loops.get(at as usize).and_then(|found| found.parent);
        }
        chain.reverse();
        chain
    }

    pub(crate) fn header_of(&self, number: u32) -> u64 {
        self.loops.get(number as usize).map_or(0, |found| found.header)
    }

    /// For each loop, the lowest and the highest address of an instruction
    /// in the loop, and the address of the last jump back to the header.
    fn measure(&mut self) {
        let mut extents: Map<u32, Extent> = Map::default();
        for node in self.innermost.keys() {
            let end = self.ends.get(node).copied().unwrap_or(*node);
            for number in self.chain(*node) {
                let header = self.header_of(number);
                let ((low, high), latch) = extents.entry(number).or_insert(((*node, end), 0));
                (*low, *high) = ((*low).min(*node), (*high).max(end));
                if self.next.get(node).is_some_and(|next| next.contains(&header)) {
                    *latch = (*latch).max(end);
                }
            }
        }
        self.extents = extents;
    }

    /// Lowest and highest address of an instruction of a loop, and the last jump back to its header.
    pub(crate) fn extent(&self, number: u32) -> Extent {
        self.extents.get(&number).copied().unwrap_or_default()
    }
}

fn lower(order: &mut Map<u64, (usize, usize)>, node: u64, to: usize) {
    if let Some((_, low)) = order.get_mut(&node) {
        *low = (*low).min(to);
    }
}

/// The parts of a block between starts of nodes: address of the first and of the last instruction of each.
pub(crate) fn nodes(window: &Window<'_>, block: u32, starts: &Set<u64>) -> Vec<(u64, u64)> {
    let mut nodes: Vec<(u64, u64)> = Vec::new();
    for record in window.code.block(block) {
        match nodes.last_mut().filter(|_| !starts.contains(&record.address)) {
            Some((_, end)) => *end = record.address,
            None => nodes.push((record.address, record.address)),
        }
    }
    nodes
}

/// The last node of each call that is under way.
#[derive(Debug, Default)]
struct Calls {
    outer: Vec<Option<u64>>,
    last: Option<u64>,
    is_entry: bool,
}

impl Calls {
    fn current(&mut self) -> &mut Option<u64> {
        &mut self.last
    }

    fn call(&mut self) {
        self.outer.push(self.last.take());
        self.is_entry = true;
    }

    fn leave(&mut self) {
        self.last = self.outer.pop().flatten();
        self.is_entry = false;
    }
}
