//! What ptrace reports: our own stops at samples, signals of the program, births, program changes, ends.
//!
//! The law here is to do no harm: each report is answered with a resume, and only a
//! signal that we sent ourselves is swallowed.

use locality_arbiter::WatchKey as ArbiterKey;
use locality_common::{record::SampleRecord, rules};
use locality_isa::{Code, KnownAccess, Registers, first_access, registers_of};
use locality_model::Access;

use super::{
    access::kind,
    attach::Holding,
    counters::{add, get},
    event_loop::Capture,
    events::{EndOutcome, Ended, Event, SampleEvent},
    watchpoints::{Followed, Watch},
    window_sampling::{COMPANIONS, Candidate},
};
use locality_kernel::{perf::Event as PerfEvent, proc, ptrace, ptrace::Status, sys};

/// `si_code` of a signal that the kernel sent, as `bpf_send_signal_thread` does.
const SI_KERNEL: i32 = 0x80;

/// `si_code` of a debug exception whose status register says nothing (`TRAP_BRKPT` in the kernel's
/// siginfo.h).
const TRAP_WITHOUT_STATUS: i32 = 1;

/// The one-byte instruction that raises this exception (`INT1`).
const INT1: u8 = 0xf1;

/// Least cost that is charged for a stop whose start is not known.
const IMPOSED_STOP_MIN_NS: u64 = 40_000;

/// Rest of a thread with expensive signals, which may come in bursts.
const REST_NS: u64 = 10_000_000_000;

/// Addresses below this are unmapped (`vm.mmap_min_addr`); computed ones come from an unknown
/// segment base.
const LOWEST_ADDRESS: u64 = 4096;

/// Highest user address with four-level paging, and with five-level paging unless a program asks for more.
const HIGHEST_ADDRESS: u64 = 1 << 47;

/// Left of a stop, as long as it takes to arm a watch in another process.
const ELSEWHERE_NS: u64 = 150_000;

/// Code segment of 64-bit user code (`__USER_CS` in the kernel's arch/x86/include/asm/segment.h).
pub(super) const USER_CODE_64: u64 = 0x33;

/// What came of a sample's wish for a watch.
pub(super) enum ArmOutcome {
    /// The arbiter granted none, or the use is not known.
    None,
    /// A watch was armed: its id, the use of the window (`None`: the sample's own access), its
    /// companions.
    Armed(u64, Option<usize>, Vec<u64>),
    /// The kernel refused the debug register.
    Refused(Box<Watch>, Option<usize>),
}

/// A use that shall be watched.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArmRequest {
    /// The word.
    word: u64,
    /// Executed instructions that touch the word before the use.
    earlier: u32,
    /// The use's own instruction is among these: its intervals differ (`rules::behind_reuse`).
    repeats: bool,
    /// Which use of the window it is; `None`: the sample's own access.
    of_use: Option<usize>,
    /// Other words of the line.
    companions: [Option<u64>; COMPANIONS],
    /// That the stop was left for it, and not used to measure the cost of a trap.
    chance: f64,
}

impl ArmRequest {
    /// One of the words of a sample's own access, each with the same chance, by the sample's own
    /// entropy: the clock is nanosecond-grained.
    pub(super) fn of(record: &SampleRecord, access: &KnownAccess) -> Option<Self> {
        let words = access.words().count() as u64;
        let word = access.words().nth((record.sequence >> 14).checked_rem(words)? as usize)?;
        let companions = [None; COMPANIONS];
        Some(Self { word, earlier: 0, repeats: false, of_use: None, companions, chance: 1.0 })
    }
}

impl From<Candidate> for ArmRequest {
    fn from(candidate: Candidate) -> Self {
        let Candidate { index, word, earlier, repeats, companions } = candidate;
        Self { word, earlier, repeats, of_use: Some(index), companions, chance: 1.0 }
    }
}

/// Longest time from a stop to the moment at which the waiting capture thread runs, unless a host
/// takes the processors away.
const WAKING_NS: u64 = 150_000;

impl Capture {
    /// Answers one report of `waitpid`.
    pub(super) fn on_status(&mut self, tid: u32, status: Status) {
        match status {
            Status::Ended(status) => self.on_end(tid, status),
            Status::Signal(signal) => match self.our_stop(tid, signal) {
                Some(sequence) => self.on_our_stop(tid, sequence),
                None if signal == libc::SIGTRAP && is_stray_trap(tid) => {
                    add(&self.costs.stop.stray_traps, 1);
                    self.resume(tid, 0);
                }
                None => self.on_foreign_signal(tid, signal),
            },
            Status::Event(event, signal) => self.on_event(tid, event, signal),
        }
    }

