//! What the ring reports: samples, touches of watched words, births and deaths.

use locality_arbiter::WatchKey as ArbiterKey;
use locality_common::{
    record::{
        KernelRecord, LifecycleRecord, NOT_COUNTED, SampleRecord, TouchRecord, lifecycle, no_stop, touch,
    },
    rules::{is_alike, stands_for},
};
use locality_isa::{Code, first_access};
use locality_rate::Moment;

use super::{
    access::registers,
    counters::add,
    event_loop::{Capture, Settings},
    events::{Distance, EndOutcome, Event, Reuse, SampleEvent, Trap},
    ptrace_stops::{ArmOutcome, ArmRequest, find_use, model_access, sampled_access},
    watchpoints::Watch,
    window_sampling::WORD,
};
use locality_kernel::{records::Record, sys};

/// Samples in a row without a free signal, after which none is expected.
const UNSTOPPABLE_AFTER: u32 = 5;

impl Capture {
    pub(super) fn on_record(&mut self, record: Record) {
        match record {
            Record::Sample(sample, stack) => self.on_sample(*sample, stack),
            Record::Touch(record, stack) => self.on_touch(Box::new(Trap { record: *record, stack })),
            Record::Lifecycle(record) => self.on_lifecycle(&record),
            Record::Meter(record) => self.on_meter(record),
            Record::Kernel(record, stack) => self.on_kernel_sample(record, stack),
            Record::Heap(_) | Record::HeapSite(..) => {
                tracing::debug!("a record of the heap in the wrong ring");
                add(&self.costs.loss.unknown_records, 1);
            }
            Record::Unknown(kind) => {
                tracing::debug!("record of unknown kind {kind}");
                add(&self.costs.loss.unknown_records, 1);
            }
        }
    }

    fn on_sample(&mut self, record: SampleRecord, stack: Vec<u8>) {
        let (tgid, tid) = (record.header.tgid, record.header.tid);
        add(&self.costs.sampling.samples, 1);
        if record.address != 0 {
            add(&self.costs.sampling.sampled_accesses, record.period);
        }
        // Not announced by ptrace: a thread of an unseized process, or a thread in a traced cgroup.
        self.meet(tgid, tid);
        let Settings { tick_cost_ns, trap_cost_ns, .. } = self.settings;
        let Some(thread) = self.tracees.threads.get_mut(&tid) else { return };
        thread.last_seen_ns = record.header.time_ns;
        let nested_traps = u64::from(record.header.nested_traps);
        thread.disturbance_ns += tick_cost_ns + nested_traps * trap_cost_ns;
        add(&self.costs.trap.traps, nested_traps);
        if let Some(unserved) = thread.awaited.take() {
            add(&self.costs.stop.missed_stops, 1);
            self.send_unseized_sample(*unserved, "stop did not come");
        }
        if !self.end_again(&record) {
            return;
        }
        if record.signal != 0 {
            if let Some(thread) = self.tracees.threads.get_mut(&tid) {
                thread.awaited = Some(Box::new((record, stack)));
            }
            return;
        }
        let is_seized = self.seize_if_settled(&record);
        if is_seized && record.address == 0 {
            self.sample_again(tid, Box::new((record, stack)));
            return;
        }
        // Segment bases are not recorded: an access through one counts as outside the program.
        // Not stopped: arm from the sampled registers, late; the first trap will be taken as the use.
        let access = match (record.address, registers(&record.regs)) {
            (0, interrupted) => find_use(&record, &interrupted),
            (_, interrupted) => sampled_access(&record, interrupted),
        };
        let armed = match access.ok().and_then(|access| ArmRequest::of(&record, &access)) {
            Some(wish) => self.arm(&record, tid, wish, None),
            None => ArmOutcome::None,
        };
        let access = access.map(|access| model_access(&access));
        let no_stop = record.no_stop;
        let sample = SampleEvent {
            record,
            stack,
            held: false,
            fs_base: None,
            access,
            watches: Vec::new(),
            window: None,
        };
        self.send_sample(sample, armed);
        self.note_unstoppable(tid, no_stop);
    }

    fn on_kernel_sample(&mut self, record: Box<KernelRecord>, stack: Vec<u8>) {
        let (tgid, tid) = (record.header.tgid, record.header.tid);
        let nested_traps = u64::from(record.header.nested_traps);
        add(&self.costs.trap.traps, nested_traps);
        // Meets the thread as a sample in user mode does. An ended newborn counts as met: its end
        // comes later in the ring, and would count as not followed.
        match self.pending.get(tid) {
            Some(_) => self.meet_newborn(tgid, tid),
            None => self.meet(tgid, tid),
        }
        let Some(thread) = self.tracees.threads.get_mut(&tid) else { return };
        thread.last_seen_ns = record.header.time_ns;
        thread.disturbance_ns += nested_traps * self.settings.trap_cost_ns;
        self.send(Event::KernelSample(record, stack));
    }

