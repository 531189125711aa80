//! The report for programs: one object, `"schema": "locality-report/1"` (docs/json.md).
//!
//! Fields are added, never changed in meaning. What is not measured is left out, not faked: no
//! instruction mix, no cache use without a rate of accesses, no objects where nobody looked for
//! them. `pairs` are by source place, heaviest first; their `use` and `reuse` frames are those of
//! the pair's heaviest calling context, further contexts follow under `contexts`.

use locality_estimate::calling_context::{ContextId, PlaceId, function_name};
use locality_estimate::interval_estimate::Estimate;
use locality_findings::cpu_time_histogram::Histogram;
use locality_findings::hotspots::Row;
use locality_findings::pairs::{ContextPair, Pair};
use locality_findings::{Findings, cost_percent, why_empty};
use locality_model::{Frame, FrameId, Ledger, Mode, ObjectKind, Profile};
use serde_json::{Map, Value, json};

use super::estimates::{ci95, share_value};
use super::names::kind_name;

/// Calling contexts given with each pair, the heaviest included.
const CONTEXTS_SHOWN: usize = 4;

/// The whole report.
pub fn value(profile: &Profile, findings: &Findings) -> Value {
    let json = Json { profile, findings };
    let mut report = json!({
        "schema": "locality-report/1",
        "tool_version": profile.run.tool_version,
        "run": json.run(),
        "overhead": json.overhead(),
        "ledger": json.ledger(),
        "reuse": { "8": { "time": time(&findings.histogram) } },
        "pairs": findings.pairs.iter().map(|pair| json.pair(pair)).collect::<Vec<_>>(),
        "not_reused": json.not_reused(),
        "hot": json.hot(),
        "threads": json.threads(),
        "notices": profile.notices,
        "partial": profile.partial,
    });
    if let Some(windowed) = &findings.windowed {
        report["reuse"] = super::reuse::of_all(&windowed.whole);
        report["windows"] = super::reuse::windows(profile, windowed);
        report["run"]["estimator"] = json!(windowed.estimator.to_string());
        let threads = windowed.threads.iter().filter_map(|(id, reuse)| {
            let thread = profile.threads.get(id.0 as usize)?;
            let reuse = super::reuse::of_all(reuse);
            Some(json!({ "pid": thread.pid, "tid": thread.tid, "name": thread.name, "reuse": reuse }))
        });
        report["threads"]["reuse"] = Value::Array(threads.collect());
        report["threads"]["reuse_left_out"] = json!(windowed.threads_left_out);
    }
    if let Some(objects) = &findings.objects {
        let frame = |id| json.frame(id);
        let json = super::objects::Json { profile, contexts: &findings.contexts, objects, frame: &frame };
        (report["objects"], report["objects_summary"]) = (json.rows(), json.summary());
    }
    if let Some(cache_use) = &findings.cache_use {
        let contexts = &findings.contexts;
        report["cache_use"] = super::cache_use::Report { profile, contexts, cache_use }.value();
    }
    if let Some(why) = why_empty(profile) {
        report["empty"] = Value::String(why);
    }
    report
}

/// The whole report as indented text with a final newline.
pub fn print(profile: &Profile, findings: &Findings) -> String {
    format!("{:#}\n", value(profile, findings))
}

struct Json<'a> {
    profile: &'a Profile,
    findings: &'a Findings,
}

