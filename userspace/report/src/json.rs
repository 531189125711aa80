//! The report for programs: one object of `schema`, with the frames of each call path beside it.
//!
//! Fields are added, never changed in meaning. What is not measured is left out, not faked: no
//! instruction mix, no cache use without a rate of accesses, no objects where nobody looked for
//! them. `pairs` are by source place, heaviest first; their `use` and `reuse` frames are those of
//! the pair's heaviest calling context, further contexts follow under `contexts`.

use std::collections::BTreeMap;
use std::sync::Arc;

use locality_estimate::calling_context::{ContextId, PlaceId};
use locality_estimate::interval_estimate::Estimate;
use locality_findings::cpu_time_histogram::Histogram as CpuTimes;
use locality_findings::hotspots::Row;
use locality_findings::pairs::{ContextPair, Pair};
use locality_findings::{Findings, Windowed, cost_percent, why_empty};
use locality_model::{Ledger, Mode, ObjectKind, Profile};

use crate::estimates::{ci95, distance, estimate, known};
use crate::names::kind_name;
use crate::schema::{
    self, Report, SCHEMA_1,
    hot::{Hot, HotFunction, HotLine, NotReused, NotReusedLine},
    ledger::Watches,
    number::Number,
    overhead::{Causes, Overhead},
    pairs::{PairContext, PairObject},
    place::{Frame, Path},
    reuse::{Bin, Distance, Histogram, Reuse},
    run::{Host, HostCache, Run, Sources},
    threads::{ThreadReuse, ThreadSummary, Threads},
};

mod advice;
pub(crate) mod cache_use;
mod execution;
pub(crate) mod frames;
mod groups;
mod objects;
mod reuse;
pub mod verdict;

use frames::Frames;

/// Calling contexts given with each pair, the heaviest included.
const CONTEXTS_SHOWN: usize = 4;

/// The whole report.
pub fn report(profile: &Profile, findings: &Findings) -> Report {
    let frames = Frames::new(profile, &findings.contexts);
    let json = Json { profile, findings, frames: &frames };
    let windowed = findings.windowed.as_ref();
    let data = findings.objects.as_ref().map(|objects| objects::Json { profile, objects, frames: &frames });
    let lines = findings.cache_use.as_ref().map(|cache_use| cache_use::Json {
        profile,
        contexts: &findings.contexts,
        cache_use,
        frames: &frames,
    });
    let advised = findings.advised.as_ref().map(|advised| advice::Json { profile, advised });
    Report {
        advice: advised.as_ref().map(|json| json.advice()),
        advice_none: findings.advised.as_ref().and_then(|advised| advised.none.clone()),
        kernel_time: advised.as_ref().and_then(|json| json.kernel_time()),
        loops: advised.as_ref().map(|json| json.loops()),
        branches: advised.as_ref().and_then(|json| json.branches()),
        mix: findings.execution.as_ref().map(execution::mix),
        parallelism: findings.execution.as_ref().map(execution::parallelism),
        cache_use: lines.map(|json| json.report()),
        empty: why_empty(profile),
        groups: findings.groups.as_ref().map(|found| groups::groups(profile, found)),
        hot: Some(json.hot()),
        ledger: Some(json.ledger()),
        not_reused: Some(json.not_reused()),
        notices: profile.notices.clone(),
        objects: data.as_ref().map(|json| json.rows()),
        objects_summary: data.as_ref().map(|json| json.summary()),
        overhead: Some(json.overhead()),
        pairs: findings.pairs.iter().map(|pair| json.pair(pair)).collect(),
        partial: profile.partial,
        reuse: match windowed {
            Some(windowed) => reuse::of_all(&windowed.whole),
            None => [("8".to_owned(), of_cpu_times(&findings.histogram))].into(),
        },
        run: json.run(),
        schema: SCHEMA_1.to_owned(),
        threads: Some(Threads::Summary(json.threads())),
        tool_version: profile.run.tool_version.clone(),
        verdict: verdict::verdict(profile, findings).map(|verdict| schema::advice::Verdict {
            waits_share: findings.advised.as_ref().and_then(|advised| advised.waits.as_ref()).map(estimate),
            ..verdict
        }),
        windows: windowed.map(|windowed| reuse::windows(profile, windowed)),
        ..Report::default()
    }
}