    /// Ours is a signal from the kernel, with the number that the newest sample of this thread
    /// chose, once a sample: the kernel itself sends `SIGURG` for a socket and `SIGWINCH` for a
    /// terminal. Returns the sample's sequence.
    fn our_stop(&self, tid: u32, signal: i32) -> Option<u64> {
        let thread = self.tracees.threads.get(&tid)?;
        let candidate = rules::STOP_SIGNALS.contains(&(signal as u32));
        if !candidate || ptrace::signal_code(tid).ok() != Some(SI_KERNEL) {
            return None;
        }
        let (sequence, asked) = match &thread.awaited {
            Some(awaited) => (awaited.0.sequence, awaited.0.signal),
            // The sample's record was lost in a full ring; the kernel side still knows that it asked.
            None => self.kernel.newest_stop(tid)?,
        };
        (asked == signal as u32 && sequence != thread.served).then_some(sequence)
    }

    /// The thread stands at the sampled instruction: find its next access, arm, resume.
    fn on_our_stop(&mut self, tid: u32, sequence: u64) {
        let awaited = self.tracees.threads.get_mut(&tid).and_then(|thread| {
            thread.served = sequence;
            thread.awaited.take()
        });
        let Some(awaited) = awaited else {
            self.resume(tid, 0);
            return;
        };
        let (record, stack) = *awaited;
        let woken_ns = self.stopped_for(&record);
        let regs = ptrace::registers(tid);
        if let Ok(regs) = &regs {
            add(&self.costs.stop.skidded_stops, u64::from(regs.rip != record.regs.rip));
        }
        let in_time = self.left_of_stop(&record) > 0;
        add(&self.costs.stop.late_stops, u64::from(!in_time));
        // Taken out of the state, to read the window while the rest is in use.
        let mut windows = self.windows.take();
        let taken = match (&regs, &mut windows) {
            (Ok(regs), Some(windows)) if in_time => self.take_window(windows, tid, &record, regs),
            _ => None,
        };
        let looked_ns = self.stopped_for(&record);
        let (mut access, wish) = match (&taken, &regs) {
            (_, Err(_)) => (Err("thread gone"), None),
            // The kind of access is read after the resume.
            (Some(taken), _) if taken.has_accesses() => {
                (Err("stopped too late"), taken.candidate.map(ArmRequest::from))
            }
            (_, Ok(regs)) => {
                let found = find_use(&record, &registers(regs));
                let wish = found.ok().and_then(|access| ArmRequest::of(&record, &access));
                (found.map(|access| model_access(&access)), wish)
            }
        };
        let starter = PerfEvent::starter(tid).ok().filter(|_| in_time);
        self.end_waiting(record.header.tgid);
        let trap_cost = taken.as_ref().and_then(|taken| self.measurable_words(&record, taken));
        let share = self.trap_cost.share();
        let armed = match (trap_cost, wish) {
            _ if !in_time => ArmOutcome::None,
            (Some(words), _) if self.random.f64() < share && self.may_slow() => {
                self.arm_trap_measurement(&record, words, starter.as_ref());
                ArmOutcome::None
            }
            (trap_cost, Some(wish)) => {
                let chance = if trap_cost.is_some() { 1.0 - share } else { 1.0 };
                self.arm(&record, tid, ArmRequest { chance, ..wish }, starter.as_ref())
            }
            _ => ArmOutcome::None,
        };
        let wanted = match &taken {
            Some(_) => self.start_meter(tid, &record, starter.as_ref()),
            None => None,
        };
        drop(starter);
        let armed_ns = self.stopped_for(&record);
        let threads = &self.tracees.threads;
        let is_alone = threads.len() == 1;
        let may_wait = || threads.values().all(|thread| thread.awaited.is_none()) && !ptrace::has_status();
        let mut place = std::mem::take(&mut self.place);
        // After the resume it goes on, and we may not for a while.
        let mut stopped_ns = 0;
        place.hand_back(record.header.cpu, is_alone, may_wait, || {
            stopped_ns = self.stopped_for(&record);
            self.resume(tid, 0);
        });
        self.place = place;
        tracing::trace!(cpu = record.header.cpu, woken_ns, looked_ns, armed_ns, stopped_ns, "stop");
        add(&self.costs.stop.stop_ns, stopped_ns);
        add(&self.costs.stop.stops, 1);
        self.costs.stop.longest_stop_ns.fetch_max(stopped_ns, std::sync::atomic::Ordering::Relaxed);
        if let ArmOutcome::Armed(id, ..) = &armed {
            self.arm_elsewhere(*id);
        }
        self.note_switches(tid);
        let window = taken.map(|taken| Box::new(taken.finish(wanted, &self.settings.code)));
        if let (Some(window), Some(windows)) = (&window, &mut windows) {
            tracing::trace!(counts = ?window.counts, end = ?window.end, stopped_ns, "window");
            self.weigh_choice(window, &armed);
            access = window.first.map_or(access, Ok);
            windows.observe(record.header.tgid, window, sys::monotonic_ns());
        }
        self.windows = windows;
        if !in_time {
            access = access.and(Err("stopped too late"));
        }
        let fs_base = regs.as_ref().ok().map(|regs| regs.fs_base);
        // Other threads are armed after the resume of this thread, without a waiting thread.
        self.send_sample(
            SampleEvent { record, stack, held: true, fs_base, access, watches: Vec::new(), window },
            armed,
        );
    }

