//! A merge of profiles: segments of a run, processes, or machines.
//!
//! Profiles follow each other on the axis of time, each with its own processes. Analyses therefore never
//! relate events of two profiles. Program files with equal build ids become a single file, whatever their
//! paths; so do equal call stacks, groups and data objects.
//!
//! Sources of error: a word touched by two segments of a run has no reuse across
//! their border. Files without a build id are identified by path. Machines may
//! differ: the merge has the caches of the first, and a notice names the others.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use super::{
    Accessed, Field, FieldId, Frame, FrameId, Group, GroupId, Heap, Ledger, LoadId, Located, Missed, Module,
    ModuleId, Object, ObjectId, Outcome, Overhead, Profile, Record, RecordId, Run, Sample, SampleId, Seen,
    Stack, StackId, Thread, ThreadId, Touch, Use, UseId, Watch, WatchId,
};

/// Upper limit of process ids (`PID_MAX_LIMIT` of the kernel); a
/// multiple of the limit separates equal ids of several profiles.
pub(crate) const PIDS: u32 = 1 << 22;

/// Upper limit of profiles in a merge.
const PARTS: u32 = u32::MAX / PIDS;

/// Reasons that prevent a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unlike {
    /// Profiles with and without touches by the kernel (`--user-only`).
    KernelTouches,
    /// Too many profiles.
    TooMany,
}

impl std::fmt::Display for Unlike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::KernelTouches => {
                "one was traced with --user-only and another without, so that their reuses mean \
                 different things"
            }
            Self::TooMany => "there are more than 1,000 profiles",
        })
    }
}

/// Number of threads, and of their processes. A process that several merged profiles traced is one process;
/// processes with equal ids on several machines count as one, too.
pub fn threads_and_processes(threads: &[Thread]) -> (u64, u64) {
    let processes: HashSet<u32> = threads.iter().map(Thread::process_id).collect();
    let is_merge = threads.iter().any(|thread| thread.pid >= PIDS);
    let apart: HashSet<(u32, u32)> = threads.iter().map(|thread| (thread.process_id(), thread.tid)).collect();
    // A single profile may have two threads with one id, one after the other.
    let number = if is_merge { apart.len() } else { threads.len() };
    (number as u64, processes.len() as u64)
}

/// Appends profiles to each other.
#[derive(Debug, Default)]
pub struct Merger {
    into: Profile,
    parts: u32,
    pids: HashSet<u32>,
    modules: HashMap<(String, bool), ModuleId>,
    frames: HashMap<Frame, FrameId>,
    stacks: HashMap<Stack, StackId>,
    groups: HashMap<Group, GroupId>,
    objects: HashMap<Object, ObjectId>,
    records: HashMap<Record, RecordId>,
    fields: HashMap<Field, FieldId>,
}

/// New numbers of a profile's rows.
#[derive(Default)]
struct Moved {
    later_ns: u64,
    threads: Vec<ThreadId>,
    modules: Vec<ModuleId>,
    stacks: Vec<StackId>,
    groups: Vec<GroupId>,
    samples: Vec<Option<SampleId>>,
    uses: Vec<Option<UseId>>,
    loads: Vec<Option<LoadId>>,
    watches: Vec<Option<WatchId>>,
    objects: Vec<ObjectId>,
    fields: Vec<FieldId>,
}

fn at<T: Copy>(moved: &[T], id: u32) -> Option<T> {
    moved.get(id as usize).copied()
}

/// Number of a value in a table; a new value is appended.
fn intern<T: Clone + Eq + Hash, I: Copy>(
    known: &mut HashMap<T, I>,
    table: &mut Vec<T>,
    id: impl Fn(u32) -> I,
    value: T,
) -> I {
    *known.entry(value).or_insert_with_key(|value| {
        table.push(value.clone());
        id(table.len() as u32 - 1)
    })
}

