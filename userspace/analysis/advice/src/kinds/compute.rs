//! Loops that do not wait for memory: the limit of the processor whose removal shortens the loop most.

use crate::{Candidate, Kind, View, gain::Fix};

/// A loop whose time is at most so many times its core does not wait for memory.
const COMPUTES: f64 = 1.25;
/// Least saving of the removed limit.
const SAVES: f64 = 1.1;

/// The change that removes the limit.
pub(super) fn limit(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let (_, cycles) = of.speed?;
    let core = of.core?;
    let (bound, saves) = of.bound_by.as_ref()?;
    if cycles.value > COMPUTES * core.value || *saves < SAVES {
        return None;
    }
    let (kind, what, way) = match bound.as_str() {
        "fp_add_chain" | "fp_multiply_chain" | "integer_chain" => (
            Kind::Accumulators,
            "Use several accumulators, or let the compiler reorder the sum, at",
            "The order of the sum changes; floating point then rounds differently.",
        ),
        "store_forwarding" => (
            Kind::Accumulators,
            "Carry the value from round to round in a register, not through memory, at",
            "The compiler must know that no other pointer leads there.",
        ),
        "mispredictions" => (
            Kind::Branch,
            "Replace the branch that the processor does not foresee by arithmetic, or sort the data, at",
            "Both sides of the branch must be safe to compute.",
        ),
        "width" | "loads" | "stores" | "fp_units" | "int_units" => (
            Kind::Vectorise,
            "Let the compiler use vector instructions at",
            "Steps of one element, no aliases and a known number of rounds are needed.",
        ),
        _ => return None,
    };
    let mut evidence: Vec<String> = view.time(of).into_iter().collect();
    evidence.push(format!("The loop does not wait for memory: its limit is {}.", bound.replace('_', " ")));
    Some(Candidate {
        kind,
        fixes: vec![Fix { of: number, changes: Vec::new(), core: 1.0 / saves, stall: 1.0 }],
        title: format!("{what} {} in {}", view.at(number), view.function(of)),
        of: number,
        other: None,
        object: None,
        evidence,
        in_the_way: vec![way.to_owned()],
    })
}
