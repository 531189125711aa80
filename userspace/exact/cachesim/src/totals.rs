//! Result of a simulation: plain values that merge.
//!
//! **Functions are call targets**, by the address at which control arrived: a procedure linkage
//! table's stub is passed through to what it jumps to, and what a function jumps to without a call
//! (a tail call) runs in its name. Whoever names functions by symbols looks up [`Function::entry`],
//! and the addresses of [`SelfCost`] and [`CallArc::site`] to see tail calls. Addresses are those
//! of one image (a process between two `execve`): [`Totals::merge`] is for threads and streams of
//! the same image; of several images, names are merged instead (`named`).
//!
//! Self costs stand with the instruction; inclusive ones count each cost once for every function,
//! and once for every call arc, on the path from the root to the instruction, however often it lies
//! on the path (recursion).

use std::collections::BTreeMap;

use locality_stream::NO_INSTRUCTION;

use crate::columns::{COLUMNS, Column, Costs};
use crate::objects::{self, ObjectUse};

/// The function number 0: costs whose callers are not known.
pub const UNKNOWN_CALLER: u32 = 0;
/// Its name in reports.
pub const UNKNOWN_CALLER_NAME: &str = "[unknown caller]";

/// A function that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Address of its first instruction; 0 for [`UNKNOWN_CALLER`].
    pub entry: u64,
    /// Index of the instruction in the stream's code; [`NO_INSTRUCTION`] if unknown.
    pub instruction: u32,
    /// Its inclusive cost.
    pub inclusive: Costs,
}

impl Function {
    /// [`UNKNOWN_CALLER`], before anything is charged to it.
    pub const UNKNOWN: Function =
        Function { entry: 0, instruction: NO_INSTRUCTION, inclusive: Costs([0; COLUMNS]) };
}

/// Cost of one instruction in one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelfCost {
    /// Index into [`Totals::functions`].
    pub function: u32,
    /// Index of the instruction in the stream's code; [`NO_INSTRUCTION`] where it is not known.
    pub instruction: u32,
    /// Its address; 0 if unknown.
    pub address: u64,
    /// Its own costs, and those of its skipped callees.
    pub costs: Costs,
}

/// Calls from one instruction to one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallArc {
    /// Index into [`Totals::functions`].
    pub caller: u32,
    /// Index of the call instruction in the stream's code.
    pub instruction: u32,
    /// Its address.
    pub site: u64,
    /// Index into [`Totals::functions`].
    pub callee: u32,
    /// How often it was taken.
    pub calls: u64,
    /// Inclusive cost.
    pub inclusive: Costs,
}

/// Where call stacks begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// Index into [`Totals::functions`]: what a thread began with, or a signal's handler.
    pub function: u32,
    /// The signal that a handler is for; `None` for a thread.
    pub signal: Option<u32>,
    /// Inclusive cost.
    pub inclusive: Costs,
}

/// The back-dating trees of a simulation (Weidendorfer and Breitbart 2016, section 4, gives the
/// same for Callgrind).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeStatistics {
    /// Prunings: the times at which nodes were counted.
    pub prunings: u64,
    /// Needed nodes, summed over the prunings: divided by these, the average size of all trees
    /// together.
    pub nodes_sum: u64,
    /// The largest number of needed nodes seen at a pruning.
    pub nodes_most: u64,
    /// Nodes made in all.
    pub nodes_made: u64,
    /// Calls that were left in their caller's node, because the stack was too deep or the memory used up.
    pub calls_folded: u64,
}

impl TreeStatistics {
    /// Adds the totals of other trees.
    pub fn merge(&mut self, other: &TreeStatistics) {
        self.prunings += other.prunings;
        self.nodes_sum += other.nodes_sum;
        self.nodes_most = self.nodes_most.max(other.nodes_most);
        self.nodes_made += other.nodes_made;
        self.calls_folded += other.calls_folded;
    }
}

/// The results.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// The columns that were counted, in the order of printing.
    pub columns: Vec<Column>,
    /// Value of one whole reciprocal access in the `AcCost` columns.
    pub access_cost_unit: u64,
    /// Bytes of a line.
    pub line: u64,
    /// Functions; [`UNKNOWN_CALLER`] first.
    pub functions: Vec<Function>,
    /// Self costs, by function and instruction.
    pub self_costs: Vec<SelfCost>,
    /// Calls, by caller, instruction and callee.
    pub arcs: Vec<CallArc>,
    /// Roots, by function and signal.
    pub roots: Vec<Root>,
    /// Costs of use by the source's number of a data object, [`crate::UNKNOWN_OBJECT`] first; empty
    /// where they are not distinguished. A number stands for the same object in all streams of an
    /// image.
    pub objects: Vec<ObjectUse>,
    /// All costs.
    pub sum: Costs,
    /// Parallel hierarchies: threads or processes with a hierarchy of their own. In one hierarchy
    /// of a single stream, threads share the last level; several streams share nothing.
    pub streams: u64,
    /// Threads seen.
    pub threads: u64,
    /// The trees.
    pub tree: TreeStatistics,
    /// Events of the source that were lost, or counted in part because the process was killed meanwhile.
    pub torn: u64,
    /// Streams that were not simulated to their end, because memory was used up.
    pub full: u64,
}

impl Totals {
    /// What cannot be charged to a known root.
    pub fn unknown_caller(&self) -> Costs {
        let mut costs = Costs::default();
        for root in self.roots.iter().filter(|root| root.function == UNKNOWN_CALLER) {
            costs += &root.inclusive;
        }
        costs
    }

