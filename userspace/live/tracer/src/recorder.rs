//! Turns events of the capture thread into rows of the model: unwinds, symbolises, gives out ids, writes.
//!
//! Runs in a thread of its own, because reading a program's debug information for the
//! first time may take long. Each address is symbolised once. Not here: stops and watches.

mod ahead;
mod data;
mod flow;
mod kernel;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use locality_model::{
    Access, AccessKind, Accessed, Frame, FrameId, GroupId, Load, LoadId, LoopAccess, Module, ModuleId,
    Outcome, Sample, SampleId, Seen, SeenLoop, Stack, StackId, Thread, ThreadId, Touch, Use, UseId, Watch,
    WatchId, Window,
};
use locality_shadow::End;
use locality_symbols::{
    CodeAddress, Isolation, ModuleInfo, Processes, SourceFrame, StackFrame, Symbolizer, Unknown,
};

use super::{
    call_stacks::{Sites, Walk, frames_at, is_worker, worker},
    groups::Groups,
    loop_tracking::{LoopTracker, TimedLoop, recorded, source_of},
    object_thread::Told,
    parallelism_tracking::ParallelismTracker,
    plan::Recorded,
    profile_sink::Store,
    rate_tracking::{Known, RateTracker},
    sample_weights::Paced,
    sampling_clock::Periods,
    shared_memory::{SharedUses, Sharing},
};
use locality_capture::{
    SharedRegions,
    events::{Distance, EndOutcome, Event, Reuse, SampleEvent, Trap, WatchEnd, WindowTaken},
    window_sampling::{self, GRANULES, Path},
};
use locality_heap::Heap;
use locality_kernel::proc;

use data::{Data, Stop};

/// Facts for the controller from the passed events.
#[derive(Debug, Default, Clone)]
pub struct RecorderStats {
    /// Uses that could not be reached, by reason.
    pub unreachable: HashMap<&'static str, u64>,
    /// Uses that were found in a stop.
    pub uses_held: u64,
    /// Uses that were found from sampled registers, the thread running on.
    pub uses_not_held: u64,
    /// Windows with a known rate, by its source.
    pub rates: HashMap<String, u64>,
    /// Windows by why they ended.
    pub windows: HashMap<End, u64>,
    /// Why threads could not be seized, and how many.
    pub not_held_threads: HashMap<String, u64>,
    /// Watches ended by the trap of a word watched before.
    pub stale_traps: u64,
    /// Watched uses in memory shared with other processes.
    pub shared: SharedUses,
    /// Files with unread debug information, because reading could harm the reader; a part if many.
    pub refused_files: BTreeSet<String>,
}

/// A watch that has not ended.
#[derive(Debug, Clone, Copy)]
struct PendingWatch {
    id: SampleId,
    of_use: Option<UseId>,
    use_touch: Touch,
    use_ip: u64,
    left_alone: UntouchedSpan,
}

/// A used word, and accesses after the use without a touch in its window.
#[derive(Debug, Clone, Copy, Default)]
struct UntouchedSpan {
    word: u64,
    accesses: u64,
}

/// The assembler's state.
pub struct Assembler {
    store: Store,
    sites: Sites,
    symbolizer: Symbolizer,
    processes: Processes,
    origin_ns: u64,
    tally: RecorderStats,
    threads: Vec<Thread>,
    by_tid: HashMap<u32, ThreadId>,
    alive: HashMap<u32, HashSet<u32>>,
    modules: HashMap<ModuleInfo, ModuleId>,
    frames: HashMap<Frame, FrameId>,
    stacks: HashMap<Stack, StackId>,
    resolved: HashMap<(u32, CodeAddress), Vec<FrameId>>,
    /// By process, the state of the mappings from which `resolved` was made.
    generations: HashMap<u32, u64>,
    samples: u32,
    uses: u32,
    loads: u32,
    /// By number of the watch.
    waiting: HashMap<u64, PendingWatch>,
    pace: RateTracker,
    paced: Paced,
    loops: LoopTracker,
    /// `None` with `--no-parallelism`.
    parallelism: Option<ParallelismTracker>,
    /// Call stacks of instructions of loops, by process, state of
    /// the mappings and addresses: most windows show known stacks.
    loop_stacks: HashMap<(u32, u64, Vec<CodeAddress>), StackId>,
    /// Whether values that loops load are recorded.
    with_values: bool,
    data: Data,
    sharing: Sharing,
    groups: Groups,
    /// Watches that ended.
    watches: u32,
    /// Words of the last watches, with their processes.
    watched: VecDeque<(u32, u64)>,
}

