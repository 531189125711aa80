//! Another layout of data: structures of arrays, split and reordered structures, narrower types.

use std::collections::{BTreeMap, BTreeSet};

use locality_model::{AccessKind, Dependence};

use super::{CONCERNED, cost, holds, stride, whole_cost};
use crate::{
    Access, Candidate, Kind, Loop, View,
    gain::{Change, Fix, LINE, Pattern, lines},
    loops::Misses,
    words,
};

/// Largest element with distinguished members.
const LARGEST: i64 = 4096;
/// Part of an element's bytes as the limit for splitting to pay.
const USED: f64 = 0.5;
/// Least windows with values before a narrower type is advised.
const VALUES: u64 = 5;

/// Bytes of the object of an access.
fn bytes_of(view: &View<'_>, access: &Access) -> Option<f64> {
    let (object, _) = access.object?;
    Some(view.profile.objects.get(object.0 as usize)?.bytes? as f64)
}

/// Misses after a reduction of lines and data to a share:
/// data within a cache's size never misses the cache.
fn shrunk(view: &View<'_>, access: &Access, share: f64) -> Misses {
    let mut misses = lines(access).map(|lines| lines * share);
    if let Some(bytes) = bytes_of(view, access) {
        let (before, after) = (holds(view, bytes), holds(view, bytes * share));
        // The cache with room for the data is accessed once, not each time.
        (after..before).for_each(|at| {
            if let Some(misses) = misses.get_mut(at) {
                *misses = 0.0
            }
        });
    }
    misses
}

/// Elements with a small part used by a loop: structures
/// walked with the structure's size as the step.
pub(super) fn elements(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let whole = whole_cost(view, of);
    let mut by_step: BTreeMap<(i64, Option<u32>), Vec<usize>> = BTreeMap::new();
    for (at, access) in of.accesses.iter().enumerate() {
        let Some(step) = stride(access).map(i64::saturating_abs) else { continue };
        // A step from run to run along the line is a matter of the order.
        let is_row =
            access.outer_stride.is_some_and(|outer| outer != 0 && outer.saturating_abs() < LINE as i64);
        if (2 * i64::from(access.bytes)..=LARGEST).contains(&step) && step > 8 && !is_row {
            by_step.entry((step, access.object.map(|(object, _)| object.0))).or_default().push(at);
        }
    }
    let cost_of = |at: &[usize]| at.iter().map(|at| cost(view, &of.accesses[*at])).sum::<f64>();
    let ((step, _), at) = by_step.into_iter().max_by(|a, b| cost_of(&a.1).total_cmp(&cost_of(&b.1)))?;
    let concerned = cost_of(&at);
    // Members by place in the element, as far as known by addresses or debug information.
    let mut parts: BTreeSet<(u64, u32)> = BTreeSet::new();
    for at in &at {
        let access = &of.accesses[*at];
        let field = access.object.and_then(|(_, field)| view.profile.fields.get(field?.0 as usize));
        let offset = field.map_or(access.ip, |field| field.record_offset);
        parts.insert((offset, access.bytes));
    }
    let used: f64 = parts.iter().map(|(_, bytes)| f64::from(*bytes)).sum();
    if used > USED * step as f64 || concerned < CONCERNED * whole || concerned <= 0.0 {
        return None;
    }
    let share = used / (step as f64).min(LINE * parts.len() as f64).max(used);
    let changes = at.iter().map(|at| {
        let misses = shrunk(view, &of.accesses[*at], share);
        Change { access: *at, misses, pattern: Pattern::Sequential }
    });
    let heaviest =
        at.iter().max_by(|a, b| cost(view, &of.accesses[**a]).total_cmp(&cost(view, &of.accesses[**b])))?;
    let access = &of.accesses[*heaviest];
    // Members of the object used by further loops prevent the split.
    let elsewhere = others(view, number, access);
    let kind = if parts.len() <= 2 && !elsewhere.is_empty() { Kind::Soa } else { Kind::Split };
    let record = access.object.and_then(|(_, field)| view.profile.fields.get(field?.0 as usize)?.record);
    let record = record.and_then(|id| view.profile.records.get(id.0 as usize));
    let element = record.map_or_else(
        || format!("element of {step} bytes"),
        |record| format!("`{}` of {step} bytes", record.name),
    );
    let mut evidence = vec![format!(
        "The loop uses {used:.0} bytes of each {element} ({} member{}), and each line comes whole.",
        parts.len(),
        if parts.len() == 1 { "" } else { "s" }
    )];
    evidence.extend(view.time(of));
    Some(Candidate {
        kind,
        fixes: vec![Fix::lines(number, changes.collect())],
        title: match kind {
            Kind::Soa => format!(
                "Give {} an array of its own: the loop at {} in {} uses {used:.0} of {step} bytes",
                view.name(access),
                view.at(number),
                view.function(of)
            ),
            _ => format!(
                "Move what the loop at {} in {} does not use out of each {element}: it uses {used:.0} \
                 bytes of {}",
                view.at(number),
                view.function(of),
                view.name(access)
            ),
        },
        of: number,
        other: None,
        object: access.object,
        evidence,
        in_the_way: elsewhere,
    })
}

