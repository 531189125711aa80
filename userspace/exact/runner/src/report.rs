//! The report of an exact run as JSON, `"schema": "locality-report/1"`: the fields of a live run
//! without intervals.
//!
//! What only an exact run has: `reuse.*.stack`, `miss_ratio_curve`, `footprint_bytes`,
//! `cold_fraction`, `by_data_type`, `phases`, `threads`. A miss ratio is misses ÷ touches of
//! granules, in a fully associative LRU cache (Mattson et al., IBM Systems Journal 9, 1970);
//! `touches` stands beside it. The object is also what `-o` stores.

use std::collections::{BTreeMap, BTreeSet};

use locality_model::{CacheLevel, Host};
use locality_reuse::{GrainSummary, LOG2_BINS, log2_bounds};
use locality_stream::{Class, DataType};
use locality_units::print as units;
use serde_json::{Map, Value, json};

use super::{
    cache::{self, machine::Machine},
    fine,
    names::Frame,
    pairs::{CONTEXTS, Context, Pair, PlacePair},
    total::{Counts, Grain, Total},
};

/// Cache sizes that every report has, so that reports of different machines can be compared.
pub const FIXED_SIZES: [u64; 3] = [32 << 10, 1 << 20, 32 << 20];
/// Pairs of places in the report: the heaviest, and the heaviest that miss [`FIXED_SIZES`]`[0]`.
const PAIRS: usize = 200;
/// Threads whose phases are listed.
const PHASED_THREADS: usize = 16;

/// What is known besides the counts.
pub struct About {
    /// The command line.
    pub command: String,
    /// Process ids.
    pub pids: Vec<u32>,
    /// Start, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// Length in seconds.
    pub wall_s: f64,
    /// CPU time in seconds, our own work in it.
    pub cpu_s: f64,
    /// The machine.
    pub host: Host,
    /// Version of QEMU.
    pub qemu: String,
    /// How the command ended, in words.
    pub ended_by: String,
    /// The command's exit status as a shell shows it.
    pub exit_status: u8,
    /// Whether all threads were put into one order.
    pub one_order: bool,
    /// Whether fetches of instructions were measured instead of data.
    pub fetches: bool,
    /// Whether fine bins are asked for.
    pub fine: bool,
    /// What the counts are restricted to; empty: nothing.
    pub functions: Vec<String>,
    /// The same by the type of an instruction's data.
    pub data_types: Vec<DataType>,
    /// Functions whose costs went to their callers.
    pub skipped: Vec<String>,
    /// The caches that were simulated.
    pub machine: Option<Machine>,
}