    /// Time for which a sample's thread has stood still. The thread stops at the sample, unless
    /// another thread takes its CPU before the return to user mode: then it stops at its next turn,
    /// and wakes the capture thread.
    fn stopped_for(&self, record: &SampleRecord) -> u64 {
        let since_ns = record.header.time_ns.max(self.woken_ns.saturating_sub(WAKING_NS));
        sys::monotonic_ns().saturating_sub(since_ns)
    }

    /// Time that the stop of a sample may still take.
    pub(super) fn left_of_stop(&self, record: &SampleRecord) -> u64 {
        self.settings.max_stop_ns.saturating_sub(self.stopped_for(record))
    }

    /// Sends a sample, and arms its granted watch in the other threads.
    pub(super) fn send_sample(&mut self, mut sample: SampleEvent, armed: ArmOutcome) {
        let tid = sample.record.header.tid;
        match &armed {
            ArmOutcome::None => {}
            ArmOutcome::Armed(id, of_use, companions) => {
                sample.watches.extend(std::iter::once(id).chain(companions).map(|id| (*id, *of_use)));
            }
            ArmOutcome::Refused(watch, of_use) => sample.watches.push((watch.id, *of_use)),
        }
        self.send(Event::Sample(Box::new(sample)));
        match armed {
            ArmOutcome::None => {}
            ArmOutcome::Armed(id, ..) => self.arm_siblings(id, tid),
            ArmOutcome::Refused(watch, _) => {
                let now = watch.armed_ns;
                self.end_watch(*watch, 1.0, now, EndOutcome::Refused);
            }
        }
    }

    /// Ends the watches of a process whose reuse is so old that a later touch would not count. This
    /// happens before the arbiter's next decisions, which must not change the weight of a finished
    /// watch.
    pub(super) fn end_waiting(&mut self, tgid: u32) {
        let now_ns = sys::monotonic_ns();
        let Some(process) = self.tracees.processes.get_mut(&tgid) else { return };
        let is_over = |watch: &mut Watch| {
            let reuse = watch.reused.as_ref().map(|(reuse, _)| reuse.trap.record.header.time_ns);
            reuse.is_some_and(|then_ns| now_ns.saturating_sub(then_ns) > rules::NEAR_NS)
        };
        let over: Vec<u64> = process
            .watched
            .values()
            .copied()
            .filter(|id| self.watches.get_mut(*id).is_some_and(is_over))
            .collect();
        for id in over {
            self.end_unseen(id, now_ns);
        }
    }

    /// Arms a watch for a use if the arbiter grants it; in a stopped thread with its `starter`.
    pub(super) fn arm(
        &mut self,
        record: &SampleRecord,
        owner: u32,
        wish: ArmRequest,
        starter: Option<&PerfEvent>,
    ) -> ArmOutcome {
        self.try_arm(record, owner, wish, starter).unwrap_or(ArmOutcome::None)
    }