/// Call stacks of loops that are remembered.
const LOOP_STACKS: usize = 1 << 14;
/// Files that are named for refused debug information.
const REFUSED_MAX: usize = 8;

/// Watches with stored words, the total and by process: several for each register.
const WATCHED: usize = 64;
const WORDS: usize = 12;

impl std::fmt::Debug for Assembler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembler").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl Assembler {
    /// Writes to `store`. Times count from `origin_ns`. `clock` has the periods. `heap` answers for
    /// blocks where allocations are followed.
    /// `shared`: receives memory shared by traced processes. Must be used in the creating thread.
    pub fn new(
        store: Store,
        origin_ns: u64,
        pace: RateTracker,
        clock: Periods,
        heap: Option<Heap>,
        recorded: Recorded,
        shared: SharedRegions,
    ) -> Self {
        let processes = Processes::isolated(Isolation::default());
        Self {
            store,
            sites: Sites::new(processes.clone()),
            symbolizer: Symbolizer::new(processes.clone()),
            processes,
            origin_ns,
            tally: RecorderStats::default(),
            threads: Vec::new(),
            by_tid: HashMap::new(),
            alive: HashMap::new(),
            modules: HashMap::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
            resolved: HashMap::new(),
            generations: HashMap::new(),
            samples: 0,
            uses: 0,
            loads: 0,
            waiting: HashMap::new(),
            loops: LoopTracker::new(pace.machine()),
            loop_stacks: HashMap::new(),
            pace,
            paced: Paced::new(clock),
            parallelism: recorded.parallelism.then(ParallelismTracker::default),
            with_values: recorded.values,
            data: Data::new(heap),
            sharing: Sharing::new(shared),
            groups: Groups::default(),
            watches: 0,
            watched: VecDeque::new(),
        }
    }

    /// Facts so far.
    pub fn tally(&self) -> &RecorderStats {
        &self.tally
    }

    /// The profile being written.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// The profile, when all is said.
    pub fn into_store(mut self) -> Store {
        self.finish_objects();
        let known = self.pace.finish();
        self.put_known(&known);
        for (id, sample) in self.paced.finish(known.windows.iter().map(|(_, window)| window)) {
            self.store.sample(id, &sample);
        }
        self.store
    }

    /// Tells rates anew, now and then.
    pub fn put_rates(&mut self) {
        if let Some(known) = self.pace.news() {
            self.put_known(&known);
        }
    }

    fn put_known(&mut self, Known { windows, counted }: &Known) {
        for (id, window) in windows {
            self.store.window(*id, window);
        }
        for (watch, accesses) in counted {
            self.store.counted(*watch, *accesses);
        }
    }

    fn since_start(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.origin_ns)
    }

    /// Takes one event.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::ThreadStarted { pid, tid, name, not_held, time_ns } => {
                self.thread_started(pid, tid, &name, not_held, time_ns);
            }
            Event::ThreadReleased { tid, reason } => self.thread_released(tid, &reason),
            Event::ThreadEnded { tid, time_ns } => self.thread_ended(tid, time_ns),
            Event::Exec { pid } => {
                // Without the new mappings the old ones would name wrong functions.
                if self.processes.exec(pid).is_err() {
                    self.sites.forget(pid);
                }
                self.resolved.retain(|(of, _), _| *of != pid);
                self.begin(pid);
                self.tell_locator(Told::Exec(pid));
                if let Ok(status) = proc::status(pid) {
                    self.change_thread(pid, |thread| thread.name = status.name);
                }
            }
            Event::Sample(sample) => self.sample(*sample),
            Event::WatchEnded(end) => self.watch_ended(&end),
            Event::TrapCostMeasured(pid, word) => self.note_word(pid, word),
            Event::Meter(record) => {
                let mut ready = Vec::new();
                self.pace.reading(&record, &mut ready);
                self.put_windows(ready);
            }
            Event::HeapSite(site) => self.heap_site(&site),
            Event::KernelSample(record, stack) => self.kernel_sample(&record, &stack),
            Event::CommandEnded(_)
            | Event::NoTargets
            | Event::Failed(_)
            | Event::Unguarded
            | Event::Second => {}
        }
    }

    fn thread_started(&mut self, pid: u32, tid: u32, name: &str, not_held: Option<String>, time_ns: u64) {
        if !self.alive.contains_key(&pid) {
            if let Err(error) = self.processes.attach(pid) {
                tracing::debug!("mappings of process {pid} not read: {error}");
            }
            self.begin(pid);
        }
        self.alive.entry(pid).or_default().insert(tid);
        if let Some(reason) = &not_held {
            *self.tally.not_held_threads.entry(reason.clone()).or_default() += 1;
        }
        let started_ns = self.since_start(time_ns);
        let thread = Thread { pid, tid, name: name.to_owned(), started_ns, ended_ns: None, not_held };
        self.add_thread(tid, thread);
    }

    fn add_thread(&mut self, tid: u32, thread: Thread) -> ThreadId {
        let id = ThreadId(self.threads.len() as u32);
        self.store.thread(id, &thread);
        self.threads.push(thread);
        self.by_tid.insert(tid, id);
        id
    }

    fn thread_released(&mut self, tid: u32, reason: &str) {
        let mut first = false;
        self.change_thread(tid, |thread| first = thread.not_held.replace(reason.to_owned()).is_none());
        if first {
            *self.tally.not_held_threads.entry(reason.to_owned()).or_default() += 1;
        }
    }

    fn thread_ended(&mut self, tid: u32, time_ns: u64) {
        let ended_ns = self.since_start(time_ns);
        let Some(pid) = self.change_thread(tid, |thread| thread.ended_ns = Some(ended_ns)) else { return };
        let Some(threads) = self.alive.get_mut(&pid) else { return };
        threads.remove(&tid);
        if threads.is_empty() {
            self.alive.remove(&pid);
            self.sites.forget(pid);
            self.sharing.forget(pid);
            self.loops.forget(pid);
            self.forget_parallelism(pid);
            self.groups.forget(pid);
            self.loop_stacks.retain(|(of, ..), _| *of != pid);
            self.resolved.retain(|(of, _), _| *of != pid);
            self.generations.remove(&pid);
            self.tell_locator(Told::Ended(pid));
        }
    }

    fn change_thread(&mut self, tid: u32, change: impl FnOnce(&mut Thread)) -> Option<u32> {
        let id = *self.by_tid.get(&tid)?;
        let thread = self.threads.get_mut(id.0 as usize)?;
        change(thread);
        self.store.thread(id, thread);
        Some(thread.pid)
    }

    fn thread(&mut self, pid: u32, tid: u32) -> ThreadId {
        match self.by_tid.get(&tid) {
            Some(id) => *id,
            None => self.add_thread(tid, Thread { pid, tid, ..Thread::default() }),
        }
    }

    fn sample(&mut self, event: SampleEvent) {
        let SampleEvent { record, stack, held, fs_base, access, watches, window } = event;
        let header = &record.header;
        let thread = self.thread(header.tgid, header.tid);
        let walk = self.sites.walk(header.tgid, &record.regs, &stack);
        self.ask_ahead(header.tgid, &walk, access.as_ref().ok(), window.as_deref());
        let stack = self.stack(header.tgid, &walk);
        let id = SampleId(self.samples);
        self.samples += 1;
        let time_ns = self.since_start(header.time_ns);
        let touch = |stack, kind| Touch { time_ns, thread, stack, kind, kernel: false };
        let at_stop: Arc<[StackFrame]> = walk.frames.as_slice().into();
        let stop = Stop { record: &record, walk: &walk, fs_base, frames: &at_stop };
        let uses = match window {
            Some(taken) => self.window(id, &stop, taken),
            None => Vec::new(),
        };
        if let Ok(access) = &access {
            let frames = frames_at(&walk, &Path::default(), access.ip, access.address);
            self.sharing.met(&self.processes, header.tgid, access.address);
            self.locate(Accessed::Sample(id), &stop, frames.into(), access.ip, access.address);
        }
        match &access {
            Ok(access) => {
                *(if held { &mut self.tally.uses_held } else { &mut self.tally.uses_not_held }) += 1;
                let stack = self.stack_at(header.tgid, &walk, &Path::default(), access.ip);
                for (watch, of_use) in watches {
                    let waiting = match of_use.map(|index| uses.get(index)) {
                        None => {
                            let use_touch = touch(stack, access.kind);
                            let (use_ip, left_alone) = (access.ip, UntouchedSpan::default());
                            PendingWatch { id, of_use: None, use_touch, use_ip, left_alone }
                        }
                        Some(Some((of_use, stack, access, left_alone))) => {
                            let (use_touch, left_alone) = (touch(*stack, access.kind), *left_alone);
                            PendingWatch {
                                id,
                                of_use: Some(*of_use),
                                use_touch,
                                use_ip: access.ip,
                                left_alone,
                            }
                        }
                        // A window lists every use.
                        Some(None) => continue,
                    };
                    self.waiting.insert(watch, waiting);
                }
            }
            Err(reason) => *self.tally.unreachable.entry(reason).or_default() += 1,
        }
        self.asked_until(record.header.time_ns);
        let (period_ns, access) = (self.paced.period(&record), access.map_err(str::to_owned));
        let group = Some(self.group(header.tgid, thread, record.cgroup));
        let sample = Sample { time_ns, thread, stack, period_ns, held, access, group };
        if record.address != 0 {
            self.paced.add(id, &sample);
        }
        self.store.sample(id, &sample);
    }

    /// The group of a sampled thread in this cgroup.
    fn group(&mut self, pid: u32, thread: ThreadId, cgroup: u64) -> GroupId {
        let name = self.threads.get(thread.0 as usize).map_or("", |thread| thread.name.as_str());
        let (id, new) = self.groups.meet(pid, cgroup, name);
        if let Some(group) = new {
            self.store.group(id, &group);
        }
        id
    }

    /// Writes a window's uses; returns ids, stacks and accesses
    /// in order, and for how long the words were left alone.
    fn window(
        &mut self,
        sample: SampleId,
        stop: &Stop<'_>,
        mut taken: Box<WindowTaken>,
    ) -> Vec<(UseId, StackId, Access, UntouchedSpan)> {
        let (record, walk) = (stop.record, stop.walk);
        let (pid, tid) = (record.header.tgid, record.header.tid);
        let found = std::mem::take(&mut taken.found);
        let mut uses = Vec::with_capacity(found.uses.len());
        for chosen in &found.uses {
            let stack = self.stack_at(pid, walk, &chosen.point.path, chosen.point.access.ip);
            let seen = GRANULES.iter().zip(&chosen.seen).map(|(bytes, seen)| {
                let seen = match seen {
                    window_sampling::Seen::Reused(distance, point) => Seen::Reused {
                        distance: *distance,
                        access: point.access,
                        stack: self.stack_at(pid, walk, &point.path, point.access.ip),
                    },
                    window_sampling::Seen::Open(accesses) => Seen::Open { accesses: *accesses },
                };
                (*bytes as u32, seen)
            });
            let (skip, access, address) = (chosen.skip, chosen.point.access, chosen.address);
            let row = Use { sample, skip, access, address, stack, seen: seen.collect() };
            let id = UseId(self.uses);
            self.uses += 1;
            self.store.window_use(id, &row);
            let frames: Arc<[StackFrame]> = frames_at(walk, &chosen.point.path, access.ip, address).into();
            self.locate(Accessed::Use(id), stop, frames, access.ip, address);
            for (granule, seen) in GRANULES.iter().zip(&chosen.seen) {
                // Another word of the line may be another object's.
                if let window_sampling::Seen::Reused(_, point) = seen
                    && point.access.address / 8 != address / 8
                {
                    let Access { ip, address, .. } = point.access;
                    let frames = frames_at(walk, &point.path, ip, address).into();
                    self.locate(Accessed::Seen(id, *granule as u32), stop, frames, ip, address);
                }
            }
            let accesses = match chosen.seen.first() {
                Some(window_sampling::Seen::Open(accesses)) => *accesses,
                _ => 0,
            };
            uses.push((id, stack, access, UntouchedSpan { word: address & !7, accesses }));
        }
        if let Some(point) = &found.completed {
            let Access { ip, address, .. } = point.access;
            let frames = frames_at(walk, &point.path, ip, address).into();
            self.locate(Accessed::Before(sample), stop, frames, ip, address);
        }
        for first in &found.loads {
            let Access { ip, .. } = first.point.access;
            let row = Load {
                sample,
                skip: first.skip,
                gap: first.gap,
                access: first.point.access,
                line: first.line,
                stack: self.stack_at(pid, walk, &first.point.path, ip),
                stands_for: first.stands_for,
                shown: first.shown,
                bursts: first.bursts.clone(),
            };
            let id = LoadId(self.loads);
            self.loads += 1;
            self.store.load(id, &row);
            let address = row.access.address.max(row.line);
            let frames = frames_at(walk, &first.point.path, ip, address).into();
            self.locate(Accessed::Load(id), stop, frames, ip, address);
        }
        *self.tally.windows.entry(taken.end).or_default() += 1;
        let row = Window {
            sample,
            instructions: taken.counts.instructions,
            accesses: taken.counts.accesses,
            end: taken.end.name().to_owned(),
            touches: GRANULES.iter().zip(found.touches).map(|(bytes, n)| (*bytes as u32, n)).collect(),
            rate: None,
        };
        self.loops(sample, pid, walk, &taken);
        self.parallelism(sample, pid, &taken);
        let mut ready = Vec::new();
        self.pace.window((pid, tid), record.sequence, record.header.time_ns, row, taken, &mut ready);
        self.put_windows(ready);
        uses
    }

    /// The call stack of an instruction of a loop, as [`Self::stack_at`] has it.
    fn loop_stack(&mut self, (pid, generation): (u32, u64), walk: &Walk, path: &Path, ip: u64) -> StackId {
        let called = path.called.iter().rev().map(|address| CodeAddress::Return(*address));
        let callers = walk.addresses.iter().skip(1 + path.returned).copied();
        let addresses = std::iter::once(CodeAddress::Exact(ip)).chain(called).chain(callers).collect();
        let key = (pid, generation, addresses);
        if let Some(known) = self.loop_stacks.get(&key) {
            return *known;
        }
        if self.loop_stacks.len() >= LOOP_STACKS {
            self.loop_stacks.clear();
        }
        let found = self.stack_at(pid, walk, path, ip);
        self.loop_stacks.insert(key, found);
        found
    }

    /// Writes the loops that a window shows.
    fn loops(&mut self, sample: SampleId, pid: u32, walk: &Walk, taken: &WindowTaken) {
        let found = self.pace.view(taken).and_then(|view| self.loops.observe(pid, &view));
        let Some((found, flow)) = found else { return };
        self.flow(sample, pid, &flow);
        let of = (pid, self.processes.generation(pid));
        for TimedLoop { found, core_cycles, bound, needs, chain, mut branches } in found {
            let path = Path { called: found.called, returned: found.returned, ..Path::default() };
            let mut trips = found.trips;
            trips.sort_unstable();
            let by_access = found.by_access.into_iter().map(|access| {
                let mut path = path.clone();
                path.called.extend(access.called);
                LoopAccess {
                    ip: access.ip,
                    stack: self.loop_stack(of, walk, &path, access.ip),
                    kind: if access.is_store { AccessKind::Store } else { AccessKind::Load },
                    bytes: access.bytes,
                    executions: access.executions,
                    lines: access.lines,
                    pages: access.pages,
                    sets: access.sets,
                    stride: access.stride,
                    stride_count: access.stride_count,
                    steps: access.steps,
                    outer_stride: access.outer_stride,
                    dependence: source_of(access.dependence),
                    address: access.address,
                    values: access.values.filter(|_| self.with_values),
                }
            });
            let by_access = by_access.collect();
            let step = |(ip, step)| recorded(ip, self.loop_stack(of, walk, &path, ip), &step);
            let chain = chain.into_iter().map(step).collect();
            branches.iter_mut().for_each(|of_ip| of_ip.stack = self.loop_stack(of, walk, &path, of_ip.ip));
            let stack = self.loop_stack(of, walk, &path, found.header);
            let latch = self.loop_stack(of, walk, &path, found.latch);
            self.store.seen_loop(SeenLoop {
                sample,
                header: found.header,
                span: found.span,
                around: found.around,
                stack,
                latch,
                instructions: found.instructions,
                accesses: found.accesses,
                iterations: found.iterations,
                runs: trips.len() as u64,
                trips: trips.get(trips.len() / 2).copied().unwrap_or(0),
                core_cycles,
                bound_by: bound.map(|(bound, _)| bound.name().to_owned()),
                unbound_cycles: bound.map_or(0.0, |(_, without)| without),
                is_first: found.is_first,
                needs,
                chain,
                branches,
                by_access,
            });
        }
    }

    /// Another program in a process, or a new process.
    fn begin(&mut self, pid: u32) {
        let mut ready = Vec::new();
        self.pace.begin(pid, &mut ready);
        self.put_windows(ready);
        self.loops.forget(pid);
        self.forget_parallelism(pid);
        self.sharing.begin(pid);
        self.groups.forget(pid);
        self.loop_stacks.retain(|(of, ..), _| *of != pid);
        self.watched.retain(|(of, _)| *of != pid);
    }

    fn put_windows(&mut self, ready: Vec<(u32, Window)>) {
        for (id, window) in ready {
            if let Some(rate) = &window.rate {
                *self.tally.rates.entry(rate.source.clone()).or_default() += 1;
            }
            self.store.window(id, &window);
        }
    }

    /// The call stack of an instruction that the window reached by `path` from the stop.
    fn stack_at(&mut self, pid: u32, walk: &Walk, path: &Path, ip: u64) -> StackId {
        let called = path.called.iter().rev().map(|address| CodeAddress::Return(*address));
        let callers = walk.addresses.iter().skip(1 + path.returned).copied();
        let addresses = std::iter::once(CodeAddress::Exact(ip)).chain(called).chain(callers).collect();
        self.stack(pid, &Walk { addresses, frames: Vec::new(), cut: walk.cut, kind: walk.kind })
    }

    fn watch_ended(&mut self, end: &WatchEnd) {
        let Some(waiting) = self.waiting.remove(&end.watch) else {
            tracing::debug!("watch {} ended, but its sample is not known", end.watch);
            self.note_word(end.tgid, end.address);
            return;
        };
        if !matches!(end.outcome, EndOutcome::Refused) {
            self.sharing.watched(&self.processes, end.tgid, end.address, &end.also_in);
            self.tally.shared = self.sharing.sums();
        }
        let is_stale = self.note_watched(end);
        let outcome = match &end.outcome {
            _ if is_stale => Outcome::Replaced,
            EndOutcome::Reused(Reuse { trap, distance: Distance { ns, accesses, .. } }) => {
                Outcome::Reused { touch: self.touch(trap), distance_ns: *ns, accesses: *accesses }
            }
            EndOutcome::Replaced => Outcome::Replaced,
            EndOutcome::StillArmed => Outcome::StillArmed,
            EndOutcome::Gone => Outcome::Gone,
            EndOutcome::Refused => Outcome::Refused,
        };
        // Where the thread was not seized, the use is whatever trapped first.
        let use_touch = match (&end.used, end.held) {
            (_, true) => Some(waiting.use_touch),
            (Some(trap), false) => Some(self.touch(trap)),
            (None, false) => None,
        };
        let use_confirmed =
            end.held && end.used.as_ref().is_some_and(|trap| self.sites.agrees(trap, waiting.use_ip));
        if let (true, false, Some(trap)) = (end.held, use_confirmed, &end.used) {
            let (trap_ip, kernel) = (trap.record.trap_ip, trap.record.kernel);
            tracing::debug!("use at {:#x} trapped at {trap_ip:#x} (kernel {kernel})", waiting.use_ip);
        }
        let watch = Watch {
            sample: waiting.id,
            of_use: waiting.of_use,
            address: end.address,
            bytes: 8,
            armed_ns: self.since_start(end.armed_ns),
            ended_ns: self.since_start(end.ended_ns),
            use_touch,
            use_confirmed,
            outcome,
            p_arm: end.p_arm,
            p_survive: end.p_survive,
            threads_armed: end.threads_armed,
            threads_alive: end.threads_alive,
        };
        self.store.watch(&watch);
        let id = WatchId(self.watches);
        self.watches += 1;
        if !is_stale {
            self.count(id, &waiting, end);
        }
        self.locate_reuse(id, end, &watch);
    }

    /// Remembers the word of a watch; whether the watch ended by a trap of a word watched before.
    fn note_watched(&mut self, end: &WatchEnd) -> bool {
        let is_stale = match &end.outcome {
            EndOutcome::Reused(reuse) => {
                let words = |tgid: u32| -> HashSet<u64> {
                    let of_process = self.watched.iter().rev().filter(|(of, _)| *of == tgid);
                    of_process.map(|(_, word)| *word).take(WORDS).collect()
                };
                let mut traps = std::iter::once(&reuse.trap).chain(&end.used);
                traps.any(|trap| self.sites.is_stale(trap, &words(trap.record.header.tgid)))
            }
            EndOutcome::Refused => return false,
            _ => false,
        };
        self.note_word(end.tgid, end.address);
        for (tgid, word) in &end.also_in {
            self.note_word(*tgid, *word);
        }
        self.tally.stale_traps += u64::from(is_stale);
        is_stale
    }

    fn note_word(&mut self, pid: u32, word: u64) {
        if self.watched.len() == WATCHED {
            self.watched.pop_front();
        }
        self.watched.push_back((pid, word));
    }

    /// Where hardware counts no accesses, registers may.
    fn count(&mut self, id: WatchId, waiting: &PendingWatch, end: &WatchEnd) {
        if let EndOutcome::Reused(Reuse { trap, distance }) = &end.outcome
            && let Distance { ns, until_ns, accesses: None, between: Some(between) } = distance
            && end.held
        {
            // Neither of the line's further words nor of accesses after the reuse.
            let UntouchedSpan { word, accesses } = waiting.left_alone;
            let is_direct = end.ended_ns == trap.record.header.time_ns;
            let without = if is_direct && word == end.address { accesses } else { 0 };
            self.pace.touched(end.tgid, (id, waiting.id), between.clone(), (*ns, *until_ns, without));
        }
    }

    fn touch(&mut self, trap: &Trap) -> Touch {
        let header = &trap.record.header;
        let walk = self.sites.of_touch(trap);
        let stack = match is_worker(&trap.record) {
            true => self.worker_stack(header.tid),
            false => self.stack(header.tgid, &walk),
        };
        Touch {
            time_ns: self.since_start(header.time_ns),
            thread: self.thread(header.tgid, header.tid),
            stack,
            kind: if trap.record.kernel != 0 { AccessKind::Unknown } else { walk.kind },
            kernel: trap.record.kernel != 0,
        }
    }

    /// The place of a kernel thread that works for a process, without a call path in the program.
    fn worker_stack(&mut self, tid: u32) -> StackId {
        let name = proc::status(tid).map(|status| status.name).unwrap_or_default();
        let function = Some(worker(&name).to_owned());
        let frame = self.frame(SourceFrame { function, ..SourceFrame::default() });
        self.stack_of(Stack { frames: vec![frame], cut: None })
    }

    fn stack(&mut self, pid: u32, walk: &Walk) -> StackId {
        let mut frames = Vec::with_capacity(walk.addresses.len());
        let generation = self.processes.generation(pid);
        if self.generations.insert(pid, generation).is_some_and(|before| before != generation) {
            self.resolved.retain(|(of, _), _| *of != pid);
        }
        self.prepare(pid, walk.addresses.iter().copied());
        for address in &walk.addresses {
            if let Some(known) = self.resolved.get(&(pid, *address)) {
                frames.extend(known);
                continue;
            }
            let found = self.symbolizer.symbolize(pid, *address);
            let is_lasting = found.iter().all(SourceFrame::is_lasting);
            let ids: Vec<FrameId> = found.into_iter().map(|frame| self.frame(frame)).collect();
            frames.extend(&ids);
            if is_lasting {
                self.resolved.insert((pid, *address), ids);
            }
        }
        self.stack_of(Stack { frames, cut: walk.cut.map(str::to_owned) })
    }

    fn stack_of(&mut self, stack: Stack) -> StackId {
        let next = StackId(self.stacks.len() as u32);
        if let Some(id) = self.stacks.get(&stack) {
            return *id;
        }
        self.store.stack(next, &stack);
        self.stacks.insert(stack, next);
        next
    }

    fn frame(&mut self, source: SourceFrame) -> FrameId {
        if source.unknown == Some(Unknown::DebugInfoRefused)
            && self.tally.refused_files.len() < REFUSED_MAX
            && let Some(module) = &source.module
        {
            self.tally.refused_files.insert(module.path.clone());
        }
        let module = source.module.as_deref().map(|module| self.module(module));
        let frame = Frame {
            address: source.address,
            module,
            module_address: source.module_address,
            function: source.function,
            file: source.file,
            line: source.line,
            inlined: source.inlined,
            unknown: source.unknown.map(|reason| reason.as_str().to_owned()),
        };
        let next = FrameId(self.frames.len() as u32);
        if let Some(id) = self.frames.get(&frame) {
            return *id;
        }
        self.store.frame(next, &frame);
        self.frames.insert(frame, next);
        next
    }

    fn module(&mut self, info: &ModuleInfo) -> ModuleId {
        let next = ModuleId(self.modules.len() as u32);
        if let Some(id) = self.modules.get(info) {
            return *id;
        }
        self.store.module(next, &Module { path: info.path.clone(), build_id: info.build_id.clone() });
        self.modules.insert(info.clone(), next);
        next
    }
}