/// The whole report.
pub fn value(total: &Total, about: &About) -> Value {
    let caches = about.host.caches.iter().map(
        |cache| json!({ "level": cache.level, "bytes": cache.bytes, "ways": cache.ways, "line": cache.line }),
    );
    let reuse: Map<String, Value> = total
        .grains
        .iter()
        .filter_map(|(bytes, grain)| {
            let mut value = reuse(grain, about)?;
            total.extra.describe(*bytes, &mut value);
            Some((bytes.to_string(), value))
        })
        .collect();
    // Pairs are those of lines where lines were measured, else of the largest granule.
    let paired = total.grains.get(&64).or_else(|| total.grains.values().next_back());
    let paired_bytes = paired.and_then(|grain| Some(grain.sum.as_ref()?.bytes));
    let machine_notices = about.machine.iter().flat_map(|machine| &machine.notices);
    let apart = about.machine.as_ref().and_then(|machine| last_level_apart(total, machine, about.one_order));
    let mut report = json!({
        "schema": "locality-report/1",
        "tool_version": env!("CARGO_PKG_VERSION"),
        "run": {
            "command": about.command,
            "pids": about.pids,
            "started": units::timestamp(about.started_unix_ns),
            "started_unix_ns": about.started_unix_ns,
            "wall_s": about.wall_s,
            "cpu_s": about.cpu_s,
            "host": {
                "kernel": about.host.kernel,
                "cpu": about.host.cpu,
                "cpus": about.host.cpus,
                "caches": caches.collect::<Vec<_>>(),
            },
            "mode": "exact",
            "sources": {
                "address": format!("QEMU {} user mode", about.qemu),
                "clock": "accesses",
                "rate": "every access",
            },
            "functions": about.functions,
            "data_types": about.data_types.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "measured": if about.fetches { "instruction fetches" } else { "data accesses" },
            "order": if about.one_order { "one for the whole process" } else { "each thread's own" },
            "ended_by": about.ended_by,
            "exit_status": about.exit_status,
            "programs": total.programs.iter().map(|(pid, file)| json!({ "pid": pid, "file": file })).collect::<Vec<_>>(),
        },
        "mix": mix(total),
        "reuse": reuse,
        "pairs_granularity": paired_bytes,
        "pairs": paired.map_or_else(Vec::new, pairs),
        "pairs_not_named": paired.map(|grain| {
            let lost = grain.sum.as_ref().map_or(0, |sum| sum.pairs_lost);
            json!({ "pairs": grain.pairs.unnamed_pairs, "reuses": grain.pairs.unnamed + lost })
        }),
        "threads": total.threads.iter().map(|(pid, thread)| json!({
            "pid": pid,
            "tid": thread.tid,
            "accesses": thread.accesses,
            "instructions": thread.instructions,
        })).collect::<Vec<_>>(),
        "counted_in_part": total.torn,
        "without_context": total.folded,
        "out_of_order_buffers": total.out_of_turn,
        "notices": total.notices.iter().chain(&apart).chain(machine_notices).collect::<Vec<_>>(),
        "partial": total.partial,
    });
    if let Some(machine) = &about.machine {
        report["cache_use"] = cache::value(&total.simulated, machine);
        report["cache_use"]["skipped_functions"] = json!(about.skipped);
    }
    if let Some(why) = why_empty(total) {
        report["empty"] = json!(why);
    }
    report
}

/// Says where threads of a process have last levels side by side.
fn last_level_apart(total: &Total, machine: &Machine, one_order: bool) -> Option<String> {
    // A process that has replaced its program is listed twice.
    let mut threads: BTreeMap<u32, BTreeSet<_>> = BTreeMap::new();
    for (pid, thread) in &total.threads {
        threads.entry(*pid).or_default().insert(thread.tid);
    }
    let most = threads.values().map(BTreeSet::len).max();
    let most = most.filter(|most| *most > 1 && machine.levels.len() > 1 && !one_order)?;
    let (name, _) = machine.levels.last()?;
    Some(format!(
        "Each of the {most} threads of a process has a last level ({name}) of its own in this simulation, so none finds there what another has \
         loaded, and together they have more room than the machine; --one-order lets them share one."
    ))
}

/// Why a run shows no access.
pub fn why_empty(total: &Total) -> Option<String> {
    (total.accesses == 0).then(|| {
        let notice = total.notices.first().map(|notice| format!(" {notice}")).unwrap_or_default();
        format!("No access was recorded.{notice}")
    })
}

fn mix(total: &Total) -> Value {
    let mix = &total.mix;
    let classes: Map<String, Value> =
        Class::ALL.iter().map(|each| (each.name().replace(' ', "_"), json!(mix.fraction(*each)))).collect();
    json!({
        "instructions": mix.instructions,
        "accesses": total.accesses,
        "loads": mix.part(total.accesses - total.stores.min(total.accesses)),
        "stores": mix.part(total.stores),
        "branches": mix.fraction(Class::Branch),
        "classes": classes,
    })
}

pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn reuse(grain: &Grain, about: &About) -> Option<Value> {
    let sum = grain.sum.as_ref()?;
    let threads = sum.phases.iter().map(|phase| phase.thread).collect::<BTreeSet<_>>();
    let phases: Vec<Value> = sum
        .phases
        .iter()
        .filter(|_| threads.len() <= PHASED_THREADS || about.fine)
        .map(|phase| {
            let mut value = json!({
                "thread": phase.thread,
                "first_access": phase.first,
                "accesses": phase.accesses,
                "touches": phase.cold + phase.time.iter().sum::<u64>(),
                "cold": phase.cold,
                "time": { "unit": "accesses", "bins": bins(&locality_reuse::to_log2(&phase.time)) },
                "stack": { "unit": "granules", "bins": bins(&locality_reuse::to_log2(&phase.stack)) },
            });
            if about.fine {
                value["fine"] = fine::of_phase(phase);
            }
            value
        })
        .collect();
    let types: Map<String, Value> = grain
        .types
        .iter()
        .map(|(data, reuse)| {
            let value = json!({
                "touches": reuse.cold + reuse.reuses.n,
                "cold": reuse.cold,
                "time": { "unit": "accesses", "bins": bins(&reuse.reuses.time) },
                "stack": { "unit": "granules", "bins": bins(&reuse.reuses.stack) },
            });
            (data.to_string(), value)
        })
        .collect();
    let mut value = json!({
        "time": { "unit": "accesses", "bins": bins(&sum.time_log2()), "n": sum.reuses() },
        "stack": { "unit": "granules", "bins": bins(&sum.stack_log2()), "n": sum.reuses() },
        "miss_ratio_curve": curve(sum),
        "at_caches": at_caches(sum, &about.host.caches),
        "footprint_bytes": sum.footprint_bytes(),
        "cold_fraction": ratio(sum.cold, sum.touches),
        "touches": sum.touches,
        "cold": sum.cold,
        "by_data_type": types,
        "phases": phases,
    });
    if about.fine {
        value["fine"] = fine::of_run(sum);
    }
    Some(value)
}

/// Bins up to the last that is not empty; fractions sum to 1.
fn bins(counts: &[u64]) -> Vec<Value> {
    let n: u64 = counts.iter().sum();
    let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts
        .iter()
        .take(used)
        .enumerate()
        .map(|(bin, count)| {
            let (low, high) = log2_bounds(bin);
            json!({ "low": low, "high": high, "fraction": ratio(*count, n), "count": count })
        })
        .collect()
}

/// At every power of two from one granule to the first size that misses only first touches, and the
/// fixed sizes.
fn curve(sum: &GrainSummary) -> Vec<Value> {
    let mut sizes: Vec<u64> = (0..40).map(|bit| sum.bytes << bit).collect();
    let enough = sizes.iter().position(|bytes| sum.misses(bytes / sum.bytes) == Some(sum.cold));
    sizes.truncate(enough.map_or(sizes.len(), |at| at + 1));
    sizes.extend(FIXED_SIZES);
    sizes.sort_unstable();
    sizes.dedup();
    sizes.iter().filter_map(|bytes| point(sum, *bytes)).collect()
}

fn point(sum: &GrainSummary, bytes: u64) -> Option<Value> {
    let misses = sum.misses(bytes / sum.bytes)?;
    Some(json!({ "bytes": bytes, "ratio": ratio(misses, sum.touches), "misses": misses }))
}

/// At this machine's sizes; left out where a size is no edge of the bins.
fn at_caches(sum: &GrainSummary, caches: &[CacheLevel]) -> Vec<Value> {
    let at = |cache: &CacheLevel| {
        let mut point = point(sum, cache.bytes)?;
        point["level"] = json!(cache.level);
        Some(point)
    };
    caches.iter().filter_map(at).collect()
}

fn pairs(grain: &Grain) -> Vec<Value> {
    let Some(sum) = &grain.sum else { return Vec::new() };
    let near = (FIXED_SIZES[0] / sum.bytes).max(1);
    let mut ranked: Vec<(&PlacePair, &Pair)> = grain.pairs.named.iter().collect();
    ranked.sort_by_key(|(places, pair)| (std::cmp::Reverse(pair.counts.n), *places));
    let mut rest = ranked.split_off(ranked.len().min(PAIRS));
    rest.sort_by_key(|(places, pair)| (std::cmp::Reverse(pair.counts.misses(near)), *places));
    rest.retain(|(_, pair)| pair.counts.misses(near) > 0);
    rest.truncate(PAIRS);
    rest.sort_by_key(|(places, pair)| (std::cmp::Reverse(pair.counts.n), *places));
    ranked.into_iter().chain(rest).map(|(_, each)| pair(each, sum)).collect()
}