    /// A seized thread that leaves us no signal is
    /// measured without stops, and the report says this.
    fn note_unstoppable(&mut self, tid: u32, why_no_stop: u32) {
        let Some(thread) = self.tracees.threads.get_mut(&tid) else { return };
        thread.unstoppable = if why_no_stop == no_stop::NO_FREE_SIGNAL { thread.unstoppable + 1 } else { 0 };
        if thread.unstoppable == UNSTOPPABLE_AFTER {
            let reason = "it blocks or handles SIGURG, SIGWINCH and SIGCHLD".to_owned();
            self.send(Event::ThreadReleased { tid, reason });
        }
    }

    fn on_touch(&mut self, trap: Box<Trap>) {
        let TouchRecord { header, watch: id, role, .. } = trap.record;
        let nested_traps = u64::from(header.nested_traps);
        let is_passed = role == touch::PASSED;
        add(if is_passed { &self.costs.trap.passed } else { &self.costs.trap.traps }, 1);
        add(&self.costs.trap.traps, nested_traps);
        let (trap_cost_ns, gap_cost_ns) = self.trap_prices(header.time_ns);
        let disarm_cost_ns = self.settings.disarm_cost_ns;
        let stays_armed = is_passed || matches!(role, touch::USE | touch::NEAR_REUSE | touch::USE_AGAIN);
        let mut ours = TracerTime::default();
        if let Some(thread) = self.tracees.threads.get_mut(&header.tid) {
            ours.begun_ns = thread.disturbance_ns;
            ours.outside_ns = thread.disturbance_ns + gap_cost_ns;
            // A passed touch neither copies nor disarms.
            thread.disturbance_ns += if is_passed { gap_cost_ns } else { trap_cost_ns };
            ours.until_ns = thread.disturbance_ns;
            // The stack is copied and the event disarmed after the thread's clock was read.
            thread.disturbance_ns += nested_traps * trap_cost_ns;
            ours.behind_ns = thread.disturbance_ns;
            thread.disturbance_ns += if stays_armed { 0 } else { disarm_cost_ns };
        }
        if is_passed {
            if let Some(watch) = self.watches.get_mut(id) {
                watch.passed_ns += gap_cost_ns;
            }
            return;
        }
        let is_end = matches!(role, touch::USE | touch::REUSE | touch::NEAR_REUSE);
        if is_end && trap.record.kernel != 0 && self.watches.get_mut(id).is_some_and(|watch| watch.user_only)
        {
            self.end_unseen(id, header.time_ns);
            return;
        }
        if self.watches.get_mut(id).is_some_and(|watch| watch.measures_trap) {
            self.on_trap_measurement(trap, ours);
            return;
        }
        if role == touch::USE {
            for companion in self.watches.iter_mut().filter(|watch| watch.is_behind(id)) {
                companion.used = Some((trap.clone(), ours));
            }
            match self.watches.get_mut(id) {
                Some(watch) => watch.used = Some((trap, ours)),
                None => add(&self.costs.loss.orphan_touches, 1),
            }
            return;
        }
        if role == touch::NEAR_REUSE {
            match self.watches.get_mut(id) {
                Some(watch) => watch.reused = Some((reuse(watch, trap, ours), ours)),
                None => add(&self.costs.loss.orphan_touches, 1),
            }
            return;
        }
        if role == touch::USE_AGAIN {
            if let Some((reuse, before)) = self.watches.get_mut(id).and_then(|watch| watch.reused.as_ref())
                && follows_at_once(&reuse.trap, &trap)
            {
                let gap_ns = ours.gap_since(&trap, *before);
                self.note_gap(&trap, gap_ns);
            }
            match self.watches.get_mut(id) {
                Some(watch) => watch.used_again = Some((trap, ours)),
                None => add(&self.costs.loss.orphan_touches, 1),
            }
            return;
        }
        let Some(mut watch) = self.watches.remove(id) else {
            add(&self.costs.loss.orphan_touches, 1);
            return;
        };
        if watch.follows.is_some() && watch.used.is_none() {
            // Before the use: not what the window foretold.
            let ended_ns = watch.armed_ns;
            self.end_watch(watch, 1.0, ended_ns, EndOutcome::Replaced);
            return;
        }
        let p_survive = self.survival(&watch);
        let mut ended_ns = header.time_ns;
        let outcome = match (role, watch.reused.take()) {
            (touch::AGAIN, Some((mut reuse, before))) => {
                match measured_again(&watch, &reuse, &trap, (before, ours, gap_cost_ns)) {
                    Some(distance) => reuse.distance = distance,
                    // A later end tells readers that the distance is a later interval's.
                    None => ended_ns = reuse.trap.record.header.time_ns,
                }
                EndOutcome::Reused(reuse)
            }
            // The record of the reuse was lost.
            (touch::AGAIN, None) => EndOutcome::Replaced,
            _ => EndOutcome::Reused(reuse(&watch, trap, ours)),
        };
        self.end_watch(watch, p_survive, ended_ns, outcome);
    }