impl Merger {
    /// Number of profiles.
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// Adds a profile, or selected samples with their windows, uses and watches.
    ///
    /// # Errors
    /// The profile does not fit; nothing was added.
    pub fn add(&mut self, profile: Profile, keep: impl Fn(&Sample) -> bool) -> Result<(), Unlike> {
        if self.parts > 0 && self.into.run.user_only != profile.run.user_only {
            return Err(Unlike::KernelTouches);
        }
        if self.parts >= PARTS {
            return Err(Unlike::TooMany);
        }
        let mut moved = Moved { later_ns: self.into.run.wall_ns, ..Moved::default() };
        self.names(&profile, &mut moved);
        self.objects(&profile, &mut moved);
        let share = self.samples(&profile, &mut moved, keep);
        self.rows(&profile, &mut moved);
        self.located(&profile, &moved);
        let Profile { mut run, ledger, mut overhead, notices, partial, heap, .. } = profile;
        if share < 1.0 {
            scale(&mut run, &mut overhead, share);
        }
        self.heap(heap, &moved);
        let own_cpu = (self.into.run.cpu_ns, run.cpu_ns);
        add_overhead(&mut self.into.overhead, &overhead, own_cpu);
        self.run(run);
        add_ledger(&mut self.into.ledger, ledger);
        for notice in notices {
            if !self.into.notices.contains(&notice) {
                self.into.notices.push(notice);
            }
        }
        self.into.partial |= partial;
        self.parts += 1;
        Ok(())
    }

    /// The merged profile.
    pub fn finish(mut self) -> Profile {
        if self.parts > 1 {
            self.into.notices.insert(
                0,
                format!(
                    "{} profiles were merged, one after the other; reuses from one to the next are unknown.",
                    self.parts
                ),
            );
        }
        self.into
    }

    /// Threads, files, frames, stacks and groups.
    fn names(&mut self, profile: &Profile, moved: &mut Moved) {
        let of_part: HashSet<u32> = profile.threads.iter().map(|thread| thread.pid).collect();
        let part = self.parts;
        let renamed = |pids: &HashSet<u32>, pid: u32| match pids.contains(&pid) {
            true => pid.wrapping_add(part.wrapping_mul(PIDS)),
            false => pid,
        };
        for thread in &profile.threads {
            moved.threads.push(ThreadId(self.into.threads.len() as u32));
            let mut thread = thread.clone();
            thread.pid = renamed(&self.pids, thread.pid);
            thread.started_ns += moved.later_ns;
            thread.ended_ns = thread.ended_ns.map(|ended_ns| ended_ns + moved.later_ns);
            self.into.threads.push(thread);
        }
        let of_part: Vec<u32> = of_part.into_iter().map(|pid| renamed(&self.pids, pid)).collect();
        self.pids.extend(of_part);
        for module in &profile.modules {
            let key = match module.build_id.is_empty() {
                true => (module.path.clone(), false),
                false => (module.build_id.clone(), true),
            };
            let next = ModuleId(self.into.modules.len() as u32);
            let id = *self.modules.entry(key).or_insert(next);
            if id == next {
                self.into.modules.push(Module::clone(module));
            }
            moved.modules.push(id);
        }
        let mut frames = Vec::with_capacity(profile.frames.len());
        for frame in &profile.frames {
            let mut frame = frame.clone();
            frame.module = frame.module.and_then(|module| at(&moved.modules, module.0));
            frames.push(intern(&mut self.frames, &mut self.into.frames, FrameId, frame));
        }
        for stack in &profile.stacks {
            let known = stack.frames.iter().filter_map(|frame| at(&frames, frame.0)).collect();
            let stack = Stack { frames: known, cut: stack.cut.clone() };
            moved.stacks.push(intern(&mut self.stacks, &mut self.into.stacks, StackId, stack));
        }
        for group in &profile.groups {
            let group = group.clone();
            moved.groups.push(intern(&mut self.groups, &mut self.into.groups, GroupId, group));
        }
    }

    fn objects(&mut self, profile: &Profile, moved: &mut Moved) {
        for object in &profile.objects {
            let mut object = object.clone();
            object.module = object.module.and_then(|module| at(&moved.modules, module.0));
            object.site = object.site.and_then(|site| at(&moved.stacks, site.0));
            moved.objects.push(intern(&mut self.objects, &mut self.into.objects, ObjectId, object));
        }
        let mut records = Vec::with_capacity(profile.records.len());
        for record in &profile.records {
            records.push(intern(&mut self.records, &mut self.into.records, RecordId, record.clone()));
        }
        for field in &profile.fields {
            let mut field = field.clone();
            field.record = field.record.and_then(|record| at(&records, record.0));
            moved.fields.push(intern(&mut self.fields, &mut self.into.fields, FieldId, field));
        }
    }

