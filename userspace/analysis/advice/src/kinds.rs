//! Classes of advice, each looks at one loop or at two.

mod compute;
mod latency;
mod layout;
mod order;
mod passes;
mod sharing;

use crate::{
    Access, Candidate, Loop, View,
    gain::{Change, LINE, Pattern, REGULAR, lines},
    loops::Misses,
};

/// Least windows with a stride between runs.
const SEEN: u64 = 1;
/// Least part of a loop's line costs affected by a change.
const CONCERNED: f64 = 0.2;

/// Changes proposed by the classes.
pub(crate) fn all(view: &View<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for number in 0..view.loops.len() {
        found.extend(order::interchange(view, number));
        found.extend(order::tile_order(view, number));
        found.extend(order::tile_rounds(view, number));
        found.extend(order::pad(view, number));
        found.extend(order::dimensions(view, number));
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

/// The stride of an access in bytes, if present.
pub(crate) fn stride(access: &Access) -> Option<i64> {
    access.stride.filter(|_| access.stride_share >= REGULAR)
}

/// Lines of an execution at a step from the last.
fn lines_of_step(step: i64) -> f64 {
    (step.unsigned_abs() as f64 / LINE).min(1.0)
}

/// Accesses of a loop, unchanged.
fn unchanged(of: &Loop) -> Vec<Change> {
    let change = |(at, access)| Change { access: at, misses: lines(access), pattern: Pattern::of(access) };
    of.accesses.iter().enumerate().map(change).collect()
}

/// Whether a loop takes at least `times` the core cycles and line costs.
fn waits_beyond_lines(view: &View<'_>, of: &Loop, times: f64) -> bool {
    let core = of.core.map_or(0.0, |core| core.value);
    of.speed.is_some_and(|(_, cycles)| cycles.value >= times * core.hypot(whole_cost(view, of)))
}

/// Misses of an access with a bounded number of lines per execution, from the present source.
fn capped(access: &Access, most: f64) -> Misses {
    lines(access).map(|lines| lines.min(most * access.per_iteration))
}

/// Cost of an access's lines, in cycles of an iteration.
fn cost(view: &View<'_>, access: &Access) -> f64 {
    view.costs.of_access(access)
}

/// Cost of a loop's accesses.
fn whole_cost(view: &View<'_>, of: &Loop) -> f64 {
    of.accesses.iter().map(|access| cost(view, access)).sum()
}

/// The first cache, from the smallest on, with room for `bytes`; 3 if none.
fn holds(view: &View<'_>, bytes: f64) -> usize {
    // A part of the cache is for the remaining data.
    view.caches.iter().position(|cache| bytes <= cache * 0.75).unwrap_or(3)
}