    /// Ends a watch before the next touch: none came soon after a near
    /// reuse, which stands then, the kernel touched more often than is
    /// passed over, or string instructions cost too much meanwhile.
    pub(super) fn end_unseen(&mut self, id: u64, ended_ns: u64) {
        let Some(watch) = self.watches.remove(id) else { return };
        let p_survive = self.survival(&watch);
        self.end_watch(watch, p_survive, ended_ns, EndOutcome::Replaced);
    }

    /// Probability of the ending watch to live until now, by the arbiters that still know the
    /// watch.
    pub(super) fn survival(&mut self, watch: &Watch) -> f64 {
        let tgids = std::iter::once(watch.tgid).chain(watch.guests.iter().map(|guest| guest.tgid));
        let one = |tgid| self.tracees.processes.get_mut(&tgid)?.arbiter.ended(ArbiterKey(watch.id));
        tgids.filter_map(one).product()
    }

    fn on_lifecycle(&mut self, record: &LifecycleRecord) {
        let tid = record.header.tid;
        if record.event == lifecycle::DEBUGGER {
            // Nobody listens at the end.
            let _ = self.settings.debuggers.send(record.header.tgid);
            return;
        }
        if let Some(process) = self.tracees.processes.get_mut(&record.header.tgid) {
            process.cpu_ns = process.cpu_ns.max(record.cpu_ns);
        }
        let thread = self.tracees.threads.get(&tid);
        let (held, announces_clones) =
            thread.map_or((false, false), |thread| (thread.held, thread.announces_clones));
        match record.event {
            // What ptrace does not announce.
            lifecycle::FORK if !announces_clones || record.other_tgid != record.header.tgid => {
                self.take_newborn(record);
            }
            // ptrace reports the ends and the new programs of seized threads.
            lifecycle::EXIT if !held => {
                if !self.end_newborn(tid, record.cpu_ns) {
                    self.forget_thread(tid);
                }
                self.send_if_alone();
            }
            lifecycle::EXEC if !held => {
                let tgid = record.header.tgid;
                let is_pending = !self.tracees.processes.contains_key(&tgid);
                if !(is_pending && self.pending.renew(tgid, record.header.time_ns)) {
                    self.become_another_program(tgid);
                }
            }
            _ => {}
        }
    }
}

/// CPU time that we have taken of a thread by a trap.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TracerTime {
    /// Without this trap.
    begun_ns: u64,
    /// Includes the time of this trap outside of the recording program.
    outside_ns: u64,
    /// The trap as a whole included.
    until_ns: u64,
    /// What is done after the thread's clock was read included, but for disarming.
    behind_ns: u64,
}

impl TracerTime {
    /// CPU time of the thread since the end of the kernel side's work on the touch before, if the
    /// tool took none of it except for the traps.
    pub(super) fn gap_since(self, trap: &Trap, before: Self) -> Option<u64> {
        since_ns(trap).filter(|_| self.begun_ns == before.behind_ns)
    }
}

/// The reuse of a watched word.
fn reuse(watch: &Watch, trap: Box<Trap>, ours: TracerTime) -> Reuse {
    let used = watch.used.as_ref().map(|(used, _)| used);
    let ns = distance_ns(watch, &trap, ours);
    let distance = Distance {
        ns,
        until_ns: ns,
        accesses: used.and_then(|used| counted(&used.record, &trap.record)),
        between: used.and_then(|used| moments(used, &trap)),
    };
    Reuse { trap, distance }
}

/// The replacement of a near reuse's own distance, if the interval that ends with
/// `again` is near too and between the same instructions. For two instructions,
/// or for one with elements smaller than a word, the interval must be no shorter
/// than cold caches explain (`rules::stands_for`, `rules::is_alike`).
fn measured_again(
    watch: &Watch,
    reuse: &Reuse,
    again: &Trap,
    (before, ours, trap_ns): (TracerTime, TracerTime, u64),
) -> Option<Distance> {
    let at = |trap: &Trap| (trap.record.trap_ip, trap.record.enabled_ns);
    let (used, _) = watch.used.as_ref()?;
    let (from, before) = match &watch.used_again {
        Some((from, before)) => (from, *before),
        None => (&reuse.trap, before),
    };
    let pair = (used.record.trap_ip, reuse.trap.record.trap_ip);
    let ns = since_touch_ns(again, before, ours)?;
    // For one instruction too, if the window shows the instruction at the word before.
    let may_differ = pair.0 != pair.1 || watch.no_turns;
    let stands =
        stands_for(pair, [at(from), at(again)]) && (!may_differ || is_alike(reuse.distance.ns, ns, trap_ns));
    stands.then(|| Distance {
        ns,
        until_ns: again.record.enabled_ns.saturating_sub(used.record.enabled_ns),
        accesses: counted(&from.record, &again.record),
        between: moments(from, again),
    })
}