    /// Returns the selected samples' share of CPU time.
    fn samples(&mut self, profile: &Profile, moved: &mut Moved, keep: impl Fn(&Sample) -> bool) -> f64 {
        let (mut all_ns, mut kept_ns) = (0_u64, 0_u64);
        for sample in &profile.samples {
            all_ns = all_ns.saturating_add(sample.period_ns);
            if !keep(sample) {
                moved.samples.push(None);
                continue;
            }
            kept_ns = kept_ns.saturating_add(sample.period_ns);
            moved.samples.push(Some(SampleId(self.into.samples.len() as u32)));
            let mut sample = sample.clone();
            sample.time_ns += moved.later_ns;
            sample.thread = at(&moved.threads, sample.thread.0).unwrap_or(sample.thread);
            sample.stack = at(&moved.stacks, sample.stack.0).unwrap_or(sample.stack);
            sample.group = sample.group.and_then(|group| at(&moved.groups, group.0));
            self.into.samples.push(sample);
        }
        if kept_ns == all_ns {
            for sample in &profile.kernel_samples {
                let mut sample = sample.clone();
                sample.time_ns += moved.later_ns;
                sample.thread = at(&moved.threads, sample.thread.0).unwrap_or(sample.thread);
                sample.stack = at(&moved.stacks, sample.stack.0).unwrap_or(sample.stack);
                self.into.kernel_samples.push(sample);
            }
            return 1.0;
        }
        kept_ns as f64 / all_ns as f64
    }

    /// Windows, uses, watches and loops of samples.
    fn rows(&mut self, profile: &Profile, moved: &mut Moved) {
        let stacks = std::mem::take(&mut moved.stacks);
        let stack = |id: StackId| at(&stacks, id.0).unwrap_or(id);
        let samples = std::mem::take(&mut moved.samples);
        let sample = |id: SampleId| at(&samples, id.0).flatten();
        for window in &profile.windows {
            let Some(of) = sample(window.sample) else { continue };
            self.into.windows.push(super::Window { sample: of, ..window.clone() });
        }
        for of_use in &profile.uses {
            let of = sample(of_use.sample);
            moved.uses.push(of.map(|_| UseId(self.into.uses.len() as u32)));
            let Some(of) = of else { continue };
            let mut of_use = Use { sample: of, stack: stack(of_use.stack), ..of_use.clone() };
            for (_, seen) in &mut of_use.seen {
                if let Seen::Reused { stack: at, .. } = seen {
                    *at = stack(*at);
                }
            }
            self.into.uses.push(of_use);
        }
        for load in &profile.loads {
            let of = sample(load.sample);
            moved.loads.push(of.map(|_| LoadId(self.into.loads.len() as u32)));
            let Some(of) = of else { continue };
            self.into.loads.push(super::Load { sample: of, stack: stack(load.stack), ..load.clone() });
        }
        for seen in &profile.loops {
            let Some(of) = sample(seen.sample) else { continue };
            let mut seen = seen.clone();
            (seen.sample, seen.stack, seen.latch) = (of, stack(seen.stack), stack(seen.latch));
            for access in &mut seen.by_access {
                access.stack = stack(access.stack);
            }
            for step in &mut seen.chain {
                step.stack = stack(step.stack);
            }
            for branch in &mut seen.branches {
                branch.stack = stack(branch.stack);
            }
            self.into.loops.push(seen);
        }
        for flow in &profile.flows {
            let Some(of) = sample(flow.sample) else { continue };
            let mut flow = flow.clone();
            flow.sample = of;
            flow.modules = flow
                .modules
                .iter()
                .filter_map(|(module, more)| Some((at(&moved.modules, module.0)?, *more)))
                .collect();
            self.into.flows.push(flow);
        }
        for execution in &profile.executions {
            let Some(of) = sample(execution.sample) else { continue };
            self.into.executions.push(super::WindowExecution { sample: of, ..execution.clone() });
        }
        for reading in &profile.readings {
            let Some(of) = sample(reading.sample) else { continue };
            self.into.readings.push(super::LoopReading { sample: of, ..*reading });
        }
        let touch = |touch: Touch| Touch {
            time_ns: touch.time_ns + moved.later_ns,
            thread: at(&moved.threads, touch.thread.0).unwrap_or(touch.thread),
            stack: stack(touch.stack),
            ..touch
        };
        for watch in &profile.watches {
            let of = sample(watch.sample);
            moved.watches.push(of.map(|_| WatchId(self.into.watches.len() as u32)));
            let Some(of) = of else { continue };
            let mut watch = Watch { sample: of, ..watch.clone() };
            watch.of_use = watch.of_use.and_then(|of_use| at(&moved.uses, of_use.0).flatten());
            watch.armed_ns += moved.later_ns;
            watch.ended_ns += moved.later_ns;
            watch.use_touch = watch.use_touch.map(touch);
            if let Outcome::Reused { touch: reuse, .. } = &mut watch.outcome {
                *reuse = touch(*reuse);
            }
            self.into.watches.push(watch);
        }
        (moved.stacks, moved.samples) = (stacks, samples);
    }

