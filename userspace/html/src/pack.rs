//! Tables of a page as JSON text: pairs, frames and call paths column by column,
//! the rest as in the report. A column deflates to a third of the size of rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use locality_model::{Outcome, Profile};
use locality_report::schema::{
    Report,
    number::{Interval, Number},
    pairs::Pair,
    place,
    reuse::Distance,
};
use serde_json::{Value, json};

use crate::numbers::{self, OF_PAIRS};
use crate::paths::{Frame, NONE, Paths, Place, unnamed};
use crate::sources::Source;

/// The version of the tables; the script refuses other versions.
const VIEW: &str = "locality-view/1";

/// A column's number of a pair.
type Column<'a> = &'a dyn Fn(&Pair) -> Option<f64>;

/// Contexts beyond a pair's own path are few of few pairs: rows, not columns.
struct Context<'a> {
    pair: usize,
    context: &'a locality_report::schema::pairs::PairContext,
}

/// The text of a folded report.
pub(crate) fn pack(mut report: Report, profile: Option<&Profile>, sources: &[Source]) -> String {
    let mut paths = Paths::default();
    let frames: Vec<u32> =
        report.frames.take().unwrap_or_default().iter().map(|frame| of_report(&mut paths, frame)).collect();
    let stacks: Vec<u32> = report
        .stacks
        .take()
        .unwrap_or_default()
        .iter()
        .map(|stack| {
            let known = stack.iter().filter_map(|number| frames.get(*number as usize).copied());
            let known: Vec<u32> = known.collect();
            paths.node(known.into_iter())
        })
        .collect();
    let pairs = std::mem::take(&mut report.pairs);
    if let Some(cache_use) = &mut report.cache_use {
        cache_use.costs = None;
    }
    report.reuse.values_mut().for_each(without_fine);
    // Cannot fail: keys are strings.
    let mut rest = serde_json::to_value(&report).unwrap_or(Value::Null);
    numbers::shorten(&mut rest, &mut paths.strings);
    let mut out = format!("{{\"view\":\"{VIEW}\",\"report\":{rest},\"stacks\":");
    list(&mut out, stacks.iter().copied());
    out.push_str(",\"pairs\":");
    of_pairs(&mut out, &pairs, &stacks, &mut paths);
    out.push_str(",\"live\":");
    match profile {
        Some(profile) => of_profile(&mut out, profile, &mut paths),
        None => out.push_str("null"),
    }
    let of_source = |source: &Source| match &source.text {
        Ok(text) => json!({ "file": source.file, "text": text, "changed": source.changed }),
        Err(why) => json!({ "file": source.file, "why": why }),
    };
    let texts: Vec<Value> = sources.iter().map(of_source).collect();
    let _ = write!(out, ",\"sources\":{}", Value::Array(texts));
    of_paths(&mut out, &paths);
    out.push('}');
    out
}

/// Fine bins are for conversions, and many.
fn without_fine(reuse: &mut locality_report::schema::reuse::Reuse) {
    reuse.fine = None;
    reuse.phases.iter_mut().flatten().for_each(|phase| phase.fine = None);
}

fn of_report(paths: &mut Paths, frame: &place::Frame) -> u32 {
    let strings = &mut paths.strings;
    let module = frame.module.as_deref();
    let function = match &frame.function {
        Some(function) => strings.number(Some(function)),
        None => strings.number(Some(&unnamed(module, frame.address))),
    };
    let row = Frame {
        function,
        file: strings.number(frame.file.as_deref()),
        line: frame.line.unwrap_or(0),
        module: strings.number(module),
        inlined: frame.inlined,
        unknown: strings.number(frame.unknown.as_deref()),
    };
    paths.frames.number(row)
}

fn list<T: std::fmt::Display>(out: &mut String, values: impl Iterator<Item = T>) {
    out.push('[');
    for (at, value) in values.enumerate() {
        let _ = if at == 0 { write!(out, "{value}") } else { write!(out, ",{value}") };
    }
    out.push(']');
}