    /// Whether the sums of self costs, of the roots' inclusive costs, and of objects' costs equal
    /// all costs, to the last count.
    pub fn balances(&self) -> bool {
        let (mut own, mut roots) = (Costs::default(), Costs::default());
        self.self_costs.iter().for_each(|cost| own += &cost.costs);
        self.roots.iter().for_each(|root| roots += &root.inclusive);
        own == self.sum && roots == self.sum && objects::balance(&self.objects, &self.sum)
    }

    /// Adds another thread's or stream's results of the same image. Does not depend on the order,
    /// apart from the numbers of functions.
    pub fn merge(&mut self, other: &Totals) {
        if self.columns.is_empty() {
            self.columns.clone_from(&other.columns);
            (self.access_cost_unit, self.line) = (other.access_cost_unit, other.line);
        }
        if self.functions.is_empty() {
            self.functions.push(Function::UNKNOWN);
        }
        let mut known: BTreeMap<u64, u32> =
            (0..).zip(&self.functions).map(|(number, function)| (function.entry, number)).collect();
        let mut numbers = Vec::with_capacity(other.functions.len());
        for function in &other.functions {
            let number = *known.entry(function.entry).or_insert_with(|| {
                self.functions.push(Function { inclusive: Costs::default(), ..*function });
                self.functions.len() as u32 - 1
            });
            if let Some(ours) = self.functions.get_mut(number as usize) {
                ours.inclusive += &function.inclusive;
            }
            numbers.push(number);
        }
        let ours = |theirs: u32| numbers.get(theirs as usize).copied().unwrap_or(UNKNOWN_CALLER);

        let renamed = other.self_costs.iter().map(|cost| SelfCost { function: ours(cost.function), ..*cost });
        combine(
            &mut self.self_costs,
            renamed,
            |cost| (cost.function, cost.instruction),
            |to, from| to.costs += &from.costs,
        );
        let renamed = other.arcs.iter().map(|arc| CallArc {
            caller: ours(arc.caller),
            callee: ours(arc.callee),
            ..*arc
        });
        combine(
            &mut self.arcs,
            renamed,
            |arc| (arc.caller, arc.instruction, arc.callee),
            |to, from| {
                to.calls += from.calls;
                to.inclusive += &from.inclusive;
            },
        );
        let renamed = other.roots.iter().map(|root| Root { function: ours(root.function), ..*root });
        combine(
            &mut self.roots,
            renamed,
            |root| (root.function, root.signal),
            |to, from| to.inclusive += &from.inclusive,
        );
        self.objects.resize(self.objects.len().max(other.objects.len()), ObjectUse::default());
        self.objects.iter_mut().zip(&other.objects).for_each(|(ours, theirs)| *ours += theirs);
        self.sum += &other.sum;
        self.streams += other.streams;
        self.threads += other.threads;
        self.torn += other.torn;
        self.full += other.full;
        self.tree.merge(&other.tree);
    }
}

/// Adds rows to rows with the same key, and sorts by it.
pub(crate) fn combine<T: Copy, K: Ord>(
    rows: &mut Vec<T>,
    more: impl Iterator<Item = T>,
    key: impl Fn(&T) -> K,
    add: impl Fn(&mut T, &T),
) {
    rows.extend(more);
    rows.sort_by_key(&key);
    rows.dedup_by(|later, kept| {
        let same = key(later) == key(kept);
        if same {
            add(kept, later);
        }
        same
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(column: Column, count: u64) -> Costs {
        let mut costs = Costs::default();
        costs[column] = count;
        costs
    }

    fn of(entry: u64, count: u64) -> Totals {
        let costs = costs(Column::Dr, count);
        Totals {
            columns: vec![Column::Dr],
            access_cost_unit: 1,
            line: 64,
            functions: vec![
                Function::UNKNOWN,
                Function { entry: 0x10, instruction: 0, inclusive: costs },
                Function { entry, instruction: entry as u32 - 0x10, inclusive: costs },
            ],
            self_costs: vec![SelfCost { function: 2, instruction: 7, address: 0x17, costs }],
            arcs: vec![CallArc {
                caller: 1,
                instruction: 3,
                site: 0x13,
                callee: 2,
                calls: 1,
                inclusive: costs,
            }],
            roots: vec![Root { function: 1, signal: None, inclusive: costs }],
            sum: costs,
            streams: 1,
            threads: 1,
            ..Totals::default()
        }
    }

    #[test]
    fn functions_are_the_same_by_their_entry() {
        let mut sum = of(0x20, 5);
        sum.merge(&of(0x30, 7));
        sum.merge(&of(0x20, 100));
        assert!(sum.balances());
        assert_eq!(sum.sum[Column::Dr], 112);
        let dr = |number: usize| (sum.functions[number].entry, sum.functions[number].inclusive[Column::Dr]);
        assert_eq!((dr(1), dr(2), dr(3)), ((0x10, 112), (0x20, 105), (0x30, 7)));
        assert_eq!((sum.arcs.len(), sum.arcs[0].calls, sum.self_costs.len(), sum.roots.len()), (2, 2, 2, 1));
        let mut other = of(0x20, 100);
        other.merge(&of(0x20, 5));
        other.merge(&of(0x30, 7));
        assert_eq!(other, sum);
        let mut empty = Totals::default();
        empty.merge(&sum);
        assert_eq!((empty.arcs, empty.sum), (sum.arcs, sum.sum));
    }

    #[test]
    fn what_does_not_balance_is_seen() {
        let mut totals = of(0x20, 5);
        totals.roots[0].inclusive[Column::Dr] = 4;
        assert!(!totals.balances());
    }
}