    fn located(&mut self, profile: &Profile, moved: &Moved) {
        let sample = |id: SampleId| at(&moved.samples, id.0).flatten();
        let of_use = |id: UseId| at(&moved.uses, id.0).flatten();
        let watch = |id: WatchId| at(&moved.watches, id.0).flatten();
        self.into.located.extend(profile.located.iter().filter_map(|located| {
            let of = match located.of {
                Accessed::Sample(id) => Accessed::Sample(sample(id)?),
                Accessed::Before(id) => Accessed::Before(sample(id)?),
                Accessed::Use(id) => Accessed::Use(of_use(id)?),
                Accessed::Seen(id, bytes) => Accessed::Seen(of_use(id)?, bytes),
                Accessed::Load(id) => Accessed::Load(at(&moved.loads, id.0).flatten()?),
                Accessed::WatchUse(id) => Accessed::WatchUse(watch(id)?),
                Accessed::WatchReuse(id) => Accessed::WatchReuse(watch(id)?),
            };
            let object = at(&moved.objects, located.object.0)?;
            let field = located.field.and_then(|field| at(&moved.fields, field.0));
            Some(Located { of, object, field, ..*located })
        }));
    }

    fn heap(&mut self, heap: Option<Heap>, moved: &Moved) {
        let Some(mut heap) = heap else { return };
        for site in &mut heap.sites {
            site.stack = at(&moved.stacks, site.stack.0).unwrap_or(site.stack);
        }
        let Some(into) = &mut self.into.heap else {
            self.into.heap = Some(heap);
            return;
        };
        into.seen += heap.seen;
        into.made += heap.made;
        into.folded += heap.folded;
        for site in heap.sites {
            match into.sites.iter_mut().find(|known| known.stack == site.stack) {
                Some(known) => {
                    known.allocations += site.allocations;
                    known.bytes += site.bytes;
                }
                None => into.sites.push(site),
            }
        }
        into.missed = match (into.missed, heap.missed) {
            (Some(a), Some(b)) => Some(Missed {
                min_bytes: a.min_bytes.max(b.min_bytes),
                min_bytes_at_end: a.min_bytes_at_end.max(b.min_bytes_at_end),
                smaller: a.smaller + b.smaller,
                unwatched: a.unwatched + b.unwatched,
                lost: a.lost + b.lost,
            }),
            (one, other) => one.or(other),
        };
    }

    fn run(&mut self, run: Run) {
        let into = &mut self.into.run;
        if self.parts == 0 {
            *into = run;
            return;
        }
        if (&into.host.cpu, &into.host.caches) != (&run.host.cpu, &run.host.caches) {
            let said = format!(
                "The merged profiles are of several machines; miss ratios at levels are those of the \
                 caches of {}.",
                into.host.cpu
            );
            if !self.into.notices.contains(&said) {
                self.into.notices.push(said);
            }
        }
        for (pattern, n) in run.excluded {
            match into.excluded.iter_mut().find(|(known, _)| *known == pattern) {
                Some((_, sum)) => *sum = sum.saturating_add(n),
                None => into.excluded.push((pattern, n)),
            }
        }
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        for (words, more) in [
            (&mut into.command, run.command),
            (&mut into.ended_by, run.ended_by),
            (&mut into.sources.address, run.sources.address),
            (&mut into.sources.clock, run.sources.clock),
            (&mut into.policy, run.policy),
            (&mut into.tool_version, run.tool_version),
        ] {
            join(words, &more);
        }
        match (&mut into.sources.rate, run.sources.rate) {
            (Some(known), Some(more)) => join(known, &more),
            (known, more) => *known = known.take().or(more),
        }
        into.sources.heap = into.sources.heap.take().or(run.sources.heap);
        let new: Vec<u32> = run.pids.into_iter().filter(|pid| !into.pids.contains(pid)).collect();
        into.pids.extend(new);
        into.started_unix_ns = into.started_unix_ns.min(run.started_unix_ns);
        into.wall_ns += run.wall_ns;
        into.cpu_ns += run.cpu_ns;
        into.ticks = into.ticks.zip(run.ticks).map(|(a, b)| (a.0 + b.0, a.1 + b.1));
        into.page_faults = both(into.page_faults, run.page_faults);
        into.processor = into.processor.or(run.processor);
        into.distance_resolution_ns = into.distance_resolution_ns.max(run.distance_resolution_ns);
        into.distance_scatter_ns = into.distance_scatter_ns.max(run.distance_scatter_ns);
    }
}