/// The whole report of `locality-report/1` as indented text with a final newline.
pub fn print(profile: &Profile, findings: &Findings) -> String {
    let mut report = report(profile, findings);
    as_earlier(&mut report, findings);
    page(&report)
}

/// Leaves out fields that `locality-report/1` never had: its bytes are those of earlier versions. The
/// pairs are all pairs of `findings`; near and far are those with such a median.
pub fn as_earlier(report: &mut Report, findings: &Findings) {
    for (pair, found) in report.pairs.iter_mut().zip(&findings.pairs) {
        pair.far = Some(found.median_ns.value >= findings.far_from);
        pair.near = Some(found.near_median);
        (pair.far_median, pair.far_weight, pair.far_weight_ci95) = (None, None, None);
    }
    report.advice = None;
    report.advice_none = None;
    report.branches = None;
    report.groups = None;
    report.kernel_time = None;
    report.loops = None;
    report.mix = None;
    report.parallelism = None;
    report.verdict = None;
    let of_threads = report.threads.iter_mut().filter_map(|threads| match threads {
        Threads::Summary(summary) => summary.reuse.as_mut(),
        Threads::List(_) => None,
    });
    let of_threads = of_threads.flatten();
    let all = report.reuse.values_mut().chain(of_threads.flat_map(|thread| thread.reuse.values_mut()));
    let curves = all.flat_map(|reuse| [&mut reuse.miss_ratio_curve, &mut reuse.at_caches]);
    curves.flatten().flatten().for_each(|point| point.ci95_sampling = None);
}

/// A report or another page for programs as indented text with a final newline.
pub fn page<T: serde::Serialize>(value: &T) -> String {
    // Cannot fail: keys are strings, and nothing is read meanwhile.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

struct Json<'a> {
    profile: &'a Profile,
    findings: &'a Findings,
    frames: &'a Frames<'a>,
}

