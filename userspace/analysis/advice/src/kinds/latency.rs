//! Latency: lines at random places, requestable earlier, or several at a time.

use locality_model::{AccessKind, Dependence};

use super::{CONCERNED, cost, stride, unchanged, waits_beyond_lines, whole_cost};
use crate::{
    Access, Candidate, Kind, Loop, View,
    gain::{CHAINS, Fix, Pattern},
};

/// Stalls removable by prefetching: least multiple of the overlapped lines that the loop takes.
const WORTH: f64 = 1.3;

/// Addresses from an index array: the next addresses are known, and prefetches can run ahead.
pub(super) fn prefetch(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let (_, cycles) = of.speed?;
    let is_gather = |access: &Access| {
        access.dependence == Dependence::Indexed
            && stride(access).is_none()
            && access.kind == AccessKind::Load
    };
    // The index must come in order.
    let has_index =
        of.accesses.iter().any(|access| stride(access).is_some_and(|step| (1..=8).contains(&step.abs())));
    let gathers = || of.accesses.iter().enumerate().filter(|(_, access)| is_gather(access));
    let concerned: f64 = gathers().map(|(_, access)| cost(view, access)).sum();
    if !has_index || concerned <= 0.0 || concerned < CONCERNED * whole_cost(view, of) {
        return None;
    }
    let (_, access) = gathers().max_by(|a, b| cost(view, a.1).total_cmp(&cost(view, b.1)))?;
    let core = of.core.map_or(0.0, |core| core.value);
    if cycles.value < WORTH * core.max(whole_cost(view, of)) {
        return None;
    }
    let mut evidence =
        vec![format!("The addresses of {} come from an array that is read in order.", view.name(access))];
    evidence.extend(view.time(of));
    Some(Candidate {
        kind: Kind::Prefetch,
        fixes: vec![Fix::only(number, unchanged(of), 0.0)],
        title: format!(
            "Prefetch {} some rounds ahead at {} in {}",
            view.name(access),
            view.at(number),
            view.function(of)
        ),
        of: number,
        other: None,
        object: access.object,
        evidence,
        in_the_way: Vec::new(),
    })
}

/// Random places across a large object: page walks take
/// as long as the lines, and huge pages need fewer.
pub(super) fn huge_pages(view: &View<'_>, number: usize) -> Option<Candidate> {
    /// Least size of the object, and new pages of an execution.
    const LARGE: f64 = (32 << 20) as f64;
    const PAGES: f64 = 0.5;
    /// Least multiple of core cycles and line costs that the loop takes.
    const BEYOND: f64 = 1.15;
    /// Remaining part of the waiting beyond the lines: huge pages have walks too, if few.
    const REMAINS: f64 = 0.2;
    let of = view.loops.get(number)?;
    let is_spread = |access: &&Access| {
        let bytes = access.object.and_then(|(id, _)| view.profile.objects.get(id.0 as usize)?.bytes);
        access.pages >= PAGES && stride(access).is_none() && bytes.is_none_or(|bytes| bytes as f64 >= LARGE)
    };
    let access =
        of.accesses.iter().filter(is_spread).max_by(|a, b| cost(view, a).total_cmp(&cost(view, b)))?;
    if whole_cost(view, of) <= 0.0 || !waits_beyond_lines(view, of, BEYOND) {
        return None;
    }
    let mut evidence = vec![format!(
        "Each access to {} touches another page of 4 KiB, and the loop waits longer than its lines take.",
        view.name(access)
    )];
    evidence.extend(view.time(of));
    Some(Candidate {
        kind: Kind::HugePages,
        fixes: vec![Fix::only(number, unchanged(of), REMAINS)],
        title: format!(
            "Ask for huge pages for {} (madvise MADV_HUGEPAGE), which the loop at {} in {} accesses at \
             random",
            view.name(access),
            view.at(number),
            view.function(of)
        ),
        of: number,
        other: None,
        object: access.object,
        evidence,
        in_the_way: vec![
            "The memory must be aligned to 2 MiB, and the system must have huge pages to give.".to_owned(),
        ],
    })
}

/// Short chases, begun anew each time: several chases at a time.
pub(super) fn batch(view: &View<'_>, number: usize) -> Option<Candidate> {
    /// Part of the time of lines one by one below which the processor already follows several chains.
    const ALONE: f64 = 0.8;
    let of = view.loops.get(number)?;
    let (_, cycles) = of.speed?;
    let around = of.around?;
    if cycles.value < ALONE * view.costs.one_by_one(of) {
        return None;
    }
    let chases =
        || of.accesses.iter().enumerate().filter(|(_, access)| Pattern::of(access) == Pattern::Chased);
    let concerned: f64 = chases().map(|(_, access)| cost(view, access)).sum();
    if concerned <= 0.0 || concerned < CONCERNED * whole_cost(view, of) {
        return None;
    }
    let (_, access) = chases().max_by(|a, b| cost(view, a.1).total_cmp(&cost(view, b.1)))?;
    // A search that changes what the next one follows cannot run beside it.
    let is_changed = |of: &Loop| {
        let mut stores = of.accesses.iter().filter(|store| store.kind == AccessKind::Store);
        access.object.is_some()
            && stores.any(|store| store.object.map(|it| it.0) == access.object.map(|it| it.0))
    };
    if is_changed(of) || view.loops.get(around).is_some_and(is_changed) {
        return None;
    }
    // The lines of the chains come side by side.
    let mut changes = unchanged(of);
    let chased = changes.iter_mut().filter(|change| change.pattern == Pattern::Chased);
    chased.for_each(|change| change.pattern = Pattern::Chains);
    let mut evidence = vec![format!(
        "Each round of the loop at {} follows {} pointers of {}, each of which waits for the one before.",
        view.at(around),
        of.trips.0.map_or("many".to_owned(), |trips| format!("some {trips}")),
        view.name(access)
    )];
    evidence.extend(view.time(of));
    Some(Candidate {
        kind: Kind::Batch,
        fixes: vec![Fix::only(number, changes, 0.0)],
        title: format!(
            "Follow {CHAINS} pointer chains at a time in the loop at {} of {} (inside the loop at {}): each \
             pointer of {} waits for the one before",
            view.at(number),
            view.function(of),
            view.at(around),
            view.name(access)
        ),
        of: number,
        other: Some(around),
        object: access.object,
        evidence,
        in_the_way: vec!["The searches must not depend on each other.".to_owned()],
    })
}
