//! Dominators and natural loops of a function (Aho, Lam, Sethi, Ullman, "Compilers", 2nd edition, 9.6;
//! Cooper, Harvey, Kennedy, "A simple, fast dominance algorithm", 2001).
//!
//! A back edge whose target does not dominate its source closes no natural loop. Such an edge is counted as
//! irreducible, and its region stays flat.

use crate::code::Function;

/// A natural loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// Block where it is entered.
    pub header: usize,
    /// Blocks that jump back to the header.
    pub latches: Vec<usize>,
    /// Its blocks, those of inner loops included, ascending.
    pub blocks: Vec<usize>,
    /// Number of the loop around it.
    pub parent: Option<usize>,
    /// Loops around it.
    pub depth: usize,
}

impl Loop {
    /// Whether a block is in it.
    pub fn has(&self, block: usize) -> bool {
        self.blocks.binary_search(&block).is_ok()
    }
}

/// What follows from the edges of a function.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// Blocks in reverse post-order; unreachable ones are left out.
    pub order: Vec<usize>,
    /// Place of each block in that order.
    pub place: Vec<Option<usize>>,
    /// Blocks before each block.
    pub before: Vec<Vec<usize>>,
    /// Immediate dominator of each block.
    pub dominator: Vec<Option<usize>>,
    /// Loops, outer ones first.
    pub loops: Vec<Loop>,
    /// Innermost loop of each block.
    pub innermost: Vec<Option<usize>>,
    /// Edges back in the order that close no natural loop.
    pub irreducible: Vec<(usize, usize)>,
}

impl Graph {
    /// Of a function.
    pub fn of(function: &Function) -> Self {
        let count = function.blocks.len();
        let next = |block: usize| function.blocks.get(block).map_or(&[][..], |block| &block.next);
        let mut graph = Self {
            place: vec![None; count],
            before: vec![Vec::new(); count],
            dominator: vec![None; count],
            innermost: vec![None; count],
            ..Self::default()
        };
        // Depth first, without recursion.
        let mut seen = vec![false; count];
        let mut path = vec![(function.first, 0)];
        seen[function.first] = true;
        while let Some((block, at)) = path.pop() {
            match next(block).get(at) {
                Some(to) => {
                    path.push((block, at + 1));
                    if !std::mem::replace(&mut seen[*to], true) {
                        path.push((*to, 0));
                    }
                }
                None => graph.order.push(block),
            }
        }
        graph.order.reverse();
        for (place, block) in graph.order.iter().enumerate() {
            graph.place[*block] = Some(place);
        }
        for block in &graph.order {
            for to in next(*block) {
                if !graph.before[*to].contains(block) {
                    graph.before[*to].push(*block);
                }
            }
        }
        graph.dominate(function.first);
        graph.find_loops(function);
        graph
    }

    fn dominate(&mut self, first: usize) {
        self.dominator[first] = Some(first);
        let mut changed = true;
        while changed {
            changed = false;
            for block in self.order.iter().copied().filter(|block| *block != first).collect::<Vec<_>>() {
                let mut new: Option<usize> = None;
                for from in &self.before[block] {
                    if self.dominator[*from].is_some() {
                        new = Some(new.map_or(*from, |other| self.common(other, *from)));
                    }
                }
                if new.is_some() && self.dominator[block] != new {
                    self.dominator[block] = new;
                    changed = true;
                }
            }
        }
    }

    fn common(&self, mut a: usize, mut b: usize) -> usize {
        while a != b {
            let (at, bt) = (self.place[a].unwrap_or(0), self.place[b].unwrap_or(0));
            if at > bt {
                a = self.dominator[a].unwrap_or(b);
            } else {
                b = self.dominator[b].unwrap_or(a);
            }
        }
        a
    }

    /// Whether every way to `block` leads through `by`.
    pub fn dominates(&self, by: usize, mut block: usize) -> bool {
        loop {
            if block == by {
                return true;
            }
            match self.dominator.get(block).copied().flatten() {
                Some(up) if up != block => block = up,
                _ => return false,
            }
        }
    }

    fn find_loops(&mut self, function: &Function) {
        let mut loops: Vec<Loop> = Vec::new();
        for block in &self.order {
            for to in &function.blocks[*block].next {
                if self.place[*to] > self.place[*block] {
                    continue;
                }
                if !self.dominates(*to, *block) {
                    self.irreducible.push((*block, *to));
                    continue;
                }
                match loops.iter_mut().find(|found| found.header == *to) {
                    Some(found) => found.latches.push(*block),
                    None => loops.push(Loop {
                        header: *to,
                        latches: vec![*block],
                        blocks: Vec::new(),
                        parent: None,
                        depth: 0,
                    }),
                }
            }
        }
        for found in &mut loops {
            let mut inside = vec![false; function.blocks.len()];
            inside[found.header] = true;
            let mut work = found.latches.clone();
            while let Some(block) = work.pop() {
                if !std::mem::replace(&mut inside[block], true) {
                    work.extend(&self.before[block]);
                }
            }
            found.blocks = inside.iter().enumerate().filter(|(_, is)| **is).map(|(block, _)| block).collect();
        }
        // Outer loops have more blocks.
        loops.sort_by_key(|found| (std::cmp::Reverse(found.blocks.len()), found.header));
        for number in 0..loops.len() {
            let header = loops[number].header;
            let parent =
                (0..number).rev().find(|outer| loops[*outer].has(header) && loops[*outer].header != header);
            loops[number].parent = parent;
            loops[number].depth = parent.map_or(0, |outer| loops[outer].depth + 1);
        }
        for (number, found) in loops.iter().enumerate() {
            for block in &found.blocks {
                let deeper = self.innermost[*block].is_none_or(|known| loops[known].depth <= found.depth);
                if deeper {
                    self.innermost[*block] = Some(number);
                }
            }
        }
        self.loops = loops;
    }

    /// Loops around a block, innermost first.
    pub fn around(&self, block: usize) -> Vec<usize> {
        let mut around = Vec::new();
        let mut at = self.innermost.get(block).copied().flatten();
        while let Some(number) = at {
            around.push(number);
            at = self.loops.get(number).and_then(|found| found.parent);
        }
        around
    }
}