    fn try_arm(
        &mut self,
        record: &SampleRecord,
        owner: u32,
        wish: ArmRequest,
        starter: Option<&PerfEvent>,
    ) -> Option<ArmOutcome> {
        let ArmRequest { word: address, earlier, repeats, of_use, companions, chance } = wish;
        let tgid = record.header.tgid;
        self.end_companions(tgid, || EndOutcome::Replaced);
        if !self.may_watch(owner) {
            add(&self.costs.watch.unguarded, 1);
            return None;
        }
        self.end_waiting(tgid);
        if !self.may_slow() {
            add(&self.costs.trap.unaffordable, 1);
            return None;
        }
        let process = self.tracees.processes.get_mut(&tgid)?;
        if process.watched.contains_key(&address) {
            add(&self.costs.watch.watched_already, 1);
            return None;
        }
        let id = self.watches.next_id();
        let decision = process.arbiter.offer(ArbiterKey(id));
        let alive = process.threads.len() as u32;
        // The register must be free before it is taken again; the counts follow after the resume.
        if let Some(ended) = decision.evict {
            self.give_up(ended, EndOutcome::Replaced);
        }
        if !decision.arm {
            return None;
        }
        add(&self.costs.watch.armed, 1);
        let mut watch =
            // Only a thread that stands still is known to make the next use.
            Watch::new(id, tgid, address, earlier, if record.signal != 0 { owner } else { 0 });
        (watch.no_turns, watch.user_only) = (repeats, self.settings.user_only);
        watch.p_arm = decision.p_arm * chance;
        watch.threads_alive = alive;
        watch.armed_ns = sys::monotonic_ns();
        let announced = self.kernel.add_watch(watch.key(), watch.state());
        let armed =
            announced.and_then(|()| Ok(watch.arm_in(owner, earlier + 2, self.programs.fd(), starter)?));
        let process = self.tracees.processes.get_mut(&tgid)?;
        if let Err(error) = armed {
            tracing::debug!("watch refused in thread {owner}: {error:#}");
            process.arbiter.refused(ArbiterKey(id));
            let is_gone = error.chain().any(|cause| {
                let cause = cause.downcast_ref::<std::io::Error>();
                cause.and_then(std::io::Error::raw_os_error) == Some(libc::ESRCH)
            });
            if is_gone {
                // It was killed in the stop: no register was refused.
                self.costs.watch.armed.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
                self.kernel.remove_watch(&watch.key());
                return None;
            }
            return Some(ArmOutcome::Refused(Box::new(watch), of_use));
        }
        process.watched.insert(address, id);
        let elsewhere = self.places_elsewhere(tgid, address);
        watch.elsewhere = elsewhere;
        if alive > 1 || !watch.elsewhere.is_empty() {
            watch.process_cpu_ns = sys::process_cpu_ns(tgid).unwrap_or(0);
        }
        let held = watch.owner != 0;
        self.watches.insert(watch);
        self.note_armed(tgid);
        if starter.is_some() && self.left_of_stop(record) > ELSEWHERE_NS {
            self.arm_waiting_elsewhere(id);
        }
        let companions = if held { self.arm_companions(id, owner, companions, starter) } else { Vec::new() };
        Some(ArmOutcome::Armed(id, of_use, companions))
    }

    /// Watches other words of the same line with free registers, until the next sample of the
    /// process needs them. The first touch of any of these words is the line's reuse. In the owner
    /// alone; best effort. Where longer watches take all registers for long, one of them ends now and
    /// then ([`Lines::is_due`](super::tracees::Lines::is_due)).
    fn arm_companions(
        &mut self,
        follows: u64,
        owner: u32,
        words: [Option<u64>; COMPANIONS],
        starter: Option<&PerfEvent>,
    ) -> Vec<u64> {
        let mut armed = Vec::new();
        let Some(watch) = self.watches.get_mut(follows) else { return armed };
        let (tgid, p_arm, word) = (watch.tgid, watch.p_arm, watch.address);
        let is_new =
            |word: &u64| self.tracees.processes.get(&tgid).is_some_and(|p| !p.watched.contains_key(word));
        if !words.iter().flatten().any(is_new) {
            return armed;
        }
        let ended = self.tracees.room_for_companion(tgid);
        let has_room = ended.is_some();
        if let Some(ended) = ended {
            self.give_up(ended, EndOutcome::Replaced);
        }
        for address in words.into_iter().flatten() {
            let Some(process) = self.tracees.processes.get(&tgid) else { break };
            if process.arbiter.granted() + armed.len() >= process.arbiter.owned() {
                break;
            }
            if process.watched.contains_key(&address) {
                continue;
            }
            let mut watch = Watch::new(self.watches.next_id(), tgid, address, 0, owner);
            (watch.follows, watch.p_arm) = (Some(Followed { id: follows, word }), p_arm);
            watch.user_only = self.settings.user_only;
            watch.threads_alive = process.threads.len() as u32;
            watch.armed_ns = sys::monotonic_ns();
            let id = watch.id;
            if !self.arm_beside(watch, 1, starter) {
                break;
            }
            add(&self.costs.watch.armed, 1);
            armed.push(id);
        }
        if let Some(process) = self.tracees.processes.get_mut(&tgid) {
            process.lines.followed += u32::from(!armed.is_empty() || has_room);
        }
        armed
    }