/// Whether both traps have the same access: hardly an instruction is executed in between.
fn follows_at_once(first: &Trap, second: &Trap) -> bool {
    const LONGEST_INSTRUCTION: u64 = 15;
    let TouchRecord { code, regs, address, .. } = &first.record;
    let bytes = code.bytes.get(..code.len as usize).unwrap_or_default();
    let is_own = first.record.kernel == 0 && second.record.kernel == 0;
    let next = first_access(&Code { address: code.start, bytes }, &registers(regs));
    is_own
        && next.is_ok_and(|next| {
            (1..=LONGEST_INSTRUCTION).contains(&second.record.trap_ip.wrapping_sub(next.ip))
                && next.address / WORD == address / WORD
        })
}

/// Positions of a thread at two touches, if one thread made both.
fn moments(from: &Trap, to: &Trap) -> Option<Box<[Moment; 2]>> {
    let is_own = |trap: &Trap| trap.record.kernel == 0 && trap.record.trap_ip != 0;
    let same = from.record.header.tid == to.record.header.tid;
    let moment = |trap: &Trap| {
        let TouchRecord { trap_ip: ip, regs, .. } = &trap.record;
        let low = [regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi];
        let high = [regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15];
        let mut registers = [0; 16];
        registers.iter_mut().zip(low.into_iter().chain(high)).for_each(|(to, from)| *to = from);
        Moment { ip: *ip, registers }
    };
    (same && is_own(from) && is_own(to)).then(|| Box::new([moment(from), moment(to)]))
}

/// CPU time of the thread since the watch's last touch, if the kernel side recorded the end of its
/// work.
fn since_touch_ns(trap: &Trap, before: TracerTime, ours: TracerTime) -> Option<u64> {
    let ours_ns = ours.outside_ns.saturating_sub(before.behind_ns);
    since_ns(trap).map(|since_ns| since_ns.saturating_sub(ours_ns))
}

/// The same including the tool's own time.
fn since_ns(trap: &Trap) -> Option<u64> {
    let TouchRecord { enabled_ns, since_ns, .. } = trap.record;
    let known = enabled_ns != u64::MAX && !matches!(since_ns, 0 | u64::MAX);
    known.then(|| enabled_ns.saturating_sub(since_ns))
}

/// Accesses between two touches of one thread, if the counters were
/// read at both. Traps run in the kernel, which is not counted.
fn counted(from: &TouchRecord, to: &TouchRecord) -> Option<u64> {
    let same = from.header.tid == to.header.tid;
    let read = from.accesses != NOT_COUNTED && to.accesses != NOT_COUNTED;
    (same && read).then(|| to.accesses.checked_sub(from.accesses)).flatten()
}

/// CPU time of the process between use and reuse.
///
/// In one thread: by the thread's own clock, read after the use and at the reuse,
/// less the time of our ticks and traps meanwhile. Between threads: by the
/// process's clock, read when the watch was armed and now, less the time since
/// the trap; exact to the delay of the ring, about 50 µs for each running thread.
fn distance_ns(watch: &Watch, reuse: &Trap, ours: TracerTime) -> u64 {
    if let Some((used, before)) = &watch.used
        && used.record.header.tid == reuse.record.header.tid
        && used.record.enabled_ns != u64::MAX
        && reuse.record.enabled_ns != u64::MAX
    {
        let ours_ns = ours.until_ns.saturating_sub(before.until_ns);
        let whole_ns = reuse.record.enabled_ns.saturating_sub(used.record.enabled_ns);
        return since_touch_ns(reuse, *before, ours).unwrap_or_else(|| whole_ns.saturating_sub(ours_ns));
    }
    let late_ns = sys::monotonic_ns().saturating_sub(reuse.record.header.time_ns);
    let spent_ns = sys::process_cpu_ns(watch.tgid).unwrap_or(0).saturating_sub(watch.process_cpu_ns);
    // Between processes, the CPU time of both.
    let guest = watch.guests.iter().find(|guest| guest.tgid == reuse.record.header.tgid);
    let spent_there_ns =
        guest.map_or(0, |guest| sys::process_cpu_ns(guest.tgid).unwrap_or(0).saturating_sub(guest.cpu_ns));
    let spent_ns = spent_ns + spent_there_ns;
    spent_ns.saturating_sub(late_ns + watch.passed_ns)
}