/// Further loops with the object.
fn others(view: &View<'_>, number: usize, access: &Access) -> Vec<String> {
    let Some((object, _)) = access.object else { return Vec::new() };
    let uses = |of: &Loop| {
        of.accesses
            .iter()
            .any(|other| other.object.is_some_and(|(other, _)| other == object) && other.ip != access.ip)
    };
    let at =
        view.loops.iter().enumerate().filter(|(at, of)| *at != number && of.share.value >= 0.02 && uses(of));
    let at: Vec<String> = at.take(3).map(|(at, _)| view.at(at)).collect();
    if at.is_empty() { at } else { vec![format!("Other loops use the same data: {}.", at.join(", "))] }
}

/// Integers with only small values in windows.
pub(super) fn shrink(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let narrower = |access: &Access| {
        let (low, high, n) = access.values?;
        let fits = |bytes: u32| {
            let bits = 8 * bytes;
            let signed = low >= -(1_i64 << (bits - 1)) && high < 1_i64 << (bits - 1);
            let unsigned = low >= 0 && high < 1_i64 << bits;
            (signed || unsigned).then_some((bytes, low >= 0))
        };
        let smaller = [1, 2, 4].into_iter().filter(|bytes| *bytes < access.bytes).find_map(fits)?;
        let is_array = stride(access).map(i64::saturating_abs) == Some(access.bytes.into());
        (is_array && n >= VALUES && high > low).then_some(smaller)
    };
    let (at, access, (bytes, is_unsigned)) = of
        .accesses
        .iter()
        .enumerate()
        .filter(|(_, access)| access.kind == AccessKind::Load)
        .filter_map(|(at, access)| Some((at, access, narrower(access)?)))
        .max_by(|a, b| cost(view, a.1).total_cmp(&cost(view, b.1)))?;
    if cost(view, access) < CONCERNED * whole_cost(view, of) {
        return None;
    }
    let share = f64::from(bytes) / f64::from(access.bytes);
    let (low, high, n) = access.values?;
    let mut evidence = vec![format!("The loaded values of {} windows lie between {low} and {high}.", n)];
    evidence.extend(view.time(of));
    Some(Candidate {
        kind: Kind::Shrink,
        fixes: vec![Fix::lines(
            number,
            vec![Change { access: at, misses: shrunk(view, access, share), pattern: Pattern::Sequential }],
        )],
        title: format!(
            "Store {} in {} bits in place of {}: the loop at {} in {} reads values from {low} to {high}",
            view.name(access),
            match (bytes * 8, is_unsigned) {
                (bits, true) => format!("{bits} unsigned"),
                (bits, false) => format!("{bits} signed"),
            },
            access.bytes * 8,
            view.at(number),
            view.function(of)
        ),
        of: number,
        other: None,
        object: access.object,
        evidence,
        in_the_way: vec!["Windows show a part of the values: check the largest that can occur.".to_owned()],
    })
}

/// Members used together at random elements, but on several lines.
pub(super) fn reorder(view: &View<'_>, number: usize) -> Option<Candidate> {
    let of = view.loops.get(number)?;
    let is_random = |access: &Access| {
        stride(access).is_none_or(|step| step.saturating_abs() > LARGEST)
            || access.dependence == Dependence::Chased
    };
    let mut by_record: BTreeMap<u32, Vec<(usize, u64, u64)>> = BTreeMap::new();
    for (at, access) in of.accesses.iter().enumerate().filter(|(_, access)| is_random(access)) {
        let field = access.object.and_then(|(_, field)| view.profile.fields.get(field?.0 as usize));
        let Some((field, record)) = field.and_then(|field| Some((field, field.record?))) else { continue };
        by_record.entry(record.0).or_default().push((at, field.record_offset, u64::from(access.bytes)));
    }
    let (id, members) = by_record.into_iter().max_by_key(|(_, members)| members.len())?;
    let record = view.profile.records.get(id as usize)?;
    let places: BTreeSet<(u64, u64)> = members.iter().map(|(_, offset, bytes)| (*offset, *bytes)).collect();
    let used: u64 = places.iter().map(|(_, bytes)| bytes).sum();
    let now: BTreeSet<u64> = places.iter().map(|(offset, _)| offset / 64).collect();
    let after = used.div_ceil(64).max(1) as usize;
    if record.bytes <= 64 || now.len() <= after {
        return None;
    }
    let concerned: f64 = members.iter().map(|(at, ..)| cost(view, &of.accesses[*at])).sum();
    if concerned < CONCERNED * whole_cost(view, of) || concerned <= 0.0 {
        return None;
    }
    let share = after as f64 / now.len() as f64;
    let changes = members.iter().map(|(at, ..)| {
        let access = &of.accesses[*at];
        Change { access: *at, misses: lines(access).map(|lines| lines * share), pattern: Pattern::of(access) }
    });
    let (heaviest, ..) = members.first()?;
    let access = &of.accesses[*heaviest];
    let mut evidence = vec![format!(
        "The loop uses {used} bytes of each `{}` of {}, at {} of its lines.",
        record.name,
        words::bytes(record.bytes as f64),
        now.len()
    )];
    evidence.extend(view.time(of));
    Some(Candidate {
        kind: Kind::Reorder,
        // An element's page is looked up however few lines are used.
        fixes: vec![Fix { explains: 1.0, ..Fix::lines(number, changes.collect()) }],
        title: format!(
            "Put the members of `{}` that the loop at {} in {} uses beside each other: {} lines an \
             element become {after}",
            record.name,
            view.at(number),
            view.function(of),
            now.len()
        ),
        of: number,
        other: None,
        object: access.object,
        evidence,
        in_the_way: others(view, number, access),
    })
}
