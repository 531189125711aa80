//! Changed order of iterations: interchange, tiling, and padding if the order must stay.

use locality_model::AccessKind;

use super::{
    CONCERNED, SEEN, capped, cost, holds, lines_of_step, stride, unchanged, waits_beyond_lines, whole_cost,
};
use crate::{
    Access, Candidate, Kind, Loop, View,
    gain::{Change, Fix, Pattern, lines},
    loops::gcd,
    words,
};

/// Step between executions with a new line for each.
const FAR: i64 = 64;
/// Stands for an unknown step.
const UNKNOWN: i64 = 1 << 20;
/// Remaining part of the costs of lines, from which interchange counts as an improvement.
const BETTER: f64 = 0.7;
/// Iterations of a tiled loop over its loaded data.
const TILE: f64 = 16.0;

/// Whether an access walks across lines inside the loop, and along a line from run to run.
fn is_across(access: &Access) -> bool {
    let outer = access.outer_stride.filter(|_| access.outer_windows >= SEEN);
    stride(access).is_some_and(|step| step.saturating_abs() >= FAR)
        && outer.is_some_and(|step| step.saturating_abs() < FAR)
}

/// The accesses' changes of step from run to run, and the new costs of lines.
fn swapped(view: &View<'_>, of: &Loop) -> (Vec<Change>, f64) {
    let (mut changes, mut after) = (Vec::new(), 0.0);
    for (number, access) in of.accesses.iter().enumerate() {
        let (inner, outer) = (stride(access), access.outer_stride);
        // A revisited place stays revisited, and a random place random. If no
        // window shows a row's step from run to run, each run is far from the next.
        if inner.is_none_or(|step| step == 0) {
            after += cost(view, access);
            continue;
        }
        let outer = outer.unwrap_or(UNKNOWN);
        let per = lines_of_step(outer);
        let misses = match outer.saturating_abs() < FAR {
            true => capped(access, per),
            false => {
                // A cache with room for the lines of a run still has the lines in the next run.
                let run = of.trips.0.map_or(f64::INFINITY, |trips| trips as f64 * 64.0);
                let (level, again) = (holds(view, run), f64::from(access.bytes) / 64.0);
                let mut misses = [per * access.per_iteration; 3];
                misses
                    .iter_mut()
                    .enumerate()
                    .filter(|(at, _)| *at >= level)
                    .for_each(|(_, miss)| *miss *= again);
                misses
            }
        };
        let pattern = if outer.saturating_abs() <= FAR { Pattern::Sequential } else { Pattern::Random };
        after += view.costs.of_lines(misses, pattern, access.dirties);
        changes.push(Change { access: number, misses, pattern });
    }
    (changes, after)
}

/// The heaviest access walking across lines, if walks across lines are a good part of the costs.
fn across<'a>(view: &View<'_>, of: &'a Loop) -> Option<&'a Access> {
    let walks = || of.accesses.iter().filter(|access| is_across(access));
    let part: f64 = walks().map(|access| cost(view, access)).sum();
    let heaviest = walks().max_by(|a, b| cost(view, a).total_cmp(&cost(view, b)))?;
    (part > 0.0 && part >= CONCERNED * whole_cost(view, of)).then_some(heaviest)
}

fn evidence(view: &View<'_>, of: &Loop, access: &Access) -> Vec<String> {
    let (inner, outer) = (access.stride.unwrap_or(0), access.outer_stride.unwrap_or(0));
    let mut evidence = vec![format!(
        "{} is walked {} bytes apart in the inner loop and {} apart from one run of it to the next (seen \
         {} in {} windows).",
        view.name(access),
        inner.unsigned_abs(),
        match outer.unsigned_abs() {
            1 => "1 byte".to_owned(),
            n => format!("{n} bytes"),
        },
        match access.outer_windows {
            1 => "once".to_owned(),
            n => format!("{n} times"),
        },
        of.windows,
    )];
    evidence.extend(view.time(of));
    evidence
}

/// Remaining part of the core: a sum of one element ends with the inner loop, and each
/// iteration then adds to a new element, which takes a load and a store in place of the chain.
fn core_of_swapped(of: &Loop) -> (f64, f64) {
    let mut stores = of.accesses.iter().filter(|access| access.kind == AccessKind::Store).peekable();
    let in_register = stores.peek().is_none();
    // The element is stored each time: the store is present already, and a load is added.
    let in_place =
        stores.any(|store| stride(store) == Some(0) && store.outer_stride.is_some_and(|outer| outer != 0));
    match &of.bound_by {
        Some((bound, saves)) if bound.starts_with("fp_") && bound.ends_with("_chain") => {
            match (in_register, in_place) {
                (true, _) => (1.0 / saves, 1.0),
                (_, true) => (1.0 / saves, f64::midpoint(1.0, 1.0 / saves)),
                _ => (1.0, 1.0),
            }
        }
        _ => (1.0, 1.0),
    }
}