    /// Arms a watch in its owner for a number of traps, with a register left by the arbiter; false
    /// if the kernel refuses.
    pub(super) fn arm_beside(&mut self, mut watch: Watch, traps: u32, starter: Option<&PerfEvent>) -> bool {
        let announced = self.kernel.add_watch(watch.key(), watch.state());
        if let Err(error) =
            announced.and_then(|()| Ok(watch.arm_in(watch.owner, traps, self.programs.fd(), starter)?))
        {
            tracing::debug!("no further watch in thread {}: {error:#}", watch.owner);
            self.kernel.remove_watch(&watch.key());
            return false;
        }
        if let Some(process) = self.tracees.processes.get_mut(&watch.tgid) {
            process.watched.insert(watch.address, watch.id);
        }
        let tgid = watch.tgid;
        self.watches.insert(watch);
        self.note_armed(tgid);
        true
    }

    /// Ends what still waits beside the watches of a process, and its measurement of traps.
    pub(super) fn end_companions(&mut self, tgid: u32, outcome: fn() -> EndOutcome) {
        for id in self.watches.companions(tgid) {
            if let Some(watch) = self.watches.remove(id) {
                self.end_watch(watch, 1.0, sys::monotonic_ns(), outcome());
            }
        }
    }

    /// Whether a trap without its cause (see [`is_stray_trap`]) would be caught in this thread.
    pub(super) fn may_watch(&self, tid: u32) -> bool {
        self.settings.watch_unheld || self.tracees.threads.get(&tid).is_some_and(|thread| thread.held)
    }

    /// Arms a watch in the other threads of the process: the reuse may be theirs.
    fn arm_siblings(&mut self, id: u64, owner: u32) {
        let Some(tgid) = self.watches.get_mut(id).map(|watch| watch.tgid) else { return };
        let mut siblings = self.tracees.siblings(tgid, owner, super::SIBLINGS);
        siblings.retain(|tid| self.may_watch(*tid));
        let Some(watch) = self.watches.get_mut(id) else { return };
        // Without a stop, the use too may be anybody's.
        let traps = if watch.owner == 0 { 2 } else { 1 };
        for tid in siblings {
            if let Err(error) = watch.arm_in(tid, traps, self.programs.fd(), None) {
                tracing::trace!("not armed in thread {tid}: {error}");
            }
        }
    }

    /// Delivers a signal of the program. A thread is released where its signals make stops too
    /// expensive.
    fn on_foreign_signal(&mut self, tid: u32, signal: i32) {
        add(&self.costs.stop.foreign_stops, 1);
        if !self.tracees.threads.contains_key(&tid) {
            // Not known: a thread that was born while we were about to end.
            let _ = ptrace::detach(tid, signal);
            return;
        }
        match self.imposes_too_much(tid) {
            true => self.release(tid, signal, "its own signals would make every stop costly"),
            false => self.resume(tid, signal),
        }
    }

    fn release(&mut self, tid: u32, signal: i32, reason: &str) {
        self.kernel.unhold(tid);
        if !self.settings.watch_unheld {
            self.watches.iter_mut().for_each(|watch| watch.disarm_in(tid));
        }
        if let Err(error) = ptrace::detach(tid, signal) {
            tracing::debug!("thread {tid} not released: {error}");
            self.resume(tid, signal);
            return;
        }
        if let Some(thread) = self.tracees.threads.get_mut(&tid) {
            (thread.held, thread.announces_clones) = (false, false);
            thread.settling_since_ns = Some(sys::monotonic_ns() + REST_NS);
        }
        self.send(Event::ThreadReleased { tid, reason: reason.to_owned() });
    }

