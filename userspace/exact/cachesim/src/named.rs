//! Results by names instead of addresses, to add up several images.
//!
//! Functions of [`Totals`] are call targets. If instructions run in a function's
//! frame belong to another name, the function has jumped away (a tail call): the
//! other name gets the instructions' costs and an arc with 0 calls.
//!
//! Sources of error: the inclusive cost of a function reached by a jump is the sum over the
//! jumping frames, hence a cost counts twice if the path also has a call of the function.

use std::collections::BTreeMap;

use crate::columns::{Column, Costs};
use crate::totals::{Totals, TreeStatistics};

/// Costs of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FunctionCosts {
    /// Of own instructions.
    pub own: Costs,
    /// And of everything below.
    pub inclusive: Costs,
}

/// Costs of calls from a place to a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallCosts {
    /// Calls; 0 if the function was reached by jumps only.
    pub calls: u64,
    /// Cost of everything below.
    pub inclusive: Costs,
}

/// Results by names: `F` names a function, `P` a place within (a line, an address).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<F: Ord, P: Ord> {
    /// As [`Totals::columns`].
    pub columns: Vec<Column>,
    /// As [`Totals::access_cost_unit`].
    pub access_cost_unit: u64,
    /// Bytes of a line.
    pub line: u64,
    /// By function.
    pub functions: BTreeMap<F, FunctionCosts>,
    /// Own costs, by function and place.
    pub places: BTreeMap<(F, P), Costs>,
    /// By caller, place of the call, and callee.
    pub calls: BTreeMap<(F, P, F), CallCosts>,
    /// By function and signal, as [`Totals::roots`].
    pub roots: BTreeMap<(F, Option<u32>), Costs>,
    /// Costs not chargeable to a known root.
    pub unknown_caller: Costs,
    /// Sum of the costs.
    pub sum: Costs,
    /// As [`Totals::streams`].
    pub streams: u64,
    /// Threads seen.
    pub threads: u64,
    /// The trees.
    pub tree: TreeStatistics,
    /// As [`Totals::torn`].
    pub torn: u64,
    /// As [`Totals::full`].
    pub full: u64,
}

impl<F: Ord, P: Ord> Default for Named<F, P> {
    fn default() -> Self {
        Named {
            columns: Vec::new(),
            access_cost_unit: 0,
            line: 0,
            functions: BTreeMap::new(),
            places: BTreeMap::new(),
            calls: BTreeMap::new(),
            roots: BTreeMap::new(),
            unknown_caller: Costs::default(),
            sum: Costs::default(),
            streams: 0,
            threads: 0,
            tree: TreeStatistics::default(),
            torn: 0,
            full: 0,
        }
    }
}

impl<F: Ord + Clone, P: Ord + Clone> Named<F, P> {
    /// The results of an image, named by `name`: the function and the place of
    /// an instruction, given by index in the stream's code (possibly
    /// [`locality_stream::NO_INSTRUCTION`]) and address. Address 0 asks for
    /// [`crate::UNKNOWN_CALLER`]. The code of a function must get a single name.
    pub fn of(totals: &Totals, mut name: impl FnMut(u32, u64) -> (F, P)) -> Self {
        let mut named = Self {
            columns: totals.columns.clone(),
            access_cost_unit: totals.access_cost_unit,
            line: totals.line,
            unknown_caller: totals.unknown_caller(),
            sum: totals.sum,
            streams: totals.streams,
            threads: totals.threads,
            tree: totals.tree,
            torn: totals.torn,
            full: totals.full,
            ..Self::default()
        };
        let entries: Vec<(F, P)> =
            totals.functions.iter().map(|function| name(function.instruction, function.entry)).collect();
        let Some(unknown) = entries.first() else { return named };
        let entry = |number: u32| entries.get(number as usize).unwrap_or(unknown);
        for (function, (name, _)) in totals.functions.iter().zip(&entries) {
            // Functions never run under the own name, like the
            // unknown caller of a complete run, have no row.
            if !function.inclusive.is_zero() {
                named.functions.entry(name.clone()).or_default().inclusive += &function.inclusive;
            }
        }
        for cost in &totals.self_costs {
            let (frame, at) = entry(cost.function);
            let (function, place) = if cost.address == 0 {
                (frame.clone(), at.clone())
            } else {
                name(cost.instruction, cost.address)
            };
            named.jump(frame, at, &function, &cost.costs);
            named.functions.entry(function.clone()).or_default().own += &cost.costs;
            *named.places.entry((function, place)).or_default() += &cost.costs;
        }
        for arc in &totals.arcs {
            let (frame, at) = entry(arc.caller);
            let (caller, place) = name(arc.instruction, arc.site);
            named.jump(frame, at, &caller, &arc.inclusive);
            let call = named.calls.entry((caller, place, entry(arc.callee).0.clone())).or_default();
            call.calls += arc.calls;
            call.inclusive += &arc.inclusive;
        }
        for root in &totals.roots {
            *named.roots.entry((entry(root.function).0.clone(), root.signal)).or_default() += &root.inclusive;
        }
        named
    }