/// Obstacles to a changed order.
fn obstacles(of: &Loop) -> Vec<String> {
    let mut found = Vec::new();
    let is_sum =
        of.accesses.iter().any(|access| access.kind == AccessKind::Store && access.stride == Some(0));
    if is_sum {
        found.push("The loop stores to one place again and again: the order of that sum changes.".to_owned());
    }
    let calls = of.accesses.iter().any(|access| {
        access.per_iteration > 0.0 && access.ip != 0 && !(of.span.0..=of.span.1).contains(&access.ip)
    });
    if calls {
        found.push("The loop calls functions: check that their order does not matter.".to_owned());
    }
    found
}

/// Interchange: walks across lines turn into walks along lines, and the sum over accesses falls.
pub(super) fn interchange(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let access = across(view, of)?;
    let (changes, after) = swapped(view, of);
    if after > BETTER * whole_cost(view, of) {
        return None;
    }
    let loops = match of.around {
        Some(around) => format!("the loops at {} and {}", view.at(around), view.at(number)),
        None => format!("the loop at {} with the one around it", view.at(number)),
    };
    Some(Candidate {
        kind: Kind::Interchange,
        fixes: vec![Fix { core: core_of_swapped(of), ..Fix::lines(number, changes) }],
        title: format!(
            "Interchange {loops} in {}: {} is walked {} bytes apart",
            view.function(of),
            view.name(access),
            access.stride.unwrap_or(0).unsigned_abs()
        ),
        of: number,
        other: of.around,
        object: access.object,
        evidence: evidence(view, of, access),
        in_the_way: obstacles(of),
    })
}

/// Interchange of an array's dimensions: the loop walks along lines,
/// but in short distant runs, unpredictable for hardware prefetchers.
pub(super) fn dimensions(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let changes: Vec<Change> = of
        .accesses
        .iter()
        .enumerate()
        .filter(|(_, access)| access.restarts > 0.0)
        .map(|(at, access)| Change { access: at, misses: lines(access), pattern: Pattern::Sequential })
        .collect();
    let of_change = |change: &Change| of.accesses.get(change.access);
    let access =
        changes.iter().filter_map(of_change).max_by(|a, b| cost(view, a).total_cmp(&cost(view, b)))?;
    // Of one array: dimensions differ between arrays.
    let changes: Vec<Change> = changes
        .into_iter()
        .filter(|change| of_change(change).is_some_and(|other| other.object == access.object))
        .collect();
    let part: f64 = changes.iter().filter_map(of_change).map(|access| cost(view, access)).sum();
    if part <= 0.0 || part < CONCERNED * whole_cost(view, of) {
        return None;
    }
    let run = of.trips.0?.saturating_mul(access.stride?.unsigned_abs());
    let outer = access.outer_stride?.unsigned_abs();
    let mut evidence = vec![format!(
        "Each run of the loop walks along {run} bytes of {}, and the next begins {} bytes from there (seen \
         in {} of {} windows): no processor foresees the first lines of a run.",
        view.name(access),
        outer,
        match access.outer_windows {
            1 => "once".to_owned(),
            n => format!("{n} times"),
        },
        of.windows,
    )];
    evidence.extend(view.time(of));
    Some(Candidate {
        kind: Kind::Interchange,
        fixes: vec![Fix::lines(number, changes)],
        title: format!(
            "Interchange the dimensions of {}, so that the runs of {run} bytes at {} in {} lie beside each \
             other, in place of {outer} bytes apart",
            view.name(access),
            view.at(number),
            view.function(of),
        ),
        of: number,
        other: of.around,
        object: access.object,
        evidence,
        in_the_way: vec!["All other loops over the array then have other steps.".to_owned()],
    })
}

/// Tiling, if interchange only moves the costs to another access.
pub(super) fn tile_order(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let access = across(view, of)?;
    let (_, after) = swapped(view, of);
    if after <= BETTER * whole_cost(view, of) {
        return None;
    }
    let changes = of.accesses.iter().enumerate().filter(|(_, access)| is_across(access));
    let changes = changes.map(|(at, access)| {
        let most = f64::from(access.bytes) / 64.0;
        Change { access: at, misses: capped(access, most), pattern: Pattern::Random }
    });
    let mut way = obstacles(of);
    way.push("Interchanging the loops alone moves the long steps to another array.".to_owned());
    Some(Candidate {
        kind: Kind::Tile,
        fixes: vec![Fix::lines(number, changes.collect())],
        title: format!(
            "Work in blocks of 16 to 64 rounds at {} in {}: {} is walked {} bytes apart",
            view.at(number),
            view.function(of),
            view.name(access),
            access.stride.unwrap_or(0).unsigned_abs()
        ),
        of: number,
        other: of.around,
        object: access.object,
        evidence: evidence(view, of, access),
        in_the_way: way,
    })
}