impl Json<'_> {
    fn run(&self) -> Run {
        let run = &self.profile.run;
        let cache = |cache: &locality_model::CacheLevel| HostCache {
            bytes: cache.bytes,
            level: cache.level,
            line: cache.line,
            ways: cache.ways,
        };
        Run {
            command: run.command.clone(),
            cpu_s: seconds(run.cpu_ns),
            distance_resolution_ns: Some(run.distance_resolution_ns),
            distance_scatter_ns: run.distance_scatter_ns,
            ended_by: run.ended_by.clone(),
            estimator: self.findings.windowed.as_ref().map(|windowed| windowed.estimator.to_string()),
            excluded: (!run.excluded.is_empty()).then(|| {
                let excluded = |(pattern, processes): &(String, u64)| schema::run::Excluded {
                    pattern: pattern.clone(),
                    processes: *processes,
                };
                run.excluded.iter().map(excluded).collect()
            }),
            host: Host {
                caches: run.host.caches.iter().map(cache).collect(),
                cpu: run.host.cpu.clone(),
                cpus: run.host.cpus,
                kernel: run.host.kernel.clone(),
            },
            mode: match run.mode {
                Mode::Live => schema::run::Mode::Live,
                Mode::Exact => schema::run::Mode::Exact,
            },
            pids: run.pids.clone(),
            policy: Some(run.policy.clone()),
            samples: Some(self.profile.samples.len() as u64),
            sources: Sources {
                address: run.sources.address.clone(),
                clock: run.sources.clock.clone(),
                heap: run.sources.heap.clone(),
                rate: run.sources.rate.clone(),
            },
            started: locality_units::print::timestamp(run.started_unix_ns),
            user_only: run.user_only.then_some(true),
            wall_s: seconds(run.wall_ns),
            watches: Some(self.profile.watches.len() as u64),
            ..Run::default()
        }
    }

    fn overhead(&self) -> Overhead {
        let overhead = &self.profile.overhead;
        let percent = |ns: u64| known(cost_percent(self.profile, ns));
        Overhead {
            budget_percent: overhead.budget_percent.into(),
            by_cause: Causes {
                bpf: percent(overhead.bpf_ns),
                controller: percent(overhead.controller_ns),
                heap: overhead.heap_ns.map(percent),
                stop: percent(overhead.stop_ns),
                strings: overhead.string_ns.map(percent),
                trap: percent(overhead.trap_ns),
            },
            longest_stop_ns: overhead.longest_stop_ns,
            max_stop_ns: overhead.max_stop_ns,
            measured_percent: overhead.measured_percent.into(),
            stops: overhead.stops,
        }
    }

    fn ledger(&self) -> schema::ledger::Ledger {
        let ledger = &self.profile.ledger;
        let known = self.profile.known_ledger();
        let imbalance = known.and_then(Ledger::imbalance);
        let number = |of: fn(&Ledger) -> u64| known.map(of);
        schema::ledger::Ledger {
            balanced: known.map(|_| imbalance.is_none()),
            filtered: number(|ledger| ledger.filtered),
            filtered_by: causes(&ledger.filtered_by),
            imbalance,
            lost: causes(&ledger.lost),
            received: number(|ledger| ledger.received),
            seen: number(|ledger| ledger.seen),
            stops: causes(&ledger.stops),
            submitted: number(|ledger| ledger.submitted),
            unreachable: causes(&ledger.unreachable),
            watch: Watches {
                armed: number(|ledger| ledger.armed),
                censored: number(|ledger| ledger.censored),
                refused: number(|ledger| ledger.refused),
                trapped: number(|ledger| ledger.trapped),
            },
        }
    }

    fn pair(&self, pair: &Pair) -> schema::pairs::Pair {
        let heaviest = pair.contexts.first();
        let end = |place: PlaceId, of: fn(&ContextPair) -> ContextId| Path {
            place: Some(self.frames.place(place)),
            ..self.frames.path(heaviest.map(of))
        };
        schema::pairs::Pair {
            common_ancestor: heaviest.and_then(|pair| self.ancestor(pair)),
            contexts: pair.contexts.iter().take(CONTEXTS_SHOWN).map(|pair| self.context(pair)).collect(),
            contexts_total: pair.contexts.len() as u64,
            cross_thread_share: Some(estimate(&pair.cross_thread)),
            far: Some(pair.far),
            far_median: pair.far_median.as_ref().map(|median| self.time(median)),
            far_weight: Some(pair.far_weight.value.into()),
            far_weight_ci95: Some(ci95(&pair.far_weight)),
            kernel_share: Some(estimate(&pair.kernel)),
            misses: None,
            misses_estimated: None,
            n: pair.weight.n,
            near: Some(pair.near),
            object: self.object(pair),
            reuse: end(pair.reuse_place, |pair| pair.reuse_context),
            stack_median: self.stack_median(&pair.median_ns).map(Some),
            time_median: Some(self.time(&pair.median_ns)),
            time_p90: Some(self.time(&pair.p90_ns)),
            used: end(pair.use_place, |pair| pair.use_context),
            weight: pair.weight.value.into(),
            weight_ci95: Some(ci95(&pair.weight)),
        }
    }

    fn object(&self, pair: &Pair) -> Option<PairObject> {
        let (id, share) = pair.object?;
        let object = self.profile.objects.get(id.0 as usize)?;
        (object.kind != ObjectKind::Unknown).then(|| PairObject {
            kind: kind_name(object.kind).to_owned(),
            name: object.name.clone(),
            share: share.into(),
        })
    }

    fn context(&self, pair: &ContextPair) -> PairContext {
        PairContext {
            n: pair.weight.n,
            reuse: self.frames.path(Some(pair.reuse_context)),
            time_median: Some(self.time(&pair.median_ns)),
            used: self.frames.path(Some(pair.use_context)),
            weight: pair.weight.value.into(),
            weight_ci95: Some(ci95(&pair.weight)),
            ..PairContext::default()
        }
    }

    fn time(&self, estimate: &Estimate) -> Distance {
        distance(estimate, self.findings.unit.name())
    }

    /// Mean stack distance of the time distance, and those of its interval's ends.
    fn stack_median(&self, time: &Estimate) -> Option<Distance> {
        let reuse = self.findings.reuse(8)?;
        let [value, low, high] =
            [time.value, time.low, time.high].map(|time| reuse.stack_distance(time).map(f64::round));
        let stack = Estimate { value: value?, low: low?, high: high?, n: time.n };
        Some(distance(&stack, "granules"))
    }

    fn ancestor(&self, pair: &ContextPair) -> Option<Arc<Frame>> {
        let contexts = &self.findings.contexts;
        let (_, frame) = contexts.common_ancestor(self.profile, pair.use_context, pair.reuse_context);
        self.frames.frame(frame?)
    }

    fn not_reused(&self) -> NotReused {
        let overall = &self.findings.unseen.overall;
        let lines = self.findings.unseen.lines.iter().map(|line| NotReusedLine {
            share_of_line: estimate(&line.not_reused),
            used: self.frames.place(line.place),
            watched: line.watched,
            weight: line.weight.value.into(),
            weight_ci95: ci95(&line.weight),
            withdrawn: line.withdrawn,
        });
        NotReused {
            by_line: lines.collect(),
            ci95: ci95(overall),
            fraction: overall.value.into(),
            n: overall.n,
        }
    }

    fn hot(&self) -> Hot {
        let hot = &self.findings.hot;
        let function = |row: &Row<locality_findings::hotspots::Function>| HotFunction {
            ci95: ci95(&row.share),
            function: row.what.name.clone(),
            loads: row.loads.into(),
            module: row.what.module.clone(),
            n: row.share.n,
            share: row.share.value.into(),
            stores: row.stores.into(),
            unknown: row.unknown.into(),
        };
        let line = |row: &Row<PlaceId>| {
            let place = self.frames.place(row.what);
            HotLine {
                ci95: ci95(&row.share),
                file: place.file,
                function: place.function,
                line: place.line,
                loads: row.loads.into(),
                n: row.share.n,
                share: row.share.value.into(),
                stores: row.stores.into(),
                unknown: row.unknown.into(),
                via: place.via,
            }
        };
        Hot {
            by_function: hot.functions.iter().map(function).collect(),
            by_line: hot.lines.iter().map(line).collect(),
        }
    }

    fn threads(&self) -> ThreadSummary {
        let threads = &self.profile.threads;
        let (seen, processes) = locality_model::merge::threads_and_processes(threads);
        let windowed = self.findings.windowed.as_ref();
        ThreadSummary {
            ended: threads.iter().filter(|thread| thread.ended_ns.is_some()).count() as u64,
            not_held: threads.iter().filter(|thread| thread.not_held.is_some()).count() as u64,
            processes,
            reuse: windowed.map(|windowed| self.reuse_by_thread(windowed)),
            reuse_left_out: windowed.map(|windowed| windowed.threads_left_out as u64),
            seen,
        }
    }

    fn reuse_by_thread(&self, windowed: &Windowed) -> Vec<ThreadReuse> {
        let threads = windowed.threads.iter().filter_map(|(id, reuse)| {
            let thread = self.profile.threads.get(id.0 as usize)?;
            Some(ThreadReuse {
                name: thread.name.clone(),
                pid: thread.process_id(),
                reuse: reuse::of_all(reuse),
                tid: thread.tid,
            })
        });
        threads.collect()
    }
}

/// Times of a profile without windows.
fn of_cpu_times(histogram: &CpuTimes) -> Reuse {
    const UNIT: &str = "cpu_ns";
    let bins = histogram.bins.iter().map(|bin| Bin {
        ci95: Some(ci95(&bin.fraction)),
        count: None,
        fraction: bin.fraction.value.into(),
        high: bin.high_ns.into(),
        low: bin.low_ns.into(),
        n: Some(bin.fraction.n),
    });
    let time = Histogram {
        bins: Some(bins.collect()),
        median: Some(distance(&histogram.median_ns, UNIT)),
        n: Some(histogram.n),
        p90: Some(distance(&histogram.p90_ns, UNIT)),
        resolution: Some(histogram.resolution_ns),
        unit: UNIT.to_owned(),
    };
    Reuse { time: Some(time), ..Reuse::default() }
}

fn causes(causes: &[(String, u64)]) -> BTreeMap<String, u64> {
    let mut map = BTreeMap::<String, u64>::new();
    for (cause, n) in causes {
        let sum = map.entry(cause.clone()).or_default();
        *sum = sum.saturating_add(*n);
    }
    map
}

fn seconds(ns: u64) -> Number {
    (ns as f64 / 1e9).into()
}

#[cfg(test)]
mod tests;