    /// Charges costs in a function's frame to the target of the function's jump.
    fn jump(&mut self, frame: &F, at: &P, to: &F, costs: &Costs) {
        if frame != to {
            self.functions.entry(to.clone()).or_default().inclusive += costs;
            self.calls.entry((frame.clone(), at.clone(), to.clone())).or_default().inclusive += costs;
        }
    }

    /// Adds another image's results.
    pub fn merge(&mut self, other: &Self) {
        if self.columns.is_empty() {
            self.columns.clone_from(&other.columns);
            (self.access_cost_unit, self.line) = (other.access_cost_unit, other.line);
        }
        for (function, costs) in &other.functions {
            let ours = self.functions.entry(function.clone()).or_default();
            ours.own += &costs.own;
            ours.inclusive += &costs.inclusive;
        }
        for (place, costs) in &other.places {
            *self.places.entry(place.clone()).or_default() += costs;
        }
        for (call, costs) in &other.calls {
            let ours = self.calls.entry(call.clone()).or_default();
            ours.calls += costs.calls;
            ours.inclusive += &costs.inclusive;
        }
        for (root, costs) in &other.roots {
            *self.roots.entry(root.clone()).or_default() += costs;
        }
        self.unknown_caller += &other.unknown_caller;
        self.sum += &other.sum;
        self.streams += other.streams;
        self.threads += other.threads;
        self.torn += other.torn;
        self.full += other.full;
        self.tree.merge(&other.tree);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::totals::{CallArc, Function, Root, SelfCost};

    fn costs(count: u64) -> Costs {
        let mut costs = Costs::default();
        costs[Column::Dw] = count;
        costs
    }

    /// `main` (0x10 on) calls `work` (0x20 on), which jumps to `tail` (0x30 on), which calls `leaf`
    /// (0x40 on).
    fn example() -> Totals {
        let function = |entry, inclusive| Function { entry, instruction: 0, inclusive: costs(inclusive) };
        let own =
            |function, address, count| SelfCost { function, instruction: 0, address, costs: costs(count) };
        let arc = |caller, site, callee, inclusive| CallArc {
            caller,
            instruction: 0,
            site,
            callee,
            calls: 1,
            inclusive: costs(inclusive),
        };
        Totals {
            columns: vec![Column::Dw],
            functions: vec![Function::UNKNOWN, function(0x10, 15), function(0x20, 14), function(0x40, 8)],
            self_costs: vec![own(1, 0x11, 1), own(2, 0x21, 2), own(2, 0x31, 4), own(3, 0x41, 8)],
            arcs: vec![arc(1, 0x12, 2, 14), arc(2, 0x32, 3, 8)],
            roots: vec![Root { function: 1, signal: None, inclusive: costs(15) }],
            sum: costs(15),
            ..Totals::default()
        }
    }

    #[test]
    fn tail_calls_are_told_from_the_names_of_instructions() {
        let mut named = Named::of(&example(), |_, address| (address >> 4, address));
        let inclusive = |named: &Named<u64, u64>, name| {
            let function = named.functions[&name];
            (function.own[Column::Dw], function.inclusive[Column::Dw])
        };
        assert_eq!(inclusive(&named, 1), (1, 15));
        assert_eq!(inclusive(&named, 2), (2, 14));
        assert_eq!(inclusive(&named, 3), (4, 12));
        assert_eq!(inclusive(&named, 4), (8, 8));
        assert!(!named.functions.contains_key(&0));
        let call = |caller, place, callee| {
            named.calls.get(&(caller, place, callee)).map(|call| (call.calls, call.inclusive[Column::Dw]))
        };
        assert_eq!(call(1, 0x12, 2), Some((1, 14)));
        assert_eq!(call(2, 0x20, 3), Some((0, 12)));
        assert_eq!(call(3, 0x32, 4), Some((1, 8)));
        assert_eq!(named.calls.len(), 3);
        let same = named.clone();
        named.merge(&same);
        assert_eq!(inclusive(&named, 3), (8, 24));
        assert_eq!(named.roots[&(1, None)][Column::Dw], 30);
        let own: u64 = named.places.values().map(|costs| costs[Column::Dw]).sum();
        assert_eq!(own, named.sum[Column::Dw]);
    }
}