/// Tiling, if each round of the outer loop walks through the data again, more than a cache holds.
pub(super) fn tile_rounds(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let around = of.around?;
    let is_again = |access: &Access| {
        let regular = stride(access).is_some_and(|step| step != 0 && step.saturating_abs() <= FAR);
        let far = view.far.iter().filter(|far| far.to == access.ip);
        let (own, all) =
            far.fold((0, 0), |(own, all), far| (own + u32::from(far.from == access.ip), all + 1));
        let seen = access.outer_stride == Some(0) && access.outer_windows >= SEEN;
        // Watches show the instruction's return to the data, after a walk through much of the data.
        let is_long = bytes_of_run(of, access).is_none_or(|bytes| bytes >= view.caches[0] / 2.0);
        let watched = access.outer_stride.is_none() && own >= 3 && own * 2 > all;
        regular && is_long && (seen || watched) && access.kind != AccessKind::Store
    };
    let again = || of.accesses.iter().enumerate().filter(|(_, access)| is_again(access));
    let part: f64 = again().map(|(_, access)| cost(view, access)).sum();
    let (_, heaviest) = again().max_by(|a, b| cost(view, a.1).total_cmp(&cost(view, b.1)))?;
    if part < CONCERNED * whole_cost(view, of) || part <= 0.0 {
        return None;
    }
    let walked = bytes_of_run(of, heaviest);
    let changes = again().map(|(at, access)| {
        let misses = lines(access).map(|lines| lines / TILE);
        Change { access: at, misses, pattern: Pattern::Sequential }
    });
    let mut evidence = vec![match walked {
        Some(walked) => format!(
            "Each round of the loop at {} reads the same {} of {} again.",
            view.at(around),
            words::bytes(walked),
            view.name(heaviest)
        ),
        None => format!("Each round of the loop at {} reads {} again.", view.at(around), view.name(heaviest)),
    }];
    evidence.extend(view.time(of));
    Some(Candidate {
        kind: Kind::Tile,
        fixes: vec![Fix::lines(number, changes.collect())],
        title: format!(
            "Work on {} in blocks that fit the second-level cache at {} in {}: each round of the loop at \
             {} reads all of it again",
            view.name(heaviest),
            view.at(number),
            view.function(of),
            view.at(around)
        ),
        of: number,
        other: Some(around),
        object: heaviest.object,
        evidence,
        in_the_way: obstacles(of),
    })
}

/// Bytes walked by a run of the loop.
fn bytes_of_run(of: &Loop, access: &Access) -> Option<f64> {
    let trips = of.trips.0? as f64;
    Some(trips * access.per_iteration * stride(access)?.unsigned_abs() as f64)
}

/// Padding: the lines of a run come again in the next run, and a
/// cache has room for the lines, but not in the few sets used.
pub(super) fn pad(view: &View<'_>, number: usize) -> Option<Candidate> {
    /// Least multiple of the core and the new lines in windows that the loop takes.
    const WORTH: f64 = 1.2;
    let of = view.loops.get(number)?;
    let trips = of.trips.0?;
    let conflict = |access: &Access| {
        let lines = (trips as f64 * access.per_iteration) as u64;
        let step = stride(access)?.unsigned_abs();
        let levels = view.sets.iter();
        levels
            .filter_map(|(sets, ways)| {
                let used = (sets / gcd(*sets, step / 64).max(1)).max(1);
                let fits = lines <= sets.saturating_mul(*ways) / 4 * 3 && step % 64 == 0;
                (fits && lines > used.saturating_mul(*ways)).then_some((used, *sets, lines))
            })
            .next()
    };
    let found = of.accesses.iter().filter(|access| is_across(access));
    let (access, (used, sets, lines_of_run)) =
        found.filter_map(|access| Some((access, conflict(access)?))).max_by_key(|(_, (.., lines))| *lines)?;
    if !waits_beyond_lines(view, of, WORTH) {
        return None;
    }
    let step = access.stride.unwrap_or(0).unsigned_abs();
    let mut evidence = evidence(view, of, access);
    evidence.push(format!(
        "A run touches {lines_of_run} lines, which fall on {used} of {sets} sets of a \
        cache that could hold all of them."
    ));
    Some(Candidate {
        kind: Kind::Pad,
        // Only new lines in windows remain to be loaded.
        fixes: vec![Fix::only(number, unchanged(of), 0.0)],
        title: format!(
            "Make the rows of {} {} bytes long in place of {step} (at {} in {}): its columns use {used} \
             of {sets} cache sets",
            view.name(access),
            step + 64,
            view.at(number),
            view.function(of),
        ),
        of: number,
        other: of.around,
        object: access.object,
        evidence,
        in_the_way: Vec::new(),
    })
}