    fn on_event(&mut self, tid: u32, event: i32, signal: i32) {
        match event {
            libc::PTRACE_EVENT_STOP => match signal {
                libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                    // The program was stopped by another process: it stays stopped, and SIGCONT
                    // will wake it.
                    let _ = ptrace::listen(tid);
                }
                _ => self.on_clone_event(tid),
            },
            libc::PTRACE_EVENT_EXEC => self.on_exec(tid),
            _ => self.on_parent_of_clone(tid),
        }
    }

    /// The parent's half of a birth. Where births cost too much, they are read from the ring from
    /// now on, and newborn threads are seized while running, once old enough.
    fn on_parent_of_clone(&mut self, tid: u32) {
        add(&self.costs.stop.clone_stops, 1);
        if self.imposes_too_much(tid)
            && ptrace::ignore_clones(tid).is_ok()
            && let Some(thread) = self.tracees.threads.get_mut(&tid)
        {
            thread.announces_clones = false;
        }
        self.resume(tid, 0);
    }

    /// Cost of a stop from its cause to the answer: the mean of the tool's own stops, the only ones
    /// with a start time.
    fn charge_imposed_stop(&self) -> u64 {
        let stops = get(&self.costs.stop.stops).max(1);
        let cost_ns =
            (get(&self.costs.stop.stop_ns) / stops).clamp(IMPOSED_STOP_MIN_NS, self.settings.max_stop_ns);
        add(&self.costs.stop.imposed_ns, cost_ns);
        cost_ns
    }

    /// Charges an imposed stop to the thread; true when such stops take more than half of the budget.
    fn imposes_too_much(&mut self, tid: u32) -> bool {
        let cost_ns = self.charge_imposed_stop();
        let allowed_ns = (self.settings.budget * 0.5e9) as u64;
        let now = sys::monotonic_ns();
        self.tracees
            .threads
            .get_mut(&tid)
            .is_some_and(|thread| thread.imposed.exceeds(now, cost_ns, allowed_ns))
    }

    /// A new thread stands before its first instruction: it is recorded and armed first.
    fn on_clone_event(&mut self, tid: u32) {
        if !self.tracees.threads.contains_key(&tid)
            && let Ok(status) = proc::status(tid)
        {
            self.charge_imposed_stop();
            add(&self.costs.stop.clone_stops, 1);
            self.adopt(status.tgid, tid, Holding::Held);
            let is_shared = |watch: &&mut Watch| watch.tgid == status.tgid && !watch.measures_trap;
            for watch in self.watches.iter_mut().filter(is_shared) {
                watch.threads_alive += 1;
                if let Err(error) = watch.arm_in(tid, 1, self.programs.fd(), None) {
                    tracing::trace!("not armed in new thread {tid}: {error}");
                }
            }
        }
        self.resume(tid, 0);
    }

    /// The process runs another program, which is let go until it has settled.
    fn on_exec(&mut self, tid: u32) {
        self.become_another_program(tid);
        if let Err(error) = ptrace::detach(tid, 0) {
            tracing::debug!("thread {tid} not released: {error}");
        }
    }

    fn on_end(&mut self, tid: u32, status: i32) {
        if self.heartbeat.watchdog() == tid {
            self.lose_watchdog();
            return;
        }
        // First of all, because the parent may reap the process now.
        if let Some(thread) = self.tracees.threads.get(&tid)
            && let Some(process) = self.tracees.processes.get_mut(&thread.tgid)
        {
            process.cpu_ns = process.cpu_ns.max(sys::process_cpu_ns(thread.tgid).unwrap_or(0));
        }
        self.forget_thread(tid);
        if self.launched == Some(tid) {
            self.launched = None;
            self.send(Event::CommandEnded(status));
        }
        self.send_if_alone();
    }

    /// Removes a dead thread, and with the last thread its process.
    pub(super) fn forget_thread(&mut self, tid: u32) {
        self.give_up_again(tid);
        let Some(thread) = self.tracees.remove(tid) else { return };
        self.kernel.unhold(tid);
        if let Some(awaited) = thread.awaited {
            add(&self.costs.stop.missed_stops, 1);
            self.send_unseized_sample(*awaited, "thread ended before its stop");
        }
        for watch in self.watches.iter_mut() {
            watch.disarm_in(tid);
        }
        self.kernel.remove_meter(tid);
        if let Some(place) = thread.counted {
            self.places.end(&mut self.kernel, tid, place);
        }
        self.send(Event::ThreadEnded { tid, time_ns: sys::monotonic_ns() });
        if self.tracees.is_empty(thread.tgid) && !self.pending.has_process(thread.tgid) {
            self.end_process(thread.tgid, 0);
        }
    }

    /// All threads of a process have ended, after this CPU time.
    pub(super) fn end_process(&mut self, tgid: u32, cpu_ns: u64) {
        self.end_process_watches(tgid);
        self.forget_windows(tgid);
        let process = self.tracees.processes.remove(&tgid);
        // A process without an earlier record was born during the trace.
        let (known_ns, is_newborn) =
            process.map_or((0, true), |process| (process.cpu_ns, process.is_newborn));
        self.note_end(tgid, known_ns.max(cpu_ns), is_newborn);
        if let Some(heap) = &self.settings.heap {
            heap.ended(tgid, sys::monotonic_ns());
        }
        self.kernel.remove_target(tgid);
        self.heartbeat.forget(tgid);
    }

    /// What a process used, for the controller.
    fn note_end(&mut self, pid: u32, known_ns: u64, is_newborn: bool) {
        let cpu_ns = known_ns.max(sys::process_cpu_ns(pid).unwrap_or(0));
        self.ended.push(Ended { pid, cpu_ns, is_newborn });
        // Whoever holds it may be without a CPU: then with the next one.
        if let Ok(mut ended) = self.costs.cpu.ended.try_lock() {
            ended.append(&mut self.ended);
        }
    }

    /// Says so when the last target is gone.
    pub(super) fn send_if_alone(&self) {
        // The end of the launched command is reported with its status.
        let is_alone = self.tracees.threads.is_empty() && self.pending.is_empty();
        if self.had_targets && self.launched.is_none() && is_alone {
            self.send(Event::NoTargets);
        }
    }

    pub(super) fn send_unseized_sample(&self, (record, stack): (SampleRecord, Vec<u8>), why: &'static str) {
        self.send(Event::Sample(Box::new(SampleEvent {
            record,
            stack,
            held: false,
            fs_base: None,
            access: Err(why),
            watches: Vec::new(),
            window: None,
        })));
    }

    /// Sends samples whose stop never came, without a stop.
    pub(super) fn flush_awaited(&mut self) {
        let awaited: Vec<_> =
            self.tracees.threads.values_mut().filter_map(|thread| thread.awaited.take()).collect();
        for sample in awaited {
            add(&self.costs.stop.missed_stops, 1);
            self.send_unseized_sample(*sample, "trace ended before its stop");
        }
    }

    fn resume(&self, tid: u32, signal: i32) {
        if let Err(error) = ptrace::resume(tid, signal) {
            // Killed in the stop: its end is reported next.
            tracing::debug!("thread {tid} not resumed: {error}");
        }
    }
}