fn reals(out: &mut String, values: impl Iterator<Item = Option<f64>>) {
    out.push('[');
    for (at, value) in values.enumerate() {
        if at > 0 {
            out.push(',');
        }
        numbers::push(out, value, OF_PAIRS);
    }
    out.push(']');
}

fn real(number: Option<Number>) -> Option<f64> {
    number.and_then(Number::finite)
}

fn end(interval: Option<Interval>, at: usize) -> Option<f64> {
    interval.and_then(|interval| interval.get(at).copied()).and_then(Number::finite)
}

fn value(distance: Option<&Distance>) -> Option<f64> {
    distance.and_then(|distance| distance.value.finite())
}

fn place_number(paths: &mut Paths, place: Option<&place::Place>) -> u32 {
    let Some(place) = place else { return NONE };
    let strings = &mut paths.strings;
    let row = Place {
        function: strings.number(place.function.as_deref()),
        file: strings.number(place.file.as_deref()),
        line: place.line.unwrap_or(0),
        via: strings.number(place.via.as_deref()),
    };
    paths.places.number(row)
}

/// Pairs, column by column. The interval of a distance is left out if equal to the distance.
fn of_pairs(out: &mut String, pairs: &[Pair], stacks: &[u32], paths: &mut Paths) {
    let node =
        |path: &place::Path| path.stack.and_then(|stack| stacks.get(stack as usize)).copied().unwrap_or(NONE);
    let units = pairs.iter().find_map(|pair| pair.time_median.as_ref()).map(|time| time.unit.clone());
    let _ = write!(out, "{{\"n\":{},\"unit\":{}", pairs.len(), json!(units));
    let key = |out: &mut String, key: &str| {
        let _ = write!(out, ",\"{key}\":");
    };
    for (name, of) in
        [("use", (|pair| &pair.used) as fn(&Pair) -> &place::Path), ("reuse", |pair| &pair.reuse)]
    {
        key(out, name);
        let places: Vec<u32> =
            pairs.iter().map(|pair| place_number(paths, of(pair).place.as_ref())).collect();
        list(out, places.into_iter());
        key(out, &format!("{name}Node"));
        list(out, pairs.iter().map(|pair| node(of(pair))));
        if pairs.iter().any(|pair| of(pair).cut.is_some()) {
            key(out, &format!("{name}Cut"));
            let cuts: Vec<u32> =
                pairs.iter().map(|pair| paths.strings.number(of(pair).cut.as_deref())).collect();
            list(out, cuts.into_iter());
        }
    }
    let stack = |pair: &Pair| value(pair.stack_median.as_ref().and_then(Option::as_ref));
    let same = |pair: &Pair, other: Option<f64>| {
        other.filter(|other| Some(*other) != value(pair.time_median.as_ref()))
    };
    let ends = |pair: &Pair, at: usize| end(pair.time_median.as_ref().and_then(|time| time.ci95), at);
    let columns: [(&str, Column<'_>); 13] = [
        ("weight", &|pair| pair.weight.finite()),
        ("low", &|pair| end(pair.weight_ci95, 0)),
        ("high", &|pair| end(pair.weight_ci95, 1)),
        ("farWeight", &|pair| pair.far_weight.and_then(|weight| weight.finite())),
        ("farTime", &|pair| value(pair.far_median.as_ref())),
        ("time", &|pair| value(pair.time_median.as_ref())),
        ("timeLow", &|pair| same(pair, ends(pair, 0))),
        ("timeHigh", &|pair| same(pair, ends(pair, 1))),
        ("p90", &|pair| same(pair, value(pair.time_p90.as_ref()))),
        ("stack", &stack),
        ("cross", &|pair| real(pair.cross_thread_share.as_ref().map(|share| share.value))),
        ("kernel", &|pair| real(pair.kernel_share.as_ref().map(|share| share.value))),
        ("objectShare", &|pair| real(pair.object.as_ref().map(|object| object.share))),
    ];
    for (name, of) in columns {
        if pairs.iter().any(|pair| of(pair).is_some()) {
            key(out, name);
            reals(out, pairs.iter().map(of));
        }
    }
    key(out, "count");
    list(out, pairs.iter().map(|pair| pair.n));
    key(out, "contextsTotal");
    list(out, pairs.iter().map(|pair| pair.contexts_total));
    // 0 near, 1 between, 2 far, 3 not known.
    key(out, "far");
    list(
        out,
        pairs.iter().map(|pair| match (pair.far, pair.near) {
            (Some(true), _) => 2,
            (_, Some(true)) => 0,
            (None, None) => 3,
            _ => 1,
        }),
    );
    let mut object = |of: fn(&locality_report::schema::pairs::PairObject) -> &str| -> Vec<u32> {
        pairs.iter().map(|pair| paths.strings.number(pair.object.as_ref().map(of))).collect()
    };
    let (names, kinds) = (object(|object| &object.name), object(|object| &object.kind));
    key(out, "object");
    list(out, names.into_iter());
    key(out, "objectKind");
    list(out, kinds.into_iter());
    let ancestors: Vec<u32> = pairs
        .iter()
        .map(|pair| pair.common_ancestor.as_ref().map_or(NONE, |frame| of_report(paths, frame)))
        .collect();
    key(out, "ancestor");
    list(out, ancestors.into_iter());
    let sizes: Vec<&String> = pairs
        .iter()
        .find_map(|pair| pair.misses.as_ref())
        .map(|misses| misses.keys().collect())
        .unwrap_or_default();
    for size in sizes {
        key(out, &format!("misses{size}"));
        list(
            out,
            pairs.iter().map(|pair| pair.misses.as_ref().and_then(|misses| misses.get(size)).unwrap_or(&0)),
        );
    }
    key(out, "contexts");
    of_contexts(out, pairs, &node);
    out.push('}');
}

/// Contexts of pairs with several.
fn of_contexts(out: &mut String, pairs: &[Pair], node: &dyn Fn(&place::Path) -> u32) {
    let rows: Vec<Context<'_>> = pairs
        .iter()
        .enumerate()
        .filter(|(_, pair)| pair.contexts.len() > 1)
        .flat_map(|(at, pair)| pair.contexts.iter().map(move |context| Context { pair: at, context }))
        .collect();
    out.push_str("{\"pair\":");
    list(out, rows.iter().map(|row| row.pair));
    out.push_str(",\"use\":");
    list(out, rows.iter().map(|row| node(&row.context.used)));
    out.push_str(",\"reuse\":");
    list(out, rows.iter().map(|row| node(&row.context.reuse)));
    out.push_str(",\"count\":");
    list(out, rows.iter().map(|row| row.context.n));
    out.push_str(",\"weight\":");
    reals(out, rows.iter().map(|row| row.context.weight.finite()));
    out.push_str(",\"time\":");
    reals(out, rows.iter().map(|row| value(row.context.time_median.as_ref())));
    out.push('}');
}

/// Samples and watched reuses over time, and threads.
fn of_profile(out: &mut String, profile: &Profile, paths: &mut Paths) {
    let frames: Vec<u32> = profile.frames.iter().map(|frame| of_model(paths, profile, frame)).collect();
    let nodes: Vec<u32> = profile
        .stacks
        .iter()
        .map(|stack| {
            let known: Vec<u32> =
                stack.frames.iter().filter_map(|frame| frames.get(frame.0 as usize).copied()).collect();
            paths.node(known.into_iter())
        })
        .collect();
    let node = |stack: locality_model::StackId| nodes.get(stack.0 as usize).copied().unwrap_or(NONE);
    let samples = &profile.samples;
    let us = |ns: u64| ns / 1_000;
    out.push_str("{\"samples\":{\"us\":");
    list(out, samples.iter().map(|sample| us(sample.time_ns)));
    out.push_str(",\"thread\":");
    list(out, samples.iter().map(|sample| sample.thread.0));
    out.push_str(",\"node\":");
    list(out, samples.iter().map(|sample| node(sample.stack)));
    out.push_str(",\"cpuUs\":");
    list(out, samples.iter().map(|sample| us(sample.period_ns)));
    let reused: Vec<_> = profile
        .watches
        .iter()
        .filter_map(|watch| match (&watch.use_touch, &watch.outcome) {
            (Some(used), Outcome::Reused { touch, .. }) => Some((used, touch)),
            _ => None,
        })
        .collect();
    out.push_str("},\"reuses\":{\"from\":");
    list(out, reused.iter().map(|(used, _)| us(used.time_ns)));
    out.push_str(",\"to\":");
    list(out, reused.iter().map(|(_, reuse)| us(reuse.time_ns)));
    out.push_str(",\"thread\":");
    list(out, reused.iter().map(|(used, _)| used.thread.0));
    out.push_str(",\"use\":");
    list(out, reused.iter().map(|(used, _)| node(used.stack)));
    out.push_str(",\"reuse\":");
    list(out, reused.iter().map(|(_, reuse)| node(reuse.stack)));
    let mut sampled: BTreeMap<u32, u64> = BTreeMap::new();
    samples.iter().for_each(|sample| *sampled.entry(sample.thread.0).or_default() += 1);
    // Threads without further facts are counted in the report.
    let threads: Vec<Value> = sampled
        .iter()
        .filter_map(|(number, n)| {
            let thread = profile.threads.get(*number as usize)?;
            Some(json!({
                "number": number, "pid": thread.process_id(), "tid": thread.tid, "name": thread.name, "n": n,
                "from": us(thread.started_ns), "to": thread.ended_ns.map(us), "not_held": thread.not_held,
            }))
        })
        .collect();
    let _ = write!(out, "}},\"threads\":{},\"wallUs\":{}}}", Value::Array(threads), us(profile.run.wall_ns));
}

fn of_model(paths: &mut Paths, profile: &Profile, frame: &locality_model::Frame) -> u32 {
    let module = frame.module.and_then(|module| profile.modules.get(module.0 as usize));
    let module = module.map(|module| module.path.as_str());
    let address = frame.address_in_file().filter(|address| *address != 0);
    let strings = &mut paths.strings;
    let function = match &frame.function {
        Some(function) => strings.number(Some(function)),
        None => strings.number(Some(&unnamed(module, address))),
    };
    let row = Frame {
        function,
        file: strings.number(frame.file.as_deref()),
        line: frame.line.unwrap_or(0),
        module: strings.number(module),
        inlined: frame.inlined,
        unknown: strings.number(frame.unknown.as_deref()),
    };
    paths.frames.number(row)
}

/// Strings, frames, places and the tree of call paths.
fn of_paths(out: &mut String, paths: &Paths) {
    let frames = &paths.frames.rows;
    out.push_str(",\"frames\":{\"function\":");
    list(out, frames.iter().map(|frame| frame.function));
    out.push_str(",\"file\":");
    list(out, frames.iter().map(|frame| frame.file));
    out.push_str(",\"line\":");
    list(out, frames.iter().map(|frame| frame.line));
    out.push_str(",\"module\":");
    list(out, frames.iter().map(|frame| frame.module));
    out.push_str(",\"inlined\":");
    list(out, frames.iter().map(|frame| u8::from(frame.inlined)));
    out.push_str(",\"unknown\":");
    list(out, frames.iter().map(|frame| frame.unknown));
    let places = &paths.places.rows;
    out.push_str("},\"places\":{\"function\":");
    list(out, places.iter().map(|place| place.function));
    out.push_str(",\"file\":");
    list(out, places.iter().map(|place| place.file));
    out.push_str(",\"line\":");
    list(out, places.iter().map(|place| place.line));
    out.push_str(",\"via\":");
    list(out, places.iter().map(|place| place.via));
    // A node's parent is often the node before: the difference is small.
    out.push_str("},\"nodes\":{\"up\":");
    let nodes = &paths.nodes.rows;
    list(out, nodes.iter().zip(1_u32..).map(|((around, _), own)| own - around));
    out.push_str(",\"frame\":");
    list(out, nodes.iter().map(|(_, frame)| frame));
    let strings: Vec<&str> = paths.strings.0.rows.iter().map(AsRef::as_ref).collect();
    let _ = write!(out, "}},\"strings\":{}", json!(strings));
}
