//! The report of an exact run, `locality_report::schema`: the fields of a live run without intervals.
//!
//! Fields of exact runs only: `reuse.*.stack`, `miss_ratio_curve`, `footprint_bytes`,
//! `cold_fraction`, `by_data_type`, `phases`, `threads`. A miss ratio is misses ÷ touches
//! of granules, in a fully associative LRU cache (Mattson et al., IBM Systems Journal 9,
//! 1970); `touches` stands beside the ratio. The object is also stored by `-o`.

use std::collections::{BTreeMap, BTreeSet};

use locality_dataflow::Shared;
use locality_model::{CacheLevel, Host};
use locality_report::schema::{
    Report, SCHEMA_1,
    mix::Mix,
    pairs::{NotNamed, Pair as PairRow, PairContext},
    place::Path,
    reuse::{Bin, Distance, Histogram, Phase, Point, Reuse, TypeReuse},
    run::{Host as HostReport, HostCache, Mode, Program, Run, Sources},
    threads::{Sharing, ThreadCounts, Threads},
};
use locality_reuse::{GrainSummary, LOG2_BINS, log2_bounds};
use locality_stream::{Class, DataType};
use locality_units::print as units;

use super::{
    cache::{self, machine::Machine},
    fine,
    image::Sampled,
    names::Frame,
    pairs::{CONTEXTS, Context, Pair, PlacePair},
    sampled::{self, Scale},
    total::{Counts, Grain, Total},
};

/// Cache sizes of every report, for comparisons between machines.
pub const FIXED_SIZES: [u64; 3] = [32 << 10, 1 << 20, 32 << 20];
/// Pairs of places in the report: the heaviest, and the heaviest by misses of [`FIXED_SIZES`]`[0]`.
const PAIRS: usize = 200;
/// Threads with listed phases.
const PHASED_THREADS: usize = 16;

/// Facts besides the counts.
pub struct About {
    /// The command line.
    pub command: String,
    /// Process ids.
    pub pids: Vec<u32>,
    /// Start, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// Length in seconds.
    pub wall_s: f64,
    /// CPU time in seconds, our own work included.
    pub cpu_s: f64,
    /// The machine.
    pub host: Host,
    /// Version of QEMU.
    pub qemu: String,
    /// How the command ended, in words.
    pub ended_by: String,
    /// The command's exit status as shown by a shell.
    pub exit_status: u8,
    /// Whether the threads were put into one order.
    pub one_order: bool,
    /// Whether fetches of instructions were measured instead of data.
    pub fetches: bool,
    /// Whether fine bins are asked for.
    pub fine: bool,
    /// Restrictions of the counts; empty: none.
    pub functions: Vec<String>,
    /// Restriction by the type of an instruction's data.
    pub data_types: Vec<DataType>,
    /// Functions with costs charged to callers.
    pub skipped: Vec<String>,
    /// Functions with whole calls reported.
    pub inclusive: Vec<String>,
    /// Ignored lines.
    pub ignored_lines: Vec<String>,
    /// Parts of a partition of the tasks.
    pub partition: Option<u32>,
    /// Processors for the speed-up by self-parallelism.
    pub processors: u32,
    /// The simulated caches.
    pub machine: Option<Machine>,
}

/// The whole report.
pub fn report(total: &Total, about: &About) -> Report {
    let reuse = total.grains.iter().filter_map(|(bytes, grain)| {
        let mut reuse = match &total.sampled {
            Some(sampled) => sampled::reuse(grain, sampled, &about.host.caches)?,
            None => reuse(grain, about)?,
        };
        total.extra.describe(*bytes, &mut reuse);
        Some((bytes.to_string(), reuse))
    });
    // Pairs are of lines if measured, otherwise of the largest granule.
    let paired = total.grains.get(&64).or_else(|| total.grains.values().next_back());
    let paired_bytes = paired.and_then(|grain| Some(grain.sum.as_ref()?.bytes));
    let machine_notices = about.machine.iter().flat_map(|machine| &machine.notices);
    let apart = about.machine.as_ref().and_then(|machine| last_level_apart(total, machine, about.one_order));
    let threads = total.threads.iter().map(|(pid, thread)| ThreadCounts {
        accesses: thread.accesses,
        instructions: thread.instructions,
        pid: *pid,
        tid: thread.tid,
    });
    let machine = about.machine.as_ref();
    let (parallelism, functions) = total.parallelism.describe(&about.inclusive, &about.ignored_lines);
    Report {
        branches: parallelism.is_some().then(|| total.parallelism.branches()),
        functions,
        parallelism,
        cache_use: machine.map(|machine| cache::of(&total.simulated, machine, &about.skipped)),
        counted_in_part: Some(total.torn),
        empty: why_empty(total),
        executions: total.executions.describe(),
        mix: Some(mix(total)),
        notices: total.notices.iter().chain(&apart).chain(machine_notices).cloned().collect(),
        out_of_order_buffers: Some(total.out_of_turn),
        pairs: paired.map_or_else(Vec::new, |grain| pairs(grain, total.sampled.as_ref())),
        pairs_granularity: Some(paired_bytes),
        pairs_not_named: Some(paired.map(|grain| {
            let lost = grain.sum.as_ref().map_or(0, |sum| sum.pairs_lost);
            NotNamed { pairs: grain.pairs.unnamed_pairs, reuses: grain.pairs.unnamed + lost }
        })),
        partial: total.partial,
        reuse: reuse.collect(),
        run: run(total, about),
        schema: SCHEMA_1.to_owned(),
        self_parallelism: total.regions.describe(about.processors, &about.ignored_lines),
        sharing: total.sharing.as_ref().map(|rows| sharing(rows)),
        tasks: total.tasks.describe(about.partition, &about.ignored_lines),
        threads: Some(Threads::List(threads.collect())),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        without_context: Some(total.folded),
        ..Report::default()
    }
}