impl Json<'_> {
    fn run(&self) -> Value {
        let run = &self.profile.run;
        let caches = run.host.caches.iter().map(|cache| {
            json!({ "level": cache.level, "bytes": cache.bytes, "ways": cache.ways, "line": cache.line })
        });
        let mut sources = json!({ "address": run.sources.address, "clock": run.sources.clock });
        if let Some(rate) = &run.sources.rate {
            sources["rate"] = json!(rate);
        }
        if let Some(heap) = &run.sources.heap {
            sources["heap"] = json!(heap);
        }
        let mut value = json!({
            "command": run.command,
            "pids": run.pids,
            "started": locality_units::print::timestamp(run.started_unix_ns),
            "wall_s": seconds(run.wall_ns),
            "cpu_s": seconds(run.cpu_ns),
            "host": {
                "kernel": run.host.kernel,
                "cpu": run.host.cpu,
                "cpus": run.host.cpus,
                "caches": caches.collect::<Vec<_>>(),
            },
            "mode": match run.mode { Mode::Live => "live", Mode::Exact => "exact" },
            "sources": sources,
            "ended_by": run.ended_by,
            "policy": run.policy,
            "distance_resolution_ns": run.distance_resolution_ns,
            "samples": self.profile.samples.len(),
            "watches": self.profile.watches.len(),
        });
        if let Some(scatter_ns) = run.distance_scatter_ns {
            value["distance_scatter_ns"] = json!(scatter_ns);
        }
        if run.user_only {
            value["user_only"] = json!(true);
        }
        value
    }

    fn overhead(&self) -> Value {
        let overhead = &self.profile.overhead;
        let percent = |ns: u64| cost_percent(self.profile, ns);
        let mut value = json!({
            "budget_percent": overhead.budget_percent,
            "measured_percent": overhead.measured_percent,
            "by_cause": {
                "stop": percent(overhead.stop_ns),
                "trap": percent(overhead.trap_ns),
                "bpf": percent(overhead.bpf_ns),
                "controller": percent(overhead.controller_ns),
            },
            "stops": overhead.stops,
            "longest_stop_ns": overhead.longest_stop_ns,
            "max_stop_ns": overhead.max_stop_ns,
        });
        if let Some(heap_ns) = overhead.heap_ns {
            value["by_cause"]["heap"] = json!(percent(heap_ns));
        }
        if let Some(string_ns) = overhead.string_ns {
            value["by_cause"]["strings"] = json!(percent(string_ns));
        }
        value
    }

    fn ledger(&self) -> Value {
        let ledger = &self.profile.ledger;
        let known = self.profile.known_ledger();
        let imbalance = known.and_then(Ledger::imbalance);
        let number = |of: fn(&Ledger) -> u64| known.map(of);
        let mut value = json!({
            "seen": number(|ledger| ledger.seen),
            "filtered": number(|ledger| ledger.filtered),
            "submitted": number(|ledger| ledger.submitted),
            "received": number(|ledger| ledger.received),
            "lost": causes(&ledger.lost),
            "watch": {
                "armed": number(|ledger| ledger.armed),
                "trapped": number(|ledger| ledger.trapped),
                "censored": number(|ledger| ledger.censored),
                "refused": number(|ledger| ledger.refused),
            },
            "balanced": known.map(|_| imbalance.is_none()),
            "filtered_by": causes(&ledger.filtered_by),
            "unreachable": causes(&ledger.unreachable),
            "stops": causes(&ledger.stops),
        });
        if let Some(equation) = imbalance {
            value["imbalance"] = Value::String(equation);
        }
        value
    }

    fn pair(&self, pair: &Pair) -> Value {
        let heaviest = pair.contexts.first();
        let end = |place: PlaceId, of: fn(&ContextPair) -> ContextId| {
            let mut value = self.path(heaviest.map(of));
            value["place"] = self.place(place);
            value
        };
        let mut value = json!({
            "use": end(pair.use_place, |pair| pair.use_context),
            "reuse": end(pair.reuse_place, |pair| pair.reuse_context),
            "weight": pair.weight.value,
            "weight_ci95": ci95(&pair.weight),
            "n": pair.weight.n,
            "time_median": self.time_value(&pair.median_ns),
            "time_p90": self.time_value(&pair.p90_ns),
            "near": pair.near,
            "far": pair.median_ns.value >= self.findings.far_from,
            "kernel_share": share_value(&pair.kernel),
            "cross_thread_share": share_value(&pair.cross_thread),
            "contexts": pair.contexts.iter().take(CONTEXTS_SHOWN).map(|c| self.context(c)).collect::<Vec<_>>(),
            "contexts_total": pair.contexts.len(),
        });
        if let Some(stack) = self.stack_median(&pair.median_ns) {
            value["stack_median"] = stack;
        }
        let object =
            pair.object.and_then(|(id, share)| Some((self.profile.objects.get(id.0 as usize)?, share)));
        if let Some((object, share)) = object.filter(|(object, _)| object.kind != ObjectKind::Unknown) {
            value["object"] = json!({
                "name": object.name,
                "kind": kind_name(object.kind),
                "share": share,
            });
        }
        let ancestor = heaviest.and_then(|pair| self.ancestor(pair));
        value["common_ancestor"] = ancestor.map_or(Value::Null, |frame| self.frame(frame));
        value
    }

    fn context(&self, pair: &ContextPair) -> Value {
        json!({
            "use": self.path(Some(pair.use_context)),
            "reuse": self.path(Some(pair.reuse_context)),
            "weight": pair.weight.value,
            "weight_ci95": ci95(&pair.weight),
            "n": pair.weight.n,
            "time_median": self.time_value(&pair.median_ns),
        })
    }

    fn time_value(&self, estimate: &Estimate) -> Value {
        let unit = self.findings.unit.name();
        json!({ "value": estimate.value, "unit": unit, "ci95": ci95(estimate), "n": estimate.n })
    }

    /// Mean stack distance of the time distance, and those of its interval's ends.
    fn stack_median(&self, time: &Estimate) -> Option<Value> {
        let reuse = self.findings.reuse(8)?;
        let [value, low, high] =
            [time.value, time.low, time.high].map(|time| reuse.stack_distance(time).map(f64::round));
        Some(json!({ "value": value?, "unit": "granules", "ci95": [low?, high?], "n": time.n }))
    }

    fn ancestor(&self, pair: &ContextPair) -> Option<FrameId> {
        self.findings.contexts.common_ancestor(self.profile, pair.use_context, pair.reuse_context).1
    }

    /// Frames of a call path, and why the outermost are missing.
    fn path(&self, context: Option<ContextId>) -> Value {
        let contexts = &self.findings.contexts;
        let frames = context.map_or(&[][..], |context| contexts.frames(context));
        let mut value = json!({ "frames": frames.iter().map(|&id| self.frame(id)).collect::<Vec<_>>() });
        if let Some(why) = context.and_then(|context| contexts.cut(context)) {
            value["cut"] = json!(why);
        }
        value
    }

    fn frame(&self, id: FrameId) -> Value {
        let Some(frame) = self.profile.frames.get(id.0 as usize) else { return Value::Null };
        let mut value = json!({
            "function": frame.function,
            "file": frame.file,
            "line": frame.line,
            "module": self.module(frame),
            "address": Some(frame.module_address.unwrap_or(frame.address)).filter(|address| *address != 0),
            "inlined": frame.inlined,
        });
        if let Some(reason) = &frame.unknown {
            value["unknown"] = json!(reason);
        }
        value
    }

    fn module(&self, frame: &Frame) -> Option<&str> {
        let module = self.profile.modules.get(frame.module?.0 as usize)?;
        Some(&module.path)
    }

    fn place(&self, id: PlaceId) -> Value {
        let place = self.findings.contexts.place(id);
        let frame = place.frame.and_then(|frame| self.profile.frames.get(frame.0 as usize));
        let mut value = json!({
            "function": frame.map(|frame| function_name(self.profile, frame)),
            "file": frame.and_then(|frame| frame.file.as_deref()),
            "line": frame.and_then(|frame| frame.line),
        });
        if let Some(via) = place.via {
            value["via"] = json!(via);
        }
        value
    }

    fn not_reused(&self) -> Value {
        let lines = self.findings.unseen.lines.iter().map(|line| {
            json!({
                "use": self.place(line.place),
                "weight": line.weight.value,
                "weight_ci95": ci95(&line.weight),
                "share_of_line": share_value(&line.not_reused),
                "watched": line.watched,
                "withdrawn": line.withdrawn,
            })
        });
        let overall = &self.findings.unseen.overall;
        json!({ "fraction": overall.value, "ci95": ci95(overall), "n": overall.n, "by_line": lines.collect::<Vec<_>>() })
    }

    fn hot(&self) -> Value {
        let functions = self
            .findings
            .hot
            .functions
            .iter()
            .map(|row| hot_row(row, json!({ "function": row.what.name, "module": row.what.module })));
        let lines = self.findings.hot.lines.iter().map(|row| hot_row(row, self.place(row.what)));
        json!({ "by_function": functions.collect::<Vec<_>>(), "by_line": lines.collect::<Vec<_>>() })
    }

    fn threads(&self) -> Value {
        let threads = &self.profile.threads;
        let not_held = threads.iter().filter(|thread| thread.not_held.is_some()).count();
        let mut processes: Vec<u32> = threads.iter().map(|thread| thread.pid).collect();
        processes.sort_unstable();
        processes.dedup();
        let ended = threads.iter().filter(|thread| thread.ended_ns.is_some()).count();
        json!({ "seen": threads.len(), "ended": ended, "not_held": not_held, "processes": processes.len() })
    }
}

