//! Leaves out rows with impossible numbers: probabilities of no policy,
//! times of years, counts beyond a run, infinite numbers and NaN.
//!
//! A damaged or forged cell would otherwise outweigh the rest, or make sums overflow.
//! The notice about damage names the rows left out. Not here: dangling ids (`repair`).

use locality_model::{
    Access, Heap, Ledger, Load, LoopAccess, Outcome, Overhead, Processor, Rate, Run, Seen, SeenLoop, Use,
    Watch, Window,
};

use crate::reader::Decoded;

/// Longest time, in ns: two years. Sums of a hundred times of two years fit 64 bits.
const TIME_NS: u64 = 1 << 56;
/// Largest count of anything.
const COUNT: u64 = 1 << 56;
/// More classes of instructions, or machines, than any writer has.
const PARTS: usize = 64;
/// Largest object, member or cache, in bytes: more than an address space.
const BYTES: u64 = 1 << 48;
/// Largest single access, in bytes.
const ACCESS_BYTES: u32 = 1 << 16;
/// Smallest credible probability; the arbiter's lie above 10⁻⁹.
const PROBABILITY: f64 = 1e-15;
/// Largest number of accesses a nanosecond.
const RATE: f64 = 1e4;
/// Most accesses represented by a load.
const STANDS_FOR: f64 = 1e15;
/// Largest percentage of cost.
const PERCENT: f64 = 1e6;

/// Leaves out impossible rows, with a notice.
pub(crate) fn leave_out(decoded: &mut Decoded) {
    let mut out = Out::default();
    let profile = &mut decoded.profile;
    if !is_run(&profile.run) {
        let run = &mut profile.run;
        (run.wall_ns, run.cpu_ns, run.distance_resolution_ns, run.distance_scatter_ns) = (0, 0, 0, None);
        (run.ticks, run.page_faults) = (None, None);
        run.host.cpus = 0;
        out.count("run", 1);
    }
    out.rows("cache_level", &mut profile.run.host.caches, |cache| {
        cache.bytes <= BYTES && cache.level <= 16 && cache.line.is_power_of_two() && cache.line <= 1 << 16
    });
    out.one("ledger", &mut profile.ledger, is_ledger);
    for causes in [
        &mut profile.ledger.lost,
        &mut profile.ledger.filtered_by,
        &mut profile.ledger.unreachable,
        &mut profile.ledger.stops,
    ] {
        out.rows("ledger_cause", causes, |(_, n)| *n <= COUNT);
    }
    out.one("overhead", &mut profile.overhead, is_overhead);
    for thread in &mut profile.threads {
        let sound = times([thread.started_ns, thread.ended_ns.unwrap_or(0)]);
        if !sound {
            (thread.started_ns, thread.ended_ns) = (0, None);
        }
        out.count("thread", u64::from(!sound));
    }
    let groups = profile.groups.len();
    for sample in &mut profile.samples {
        sample.group = sample.group.filter(|group| (group.0 as usize) < groups);
    }
    out.with_ids("sample", &mut profile.samples, &mut decoded.sample_ids, |sample| {
        times([sample.time_ns, sample.period_ns]) && sample.access.as_ref().map_or(true, is_access)
    });
    out.with_ids("watch", &mut profile.watches, &mut decoded.watch_ids, is_watch);
    out.rows("window", &mut profile.windows, is_window);
    for of_use in &mut profile.uses {
        out.rows("seen", &mut of_use.seen, |(granule, seen)| {
            granule.is_power_of_two()
                && *granule <= 4096
                && match seen {
                    Seen::Reused { distance, access, .. } => *distance <= COUNT && is_access(access),
                    Seen::Open { accesses } => *accesses <= COUNT,
                }
        });
    }
    out.with_ids("window_use", &mut profile.uses, &mut decoded.use_ids, |Use { skip, access, .. }| {
        *skip <= COUNT && is_access(access)
    });
    for load in &mut profile.loads {
        out.rows("burst", &mut load.bursts, |burst| {
            counts([burst.from, burst.to, burst.touches]) && burst.from <= burst.to
        });
    }
    out.with_ids("line_load", &mut profile.loads, &mut decoded.load_ids, is_load);
    for seen in &mut profile.loops {
        out.rows("loop_access", &mut seen.by_access, is_loop_access);
    }
    out.rows("loop", &mut profile.loops, is_loop);
    out.rows("window_flow", &mut profile.flows, |flow| {
        counts([flow.left_out]) && flow.edges.iter().all(|edge| edge.count <= COUNT)
    });
    out.rows("window_execution", &mut profile.executions, |execution| {
        counts([execution.instructions, execution.loads, execution.stores])
            && execution.classes.len() <= PARTS
            && execution.spans.len() <= PARTS
            && execution.classes.values().all(|count| *count <= COUNT)
            && execution.spans.iter().all(|span| counts([span.instructions, span.cycles]))
    });
    out.rows("kernel_sample", &mut profile.kernel_samples, |sample| times([sample.time_ns]));
    if profile.run.processor.is_some_and(|processor| !is_processor(&processor)) {
        profile.run.processor = None;
        out.count("processor", 1);
    }
    for object in &mut profile.objects {
        let kept = object.bytes.filter(|bytes| *bytes <= BYTES);
        out.count("object", u64::from(kept != object.bytes));
        object.bytes = kept;
    }
    for record in &mut profile.records {
        out.rows("member", &mut record.members, |member| {
            [member.offset, member.bytes, member.align].iter().all(|bytes| *bytes <= BYTES)
        });
        let sound = record.bytes <= BYTES;
        out.count("record", u64::from(!sound));
        if !sound {
            (record.bytes, record.members) = (0, Vec::new());
        }
    }
    for field in &mut profile.fields {
        let sound = [field.offset, field.bytes, field.record_offset].iter().all(|bytes| *bytes <= BYTES);
        out.count("field", u64::from(!sound));
        if !sound {
            (field.offset, field.bytes, field.record, field.record_offset) = (0, 0, None, 0);
        }
    }
    out.rows("located", &mut profile.located, |located| located.offset.is_none_or(|bytes| bytes <= BYTES));
    if let Some(heap) = &mut profile.heap {
        out.rows("allocation_site", &mut heap.sites, |site| counts([site.allocations, site.bytes]));
        if !is_heap(heap) {
            out.count("heap", 1);
            profile.heap = None;
        }
    }
    decoded.damage.extend(out.sentences());
}