/// Whether a thread is about to get a fatal `SIGTRAP` for a trap without its cause.
///
/// In a virtual machine the host may lose the guest's debug status between the trap and the
/// handler's look at it (KVM before Linux 6.14, as far as we can tell: the host could not be looked
/// into). The kernel then takes the watchpoint's trap for an `INT1` of the program
/// (`exc_debug_user` in arch/x86/kernel/traps.c). Measured here: about one trap in 36,000. A real
/// `INT1` stands before the instruction pointer, or at it: some hosts with AMD processors do not go
/// on after it, and a program that does that by itself in its handler would trap for ever.
fn is_stray_trap(tid: u32) -> bool {
    let Ok(registers) = ptrace::registers(tid) else { return false };
    let is_other = |at| ptrace::code_byte(tid, at).is_ok_and(|byte| byte != INT1);
    ptrace::signal_code(tid).is_ok_and(|code| code == TRAP_WITHOUT_STATUS)
        && is_other(registers.rip.wrapping_sub(1))
        && is_other(registers.rip)
}

/// Runs the decoder once, to have its tables in memory before a thread waits.
pub(super) fn warm_up() {
    // `mov rax, [rsp]`; the answer does not matter.
    let code = Code { address: 0, bytes: &[0x48, 0x8b, 0x04, 0x24] };
    std::hint::black_box(first_access(&code, &Registers::default()).ok());
}