/// What threads of a process handed over to each other, most bytes first.
fn sharing(rows: &[(u32, Shared)]) -> Vec<Sharing> {
    let row = |(pid, row): &(u32, Shared)| Sharing {
        bytes: row.bytes,
        from: row.from,
        pid: *pid,
        to: row.to,
        values: row.values,
    };
    let mut rows: Vec<Sharing> = rows.iter().map(row).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.bytes), row.pid, row.from, row.to));
    rows
}

fn run(total: &Total, about: &About) -> Run {
    let cache = |cache: &CacheLevel| HostCache {
        bytes: cache.bytes,
        level: cache.level,
        line: cache.line,
        ways: cache.ways,
    };
    let programs = total.programs.iter().map(|(pid, file)| Program { file: file.clone(), pid: *pid });
    let order = if about.one_order { "one for the whole process" } else { "each thread's own" };
    Run {
        command: about.command.clone(),
        cpu_s: about.cpu_s.into(),
        data_types: Some(about.data_types.iter().map(ToString::to_string).collect()),
        ended_by: about.ended_by.clone(),
        exit_status: Some(i64::from(about.exit_status)),
        functions: Some(about.functions.clone()),
        host: HostReport {
            caches: about.host.caches.iter().map(cache).collect(),
            cpu: about.host.cpu.clone(),
            cpus: about.host.cpus,
            kernel: about.host.kernel.clone(),
        },
        measured: Some(if about.fetches { "instruction fetches" } else { "data accesses" }.to_owned()),
        mode: Mode::Exact,
        order: Some(order.to_owned()),
        pids: about.pids.clone(),
        programs: Some(programs.collect()),
        sample_lines: total.sampled.as_ref().map(|sampled| sampled.one_in),
        sources: Sources {
            address: format!("QEMU {} user mode", about.qemu),
            clock: "accesses".to_owned(),
            heap: None,
            rate: Some(match &total.sampled {
                Some(sampled) => format!("every access to one of {} lines", sampled.one_in),
                None => "every access".to_owned(),
            }),
        },
        started: units::timestamp(about.started_unix_ns),
        started_unix_ns: Some(about.started_unix_ns),
        wall_s: about.wall_s.into(),
        ..Run::default()
    }
}

/// Reports separate last levels of a process's threads.
fn last_level_apart(total: &Total, machine: &Machine, one_order: bool) -> Option<String> {
    // A process after an exec is listed twice.
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
    let seen = |grain: &Grain| grain.sum.as_ref().is_some_and(|sum| sum.cold > 0);
    if let Some(sampled) = total.sampled.as_ref().filter(|sampled| sampled.accesses > 0)
        && !total.grains.values().any(seen)
    {
        return Some(format!(
            "None of the {} accesses was to a sampled line: run the command with a smaller --sample-lines, or \
             without.",
            units::count(sampled.accesses)
        ));
    }
    (total.accesses == 0).then(|| {
        let notice = total.notices.first().map(|notice| format!(" {notice}")).unwrap_or_default();
        format!("No access was recorded.{notice}")
    })
}

fn mix(total: &Total) -> Mix {
    let mix = &total.mix;
    let class = |class: &Class| (class.name().replace(' ', "_"), mix.fraction(*class).into());
    Mix {
        accesses: total.accesses,
        branches: mix.fraction(Class::Branch).into(),
        classes: Class::ALL.iter().map(class).collect(),
        instructions: mix.instructions,
        loads: mix.part(total.accesses - total.stores.min(total.accesses)).into(),
        stores: mix.part(total.stores).into(),
        ..Mix::default()
    }
}

pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn reuse(grain: &Grain, about: &About) -> Option<Reuse> {
    let sum = grain.sum.as_ref()?;
    let threads = sum.phases.iter().map(|phase| phase.thread).collect::<BTreeSet<_>>();
    let phases = sum.phases.iter().filter(|_| threads.len() <= PHASED_THREADS || about.fine);
    let phases = phases.map(|phase| Phase {
        accesses: phase.accesses,
        cold: phase.cold,
        fine: about.fine.then(|| fine::of_phase(phase)),
        first_access: phase.first,
        stack: histogram("granules", &locality_reuse::to_log2(&phase.stack), None),
        thread: phase.thread,
        time: histogram("accesses", &locality_reuse::to_log2(&phase.time), None),
        touches: phase.cold + phase.time.iter().sum::<u64>(),
    });
    let types = grain.types.iter().map(|(data, reuse)| {
        let value = TypeReuse {
            cold: reuse.cold,
            stack: histogram("granules", &reuse.reuses.stack, None),
            time: histogram("accesses", &reuse.reuses.time, None),
            touches: reuse.cold + reuse.reuses.n,
        };
        (data.to_string(), value)
    });
    Some(Reuse {
        at_caches: Some(at_caches(sum, &about.host.caches)),
        by_data_type: Some(types.collect()),
        cold: Some(sum.cold),
        cold_fraction: Some(ratio(sum.cold, sum.touches).into()),
        fine: about.fine.then(|| fine::of_run(sum)),
        footprint_bytes: Some(sum.footprint_bytes().into()),
        miss_ratio_curve: Some(curve(sum)),
        phases: Some(phases.collect()),
        stack: Some(histogram("granules", &sum.stack_log2(), Some(sum.reuses()))),
        time: Some(histogram("accesses", &sum.time_log2(), Some(sum.reuses()))),
        touches: Some(sum.touches.into()),
        ..Reuse::default()
    })
}

fn histogram(unit: &str, counts: &[u64], n: Option<u64>) -> Histogram {
    Histogram { bins: Some(bins(counts)), n, unit: unit.to_owned(), ..Histogram::default() }
}

/// Bins up to the last with counts; fractions sum to 1.
fn bins(counts: &[u64]) -> Vec<Bin> {
    let n: u64 = counts.iter().sum();
    let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    let bin = |(bin, count): (usize, &u64)| {
        let (low, high) = log2_bounds(bin);
        Bin {
            count: Some(*count),
            fraction: ratio(*count, n).into(),
            high: high.into(),
            low: low.into(),
            ..Bin::default()
        }
    };
    counts.iter().take(used).enumerate().map(bin).collect()
}

/// At every power of two from one granule to the first size
/// with only first touches as misses, and the fixed sizes.
fn curve(sum: &GrainSummary) -> Vec<Point> {
    let mut sizes: Vec<u64> = (0..40).map(|bit| sum.bytes << bit).collect();
    let enough = sizes.iter().position(|bytes| sum.misses(bytes / sum.bytes) == Some(sum.cold));
    sizes.truncate(enough.map_or(sizes.len(), |at| at + 1));
    sizes.extend(FIXED_SIZES);
    sizes.sort_unstable();
    sizes.dedup();
    sizes.iter().filter_map(|bytes| point(sum, *bytes)).collect()
}

fn point(sum: &GrainSummary, bytes: u64) -> Option<Point> {
    let misses = sum.misses(bytes / sum.bytes)?;
    Some(Point {
        bytes: bytes.into(),
        misses: Some(misses),
        ratio: ratio(misses, sum.touches).into(),
        ..Point::default()
    })
}

/// At the machine's sizes; sizes off the bins' edges are left out.
fn at_caches(sum: &GrainSummary, caches: &[CacheLevel]) -> Vec<Point> {
    let at = |cache: &CacheLevel| Some(Point { level: Some(cache.level), ..point(sum, cache.bytes)? });
    caches.iter().filter_map(at).collect()
}