fn pair(pair: &Pair, sum: &GrainSummary) -> Value {
    let mut contexts: Vec<&(Counts, Context)> = pair.contexts.values().collect();
    contexts.sort_by_cached_key(|(counts, context)| {
        (std::cmp::Reverse(counts.n), format!("{:?}", (&context.by, &context.again)))
    });
    let empty = Context::default();
    let heaviest = contexts.first().map_or(&empty, |(_, context)| context);
    let frames = |frames: &[Frame]| Value::Array(frames.iter().map(|frame| (**frame).clone()).collect());
    let numbers = |counts: &Counts| {
        let misses: Map<String, Value> = FIXED_SIZES
            .iter()
            .map(|bytes| (bytes.to_string(), json!(counts.misses((bytes / sum.bytes).max(1)))))
            .collect();
        json!({
            "weight": ratio(counts.n, sum.reuses()),
            "n": counts.n,
            "time_median": median(&counts.time, "accesses"),
            "stack_median": median(&counts.stack, "granules"),
            "misses": misses,
        })
    };
    let mut value = numbers(&pair.counts);
    value["use"] = json!({ "frames": frames(&heaviest.by) });
    value["reuse"] = json!({ "frames": frames(&heaviest.again) });
    value["common_ancestor"] = ancestor(heaviest);
    value["contexts_total"] = json!(pair.contexts_total);
    value["contexts"] = contexts
        .iter()
        .take(CONTEXTS)
        .map(|(counts, context)| {
            let mut value = numbers(counts);
            value["use"] = json!({ "frames": frames(&context.by) });
            value["reuse"] = json!({ "frames": frames(&context.again) });
            value
        })
        .collect();
    value
}

/// The innermost call that both have in common: the last equal frame from the outside, by function.
fn ancestor(context: &Context) -> Value {
    let both = context.by.iter().rev().zip(context.again.iter().rev());
    let same = |(by, again): &(&Frame, &Frame)| {
        by["function"] == again["function"] && by["module"] == again["module"]
    };
    both.take_while(same).last().map_or(Value::Null, |(frame, _)| (**frame).clone())
}

/// The middle value, taken as evenly spread within its bin; the bin stands beside it.
fn median(bins: &[u64; LOG2_BINS], unit: &str) -> Value {
    let n: u64 = bins.iter().sum();
    let half = n as f64 / 2.0;
    let mut below = 0u64;
    for (bin, count) in bins.iter().enumerate() {
        if *count > 0 && (below + count) as f64 >= half {
            let (low, high) = log2_bounds(bin);
            let within = (half - below as f64) / *count as f64;
            let value = low as f64 + within * ((high - 1).saturating_sub(low)) as f64;
            return json!({ "value": value.round(), "unit": unit, "low": low, "high": high });
        }
        below += count;
    }
    Value::Null
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_lie_in_their_bin() {
        let mut bins = [0; LOG2_BINS];
        assert_eq!(median(&bins, "accesses"), Value::Null);
        bins[0] = 1;
        assert_eq!(median(&bins, "accesses")["value"], 0.0);
        bins[4] = 10;
        let value = median(&bins, "accesses");
        assert_eq!((value["low"].as_u64(), value["high"].as_u64()), (Some(8), Some(16)));
        assert!((8.0..16.0).contains(&value["value"].as_f64().unwrap()));
    }

    #[test]
    fn fractions_sum_to_one_and_bins_end_with_the_last_count() {
        let bins = bins(&[3, 0, 1, 0, 0]);
        assert_eq!(bins.len(), 3);
        let sum: f64 = bins.iter().map(|bin| bin["fraction"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }

    #[test]
    fn an_empty_run_says_why() {
        let total = Total { notices: vec!["Because.".into()], ..Total::default() };
        assert_eq!(why_empty(&total).unwrap(), "No access was recorded. Because.");
    }
}
