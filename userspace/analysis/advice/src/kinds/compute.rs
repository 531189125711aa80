//! Loops without waits for memory: the processor limit with the greatest gain on removal.

use crate::{Candidate, Kind, View, gain::Fix};

/// As `COMPUTES`, for a loop shortened by vector instructions.
const MOSTLY_COMPUTES: f64 = 1.6;
/// Bytes of the vector registers present in every x86-64 processor.
const VECTOR: u32 = 16;
/// Least used part of the lanes of vectorised code.
const EFFICIENCY: f64 = 0.6;
/// Greatest ratio of the cycles of code without a branch to the cycles with a foreseen branch.
const BRANCHLESS: f64 = 2.0;
/// Additional saving of a vectorised sum.
const LANES: f64 = 2.0;
/// Greatest stride in elements that vector instructions can pick out.
const INTERLEAVED: i64 = 4;

/// Multiple of the core cycles up to which a loop does not wait for memory.
const COMPUTES: f64 = 1.25;
/// Least saving of the removed limit.
const SAVES: f64 = 1.1;

/// The change to remove the limit.
pub(super) fn limit(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let (_, cycles) = of.speed?;
    let core = of.core?;
    let (bound, saves) = of.bound_by.as_ref()?;
    if cycles.value > COMPUTES * core.value || *saves < SAVES {
        return None;
    }
    let (kind, what, way) = match bound.as_str() {
        // Chains of further operations (a hash, a recurrence) have a fixed order.
        "fp_add_chain" => (
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
            "Both sides of the branch must be safe to execute.",
        ),
        _ => return None,
    };
    // Sums in several parts fit vector registers too.
    let in_rows = of
        .accesses
        .iter()
        .any(|access| super::stride(access) == Some(access.bytes.into()) && access.bytes <= 8);
    let core = match kind {
        Kind::Accumulators if in_rows => (1.0 / (saves * LANES), 1.0 / saves),
        // The branch's replacement is computed each time.
        Kind::Branch => (1.0 / saves, BRANCHLESS / saves),
        _ => (1.0 / saves, 1.0 / saves),
    };
    let mut evidence: Vec<String> = view.time(of).into_iter().collect();
    evidence.push(format!("The loop does not wait for memory: its limit is {}.", bound.replace('_', " ")));
    Some(Candidate {
        kind,
        fixes: vec![Fix::core(number, core)],
        title: format!("{what} {} in {}", view.at(number), view.function(of)),
        of: number,
        other: None,
        object: None,
        evidence,
        in_the_way: vec![way.to_owned()],
    })
}

/// Scalar code walking from element to element: vector instructions do several at a time.
pub(super) fn vectorise(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let (_, cycles) = of.speed?;
    let core = of.core?;
    let (bound, _) = of.bound_by.as_ref()?;
    let is_busy = ["width", "loads", "stores", "fp_units", "int_units"].contains(&bound.as_str());
    if !is_busy || cycles.value > MOSTLY_COMPUTES * core.value {
        return None;
    }
    let widest = of.accesses.iter().map(|access| access.bytes).max()?;
    let in_order = |access: &crate::Access| {
        let bytes = i64::from(access.bytes.max(1));
        super::stride(access)
            .is_some_and(|step| step % bytes == 0 && step.saturating_abs() <= INTERLEAVED * bytes)
    };
    let walks = of.accesses.iter().any(|access| super::stride(access).is_some_and(|step| step != 0));
    if widest > VECTOR / 2 || !walks || !of.accesses.iter().all(in_order) {
        return None;
    }
    let lanes = f64::from(VECTOR / widest);
    let mut evidence: Vec<String> = view.time(of).into_iter().collect();
    evidence.push(format!(
        "The loop computes one element at a time, and its limit is {}: a vector register holds {lanes:.0} \
         of them.",
        bound.replace('_', " ")
    ));
    Some(Candidate {
        kind: Kind::Vectorise,
        fixes: vec![Fix::core(number, (1.0 / lanes, 1.0 / (lanes * EFFICIENCY).max(1.0)))],
        title: format!(
            "Let the compiler use vector instructions at {} in {} (-O3, or `omp simd`)",
            view.at(number),
            view.function(of)
        ),
        of: number,
        other: None,
        object: None,
        evidence,
        in_the_way: vec![
            "Pointers that may lead to the same data, calls and early exits hinder the compiler; its \
             report says which."
                .to_owned(),
        ],
    })
}