/// Rows left out, by table.
#[derive(Debug, Default)]
struct Out(Vec<(&'static str, u64)>);

impl Out {
    fn count(&mut self, table: &'static str, n: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == table) {
            Some((_, before)) => *before += n,
            None => self.0.push((table, n)),
        }
    }

    fn one<T: Default>(&mut self, table: &'static str, value: &mut T, is_sound: impl Fn(&T) -> bool) {
        if !is_sound(value) {
            *value = T::default();
            self.count(table, 1);
        }
    }

    fn rows<T>(&mut self, table: &'static str, values: &mut Vec<T>, is_sound: impl Fn(&T) -> bool) {
        let before = values.len();
        values.retain(is_sound);
        self.count(table, (before - values.len()) as u64);
    }

    fn with_ids<T, I: Copy>(
        &mut self,
        table: &'static str,
        values: &mut Vec<T>,
        ids: &mut Vec<I>,
        is_sound: impl Fn(&T) -> bool,
    ) {
        let sound: Vec<bool> = values.iter().map(is_sound).collect();
        self.count(table, sound.iter().filter(|sound| !**sound).count() as u64);
        let mut flags = sound.iter();
        values.retain(|_| flags.next().copied().unwrap_or(true));
        let mut flags = sound.iter();
        ids.retain(|_| flags.next().copied().unwrap_or(true));
    }

    fn sentences(self) -> impl Iterator<Item = String> {
        let some = self.0.into_iter().filter(|(_, n)| *n > 0);
        some.map(|(table, n)| format!("table {table}: {n} rows have impossible numbers"))
    }
}

fn times<const N: usize>(all: [u64; N]) -> bool {
    all.iter().all(|time| *time <= TIME_NS)
}

fn counts<const N: usize>(all: [u64; N]) -> bool {
    all.iter().all(|count| *count <= COUNT)
}

fn is_access(access: &Access) -> bool {
    access.size <= ACCESS_BYTES
}

fn is_run(run: &Run) -> bool {
    times([run.wall_ns, run.cpu_ns, run.distance_resolution_ns, run.distance_scatter_ns.unwrap_or(0)])
        && run.ticks.is_none_or(|(all, kernel)| kernel <= all && all <= COUNT)
        && counts([run.page_faults.unwrap_or(0)])
        && run.host.cpus <= 1 << 20
}

fn is_ledger(ledger: &Ledger) -> bool {
    let Ledger { seen, filtered, submitted, received, armed, trapped, censored, refused, .. } = *ledger;
    counts([seen, filtered, submitted, received, armed, trapped, censored, refused])
}

fn is_overhead(overhead: &Overhead) -> bool {
    let percents = [overhead.budget_percent, overhead.measured_percent];
    let (heap_ns, string_ns) = (overhead.heap_ns.unwrap_or(0), overhead.string_ns.unwrap_or(0));
    percents.iter().all(|percent| (0.0..=PERCENT).contains(percent))
        && times([overhead.stop_ns, overhead.trap_ns, overhead.bpf_ns, overhead.controller_ns])
        && times([overhead.longest_stop_ns, overhead.max_stop_ns, heap_ns, string_ns])
        && overhead.stops <= COUNT
}

fn is_watch(watch: &Watch) -> bool {
    let possible = |p: f64| (PROBABILITY..=1.0).contains(&p);
    let (reused_ns, distance_ns, accesses) = match &watch.outcome {
        Outcome::Reused { touch, distance_ns, accesses } => {
            (touch.time_ns, *distance_ns, accesses.unwrap_or(0))
        }
        _ => (0, 0, 0),
    };
    let used_ns = watch.use_touch.map_or(0, |touch| touch.time_ns);
    times([watch.armed_ns, watch.ended_ns, used_ns, reused_ns, distance_ns])
        && accesses <= COUNT
        // A refused watch enters no estimate.
        && (watch.outcome == Outcome::Refused || possible(watch.p_arm) && possible(watch.p_survive))
}

fn is_window(window: &Window) -> bool {
    let rate = |rate: &Rate| {
        let bounds = [rate.value, rate.low, rate.high];
        bounds.iter().all(|value| (0.0..=RATE).contains(value)) && rate.low <= rate.high
    };
    counts([window.instructions, window.accesses])
        && window.touches.iter().all(|(granule, n)| *n <= COUNT && *granule > 0)
        && window.rate.as_ref().is_none_or(rate)
}

fn is_load(load: &Load) -> bool {
    counts([load.skip, load.gap.unwrap_or(0), load.shown])
        && (0.0..=STANDS_FOR).contains(&load.stands_for)
        && is_access(&load.access)
}

fn is_loop(seen: &SeenLoop) -> bool {
    counts([seen.instructions, seen.accesses, seen.iterations, seen.runs, seen.trips])
        && [seen.core_cycles, seen.unbound_cycles].iter().all(|cycles| (0.0..=STANDS_FOR).contains(cycles))
        && seen.needs.as_ref().is_none_or(|needs| {
            let cycles = [needs.cycles, needs.chain_cycles, needs.unit_cycles, needs.distant_cycles];
            counts([needs.mispredicted, needs.new_lines])
                && cycles.iter().all(|cycles| (0.0..=STANDS_FOR).contains(cycles))
        })
}

fn is_loop_access(access: &LoopAccess) -> bool {
    let LoopAccess { executions, lines, pages, sets, stride_count, steps, .. } = *access;
    counts([executions, lines, pages, sets[0], sets[1], stride_count, steps])
        && access.bytes <= ACCESS_BYTES
        && stride_count <= steps
        && steps <= executions
}

fn is_processor(processor: &Processor) -> bool {
    /// Largest number of cycles or nanoseconds credible for an operation.
    const LONGEST: f64 = 1e9;
    let levels = processor.levels.iter().flatten();
    (0.01..=100.0).contains(&processor.clock)
        && levels
            .chain([&processor.parallel_line, &processor.page_fault_ns])
            .all(|it| (0.0..=LONGEST).contains(it))
        && processor.core.is_none_or(|core| core.values().iter().all(|it| (0.0..=LONGEST).contains(it)))
}

fn is_heap(heap: &Heap) -> bool {
    counts([heap.seen, heap.made])
}