/// A part of the samples' share in totals of the run.
fn scale(run: &mut Run, overhead: &mut Overhead, share: f64) {
    let scaled = |n: u64| (n as f64 * share) as u64;
    run.cpu_ns = scaled(run.cpu_ns);
    run.ticks = run.ticks.map(|(all, kernel)| (scaled(all), scaled(kernel)));
    run.page_faults = run.page_faults.map(scaled);
    for time_ns in [&mut overhead.stop_ns, &mut overhead.trap_ns, &mut overhead.bpf_ns] {
        *time_ns = scaled(*time_ns);
    }
}

/// Most characters of joined descriptions.
const WORDS: usize = 200;

/// Adds a new description, while room is left.
fn join(words: &mut String, more: &str) {
    let is_new = !words.split("; ").any(|known| known == more);
    if is_new && !more.is_empty() && words.len() + more.len() < WORDS {
        if !words.is_empty() {
            words.push_str("; ");
        }
        words.push_str(more);
    }
}

fn add_causes(into: &mut Vec<(String, u64)>, more: Vec<(String, u64)>) {
    for (cause, n) in more {
        match into.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, sum)) => *sum = sum.saturating_add(n),
            None => into.push((cause, n)),
        }
    }
}

fn add_ledger(into: &mut Ledger, more: Ledger) {
    for (sum, n) in [
        (&mut into.seen, more.seen),
        (&mut into.filtered, more.filtered),
        (&mut into.submitted, more.submitted),
        (&mut into.received, more.received),
        (&mut into.armed, more.armed),
        (&mut into.trapped, more.trapped),
        (&mut into.censored, more.censored),
        (&mut into.refused, more.refused),
    ] {
        *sum = sum.saturating_add(n);
    }
    add_causes(&mut into.lost, more.lost);
    add_causes(&mut into.filtered_by, more.filtered_by);
    add_causes(&mut into.unreachable, more.unreachable);
    add_causes(&mut into.stops, more.stops);
}

/// `cpu_ns`: of the targets so far, and of the added profile.
fn add_overhead(into: &mut Overhead, more: &Overhead, cpu_ns: (u64, u64)) {
    let weights = [cpu_ns.0 + into.stop_ns, cpu_ns.1 + more.stop_ns].map(|weight| weight as f64);
    let sum = weights[0] + weights[1];
    if sum > 0.0 {
        into.measured_percent =
            (into.measured_percent * weights[0] + more.measured_percent * weights[1]) / sum;
    }
    into.budget_percent = into.budget_percent.max(more.budget_percent);
    for (total, n) in [
        (&mut into.stop_ns, more.stop_ns),
        (&mut into.trap_ns, more.trap_ns),
        (&mut into.bpf_ns, more.bpf_ns),
        (&mut into.controller_ns, more.controller_ns),
        (&mut into.stops, more.stops),
    ] {
        *total = total.saturating_add(n);
    }
    for (total, n) in [(&mut into.heap_ns, more.heap_ns), (&mut into.string_ns, more.string_ns)] {
        *total = match (*total, n) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
    }
    into.longest_stop_ns = into.longest_stop_ns.max(more.longest_stop_ns);
    into.max_stop_ns = into.max_stop_ns.max(more.max_stop_ns);
}

#[cfg(test)]
mod tests;