/// The first access at or after the instruction pointer, if a watchpoint can cover the access.
pub(super) fn find_use(record: &SampleRecord, registers: &Registers) -> Result<KnownAccess, &'static str> {
    watchable(next_access(record, registers)?)
}

/// The access sampled by the hardware, some instructions before the interrupt. Only size and
/// direction are taken from the instruction, because the registers are the interrupt's.
pub(super) fn sampled_access(
    record: &SampleRecord,
    interrupted: Registers,
) -> Result<KnownAccess, &'static str> {
    let access = next_access(record, &Registers { rip: record.accessed_by, ..interrupted })?;
    if access.ip != record.accessed_by {
        return Err("no access at the sampled instruction");
    }
    watchable(KnownAccess { address: record.address, ..access })
}

fn next_access(record: &SampleRecord, registers: &Registers) -> Result<KnownAccess, &'static str> {
    if record.regs.cs != USER_CODE_64 {
        return Err("32-bit code");
    }
    let bytes = record.code.bytes.get(..record.code.len as usize).unwrap_or_default();
    if bytes.is_empty() {
        return Err("code not readable");
    }
    first_access(&Code { address: record.code.start, bytes }, registers).map_err(|why| why.phrase())
}

fn watchable(access: KnownAccess) -> Result<KnownAccess, &'static str> {
    match (LOWEST_ADDRESS..HIGHEST_ADDRESS).contains(&access.address) {
        true => Ok(access),
        false => Err("address outside the program"),
    }
}

/// An access as the model has it.
pub(super) fn model_access(access: &KnownAccess) -> Access {
    Access { ip: access.ip, address: access.address, size: access.size, kind: kind(access.kind) }
}

/// Registers as the instruction-set package wants them.
pub(super) fn registers(regs: &libc::user_regs_struct) -> Registers {
    registers_of!(regs)
}

#[cfg(test)]
mod tests {
    use locality_common::record::{CODE_BYTES, read_plain};

    use super::*;

    /// A record of a hardware sample, the interrupt some instructions after the access.
    fn sampled(code: &[u8]) -> SampleRecord {
        let mut record: SampleRecord = read_plain(&[0; size_of::<SampleRecord>()]).unwrap();
        (record.address, record.accessed_by) = (0x7000_0040, 0x1000);
        (record.regs.cs, record.regs.rip) = (USER_CODE_64, 0x1004);
        (record.code.start, record.code.len) = (0x1000, CODE_BYTES as u32);
        record.code.bytes[..code.len()].copy_from_slice(code);
        record
    }

    #[test]
    fn a_sampled_access_is_where_the_hardware_says() {
        // `mov eax, [rbx + 8]`, and what loads into `rbx` afterwards: the registers no longer tell
        // the address.
        let record = sampled(&[0x8b, 0x43, 0x08, 0x90, 0x48, 0x8b, 0x1e]);
        let later = Registers { rip: 0x1004, rsi: 0x7000_1000, rbx: 0x5555_0000, ..Registers::default() };
        let access = sampled_access(&record, later).unwrap();
        assert_eq!((access.ip, access.address, access.size), (0x1000, 0x7000_0040, 4));
        // From where the thread stands the next access is another.
        let next = find_use(&record, &later).unwrap();
        assert_eq!((next.ip, next.address, next.size), (0x1004, 0x7000_1000, 8));
    }

    #[test]
    fn what_does_not_fit_the_sample_is_no_access() {
        let later = Registers { rip: 0x1004, ..Registers::default() };
        // `nop` first: the code has changed, or the instruction pointer is not the access's.
        let moved = sampled(&[0x90, 0x8b, 0x43, 0x08]);
        assert_eq!(sampled_access(&moved, later), Err("no access at the sampled instruction"));
        let kernels = SampleRecord { address: 1 << 63, ..sampled(&[0x8b, 0x43, 0x08]) };
        assert_eq!(sampled_access(&kernels, later), Err("address outside the program"));
        let far = SampleRecord { accessed_by: 0x9000, ..sampled(&[0x8b, 0x43, 0x08]) };
        assert!(sampled_access(&far, later).is_err(), "its code was not copied");
    }
}
