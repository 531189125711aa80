//! Inclusive costs of charges long after the cause: back-dating
//! trees (Weidendorfer and Breitbart 2016, section 3).
//!
//! A node is a function called by a path of calls. A node is needed while lines loaded
//! by the node are resident, while on a call stack, or while parent of children. Nodes
//! not needed are pruned leaf by leaf: the costs go to the parent, to the call arc and
//! to the function. Unlike in the paper, pruning is not immediate but waits for many
//! nodes, or for tens of thousands of loads: a function called in a loop keeps the node.
//!
//! Immediate costs take the tree's way: reads, writes and instructions
//! are added to a node when the thread leaves the node, misses at once.
//!
//! Recursion: a cost counts once for each function and each arc on a path: only the
//! first node of a function (an arc) on the path hands costs to the function (the arc).

use locality_stream::{Arena, NO_INSTRUCTION};

use crate::columns::{Column, Costs};
use crate::facts::{self, Facts};
use crate::sim::Sim;
use crate::stack::{PENDING_BEHIND, PENDING_CALL, PENDING_SIGNAL};
use crate::state::{
    ArcRecord, FunctionRecord, NONE, Node, RootRecord, State, Thread, UNKNOWN_NODE, flag, kind,
};
use crate::totals::UNKNOWN_CALLER;

/// Nodes always allowed.
const FEW: u32 = 1024;
/// Loads between prunings, however few the nodes, and loads per node.
const LOADS: (u64, u64) = (1 << 16, 16);