fn pairs(grain: &Grain, sampled: Option<&Sampled>) -> Vec<PairRow> {
    let Some(sum) = &grain.sum else { return Vec::new() };
    let scale = Scale::of(sum, sampled);
    let near = scale.seen(FIXED_SIZES[0]);
    let mut ranked: Vec<(&PlacePair, &Pair)> = grain.pairs.named.iter().collect();
    ranked.sort_by_key(|(places, pair)| (std::cmp::Reverse(pair.counts.n), *places));
    let mut rest = ranked.split_off(ranked.len().min(PAIRS));
    rest.sort_by_key(|(places, pair)| (std::cmp::Reverse(pair.counts.misses(near)), *places));
    rest.retain(|(_, pair)| pair.counts.misses(near) > 0);
    rest.truncate(PAIRS);
    rest.sort_by_key(|(places, pair)| (std::cmp::Reverse(pair.counts.n), *places));
    ranked.into_iter().chain(rest).map(|(_, each)| pair(each, &scale)).collect()
}

fn pair(pair: &Pair, scale: &Scale<'_>) -> PairRow {
    let mut contexts: Vec<&(Counts, Context)> = pair.contexts.values().collect();
    contexts.sort_by_cached_key(|(counts, context)| {
        (std::cmp::Reverse(counts.n), format!("{:?}", (&context.by, &context.again)))
    });
    let empty = Context::default();
    let heaviest = contexts.first().map_or(&empty, |(_, context)| context);
    let PairContext {
        misses,
        misses_estimated,
        n,
        reuse,
        stack_median,
        time_median,
        used,
        weight,
        weight_ci95,
        ..
    } = in_context(&pair.counts, heaviest, scale);
    PairRow {
        common_ancestor: ancestor(heaviest),
        contexts: contexts
            .iter()
            .take(CONTEXTS)
            .map(|(counts, context)| in_context(counts, context, scale))
            .collect(),
        contexts_total: pair.contexts_total,
        misses,
        misses_estimated,
        n,
        reuse,
        stack_median,
        time_median,
        used,
        weight,
        weight_ci95,
        ..PairRow::default()
    }
}

fn in_context(counts: &Counts, context: &Context, scale: &Scale<'_>) -> PairContext {
    let path = |frames: &[Frame]| Path { frames: Some(frames.to_vec()), ..Path::default() };
    let misses = |bytes: u64| (bytes.to_string(), counts.misses(scale.seen(bytes)));
    let mut row = PairContext {
        misses: Some(FIXED_SIZES.map(misses).into()),
        n: counts.n,
        reuse: path(&context.again),
        stack_median: Some(median(&counts.stack, "granules")),
        time_median: median(&counts.time, "accesses"),
        used: path(&context.by),
        weight: ratio(counts.n, scale.sum.reuses()).into(),
        ..PairContext::default()
    };
    scale.estimate(counts, &mut row);
    row
}

/// The innermost common call: the last equal frame from the outside, by function.
fn ancestor(context: &Context) -> Option<Frame> {
    let both = context.by.iter().rev().zip(context.again.iter().rev());
    let same = |(by, again): &(&Frame, &Frame)| by.function == again.function && by.module == again.module;
    both.take_while(same).last().map(|(frame, _)| Frame::clone(frame))
}

/// The middle value, taken as evenly spread within the bin; the bin stands beside the value.
pub fn median(bins: &[u64; LOG2_BINS], unit: &str) -> Option<Distance> {
    let n: u64 = bins.iter().sum();
    let half = n as f64 / 2.0;
    let mut below = 0u64;
    for (bin, count) in bins.iter().enumerate() {
        if *count > 0 && (below + count) as f64 >= half {
            let (low, high) = log2_bounds(bin);
            let within = (half - below as f64) / *count as f64;
            let value = low as f64 + within * ((high - 1).saturating_sub(low)) as f64;
            return Some(Distance {
                high: Some(high),
                low: Some(low),
                unit: unit.to_owned(),
                value: value.round().into(),
                ..Distance::default()
            });
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_lie_in_their_bin() {
        let mut bins = [0; LOG2_BINS];
        assert_eq!(median(&bins, "accesses"), None);
        bins[0] = 1;
        assert_eq!(median(&bins, "accesses").unwrap().value, 0.0.into());
        bins[4] = 10;
        let found = median(&bins, "accesses").unwrap();
        assert_eq!((found.low, found.high), (Some(8), Some(16)));
        assert!((8.0..16.0).contains(&found.value.real().unwrap()));
    }

    #[test]
    fn fractions_sum_to_one_and_bins_end_with_the_last_count() {
        let bins = bins(&[3, 0, 1, 0, 0]);
        assert_eq!(bins.len(), 3);
        let sum: f64 = bins.iter().map(|bin| bin.fraction.real().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }

    #[test]
    fn an_empty_run_says_why() {
        let total = Total { notices: vec!["Because.".into()], ..Total::default() };
        assert_eq!(why_empty(&total).unwrap(), "No access was recorded. Because.");
    }
}
