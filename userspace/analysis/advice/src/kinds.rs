//! Classes of advice, each a look at one loop or at two.

mod compute;
mod latency;
mod layout;
mod order;
mod passes;
mod sharing;

use crate::{
    Access, Candidate, Loop, View,
    gain::{LINE, REGULAR, lines},
    loops::Misses,
};

/// Windows in which a stride between runs must have been seen.
const SEEN: u64 = 1;
/// Least part of a loop's line costs that a change must concern.
const CONCERNED: f64 = 0.2;

/// All changes that any class proposes.
pub(crate) fn all(view: &View<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for number in 0..view.loops.len() {
        found.extend(order::interchange(view, number));
        found.extend(order::tile_order(view, number));
        found.extend(order::tile_rounds(view, number));
        found.extend(order::pad(view, number));
        found.extend(layout::elements(view, number));
        found.extend(layout::shrink(view, number));
        found.extend(layout::reorder(view, number));
        found.extend(latency::prefetch(view, number));
        found.extend(latency::batch(view, number));
        found.extend(latency::huge_pages(view, number));
        found.extend(compute::limit(view, number));
        found.extend(compute::vectorise(view, number));
    }
    found.extend(passes::fuse(view));
    found.extend(sharing::false_sharing(view));
    found
}

/// The stride of an access that has one, in bytes.
pub(crate) fn stride(access: &Access) -> Option<i64> {
    access.stride.filter(|_| access.stride_share >= REGULAR)
}

/// Lines of an execution where each is a step away from the last.
fn lines_of_step(step: i64, bytes: u32) -> f64 {
    let step = step.unsigned_abs() as f64;
    if step == 0.0 { 0.0 } else { (step.max(f64::from(bytes).min(step)) / LINE).min(1.0) }
}

/// Misses of an access whose lines are at most so many an execution, from where they come now.
fn capped(access: &Access, most: f64) -> Misses {
    lines(access).map(|lines| lines.min(most * access.per_iteration))
}

/// Whether an access belongs to those that cost: part of the loop's cost of lines.
fn cost(view: &View<'_>, access: &Access) -> f64 {
    view.costs.of_lines(lines(access), crate::gain::Pattern::of(access), access.dirties)
}

/// Costs of all accesses of a loop.
fn whole_cost(view: &View<'_>, of: &Loop) -> f64 {
    of.accesses.iter().map(|access| cost(view, access)).sum()
}

/// The first cache, from the smallest on, that holds so many bytes; 3 where none does.
fn holds(view: &View<'_>, bytes: f64) -> usize {
    // A part of the cache is for everything else.
    view.caches.iter().position(|cache| bytes <= cache * 0.75).unwrap_or(3)
}