/// The bit of a function in [`Node::path`].
fn bit(function: u32) -> u64 {
    1 << (u64::from(function).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

impl State {
    /// Adds the counts since the last change of node to the node.
    #[inline(always)]
    pub(crate) fn settle<A: Arena + ?Sized>(&mut self, arena: &A) {
        // SAFETY: the current node is in the list.
        let node = unsafe { self.nodes.at(arena, self.node) };
        for (column, (count, settled)) in
            [Column::Ir, Column::Dr, Column::Dw].into_iter().zip(self.counts.iter().zip(&mut self.settled))
        {
            node.costs[column] = node.costs[column].wrapping_add(count.wrapping_sub(*settled));
            *settled = *count;
        }
    }

    /// Hands the costs of a node to the function, the arc, and the parent or root.
    pub(crate) fn hand_up<A: Arena + ?Sized>(&mut self, arena: &A, number: u32) {
        let Some(node) = self.nodes.get_mut(arena, number) else { return };
        let costs = std::mem::take(&mut node.costs);
        let Node { parent, function, arc, flags, .. } = *node;
        if costs.is_zero() {
            return;
        }
        if flags & flag::FIRST_OF_FUNCTION != 0
            && let Some(function) = self.functions.get_mut(arena, function)
        {
            function.inclusive += &costs;
        }
        if flags & flag::ROOT != 0 {
            if let Some(root) = self.roots.get_mut(arena, arc) {
                root.inclusive += &costs;
            }
            return;
        }
        if flags & flag::FIRST_OF_ARC != 0
            && let Some(arc) = self.arcs.get_mut(arena, arc)
        {
            arc.inclusive += &costs;
        }
        if let Some(parent) = self.nodes.get_mut(arena, parent) {
            parent.costs += &costs;
        }
    }

    /// Prunes nodes not needed.
    pub(crate) fn prune<A: Arena + ?Sized>(&mut self, arena: &A, facts: &mut Facts) {
        self.hold_stacks(arena, 1);
        for first in UNKNOWN_NODE + 1..self.nodes.len() as u32 {
            let mut number = first;
            while let Some(node) = self.nodes.get_mut(arena, number)
                && node.flags & flag::FREE == 0
                && node.lines == 0
                && node.children == 0
                && number != UNKNOWN_NODE
            {
                let (parent, is_root) = (node.parent, node.flags & flag::ROOT != 0);
                self.hand_up(arena, number);
                if let Some(node) = self.nodes.get_mut(arena, number) {
                    // A free node is not found by the parent field, which links the next free node.
                    (node.flags, node.arc) = (flag::FREE, 0);
                    node.parent = self.free;
                }
                self.free = number;
                self.used = self.used.saturating_sub(1);
                if is_root {
                    break;
                }
                if let Some(parent) = self.nodes.get_mut(arena, parent) {
                    parent.children = parent.children.saturating_sub(1);
                }
                number = parent;
            }
        }
        self.hold_stacks(arena, -1);
        self.node_numbers.clear(arena);
        for number in UNKNOWN_NODE + 1..self.nodes.len() as u32 {
            if let Some(node) = self.nodes.get_mut(arena, number).copied()
                && node.flags & (flag::FREE | flag::ROOT) == 0
            {
                // Has room for at least as many keys as before.
                let _has_room = self.node_numbers.set(arena, node_key(node.parent, node.arc), number);
            }
        }
        let nodes = self.nodes.values(arena);
        let is_free = |node: &Node| node.flags & flag::FREE != 0;
        facts.children.retain(|node| nodes.get(node as usize).is_some_and(|node| !is_free(node)));
        self.prunings += 1;
        self.nodes_sum += u64::from(self.used);
        self.nodes_most = self.nodes_most.max(self.used.into());
        self.limit = self.used.saturating_mul(2).max(FEW);
        self.pruned_at = self.loads;
    }

    /// Prunes when due.
    #[inline(always)]
    pub(crate) fn prune_sometimes<A: Arena + ?Sized>(&mut self, arena: &A, facts: &mut Facts) {
        if self.loads.saturating_sub(self.pruned_at) >= LOADS.0.max(LOADS.1 * u64::from(self.used)) {
            self.prune(arena, facts);
        }
    }

    /// Counts the nodes at the tops of stacks as needed (or as
    /// no longer needed); parents are needed through children.
    fn hold_stacks<A: Arena + ?Sized>(&mut self, arena: &A, by: i32) {
        let mut nodes = self.nodes;
        let mut hold = |thread: &Thread| {
            for depth in 0..thread.depth {
                // SAFETY: below the thread's depth; only copies are taken.
                let (frame, next) = unsafe {
                    let next = (depth + 1 < thread.depth).then(|| thread.frame(arena, depth + 1).kind);
                    (*thread.frame(arena, depth), next)
                };
                if next.is_none_or(|next| next != kind::CALL)
                    && let Some(node) = nodes.get_mut(arena, frame.node)
                {
                    node.lines = node.lines.wrapping_add_signed(by);
                }
            }
        };
        for (index, thread) in (0..).zip(self.threads.values(arena)) {
            hold(if index == self.thread { &self.now } else { thread });
        }
    }
}

fn node_key(parent: u32, arc: u32) -> u64 {
    (u64::from(parent) + 1) << 32 | u64::from(arc)
}

impl<A: Arena + ?Sized> Sim<'_, A> {
    /// The function beginning at an instruction.
    fn function(&mut self, instruction: u32, address: Option<u64>) -> u32 {
        let record = self.code.instruction(instruction);
        let Some(entry) = address.or(record.map(facts::address)) else { return UNKNOWN_CALLER };
        let s = &mut *self.s;
        let known = s.function_numbers.get(self.arena, entry.wrapping_add(1));
        if known != 0 || entry == u64::MAX {
            return known;
        }
        let instruction = if address.is_some() { NO_INSTRUCTION } else { instruction };
        let skipped = u32::from(address.is_none() && record.is_some_and(facts::is_skipped));
        let record = FunctionRecord { entry, instruction, skipped, inclusive: Costs::default() };
        let made = s.functions.push(self.arena, record);
        let made = made.filter(|number| s.function_numbers.set(self.arena, entry + 1, *number).is_some());
        self.or_full(made).unwrap_or(UNKNOWN_CALLER)
    }

    /// The number of a call arc; `None` when the arena is full.
    fn arc(&mut self, caller: u32, site: u32, callee: u32) -> Option<u32> {
        let s = &mut *self.s;
        let key = (u64::from(caller) + 1) << 32 | u64::from(site);
        let first = s.arc_numbers.get(self.arena, key);
        let mut number = first;
        while number != 0 {
            // SAFETY: numbers in the table and in chains are below the list's length; chains descend.
            let arc = unsafe { s.arcs.at(self.arena, number) };
            if arc.callee == callee {
                return Some(number);
            }
            number = arc.next;
        }
        let arc = ArcRecord { caller, site, callee, next: first, calls: 0, inclusive: Costs::default() };
        let made = s.arcs.push(self.arena, arc)?;
        s.arc_numbers.set(self.arena, key, made)?;
        Some(made)
    }

    /// A node from the list of free nodes, or a new node; `None` if the arena is full.
    fn node(&mut self, node: Node) -> Option<u32> {
        let s = &mut *self.s;
        let number = if s.free != 0 {
            let number = s.free;
            let free = s.nodes.get_mut(self.arena, number)?;
            s.free = free.parent;
            *free = node;
            number
        } else {
            s.nodes.push(self.arena, node)?
        };
        s.used = s.used.wrapping_add(1);
        s.nodes_made = s.nodes_made.wrapping_add(1);
        Some(number)
    }

    /// The child of a node; `None` when the arena is full.
    #[inline(never)]
    fn child(&mut self, parent: u32, site: u32, block: u32, caller: u32, function: u32) -> Option<u32> {
        let arc = self.arc(caller, site, function)?;
        let known = self.s.node_numbers.get(self.arena, node_key(parent, arc));
        let number = if known != 0 {
            known
        } else {
            if self.s.used >= self.s.limit {
                self.s.prune(self.arena, self.facts);
            }
            let nodes = self.s.nodes.values(self.arena);
            let path = nodes.get(parent as usize)?.path;
            let (mut first_of_function, mut first_of_arc) = (true, true);
            if path & bit(function) != 0 {
                let (mut above, mut steps) = (parent, 0);
                // After a kill, torn paths may be circular.
                while above != 0
                    && first_of_arc
                    && steps < nodes.len()
                    && let Some(node) = nodes.get(above as usize)
                {
                    first_of_function &= node.function != function;
                    first_of_arc &= node.flags & flag::ROOT != 0 || node.arc != arc;
                    (above, steps) = (node.parent, steps + 1);
                }
            }
            let of = |is: bool, flag: u32| if is { flag } else { 0 };
            let number = self.node(Node {
                parent,
                function,
                arc,
                lines: 0,
                children: 0,
                flags: of(first_of_function, flag::FIRST_OF_FUNCTION) | of(first_of_arc, flag::FIRST_OF_ARC),
                path: path | bit(function),
                costs: Costs::default(),
            })?;
            self.s.nodes.get_mut(self.arena, parent)?.children += 1;
            self.s.node_numbers.set(self.arena, node_key(parent, arc), number)?;
            number
        };
        self.facts.children.set(parent, site, block, [number, function, arc]);
        Some(number)
    }

    /// A node for a new root; `None` when the arena is full.
    fn root(&mut self, function: u32, signal: u32) -> Option<u32> {
        if function == UNKNOWN_CALLER && signal == NONE {
            return Some(UNKNOWN_NODE);
        }
        let roots = self.s.roots.values(self.arena);
        let known = roots.iter().position(|root| (root.function, root.signal) == (function, signal));
        let record = RootRecord { function, signal, inclusive: Costs::default() };
        let root = match known {
            Some(known) => known as u32,
            None => self.s.roots.push(self.arena, record)?,
        };
        self.node(Node {
            parent: 0,
            function,
            arc: root,
            lines: 0,
            children: 0,
            flags: flag::ROOT | flag::FIRST_OF_FUNCTION | flag::FIRST_OF_ARC,
            path: bit(function),
            costs: Costs::default(),
        })
    }

    /// As [`Sim::arrive`] for a call with a place that led
    /// to `block` before; otherwise false, without effect.
    #[inline(always)]
    pub(crate) fn enter_again(&mut self, block: u32) -> bool {
        let depth = self.s.now.depth;
        if !matches!(self.s.now.pending, PENDING_CALL | PENDING_BEHIND) || depth < 2 {
            return false;
        }
        // SAFETY: below the depth, and different frames.
        let (frame, above) =
            unsafe { (self.s.now.frame(self.arena, depth - 1), *self.s.now.frame(self.arena, depth - 2)) };
        if above.instead != 0 {
            return false;
        }
        let Some(child) = self.facts.children.get(above.node, self.s.now.pending_site, block).copied() else {
            return false;
        };
        if child.node == 0 {
            frame.instead = child.function;
            self.s.now.pending = PENDING_BEHIND;
        } else {
            // SAFETY: remembered numbers are in the list, which never shrinks.
            unsafe { self.s.arcs.at(self.arena, child.arc) }.calls += 1;
            (frame.node, frame.function, frame.instead) = (child.node, child.function, 0);
            self.s.now.pending = 0;
        }
        self.stand();
        true
    }

    /// The newest frame's function is known: beginning at the instruction
    /// `first`, in `block` if the source gives a block, otherwise at the
    /// target of the call within the instruction's bytes.
    #[inline(always)]
    pub(crate) fn enter(&mut self, block: u32, first: u32) {
        let pending = std::mem::take(&mut self.s.now.pending);
        let depth = self.s.now.depth;
        if !matches!(pending, PENDING_CALL | PENDING_BEHIND) || depth < 2 {
            return self.enter_root(pending, first);
        }
        // SAFETY: below the depth, and different frames.
        let (frame, above) =
            unsafe { (self.s.now.frame(self.arena, depth - 1), *self.s.now.frame(self.arena, depth - 2)) };
        let mut site = self.s.now.pending_site;
        if above.instead != 0 {
            // SAFETY: frames have cells of the list.
            site = unsafe { self.s.cells.list.at(self.arena, above.instead).index };
        }
        if let Some(child) = self.facts.children.get(above.node, site, block).filter(|child| child.node != 0)
        {
            // SAFETY: remembered numbers are in the list, which never shrinks.
            unsafe { self.s.arcs.at(self.arena, child.arc) }.calls += 1;
            (frame.node, frame.function, frame.instead) = (child.node, child.function, 0);
            return self.stand();
        }
        self.enter_slowly(block, first, site);
    }

    #[inline(never)]
    fn enter_slowly(&mut self, block: u32, first: u32, site: u32) {
        let depth = self.s.now.depth;
        // SAFETY: below the depth: the caller checked for two frames.
        let above = unsafe { *self.s.now.frame(self.arena, depth - 2) };
        let told = block != NONE;
        let target = if told { None } else { self.code.instruction(site).and_then(facts::direct_target) };
        let function = self.function(first, target);
        let skipped =
            self.s.functions.get_mut(self.arena, function).is_some_and(|record| record.skipped == 1);
        let mut frame = above;
        if skipped {
            frame.instead = self.instead(&above, site);
        } else {
            let child = self.child(above.node, site, block, above.function, function);
            match self.or_full(child) {
                Some(child) => {
                    (frame.node, frame.function, frame.instead) = (child, function, 0);
                    let arc = self.s.nodes.get_mut(self.arena, child).map_or(0, |node| node.arc);
                    if let Some(arc) = self.s.arcs.get_mut(self.arena, arc) {
                        arc.calls += 1;
                    }
                }
                None => self.s.calls_folded += 1,
            }
        }
        // SAFETY: as above, and no second reference.
        let newest = unsafe { self.s.now.frame(self.arena, depth - 1) };
        (newest.node, newest.function, newest.instead) = (frame.node, frame.function, frame.instead);
        self.stand();
    }

    #[inline(never)]
    fn enter_root(&mut self, pending: u32, first: u32) {
        let Some(top) = self.s.now.depth.checked_sub(1) else { return };
        let signal = if pending == PENDING_SIGNAL { self.s.now.pending_site } else { NONE };
        let function = self.function(first, None);
        let made = self.root(function, signal);
        let (node, function) = match self.or_full(made) {
            Some(node) => (node, function),
            None => (UNKNOWN_NODE, UNKNOWN_CALLER),
        };
        // SAFETY: below the depth, and no second reference.
        let frame = unsafe { self.s.now.frame(self.arena, top) };
        (frame.node, frame.function, frame.instead) = (node, function, 0);
        self.stand();
    }
}
