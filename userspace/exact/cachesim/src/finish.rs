//! Results of a simulation: lines given up, costs handed up, and totals taken out.

use std::collections::BTreeMap;

use locality_stream::{Arena, Code, NO_INSTRUCTION};

use crate::columns::{COLUMNS, Column, Costs};
use crate::facts;
use crate::objects;
use crate::sim::{CacheSim, Sim};
use crate::state::{NONE, State, UNKNOWN_NODE, flag};
use crate::totals::{CallArc, Function, Root, SelfCost, Totals, TreeStatistics, UNKNOWN_CALLER, combine};

impl<A: Arena + ?Sized> CacheSim<'_, A> {
    /// Ends the simulation: lines still resident count as replaced now.
    pub fn finish(mut self, code: &Code<'_>) -> Totals {
        let (arena, state) = (self.arena, self.values());
        let mut sim = Sim {
            arena,
            s: state,
            facts: &mut self.facts,
            objects: &mut self.objects,
            placed: self.placed,
            code,
        };
        sim.release_held();
        sim.fetch_rest();
        sim.s.settle(arena);
        // The last count of needed nodes.
        sim.s.prune(arena, sim.facts);
        let threads = sim.s.threads.values(arena);
        // In Callgrind's model the threads share the caches, empty after the first thread.
        for thread in threads {
            sim.give_up(thread);
        }
        sim.give_up_last();
        hand_up_all(state, arena);
        totals(state, arena, code)
    }
}

/// Hands the costs of the nodes up, children before parents.
fn hand_up_all<A: Arena + ?Sized>(s: &mut State, arena: &A) {
    let nodes = s.nodes.values(arena);
    let mut depths = vec![0_u32; nodes.len()];
    let mut path = Vec::new();
    for first in 0..nodes.len() {
        let mut number = first;
        path.clear();
        // Up to a root, or to a node of known depth. After a kill, a torn
        // path may lead to no node: the path's end is then the root.
        while let Some(node) = nodes.get(number)
            && depths.get(number) == Some(&0)
            && path.len() <= nodes.len()
        {
            path.push(number);
            if node.flags & (flag::ROOT | flag::FREE) != 0 {
                break;
            }
            number = node.parent as usize;
        }
        let mut depth = depths.get(number).copied().unwrap_or(0);
        for number in path.iter().rev() {
            depth += 1;
            if let Some(slot) = depths.get_mut(*number) {
                *slot = depth;
            }
        }
    }
    let mut order: Vec<(u32, u32)> = depths.into_iter().zip(0..).filter(|(_, number)| *number > 0).collect();
    order.sort_unstable_by_key(|(depth, number)| (std::cmp::Reverse(*depth), *number));
    for (_, number) in order {
        if s.nodes.values(arena).get(number as usize).is_some_and(|node| node.flags & flag::FREE == 0) {
            s.hand_up(arena, number);
        }
    }
    debug_assert!(s.nodes.len() > UNKNOWN_NODE as usize);
}

fn totals<A: Arena + ?Sized>(s: &mut State, arena: &A, code: &Code<'_>) -> Totals {
    let config = s.model.config();
    let mut totals = Totals {
        columns: config.columns(),
        access_cost_unit: config.access_cost_unit(),
        line: 1 << s.model.line_bits,
        streams: 1,
        threads: s.threads.len() as u64,
        tree: TreeStatistics {
            prunings: s.prunings,
            nodes_sum: s.nodes_sum,
            nodes_most: s.nodes_most,
            nodes_made: s.nodes_made,
            calls_folded: s.calls_folded,
        },
        torn: s.torn,
        full: s.full.min(1),
        ..Totals::default()
    };
    let address = |instruction| code.instruction(instruction).map_or(0, facts::address);
    for record in s.functions.values(arena) {
        let Costs(inclusive) = record.inclusive;
        totals.functions.push(Function {
            entry: record.entry,
            instruction: record.instruction,
            inclusive: Costs(inclusive),
        });
    }
    for arc in s.arcs.values(arena).iter().skip(1).filter(|arc| arc.calls > 0) {
        totals.arcs.push(CallArc {
            caller: arc.caller,
            instruction: arc.site,
            site: address(arc.site),
            callee: arc.callee,
            calls: arc.calls,
            inclusive: arc.inclusive,
        });
    }
    combine(&mut totals.arcs, std::iter::empty(), |arc| (arc.caller, arc.instruction, arc.callee), |_, _| {});
    for root in s.roots.values(arena).iter().filter(|root| !root.inclusive.is_zero()) {
        totals.roots.push(Root {
            function: root.function,
            signal: Some(root.signal).filter(|signal| *signal != NONE),
            inclusive: root.inclusive,
        });
    }
    totals.self_costs = self_costs(s, arena, code);
    balance(&mut totals);
    totals.objects = s.objects.values(arena).to_vec();
    objects::make_balance(&mut totals.objects, &totals.sum);
    totals
}

/// Costs by function and instruction; executions of blocks count for each instruction.
fn self_costs<A: Arena + ?Sized>(s: &State, arena: &A, code: &Code<'_>) -> Vec<SelfCost> {
    let mut costs: BTreeMap<(u32, u32), Costs> = BTreeMap::new();
    for cell in s.cells.list.values(arena) {
        *costs.entry((cell.function, cell.index)).or_default() += &cell.value;
    }
    for entry in s.blocks.list.values(arena) {
        let Some(block) = code.blocks.get(entry.index as usize) else { continue };
        let end = block.first.saturating_add(block.count).min(code.instructions.len() as u32);
        for instruction in block.first..end {
            let of = &mut costs.entry((entry.function, instruction)).or_default()[Column::Ir];
            *of = of.wrapping_add(entry.value);
        }
    }
    let rows = costs.into_iter().filter(|(_, costs)| !costs.is_zero());
    rows.map(|((function, instruction), costs)| SelfCost {
        function,
        instruction,
        address: code.instruction(instruction).map_or(0, facts::address),
        costs,
    })
    .collect()
}

/// Sets the sum, and charges costs left one-sided by a kill to the unknown caller.
fn balance(totals: &mut Totals) {
    let (mut own, mut roots) = (Costs::default(), Costs::default());
    totals.self_costs.iter().for_each(|cost| own += &cost.costs);
    totals.roots.iter().for_each(|root| roots += &root.inclusive);
    totals.sum = own;
    if own == roots {
        return;
    }
    let (mut more_own, mut more_roots) = (Costs([0; COLUMNS]), Costs([0; COLUMNS]));
    for column in Column::ALL {
        more_roots[column] = own[column].saturating_sub(roots[column]);
        more_own[column] = roots[column].saturating_sub(own[column]);
    }
    totals.sum += &more_own;
    let cost =
        SelfCost { function: UNKNOWN_CALLER, instruction: NO_INSTRUCTION, address: 0, costs: more_own };
    combine(
        &mut totals.self_costs,
        Some(cost).filter(|cost| !cost.costs.is_zero()).into_iter(),
        |cost| (cost.function, cost.instruction),
        |to, from| to.costs += &from.costs,
    );
    let root = Root { function: UNKNOWN_CALLER, signal: None, inclusive: more_roots };
    combine(
        &mut totals.roots,
        Some(root).filter(|root| !root.inclusive.is_zero()).into_iter(),
        |root| (root.function, root.signal),
        |to, from| to.inclusive += &from.inclusive,
    );
    if let Some(unknown) = totals.functions.first_mut() {
        unknown.inclusive += &more_roots;
    }
}