fn time(histogram: &Histogram) -> Value {
    let bins = histogram.bins.iter().map(|bin| {
        json!({
            "low": bin.low_ns,
            "high": bin.high_ns,
            "fraction": bin.fraction.value,
            "ci95": ci95(&bin.fraction),
            "n": bin.fraction.n,
        })
    });
    json!({
        "unit": "cpu_ns",
        "bins": bins.collect::<Vec<_>>(),
        "n": histogram.n,
        "resolution": histogram.resolution_ns,
        "median": time_value(&histogram.median_ns),
        "p90": time_value(&histogram.p90_ns),
    })
}

fn hot_row<T>(row: &Row<T>, mut what: Value) -> Value {
    what["share"] = json!(row.share.value);
    what["ci95"] = ci95(&row.share);
    what["n"] = json!(row.share.n);
    what["loads"] = json!(row.loads);
    what["stores"] = json!(row.stores);
    what["unknown"] = json!(row.unknown);
    what
}

fn time_value(estimate: &Estimate) -> Value {
    json!({ "value": estimate.value, "unit": "cpu_ns", "ci95": ci95(estimate), "n": estimate.n })
}

fn causes(causes: &[(String, u64)]) -> Value {
    let mut map = Map::new();
    for (cause, n) in causes {
        let sum = map.get(cause).and_then(Value::as_u64).unwrap_or(0).saturating_add(*n);
        map.insert(cause.clone(), json!(sum));
    }
    Value::Object(map)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests;
